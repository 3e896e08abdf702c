// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which extents are offered to a host, where the device leaves the choice to its manager. Pure.
//!
//! A device that has no list of tags does not show what its host has not answered. An offer that cannot be taken back
//! there is made again after a while (`unlisted.rs`), and an offer of other extents would give the host the capacity
//! twice. So the same extents are offered again, which such a device refuses, unless another host or volume has got
//! some of them in the meantime.

use std::collections::BTreeMap;

use aquifer_fabric::DeviceId;
use aquifer_fmapi::Extent;

use crate::tag::Tag;

/// Maximum number of choices that are remembered: more than a switch has hosts that are slow to answer.
const CHOICES_MAX: usize = 4096;

/// What to do about capacity that is to be added.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The host has it.
    Added,
    /// Offer these extents to the host.
    Offer(Vec<Extent>),
    /// This many bytes are not free.
    Missing(u64),
}

/// The extents that each host was last offered for each tag, and has not accepted yet.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    offered: BTreeMap<(DeviceId, u16, Tag), Vec<Extent>>,
}

impl Choices {
    /// Chooses extents for a host. `taken` is what hosts have of the device, read after every earlier offer, and what
    /// is pending; `region` is the first address and the end of the memory to choose from.
    pub(crate) fn choose(
        &mut self,
        (device, host_id, tag): (&DeviceId, u16, Tag),
        bytes: u64,
        region: (u64, u64),
        taken: &mut [Extent],
    ) -> Choice {
        let key = (device.clone(), host_id, tag);
        if taken.iter().any(|extent| extent.tag == tag) {
            self.offered.remove(&key);
            return Choice::Added;
        }
        let is_free = |offered: &Extent| taken.iter().all(|it| !overlap(it, offered));
        if let Some(offered) = self.offered.get(&key)
            && offered.iter().map(|extent| extent.length).sum::<u64>() == bytes
            && offered.iter().all(is_free)
        {
            return Choice::Offer(offered.clone());
        }
        let chosen = first_fit(bytes, region, taken, tag);
        let chosen = match chosen {
            Ok(chosen) => chosen,
            Err(missing) => return Choice::Missing(missing),
        };
        if self.offered.len() >= CHOICES_MAX {
            self.offered.pop_first();
        }
        self.offered.insert(key, chosen.clone());
        Choice::Offer(chosen)
    }

    /// Returns the extents that a host was last offered for a tag, and has not accepted yet.
    pub(crate) fn extents(&self, device: &DeviceId, host_id: u16, tag: Tag) -> Option<&[Extent]> {
        self.offered.get(&(device.clone(), host_id, tag)).map(Vec::as_slice)
    }

    /// Forgets capacity that is not to be added any more.
    pub(crate) fn forget(&mut self, device: &DeviceId, tag: Tag) {
        self.offered.retain(|(of, _, with), _| of != device || *with != tag);
    }
}

fn overlap(one: &Extent, other: &Extent) -> bool {
    let end = |extent: &Extent| extent.start.saturating_add(extent.length);
    one.start < end(other) && other.start < end(one)
}

/// Returns the first free bytes of a region. The error is how many are missing.
fn first_fit(bytes: u64, (start, end): (u64, u64), taken: &mut [Extent], tag: Tag) -> Result<Vec<Extent>, u64> {
    taken.sort_by_key(|extent| extent.start);
    let (mut at, mut chosen, mut missing) = (start, Vec::new(), bytes);
    let border = Extent { start: end, ..Extent::default() };
    for extent in taken.iter().chain([&border]) {
        let length = extent.start.saturating_sub(at).min(missing);
        if length > 0 && at < end {
            chosen.push(Extent { start: at, length, tag, shared_sequence: 0 });
            missing -= length;
        }
        at = at.max(extent.start.saturating_add(extent.length));
    }
    if missing == 0 { Ok(chosen) } else { Err(missing) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: Tag = [1; 16];
    const OTHER: Tag = [2; 16];
    const REGION: (u64, u64) = (100, 200);

    fn device() -> DeviceId {
        "s0.1001".parse().expect("a name")
    }

    fn extent(start: u64, length: u64, tag: Tag) -> Extent {
        Extent { start, length, tag, shared_sequence: 0 }
    }

    fn choose(choices: &mut Choices, tag: Tag, bytes: u64, taken: &[Extent]) -> Choice {
        choices.choose((&device(), 0, tag), bytes, REGION, &mut taken.to_vec())
    }

    #[test]
    fn free_bytes_are_chosen_from_the_first_on_also_in_pieces() {
        let taken = [extent(160, 10, OTHER), extent(110, 20, OTHER)];
        let chosen = choose(&mut Choices::default(), MINE, 45, &taken);
        assert_eq!(chosen, Choice::Offer(vec![extent(100, 10, MINE), extent(130, 30, MINE), extent(170, 5, MINE)]));
        assert_eq!(choose(&mut Choices::default(), MINE, 75, &taken), Choice::Missing(5));
    }

    #[test]
    fn a_host_that_has_not_answered_is_offered_the_same_again_whatever_else_becomes_free() {
        let mut choices = Choices::default();
        let offered = Choice::Offer(vec![extent(150, 20, MINE)]);
        assert_eq!(choose(&mut choices, MINE, 20, &[extent(100, 50, OTHER)]), offered);
        assert_eq!(choose(&mut choices, MINE, 20, &[]), offered);
        assert_eq!(choose(&mut choices, MINE, 20, &[extent(150, 20, MINE)]), Choice::Added);
    }

    #[test]
    fn other_extents_are_chosen_where_another_has_got_them_or_the_size_is_another() {
        let mut choices = Choices::default();
        assert_eq!(choose(&mut choices, MINE, 20, &[]), Choice::Offer(vec![extent(100, 20, MINE)]));
        let taken = [extent(110, 5, OTHER)];
        let elsewhere = Choice::Offer(vec![extent(100, 10, MINE), extent(115, 10, MINE)]);
        assert_eq!(choose(&mut choices, MINE, 20, &taken), elsewhere);
        assert_eq!(choose(&mut choices, MINE, 20, &[]), elsewhere);
        assert_eq!(choose(&mut choices, MINE, 30, &[]), Choice::Offer(vec![extent(100, 30, MINE)]));
    }

    #[test]
    fn what_is_released_is_forgotten_and_so_is_what_goes_beyond_the_bound() {
        let mut choices = Choices::default();
        assert_eq!(
            choose(&mut choices, MINE, 20, &[extent(100, 50, OTHER)]),
            Choice::Offer(vec![extent(150, 20, MINE)])
        );
        choices.forget(&device(), MINE);
        assert_eq!(choose(&mut choices, MINE, 20, &[]), Choice::Offer(vec![extent(100, 20, MINE)]));
        for number in 0..=CHOICES_MAX {
            let tag = (number as u128 + 10).to_be_bytes();
            choose(&mut choices, tag, 20, &[]);
        }
        assert_eq!(choices.offered.len(), CHOICES_MAX);
    }
}
