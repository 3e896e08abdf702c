// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The memory besides dynamic capacity: no host finds the bytes of another one.

use aquifer_fmapi::*;

use super::rig::{Fate, Rig, STAMP, ZEROS, example, example_with_mld};

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
