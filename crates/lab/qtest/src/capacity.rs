// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The commands for dynamic capacity of a fabric manager, 5600h to 5605h, which later versions of QEMU have. In QEMU
//! 10, the monitor offers capacity and asks for it back, and the device's own mailbox says what a host has accepted.
//!
//! Answers are those of the later QEMU: one host; extents are prescribed; a region's configuration stays as it is. It
//! forgets tags, so they are kept here.

use std::collections::BTreeMap;

use aquifer_fmapi::{
    CAPACITY_UNIT_BYTES, DcExtentLists, DcRegion, DcdCapabilities, Dialect, Extent, HostDcRegions, InitiateDcAdd,
    InitiateDcRelease, Message, Opcode, Payload, Reader, Request, ReturnCode, Tunnel, Tunnelled, Writer, add_policy,
};
use serde_json::{Value, json};

use crate::host::DcHost;
use crate::monitor::Monitor;
use crate::process::REGION_BYTES;
use crate::relay::Supplement;

const DIALECT: &Dialect = &Dialect::QEMU;
/// The policy of a release of the extents that the request lists, as a number and as a bit.
const LISTED: u8 = 1;
/// In the mask of block sizes, a bit for each power of two.
const BLOCK_SIZES: u64 = 2 << 20;

/// The device with dynamic capacity at one port.
pub struct Capacity {
    port: u8,
    monitor: Monitor,
    host: DcHost,
    tags: BTreeMap<u64, [u8; 16]>,
}

impl Capacity {
    /// The commands for `mem{port}`, whose mailbox a host has.
    pub fn new(port: u8, monitor: Monitor, host: DcHost) -> Self {
        Self { port, monitor, host, tags: BTreeMap::new() }
    }

    fn region(&mut self, number: u8) -> Option<DcRegion> {
        self.host.regions().get(usize::from(number)).copied()
    }

    /// What QEMU's monitor says to an order about listed extents.
    fn order(&mut self, command: &str, region: u8, extents: &[Extent], more: Value) -> ReturnCode {
        let Some(found) = self.region(region) else { return ReturnCode::INVALID_INPUT };
        let offset = |extent: &Extent| extent.start.checked_sub(found.base);
        let Some(offsets) = extents.iter().map(offset).collect::<Option<Vec<u64>>>() else {
            return ReturnCode::INVALID_PHYSICAL_ADDRESS;
        };
        let listed = extents.iter().zip(offsets).map(|(extent, at)| json!({ "offset": at, "len": extent.length }));
        let mut arguments = json!({
            "path": format!("/machine/peripheral/mem{}", self.port), "host-id": 0, "region": region,
            "extents": listed.collect::<Vec<_>>(),
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            arguments[key] = value.clone();
        }
        match self.monitor.execute(command, arguments) {
            Ok(_) => ReturnCode::SUCCESS,
            // Misaligned, already added, offered and not answered, or not there.
            Err(_) => ReturnCode::INVALID_EXTENT_LIST,
        }
    }

    fn add(&mut self, add: &InitiateDcAdd) -> ReturnCode {
        if add.policy != add_policy::PRESCRIPTIVE || add.host_id != 0 {
            return ReturnCode::INVALID_INPUT;
        }
        let more = json!({ "selection-policy": "prescriptive" });
        let code = self.order("cxl-add-dynamic-capacity", add.region, &add.extents, more);
        if code == ReturnCode::SUCCESS {
            self.tags.extend(add.extents.iter().map(|extent| (extent.start, add.tag)));
        }
        code
    }

    fn release(&mut self, release: &InitiateDcRelease) -> ReturnCode {
        if release.flags & 0xf != LISTED || release.host_id != 0 {
            return ReturnCode::INVALID_INPUT;
        }
        let Some(first) = release.extents.first() else { return ReturnCode::INVALID_INPUT };
        let region = self.host.regions().iter().position(|it| (it.base..it.base + it.length).contains(&first.start));
        let Some(region) = region.and_then(|region| u8::try_from(region).ok()) else {
            return ReturnCode::INVALID_PHYSICAL_ADDRESS;
        };
        let more = json!({ "removal-policy": "prescriptive", "forced-removal": release.flags >> 4 & 1 == 1 });
        self.order("cxl-release-dynamic-capacity", region, &release.extents, more)
    }

    fn extents(&mut self) -> DcExtentLists {
        let (mut extents, generation) = self.host.extents();
        for extent in &mut extents {
            // A host may have accepted a part of an offer.
            let offered = self.tags.range(..=extent.start).next_back();
            extent.tag = offered.map_or([0; 16], |(_, tag)| *tag);
        }
        let total = extents.len() as u32;
        DcExtentLists { host_id: 0, first_extent: 0, total, generation, extents }
    }

    /// Nothing, for a command that the device answers itself.
    fn carry_out(&mut self, request: &Message) -> Option<(ReturnCode, Vec<u8>)> {
        let success = |write: &dyn Fn(&mut Writer<'_>)| {
            let mut out = Writer::new(DIALECT);
            write(&mut out);
            Some((ReturnCode::SUCCESS, out.bytes))
        };
        let opcode = request.header.opcode;
        match Request::decode(opcode, &request.payload, DIALECT) {
            Ok(Request::GetDcd(_)) => {
                let total_capacity = 2 * REGION_BYTES / CAPACITY_UNIT_BYTES;
                let mut block_sizes = [0; 8];
                block_sizes[..2].fill(BLOCK_SIZES);
                let (add_policies, release_policies) = (1 << add_policy::PRESCRIPTIVE, 1 << LISTED);
                let sanitize_on_release = 0;
                success(&|out| {
                    let (hosts, regions) = (1, 2);
                    let dcd = DcdCapabilities {
                        hosts,
                        regions,
                        add_policies,
                        release_policies,
                        sanitize_on_release,
                        total_capacity,
                        block_sizes,
                    };
                    dcd.write(out);
                })
            }
            Ok(Request::GetHostDcRegions(asked)) => {
                let all = self.host.regions();
                let from = usize::from(asked.first_region).min(all.len());
                let regions = all[from..].iter().take(asked.count.into()).copied().collect();
                let answer = HostDcRegions { host_id: 0, region_count: all.len() as u8, regions, room: [0; 4] };
                success(&|out| answer.write(out))
            }
            Ok(Request::GetDcExtentLists(asked)) => {
                let mut list = self.extents();
                list.first_extent = asked.first_extent;
                let from = list.extents.drain(..).skip(asked.first_extent as usize);
                list.extents = from.take(asked.count as usize).collect();
                success(&|out| list.write(out))
            }
            Ok(Request::InitiateDcAdd(add)) => Some((self.add(&add), Vec::new())),
            Ok(Request::InitiateDcRelease(release)) => Some((self.release(&release), Vec::new())),
            Ok(Request::SetDcRegion(_)) => Some((ReturnCode::UNSUPPORTED, Vec::new())),
            _ => None,
        }
    }
}

impl Supplement for Capacity {
    fn answer(&mut self, request: &Message) -> Option<Message> {
        if request.header.opcode != Opcode::TUNNEL {
            return None;
        }
        let tunnel: Tunnel = Reader::new(&request.payload, DIALECT).read().ok()?;
        if tunnel.port_or_ld_id != self.port {
            return None;
        }
        let inner = Message::decode(&tunnel.message, DIALECT).ok()?;
        let (code, payload) = self.carry_out(&inner)?;
        let mut answer = Message::answer(&inner.header, code, None, DIALECT);
        answer.header.payload_bytes = payload.len() as u32;
        answer.payload = payload;
        let mut out = Writer::new(DIALECT);
        Tunnelled { message: answer.encode(DIALECT) }.write(&mut out);
        let mut outer = Message::answer(&request.header, ReturnCode::SUCCESS, None, DIALECT);
        outer.header.payload_bytes = out.bytes.len() as u32;
        outer.payload = out.bytes;
        Some(outer)
    }
}
