//! Attributes of the device and of its port.

use std::ffi::{c_int, c_void};
use std::net::IpAddr;

use urnic_config::PortSpec;

use super::context::{Context, context_of};
use crate::call::{Errno, number, status};
use crate::ffi::*;
use crate::gids::gid;
use crate::rnic::{self, PORT};

/// The vendor id: "urn".
const VENDOR: u32 = 0x75_726e;
/// Frequency of the device's clock, which counts nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;
/// The maximum number of Reads and atomics that a connection can negotiate; the C interface counts them in a byte.
const MAX_RD_ATOM: c_int = 255;

fn device_attr(context: &Context) -> Result<ibv_device_attr, Errno> {
    let now = context.rnic.now()?;
    let guid = u64::from_ne_bytes(rnic::guid(context.rnic.config));
    let limit = |n: u32| c_int::try_from(n).unwrap_or(c_int::MAX);
    let rd_atom = c_int::from(context.rnic.config.mpa.ird.max(1)).min(MAX_RD_ATOM);
    let init_rd_atom = c_int::from(context.rnic.config.mpa.ord.max(1)).min(MAX_RD_ATOM);
    // SAFETY: zeros are valid for all members.
    let zero: ibv_device_attr = unsafe { std::mem::zeroed() };
    Ok(ibv_device_attr {
        fw_ver: super::device::text(env!("CARGO_PKG_VERSION")),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX >> 1,
        page_size_cap: !0xfff,
        vendor_id: VENDOR,
        vendor_part_id: 1,
        hw_ver: 1,
        max_qp: limit(now.max_qp),
        max_qp_wr: limit(now.max_qp_wr),
        device_cap_flags: IBV_DEVICE_PORT_ACTIVE_EVENT
            | IBV_DEVICE_MEM_WINDOW
            | IBV_DEVICE_MEM_MGT_EXTENSIONS
            | IBV_DEVICE_MEM_WINDOW_TYPE_2B,

        max_sge: now.max_sge.into(),
        max_sge_rd: now.max_sge_rd.into(),
        max_cq: limit(now.max_cq),
        max_cqe: limit(now.max_cqe),
        max_mr: limit(now.max_mr),
        max_pd: c_int::MAX,
        max_qp_rd_atom: rd_atom,
        max_res_rd_atom: rd_atom.saturating_mul(limit(now.max_qp)),
        max_qp_init_rd_atom: init_rd_atom,
        atomic_cap: IBV_ATOMIC_HCA,
        max_mw: limit(now.max_mr),
        max_srq: limit(now.max_srq),
        max_srq_wr: limit(now.max_srq_wr),
        max_srq_sge: now.max_srq_sge.into(),
        max_pkeys: 1,
        phys_port_cnt: PORT,
        ..zero
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    status(|| {
        // SAFETY: null or an open context.
        let context = unsafe { context_of(context) }?;
        if attr.is_null() {
            return Err(libc::EINVAL);
        }
        let answer = device_attr(context)?;
        // SAFETY: the program's place for the answer.
        unsafe { attr.write(answer) };
        Ok(())
    })
}

pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: null or an open context.
        let context = unsafe { context_of(context) }?;
        // SAFETY: null or the program's structure.
        let asked = unsafe { input.as_ref() }.map_or(0, |input| input.comp_mask);
        if asked != 0 || attr.is_null() || size < size_of::<ibv_device_attr>() {
            return Err(libc::EINVAL);
        }
        // SAFETY: zeros are valid for all members.
        let mut answer: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
        answer.orig_attr = device_attr(context)?;
        answer.completion_timestamp_mask = u64::MAX;
        answer.hca_core_clock = CLOCK_KHZ;
        answer.device_cap_flags_ex = answer.orig_attr.device_cap_flags.into();
        answer.phys_port_cnt_ex = PORT.into();
        // SAFETY: the program states that it has `size` bytes for the answer.
        unsafe { copy_out((&raw const answer).cast(), size_of_val(&answer), attr.cast(), size) };
        Ok(())
    })
}

/// Copies as much of an answer as fits, and zeroes the rest of the program's room.
///
/// # Safety
/// `from` has `len` bytes, and `to` has room for `room`.
unsafe fn copy_out(from: *const c_void, len: usize, to: *mut c_void, room: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        std::ptr::write_bytes(to.cast::<u8>(), 0, room);
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), len.min(room));
    }
}

pub unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: null or an open context.
        let context = unsafe { context_of(context) }?;
        if port != PORT || attr.is_null() {
            return Err(libc::EINVAL);
        }
        let now = context.rnic.now()?;
        let mtu = match now.mtu {
            4096.. => 5,
            2048.. => 4,
            1024.. => 3,
            512.. => 2,
            _ => 1,
        };
        // A link between two processes comes up when both run, and programs query the port before that. So the port of
        // such a link always counts as active.
        let memory = context.rnic.config.port.spec.as_ref().is_some_and(PortSpec::is_memory_link);
        let up = now.link_up || memory;
        // SAFETY: zeros are valid for all members.
        let zero: ibv_port_attr = unsafe { std::mem::zeroed() };
        let answer = ibv_port_attr {
            state: if up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
            max_mtu: 5, // IBV_MTU_4096
            active_mtu: mtu,
            gid_tbl_len: c_int::try_from(context.rnic.gids()?.len()).unwrap_or(c_int::MAX),
            max_msg_sz: u32::MAX,
            pkey_tbl_len: 1,
            active_width: 2, // 4x
            active_speed: 4, // QDR
            // LinkUp, or Disabled.
            phys_state: if up { 5 } else { 3 },
            link_layer: IBV_LINK_LAYER_ETHERNET,
            ..zero
        };
        // SAFETY: the program states that it has `size` bytes for the answer.
        unsafe { copy_out((&raw const answer).cast(), size_of_val(&answer), attr.cast(), size) };
        Ok(())
    })
}

/// Writes nothing after `link_layer` and its padding, because old programs pass a shorter structure.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: the program's pointers.
    unsafe { query_port(context, port, attr, 48) }
}

/// Returns the present time of the clock, all of it in `tv_nsec`, as hardware drivers return their count of cycles.
pub unsafe extern "C" fn query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    status(|| {
        // SAFETY: null or the program's structure.
        let (context, values) = unsafe { (context_of(context)?, values.as_mut().ok_or(libc::EINVAL)?) };
        values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
        if values.comp_mask != 0 {
            let now = libc::c_long::try_from(context.rnic.device.raw_clock()).unwrap_or(libc::c_long::MAX);
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: now };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    to: *mut ibv_gid,
) -> c_int {
    number(|| {
        // SAFETY: null or an open context.
        let context = unsafe { context_of(context) }?;
        let index = usize::try_from(index).map_err(|_| libc::EINVAL)?;
        if port != PORT || to.is_null() {
            return Err(libc::EINVAL);
        }
        let place = context.rnic.gids()?.into_iter().nth(index).ok_or(libc::EINVAL)?;
        // A vacant index has a GID of zeros, as in the kernel.
        let gid = place.map_or(ibv_gid { raw: [0; 16] }, gid);
        // SAFETY: the program's place for the answer.
        unsafe { to.write(gid) };
        Ok(0)
    })
}

/// Returns the entries of the table, without vacant indices.
fn gid_entries(context: &Context) -> Result<Vec<ibv_gid_entry>, Errno> {
    // GID type 0 is `IBV_GID_TYPE_IB`. The kernel reports this type for iWARP devices too.
    let entry = |(i, place): (usize, Option<IpAddr>)| {
        place.map(|address| ibv_gid_entry {
            gid: gid(address),
            gid_index: i as u32,
            port_num: PORT.into(),
            gid_type: 0,
            ndev_ifindex: rnic::interface(context.rnic.config, address),
        })
    };
    Ok(context.rnic.gids()?.into_iter().enumerate().filter_map(entry).collect())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: null or an open context.
        let context = unsafe { context_of(context) }?;
        if port != u32::from(PORT) || entry.is_null() || flags != 0 || size == 0 {
            return Err(libc::EINVAL);
        }
        let answer =
            gid_entries(context)?.into_iter().find(|entry| entry.gid_index == index).ok_or(libc::ENODATA)?;
        // SAFETY: the program states that it has `size` bytes for the answer.
        unsafe { copy_out((&raw const answer).cast(), size_of_val(&answer), entry.cast(), size) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    // A failure returns a negated errno, as the header specifies.
    let mut written = 0;
    let answer = status(|| {
        // SAFETY: null or an open context.
        let context = unsafe { context_of(context) }?;
        if flags != 0 || entries.is_null() || max == 0 || size == 0 {
            return Err(libc::EINVAL);
        }
        for answer in gid_entries(context)?.iter().take(max) {
            // SAFETY: the program states that it has `max` entries of `size` bytes.
            unsafe {
                let to = entries.cast::<u8>().add(written as usize * size);
                copy_out(std::ptr::from_ref(answer).cast(), size_of_val(answer), to.cast(), size);
            }
            written += 1;
        }
        Ok(())
    });
    if answer == 0 { written } else { -(answer as isize) }
}

/// Reports type 0, InfiniBand or RoCE v1, because the only other type is RoCE v2. The headers do not declare this
/// function, but `ibv_devinfo` calls it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut c_int,
) -> c_int {
    number(|| {
        // SAFETY: null or an open context.
        let gids = unsafe { context_of(context) }?.rnic.gids()?;
        if port != PORT || index as usize >= gids.len() || kind.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program's place for the answer.
        unsafe { kind.write(0) };
        Ok(0)
    })
}

/// The default partition key; iWARP has no others.
const PKEY: u16 = 0xffff;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    number(|| {
        if context.is_null() || port != PORT || index != 0 || pkey.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program's place for the answer.
        unsafe { pkey.write(PKEY) };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    number(|| if context.is_null() || port != PORT || pkey != PKEY { Err(libc::EINVAL) } else { Ok(0) })
}
