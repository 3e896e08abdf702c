// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One message and its answer: waits for the message with the same tag, and drops all others.
//!
//! A message that is not the answer is a late answer to an earlier request, a notification of the peer's, or garbage.
//! Tags are 8 bits, so a late answer is mistaken for another one only if it is 256 commands late and has the same
//! opcode; the limit on the wait for an answer excludes that in practice.

use std::time::Duration;

use aquifer_fmapi::{Category, DecodeFailure, Dialect, HEADER_BYTES, Header, Message, Payload, Reader};

use crate::client::Client;
use crate::failure::{Cause, Effect, Failure};
use crate::trace::Direction;
use crate::transport::TransportFailure;

/// How a received message relates to the pending request.
enum Arrived {
    Answer(Message),
    /// The answer, with a length that differs from the one in its header.
    Damaged(DecodeFailure),
    Stray,
}

impl Client {
    /// Sends a message and waits for its answer. `effect` is that of a failure after the message may have been sent.
    pub(crate) fn exchange(&mut self, message: &Message, effect: Effect) -> Result<Message, Failure> {
        let opcode = message.header.opcode;
        let raw = self.exchange_raw(message, effect, classify)?;
        raw.map_err(|failure| self.failure(opcode, Cause::Damaged(failure), effect))
    }

    /// Returns the bytes of the answer to Identify, whose dialect is not known yet: they have the tag, and a header's
    /// length.
    pub(crate) fn exchange_unknown(&mut self, message: &Message) -> Result<Vec<u8>, Failure> {
        let is_answer = |raw: &[u8]| raw.len() >= HEADER_BYTES && raw[1] == message.header.tag && raw[0] != 0;
        let opcode = message.header.opcode;
        let bytes = self.exchange_raw(message, Effect::NotCarriedOut, |raw, _, _| {
            if !is_answer(raw) {
                return Arrived::Stray;
            }
            // Wrapped, so that both callers share the loop.
            let header = Header {
                category: Category::Response,
                tag: raw[1],
                opcode,
                payload_bytes: 0,
                is_background: false,
                return_code: aquifer_fmapi::ReturnCode::SUCCESS,
                vendor_status: 0,
            };
            Arrived::Answer(Message { header, payload: raw.to_vec() })
        })?;
        Ok(bytes.map(|message| message.payload).unwrap_or_default())
    }

    fn exchange_raw(
        &mut self,
        message: &Message,
        effect: Effect,
        classify: impl Fn(&[u8], &Header, &Dialect) -> Arrived,
    ) -> Result<Result<Message, DecodeFailure>, Failure> {
        let opcode = message.header.opcode;
        let bytes = message.encode(self.dialect);
        let bytes_max = self.message_bytes_max.min(self.transport.message_bytes_max());
        if bytes.len() > bytes_max {
            let cause = Cause::TooLong { bytes: bytes.len(), bytes_max };
            return Err(self.failure(opcode, cause, Effect::NotCarriedOut));
        }
        self.keep_gap();
        if self.end_at.is_some_and(|end_at| self.clock.now() >= end_at) {
            return Err(self.failure(opcode, Cause::TooSlow, Effect::NotCarriedOut));
        }
        self.traced(Direction::Sent, opcode, &bytes);
        let sent = self.transport.send(&bytes, self.dialect, self.limits.answer);
        sent.map_err(|failure| self.failure(opcode, Cause::Transport(failure), effect))?;
        let begun = self.clock.now();
        let mut strays = 0;
        loop {
            let waited = self.clock.now().saturating_sub(begun);
            let left = self.limits.answer.saturating_sub(waited);
            let received = match left {
                Duration::ZERO => Err(TransportFailure::TimedOut),
                left => self.transport.receive(self.dialect, left),
            };
            match received {
                Ok(raw) => {
                    let arrived = classify(&raw, &message.header, self.dialect);
                    let is_stray = matches!(arrived, Arrived::Stray);
                    self.traced(if is_stray { Direction::Dropped } else { Direction::Received }, opcode, &raw);
                    match arrived {
                        Arrived::Answer(answer) => return Ok(Ok(self.ended(opcode, answer))),
                        Arrived::Damaged(failure) => return Ok(Err(self.ended(opcode, failure))),
                        Arrived::Stray => strays += 1,
                    }
                }
                Err(TransportFailure::TimedOut) => {
                    let waited = self.clock.now().saturating_sub(begun);
                    let cause = Cause::NoAnswer { waited, strays };
                    return Err(self.ended(opcode, self.failure(opcode, cause, effect)));
                }
                Err(failure) => return Err(self.failure(opcode, Cause::Transport(failure), effect)),
            }
            if strays > self.limits.strays {
                let waited = self.clock.now().saturating_sub(begun);
                let cause = Cause::NoAnswer { waited, strays };
                return Err(self.ended(opcode, self.failure(opcode, cause, effect)));
            }
        }
    }
}

/// Returns whether these bytes are the answer to a request with this header.
fn classify(raw: &[u8], sent: &Header, dialect: &Dialect) -> Arrived {
    match Message::decode(raw, dialect) {
        Ok(message) if message.check_answers(sent, dialect).is_ok() => Arrived::Answer(message),
        Ok(_) => Arrived::Stray,
        Err(failure) => {
            let header = Header::read(&mut Reader::new(raw, dialect));
            let message = header.map(|header| Message { header, payload: Vec::new() });
            match message {
                Ok(message) if message.check_answers(sent, dialect).is_ok() => Arrived::Damaged(failure),
                _ => Arrived::Stray,
            }
        }
    }
}
