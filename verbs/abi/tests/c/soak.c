/* Makes connections, registrations and queues, does Writes, Reads, Sends and atomics, and verifies the data, in two
 * threads, for some time. The resources of the process must not grow. Now and then the program destroys everything and
 * prints what is left: bytes in use on the heap, resident memory (KiB), and descriptors; then the numbers of
 * connections and operations so far.
 *
 *   soak SECONDS SEED */
#include <dirent.h>
#include <limits.h>
#include <malloc.h>

#include "harness.h"

static double end_at;
static atomic_ulong rounds, operations;
static unsigned seed;

static unsigned next(unsigned *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	*state ^= *state << 5;
	return *state;
}

static long resident(void)
{
	long pages = 0;
	FILE *file = SOME(fopen("/proc/self/statm", "r"));
	CHECK(fscanf(file, "%*d %ld", &pages) == 1);
	fclose(file);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Takes the minimum of several counts, because other threads open files for a moment, or close descriptors a
 * moment late. A leak shows in every count. */
static int descriptors(void)
{
	int fewest = INT_MAX;
	for (int look = 0; look < 20; look++) {
		int n = 0;
		DIR *folder = SOME(opendir("/proc/self/fd"));
		while (readdir(folder))
			n++;
		closedir(folder);
		fewest = n < fewest ? n : fewest;
		usleep(1000);
	}
	return fewest;
}

/* Creates and destroys objects while connections work. */
static void churn(struct link *l, unsigned *state)
{
	struct ibv_context *verbs = l->client->verbs;
	size_t len = 1 + next(state) % (SIZE - 1);
	struct ibv_mr *mr = SOME(ibv_reg_mr(l->client->pd, l->memory[0], len, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_comp_channel *channel = SOME(ibv_create_comp_channel(verbs));
	struct ibv_cq *cq = SOME(ibv_create_cq(verbs, 1 + next(state) % 500, NULL, channel, 0));
	OK(ibv_resize_cq(cq, 1 + next(state) % 500));
	struct ibv_pd *pd = SOME(ibv_alloc_pd(verbs));
	struct ibv_qp_init_attr init = qp_like(cq);
	struct ibv_qp *qp = SOME(ibv_create_qp(pd, &init));
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;
	OK(ibv_post_recv(qp, &wr, &bad));
	OK(ibv_req_notify_cq(cq, 0));
	if (next(state) & 1) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
		struct ibv_cq *told;
		void *context;
		OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
		OK(ibv_get_cq_event(channel, &told, &context));
		ibv_ack_cq_events(told, 1);
		CHECK(completion(cq).status == IBV_WC_WR_FLUSH_ERR);
	}
	OK(ibv_destroy_qp(qp));
	OK(ibv_dealloc_pd(pd));
	OK(ibv_destroy_cq(cq));
	OK(ibv_destroy_comp_channel(channel));
	OK(ibv_dereg_mr(mr));
}

/* Posts one request at one end, and checks its effect. */
static void operate(struct link *l, unsigned *state)
{
	struct rdma_cm_id *ids[2] = { l->client, l->server };
	int from = next(state) & 1, to = 1 - from;
	size_t len = 1 + next(state) % (SIZE / 2), at = next(state) % (SIZE / 2);
	struct ibv_send_wr wr = { .wr_id = next(state) };
	struct ibv_wc wc;
	char byte = (char)next(state);
	wr.wr.rdma.remote_addr = (uintptr_t)l->memory[to] + at;
	wr.wr.rdma.rkey = l->mr[to]->rkey;
	switch (next(state) % 5) {
	case 0:
		wr.opcode = IBV_WR_RDMA_WRITE;
		memset(l->memory[from], byte, len);
		memset(l->memory[to] + at, ~byte, len);
		OK(post(ids[from], l->mr[from], 0, len, &wr));
		wc = completion(l->cq[from]);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == wr.wr_id);
		/* The request completes at this end before its data is placed at the other end, the last byte last. */
		while (*(volatile char *)(l->memory[to] + at + len - 1) != byte)
			sched_yield();
		CHECK(l->memory[to][at] == byte);
		break;
	case 1:
		wr.opcode = IBV_WR_RDMA_READ;
		memset(l->memory[to] + at, byte, len);
		OK(post(ids[from], l->mr[from], 0, len, &wr));
		wc = completion(l->cq[from]);
		CHECK(wc.status == IBV_WC_SUCCESS && l->memory[from][0] == byte && l->memory[from][len - 1] == byte);
		break;
	case 2:
	case 3:
		wr.opcode = next(state) & 1 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM;
		memset(l->memory[from], byte, len);
		if (wr.opcode == IBV_WR_SEND)
			OK(post_receive(ids[to], l->mr[to], at, len, 9));
		else
			OK(post_receive(ids[to], l->mr[to], 0, 1, 9));
		OK(post(ids[from], l->mr[from], 0, len, &wr));
		wc = completion(l->cq[from]);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == wr.wr_id);
		wc = completion(l->cq[to]);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 9 && wc.byte_len == len);
		CHECK(l->memory[to][at] == byte && l->memory[to][at + len - 1] == byte);
		break;
	case 4: {
		uint64_t *word = (uint64_t *)l->memory[to];
		*word = 5;
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr.atomic.remote_addr = (uintptr_t)word;
		wr.wr.atomic.rkey = l->mr[to]->rkey;
		wr.wr.atomic.compare_add = 3;
		OK(post(ids[from], l->mr[from], 0, 8, &wr));
		wc = completion(l->cq[from]);
		CHECK(wc.status == IBV_WC_SUCCESS && *word == 8);
		break;
	}
	}
	atomic_fetch_add(&operations, 1);
}

static void *work(void *arg)
{
	unsigned state = seed * 2654435761u + (unsigned)(uintptr_t)arg + 1;
	while (now() < end_at) {
		struct link l;
		link_up(&l);
		for (unsigned n = 10 + next(&state) % 200; n > 0; n--) {
			operate(&l, &state);
			if (next(&state) % 16 == 0)
				churn(&l, &state);
		}
		if (next(&state) % 4)
			link_down(&l);
		else
			link_free(&l); /* while connected */
		atomic_fetch_add(&rounds, 1);
	}
	return NULL;
}

#define STAGES 6

int main(int argc, char **argv)
{
	pthread_t threads[2];
	double seconds = argc > 1 ? atof(argv[1]) : 6, start = now();
	seed = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
	for (int stage = 1; stage <= STAGES; stage++) {
		end_at = start + seconds * stage / STAGES;
		for (uintptr_t i = 0; i < 2; i++)
			OK(pthread_create(&threads[i], NULL, work, (void *)(2 * (uintptr_t)stage + i)));
		for (int i = 0; i < 2; i++)
			OK(pthread_join(threads[i], NULL));
		struct mallinfo2 heap = mallinfo2();
		printf("held %zu %ld %d %lu %lu\n", heap.uordblks + heap.hblkhd, resident(), descriptors(), rounds, operations);
		fflush(stdout);
	}
	puts("done");
	return 0;
}
