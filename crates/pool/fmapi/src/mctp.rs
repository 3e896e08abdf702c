// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! MCTP packets on a stream of bytes, as Jackrabbit's emulator sends them: each has 68 bytes, and the last one of a
//! message is padded with zeros. The CCI header gives the message's length.
//!
//! | offset | bytes | field |
//! |--------|-------|-------|
//! | 0 | 1 | 3:0 version, 1 |
//! | 1 | 1 | destination endpoint |
//! | 2 | 1 | source endpoint |
//! | 3 | 1 | 2:0 tag, 3 the sender owns the tag (a request), 5:4 sequence, 6 end of message, 7 start of message |
//! | 4 | 64 | body; the first byte of a message is its type: 7 the FM API, 8 the component command interface, 0 control |

use crate::codec::{Payload, Reader};
use crate::dialect::Dialect;
use crate::header::{HEADER_BYTES, Header};
use crate::opcode::Opcode;

/// Bytes of a packet, and of its header.
pub const PACKET_BYTES: usize = 68;
const PACKET_HEADER_BYTES: usize = 4;
const BODY_BYTES: usize = PACKET_BYTES - PACKET_HEADER_BYTES;
/// The longest message that is reassembled: the switch's 8 KiB, and room for the padding of the last packet.
pub const MESSAGE_BYTES_MAX: usize = (8 << 10) + BODY_BYTES;
const VERSION: u8 = 1;
const TAG: u8 = 7;
const OWNER: u8 = 1 << 3;
const END: u8 = 1 << 6;
const START: u8 = 1 << 7;
/// The number of tags, each with and without the owner bit: a request and an answer with the same number are two
/// messages (DSP0236, section 8.1). One message for each may be under way.
const TAGS: usize = 16;

/// The MCTP type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageType {
    /// The FM API, DSP0324.
    FabricManager,
    /// The component command interface, DSP0281.
    ComponentCommand,
    /// Control of MCTP itself, without a CCI header: `mctp_control.rs`.
    Control,
}

impl MessageType {
    /// Returns the type as which a command is sent: the sets of the FM API as type 7, all others as type 8.
    pub fn of(opcode: Opcode) -> Self {
        if opcode.is_fabric_manager() { Self::FabricManager } else { Self::ComponentCommand }
    }

    /// Returns the number of the type.
    pub fn bits(self) -> u8 {
        match self {
            Self::FabricManager => 7,
            Self::ComponentCommand => 8,
            Self::Control => 0,
        }
    }

    /// Returns the type with this number.
    pub fn of_bits(bits: u8) -> Option<Self> {
        [Self::FabricManager, Self::ComponentCommand, Self::Control].into_iter().find(|kind| kind.bits() == bits)
    }
}

/// A message and how it arrived, so that its answer can go back the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The MCTP type of the message.
    pub kind: MessageType,
    /// The endpoint that it is for.
    pub to: u8,
    /// The endpoint that sends it.
    pub from: u8,
    /// The tag that an answer repeats.
    pub tag: u8,
    /// True for a request.
    pub is_owner: bool,
    /// Its bytes: as many as its header says, or fewer if fewer arrived. A control message has the padding, too.
    pub bytes: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct Partial {
    sequence: u8,
    bytes: Vec<u8>,
}

/// Reassembles messages from packets. A packet that belongs to no message, or is out of order, is dropped with the
/// message that it was to continue, as MCTP specifies.
#[derive(Debug)]
pub struct Assembler {
    /// The dialect of the peer, whose headers say where messages end.
    pub dialect: &'static Dialect,
    partial: [Option<Partial>; TAGS],
}

impl Assembler {
    /// Creates an assembler for a peer that writes this dialect.
    pub fn new(dialect: &'static Dialect) -> Self {
        Self { dialect, partial: Default::default() }
    }

    /// Takes a packet. Returns the message that it ends.
    pub fn take(&mut self, packet: &[u8; PACKET_BYTES]) -> Option<Received> {
        let [version, to, from, flags, body @ ..] = packet;
        let (tag, is_owner, sequence) = (flags & TAG, flags & OWNER != 0, flags >> 4 & 3);
        if version & 0xf != VERSION {
            return None;
        }
        let place = &mut self.partial[usize::from(flags & (TAG | OWNER))];
        let mut partial = match place.take() {
            _ if flags & START != 0 => Partial { sequence, bytes: Vec::new() },
            Some(partial) if partial.sequence == sequence => partial,
            _ => return None,
        };
        if partial.bytes.len() + body.len() > MESSAGE_BYTES_MAX {
            return None;
        }
        partial.bytes.extend_from_slice(body);
        partial.sequence = (sequence + 1) & 3;
        if flags & END == 0 {
            *place = Some(partial);
            return None;
        }
        let kind = MessageType::of_bits(partial.bytes.remove(0))?;
        let mut bytes = partial.bytes;
        let header = Header::read(&mut Reader::new(&bytes, self.dialect));
        if let (Ok(header), true) = (header, kind != MessageType::Control) {
            bytes.truncate(HEADER_BYTES + header.payload_bytes as usize);
        }
        Some(Received { kind, to: *to, from: *from, tag, is_owner, bytes })
    }
}

/// Returns the packets of a message. `sequence` is the sender's counter, which continues from message to message.
pub fn packets(message: &Received, sequence: &mut u8) -> Vec<u8> {
    let body = [&[message.kind.bits()][..], &message.bytes].concat();
    let count = body.len().div_ceil(BODY_BYTES);
    let mut bytes = Vec::with_capacity(count * PACKET_BYTES);
    for (at, part) in body.chunks(BODY_BYTES).enumerate() {
        let ends = [(message.is_owner, OWNER), (at == 0, START), (at + 1 == count, END)];
        let flags = ends.iter().filter(|(holds, _)| *holds).fold(0, |flags, (_, flag)| flags | flag);
        bytes.extend_from_slice(&[VERSION, message.to, message.from, flags | *sequence << 4 | message.tag & TAG]);
        bytes.extend_from_slice(part);
        bytes.resize((at + 1) * PACKET_BYTES, 0);
        *sequence = (*sequence + 1) & 3;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::Category;
    use crate::message::Message;
    use crate::return_code::ReturnCode;

    fn message(length: usize, dialect: &Dialect) -> Received {
        let payload = (0..length).map(|at| at as u8).collect();
        let message = Message::new(Category::Request, 9, Opcode(0x5300), ReturnCode::SUCCESS, payload);
        let bytes = message.encode(dialect);
        Received { kind: MessageType::FabricManager, to: 8, from: 9, tag: 5, is_owner: true, bytes }
    }

    fn each(bytes: &[u8]) -> Vec<[u8; PACKET_BYTES]> {
        bytes.chunks(PACKET_BYTES).map(|packet| packet.try_into().expect("whole packets")).collect()
    }

    #[test]
    fn messages_of_any_length_are_put_together_again() {
        for dialect in [&Dialect::STANDARD, &Dialect::JACKRABBIT] {
            let (mut assembler, mut sequence) = (Assembler::new(dialect), 0);
            for length in [0, 50, 51, 52, 115, 116, 4096, 8180] {
                let sent = message(length, dialect);
                let all = each(&packets(&sent, &mut sequence));
                let mut taken: Vec<Option<Received>> = all.iter().map(|packet| assembler.take(packet)).collect();
                assert_eq!(taken.pop().unwrap(), Some(sent), "{length}");
                assert!(taken.iter().all(Option::is_none));
            }
        }
    }

    /// The owner bit belongs to the tag (DSP0236, section 8.1): a notification of the peer's may come between the
    /// packets of an answer.
    #[test]
    fn a_request_and_an_answer_with_the_same_tag_are_two_messages() {
        let mut assembler = Assembler::new(&Dialect::STANDARD);
        let answer = Received { is_owner: false, ..message(300, &Dialect::STANDARD) };
        let notification = message(100, &Dialect::STANDARD);
        let (long, short) = (each(&packets(&answer, &mut 2)), each(&packets(&notification, &mut 0)));
        assert_eq!((long.len(), short.len()), (5, 2));
        let order = [long[0], short[0], long[1], long[2], short[1], long[3], long[4]];
        let taken: Vec<Received> = order.iter().filter_map(|packet| assembler.take(packet)).collect();
        assert_eq!(taken, [notification, answer]);
    }

    #[test]
    fn packets_out_of_order_too_long_or_of_another_kind_are_dropped() {
        let mut assembler = Assembler::new(&Dialect::STANDARD);
        let all = each(&packets(&message(300, &Dialect::STANDARD), &mut 0));
        let mut take = |order: &[usize]| order.iter().filter_map(|at| assembler.take(&all[*at])).count();
        assert_eq!(take(&[1, 2, 3, 4]), 0);
        assert_eq!(take(&[0, 2, 3, 4]), 0);
        assert_eq!(take(&[0, 1, 0, 1, 2, 3, 4]), 1);
        let mut other = all[0];
        (other[3], other[4]) = (START | END, 0x70);
        assert_eq!(assembler.take(&other), None);
        let mut wrong = all[0];
        wrong[0] = 2;
        assert_eq!(assembler.take(&wrong), None);
        // A message without an end takes no more room than the longest one.
        let mut packet = all[0];
        assembler.take(&packet);
        for sequence in 1..1000u16 {
            packet[3] = OWNER | 5 | (sequence as u8 & 3) << 4;
            assert_eq!(assembler.take(&packet), None);
            let kept = assembler.partial[usize::from(OWNER | 5)].as_ref().map_or(0, |partial| partial.bytes.len());
            assert!(kept <= MESSAGE_BYTES_MAX);
        }
    }
}
