// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a driven switch must show at any time: what it has last adopted, except of what an order concerned, and what
//! orders have done since.

use aquifer_cxl_switch::*;
use aquifer_fmapi::*;

use super::Rig;
use super::history::{DEVICES, Ld, Pool, UNIT, VCSS, VPPBS};

/// What a driven switch must show.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    units: [[u64; 16]; DEVICES],
    is_present: [bool; DEVICES],
    vppbs: [[Option<(Ld, Progress)>; VPPBS as usize]; VCSS as usize],
    /// What the vPPB was before the order that runs.
    before: Option<(Ld, Progress)>,
}

/// Returns the vPPB that an order binds or unbinds, and its logical device.
fn bound_by(order: &Order) -> Option<((u8, u8), Ld)> {
    match order {
        Order::Allocate { .. } => None,
        Order::Bind { vcs_id, vppb_id, device, ld_id } | Order::Unbind { vcs_id, vppb_id, device, ld_id } => {
            Some(((*vcs_id, *vppb_id), (*device, *ld_id)))
        }
    }
}

impl Shown {
    fn vppb(&mut self, (vcs_id, vppb_id): (u8, u8)) -> &mut Option<(Ld, Progress)> {
        &mut self.vppbs[usize::from(vcs_id)][usize::from(vppb_id)]
    }

    /// An order begins: its vPPB is in progress.
    pub fn begin(&mut self, order: &Order) {
        if let Some((at, ld)) = bound_by(order) {
            self.before = self.vppb(at).replace((ld, Progress::Binding));
        }
    }

    /// An order ends. Where its end is unknown, its vPPB stays in progress, and sizes stay what they were.
    pub fn end(&mut self, order: &Order, ending: Ending) {
        let before = self.before.take();
        let is_done = match ending {
            Ending::Done => true,
            Ending::Refused(_) => false,
            Ending::Unknown(_) => return,
        };
        match order {
            Order::Allocate { device, lds } if is_done => {
                lds.iter().for_each(|(ld_id, bytes)| self.units[*device][usize::from(*ld_id)] = bytes / UNIT);
            }
            Order::Allocate { .. } => {}
            Order::Bind { .. } | Order::Unbind { .. } => {
                let (at, ld) = bound_by(order).expect("it has a vPPB");
                let bound = matches!(order, Order::Bind { .. }).then_some((ld, Progress::Bound));
                *self.vppb(at) = if is_done { bound } else { before };
            }
        }
    }

    /// A state is adopted, except what concerns the order that runs: its vPPB, its logical device elsewhere, or the
    /// sizes of its device.
    pub fn adopt(&mut self, pool: &Pool, adopted: &Adopted, running: Option<&Order>) {
        let concerned = running.and_then(bound_by);
        for vcs_id in 0..VCSS {
            for vppb_id in 0..VPPBS {
                let mut found = pool.bindings.iter().filter(|(_, (vcs, vppb, _))| (*vcs, *vppb) == (vcs_id, vppb_id));
                let new = found.next().map(|(ld, (.., progress))| (*ld, *progress));
                let is_concerned =
                    concerned.is_some_and(|(at, ld)| at == (vcs_id, vppb_id) || new.is_some_and(|new| new.0 == ld));
                if !is_concerned {
                    *self.vppb((vcs_id, vppb_id)) = new;
                }
            }
        }
        for device in 0..DEVICES {
            self.is_present[device] = adopted.devices[device].is_present;
            if !matches!(running, Some(Order::Allocate { device: of, .. }) if *of == device) {
                self.units[device] = std::array::from_fn(|ld_id| pool.size((device, ld_id as u8)) / UNIT);
            }
        }
    }

    /// Compares it with what the switch answers.
    pub fn check(&self, rig: &mut Rig) {
        for vcs_id in 0..VCSS {
            let expected = self.vppbs[usize::from(vcs_id)].map(|binding| match binding {
                None => (BindingStatus::Unbound, 0, Vppb::NO_LD),
                Some(((device, ld_id), Progress::Bound)) => (BindingStatus::Ld, device as u8, ld_id),
                Some(_) => (BindingStatus::InProgress, 0, Vppb::NO_LD),
            });
            let vppbs = rig.client.vppbs(vcs_id);
            let vppbs: Vec<_> = vppbs.iter().map(|vppb| (vppb.status, vppb.port_id, vppb.ld_id)).collect();
            assert_eq!(vppbs, expected, "virtual switch {vcs_id}");
        }
        for device in (0..DEVICES).filter(|device| self.is_present[*device]) {
            assert_eq!(rig.units(device as u8), self.units[device], "device {device}");
        }
    }
}
