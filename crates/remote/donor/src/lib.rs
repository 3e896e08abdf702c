// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Lends this machine's memory to programs on other machines, in slabs, under leases.
//!
//! [`Donor::start`] maps the memory and serves it over TCP until [`Donor::stop`], or shares it with programs on this
//! machine through a Unix socket. [`leases`] decides who has which slab, and is pure; `aquifer_wire` defines the
//! messages on a connection. The path of a connection: it arrives through `listen_socket.rs`, `listener.rs` gives it a
//! thread, `channel.rs` decrypts it, `connection.rs` reads its frames, and `service.rs` carries out their requests. The
//! memory: `memory.rs`, and where it is shared, `lent_files.rs`; `one_sided.rs` is what borrowers reach by RDMA, and
//! `sessions.rs` records each borrower's queue pairs and windows. `control.rs` is the interface for this machine's
//! administrator; `control_end.rs` is that for fabric managers, whose orders `reservations.rs` carries out.
//!
//! ```
//! use aquifer_donor::{Donor, Security, Settings, Source};
//!
//! let settings = Settings::new(([127, 0, 0, 1], 0).into(), 64 << 20, Source::Anonymous, Security::Plain);
//! let donor = Donor::start(settings, Box::new(|line| eprintln!("{line}")))?;
//! println!("lends at {}", donor.address());
//! donor.stop(std::time::Duration::ZERO);
//! # Ok::<(), aquifer_donor::StartFailure>(())
//! ```

#![forbid(unsafe_code)]

mod admission;
mod audit;
mod body_budget;
mod body_buffer;
mod channel;
mod connection;
mod control;
mod control_end;
mod counters;
mod donor;
mod fencing_file;
pub mod leases;
mod lent_file;
mod lent_files;
mod listen_socket;
mod listener;
mod local_socket;
mod memory;
mod one_sided;
mod prometheus;
mod rate_limit;
mod reload;
mod reservations;
mod service;
mod sessions;
mod settings;
mod status;
mod tenants;
mod wiper;

pub use aquifer_control::{ChannelStatus, ManagerAddress, NotStarted};
pub use aquifer_fabric::DonorId;
pub use aquifer_tls::{CredentialFailure, Files};
pub use aquifer_wire::EVERY_BYTE;
pub use control::{ControlFailure, control_status, reclaim};
pub use control_end::ManagedStatus;
pub use donor::{Donor, Observer};
pub use fencing_file::RememberFailure;
pub use memory::Source;
pub use prometheus::{managed_to_prometheus, to_prometheus};
pub use settings::{
    Address, CONNECTIONS_MAX, DeviceChoice, LEASE, Managed, Security, Settings, StartFailure, Timeouts,
};
pub use status::{StatusFailure, local_status, status};
pub use tenants::{Limits, TenantId, TenantLimits};
