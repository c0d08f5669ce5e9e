/* Calls the functions that rdma-core has added since release 44. `newer.c` looks them up by symbol version where it
 * can. `calls.c` looks them up by name, because the library that it is linked to has no versions. Headers of older
 * releases do not declare these functions, so they are declared here, under names that newer headers do not use. */
#ifndef NEWER_H
#define NEWER_H

#include "harness.h"

struct newer_mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah, *buf;
};

enum { OF_IOVA = 1, OF_ADDR = 2, OF_FD = 4, OF_FD_OFFSET = 8, OF_DMAH = 16, OF_BUF = 32 };
enum { ADDRINFO_RESOLVED = 16, ADDRINFO_ERROR = 17, USER = 18 };
#define NEWER_RAI_SA 16
#define NEWER_RAI_DNS 32

/* Returns the function `name`. Some definitions of this look up symbol version `version`, others only the name. */
static void *newer(const char *name, const char *version);

#define VERBS(version, answer, name, ...) ((answer (*)(__VA_ARGS__))newer(#name, "IBVERBS_1." #version))
#define CM(version, answer, name, ...) ((answer (*)(__VA_ARGS__))newer(#name, "RDMACM_1." #version))

/* Registration with a mask, and buffers that the library allocates. */
static void newer_memory(struct ibv_context *context, void *memory, size_t len)
{
	struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct newer_mr_init_attr *) =
		VERBS(15, struct ibv_mr *, ibv_reg_mr_ex, struct ibv_pd *, struct newer_mr_init_attr *);
	void *(*alloc_buf)(struct ibv_pd *, size_t, void **) = VERBS(17, void *, ibv_alloc_buf, struct ibv_pd *, size_t, void **);
	void (*free_buf)(void *) = VERBS(17, void, ibv_free_buf, void *);
	struct ibv_mr *(*reg_buf_mr)(struct ibv_pd *, void *, void *, size_t, int) =
		VERBS(17, struct ibv_mr *, ibv_reg_buf_mr, struct ibv_pd *, void *, void *, size_t, int);
	int (*export_buf)(void *) = VERBS(18, int, ibv_export_buf_dmabuf_fd, void *);
	struct ibv_pd *pd = SOME(ibv_alloc_pd(context)), *other = SOME(ibv_alloc_pd(context));

	struct newer_mr_init_attr attr = { .length = len, .access = IBV_ACCESS_LOCAL_WRITE, .comp_mask = OF_ADDR, .addr = memory,
		.iova = 1, .fd = 77, .fd_offset = 1, .dmah = (void *)1, .buf = (void *)1 }; /* members that the mask does not name are ignored */
	struct ibv_mr *mr = SOME(reg_mr_ex(pd, &attr));
	CHECK(mr->pd == pd && mr->context == context && mr->addr == memory && mr->length == len && mr->lkey);
	OK(ibv_dereg_mr(mr));
	attr.comp_mask = OF_ADDR | OF_IOVA;
	attr.iova = 0x10000;
	mr = SOME(reg_mr_ex(pd, &attr));
	CHECK(mr->addr == memory && mr->length == len);
	OK(ibv_dereg_mr(mr));
	/* In the function's first release the structure ended before `buf`. A structure of that size at the end of a page
	 * shows that the function does not read beyond it. */
	long page = sysconf(_SC_PAGESIZE);
	char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pages != MAP_FAILED);
	OK(mprotect(pages + page, page, PROT_NONE));
	struct newer_mr_init_attr *first = (void *)(pages + page - offsetof(struct newer_mr_init_attr, buf));
	memcpy(first, &attr, offsetof(struct newer_mr_init_attr, buf));
	OK(ibv_dereg_mr(SOME(reg_mr_ex(pd, first))));
	OK(munmap(pages, 2 * page));

	const struct { int mask, error; } refused[] = {
		{ 0, EINVAL }, { OF_IOVA, EINVAL }, { OF_ADDR | OF_FD_OFFSET, EINVAL }, { OF_ADDR | OF_FD, EINVAL }, { OF_FD, EINVAL },
		{ OF_FD | OF_FD_OFFSET | OF_IOVA, EOPNOTSUPP }, { OF_ADDR | OF_DMAH, EOPNOTSUPP }, { OF_ADDR | 1 << 9, EOPNOTSUPP },
		{ OF_BUF, EINVAL }, { OF_BUF | OF_ADDR, EINVAL },
	};
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		attr.comp_mask = refused[i].mask;
		NONE(reg_mr_ex(pd, &attr), refused[i].error);
	}
	NONE(reg_mr_ex(pd, NULL), EINVAL);
	attr.comp_mask = OF_ADDR;
	NONE(reg_mr_ex(NULL, &attr), EINVAL);
	attr.access = IBV_ACCESS_REMOTE_WRITE; /* not without local write */
	NONE(reg_mr_ex(pd, &attr), EINVAL);
	attr.access = IBV_ACCESS_LOCAL_WRITE;

	void *buf = NULL, *none = NULL;
	char *room = SOME(alloc_buf(pd, 3 * page, &buf));
	CHECK(buf && (uintptr_t)room % page == 0);
	memset(room, 0x77, 3 * page);
	FAILS(export_buf(buf), ENODATA);
	mr = SOME(reg_buf_mr(pd, buf, room, 3 * page, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
	CHECK(mr->pd == pd && mr->addr == room && mr->length == (size_t)(3 * page));
	OK(ibv_dereg_mr(mr));
	OK(ibv_dereg_mr(SOME(reg_buf_mr(pd, buf, room + page, 2 * page, 0))));
	NONE(reg_buf_mr(pd, buf, room + page, 2 * page + 1, 0), EINVAL);
	NONE(reg_buf_mr(pd, buf, room - 1, 2, 0), EINVAL);
	NONE(reg_buf_mr(pd, buf, room + 3 * page + 1, 0, 0), EINVAL);
	NONE(reg_buf_mr(pd, buf, room, SIZE_MAX, 0), EINVAL);
	NONE(reg_buf_mr(other, buf, room, page, 0), EINVAL);
	NONE(reg_buf_mr(pd, NULL, room, page, 0), EINVAL);
	attr = (struct newer_mr_init_attr){ .length = page, .comp_mask = OF_BUF | OF_ADDR, .addr = room + page, .buf = buf };
	OK(ibv_dereg_mr(SOME(reg_mr_ex(pd, &attr))));
	attr.comp_mask = OF_BUF | OF_ADDR | OF_IOVA;
	OK(ibv_dereg_mr(SOME(reg_mr_ex(pd, &attr))));
	attr.comp_mask = OF_BUF;
	NONE(reg_mr_ex(pd, &attr), EINVAL);
	attr.comp_mask = OF_BUF | OF_ADDR | OF_FD_OFFSET;
	NONE(reg_mr_ex(pd, &attr), EINVAL);
	free_buf(buf);
	free_buf(buf); /* again */
	free_buf(NULL);
	NONE(reg_buf_mr(pd, buf, room, page, 0), EINVAL);
	FAILS(export_buf(buf), EINVAL);
	FAILS(export_buf(NULL), EINVAL);
	NONE(alloc_buf(NULL, page, &none), EINVAL);
	NONE(alloc_buf(pd, page, NULL), EINVAL);
#ifndef __SANITIZE_ADDRESS__ /* AddressSanitizer would end the program instead of returning NULL. */
	NONE(alloc_buf(pd, SIZE_MAX / 2, &none), ENOMEM);
	CHECK(!none);
#endif
	CHECK(SOME(alloc_buf(pd, 0, &none)));
	free_buf(none);
	OK(ibv_dealloc_pd(other));
	OK(ibv_dealloc_pd(pd));
}

/* Features that urnic does not support. */
static void newer_refusals(struct ibv_context *context)
{
	uint64_t value = 77, room[8] = { 0 };
	NONE(VERBS(15, void *, ibv_alloc_dmah, struct ibv_context *, void *)(context, room), EOPNOTSUPP);
	FAILS(VERBS(15, int, ibv_dealloc_dmah, void *)(NULL), EOPNOTSUPP);
	IS(VERBS(16, int, ibv_dm_export_dmabuf_fd, void *)(NULL), -1);
	FAILS(VERBS(16, int, ibv_dm_export_dmabuf_fd, void *)(NULL), EOPNOTSUPP);
	FAILS(VERBS(16, int, ibv_query_port_speed, struct ibv_context *, uint32_t, uint64_t *)(context, 1, &value), EOPNOTSUPP);
	FAILS(VERBS(18, int, _ibv_query_comp_cntr_caps, struct ibv_context *, void *, size_t)(context, room, 16), EOPNOTSUPP);
	NONE(VERBS(18, void *, ibv_create_comp_cntr, struct ibv_context *, void *)(context, room), EOPNOTSUPP);
	FAILS(VERBS(18, int, ibv_destroy_comp_cntr, void *)(NULL), EOPNOTSUPP);
	FAILS(VERBS(18, int, ibv_set_comp_cntr, void *, uint64_t)(NULL, 1), EOPNOTSUPP);
	FAILS(VERBS(18, int, ibv_set_err_comp_cntr, void *, uint64_t)(NULL, 1), EOPNOTSUPP);
	FAILS(VERBS(18, int, ibv_inc_comp_cntr, void *, uint64_t)(NULL, 1), EOPNOTSUPP);
	FAILS(VERBS(18, int, ibv_inc_err_comp_cntr, void *, uint64_t)(NULL, 1), EOPNOTSUPP);
	FAILS(VERBS(18, int, ibv_read_comp_cntr, void *, uint64_t *)(NULL, &value), EOPNOTSUPP);
	FAILS(VERBS(18, int, ibv_read_err_comp_cntr, void *, uint64_t *)(NULL, &value), EOPNOTSUPP);
	FAILS(VERBS(18, int, ibv_qp_attach_comp_cntr, struct ibv_qp *, void *, void *)(NULL, NULL, room), EOPNOTSUPP);
	CHECK(value == 77);
}

/* Events made by the program, and names resolved with an event. */
static void newer_identifiers(void)
{
	int (*write_event)(struct rdma_cm_id *, int, int, uint64_t) =
		CM(4, int, rdma_write_cm_event, struct rdma_cm_id *, int, int, uint64_t);
	int (*resolve)(struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *) =
		CM(4, int, rdma_resolve_addrinfo, struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *);
	int (*query)(struct rdma_cm_id *, struct rdma_addrinfo **) = CM(4, int, rdma_query_addrinfo, struct rdma_cm_id *, struct rdma_addrinfo **);
	struct rdma_event_channel *channel = SOME(rdma_create_event_channel());
	struct rdma_cm_id *id, *sync;
	OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	OK(rdma_create_id(NULL, &sync, NULL, RDMA_PS_TCP));

	OK(write_event(id, USER, -7, 0x0123456789abcdef));
	OK(write_event(id, USER, 0, 2));
	struct rdma_cm_event *event = next_event(channel, (enum rdma_cm_event_type)USER);
	uint64_t arg;
	memcpy(&arg, &event->param, sizeof arg);
	CHECK(event->id == id && !event->listen_id && event->status == -7 && arg == 0x0123456789abcdef);
	OK(rdma_ack_cm_event(event));
	event = next_event(channel, (enum rdma_cm_event_type)USER);
	memcpy(&arg, &event->param, sizeof arg);
	CHECK(event->status == 0 && arg == 2);
	OK(rdma_ack_cm_event(event));
	FAILS(write_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), EINVAL);
	FAILS(write_event(id, USER + 1, 0, 0), EINVAL);
	FAILS(write_event(NULL, USER, 0, 0), EINVAL);
	CHECK(!strcmp(rdma_event_str((enum rdma_cm_event_type)ADDRINFO_RESOLVED), "RDMA_CM_EVENT_ADDRINFO_RESOLVED"));
	CHECK(!strcmp(rdma_event_str((enum rdma_cm_event_type)ADDRINFO_ERROR), "RDMA_CM_EVENT_ADDRINFO_ERROR"));
	CHECK(!strcmp(rdma_event_str((enum rdma_cm_event_type)USER), "RDMA_CM_EVENT_USER"));

	struct rdma_addrinfo *info = NULL, hints = { .ai_flags = RAI_NUMERICHOST | NEWER_RAI_DNS, .ai_port_space = RDMA_PS_TCP };
	FAILS(query(id, &info), ENOENT);
	OK(resolve(id, "127.0.0.1", "7471", &hints));
	FAILS(resolve(id, "127.0.0.1", "7471", &hints), EBUSY);
	event = next_event(channel, (enum rdma_cm_event_type)ADDRINFO_RESOLVED);
	CHECK(event->id == id && event->status == 0);
	OK(rdma_ack_cm_event(event));
	FAILS(resolve(id, "127.0.0.1", "7471", &hints), EBUSY); /* until the program has fetched the result */
	FAILS(query(id, NULL), EINVAL);
	OK(query(id, &info));
	struct sockaddr_in *found = (void *)SOME(info)->ai_dst_addr;
	CHECK(found->sin_family == AF_INET && found->sin_port == htons(7471) && found->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	rdma_freeaddrinfo(info);
	FAILS(query(id, &info), ENOENT);
	FAILS(resolve(id, "not.a.number", "7471", &hints), ENODATA);
	FAILS(resolve(id, NULL, NULL, NULL), EINVAL);
	hints.ai_flags = NEWER_RAI_SA;
	FAILS(resolve(id, NULL, "7471", &hints), EOPNOTSUPP);
	FAILS(rdma_getaddrinfo(NULL, "7471", &hints, &info), EOPNOTSUPP);
	hints.ai_flags = NEWER_RAI_SA | NEWER_RAI_DNS;
	FAILS(resolve(id, NULL, "7471", &hints), EOPNOTSUPP);
	FAILS(resolve(NULL, "127.0.0.1", "7471", NULL), EINVAL);
	FAILS(query(NULL, &info), EINVAL);

	/* An identifier without a channel has the result when the call returns. A result that is never fetched is
	 * freed with the identifier. */
	OK(resolve(sync, "127.0.0.1", "7471", NULL));
	CHECK((int)SOME(sync->event)->event == ADDRINFO_RESOLVED);
	OK(query(sync, &info));
	rdma_freeaddrinfo(info);
	OK(resolve(sync, "127.0.0.1", "7471", NULL));
	OK(rdma_destroy_id(sync));
	OK(resolve(id, "127.0.0.1", "7471", NULL));
	OK(write_event(id, USER, 0, 0));
	OK(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}
#endif
