// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! All switches of a fabric manager.
//!
//! Threads: each switch is read, and gets its steps, on its own thread, which ends before the call does: a slow
//! switch delays a round, and none of them waits for another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aquifer_fabric::{
    DeviceId, DeviceReport, End, HostId, LdBinding, LdId, MemberId, Source, Step, SwitchId, Topology, VolumeId,
    VppbAddress,
};
use aquifer_fmapi_client::{Clock, SystemClock};

use crate::config::SwitchConfig;
use crate::direct_orders::Act;
use crate::events::{Notice, Severity};
use crate::inventory::Inventory;
use crate::one_switch::Peer;
use crate::parts;
use crate::step_failure::NotDone;
use crate::twice;

/// How long after a round its steps may still be started. Steps that have not been started by then are decided again in
/// the next round, on newer reports.
const ROUND_AGE_MAX: Duration = Duration::from_secs(1);

/// What hosts reach of devices: for checks whether a member is valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    lds: BTreeSet<(HostId, DeviceId, LdId)>,
    extents: BTreeSet<(HostId, DeviceId, VolumeId, MemberId)>,
}

impl Reached {
    /// Returns whether a host reaches the bytes of a member.
    pub fn has(&self, host: &HostId, source: &Source, (volume, member): (VolumeId, MemberId)) -> bool {
        match source {
            Source::DynamicCapacity { device } => {
                self.extents.contains(&(host.clone(), device.clone(), volume, member))
            }
            Source::LogicalDevice { device, ld_id } => self.lds.contains(&(host.clone(), device.clone(), *ld_id)),
            Source::Slabs { .. } => false,
        }
    }
}

/// All switches that a fabric manager manages.
pub struct Switches {
    peers: Vec<Peer>,
    clock: Arc<dyn Clock>,
    /// What hosts reached by the last report of each device.
    reached: BTreeMap<DeviceId, Reached>,
    notices: Vec<Notice>,
    /// Switches that are left out of the topology, which is reported once.
    left_out: BTreeSet<SwitchId>,
    /// Devices that are left out because an earlier switch has them, which is reported once, and their names there.
    elsewhere: BTreeMap<DeviceId, DeviceId>,
}

impl Switches {
    /// Creates the switches of a configuration, none of which has been asked yet.
    pub fn new(configs: &[SwitchConfig]) -> Switches {
        let clock = SystemClock::shared();
        let peers = configs.iter().map(|config| Peer::at_address(config.clone(), Arc::clone(&clock))).collect();
        Switches::of(peers, clock)
    }

    /// Combines these switches, on this clock.
    pub fn of(peers: Vec<Peer>, clock: Arc<dyn Clock>) -> Switches {
        let (reached, notices, left_out, elsewhere) = Default::default();
        Switches { peers, clock, reached, notices, left_out, elsewhere }
    }

    /// Returns a topology with all switches and their devices. A switch that contradicts the rest is left out, with a
    /// notice, and so is a device that an earlier switch has.
    pub fn topology(&mut self, base: &Topology) -> Topology {
        let mut whole = base.clone();
        self.find_devices_elsewhere();
        for peer in &self.peers {
            let (name, mut parts) = (&peer.config().name, whole.parts().clone());
            let outcome = match parts.switches.contains_key(name) {
                true => Err(format!("another switch is called {name}; rename one of them")),
                false => {
                    parts::add(peer.config(), peer.inventory(), &self.elsewhere, &mut parts);
                    Topology::new(parts).map_err(|why| why.to_string())
                }
            };
            match outcome {
                Ok(topology) => {
                    whole = topology;
                    self.left_out.remove(name);
                }
                Err(why) if self.left_out.insert(name.clone()) => {
                    let message = format!("switch {name} is left out: {why}");
                    self.notices.push(Notice { kind: "SwitchLeftOut", severity: Severity::Critical, message });
                }
                Err(_) => {}
            }
        }
        whole
    }

    /// Finds the devices that an earlier switch has.
    fn find_devices_elsewhere(&mut self) {
        let elsewhere = twice::shown_twice(self.peers.iter().map(|peer| &**peer.inventory()));
        for (name, first) in elsewhere.iter().filter(|(name, _)| !self.elsewhere.contains_key(*name)) {
            let message = format!(
                "device {name} is left out: it is {first}, which another switch has; list it in a pool by that name"
            );
            self.notices.push(Notice { kind: "DeviceLeftOut", severity: Severity::Warning, message });
        }
        self.elsewhere = elsewhere;
    }

    /// Returns how long after a round a command to a switch may still arrive, as `ROUND_AGE_MAX` and the limits of the
    /// slowest switch have it: sending a command and its answer each have a limit. Zero without switches.
    pub fn command_time_max(&self) -> Duration {
        let answers = self.peers.iter().map(|peer| Duration::from_millis(peer.config().answer_ms) * 2);
        answers.max().map_or(Duration::ZERO, |slowest| slowest + ROUND_AGE_MAX)
    }

    /// Reads all switches, and reports each device; None for one about which nothing is known now.
    pub fn reports(&mut self) -> BTreeMap<DeviceId, Option<DeviceReport>> {
        let mut all = BTreeMap::new();
        for reports in on_threads(&mut self.peers, Peer::reports) {
            all.extend(reports);
        }
        for peer in &mut self.peers {
            self.notices.extend(peer.take_notices());
        }
        self.find_devices_elsewhere();
        for (name, report) in &all {
            if let Some(report) = report {
                let reached = reached(&self.peers, name, report);
                self.reached.insert(name.clone(), reached);
            }
        }
        twice::share_bindings(&self.elsewhere, &mut all);
        all
    }

    /// Returns what hosts reach, by the last report of each device: a switch that is silent goes on working.
    pub fn reached(&self) -> Reached {
        let mut all = Reached::default();
        for reached in self.reached.values().cloned() {
            all.lds.extend(reached.lds);
            all.extents.extend(reached.extents);
        }
        all
    }

    /// Returns whether a device is at one of these switches.
    pub fn has(&self, device: &DeviceId) -> bool {
        self.peers.iter().any(|peer| peer.inventory().devices.contains_key(device))
    }

    /// Carries out the steps of a round, and returns what became of each, in their order.
    pub fn send(&mut self, steps: &[Step]) -> Vec<Result<(), NotDone>> {
        let begun = self.clock.now();
        let clock = Arc::clone(&self.clock);
        let is_over = move || clock.now().saturating_sub(begun) > ROUND_AGE_MAX;
        let late = || NotDone::Busy("the round has ended; the next one decides the remaining steps".into());
        let done = on_threads(&mut self.peers, |peer| {
            let is_ours =
                |step: &Step| matches!(step.end(), End::Device(name) if peer.inventory().devices.contains_key(&name));
            let ours: Vec<usize> = (0..steps.len()).filter(|at| is_ours(&steps[*at])).collect();
            let mut done = Vec::new();
            for at in ours {
                done.push((at, if is_over() { Err(late()) } else { peer.send(&steps[at]) }));
            }
            done
        });
        let nobody = |step: &Step| match step.end() {
            End::Device(name) => NotDone::Refused(format!("no switch has device {name}; list the devices")),
            _ => NotDone::Refused(format!("a switch cannot {step}; send it to its receiver")),
        };
        let mut outcomes: Vec<Result<(), NotDone>> = steps.iter().map(|step| Err(nobody(step))).collect();
        done.into_iter().flatten().for_each(|(at, outcome)| outcomes[at] = outcome);
        outcomes
    }

    /// Carries out an operator's order.
    pub fn act(&mut self, act: &Act) -> Result<(), NotDone> {
        let is_its = |peer: &Peer| match act {
            Act::Bind { vppb: VppbAddress { switch, .. }, .. }
            | Act::ControlPort { switch, .. }
            | Act::Unbind { vppb: VppbAddress { switch, .. } } => peer.config().name == *switch,
            Act::SetBandwidth { device, .. } | Act::SetCongestion { device, .. } | Act::SetSize { device, .. } => {
                peer.inventory().devices.contains_key(device)
            }
        };
        match self.peers.iter_mut().find(|peer| is_its(peer)) {
            Some(peer) => peer.act(act),
            None => NotDone::refused("no switch of the configuration has it; list the switches and their devices"),
        }
    }

    /// Returns what happened since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Returns the newest inventory of each switch.
    pub fn inventories(&self) -> BTreeMap<SwitchId, Arc<Inventory>> {
        self.peers.iter().map(|peer| (peer.config().name.clone(), Arc::clone(peer.inventory()))).collect()
    }
}

/// Returns what hosts reach of one device.
fn reached(peers: &[Peer], device: &DeviceId, report: &DeviceReport) -> Reached {
    let host_of = |vppb: &VppbAddress| {
        let peer = peers.iter().find(|peer| peer.config().name == vppb.switch)?;
        crate::report::host_of(peer.config(), peer.inventory(), vppb.vcs_id.0).cloned()
    };
    let mut reached = Reached::default();
    let is_there = report.availability != aquifer_fabric::Availability::Draining;
    for (ld_id, ld) in report.lds.iter().filter(|_| is_there) {
        if let LdBinding::Bound(vppb) = &ld.binding {
            reached.lds.extend(host_of(vppb).map(|host| (host, device.clone(), *ld_id)));
        }
    }
    for (volume, tags) in &report.extents {
        let accepted = tags.iter().filter(|(_, extent)| extent.accepted);
        reached
            .extents
            .extend(accepted.map(|(member, extent)| (extent.host.clone(), device.clone(), *volume, *member)));
    }
    reached
}

/// Does something with each switch; with more than one, each on its own thread.
fn on_threads<T: Send>(peers: &mut [Peer], act: impl Fn(&mut Peer) -> T + Sync) -> Vec<T> {
    if let [peer] = peers {
        return vec![act(peer)];
    }
    std::thread::scope(|scope| {
        let act = &act;
        let threads: Vec<_> = peers.iter_mut().map(|peer| scope.spawn(move || act(peer))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a panic ends the daemon")).collect()
    })
}
