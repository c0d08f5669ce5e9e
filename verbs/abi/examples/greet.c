/*
 * A first program: the client writes a greeting into the server's memory, reads it back, and sends its length in a
 * Send. docs/write-a-program.md explains it; verbs/examples/greet.rs is the same program in Rust; the two
 * interoperate.
 *
 *	cc -o greet greet.c -lrdmacm -libverbs
 *	greet serve			one client, then exit
 *	greet say ADDRESS WORDS
 */
#include <arpa/inet.h>
#include <endian.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT "7500"
#define ROOM 4096

/* Address and key of the server's memory, in network order: the private data of the server's answer. */
struct place {
	uint64_t addr;
	uint32_t rkey;
} __attribute__((packed));

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

/* Checks that a request has succeeded. The caller passes the result of rdma_get_send_comp or rdma_get_recv_comp, which
 * sleep until the request completes: they arm the completion queue, poll once more and wait. */
static void completed(int found, struct ibv_wc *wc, const char *what)
{
	check(found == 1, what);
	if (wc->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s: %s\n", what, ibv_wc_status_str(wc->status));
		exit(1);
	}
}

/* Makes an endpoint with a queue pair, completion queues, and channels to sleep on; a listener's connections
 * inherit these attributes. */
static struct rdma_cm_id *endpoint(const char *address, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *id;

	check(!rdma_getaddrinfo(address, PORT, &hints, &found), "rdma_getaddrinfo");
	check(!rdma_create_ep(&id, found, NULL, &init), "rdma_create_ep");
	rdma_freeaddrinfo(found);
	return id;
}

static void serve(void)
{
	static char offered[ROOM];
	static uint32_t length;
	struct rdma_cm_id *listener = endpoint(NULL, RAI_PASSIVE), *id;
	struct ibv_mr *memory, *length_mr;
	struct ibv_wc wc;

	check(!rdma_listen(listener, 8), "rdma_listen");
	fprintf(stderr, "listening\n");
	check(!rdma_get_request(listener, &id), "rdma_get_request");
	memory = ibv_reg_mr(id->pd, offered, ROOM,
			    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	check(memory != NULL, "ibv_reg_mr");
	length_mr = rdma_reg_msgs(id, &length, sizeof length);
	check(length_mr != NULL, "rdma_reg_msgs");
	/* A message needs a waiting receive, so the receive is posted before the client may send. */
	check(!rdma_post_recv(id, NULL, &length, sizeof length, length_mr), "rdma_post_recv");

	struct place place = { .addr = htobe64((uintptr_t)offered), .rkey = htonl(memory->rkey) };
	struct rdma_conn_param param = {
		.private_data = &place,
		.private_data_len = sizeof place,
		.responder_resources = 1, /* Reads of the client */
		.initiator_depth = 1,
	};
	check(!rdma_accept(id, &param), "rdma_accept");
	completed(rdma_get_recv_comp(id, &wc), &wc, "the message");
	uint32_t size = ntohl(length) < ROOM ? ntohl(length) : ROOM;
	printf("%.*s\n", (int)size, offered);

	rdma_disconnect(id);
	rdma_dereg_mr(length_mr);
	ibv_dereg_mr(memory);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
}

static void say(const char *to, const char *words)
{
	static char local[ROOM], back[ROOM];
	static uint32_t length;
	struct rdma_cm_id *id = endpoint(to, 0);
	struct ibv_mr *local_mr = rdma_reg_msgs(id, local, ROOM), *back_mr = rdma_reg_msgs(id, back, ROOM);
	struct ibv_mr *length_mr = rdma_reg_msgs(id, &length, sizeof length);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 /* our Reads */ };
	struct place place;
	struct ibv_wc wc;

	check(local_mr && back_mr && length_mr, "rdma_reg_msgs");
	check(!rdma_connect(id, &param), "rdma_connect");
	/* A synchronous identifier keeps the event that completed the last call. */
	check(id->event->param.conn.private_data_len >= sizeof place, "the private data");
	memcpy(&place, id->event->param.conn.private_data, sizeof place);
	uint64_t addr = be64toh(place.addr);
	uint32_t rkey = ntohl(place.rkey), size = strnlen(words, ROOM);

	memcpy(local, words, size);
	length = htonl(size);
	check(!rdma_post_write(id, NULL, local, size, local_mr, 0, addr, rkey), "rdma_post_write");
	completed(rdma_get_send_comp(id, &wc), &wc, "the Write");
	check(!rdma_post_read(id, NULL, back, size, back_mr, 0, addr, rkey), "rdma_post_read");
	completed(rdma_get_send_comp(id, &wc), &wc, "the Read");
	if (memcmp(local, back, size)) {
		fprintf(stderr, "the server holds other words than were written\n");
		exit(1);
	}
	check(!rdma_post_send(id, NULL, &length, sizeof length, length_mr, 0), "rdma_post_send");
	completed(rdma_get_send_comp(id, &wc), &wc, "the Send");
	puts("said");

	rdma_disconnect(id);
	rdma_dereg_mr(length_mr);
	rdma_dereg_mr(back_mr);
	rdma_dereg_mr(local_mr);
	rdma_destroy_ep(id);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "serve"))
		serve();
	else if (argc == 4 && !strcmp(argv[1], "say"))
		say(argv[2], argv[3]);
	else
		return fprintf(stderr, "usage: greet serve | greet say ADDRESS WORDS\n"), 2;
	return 0;
}
