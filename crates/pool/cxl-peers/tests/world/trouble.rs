// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What operators order and what goes wrong; what must be true after each round, and when everything is settled.

use aquifer_cxl_switch::Injection;
use aquifer_fabric::*;
use aquifer_fmapi::{EventLog, ReturnCode, Vppb};

use super::{DCD, MLD, MLD_LDS, World, id, wire};

/// An operator's order.
#[derive(Clone, Debug)]
pub enum Order {
    Bind(VolumeName, HostId),
    Create(VolumeName, Box<VolumeSpec>),
    Grow(VolumeName, Bytes),
    Release(VolumeName),
    Unbind(VolumeName),
}

impl World {
    /// Lets something happen before a round, at times.
    pub fn something_happens(&mut self) {
        let is_troubled = self.random.below(100) < 80;
        wire::lock(&self.shared).is_troubled = is_troubled;
        for _ in 0..2 {
            if self.random.one_in(3) {
                let order = self.random_order();
                self.orders.push(order);
            }
        }
        match self.random.below(40) {
            0 => self.restart_manager(),
            1 if !self.has_lost_state && self.random.one_in(3) => self.lose_state(),
            2 | 3 => {
                let (port_id, down_ns) = (self.random.below(4) as u8, 30_000_000 * (1 + self.random.below(5)));
                self.inject(Injection::LinkFlap { port_id, down_ns });
            }
            4 => self.inject(Injection::BackgroundStalls),
            5 => self.inject(Injection::BackgroundFails { return_code: ReturnCode::INTERNAL_ERROR }),
            6 => {
                let log = self.random.one_of(&[EventLog::Informational, EventLog::Warning]);
                self.inject(Injection::EventOverflow { log });
            }
            7 | 8 => self.pull_out_or_in(),
            _ => {}
        }
    }

    fn inject(&mut self, injection: Injection) {
        self.trace(|| format!("{injection:?}"));
        let now_ns = self.clock.now_ns();
        let mut state = wire::lock(&self.shared);
        if let Ok(outcome) = state.switch.inject(now_ns, injection) {
            state.take(now_ns, outcome);
        }
    }

    fn pull_out_or_in(&mut self) {
        let device = self.random.below(4) as usize;
        if self.out.remove(&device) {
            return self.inject(Injection::InsertDevice { device });
        }
        self.out.insert(device);
        self.inject(Injection::RemoveDevice { device });
        let port_id = device as u8;
        let lds: Vec<u8> = if port_id == MLD { (0..MLD_LDS as u8).collect() } else { vec![Vppb::NO_LD] };
        self.excused.extend(lds.into_iter().map(|ld_id| (port_id, ld_id)));
        self.rival_gives_up(port_id);
    }

    fn lose_state(&mut self) {
        self.trace(|| "the manager loses its state".into());
        self.rival_leaves_our_hosts();
        self.desired.volumes.clear();
        self.desired.version += 1;
        self.has_lost_state = true;
        self.restart_manager();
    }

    fn random_order(&mut self) -> Order {
        let names: Vec<VolumeName> =
            self.desired.volumes.values().filter(|volume| !volume.released).map(|volume| volume.name.clone()).collect();
        if names.is_empty() || self.random.one_in(3) {
            let redundancy =
                self.random.one_of(&[Redundancy::None, Redundancy::None, Redundancy::Mirror { copies: 2 }]);
            let size = self.random.one_of(&[Bytes::slabs(16), Bytes(256 << 20), Bytes(512 << 20)]);
            let spec = VolumeSpec {
                size,
                pool: id("main"),
                zone: id("lab"),
                class: LatencyClass::Cxl,
                redundancy,
                spread: FaultDomain::Host,
                width: 1,
                presentation: Presentation::OneRange,
                expires_at: None,
                donor: None,
                labels: Default::default(),
            };
            return Order::Create(id(format!("v{}", self.random.below(6))), Box::new(spec));
        }
        let name = self.random.one_of(&names);
        match self.random.below(8) {
            0..4 => Order::Bind(name, self.random.one_of(&[id("h0"), id("h1")])),
            4 => Order::Grow(name, Bytes(768 << 20)),
            5 => Order::Release(name),
            _ => Order::Unbind(name),
        }
    }

    /// Decides what the manager stores in a round.
    pub fn decide(&mut self, topology: &Topology, now: Millis) {
        settle(&mut self.desired, &self.observed, now);
        let orders = std::mem::take(&mut self.orders);
        for order in orders {
            self.trace(|| format!("{order:?}"));
            let drawn = self.draw();
            let mut capacity = Capacity::new(topology, &self.desired, &self.observed);
            let found = |desired: &Desired, name: &VolumeName| desired.volume_named(name).map(|(id, _)| id);
            let desired = &mut self.desired;
            let ids = match &order {
                Order::Create(..) => Some(drawn),
                Order::Bind(name, _) | Order::Grow(name, _) | Order::Release(name) | Order::Unbind(name) => {
                    found(desired, name)
                }
            };
            let mut edit = Edit { topology, desired, capacity: &mut capacity };
            let Some(volume) = ids else { continue };
            // A refusal changes nothing.
            let _ = match order {
                Order::Bind(_, host) => edit.bind(volume, &host),
                Order::Create(name, spec) => edit.create(volume, name, *spec),
                Order::Grow(_, size) => edit.grow(volume, size),
                Order::Release(_) => edit.unbind(volume).and_then(|()| edit.release(volume)),
                Order::Unbind(_) => edit.unbind(volume),
            };
        }
        let mut drawn: Vec<VolumeId> = (0..8).map(|_| self.draw()).collect();
        let mut capacity = Capacity::new(topology, &self.desired, &self.observed);
        let mut edit = Edit { topology, desired: &mut self.desired, capacity: &mut capacity };
        if self.has_lost_state {
            edit.adopt(&self.observed, || drawn.pop().expect("there are no more LDs"));
        }
        edit.repair(&self.observed, now, super::SILENT_MS);
    }

    /// Ends the trouble: from now on nothing fails, every device is back, and the rival has left.
    pub fn calm_down(&mut self) {
        wire::lock(&self.shared).is_troubled = false;
        for device in std::mem::take(&mut self.out) {
            self.inject(Injection::InsertDevice { device });
        }
        self.rival_leaves();
    }

    /// Checks what must be true after each round.
    pub fn judge(&mut self) -> Result<(), String> {
        self.use_all()?;
        self.check_rival()?;
        let asked = wire::lock(&self.shared).asked_in_use.pop();
        asked.map_or(Ok(()), |tag| Err(format!("capacity that programs use was to be released: {tag:02x?}")))
    }

    /// Returns whether everything is as desired. If so, checks that every host has what it should.
    pub fn is_settled(&self) -> Result<bool, String> {
        let round = reconcile(&self.desired, &self.observed);
        let is_leaving = self.desired.volumes.values().any(|volume| !volume.leaving.is_empty());
        let is_known = self.observed.devices.len() == 4;
        // A host may have lost something since it reported.
        let is_reported =
            self.agents.iter().all(|(name, agent)| self.observed.hosts.get(name) == Some(&agent.report()));
        if !round.is_settled() || is_leaving || !is_known || !is_reported || !self.orders.is_empty() {
            return Ok(false);
        }
        for (volume, wanted) in &self.desired.volumes {
            let Some(host) = &wanted.host else { continue };
            let view = self.agents[host].volumes.get(volume).ok_or(format!("{host} does not have {volume}"))?;
            let has_all = wanted.places().all(|(_, member)| view.members.contains_key(&member.id));
            if !has_all || view.members.values().any(|one| one.state != MemberState::InSync) {
                return Err(format!("{host} lacks members of {volume}: {view:?}"));
            }
        }
        Ok(true)
    }

    /// Releases what cannot be repaired for want of room, as an operator does.
    pub fn give_up_what_does_not_fit(&mut self, round: u64) {
        if round % 40 != 39 {
            return;
        }
        let due = reconcile(&self.desired, &self.observed);
        // A volume that lacks members that others have taken cannot be adopted: its programs are ended.
        for stray in &due.strays {
            if let Stray::Volume { host, volume } = stray {
                self.agents.get_mut(host).expect("a host of the site").volumes.remove(volume);
            }
        }
        let stuck = due.waiting.iter().map(|waiting| waiting.volume).chain(due.steps.iter().filter_map(volume_of));
        let names = stuck.filter_map(|volume| self.desired.volumes.get(&volume).filter(|volume| !volume.released));
        let first = names.map(|volume| volume.name.clone()).next();
        self.orders.extend(first.map(Order::Release));
    }
}

fn volume_of(step: &Step) -> Option<VolumeId> {
    match step {
        Step::AddDynamicCapacity { volume, .. } | Step::Present { volume, .. } | Step::Join { volume, .. } => {
            Some(*volume)
        }
        _ => None,
    }
}

/// The port of the device with dynamic capacity is none of those whose LDs the rival binds.
const _: () = assert!(DCD > 2);
