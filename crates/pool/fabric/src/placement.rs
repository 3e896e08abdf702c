// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides which donors and devices hold a volume: a request and the free capacity determine the spans, or a refusal.
//!
//! Rules, in this order. The slowest class that the request allows is taken first, and faster ones when it is full.
//! Members of one span never share a fault domain of the kind that was asked for. The first `width` spans are on
//! different donors. Among the candidates, the one with the most free memory is chosen, so that donors fill evenly.
//! What is already placed does not move.
//!
//! One choice looks only at the entries of the index that it must skip, which hold members of its own volume, and at
//! the one that it takes: never at all donors.

mod capacity;
mod refusal;

use std::collections::BTreeSet;

pub use capacity::{Capacity, Reach, RunningCapacity};
pub use refusal::Refusal;

use crate::bytes::{Bytes, SLAB};
use crate::id::{DonorId, PoolId, ZoneId};
use crate::topology::{FaultDomain, LatencyClass};
use crate::volume::{LABEL_BYTES_MAX, LABELS_MAX, Redundancy, SPANS_MAX, Source, VOLUME_MAX, VolumeSpec};
use capacity::{Domain, Found};

/// A request for capacity.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The specification of the volume that needs it.
    pub spec: &'a VolumeSpec,
    /// How many bytes of it to place.
    pub bytes: Bytes,
    /// What the host that will use it can reach.
    pub reaches: &'a [Reach],
}

/// Where one member goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The source that takes the member.
    pub source: Source,
    /// What it gives: as much as was asked for, or all of an LD.
    pub bytes: Bytes,
}

/// Where a volume goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The members of each span.
    pub spans: Vec<Vec<Choice>>,
    /// Entries of the index that were looked at; each is one look-up in an ordered map.
    pub looks: usize,
}

/// The conditions for picking one source among those that have room.
struct Pick<'a> {
    pool: &'a PoolId,
    classes: &'a [LatencyClass],
    reaches: &'a [Reach],
    spread: FaultDomain,
    /// Domains that the other members of the span are in.
    domains: BTreeSet<Domain>,
    /// Sources that must not be taken.
    avoid: &'a BTreeSet<Source>,
    /// The only donor that may be taken, if there is one.
    only: Option<&'a DonorId>,
}

/// Returns the acceptable classes, in the order in which they are tried.
fn classes(slowest: LatencyClass) -> Vec<LatencyClass> {
    LatencyClass::ALL.into_iter().rev().filter(|class| *class <= slowest).collect()
}

/// Checks those parts of a specification that do not depend on the capacity.
pub(crate) fn check_spec(spec: &VolumeSpec) -> Result<(), Refusal> {
    if spec.size == Bytes::ZERO || spec.size > VOLUME_MAX {
        return Err(Refusal::Size { size: spec.size });
    }
    if !spec.redundancy.is_possible() {
        return Err(Refusal::Redundancy { redundancy: spec.redundancy });
    }
    if usize::from(spec.width) > SPANS_MAX {
        return Err(Refusal::TooManySpans { size: spec.size });
    }
    check_weights(spec)?;
    check_labels(spec)
}

/// Checks the weights of a specification's spans.
pub(crate) fn check_weights(spec: &VolumeSpec) -> Result<(), Refusal> {
    let redundancy = spec.redundancy;
    if !spec.presentation.is_possible() {
        return Err(Refusal::Weights);
    }
    match spec.presentation.weights().is_empty() || redundancy == Redundancy::None {
        true => Ok(()),
        false => Err(Refusal::WeightsNotRedundant { redundancy }),
    }
}

/// Returns from where a volume's sources may be used: everywhere that was asked for; but devices have no weights.
fn reaches_of(spec: &VolumeSpec, reaches: &[Reach]) -> Vec<Reach> {
    let may_be_devices = spec.presentation.weights().is_empty();
    reaches.iter().filter(|reach| may_be_devices || **reach == Reach::Network).cloned().collect()
}

/// Refuses a volume of one donor that needs several.
fn check_stripe(spec: &VolumeSpec) -> Result<(), Refusal> {
    match (&spec.donor, spec.redundancy) {
        (None, _) => Ok(()),
        (Some(_), Redundancy::None) if spec.width > 1 => Err(Refusal::DonorNotStriped { width: spec.width }),
        (Some(_), Redundancy::None) => Ok(()),
        (Some(_), redundancy) => Err(Refusal::DonorAlone { redundancy }),
    }
}

/// Checks the number, the length and the characters of a specification's labels.
pub(crate) fn check_labels(spec: &VolumeSpec) -> Result<(), Refusal> {
    // A control character in a label could forge a line of a log, or steer the terminal that shows it.
    let is_plain = |text: &String| text.len() <= LABEL_BYTES_MAX && !text.contains(char::is_control);
    let are_plain = spec.labels.iter().all(|(name, value)| is_plain(name) && is_plain(value));
    if spec.labels.len() <= LABELS_MAX && are_plain { Ok(()) } else { Err(Refusal::Labels) }
}

impl Capacity {
    /// Places a request and reserves what it takes. Nothing is reserved when it is refused.
    pub fn place(&mut self, request: &Request<'_>) -> Result<Placement, Refusal> {
        check_spec(request.spec)?;
        check_stripe(request.spec)?;
        let reaches = reaches_of(request.spec, request.reaches);
        let request = &Request { spec: request.spec, bytes: request.bytes, reaches: &reaches };
        let mut placement = Placement { spans: Vec::new(), looks: 0 };
        let outcome = self.place_spans(request, &mut placement);
        let raw = placement.spans.iter().flatten().map(|choice| choice.bytes).sum();
        match outcome.and_then(|()| self.charge(&request.spec.zone, raw)) {
            Ok(()) => Ok(placement),
            Err(refusal) => {
                placement.spans.iter().flatten().for_each(|choice| self.give_back(choice));
                // Report what was free before the first span was reserved: that figure helps a person.
                match refusal {
                    Refusal::NotEnough { pool, class, .. } => {
                        let (free, _) = self.room(&pool, request.reaches, &classes(class), request.spec.spread);
                        let wanted = request.bytes;
                        match request.spec.presentation.weights().is_empty() {
                            true => Err(Refusal::NotEnough { pool, class, wanted, free }),
                            false => Err(Refusal::WeightsNeedDonors { pool, class, wanted, free }),
                        }
                    }
                    Refusal::DonorFull { donor, .. } => Err(self.donor_is_full(&donor, request.bytes)),
                    refusal => Err(refusal),
                }
            }
        }
    }

    fn place_spans(&mut self, request: &Request<'_>, placement: &mut Placement) -> Result<(), Refusal> {
        let Request { spec, bytes, .. } = *request;
        let width = usize::from(spec.width.max(1));
        let per_span = Bytes(bytes.0.div_ceil(width as u64));
        let (mut left, mut used) = (bytes, BTreeSet::new());
        while left > Bytes::ZERO {
            if placement.spans.len() == SPANS_MAX {
                return Err(Refusal::TooManySpans { size: spec.size });
            }
            if placement.spans.len() >= width {
                used.clear();
            }
            let want = spec.redundancy.member_bytes(per_span.min(left));
            let span = self.place_span(request, want, &used, &mut placement.looks)?;
            let min = span.iter().map(|choice| choice.bytes).min().unwrap_or_default();
            used.extend(span.iter().map(|choice| choice.source.clone()));
            left = left.minus(spec.redundancy.span_bytes(min));
            placement.spans.push(span);
        }
        Ok(())
    }

    /// Reserves the members of one span. Each has `want` bytes, or less where no source has as many; all have the same
    /// size, except where a whole LD or block is larger.
    fn place_span(
        &mut self,
        request: &Request<'_>,
        want: Bytes,
        used: &BTreeSet<Source>,
        looks: &mut usize,
    ) -> Result<Vec<Choice>, Refusal> {
        let spec = request.spec;
        let classes = classes(spec.class);
        let mut pick = Pick {
            pool: &spec.pool,
            classes: &classes,
            reaches: request.reaches,
            spread: spec.spread,
            domains: BTreeSet::new(),
            avoid: used,
            only: spec.donor.as_ref(),
        };
        let mut found = Vec::new();
        for _ in 0..spec.redundancy.members() {
            let Some(one) = self.find(&pick, want, looks) else {
                return Err(self.why_not(request, &classes, &pick));
            };
            pick.domains.insert(one.domain.clone());
            found.push(one);
        }
        let min = found.iter().map(|one| one.free).min().unwrap_or_default().min(want);
        Ok(found.into_iter().map(|one| self.reserve(one, min)).collect())
    }

    /// Places one member with at least `want`, in no domain of `others` and on none of `avoid`.
    pub(crate) fn place_member(
        &mut self,
        spec: &VolumeSpec,
        reaches: &[Reach],
        want: Bytes,
        others: &[Source],
        avoid: &BTreeSet<Source>,
    ) -> Result<Choice, Refusal> {
        let (classes, reaches) = (classes(spec.class), &reaches_of(spec, reaches)[..]);
        let domains = others.iter().filter_map(|source| self.domain(source, spec.spread)).collect();
        let (pool, spread, only) = (&spec.pool, spec.spread, spec.donor.as_ref());
        let pick = Pick { pool, classes: &classes, reaches, spread, domains, avoid, only };
        let request = Request { spec, bytes: want, reaches };
        match self.find(&pick, want, &mut 0) {
            Some(found) if found.free >= want => Ok(self.reserve(found, want)),
            _ => Err(self.why_not(&request, &classes, &pick)),
        }
    }

    /// Returns the source for one member: the first class that has enough in one place, else the source with the most
    /// room in any class.
    fn find(&self, pick: &Pick<'_>, want: Bytes, looks: &mut usize) -> Option<Found> {
        if let Some(donor) = pick.only {
            *looks += 1;
            return self.only(pick, donor).filter(|found| found.free >= SLAB);
        }
        let mut best: Option<Found> = None;
        for class in pick.classes {
            for reach in pick.reaches {
                let found = self.fullest(pick, reach, *class, looks);
                if found.as_ref().is_some_and(|found| best.as_ref().is_none_or(|best| found.free > best.free)) {
                    best = found;
                }
            }
            if best.as_ref().is_some_and(|best| best.free >= want) {
                break;
            }
        }
        best.filter(|best| best.free >= SLAB)
    }

    fn why_not(&self, request: &Request<'_>, classes: &[LatencyClass], pick: &Pick<'_>) -> Refusal {
        let Request { spec, bytes, reaches } = *request;
        if let Some(donor) = &spec.donor {
            let donor = donor.clone();
            return match self.class_in(&spec.pool, &donor) {
                None => Refusal::DonorOutsidePool { donor, pool: spec.pool.clone() },
                Some(class) if class > spec.class => Refusal::DonorTooSlow { donor, class, wanted: spec.class },
                Some(_) => self.donor_is_full(&donor, bytes),
            };
        }
        let (free, domains) = self.room(&spec.pool, reaches, classes, spec.spread);
        let needed = spec.redundancy.members().max(pick.domains.len() + 1);
        if domains < needed && spec.redundancy != Redundancy::None {
            return Refusal::TooFewDomains { pool: spec.pool.clone(), domain: spec.spread, needed, found: domains };
        }
        if !pick.avoid.is_empty() && spec.redundancy.span_bytes(free) >= bytes && usize::from(spec.width) > 1 {
            return Refusal::TooNarrow { pool: spec.pool.clone(), width: spec.width };
        }
        Refusal::NotEnough { pool: spec.pool.clone(), class: spec.class, wanted: bytes, free }
    }

    fn donor_is_full(&self, donor: &DonorId, wanted: Bytes) -> Refusal {
        Refusal::DonorFull { donor: donor.clone(), wanted, free: self.free_of(donor) }
    }

    /// Counts what a zone takes against its quota.
    pub(crate) fn charge(&mut self, zone: &ZoneId, raw: Bytes) -> Result<(), Refusal> {
        let zone_use = self.zone(zone)?;
        let used = zone_use.used.plus(raw);
        if used > zone_use.quota {
            let (quota, used) = (zone_use.quota, zone_use.used);
            return Err(Refusal::Quota { zone: zone.clone(), quota, used, wanted: raw });
        }
        zone_use.used = used;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
