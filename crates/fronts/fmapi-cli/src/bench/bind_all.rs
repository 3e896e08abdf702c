// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Binds every device that is bound nowhere, spread over the virtual switches, and unbinds it again: how long it takes
//! to bind everything in a box.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use aquifer_fmapi::*;
use aquifer_fmapi_client::{Client, Failure, Hop};

use super::BenchFailure;

/// The longest time that binding everything may take, from nothing bound, for a box of this many devices and hosts.
pub(crate) const BOX_BAR: (usize, usize, Duration) = (22, 3, Duration::from_secs(5));

/// The outcome of binding all devices.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    /// How many devices, a logical device counting as one.
    pub devices: usize,
    /// How many hosts, each with a virtual switch, have them.
    pub hosts: usize,
    /// From the start of the connection until the last one was bound.
    pub time: Duration,
    /// What could not be unbound afterwards, as virtual switch and vPPB.
    pub left_bound: Vec<(u8, u8)>,
}

impl Bound {
    /// Returns whether the bar is kept; None if there is less to bind than the bar is about.
    pub fn keeps_bar(&self) -> Option<bool> {
        let (devices, hosts, time) = BOX_BAR;
        (self.devices >= devices && self.hosts >= hosts).then_some(self.time < time)
    }
}

/// Binds what is free, then unbinds it. If something cannot be bound, what was bound is unbound, too.
pub(super) fn bind_all(client: &mut Client, begun: Instant) -> Result<Bound, BenchFailure> {
    let (switches, targets) = (switches(client)?, targets(client)?);
    let binds = plan(&switches, &targets);
    let (mut bound, mut failed) = (Vec::new(), None);
    for bind in &binds {
        match client.bind(bind) {
            Ok(()) => bound.push((bind.vcs_id, bind.vppb_id)),
            Err(failure) => {
                failed = Some(failure);
                break;
            }
        }
    }
    let time = begun.elapsed();
    let left_bound = unbind_all(client, &bound);
    match failed {
        Some(failure) => Err(BenchFailure { failure, left_bound }),
        None => {
            let hosts: BTreeSet<u8> = bound.iter().map(|(vcs_id, _)| *vcs_id).collect();
            Ok(Bound { devices: bound.len(), hosts: hosts.len(), time, left_bound })
        }
    }
}

/// Unbinds these, and returns those that could not be unbound.
fn unbind_all(client: &mut Client, bound: &[(u8, u8)]) -> Vec<(u8, u8)> {
    let mut left = bound.to_vec();
    left.retain(|(vcs_id, vppb_id)| {
        let option = UnbindOption::ManagedRemoval;
        client.unbind(&UnbindVppb { vcs_id: *vcs_id, vppb_id: *vppb_id, option }).is_err()
    });
    left
}

fn switches(client: &mut Client) -> Result<Vec<VirtualSwitch>, Failure> {
    let count = client.identify_switch()?.virtual_switches;
    (0..count).map(|vcs_id| client.virtual_switch(vcs_id)).collect()
}

/// Returns what can be bound: ports with a single logical device, and logical devices with memory.
fn targets(client: &mut Client) -> Result<Vec<(u8, u16)>, Failure> {
    let ports: Vec<u8> = (0..client.identify_switch()?.physical_ports).collect();
    let mut targets = Vec::new();
    for port in client.port_states(&ports)? {
        match port.device_type {
            DeviceType::Type3Sld => targets.push((port.port_id, BindVppb::NO_LD)),
            DeviceType::Type3Mld => {
                let lds = client.ld_allocations(&[Hop::Port(port.port_id)])?.allocations;
                let with_memory = (0..).zip(lds).filter(|(_, ld)| ld.range_1 != 0 || ld.range_2 != 0);
                targets.extend(with_memory.map(|(ld_id, _)| (port.port_id, ld_id)));
            }
            _ => {}
        }
    }
    Ok(targets)
}

/// Returns which vPPB gets which device: the virtual switches in turn, as long as there are unbound vPPBs.
fn plan(switches: &[VirtualSwitch], targets: &[(u8, u16)]) -> Vec<BindVppb> {
    let is_bound = |(port_id, ld_id): &(u8, u16)| {
        let mut vppbs = switches.iter().flat_map(|switch| &switch.vppbs);
        vppbs.any(|vppb| match vppb.status {
            BindingStatus::Port => vppb.port_id == *port_id,
            BindingStatus::Ld => vppb.port_id == *port_id && u16::from(vppb.ld_id) == *ld_id,
            _ => false,
        })
    };
    let free = |switch: &VirtualSwitch| {
        let unbound = (0..).zip(switch.vppbs.clone()).filter(|(_, vppb)| vppb.status == BindingStatus::Unbound);
        let vcs_id = switch.vcs_id;
        unbound.map(move |(vppb_id, _)| (vcs_id, vppb_id)).collect::<Vec<(u8, u8)>>()
    };
    let lists: Vec<_> = switches.iter().filter(|switch| switch.state == VcsState::Enabled).map(free).collect();
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    let in_turn = (0..longest).flat_map(|at| lists.iter().filter_map(move |list| list.get(at)));
    let unbound = targets.iter().filter(|target| !is_bound(target));
    let bind = |((vcs_id, vppb_id), (port_id, ld_id)): (&(u8, u8), &(u8, u16))| BindVppb {
        vcs_id: *vcs_id,
        vppb_id: *vppb_id,
        port_id: *port_id,
        ld_id: *ld_id,
    };
    in_turn.zip(unbound).map(bind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(vcs_id: u8, state: VcsState, vppbs: &[(BindingStatus, u8, u8)]) -> VirtualSwitch {
        let vppb = |(status, port_id, ld_id): &(BindingStatus, u8, u8)| Vppb {
            status: *status,
            port_id: *port_id,
            ld_id: *ld_id,
        };
        let vppbs: Vec<Vppb> = vppbs.iter().map(vppb).collect();
        VirtualSwitch { vcs_id, state, usp_id: 0, vppbs_total: vppbs.len() as u8, vppbs }
    }

    const FREE: (BindingStatus, u8, u8) = (BindingStatus::Unbound, 0, 0);

    #[test]
    fn devices_are_spread_over_enabled_switches_and_what_is_bound_is_left_alone() {
        let switches = [
            switch(0, VcsState::Enabled, &[FREE, (BindingStatus::Port, 1, 0xff), FREE]),
            switch(1, VcsState::Disabled, &[FREE; 4]),
            switch(2, VcsState::Enabled, &[(BindingStatus::InProgress, 7, 0), (BindingStatus::Ld, 2, 1), FREE]),
        ];
        let no_ld = BindVppb::NO_LD;
        let targets = [(0, no_ld), (1, no_ld), (2, 0), (2, 1), (2, 2), (3, no_ld)];
        let planned: Vec<_> = plan(&switches, &targets)
            .iter()
            .map(|bind| ((bind.vcs_id, bind.vppb_id), (bind.port_id, bind.ld_id)))
            .collect();
        // Port 3 finds no vPPB.
        assert_eq!(planned, [((0, 0), (0, no_ld)), ((2, 2), (2, 0)), ((0, 2), (2, 2))]);
        assert!(plan(&switches, &[]).is_empty() && plan(&[], &targets).is_empty());
    }

    #[test]
    fn the_bar_is_about_a_whole_box() {
        let bound = |devices, hosts, seconds| Bound {
            devices,
            hosts,
            time: Duration::from_secs(seconds),
            left_bound: Vec::new(),
        };
        assert_eq!(bound(22, 3, 4).keeps_bar(), Some(true));
        assert_eq!(bound(30, 4, 5).keeps_bar(), Some(false));
        assert_eq!([bound(21, 3, 9).keeps_bar(), bound(22, 2, 9).keeps_bar()], [None, None]);
    }
}
