// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A peer that follows a script instead of the specification, on a clock of its own.

#![allow(dead_code, reason = "each test uses less than all of it")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use aquifer_fmapi::*;
use aquifer_fmapi_client::*;

use crate::world::VirtualClock;

/// What a peer sends in answer to a request.
type Script = Box<dyn FnMut(&Message) -> Vec<Message> + Send>;

struct Scripted {
    clock: Arc<VirtualClock>,
    script: Script,
    waiting: VecDeque<Message>,
    /// True for a peer that repeats its last message for ever.
    repeats: bool,
}

impl Transport for Scripted {
    fn name(&self) -> String {
        "script".into()
    }

    fn message_bytes_max(&self) -> usize {
        8192
    }

    fn message_type(&self, _: Opcode) -> Option<MessageType> {
        None
    }

    fn send(&mut self, message: &[u8], dialect: &'static Dialect, _: Duration) -> Result<(), TransportFailure> {
        let request = Message::decode(message, dialect).unwrap();
        self.waiting = (self.script)(&request).into();
        Ok(())
    }

    fn receive(&mut self, dialect: &'static Dialect, wait: Duration) -> Result<Vec<u8>, TransportFailure> {
        let Some(message) = self.waiting.pop_front() else {
            self.clock.sleep(wait);
            return Err(TransportFailure::TimedOut);
        };
        if self.repeats && self.waiting.is_empty() {
            self.waiting.push_back(message.clone());
        }
        Ok(message.encode(dialect))
    }
}

/// Returns a client of a peer that follows a script.
pub fn client(repeats: bool, script: impl FnMut(&Message) -> Vec<Message> + Send + 'static) -> Client {
    let clock = Arc::<VirtualClock>::default();
    let scripted = Scripted { clock: Arc::clone(&clock), script: Box::new(script), waiting: VecDeque::new(), repeats };
    Client::new(Box::new(scripted), clock, Limits::default())
}

/// Returns an answer to a request.
pub fn answer(asked: &Message, code: ReturnCode, response: Option<&Response>) -> Message {
    Message::answer(&asked.header, code, response, &Dialect::STANDARD)
}
