// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Carries out a fabric manager's commands: memory is reserved for a member of a volume, released, and forgotten.
//!
//! The lease table (`leases/reserve.rs`) has the slabs; this has whose they are. A member's lease goes through *lent*,
//! *wiping* and *released*, is never lent a second time, and is listed until the manager says that it may be forgotten.
//! The memory is gone when the donor ends, and with it all of this, which its next start reports as another
//! incarnation.
//!
//! Next on the path: `leases/reserve.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use aquifer_fabric::{
    Availability, Bytes, DonorReport, HostId, LeaseReport, LeaseState, MemberId, Step, Token, VolumeId,
};
use aquifer_wire::{Refusal, SLAB_BYTES};

use crate::leases::{LeaseTable, Reservation, TenantQuota};
use crate::tenants::Tenant;

/// Maximum number of leases that are listed: more than a donor has slabs to lend in useful pieces, and a report of 8
/// MiB.
const LEASES_MAX: usize = 1 << 15;

type Key = (VolumeId, MemberId);

/// The lease of a member.
#[derive(Debug)]
struct Lease {
    host: HostId,
    bytes: Bytes,
    /// The reservation's token; `None`: it was released before it was lent, so that it never is.
    token: Option<u64>,
    /// Whom it is reserved for. While this is kept, the tenant keeps its number.
    _tenant: Option<Arc<Tenant>>,
}

/// What a command needs of the donor.
pub(crate) trait Lender {
    /// The tenant of this name.
    fn meet(&self, name: &str) -> Arc<Tenant>;
    /// A token greater than all before it, remembered for ever.
    fn mint(&mut self) -> Result<u64, String>;
    /// Lets the lease table decide.
    fn table<R>(&self, decide: impl FnOnce(&mut LeaseTable, u64) -> R) -> R;
}

/// The leases of members of volumes.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    leases: BTreeMap<Key, Lease>,
    /// Under which name each host borrows.
    pub(crate) hosts: BTreeMap<HostId, String>,
}

impl Reservations {
    /// Carries a step out. It was admitted by the gate.
    pub(crate) fn carry_out(&mut self, lender: &mut impl Lender, step: &Step) -> Result<(), String> {
        match step {
            Step::Grant { host, volume, member, bytes, .. } => self.grant(lender, host, (*volume, *member), *bytes),
            Step::Release { volume, member, .. } => self.release(lender, (*volume, *member)),
            Step::ForgetLease { volume, member, .. } => {
                let key = (*volume, *member);
                let is_over = |lease: &Lease| matches!(state(lender, lease), LeaseState::Released);
                if self.leases.get(&key).is_some_and(is_over) {
                    self.leases.remove(&key);
                }
                Ok(())
            }
            step => Err(format!("a donor cannot carry out `{step}`; upgrade it")),
        }
    }

    fn grant(&mut self, lender: &mut impl Lender, host: &HostId, key: Key, bytes: Bytes) -> Result<(), String> {
        if let Some(lease) = self.leases.get(&key) {
            return match state(lender, lease) {
                LeaseState::Lent { .. } if lease.host == *host && lease.bytes == bytes => Ok(()),
                LeaseState::Lent { .. } => {
                    Err(format!("{}/{} is lent already, for another host or size; release it first", key.0, key.1))
                }
                _ => Err(format!("{}/{} was released, and is never lent again; place another member", key.0, key.1)),
            };
        }
        let slabs = u32::try_from(bytes.0 / SLAB_BYTES).ok().filter(|slabs| *slabs > 0 && bytes.is_whole_slabs());
        let slabs = slabs.ok_or_else(|| format!("{bytes} are not whole slabs; ask for a multiple of 2MiB"))?;
        self.check_room()?;
        let name = self.hosts.get(host);
        let name = name.ok_or_else(|| format!("host {host} is not registered with the manager; start its agent"))?;
        let tenant = lender.meet(name);
        let quota = TenantQuota { id: tenant.id, quota_slabs: tenant.limits().quota_slabs(), reservation: None };
        let token = lender.mint()?;
        let reserved = lender.table(|table, now_ms| table.reserve(now_ms, quota, slabs, token));
        reserved.map_err(|refusal| no_room(refusal, bytes, name))?;
        let lease = Lease { host: host.clone(), bytes, token: Some(token), _tenant: Some(tenant) };
        self.leases.insert(key, lease);
        Ok(())
    }

    fn release(&mut self, lender: &mut impl Lender, key: Key) -> Result<(), String> {
        match self.leases.get(&key) {
            Some(Lease { token: Some(token), .. }) => {
                lender.table(|table, now_ms| table.release_reservation(now_ms, *token));
            }
            Some(_) => {}
            None => {
                // It is listed as released, so that a grant which is still on its way is refused.
                self.check_room()?;
                let nobody = "none".parse().expect("letters are a name");
                self.leases.insert(key, Lease { host: nobody, bytes: Bytes::ZERO, token: None, _tenant: None });
            }
        }
        Ok(())
    }

    fn check_room(&self) -> Result<(), String> {
        match self.leases.len() < LEASES_MAX {
            true => Ok(()),
            false => Err(format!("this donor lists {LEASES_MAX} leases; use larger members")),
        }
    }

    /// A report, but for what the gate knows.
    pub(crate) fn report(&self, lender: &impl Lender) -> DonorReport {
        let mut report = DonorReport::default();
        for ((volume, member), lease) in &self.leases {
            let listed = LeaseReport { host: lease.host.clone(), bytes: lease.bytes, state: state(lender, lease) };
            report.leases.entry(*volume).or_default().insert(*member, listed);
        }
        let (reservable, breaks) = lender.table(|table, _| (table.reservable(), table.breaks_reservations()));
        report.capacity = Bytes::slabs(u64::from(reservable));
        report.availability = if breaks { Availability::Draining } else { Availability::Up };
        report
    }
}

fn state(lender: &impl Lender, lease: &Lease) -> LeaseState {
    let Some(token) = lease.token else { return LeaseState::Released };
    match lender.table(|table, _| table.reservation(token)) {
        None => LeaseState::Released,
        Some(Reservation { is_released: true, held, unwiped, .. }) => {
            LeaseState::Wiping { left: Bytes::slabs(u64::from(held + unwiped)) }
        }
        Some(_) => LeaseState::Lent { token: Token(token) },
    }
}

fn no_room(refusal: Refusal, bytes: Bytes, tenant: &str) -> String {
    match refusal {
        Refusal::Ending => "this donor is drained; place the member elsewhere".into(),
        Refusal::Quota => format!("{bytes} are more than {tenant} may have here; raise its quota at the donor"),
        _ => format!("this donor has no {bytes} left; place the member elsewhere"),
    }
}
