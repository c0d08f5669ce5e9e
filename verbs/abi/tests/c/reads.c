/* Reads into several pieces of memory, by both ways of posting, up to `max_sge_rd`. */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define ELEMENTS 32

static void create_qp(struct rdma_cm_id *id, struct ibv_qp_init_attr *init);
#define LINK_QP(id, init) create_qp(id, init)
#include "harness.h"

static void create_qp(struct rdma_cm_id *id, struct ibv_qp_init_attr *init)
{
	struct ibv_device_attr device;
	struct ibv_device_attr_ex extended;
	OK(ibv_query_device(id->verbs, &device));
	OK(ibv_query_device_ex(id->verbs, NULL, &extended));
	CHECK(device.max_sge_rd == ELEMENTS && device.max_sge == ELEMENTS && extended.orig_attr.max_sge_rd == ELEMENTS);
	struct ibv_qp_init_attr_ex ex = { .send_cq = init->send_cq, .recv_cq = init->recv_cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = init->cap, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = id->pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ };
	ex.cap.max_send_sge = device.max_sge_rd;
	OK(rdma_create_qp_ex(id, &ex));
	CHECK(ex.cap.max_send_sge >= ELEMENTS);
}

/* Computes what the reader's memory must be after a Read into these elements. */
static void model(char *memory, const char *base, const struct ibv_sge *sges, int n, const char *from)
{
	for (int i = 0; i < n; i++) {
		if (!sges[i].length)
			continue;
		memcpy(memory + (sges[i].addr - (uintptr_t)base), from, sges[i].length);
		from += sges[i].length;
	}
}

int main(void)
{
	static char expected[SIZE];
	struct link l;
	link_up(&l);
	struct rdma_cm_id *ids[2] = { l.client, l.server };
	srand(7);
	for (int round = 0; round < 200; round++) {
		int at = round % 2, n = round < 4 ? ELEMENTS : rand() % (ELEMENTS + 1);
		struct ibv_mr *mine = l.mr[at], *theirs = l.mr[1 - at];
		struct ibv_sge sges[ELEMENTS + 1];
		uint32_t total = 0;
		for (int i = 0; i < n; i++) {
			uint32_t len = rand() % 4 ? rand() % (SIZE / ELEMENTS) : 0;
			/* Elements of length 0 are ignored. */
			sges[i] = len ? (struct ibv_sge){ (uintptr_t)l.memory[at] + rand() % (SIZE - len), len, mine->lkey } :
				(struct ibv_sge){ rand(), 0, rand() };
			total += len;
		}
		for (int i = 0; i < SIZE; i++)
			l.memory[1 - at][i] = (char)rand();
		memcpy(expected, l.memory[at], SIZE);
		size_t from = rand() % (SIZE - total + 1);
		model(expected, l.memory[at], sges, n, l.memory[1 - at] + from);
		uint64_t remote = (uintptr_t)l.memory[1 - at] + from;
		if (round & 2) {
			struct ibv_send_wr wr = { .wr_id = round, .sg_list = sges, .num_sge = n, .opcode = IBV_WR_RDMA_READ,
				.wr.rdma = { remote, theirs->rkey } }, *bad;
			OK(ibv_post_send(ids[at]->qp, &wr, &bad));
			wr.num_sge = ELEMENTS + 1;
			FAILS(ibv_post_send(ids[at]->qp, &wr, &bad), EINVAL);
			CHECK(bad == &wr);
		} else {
			struct ibv_qp_ex *qp = SOME(ibv_qp_to_qp_ex(ids[at]->qp));
			ibv_wr_start(qp);
			qp->wr_id = round;
			qp->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_rdma_read(qp, theirs->rkey, remote);
			ibv_wr_set_sge_list(qp, n, sges);
			OK(ibv_wr_complete(qp));
		}
		struct ibv_wc wc = completion(l.cq[at]);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_READ && wc.wr_id == (uint64_t)round && wc.byte_len == total);
		CHECK(!memcmp(expected, l.memory[at], SIZE));
	}
	/* An element without a region: the request fails, and no element is written. */
	memset(l.memory[0], 0, SIZE);
	struct ibv_sge sges[3] = { { (uintptr_t)l.memory[0], 8, l.mr[0]->lkey }, { (uintptr_t)l.memory[0] + 8, 8, l.mr[0]->lkey + 1 },
		{ (uintptr_t)l.memory[0] + 16, 8, l.mr[0]->lkey } };
	struct ibv_send_wr wr = { .wr_id = 1000, .sg_list = sges, .num_sge = 3, .opcode = IBV_WR_RDMA_READ,
		.wr.rdma = { (uintptr_t)l.memory[1], l.mr[1]->rkey } }, *bad;
	OK(ibv_post_send(l.client->qp, &wr, &bad));
	struct ibv_wc wc = completion(l.cq[0]);
	CHECK(wc.status == IBV_WC_LOC_PROT_ERR && wc.wr_id == 1000);
	for (int i = 0; i < SIZE; i++)
		CHECK(!l.memory[0][i]);
	link_down(&l);
	puts("done");
	return 0;
}
