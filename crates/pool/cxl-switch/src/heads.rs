// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Multi-headed devices (55h): which head has which logical device, and the heads' links. CXL 3.1, section 7.6.7.5.

use aquifer_fmapi::{GetHeadMap, GetHeads, Head, HeadMap, Heads, Request, Response, ReturnCode};

use crate::context::{Answer, Context};
use crate::switch::Switch;

/// Bytes before the map, before the heads, and of one head.
const MAP_BYTES: usize = 8;
const HEADS_BYTES: usize = 4;
const HEAD_BYTES: usize = 9;

impl Switch {
    /// Returns the answer of the LD pool of a device; None for a command of another set.
    pub(crate) fn answer_of_heads(&self, context: &Context, device: usize, request: &Request) -> Option<Answer> {
        match request {
            Request::GetHeadMap(get) => Some(self.head_map(context, device, get).map(Response::GetHeadMap)),
            Request::GetHeads(get) => Some(self.heads(context, device, get).map(Response::GetHeads)),
            _ => None,
        }
    }

    fn head_map(&self, context: &Context, device: usize, get: &GetHeadMap) -> Result<HeadMap, ReturnCode> {
        let device = &self.devices[device];
        let first = usize::from(get.first_ld_id);
        if first >= device.lds.len() || get.count_max == 0 {
            return Err(ReturnCode::INVALID_INPUT);
        }
        let count = usize::from(get.count_max).min(context.entries(MAP_BYTES, 1));
        let port_of = |head: u8| device.config.ports.get(usize::from(head)).copied().unwrap_or(HeadMap::NO_HEAD);
        Ok(HeadMap {
            ld_count: device.lds.len() as u8,
            head_count: device.config.ports.len() as u8,
            first_ld_id: get.first_ld_id,
            heads: device.lds[first..].iter().take(count).map(|ld| port_of(ld.head)).collect(),
        })
    }

    fn heads(&self, context: &Context, device: usize, get: &GetHeads) -> Result<Heads, ReturnCode> {
        let ports = &self.devices[device].config.ports;
        let range = usize::from(get.first_head)..usize::from(get.first_head) + usize::from(get.count);
        let fits = range.len() <= context.entries(HEADS_BYTES, HEAD_BYTES);
        let asked = ports.get(range).filter(|asked| !asked.is_empty() && fits).ok_or(ReturnCode::INVALID_INPUT)?;
        let head = |port_id: &u8| {
            let port = self.port_status(*port_id);
            Head {
                port_id: *port_id,
                link: [
                    port.link_width_max,
                    port.link_width,
                    port.supported_speeds,
                    port.link_speed_max,
                    port.link_speed,
                ],
                link_state: port.link_state.bits(),
                first_lane: port.first_lane,
                link_flags: port.link_flags as u8,
            }
        };
        Ok(Heads { heads: asked.iter().map(head).collect() })
    }
}
