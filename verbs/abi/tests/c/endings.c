/* How processes end, and what careless programs do to themselves, on a network of three nodes.
 *
 *   endings serve          echoes the messages of up to 64 clients at once; prints which clients connect and leave,
 *                          and how they leave
 *   endings witness ADDR   sends messages and checks their echoes, until SIGTERM
 *   endings WAY ADDR       connects, has some messages echoed, says "ready", and ends in a way of the table below
 *
 * A way that does not end the process is followed by a few more echoes and exit(GOES_ON). */
#include <dirent.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "harness.h"

#define PORT 7171
#define MESSAGE 512
#define DEPTH 8
/* Exit status if the way ends the process. */
#define ENDED 7
/* Exit status if the process goes on after the way. */
#define GOES_ON 8

extern char **environ;

/* One end of a connection: a queue pair with its own completion queue and channel. */
struct end {
	struct rdma_cm_id *id;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char *memory; /* received messages first, then messages to send */
	char name[64];
	unsigned long echoes;
};

static struct rdma_event_channel *events;

static void ready_end(struct end *end, struct rdma_cm_id *id)
{
	end->id = id;
	end->channel = SOME(ibv_create_comp_channel(id->verbs));
	end->cq = SOME(ibv_create_cq(id->verbs, 4 * DEPTH, end, end->channel, 0));
	if (!end->memory)
		end->memory = SOME(aligned_alloc(4096, 4096 * 2 * DEPTH));
	struct ibv_qp_init_attr init = { .send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 } };
	OK(rdma_create_qp(id, NULL, &init));
	end->mr = SOME(ibv_reg_mr(id->pd, end->memory, 4096 * 2 * DEPTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	for (int i = 0; i < DEPTH; i++)
		OK(post_receive(id, end->mr, 4096 * i, MESSAGE, i));
	OK(ibv_req_notify_cq(end->cq, 0));
}

static int send_from(struct end *end, int slot)
{
	struct ibv_send_wr wr = { .wr_id = DEPTH + slot, .opcode = IBV_WR_SEND };
	return post(end->id, end->mr, 4096 * (DEPTH + slot), MESSAGE, &wr);
}

/* ---- the peer ---- */

static void forget(struct end *end)
{
	rdma_destroy_qp(end->id);
	OK(ibv_dereg_mr(end->mr));
	OK(ibv_destroy_cq(end->cq));
	OK(ibv_destroy_comp_channel(end->channel));
	OK(rdma_destroy_id(end->id));
	free(end->memory);
	free(end);
}

/* Echoes the messages that have arrived. */
static void echo(struct end *end)
{
	struct ibv_wc wc;
	struct ibv_cq *cq;
	void *context;
	OK(ibv_get_cq_event(end->channel, &cq, &context));
	ibv_ack_cq_events(cq, 1);
	OK(ibv_req_notify_cq(cq, 0));
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		if (wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV) {
			int slot = wc.wr_id;
			memcpy(end->memory + 4096 * (DEPTH + slot), end->memory + 4096 * slot, MESSAGE);
			end->echoes++;
			/* The connection may have ended meanwhile. */
			if (!post_receive(end->id, end->mr, 4096 * slot, MESSAGE, slot))
				send_from(end, slot);
		}
}

#define MOST 64

static void serve(void)
{
	struct rdma_cm_id *listener;
	struct sockaddr_in any = own_address(PORT);
	struct end *ends[MOST] = { 0 };
	events = SOME(rdma_create_event_channel());
	OK(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP));
	OK(rdma_bind_addr(listener, (struct sockaddr *)&any));
	OK(rdma_listen(listener, 16));
	puts("serves");
	for (;;) {
		struct pollfd wait[MOST + 1] = { { .fd = events->fd, .events = POLLIN } };
		for (int i = 0; i < MOST; i++)
			wait[i + 1] = (struct pollfd){ .fd = ends[i] ? ends[i]->channel->fd : -1, .events = POLLIN };
		CHECK(poll(wait, MOST + 1, -1) > 0);
		for (int i = 0; i < MOST; i++)
			if (wait[i + 1].revents && ends[i])
				echo(ends[i]);
		if (!wait[0].revents)
			continue;
		struct rdma_cm_event *event;
		OK(rdma_get_cm_event(events, &event));
		struct rdma_cm_id *id = event->id;
		struct end *gone = NULL;
		int slot = 0;
		switch (event->event) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			while (ends[slot])
				CHECK(++slot < MOST);
			struct end *end = ends[slot] = SOME(calloc(1, sizeof *end));
			snprintf(end->name, sizeof end->name, "%s", (const char *)event->param.conn.private_data);
			id->context = end;
			ready_end(end, id);
			struct rdma_conn_param param = { 0 };
			OK(rdma_accept(id, &param));
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			printf("connected %s\n", ((struct end *)id->context)->name);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			gone = id->context;
			printf("gone %s %d\n", gone->name, event->status);
			break;
		default:
			break;
		}
		OK(rdma_ack_cm_event(event));
		if (gone) {
			while (ends[slot] != gone)
				CHECK(++slot < MOST);
			ends[slot] = NULL;
			forget(gone);
		}
	}
}

/* ---- the processes that connect ---- */

static struct end mine;
static unsigned long sent;

static void connect_to(const char *address, const char *name)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	struct rdma_cm_id *id;
	struct rdma_conn_param param = { .private_data = name, .private_data_len = strlen(name) + 1, .initiator_depth = 1 };
	CHECK(inet_pton(AF_INET, address, &to.sin_addr) == 1);
	events = SOME(rdma_create_event_channel());
	OK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP));
	OK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 5000));
	take_event(events, RDMA_CM_EVENT_ADDR_RESOLVED);
	OK(rdma_resolve_route(id, 5000));
	take_event(events, RDMA_CM_EVENT_ROUTE_RESOLVED);
	ready_end(&mine, id);
	OK(rdma_connect(id, &param));
	take_event(events, RDMA_CM_EVENT_ESTABLISHED);
}

static void next_message(char *to)
{
	memset(to, (int)(sent % 251), MESSAGE);
	memcpy(to, &sent, sizeof sent);
	sent++;
}

/* Sends a message and waits for its echo. */
static bool is_echoed(void)
{
	struct ibv_cq *cq;
	void *context;
	struct ibv_wc wc;
	char expected[MESSAGE];
	next_message(expected);
	memcpy(mine.memory + 4096 * DEPTH, expected, MESSAGE);
	if (send_from(&mine, 0))
		return false;
	for (bool back = false, gone = false; !back || !gone;) {
		while (ibv_poll_cq(mine.cq, 1, &wc) > 0) {
			if (wc.status != IBV_WC_SUCCESS)
				return false;
			if (wc.opcode != IBV_WC_RECV) {
				gone = true;
				continue;
			}
			CHECK(!memcmp(mine.memory + 4096 * wc.wr_id, expected, MESSAGE));
			OK(post_receive(mine.id, mine.mr, 4096 * wc.wr_id, MESSAGE, wc.wr_id));
			back = true;
		}
		if (back && gone)
			break;
		OK(ibv_req_notify_cq(mine.cq, 0));
		int n = ibv_poll_cq(mine.cq, 0, &wc);
		CHECK(n == 0);
		struct pollfd wait = { .fd = mine.channel->fd, .events = POLLIN };
		/* Completions before the arming raise no event. */
		if (poll(&wait, 1, 10) > 0) {
			OK(ibv_get_cq_event(mine.channel, &cq, &context));
			ibv_ack_cq_events(cq, 1);
		}
	}
	return true;
}

static void goes_on(void)
{
	for (int i = 0; i < 10; i++)
		CHECK(is_echoed());
}

static atomic_int over;

static void is_over(int signal) { over = signal; }

static int witness(void)
{
	unsigned long echoes = 0;
	double worst = 0;
	signal(SIGTERM, is_over);
	puts("ready");
	for (; !over; usleep(5000)) {
		double start = now();
		CHECK(is_echoed());
		double took = now() - start;
		worst = took > worst ? took : worst;
		echoes++;
	}
	printf("echoed %lu worst %.0f ms\n", echoes, worst * 1e3);
	return 0;
}

/* ---- ends ---- */

static void by_exit(void) { exit(ENDED); }
static void by_exit_at_once(void) { _exit(ENDED); }
static void by_quick_exit(void) { quick_exit(ENDED); }
static void by_abort(void) { abort(); }
static void by_kill(void) { raise(SIGKILL); }
static void by_exec(void) { execl("/bin/sh", "sh", "-c", "exit 7", NULL); }

static void exits(int signal) { (void)signal; exit(ENDED); }

static void after(int ms, void (*handler)(int))
{
	struct itimerval timer = { .it_value = { .tv_usec = ms * 1000 } };
	signal(SIGALRM, handler);
	OK(setitimer(ITIMER_REAL, &timer, NULL));
}

/* The handler interrupts a poll, usually in the middle of a pass. */
static void by_exit_in_handler(void)
{
	struct ibv_wc wc;
	after(50, exits);
	for (;;)
		ibv_poll_cq(mine.cq, 1, &wc);
}

static void calls_and_exits(int signal)
{
	struct ibv_device_attr attr;
	(void)signal;
	rdma_disconnect(mine.id);
	ibv_query_device(mine.id->verbs, &attr);
	exit(ENDED);
}

/* The handler calls verbs before it exits, as handlers that clean up do. */
static void by_verbs_in_handler(void)
{
	struct ibv_wc wc;
	after(50, calls_and_exits);
	for (;;)
		ibv_poll_cq(mine.cq, 1, &wc);
}

/* Ends the last thread of the program, which makes the status 0. */
static void by_last_thread(void) { pthread_exit(NULL); }

static void *echoes_a_while(void *unused)
{
	goes_on();
	return unused;
}

static void by_last_thread_later(void)
{
	pthread_t thread;
	OK(pthread_create(&thread, NULL, echoes_a_while, NULL));
	OK(pthread_detach(thread));
	pthread_exit(NULL);
}

/* The parent ends; the child, which has no device, lives a little longer. */
static void by_daemon(void)
{
	OK(daemon(1, 1));
	FAILS(ibv_query_device(mine.id->verbs, &(struct ibv_device_attr){ 0 }), ENODEV);
	_exit(0);
}

/* Threads of the program wait for events of every kind. No event may arrive while the process ends, because its object
 * may be gone by then. */
static atomic_int ending, heard;

static void *hears_events(void *unused)
{
	struct rdma_cm_event *event;
	OK(rdma_get_cm_event(events, &event));
	heard = 1;
	return unused;
}

static void *hears_completions(void *unused)
{
	struct ibv_wc wc;
	while (ibv_poll_cq(mine.cq, 1, &wc) <= 0)
		;
	heard = 2;
	return unused;
}

static void *hears_async(void *unused)
{
	struct ibv_async_event event;
	OK(ibv_get_async_event(mine.id->verbs, &event));
	heard = 3;
	return unused;
}

static void *hears_channel(void *unused)
{
	struct ibv_cq *cq;
	void *context;
	OK(ibv_get_cq_event(mine.channel, &cq, &context));
	heard = 4;
	return unused;
}

/* Registered before the device's exit handler, so this function runs after it. */
static void judge(void)
{
	if (!ending)
		return;
	usleep(300000); /* nothing comes late either */
	if (heard) {
		fprintf(stderr, "the program was told something of its end: %d\n", heard);
		_exit(1);
	}
}

static void by_exit_with_listeners(void)
{
	void *(*all[])(void *) = { hears_events, hears_completions, hears_async, hears_channel };
	struct ibv_cq *cq;
	void *context;
	struct pollfd wait = { .fd = mine.channel->fd, .events = POLLIN };
	while (poll(&wait, 1, 0) > 0) {
		OK(ibv_get_cq_event(mine.channel, &cq, &context));
		ibv_ack_cq_events(cq, 1);
	}
	OK(ibv_req_notify_cq(mine.cq, 0));
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		pthread_t thread;
		OK(pthread_create(&thread, NULL, all[i], NULL));
	}
	usleep(20000);
	CHECK(!heard);
	ending = 1;
	exit(ENDED);
}

static struct ibv_cq_ex *queue_with_completion(void)
{
	struct ibv_cq_init_attr_ex like = { .cqe = 16 };
	struct ibv_cq_ex *cq = SOME(ibv_create_cq_ex(mine.id->verbs, &like));
	struct ibv_qp_init_attr init = qp_like(ibv_cq_ex_to_cq(cq));
	struct ibv_qp *qp = SOME(ibv_create_qp(mine.id->pd, &init));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;
	OK(ibv_post_recv(qp, &wr, &bad));
	OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	return cq;
}

static void *starts_to_poll(void *cq)
{
	struct ibv_poll_cq_attr attr = { 0 };
	while (ibv_start_poll(cq, &attr) == ENOENT)
		;
	return NULL; /* the poll never ends */
}

/* A thread ends between ibv_start_poll and ibv_end_poll: all other queues work. */
static void thread_ends_with_lock(void)
{
	pthread_t thread;
	OK(pthread_create(&thread, NULL, starts_to_poll, queue_with_completion()));
	OK(pthread_join(thread, NULL));
	goes_on();
}

/* ---- ways that do not end the process ---- */

static void reap(pid_t child, int expected)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status));
	IS(WEXITSTATUS(status), expected);
}

static void by_fork(void)
{
	pid_t child = fork();
	if (!child) {
		FAILS(ibv_query_device(mine.id->verbs, &(struct ibv_device_attr){ 0 }), ENODEV);
		exit(3);
	}
	reap(child, 3);
	child = fork();
	if (!child)
		_exit(4);
	reap(child, 4);
}

static void by_vfork(void)
{
	pid_t child = vfork();
	if (!child)
		_exit(3);
	reap(child, 3);
	child = vfork();
	if (!child) {
		execl("/bin/sh", "sh", "-c", "exit 5", NULL);
		_exit(1);
	}
	reap(child, 5);
}

static void by_spawn(void)
{
	pid_t child;
	char *arguments[] = { "sh", "-c", "exit 6", NULL };
	OK(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ));
	reap(child, 6);
	IS(system("exit 9") >> 8, 9);
}

/* A child of another user that runs another program inherits only its standard descriptors. */
static void inherits_nothing(void)
{
	/* A descriptor that is closed while it is examined is the shell's own. */
	char look[] = "held=0; for fd in /proc/self/fd/*; do"
		" if [ ${fd##*/} -gt 2 ] && [ -e $fd ]; then readlink $fd >&2; held=1; fi; done; exit $held";
	pid_t child = fork();
	if (!child) {
		OK(setgid(65534));
		OK(setuid(65534));
		execl("/bin/sh", "sh", "-c", look, NULL);
		_exit(2);
	}
	reap(child, 0);
}

static void by_setuid(void)
{
	OK(setgid(65534));
	OK(setuid(65534));
	goes_on();
	struct ibv_mr *mr = SOME(ibv_reg_mr(mine.id->pd, SOME(malloc(100000)), 100000, IBV_ACCESS_LOCAL_WRITE));
	OK(ibv_dereg_mr(mr));
}

/* The device's descriptors are closed: the only promise is that the process ends. */
static void by_closefrom(void)
{
	closefrom(3);
	exit(ENDED);
}

static void without_descriptors(void)
{
	struct rlimit limit;
	OK(getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = 0;
	OK(setrlimit(RLIMIT_NOFILE, &limit));
	NONE(ibv_create_comp_channel(mine.id->verbs), EMFILE);
	NONE(rdma_create_event_channel(), EMFILE);
}

static void without_locked_memory(void)
{
	struct rlimit none = { 0, 0 };
	OK(setrlimit(RLIMIT_MEMLOCK, &none));
	by_setuid(); /* root may lock what it likes */
}

static void stops(void)
{
	pid_t self = getpid();
	const char *wish = getenv("SECONDS_STOPPED");
	pid_t child = fork();
	if (!child) {
		sleep(wish ? atoi(wish) : 30);
		kill(self, SIGCONT);
		_exit(0);
	}
	raise(SIGSTOP);
	reap(child, 0);
}

/* Stopped for longer than its peer waits: the connection is lost, and the process learns that. */
static void stopped(void)
{
	stops();
	take_event(events, RDMA_CM_EVENT_DISCONNECTED);
	exit(ENDED);
}

/* ---- memory that is unmapped while it is registered ---- */

static void is_touched(void)
{
	is_echoed(); /* the answer is placed there */
	usleep(100000);
	failed(__FILE__, __LINE__, "memory that is gone was written", 0, 0);
}

static void by_munmap(void)
{
	OK(munmap(mine.memory, 4096 * DEPTH));
	is_touched();
}

static void by_mprotect(void)
{
	OK(mprotect(mine.memory, 4096 * DEPTH, PROT_NONE));
	is_touched();
}

static int file;

static void by_truncate(void)
{
	OK(ftruncate(file, 0));
	is_touched();
}

/* Deregistered memory may be unmapped at once. */
static void deregistered(void)
{
	for (int round = 0; round < 100; round++) {
		char *memory = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(memory != MAP_FAILED);
		struct ibv_mr *mr = SOME(ibv_reg_mr(mine.id->pd, memory, 65536, IBV_ACCESS_LOCAL_WRITE));
		struct ibv_send_wr wr = { .wr_id = DEPTH, .opcode = IBV_WR_SEND };
		struct ibv_wc wc;
		unsigned got = 0;
		memset(memory, 1, MESSAGE);
		OK(post(mine.id, mr, 0, MESSAGE, &wr));
		/* The memory is free when the request completes; the answer goes to other memory. */
		while (got != 3)
			if (ibv_poll_cq(mine.cq, 1, &wc) > 0) {
				CHECK(wc.status == IBV_WC_SUCCESS);
				got |= wc.opcode == IBV_WC_RECV ? 1 : 2;
				if (wc.opcode == IBV_WC_RECV) {
					OK(post_receive(mine.id, mine.mr, 4096 * wc.wr_id, MESSAGE, wc.wr_id));
				} else {
					OK(ibv_dereg_mr(mr));
					OK(munmap(memory, 65536));
				}
			}
	}
}

static const struct way {
	const char *name;
	void (*run)(void);
	/* The kind of registered memory: 0 heap, 1 anonymous mapping, 2 file. */
	int memory;
} WAYS[] = {
	{ "exit", by_exit, 0 },
	{ "return", NULL, 0 },
	{ "_exit", by_exit_at_once, 0 },
	{ "quick_exit", by_quick_exit, 0 },
	{ "exit-with-listeners", by_exit_with_listeners, 0 },
	{ "exit-in-handler", by_exit_in_handler, 0 },
	{ "verbs-in-handler", by_verbs_in_handler, 0 },
	{ "last-thread", by_last_thread, 0 },
	{ "last-thread-later", by_last_thread_later, 0 },
	{ "daemon", by_daemon, 0 },
	{ "exec", by_exec, 0 },
	{ "abort", by_abort, 0 },
	{ "kill", by_kill, 0 },
	{ "closefrom", by_closefrom, 0 },
	{ "fork", by_fork, 0 },
	{ "vfork", by_vfork, 0 },
	{ "posix_spawn", by_spawn, 0 },
	{ "inherits-nothing", inherits_nothing, 0 },
	{ "setuid", by_setuid, 0 },
	{ "no-descriptors", without_descriptors, 0 },
	{ "no-locked-memory", without_locked_memory, 0 },
	{ "thread-ends-with-lock", thread_ends_with_lock, 0 },
	{ "stopped", stopped, 0 },
	{ "stopped-but-answered-for", stops, 0 },
	{ "munmap", by_munmap, 1 },
	{ "mprotect", by_mprotect, 1 },
	{ "truncate", by_truncate, 2 },
	{ "deregistered", deregistered, 0 },
};

int main(int argc, char **argv)
{
	struct rlimit none = { 0, 0 };
	setvbuf(stdout, NULL, _IOLBF, 0);
	OK(setrlimit(RLIMIT_CORE, &none));
	closefrom(3); /* inherited descriptors are not ours */
	if (argc == 2 && !strcmp(argv[1], "serve"))
		serve();
	if (argc == 3 && !strcmp(argv[1], "witness")) {
		connect_to(argv[2], argv[1]);
		return witness();
	}
	for (size_t i = 0; argc == 3 && i < sizeof WAYS / sizeof *WAYS; i++) {
		const struct way *way = &WAYS[i];
		if (strcmp(argv[1], way->name))
			continue;
		atexit(judge);
		if (way->memory) {
			char path[] = "/tmp/endings-XXXXXX";
			if (way->memory == 2) {
				file = mkstemp(path);
				CHECK(file >= 0);
				OK(unlink(path));
				OK(ftruncate(file, 4096 * 2 * DEPTH));
			}
			mine.memory = mmap(NULL, 4096 * 2 * DEPTH, PROT_READ | PROT_WRITE,
				way->memory == 2 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, way->memory == 2 ? file : -1, 0);
			CHECK(mine.memory != MAP_FAILED);
		}
		connect_to(argv[2], way->name);
		goes_on();
		puts("ready");
		if (!way->run)
			return ENDED;
		way->run();
		goes_on();
		return GOES_ON;
	}
	return 2;
}
