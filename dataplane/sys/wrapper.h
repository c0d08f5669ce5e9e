/* What urnic uses of DPDK. The inline functions among them become linkable through bindgen's wrappers. */
#define _GNU_SOURCE 1
#include <stdio.h>
#include <sys/types.h>

#include <rte_alarm.h>
#include <rte_bus_vdev.h>
#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_eth_vhost.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_version.h>
#include <rte_vhost.h>

/* rte_errno is a macro over a thread-local variable. */
static inline int dpdk_sys_errno(void) { return rte_errno; }

/* A stdio stream that hands what DPDK logs to `write`; NULL when out of memory. */
static inline FILE *dpdk_sys_log_stream(ssize_t (*write)(void *, const char *, size_t))
{
	cookie_io_functions_t io = { .read = NULL, .write = write, .seek = NULL, .close = NULL };
	FILE *stream = fopencookie(NULL, "w", io);

	if (stream != NULL)
		setlinebuf(stream);
	return stream;
}
