/* A program whose plug-ins use the library: loads it, uses it and unloads it, again and again, in two threads.
 *
 *   plugin LIBRARY ROUNDS */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

static const char *library;
static int rounds;

static void *plug(void *arg)
{
	for (int i = 0; i < rounds; i++) {
		void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
		if (!handle) {
			fprintf(stderr, "%s\n", dlerror());
			exit(1);
		}
		struct ibv_device **(*list_of)(int *) = dlsym(handle, "ibv_get_device_list");
		void (*free_list)(struct ibv_device **) = dlsym(handle, "ibv_free_device_list");
		struct ibv_context *(*open)(struct ibv_device *) = dlsym(handle, "ibv_open_device");
		int (*close)(struct ibv_context *) = dlsym(handle, "ibv_close_device");
		struct ibv_pd *(*alloc)(struct ibv_context *) = dlsym(handle, "ibv_alloc_pd");
		int (*dealloc)(struct ibv_pd *) = dlsym(handle, "ibv_dealloc_pd");
		struct ibv_device **list = list_of(NULL);
		struct ibv_context *context = list && list[0] ? open(list[0]) : NULL;
		struct ibv_pd *pd = context ? alloc(context) : NULL;
		if (!pd || dealloc(pd) || close(context)) {
			fprintf(stderr, "round %d failed\n", i);
			exit(1);
		}
		free_list(list);
		if (dlclose(handle)) {
			fprintf(stderr, "%s\n", dlerror());
			exit(1);
		}
	}
	return arg;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	if (argc < 3)
		return 2;
	library = argv[1];
	rounds = atoi(argv[2]);
	if (pthread_create(&thread, NULL, plug, NULL))
		return 1;
	plug(NULL);
	pthread_join(thread, NULL);
	puts("done");
	return 0;
}
