/* Code shared by the test programs: checks that print where they fail, and a connection of a process with itself. */
#ifndef HARNESS_H
#define HARNESS_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

static inline void failed(const char *file, int line, const char *what, long answer, int number)
{
	fflush(stdout);
	fprintf(stderr, "%s:%d: %s: %ld, errno %d (%s)\n", file, line, what, answer, number, strerror(number));
	_exit(1);
}

/* Checks that a condition holds. */
#define CHECK(what) do { if (!(what)) failed(__FILE__, __LINE__, #what, 0, errno); } while (0)
/* Checks that a call returns 0. */
#define OK(call) do { errno = 0; long ok_ = (long)(call); if (ok_) failed(__FILE__, __LINE__, #call, ok_, errno); } while (0)
/* Checks that a call returns a number. */
#define IS(call, number) do { errno = 0; long is_ = (long)(call); \
	if (is_ != (long)(number)) failed(__FILE__, __LINE__, #call, is_, errno); } while (0)
/* Checks that a call fails: that it returns the errno itself, or returns -1 and sets errno. */
#define FAILS(call, number) do { errno = 0; long is_ = (long)(call); \
	if (is_ != (number) && !(is_ == -1 && errno == (number))) failed(__FILE__, __LINE__, #call, is_, errno); } while (0)
/* Checks that a call returns null and sets errno. */
#define NONE(call, number) do { errno = 0; const void *is_ = (const void *)(call); \
	if (is_ || errno != (number)) failed(__FILE__, __LINE__, #call, (long)is_, errno); } while (0)
/* Checks that a call returns a pointer, which is the value of this macro. */
#define SOME(call) ({ errno = 0; __typeof__(call) some_ = (call); \
	if (!some_) \
		failed(__FILE__, __LINE__, #call, 0, errno); \
	some_; })

/* Returns the device's address as `urnic run` sets it, or else the loopback address, with the given port. */
static inline struct sockaddr_in own_address(int port)
{
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_port = htons(port) };
	char text[64];
	snprintf(text, sizeof text, "%s", getenv("URNIC_IP") ? getenv("URNIC_IP") : "127.0.0.1/8");
	*strchr(text, '/') = 0;
	CHECK(inet_pton(AF_INET, text, &sin.sin_addr) == 1);
	return sin;
}

static inline struct rdma_cm_event *next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event;
	OK(rdma_get_cm_event(channel, &event));
	if (event->event != wanted)
		failed(__FILE__, __LINE__, rdma_event_str(event->event), wanted, event->status);
	return event;
}

static inline void take_event(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	OK(rdma_ack_cm_event(next_event(channel, wanted)));
}

/* Waits for the next completion of a queue. */
static inline struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;
	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(n == 1);
	return wc;
}

#define SIZE 65536

/* Both ends of a connection of this process with itself. */
struct link {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener, *client, *server;
	struct ibv_cq *cq[2];
	struct ibv_mr *mr[2];
	char *memory[2];
};

static inline struct ibv_qp_init_attr qp_like(struct ibv_cq *cq)
{
	return (struct ibv_qp_init_attr){ .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 } };
}

/* Creates the queue pair of an end of a link. The program may define this. */
#ifndef LINK_QP
#define LINK_QP(id, init) OK(rdma_create_qp(id, NULL, init))
#endif

static inline void link_end(struct link *l, int end, struct rdma_cm_id *id)
{
	l->cq[end] = SOME(ibv_create_cq(id->verbs, 64, NULL, NULL, 0));
	l->memory[end] = SOME(calloc(1, SIZE));
	l->mr[end] = SOME(ibv_reg_mr(id->pd, l->memory[end], SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND));
	struct ibv_qp_init_attr init = qp_like(l->cq[end]);
	LINK_QP(id, &init);
}

/* The rnr_retry_count of an end: the number of retries for which the peer's Sends wait for receives. End 0 connects.
 * The program may define this. */
#ifndef LINK_RNR_RETRY
#define LINK_RNR_RETRY(end) 0
#endif

/* Connects a link, with an existing channel and listening identifier. */
static inline void link_at(struct link *l, struct sockaddr *to)
{
	struct rdma_conn_param param = { .responder_resources = 4, .initiator_depth = 4, .private_data = "hello", .private_data_len = 5,
		.rnr_retry_count = LINK_RNR_RETRY(0) };
	OK(rdma_create_id(l->channel, &l->client, l, RDMA_PS_TCP));
	OK(rdma_resolve_addr(l->client, NULL, to, 2000));
	take_event(l->channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	OK(rdma_resolve_route(l->client, 2000));
	take_event(l->channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	link_end(l, 0, l->client);
	OK(rdma_connect(l->client, &param));
	struct rdma_cm_event *event = next_event(l->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == l->listener && event->param.conn.private_data_len >= 5);
	CHECK(!memcmp(event->param.conn.private_data, "hello", 5));
	l->server = event->id;
	OK(rdma_ack_cm_event(event));
	link_end(l, 1, l->server);
	param.rnr_retry_count = LINK_RNR_RETRY(1);
	OK(rdma_accept(l->server, &param));
	take_event(l->channel, RDMA_CM_EVENT_ESTABLISHED);
	take_event(l->channel, RDMA_CM_EVENT_ESTABLISHED);
}

/* Makes a channel and a listener, and connects a link. */
static inline void link_up(struct link *l)
{
	struct sockaddr_in any = own_address(0), to;
	l->channel = SOME(rdma_create_event_channel());
	OK(rdma_create_id(l->channel, &l->listener, l, RDMA_PS_TCP));
	OK(rdma_bind_addr(l->listener, (struct sockaddr *)&any));
	OK(rdma_listen(l->listener, 4));
	to = any;
	to.sin_port = rdma_get_src_port(l->listener);
	link_at(l, (struct sockaddr *)&to);
}

/* Frees all of a link except its channel and listener, which existed before `link_at`. */
static inline void link_ends_free(struct link *l)
{
	struct rdma_cm_id *ids[2] = { l->client, l->server };
	for (int end = 0; end < 2; end++) {
		rdma_destroy_qp(ids[end]);
		OK(ibv_dereg_mr(l->mr[end]));
		OK(ibv_destroy_cq(l->cq[end]));
		OK(rdma_destroy_id(ids[end]));
		free(l->memory[end]);
	}
}

/* Frees all of a link, whether it is connected or not. */
static inline void link_free(struct link *l)
{
	link_ends_free(l);
	OK(rdma_destroy_id(l->listener));
	rdma_destroy_event_channel(l->channel);
}

/* Disconnects a link, waits until both ends know, and frees all but its channel and listener. */
static inline void link_part(struct link *l)
{
	struct rdma_cm_event *event;
	OK(rdma_disconnect(l->client));
	/* Both ends get the event. Another event follows a second later if the identifiers still exist then. */
	for (int told = 0; told < 2;) {
		OK(rdma_get_cm_event(l->channel, &event));
		CHECK(event->event == RDMA_CM_EVENT_DISCONNECTED || event->event == RDMA_CM_EVENT_TIMEWAIT_EXIT);
		told += event->event == RDMA_CM_EVENT_DISCONNECTED;
		OK(rdma_ack_cm_event(event));
	}
	link_ends_free(l);
}

/* Disconnects a link as `link_part` does, and frees all of it. */
static inline void link_down(struct link *l)
{
	link_part(l);
	OK(rdma_destroy_id(l->listener));
	rdma_destroy_event_channel(l->channel);
}

/* Posts one request over some of the memory of an end. */
static inline int post(struct rdma_cm_id *id, struct ibv_mr *mr, size_t at, size_t len, struct ibv_send_wr *wr)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr + at, len, mr->lkey };
	struct ibv_send_wr *bad;
	wr->sg_list = len ? &sge : NULL;
	wr->num_sge = len ? 1 : 0;
	return ibv_post_send(id->qp, wr, &bad);
}

static inline int post_receive(struct rdma_cm_id *id, struct ibv_mr *mr, size_t at, size_t len, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr + at, len, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	return ibv_post_recv(id->qp, &wr, &bad);
}

/* Returns the state of a thread: 'S' if it sleeps in the kernel, 0 if it has ended. */
static inline char state_of(pid_t thread)
{
	char path[64], text[256] = "";
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
	FILE *file = fopen(path, "r");
	if (!file)
		return 0;
	char *ends = fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
	fclose(file);
	return ends ? ends[2] : 0;
}

static inline double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

#endif
