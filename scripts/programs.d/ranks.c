/* Ranks of an MPI program that exchange messages in pairs and all together, and check every number. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks;

static void expect(const char *what, long at, long got, long wanted)
{
	if (got == wanted)
		return;
	fprintf(stderr, "rank %d: %s[%ld] is %ld, not %ld\n", rank, what, at, got, wanted);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Returns the number that rank `from` sends at index `at` in a round. */
static int content(int from, int round, int at) { return from * 1000003 + round * 101 + at; }

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	const int most = 1 << 20;
	int *out = malloc(sizeof(int) * most), *in = malloc(sizeof(int) * most);
	int round = 0;
	for (int n = 1; n <= most / ranks; n *= 4, round++) {
		/* Each rank sends to the next one of a ring. */
		int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
		for (int i = 0; i < n; i++)
			out[i] = content(rank, round, i);
		MPI_Sendrecv(out, n, MPI_INT, next, round, in, n, MPI_INT, previous, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < n; i++)
			expect("ring", i, in[i], content(previous, round, i));
		/* Each rank sends to all ranks. */
		for (int i = 0; i < n * ranks; i++)
			out[i] = content(rank, round, i);
		MPI_Alltoall(out, n, MPI_INT, in, n, MPI_INT, MPI_COMM_WORLD);
		for (int i = 0; i < n * ranks; i++)
			expect("all to all", i, in[i], content(i / n, round, rank * n + i % n));
		/* All ranks get the sums of their numbers. */
		for (int i = 0; i < n; i++)
			out[i] = rank + i % 1000;
		MPI_Allreduce(out, in, n, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		for (int i = 0; i < n; i++)
			expect("sum", i, in[i], ranks * (ranks - 1) / 2 + ranks * (i % 1000));
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (!rank)
		printf("%d ranks agree, %d rounds\n", ranks, round);
	MPI_Finalize();
	return 0;
}
