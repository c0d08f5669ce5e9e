/* A process without free descriptors, on the kernel's sockets: calls that need one fail with EMFILE, and existing
 * objects go on working. A call that fails for another reason keeps no descriptor. */
#include "harness.h"
#include <dirent.h>
#include <sys/resource.h>

static int hoard[256], hoarded;

/* Opens all free descriptors but `left`. */
static void take(int left)
{
	while ((hoard[hoarded] = open("/dev/null", O_RDONLY)) >= 0)
		CHECK(++hoarded < 256);
	CHECK(errno == EMFILE && hoarded > left);
	while (left--)
		OK(close(hoard[--hoarded]));
}

static void give(void)
{
	while (hoarded)
		OK(close(hoard[--hoarded]));
}

/* Returns a number that rises and falls with the number of open descriptors. */
static int descriptors(void)
{
	DIR *folder = SOME(opendir("/proc/self/fd"));
	int n = 0;
	while (readdir(folder))
		n++;
	OK(closedir(folder));
	return n;
}

/* Rejects the request that arrives. The other end gets the event, and nothing remains of the connection. */
static void turn_away(struct rdma_event_channel *channel, int before)
{
	struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *request = event->id;
	OK(rdma_ack_cm_event(event));
	OK(rdma_reject(request, NULL, 0));
	OK(rdma_destroy_id(request));
	take_event(channel, RDMA_CM_EVENT_REJECTED);
	while (descriptors() > before)
		sched_yield();
}

int main(void)
{
	/* The device raises only the soft limit, so the hard limit is lowered. */
	struct rlimit few = { 128, 128 };
	OK(setrlimit(RLIMIT_NOFILE, &few));
	CHECK(rdma_event_str(RDMA_CM_EVENT_ESTABLISHED)); /* the library is there, and the device is not open yet */
	take(0);
	NONE(rdma_create_event_channel(), EMFILE);
	give();

	struct rdma_event_channel *channel = SOME(rdma_create_event_channel());
	struct rdma_cm_id *bound, *listener, *client, *other, *sync;
	OK(rdma_create_id(channel, &bound, NULL, RDMA_PS_TCP));
	OK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	OK(rdma_create_id(channel, &client, NULL, RDMA_PS_TCP));
	OK(rdma_create_id(channel, &other, NULL, RDMA_PS_TCP));
	struct sockaddr_in to = own_address(0);
	OK(rdma_bind_addr(listener, (struct sockaddr *)&to));
	OK(rdma_listen(listener, 4));
	to.sin_port = rdma_get_src_port(listener);
	OK(rdma_resolve_addr(client, NULL, (struct sockaddr *)&to, 1000));
	take_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	OK(rdma_resolve_route(client, 1000));
	take_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	struct ibv_cq *cq = SOME(ibv_create_cq(client->verbs, 64, NULL, NULL, 0));
	struct ibv_qp_init_attr init = qp_like(cq), vast = init;
	int open_now = descriptors();
	/* A queue pair whose own completion queue would be too long leaves no descriptor open. */
	vast.recv_cq = NULL;
	vast.cap.max_recv_wr = 0x80000000u;
	FAILS(rdma_create_qp(client, NULL, &vast), EINVAL);
	IS(descriptors(), open_now);
	OK(rdma_create_qp(client, NULL, &init));
	union ibv_gid before, now;
	OK(ibv_query_gid(client->verbs, 1, 0, &before));

	int idle = descriptors() + 1; /* with one for connection events, which the first connection opens */
	OK(rdma_connect(client, NULL));
	turn_away(channel, idle);

	for (int round = 0; round < 2; round++) {
		take(0);
		NONE(rdma_create_event_channel(), EMFILE);
		FAILS(rdma_create_id(NULL, &sync, NULL, RDMA_PS_TCP), EMFILE);
		NONE(ibv_create_comp_channel(client->verbs), EMFILE);
		NONE(ibv_open_device(client->verbs->device), EMFILE);
		struct sockaddr_in own = own_address(0);
		FAILS(rdma_bind_addr(bound, (struct sockaddr *)&own), EMFILE);
		FAILS(rdma_listen(bound, 4), EMFILE);
		FAILS(rdma_resolve_addr(other, NULL, (struct sockaddr *)&to, 1000), EMFILE);
		FAILS(rdma_connect(client, NULL), EMFILE);
		OK(ibv_query_gid(client->verbs, 1, 0, &now));
		CHECK(!memcmp(&before, &now, sizeof now)); /* the host keeps its addresses nevertheless */

		/* Leaves one descriptor, for this end of a connection. The other end waits in the kernel until there
		 * are more descriptors. */
		give();
		take(1);
		OK(rdma_connect(client, NULL));
		struct pollfd heard = { .fd = channel->fd, .events = POLLIN };
		IS(poll(&heard, 1, 300), 0);
		give();
		turn_away(channel, idle);
	}

	/* All calls that were refused succeed now. */
	struct sockaddr_in own = own_address(0);
	OK(rdma_bind_addr(bound, (struct sockaddr *)&own));
	OK(rdma_listen(bound, 4));
	OK(rdma_resolve_addr(other, NULL, (struct sockaddr *)&to, 1000));
	take_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	OK(ibv_destroy_comp_channel(SOME(ibv_create_comp_channel(client->verbs))));
	rdma_destroy_qp(client);
	OK(ibv_destroy_cq(cq));
	OK(rdma_destroy_id(other));
	OK(rdma_destroy_id(client));
	OK(rdma_destroy_id(listener));
	OK(rdma_destroy_id(bound));
	rdma_destroy_event_channel(channel);
	struct link l;
	link_up(&l);
	link_free(&l);
	puts("done");
	return 0;
}
