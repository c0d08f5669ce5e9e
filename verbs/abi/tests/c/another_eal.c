/* A program that has started DPDK itself, as SPDK does, and uses urnic beside it. The test reads its output. */
#include "harness.h"
#include <dirent.h>
#include <rte_eal.h>
#include <rte_malloc.h>
#include <rte_memory.h>

static struct ibv_pd *pd;
static int grown;

/* Registers new memory of EAL's heap in the very callback that announces it, while EAL holds its locks. */
static void grows(enum rte_mem_event event, const void *at, size_t len, void *unused)
{
	(void)unused;
	if (event != RTE_MEM_EVENT_ALLOC)
		return;
	grown++;
	OK(ibv_dereg_mr(SOME(ibv_reg_mr(pd, (void *)at, len, IBV_ACCESS_LOCAL_WRITE))));
}

/* Returns the cores that the thread of this name may run on; an empty set if there is no such thread. */
static cpu_set_t cores_of(const char *wanted)
{
	cpu_set_t cores;
	CPU_ZERO(&cores);
	DIR *folder = SOME(opendir("/proc/self/task"));
	for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
		char path[300], name[32] = "";
		snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
		FILE *file = fopen(path, "r");
		if (!file)
			continue;
		CHECK(fgets(name, sizeof name, file));
		fclose(file);
		name[strcspn(name, "\n")] = 0;
		if (!strcmp(name, wanted))
			OK(sched_getaffinity(atoi(entry->d_name), sizeof cores, &cores));
	}
	OK(closedir(folder));
	return cores;
}

int main(int argc, char **argv)
{
	cpu_set_t before, pinned, engine, common;
	OK(sched_getaffinity(0, sizeof before, &before));
	CHECK(rte_eal_init(argc, argv) >= 0);
	OK(sched_getaffinity(0, sizeof pinned, &pinned));
	CHECK(CPU_COUNT(&pinned) == 1);

	int n;
	struct ibv_context **devices = rdma_get_devices(&n);
	if (!devices || !n) {
		puts("refused");
		return 2;
	}
	pd = SOME(ibv_alloc_pd(devices[0]));
	char *memory = SOME(rte_zmalloc(NULL, 1 << 20, 4096));
	struct ibv_mr *mr = SOME(ibv_reg_mr(pd, memory, 1 << 20, IBV_ACCESS_LOCAL_WRITE));

	/* The engine's thread avoids the core of the thread that opened the device, if there is another core. */
	do {
		sched_yield();
		engine = cores_of("urnic-engine");
		CPU_AND(&common, &engine, &pinned);
	} while (CPU_COUNT(&before) > 1 && CPU_COUNT(&common));
	CHECK(CPU_COUNT(&engine));
	OK(sched_getaffinity(0, sizeof common, &common));
	CHECK(CPU_EQUAL(&common, &pinned));

	if (rte_eal_has_hugepages()) {
		OK(rte_mem_event_callback_register("urnic", grows, NULL));
		for (size_t len = 1 << 20; !grown && len <= 128 << 20; len *= 2)
			rte_free(rte_malloc(NULL, len, 0));
		CHECK(grown);
		OK(rte_mem_event_callback_unregister("urnic", NULL));
	}

	OK(ibv_dereg_mr(mr));
	OK(ibv_dealloc_pd(pd));
	rdma_free_devices(devices);
	rte_free(memory);

	/* The engine's thread stops when the EAL that it uses is cleaned up. Afterwards the thread is gone if the
	 * program's EAL is also the device's. */
	OK(rte_eal_cleanup());
	engine = cores_of("urnic-engine");
	printf("engine %s\n", CPU_COUNT(&engine) ? "there" : "gone");
	puts("done");
	return 0;
}
