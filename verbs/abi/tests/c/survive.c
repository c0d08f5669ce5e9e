/* What programs do to themselves: cancelled threads, objects that are destroyed while other threads wait for them,
 * forks.
 *
 *   survive cancel | destroy | fork-before | fork-after | silent */
#include "harness.h"

static atomic_int ready;

static _Thread_local pid_t me;
static atomic_int waiter;

/* Announces that this thread is about to block. After the announcement, the thread must not sleep before it blocks. */
static void about_to_wait(void)
{
	me = gettid();
	waiter = me;
}

/* Waits until the thread blocks. Returns false if it has ended instead. */
static bool until_it_waits(void)
{
	for (;;) {
		char state = waiter ? state_of(waiter) : 'R';
		if (state == 'S' || !state)
			return state;
		sched_yield();
	}
}

static void *in_cm(void *channel)
{
	struct rdma_cm_event *event;
	about_to_wait();
	rdma_get_cm_event(channel, &event);
	return NULL;
}

static void *in_cq(void *channel)
{
	struct ibv_cq *cq;
	void *context;
	about_to_wait();
	ibv_get_cq_event(channel, &cq, &context);
	return NULL;
}

static void *in_async(void *context)
{
	struct ibv_async_event event;
	about_to_wait();
	while (!ibv_get_async_event(context, &event))
		ibv_ack_async_event(&event);
	return NULL;
}

static void *in_request(void *listener)
{
	struct rdma_cm_id *id;
	about_to_wait();
	rdma_get_request(listener, &id);
	return NULL;
}

static void *in_connect(void *id)
{
	about_to_wait();
	rdma_connect(id, NULL);
	return NULL;
}

/* Starts a thread, and cancels it when it blocks. Returns false if it has ended by itself. */
static bool cancel(void *(*blocks)(void *), void *with)
{
	pthread_t thread;
	void *answer;
	waiter = 0;
	OK(pthread_create(&thread, NULL, blocks, with));
	if (!until_it_waits()) {
		OK(pthread_join(thread, NULL));
		return false;
	}
	OK(pthread_cancel(thread));
	OK(pthread_join(thread, &answer));
	return answer == PTHREAD_CANCELED;
}

static atomic_int at_work;

/* Is cancelled while it works. Calls that do not wait are no cancellation points: it ends at pthread_testcancel. */
static void *at_work_when_cancelled(void *arg)
{
	struct link *l = arg;
	struct rdma_cm_id *id;
	struct sockaddr_in own = own_address(0);
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	wr.wr.rdma.remote_addr = (uintptr_t)l->memory[1];
	wr.wr.rdma.rkey = l->mr[1]->rkey;
	at_work = 1;
	while (at_work == 1)
		sched_yield();
	struct rdma_event_channel *events = SOME(rdma_create_event_channel());
	OK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP));
	OK(rdma_bind_addr(id, (void *)&own));
	OK(rdma_listen(id, 1));
	OK(rdma_destroy_id(id));
	rdma_destroy_event_channel(events);
	struct ibv_comp_channel *channel = SOME(ibv_create_comp_channel(l->client->verbs));
	struct ibv_cq *cq = SOME(ibv_create_cq(l->client->verbs, 4, NULL, channel, 0));
	OK(ibv_req_notify_cq(cq, 0));
	for (int i = 0; i < 100; i++) {
		OK(post(l->client, l->mr[0], 0, 100, &wr));
		CHECK(completion(l->cq[0]).status == IBV_WC_SUCCESS);
	}
	OK(ibv_destroy_cq(cq));
	OK(ibv_destroy_comp_channel(channel));
	at_work = 3;
	pthread_testcancel();
	return NULL;
}

/* Blocking calls are cancellation points, after which everything still works. */
static void cancellation(void)
{
	struct link l;
	struct sockaddr_in own = own_address(0);
	link_up(&l);
	struct ibv_comp_channel *channel = SOME(ibv_create_comp_channel(l.client->verbs));
	struct ibv_cq *cq = SOME(ibv_create_cq(l.client->verbs, 4, NULL, channel, 0));
	struct rdma_addrinfo passive = { .ai_flags = RAI_PASSIVE, .ai_qp_type = IBV_QPT_RC, .ai_port_space = RDMA_PS_TCP,
		.ai_src_addr = (void *)&own, .ai_src_len = sizeof own };
	struct rdma_cm_id *listener, *id;
	OK(rdma_create_ep(&listener, &passive, NULL, NULL));
	OK(rdma_listen(listener, 1));
	struct sockaddr_in nobody = own_address(9);
	nobody.sin_addr.s_addr ^= htonl(0x55); /* a neighbour that does not exist */
	struct rdma_addrinfo active = { .ai_qp_type = IBV_QPT_RC, .ai_port_space = RDMA_PS_TCP, .ai_dst_addr = (void *)&nobody, .ai_dst_len = sizeof nobody };
	for (int round = 0; round < 5; round++) {
		pthread_t thread;
		void *answer;
		at_work = 0;
		OK(pthread_create(&thread, NULL, at_work_when_cancelled, &l));
		while (!at_work)
			sched_yield();
		OK(pthread_cancel(thread));
		at_work = 2;
		OK(pthread_join(thread, &answer));
		CHECK(answer == PTHREAD_CANCELED && at_work == 3);
		CHECK(cancel(in_cm, l.channel));
		CHECK(cancel(in_cq, channel));
		CHECK(cancel(in_async, l.client->verbs));
		CHECK(cancel(in_request, listener));
		/* Connecting fails by itself after some seconds, which may have passed on a busy machine. */
		for (bool cancelled = false; !cancelled;) {
			struct ibv_qp_init_attr init = qp_like(NULL); /* afterwards it names the queues that were made */
			OK(rdma_create_ep(&id, &active, NULL, &init));
			cancelled = cancel(in_connect, id);
			rdma_destroy_ep(id);
		}
	}
	OK(ibv_destroy_cq(cq));
	OK(ibv_destroy_comp_channel(channel));
	rdma_destroy_ep(listener);
	link_down(&l);
}

static void *get_and_keep(void *arg)
{
	struct link *l = arg;
	struct rdma_cm_event *event;
	struct ibv_cq *cq;
	void *context;
	struct ibv_comp_channel *channel = l->cq[0]->channel;
	OK(ibv_get_cq_event(channel, &cq, &context));
	OK(rdma_get_cm_event(l->channel, &event));
	ready = 1;
	while (ready == 1)
		sched_yield();
	/* The other thread is about to destroy the objects of these events, and will wait. */
	ibv_ack_cq_events(cq, 1);
	OK(rdma_ack_cm_event(event));
	return NULL;
}

static struct rdma_event_channel *served;

/* Takes an event, and asks for the next when the channel is destroyed, as rping's threads do when rping ends. */
static void *in_cm_again(void *unused)
{
	struct rdma_cm_event *event;
	OK(rdma_get_cm_event(served, &event));
	OK(rdma_ack_cm_event(event));
	ready = 1;
	while (ready == 1)
		sched_yield();
	about_to_wait();
	rdma_get_cm_event(served, &event);
	return unused;
}

/* Makes an identifier that has a waiting event. */
static struct rdma_cm_id *with_event(void)
{
	struct rdma_cm_id *id;
	struct sockaddr_in to = own_address(1);
	OK(rdma_create_id(served, &id, NULL, RDMA_PS_TCP));
	OK(rdma_resolve_addr(id, NULL, (void *)&to, 1000));
	return id;
}

/* The channel is destroyed while a thread processes an event: that thread waits from then on. The thread that
 * destroyed the channel gets EBADF if it asks for an event. */
static void outrun(void)
{
	pthread_t thread;
	void *answer;
	struct rdma_cm_event *event;
	served = SOME(rdma_create_event_channel());
	struct rdma_cm_id *ids[2] = { with_event() };
	take_event(served, RDMA_CM_EVENT_ADDR_RESOLVED);
	ids[1] = with_event();
	ready = waiter = 0;
	OK(pthread_create(&thread, NULL, in_cm_again, NULL));
	while (!ready)
		sched_yield();
	for (int i = 0; i < 2; i++)
		OK(rdma_destroy_id(ids[i]));
	rdma_destroy_event_channel(served);
	ready = 2;
	CHECK(until_it_waits());
	OK(pthread_cancel(thread));
	OK(pthread_join(thread, &answer));
	CHECK(answer == PTHREAD_CANCELED);
	FAILS(rdma_get_cm_event(served, &event), EBADF);
}

/* Objects are destroyed while other threads wait for them, or hold events about them. */
static void destruction(void)
{
	struct link l;
	pthread_t threads[3], keeper;
	void *answer;
	for (int round = 0; round < 5; round++) {
		link_up(&l);
		struct ibv_context *verbs = l.client->verbs;
		struct ibv_comp_channel *channel = SOME(ibv_create_comp_channel(verbs));
		struct rdma_event_channel *events = SOME(rdma_create_event_channel());
		void *(*blocks[2])(void *) = { in_cm, in_cq };
		void *with[2] = { events, channel };
		for (int i = 0; i < 2; i++) {
			waiter = 0;
			OK(pthread_create(&threads[i], NULL, blocks[i], with[i]));
			CHECK(until_it_waits());
		}
		rdma_destroy_event_channel(events);
		OK(ibv_destroy_comp_channel(channel));
		for (int i = 0; i < 2; i++) {
			OK(pthread_cancel(threads[i]));
			OK(pthread_join(threads[i], &answer));
			CHECK(answer == PTHREAD_CANCELED);
		}
		outrun();

		/* Events that are not acknowledged delay the destruction of their objects. */
		struct ibv_comp_channel *own = SOME(ibv_create_comp_channel(verbs));
		struct ibv_cq *plain = l.cq[0];
		rdma_destroy_qp(l.client);
		for (int told = 0; told < 2; told++)
			take_event(l.channel, RDMA_CM_EVENT_DISCONNECTED);
		l.cq[0] = SOME(ibv_create_cq(verbs, 16, NULL, own, 0));
		OK(ibv_destroy_cq(plain));
		struct ibv_qp_init_attr init = qp_like(l.cq[0]);
		struct ibv_qp *qp = SOME(ibv_create_qp(l.client->pd, &init));
		OK(ibv_req_notify_cq(l.cq[0], 0));
		struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;
		OK(ibv_post_recv(qp, &wr, &bad));
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
		OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE)); /* flushes: an event */
		OK(ibv_destroy_qp(qp));
		struct rdma_cm_id *late;
		struct sockaddr_in to = own_address(1);
		OK(rdma_create_id(l.channel, &late, NULL, RDMA_PS_TCP));
		OK(rdma_resolve_addr(late, NULL, (void *)&to, 1000)); /* an event */
		ready = 0;
		OK(pthread_create(&keeper, NULL, get_and_keep, &l));
		while (!ready)
			sched_yield();
		ready = 2;
		OK(ibv_destroy_cq(l.cq[0]));
		OK(rdma_destroy_id(late));
		OK(pthread_join(keeper, NULL));
		OK(ibv_destroy_comp_channel(own));
		l.cq[0] = SOME(ibv_create_cq(verbs, 16, NULL, NULL, 0));
		link_free(&l);
	}
}

static void use(void)
{
	struct link l;
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	link_up(&l);
	wr.wr.rdma.remote_addr = (uintptr_t)l.memory[1];
	wr.wr.rdma.rkey = l.mr[1]->rkey;
	OK(post(l.client, l.mr[0], 0, 100, &wr));
	CHECK(completion(l.cq[0]).status == IBV_WC_SUCCESS);
	link_down(&l);
}

static void reap(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The process has loaded the library, and listed the devices, but opened none: the child may open one. */
static void fork_before(void)
{
	OK(ibv_fork_init());
	struct ibv_device **list = SOME(ibv_get_device_list(NULL));
	pid_t child = fork();
	if (!child) {
		use();
		exit(0);
	}
	reap(child);
	ibv_free_device_list(list);
	use();
}

/* Makes an extended queue with a completion in it: a flushed receive. */
static struct ibv_cq_ex *flushed(struct link *l, uint64_t fields, struct ibv_qp **qp)
{
	struct ibv_cq_init_attr_ex ask = { .cqe = 16, .wc_flags = fields };
	struct ibv_cq_ex *cq = SOME(ibv_create_cq_ex(l->client->verbs, &ask));
	struct ibv_qp_init_attr init = qp_like(ibv_cq_ex_to_cq(cq));
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr *bad;
	*qp = SOME(ibv_create_qp(l->client->pd, &init));
	OK(ibv_post_recv(*qp, &(struct ibv_recv_wr){ .wr_id = 7 }, &bad));
	OK(ibv_modify_qp(*qp, &error, IBV_QP_STATE));
	return cq;
}

/* The device belongs to the parent. */
static void fork_after(void)
{
	struct link l;
	struct ibv_qp *qps[2];
	struct ibv_poll_cq_attr none = { 0 };
	struct ibv_wc wc;
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	link_up(&l);
	struct ibv_cq_ex *queues[] = { flushed(&l, IBV_WC_STANDARD_FLAGS, &qps[0]),
		flushed(&l, IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, &qps[1]) };
	pid_t child = fork();
	if (!child) {
		struct rdma_cm_id *id;
		struct ibv_device_attr attr;
		struct ibv_qp_init_attr init = qp_like(l.cq[0]);
		struct ibv_context *verbs = l.client->verbs;
		NONE(ibv_alloc_pd(verbs), ENODEV);
		NONE(ibv_reg_mr(l.client->pd, l.memory[0], 4096, 0), ENODEV);
		NONE(ibv_create_cq(verbs, 4, NULL, NULL, 0), ENODEV);
		NONE(ibv_create_comp_channel(verbs), ENODEV);
		NONE(ibv_create_qp(l.client->pd, &init), ENODEV);
		NONE(ibv_open_device(verbs->device), ENODEV);
		NONE(rdma_create_event_channel(), ENODEV);
		FAILS(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), ENODEV);
		FAILS(ibv_query_device(verbs, &attr), ENODEV);
		IS(ibv_poll_cq(l.cq[0], 1, &wc), 0);
		for (int i = 0; i < 2; i++) {
			IS(ibv_start_poll(queues[i], &none), ENODEV);
			IS(ibv_next_poll(queues[i]), ENODEV);
		}
		exit(0); /* the parent's peers get nothing from it */
	}
	reap(child);
	for (int i = 0; i < 2; i++) {
		while (ibv_start_poll(queues[i], &none))
			;
		CHECK(queues[i]->wr_id == 7 && queues[i]->status == IBV_WC_WR_FLUSH_ERR);
		IS(ibv_next_poll(queues[i]), ENOENT);
		ibv_end_poll(queues[i]);
		OK(ibv_destroy_qp(qps[i]));
		OK(ibv_destroy_cq(ibv_cq_ex_to_cq(queues[i])));
	}
	wr.wr.rdma.remote_addr = (uintptr_t)l.memory[1];
	wr.wr.rdma.rkey = l.mr[1]->rkey;
	OK(post(l.client, l.mr[0], 0, 100, &wr));
	CHECK(completion(l.cq[0]).status == IBV_WC_SUCCESS);
	/* A child that runs another program. */
	child = fork();
	if (!child) {
		execlp("true", "true", NULL);
		_exit(1);
	}
	reap(child);
	link_down(&l);
}

/* The library's messages have no reader. */
static void silent(void)
{
	int ends[2];
	signal(SIGPIPE, SIG_IGN);
	OK(pipe(ends));
	close(ends[0]);
	CHECK(dup2(ends[1], 2) == 2);
	setenv("URNIC_LOG", "trace", 1);
	use();
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } ways[] = {
		{ "cancel", cancellation }, { "destroy", destruction }, { "fork-before", fork_before },
		{ "fork-after", fork_after }, { "silent", silent } };
	for (size_t i = 0; argc > 1 && i < sizeof ways / sizeof ways[0]; i++)
		if (!strcmp(argv[1], ways[i].name)) {
			ways[i].run();
			puts("done");
			return 0;
		}
	return 2;
}
