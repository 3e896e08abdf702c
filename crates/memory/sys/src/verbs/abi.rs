// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The structures of libibverbs that cross its boundary, as `infiniband/verbs.h` of rdma-core 44 lays them out.
//!
//! Its ABI is versioned (`libibverbs.so.1`, symbols `IBVERBS_1.x`) and these structures have grown only at the end. The
//! test at the end compares every size and offset with the installed header, if there are a header and a C compiler.

use std::ffi::{c_char, c_int, c_void};

/// A function pointer that this crate does not call.
pub(super) type Unused = Option<unsafe extern "C" fn()>;

#[repr(C)]
pub(super) struct ContextOps {
    pub unused_before_poll: [Unused; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    pub unused_before_send: [Unused; 12],
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub unused_after_send: [Unused; 6],
}

/// Further fields belong to the library.
#[repr(C)]
pub(super) struct Context {
    pub device: *mut c_void,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
}

#[repr(C)]
pub(super) struct Mr {
    pub context: *mut Context,
    pub pd: *mut c_void,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub(super) struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// Further fields belong to the library.
#[repr(C)]
pub(super) struct Cq {
    pub context: *mut Context,
    pub channel: *mut CompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
}

/// Further fields belong to the library.
#[repr(C)]
pub(super) struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub(super) struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub cap: QpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub(super) struct Gid(pub [u8; 16]);

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct GlobalRoute {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct QpAttr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[repr(C)]
pub(super) struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
pub(super) struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: u32,
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    /// The rest of unions whose other members are not used here.
    pub rest: [u64; 9],
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Wc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// With room at the end: newer libraries have more fields.
#[derive(Default)]
#[repr(C)]
pub(super) struct PortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub room: [u32; 29],
}

pub(super) const QPT_RC: c_int = 2;
pub(super) const QPS_RESET: c_int = 0;
pub(super) const QPS_INIT: c_int = 1;
pub(super) const QPS_RTR: c_int = 2;
pub(super) const QPS_RTS: c_int = 3;

pub(super) const QP_STATE: c_int = 1 << 0;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
pub(super) const QP_AV: c_int = 1 << 7;
pub(super) const QP_PATH_MTU: c_int = 1 << 8;
pub(super) const QP_TIMEOUT: c_int = 1 << 9;
pub(super) const QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const QP_RQ_PSN: c_int = 1 << 12;
pub(super) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const QP_SQ_PSN: c_int = 1 << 16;
pub(super) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const QP_DEST_QPN: c_int = 1 << 20;

pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(super) const ACCESS_REMOTE_READ: c_int = 1 << 2;

pub(super) const WR_RDMA_WRITE: c_int = 0;
pub(super) const WR_RDMA_READ: c_int = 4;
pub(super) const SEND_SIGNALED: u32 = 1 << 1;

pub(super) const WC_SUCCESS: c_int = 0;
pub(super) const WC_REM_INV_REQ_ERR: c_int = 9;
pub(super) const WC_REM_ACCESS_ERR: c_int = 10;
pub(super) const WC_REM_OP_ERR: c_int = 11;
pub(super) const WC_RETRY_EXC_ERR: c_int = 12;

/// A device in the library's list.
pub(super) type Device = c_void;
/// The name of a device.
pub(super) type Name = *const c_char;

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::mem::{offset_of, size_of};
    use std::path::Path;
    use std::process::Command;

    use super::*;

    const HEADER: &str = "/usr/include/infiniband/verbs.h";

    macro_rules! layout {
        ($($type:ty = $c:literal: $($field:ident = $cfield:literal),*;)+) => {
            vec![$($((
                concat!("offsetof(", $c, ", ", $cfield, ")"), offset_of!($type, $field)
            ),)*)+]
        };
    }

    /// Every offset and constant that this file contains, with its C spelling.
    fn stated() -> Vec<(&'static str, usize)> {
        let mut all = layout! {
            ContextOps = "struct ibv_context_ops": poll_cq = "poll_cq", req_notify_cq = "req_notify_cq",
                post_send = "post_send";
            Context = "struct ibv_context": ops = "ops", cmd_fd = "cmd_fd", async_fd = "async_fd";
            Mr = "struct ibv_mr": lkey = "lkey", rkey = "rkey";
            CompChannel = "struct ibv_comp_channel": fd = "fd";
            Cq = "struct ibv_cq": context = "context", cqe = "cqe";
            Qp = "struct ibv_qp": context = "context", qp_num = "qp_num";
            QpInitAttr = "struct ibv_qp_init_attr": cap = "cap", qp_type = "qp_type", sq_sig_all = "sq_sig_all";
            GlobalRoute = "struct ibv_global_route": sgid_index = "sgid_index", hop_limit = "hop_limit";
            AhAttr = "struct ibv_ah_attr": dlid = "dlid", is_global = "is_global", port_num = "port_num";
            QpAttr = "struct ibv_qp_attr": path_mtu = "path_mtu", rq_psn = "rq_psn", sq_psn = "sq_psn",
                dest_qp_num = "dest_qp_num", qp_access_flags = "qp_access_flags", ah_attr = "ah_attr",
                pkey_index = "pkey_index", max_rd_atomic = "max_rd_atomic", max_dest_rd_atomic = "max_dest_rd_atomic",
                min_rnr_timer = "min_rnr_timer", port_num = "port_num", timeout = "timeout", retry_cnt = "retry_cnt",
                rnr_retry = "rnr_retry", rate_limit = "rate_limit";
            Sge = "struct ibv_sge": addr = "addr", length = "length", lkey = "lkey";
            SendWr = "struct ibv_send_wr": sg_list = "sg_list", num_sge = "num_sge", opcode = "opcode",
                send_flags = "send_flags", imm_data = "imm_data", remote_addr = "wr.rdma.remote_addr",
                rkey = "wr.rdma.rkey";
            Wc = "struct ibv_wc": wr_id = "wr_id", status = "status", vendor_err = "vendor_err", qp_num = "qp_num";
            PortAttr = "struct ibv_port_attr": state = "state", active_mtu = "active_mtu";
        };
        all.extend([
            ("sizeof(struct ibv_context_ops)", size_of::<ContextOps>()),
            ("sizeof(struct ibv_qp_init_attr)", size_of::<QpInitAttr>()),
            ("sizeof(struct ibv_qp_attr)", size_of::<QpAttr>()),
            ("sizeof(struct ibv_ah_attr)", size_of::<AhAttr>()),
            ("sizeof(struct ibv_send_wr)", size_of::<SendWr>()),
            ("sizeof(struct ibv_sge)", size_of::<Sge>()),
            ("sizeof(struct ibv_wc)", size_of::<Wc>()),
        ]);
        let constants = [
            ("IBV_QPT_RC", QPT_RC),
            ("IBV_QPS_RESET", QPS_RESET),
            ("IBV_QPS_INIT", QPS_INIT),
            ("IBV_QPS_RTR", QPS_RTR),
            ("IBV_QPS_RTS", QPS_RTS),
            ("IBV_QP_STATE", QP_STATE),
            ("IBV_QP_ACCESS_FLAGS", QP_ACCESS_FLAGS),
            ("IBV_QP_PKEY_INDEX", QP_PKEY_INDEX),
            ("IBV_QP_PORT", QP_PORT),
            ("IBV_QP_AV", QP_AV),
            ("IBV_QP_PATH_MTU", QP_PATH_MTU),
            ("IBV_QP_TIMEOUT", QP_TIMEOUT),
            ("IBV_QP_RETRY_CNT", QP_RETRY_CNT),
            ("IBV_QP_RNR_RETRY", QP_RNR_RETRY),
            ("IBV_QP_RQ_PSN", QP_RQ_PSN),
            ("IBV_QP_MAX_QP_RD_ATOMIC", QP_MAX_QP_RD_ATOMIC),
            ("IBV_QP_MIN_RNR_TIMER", QP_MIN_RNR_TIMER),
            ("IBV_QP_SQ_PSN", QP_SQ_PSN),
            ("IBV_QP_MAX_DEST_RD_ATOMIC", QP_MAX_DEST_RD_ATOMIC),
            ("IBV_QP_DEST_QPN", QP_DEST_QPN),
            ("IBV_ACCESS_LOCAL_WRITE", ACCESS_LOCAL_WRITE),
            ("IBV_ACCESS_REMOTE_WRITE", ACCESS_REMOTE_WRITE),
            ("IBV_ACCESS_REMOTE_READ", ACCESS_REMOTE_READ),
            ("IBV_WR_RDMA_WRITE", WR_RDMA_WRITE),
            ("IBV_WR_RDMA_READ", WR_RDMA_READ),
            ("IBV_SEND_SIGNALED", SEND_SIGNALED as c_int),
            ("IBV_WC_SUCCESS", WC_SUCCESS),
            ("IBV_WC_REM_INV_REQ_ERR", WC_REM_INV_REQ_ERR),
            ("IBV_WC_REM_ACCESS_ERR", WC_REM_ACCESS_ERR),
            ("IBV_WC_REM_OP_ERR", WC_REM_OP_ERR),
            ("IBV_WC_RETRY_EXC_ERR", WC_RETRY_EXC_ERR),
        ];
        all.extend(constants.map(|(name, value)| (name, value as usize)));
        all
    }

    #[test]
    fn the_headers_of_the_machine_lay_it_out_so() {
        if !Path::new(HEADER).exists() {
            return aquifer_test_support::skip(format!("there is no {HEADER} (package libibverbs-dev)"));
        }
        let mut source = String::from("#include <infiniband/verbs.h>\n#include <stddef.h>\n");
        for (what, value) in stated() {
            let _ = writeln!(source, "_Static_assert({what} == {value}, \"{what} is not {value}\");");
        }
        let _ = writeln!(
            source,
            "_Static_assert(sizeof(struct ibv_port_attr) <= {}, \"a larger port\");",
            size_of::<PortAttr>()
        );
        let path = std::env::temp_dir().join(format!("aquifer-verbs-{}.c", std::process::id()));
        std::fs::write(&path, source).unwrap();
        let compiled = Command::new("cc").args(["-fsyntax-only"]).arg(&path).output();
        let _ = std::fs::remove_file(&path);
        match compiled {
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => aquifer_test_support::skip(format!("cc cannot be started: {error}")),
        }
    }
}
