// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The driver: asks the engine for a step, carries it out, and reports.
//!
//! Pure: generic over the kernel, the tier and the clock (`space.rs`), which the pager implements with system calls and
//! the simulator with models. So both run this code. It is monomorphised, so it adds no virtual call to the pager's
//! fault path.
//!
//! - `fault.rs`: one fault, from the first question to the installed block. It makes room with `evict.rs`, and fetches
//!   and writes back with `transfer.rs`.
//! - `worker.rs`: the background work, with `batch.rs` for many small blocks at a time.
//! - `make_resident.rs`: the memory of a system call becomes resident.
//! - `discard.rs`: memory that the program gives back. `quiesce.rs`: brings the space to rest before a fork.
//! - `shards.rs`: several engines that divide one space. `debts.rs`: pays the debts of those that have no worker.
//! - `engine_lock.rs`: the locked engine; every call that changes it is recorded there.
//! - `fatal.rs`: errors that a space cannot recover from. The driver returns them; the caller that created the space
//!   decides what happens next.
//!
//! Next on the path of a fault: `fault.rs`.

mod batch;
mod debts;
mod discard;
mod engine_lock;
mod evict;
mod fatal;
mod fault;
pub mod inspect;
mod make_resident;
mod observer;
pub mod planted;
mod quiesce;
mod shards;
mod space;
mod transfer;
mod worker;

pub use batch::{BATCH_MAX, Sealed};
pub use debts::{NextTrial, owes, pay_debts};
pub use discard::{Discard, discard};
pub use engine_lock::{LockTimer, LockedEngine, NoTape, Tape};
pub use evict::{evict, stays};
pub use fatal::Fatal;
pub use fault::{Outcome, WAIT_MAX, check_timeout, resolve};
pub use make_resident::{Access, Brought, bring};
pub use observer::{Count, FaultKind, Loss, Observer, Resolved};
pub use quiesce::quiesce;
pub use shards::{Shards, balance, borrow_for, divide, settle, spent};
pub use space::{
    Clock, Direction, Exchanger, Frames, Gone, InPlace, Installed, Kernel, Populated, ReadFailure, Ready, Refused,
    Space, Store, StoreQueue, TakeAway, Transfer,
};
pub use worker::{Turn, Worker, WorkerClock};
