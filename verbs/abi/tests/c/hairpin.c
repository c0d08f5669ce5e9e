/* Client and server are in one process on one address. Tests Writes, Reads, Sends and atomics, and verifies the data.
 * Also tests unaligned structures, two contexts, the stamps of completions, and synchronous identifiers in two
 * threads. */
#include <stddef.h>

#include "harness.h"

static void fill(char *memory, size_t len, int seed)
{
	for (size_t i = 0; i < len; i++)
		memory[i] = (char)(i * 31 + seed);
}

static void expect(struct ibv_cq *cq, enum ibv_wc_opcode opcode, uint32_t len)
{
	struct ibv_wc wc = completion(cq);
	if (wc.status != IBV_WC_SUCCESS || wc.opcode != opcode || (len && wc.byte_len != len))
		failed(__FILE__, __LINE__, ibv_wc_status_str(wc.status), wc.opcode, (int)wc.byte_len);
}

/* Tests the operations, from the client to the server and back. */
static void operations(struct link *l)
{
	struct rdma_cm_id *ids[2] = { l->client, l->server };
	for (int from = 0; from < 2; from++) {
		int to = 1 - from;
		struct ibv_mr *mine = l->mr[from], *theirs = l->mr[to];
		struct ibv_send_wr wr = { .wr_id = 1 };
		fill(l->memory[from], 40000, from);

		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.wr.rdma.remote_addr = (uintptr_t)theirs->addr;
		wr.wr.rdma.rkey = theirs->rkey;
		OK(post(ids[from], mine, 0, 40000, &wr));
		expect(l->cq[from], IBV_WC_RDMA_WRITE, 0);

		/* A Read returns what was written, because it is ordered after the Write. */
		wr.opcode = IBV_WR_RDMA_READ;
		memset(l->memory[from], 0, 40000);
		OK(post(ids[from], mine, 0, 40000, &wr));
		expect(l->cq[from], IBV_WC_RDMA_READ, 0);
		CHECK(!memcmp(l->memory[from], l->memory[to], 40000));
		for (size_t i = 0; i < 40000; i++)
			CHECK(l->memory[from][i] == (char)(i * 31 + from));

		wr.opcode = IBV_WR_SEND;
		OK(post_receive(ids[to], theirs, 1000, 5000, 7));
		OK(post(ids[from], mine, 0, 3000, &wr));
		expect(l->cq[from], IBV_WC_SEND, 0);
		expect(l->cq[to], IBV_WC_RECV, 3000);
		CHECK(!memcmp(l->memory[from], l->memory[to] + 1000, 3000));

		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.imm_data = htonl(0xabcdef01);
		OK(post_receive(ids[to], theirs, 0, 8, 8));
		OK(post(ids[from], mine, 0, 100, &wr));
		expect(l->cq[from], IBV_WC_RDMA_WRITE, 0);
		struct ibv_wc wc = completion(l->cq[to]);
		CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == htonl(0xabcdef01) && wc.byte_len == 100);
		CHECK(wc.wr_id == 8 && wc.wc_flags & IBV_WC_WITH_IMM);

		uint64_t *word = (uint64_t *)l->memory[to], *old = (uint64_t *)l->memory[from];
		*word = 40;
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr.atomic.remote_addr = (uintptr_t)word;
		wr.wr.atomic.rkey = theirs->rkey;
		wr.wr.atomic.compare_add = 2;
		OK(post(ids[from], mine, 0, 8, &wr));
		expect(l->cq[from], IBV_WC_FETCH_ADD, 0);
		CHECK(*old == 40 && *word == 42);
		wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
		wr.wr.atomic.compare_add = 42;
		wr.wr.atomic.swap = 7;
		OK(post(ids[from], mine, 0, 8, &wr));
		expect(l->cq[from], IBV_WC_COMP_SWAP, 0);
		CHECK(*old == 42 && *word == 7);
	}
}

/* Requests, lists and completions in packed structures, so unaligned, as in libiscsi's descriptors. */
struct packed {
	char odd;
	struct ibv_send_wr send;
	char gap;
	struct ibv_sge sges[2];
	struct ibv_recv_wr receive;
	char other;
	struct ibv_sge into[2];
	struct ibv_wc wc;
	void *bad;
} __attribute__((packed));

static void unaligned(struct link *l)
{
	/* The fields are addressed as bytes, because a pointer to a packed member would be undefined behaviour of this
	 * program. */
	struct packed p = { 0 }, *at = &p;
#define AT(member) ((void *)((char *)at + offsetof(struct packed, member)))
	char *mine = l->mr[0]->addr, *theirs = l->mr[1]->addr;
	for (int i = 0; i < 2; i++) {
		p.into[i] = (struct ibv_sge){ (uintptr_t)theirs + 100 * i, 10 + 10 * i, l->mr[1]->lkey };
		p.sges[i] = (struct ibv_sge){ (uintptr_t)mine + 50 * i, 15, l->mr[0]->lkey };
	}
	p.receive = (struct ibv_recv_wr){ .wr_id = 70, .sg_list = AT(into), .num_sge = 2 };
	p.send = (struct ibv_send_wr){ .wr_id = 71, .sg_list = AT(sges), .num_sge = 2, .opcode = IBV_WR_SEND };
	CHECK((uintptr_t)AT(send) % 8 && (uintptr_t)AT(receive) % 8 && (uintptr_t)AT(sges) % 8 && (uintptr_t)AT(wc) % 8);
	for (int flags = 0; flags <= IBV_SEND_INLINE; flags += IBV_SEND_INLINE) {
		fill(mine, 100, flags);
		memset(theirs, 0, 300);
		p.send.send_flags = flags;
		OK(ibv_post_recv(l->server->qp, AT(receive), AT(bad)));
		OK(ibv_post_send(l->client->qp, AT(send), AT(bad)));
		while (ibv_poll_cq(l->cq[1], 1, AT(wc)) == 0)
			;
		CHECK(p.wc.status == IBV_WC_SUCCESS && p.wc.wr_id == 70 && p.wc.byte_len == 30);
		while (ibv_poll_cq(l->cq[0], 1, AT(wc)) == 0)
			;
		CHECK(p.wc.status == IBV_WC_SUCCESS && p.wc.wr_id == 71);
		for (int i = 0; i < 30; i++)
			CHECK(theirs[i < 10 ? i : 100 + i - 10] == mine[i / 15 * 50 + i % 15]);
	}
	/* A list that is too long for any queue, and inline payload at a null address. */
	p.receive.num_sge = 33;
	FAILS(ibv_post_recv(l->server->qp, AT(receive), AT(bad)), EINVAL);
	CHECK(p.bad == AT(receive));
	p.sges[0].addr = 0;
	p.send.num_sge = 1;
	FAILS(ibv_post_send(l->client->qp, AT(send), AT(bad)), EINVAL);
	CHECK(p.bad == AT(send));
#undef AT
}

/* Opens two contexts of one device. The objects of one outlive the other context. */
static void two_contexts(void)
{
	int count;
	struct ibv_device **list = SOME(ibv_get_device_list(&count));
	CHECK(count == 1);
	struct ibv_context *a = SOME(ibv_open_device(list[0])), *b = SOME(ibv_open_device(list[0]));
	ibv_free_device_list(list);
	CHECK(a != b && a->async_fd != b->async_fd);
	struct ibv_pd *pd_a = SOME(ibv_alloc_pd(a)), *pd_b = SOME(ibv_alloc_pd(b));
	char memory[64];
	struct ibv_mr *mr_a = SOME(ibv_reg_mr(pd_a, memory, sizeof memory, 0)), *mr_b = SOME(ibv_reg_mr(pd_b, memory, sizeof memory, 0));
	CHECK(mr_a->lkey != mr_b->lkey);
	OK(ibv_dereg_mr(mr_a));
	OK(ibv_dealloc_pd(pd_a));
	OK(ibv_close_device(a));
	OK(ibv_dereg_mr(mr_b));
	OK(ibv_dealloc_pd(pd_b));
	OK(ibv_close_device(b));
}

static uint64_t device_clock(struct ibv_context *verbs)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	OK(ibv_query_rt_values_ex(verbs, &values));
	CHECK(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	return (uint64_t)values.raw_clock.tv_sec * 1000000000 + (uint64_t)values.raw_clock.tv_nsec;
}

static uint64_t wall_clock(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Completions contain the time when they arrived, by the device's clock and by the wall clock. */
static void stamps(void)
{
	struct link l;
	link_up(&l);
	struct ibv_context *verbs = l.client->verbs;
	struct ibv_device_attr_ex device;
	OK(ibv_query_device_ex(verbs, NULL, &device));
	CHECK(device.hca_core_clock == 1000000 && device.completion_timestamp_mask == UINT64_MAX);
	struct ibv_cq_init_attr_ex ask = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
		IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK };
	struct ibv_cq_ex *cq = SOME(ibv_create_cq_ex(verbs, &ask));
	struct ibv_qp_init_attr init = qp_like(ibv_cq_ex_to_cq(cq));
	struct ibv_qp *qp = SOME(ibv_create_qp(l.client->pd, &init));
	struct ibv_poll_cq_attr none = { 0 };
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr *bad;
	IS(ibv_start_poll(cq, &none), ENOENT);
	for (uint64_t id = 1; id <= 3; id++)
		OK(ibv_post_recv(qp, &(struct ibv_recv_wr){ .wr_id = id }, &bad));
	uint64_t before = device_clock(verbs), wall_before = wall_clock();
	OK(ibv_modify_qp(qp, &error, IBV_QP_STATE)); /* flushes */
	while (ibv_start_poll(cq, &none))
		;
	uint64_t after, wall_after, last = before;
	/* The machine may set its wall clock meanwhile, by up to this many nanoseconds. */
	const uint64_t step = 100000000;
	for (uint64_t id = 1; id <= 3; id++) {
		uint64_t at = ibv_wc_read_completion_ts(cq), wall = ibv_wc_read_completion_wallclock_ns(cq);
		after = device_clock(verbs), wall_after = wall_clock();
		CHECK(cq->wr_id == id && cq->status == IBV_WC_WR_FLUSH_ERR && ibv_wc_read_opcode(cq) == IBV_WC_RECV);
		CHECK(at >= last && at <= after);
		CHECK(wall + step >= wall_before && wall <= wall_after + step);
		last = at;
		IS(ibv_next_poll(cq), id < 3 ? 0 : ENOENT);
	}
	ibv_end_poll(cq);
	OK(ibv_destroy_qp(qp));
	OK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	link_down(&l);
}

struct passive { struct rdma_cm_id *listener; };

/* Serves one client as rdma_server does. */
static void *serve(void *arg)
{
	struct passive *passive = arg;
	struct rdma_cm_id *id;
	char memory[64] = "";
	struct ibv_wc wc;
	OK(rdma_get_request(passive->listener, &id));
	struct ibv_mr *mr = SOME(rdma_reg_msgs(id, memory, sizeof memory));
	OK(rdma_post_recv(id, NULL, memory, sizeof memory, mr));
	OK(rdma_accept(id, NULL));
	IS(rdma_get_recv_comp(id, &wc), 1);
	CHECK(wc.status == IBV_WC_SUCCESS && !strcmp(memory, "question"));
	strcpy(memory, "answer");
	OK(rdma_post_send(id, NULL, memory, sizeof memory, mr, 0));
	IS(rdma_get_send_comp(id, &wc), 1);
	CHECK(wc.status == IBV_WC_SUCCESS);
	OK(rdma_disconnect(id));
	OK(rdma_dereg_mr(mr));
	rdma_destroy_ep(id);
	return NULL;
}

/* Synchronous identifiers: one thread serves, another asks; the server's address is numeric or "any". */
static void synchronous(bool any)
{
	char address[64], memory[64] = "question";
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = RAI_PASSIVE }, *res;
	struct ibv_qp_init_attr init = qp_like(NULL);
	struct passive passive;
	struct rdma_cm_id *id;
	struct ibv_wc wc;
	char port[16];
	pthread_t server;

	snprintf(address, sizeof address, "%s", getenv("URNIC_IP") ? getenv("URNIC_IP") : "127.0.0.1/8");
	*strchr(address, '/') = 0;
	OK(rdma_getaddrinfo(any ? NULL : address, "0", &hints, &res));
	OK(rdma_create_ep(&passive.listener, res, NULL, &init));
	rdma_freeaddrinfo(res);
	OK(rdma_listen(passive.listener, 0));
	/* A second call changes nothing: the requests below still arrive. */
	FAILS(rdma_listen(passive.listener, 0), EINVAL);
	snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(passive.listener)));
	OK(pthread_create(&server, NULL, serve, &passive));

	hints.ai_flags = 0;
	OK(rdma_getaddrinfo(address, port, &hints, &res));
	OK(rdma_create_ep(&id, res, NULL, &init));
	rdma_freeaddrinfo(res);
	struct ibv_mr *mr = SOME(rdma_reg_msgs(id, memory, sizeof memory));
	OK(rdma_post_recv(id, NULL, memory, sizeof memory, mr));
	OK(rdma_connect(id, NULL));
	OK(rdma_post_send(id, NULL, "question", 9, NULL, IBV_SEND_INLINE));
	IS(rdma_get_send_comp(id, &wc), 1);
	IS(rdma_get_recv_comp(id, &wc), 1);
	CHECK(wc.status == IBV_WC_SUCCESS && !strcmp(memory, "answer"));
	rdma_disconnect(id);
	OK(pthread_join(server, NULL));
	OK(rdma_dereg_mr(mr));
	rdma_destroy_ep(id);
	rdma_destroy_ep(passive.listener);
}

int main(void)
{
	struct link link;
	link_up(&link);
	operations(&link);
	unaligned(&link);
	link_down(&link);
	two_contexts();
	stamps();
	synchronous(false);
	synchronous(true);
	puts("done");
	return 0;
}
