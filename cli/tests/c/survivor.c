/* A client that outlives its servers. It pings the server at ADDRESS as `rping -c` does, until the server dies. Then
 * it expects one event for the end of the connection and one completion for each of its requests, and connects again,
 * for ever. Meanwhile another thread serves clients as `rdma_server` does. The program prints a line for each
 * connection, ping, end, and served client.
 *
 *   survivor ADDRESS */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s, errno %d (%s)\n", __FILE__, __LINE__, #what, errno, strerror(errno)); \
	_exit(1); } } while (0)

#define RPING_PORT 7174
#define SIZE 64
#define RECEIVES 8

/* The messages of rping's ends. */
struct info { uint64_t buf; uint32_t rkey, size; };

struct end {
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct { struct info sent, got[RECEIVES]; char source[SIZE], sink[SIZE]; } memory;
	/* Numbers of requests: posted, completed, and completed as flushed. */
	unsigned posted, done, flushed;
	/* Number of messages that have arrived. */
	unsigned arrived;
	/* Whether an event of each kind has arrived. */
	bool seen[RDMA_CM_EVENT_TIMEWAIT_EXIT + 1];
};

static bool failed(const struct end *e)
{
	return e->seen[RDMA_CM_EVENT_UNREACHABLE] || e->seen[RDMA_CM_EVENT_REJECTED] || e->seen[RDMA_CM_EVENT_CONNECT_ERROR] ||
		e->seen[RDMA_CM_EVENT_DISCONNECTED];
}

static void receive(struct end *e, uint64_t which)
{
	struct ibv_sge sge = { (uintptr_t)&e->memory.got[which], sizeof e->memory.got[which], e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = which, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(!ibv_post_recv(e->id->qp, &wr, &bad));
	e->posted++;
}

static void tell(struct end *e, const char *memory)
{
	e->memory.sent = (struct info){ htobe64((uintptr_t)memory), htobe32(e->mr->rkey), htobe32(SIZE) };
	struct ibv_sge sge = { (uintptr_t)&e->memory.sent, sizeof e->memory.sent, e->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = RECEIVES, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(!ibv_post_send(e->id->qp, &wr, &bad));
	e->posted++;
}

/* Sleeps until an event or a completion arrives. Takes one event, and all completions. */
static void look(struct end *e)
{
	struct pollfd fds[2] = { { .fd = e->events->fd, .events = POLLIN }, { .events = POLLIN, .fd = e->channel ? e->channel->fd : -1 } };
	CHECK(poll(fds, 2, -1) > 0);
	if (fds[0].revents) {
		struct rdma_cm_event *event;
		CHECK(!rdma_get_cm_event(e->events, &event));
		CHECK(event->id == e->id && event->event <= RDMA_CM_EVENT_TIMEWAIT_EXIT && !e->seen[event->event]);
		e->seen[event->event] = true;
		CHECK(!rdma_ack_cm_event(event));
	}
	if (fds[1].revents) {
		struct ibv_cq *cq;
		void *context;
		struct ibv_wc wc;
		CHECK(!ibv_get_cq_event(e->channel, &cq, &context) && cq == e->cq);
		ibv_ack_cq_events(cq, 1);
		CHECK(!ibv_req_notify_cq(cq, 0));
		while (ibv_poll_cq(cq, 1, &wc) > 0) {
			e->done++;
			CHECK(e->done <= e->posted);
			if (wc.status != IBV_WC_SUCCESS) {
				e->flushed++;
				continue;
			}
			CHECK(!e->flushed && wc.qp_num == e->id->qp->qp_num);
			if (wc.opcode == IBV_WC_RECV) {
				e->arrived++;
				receive(e, wc.wr_id);
			}
		}
	}
}

static bool until(struct end *e, enum rdma_cm_event_type event)
{
	while (!e->seen[event] && !failed(e))
		look(e);
	return e->seen[event];
}

/* Offers a buffer to the peer, and waits until the peer has used it. Returns false if the peer is gone. */
static bool answered(struct end *e, const char *memory)
{
	unsigned before = e->arrived;
	tell(e, memory);
	while (e->arrived == before && !failed(e))
		look(e);
	return e->arrived > before;
}

static void end_of(struct end *e)
{
	if (e->id->qp)
		rdma_destroy_qp(e->id);
	if (e->mr)
		CHECK(!ibv_dereg_mr(e->mr));
	if (e->cq)
		CHECK(!ibv_destroy_cq(e->cq));
	if (e->channel)
		CHECK(!ibv_destroy_comp_channel(e->channel));
	CHECK(!rdma_destroy_id(e->id));
	rdma_destroy_event_channel(e->events);
}

/* Runs one connection from its beginning to its end. */
static void connection(const char *address)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(RPING_PORT) };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };
	struct end e = { 0 };
	CHECK(inet_pton(AF_INET, address, &to.sin_addr) == 1);
	e.events = rdma_create_event_channel();
	CHECK(e.events && !rdma_create_id(e.events, &e.id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(e.id, NULL, (struct sockaddr *)&to, 2000) && until(&e, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(!rdma_resolve_route(e.id, 2000) && until(&e, RDMA_CM_EVENT_ROUTE_RESOLVED));
	e.channel = ibv_create_comp_channel(e.id->verbs);
	CHECK(e.channel);
	e.cq = ibv_create_cq(e.id->verbs, 4 * RECEIVES, NULL, e.channel, 0);
	CHECK(e.cq && !ibv_req_notify_cq(e.cq, 0));
	struct ibv_qp_init_attr init = { .send_cq = e.cq, .recv_cq = e.cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 } };
	CHECK(!rdma_create_qp(e.id, NULL, &init));
	e.mr = ibv_reg_mr(e.id->pd, &e.memory, sizeof e.memory,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	CHECK(e.mr);
	for (uint64_t i = 0; i < RECEIVES; i++)
		receive(&e, i);
	CHECK(!rdma_connect(e.id, &param));
	if (!until(&e, RDMA_CM_EVENT_ESTABLISHED)) {
		end_of(&e);
		usleep(10000); /* no server yet */
		return;
	}
	puts("connected");
	for (unsigned n = 0;; n++) {
		snprintf(e.memory.source, SIZE, "ping %u of a survivor", n);
		memset(e.memory.sink, 0, SIZE);
		if (!answered(&e, e.memory.source) || !answered(&e, e.memory.sink))
			break;
		CHECK(!strcmp(e.memory.source, e.memory.sink));
		printf("ping %u\n", n);
	}
	/* Each posted request must complete once, and the event for the end of the connection must arrive. */
	while (e.done < e.posted || !e.seen[RDMA_CM_EVENT_DISCONNECTED])
		look(&e);
	CHECK(e.done == e.posted && e.flushed >= RECEIVES - 1);
	end_of(&e);
	puts("gone");
}

/* Serves clients of `rdma_client`, one after the other. */
static void *serve(void *arg)
{
	struct rdma_cm_id *listener = arg, *id;
	for (;;) {
		char message[16];
		struct ibv_wc wc;
		CHECK(!rdma_get_request(listener, &id));
		struct ibv_mr *mr = rdma_reg_msgs(id, message, sizeof message);
		CHECK(mr && !rdma_post_recv(id, NULL, message, sizeof message, mr));
		CHECK(!rdma_accept(id, NULL));
		CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		CHECK(!rdma_post_send(id, NULL, message, sizeof message, NULL, IBV_SEND_INLINE));
		CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		rdma_disconnect(id);
		CHECK(!rdma_dereg_mr(mr));
		rdma_destroy_ep(id);
		puts("served");
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *own;
	struct ibv_qp_init_attr init = { .sq_sig_all = 1,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 16 } };
	struct rdma_cm_id *listener;
	pthread_t thread;
	if (argc != 2)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(!rdma_getaddrinfo(NULL, "7471", &hints, &own) && !rdma_create_ep(&listener, own, NULL, &init));
	rdma_freeaddrinfo(own);
	CHECK(!rdma_listen(listener, 0) && !pthread_create(&thread, NULL, serve, listener));
	puts("listening");
	for (;;)
		connection(argv[1]);
}
