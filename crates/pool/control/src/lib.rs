// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The control channel: how donors and host agents register with a fabric manager, report to it, and get its commands.
//!
//! An *end* (a donor or an agent) connects to the manager, by mutual TLS, and sends its [`Registration`]. From then on
//! the manager asks and the end answers, one request at a time (`message.rs`): so a command is carried out before the
//! next report is made, or is lost with the connection. An end that is not asked for a while reconnects.
//!
//! - An end implements [`End`] and starts a [`Keeper`], which keeps a channel to each of its managers (`keeper.rs`).
//! - From version 2 on, a manager with an authority renews the certificates of its ends and gives them the list of
//!   revoked ones (`issuing.rs` at the manager, `renewal.rs` at the end).
//! - From version 3 on, an end sends one whole report, and after it only changes (`reports.rs`).
//! - From version 4 on, a command says which request it is sent for.
//! - From version 5 on, an agent knows the names of its volumes, and reports them: a manager whose state was lost
//!   adopts the volumes under their names.
//! - From version 6 on, a manager asks agents for the faults of their hosts' programs (`faults.rs`, `measuring.rs`).
//! - A manager starts a [`Registrar`], which accepts ends (`registrar.rs`), decides who may register as what
//!   (`roster.rs`, pure), and carries requests (`channel.rs`).
//!
//! ```
//! use std::sync::{Arc, Mutex};
//! use aquifer_control::{Deposed, End, Query, Refused, Report};
//! use aquifer_fabric::{Command, Gate, HostReport, Incarnation, Term};
//!
//! struct Agent(Gate);
//!
//! impl End for Agent {
//!     fn report(&mut self, query: &Query) -> Result<Report, Deposed> {
//!         self.0.report_to(query.term).map_err(|_| Deposed { seen: self.0.term() })?;
//!         Ok(Report::Host(HostReport { term: self.0.term(), ..HostReport::default() }))
//!     }
//!
//!     fn carry_out(&mut self, command: &Command) -> Result<(), Refused> {
//!         self.0.admit(command).map_err(Refused::new)?;
//!         Err(Refused::new("this host has no memory for volumes; give it some"))
//!     }
//! }
//!
//! let agent: Arc<Mutex<dyn End>> = Arc::new(Mutex::new(Agent(Gate::new(Incarnation(1), Term(0)))));
//! ```

#![forbid(unsafe_code)]

mod accepting;
mod asking;
mod changes;
mod channel;
mod end;
mod failure;
mod faults;
mod issuing;
mod keeper;
mod measuring;
mod message;
mod network;
mod refusals;
mod registrar;
mod registration;
mod renewal;
mod reports;
mod roster;
mod strangers;
mod stream;

pub use aquifer_authority::{Revocations, replace};
pub use changes::{Changes, DonorChanges, HostChanges};
pub use end::{Deposed, End, Refused};
pub use failure::{ChannelFailure, NotAnAddress, NotStarted};
pub use faults::{FAULT_BUCKETS, Faults};
pub use issuing::Issuer;
pub use keeper::{ChannelStatus, Keeper, KeeperSettings, ManagerAddress};
pub use measuring::FaultFigures;
pub use message::{
    Directory, FRAME_BYTES_MAX, HEADER_BYTES, HELLO_BYTES_MAX, Message, NotAFrame, Query, Report, VERSION_NEWEST,
    VERSION_OLDEST, Whereabouts, decode, encode, payload_bytes,
};
pub use network::network;
pub use registrar::{COMMANDS_MAX, NotSent, Registrar, RegistrarSettings, Unheard};
pub use registration::{EndId, Kind, LABELS_MAX, NotARegistration, Registration};
pub use renewal::replace_readable;
pub use reports::Heard;
pub use roster::{Entry, NotRegistered, Patterns, Roster};
