/*
 * The guest's half of scripts/interop-siw, on libibverbs and librdmacm. The other half is verbs/examples/peer.rs,
 * which describes the protocol of both.
 *
 *   peer serve  [-a ADDR] [-p PORT] [-q CONNECTIONS] [-m BYTES]       answer, until CONNECTIONS connections have ended
 *   peer drive   -a ADDR  [-p PORT] [-q QPS] [-n ROUNDS] [-m BYTES]   drive QPS connections at once, in ROUNDS rounds
 *   peer stream  -a ADDR  [-p PORT] [-m BYTES]                        post Writes until the connection ends
 *   peer stale   -a ADDR  [-p PORT]                                   check that an invalidated STag is refused
 *
 * -m: largest message. -P N: N processes share the connections; the first uses PORT, the next PORT + 1, and so on. This
 * is necessary because libsiw cannot make completion queues for more than about 48 connections in one process.
 * Exit: 0 done and verified, 1 failed, 2 usage, 3 the connection was lost.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/wait.h>
#include <rdma/rdma_cma.h>

enum kind { DONE, WRITTEN, FILL, RECEIVE, INVALIDATE, TURN, END };
enum { FAILED = 1, LOST = 3, PATIENCE_MS = 60000 };

struct region { uint64_t addr; uint32_t rkey, len; };      /* private data of both ends; big endian */
struct control { uint32_t kind, size, seed, value; };      /* a message; big endian */

struct conn {
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *target_mr, *local_mr, *control_mr;
	struct ibv_mr *stale_mr;                            /* invalidated by the peer, and still registered */
	unsigned char *target, *local;
	struct control *control;                            /* [0] arrives, [1] leaves */
	struct region peer;
	struct ibv_wc received;                             /* completion of a receive that arrived while a send was awaited */
	int has_received, lost;
	uint32_t seed;
};

static struct sockaddr_in address = { .sin_family = AF_INET };
static uint32_t max_size = 65536, qps = 1, rounds = 1;
static const uint32_t sizes[] = { 0, 1, 7, 8, 64, 1420, 1424, 1425, 4096, 65536, 1 << 20, 16 << 20 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint32_t ended, failed, lost;

static int fail(const char *format, ...)
{
	char text[256];                                     /* printed at once, because several threads may fail together */
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, "peer: %s (errno: %s)\n", text, strerror(errno));
	return -1;
}

/* Returns byte i of a message. */
static unsigned char pattern(uint32_t seed, uint32_t i) { return seed + i + (i >> 8) + 3 * (i >> 16); }

static void fill(unsigned char *at, uint32_t size, uint32_t seed)
{
	for (uint32_t i = 0; i < size; i++)
		at[i] = pattern(seed, i);
}

static int check(const char *what, const volatile unsigned char *at, uint32_t size, uint32_t seed)
{
	for (uint32_t i = 0; i < size; i++)
		if (at[i] != pattern(seed, i))
			return fail("%s of %u bytes: byte %u is %02x, not %02x", what, size, i, at[i], pattern(seed, i));
	return 0;
}

/* ---- completions ------------------------------------------------------------------------------------------------- */

/* Waits for the completion of a receive, or of a send if `receive` is 0. */
static int await(struct conn *c, int receive, struct ibv_wc *wc)
{
	if (receive && c->has_received) {
		c->has_received = 0;
		*wc = c->received;
		return 0;
	}
	for (;;) {
		int n = ibv_poll_cq(c->cq, 1, wc);
		if (n == 0) {
			struct pollfd fd = { .fd = c->channel->fd, .events = POLLIN };
			struct ibv_cq *cq;
			void *context;
			if (ibv_req_notify_cq(c->cq, 0))
				return fail("ibv_req_notify_cq");
			n = ibv_poll_cq(c->cq, 1, wc);
			if (n == 0) {
				if (poll(&fd, 1, PATIENCE_MS) != 1)
					return fail("nothing happens: no %s for a minute", receive ? "message" : "completion");
				if (ibv_get_cq_event(c->channel, &cq, &context))
					return fail("ibv_get_cq_event");
				ibv_ack_cq_events(cq, 1);
				continue;
			}
		}
		if (n < 0)
			return fail("ibv_poll_cq");
		if (wc->status != IBV_WC_SUCCESS) {
			c->lost = 1;
			return fail("connection lost: %s", ibv_wc_status_str(wc->status));
		}
		if (!!(wc->opcode & IBV_WC_RECV) == receive)
			return 0;
		if (!receive) {
			c->received = *wc;
			c->has_received = 1;
		}
	}
}

static int post_receive(struct conn *c, struct ibv_mr *mr, uint32_t size)
{
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = size, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	return ibv_post_recv(c->id->qp, &wr, &bad) ? fail("ibv_post_recv") : 0;
}

/* Posts one request and waits until it has completed. */
static int request(struct conn *c, enum ibv_wr_opcode op, struct ibv_mr *mr, size_t offset, uint32_t size,
		   uint64_t addr, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr + offset, .length = size, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;
	if (op == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = rkey;
	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = rkey;                             /* libsiw also takes the STag to invalidate from here */
	if (ibv_post_send(c->id->qp, &wr, &bad))
		return fail("ibv_post_send");
	return await(c, 0, &wc);
}

static int tell(struct conn *c, enum kind kind, uint32_t size, uint32_t seed, uint32_t value)
{
	c->control[1] = (struct control){ htobe32(kind), htobe32(size), htobe32(seed), htobe32(value) };
	/*
	 * An answer without a value is an empty message, because of a fault of siw. If a Read of 0 bytes reaches siw while
	 * siw transmits, siw answers with as many bytes as its previous request had (in siw_qp.c, siw_activate_tx keeps the
	 * old length), which ends the connection. Before such a Read, the previous request is the answer to FILL.
	 */
	return request(c, IBV_WR_SEND, c->control_mr, sizeof(struct control),
		       kind == DONE && value == 0 ? 0 : sizeof(struct control), 0, 0);
}

/* Waits for a control message. */
static int hear(struct conn *c, struct control *message)
{
	struct ibv_wc wc;
	if (await(c, 1, &wc))
		return -1;
	if (wc.byte_len == 0) {
		*message = (struct control){ .kind = DONE };
		return 0;
	}
	if (wc.byte_len != sizeof(*message))
		return fail("a control message of %u bytes", wc.byte_len);
	*message = (struct control){ be32toh(c->control[0].kind), be32toh(c->control[0].size),
				     be32toh(c->control[0].seed), be32toh(c->control[0].value) };
	return 0;
}

static int expect_done(struct conn *c, uint32_t *value)
{
	struct control message;
	if (hear(c, &message) || post_receive(c, c->control_mr, sizeof(struct control)))
		return -1;
	if (message.kind != DONE)
		return fail("message %u instead of an answer", message.kind);
	if (value)
		*value = message.value;
	return 0;
}

/* ---- the two sides of a turn ------------------------------------------------------------------------------------- */

static int drive_size(struct conn *c, uint32_t size)
{
	uint64_t addr = be64toh(c->peer.addr);
	uint32_t rkey = be32toh(c->peer.rkey), seed = ++c->seed, fresh;

	fill(c->local, size, seed);
	if (request(c, IBV_WR_RDMA_WRITE, c->local_mr, 0, size, addr, rkey) || tell(c, WRITTEN, size, seed, 0) ||
	    expect_done(c, NULL))
		return -1;
	seed = ++c->seed;
	memset(c->local, 0, size);
	if (tell(c, FILL, size, seed, 0) || expect_done(c, NULL) ||
	    request(c, IBV_WR_RDMA_READ, c->local_mr, 0, size, addr, rkey) || check("Read", c->local, size, seed))
		return -1;
	seed = ++c->seed;
	fill(c->local, size, seed);
	if (tell(c, RECEIVE, size, seed, 0) || expect_done(c, NULL) ||
	    request(c, IBV_WR_SEND, c->local_mr, 0, size, 0, 0) || expect_done(c, NULL))
		return -1;
	seed = ++c->seed;
	fill(c->local, size, seed);
	if (tell(c, INVALIDATE, size, seed, 0) || expect_done(c, &fresh) ||
	    request(c, IBV_WR_SEND_WITH_INV, c->local_mr, 0, size, 0, fresh) || expect_done(c, NULL))
		return -1;
	return 0;
}

static int drive(struct conn *c)
{
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		if (sizes[i] <= max_size && drive_size(c, sizes[i]))
			return fail("while driving, %u bytes", sizes[i]);
	return 0;
}

/* Receives a separate message, which is no control message. With `fresh`, the message must invalidate this STag. */
static int receive_message(struct conn *c, const struct control *m, struct ibv_mr *fresh)
{
	struct ibv_wc wc;
	if (post_receive(c, c->local_mr, m->size) || tell(c, DONE, 0, 0, fresh ? fresh->rkey : 0) || await(c, 1, &wc) ||
	    post_receive(c, c->control_mr, sizeof(struct control)))
		return -1;
	if (wc.byte_len != m->size)
		return fail("a Send of %u bytes instead of %u", wc.byte_len, m->size);
	/* The invalidation is not checked, because siw reports it (IBV_WC_WITH_INV) only in the kernel, not to programs. */
	return check("Send", c->local, m->size, m->seed);
}

/* Serves the peer until the peer ends the connection. With `drives_too`, drives the peer after being driven. */
static int serve(struct conn *c, int drives_too)
{
	static const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct control m;
	struct ibv_mr *fresh;
	int error;

	for (;;) {
		if (hear(c, &m))
			return -1;
		if (m.kind == END)
			return 0;
		if (m.size > max_size)
			return fail("the peer wants %u bytes; -m allows %u", m.size, max_size);
		/* While a separate message is awaited, no control message can arrive. */
		if (m.kind != RECEIVE && m.kind != INVALIDATE && post_receive(c, c->control_mr, sizeof(struct control)))
			return -1;
		switch (m.kind) {
		case WRITTEN:
			if (check("Write", c->target, m.size, m.seed) || tell(c, DONE, 0, 0, 0))
				return -1;
			break;
		case FILL:
			fill(c->target, m.size, m.seed);
			if (tell(c, DONE, 0, 0, 0))
				return -1;
			break;
		case RECEIVE:
			if (receive_message(c, &m, NULL) || tell(c, DONE, 0, 0, 0))
				return -1;
			break;
		case INVALIDATE:
			fresh = ibv_reg_mr(c->pd, c->target, 4096, access);
			if (!fresh)
				return fail("ibv_reg_mr");
			error = receive_message(c, &m, fresh);
			if (m.value)
				c->stale_mr = fresh;
			else
				ibv_dereg_mr(fresh);
			if (error || tell(c, DONE, 0, 0, 0))
				return -1;
			break;
		case TURN:
			if (!drives_too)
				return fail("the peer asks for a turn, which this mode does not give");
			if (drive(c) || tell(c, END, 0, 0, 0))
				return -1;
			return 0;
		default:
			return fail("an unknown message %u", m.kind);
		}
	}
}

static int stream(struct conn *c)
{
	uint64_t addr = be64toh(c->peer.addr);
	for (unsigned long n = 1;; n++) {
		if (request(c, IBV_WR_RDMA_WRITE, c->local_mr, 0, max_size, addr, be32toh(c->peer.rkey)))
			return -1;
		if (n == 20) {
			puts("streaming");
			fflush(stdout);
		}
	}
}

/* Checks that an STag works until a Send with Invalidate names it, and that a Write by it then ends the connection. */
static int stale(struct conn *c)
{
	uint64_t addr = be64toh(c->peer.addr);
	uint32_t fresh;
	struct control m;

	fill(c->local, 8, 1);
	if (tell(c, INVALIDATE, 8, 1, 1) || expect_done(c, &fresh) ||
	    request(c, IBV_WR_RDMA_WRITE, c->local_mr, 0, 8, addr, fresh) ||
	    request(c, IBV_WR_SEND_WITH_INV, c->local_mr, 0, 8, 0, fresh) || expect_done(c, NULL))
		return -1;
	if (!request(c, IBV_WR_RDMA_WRITE, c->local_mr, 0, 8, addr, fresh) && !hear(c, &m))
		return fail("a Write by an invalidated STag was not refused");
	if (!c->lost)
		return -1;
	c->lost = 0;
	puts("refused");
	return 0;
}

/* ---- connections ------------------------------------------------------------------------------------------------- */

static int make(struct conn *c)
{
	static const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	size_t room = max_size < 4096 ? 4096 : max_size;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };

	if (posix_memalign((void **)&c->target, 4096, room) || posix_memalign((void **)&c->local, 4096, room) ||
	    posix_memalign((void **)&c->control, 4096, 4096))
		return fail("no memory");
	if (!(c->pd = ibv_alloc_pd(c->id->verbs)))
		return fail("ibv_alloc_pd");
	if (!(c->channel = ibv_create_comp_channel(c->id->verbs)))
		return fail("ibv_create_comp_channel");
	if (!(c->cq = ibv_create_cq(c->id->verbs, 16, NULL, c->channel, 0)))
		return fail("ibv_create_cq");
	if (!(c->target_mr = ibv_reg_mr(c->pd, c->target, room, access)) ||
	    !(c->local_mr = ibv_reg_mr(c->pd, c->local, room, access)) ||
	    !(c->control_mr = ibv_reg_mr(c->pd, c->control, 4096, access)))
		return fail("ibv_reg_mr");
	init.send_cq = init.recv_cq = c->cq;
	if (rdma_create_qp(c->id, c->pd, &init))
		return fail("rdma_create_qp");
	return post_receive(c, c->control_mr, sizeof(struct control));
}

static struct rdma_conn_param parameters(struct conn *c, struct region *mine)
{
	*mine = (struct region){ htobe64((uintptr_t)c->target), htobe32(c->target_mr->rkey), htobe32(max_size) };
	return (struct rdma_conn_param){ .private_data = mine, .private_data_len = sizeof(*mine),
		.responder_resources = 4, .initiator_depth = 4 };
}

static int take_region(struct conn *c, const struct rdma_conn_param *p)
{
	if (!p->private_data || p->private_data_len < sizeof(c->peer))
		return fail("the peer's private data is missing");
	memcpy(&c->peer, p->private_data, sizeof(c->peer));
	return 0;
}

static void unmake(struct conn *c)
{
	if (c->id && c->id->qp)
		rdma_destroy_qp(c->id);
	if (c->target_mr) ibv_dereg_mr(c->target_mr);
	if (c->local_mr) ibv_dereg_mr(c->local_mr);
	if (c->control_mr) ibv_dereg_mr(c->control_mr);
	if (c->stale_mr) ibv_dereg_mr(c->stale_mr);
	if (c->cq) ibv_destroy_cq(c->cq);
	if (c->channel) ibv_destroy_comp_channel(c->channel);
	if (c->pd) ibv_dealloc_pd(c->pd);
	if (c->id) rdma_destroy_id(c->id);
	free(c->target);
	free(c->local);
	free(c->control);
}

static void account(struct conn *c, int error)
{
	pthread_mutex_lock(&lock);
	ended++;
	failed += error != 0;
	lost += c->lost;
	pthread_cond_signal(&changed);
	pthread_mutex_unlock(&lock);
}

static int client_once(struct conn *c, const char *mode)
{
	struct region mine;
	struct rdma_conn_param param;
	int error;

	if (rdma_create_id(NULL, &c->id, NULL, RDMA_PS_TCP))
		return fail("rdma_create_id");
	if (rdma_resolve_addr(c->id, NULL, (struct sockaddr *)&address, 5000) || rdma_resolve_route(c->id, 5000))
		return fail("cannot resolve the address");
	if (make(c))
		return -1;
	param = parameters(c, &mine);
	if (rdma_connect(c->id, &param)) {
		perror("peer: rdma_connect");
		return -1;
	}
	if (take_region(c, &c->id->event->param.conn))
		return -1;
	if (!strcmp(mode, "stream"))
		error = stream(c);
	else if (!strcmp(mode, "stale"))
		error = stale(c);
	else
		error = drive(c) || tell(c, TURN, 0, 0, 0) || serve(c, 0);
	rdma_disconnect(c->id);
	return error;
}

static void *client(void *mode)
{
	for (uint32_t round = 0; round < rounds; round++) {
		struct conn c = { .seed = round };
		int error = client_once(&c, mode);
		account(&c, error);
		unmake(&c);
		if (error)
			break;
	}
	return NULL;
}

static void *server(void *argument)
{
	struct conn *c = argument;
	int error = serve(c, 1);
	rdma_disconnect(c->id);
	unmake(c);
	account(c, error);
	free(c);
	return NULL;
}

static int accept_one(struct rdma_cm_event *event)
{
	struct conn *c = calloc(1, sizeof(*c));
	struct region mine;
	struct rdma_conn_param param;

	if (!c)
		return fail("no memory");
	c->id = event->id;
	c->id->context = c;
	if (take_region(c, &event->param.conn) || make(c))
		return -1;
	param = parameters(c, &mine);
	return rdma_accept(c->id, &param) ? fail("rdma_accept") : 0;
}

static int listen_and_serve(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener;
	struct rdma_cm_event *event;
	uint32_t finished = 0;

	if (!channel || rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, (struct sockaddr *)&address) || rdma_listen(listener, 128)) {
		perror("peer: cannot listen");
		return -1;
	}
	/* rdma_get_cm_event must not block: an event that poll has reported disappears if a thread destroys its identifier. */
	if (fcntl(channel->fd, F_SETFL, O_NONBLOCK))
		return fail("fcntl");
	puts("listening");
	fflush(stdout);
	while (finished < qps) {
		struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
		if (poll(&fd, 1, 20) == 1) {
			struct rdma_cm_event copy;
			if (rdma_get_cm_event(channel, &event)) {
				if (errno == EAGAIN)
					continue;
				return fail("rdma_get_cm_event");
			}
			copy = *event;
			if (copy.event == RDMA_CM_EVENT_CONNECT_REQUEST && accept_one(event))
				return -1;
			rdma_ack_cm_event(event);
			if (copy.event == RDMA_CM_EVENT_ESTABLISHED) {
				pthread_t thread;
				if (pthread_create(&thread, NULL, server, copy.id->context))
					return fail("no thread");
				pthread_detach(thread);
			}
		}
		pthread_mutex_lock(&lock);
		finished = ended;
		pthread_mutex_unlock(&lock);
	}
	return 0;
}

int main(int argc, char **argv)
{
	int port = 7471, processes = 1, option, error = 0, status;
	pthread_t threads[256];

	if (argc < 2)
		return fail("usage: peer serve|drive|stream|stale [options]"), 2;
	while ((option = getopt(argc - 1, argv + 1, "a:p:q:n:m:P:")) != -1) {
		switch (option) {
		case 'a': inet_pton(AF_INET, optarg, &address.sin_addr); break;
		case 'p': port = atoi(optarg); break;
		case 'q': qps = atoi(optarg); break;
		case 'n': rounds = atoi(optarg); break;
		case 'P': processes = atoi(optarg); break;
		case 'm': max_size = atoi(optarg); break;
		default: return 2;
		}
	}
	qps /= processes;
	for (int i = 1; i < processes; i++) {
		if (fork() == 0) {
			port += i;
			processes = 1;
		}
	}
	address.sin_port = htons(port);
	if (!strcmp(argv[1], "serve")) {
		error = listen_and_serve();
	} else {
		if (qps > 256)
			return fail("at most 256 connections at once"), 2;
		for (uint32_t i = 0; i < qps; i++)
			if (pthread_create(&threads[i], NULL, client, argv[1]))
				return fail("no thread"), 1;
		for (uint32_t i = 0; i < qps; i++)
			pthread_join(threads[i], NULL);
	}
	while (wait(&status) > 0)
		error |= status;
	printf("connections %u, failed %u\n", ended, failed);
	return lost ? LOST : error || failed ? FAILED : 0;
}
