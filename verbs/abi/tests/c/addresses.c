/* Addresses of identifiers: of both families, of the loopback, and of connections.
 *
 *   addresses families | loopback | names | scarce IPV4 IPV6    the device's own addresses */
#include "harness.h"
#include <malloc.h>
#include <sys/resource.h>

static const char *v4, *v6;
static bool on_loopback; /* the device's addresses are the host's loopback addresses */

static struct sockaddr_storage address(const char *ip, uint16_t port)
{
	struct sockaddr_storage at = { 0 };
	struct sockaddr_in *four = (void *)&at;
	struct sockaddr_in6 *six = (void *)&at;
	if (inet_pton(AF_INET, ip, &four->sin_addr) == 1) {
		four->sin_family = AF_INET;
		four->sin_port = port;
	} else {
		CHECK(inet_pton(AF_INET6, ip, &six->sin6_addr) == 1);
		six->sin6_family = AF_INET6;
		six->sin6_port = port;
	}
	return at;
}

static bool same(const struct sockaddr *a, const char *ip)
{
	struct sockaddr_storage b = address(ip, 0);
	const struct sockaddr_in *four = (const void *)a;
	const struct sockaddr_in6 *six = (const void *)a;
	if (a->sa_family != b.ss_family)
		return false;
	return a->sa_family == AF_INET ? !memcmp(&four->sin_addr, &((struct sockaddr_in *)&b)->sin_addr, 4)
		: !memcmp(&six->sin6_addr, &((struct sockaddr_in6 *)&b)->sin6_addr, 16);
}

static struct rdma_event_channel *channel;

static struct rdma_cm_id *identifier(bool afonly)
{
	struct rdma_cm_id *id;
	int yes = 1;
	OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	if (afonly)
		OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof yes));
	return id;
}

static int bind_to(struct rdma_cm_id *id, const char *ip, uint16_t port)
{
	struct sockaddr_storage at = address(ip, port);
	return rdma_bind_addr(id, (struct sockaddr *)&at);
}

/* Makes a new listener; port 0 means any. */
static struct rdma_cm_id *listener(const char *ip, uint16_t port, bool afonly)
{
	struct rdma_cm_id *id = identifier(afonly);
	OK(bind_to(id, ip, port));
	OK(rdma_listen(id, 4));
	return id;
}

/* Returns the listener that a connection to an address reaches. */
static struct rdma_cm_id *reached(const char *from, const char *ip, uint16_t port)
{
	struct link l = { .channel = channel };
	struct sockaddr_storage own = from ? address(from, 0) : (struct sockaddr_storage){ 0 }, to = address(ip, port);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	OK(rdma_create_id(channel, &l.client, NULL, RDMA_PS_TCP));
	OK(rdma_resolve_addr(l.client, from ? (struct sockaddr *)&own : NULL, (struct sockaddr *)&to, 2000));
	take_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(l.client->verbs && rdma_get_dst_port(l.client) == port);
	OK(rdma_resolve_route(l.client, 2000));
	take_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	link_end(&l, 0, l.client);
	OK(rdma_connect(l.client, &param));
	struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *listening = event->listen_id;
	l.server = event->id;
	OK(rdma_ack_cm_event(event));
	link_end(&l, 1, l.server);
	/* Client and server report the same addresses of both ends. */
	CHECK(!memcmp(rdma_get_peer_addr(l.client), rdma_get_local_addr(l.server), sizeof(struct sockaddr_in)));
	CHECK(rdma_get_local_addr(l.client)->sa_family == rdma_get_peer_addr(l.client)->sa_family);
	if (rdma_get_peer_addr(l.server)->sa_family == AF_INET)
		CHECK(!memcmp(&((struct sockaddr_in *)rdma_get_local_addr(l.client))->sin_addr,
			&((struct sockaddr_in *)rdma_get_peer_addr(l.server))->sin_addr, 4));
	OK(rdma_accept(l.server, &param));
	take_event(channel, RDMA_CM_EVENT_ESTABLISHED);
	take_event(channel, RDMA_CM_EVENT_ESTABLISHED);
	/* Data gets through. */
	strcpy(l.memory[0], "across");
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { (uintptr_t)l.memory[1], l.mr[1]->rkey } };
	OK(post(l.client, l.mr[0], 0, 7, &wr));
	CHECK(completion(l.cq[0]).status == IBV_WC_SUCCESS);
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_READ, .wr.rdma = { (uintptr_t)l.memory[1], l.mr[1]->rkey } };
	OK(post(l.client, l.mr[0], 64, 7, &wr));
	CHECK(completion(l.cq[0]).status == IBV_WC_SUCCESS);
	CHECK(!strcmp(l.memory[0] + 64, "across"));
	link_part(&l);
	return listening;
}

/* The families have separate ports if programs ask for that, as tgtd does, which listens on 0.0.0.0 and then on
 * [::]. */
static void families(void)
{
	struct rdma_cm_id *four = listener("0.0.0.0", 0, true);
	uint16_t port = rdma_get_src_port(four);
	struct rdma_cm_id *both = identifier(false);
	FAILS(bind_to(both, "::", port), EADDRINUSE);
	struct rdma_cm_id *six = listener("::", port, true);
	CHECK(!four->verbs && !six->verbs);
	CHECK(reached(NULL, v4, port) == four);
	CHECK(reached(NULL, v6, port) == six);
	CHECK(reached(v4, v4, port) == four);
	CHECK(reached(v6, v6, port) == six);
	OK(rdma_destroy_id(six));
	OK(rdma_destroy_id(four));

	/* By default [::] stands for both families. */
	OK(bind_to(both, "::", 0));
	OK(rdma_listen(both, 4));
	port = rdma_get_src_port(both);
	CHECK(reached(NULL, v4, port) == both);
	CHECK(reached(NULL, v6, port) == both);
	four = identifier(true);
	FAILS(bind_to(four, "0.0.0.0", port), EADDRINUSE);
	FAILS(bind_to(four, v4, port), EADDRINUSE);
	OK(rdma_destroy_id(four));
	OK(rdma_destroy_id(both));

	/* By default, an address of one family and one of the other can have the same port. */
	four = listener(v4, 0, false);
	port = rdma_get_src_port(four);
	six = listener(v6, port, false);
	CHECK(four->verbs && six->verbs);
	CHECK(reached(NULL, v4, port) == four);
	CHECK(reached(NULL, v6, port) == six);
	OK(rdma_destroy_id(six));
	OK(rdma_destroy_id(four));
}

/* If the device has no loopback address, loopback addresses stand for any address, and lead to the device. */
static void loopback(void)
{
	static const char *const names[2][2] = { { "127.0.0.1", "127.1.2.3" }, { "::1", "::1" } };
	const char *own[2] = { v4, v6 };
	for (int family = 0; family < 2; family++) {
		struct rdma_cm_id *id = listener(names[family][0], 0, false);
		uint16_t port = rdma_get_src_port(id);
		CHECK(!id->verbs == !on_loopback && same(rdma_get_local_addr(id), names[family][0]));
		CHECK(reached(NULL, names[family][0], port) == id);
		CHECK(reached(names[family][0], names[family][0], port) == id);
		if (!on_loopback) {
			CHECK(reached(NULL, names[family][1], port) == id);
			CHECK(reached(names[family][0], own[family], port) == id);
			CHECK(reached(own[family], own[family], port) == id);
			struct rdma_cm_id *second = identifier(true);
			FAILS(bind_to(second, own[family], port), EADDRINUSE);
			OK(rdma_destroy_id(second));
		} else if (!family) {
			/* A connection from a bound address reaches the listener, whatever the routes are. */
			struct rdma_cm_id *any = listener("0.0.0.0", 0, false);
			CHECK(reached("127.1.2.3", v4, rdma_get_src_port(any)) == any);
			OK(rdma_destroy_id(any));
		}
		/* The other family's port is free. */
		struct rdma_cm_id *other = listener(names[!family][0], port, true);
		CHECK(reached(NULL, names[!family][0], port) == other);
		CHECK(reached(NULL, names[family][0], port) == id);
		OK(rdma_destroy_id(other));
		OK(rdma_destroy_id(id));
	}
}

/* Numeric addresses of either family are found without naming the family. */
static void names(void)
{
	const char *all[] = { v4, v6, "127.0.0.1", "::1" };
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		struct rdma_addrinfo *rai, hints = { .ai_port_space = RDMA_PS_TCP };
		for (int given = 0; given < 2; given++) {
			OK(rdma_getaddrinfo(all[i], "7471", given ? &hints : NULL, &rai));
			CHECK(same(rai->ai_dst_addr, all[i]) && rai->ai_family == rai->ai_dst_addr->sa_family);
			rdma_freeaddrinfo(rai);
		}
		hints.ai_flags = RAI_FAMILY;
		hints.ai_family = strchr(all[i], ':') ? AF_INET : AF_INET6;
		CHECK(rdma_getaddrinfo(all[i], "7471", &hints, &rai) != 0);
		hints.ai_flags = RAI_PASSIVE;
		OK(rdma_getaddrinfo(all[i], "7471", &hints, &rai));
		CHECK(same(rai->ai_src_addr, all[i]));
		rdma_freeaddrinfo(rai);
	}
	struct rdma_addrinfo *rai;
	CHECK(rdma_getaddrinfo("no.such.name.invalid", NULL, NULL, &rai) != 0);
}

/* Memory runs out while an address is copied: what was copied before is freed. */
static void scarce(void)
{
	static char octets[4096];
	struct sockaddr *large = (void *)octets;
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC, .ai_src_addr = large,
		.ai_src_len = sizeof octets, .ai_dst_addr = large, .ai_dst_len = sizeof octets }, *found;
	large->sa_family = AF_INET;
	OK(rdma_getaddrinfo(NULL, NULL, &hints, &found));
	rdma_freeaddrinfo(found);
	OK(rdma_getaddrinfo((char *)v4, "7174", &hints, &found));
	rdma_freeaddrinfo(found);
	/* There is room for many copies of 4096 octets, and for none of 4 GiB. */
	unsigned long pages;
	FILE *statm = SOME(fopen("/proc/self/statm", "r"));
	IS(fscanf(statm, "%lu", &pages), 1);
	OK(fclose(statm));
	OK(setrlimit(RLIMIT_AS, &(struct rlimit){ pages * 4096 + (64 << 20), RLIM_INFINITY }));
	size_t before = mallinfo2().uordblks;
	for (int i = 0; i < 1000; i++) {
		hints.ai_src_len = sizeof octets, hints.ai_dst_len = UINT32_MAX; /* the source is copied first */
		FAILS(rdma_getaddrinfo(NULL, NULL, &hints, &found), ENOMEM);
		hints.ai_src_len = UINT32_MAX, hints.ai_dst_len = sizeof octets; /* the resolved destination is copied first */
		FAILS(rdma_getaddrinfo((char *)v4, "7174", &hints, &found), ENOMEM);
	}
	size_t after = mallinfo2().uordblks;
	if (after > before + 1000)
		failed(__FILE__, __LINE__, "memory is left behind", (long)(after - before), 0);
	OK(setrlimit(RLIMIT_AS, &(struct rlimit){ RLIM_INFINITY, RLIM_INFINITY }));
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } ways[] = {
		{ "families", families }, { "loopback", loopback }, { "names", names },
		{ "scarce", scarce } };
	if (argc != 4)
		return 2;
	v4 = argv[2];
	v6 = argv[3];
	on_loopback = !strncmp(v4, "127.", 4);
	channel = SOME(rdma_create_event_channel());
	for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
		if (!strcmp(argv[1], ways[i].name)) {
			ways[i].run();
			rdma_destroy_event_channel(channel);
			puts("done");
			return 0;
		}
	return 2;
}
