// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Commands to the devices behind a switch, each in a tunnel (5300h), or in a tunnel within a tunnel.

use aquifer_fmapi::{
    Category, Message, Opcode, Payload, Reader, ReturnCode, TUNNELLED_BYTES_MAX, Tunnel, TunnelTarget, Tunnelled,
    Writer,
};

use crate::client::Client;
use crate::failure::{Cause, Effect, Failure};

/// From one component to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// From the switch to the device at a port; in an MLD, to its FM-owned LD.
    Port(u8),
    /// From a device to one of its logical devices.
    Ld(u8),
    /// From a device to its LD pool.
    LdPool,
}

impl Client {
    /// Sends a command to the component at the end of a path, and returns its answer. `effect` is what a failure
    /// reports once the command may have been sent.
    pub(crate) fn send_along(
        &mut self,
        path: &[Hop],
        opcode: Opcode,
        payload: &[u8],
        effect: Effect,
    ) -> Result<Message, Failure> {
        let mut messages = vec![self.request(opcode, payload.to_vec())];
        for hop in path.iter().rev() {
            let inner = messages[messages.len() - 1].encode(self.dialect);
            let (port_or_ld_id, target) = match hop {
                Hop::Port(id) | Hop::Ld(id) => (*id, TunnelTarget::PortOrLd),
                Hop::LdPool => (0, TunnelTarget::LdPool),
            };
            let bytes_max = self.message_bytes_max.min(TUNNELLED_BYTES_MAX);
            if inner.len() > bytes_max {
                let cause = Cause::TooLong { bytes: inner.len(), bytes_max };
                return Err(self.failure(opcode, cause, Effect::NotCarriedOut));
            }
            let mut out = Writer::new(self.dialect);
            Tunnel { port_or_ld_id, target, message: inner }.write(&mut out);
            let outer = self.request(Opcode::TUNNEL, out.bytes);
            messages.push(outer);
        }
        let outermost = messages.pop().expect("at least the command itself");
        let mut answer = self.exchange(&outermost, effect).map_err(|failure| Failure { opcode, ..failure })?;
        while let Some(asked) = messages.pop() {
            if answer.header.return_code != ReturnCode::SUCCESS {
                break;
            }
            answer = self.unwrap(&answer, &asked).map_err(|cause| self.failure(opcode, cause, effect))?;
        }
        Ok(answer)
    }

    fn request(&mut self, opcode: Opcode, payload: Vec<u8>) -> Message {
        self.last_tag = self.last_tag.wrapping_add(1);
        Message::new(Category::Request, self.last_tag, opcode, ReturnCode::SUCCESS, payload)
    }

    /// Returns the answer inside a tunnel's answer.
    fn unwrap(&self, outer: &Message, asked: &Message) -> Result<Message, Cause> {
        let mut input = Reader::new(&outer.payload, self.dialect);
        let inner = Tunnelled::read(&mut input).and_then(|inner| input.finish().map(|()| inner));
        let inner = inner.and_then(|inner| Message::decode(&inner.message, self.dialect)).map_err(Cause::Damaged)?;
        match inner.check_answers(&asked.header, self.dialect) {
            Ok(()) => Ok(inner),
            Err(failure) => Err(Cause::Inconsistent { what: format!("in the tunnel, {failure}") }),
        }
    }
}
