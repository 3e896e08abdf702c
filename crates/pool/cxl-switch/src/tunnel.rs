// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Messages and accesses that are passed on (53h). CXL 3.1, section 7.6.7.3.
//!
//! The switch passes messages to the devices behind its ports; a device passes them to a logical device, or to its LD
//! pool. Neither of these has a tunnel, so there are at most two levels. The inner answer reports failures of the
//! tunnelled command; the outer one says whether the target was reached.

use aquifer_fmapi::{
    Dialect, HEADER_BYTES, LdConfigurationRequest, LdMemoryData, LdMemoryRequest, Request, Response, ReturnCode,
    ReturnData, Tunnel, TunnelTarget, Tunnelled,
};

use crate::context::{Answer, Context};
use crate::memory::MemoryFailure;
use crate::switch::{Cci, Switch};

/// Bytes of an answer before the message, and one more for the message type, which some dialects have.
const TUNNEL_BYTES: usize = 5;
/// Bytes before the data of a memory access.
const DATA_BYTES: usize = 4;
/// The number of an MLD's FM-owned LD.
const FM_OWNED_LD: u16 = 0xffff;

impl Switch {
    /// Returns the answer; None for a command of another set.
    pub(crate) fn answer_of_tunnels(&mut self, context: &mut Context, at: Cci, request: &Request) -> Option<Answer> {
        Some(match request {
            Request::Tunnel(tunnel) => self.pass_on(context, at, tunnel),
            Request::LdConfigurationRequest(request) => self.configure_ld(request),
            Request::LdMemoryRequest(request) => self.access_ld(context, request),
            _ => return None,
        })
    }

    fn pass_on(&mut self, context: &mut Context, at: Cci, tunnel: &Tunnel) -> Answer {
        let id = tunnel.port_or_ld_id;
        let to = match (at, tunnel.target) {
            (Cci::Switch, TunnelTarget::PortOrLd) => Cci::Device(self.reach(id)?),
            (Cci::Device(device), TunnelTarget::PortOrLd) if usize::from(id) < self.devices[device].lds.len() => {
                Cci::Ld(device, id)
            }
            (Cci::Device(device), TunnelTarget::LdPool) if self.devices[device].pool.is_some() => Cci::Pool(device),
            _ => return Err(ReturnCode::INVALID_INPUT),
        };
        if tunnel.message.len() < HEADER_BYTES {
            return Err(ReturnCode::INVALID_PAYLOAD_LENGTH);
        }
        let room = context.room;
        context.room = room.saturating_sub(TUNNEL_BYTES + HEADER_BYTES);
        let answer = self.converse(context, to, &tunnel.message, None);
        context.room = room;
        let dialect: &Dialect = context.connection.dialect;
        match answer {
            Ok(answer) => Ok(Response::Tunnel(Tunnelled { message: answer.encode(dialect) })),
            Err(_) => Err(ReturnCode::INVALID_INPUT),
        }
    }

    /// Returns the MLD behind a port, if the manager may access this logical device: a bound one belongs to its host.
    fn unbound_ld(&self, port_id: u8, ld_id: u16) -> Result<usize, ReturnCode> {
        let device = self.reach(port_id)?;
        let mld = &self.devices[device];
        let is_free = usize::from(ld_id) < mld.lds.len() && self.bound_lds(device) >> ld_id & 1 == 0;
        let is_good = is_free || ld_id == FM_OWNED_LD;
        if mld.is_mld() && is_good { Ok(device) } else { Err(ReturnCode::INVALID_INPUT) }
    }

    fn configure_ld(&mut self, request: &LdConfigurationRequest) -> Answer {
        let device = self.unbound_ld(request.port_id, request.ld_id)?;
        let mld = &mut self.devices[device];
        let registers = match mld.lds.get_mut(usize::from(request.ld_id)) {
            Some(ld) => &mut ld.registers,
            None => &mut mld.registers,
        };
        Ok(Response::LdConfigurationRequest(ReturnData { data: registers.access(&request.access, request.data) }))
    }

    /// Accesses memory of a logical device, at its own addresses, from 0 on. The FM-owned LD has no memory.
    fn access_ld(&mut self, context: &Context, request: &LdMemoryRequest) -> Answer {
        let device = self.unbound_ld(request.port_id, request.ld_id)?;
        let ld = self.devices[device].ld(request.ld_id).ok_or(ReturnCode::INVALID_INPUT)?;
        let reported = |failure| match failure {
            MemoryFailure::Beyond => ReturnCode::INVALID_INPUT,
            MemoryFailure::Full => ReturnCode::RESOURCES_EXHAUSTED,
        };
        let kept = ld.memory.read(request.address, request.bytes.into()).map_err(reported)?;
        if !request.is_write {
            let fits = DATA_BYTES + kept.len() <= context.room;
            let read = Response::LdMemoryRequest(LdMemoryData { bytes: request.bytes, data: kept });
            return if fits { Ok(read) } else { Err(ReturnCode::INVALID_INPUT) };
        }
        let written: Vec<u8> = kept
            .iter()
            .zip(&request.data)
            .enumerate()
            .map(|(at, (kept, new))| if is_enabled(request, at) { *new } else { *kept })
            .collect();
        ld.memory.write(request.address, &written).map_err(reported)?;
        Ok(Response::LdMemoryRequest(LdMemoryData { bytes: request.bytes, data: Vec::new() }))
    }
}

/// Returns whether a byte of a write is enabled: in the first and the last double word, one bit decides for each byte;
/// elsewhere, all bytes are enabled.
fn is_enabled(request: &LdMemoryRequest, at: usize) -> bool {
    let offset = request.address % 4 + at as u64;
    let last = (request.address % 4 + u64::from(request.bytes)).div_ceil(4) - 1;
    match offset / 4 {
        0 => request.first_byte_enables >> (offset % 4) & 1 == 1,
        word if word == last => request.last_byte_enables >> (offset % 4) & 1 == 1,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_at_both_ends_are_enabled_by_bits() {
        let enabled = |address, bytes, first_byte_enables, last_byte_enables| {
            let request =
                LdMemoryRequest { address, bytes, first_byte_enables, last_byte_enables, ..Default::default() };
            (0..bytes.into()).map(|at| is_enabled(&request, at)).collect::<Vec<bool>>()
        };
        assert_eq!(enabled(0, 4, 0b0101, 0), [true, false, true, false]);
        assert_eq!(enabled(2, 4, 0b1000, 0b0001), [false, true, true, false]);
        assert_eq!(enabled(0, 12, 0, 0b1000).iter().filter(|is_enabled| **is_enabled).count(), 5);
        assert_eq!(enabled(0, 0, 0xf, 0xf), []);
    }
}
