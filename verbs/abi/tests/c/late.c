/* The device opens only when it is needed: objects that programs make before they fork can be used in the child.
 *
 *   late nothing | fork | daemon */
#include "harness.h"
#include <dirent.h>
#include <sys/epoll.h>

static int threads(void)
{
	int n = 0;
	DIR *tasks = SOME(opendir("/proc/self/task"));
	for (struct dirent *entry; (entry = readdir(tasks));)
		n += entry->d_name[0] != '.';
	closedir(tasks);
	return n;
}

/* Objects that a program makes before it forks. */
struct early {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	int epoll;
};

static struct early early(void)
{
	struct early e;
	struct rdma_addrinfo *rai, hints = { .ai_flags = RAI_PASSIVE };
	struct epoll_event wanted = { .events = EPOLLIN };
	struct ibv_device **list = SOME(ibv_get_device_list(NULL));
	int yes = 1;
	CHECK(ibv_get_device_guid(list[0]));
	ibv_free_device_list(list);
	OK(ibv_fork_init());
	OK(rdma_getaddrinfo(NULL, "0", &hints, &rai));
	rdma_freeaddrinfo(rai);
	e.channel = SOME(rdma_create_event_channel());
	CHECK(fcntl(e.channel->fd, F_SETFL, fcntl(e.channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	e.epoll = epoll_create1(0);
	OK(epoll_ctl(e.epoll, EPOLL_CTL_ADD, e.channel->fd, &wanted));
	IS(epoll_wait(e.epoll, &wanted, 1, 0), 0);
	OK(rdma_create_id(e.channel, &e.id, &e, RDMA_PS_TCP));
	OK(rdma_set_option(e.id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes));
	struct rdma_cm_event *event;
	FAILS(rdma_get_cm_event(e.channel, &event), EAGAIN);
	/* No thread drives a device. */
	IS(threads(), 1);
	return e;
}

static void destroy(struct early *e)
{
	OK(rdma_destroy_id(e->id));
	rdma_destroy_event_channel(e->channel);
	close(e->epoll);
}

static void wait_for(struct early *e, enum rdma_cm_event_type wanted, struct rdma_cm_event **event)
{
	struct epoll_event ready;
	while (rdma_get_cm_event(e->channel, event)) {
		CHECK(errno == EAGAIN);
		IS(epoll_wait(e->epoll, &ready, 1, 60000), 1);
	}
	CHECK((*event)->event == wanted);
}

/* Listens and connects to itself, with the early objects. */
static void use(struct early *e)
{
	struct link l = { .channel = e->channel };
	struct sockaddr_in own = own_address(0);
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_event *event;
	OK(rdma_bind_addr(e->id, (struct sockaddr *)&own));
	CHECK(e->id->verbs && threads() > 1);
	OK(rdma_listen(e->id, 4));
	own.sin_port = rdma_get_src_port(e->id);
	OK(rdma_create_id(e->channel, &l.client, NULL, RDMA_PS_TCP));
	OK(rdma_resolve_addr(l.client, NULL, (struct sockaddr *)&own, 2000));
	wait_for(e, RDMA_CM_EVENT_ADDR_RESOLVED, &event);
	OK(rdma_ack_cm_event(event));
	OK(rdma_resolve_route(l.client, 2000));
	wait_for(e, RDMA_CM_EVENT_ROUTE_RESOLVED, &event);
	OK(rdma_ack_cm_event(event));
	link_end(&l, 0, l.client);
	OK(rdma_connect(l.client, &param));
	wait_for(e, RDMA_CM_EVENT_CONNECT_REQUEST, &event);
	CHECK(event->listen_id == e->id && event->id->context == e);
	l.server = event->id;
	OK(rdma_ack_cm_event(event));
	link_end(&l, 1, l.server);
	OK(rdma_accept(l.server, &param));
	for (int end = 0; end < 2; end++) {
		wait_for(e, RDMA_CM_EVENT_ESTABLISHED, &event);
		OK(rdma_ack_cm_event(event));
	}
	OK(rdma_disconnect(l.client));
	for (int end = 0; end < 2; end++) {
		wait_for(e, RDMA_CM_EVENT_DISCONNECTED, &event);
		OK(rdma_ack_cm_event(event));
	}
	link_ends_free(&l);
}

static void nothing(void)
{
	struct early e = early();
	destroy(&e);
	IS(threads(), 1);
}

static void reap(pid_t child)
{
	int status;
	CHECK(child > 0);
	IS(waitpid(child, &status, 0), child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Uses the objects in the child, and in the parent when the child has ended. */
static void after_fork(void)
{
	struct early e = early();
	e.id->context = &e;
	pid_t child = fork();
	if (!child) {
		use(&e);
		destroy(&e);
		exit(0);
	}
	reap(child);
	IS(threads(), 1);
	use(&e);
	destroy(&e);
}

/* Forks as tgtd does: the parent ends. */
static void daemonized(void)
{
	int ends[2];
	char answer = 0;
	OK(pipe(ends));
	pid_t child = fork();
	if (!child) {
		struct early e = early();
		e.id->context = &e;
		OK(daemon(1, 1));
		use(&e);
		destroy(&e);
		CHECK(write(ends[1], "y", 1) == 1);
		exit(0);
	}
	close(ends[1]);
	reap(child);
	IS(read(ends[0], &answer, 1), 1);
	CHECK(answer == 'y');
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } ways[] = {
		{ "nothing", nothing }, { "fork", after_fork }, { "daemon", daemonized } };
	for (size_t i = 0; argc > 1 && i < sizeof ways / sizeof ways[0]; i++)
		if (!strcmp(argv[1], ways[i].name)) {
			ways[i].run();
			puts("done");
			return 0;
		}
	return 2;
}
