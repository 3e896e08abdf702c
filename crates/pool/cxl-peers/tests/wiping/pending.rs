// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Capacity that a host leaves unanswered. An offer that the manager does not see counts as absent: it was made again
//! in every round, and a host that accepted at last got several times what its member needs; and when the member left,
//! the offer stayed. The manager read only the first tags of a device, as many as fit into one answer, and what a
//! device does not list counted as not offered.

use std::time::Duration;

use aquifer_cxl_peers::tag_of;
use aquifer_cxl_switch::{CapacityConfig, SwitchConfig};
use aquifer_fabric::{MemberId, Step};
use aquifer_fmapi::*;

use super::rig::{DCD, Fate, PATH, Rig, VOLUME, device, example, id};

const MIB: u64 = 1 << 20;
/// Longer than a host may take to answer.
const LATE: Duration = Duration::from_secs(61);

/// A device without a list of tags.
fn without_list(opcode: Opcode) -> Fate {
    match opcode {
        Opcode::DC_LIST_TAGS => Fate::Answer(ReturnCode::UNSUPPORTED, None),
        _ => Fate::Pass,
    }
}

/// One that also cannot release by tag, with these policies of adding.
fn without_list_and_tags(add_policies: u16) -> impl FnMut(Opcode) -> Fate {
    move |opcode| match opcode {
        Opcode::GET_DCD_INFO => {
            let dcd =
                DcdCapabilities { hosts: 1, regions: 2, add_policies, release_policies: 0b10, ..Default::default() };
            Fate::Answer(ReturnCode::SUCCESS, Some(Response::GetDcd(dcd)))
        }
        opcode => without_list(opcode),
    }
}

/// One that lists this member's tag, and not which hosts have not answered.
fn with_list_without_hosts(opcode: Opcode) -> Fate {
    match opcode {
        Opcode::DC_LIST_TAGS => {
            let tag = DcTag { tag: tag_of(VOLUME, MemberId(1)), ..DcTag::default() };
            let tags = DcTags { total: 1, validity: DcTags::HOSTS_VALID, tags: vec![tag], ..DcTags::default() };
            Fate::Answer(ReturnCode::SUCCESS, Some(Response::DcListTags(tags)))
        }
        _ => Fate::Pass,
    }
}

impl Rig {
    /// Asks a host for its capacity, or takes back what it was offered.
    pub fn ask_back(&mut self, host: &str, member: u64) -> Result<(), String> {
        let (host, member) = (id(host), MemberId(member));
        self.send(&Step::ReleaseDynamicCapacity { device: device(DCD), host, volume: VOLUME, member })
    }

    /// Returns how many bytes a host has for a member.
    pub fn bytes(&mut self, member: u64) -> u64 {
        let ranges = self.ranges(tag_of(VOLUME, MemberId(member))).1;
        ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Reads the switch, and returns whether a host has accepted the capacity of a member; None if none was offered, as
    /// far as is reported.
    pub fn is_accepted(&mut self, member: u64) -> Option<bool> {
        let report = self.peer.reports().remove(&device(DCD)).flatten().expect("the device is reported");
        Some(report.extents.get(&VOLUME)?.get(&MemberId(member))?.accepted)
    }

    /// Lets the rival offer this many pieces of 2 MiB, each with another tag. The tags come before those of members.
    pub fn rival_offers_tags(&mut self, host_id: u16, tags: u64) {
        for number in 1..=tags {
            let (policy, tag) = (add_policy::FREE, u128::from(number).to_be_bytes());
            let add = InitiateDcAdd { host_id, policy, region: 0, length: 2 << 20, tag, extents: Vec::new() };
            self.rival.initiate_dc_add(&PATH, &add).unwrap();
        }
    }
}

/// Adds capacity in each of some rounds, as is due while nothing is reported, and then lets the host accept it.
fn add_in_rounds(rig: &mut Rig, member: u64, mib: u64) {
    let mut reported = Vec::new();
    for _ in 0..3 {
        rig.add("h0", member, mib).unwrap();
        reported.push(rig.is_accepted(member));
    }
    rig.hosts_accept();
    assert_eq!(rig.bytes(member), mib * MIB, "the host has what the member needs");
    assert_eq!((reported, rig.is_accepted(member)), (vec![Some(false); 3], Some(true)));
}

#[test]
fn capacity_is_offered_once_by_a_device_with_more_tags_than_fit_into_one_answer() {
    let mut config: SwitchConfig = example();
    let capacity = config.devices[DCD].capacity.clone().unwrap();
    config.devices[DCD].capacity = Some(CapacityConfig { tags: 128, ..capacity });
    let mut rig = Rig::new(config);
    rig.add("h0", 1, 2).unwrap();
    rig.rival_offers_tags(0, 100);
    rig.hosts_wait();
    add_in_rounds(&mut rig, 2, 128);
    rig.hosts_wait();
    rig.add("h0", 3, 128).unwrap();
    assert_eq!(rig.tags(), 103);
    rig.ask_back("h0", 3).unwrap();
    assert_eq!(rig.tags(), 102, "what was not accepted is taken back");
}

#[test]
fn capacity_is_offered_once_by_a_device_that_does_not_list_it() {
    let mut rig = Rig::new(example());
    rig.script(without_list);
    rig.hosts_wait();
    add_in_rounds(&mut rig, 1, 256);
    for add_policies in [0b111, 0b100, 0b001] {
        let mut rig = Rig::new(example());
        rig.script(without_list_and_tags(add_policies));
        rig.restart("");
        rig.hosts_wait();
        add_in_rounds(&mut rig, 1, 256);
    }
}

#[test]
fn an_offer_that_is_not_listed_is_taken_back_when_its_member_leaves() {
    let scripts: [Box<dyn FnMut(Opcode) -> Fate + Send>; 2] =
        [Box::new(without_list), Box::new(without_list_and_tags(0b111))];
    for script in scripts {
        let mut rig = Rig::new(example());
        rig.script(script);
        rig.restart("");
        rig.hosts_wait();
        rig.add("h0", 1, 256).unwrap();
        assert_eq!((rig.tags(), rig.is_accepted(1)), (1, Some(false)));
        rig.ask_back("h0", 1).unwrap();
        assert_eq!((rig.tags(), rig.is_accepted(1)), (0, None));
    }
}

#[test]
fn an_offer_that_is_not_listed_is_made_again_after_it_was_taken_back() {
    for add_policies in [0b111, 0b100] {
        let mut rig = Rig::new(example());
        if add_policies == 0b111 {
            rig.script(without_list);
        } else {
            rig.script(without_list_and_tags(add_policies));
        }
        rig.restart("");
        rig.hosts_wait();
        rig.add("h0", 1, 256).unwrap();
        rig.wait(LATE);
        // The round that notices it reports it for the last time.
        assert_eq!((rig.is_accepted(1), rig.is_accepted(1), rig.tags()), (Some(false), None, 0));
        add_in_rounds(&mut rig, 1, 256);
    }
}

#[test]
fn blocks_that_are_pending_are_not_chosen_for_another_member() {
    let mut rig = Rig::new(example());
    rig.script(without_list_and_tags(0b100));
    rig.restart("");
    rig.hosts_wait();
    rig.add("h0", 1, 256).unwrap();
    rig.add("h0", 2, 128).unwrap();
    rig.hosts_accept();
    assert_eq!((rig.bytes(1), rig.bytes(2)), (256 * MIB, 128 * MIB));
}

/// If it were made again, the host would get it twice.
#[test]
fn an_offer_that_is_neither_listed_nor_taken_back_is_not_made_again() {
    let mut rig = Rig::new(example());
    rig.script(without_list_and_tags(0b001));
    rig.restart("");
    rig.hosts_wait();
    rig.add("h0", 1, 256).unwrap();
    rig.wait(LATE);
    rig.is_accepted(1);
    let refused = rig.ask_back("h0", 1).expect_err("it cannot be taken back");
    assert!(refused.contains("let the host answer, or reset the device"), "{refused}");
    add_in_rounds(&mut rig, 1, 256);
}

#[test]
fn after_a_restart_an_offer_that_is_not_listed_is_taken_back_before_it_is_made_again() {
    let mut rig = Rig::new(example());
    rig.script(without_list);
    rig.hosts_wait();
    rig.add("h0", 1, 256).unwrap();
    rig.restart("");
    assert_eq!(rig.is_accepted(1), None, "the manager has forgotten it");
    add_in_rounds(&mut rig, 1, 256);
}

#[test]
fn a_tag_that_is_listed_without_its_host_is_not_offered_again() {
    let mut rig = Rig::new(example());
    rig.script(without_list);
    rig.hosts_wait();
    rig.add("h0", 1, 256).unwrap();
    rig.script(with_list_without_hosts);
    rig.restart("");
    add_in_rounds(&mut rig, 1, 256);
}
