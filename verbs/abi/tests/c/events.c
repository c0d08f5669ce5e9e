/* Connection events: no event is lost because an object is gone, and no event arrives for an object that is gone.
 *
 *   events timewait | migrate | gone | queue-pair-first | identifier-first | synchronous */
#include "harness.h"

/* Returns the next event of a channel, if one arrives within `seconds`. */
static struct rdma_cm_event *event_within(struct rdma_event_channel *channel, double seconds)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	if (poll(&fd, 1, (int)(seconds * 1000)) == 0)
		return NULL;
	OK(rdma_get_cm_event(channel, &event));
	return event;
}

/* Takes one event of each of two identifiers, in either order. */
static void take_both(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted, struct rdma_cm_id *a, struct rdma_cm_id *b)
{
	bool seen[2] = { false, false };
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_event *event = next_event(channel, wanted);
		CHECK(event->id == a || event->id == b);
		CHECK(!seen[event->id == b]);
		seen[event->id == b] = true;
		IS(event->status, 0);
		OK(rdma_ack_cm_event(event));
	}
}

/* RDMA_CM_EVENT_TIMEWAIT_EXIT comes however the connection ended: by a close of the server, by an error at either side,
 * or by a Terminate. */
static void timewait_of_every_end(void)
{
	for (int way = 0; way < 4; way++) {
		struct link l;
		struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
		struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
		link_up(&l);
		wr.wr.rdma.remote_addr = (uintptr_t)l.memory[1];
		wr.wr.rdma.rkey = ~l.mr[1]->rkey;
		if (way == 0)
			OK(rdma_disconnect(l.server));
		else if (way == 1)
			OK(ibv_modify_qp(l.client->qp, &error, IBV_QP_STATE));
		else if (way == 2)
			OK(ibv_modify_qp(l.server->qp, &error, IBV_QP_STATE));
		else
			OK(post(l.client, l.mr[0], 0, 8, &wr));
		take_both(l.channel, RDMA_CM_EVENT_DISCONNECTED, l.client, l.server);
		double told = now();
		OK(rdma_disconnect(l.client));
		OK(rdma_disconnect(l.server));
		CHECK(!event_within(l.channel, 0.5));
		take_both(l.channel, RDMA_CM_EVENT_TIMEWAIT_EXIT, l.client, l.server);
		CHECK(now() - told >= 0.9);
		link_free(&l);
	}
}

/* RDMA_CM_EVENT_TIMEWAIT_EXIT comes a second or more after the end of the connection, at both ends. */
static void timewait(void)
{
	timewait_of_every_end();
	struct link l;
	link_up(&l);
	OK(rdma_disconnect(l.client));
	double told = now();
	take_both(l.channel, RDMA_CM_EVENT_DISCONNECTED, l.client, l.server);
	take_both(l.channel, RDMA_CM_EVENT_TIMEWAIT_EXIT, l.client, l.server);
	CHECK(now() - told >= 1);
	CHECK(!event_within(l.channel, 0.1));

	/* The two events never wait at the same time, however long the program fetches no events. */
	struct link m;
	link_up(&m);
	OK(rdma_disconnect(m.client));
	struct timespec stopped = { .tv_sec = 1, .tv_nsec = 300000000 };
	nanosleep(&stopped, NULL);
	take_both(m.channel, RDMA_CM_EVENT_DISCONNECTED, m.client, m.server);
	told = now();
	CHECK(!event_within(m.channel, 0.5));
	take_both(m.channel, RDMA_CM_EVENT_TIMEWAIT_EXIT, m.client, m.server);
	CHECK(now() - told >= 0.9);
	link_free(&m);
	link_free(&l);
}

/* RDMA_CM_EVENT_TIMEWAIT_EXIT comes through the channel that the identifier has by then. */
static void migrate(void)
{
	struct link l;
	struct rdma_event_channel *other = SOME(rdma_create_event_channel());
	link_up(&l);
	OK(rdma_disconnect(l.client));
	take_both(l.channel, RDMA_CM_EVENT_DISCONNECTED, l.client, l.server);
	OK(rdma_migrate_id(l.server, other));
	struct rdma_cm_event *event = next_event(other, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	CHECK(event->id == l.server);
	OK(rdma_ack_cm_event(event));
	event = next_event(l.channel, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	CHECK(event->id == l.client);
	OK(rdma_ack_cm_event(event));
	CHECK(!event_within(other, 0));
	link_free(&l);
	rdma_destroy_event_channel(other);
}

/* RDMA_CM_EVENT_TIMEWAIT_EXIT comes neither for destroyed identifiers, nor for new identifiers at the same memory
 * addresses. */
static void gone(void)
{
	struct link l, m;
	struct rdma_event_channel *channel;
	link_up(&m);
	link_up(&l);
	channel = l.channel;
	OK(rdma_disconnect(l.client));
	take_both(channel, RDMA_CM_EVENT_DISCONNECTED, l.client, l.server);
	rdma_destroy_qp(l.client);
	rdma_destroy_qp(l.server);
	OK(rdma_destroy_id(l.client));
	OK(rdma_destroy_id(l.server));
	struct rdma_cm_id *ids[64];
	bool same = false;
	for (int i = 0; i < 64; i++) {
		OK(rdma_create_id(channel, &ids[i], NULL, RDMA_PS_TCP));
		same |= ids[i] == l.client || ids[i] == l.server;
	}
	/* The events of this connection come later than those of the destroyed identifiers would. */
	OK(rdma_disconnect(m.client));
	take_both(m.channel, RDMA_CM_EVENT_DISCONNECTED, m.client, m.server);
	take_both(m.channel, RDMA_CM_EVENT_TIMEWAIT_EXIT, m.client, m.server);
	CHECK(!event_within(channel, 0.2));
	printf("addresses used again: %d\n", same);
	for (int i = 0; i < 64; i++)
		OK(rdma_destroy_id(ids[i]));
	for (int end = 0; end < 2; end++) {
		OK(ibv_dereg_mr(l.mr[end]));
		OK(ibv_destroy_cq(l.cq[end]));
		free(l.memory[end]);
	}
	OK(rdma_destroy_id(l.listener));
	rdma_destroy_event_channel(channel);
	link_free(&m);
}

/* The end of every connection causes an event, whatever happens to the queue pairs. */
static void queue_pair_first(void)
{
	/* Disconnects this end (as cmtime does), the other end, or neither. Then destroys this end's queue pair at
	 * once, by rdma_destroy_qp or ibv_destroy_qp. */
	for (int way = 0; way < 6; way++) {
		struct link l;
		link_up(&l);
		if (way % 3 == 0)
			OK(rdma_disconnect(l.client));
		if (way % 3 == 1)
			OK(rdma_disconnect(l.server));
		if (way < 3) {
			rdma_destroy_qp(l.client);
		} else {
			OK(ibv_destroy_qp(l.client->qp));
			l.client->qp = NULL;
		}
		take_both(l.channel, RDMA_CM_EVENT_DISCONNECTED, l.client, l.server);
		OK(rdma_disconnect(l.client)); /* already ended */
		CHECK(!event_within(l.channel, 0));
		link_free(&l);
	}

	/* While the peer's answer is awaited. */
	struct link l;
	struct sockaddr_in to;
	link_up(&l);
	to = own_address(0);
	to.sin_port = rdma_get_src_port(l.listener);
	struct rdma_cm_id *id;
	OK(rdma_create_id(l.channel, &id, NULL, RDMA_PS_TCP));
	OK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000));
	take_event(l.channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	struct ibv_qp_init_attr init = qp_like(l.cq[0]);
	OK(rdma_create_qp(id, NULL, &init));
	OK(rdma_connect(id, NULL));
	struct rdma_cm_event *event = next_event(l.channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *child = event->id;
	OK(rdma_ack_cm_event(event));
	rdma_destroy_qp(id);
	event = next_event(l.channel, RDMA_CM_EVENT_CONNECT_ERROR);
	CHECK(event->id == id && event->status < 0);
	OK(rdma_ack_cm_event(event));
	OK(rdma_destroy_id(child));
	OK(rdma_destroy_id(id));
	link_down(&l);
}

/* The identifier is destroyed first: the queue pair stays, and its posted requests are flushed. A destroyed
 * identifier gets no more events. */
static void identifier_first(void)
{
	struct link l;
	link_up(&l);
	struct ibv_qp *qp = l.client->qp;
	for (int i = 0; i < 3; i++)
		OK(post_receive(l.client, l.mr[0], 0, 100, i));
	OK(rdma_destroy_id(l.client));
	struct rdma_cm_event *event = next_event(l.channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(event->id == l.server);
	OK(rdma_ack_cm_event(event));
	for (int i = 0; i < 3; i++) {
		struct ibv_wc wc = completion(l.cq[0]);
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == (uint64_t)i);
	}
	OK(ibv_destroy_qp(qp));

	/* Destroying the identifier aborts a connection attempt: the peer's answer comes too late. */
	struct sockaddr_in to = own_address(0);
	to.sin_port = rdma_get_src_port(l.listener);
	OK(rdma_create_id(l.channel, &l.client, NULL, RDMA_PS_TCP));
	OK(rdma_resolve_addr(l.client, NULL, (struct sockaddr *)&to, 2000));
	take_event(l.channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	struct ibv_qp_init_attr init = qp_like(l.cq[0]);
	OK(rdma_create_qp(l.client, NULL, &init));
	qp = l.client->qp;
	OK(rdma_connect(l.client, NULL));
	event = next_event(l.channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *child = event->id;
	OK(rdma_ack_cm_event(event));
	OK(rdma_destroy_id(l.client));
	init = qp_like(l.cq[1]);
	OK(rdma_create_qp(child, NULL, &init));
	errno = 0;
	CHECK(rdma_accept(child, NULL) == -1);
	struct ibv_qp_attr attr;
	OK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	CHECK(attr.qp_state != IBV_QPS_RTS);
	OK(ibv_destroy_qp(qp));
	rdma_destroy_qp(child);
	OK(rdma_destroy_id(child));

	rdma_destroy_qp(l.server);
	OK(rdma_destroy_id(l.server));
	for (int end = 0; end < 2; end++) {
		OK(ibv_dereg_mr(l.mr[end]));
		OK(ibv_destroy_cq(l.cq[end]));
		free(l.memory[end]);
	}
	OK(rdma_destroy_id(l.listener));
	rdma_destroy_event_channel(l.channel);
}

/* Identifiers without a channel wait for the end in the call, but not for an end that they have already reported. */
static void synchronous(void)
{
	struct link l;
	link_up(&l);
	OK(rdma_migrate_id(l.client, NULL));
	for (int again = 0; again < 3; again++)
		OK(rdma_disconnect(l.client));
	CHECK(l.client->event && l.client->event->event == RDMA_CM_EVENT_DISCONNECTED);
	struct rdma_cm_event *event = next_event(l.channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(event->id == l.server);
	OK(rdma_ack_cm_event(event));
	link_free(&l);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } ways[] = {
		{ "timewait", timewait }, { "migrate", migrate }, { "gone", gone }, { "queue-pair-first", queue_pair_first },
		{ "identifier-first", identifier_first }, { "synchronous", synchronous } };
	for (size_t i = 0; argc > 1 && i < sizeof ways / sizeof ways[0]; i++)
		if (!strcmp(argv[1], ways[i].name)) {
			ways[i].run();
			puts("done");
			return 0;
		}
	return 2;
}
