// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What hosts were offered by devices that do not list what is pending. Pure.
//!
//! Such a device has no list of tags, as QEMU's, or one that does not say which hosts have not answered. Adding
//! capacity is due until the host has it, and a device may offer the same tag again: the host would get the capacity
//! several times. So every offer is kept here until the host has accepted capacity with its tag. One that was refused
//! looks like one that is pending, so an offer that is old is taken back, and made again if it is still due.
//!
//! Next on the path: `pending.rs` reads what hosts have and takes offers back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aquifer_fabric::DeviceId;

use crate::inventory::{CapacityView, Offer};
use crate::tag::Tag;

/// How long a host may take to answer an offer before it is taken back. A driver answers within seconds; a host that
/// was restarted and has lost the event record is offered the capacity again within about a minute.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Maximum number of offers that are kept: more than a switch has hosts that are slow to answer. With so many, no
/// further capacity of such devices is offered.
const UNLISTED_MAX: usize = 4096;

/// The offers, each with the time at which it was made.
#[derive(Debug, Default)]
pub(crate) struct Unlisted {
    offered_at: BTreeMap<(DeviceId, u16, Tag), Duration>,
    /// Devices from which this start of the manager has taken back what an earlier one had offered in order to wipe it.
    swept: BTreeSet<DeviceId>,
}

impl Unlisted {
    /// Returns whether no further offer can be kept.
    pub(crate) fn is_full(&self) -> bool {
        self.offered_at.len() >= UNLISTED_MAX
    }

    /// Notes that a host is offered capacity now.
    pub(crate) fn note(&mut self, device: &DeviceId, host_id: u16, tag: Tag, now: Duration) {
        self.offered_at.insert((device.clone(), host_id, tag), now);
    }

    /// Forgets offers that were taken back or never made.
    pub(crate) fn forget(&mut self, device: &DeviceId, tag: Tag) {
        self.offered_at.retain(|(of, _, with), _| of != device || *with != tag);
    }

    /// Forgets a device that was pulled out, or is another one.
    pub(crate) fn forget_device(&mut self, device: &DeviceId) {
        self.offered_at.retain(|(of, _, _), _| of != device);
        self.swept.remove(device);
    }

    /// Adds the offers that are pending to what was read of a device, and forgets those that a host has accepted.
    pub(crate) fn complete(&mut self, device: &DeviceId, capacity: &mut CapacityView) {
        let is_accepted = |tag: Tag, offers: &[Offer]| offers.iter().any(|offer| offer.tag == tag && offer.bytes > 0);
        self.offered_at
            .retain(|(of, _, tag), _| of != device || !capacity.lists_pending && !is_accepted(*tag, &capacity.offers));
        for (_, host_id, tag) in self.offered_at.keys().filter(|(of, _, _)| of == device) {
            // The device may list the tag without its host.
            capacity.offers.retain(|offer| (offer.host_id, offer.tag) == (*host_id, *tag) || offer.tag != *tag);
            if !capacity.offers.iter().any(|offer| offer.tag == *tag) {
                capacity.offers.push(Offer { host_id: *host_id, tag: *tag, bytes: 0, is_pending: true });
            }
        }
    }

    /// Returns the offers whose hosts have not answered in time.
    pub(crate) fn overdue(&self, now: Duration) -> Vec<(DeviceId, u16, Tag)> {
        let old = self.offered_at.iter().filter(|(_, at)| now.saturating_sub(**at) >= ANSWER_MAX);
        old.map(|(offer, _)| offer.clone()).collect()
    }

    /// Returns whether [`Unlisted::note_swept`] was called for a device.
    pub(crate) fn is_swept(&self, device: &DeviceId) -> bool {
        self.swept.contains(device)
    }

    /// Notes that nothing is left that an earlier start of the manager had offered in order to wipe it.
    pub(crate) fn note_swept(&mut self, device: &DeviceId) {
        self.swept.insert(device.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: Tag = [1; 16];
    const SECOND: Duration = Duration::from_secs(1);

    fn device() -> DeviceId {
        "s0.1001".parse().expect("a name")
    }

    fn offer(host_id: u16, tag: Tag, bytes: u64) -> Offer {
        Offer { host_id, tag, bytes, is_pending: bytes == 0 }
    }

    /// Returns the offers after those that are kept were added to these.
    fn completed(unlisted: &mut Unlisted, lists_pending: bool, offers: &[Offer]) -> Vec<Offer> {
        let mut capacity = CapacityView { lists_pending, offers: offers.to_vec(), ..CapacityView::default() };
        unlisted.complete(&device(), &mut capacity);
        capacity.offers
    }

    #[test]
    fn an_offer_is_pending_until_its_host_has_capacity_with_its_tag() {
        let mut unlisted = Unlisted::default();
        unlisted.note(&device(), 1, MINE, SECOND);
        let other = offer(1, [2; 16], 64);
        for _ in 0..2 {
            assert_eq!(completed(&mut unlisted, false, &[other]), [other, offer(1, MINE, 0)]);
        }
        // A host may accept a part, and refuses the rest with the same answer.
        assert_eq!(completed(&mut unlisted, false, &[offer(1, MINE, 16)]), [offer(1, MINE, 16)]);
        assert_eq!(completed(&mut unlisted, false, &[]), []);
    }

    #[test]
    fn a_tag_that_is_listed_without_its_host_is_pending_at_the_host_that_was_offered_it() {
        let mut unlisted = Unlisted::default();
        let listed = [offer(0, MINE, 0), offer(1, MINE, 0)];
        assert_eq!(completed(&mut unlisted, false, &listed), listed);
        unlisted.note(&device(), 1, MINE, SECOND);
        assert_eq!(completed(&mut unlisted, false, &listed), [offer(1, MINE, 0)]);
    }

    #[test]
    fn nothing_is_kept_of_a_device_that_lists_it() {
        let mut unlisted = Unlisted::default();
        unlisted.note(&device(), 0, MINE, SECOND);
        assert_eq!(completed(&mut unlisted, true, &[]), []);
        assert_eq!(completed(&mut unlisted, false, &[]), []);
    }

    #[test]
    fn an_offer_is_overdue_after_its_time_and_what_is_forgotten_never() {
        let mut unlisted = Unlisted::default();
        let late = SECOND + ANSWER_MAX;
        unlisted.note(&device(), 0, MINE, SECOND);
        assert_eq!(unlisted.overdue(late - SECOND), []);
        assert_eq!(unlisted.overdue(late), [(device(), 0, MINE)]);
        unlisted.note(&device(), 0, MINE, late);
        assert_eq!(unlisted.overdue(late), []);
        unlisted.forget(&device(), MINE);
        assert_eq!(unlisted.overdue(late + ANSWER_MAX), []);
        unlisted.note(&device(), 0, MINE, SECOND);
        unlisted.note_swept(&device());
        unlisted.forget_device(&device());
        assert!(unlisted.overdue(late).is_empty() && !unlisted.is_swept(&device()));
    }

    #[test]
    fn it_is_full_at_its_bound() {
        let mut unlisted = Unlisted::default();
        for number in 0..UNLISTED_MAX {
            assert!(!unlisted.is_full());
            unlisted.note(&device(), 0, (number as u128).to_be_bytes(), SECOND);
        }
        assert!(unlisted.is_full());
    }
}
