// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Dynamic capacity, and the memory besides: no host finds the bytes of another one.

use aquifer_fmapi::*;

use super::rig::{Fate, PATH, Rig, STAMP, VOLUME, ZEROS, example, example_with_mld};

#[test]
fn memory_besides_dynamic_capacity_is_wiped_between_two_hosts_of_this_manager() {
    let mut rig = Rig::new(example());
    rig.add("h0", 1, 256).unwrap();
    assert_eq!((rig.vcs_of(0), rig.read(0, 0)), (Some(0), Ok(ZEROS.to_vec())));
    rig.write(0, 0);
    rig.release("h0", 1);
    assert_eq!(rig.vcs_of(0), Some(0), "it stays connected");
    rig.add("h1", 2, 256).unwrap();
    assert_eq!((rig.vcs_of(0), rig.read(0, 0)), (Some(1), Ok(ZEROS.to_vec())));
}

#[test]
fn memory_besides_dynamic_capacity_is_wiped_after_another_managers_host() {
    for config in [example(), example_with_mld()] {
        let mut rig = Rig::new(config);
        rig.rival_binds(0);
        rig.write(0, 0);
        rig.rival_unbinds(1, 0);
        rig.add("h0", 1, 256).unwrap();
        assert_eq!((rig.vcs_of(0), rig.read(0, 0)), (Some(0), Ok(ZEROS.to_vec())));
    }
}

#[test]
fn each_ld_is_wiped_for_its_own_host_and_no_other() {
    let mut rig = Rig::new(example_with_mld());
    rig.rival_binds(1);
    rig.write(1, 0);
    rig.rival_unbinds(1, 0);
    rig.add("h0", 1, 256).unwrap();
    rig.write(0, 0);
    rig.add("h1", 2, 256).unwrap();
    assert_eq!((rig.vcs_of(0), rig.vcs_of(1)), (Some(0), Some(1)));
    assert_eq!((rig.read(0, 0), rig.read(1, 0)), (Ok(STAMP.to_vec()), Ok(ZEROS.to_vec())));
}

/// Sanitize may end what another manager has offered.
#[test]
fn an_ld_is_not_wiped_while_something_is_offered_to_its_host() {
    let mut rig = Rig::new(example_with_mld());
    rig.add("h0", 1, 256).unwrap();
    rig.rival_offers_blocks(1, 256);
    rig.sent();
    let refused = rig.add("h1", 2, 256).expect_err("the offer is not ours");
    assert!(refused.contains("cannot be wiped while hosts use the device; release its capacity"), "{refused}");
    assert!(rig.vcs_of(1).is_none() && !rig.sent().contains(&Opcode::SANITIZE));
}

#[test]
fn a_host_is_not_connected_before_the_memory_is_wiped() {
    let mut rig = Rig::new(example());
    rig.script(|opcode| match opcode {
        Opcode::SANITIZE => Fate::Answer(ReturnCode::UNSUPPORTED, None),
        _ => Fate::Pass,
    });
    let refused = rig.add("h0", 1, 256).expect_err("it cannot be wiped");
    assert!(refused.contains("refuses to wipe") && refused.contains("; set wipe = \"on-unbind\""), "{refused}");
    assert_eq!(rig.vcs_of(0), None);
    // A large device wipes in the background.
    let mut is_done = false;
    rig.script(move |opcode| match opcode {
        Opcode::SANITIZE => Fate::Answer(ReturnCode::BACKGROUND_STARTED, None),
        Opcode::BACKGROUND_STATUS => {
            let is_running = !std::mem::replace(&mut is_done, true);
            let percent = if is_running { 50 } else { 100 };
            let status = BackgroundStatus { is_running, percent, opcode: 0x4400, return_code: 0, vendor_status: 0 };
            Fate::Answer(ReturnCode::SUCCESS, Some(Response::GetBackgroundStatus(status)))
        }
        _ => Fate::Pass,
    });
    for _ in 0..2 {
        let refused = rig.add("h0", 1, 256).expect_err("it is being wiped");
        assert!(refused.contains("is being wiped; capacity is added when it is done"), "{refused}");
        assert_eq!(rig.vcs_of(0), None);
        rig.peer.reports();
    }
    rig.end_script();
    rig.add("h0", 1, 256).unwrap();
    assert_eq!(rig.vcs_of(0), Some(0));
}

#[test]
fn blocks_that_another_managers_host_has_used_are_wiped_before_they_are_lent() {
    for config in [example(), example_with_mld()] {
        let mut rig = Rig::new(config);
        rig.rival_leaves_used_blocks();
        rig.add("h0", 1, 256).unwrap();
        assert_eq!(rig.first_bytes(1), ZEROS);
    }
}

#[test]
fn blocks_are_not_lent_unwiped_while_another_managers_host_has_others() {
    for is_wiping_later in [false, true] {
        let mut rig = Rig::new(example_with_mld());
        rig.rival_binds(1);
        rig.rival_uses_blocks(1);
        rig.rival_sets(is_wiping_later.into());
        rig.rival_takes_blocks(1, 512);
        let refused = rig.add("h0", 1, 256).expect_err("they are not wiped");
        let what =
            "blocks that may hold another host's bytes, and they cannot be wiped while hosts have others; release";
        assert!(refused.contains(what), "{refused}");
        let (host_id, ranges) = rig.ranges(STAMP);
        assert_eq!((rig.vcs_of(0), rig.read(host_id, ranges[0].start)), (None, Ok(STAMP.to_vec())));
        rig.give_back((host_id, ranges));
        rig.add("h0", 1, 1024).unwrap();
        assert_eq!(rig.first_bytes(1), ZEROS);
    }
}

#[test]
fn after_a_restart_more_is_lent_beside_what_members_have() {
    let mut rig = Rig::new(example());
    rig.add("h0", 1, 256).unwrap();
    let start = rig.ranges(aquifer_cxl_peers::tag_of(VOLUME, aquifer_fabric::MemberId(1))).1[0].start;
    rig.write(0, start);
    rig.restart("");
    rig.add("h0", 2, 256).unwrap();
    assert_eq!((rig.first_bytes(1), rig.first_bytes(2)), (STAMP.to_vec(), ZEROS.to_vec()));
    // What this manager knows now holds without the extents, too: the host stays connected.
    rig.release("h0", 1);
    rig.release("h0", 2);
    rig.sent();
    rig.add("h0", 3, 256).unwrap();
    assert!(!rig.sent().contains(&Opcode::UNBIND_VPPB));
    assert_eq!(rig.first_bytes(3), ZEROS);
}

#[test]
fn a_setting_that_was_changed_and_changed_back_does_not_hide_used_blocks() {
    for records_left in [0, 1] {
        let mut rig = Rig::new(example());
        rig.add("h0", 1, 256).unwrap();
        rig.release("h0", 1);
        rig.rival_unbinds(0, 7);
        rig.rival_hides_used_blocks();
        let log = EventLog::DynamicCapacity;
        let records = rig.rival.call(&PATH, &GetEventRecords { log }).unwrap().records;
        let handles = records.iter().map(|record| record.handle).take(records.len() - records_left).collect();
        rig.rival.run(&PATH, &ClearEventRecords { log, flags: 0, handles }).unwrap();
        rig.add("h0", 2, 256).unwrap();
        assert_eq!(rig.first_bytes(2), ZEROS, "{records_left} records left");
    }
}

#[test]
fn blocks_of_a_device_without_a_log_are_wiped_before_each_first_add() {
    let mut rig = Rig::new(example());
    rig.script(|opcode| match opcode {
        Opcode::GET_EVENT_RECORDS => Fate::Answer(ReturnCode::UNSUPPORTED, None),
        _ => Fate::Pass,
    });
    rig.add("h0", 1, 256).unwrap();
    rig.release("h0", 1);
    rig.rival_unbinds(0, 7);
    rig.rival_hides_used_blocks();
    rig.add("h0", 2, 256).unwrap();
    assert_eq!(rig.first_bytes(2), ZEROS);
}

#[test]
fn a_device_that_cannot_wipe_what_is_released_lends_only_if_its_vendor_says_that_it_does() {
    let mut rig = Rig::new(example());
    let script = |opcode| match opcode {
        Opcode::SET_DC_REGION => Fate::Answer(ReturnCode::UNSUPPORTED, None),
        _ => Fate::Pass,
    };
    rig.script(script);
    for _ in 0..2 {
        let refused = rig.add("h0", 1, 256).expect_err("it does not wipe");
        assert!(refused.contains("cannot be told to wipe the capacity that is released"), "{refused}");
        assert!(refused.contains("set wipe = \"on-unbind\" if its vendor"), "{refused}");
    }
    rig.restart(r#", "wipe": "on-unbind""#);
    rig.add("h0", 1, 256).unwrap();
    assert_eq!(rig.first_bytes(1), ZEROS);
}

#[test]
fn blocks_that_a_manager_was_wiping_when_it_ended_are_never_accepted_by_a_host() {
    for (is_restarted, has_list) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut rig = Rig::new(example());
        rig.rival_leaves_used_blocks();
        let script = move |may_be_lost: bool| {
            let mut is_offered = false;
            move |opcode| {
                is_offered |= opcode == Opcode::INITIATE_DC_ADD;
                match opcode {
                    Opcode::INITIATE_DC_RELEASE if may_be_lost && is_offered => Fate::Lost,
                    Opcode::DC_LIST_TAGS if !has_list => Fate::Answer(ReturnCode::UNSUPPORTED, None),
                    _ => Fate::Pass,
                }
            }
        };
        rig.script(script(true));
        let lost = rig.add("h0", 1, 256).expect_err("the answer was lost");
        assert!(lost.contains("no answer"), "{lost}");
        rig.script(script(false));
        assert_eq!(rig.tags(), 1, "all blocks are offered to nobody");
        if is_restarted {
            rig.restart("");
            assert_eq!(rig.tags(), 0, "the first round takes them back");
        }
        rig.add("h0", 1, 256).unwrap();
        assert_eq!((rig.first_bytes(1), rig.tags()), (ZEROS.to_vec(), 1));
    }
}

/// The rival acts while the manager connects the host.
#[test]
fn a_setting_that_is_changed_while_a_host_is_connected_is_found_out() {
    let mut rig = Rig::new(example());
    let mut binds = 0;
    rig.script(move |opcode| {
        binds += u32::from(opcode == Opcode::BIND_VPPB);
        match opcode {
            // The region is as another manager has set it since.
            Opcode::GET_HOST_DC_REGIONS if binds > 0 => {
                let region = DcRegion { length: 1 << 30, block_bytes: 2 << 20, ..DcRegion::default() };
                let regions = HostDcRegions { region_count: 1, regions: vec![region], ..HostDcRegions::default() };
                Fate::Answer(ReturnCode::SUCCESS, Some(Response::GetHostDcRegions(regions)))
            }
            _ => Fate::Pass,
        }
    });
    let refused = rig.add("h0", 1, 256).expect_err("it does not wipe any more");
    assert!(refused.contains("another manager has changed the dynamic capacity"), "{refused}");
    assert_eq!(rig.rival.dc_extents(&PATH, 0).unwrap().extents, []);
}
