/* Requests that are refused: the call returns the errno and points to the request. The requests before it in the list
 * are posted, and those after it are not. Inline payload is the program's again when the call returns. */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

static void create_qp(struct rdma_cm_id *id, struct ibv_qp_init_attr *init);
#define LINK_QP(id, init) create_qp(id, init)
#include "harness.h"

/* Maximum number of requests of a list. */
#define MOST 64
/* Number of bytes of memory of each request. */
#define ROOM 128
/* Number of requests that are posted before a list that is too long. */
#define EARLIER 5
/* Number of requests beyond the room of a queue. */
#define BEYOND 3
/* Number of inline requests that wait for the connection: a list, and a single one. */
#define INLINE 5
/* Identifies the request that shows that none is left before it. */
#define LAST 1000

struct sends {
	struct ibv_send_wr wr[MOST];
	struct ibv_sge sge[MOST][3];
};

struct receives {
	struct ibv_recv_wr wr[MOST];
	struct ibv_sge sge[MOST][3];
};

/* Faults of a request. */
enum fault { OPCODE, IMMEDIATE, LONG_INLINE, ELEMENTS, NEGATIVE, NO_LIST, END };
static const enum fault FIRST_OF_RECEIVES = ELEMENTS;

/* Fills in a list of Sends. Send `i` has 4 + i bytes with the value i + 1, in one element or two. */
static void fill_sends(struct sends *list, int count, struct ibv_mr *mr, unsigned flags)
{
	memset(list, 0, sizeof *list);
	CHECK(count <= MOST && 4 + count <= ROOM);
	for (int i = 0; i < count; i++) {
		struct ibv_send_wr *wr = &list->wr[i];
		uint64_t from = (uintptr_t)mr->addr + i * ROOM;
		memset((char *)mr->addr + i * ROOM, i + 1, ROOM);
		*wr = (struct ibv_send_wr){ .wr_id = i, .next = i + 1 < count ? wr + 1 : NULL, .sg_list = list->sge[i],
			.num_sge = 1 + i % 2, .opcode = IBV_WR_SEND, .send_flags = flags };
		list->sge[i][0] = (struct ibv_sge){ from, i % 2 ? 4 : 4 + i, mr->lkey };
		list->sge[i][1] = (struct ibv_sge){ from + 4, i, mr->lkey };
		list->sge[i][2] = list->sge[i][1];
	}
}

static void fill_receives(struct receives *list, int count, struct ibv_mr *mr)
{
	memset(list, 0, sizeof *list);
	CHECK(count <= MOST);
	for (int i = 0; i < count; i++) {
		struct ibv_recv_wr *wr = &list->wr[i];
		*wr = (struct ibv_recv_wr){ .wr_id = i, .next = i + 1 < count ? wr + 1 : NULL, .sg_list = list->sge[i],
			.num_sge = 1 };
		for (int j = 0; j < 3; j++)
			list->sge[i][j] = (struct ibv_sge){ (uintptr_t)mr->addr + i * ROOM, ROOM, mr->lkey };
	}
}

/* Spoils a list of elements. */
static void spoil_elements(struct ibv_sge **sges, int *num, enum fault fault)
{
	if (fault == ELEMENTS)
		*num = 3;
	else if (fault == NEGATIVE)
		*num = -1;
	else
		*sges = NULL;
}

/* Spoils a Send, and returns the errno with which it is refused. */
static int spoil(struct ibv_send_wr *wr, enum fault fault)
{
	switch (fault) {
	case OPCODE:
		wr->opcode = 77;
		return EINVAL;
	case IMMEDIATE:
		wr->opcode = IBV_WR_SEND_WITH_IMM;
		return EOPNOTSUPP;
	case LONG_INLINE:
		wr->send_flags = IBV_SEND_INLINE;
		wr->num_sge = 1;
		wr->sg_list->length = 1000;
		return EINVAL;
	default:
		wr->send_flags = 0; /* inline payload may come in more pieces */
		spoil_elements(&wr->sg_list, &wr->num_sge, fault);
		return EINVAL;
	}
}

/* Posts inline Sends before there is a connection, and overwrites them at once. The peer has receives for them. */
static void create_qp(struct rdma_cm_id *id, struct ibv_qp_init_attr *init)
{
	struct link *l = id->context;
	bool is_client = id == l->client;
	struct ibv_mr *mr = l->mr[is_client ? 0 : 1];
	init->cap.max_recv_wr = MOST;
	OK(rdma_create_qp(id, NULL, init));
	if (!is_client) {
		for (int i = 0; i <= INLINE; i++)
			OK(post_receive(id, mr, i * ROOM, ROOM, i));
		return;
	}
	static struct sends list;
	struct ibv_send_wr *bad;
	fill_sends(&list, INLINE, mr, IBV_SEND_INLINE);
	list.wr[INLINE - 2].next = NULL;
	list.sge[INLINE - 2][0].lkey = 0; /* inline payload needs no registration */
	OK(ibv_post_send(id->qp, list.wr, &bad));
	memset(l->memory[0], 0xee, (INLINE - 1) * ROOM);
	memset(list.sge, 0xee, sizeof list.sge[0] * (INLINE - 1));
	OK(ibv_post_send(id->qp, &list.wr[INLINE - 1], &bad));
	memset(l->memory[0], 0xee, INLINE * ROOM);
	memset(&list, 0xee, sizeof list);
}

/* Posts a Send after all others, and waits for room. */
static void post_last(struct rdma_cm_id *id, struct ibv_mr *mr)
{
	struct ibv_send_wr last = { .wr_id = LAST, .opcode = IBV_WR_SEND };
	int error;
	while ((error = post(id, mr, SIZE - 1, 1, &last)) == ENOMEM)
		;
	OK(error);
}

/* Checks that the first `count` Sends of a list complete and arrive, and no others before one that is posted now. */
static void arrive(struct link *l, uint32_t count)
{
	post_last(l->client, l->mr[0]);
	for (uint32_t i = 0; i <= count; i++) {
		struct ibv_wc sent = completion(l->cq[0]), received = completion(l->cq[1]);
		CHECK(sent.status == IBV_WC_SUCCESS && sent.opcode == IBV_WC_SEND && sent.wr_id == (i == count ? LAST : i));
		CHECK(received.status == IBV_WC_SUCCESS && received.opcode == IBV_WC_RECV && received.wr_id == i);
		CHECK(received.byte_len == (i == count ? 1 : 4 + i));
		for (uint32_t at = 0; i < count && at < received.byte_len; at++)
			CHECK((uint8_t)l->memory[1][i * ROOM + at] == i + 1);
	}
}

/* Posts a list of which Send `wrong` is refused with `error`. */
static void stops_at(struct link *l, struct sends *list, int wrong, int error)
{
	struct ibv_send_wr *bad = NULL;
	memset(l->memory[1], 0, SIZE);
	for (int i = 0; i <= wrong; i++)
		OK(post_receive(l->server, l->mr[1], i * ROOM, ROOM, i));
	IS(ibv_post_send(l->client->qp, list->wr, &bad), error);
	CHECK(bad == &list->wr[wrong]);
	arrive(l, wrong);
}

static void lists_of_a_connection(struct link *l)
{
	struct sends list;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	OK(ibv_query_qp(l->client->qp, &attr, IBV_QP_CAP, &init));
	int room = init.cap.max_send_wr;
	for (int wrong = 0; wrong < 3; wrong++) {
		for (enum fault fault = 0; fault < END; fault++) {
			fill_sends(&list, 3, l->mr[0], 0);
			stops_at(l, &list, wrong, spoil(&list.wr[wrong], fault));
		}
	}
	fill_sends(&list, room + BEYOND, l->mr[0], 0);
	stops_at(l, &list, room, ENOMEM);
	fill_sends(&list, room + BEYOND, l->mr[0], IBV_SEND_INLINE);
	stops_at(l, &list, room, ENOMEM);
}

/* Checks that the first `count` requests of a queue pair without a connection are flushed, and no others before one
 * that is posted now. */
static void flushes(struct link *l, struct ibv_qp *qp, int count, bool sends)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct rdma_cm_id id = { .qp = qp };
	int error = 0;
	OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	if (sends)
		post_last(&id, l->mr[0]);
	else
		while ((error = post_receive(&id, l->mr[0], 0, ROOM, LAST)) == ENOMEM)
			;
	OK(error);
	for (int i = 0; i <= count; i++) {
		struct ibv_wc wc = completion(qp->send_cq);
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == (uint64_t)(i == count ? LAST : i));
	}
	OK(ibv_destroy_qp(qp));
}

/* Returns a queue pair without a connection, whose requests wait, and the room in its queues. */
static struct ibv_qp *waiting(struct link *l, struct ibv_cq *cq, struct ibv_qp_cap *cap)
{
	struct ibv_qp_init_attr init = qp_like(cq);
	struct ibv_qp *qp = SOME(ibv_create_qp(l->client->pd, &init));
	*cap = init.cap;
	CHECK(cap->max_send_wr + BEYOND <= MOST && cap->max_recv_wr + BEYOND <= MOST);
	return qp;
}

/* Single Sends, and a list that does not fit behind them. */
static void sends_that_wait(struct link *l, struct ibv_cq *cq, unsigned flags)
{
	struct ibv_qp_cap cap;
	struct sends list;
	struct ibv_send_wr one, *bad;
	for (int singles = 0; singles < 2; singles++) {
		struct ibv_qp *qp = waiting(l, cq, &cap);
		for (enum fault fault = 0; fault < END; fault++) {
			fill_sends(&list, 1, l->mr[0], flags);
			int error = spoil(list.wr, fault);
			bad = NULL;
			IS(ibv_post_send(qp, list.wr, &bad), error);
			CHECK(bad == list.wr);
		}
		int room = cap.max_send_wr, early = singles ? room : EARLIER;
		fill_sends(&list, room + BEYOND, l->mr[0], flags);
		for (int i = 0; i < early; i++) {
			one = list.wr[i];
			one.next = NULL;
			OK(ibv_post_send(qp, &one, &bad));
		}
		one = list.wr[room];
		one.next = NULL;
		bad = NULL;
		IS(ibv_post_send(qp, singles ? &one : &list.wr[early], &bad), ENOMEM);
		CHECK(bad == (singles ? &one : &list.wr[room]));
		flushes(l, qp, room, true);
	}
}

static void receives_that_wait(struct link *l, struct ibv_cq *cq)
{
	struct ibv_qp_cap cap;
	struct receives list;
	struct ibv_recv_wr *bad;
	for (enum fault fault = FIRST_OF_RECEIVES; fault < END; fault++) {
		for (int wrong = 0; wrong < 3; wrong++) {
			struct ibv_qp *qp = waiting(l, cq, &cap);
			fill_receives(&list, 3, l->mr[0]);
			spoil_elements(&list.wr[wrong].sg_list, &list.wr[wrong].num_sge, fault);
			bad = NULL;
			IS(ibv_post_recv(qp, list.wr, &bad), EINVAL);
			CHECK(bad == &list.wr[wrong]);
			flushes(l, qp, wrong, false);
		}
	}
	struct ibv_qp *qp = waiting(l, cq, &cap);
	int room = cap.max_recv_wr;
	for (int i = 0; i < EARLIER; i++)
		OK(post_receive(&(struct rdma_cm_id){ .qp = qp }, l->mr[0], 0, ROOM, i));
	fill_receives(&list, room + BEYOND, l->mr[0]);
	bad = NULL;
	IS(ibv_post_recv(qp, &list.wr[EARLIER], &bad), ENOMEM);
	CHECK(bad == &list.wr[room]);
	bad = NULL;
	IS(ibv_post_recv(qp, &list.wr[room + BEYOND - 1], &bad), ENOMEM);
	CHECK(bad == &list.wr[room + BEYOND - 1]);
	flushes(l, qp, room, false);
}

/* The room that is left in a shared queue shows how many receives of a list were posted. */
static void receives_of_a_shared_queue(struct link *l)
{
	struct receives list;
	struct ibv_recv_wr *bad;
	for (enum fault fault = FIRST_OF_RECEIVES; fault < END; fault++) {
		for (int wrong = 0; wrong < 3; wrong++) {
			struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 2 } };
			struct ibv_srq *srq = SOME(ibv_create_srq(l->client->pd, &init));
			int left = init.attr.max_wr - wrong;
			fill_receives(&list, 3, l->mr[0]);
			spoil_elements(&list.wr[wrong].sg_list, &list.wr[wrong].num_sge, fault);
			bad = NULL;
			IS(ibv_post_srq_recv(srq, list.wr, &bad), EINVAL);
			CHECK(bad == &list.wr[wrong]);
			fill_receives(&list, left + BEYOND, l->mr[0]);
			IS(ibv_post_srq_recv(srq, list.wr, &bad), ENOMEM);
			CHECK(bad == &list.wr[left]);
			OK(ibv_destroy_srq(srq));
		}
	}
}

int main(void)
{
	struct link l;
	link_up(&l);
	arrive(&l, INLINE);
	struct ibv_cq *cq = SOME(ibv_create_cq(l.client->verbs, MOST, NULL, NULL, 0));
	sends_that_wait(&l, cq, 0);
	sends_that_wait(&l, cq, IBV_SEND_INLINE);
	lists_of_a_connection(&l);
	receives_that_wait(&l, cq);
	receives_of_a_shared_queue(&l);
	OK(ibv_destroy_cq(cq));
	link_down(&l);
	puts("done");
	return 0;
}
