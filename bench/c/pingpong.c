/*
 * The ping-pong of `urnic perf floor --mode lat` in plain C, for comparison: one frame goes back and forth between
 * two processes, which use nothing above the poll-mode driver.
 *
 *   pingpong EAL-ARGUMENTS -- echo            sends frames back, until it is killed
 *   pingpong EAL-ARGUMENTS -- ping SIZE N     prints the median of N round trips in nanoseconds
 *
 * SIZE is the length of the frame without FCS, in bytes: 60 to 9014.
 *
 * Uses the first port; both ends run on the main lcore.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

enum { PORT = 0, BURST = 32, MBUFS = 4095, CACHE = 256, WARMUP = 1000, DATA_ROOM = 9216 + RTE_PKTMBUF_HEADROOM };

static const uint8_t header[14] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5 };

static void die(const char *what, int status)
{
	fprintf(stderr, "pingpong: %s: %s\n", what, rte_strerror(status < 0 ? -status : rte_errno));
	exit(1);
}

static struct rte_mempool *open_port(void)
{
	struct rte_eth_conf conf = { 0 };
	struct rte_eth_dev_info info;
	struct rte_mempool *pool = rte_pktmbuf_pool_create("frames", MBUFS, CACHE, 0, DATA_ROOM, SOCKET_ID_ANY);
	uint16_t rxd = 256, txd = 256;
	int status;

	if (pool == NULL)
		die("pool", 0);
	if ((status = rte_eth_dev_info_get(PORT, &info)) != 0)
		die("device", status);
	/* The offloads that urnic requests. With them, two ends that share memory (virtio_user and vhost) may leave
	 * checksums out, and exchange frames of several TCP segments. */
	conf.rxmode.offloads = info.rx_offload_capa & (RTE_ETH_RX_OFFLOAD_TCP_CKSUM | RTE_ETH_RX_OFFLOAD_TCP_LRO);
	conf.txmode.offloads = info.tx_offload_capa & (RTE_ETH_TX_OFFLOAD_TCP_CKSUM | RTE_ETH_TX_OFFLOAD_TCP_TSO |
						       RTE_ETH_TX_OFFLOAD_MULTI_SEGS);
	if ((status = rte_eth_dev_configure(PORT, 1, 1, &conf)) != 0)
		die("configure", status);
	if ((status = rte_eth_dev_adjust_nb_rx_tx_desc(PORT, &rxd, &txd)) != 0)
		die("queue sizes", status);
	if ((status = rte_eth_rx_queue_setup(PORT, 0, rxd, SOCKET_ID_ANY, NULL, pool)) != 0)
		die("receive queue", status);
	if ((status = rte_eth_tx_queue_setup(PORT, 0, txd, SOCKET_ID_ANY, NULL)) != 0)
		die("send queue", status);
	if ((status = rte_eth_dev_start(PORT)) != 0)
		die("start", status);
	return pool;
}

static void echo(void)
{
	struct rte_mbuf *frames[BURST];

	for (;;) {
		uint16_t n = rte_eth_rx_burst(PORT, 0, frames, BURST), sent = 0;

		while (sent < n)
			sent += rte_eth_tx_burst(PORT, 0, frames + sent, n - sent);
	}
}

static int ascending(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void ping(struct rte_mempool *pool, uint16_t size, size_t rounds)
{
	uint64_t *ticks = malloc(rounds * sizeof(*ticks));
	struct rte_mbuf *frames[BURST];
	struct rte_eth_link link = { 0 };

	if (ticks == NULL)
		die("memory", -ENOMEM);
	for (int waited = 0; link.link_status == RTE_ETH_LINK_DOWN; waited++) {
		if (waited == 20000)
			die("link", -ETIMEDOUT);
		rte_delay_us_sleep(1000);
		rte_eth_link_get_nowait(PORT, &link);
	}
	for (size_t round = 0; round < rounds + WARMUP; round++) {
		uint64_t start = rte_rdtsc();
		struct rte_mbuf *m = rte_pktmbuf_alloc(pool);
		uint16_t n;

		if (m == NULL)
			die("frame", -ENOMEM);
		memcpy(rte_pktmbuf_append(m, size), header, sizeof(header));
		while (rte_eth_tx_burst(PORT, 0, &m, 1) == 0)
			;
		while ((n = rte_eth_rx_burst(PORT, 0, frames, BURST)) == 0)
			;
		if (round >= WARMUP)
			ticks[round - WARMUP] = rte_rdtsc() - start;
		rte_pktmbuf_free_bulk(frames, n);
	}
	qsort(ticks, rounds, sizeof(*ticks), ascending);
	printf("%" PRIu64 "\n", ticks[rounds / 2] * UINT64_C(1000000000) / rte_get_tsc_hz());
	free(ticks);
}

int main(int argc, char **argv)
{
	int used = rte_eal_init(argc, argv);
	struct rte_mempool *pool;

	if (used < 0)
		die("EAL", 0);
	argc -= used;
	argv += used;
	pool = open_port();
	if (argc == 2 && strcmp(argv[1], "echo") == 0)
		echo();
	else if (argc == 4 && strcmp(argv[1], "ping") == 0 && atoi(argv[2]) >= 60 && atoi(argv[2]) <= 9014 &&
		 atol(argv[3]) > 0)
		ping(pool, (uint16_t)atoi(argv[2]), (size_t)atol(argv[3]));
	else {
		fprintf(stderr, "usage: pingpong EAL-ARGUMENTS -- echo | ping SIZE N\n");
		return 2;
	}
	rte_eth_dev_stop(PORT);
	rte_eth_dev_close(PORT);
	return 0;
}
