// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The client's side of the CXL fabric-manager API (FM API): asks a switch, and the devices behind it.
//!
//! A [`Client`] sends a command over a [`Transport`] and waits for the answer that belongs to it. Every wait has a
//! limit in [`Limits`]. It resends a command by its return code, or when the answer to a command that only reads was
//! lost; it runs one background operation at a time, and waits for it; it keeps the gaps that a peer needs, and refuses
//! commands that crash a peer, as its [`Dialect`](aquifer_fmapi::Dialect) says. A [`Failure`] says what failed, whether
//! the command was carried out, and what to do. A [`Trace`] gets every message.
//!
//! The path of a command: `commands.rs` (typed calls), `client.rs` (retries), `tunnel.rs` (devices behind the switch),
//! `exchange.rs` (one message and its answer), then a transport: `tcp.rs` and `unix.rs` (MCTP packets on a stream,
//! `packet_stream.rs`), `mailbox.rs` (a PCI function's registers, `resource_file.rs`), `af_mctp.rs` (the kernel's
//! MCTP), `opencis.rs` (OpenCIS's framing), `recorded.rs` (a trace that answers).
//!
//! ```no_run
//! use aquifer_fmapi_client::{Client, Limits, PeerAddress, SystemClock};
//!
//! let peer: PeerAddress = "tcp:127.0.0.1:2508".parse()?;
//! let limits = Limits::default();
//! let mut client = Client::new(peer.open(limits.connect)?, SystemClock::shared(), limits);
//! client.recognise()?;
//! let switch = client.identify_switch()?;
//! println!("{} ports, {} virtual switches", switch.physical_ports, switch.virtual_switches);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod af_mctp;
mod background;
mod client;
mod clock;
mod commands;
mod commands_of_devices;
mod exchange;
mod extents;
mod failure;
mod limits;
mod mailbox;
mod opencis;
mod packet_stream;
mod peer_address;
mod recorded;
mod resource_file;
mod tcp;
mod trace;
mod transport;
mod tunnel;
mod unix;

pub use af_mctp::AfMctp;
pub use client::Client;
pub use clock::{Clock, SystemClock, VirtualClock};
pub use commands::LogContents;
pub use failure::{Cause, Effect, Failure};
pub use limits::Limits;
pub use mailbox::{Mailbox, RegisterFailure, Registers};
pub use opencis::OpenCis;
pub use packet_stream::{PacketStream, Stream};
pub use peer_address::{OpenFailure, PeerAddress};
pub use recorded::Recorded;
pub use resource_file::{ResourceFile, VfioFunction};
pub use tcp::Tcp;
pub use trace::{
    Describer, Direction, LINKTYPE_MCTP, PcapFailure, PcapMessage, PcapReader, PcapTrace, TextTrace, Trace, Traced,
};
pub use transport::{Transport, TransportFailure};
pub use tunnel::Hop;
pub use unix::Unix;
