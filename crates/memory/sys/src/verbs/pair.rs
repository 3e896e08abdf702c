// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A queue pair of a reliable connection, with its own completion queue and channel: one side of a connection between
//! two memories.
//!
//! Each end sends the other its [`End`] over another connection, and connects. Then the requesting side posts one work
//! request at a time and polls for its completion; the other side's processor is not involved. A failed connection is
//! reset, and may be connected again, with the same objects, so that nothing is allocated.
//!
//! Failure handling takes two steps: the device resends a packet after its time limit, up to `RETRIES` times; then
//! the work request completes with an error and the pair is unusable until it is reset. See ibv_modify_qp(3), and
//! chapters 9.7 and 11.6 of the InfiniBand Architecture Specification, volume 1.
//!
//! Threads: any, one at a time; including signal handlers, except for creating it.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::abi;
use super::device::Domain;
use super::failure::VerbsFailure;
use super::memory::BounceBuffer;
use crate::raw::{Errno, syscall};
use crate::wakeup::readable;

/// Width of a packet number, in bits.
pub const PSN_BITS: u32 = 24;
/// Maximum number of work requests in progress: one, and one left over from a failure.
const WORKS_MAX: u32 = 2;
/// An unacknowledged packet is resent after 4.096 us times 2 to the power of this: 67 ms. A device may take up to four
/// times as long.
const TIMEOUT: u8 = 14;
/// How many times a packet is resent. With the above, a dead peer is detected after 0.5 to 1.9 seconds; a caller that
/// cannot wait that long gives up earlier and resets the pair. The field's maximum is 7, which Soft-RoCE treats as
/// unlimited.
const RETRIES: u8 = 6;
/// The wait requested of a peer that has sent too much: 0.64 ms. No sends are used here, so it never applies.
const RNR_TIMER: u8 = 12;
/// Maximum number of reads that the device has in progress for one work request, and that it serves. Every device since
/// 2003 supports four.
const READS_AT_ONCE: u8 = 4;
/// Maximum number of hops of a packet: the default of IP.
const HOPS: u8 = 64;
/// Polls of a queue that a reset has just emptied: there are at most two work requests.
const DRAINS_MAX: u32 = 4;

/// What one end must know about the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The number of its queue pair; 24 bits.
    pub pair: u32,
    /// The number of its first packet; 24 bits.
    pub psn: u32,
    /// Its address in an InfiniBand subnet; 0 for RoCE.
    pub lid: u16,
    /// Its largest packet, as a code from 1 to 5: 1 is 256 bytes, and each further code doubles the size.
    pub mtu: u8,
    /// Its address.
    pub gid: [u8; 16],
}

/// The operation of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Copies the peer's bytes into the buffer.
    Read,
    /// Copies the buffer's bytes to the peer.
    Write,
}

/// The outcome of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// All bytes were transferred.
    Done,
    /// The peer's device refuses the key, or the access.
    Refused,
    /// The peer does not answer.
    Silent,
    /// Any other failure, with the library's status.
    Failed(i32),
}

/// A queue pair of a reliable connection, with its own completion queue.
pub struct QueuePair {
    domain: Arc<Domain>,
    qp: NonNull<abi::Qp>,
    cq: NonNull<abi::Cq>,
    channel: NonNull<abi::CompChannel>,
    /// The number of the latest work request; a reset replaces it by a number that no work request has. A completion
    /// with another number belongs to an older work request, and says nothing about the latest one. Written by the
    /// thread that posts or resets, one at a time.
    work: AtomicU64,
}

// SAFETY: as for `Device`.
unsafe impl Send for QueuePair {}
// SAFETY: as for `Device`. Threads that post, poll or wait at the same time may take each other's completions, which
// violates the contract here but is memory-safe: the library locks its queues.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates a pair that is not connected.
    pub fn new(domain: &Arc<Domain>) -> Result<QueuePair, VerbsFailure> {
        let device = &domain.device;
        let library = device.library;
        // SAFETY: the device is open.
        let channel = unsafe { (library.ibv_create_comp_channel)(device.context.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(|| device.failure("ibv_create_comp_channel"))?;
        // SAFETY: the channel has no other user yet; every call reads the descriptor's field again.
        unsafe { (*channel.as_ptr()).fd = crate::own_descriptors::keep((*channel.as_ptr()).fd) };
        let depth = WORKS_MAX as c_int + 1;
        // SAFETY: device and channel are open, and stay so until the queue is destroyed.
        let cq =
            unsafe { (library.ibv_create_cq)(device.context.as_ptr(), depth, ptr::null_mut(), channel.as_ptr(), 0) };
        let Some(cq) = NonNull::new(cq) else {
            let failure = device.failure("ibv_create_cq");
            // SAFETY: the channel has no queue.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(failure);
        };
        let cap =
            abi::QpCap { max_send_wr: WORKS_MAX, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let mut attributes = abi::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            srq: ptr::null_mut(),
            cap,
            qp_type: abi::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the domain exists, and the queue stays until the pair is destroyed.
        let qp = unsafe { (library.ibv_create_qp)(domain.pd.as_ptr(), &raw mut attributes) };
        let Some(qp) = NonNull::new(qp) else {
            let failure = device.failure("ibv_create_qp");
            // SAFETY: neither is in use.
            unsafe {
                (library.ibv_destroy_cq)(cq.as_ptr());
                (library.ibv_destroy_comp_channel)(channel.as_ptr());
            }
            return Err(failure);
        };
        Ok(QueuePair { domain: Arc::clone(domain), qp, cq, channel, work: AtomicU64::new(0) })
    }

    /// The description of this end for the peer, if its packets begin with the number `psn`.
    pub fn end(&self, psn: u32) -> End {
        let (device, psn) = (&self.domain.device, psn & ((1 << PSN_BITS) - 1));
        let port = device.port();
        // SAFETY: the structure belongs to the library, and its number does not change.
        let pair = unsafe { (*self.qp.as_ptr()).qp_num };
        End { pair, psn, lid: port.lid, mtu: device.mtu(), gid: port.gid }
    }

    fn modify(&self, mut attributes: abi::QpAttr, mask: c_int) -> Result<(), Errno> {
        self.domain.device.check_own()?;
        let library = self.domain.device.library;
        // SAFETY: the pair exists, and the structure has the fields that the mask names.
        match uncancelled(library, || unsafe {
            (library.ibv_modify_qp)(self.qp.as_ptr(), &raw mut attributes, abi::QP_STATE | mask)
        }) {
            0 => Ok(()),
            errno => Err(Errno(errno)),
        }
    }

    /// Ends the connection, with any work in progress: no byte of a bounce buffer changes afterwards.
    pub fn reset(&self) -> Result<(), Errno> {
        self.modify(abi::QpAttr { qp_state: abi::QPS_RESET, ..abi::QpAttr::default() }, 0)?;
        self.next_work();
        for _ in 0..DRAINS_MAX {
            if self.poll()?.is_none() {
                break;
            }
        }
        self.take_events();
        Ok(())
    }

    fn next_work(&self) -> u64 {
        self.work.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Connects this end, whose packets begin with `psn`, to a peer's. It must be new or have been reset.
    pub fn connect(&self, psn: u32, peer: &End, lets_in: bool) -> Result<(), Errno> {
        let port = self.domain.device.port();
        let access = if lets_in { abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_WRITE } else { 0 };
        let zero = abi::QpAttr::default();
        self.modify(
            abi::QpAttr { qp_state: abi::QPS_INIT, port_num: port.number, qp_access_flags: access as u32, ..zero },
            abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_ACCESS_FLAGS,
        )?;
        let grh = abi::GlobalRoute {
            dgid: abi::Gid(peer.gid),
            sgid_index: port.gid_index,
            hop_limit: HOPS,
            ..abi::GlobalRoute::default()
        };
        let ah_attr = abi::AhAttr {
            grh,
            dlid: peer.lid,
            is_global: u8::from(port.is_ethernet),
            port_num: port.number,
            ..abi::AhAttr::default()
        };
        self.modify(
            abi::QpAttr {
                qp_state: abi::QPS_RTR,
                path_mtu: c_int::from(peer.mtu.min(self.domain.device.mtu())),
                dest_qp_num: peer.pair,
                rq_psn: peer.psn,
                max_dest_rd_atomic: READS_AT_ONCE,
                min_rnr_timer: RNR_TIMER,
                ah_attr,
                ..zero
            },
            abi::QP_AV
                | abi::QP_PATH_MTU
                | abi::QP_DEST_QPN
                | abi::QP_RQ_PSN
                | abi::QP_MAX_DEST_RD_ATOMIC
                | abi::QP_MIN_RNR_TIMER,
        )?;
        self.modify(
            abi::QpAttr {
                qp_state: abi::QPS_RTS,
                sq_psn: psn & ((1 << PSN_BITS) - 1),
                timeout: TIMEOUT,
                retry_cnt: RETRIES,
                rnr_retry: RETRIES,
                max_rd_atomic: READS_AT_ONCE,
                ..zero
            },
            abi::QP_SQ_PSN | abi::QP_TIMEOUT | abi::QP_RETRY_CNT | abi::QP_RNR_RETRY | abi::QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// Starts a work request that copies `bytes` bytes between offset `from` of the bounce buffer and address `remote`
    /// of the peer's memory that `key` opens. Until its completion is found, or the pair is reset, the buffer's bytes
    /// belong to the device.
    pub fn post(
        &self,
        work: Work,
        buffer: &mut BounceBuffer,
        from: usize,
        bytes: usize,
        remote: u64,
        key: u32,
    ) -> Result<(), Errno> {
        self.domain.device.check_own()?;
        let length = u32::try_from(bytes).map_err(|_| Errno(libc::EMSGSIZE))?;
        let mut piece = abi::Sge { addr: buffer.address(from, bytes), length, lkey: buffer.key() };
        let mut request = abi::SendWr {
            wr_id: self.next_work(),
            next: ptr::null_mut(),
            sg_list: &raw mut piece,
            // For a transfer of no bytes, some devices would take a piece of length 0 as 2 GiB.
            num_sge: c_int::from(bytes > 0),
            opcode: match work {
                Work::Read => abi::WR_RDMA_READ,
                Work::Write => abi::WR_RDMA_WRITE,
            },
            send_flags: abi::SEND_SIGNALED,
            imm_data: 0,
            remote_addr: remote,
            rkey: key,
            rest: [0; 9],
        };
        let mut bad = ptr::null_mut();
        let library = self.domain.device.library;
        // SAFETY: the pair exists, and so does its context, whose table of operations its driver has filled.
        let post = unsafe { (*(*self.qp.as_ptr()).context).ops.post_send }.expect("every driver posts");
        // SAFETY: request and piece are read before the call returns; the bounce buffer is registered and stays
        // registered.
        match uncancelled(library, || unsafe { post(self.qp.as_ptr(), &raw mut request, &raw mut bad) }) {
            0 => Ok(()),
            // Some drivers return the error number, others a negative number.
            errno => Err(Errno(if errno > 0 { errno } else { libc::EIO })),
        }
    }

    /// The completion of the latest work request, if it has arrived.
    pub fn poll(&self) -> Result<Option<Completion>, Errno> {
        self.domain.device.check_own()?;
        // SAFETY: the queue exists, and so does its context, whose table of operations its driver has filled.
        let poll = unsafe { (*(*self.cq.as_ptr()).context).ops.poll_cq }.expect("every driver polls");
        for _ in 0..=WORKS_MAX {
            let mut found = abi::Wc::default();
            // SAFETY: there is room for one completion.
            match unsafe { poll(self.cq.as_ptr(), 1, &raw mut found) } {
                0 => break,
                1 if found.wr_id == self.work.load(Ordering::Relaxed) => return Ok(Some(completion(found.status))),
                1 => {}
                _ => return Err(Errno(libc::EIO)),
            }
        }
        Ok(None)
    }

    /// Makes [`wait`](Self::wait) report the next completion. A completion that has already arrived is not reported.
    pub fn arm(&self) -> Result<(), Errno> {
        self.domain.device.check_own()?;
        // SAFETY: as in `poll`.
        let arm = unsafe { (*(*self.cq.as_ptr()).context).ops.req_notify_cq }.expect("every driver notifies");
        // SAFETY: the queue exists.
        match unsafe { arm(self.cq.as_ptr(), 0) } {
            0 => Ok(()),
            errno => Err(Errno(errno.abs())),
        }
    }

    /// Waits until a completion is reported, until `limit` has passed, or until a signal arrives.
    pub fn wait(&self, limit: Duration) {
        if readable(self.descriptor(), limit) {
            self.take_events();
        }
    }

    fn descriptor(&self) -> c_int {
        // SAFETY: the channel exists; nothing changes its descriptor.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// Reads the reported events, and acknowledges them to the library, which counts them.
    fn take_events(&self) {
        // As in the kernel's `struct ib_uverbs_comp_event_desc`: a number that identifies the queue.
        let mut event = 0u64;
        while readable(self.descriptor(), Duration::ZERO) {
            let args = [self.descriptor() as usize, &raw mut event as usize, size_of::<u64>(), 0, 0, 0];
            // SAFETY: read(2) writes at most the eight bytes. The library's own call is not used, because it can be a
            // cancellation point (pthread_cancel(3)).
            if unsafe { syscall(libc::SYS_read, args) } != Ok(size_of::<u64>()) {
                return;
            }
            // SAFETY: the queue exists, and one of its events was read.
            unsafe { (self.domain.device.library.ibv_ack_cq_events)(self.cq.as_ptr(), 1) };
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.domain.device.is_own() {
            return;
        }
        // The library waits until every reported event is acknowledged.
        self.take_events();
        let library = self.domain.device.library;
        // SAFETY: each exists, is not used afterwards, and nothing that needs it is left.
        unsafe {
            (library.ibv_destroy_qp)(self.qp.as_ptr());
            (library.ibv_destroy_cq)(self.cq.as_ptr());
            crate::own_descriptors::unprotect((*self.channel.as_ptr()).fd);
            (library.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

fn completion(status: c_int) -> Completion {
    match status {
        abi::WC_SUCCESS => Completion::Done,
        abi::WC_REM_INV_REQ_ERR | abi::WC_REM_ACCESS_ERR | abi::WC_REM_OP_ERR => Completion::Refused,
        abi::WC_RETRY_EXC_ERR => Completion::Silent,
        status => Completion::Failed(status),
    }
}

/// Makes a call that may be a cancellation point (a driver that sends with write(2), as Soft-RoCE does), so that the
/// thread is not cancelled during it. Uses the namespace's C library, whose calls the cancellation would end.
fn uncancelled(library: &super::library::Library, call: impl FnOnce() -> c_int) -> c_int {
    const DISABLE: c_int = 1;
    let mut before = 0;
    // SAFETY: changes a word of this thread, and writes one.
    unsafe { (library.pthread_setcancelstate)(DISABLE, &raw mut before) };
    let done = call();
    // SAFETY: as above, restoring the old state.
    unsafe { (library.pthread_setcancelstate)(before, ptr::null_mut()) };
    done
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::ffi::c_void;
    use std::mem::ManuallyDrop;

    use super::super::library::Library;
    use super::super::ports::Port;
    use super::super::{Device, abi};
    use super::*;
    use crate::memory::OwnWord;

    thread_local! {
        /// Numbers of the posted work requests.
        static POSTED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
        /// Numbers and states of the completed work requests.
        static COMPLETE: RefCell<VecDeque<(u64, c_int)>> = const { RefCell::new(VecDeque::new()) };
    }

    unsafe extern "C" fn post(_: *mut abi::Qp, request: *mut abi::SendWr, _: *mut *mut abi::SendWr) -> c_int {
        // SAFETY: the caller's request.
        POSTED.with_borrow_mut(|posted| posted.push(unsafe { (*request).wr_id }));
        0
    }

    unsafe extern "C" fn poll(_: *mut abi::Cq, _: c_int, found: *mut abi::Wc) -> c_int {
        let Some((wr_id, status)) = COMPLETE.with_borrow_mut(VecDeque::pop_front) else { return 0 };
        // SAFETY: the caller has room for one completion.
        unsafe { *found = abi::Wc { wr_id, status, ..abi::Wc::default() } };
        1
    }

    /// A queue pair of a device that does nothing by itself, and a bounce buffer; both are leaked. `None` without the
    /// library, with the reason printed.
    fn pair() -> Option<(ManuallyDrop<QueuePair>, ManuallyDrop<BounceBuffer>)> {
        let library = match Library::get() {
            Ok(library) => library,
            Err(failure) => {
                aquifer_test_support::skip(failure);
                return None;
            }
        };
        // SAFETY: integers, null pointers and absent functions are all zeros.
        let mut context: Box<abi::Context> = Box::new(unsafe { std::mem::zeroed() });
        context.ops.post_send = Some(post);
        context.ops.poll_cq = Some(poll);
        let context = NonNull::from(Box::leak(context));
        // SAFETY: as above.
        let (cq, qp): (&mut abi::Cq, &mut abi::Qp) =
            unsafe { (Box::leak(Box::new(std::mem::zeroed())), Box::leak(Box::new(std::mem::zeroed()))) };
        (cq.context, qp.context) = (context.as_ptr(), context.as_ptr());
        let own = OwnWord::new().unwrap();
        own.word().store(1, Ordering::Relaxed);
        let port = Port { device: String::new(), number: 1, is_ethernet: true, gid_index: 0, gid: [0; 16], lid: 0 };
        let device = ManuallyDrop::new(Arc::new(Device::of_parts(library, context, own, port)));
        let pd = NonNull::<c_void>::dangling();
        let domain = ManuallyDrop::new(Arc::new(Domain { device: Arc::clone(&device), pd }));
        let (channel, work) = (NonNull::dangling(), AtomicU64::new(0));
        let pair = QueuePair { domain: Arc::clone(&domain), qp: qp.into(), cq: cq.into(), channel, work };
        Some((ManuallyDrop::new(pair), ManuallyDrop::new(BounceBuffer::of_parts(&domain, 4096))))
    }

    /// A read was given up, and another one posted in its place. When the first one's completion then arrived, the
    /// bounce buffer still held its old contents, which were mistaken for the second one's bytes.
    #[test]
    fn the_completion_of_an_older_work_is_nobodys() {
        let Some((pair, mut buffer)) = pair() else { return };
        let mut read = || {
            pair.post(Work::Read, &mut buffer, 0, 4096, 0, 7).unwrap();
            POSTED.with_borrow(|posted| *posted.last().unwrap())
        };
        let complete = |number, status| COMPLETE.with_borrow_mut(|all| all.push_back((number, status)));
        let (first, second) = (read(), read());
        complete(first, abi::WC_SUCCESS);
        assert_eq!(pair.poll(), Ok(None));
        complete(first, abi::WC_SUCCESS);
        complete(second, abi::WC_RETRY_EXC_ERR);
        assert_eq!(pair.poll(), Ok(Some(Completion::Silent)));
        let third = read();
        complete(third, abi::WC_REM_ACCESS_ERR);
        assert_eq!(pair.poll(), Ok(Some(Completion::Refused)));
        // A device that keeps reporting completions is not polled without end.
        (0..100).for_each(|_| complete(first, abi::WC_SUCCESS));
        assert_eq!(pair.poll(), Ok(None));
        assert!(COMPLETE.with_borrow(VecDeque::len) > 90);
    }
}
