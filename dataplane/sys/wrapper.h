/* The parts of DPDK that urnic uses. Inline functions become linkable through bindgen's wrappers. */
#define _GNU_SOURCE 1
#include <limits.h>
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
#include <rte_memory.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_version.h>
#include <rte_vhost.h>

/* rte_errno is a macro over a thread-local variable. */
static inline int dpdk_sys_errno(void) { return rte_errno; }

/* Returns a stdio stream that hands DPDK's log to `write`; NULL when out of memory. */
static inline FILE *dpdk_sys_log_stream(ssize_t (*write)(void *, const char *, size_t))
{
	cookie_io_functions_t io = { .read = NULL, .write = write, .seek = NULL, .close = NULL };
	FILE *stream = fopencookie(NULL, "w", io);

	if (stream != NULL)
		setlinebuf(stream);
	return stream;
}

/* Returns whether all of the `len` bytes at `at` are mapped memory of EAL itself. Takes none of EAL's locks, so the
 * owner of the memory may call this from anywhere, EAL's memory callbacks included. */
static inline int dpdk_sys_holds(const void *at, size_t len)
{
	const struct rte_memseg_list *list = rte_mem_virt2memseg_list(at);
	uintptr_t page, end;

	if (list == NULL || list->external || __builtin_add_overflow((uintptr_t)at, len, &end))
		return 0;
	for (page = (uintptr_t)at & ~(uintptr_t)(list->page_sz - 1); page < end; page += list->page_sz) {
		const struct rte_memseg *segment = rte_mem_virt2memseg((const void *)page, list);

		if (segment == NULL || segment->addr == NULL)
			return 0;
	}
	return 1;
}

/* Returns the descriptor behind a piece of EAL's memory: negative if there is none, INT_MAX for external memory. */
static inline int dpdk_sys_memory_fd(const struct rte_memseg_list *list, const struct rte_memseg *segment)
{
	return list->external ? INT_MAX : rte_memseg_get_fd_thread_unsafe(segment);
}
