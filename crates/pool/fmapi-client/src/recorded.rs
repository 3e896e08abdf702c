// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A peer that replays a trace: answers each request as the recorded peer did. So a peer can be checked elsewhere, from
//! a file written by `--trace`.
//!
//! A request that was sent several times gets the recorded answers in their order, and then repeats the last one. Tags
//! are not compared; an answer gets the tags of its request. A request that the recorded peer did not answer gets no
//! answer. One that was not recorded is answered with Unsupported (0003h), because most commands are optional.

use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::time::Duration;

use aquifer_fmapi::{Category, Dialect, HEADER_BYTES, Message, MessageType, Opcode, ReturnCode};

use crate::trace::{PcapFailure, PcapReader};
use crate::transport::{Transport, TransportFailure};

/// Maximum number of messages in a trace: a check has a few hundred.
const MESSAGES_MAX: usize = 1 << 16;
/// The longest message, the same as over TCP.
const MESSAGE_BYTES_MAX: usize = 8192;
/// Maximum depth of nested tunnels: the second tunnel ends at a logical device.
const TUNNELS_MAX: usize = 3;
const TAG_AT: usize = 1;
/// Target, type and size of a tunnelled message, which follows.
const TUNNEL_BYTES: usize = 4;

/// A transport that replays a trace.
#[derive(Debug)]
pub struct Recorded {
    name: String,
    /// None where the peer did not answer.
    answers: BTreeMap<Vec<u8>, VecDeque<Option<Vec<u8>>>>,
    waiting: VecDeque<Vec<u8>>,
}

impl Recorded {
    /// Reads a trace.
    pub fn read(name: String, input: impl Read) -> Result<Self, PcapFailure> {
        let mut reader = PcapReader::new(input)?;
        let (mut answers, mut asked) = (BTreeMap::<_, VecDeque<_>>::new(), None::<Vec<u8>>);
        let mut messages = 0;
        while let Some(message) = reader.read()? {
            messages += 1;
            if messages > MESSAGES_MAX {
                return Err(PcapFailure::Format { what: format!("it has more than {MESSAGES_MAX} messages") });
            }
            match (message.is_sent, &asked) {
                (true, _) => {
                    let unanswered = asked.replace(message.bytes);
                    unanswered.into_iter().for_each(|it| answers.entry(untagged(&it)).or_default().push_back(None));
                }
                // A late answer belongs to an earlier request, and a notification to no request.
                (false, Some(request)) if message.bytes.get(TAG_AT) == request.get(TAG_AT) => {
                    answers.entry(untagged(request)).or_default().push_back(Some(message.bytes));
                    asked = None;
                }
                (false, _) => {}
            }
        }
        asked.into_iter().for_each(|it| answers.entry(untagged(&it)).or_default().push_back(None));
        Ok(Self { name, answers, waiting: VecDeque::new() })
    }
}

impl Transport for Recorded {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn message_bytes_max(&self) -> usize {
        MESSAGE_BYTES_MAX
    }

    fn message_type(&self, opcode: Opcode) -> Option<MessageType> {
        Some(MessageType::of(opcode))
    }

    fn send(&mut self, message: &[u8], dialect: &'static Dialect, _: Duration) -> Result<(), TransportFailure> {
        let recorded = match self.answers.get_mut(&untagged(message)) {
            Some(answers) if answers.len() > 1 => answers.pop_front(),
            Some(answers) => answers.front().cloned(),
            None => None,
        };
        let answer = match recorded {
            Some(None) => return Ok(()),
            Some(Some(mut answer)) => {
                let tunnels = tunnels(message);
                let places = places_of_tags(message, tunnels).into_iter().zip(places_of_tags(&answer, tunnels));
                places.for_each(|(from, to)| answer[to] = message[from]);
                answer
            }
            None => unsupported(message, dialect),
        };
        self.waiting.push_back(answer);
        Ok(())
    }

    fn receive(&mut self, _: &'static Dialect, _: Duration) -> Result<Vec<u8>, TransportFailure> {
        self.waiting.pop_front().ok_or(TransportFailure::TimedOut)
    }
}

fn unsupported(message: &[u8], dialect: &Dialect) -> Vec<u8> {
    let byte = |at: usize| message.get(at).copied().unwrap_or(0);
    let opcode = Opcode(u16::from_le_bytes([byte(3), byte(4)]));
    Message::new(Category::Response, byte(TAG_AT), opcode, ReturnCode::UNSUPPORTED, Vec::new()).encode(dialect)
}

/// Returns the offsets of the tags in a request or an answer: the message's own, and those of tunnelled messages.
fn places_of_tags(message: &[u8], tunnels: usize) -> Vec<usize> {
    let mut at = 0;
    let mut places = Vec::new();
    while places.len() <= tunnels && message.len() >= at + HEADER_BYTES {
        places.push(at + TAG_AT);
        at = inner(message, at);
    }
    places
}

/// Returns the number of messages that are tunnelled in a request.
fn tunnels(request: &[u8]) -> usize {
    let is_tunnel = |at: usize| request.get(at + 3..at + 5) == Some(&Opcode::TUNNEL.0.to_le_bytes());
    let (mut at, mut tunnels) = (0, 0);
    while tunnels < TUNNELS_MAX && is_tunnel(at) {
        at = inner(request, at);
        tunnels += 1;
    }
    tunnels
}

/// Returns the offset of the message in a tunnel. In some dialects the message type precedes it; no category has that
/// value.
fn inner(message: &[u8], at: usize) -> usize {
    let at = at + HEADER_BYTES + TUNNEL_BYTES;
    let has_type = message.get(at).is_some_and(|first| *first > 1 && MessageType::of_bits(*first).is_some());
    at + usize::from(has_type)
}

fn untagged(request: &[u8]) -> Vec<u8> {
    let mut untagged = request.to_vec();
    places_of_tags(request, tunnels(request)).into_iter().for_each(|place| untagged[place] = 0);
    untagged
}
