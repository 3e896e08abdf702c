// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a step of the switch leads to: answers, event records, and what a driver carries out.

use std::fmt;

use aquifer_fmapi::{DecodeFailure, EventLog, EventRecord, Extent};

use crate::injection::AnswerFailure;
use crate::orders::Order;

/// What one step led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Messages to send, in this order.
    pub replies: Vec<Reply>,
    /// Records that were written or lost, in this order.
    pub events: Vec<Event>,
    /// What the driver carries out, in this order.
    pub effects: Vec<Effect>,
    /// Why the received bytes get no answer.
    pub refusal: Option<Refusal>,
}

impl Outcome {
    /// Adds an answer, which fails as it was injected.
    pub(crate) fn answer(&mut self, reply: Reply, failure: Option<&AnswerFailure>) {
        match failure {
            Some(failure) => self.replies.extend(failure.spoil(reply)),
            None => self.replies.push(reply),
        }
    }
}

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The connection to send it on.
    pub connection: u32,
    /// When to send it at the earliest, on the same clock as the step's argument.
    pub due_ns: u64,
    /// The bytes of the message.
    pub bytes: Vec<u8>,
    /// True for the answer to an earlier request, which has waited for the driver of a driven switch.
    pub is_of_order: bool,
}

/// A record of an event log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The device whose log it is; None for the switch.
    pub device: Option<usize>,
    /// The log that the record belongs to.
    pub log: EventLog,
    /// The record that was written or lost.
    pub record: EventRecord,
    /// True where the log was full, and the record was lost: its overflow flag is set.
    pub is_lost: bool,
}

/// Something that changed for a host or a device, and that a driver carries out. Devices are numbered as in the
/// configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A host is to see an error in a vPPB.
    AerGenerated {
        /// The virtual CXL switch.
        vcs_id: u8,
        /// The virtual switch's upstream port (0), or its vPPB with this number, counted from 1.
        instance: u8,
        /// The error: its bit position, and its severity in bit 31.
        error: u32,
        /// The header of the packet that had the error.
        tlp_header: [u8; 32],
    },
    /// A vPPB was bound.
    Bound {
        /// The virtual CXL switch.
        vcs_id: u8,
        /// The vPPB in that switch.
        vppb_id: u8,
        /// The port that it was bound to.
        port_id: u8,
        /// The logical device that it was bound to; None for the whole port.
        ld_id: Option<u8>,
    },
    /// Capacity no longer belongs to any host.
    CapacityFreed {
        /// The device that has the capacity.
        device: usize,
        /// The extent that was freed.
        extent: Extent,
        /// True where its bytes are to be zeros.
        is_wiped: bool,
    },
    /// A host is offered capacity. It answers by [`HostAction::AnswerOffer`](crate::HostAction::AnswerOffer).
    CapacityOffered {
        /// The device that has the capacity.
        device: usize,
        /// The host that gets it.
        host_id: u16,
        /// The extents that are offered.
        extents: Vec<Extent>,
    },
    /// A host is asked to release capacity. It answers by
    /// [`HostAction::ReleaseCapacity`](crate::HostAction::ReleaseCapacity).
    CapacityReleaseRequested {
        /// The device that has the capacity.
        device: usize,
        /// The host that is asked.
        host_id: u16,
        /// The extents that are to be released.
        extents: Vec<Extent>,
    },
    /// Capacity was taken from a host by force.
    CapacityRevoked {
        /// The device that has the capacity.
        device: usize,
        /// The host that has lost it.
        host_id: u16,
        /// The extents that were taken.
        extents: Vec<Extent>,
    },
    /// A device appeared at its ports, or disappeared from them.
    DevicePresence {
        /// The device that appeared or disappeared.
        device: usize,
        /// True where it appeared.
        is_present: bool,
    },
    /// The switch interrupts the host of its mailbox: a log has records.
    Interrupted {
        /// The log that has records.
        log: EventLog,
    },
    /// A logical device has more or less memory.
    LdResized {
        /// The device of the logical device.
        device: usize,
        /// The logical device that was resized.
        ld_id: u8,
        /// Its new size in bytes.
        bytes: u64,
    },
    /// The bytes of a logical device are to be zeros. An SLD is its own logical device 0.
    LdWiped {
        /// The device of the logical device.
        device: usize,
        /// The logical device that is wiped.
        ld_id: u8,
    },
    /// The driver of a driven switch is to carry this out, and then to say how it ended by
    /// [`Switch::conclude`](crate::Switch::conclude).
    Ordered {
        /// The number of the order.
        id: u64,
        /// What it asks for.
        order: Order,
    },
    /// A port's PERST# was asserted or deasserted.
    PerstChanged {
        /// The port whose PERST# has changed.
        port_id: u8,
        /// True where it is asserted.
        is_asserted: bool,
    },
    /// A port's bridge was reset.
    PpbReset {
        /// The port whose bridge was reset.
        port_id: u8,
    },
    /// A vPPB was unbound.
    Unbound {
        /// The virtual CXL switch.
        vcs_id: u8,
        /// The vPPB in that switch.
        vppb_id: u8,
        /// The port that it was unbound from.
        port_id: u8,
        /// The logical device that it was unbound from; None for the whole port.
        ld_id: Option<u8>,
    },
}

/// Why bytes get no answer: their sender does not speak the FM API, or not in the dialect of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The bytes have no header.
    NoHeader(DecodeFailure),
    /// The bytes are a response.
    NotARequest,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHeader(failure) => {
                write!(f, "the message has no CCI header ({failure}); send 12 bytes of header, in the right dialect")
            }
            Self::NotARequest => f.write_str("the message is a response; a switch takes requests alone"),
        }
    }
}

impl std::error::Error for Refusal {}
