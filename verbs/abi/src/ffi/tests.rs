//! Checks that the structures have the layout that a C compiler gives them (offsets.txt).

use std::collections::BTreeMap;
use std::mem::offset_of;

use super::*;

/// Members by their names in C, each with the offset of its counterpart here. `size` stands for the size of the
/// structure.
type Members = BTreeMap<&'static str, usize>;

macro_rules! layout {
    ($table:ident: $($name:ident { $($member:literal = $($path:ident).+),* })+) => {$(
        #[allow(unused_mut)] // for structures of which only the size is compared
        let mut members = Members::from([("size", size_of::<$name>())]);
        $(members.insert($member, offset_of!($name, $($path).+));)*
        $table.insert(stringify!($name), members);
    )+};
}

#[test]
fn structures_are_laid_out_as_c_compilers_do() {
    let mut ours: BTreeMap<&'static str, Members> = BTreeMap::new();
    layout! { ours:
        ibv_device { "node_type" = node_type, "transport_type" = transport_type, "name" = name, "dev_name" = dev_name,
            "dev_path" = dev_path, "ibdev_path" = ibdev_path }
        ibv_context_ops { "alloc_mw" = alloc_mw, "bind_mw" = bind_mw, "dealloc_mw" = dealloc_mw, "poll_cq" = poll_cq,
            "req_notify_cq" = req_notify_cq, "post_srq_recv" = post_srq_recv, "post_send" = post_send,
            "post_recv" = post_recv }
        ibv_context { "device" = device, "ops" = ops, "cmd_fd" = cmd_fd, "async_fd" = async_fd,
            "num_comp_vectors" = num_comp_vectors, "mutex" = mutex, "abi_compat" = abi_compat }
        verbs_context { "query_port" = query_port, "advise_mr" = advise_mr, "modify_cq" = modify_cq,
            "query_rt_values" = query_rt_values, "create_cq_ex" = create_cq_ex, "priv" = priv_,
            "query_device_ex" = query_device_ex, "ibv_create_flow" = ibv_create_flow, "open_qp" = open_qp,
            "create_qp_ex" = create_qp_ex, "get_srq_num" = get_srq_num, "create_srq_ex" = create_srq_ex,
            "open_xrcd" = open_xrcd, "close_xrcd" = close_xrcd, "sz" = sz, "context" = context }
        ibv_pd { "context" = context, "handle" = handle }
        ibv_mr { "context" = context, "pd" = pd, "addr" = addr, "length" = length, "handle" = handle, "lkey" = lkey,
            "rkey" = rkey }
        ibv_comp_channel { "context" = context, "fd" = fd, "refcnt" = refcnt }
        ibv_cq { "context" = context, "channel" = channel, "cq_context" = cq_context, "handle" = handle, "cqe" = cqe,
            "mutex" = mutex, "cond" = cond, "comp_events_completed" = comp_events_completed,
            "async_events_completed" = async_events_completed }
        ibv_cq_ex { "context" = base.context, "async_events_completed" = base.async_events_completed,
            "comp_mask" = comp_mask, "status" = status, "wr_id" = wr_id, "start_poll" = start_poll,
            "next_poll" = next_poll, "end_poll" = end_poll, "read_opcode" = read_opcode,
            "read_vendor_err" = read_vendor_err, "read_byte_len" = read_byte_len, "read_imm_data" = read_imm_data,
            "read_qp_num" = read_qp_num, "read_src_qp" = read_src_qp, "read_wc_flags" = read_wc_flags,
            "read_completion_ts" = read_completion_ts, "read_completion_wallclock_ns" = read_completion_wallclock_ns }
        ibv_srq { "context" = context, "srq_context" = srq_context, "pd" = pd, "handle" = handle, "mutex" = mutex,
            "cond" = cond, "events_completed" = events_completed }
        ibv_qp { "context" = context, "qp_context" = qp_context, "pd" = pd, "send_cq" = send_cq, "recv_cq" = recv_cq,
            "srq" = srq, "handle" = handle, "qp_num" = qp_num, "state" = state, "qp_type" = qp_type, "mutex" = mutex,
            "cond" = cond, "events_completed" = events_completed }
        ibv_qp_ex { "qp_base" = qp_base, "comp_mask" = comp_mask, "wr_id" = wr_id, "wr_flags" = wr_flags,
            "wr_atomic_cmp_swp" = wr_atomic_cmp_swp, "wr_atomic_fetch_add" = wr_atomic_fetch_add,
            "wr_bind_mw" = wr_bind_mw, "wr_local_inv" = wr_local_inv, "wr_rdma_read" = wr_rdma_read,
            "wr_rdma_write" = wr_rdma_write, "wr_rdma_write_imm" = wr_rdma_write_imm, "wr_send" = wr_send,
            "wr_send_imm" = wr_send_imm, "wr_send_inv" = wr_send_inv, "wr_send_tso" = wr_send_tso,
            "wr_set_ud_addr" = wr_set_ud_addr, "wr_set_xrc_srqn" = wr_set_xrc_srqn,
            "wr_set_inline_data" = wr_set_inline_data, "wr_set_inline_data_list" = wr_set_inline_data_list,
            "wr_set_sge" = wr_set_sge, "wr_set_sge_list" = wr_set_sge_list, "wr_start" = wr_start,
            "wr_complete" = wr_complete, "wr_abort" = wr_abort, "wr_atomic_write" = wr_atomic_write }
        ibv_async_event { "element" = element, "event_type" = event_type }
        ibv_wc { "wr_id" = wr_id, "status" = status, "opcode" = opcode, "vendor_err" = vendor_err,
            "byte_len" = byte_len, "imm_data" = imm_data, "qp_num" = qp_num, "src_qp" = src_qp,
            "wc_flags" = wc_flags }
        ibv_send_wr { "next" = next, "sg_list" = sg_list, "num_sge" = num_sge, "opcode" = opcode,
            "send_flags" = send_flags, "imm_data" = imm_data, "wr" = wr, "qp_type" = qp_type, "bind_mw" = bind_mw }
        ibv_recv_wr {} ibv_sge {} ibv_device_attr {} ibv_device_attr_ex {}
        ibv_port_attr { "link_layer" = link_layer, "flags" = flags, "port_cap_flags2" = port_cap_flags2 }
        ibv_qp_attr {} ibv_qp_init_attr {} ibv_qp_init_attr_ex {} ibv_srq_init_attr_ex {} ibv_gid_entry {} ibv_mw {}
        ibv_cq_init_attr_ex {} ibv_ah {}
        ibv_mr_init_attr { "length" = length, "access" = access, "comp_mask" = comp_mask, "iova" = iova, "addr" = addr,
            "fd" = fd, "fd_offset" = fd_offset, "dmah" = dmah, "buf" = buf }
        rdma_event_channel { "fd" = fd }
        rdma_cm_id { "verbs" = verbs, "channel" = channel, "context" = context, "qp" = qp, "route" = route,
            "route.addr.src_addr" = route.src_addr, "route.addr.dst_addr" = route.dst_addr,
            "route.addr.addr" = route.ibaddr, "route.path_rec" = route.path_rec,
            "route.num_paths" = route.num_paths, "ps" = ps, "port_num" = port_num, "event" = event,
            "send_cq_channel" = send_cq_channel, "send_cq" = send_cq, "recv_cq_channel" = recv_cq_channel,
            "recv_cq" = recv_cq, "srq" = srq, "pd" = pd, "qp_type" = qp_type }
        rdma_cm_event { "id" = id, "listen_id" = listen_id, "event" = event, "status" = status, "param" = param }
        rdma_conn_param { "private_data_len" = private_data_len, "responder_resources" = responder_resources,
            "initiator_depth" = initiator_depth, "flow_control" = flow_control, "retry_count" = retry_count,
            "rnr_retry_count" = rnr_retry_count, "srq" = srq, "qp_num" = qp_num }
        rdma_ud_param { "ah_attr" = ah_attr, "qp_num" = qp_num, "qkey" = qkey }
        rdma_addrinfo { "ai_flags" = ai_flags, "ai_family" = ai_family, "ai_qp_type" = ai_qp_type,
            "ai_port_space" = ai_port_space, "ai_src_len" = ai_src_len, "ai_dst_len" = ai_dst_len,
            "ai_src_addr" = ai_src_addr, "ai_dst_addr" = ai_dst_addr, "ai_src_canonname" = ai_src_canonname,
            "ai_dst_canonname" = ai_dst_canonname, "ai_route_len" = ai_route_len, "ai_route" = ai_route,
            "ai_connect_len" = ai_connect_len, "ai_connect" = ai_connect, "ai_next" = ai_next }
    }
    for line in include_str!("offsets.txt").lines() {
        // struct NAME size=N: MEMBER@OFFSET ...
        let mut words = line.trim_start_matches("struct ").split_whitespace();
        let name = words.next().expect("a name");
        let members = ours.remove(name).unwrap_or_else(|| panic!("{name} is not compared"));
        let size =
            words.next().and_then(|w| w.trim_start_matches("size=").trim_end_matches(':').parse().ok());
        let theirs = words.map(|word| {
            let (member, offset) = word.split_once('@').expect("MEMBER@OFFSET");
            (member, offset.parse().expect("a number"))
        });
        let theirs: Members = theirs.chain([("size", size.expect("a size"))]).collect();
        assert_eq!(members, theirs, "{name}");
    }
    assert!(ours.is_empty(), "not in the table: {ours:?}");
}
