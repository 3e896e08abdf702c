// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A CXL switch in software, with devices behind its ports, as its fabric manager sees it: the device's side of the FM
//! API.
//!
//! Pure: no I/O, no clock, no threads. [`Switch::receive`] is given the time, a connection and the bytes of a request,
//! and returns an [`Outcome`]: the bytes of the answer, the event records that were written, and the [`Effect`]s that a
//! driver carries out. [`Switch::advance`] ends what is due. Hosts act by a [`HostAction`]; failures are injected by
//! an [`Injection`].
//!
//! A [`Switch::driven`] one stands before memory that is not its own, such as a pool's: it orders binds, unbinds and
//! allocations from its driver (`orders.rs`), and takes its state over from there (`adopted.rs`).
//!
//! The path of a request: `switch.rs` (answer or refuse), `commands.rs` (which component answers it), then one file for
//! each command set: `generic.rs` (00h to 04h), `ports.rs` (51h), `virtual_switch.rs` (52h), `tunnel.rs` (53h),
//! `lds.rs` and `qos.rs` (54h), `heads.rs` (55h), `capacity.rs` (56h).
//!
//! ```
//! use aquifer_cxl_switch::{Connection, Switch, SwitchConfig};
//! use aquifer_fmapi::{Dialect, Identify, Message, Request, ReturnCode};
//!
//! let mut switch = Switch::new(SwitchConfig::example())?;
//! let manager = Connection { id: 1, ingress_port_id: 0, dialect: &Dialect::STANDARD };
//! let request = Message::request(7, &Request::Identify(Identify {}), manager.dialect);
//! let outcome = switch.receive(0, &manager, &request.encode(manager.dialect));
//! let answer = Message::decode(&outcome.replies[0].bytes, manager.dialect)?;
//! assert_eq!((answer.header.tag, answer.header.return_code), (7, ReturnCode::SUCCESS));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod adopted;
mod background;
mod capacity;
mod commands;
mod component;
mod config;
mod config_check;
mod context;
mod device;
mod events;
mod extents;
mod generic;
mod heads;
mod host;
mod injection;
mod lds;
mod memory;
mod orders;
mod outcome;
mod ports;
mod qos;
mod registers;
mod switch;
mod tunnel;
mod virtual_switch;

pub use adopted::{Adopted, AdoptedBinding, AdoptedDevice, AdoptedHost, Progress};
pub use config::{
    CapacityConfig, DeviceConfig, DeviceKind, PortConfig, PortRole, RegionConfig, SwitchConfig, VirtualSwitchConfig,
};
pub use config_check::ConfigFailure;
pub use context::Connection;
pub use host::{HostAction, HostAnswer, HostFailure};
pub use injection::{AnswerFailure, Injection, InjectionRefusal};
pub use orders::{Ending, Order};
pub use outcome::{Effect, Event, Outcome, Refusal, Reply};
pub use switch::Switch;
