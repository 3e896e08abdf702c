// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! LDs and their wiping in the background: what counts as the end of it, and what raises doubt afterwards.

use aquifer_cxl_switch::Injection;
use aquifer_fabric::{Content, NO_LD, Step, VcsId, VppbAddress, VppbId};
use aquifer_fmapi::*;

use super::rig::{Fate, Rig, SLD, device, example};

fn wipe(rig: &mut Rig) -> Result<(), String> {
    rig.send(&Step::WipeLd { device: device(SLD), ld_id: NO_LD })
}

/// A manager that has read records of another port: it would notice if any had gone.
fn with_records() -> Rig {
    let mut rig = Rig::new(example());
    rig.inject(Injection::LinkFlap { port_id: 1, down_ns: 1 });
    rig.peer.reports();
    rig
}

/// Lets the SLD wipe in the background from now on, and report this status.
fn in_background(rig: &mut Rig, status: BackgroundStatus) {
    rig.script(move |opcode| match opcode {
        Opcode::SANITIZE => Fate::Answer(ReturnCode::BACKGROUND_STARTED, None),
        Opcode::BACKGROUND_STATUS => Fate::Answer(ReturnCode::SUCCESS, Some(Response::GetBackgroundStatus(status))),
        _ => Fate::Pass,
    });
}

const RUNNING: BackgroundStatus =
    BackgroundStatus { is_running: true, percent: 10, opcode: 0x4400, return_code: 0, vendor_status: 0 };
const DONE: BackgroundStatus = BackgroundStatus { is_running: false, percent: 100, ..RUNNING };

/// Returns what the SLD counts as after it began to wipe itself, and then reports this status.
fn after(status: BackgroundStatus) -> Content {
    let mut rig = Rig::new(example());
    in_background(&mut rig, RUNNING);
    wipe(&mut rig).unwrap();
    assert_eq!(rig.content(SLD, NO_LD), Content::Wiping);
    in_background(&mut rig, status);
    rig.content(SLD, NO_LD)
}

#[test]
fn only_the_end_of_the_wipe_itself_counts() {
    assert_eq!(after(DONE), Content::Wiped);
    // It was reset: no operation, none of it done, and success.
    assert_eq!(after(BackgroundStatus::default()), Content::Used);
    assert_eq!(after(BackgroundStatus { opcode: 0x4304, ..DONE }), Content::Used, "another operation's success");
    assert_eq!(after(BackgroundStatus { percent: 60, ..DONE }), Content::Used, "it ended early");
    assert_eq!(after(BackgroundStatus { return_code: ReturnCode::ABORTED.0, ..DONE }), Content::Used);
    assert_eq!(after(RUNNING), Content::Wiping);
}

#[test]
fn a_device_that_is_reset_in_mid_wipe_does_not_end_it_with_an_earlier_success() {
    let mut rig = with_records();
    in_background(&mut rig, RUNNING);
    wipe(&mut rig).unwrap();
    // The status of an earlier wipe survives the reset.
    in_background(&mut rig, DONE);
    rig.inject(Injection::LinkFlap { port_id: SLD as u8, down_ns: 1 });
    assert_eq!(rig.content(SLD, NO_LD), Content::Used);
}

#[test]
fn a_device_that_was_away_while_the_switch_was_silent_counts_as_used() {
    let mut rig = with_records();
    wipe(&mut rig).unwrap();
    assert_eq!(rig.content(SLD, NO_LD), Content::Wiped);
    rig.cut(true);
    assert_eq!(rig.peer.reports()[&device(SLD)], None);
    rig.inject(Injection::RemoveDevice { device: SLD });
    rig.inject(Injection::InsertDevice { device: SLD });
    rig.cut(false);
    assert_eq!(rig.content(SLD, NO_LD), Content::Used, "only the event log shows it");
}

#[test]
fn a_silence_alone_raises_doubt_only_where_a_switch_has_no_logs() {
    for (has_logs, content) in [(true, Content::Wiped), (false, Content::Used)] {
        let mut rig = Rig::new(example());
        if !has_logs {
            rig.script(|opcode| match opcode {
                Opcode::GET_EVENT_RECORDS => Fate::Answer(ReturnCode::UNSUPPORTED, None),
                _ => Fate::Pass,
            });
        }
        rig.restart("");
        wipe(&mut rig).unwrap();
        assert_eq!(rig.content(SLD, NO_LD), Content::Wiped);
        rig.cut(true);
        assert_eq!(rig.peer.reports()[&device(SLD)], None);
        rig.cut(false);
        assert_eq!(rig.content(SLD, NO_LD), content, "the switch has logs: {has_logs}");
    }
}

/// A doubt about an LD that a host has does not lead to a wipe.
#[test]
fn a_bound_ld_is_not_wiped_whatever_the_records_say() {
    let mut rig = Rig::new(example());
    wipe(&mut rig).unwrap();
    let vppb = VppbAddress { switch: "s0".parse().unwrap(), vcs_id: VcsId(0), vppb_id: VppbId(0) };
    rig.send(&Step::BindVppb { vppb, device: device(SLD), ld_id: NO_LD }).unwrap();
    rig.inject(Injection::LinkFlap { port_id: SLD as u8, down_ns: 1 });
    assert_eq!(rig.content(SLD, NO_LD), Content::Used);
    rig.sent();
    let refused = wipe(&mut rig).expect_err("a host has it");
    assert!(refused.contains("is bound to vPPB 0 of VCS 0 and is not wiped"), "{refused}");
    assert!(!rig.sent().contains(&Opcode::SANITIZE));
}
