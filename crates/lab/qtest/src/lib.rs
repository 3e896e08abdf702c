// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! QEMU without a guest, for tests: its CXL switch and memory devices, accessed register by register.
//!
//! The CPU only executes HLT, and the test does the work of the firmware, the fabric manager and the hosts. [`find`]
//! names a program, [`Qemu`] starts it, [`Line`] is the text protocol of `-qtest`, `bus.rs` numbers the buses and finds
//! registers, [`Monitor`] is QMP. [`Relay`] puts the switch's mailbox behind a Unix socket, so that another process can
//! manage it; [`Capacity`] adds the commands for dynamic capacity that QEMU 10 has only in its monitor; [`DcHost`] is a
//! host that answers them; [`Decoders`] lead to a device's memory.

#![forbid(unsafe_code)]

mod bus;
mod capacity;
mod decoders;
mod host;
mod line;
mod monitor;
mod process;
mod program;
mod relay;

pub use bus::{Bus, Function};
pub use capacity::Capacity;
pub use decoders::Decoders;
pub use host::{DcHost, HostEvent};
pub use line::{Line, Window};
pub use monitor::Monitor;
pub use process::{DEVICE_BYTES, Machine, Qemu, REGION_BYTES};
pub use program::find;
pub use relay::{Relay, Shared, Supplement, shared};
