/* Careless programs: objects are destroyed in every order while traffic runs, and twice; threads are cancelled
 * wherever they wait; processes fork in the middle.
 *
 *   careless order SEED [COUNT] | twice | race | cancel | fork */
#include "harness.h"

/* ---- every order --------------------------------------------------------------------------------------------------- */

enum { PD, MR, MW, CHANNEL, CQ, SRQ, QP, ID, EVENTS, KINDS };
static const char *const NAMES[KINDS] = { "pd", "mr", "mw", "channel", "cq", "srq", "qp", "id", "events" };

/* For each kind of object, the kinds that must be destroyed first: otherwise rdma-core returns EBUSY. */
static const unsigned NEEDED_BY[KINDS] = {
	[PD] = 1 << MR | 1 << MW | 1 << SRQ | 1 << QP, [MR] = 1 << MW, [CHANNEL] = 1 << CQ, [CQ] = 1 << QP, [SRQ] = 1 << QP };

#define LENGTH 65536
#define RECEIVES 16

/* One end: an object of each kind, and the registered memory. */
struct end {
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	char *memory;
};

static struct rdma_event_channel *listening;
static struct rdma_cm_id *listener;
static struct sockaddr_in place;
static atomic_int stop;

static void listen_here(void)
{
	place = own_address(0);
	listening = SOME(rdma_create_event_channel());
	OK(rdma_create_id(listening, &listener, NULL, RDMA_PS_TCP));
	OK(rdma_bind_addr(listener, (struct sockaddr *)&place));
	OK(rdma_listen(listener, 16));
	place.sin_port = rdma_get_src_port(listener);
}

static void listen_no_more(void)
{
	OK(rdma_destroy_id(listener));
	rdma_destroy_event_channel(listening);
}

static void furnish(struct end *e)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = RECEIVES, .max_sge = 1 } };
	e->memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(e->memory != MAP_FAILED);
	e->pd = SOME(ibv_alloc_pd(e->id->verbs));
	e->mr = SOME(ibv_reg_mr(e->pd, e->memory, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND));
	e->mw = SOME(ibv_alloc_mw(e->pd, IBV_MW_TYPE_1));
	e->channel = SOME(ibv_create_comp_channel(e->id->verbs));
	e->cq = SOME(ibv_create_cq(e->id->verbs, 256, NULL, e->channel, 0));
	e->srq = SOME(ibv_create_srq(e->pd, &shared));
	struct ibv_qp_init_attr init = qp_like(e->cq);
	init.srq = e->srq;
	OK(rdma_create_qp(e->id, e->pd, &init));
	e->qp = e->id->qp;
	for (uint64_t i = 0; i < RECEIVES; i++) {
		struct ibv_sge sge = { (uintptr_t)e->memory, 1024, e->mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
		OK(ibv_post_srq_recv(e->srq, &wr, &bad));
	}
}

/* Makes all objects of two ends, and connects the ends. */
static void meet(struct end *own, struct end *peer)
{
	struct rdma_conn_param param = { .responder_resources = 4, .initiator_depth = 4 };
	struct rdma_cm_event *event;
	own->events = SOME(rdma_create_event_channel());
	peer->events = listening;
	OK(rdma_create_id(own->events, &own->id, NULL, RDMA_PS_TCP));
	OK(rdma_resolve_addr(own->id, NULL, (struct sockaddr *)&place, 2000));
	take_event(own->events, RDMA_CM_EVENT_ADDR_RESOLVED);
	OK(rdma_resolve_route(own->id, 2000));
	take_event(own->events, RDMA_CM_EVENT_ROUTE_RESOLVED);
	furnish(own);
	OK(rdma_connect(own->id, &param));
	event = next_event(listening, RDMA_CM_EVENT_CONNECT_REQUEST);
	peer->id = event->id;
	OK(rdma_ack_cm_event(event));
	furnish(peer);
	OK(rdma_accept(peer->id, &param));
	take_event(listening, RDMA_CM_EVENT_ESTABLISHED);
	take_event(own->events, RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED,
		.bind_info = { own->mr, (uintptr_t)own->memory, LENGTH, IBV_ACCESS_REMOTE_WRITE } };
	OK(ibv_bind_mw(own->qp, own->mw, &bind));
	CHECK(completion(own->cq).status == IBV_WC_SUCCESS);
}

struct job {
	struct end *peer;
	/* Number of requests that are done. */
	atomic_int done;
	uint64_t to;
	uint32_t rkey, window;
};

static int work(struct end *e, enum ibv_wr_opcode opcode, uint64_t to, uint32_t rkey, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)e->memory, length, e->mr->lkey };
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = to;
	wr.wr.rdma.rkey = rkey;
	return ibv_post_send(e->qp, &wr, &bad);
}

/* Uses the other end's objects, until that fails or is no longer wanted. */
static void *keep_busy(void *arg)
{
	struct job *job = arg;
	struct ibv_wc wc;
	int under_way = 0;
	bool fails = false;
	for (unsigned turn = 0; !fails || under_way; turn++) {
		while (!fails && under_way < 8) {
			static const enum ibv_wr_opcode ways[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND };
			enum ibv_wr_opcode way = ways[turn % 4];
			if (way == IBV_WR_SEND && turn / 4 >= RECEIVES)
				way = IBV_WR_RDMA_READ;
			if (work(job->peer, way, job->to, turn % 3 ? job->rkey : job->window, way == IBV_WR_SEND ? 100 : LENGTH / 4))
				fails = true;
			else
				under_way++;
			turn++;
		}
		int n = ibv_poll_cq(job->peer->cq, 1, &wc);
		CHECK(n >= 0);
		/* Receives would complete to the same queue, and do not count. */
		if (n && !(wc.opcode & IBV_WC_RECV)) {
			under_way--;
			job->done++;
			fails |= wc.status != IBV_WC_SUCCESS;
		}
		fails |= stop;
	}
	return NULL;
}

/* Destroys one object. */
static int destroy(struct end *e, int kind, unsigned left)
{
	int answer = 0;
	switch (kind) {
	case PD:
		return ibv_dealloc_pd(e->pd);
	case MR:
		answer = ibv_dereg_mr(e->mr);
		/* Nothing may touch the memory from now on. */
		if (!answer)
			OK(mprotect(e->memory, LENGTH, PROT_NONE));
		return answer;
	case MW:
		return ibv_dealloc_mw(e->mw);
	case CHANNEL:
		return ibv_destroy_comp_channel(e->channel);
	case CQ:
		return ibv_destroy_cq(e->cq);
	case SRQ:
		return ibv_destroy_srq(e->srq);
	case QP:
		if (!(left & 1 << ID))
			return ibv_destroy_qp(e->qp);
		rdma_destroy_qp(e->id);
		return 0;
	case ID:
		return rdma_destroy_id(e->id);
	default:
		rdma_destroy_event_channel(e->events);
		return 0;
	}
}

static uint64_t random_state = 1;

static unsigned chance(unsigned below)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state % below;
}

/* Which objects the test has tried to destroy, for each set of objects that were left. */
static bool tried[1 << KINDS][KINDS];

/* Destroys the objects of one end in an order; objects that are needed wait for the next round. */
static void destroy_in(struct end *e, const int *order)
{
	unsigned left = (1 << KINDS) - 1;
	while (left) {
		for (int i = 0; i < KINDS; i++) {
			int kind = order[i];
			if (!(left & 1 << kind))
				continue;
			tried[left][kind] = true;
			int answer = destroy(e, kind, left);
			int expected = left & NEEDED_BY[kind] ? EBUSY : 0;
			if (answer != expected) {
				fprintf(stderr, "%s, with", NAMES[kind]);
				for (int other = 0; other < KINDS; other++)
					if (left & 1 << other)
						fprintf(stderr, " %s", NAMES[other]);
				fprintf(stderr, " left: %d instead of %d\n", answer, expected);
				_exit(1);
			}
			if (!answer)
				left &= ~(1u << kind);
			/* Lets requests in flight go on for a random time. */
			for (unsigned turns = chance(8); turns; turns--)
				sched_yield();
		}
	}
}

static void one_order(const int *order)
{
	struct end own = { 0 }, peer = { 0 };
	struct job job;
	pthread_t thread;
	static const int tidy[KINDS] = { MW, QP, SRQ, CQ, CHANNEL, MR, PD, ID, EVENTS };
	alarm(60);
	meet(&own, &peer);
	job = (struct job){ .peer = &peer, .to = (uintptr_t)own.memory, .rkey = own.mr->rkey, .window = own.mw->rkey };
	stop = 0;
	OK(ibv_req_notify_cq(own.cq, 0));
	OK(pthread_create(&thread, NULL, keep_busy, &job));
	/* This end has requests in flight as well. */
	for (int i = 0; i < 4; i++)
		OK(work(&own, i % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, (uintptr_t)peer.memory, peer.mr->rkey, LENGTH));
	while (job.done < 8)
		sched_yield();
	destroy_in(&own, order);
	stop = 1;
	/* The connection ended with the queue pair: posted requests are flushed. */
	OK(pthread_join(thread, NULL));
	OK(munmap(own.memory, LENGTH));
	/* Destroys the other end's objects in a valid order, except the event channel, which is the listener's. */
	for (int i = 0; i < KINDS - 1; i++)
		OK(destroy(&peer, tidy[i], (1 << KINDS) - 1));
	OK(munmap(peer.memory, LENGTH));
	alarm(0);
}

/* Returns how many new situations an order would try. */
static int novelty(const int *order)
{
	unsigned left = (1 << KINDS) - 1;
	int new = 0;
	while (left)
		for (int i = 0; i < KINDS; i++) {
			int kind = order[i];
			if (!(left & 1 << kind))
				continue;
			new += !tried[left][kind];
			if (!(left & NEEDED_BY[kind]))
				left &= ~(1u << kind);
		}
	return new;
}

/* Replaces an order by the next one in lexicographic sequence; the first follows the last. */
static void next_order(int *order)
{
	int i = KINDS - 2, j = KINDS - 1;
	while (i >= 0 && order[i] > order[i + 1])
		i--;
	while (i >= 0 && order[j] < order[i])
		j--;
	if (i >= 0) {
		int swap = order[i];
		order[i] = order[j];
		order[j] = swap;
	}
	for (i++, j = KINDS - 1; i < j; i++, j--) {
		int swap = order[i];
		order[i] = order[j];
		order[j] = swap;
	}
}

/* Runs `wanted` orders. If `wanted` is 0, runs orders until the test has tried to destroy each object with each
 * possible set of others left. */
static void orders(const char *seed, int wanted)
{
	int order[KINDS] = { PD, MR, MW, CHANNEL, CQ, SRQ, QP, ID, EVENTS };
	int runs = 0, all = 1;
	random_state = strtoull(seed, NULL, 0) * 2654435769u + 1;
	listen_here();
	/* First random orders that try many new situations, until such orders are rare. */
	for (int dull = 0; wanted ? runs < wanted : dull < 300;) {
		for (int i = KINDS - 1; i > 0; i--) {
			int j = chance(i + 1), swap = order[i];
			order[i] = order[j];
			order[j] = swap;
		}
		if (!wanted && novelty(order) < 4) {
			dull++;
			continue;
		}
		one_order(order);
		runs++;
		dull = 0;
	}
	/* Then, out of all orders, every order that tries a new situation. */
	for (int i = 2; i <= KINDS; i++)
		all *= i;
	for (int i = 0; !wanted && i < all; i++, next_order(order)) {
		if (!novelty(order))
			continue;
		one_order(order);
		runs++;
	}
	int situations = 0;
	for (unsigned left = 0; left < 1 << KINDS; left++)
		for (int kind = 0; kind < KINDS; kind++)
			situations += tried[left][kind];
	printf("orders %d, situations %d\n", runs, situations);
	listen_no_more();
}

/* ---- twice --------------------------------------------------------------------------------------------------------- */

static void twice(void)
{
	struct end e = { 0 }, peer = { 0 };
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	listen_here();
	meet(&e, &peer);

	struct ibv_qp *qp = e.qp;
	struct ibv_context *verbs = e.id->verbs;
	FAILS(ibv_destroy_cq((struct ibv_cq *)qp), EINVAL); /* another kind of object */
	FAILS(ibv_dealloc_pd((struct ibv_pd *)e.cq), EINVAL);
	FAILS(rdma_destroy_id((struct rdma_cm_id *)e.pd), EINVAL);
	FAILS(ibv_dealloc_pd(e.pd), EBUSY); /* and is still there */
	FAILS(ibv_dealloc_pd(e.pd), EBUSY);
	rdma_destroy_qp(e.id);
	rdma_destroy_qp(e.id);
	FAILS(ibv_destroy_qp(qp), EINVAL);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;
	FAILS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	FAILS(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), EINVAL);
	/* The header's own function would read the window. */
	OK(verbs->ops.dealloc_mw(e.mw));
	FAILS(verbs->ops.dealloc_mw(e.mw), EINVAL);
	OK(ibv_dereg_mr(e.mr));
	FAILS(ibv_dereg_mr(e.mr), EINVAL);
	OK(ibv_destroy_srq(e.srq));
	FAILS(ibv_destroy_srq(e.srq), EINVAL);
	OK(ibv_destroy_cq(e.cq));
	FAILS(ibv_destroy_cq(e.cq), EINVAL);
	OK(ibv_destroy_comp_channel(e.channel));
	FAILS(ibv_destroy_comp_channel(e.channel), EINVAL);
	OK(ibv_dealloc_pd(e.pd));
	FAILS(ibv_dealloc_pd(e.pd), EINVAL);
	NONE(ibv_reg_mr(e.pd, e.memory, 4096, 0), EINVAL);

	event = next_event(e.events, RDMA_CM_EVENT_DISCONNECTED);
	OK(rdma_ack_cm_event(event));
	FAILS(rdma_ack_cm_event(event), EINVAL);
	OK(rdma_destroy_id(e.id));
	FAILS(rdma_destroy_id(e.id), EINVAL);
	FAILS(rdma_disconnect(e.id), EINVAL);
	FAILS(rdma_migrate_id(e.id, listening), EINVAL);
	FAILS(rdma_connect(e.id, NULL), EINVAL);
	rdma_destroy_event_channel(e.events);
	rdma_destroy_event_channel(e.events);
	FAILS(rdma_create_id(e.events, &id, NULL, RDMA_PS_TCP), EBADF);
	OK(munmap(e.memory, LENGTH));

	struct ibv_device **list = SOME(ibv_get_device_list(NULL));
	struct ibv_context *context = SOME(ibv_open_device(list[0]));
	ibv_free_device_list(list);
	struct ibv_td_init_attr plain = { 0 };
	struct ibv_td *td = SOME(ibv_alloc_td(context, &plain));
	OK(ibv_dealloc_td(td));
	/* Closes the device before its objects are destroyed; the objects can still be destroyed afterwards. */
	struct ibv_pd *pd = SOME(ibv_alloc_pd(context));
	struct ibv_cq *cq = SOME(ibv_create_cq(context, 4, NULL, NULL, 0));
	OK(ibv_close_device(context));
	FAILS(ibv_close_device(context), EINVAL);
	OK(ibv_destroy_cq(cq));
	OK(ibv_dealloc_pd(pd));

	struct rdma_addrinfo *found;
	OK(rdma_getaddrinfo("localhost", "7", NULL, &found));
	rdma_freeaddrinfo(found);
	rdma_freeaddrinfo(found);

	static const int tidy[] = { MW, QP, SRQ, CQ, CHANNEL, MR, PD, ID };
	for (size_t i = 0; i < sizeof tidy / sizeof tidy[0]; i++)
		OK(destroy(&peer, tidy[i], (1 << KINDS) - 1));
	OK(munmap(peer.memory, LENGTH));
	listen_no_more();
}

/* Two threads destroy the same object: one of them succeeds. */
static pthread_barrier_t together;
static struct end shared;
static struct rdma_cm_id *contested;
static int answers[2][4];

static void *one_of_two(void *arg)
{
	int *own = arg;
	pthread_barrier_wait(&together);
	own[0] = ibv_destroy_qp(shared.qp);
	pthread_barrier_wait(&together);
	own[1] = ibv_dereg_mr(shared.mr);
	own[2] = ibv_destroy_cq(shared.cq);
	own[3] = rdma_destroy_id(contested) ? errno : 0;
	return NULL;
}

static void race(void)
{
	char memory[4096];
	struct ibv_context **list = SOME(rdma_get_devices(NULL)), *verbs = list[0];
	rdma_free_devices(list);
	struct rdma_event_channel *events = SOME(rdma_create_event_channel());
	shared.pd = SOME(ibv_alloc_pd(verbs));
	OK(pthread_barrier_init(&together, NULL, 2));
	for (int round = 0; round < 200; round++) {
		pthread_t threads[2];
		shared.cq = SOME(ibv_create_cq(verbs, 16, NULL, NULL, 0));
		shared.mr = SOME(ibv_reg_mr(shared.pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
		struct ibv_qp_init_attr init = qp_like(shared.cq);
		shared.qp = SOME(ibv_create_qp(shared.pd, &init));
		OK(rdma_create_id(events, &contested, NULL, RDMA_PS_TCP));
		for (int i = 0; i < 2; i++)
			OK(pthread_create(&threads[i], NULL, one_of_two, answers[i]));
		for (int i = 0; i < 2; i++)
			OK(pthread_join(threads[i], NULL));
		for (int what = 0; what < 4; what++) {
			int a = answers[0][what], b = answers[1][what];
			if (!((a == 0 && b == EINVAL) || (a == EINVAL && b == 0)))
				failed(__FILE__, __LINE__, "one of two", a * 1000 + b, what);
		}
	}
	OK(ibv_dealloc_pd(shared.pd));
	rdma_destroy_event_channel(events);
}

/* Destroys both ends, in a valid order. */
static void part(struct end *own, struct end *peer)
{
	int tidy[KINDS] = { MW, QP, SRQ, CQ, CHANNEL, MR, PD, ID, EVENTS };
	destroy_in(own, tidy);
	for (int i = 0; i < KINDS - 1; i++)
		OK(destroy(peer, tidy[i], (1 << KINDS) - 1));
	OK(munmap(own->memory, LENGTH));
	OK(munmap(peer->memory, LENGTH));
	listen_no_more();
}

/* ---- cancelled threads --------------------------------------------------------------------------------------------- */

static atomic_int waiter;

struct wait {
	const char *name;
	int (*call)(void *with);
	void *with;
};

static int in_cm(void *channel)
{
	struct rdma_cm_event *event;
	return rdma_get_cm_event(channel, &event);
}

static int in_cq(void *channel)
{
	struct ibv_cq *cq;
	void *context;
	return ibv_get_cq_event(channel, &cq, &context);
}

static int in_async(void *context)
{
	struct ibv_async_event event;
	int answer;
	while (!(answer = ibv_get_async_event(context, &event)))
		ibv_ack_async_event(&event);
	return answer;
}

static int in_request(void *from)
{
	struct rdma_cm_id *id;
	return rdma_get_request(from, &id);
}

static int in_connect(void *id)
{
	return rdma_connect(id, NULL);
}

static int in_receive(void *id)
{
	struct ibv_wc wc;
	return rdma_get_recv_comp(id, &wc);
}

static int in_send(void *id)
{
	struct ibv_wc wc;
	return rdma_get_send_comp(id, &wc);
}

static void *wait_in(void *arg)
{
	struct wait *wait = arg;
	waiter = gettid();
	wait->call(wait->with);
	return NULL;
}

/* Cancels a thread while it waits in a call. Returns false if the call ended before. */
static bool cancelled(const char *name, int (*call)(void *), void *with)
{
	struct wait wait = { name, call, with };
	pthread_t thread;
	void *answer;
	alarm(60);
	waiter = 0;
	OK(pthread_create(&thread, NULL, wait_in, &wait));
	for (;;) {
		char state = waiter ? state_of(waiter) : 'R';
		if (state == 'S' || !state)
			break;
		sched_yield();
	}
	pthread_cancel(thread);
	OK(pthread_join(thread, &answer));
	alarm(0);
	return answer == PTHREAD_CANCELED;
}

/* Cancels threads in every call that waits. Everything goes on working, and the objects that the threads waited
 * for can be destroyed. */
static void cancellation(void)
{
	struct end own = { 0 }, peer = { 0 };
	struct sockaddr_in any = own_address(0), nobody = own_address(9);
	struct rdma_cm_id *passive, *active;
	listen_here();
	meet(&own, &peer);
	struct rdma_addrinfo here = { .ai_flags = RAI_PASSIVE, .ai_qp_type = IBV_QPT_RC, .ai_port_space = RDMA_PS_TCP,
		.ai_src_addr = (void *)&any, .ai_src_len = sizeof any };
	OK(rdma_create_ep(&passive, &here, NULL, NULL));
	OK(rdma_listen(passive, 1));
	nobody.sin_addr.s_addr ^= htonl(0x55); /* a neighbour that does not exist */
	struct rdma_addrinfo there = { .ai_qp_type = IBV_QPT_RC, .ai_port_space = RDMA_PS_TCP, .ai_dst_addr = (void *)&nobody,
		.ai_dst_len = sizeof nobody };
	for (int round = 0; round < 5; round++) {
		CHECK(cancelled("cm", in_cm, own.events));
		CHECK(cancelled("cq", in_cq, own.channel));
		CHECK(cancelled("async", in_async, own.id->verbs));
		CHECK(cancelled("request", in_request, passive));
		/* Connecting fails by itself after some seconds, which may have passed on a busy machine. */
		for (bool done = false; !done;) {
			struct ibv_qp_init_attr init = qp_like(NULL);
			OK(rdma_create_ep(&active, &there, NULL, &init));
			done = cancelled("connect", in_connect, active);
			rdma_destroy_ep(active);
		}
		struct ibv_qp_init_attr init = qp_like(NULL);
		OK(rdma_create_ep(&active, &there, NULL, &init));
		CHECK(cancelled("receive", in_receive, active));
		CHECK(cancelled("send", in_send, active));
		rdma_destroy_ep(active);
		OK(work(&own, IBV_WR_RDMA_READ, (uintptr_t)peer.memory, peer.mr->rkey, LENGTH));
		CHECK(completion(own.cq).status == IBV_WC_SUCCESS);
	}
	rdma_destroy_ep(passive);
	part(&own, &peer);
}

/* ---- forks --------------------------------------------------------------------------------------------------------- */

/* Takes all locks in turn, so that forks find them taken. */
static void *bustle(void *arg)
{
	struct end *e = arg;
	while (!stop) {
		struct rdma_cm_id *id;
		struct rdma_event_channel *events = SOME(rdma_create_event_channel());
		OK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP));
		OK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&place, 2000));
		struct ibv_cq *cq = SOME(ibv_create_cq(e->id->verbs, 16, NULL, NULL, 0));
		struct ibv_qp_init_attr init = qp_like(cq);
		OK(rdma_create_qp(id, NULL, &init));
		rdma_destroy_qp(id);
		OK(ibv_destroy_cq(cq));
		OK(rdma_destroy_id(id));
		rdma_destroy_event_channel(events);
	}
	return NULL;
}

/* A child calls everything: no call works, none waits, and the parent notices nothing. */
static void child_of(struct end *e, int round)
{
	struct ibv_wc wc;
	struct ibv_cq *cq;
	void *context;
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	struct ibv_async_event async;
	struct ibv_device_attr attr;
	struct ibv_qp_init_attr init = qp_like(e->cq);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_context *verbs = e->id->verbs;
	alarm(30);
	NONE(ibv_alloc_pd(verbs), ENODEV);
	NONE(ibv_reg_mr(e->pd, e->memory, 4096, 0), ENODEV);
	NONE(ibv_alloc_mw(e->pd, IBV_MW_TYPE_1), ENODEV);
	NONE(ibv_create_cq(verbs, 4, NULL, NULL, 0), ENODEV);
	NONE(ibv_create_comp_channel(verbs), ENODEV);
	NONE(ibv_create_qp(e->pd, &init), ENODEV);
	NONE(ibv_create_srq(e->pd, &srq), ENODEV);
	NONE(ibv_open_device(verbs->device), ENODEV);
	NONE(rdma_create_event_channel(), ENODEV);
	FAILS(rdma_create_id(e->events, &id, NULL, RDMA_PS_TCP), ENODEV);
	FAILS(rdma_resolve_addr(e->id, NULL, (struct sockaddr *)&place, 1), ENODEV);
	FAILS(rdma_connect(e->id, NULL), ENODEV);
	FAILS(rdma_disconnect(e->id), ENODEV);
	FAILS(rdma_migrate_id(e->id, listening), ENODEV);
	FAILS(ibv_query_device(verbs, &attr), ENODEV);
	FAILS(work(e, IBV_WR_RDMA_WRITE, 0, 0, 100), ENODEV);
	IS(ibv_poll_cq(e->cq, 1, &wc), 0);
	FAILS(ibv_req_notify_cq(e->cq, 0), ENODEV);
	/* The descriptors are shared with the parent: events that wait there are the parent's. */
	FAILS(rdma_get_cm_event(e->events, &event), ENODEV);
	FAILS(ibv_get_cq_event(e->channel, &cq, &context), ENODEV);
	FAILS(ibv_get_async_event(verbs, &async), ENODEV);
	for (int kind = 0; kind < EVENTS; kind++) {
		int answer = destroy(e, kind, kind == QP ? 0 : 1 << ID);
		CHECK(answer == ENODEV || (answer == -1 && errno == ENODEV));
	}
	rdma_destroy_qp(e->id);
	rdma_destroy_event_channel(e->events);
	FAILS(ibv_close_device(verbs), ENODEV);
	if (round % 2)
		_exit(0);
	exit(0);
}

static void forks(void)
{
	struct end own = { 0 }, peer = { 0 };
	pthread_t threads[2];
	listen_here();
	meet(&own, &peer);
	stop = 0;
	for (int i = 0; i < 2; i++)
		OK(pthread_create(&threads[i], NULL, bustle, &own));
	for (int round = 0; round < 100; round++) {
		int status;
		pid_t child = fork();
		if (!child)
			child_of(&own, round);
		CHECK(waitpid(child, &status, 0) == child);
		if (status)
			failed(__FILE__, __LINE__, "a child", status, round);
		OK(work(&own, IBV_WR_RDMA_READ, (uintptr_t)peer.memory, peer.mr->rkey, LENGTH));
		CHECK(completion(own.cq).status == IBV_WC_SUCCESS);
	}
	stop = 1;
	for (int i = 0; i < 2; i++)
		OK(pthread_join(threads[i], NULL));
	part(&own, &peer);
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	const char *what = argv[1];
	if (!strcmp(what, "order") && argc > 2)
		orders(argv[2], argc > 3 ? atoi(argv[3]) : 0);
	else if (!strcmp(what, "twice"))
		twice();
	else if (!strcmp(what, "race"))
		race();
	else if (!strcmp(what, "cancel"))
		cancellation();
	else if (!strcmp(what, "fork"))
		forks();
	else
		return 2;
	puts("done");
	return 0;
}
