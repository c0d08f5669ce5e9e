/* A Send that finds no receive waits as long as the receiving end asked for. Either end may be the receiving end. */
static int rnr_retry[2];
#define LINK_RNR_RETRY(end) rnr_retry[end]
#include "harness.h"

static struct rdma_cm_id *id_of(struct link *l, int end)
{
	return end ? l->server : l->client;
}

/* Posts a request of eight octets, which completes at its sender. */
static void say(struct link *l, int end, struct ibv_send_wr wr)
{
	OK(post(id_of(l, end), l->mr[end], 0, 8, &wr));
	CHECK(completion(l->cq[end]).status == IBV_WC_SUCCESS);
}

static void hear(struct link *l, int end)
{
	OK(post_receive(id_of(l, end), l->mr[end], 4096, 64, 77));
}

static void received(struct link *l, int end)
{
	struct ibv_wc wc = completion(l->cq[end]);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == 77 && wc.byte_len == 8);
}

/* `end` has no receive for the incoming Send. */
static void without_a_receive(int end, int retry)
{
	struct link l;
	rnr_retry[end] = retry;
	rnr_retry[1 - end] = 7 - retry;
	link_up(&l);
	struct ibv_send_wr message = { .wr_id = 1, .opcode = IBV_WR_SEND };
	struct ibv_send_wr write = { .wr_id = 2, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { (uintptr_t)l.memory[end], l.mr[end]->rkey } };
	/* The connecting end sends first, as it would have to without a ready-to-receive indication. */
	hear(&l, 1);
	say(&l, 0, message);
	received(&l, 1);

	strcpy(l.memory[1 - end], "written");
	say(&l, 1 - end, message);
	if (retry) {
		say(&l, 1 - end, write);
		/* The later Write is placed while the Send waits. A poll without room for completions drives the
		 * engine. */
		while (((volatile char *)l.memory[end])[6] != 'n')
			ibv_poll_cq(l.cq[end], 0, NULL);
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;
		OK(ibv_query_qp(id_of(&l, end)->qp, &attr, IBV_QP_STATE, &init));
		CHECK(attr.qp_state == IBV_QPS_RTS);
		hear(&l, end);
		received(&l, end);
		CHECK(!strcmp(l.memory[end] + 4096, "written"));
		link_down(&l);
	} else {
		take_event(l.channel, RDMA_CM_EVENT_DISCONNECTED);
		take_event(l.channel, RDMA_CM_EVENT_DISCONNECTED);
		link_free(&l);
	}
}

int main(void)
{
	for (int end = 0; end < 2; end++) {
		without_a_receive(end, 7);
		without_a_receive(end, 0);
	}
	puts("done");
	return 0;
}
