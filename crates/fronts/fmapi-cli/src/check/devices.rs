// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The devices behind the ports, through tunnels: 53h, 54h and 56h, as far as they only read.

use aquifer_fmapi::*;
use aquifer_fmapi_client::Hop;

use super::{Step, Suite, length};

/// Bytes of an answer to Get LD Info, and to Get DCD Info.
const LD_BYTES: usize = 11;
const DCD_BYTES: usize = 84;

impl Suite<'_> {
    pub(super) fn devices(&mut self) -> Step {
        self.direct()?;
        let devices = self.devices.clone();
        let all = ["tunnel", "tunnel.format", "ports.type", "lds", "lds.allocations", "qos", "capacity"];
        let Some((first, _)) = devices.first() else {
            self.skip_all(&all, "no port has a memory device");
            self.skip_all(&["capacity.regions", "capacity.extents"], "no port has a memory device");
            return Ok(());
        };
        let tunnelled = self.dialect.tunnel_has_message_type;
        self.judge("tunnel.format", tunnelled.then(|| "a message type precedes the tunnelled message".into()));
        let identity = self.client.identify(&[Hop::Port(*first)]);
        if let Some(identity) = self.typed("tunnel", identity)? {
            self.answered.push(Opcode::TUNNEL);
            let component = identity.component_type.filter(|it| *it != ComponentType::Type3);
            self.judge("tunnel", component.map(|it| format!("the device at port {first} is {it:?}")));
        }
        let mlds: Vec<u8> = devices.iter().filter(|(_, is_mld)| *is_mld).map(|(port, _)| *port).collect();
        self.logical_devices(&mlds)?;
        for (port, _) in &devices {
            self.capacity(*port)?;
        }
        self.skip_all(&["capacity", "capacity.regions", "capacity.extents"], "no device has dynamic capacity");
        Ok(())
    }

    /// Checks that the switch itself does not answer a command of MLDs.
    fn direct(&mut self) -> Step {
        if let Some((code, _)) = self.probe("lds.direct", &[], Opcode::GET_LD_INFO, &[])? {
            let is_answered = code == ReturnCode::SUCCESS;
            self.judge("lds.direct", is_answered.then(|| "the switch answers Get LD Info".into()));
        }
        Ok(())
    }

    fn logical_devices(&mut self, mlds: &[u8]) -> Step {
        let Some(port) = mlds.first() else {
            self.skip_all(&["ports.type", "lds", "lds.allocations", "qos"], "no port has an MLD");
            return Ok(());
        };
        let path = [Hop::Port(*port)];
        let answer = self.probe("lds", &path, Opcode::GET_LD_INFO, &[])?;
        let capabilities = match answer {
            Some((ReturnCode::SUCCESS, payload)) => {
                self.conforms("ports.type");
                self.judge("lds", length(&payload, LD_BYTES));
                Reader::new(&payload, self.dialect).read::<LdCapabilities>().ok()
            }
            Some((code, _)) => {
                self.departs("ports.type", format!("the MLD at port {port} answers Get LD Info by {code}"));
                None
            }
            None => None,
        };
        let Some(capabilities) = capabilities else {
            self.skip_all(&["ports.type", "lds", "lds.allocations", "qos"], "no device answers Get LD Info");
            return Ok(());
        };
        let allocations = self.client.ld_allocations(&path);
        if let Some(allocations) = self.typed("lds.allocations", allocations)? {
            self.judge("lds.allocations", wrong_allocations(&capabilities, &allocations));
        }
        let control = self.client.qos_control(&path);
        if let Some(control) = self.typed("qos", control)? {
            let (moderate, severe) = (control.egress_moderate_percent, control.egress_severe_percent);
            let is_wrong = moderate == 0 || severe > 100 || moderate > severe;
            self.judge("qos", is_wrong.then(|| format!("moderate from {moderate} %, severe from {severe} %")));
        }
        Ok(())
    }

    /// Judges the first device that has dynamic capacity.
    fn capacity(&mut self, port: u8) -> Step {
        if self.is_judged("capacity") {
            return Ok(());
        }
        let path = [Hop::Port(port)];
        let dcd = match self.probe("capacity", &path, Opcode::GET_DCD_INFO, &[])? {
            Some((ReturnCode::SUCCESS, payload)) => {
                self.judge("capacity", length(&payload, DCD_BYTES));
                Reader::new(&payload, self.dialect).read::<DcdCapabilities>().ok()
            }
            _ => None,
        };
        let Some(dcd) = dcd else { return Ok(()) };
        let regions = self.client.dc_regions(&path, 0);
        let Some(regions) = self.typed("capacity.regions", regions)? else { return Ok(()) };
        let too_many = regions.regions.len() > dcd.regions.into();
        let too_many = too_many.then(|| format!("{} regions of {}", regions.regions.len(), dcd.regions));
        self.judge("capacity.regions", too_many.or_else(|| wrong_regions(&regions.regions)));
        let extents = self.client.dc_extents(&path, 0);
        if let Some(extents) = self.typed("capacity.extents", extents)? {
            self.judge("capacity.extents", wrong_extents(&regions.regions, &extents.extents));
        }
        Ok(())
    }
}

fn wrong_allocations(capabilities: &LdCapabilities, allocations: &LdAllocations) -> Option<String> {
    if usize::from(capabilities.ld_count) != allocations.allocations.len() {
        return Some(format!("{} of {} logical devices", allocations.allocations.len(), capabilities.ld_count));
    }
    let Some(unit) = allocations.granularity.bytes() else { return Some("the granularity is reserved".into()) };
    let units = allocations.allocations.iter().map(|one| one.range_1.saturating_add(one.range_2));
    let bytes = units.fold(0u64, |sum, units| sum.saturating_add(units.saturating_mul(unit)));
    let is_more = bytes > capabilities.memory_bytes;
    is_more.then(|| format!("{bytes} bytes are allocated of {}", capabilities.memory_bytes))
}

fn wrong_regions(regions: &[DcRegion]) -> Option<String> {
    let mut end = 0;
    for (index, region) in regions.iter().enumerate() {
        let block = region.block_bytes;
        if block == 0 || !region.length.is_multiple_of(block) || !region.base.is_multiple_of(block) {
            return Some(format!("region {index} has no whole blocks of {block} bytes"));
        }
        if region.base < end {
            return Some(format!("region {index} overlaps the one before"));
        }
        end = region.base.saturating_add(region.length);
    }
    None
}

fn wrong_extents(regions: &[DcRegion], extents: &[Extent]) -> Option<String> {
    let mut sorted = extents.to_vec();
    sorted.sort_by_key(|extent| extent.start);
    let mut end = 0;
    for extent in sorted {
        let last = extent.start.saturating_add(extent.length);
        let holds = |region: &&DcRegion| {
            extent.start >= region.base
                && last <= region.base.saturating_add(region.length)
                && region.block_bytes != 0
                && (extent.start - region.base).is_multiple_of(region.block_bytes)
                && extent.length.is_multiple_of(region.block_bytes)
        };
        if extent.length == 0 || !regions.iter().any(|region| holds(&region)) {
            return Some(format!("the extent at {:#x} is in no region, or has no whole blocks", extent.start));
        }
        if extent.start < end {
            return Some(format!("the extent at {:#x} overlaps another one", extent.start));
        }
        end = last;
    }
    None
}
