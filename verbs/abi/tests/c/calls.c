/* Calls every function of libibverbs and librdmacm, with right and wrong arguments, in several threads at once.
 * Prints the names of the functions that it called, which the test compares with the list of symbols.
 *
 *   calls THREADS */
#include "newer.h"
#include "urnic.h"
#include <dlfcn.h>

/* Names of the functions that were called. */
static const char *called[256];
static atomic_int calls;

static void note(const char *name)
{
	for (int i = 0; i < calls; i++)
		if (called[i] && !strcmp(called[i], name))
			return;
	called[atomic_fetch_add(&calls, 1)] = name;
}

/* Returns a function that the headers may lack. */
static void *newer(const char *name, const char *version)
{
	(void)version;
	note(name);
	return SOME(dlsym(RTLD_DEFAULT, name));
}

/* Calls a function of the list, and notes its name. Parentheses prevent macros of the headers from replacing it. */
#define C(function) (note(#function), (function))

/* Exported by the libraries, but not declared in the headers. */
extern int ibv_query_gid_type(struct ibv_context *, uint8_t, unsigned, int *);
extern const char *ibv_get_sysfs_path(void);
extern int ibv_read_sysfs_file(const char *, const char *, char *, size_t);
extern void ibv_register_driver(const char *, void *);
extern void ibv_copy_ah_attr_from_kern(void *, void *);
extern void ibv_copy_path_rec_from_kern(void *, void *);
extern void ibv_copy_path_rec_to_kern(void *, void *);
extern void ibv_copy_qp_attr_from_kern(void *, void *);
extern int ibv_dontfork_range(void *, size_t);
extern int ibv_dofork_range(void *, size_t);
#undef ibv_query_port
extern int ibv_query_port(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *);
#undef ibv_reg_mr
extern struct ibv_mr *ibv_reg_mr(struct ibv_pd *, void *, size_t, int);
#undef ibv_reg_mr_iova
extern struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *, void *, size_t, uint64_t, int);

static const int ALL_RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
	IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

static struct ibv_context *devices(void)
{
	int count = -1;
	struct ibv_device **list = SOME(C(ibv_get_device_list)(&count));
	CHECK(count == 1 && list[0] && !list[1]);
	C(ibv_free_device_list)(list);
	list = SOME(ibv_get_device_list(NULL));
	struct ibv_device *device = list[0];
	ibv_free_device_list(list);
	ibv_free_device_list(NULL);
	CHECK(!strcmp(C(ibv_get_device_name)(device), "urnic0"));
	CHECK(!ibv_get_device_name(NULL));
	CHECK(device->node_type == IBV_NODE_RNIC && device->transport_type == IBV_TRANSPORT_IWARP);
	IS(C(ibv_get_device_index)(device), -1);
	IS(ibv_get_device_index(NULL), -1);
	CHECK(C(ibv_get_device_guid)(device) != 0);
	IS(ibv_get_device_guid(NULL), 0);

	NONE(C(ibv_open_device)(NULL), EINVAL);
	struct ibv_context *context = SOME(ibv_open_device(device)), *second = SOME(ibv_open_device(device));
	CHECK(context->device == device && context->num_comp_vectors >= 1 && context->async_fd >= 0);
	OK(C(ibv_close_device)(second));
	FAILS(ibv_close_device(NULL), EINVAL);
	NONE(C(ibv_import_device)(0), EOPNOTSUPP);
	NONE(ibv_import_device(-1), EOPNOTSUPP);
	return context;
}

static void queries(struct ibv_context *context)
{
	struct ibv_device_attr attr;
	OK(C(ibv_query_device)(context, &attr));
	CHECK(attr.phys_port_cnt == 1 && attr.max_qp > 0 && attr.max_cqe > 0 && attr.max_sge > 0 && attr.max_qp_rd_atom > 0);
	FAILS(ibv_query_device(NULL, &attr), EINVAL);
	FAILS(ibv_query_device(context, NULL), EINVAL);

	struct ibv_device_attr_ex ex;
	struct ibv_query_device_ex_input input = { .comp_mask = 1 };
	OK(ibv_query_device_ex(context, NULL, &ex));
	CHECK(ex.orig_attr.max_qp == attr.max_qp && ex.phys_port_cnt_ex == 1);
	FAILS(ibv_query_device_ex(context, &input, &ex), EINVAL);
	struct verbs_context *verbs = verbs_get_ctx(context);
	FAILS(verbs->query_device_ex(context, NULL, &ex, 8), EINVAL);
	FAILS(verbs->query_device_ex(context, NULL, NULL, sizeof ex), EINVAL);
	FAILS(verbs->query_device_ex(NULL, NULL, &ex, sizeof ex), EINVAL);
	/* Room for less than the whole answer, and for more. */
	char room[2 * sizeof ex];
	memset(room, 0x55, sizeof room);
	OK(verbs->query_device_ex(context, NULL, (void *)room, sizeof ex.orig_attr));
	CHECK(room[sizeof ex.orig_attr] == 0x55);
	OK(verbs->query_device_ex(context, NULL, (void *)room, sizeof room));
	CHECK(room[sizeof room - 1] == 0);

	/* Old programs have 48 bytes for the answer. */
	char port[128] __attribute__((aligned(8)));
	struct _compat_ibv_port_attr *old = (void *)port;
	memset(port, 0x55, sizeof port);
	OK(C(ibv_query_port)(context, 1, old));
	for (size_t i = 48; i < sizeof port; i++)
		CHECK(port[i] == 0x55);
	FAILS(ibv_query_port(context, 0, old), EINVAL);
	FAILS(ibv_query_port(context, 2, old), EINVAL);
	FAILS(ibv_query_port(context, 1, NULL), EINVAL);
	FAILS(ibv_query_port(NULL, 1, old), EINVAL);
	struct ibv_port_attr full;
	OK(___ibv_query_port(context, 1, &full));
	CHECK(full.state == IBV_PORT_ACTIVE && full.link_layer == IBV_LINK_LAYER_ETHERNET && full.gid_tbl_len == 1);
	FAILS(verbs->query_port(context, 9, &full, sizeof full), EINVAL);

	union ibv_gid gid;
	OK(C(ibv_query_gid)(context, 1, 0, &gid));
	CHECK(gid.raw[10] == 0xff && gid.raw[11] == 0xff);
	FAILS(ibv_query_gid(context, 1, 1, &gid), EINVAL);
	FAILS(ibv_query_gid(context, 1, -1, &gid), EINVAL);
	FAILS(ibv_query_gid(context, 2, 0, &gid), EINVAL);
	FAILS(ibv_query_gid(context, 1, 0, NULL), EINVAL);
	FAILS(ibv_query_gid(NULL, 1, 0, &gid), EINVAL);
	struct ibv_gid_entry entries[2];
	OK(C(_ibv_query_gid_ex)(context, 1, 0, entries, 0, sizeof entries[0]));
	FAILS(_ibv_query_gid_ex(context, 1, 1, entries, 0, sizeof entries[0]), ENODATA);
	FAILS(_ibv_query_gid_ex(context, 0, 0, entries, 0, sizeof entries[0]), EINVAL);
	FAILS(_ibv_query_gid_ex(context, 1, 0, NULL, 0, sizeof entries[0]), EINVAL);
	FAILS(_ibv_query_gid_ex(context, 1, 0, entries, 7, sizeof entries[0]), EINVAL);
	FAILS(_ibv_query_gid_ex(NULL, 1, 0, entries, 0, sizeof entries[0]), EINVAL);
	IS(C(_ibv_query_gid_table)(context, entries, 2, 0, sizeof entries[0]), 1);
	IS(_ibv_query_gid_table(context, NULL, 2, 0, sizeof entries[0]), -EINVAL);
	IS(_ibv_query_gid_table(context, entries, 0, 0, sizeof entries[0]), -EINVAL);
	IS(_ibv_query_gid_table(NULL, entries, 2, 0, sizeof entries[0]), -EINVAL);
	int type;
	OK(C(ibv_query_gid_type)(context, 1, 0, &type));
	FAILS(ibv_query_gid_type(context, 1, 1, &type), EINVAL);
	FAILS(ibv_query_gid_type(NULL, 1, 0, &type), EINVAL);
	FAILS(ibv_query_gid_type(context, 1, 0, NULL), EINVAL);
	__be16 key;
	OK(C(ibv_query_pkey)(context, 1, 0, &key));
	CHECK(key == 0xffff);
	FAILS(ibv_query_pkey(context, 1, 1, &key), EINVAL);
	FAILS(ibv_query_pkey(context, 3, 0, &key), EINVAL);
	FAILS(ibv_query_pkey(context, 1, 0, NULL), EINVAL);
	FAILS(ibv_query_pkey(NULL, 1, 0, &key), EINVAL);
	IS(C(ibv_get_pkey_index)(context, 1, key), 0);
	FAILS(ibv_get_pkey_index(context, 1, 5), EINVAL);
	FAILS(ibv_get_pkey_index(NULL, 1, key), EINVAL);
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	OK(ibv_query_rt_values_ex(context, &values));
	CHECK(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK && values.raw_clock.tv_nsec > 0);
	FAILS(verbs->query_rt_values(context, NULL), EINVAL);
	FAILS(verbs->query_rt_values(NULL, &values), EINVAL);
}

static void domains(struct ibv_context *context, void *memory, size_t len)
{
	NONE(C(ibv_alloc_pd)(NULL), EINVAL);
	struct ibv_pd *pd = SOME(ibv_alloc_pd(context)), *other = SOME(ibv_alloc_pd(context));
	FAILS(C(ibv_dealloc_pd)(NULL), EINVAL);

	struct ibv_td_init_attr td_attr = { 0 }, wrong_td = { .comp_mask = 1 };
	struct ibv_td *td = SOME(ibv_alloc_td(context, &td_attr));
	NONE(ibv_alloc_td(context, &wrong_td), EINVAL);
	struct ibv_parent_domain_init_attr parent_attr = { .pd = pd, .td = td }, wrong_parent = { .td = td };
	struct ibv_pd *parent = SOME(ibv_alloc_parent_domain(context, &parent_attr));
	NONE(ibv_alloc_parent_domain(context, &wrong_parent), EINVAL);
	FAILS(ibv_dealloc_pd(pd), EBUSY);
	OK(ibv_dealloc_pd(parent));
	OK(ibv_dealloc_td(td));
	struct verbs_context *verbs = verbs_get_ctx(context);
	FAILS(verbs->dealloc_td(NULL), EINVAL);
	NONE(verbs->alloc_td(context, NULL), EINVAL);
	NONE(verbs->alloc_td(NULL, &td_attr), EINVAL);
	NONE(verbs->alloc_parent_domain(NULL, &parent_attr), EINVAL);
	NONE(verbs->alloc_parent_domain(context, NULL), EINVAL);

	struct ibv_mr *mr = SOME(C(ibv_reg_mr)(pd, memory, len, ALL_RIGHTS));
	CHECK(mr->pd == pd && mr->addr == memory && mr->length == len && mr->context == context);
	FAILS(ibv_dealloc_pd(pd), EBUSY);
	NONE(ibv_reg_mr(NULL, memory, len, 0), EINVAL);
	NONE(ibv_reg_mr(pd, memory, len, IBV_ACCESS_REMOTE_WRITE), EINVAL); /* not without local write */
	NONE(ibv_reg_mr(pd, memory, len, IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
	NONE(ibv_reg_mr(pd, memory, len, 1 << 15), EINVAL);
	NONE(ibv_reg_mr(pd, NULL, len, 0), EINVAL);
	NONE(ibv_reg_mr(pd, (void *)0x7fff00000000, 4096, 0), EFAULT);
	NONE(ibv_reg_mr(pd, (void *)-4096, SIZE_MAX, 0), EINVAL);
	struct ibv_mr *iova = SOME(C(ibv_reg_mr_iova)(pd, memory, len, 0x10000, ALL_RIGHTS));
	NONE(ibv_reg_mr_iova(NULL, memory, len, 0, 0), EINVAL);
	NONE(ibv_reg_mr_iova(pd, memory, len, UINT64_MAX - 8, 0), EINVAL);
	struct ibv_mr *iova2 = SOME(C(ibv_reg_mr_iova2)(pd, memory, len, 0x10000, ALL_RIGHTS | IBV_ACCESS_RELAXED_ORDERING));
	NONE(ibv_reg_mr_iova2(NULL, memory, len, 0, 0), EINVAL);
	NONE(C(ibv_reg_dmabuf_mr)(pd, 0, len, 0, -1, 0), EOPNOTSUPP);
	NONE(ibv_reg_dmabuf_mr(NULL, 0, 0, 0, -1, 0), EOPNOTSUPP);

	OK(C(ibv_rereg_mr)(iova, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
	OK(ibv_rereg_mr(iova, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0));
	CHECK(iova->pd == other);
	FAILS(ibv_dealloc_pd(other), EBUSY);
	OK(ibv_rereg_mr(iova, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, len / 2, 0));
	CHECK(iova->length == len / 2);
	CHECK(ibv_rereg_mr(iova, 1 << 9, NULL, NULL, 0, 0) != 0);
	CHECK(ibv_rereg_mr(iova, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0) != 0);
	CHECK(ibv_rereg_mr(iova, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, len, 0) != 0);
	CHECK(ibv_rereg_mr(NULL, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) != 0);
	OK(C(ibv_dereg_mr)(iova));
	OK(ibv_dereg_mr(iova2));
	FAILS(ibv_dereg_mr(NULL), EINVAL);
	OK(ibv_dealloc_pd(other));

	struct ibv_sge sge = { (uintptr_t)memory, len, mr->lkey };
	FAILS(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EOPNOTSUPP);
	NONE(ibv_alloc_null_mr(pd), EOPNOTSUPP);
	NONE(C(ibv_import_mr)(pd, 1), EOPNOTSUPP);
	NONE(C(ibv_import_pd)(context, 1), EOPNOTSUPP);
	NONE(C(ibv_import_dm)(context, 1), EOPNOTSUPP);
	C(ibv_unimport_mr)(NULL);
	C(ibv_unimport_pd)(NULL);
	C(ibv_unimport_dm)(NULL);

	struct ibv_mw *one = SOME(ibv_alloc_mw(pd, IBV_MW_TYPE_1)), *two = SOME(ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	NONE(ibv_alloc_mw(pd, 9), EINVAL);
	NONE(context->ops.alloc_mw(NULL, IBV_MW_TYPE_1), EINVAL);
	FAILS(context->ops.dealloc_mw(NULL), EINVAL);
	FAILS(context->ops.bind_mw(NULL, one, NULL), EINVAL);
	FAILS(ibv_dealloc_pd(pd), EBUSY);
	OK(ibv_dealloc_mw(one));
	OK(ibv_dealloc_mw(two));
	OK(ibv_dereg_mr(mr));
	OK(ibv_dealloc_pd(pd));
}

static void completion_queues(struct ibv_context *context)
{
	NONE(C(ibv_create_comp_channel)(NULL), EINVAL);
	struct ibv_comp_channel *channel = SOME(ibv_create_comp_channel(context));
	CHECK(channel->fd >= 0 && channel->context == context);
	struct ibv_cq *cq = SOME(C(ibv_create_cq)(context, 10, &cq, channel, 0));
	CHECK(cq->cqe >= 10 && cq->cq_context == &cq && cq->channel == channel);
	NONE(ibv_create_cq(NULL, 10, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(context, INT32_MAX, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(context, 10, NULL, NULL, 1), EINVAL);
	NONE(ibv_create_cq(context, 10, NULL, NULL, -1), EINVAL);
	OK(C(ibv_resize_cq)(cq, 100));
	CHECK(cq->cqe >= 100);
	FAILS(ibv_resize_cq(cq, 0), EINVAL);
	FAILS(ibv_resize_cq(cq, -5), EINVAL);
	FAILS(ibv_resize_cq(cq, INT32_MAX), EINVAL);
	FAILS(ibv_resize_cq(NULL, 10), EINVAL);
	struct ibv_modify_cq_attr moderation = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 1, 1 } }, wrong = { .attr_mask = 8 };
	OK(ibv_modify_cq(cq, &moderation));
	FAILS(ibv_modify_cq(cq, &wrong), EINVAL);
	struct verbs_context *verbs = verbs_get_ctx(context);
	FAILS(verbs->modify_cq(cq, NULL), EINVAL);
	FAILS(verbs->modify_cq(NULL, &moderation), EINVAL);
	struct ibv_wc wc[2];
	IS(ibv_poll_cq(cq, 2, wc), 0);
	IS(ibv_poll_cq(cq, 0, NULL), 0);
	FAILS(ibv_poll_cq(cq, -1, wc), EINVAL);
	FAILS(ibv_poll_cq(cq, 1, NULL), EINVAL);
	FAILS(context->ops.poll_cq(NULL, 1, wc), EINVAL);
	OK(ibv_req_notify_cq(cq, 0));
	OK(ibv_req_notify_cq(cq, 1));
	FAILS(context->ops.req_notify_cq(NULL, 0), EINVAL);

	/* No event waits: a program that does not block gets EAGAIN. */
	CHECK(!fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	struct ibv_cq *from;
	void *with;
	FAILS(C(ibv_get_cq_event)(channel, &from, &with), EAGAIN);
	FAILS(ibv_get_cq_event(NULL, &from, &with), EBADF);
	FAILS(ibv_get_cq_event(channel, NULL, &with), EINVAL);
	C(ibv_ack_cq_events)(cq, 0);
	ibv_ack_cq_events(cq, 1000); /* more than were fetched */
	ibv_ack_cq_events(NULL, 1);

	FAILS(C(ibv_destroy_comp_channel)(channel), EBUSY);
	OK(C(ibv_destroy_cq)(cq));
	FAILS(ibv_destroy_cq(NULL), EINVAL);
	OK(ibv_destroy_comp_channel(channel));
	FAILS(ibv_destroy_comp_channel(NULL), EINVAL);
	FAILS(ibv_get_cq_event(channel, &from, &with), EBADF); /* destroyed, and detected as such */

	struct ibv_cq_init_attr_ex init = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *ex = SOME(ibv_create_cq_ex(context, &init));
	struct ibv_poll_cq_attr none = { 0 }, some = { .comp_mask = 1 };
	IS(ibv_start_poll(ex, &none), ENOENT);
	IS(ibv_start_poll(ex, &some), EINVAL);
	OK(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)));
	init.cqe = 0;
	NONE(ibv_create_cq_ex(context, &init), EINVAL);
	init.cqe = 16;
	init.wc_flags = IBV_WC_EX_WITH_TM_INFO;
	NONE(ibv_create_cq_ex(context, &init), EOPNOTSUPP);
	init.wc_flags = 0;
	init.comp_mask = 1 << 7;
	NONE(ibv_create_cq_ex(context, &init), EOPNOTSUPP);
	NONE(verbs->create_cq_ex(context, NULL), EINVAL);
	NONE(verbs->create_cq_ex(NULL, &init), EINVAL);
}

static void shared_queues(struct ibv_context *context, void *memory)
{
	struct ibv_pd *pd = SOME(ibv_alloc_pd(context));
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 10, .max_sge = 2 } }, wrong = { .attr = { .max_wr = 0, .max_sge = 1 } };
	struct ibv_srq *srq = SOME(C(ibv_create_srq)(pd, &init));
	CHECK(init.attr.max_wr >= 10 && srq->pd == pd);
	NONE(ibv_create_srq(NULL, &init), EINVAL);
	NONE(ibv_create_srq(pd, NULL), EINVAL);
	NONE(ibv_create_srq(pd, &wrong), EINVAL);
	wrong.attr = (struct ibv_srq_attr){ .max_wr = UINT32_MAX, .max_sge = 1 };
	NONE(ibv_create_srq(pd, &wrong), EINVAL);
	wrong.attr = (struct ibv_srq_attr){ .max_wr = 4, .max_sge = 1000 };
	NONE(ibv_create_srq(pd, &wrong), EINVAL);
	struct ibv_srq_attr attr = { .srq_limit = 3 };
	OK(C(ibv_modify_srq)(srq, &attr, IBV_SRQ_LIMIT));
	attr.srq_limit = 1 << 20;
	FAILS(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), EINVAL);
	attr.max_wr = 1 << 20;
	FAILS(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EOPNOTSUPP);
	FAILS(ibv_modify_srq(srq, &attr, 1 << 9), EINVAL);
	FAILS(ibv_modify_srq(srq, NULL, IBV_SRQ_LIMIT), EINVAL);
	FAILS(ibv_modify_srq(NULL, &attr, IBV_SRQ_LIMIT), EINVAL);
	OK(C(ibv_query_srq)(srq, &attr));
	CHECK(attr.max_wr == init.attr.max_wr);
	FAILS(ibv_query_srq(srq, NULL), EINVAL);
	FAILS(ibv_query_srq(NULL, &attr), EINVAL);
	uint32_t number;
	OK(ibv_get_srq_num(srq, &number));
	struct verbs_context *verbs = verbs_get_ctx(context);
	FAILS(verbs->get_srq_num(srq, NULL), EINVAL);
	FAILS(verbs->get_srq_num(NULL, &number), EINVAL);

	struct ibv_mr *mr = SOME(ibv_reg_mr(pd, memory, 64, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_sge sges[3] = { { (uintptr_t)memory, 8, mr->lkey }, { (uintptr_t)memory, 8, mr->lkey }, { (uintptr_t)memory, 8, mr->lkey } };
	struct ibv_recv_wr many = { .sg_list = sges, .num_sge = 3 }, *bad = NULL;
	struct ibv_recv_wr good = { .sg_list = sges, .num_sge = 1, .next = &many };
	FAILS(ibv_post_srq_recv(srq, &good, &bad), EINVAL);
	CHECK(bad == &many);
	good.next = NULL;
	for (uint32_t i = 1; i < init.attr.max_wr; i++)
		OK(ibv_post_srq_recv(srq, &good, &bad));
	FAILS(ibv_post_srq_recv(srq, &good, &bad), ENOMEM);
	CHECK(bad == &good);
	good.num_sge = -1;
	FAILS(ibv_post_srq_recv(srq, &good, &bad), EINVAL);
	good.num_sge = 1;
	good.sg_list = NULL;
	FAILS(ibv_post_srq_recv(srq, &good, &bad), EINVAL);
	FAILS(context->ops.post_srq_recv(NULL, &good, &bad), EINVAL);
	OK(ibv_post_srq_recv(srq, NULL, &bad));

	/* A queue pair that receives from the shared queue takes no receives itself, and keeps the queue in use. */
	struct ibv_cq *cq = SOME(ibv_create_cq(context, 16, NULL, NULL, 0));
	struct ibv_qp_init_attr qp_init = qp_like(cq);
	qp_init.srq = srq;
	struct ibv_qp *qp = SOME(ibv_create_qp(pd, &qp_init));
	FAILS(ibv_post_recv(qp, &many, &bad), EINVAL);
	FAILS(C(ibv_destroy_srq)(srq), EBUSY);
	OK(ibv_destroy_qp(qp));
	OK(ibv_destroy_srq(srq));
	FAILS(ibv_destroy_srq(NULL), EINVAL);

	struct ibv_srq_init_attr_ex ex = { .attr = { .max_wr = 4, .max_sge = 1 }, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_BASIC, .pd = pd };
	OK(ibv_destroy_srq(SOME(ibv_create_srq_ex(context, &ex))));
	ex.srq_type = IBV_SRQT_XRC;
	ex.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	NONE(ibv_create_srq_ex(context, &ex), EOPNOTSUPP);
	ex.srq_type = IBV_SRQT_TM;
	NONE(ibv_create_srq_ex(context, &ex), EOPNOTSUPP);
	OK(ibv_destroy_cq(cq));
	OK(ibv_dereg_mr(mr));
	OK(ibv_dealloc_pd(pd));
}

#define BATCHES 4

/* Posts requests in pairs, 70 and 71, that must stay together. */
static void *post_batches(void *arg)
{
	struct ibv_qp_ex *qp = arg;
	for (int i = 0; i < BATCHES; i++) {
		ibv_wr_start(qp);
		qp->wr_id = 70;
		ibv_wr_send(qp);
		sched_yield();
		qp->wr_id = 71;
		ibv_wr_send(qp);
		OK(ibv_wr_complete(qp));
	}
	return NULL;
}

static void queue_pairs(struct ibv_context *context, void *memory)
{
	struct ibv_pd *pd = SOME(ibv_alloc_pd(context));
	struct ibv_cq *cq = SOME(ibv_create_cq(context, 64, NULL, NULL, 0));
	struct ibv_mr *mr = SOME(ibv_reg_mr(pd, memory, 4096, ALL_RIGHTS));
	struct ibv_qp_init_attr init = qp_like(cq);
	struct ibv_qp *qp = SOME(C(ibv_create_qp)(pd, &init));
	CHECK(init.cap.max_send_wr >= 16 && init.cap.max_inline_data >= 64);
	CHECK(qp->pd == pd && qp->send_cq == cq && qp->state == IBV_QPS_RESET && qp->qp_type == IBV_QPT_RC);
	FAILS(ibv_destroy_cq(cq), EBUSY);
	FAILS(ibv_dealloc_pd(pd), EBUSY);
	/* Inline bytes that the program did not ask for: many on a short queue, which libfabric relies on. */
	static const uint32_t inline_bytes[][3] = { { 1, 2, 512 }, { 1, 0, 512 }, { 128, 0, 512 }, { 256, 0, 256 }, { 4096, 8, 64 },
		{ 4096, 600, 600 }, { 1, 4096, 4096 } };
	for (size_t i = 0; i < sizeof inline_bytes / sizeof *inline_bytes; i++) {
		struct ibv_qp_init_attr probe = qp_like(cq);
		probe.cap.max_send_wr = inline_bytes[i][0];
		probe.cap.max_inline_data = inline_bytes[i][1];
		OK(ibv_destroy_qp(SOME(ibv_create_qp(pd, &probe))));
		CHECK(probe.cap.max_inline_data == inline_bytes[i][2]);
	}
	NONE(ibv_create_qp(NULL, &init), EINVAL);
	NONE(ibv_create_qp(pd, NULL), EINVAL);
	struct ibv_qp_init_attr wrong = qp_like(NULL);
	NONE(ibv_create_qp(pd, &wrong), EINVAL);
	wrong = qp_like(cq);
	wrong.qp_type = IBV_QPT_UD;
	NONE(ibv_create_qp(pd, &wrong), EOPNOTSUPP);
	wrong = qp_like(cq);
	wrong.cap.max_send_wr = 1 << 30;
	NONE(ibv_create_qp(pd, &wrong), EINVAL);
	wrong = qp_like(cq);
	wrong.cap.max_recv_wr = UINT32_MAX;
	NONE(ibv_create_qp(pd, &wrong), EINVAL);
	wrong = qp_like(cq);
	wrong.cap.max_send_sge = 257;
	NONE(ibv_create_qp(pd, &wrong), EINVAL);
	wrong = qp_like(cq);
	wrong.cap.max_inline_data = 1 << 20;
	NONE(ibv_create_qp(pd, &wrong), EINVAL);

	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr got;
	OK(C(ibv_query_qp)(qp, &attr, IBV_QP_STATE | IBV_QP_CAP, &got));
	CHECK(attr.qp_state == IBV_QPS_INIT && got.send_cq == cq && got.cap.max_send_wr == init.cap.max_send_wr);
	FAILS(ibv_query_qp(NULL, &attr, 0, &got), EINVAL);
	FAILS(ibv_query_qp(qp, NULL, 0, &got), EINVAL);
	FAILS(ibv_query_qp(qp, &attr, 0, NULL), EINVAL);
	CHECK(C(ibv_query_qp_data_in_order)(qp, IBV_WR_RDMA_WRITE, 0) == 1);
	CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 8) == 0);
	CHECK(ibv_query_qp_data_in_order(NULL, IBV_WR_RDMA_WRITE, 0) == 0);
	struct ibv_ece ece;
	OK(C(ibv_query_ece)(qp, &ece));
	FAILS(ibv_query_ece(qp, NULL), EINVAL);
	FAILS(ibv_query_ece(NULL, &ece), EINVAL);
	FAILS(C(ibv_set_ece)(qp, &ece), EOPNOTSUPP);

	/* Receives wait in the queue; a faulty receive is reported by its address. */
	struct ibv_sge sges[3] = { { (uintptr_t)memory, 8, mr->lkey }, { (uintptr_t)memory, 8, mr->lkey }, { (uintptr_t)memory, 8, mr->lkey } };
	struct ibv_recv_wr many = { .wr_id = 2, .sg_list = sges, .num_sge = 3 }, recv = { .wr_id = 1, .sg_list = sges, .num_sge = 2, .next = &many }, *bad_recv = NULL;
	FAILS(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	CHECK(bad_recv == &many);
	FAILS(context->ops.post_recv(NULL, &recv, &bad_recv), EINVAL);
	FAILS(ibv_post_recv(qp, &many, NULL), EINVAL);
	struct ibv_send_wr send = { .sg_list = sges, .num_sge = 3, .opcode = IBV_WR_SEND }, *bad = NULL;
	FAILS(ibv_post_send(qp, &send, &bad), EINVAL);
	CHECK(bad == &send);
	send.num_sge = 1;
	send.opcode = 77;
	FAILS(ibv_post_send(qp, &send, &bad), EINVAL);
	send.opcode = IBV_WR_SEND_WITH_IMM;
	FAILS(ibv_post_send(qp, &send, &bad), EOPNOTSUPP);
	send.opcode = IBV_WR_RDMA_READ;
	send.num_sge = 3;
	FAILS(ibv_post_send(qp, &send, &bad), EINVAL);
	send.num_sge = -1;
	FAILS(ibv_post_send(qp, &send, &bad), EINVAL);
	send.num_sge = 1;
	send.sg_list = NULL;
	FAILS(ibv_post_send(qp, &send, &bad), EINVAL);
	send.sg_list = sges;
	send.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	sges[0].length = 4;
	FAILS(ibv_post_send(qp, &send, &bad), EINVAL);
	sges[0].length = 8;
	send.opcode = IBV_WR_SEND;
	send.send_flags = IBV_SEND_INLINE;
	sges[0].length = 4096;
	FAILS(ibv_post_send(qp, &send, &bad), EINVAL);
	send.num_sge = 2;
	FAILS(ibv_post_send(qp, &send, &bad), EINVAL);
	sges[0].length = 8;
	FAILS(context->ops.post_send(NULL, &send, &bad), EINVAL);
	OK(ibv_post_send(qp, NULL, &bad));
	send.num_sge = 1;
	for (uint32_t i = 0; i < init.cap.max_send_wr; i++)
		OK(ibv_post_send(qp, &send, &bad)); /* waits: there is no connection */
	FAILS(ibv_post_send(qp, &send, &bad), ENOMEM);

	/* States. */
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT };
	OK(C(ibv_modify_qp)(qp, &attr, IBV_QP_STATE));
	FAILS(ibv_modify_qp(NULL, &attr, IBV_QP_STATE), EINVAL);
	FAILS(ibv_modify_qp(qp, NULL, IBV_QP_STATE), EINVAL);
	OK(ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS));
	FAILS(ibv_modify_qp(qp, &attr, IBV_QP_AV), EOPNOTSUPP);
	attr.qp_state = IBV_QPS_RTR;
	FAILS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_DEST_QPN), EOPNOTSUPP);
	attr.qp_state = 99;
	FAILS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr.qp_state = IBV_QPS_ERR;
	OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	for (uint32_t i = 0; i < init.cap.max_send_wr + 1; i++)
		CHECK(completion(cq).status == IBV_WC_WR_FLUSH_ERR);
	struct ibv_wc wc;
	IS(ibv_poll_cq(cq, 1, &wc), 0);
	send.send_flags = 0;
	OK(ibv_post_send(qp, &send, &bad));
	CHECK(completion(cq).status == IBV_WC_WR_FLUSH_ERR);
	OK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &got));
	CHECK(attr.qp_state == IBV_QPS_ERR && qp->state == IBV_QPS_ERR);
	CHECK(!C(ibv_qp_to_qp_ex)(qp) && !ibv_qp_to_qp_ex(NULL));
	OK(C(ibv_destroy_qp)(qp));
	FAILS(ibv_destroy_qp(NULL), EINVAL);

	/* The extended interface. */
	struct ibv_qp_init_attr_ex ex = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = init.cap, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE };
	qp = SOME(ibv_create_qp_ex(context, &ex));
	struct ibv_qp_ex *qpx = SOME(ibv_qp_to_qp_ex(qp));
	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	ibv_wr_set_sge_list(qpx, 3, sges);
	FAILS(ibv_wr_complete(qpx), EINVAL);
	ibv_wr_start(qpx);
	ibv_wr_set_sge(qpx, 1, 2, 3); /* no request has begun */
	ibv_wr_set_sge_list(qpx, 2, NULL);
	FAILS(ibv_wr_complete(qpx), EINVAL);
	ibv_wr_start(qpx);
	ibv_wr_send_imm(qpx, 0);
	FAILS(ibv_wr_complete(qpx), EOPNOTSUPP);
	ibv_wr_start(qpx);
	ibv_wr_bind_mw(qpx, NULL, 0, NULL);
	FAILS(ibv_wr_complete(qpx), EINVAL);
	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	ibv_wr_set_inline_data(qpx, NULL, 0);
	ibv_wr_set_inline_data_list(qpx, 1, NULL);
	ibv_wr_abort(qpx);
	ibv_wr_start(qpx);
	OK(ibv_wr_complete(qpx));
	/* A program that forgets to end a batch begins a new batch. A program that forgets to begin posts nothing. */
	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	ibv_wr_start(qpx);
	OK(ibv_wr_complete(qpx));
	ibv_wr_send(qpx);
	OK(ibv_wr_complete(qpx));
	/* A batch that does not fit the queue is not posted at all. */
	ibv_wr_start(qpx);
	for (uint32_t i = 0; i < 1 + ex.cap.max_send_wr; i++) {
		qpx->wr_id = i;
		ibv_wr_send(qpx);
	}
	FAILS(ibv_wr_complete(qpx), ENOMEM);
	/* Batches of two threads do not mix. */
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		OK(pthread_create(&threads[i], NULL, post_batches, qpx));
	for (int i = 0; i < 2; i++)
		OK(pthread_join(threads[i], NULL));
	attr.qp_state = IBV_QPS_ERR;
	OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	uint64_t last = 0;
	for (int i = 0; i < 2 * BATCHES * 2; i++) {
		wc = completion(cq);
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && (i % 2 ? wc.wr_id == last + 1 : wc.wr_id == 70));
		last = wc.wr_id;
	}
	IS(ibv_poll_cq(cq, 1, &wc), 0);
	OK(ibv_destroy_qp(qp));
	/* First operations that many programs request but never use, then an operation that a program requests
	 * only if it needs it. */
	ex.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
		IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ;
	qp = SOME(ibv_create_qp_ex(context, &ex));
	qpx = SOME(ibv_qp_to_qp_ex(qp));
	ibv_wr_start(qpx);
	ibv_wr_send_imm(qpx, 0);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, 8);
	FAILS(ibv_wr_complete(qpx), EOPNOTSUPP);
	OK(ibv_destroy_qp(qp));
	ex.send_ops_flags = IBV_QP_EX_WITH_TSO;
	NONE(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD;
	NONE(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	ex.comp_mask = 0;
	NONE(verbs_get_ctx(context)->create_qp_ex(context, &ex), EINVAL);
	NONE(verbs_get_ctx(context)->create_qp_ex(context, NULL), EINVAL);
	OK(ibv_dereg_mr(mr));
	OK(ibv_destroy_cq(cq));
	OK(ibv_dealloc_pd(pd));
}

static void asynchronous(struct ibv_context *context)
{
	struct ibv_async_event event;
	CHECK(!fcntl(context->async_fd, F_SETFL, O_NONBLOCK));
	/* The port may come up meanwhile. */
	while (C(ibv_get_async_event)(context, &event) == 0)
		C(ibv_ack_async_event)(&event);
	CHECK(errno == EAGAIN);
	FAILS(ibv_get_async_event(NULL, &event), EINVAL);
	FAILS(ibv_get_async_event(context, NULL), EINVAL);
	note("ibv_ack_async_event");
	ibv_ack_async_event(NULL);
	event = (struct ibv_async_event){ .event_type = IBV_EVENT_PORT_ACTIVE };
	ibv_ack_async_event(&event);
}

static void names(void)
{
	for (int n = -3; n < 60; n++) {
		CHECK(C(ibv_wc_status_str)(n) && C(ibv_node_type_str)(n) && C(ibv_port_state_str)(n));
		CHECK(C(ibv_event_type_str)(n) && C(rdma_event_str)(n));
		C(ibv_rate_to_mult)(n);
		C(ibv_rate_to_mbps)(n);
		C(mult_to_ibv_rate)(n);
		C(mbps_to_ibv_rate)(n);
	}
	CHECK(!strcmp(ibv_wc_status_str(IBV_WC_SUCCESS), "success"));
	CHECK(!strcmp(rdma_event_str(RDMA_CM_EVENT_ESTABLISHED), "RDMA_CM_EVENT_ESTABLISHED"));
	CHECK(strcmp(rdma_event_str(RDMA_CM_EVENT_TIMEWAIT_EXIT), rdma_event_str(99)));
	IS(mbps_to_ibv_rate(10000), IBV_RATE_10_GBPS);
	IS(ibv_rate_to_mbps(IBV_RATE_10_GBPS), 10000);
	IS(mult_to_ibv_rate(4), IBV_RATE_10_GBPS);
	IS(ibv_rate_to_mult(IBV_RATE_10_GBPS), 4);
}

static void what_is_not_here(struct ibv_context *context)
{
	struct ibv_pd *pd = SOME(ibv_alloc_pd(context));
	struct ibv_ah_attr ah = { .port_num = 1 };
	struct ibv_wc wc = { 0 };
	char page[256] = "";
	union ibv_gid gid = { 0 };
	NONE(C(ibv_create_ah)(pd, &ah), EOPNOTSUPP);
	NONE(ibv_create_ah(NULL, NULL), EOPNOTSUPP);
	NONE(C(ibv_create_ah_from_wc)(pd, &wc, (void *)page, 1), EOPNOTSUPP);
	FAILS(C(ibv_init_ah_from_wc)(context, 1, &wc, (void *)page, &ah), EOPNOTSUPP);
	FAILS(C(ibv_destroy_ah)(NULL), EOPNOTSUPP);
	FAILS(C(ibv_attach_mcast)(NULL, &gid, 0), EOPNOTSUPP);
	FAILS(C(ibv_detach_mcast)(NULL, &gid, 0), EOPNOTSUPP);
	uint8_t mac[6];
	uint16_t vid;
	FAILS(C(ibv_resolve_eth_l2_from_gid)(context, &ah, mac, &vid), EOPNOTSUPP);
	C(ibv_copy_ah_attr_from_kern)(page, page);
	C(ibv_copy_path_rec_from_kern)(page, page);
	C(ibv_copy_path_rec_to_kern)(page, page);
	C(ibv_copy_qp_attr_from_kern)(page, page);
	C(ibv_register_driver)("nobody", NULL);
	OK(C(ibv_fork_init)());
	C(ibv_is_fork_initialized)();
	OK(C(ibv_dontfork_range)(page, sizeof page));
	OK(C(ibv_dofork_range)(page, sizeof page));
	CHECK(C(ibv_get_sysfs_path)());
	CHECK(C(ibv_read_sysfs_file)("/sys", "nothing", page, sizeof page) < 0);
	CHECK(ibv_read_sysfs_file(NULL, NULL, NULL, 0) < 0);

	/* Inline code of the headers, through the table in the context. */
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	NONE(ibv_alloc_dm(context, &dm), EOPNOTSUPP);
	struct ibv_wq_init_attr wq = { .wq_type = IBV_WQT_RQ };
	NONE(ibv_create_wq(context, &wq), EOPNOTSUPP);
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = 0 };
	NONE(ibv_open_xrcd(context, &xrcd), EOPNOTSUPP);
	struct ibv_counters_init_attr counters = { 0 };
	NONE(ibv_create_counters(context, &counters), EOPNOTSUPP);
	struct ibv_rwq_ind_table_init_attr table = { 0 };
	NONE(ibv_create_rwq_ind_table(context, &table), EOPNOTSUPP);
	struct ibv_qp_open_attr open = { 0 };
	NONE(ibv_open_qp(context, &open), EOPNOTSUPP);
	struct ibv_flow_action_esp_attr esp = { 0 };
	NONE(ibv_create_flow_action_esp(context, &esp), EOPNOTSUPP);
	struct ibv_qp qp = { .context = context };
	struct ibv_flow_attr flow = { 0 };
	NONE(ibv_create_flow(&qp, &flow), EOPNOTSUPP);
	OK(ibv_dealloc_pd(pd));
}

static void addresses(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *res;
	OK(C(rdma_getaddrinfo)("127.0.0.1", "7471", NULL, &res));
	CHECK(res->ai_dst_addr && res->ai_dst_len == sizeof(struct sockaddr_in) && res->ai_qp_type == IBV_QPT_RC);
	C(rdma_freeaddrinfo)(res);
	rdma_freeaddrinfo(NULL);
	hints.ai_flags = RAI_PASSIVE;
	OK(rdma_getaddrinfo(NULL, "7471", &hints, &res));
	CHECK(res->ai_src_addr && !res->ai_dst_addr);
	rdma_freeaddrinfo(res);
	/* The other family, because the hints ask for it. The address has a zone, which the system resolves. */
	hints = (struct rdma_addrinfo){ .ai_flags = RAI_NUMERICHOST | RAI_FAMILY, .ai_family = AF_INET6, .ai_port_space = RDMA_PS_TCP };
	OK(rdma_getaddrinfo("fe80::1%lo", "7471", &hints, &res));
	CHECK(res->ai_dst_len == sizeof(struct sockaddr_in6) && ((struct sockaddr_in6 *)res->ai_dst_addr)->sin6_scope_id);
	rdma_freeaddrinfo(res);
	hints = (struct rdma_addrinfo){ .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP };
	FAILS(rdma_getaddrinfo(NULL, NULL, NULL, &res), EINVAL);
	FAILS(rdma_getaddrinfo("127.0.0.1", "1", NULL, NULL), EINVAL);
	CHECK(rdma_getaddrinfo("no such host", "1", &(struct rdma_addrinfo){ .ai_flags = RAI_NUMERICHOST }, &res) != 0);
	hints.ai_port_space = RDMA_PS_UDP;
	FAILS(rdma_getaddrinfo("127.0.0.1", "1", &hints, &res), EOPNOTSUPP);
	struct sockaddr_in own = own_address(77);
	hints = (struct rdma_addrinfo){ .ai_dst_addr = (void *)&own, .ai_dst_len = sizeof own, .ai_port_space = RDMA_PS_TCP };
	OK(rdma_getaddrinfo(NULL, NULL, &hints, &res));
	CHECK(!memcmp(res->ai_dst_addr, &own, sizeof own));
	rdma_freeaddrinfo(res);
}

static void identifiers(void)
{
	struct sockaddr_in own = own_address(0), far = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x08080808), .sin_port = htons(1) };
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_addr.s6_addr = { 0x20, 1 } };
	struct sockaddr strange = { .sa_family = AF_UNIX };
	struct rdma_event_channel *channel = SOME(C(rdma_create_event_channel)()), *other = SOME(rdma_create_event_channel());
	struct rdma_cm_event *event;
	struct rdma_cm_id *id, *second;
	int count;

	struct ibv_context **contexts = SOME(C(rdma_get_devices)(&count));
	CHECK(count == 1 && contexts[0] && !contexts[1]);
	C(rdma_free_devices)(contexts);
	rdma_free_devices(SOME(rdma_get_devices(NULL)));
	rdma_free_devices(NULL);

	FAILS(C(rdma_create_id)(channel, NULL, NULL, RDMA_PS_TCP), EINVAL);
	FAILS(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP), EOPNOTSUPP);
	FAILS(rdma_create_id(channel, &id, NULL, RDMA_PS_IB), EOPNOTSUPP);
	FAILS(rdma_create_id((void *)&count, &id, NULL, RDMA_PS_TCP), EBADF);
	OK(rdma_create_id(channel, &id, &count, RDMA_PS_TCP));
	CHECK(id->channel == channel && id->context == &count && id->ps == RDMA_PS_TCP && !id->verbs);
	FAILS(C(rdma_listen)(NULL, 1), EINVAL);
	FAILS(C(rdma_bind_addr)(NULL, (void *)&own), EINVAL);
	FAILS(rdma_bind_addr(id, NULL), EINVAL);
	FAILS(rdma_bind_addr(id, (void *)&far), EADDRNOTAVAIL);
	FAILS(rdma_bind_addr(id, (void *)&six), EADDRNOTAVAIL);
	FAILS(rdma_bind_addr(id, &strange), EAFNOSUPPORT);
	int yes = 1;
	OK(C(rdma_set_option)(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes));
	OK(rdma_bind_addr(id, (void *)&own));
	CHECK(id->verbs && id->pd && id->port_num == 1 && C(rdma_get_src_port)(id));
	FAILS(rdma_bind_addr(id, (void *)&own), EINVAL);
	IS(rdma_get_src_port(NULL), 0);
	IS(C(rdma_get_dst_port)(id), 0);
	IS(rdma_get_dst_port(NULL), 0);

	uint8_t byte = 1;
	OK(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP));
	struct sockaddr_in taken = own;
	taken.sin_port = rdma_get_src_port(id);
	FAILS(rdma_bind_addr(second, (void *)&taken), EADDRINUSE);
	OK(C(rdma_set_option)(second, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes));
	OK(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1));
	FAILS(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &yes, sizeof yes), EINVAL);
	FAILS(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, NULL, sizeof yes), EINVAL);
	FAILS(rdma_set_option(second, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &yes, sizeof yes), EOPNOTSUPP);
	FAILS(rdma_set_option(second, 9, 9, &yes, sizeof yes), EOPNOTSUPP);
	FAILS(rdma_set_option(NULL, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1), EINVAL);
	OK(rdma_bind_addr(second, (void *)&taken));
	FAILS(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof yes), EINVAL);
	/* An address that two identifiers share cannot have a listener. */
	FAILS(rdma_listen(id, 1), EADDRINUSE);
	OK(C(rdma_destroy_id)(second));
	FAILS(rdma_destroy_id(NULL), EINVAL);

	OK(rdma_listen(id, 1));
	FAILS(rdma_listen(id, 1), EINVAL);

	/* An identifier cannot share a listener's address, even on request. AFONLY separates the families' ports. */
	OK(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP));
	OK(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes));
	FAILS(rdma_bind_addr(second, (void *)&taken), EADDRINUSE);
	taken.sin_addr.s_addr = 0;
	FAILS(rdma_bind_addr(second, (void *)&taken), EADDRINUSE);
	struct sockaddr_in6 all = { .sin6_family = AF_INET6, .sin6_port = taken.sin_port };
	FAILS(rdma_bind_addr(second, (void *)&all), EADDRINUSE);
	OK(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof yes));
	OK(rdma_bind_addr(second, (void *)&all));
	OK(rdma_listen(second, 1));
	OK(rdma_destroy_id(second));
	OK(rdma_destroy_id(id));

	OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	FAILS(C(rdma_resolve_route)(id, 1000), EINVAL);
	FAILS(C(rdma_resolve_addr)(id, NULL, NULL, 1000), EINVAL);
	FAILS(rdma_resolve_addr(id, NULL, (void *)&far, 1000), ENETUNREACH);
	FAILS(rdma_resolve_addr(id, NULL, &strange, 1000), EAFNOSUPPORT);
	FAILS(rdma_resolve_addr(id, (void *)&far, (void *)&own, 1000), EADDRNOTAVAIL);
	FAILS(rdma_resolve_addr(NULL, NULL, (void *)&own, 1000), EINVAL);
	FAILS(rdma_resolve_route(NULL, 1000), EINVAL);
	own.sin_port = htons(1);
	OK(rdma_resolve_addr(id, (void *)&(struct sockaddr_in){ .sin_family = AF_INET }, (void *)&own, 1000));
	CHECK(rdma_get_dst_port(id) == htons(1));

	/* A waiting event moves to another channel. */
	FAILS(C(rdma_migrate_id)(NULL, other), EINVAL);
	FAILS(rdma_migrate_id(id, (void *)&count), EBADF);
	OK(rdma_migrate_id(id, other));
	CHECK(id->channel == other);
	take_event(other, RDMA_CM_EVENT_ADDR_RESOLVED);
	OK(rdma_resolve_route(id, 1000));
	take_event(other, RDMA_CM_EVENT_ROUTE_RESOLVED);

	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	int mask;
	OK(C(rdma_init_qp_attr)(id, &attr, &mask));
	CHECK(mask & IBV_QP_STATE);
	attr.qp_state = IBV_QPS_RESET;
	FAILS(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	FAILS(rdma_init_qp_attr(id, NULL, &mask), EINVAL);
	FAILS(rdma_init_qp_attr(id, &attr, NULL), EINVAL);
	FAILS(rdma_init_qp_attr(NULL, &attr, &mask), EINVAL);

	/* Connecting needs a queue pair, and accepting needs a request. */
	FAILS(C(rdma_connect)(id, NULL), EINVAL);
	FAILS(rdma_connect(NULL, NULL), EINVAL);
	FAILS(C(rdma_accept)(id, NULL), EINVAL);
	FAILS(rdma_accept(NULL, NULL), EINVAL);
	FAILS(C(rdma_reject)(id, NULL, 0), EINVAL);
	FAILS(rdma_reject(NULL, NULL, 0), EINVAL);
	FAILS(C(rdma_reject_ece)(id, NULL, 0), EINVAL);
	FAILS(C(rdma_disconnect)(id), EINVAL);
	FAILS(rdma_disconnect(NULL), EINVAL);
	FAILS(C(rdma_establish)(id), EINVAL);
	FAILS(rdma_establish(NULL), EINVAL);
	OK(C(rdma_notify)(id, IBV_EVENT_COMM_EST));
	FAILS(rdma_notify(NULL, IBV_EVENT_COMM_EST), EINVAL);
	struct ibv_ece ece;
	FAILS(C(rdma_set_local_ece)(id, &ece), EOPNOTSUPP);
	OK(C(rdma_get_remote_ece)(id, &ece));
	FAILS(rdma_get_remote_ece(id, NULL), EINVAL);
	FAILS(C(rdma_join_multicast)(id, (void *)&own, NULL), EOPNOTSUPP);
	FAILS(C(rdma_join_multicast_ex)(id, NULL, NULL), EOPNOTSUPP);
	FAILS(C(rdma_leave_multicast)(id, (void *)&own), EOPNOTSUPP);

	/* Queue pairs of the identifier. */
	struct ibv_qp_init_attr init = qp_like(NULL);
	FAILS(C(rdma_create_qp)(NULL, NULL, &init), EINVAL);
	FAILS(rdma_create_qp(id, NULL, NULL), EINVAL);
	OK(rdma_create_qp(id, NULL, &init));
	CHECK(id->qp && id->send_cq && id->recv_cq && id->send_cq_channel);
	FAILS(rdma_create_qp(id, NULL, &init), EINVAL);
	C(rdma_destroy_qp)(id);
	rdma_destroy_qp(id);
	rdma_destroy_qp(NULL);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq_channel);
	struct ibv_qp_init_attr_ex ex = { .qp_type = IBV_QPT_RC, .cap = init.cap };
	OK(C(rdma_create_qp_ex)(id, &ex));
	rdma_destroy_qp(id);
	CHECK(!id->qp);
	ex = (struct ibv_qp_init_attr_ex){ .qp_type = IBV_QPT_RC, .cap = init.cap, .comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM };
	OK(rdma_create_qp_ex(id, &ex));
	CHECK(ibv_qp_to_qp_ex(id->qp));
	rdma_destroy_qp(id);
	ex.send_ops_flags = IBV_QP_EX_WITH_TSO;
	FAILS(rdma_create_qp_ex(id, &ex), EOPNOTSUPP);
	ex.comp_mask = IBV_QP_INIT_ATTR_XRCD;
	FAILS(rdma_create_qp_ex(id, &ex), EOPNOTSUPP);
	FAILS(rdma_create_qp_ex(id, NULL), EINVAL);
	FAILS(rdma_create_qp_ex(NULL, &ex), EOPNOTSUPP);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	OK(C(rdma_create_srq)(id, NULL, &srq));
	CHECK(id->srq);
	C(rdma_destroy_srq)(id);
	rdma_destroy_srq(NULL);
	FAILS(rdma_create_srq(id, NULL, NULL), EINVAL);
	FAILS(rdma_create_srq(NULL, NULL, &srq), EINVAL);
	struct ibv_srq_init_attr_ex srq_ex = { .attr = { .max_wr = 4, .max_sge = 1 } };
	OK(C(rdma_create_srq_ex)(id, &srq_ex));
	rdma_destroy_srq(id);
	srq_ex.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	srq_ex.srq_type = IBV_SRQT_XRC;
	FAILS(rdma_create_srq_ex(id, &srq_ex), EOPNOTSUPP);
	FAILS(rdma_create_srq_ex(id, NULL), EINVAL);

	/* No listener at that address. */
	init = qp_like(NULL);
	OK(rdma_create_qp(id, NULL, &init));
	OK(rdma_connect(id, &(struct rdma_conn_param){ 0 }));
	event = next_event(other, RDMA_CM_EVENT_REJECTED);
	IS(event->status, -ECONNREFUSED);
	OK(rdma_ack_cm_event(event));
	rdma_destroy_qp(id);
	OK(rdma_destroy_id(id));

	/* Events: none is waiting. */
	CHECK(!fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	FAILS(C(rdma_get_cm_event)(channel, &event), EAGAIN);
	FAILS(rdma_get_cm_event(channel, NULL), EINVAL);
	FAILS(rdma_get_cm_event(NULL, &event), EBADF);
	FAILS(C(rdma_ack_cm_event)(NULL), EINVAL);
	C(rdma_destroy_event_channel)(channel);
	rdma_destroy_event_channel(other);
	rdma_destroy_event_channel(NULL);
	FAILS(rdma_get_cm_event(channel, &event), EBADF);
}

static void *refuse(void *arg)
{
	struct rdma_cm_id *listener = arg, *id;
	OK(C(rdma_get_request)(listener, &id));
	OK(rdma_reject(id, "no", 2));
	OK(rdma_destroy_id(id));
	return NULL;
}

static void endpoints(void)
{
	struct sockaddr_in own = own_address(0);
	struct rdma_addrinfo passive = { .ai_flags = RAI_PASSIVE, .ai_qp_type = IBV_QPT_RC, .ai_port_space = RDMA_PS_TCP,
		.ai_src_addr = (void *)&own, .ai_src_len = sizeof own };
	struct rdma_cm_id *listener, *id;
	struct ibv_qp_init_attr init = qp_like(NULL);
	pthread_t thread;

	FAILS(C(rdma_create_ep)(&id, NULL, NULL, NULL), EINVAL);
	FAILS(rdma_create_ep(NULL, &passive, NULL, NULL), EINVAL);
	OK(rdma_create_ep(&listener, &passive, NULL, NULL));
	FAILS(rdma_get_request(NULL, &id), EINVAL);
	OK(rdma_listen(listener, 0));
	OK(pthread_create(&thread, NULL, refuse, listener));
	own.sin_port = rdma_get_src_port(listener);
	struct rdma_addrinfo active = { .ai_qp_type = IBV_QPT_RC, .ai_port_space = RDMA_PS_TCP, .ai_dst_addr = (void *)&own, .ai_dst_len = sizeof own };
	OK(rdma_create_ep(&id, &active, NULL, &init));
	FAILS(rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_REJECTED && id->event->param.conn.private_data_len >= 2);
	OK(pthread_join(thread, NULL));
	C(rdma_destroy_ep)(id);
	rdma_destroy_ep(listener);
	active.ai_port_space = RDMA_PS_UDP;
	FAILS(rdma_create_ep(&id, &active, NULL, &init), EOPNOTSUPP);
	active.ai_port_space = RDMA_PS_TCP;
	active.ai_dst_addr = NULL;
	FAILS(rdma_create_ep(&id, &active, NULL, &init), EINVAL);
}

/* A device on a port does not use the kernel's sockets, so nothing can be converted; `convert.c` converts on a
 * device that does. */
static void conversions(void)
{
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof sin;
	int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
	OK(bind(listener, (struct sockaddr *)&sin, len));
	OK(listen(listener, 1));
	OK(getsockname(listener, (struct sockaddr *)&sin, &len));
	OK(connect(fd, (struct sockaddr *)&sin, len));
	struct rdma_event_channel *channel = SOME(rdma_create_event_channel());
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr init = qp_like(NULL);
	OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	FAILS(C(urnic_convert)(id, fd, URNIC_INITIATOR, NULL, 0, NULL), EINVAL);
	OK(C(urnic_resolve_socket)(id, fd));
	OK(rdma_create_qp(id, NULL, &init));
	FAILS(urnic_convert(id, fd, URNIC_INITIATOR, NULL, 0, NULL), EOPNOTSUPP);
	FAILS(urnic_convert(id, fd, URNIC_RESPONDER, "MPA", 3, NULL), EOPNOTSUPP);
	rdma_destroy_qp(id);
	OK(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	IS(send(fd, "still ours", 10, 0), 10);
	OK(close(fd));
	OK(close(listener));
}

/* Calls that need a connection. */
static void connections(void)
{
	struct link l;
	link_up(&l);
	FAILS(rdma_connect(l.client, NULL), EINVAL);
	FAILS(rdma_accept(l.server, NULL), EINVAL);

	/* Windows. */
	struct ibv_mw *mw = SOME(ibv_alloc_mw(l.client->pd, IBV_MW_TYPE_1));
	struct ibv_mw_bind bind = { .wr_id = 5, .send_flags = IBV_SEND_SIGNALED, .bind_info = { .mr = l.mr[0], .addr = (uintptr_t)l.memory[0], .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
	OK(ibv_bind_mw(l.client->qp, mw, &bind));
	CHECK(completion(l.cq[0]).status == IBV_WC_SUCCESS);
	FAILS(ibv_dereg_mr(l.mr[0]), EBUSY);
	FAILS(l.client->verbs->ops.bind_mw(l.client->qp, NULL, &bind), EINVAL);
	FAILS(l.client->verbs->ops.bind_mw(l.client->qp, mw, NULL), EINVAL);
	OK(ibv_dealloc_mw(mw));

	/* A channel that no completion queue uses. */
	struct ibv_comp_channel *channel = SOME(ibv_create_comp_channel(l.client->verbs));
	OK(ibv_destroy_comp_channel(channel));

	/* A Send finds no receive: the connection ends at both ends, and posted requests are flushed. */
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
	OK(post(l.client, l.mr[0], 0, 100, &wr));
	completion(l.cq[0]);
	for (int told = 0; told < 2;) {
		struct rdma_cm_event *event;
		OK(rdma_get_cm_event(l.channel, &event));
		CHECK(event->event == RDMA_CM_EVENT_DISCONNECTED || event->event == RDMA_CM_EVENT_TIMEWAIT_EXIT);
		told += event->event == RDMA_CM_EVENT_DISCONNECTED;
		OK(rdma_ack_cm_event(event));
	}
	OK(post(l.client, l.mr[0], 0, 100, &wr));
	CHECK(completion(l.cq[0]).status == IBV_WC_WR_FLUSH_ERR);
	OK(rdma_disconnect(l.client)); /* again */
	link_free(&l);
}

static void *all(void *arg)
{
	char *memory = SOME(calloc(1, SIZE));
	struct ibv_context *context = devices();
	queries(context);
	domains(context, memory, SIZE);
	newer_memory(context, memory, SIZE);
	newer_refusals(context);
	completion_queues(context);
	shared_queues(context, memory);
	queue_pairs(context, memory);
	asynchronous(context);
	names();
	what_is_not_here(context);
	addresses();
	identifiers();
	newer_identifiers();
	endpoints();
	conversions();
	connections();
	OK(ibv_close_device(context));
	free(memory);
	return arg;
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 1;
	pthread_t thread[64];
	for (int i = 0; i < threads; i++)
		OK(pthread_create(&thread[i], NULL, all, NULL));
	for (int i = 0; i < threads; i++)
		OK(pthread_join(thread[i], NULL));
	for (int i = 0; i < calls; i++)
		printf("called %s\n", called[i]);
	puts("done");
	return 0;
}
