// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which physical memory is hot, as something other than the pager counts it.
//!
//! The pager sees faults only, so it cannot tell how hot resident memory is (`docs/temperature.md`). A
//! [`HotnessSource`] can: [`DamonSource`] asks the kernel's DAMON, and [`Monitor`] asks a hotness monitor of a CXL
//! device (CHMU, CXL 3.2), for which Linux has no driver yet. [`model`] is such a monitor in memory, for tests.
//!
//! `source.rs` has the trait, `monitor.rs` the driver of a monitor, `monitor/bits.rs` its registers, `locate.rs` where
//! a device has them, `damon.rs` the other source. A monitor counts by the device's own addresses; `decoders.rs` and
//! `interleave.rs` find the host's, with `xor_maps.rs` where `cedt.rs` finds that the firmware interleaves by XOR.
//!
//! ```
//! use std::time::Duration;
//!
//! use aquifer_hotness::model::{Model, Shape};
//! use aquifer_hotness::{HotnessSource, Monitor, Settings};
//!
//! let device = Model::shared(Shape::default());
//! let mut monitor = Monitor::open("model".into(), device.clone(), 0, 0, Settings::default())?;
//! monitor.start()?;
//! for _ in 0..100 {
//!     device.borrow_mut().access(0x5000, false);
//! }
//! device.borrow_mut().pass(Duration::from_millis(100));
//! assert_eq!(monitor.collect()?.ranges[0].start, 0x5000);
//! # Ok::<(), aquifer_hotness::HotnessFailure>(())
//! ```

#![forbid(unsafe_code)]

mod cedt;
mod damon;
mod decoders;
mod failure;
mod interleave;
mod locate;
mod monitor;
mod registers;
mod source;
mod xor_maps;

pub use cedt::{CEDT, CEDT_BYTES_MAX, Cedt, CedtFailure};
pub use damon::{DamonSource, damon_counts};
pub use decoders::decoders_of;
pub use failure::HotnessFailure;
pub use interleave::{Decoder, GRANULARITIES, WAYS, host_ranges};
pub use locate::{Block, DEVICES, blocks_of, devices_with_monitors, monitor_blocks};
pub use monitor::bits::{Capabilities, Entry, EpochLength, Requests, Status};
pub use monitor::model;
pub use monitor::{Monitor, Settings};
pub use registers::{RegisterFailure, Registers};
pub use source::{Addresses, Hot, HotRange, HotnessSource};
pub use xor_maps::XorMaps;
