// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a client sends and receives, message by message, for a person (`trace/text.rs`) and for programs that read pcap
//! files (`trace/pcap.rs`).

mod pcap;
mod text;

use std::io;
use std::time::Duration;

use aquifer_fmapi::{Dialect, MessageType};

pub use pcap::{LINKTYPE_MCTP, PcapFailure, PcapMessage, PcapReader, PcapTrace};
pub use text::{Describer, TextTrace};

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The client sent it to the peer.
    Sent,
    /// The peer sent it, and it is the answer.
    Received,
    /// The peer sent it, and it was dropped, because it is not the answer.
    Dropped,
}

/// One message on its way between client and peer.
#[derive(Clone, Copy, Debug)]
pub struct Traced<'a> {
    /// The time since 1970 in UTC.
    pub unix: Duration,
    /// The peer's address.
    pub peer: &'a str,
    /// Whether it was sent, received or dropped.
    pub direction: Direction,
    /// Its MCTP message type; None over a mailbox, which has none.
    pub kind: Option<MessageType>,
    /// The dialect in which it was written or read.
    pub dialect: &'static Dialect,
    /// Its bytes, from the CCI header on. Over a mailbox, the header is the client's own.
    pub bytes: &'a [u8],
}

/// Receives every message that a client sends or gets.
pub trait Trace: Send {
    /// Records a message. A trace that cannot be written does not keep commands from being carried out.
    fn record(&mut self, message: &Traced<'_>);

    /// Writes out what is buffered. The first error of all, if there was one.
    fn finish(&mut self) -> io::Result<()>;
}
