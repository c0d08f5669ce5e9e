/* Converts sockets that the program has connected into RDMA connections, on a device over the kernel's sockets: in
 * both roles, with octets that were read before, and by identifiers with and without a channel. Also tests
 * conversions that are refused. */
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "harness.h"
#include "urnic.h"

/* Makes both ends of a TCP connection over the loopback. */
static void wire(int fd[2])
{
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof sin;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	OK(bind(listener, (struct sockaddr *)&sin, len));
	OK(listen(listener, 1));
	OK(getsockname(listener, (struct sockaddr *)&sin, &len));
	fd[0] = socket(AF_INET, SOCK_STREAM, 0);
	OK(connect(fd[0], (struct sockaddr *)&sin, len));
	fd[1] = accept(listener, NULL, NULL);
	CHECK(fd[0] >= 0 && fd[1] >= 0);
	OK(close(listener));
}

static void say(int fd, const void *words, size_t n)
{
	IS(send(fd, words, n, 0), n);
}

static void hear(int fd, void *words, size_t n)
{
	IS(recv(fd, words, n, MSG_WAITALL), n);
}

/* Expects the next event to be of this kind, with this private data. */
static void told(struct rdma_event_channel *channel, struct rdma_cm_id *id, enum rdma_cm_event_type wanted, const char *words)
{
	struct rdma_cm_event *event = next_event(channel, wanted);
	CHECK(event->id == id);
	CHECK(event->param.conn.private_data_len >= strlen(words));
	CHECK(!memcmp(event->param.conn.private_data, words, strlen(words)));
	OK(rdma_ack_cm_event(event));
}

/* A program's protocol, then RDMA. One thread converts one end after the other: the calls do not wait, because each
 * identifier has a channel. */
static void both_roles(int connected_asks)
{
	struct link l = { 0 };
	struct rdma_event_channel *channels[2];
	struct rdma_cm_id *ids[2];
	int fd[2];
	char words[16];
	wire(fd);
	if (!connected_asks) {
		int other = fd[0];
		fd[0] = fd[1];
		fd[1] = other;
	}
	for (int end = 0; end < 2; end++) {
		channels[end] = SOME(rdma_create_event_channel());
		OK(rdma_create_id(channels[end], &ids[end], NULL, RDMA_PS_TCP));
		OK(urnic_resolve_socket(ids[end], fd[end]));
		struct sockaddr_in own, peer;
		socklen_t len = sizeof own;
		OK(getsockname(fd[end], (struct sockaddr *)&own, &len));
		OK(getpeername(fd[end], (struct sockaddr *)&peer, &len));
		CHECK(rdma_get_src_port(ids[end]) == own.sin_port && rdma_get_dst_port(ids[end]) == peer.sin_port);
		link_end(&l, end, ids[end]);
	}
	struct rdma_conn_param ask = { .private_data = "yours", .private_data_len = 5, .responder_resources = 4, .initiator_depth = 4 };
	struct rdma_conn_param answer = { .private_data = "mine", .private_data_len = 4, .responder_resources = 4, .initiator_depth = 4 };
	say(fd[0], "RDMA?", 5);
	hear(fd[1], words, 5);
	say(fd[1], "yes", 3);
	hear(fd[0], words, 3);
	OK(urnic_convert(ids[0], fd[0], URNIC_INITIATOR, NULL, 0, &ask));
	OK(close(fd[0]));
	/* A part of the MPA Request, as a program's buffer may contain it. */
	hear(fd[1], words, 10);
	CHECK(!memcmp(words, "MPA ID Req", 10));
	OK(urnic_convert(ids[1], fd[1], URNIC_RESPONDER, words, 10, &answer));
	OK(close(fd[1]));
	told(channels[0], ids[0], RDMA_CM_EVENT_ESTABLISHED, "mine");
	told(channels[1], ids[1], RDMA_CM_EVENT_ESTABLISHED, "yours");

	for (int from = 0; from < 2; from++) {
		int to = 1 - from;
		struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_RDMA_WRITE };
		memset(l.memory[from], 'a' + from, SIZE);
		wr.wr.rdma.remote_addr = (uintptr_t)l.memory[to];
		wr.wr.rdma.rkey = l.mr[to]->rkey;
		OK(post(ids[from], l.mr[from], 0, SIZE / 2, &wr));
		CHECK(completion(l.cq[from]).status == IBV_WC_SUCCESS);
		wr.opcode = IBV_WR_RDMA_READ;
		memset(l.memory[from], 0, SIZE / 2);
		OK(post(ids[from], l.mr[from], 0, SIZE / 2, &wr));
		CHECK(completion(l.cq[from]).status == IBV_WC_SUCCESS);
		for (int i = 0; i < SIZE / 2; i++)
			CHECK(l.memory[from][i] == 'a' + from);
	}
	OK(rdma_disconnect(ids[0]));
	for (int end = 0; end < 2; end++) {
		take_event(channels[end], RDMA_CM_EVENT_DISCONNECTED);
		rdma_destroy_qp(ids[end]);
		OK(ibv_dereg_mr(l.mr[end]));
		OK(ibv_destroy_cq(l.cq[end]));
		OK(rdma_destroy_id(ids[end]));
		free(l.memory[end]);
		rdma_destroy_event_channel(channels[end]);
	}
}

/* One end of a connection with synchronous calls. */
struct end {
	int fd, role;
	struct rdma_cm_id *id;
};

static void *synchronous(void *arg)
{
	struct end *end = arg;
	struct ibv_qp_init_attr init = qp_like(NULL);
	OK(rdma_create_id(NULL, &end->id, NULL, RDMA_PS_TCP));
	OK(urnic_resolve_socket(end->id, end->fd));
	OK(rdma_create_qp(end->id, NULL, &init));
	OK(urnic_convert(end->id, end->fd, end->role, NULL, 0, NULL));
	CHECK(end->id->event && end->id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	OK(close(end->fd));
	return arg;
}

static void without_channels(void)
{
	int fd[2];
	wire(fd);
	struct end ends[2] = { { .fd = fd[0], .role = URNIC_RESPONDER }, { .fd = fd[1], .role = URNIC_INITIATOR } };
	pthread_t thread;
	OK(pthread_create(&thread, NULL, synchronous, &ends[0]));
	synchronous(&ends[1]);
	OK(pthread_join(thread, NULL));
	char hello[] = "hello", inbox[6] = "";
	struct ibv_mr *from = SOME(rdma_reg_msgs(ends[1].id, hello, sizeof hello)), *to = SOME(rdma_reg_msgs(ends[0].id, inbox, sizeof inbox));
	struct ibv_wc wc;
	OK(rdma_post_recv(ends[0].id, NULL, inbox, sizeof inbox, to));
	OK(rdma_post_send(ends[1].id, NULL, hello, sizeof hello, from, 0));
	IS(rdma_get_send_comp(ends[1].id, &wc), 1);
	IS(rdma_get_recv_comp(ends[0].id, &wc), 1);
	CHECK(wc.status == IBV_WC_SUCCESS && !strcmp(inbox, hello));
	OK(rdma_disconnect(ends[1].id));
	OK(rdma_dereg_mr(from));
	OK(rdma_dereg_mr(to));
	for (int i = 0; i < 2; i++) {
		rdma_destroy_qp(ends[i].id);
		OK(rdma_destroy_id(ends[i].id));
	}

	/* The peer does not speak MPA: the call fails. */
	wire(fd);
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr init = qp_like(NULL);
	OK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	OK(urnic_resolve_socket(id, fd[0]));
	OK(rdma_create_qp(id, NULL, &init));
	say(fd[1], "HTTP/1.1 200 OK\r\n\r\n    ", 24);
	FAILS(urnic_convert(id, fd[0], URNIC_INITIATOR, NULL, 0, NULL), EPROTO);
	OK(close(fd[0]));
	char request[64];
	CHECK(recv(fd[1], request, sizeof request, 0) >= 20 && !memcmp(request, "MPA ID Req Frame", 16));
	IS(recv(fd[1], request, sizeof request, 0), 0);
	OK(close(fd[1]));
	rdma_destroy_qp(id);
	OK(rdma_destroy_id(id));
}

/* A refused conversion leaves the socket and the identifier as they were. */
static void refusals(void)
{
	int fd[2], files[2], sockets[2];
	char octets[4];
	wire(fd);
	OK(pipe(files));
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	int udp = socket(AF_INET, SOCK_DGRAM, 0), fresh = socket(AF_INET, SOCK_STREAM, 0), listener = socket(AF_INET, SOCK_STREAM, 0);
	OK(listen(listener, 1));
	struct rdma_event_channel *channel = SOME(rdma_create_event_channel());
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr init = qp_like(NULL);
	OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	FAILS(urnic_resolve_socket(NULL, fd[0]), EINVAL);
	FAILS(urnic_resolve_socket(id, -1), EBADF);
	FAILS(urnic_resolve_socket(id, files[0]), ENOTSOCK);
	FAILS(urnic_resolve_socket(id, fresh), ENOTCONN);
	FAILS(urnic_resolve_socket(id, sockets[0]), EAFNOSUPPORT);
	CHECK(!id->verbs);
	FAILS(urnic_convert(id, fd[0], URNIC_INITIATOR, NULL, 0, NULL), EINVAL);
	OK(urnic_resolve_socket(id, fd[0]));
	FAILS(urnic_convert(id, fd[0], URNIC_INITIATOR, NULL, 0, NULL), EINVAL);
	OK(rdma_create_qp(id, NULL, &init));
	FAILS(urnic_convert(NULL, fd[0], URNIC_INITIATOR, NULL, 0, NULL), EINVAL);
	FAILS(urnic_convert(id, fd[0], 2, NULL, 0, NULL), EINVAL);
	FAILS(urnic_convert(id, fd[0], -1, NULL, 0, NULL), EINVAL);
	FAILS(urnic_convert(id, fd[0], URNIC_RESPONDER, NULL, 1, NULL), EINVAL);
	FAILS(urnic_convert(id, fd[0], URNIC_RESPONDER, octets, (size_t)-1, NULL), EINVAL);
	for (int role = URNIC_INITIATOR; role <= URNIC_RESPONDER; role++) {
		FAILS(urnic_convert(id, -1, role, NULL, 0, NULL), EBADF);
		FAILS(urnic_convert(id, 1 << 20, role, NULL, 0, NULL), EBADF);
		FAILS(urnic_convert(id, files[0], role, NULL, 0, NULL), ENOTSOCK);
		FAILS(urnic_convert(id, udp, role, NULL, 0, NULL), EPROTONOSUPPORT);
		FAILS(urnic_convert(id, sockets[0], role, NULL, 0, NULL), EPROTONOSUPPORT);
		FAILS(urnic_convert(id, fresh, role, NULL, 0, NULL), ENOTCONN);
		FAILS(urnic_convert(id, listener, role, NULL, 0, NULL), EINVAL);
	}
	say(fd[0], "more", 4);
	hear(fd[1], octets, 4);
	/* The socket can still be converted, once. An event reports that the peer is gone. */
	OK(urnic_convert(id, fd[0], URNIC_RESPONDER, NULL, 0, NULL));
	FAILS(urnic_convert(id, fd[0], URNIC_RESPONDER, NULL, 0, NULL), EINVAL);
	OK(close(fd[0]));
	OK(shutdown(fd[1], SHUT_WR));
	take_event(channel, RDMA_CM_EVENT_REJECTED);
	IS(recv(fd[1], octets, 4, 0), 0);
	rdma_destroy_qp(id);
	OK(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	int all[] = { fd[1], files[0], files[1], sockets[0], sockets[1], udp, fresh, listener };
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		OK(close(all[i]));
}

int main(void)
{
	both_roles(1);
	both_roles(0);
	without_channels();
	refusals();
	puts("done");
	return 0;
}
