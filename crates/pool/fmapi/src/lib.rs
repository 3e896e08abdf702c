// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The CXL fabric-manager API (FM API): messages of the component command interface (CCI) and their bytes.
//!
//! Pure: no sockets, no clock, no state. A [`Message`] is a [`Header`] of twelve bytes and a payload; [`Request`] and
//! [`Response`] are the payloads that this crate knows, one variant for each opcode of the table in `command.rs`.
//! Peers disagree about some bytes; a [`Dialect`] says how each of them writes them, as data.
//!
//! All numbers are little-endian. Sections are those of the CXL specification, revision 3.1, unless they say otherwise.
//!
//! ```
//! use aquifer_fmapi::{BindVppb, Dialect, Message, Opcode, Request};
//!
//! let request = Request::BindVppb(BindVppb { vcs_id: 0, vppb_id: 4, port_id: 3, ld_id: BindVppb::NO_LD });
//! let message = Message::request(7, &request, &Dialect::STANDARD);
//! let bytes = message.encode(&Dialect::STANDARD);
//! assert_eq!(Message::decode(&bytes, &Dialect::STANDARD)?, message);
//! assert_eq!(message.header.opcode, Opcode(0x5201));
//! # Ok::<(), aquifer_fmapi::DecodeFailure>(())
//! ```

#![forbid(unsafe_code)]

mod codec;
mod command;
mod dialect;
mod dynamic_capacity;
mod event;
mod event_data;
mod failure;
mod generic;
mod header;
mod ld;
mod log;
mod mctp;
mod mctp_control;
mod memory_device;
mod memory_event;
mod message;
mod multi_head;
mod opcode;
mod physical_switch;
mod qos;
mod return_code;
mod tunnel;
mod virtual_switch;

pub use codec::{Payload, Reader, Writer};
pub use command::{Command, Request, Response};
pub use dialect::{CategoryBits, Dialect, IdentifyAnswer, LengthBits};
pub use dynamic_capacity::*;
pub use event::*;
pub use event_data::*;
pub use failure::{DecodeFailure, ResponseFailure};
pub use generic::*;
pub use header::{Category, HEADER_BYTES, Header, PAYLOAD_BYTES_MAX};
pub use ld::*;
pub use log::*;
pub use mctp::{Assembler, MESSAGE_BYTES_MAX, MessageType, PACKET_BYTES, Received, packets};
pub use mctp_control::Endpoint;
pub use memory_device::*;
pub use memory_event::*;
pub use message::Message;
pub use multi_head::*;
pub use opcode::Opcode;
pub use physical_switch::*;
pub use qos::*;
pub use return_code::{Disposition, ReturnCode};
pub use tunnel::*;
pub use virtual_switch::*;
