/* A program that is not linked to RDMA libraries: it loads the libraries named on its command line, and
 * unloads them while the device is open, objects exist, and a thread waits for events.
 *
 *   unload LIBRARY [LIBRARY]: one library for both interfaces, or one for each */
#include "harness.h"
#include <dlfcn.h>

static atomic_int waiter;

static char **libraries;

static void *loaded(const char *name)
{
	void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		fprintf(stderr, "%s\n", dlerror());
		_exit(1);
	}
	return handle;
}

static void *verbs_library, *cm_library;

static void load(void)
{
	verbs_library = loaded(libraries[0]);
	cm_library = loaded(libraries[1] ? libraries[1] : libraries[0]);
}

static void unload(void)
{
	OK(dlclose(verbs_library));
	OK(dlclose(cm_library));
}

#define FROM(library, name) ((__typeof__(&name))SOME(dlsym(library, #name)))

static void *waits_in_channel(void *arg)
{
	struct rdma_cm_event *event;
	__typeof__(&rdma_get_cm_event) get = FROM(cm_library, rdma_get_cm_event);
	waiter = gettid();
	get(arg, &event);
	return NULL;
}

/* Unloads the libraries while the device is open, objects exist, and a thread waits; loads them again, and goes
 * on. */
static void come_and_go(void)
{
	struct sockaddr_in own = own_address(0);
	struct rdma_event_channel *quiet = NULL;
	pthread_t thread;
	void *answer;
	for (int round = 0; round < 20; round++) {
		struct rdma_cm_id *id;
		struct rdma_cm_event *event;
		struct ibv_wc wc;
		load();
		struct rdma_event_channel *events = SOME(FROM(cm_library, rdma_create_event_channel)());
		if (!quiet) {
			quiet = SOME(FROM(cm_library, rdma_create_event_channel)());
			OK(pthread_create(&thread, NULL, waits_in_channel, quiet));
			while (!waiter || state_of(waiter) != 'S')
				sched_yield();
		}
		OK(FROM(cm_library, rdma_create_id)(events, &id, NULL, RDMA_PS_TCP));
		OK(FROM(cm_library, rdma_bind_addr)(id, (struct sockaddr *)&own));
		OK(FROM(cm_library, rdma_resolve_addr)(id, NULL, (struct sockaddr *)&own, 1000));
		struct ibv_cq *cq = SOME(FROM(verbs_library, ibv_create_cq)(id->verbs, 4, NULL, NULL, 0));
		struct ibv_pd *pd = SOME(FROM(verbs_library, ibv_alloc_pd)(id->verbs));
		struct ibv_qp_init_attr init = qp_like(cq);
		struct ibv_qp *qp = SOME(FROM(verbs_library, ibv_create_qp)(pd, &init));
		unload();
		/* Tables of functions still lead to loaded code. */
		IS(cq->context->ops.poll_cq(cq, 1, &wc), 0);
		load();
		OK(FROM(cm_library, rdma_get_cm_event)(events, &event));
		CHECK(event->id == id && event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
		OK(FROM(cm_library, rdma_ack_cm_event)(event));
		OK(FROM(verbs_library, ibv_destroy_qp)(qp));
		OK(FROM(verbs_library, ibv_dealloc_pd)(pd));
		OK(FROM(verbs_library, ibv_destroy_cq)(cq));
		OK(FROM(cm_library, rdma_destroy_id)(id));
		FROM(cm_library, rdma_destroy_event_channel)(events);
		unload();
	}
	OK(pthread_cancel(thread));
	OK(pthread_join(thread, &answer));
	CHECK(answer == PTHREAD_CANCELED);
	load();
	FROM(cm_library, rdma_destroy_event_channel)(quiet);
	unload();
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	libraries = argv + 1;
	come_and_go();
	puts("done");
	return 0;
}
