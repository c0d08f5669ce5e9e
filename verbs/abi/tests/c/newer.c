/* Calls the functions that rdma-core has added since release 44: see `newer.h`.
 *
 *   newer preload: looks them up by name alone, because `dlvsym` finds nothing in a library without versions
 *   newer drop-in: looks them up by name and version. Also calls newer functions of rsockets, which only the drop-in
 *                  library is sure to have */
#include "newer.h"
#include <dlfcn.h>
#include <sys/epoll.h>

static bool drop_in;

static void *newer(const char *name, const char *version)
{
	return SOME(drop_in ? dlvsym(RTLD_DEFAULT, name, version) : dlsym(RTLD_DEFAULT, name));
}

int main(int argc, char **argv)
{
	drop_in = argc > 1 && !strcmp(argv[1], "drop-in");
	struct ibv_device **list = SOME(ibv_get_device_list(NULL));
	struct ibv_context *context = SOME(ibv_open_device(list[0]));
	ibv_free_device_list(list);
	char *memory = SOME(calloc(1, SIZE));
	newer_memory(context, memory, SIZE);
	newer_refusals(context);
	newer_identifiers();
	free(memory);
	OK(ibv_close_device(context));

	/* These functions are librdmacm's own. If the system's librdmacm is older, they fail with ENOSYS. */
	if (drop_in) {
		int (*create)(int) = CM(5, int, repoll_create, int);
		int (*ctl)(int, int, int, struct epoll_event *) = CM(5, int, repoll_ctl, int, int, int, struct epoll_event *);
		int (*wait)(int, struct epoll_event *, int, int) = CM(5, int, repoll_wait, int, struct epoll_event *, int, int);
		struct epoll_event event = { .events = EPOLLIN };
		errno = 0;
		int set = create(0);
		if (set >= 0) {
			CHECK(wait(set, &event, 1, 0) == 0);
			CHECK(ctl(set, EPOLL_CTL_DEL, set + 1, &event) != 0);
		} else {
			CHECK(errno == ENOSYS);
			FAILS(ctl(0, EPOLL_CTL_ADD, 1, &event), ENOSYS);
			FAILS(wait(0, &event, 1, 0), ENOSYS);
		}
	}
	puts("done");
	return 0;
}
