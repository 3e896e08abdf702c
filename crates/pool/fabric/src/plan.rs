// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The difference between two declarations, for people to read, and its application to a desired state.
//!
//! Applying a declaration twice changes nothing the second time: the plan is empty then. A plan is applied as a whole
//! or refused as a whole. A change that cannot be made in place (of pool, zone, class, redundancy, spread or width)
//! becomes a release and a new volume, and is shown as such.

mod labels;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::bytes::Bytes;
use crate::counted::counted;
use crate::date::date;
use crate::declaration::{Declaration, DeclaredVolume};
use crate::desired::{Corrupt, Desired, Edit, Pool, Zone};
use crate::id::{DonorId, HostId, Millis, PoolId, VolumeId, VolumeName, ZoneId};
use crate::observed::Observed;
use crate::placement::{Capacity, Refusal};
use crate::topology::Topology;
use crate::volume::{Presentation, VolumeSpec};

/// One change. The variants are in the order in which changes are made: those that make room come before those that
/// need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A pool is created or changed.
    SetPool(PoolId, Pool),
    /// A zone is created or changed.
    SetZone(ZoneId, Zone),
    /// A volume leaves its host.
    Unbind(VolumeName, HostId),
    /// A volume is released, and its memory wiped.
    Release(VolumeName),
    /// A volume gets smaller.
    Shrink(VolumeName, Bytes, Bytes),
    /// A volume is created.
    Create(VolumeName, Box<VolumeSpec>),
    /// A volume gets larger.
    Grow(VolumeName, Bytes, Bytes),
    /// A volume's lifetime changes.
    Expire(VolumeName, Option<Millis>),
    /// The labels of a volume change, from the first ones to the second ones.
    SetLabels(VolumeName, BTreeMap<String, String>, BTreeMap<String, String>),
    /// How its host sees a volume changes, from the next binding on.
    SetPresentation(VolumeName, Presentation),
    /// A volume gets a host.
    Bind(VolumeName, HostId),
    /// A donor is drained, or used again.
    Drain(DonorId, bool),
    /// A zone is removed.
    RemoveZone(ZoneId),
    /// A pool is removed.
    RemovePool(PoolId),
}

impl Change {
    /// Returns whether a program loses memory that it may be using.
    pub const fn takes_away(&self) -> bool {
        matches!(self, Self::Unbind(..) | Self::Release(_) | Self::Shrink(..))
    }

    /// Returns the place of the change in the order of changes.
    const fn rank(&self) -> u8 {
        match self {
            Self::SetPool(..) => 0,
            Self::SetZone(..) => 1,
            Self::Unbind(..) => 2,
            Self::Release(_) => 3,
            Self::Shrink(..) => 4,
            Self::Create(..) => 5,
            Self::Grow(..) => 6,
            Self::Expire(..) => 7,
            Self::SetLabels(..) | Self::SetPresentation(..) => 8,
            Self::Bind(..) => 9,
            Self::Drain(..) => 10,
            Self::RemoveZone(_) => 11,
            Self::RemovePool(_) => 12,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetPool(name, pool) => {
                let (donors, devices) = (counted(pool.donors.len(), "donor"), counted(pool.devices.len(), "device"));
                write!(f, "+ pool {name}: {donors}, {devices}")?;
                match pool.overcommit_percent {
                    0 => Ok(()),
                    percent => write!(f, ", {percent} % more promised than there is"),
                }
            }
            Self::SetZone(name, zone) => {
                write!(f, "+ zone {name}: quota {}, {}", zone.quota, counted(zone.hosts.len(), "host"))
            }
            Self::Unbind(name, host) => write!(f, "- unbind volume {name} from host {host}"),
            Self::Release(name) => write!(f, "- release volume {name}"),
            Self::Shrink(name, from, to) => write!(f, "- shrink volume {name} from {from} to {to}"),
            Self::Create(name, spec) => {
                let VolumeSpec { size, redundancy, pool, zone, presentation, expires_at, .. } = &**spec;
                write!(f, "+ create volume {name}: {size}, redundancy {redundancy}, pool {pool}, zone {zone}")?;
                if *presentation != Presentation::default() {
                    write!(f, ", {presentation}")?;
                }
                expires_at.map_or(Ok(()), |at| write!(f, ", expires at {}", date(at)))
            }
            Self::Grow(name, from, to) => write!(f, "+ grow volume {name} from {from} to {to}"),
            Self::Expire(name, Some(at)) => write!(f, "~ volume {name} expires at {}", date(*at)),
            Self::Expire(name, None) => write!(f, "~ volume {name} does not expire"),
            Self::SetLabels(name, from, to) => {
                write!(f, "~ label volume {name}: ")?;
                labels::write_differences(f, from, to)
            }
            Self::SetPresentation(name, presentation) => {
                write!(f, "~ present volume {name} when it is bound next as {presentation}")
            }
            Self::Bind(name, host) => write!(f, "+ bind volume {name} to host {host}"),
            Self::Drain(donor, true) => write!(f, "- drain donor {donor}"),
            Self::Drain(donor, false) => write!(f, "+ use donor {donor} again"),
            Self::RemoveZone(name) => write!(f, "- remove zone {name}"),
            Self::RemovePool(name) => write!(f, "- remove pool {name}"),
        }
    }
}

/// Returns what must change so that `from` becomes `to`.
pub fn diff(from: &Declaration, to: &Declaration) -> Vec<Change> {
    let mut changes = Vec::new();
    let (pools, zones) = (to.pools.iter(), to.zones.iter());
    let pools = pools.filter(|(name, pool)| from.pools.get(*name) != Some(*pool));
    changes.extend(pools.map(|(name, pool)| Change::SetPool(name.clone(), pool.clone())));
    let zones = zones.filter(|(name, zone)| from.zones.get(*name) != Some(*zone));
    changes.extend(zones.map(|(name, zone)| Change::SetZone(name.clone(), zone.clone())));
    let names: BTreeSet<&VolumeName> = from.volumes.keys().chain(to.volumes.keys()).collect();
    for name in names {
        volume_changes(name, from.volumes.get(name), to.volumes.get(name), &mut changes);
    }
    changes.extend(to.draining.difference(&from.draining).map(|donor| Change::Drain(donor.clone(), true)));
    changes.extend(from.draining.difference(&to.draining).map(|donor| Change::Drain(donor.clone(), false)));
    let gone = from.zones.keys().filter(|name| !to.zones.contains_key(*name));
    changes.extend(gone.map(|name| Change::RemoveZone(name.clone())));
    let gone = from.pools.keys().filter(|name| !to.pools.contains_key(*name));
    changes.extend(gone.map(|name| Change::RemovePool(name.clone())));
    changes.sort_by_key(Change::rank);
    changes
}

fn volume_changes(
    name: &VolumeName,
    from: Option<&DeclaredVolume>,
    to: Option<&DeclaredVolume>,
    changes: &mut Vec<Change>,
) {
    // Only size, expiry, labels and presentation change in place. For any other change, the volume is released and
    // created.
    let from_kept = from.filter(|from| to.is_some_and(|to| is_same_kind(&from.spec, &to.spec)));
    if let Some(from) = from
        && from_kept.is_none()
    {
        changes.extend(from.host.clone().map(|host| Change::Unbind(name.clone(), host)));
        changes.push(Change::Release(name.clone()));
    }
    let Some(to) = to else { return };
    match from_kept {
        None => changes.push(Change::Create(name.clone(), Box::new(to.spec.clone()))),
        Some(from) => {
            let (before, after) = (from.spec.size, to.spec.size);
            match before.cmp(&after) {
                std::cmp::Ordering::Less => changes.push(Change::Grow(name.clone(), before, after)),
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Greater => changes.push(Change::Shrink(name.clone(), before, after)),
            }
            if from.spec.expires_at != to.spec.expires_at {
                changes.push(Change::Expire(name.clone(), to.spec.expires_at));
            }
            if from.spec.labels != to.spec.labels {
                let (before, after) = (from.spec.labels.clone(), to.spec.labels.clone());
                changes.push(Change::SetLabels(name.clone(), before, after));
            }
            if from.spec.presentation != to.spec.presentation {
                changes.push(Change::SetPresentation(name.clone(), to.spec.presentation.clone()));
            }
        }
    }
    let host_before = from_kept.and_then(|from| from.host.as_ref());
    if host_before != to.host.as_ref() {
        changes.extend(host_before.map(|host| Change::Unbind(name.clone(), host.clone())));
        changes.extend(to.host.clone().map(|host| Change::Bind(name.clone(), host)));
    }
}

/// Returns whether one volume can become the other in place.
fn is_same_kind(from: &VolumeSpec, to: &VolumeSpec) -> bool {
    let VolumeSpec { size, presentation, expires_at, labels, .. } = to.clone();
    VolumeSpec { size, presentation, expires_at, labels, ..from.clone() } == *to
}

/// Why a plan is not applied. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotApplied {
    /// The declaration contradicts itself.
    Corrupt(Corrupt),
    /// A pool or a zone is still used by a volume, perhaps one that is released but not dropped yet.
    InUse {
        /// The name of the pool or the zone.
        name: String,
    },
    /// A pool or a zone lists a donor, a device or a host that the topology does not.
    NotInTopology {
        /// The name of what is listed.
        name: String,
    },
    /// A change is refused.
    Refused {
        /// The change, as people read it.
        change: String,
        /// Why the change is refused.
        refusal: Refusal,
    },
}

impl fmt::Display for NotApplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt(corrupt) => write!(f, "the declaration contradicts itself: {corrupt}"),
            Self::InUse { name } => write!(f, "{name} is in use; wait until its volumes are released, or keep it"),
            Self::NotInTopology { name } => {
                write!(
                    f,
                    "{name} is in a pool or zone of the declaration, and this manager does not know it; correct the \
                     name, or start it with this manager's address first"
                )
            }
            Self::Refused { change, refusal } => write!(f, "{change}: {refusal}"),
        }
    }
}

impl std::error::Error for NotApplied {}

/// Makes a desired state fulfil a declaration, and returns what changed. `draw` gives the id of each new volume.
pub fn apply(
    topology: &Topology,
    desired: &mut Desired,
    observed: &Observed,
    declaration: &Declaration,
    mut draw: impl FnMut() -> VolumeId,
) -> Result<Vec<Change>, NotApplied> {
    check_names(topology, declaration)?;
    let changes = diff(&Declaration::of(desired), declaration);
    let mut new = desired.clone();
    set_pools_and_zones(&mut new, &changes);
    new.check().map_err(NotApplied::Corrupt)?;
    let mut capacity = Capacity::new(topology, &new, observed);
    let mut edit = Edit { topology, desired: &mut new, capacity: &mut capacity };
    for change in &changes {
        let outcome = edit.make(change, &mut draw);
        outcome.map_err(|refusal| NotApplied::Refused { change: change.to_string(), refusal })?;
    }
    remove_pools_and_zones(&mut new, &changes)?;
    new.check().map_err(NotApplied::Corrupt)?;
    // All changes of a plan together make one version.
    new.version = desired.version + u64::from(!changes.is_empty());
    *desired = new;
    Ok(changes)
}

fn check_names(topology: &Topology, declaration: &Declaration) -> Result<(), NotApplied> {
    let parts = topology.parts();
    for pool in declaration.pools.values() {
        if let Some(donor) = pool.donors.iter().find(|donor| !parts.donors.contains_key(*donor)) {
            return Err(NotApplied::NotInTopology { name: format!("donor {donor}") });
        }
        if let Some(device) = pool.devices.iter().find(|device| !parts.devices.contains_key(*device)) {
            return Err(NotApplied::NotInTopology { name: format!("device {device}") });
        }
    }
    for zone in declaration.zones.values() {
        if let Some(host) = zone.hosts.iter().find(|host| !parts.hosts.contains_key(*host)) {
            return Err(NotApplied::NotInTopology { name: format!("host {host}") });
        }
    }
    Ok(())
}

fn set_pools_and_zones(desired: &mut Desired, changes: &[Change]) {
    for change in changes {
        match change {
            Change::SetPool(name, pool) => drop(desired.pools.insert(name.clone(), pool.clone())),
            Change::SetZone(name, zone) => drop(desired.zones.insert(name.clone(), zone.clone())),
            _ => {}
        }
    }
}

/// Removes pools and zones that are no longer declared. Refuses if a volume still needs one.
fn remove_pools_and_zones(desired: &mut Desired, changes: &[Change]) -> Result<(), NotApplied> {
    for change in changes {
        match change {
            Change::RemoveZone(name) if desired.volumes.values().any(|volume| volume.spec.zone == *name) => {
                return Err(NotApplied::InUse { name: format!("zone {name}") });
            }
            Change::RemovePool(name) if desired.volumes.values().any(|volume| volume.spec.pool == *name) => {
                return Err(NotApplied::InUse { name: format!("pool {name}") });
            }
            Change::RemoveZone(name) => drop(desired.zones.remove(name)),
            Change::RemovePool(name) => drop(desired.pools.remove(name)),
            _ => {}
        }
    }
    Ok(())
}

impl Edit<'_> {
    /// Makes one change of a plan, except changes to pools and zones.
    pub fn make(&mut self, change: &Change, draw: &mut impl FnMut() -> VolumeId) -> Result<(), Refusal> {
        let id = |name: &VolumeName| {
            let found = self.desired.volume_named(name).map(|(id, _)| id);
            found.ok_or_else(|| Refusal::UnknownVolume { volume: name.to_string() })
        };
        match change {
            Change::SetPool(..) | Change::SetZone(..) | Change::RemovePool(_) | Change::RemoveZone(_) => Ok(()),
            Change::Unbind(name, _) => self.unbind(id(name)?),
            Change::Release(name) => self.release(id(name)?),
            Change::Shrink(name, _, size) => self.shrink(id(name)?, *size),
            Change::Create(name, spec) => self.create(draw(), name.clone(), (**spec).clone()),
            Change::Grow(name, _, size) => self.grow(id(name)?, *size),
            Change::Expire(name, at) => self.change_spec(id(name)?, |spec| spec.expires_at = *at),
            Change::SetLabels(name, _, labels) => self.change_spec(id(name)?, |spec| spec.labels = labels.clone()),
            Change::SetPresentation(name, presentation) => {
                self.change_spec(id(name)?, |spec| spec.presentation = presentation.clone())
            }
            Change::Bind(name, host) => self.bind(id(name)?, host),
            Change::Drain(donor, draining) => {
                self.drain(donor, *draining);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests;
