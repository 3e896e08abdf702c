// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a program does about a view of its volume, and what it reports. Pure.

use std::collections::BTreeMap;

use aquifer_agent_wire::{MemberProgress, MemberView, Order, Progress, View};
use aquifer_tier::{MemberKey, MemberStatus, Newcomer};

/// One change of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Admit this member.
    Join(Newcomer),
    /// Begin to move everything from this member.
    Drain(MemberKey),
    /// Let this member go.
    Leave(MemberKey),
}

impl Step {
    pub(super) fn key(&self) -> MemberKey {
        match self {
            Step::Join(newcomer) => newcomer.key,
            Step::Drain(key) | Step::Leave(key) => *key,
        }
    }
}

fn newcomer(member: &MemberView) -> Newcomer {
    Newcomer {
        key: MemberKey(member.member),
        address: member.address.clone(),
        server_name: member.server_name.clone(),
        weight: member.weight,
        slabs: member.slabs,
        reservation: member.reservation,
    }
}

/// The members with which a program begins.
pub(super) fn newcomers(view: &View) -> Vec<Newcomer> {
    view.members.iter().filter(|member| member.order == Order::Use).map(newcomer).collect()
}

/// The steps that make the members match the view: those that join first, so that slabs of members that drain have a
/// place to go to. A view without members changes nothing: a program never gives up all its memory because of one
/// message.
pub(super) fn steps(view: &View, status: &BTreeMap<MemberKey, MemberStatus>) -> Vec<Step> {
    if view.members.is_empty() {
        return Vec::new();
    }
    let is_in_use = |status: Option<&MemberStatus>| !matches!(status, None | Some(MemberStatus::Left));
    let mut steps = Vec::new();
    for member in view.members.iter().filter(|member| member.order == Order::Use) {
        if !matches!(status.get(&MemberKey(member.member)), Some(MemberStatus::Present | MemberStatus::Lost)) {
            steps.push(Step::Join(newcomer(member)));
        }
    }
    for member in &view.members {
        let key = MemberKey(member.member);
        let now = status.get(&key);
        match member.order {
            Order::Drain if matches!(now, Some(MemberStatus::Present | MemberStatus::Lost)) => {
                steps.push(Step::Drain(key))
            }
            Order::Leave if is_in_use(now) => steps.push(Step::Leave(key)),
            Order::Drain | Order::Leave | Order::Use => {}
        }
    }
    // The agent does not know of what this program has there, so it cannot know that the bytes are elsewhere.
    let is_listed = |key: &MemberKey| view.members.iter().any(|member| member.member == key.0);
    let is_used = |now: &MemberStatus| matches!(now, MemberStatus::Present | MemberStatus::Lost);
    let unlisted = status.iter().filter(|(key, now)| is_used(now) && !is_listed(key));
    steps.extend(unlisted.map(|(key, _)| Step::Drain(*key)));
    steps
}

/// Returns a member in words that a person knows: its donor, or its number if the view does not list it any more.
pub(super) fn in_words(view: &View, key: MemberKey) -> String {
    let member = view.members.iter().find(|member| member.member == key.0);
    member.map_or_else(|| format!("member {}", key.0), |member| format!("the donor at {}", member.address))
}

/// What the program has done about the view. `refused`: members whose drain could not begin.
pub(super) fn progress(
    view: &View,
    status: &BTreeMap<MemberKey, MemberStatus>,
    refused: impl Fn(MemberKey) -> bool,
) -> Vec<MemberProgress> {
    let of = |member: &MemberView| {
        let key = MemberKey(member.member);
        let progress = match (status.get(&key).copied(), member.order) {
            // Another member of the same donor has its seat by now, or this program never had it.
            (None | Some(MemberStatus::Left), Order::Drain | Order::Leave) => Progress::Left,
            (None | Some(MemberStatus::Left), Order::Use) => return None,
            (Some(MemberStatus::Draining { slabs, is_stalled }), _) => Progress::Draining { slabs, is_stalled },
            (Some(_), Order::Drain) if refused(key) => Progress::Draining { slabs: member.slabs, is_stalled: true },
            (Some(MemberStatus::Lost), _) => Progress::Lost,
            (Some(MemberStatus::Present), _) => Progress::Present,
        };
        Some(MemberProgress { member: member.member, progress })
    };
    view.members.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(member: u64, order: Order) -> MemberView {
        let (address, server_name) = (format!("d:{member}"), format!("d{member}"));
        MemberView { member, address, server_name, weight: 1, slabs: 8, reservation: 0, order }
    }

    fn view(members: &[(u64, Order)]) -> View {
        let members = members.iter().map(|(number, order)| member(*number, *order)).collect();
        let redundancy = aquifer_agent_wire::Redundancy::None;
        View { revision: 1, redundancy, files: None, members, is_withdrawn: false }
    }

    fn status(of: &[(u64, MemberStatus)]) -> BTreeMap<MemberKey, MemberStatus> {
        of.iter().map(|(key, status)| (MemberKey(*key), *status)).collect()
    }

    const DRAINING: MemberStatus = MemberStatus::Draining { slabs: 3, is_stalled: false };

    #[test]
    fn members_follow_the_view() {
        let view = view(&[(1, Order::Drain), (2, Order::Use), (3, Order::Use), (4, Order::Leave)]);
        let now =
            status(&[(1, MemberStatus::Present), (2, MemberStatus::Lost), (4, MemberStatus::Present), (5, DRAINING)]);
        let steps: Vec<(u64, bool)> =
            steps(&view, &now).iter().map(|step| (step.key().0, matches!(step, Step::Join(_)))).collect();
        assert_eq!(steps, [(3, true), (1, false), (4, false)], "who joins is first");
        let done =
            status(&[(1, DRAINING), (2, MemberStatus::Present), (3, MemberStatus::Present), (4, MemberStatus::Left)]);
        assert!(super::steps(&view, &done).is_empty());
        assert_eq!(in_words(&view, MemberKey(4)), "the donor at d:4");
        assert_eq!(in_words(&view, MemberKey(5)), "member 5", "the view does not list it");
    }

    /// An agent that did not know where a donor was, after its manager's state was lost, did not list the member, and
    /// programs gave all its bytes up.
    #[test]
    fn a_member_that_is_not_listed_is_drained_and_not_given_up() {
        let now = status(&[(1, MemberStatus::Present), (2, MemberStatus::Present), (3, MemberStatus::Left)]);
        assert!(matches!(&steps(&view(&[(1, Order::Use)]), &now)[..], [Step::Drain(MemberKey(2))]));
    }

    #[test]
    fn a_cancelled_drain_is_a_join() {
        let now = status(&[(1, DRAINING)]);
        assert!(matches!(&steps(&view(&[(1, Order::Use)]), &now)[..], [Step::Join(_)]));
    }

    #[test]
    fn an_empty_view_changes_nothing() {
        assert!(steps(&view(&[]), &status(&[(1, MemberStatus::Present)])).is_empty());
    }

    #[test]
    fn a_member_is_reported_as_left_only_when_the_program_can_have_nothing_there() {
        let view = view(&[(1, Order::Drain), (2, Order::Drain), (3, Order::Use), (4, Order::Use), (5, Order::Drain)]);
        let now =
            status(&[(1, DRAINING), (2, MemberStatus::Left), (3, MemberStatus::Present), (5, MemberStatus::Present)]);
        let reported: Vec<(u64, Progress)> =
            progress(&view, &now, |key| key.0 == 5).iter().map(|it| (it.member, it.progress)).collect();
        let stalled = Progress::Draining { slabs: 8, is_stalled: true };
        let draining = Progress::Draining { slabs: 3, is_stalled: false };
        assert_eq!(reported, [(1, draining), (2, Progress::Left), (3, Progress::Present), (5, stalled)]);
    }
}
