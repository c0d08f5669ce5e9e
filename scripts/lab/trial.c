/*
 * The guest's half of the trials of scripts/interop-siw, on libibverbs and librdmacm. A trial is a connection with an
 * irregularity; each end prints what its application observes. The other half is verbs/examples/trial.rs, which
 * describes the trials.
 *
 *   trial offer          serve trials until one is named "end"
 *   trial ADDR TRIAL...  make these trials, one after the other
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

enum { ROOM = 65536, PATIENCE_MS = 10000, PORT = 7472, SENDS = 72 };

/* The head of the request's private data: the task of the serving side. */
struct ask {
	uint8_t reject, first, ird, ord;
	uint16_t answer, receive;                           /* big endian */
	char name[24];
};

/* The head of the answer's private data: regions of the serving side. */
enum { ALL, READABLE, WRITABLE, ELSEWHERE, REGIONS };
static const char *const region_names[] = { "all", "readable", "writable", "elsewhere" };
struct region { uint64_t addr; uint32_t rkey; } __attribute__((packed)); /* big endian */

struct trial {
	struct ask ask;
	char op[8], stag[12], local[12];
	uint64_t off;
	uint32_t len, count, data, ird, ord;
};

struct end {
	struct rdma_cm_id *id;
	struct ibv_pd *pd, *other;
	struct ibv_cq *send_cq, *receive_cq;
	struct ibv_mr *mr[REGIONS];
	unsigned char *memory[REGIONS];
	int log;
};

static char line[1024];                                     /* the observations in this trial */

static void see(const char *format, ...)
{
	size_t used = strlen(line);
	va_list args;

	if (used + 2 >= sizeof(line))
		return;
	used += sprintf(line + used, "%s", *line ? ", " : "");
	va_start(args, format);
	vsnprintf(line + used, sizeof(line) - used, format, args);
	va_end(args);
}

static void report(const char *name)
{
	printf("%s: %s\n", name, line);
	fflush(stdout);
	*line = 0;
}

static void require(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

static unsigned char pattern(uint32_t i) { return i + (i >> 8); }

static void fill(unsigned char *at, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		at[i] = pattern(i);
}

static int right(const unsigned char *at, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		if (at[i] != pattern(i))
			return 0;
	return 1;
}

static void see_private(const struct rdma_conn_param *p, uint32_t head)
{
	see("private %u%s", p->private_data_len, right(p->private_data, head, p->private_data_len) ? "" : " (wrong)");
}

/* ---- events and completions -------------------------------------------------------------------------------------- */

/* Returns the next event, or NULL if none arrives. The event's private data is valid until the next call. */
static struct rdma_cm_event *next_event(struct rdma_event_channel *channel, int patience)
{
	static struct rdma_cm_event copy;
	static unsigned char private_data[256];
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	if (poll(&fd, 1, patience) != 1)
		return NULL;
	require(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	copy = *event;
	if (copy.param.conn.private_data)
		memcpy(private_data, copy.param.conn.private_data, copy.param.conn.private_data_len);
	copy.param.conn.private_data = private_data;
	rdma_ack_cm_event(event);
	return &copy;
}

static int await_event(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event = next_event(channel, PATIENCE_MS);

	if (event && event->event == wanted)
		return 1;
	see("connect %s %d", event ? rdma_event_str(event->event) + strlen("RDMA_CM_EVENT_") : "nothing",
	    event ? event->status : 0);
	if (event && event->event == RDMA_CM_EVENT_REJECTED)
		see_private(&event->param.conn, 0);
	return 0;
}

/* Returns the status of the next `count` completions: the first status that is not success, if there is one. Returns
 * "nothing" if these completions do not arrive within ten seconds, or within 0.2 s after an event of the connection. */
static const char *complete(struct end *e, struct ibv_cq *cq, uint32_t count)
{
	struct pollfd fd = { .fd = e->id->channel->fd, .events = POLLIN };
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	struct ibv_wc wc;

	for (int left = PATIENCE_MS; count > 0; left--) {
		if (ibv_poll_cq(cq, 1, &wc) == 1) {
			if (status == IBV_WC_SUCCESS)
				status = wc.status;
			count--;
		} else if (left == 0) {
			return "nothing";
		} else {
			if (left > 200 && poll(&fd, 1, 0) == 1)
				left = 200;
			usleep(1000);
		}
	}
	return ibv_wc_status_str(status);
}

/* Waits for the connection's end, and records all that the application can observe meanwhile. */
static void see_end(struct end *e, int patience)
{
	struct pollfd fd = { .fd = e->id->verbs->async_fd, .events = POLLIN };
	struct ibv_async_event async;
	struct rdma_cm_event *event = next_event(e->id->channel, patience);
	char record[1024], *found;
	ssize_t size;

	see("end %s", event ? rdma_event_str(event->event) + strlen("RDMA_CM_EVENT_") : "nothing");
	while (poll(&fd, 1, 0) == 1 && !ibv_get_async_event(e->id->verbs, &async)) {
		see("event %s", ibv_event_type_str(async.event_type));
		ibv_ack_async_event(&async);
	}
	/* siw reports a Terminate only in the kernel's log. */
	while ((size = read(e->log, record, sizeof(record) - 1)) > 0) {
		int layer, type, code;
		record[size] = 0;
		found = strstr(record, "got TERMINATE. layer");
		if (found && sscanf(found, "got TERMINATE. layer %d, type %d, code %d", &layer, &type, &code) == 3)
			see("Terminate received %x%x %02x", layer, type, code);
	}
}

/* ---- the ends of a connection ------------------------------------------------------------------------------------ */

static void make(struct end *e)
{
	static const int access[] = {
		[ALL] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
		[READABLE] = IBV_ACCESS_REMOTE_READ,
		[WRITABLE] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
		[ELSEWHERE] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = SENDS, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };

	require((e->pd = ibv_alloc_pd(e->id->verbs)) && (e->other = ibv_alloc_pd(e->id->verbs)), "ibv_alloc_pd");
	for (int i = 0; i < REGIONS; i++) {
		require(!posix_memalign((void **)&e->memory[i], 4096, ROOM), "memory");
		fill(e->memory[i], 0, ROOM);
		e->mr[i] = ibv_reg_mr(i == ELSEWHERE ? e->other : e->pd, e->memory[i], ROOM, access[i]);
		require(!!e->mr[i], "ibv_reg_mr");
	}
	init.send_cq = e->send_cq = ibv_create_cq(e->id->verbs, SENDS, NULL, NULL, 0);
	init.recv_cq = e->receive_cq = ibv_create_cq(e->id->verbs, 4, NULL, NULL, 0);
	require(init.send_cq && init.recv_cq && !rdma_create_qp(e->id, e->pd, &init), "queue pair");
	e->log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK);
	lseek(e->log, 0, SEEK_END);
}

static void unmake(struct end *e)
{
	close(e->log);
	rdma_destroy_qp(e->id);
	for (int i = 0; i < REGIONS; i++) {
		ibv_dereg_mr(e->mr[i]);
		free(e->memory[i]);
	}
	ibv_destroy_cq(e->send_cq);
	ibv_destroy_cq(e->receive_cq);
	ibv_dealloc_pd(e->pd);
	ibv_dealloc_pd(e->other);
}

static void post_receive(struct end *e, uint32_t size)
{
	struct ibv_sge sge = { (uintptr_t)e->memory[WRITABLE], size, e->mr[WRITABLE]->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	require(!ibv_post_recv(e->id->qp, &wr, &bad), "ibv_post_recv");
}

/* Sends a short message. Returns the status of its completion, or the reason why the Send could not be posted. */
static const char *send_short(struct end *e)
{
	struct ibv_sge sge = { (uintptr_t)e->memory[ALL], 8, e->mr[ALL]->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	int error = ibv_post_send(e->id->qp, &wr, &bad);
	return error ? strerror(error) : complete(e, e->send_cq, 1);
}

/* Returns the number of the region with this name; -1 for "unknown". */
static int region(const char *name)
{
	for (int i = 0; i < REGIONS; i++)
		if (!strcmp(name, region_names[i]))
			return i;
	return -1;
}

/* Makes the requests of a trial, and returns their status. A key plus 0x111100 belongs to no region. */
static const char *operate(struct end *e, const struct trial *t, const struct region *theirs)
{
	static const struct { const char *name; enum ibv_wr_opcode opcode; } ops[] = {
		{ "write", IBV_WR_RDMA_WRITE }, { "read", IBV_WR_RDMA_READ }, { "send", IBV_WR_SEND },
		{ "inv", IBV_WR_SEND_WITH_INV }, { "imm", IBV_WR_RDMA_WRITE_WITH_IMM }, { "add", IBV_WR_ATOMIC_FETCH_AND_ADD },
	};
	int remote = region(t->stag), local = region(t->local), error, reads = !strcmp(t->op, "read");
	const struct region *there = &theirs[remote < 0 ? ALL : remote];
	uint64_t addr = be64toh(there->addr) + t->off;
	uint32_t rkey = be32toh(there->rkey) + (remote < 0 ? 0x111100 : 0);
	int here = local < 0 ? ALL : local;
	const char *status;

	if (reads && here != READABLE)
		memset(e->memory[here], 0, ROOM);
	for (uint32_t i = 0; i < t->count; i++) {
		struct ibv_sge sge = { (uintptr_t)e->memory[here] + i * t->len, t->len,
				       e->mr[here]->lkey + (local < 0 ? 0x111100 : 0) };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
		for (size_t o = 0; o < sizeof(ops) / sizeof(*ops); o++)
			if (!strcmp(t->op, ops[o].name))
				wr.opcode = ops[o].opcode;
		wr.wr.rdma.remote_addr = addr + i * t->len;
		wr.wr.rdma.rkey = rkey;                     /* libsiw also takes the STag to invalidate from here */
		if (wr.opcode == IBV_WR_SEND_WITH_INV)
			wr.invalidate_rkey = rkey;
		if ((error = ibv_post_send(e->id->qp, &wr, &bad)))
			return strerror(error);
	}
	status = complete(e, e->send_cq, t->count);
	if (reads && !strcmp(status, "success") && !right(e->memory[here], 0, t->count * t->len))
		return "wrong data";
	return status;
}

/* ---- the two sides of a trial ------------------------------------------------------------------------------------ */

static void act_connected(struct end *e, const struct trial *t, const struct region *theirs)
{
	int sends = !strcmp(t->op, "send") || !strcmp(t->op, "inv");

	if (t->ask.first)
		see("first %s", complete(e, e->receive_cq, 1));
	if (*t->op)
		see("%s %s", t->op, operate(e, t, theirs));
	if (!sends)
		see("then %s", send_short(e));
	if (!t->ask.first)
		see("receive %s", complete(e, e->receive_cq, 1));
	see_end(e, PATIENCE_MS);
}

static void act(const struct trial *t, struct sockaddr_in *to)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct region theirs[REGIONS];
	unsigned char data[256];
	struct rdma_conn_param param = { .private_data = data, .private_data_len = t->data,
		.responder_resources = t->ird, .initiator_depth = t->ord };
	struct rdma_cm_event *event;
	struct end e = { 0 };

	require(channel && !rdma_create_id(channel, &e.id, NULL, RDMA_PS_TCP), "rdma_create_id");
	require(!rdma_resolve_addr(e.id, NULL, (struct sockaddr *)to, 5000) &&
		await_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED) && !rdma_resolve_route(e.id, 5000) &&
		await_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED), "the address");
	make(&e);
	post_receive(&e, 64);
	fill(data, 0, sizeof(data));
	memcpy(data, &t->ask, sizeof(t->ask));
	if (rdma_connect(e.id, &param)) {
		see("connect %s", strerror(errno));
	} else {
		event = next_event(channel, PATIENCE_MS);
		if (event && event->event == RDMA_CM_EVENT_ESTABLISHED) {
			see_private(&event->param.conn, sizeof(theirs));
			memcpy(theirs, event->param.conn.private_data, sizeof(theirs));
			act_connected(&e, t, theirs);
			rdma_disconnect(e.id);
		} else {
			see("connect %s %d", event ? rdma_event_str(event->event) + strlen("RDMA_CM_EVENT_") : "nothing",
			    event ? event->status : 0);
			if (event && event->event == RDMA_CM_EVENT_REJECTED)
				see_private(&event->param.conn, 0);
		}
	}
	unmake(&e);
	rdma_destroy_id(e.id);
	rdma_destroy_event_channel(channel);
	report(t->ask.name);
}

/* Serves one trial. Returns whether this trial was the last one. */
static int serve(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event = next_event(channel, -1);
	struct rdma_conn_param param = { .responder_resources = event->param.conn.responder_resources };
	struct region mine[REGIONS];
	unsigned char data[256];
	struct end e = { .id = event->id };
	struct rdma_event_channel *own;
	struct ask ask;
	int patience = PATIENCE_MS;

	if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		return 0;                                   /* the event belongs to a connection that is gone */
	memcpy(&ask, event->param.conn.private_data, sizeof(ask));
	see_private(&event->param.conn, sizeof(ask));
	fill(data, 0, sizeof(data));
	param.private_data = data;
	param.private_data_len = be16toh(ask.answer);
	if (ask.reject) {
		if (rdma_reject(e.id, data, param.private_data_len))
			see("reject %s", strerror(errno));
		rdma_destroy_id(e.id);
		report(ask.name);
		return !strcmp(ask.name, "end");
	}
	/* The connection gets its own channel, because the next request may arrive before this connection's end. */
	own = rdma_create_event_channel();
	require(own && !rdma_migrate_id(e.id, own), "rdma_migrate_id");
	make(&e);
	for (int i = 0; i < REGIONS; i++)
		mine[i] = (struct region){ htobe64((uintptr_t)e.memory[i]), htobe32(e.mr[i]->rkey) };
	memcpy(data, mine, sizeof(mine));
	param.responder_resources = ask.ird;
	param.initiator_depth = ask.ord;
	if (ask.receive)
		post_receive(&e, be16toh(ask.receive));
	if (rdma_accept(e.id, &param)) {
		see("accept %s", strerror(errno));
	} else if (await_event(own, RDMA_CM_EVENT_ESTABLISHED)) {
		if (ask.first)
			see("first %s", send_short(&e));
		if (ask.receive) {
			const char *status = complete(&e, e.receive_cq, 1);
			see("receive %s", status);
			if (!strcmp(status, "success"))
				rdma_disconnect(e.id);
			else
				patience = 500;     /* siw does not end the connection itself in all cases */
		}
		see_end(&e, patience);
		rdma_disconnect(e.id);
	}
	unmake(&e);
	rdma_destroy_id(e.id);
	rdma_destroy_event_channel(own);
	report(ask.name);
	return 0;
}

static void offer(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	struct rdma_cm_id *listener;

	require(channel && !rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) &&
		!rdma_bind_addr(listener, (struct sockaddr *)&any) && !rdma_listen(listener, 8), "listen");
	puts("listening");
	fflush(stdout);
	while (!serve(channel))
		;
}

/* Parses a trial in words: its name, then key=value. */
static struct trial parse(char *text)
{
	struct trial t = { .stag = "all", .local = "all", .len = 8, .count = 1, .data = sizeof(struct ask), .ird = 4, .ord = 4,
		.ask = { .ird = 4, .ord = 4, .answer = htobe16(REGIONS * sizeof(struct region)), .receive = htobe16(64) } };
	char *word = strtok(text, " "), *value;

	snprintf(t.ask.name, sizeof(t.ask.name), "%s", word);
	while ((word = strtok(NULL, " "))) {
		require(!!(value = strchr(word, '=')), word);
		*value++ = 0;
		if (!strcmp(word, "op")) snprintf(t.op, sizeof(t.op), "%s", value);
		else if (!strcmp(word, "stag")) snprintf(t.stag, sizeof(t.stag), "%s", value);
		else if (!strcmp(word, "local")) snprintf(t.local, sizeof(t.local), "%s", value);
		else if (!strcmp(word, "off")) t.off = strtoll(value, NULL, 10);
		else if (!strcmp(word, "len")) t.len = atoi(value);
		else if (!strcmp(word, "count")) t.count = atoi(value);
		else if (!strcmp(word, "data")) t.data = atoi(value);
		else if (!strcmp(word, "ord")) t.ord = atoi(value);
		else if (!strcmp(word, "their_ird")) t.ask.ird = atoi(value);
		else if (!strcmp(word, "answer")) t.ask.answer = htobe16(atoi(value));
		else if (!strcmp(word, "receive")) t.ask.receive = htobe16(atoi(value));
		else if (!strcmp(word, "reject")) t.ask.reject = atoi(value);
		else if (!strcmp(word, "first")) t.ask.first = atoi(value);
		else require(!strcmp(word, "rtr"), word);   /* ignored, because siw has a module parameter for it */
	}
	return t;
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(PORT) };

	if (argc == 2 && !strcmp(argv[1], "offer")) {
		offer();
		return 0;
	}
	require(argc > 2 && inet_pton(AF_INET, argv[1], &to.sin_addr) == 1, "usage: trial offer | ADDR TRIAL...");
	for (int i = 2; i < argc; i++) {
		struct trial t = parse(argv[i]);
		act(&t, &to);
	}
	return 0;
}
