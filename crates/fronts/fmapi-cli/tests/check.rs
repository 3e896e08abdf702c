// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The suite against peers: our switch departs nowhere from the specification, each known peer shows its known
//! departures, and each kind of error is found by the case for it.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aquifer_cxl_switch::SwitchConfig;
use aquifer_fmapi::*;
use aquifer_fmapi_cli::check::{CASES, DEPARTURES, Report, UNDO_TIME_MAX, Verdict, check};
use aquifer_fmapi_client::{Client, Limits, PcapTrace, PeerAddress, SystemClock};
use aquifer_test_support::Random;

mod peers;

/// More than any check here takes, most of it on a clock of the test.
const LIMIT: Duration = Duration::from_secs(86_400);

/// Returns the cases that depart.
fn departing(report: &Report) -> BTreeSet<&'static str> {
    let departs = report.findings.iter().filter(|finding| matches!(finding.verdict, Verdict::Departs { .. }));
    departs.map(|finding| finding.case.id).collect()
}

/// Checks a peer with everything allowed: every case is judged once, in order.
fn checked(mut client: Client) -> Report {
    let report = check(&mut client, true, None, LIMIT).unwrap();
    let judged: Vec<&str> = report.findings.iter().map(|finding| finding.case.id).collect();
    let listed: Vec<&str> = CASES.iter().map(|case| case.id).collect();
    assert_eq!(judged, listed);
    report
}

fn known(dialect: &str) -> BTreeSet<&'static str> {
    DEPARTURES.iter().filter(|it| it.dialect == dialect).map(|it| it.case).collect()
}

#[test]
fn our_switch_departs_nowhere_and_every_case_is_tried() {
    let report = checked(peers::switch(&Dialect::STANDARD, |_, _| {}));
    assert_eq!(departing(&report), BTreeSet::new(), "{}", aquifer_fmapi_cli::text(&report));
    assert_eq!(report.counts(), [CASES.len(), 0, 0, 0], "{}", aquifer_fmapi_cli::text(&report));
    assert!(report.answered.len() > 12, "{:?}", report.answered);
}

#[test]
fn without_permission_nothing_is_changed() {
    let mut client = peers::switch(&Dialect::STANDARD, |asked, _| {
        let changes = [Opcode::PHYSICAL_PORT_CONTROL, Opcode::BIND_VPPB, Opcode::UNBIND_VPPB];
        let is_nowhere = asked.payload.first().is_some_and(|first| [0x77, 0xee].contains(first));
        assert!(!changes.contains(&asked.header.opcode) || is_nowhere, "{asked:?}");
        let is_set = asked.header.opcode.name().is_some_and(|name| name.starts_with("Set "));
        assert!(!is_set, "{asked:?}");
    });
    let report = check(&mut client, false, None, LIMIT).unwrap();
    let [_, _, departs, skipped] = report.counts();
    assert_eq!((departs, skipped), (0, 3), "{}", aquifer_fmapi_cli::text(&report));
}

#[test]
fn qemu_departs_as_it_is_known_to() {
    let report = checked(peers::qemu());
    assert_eq!(report.dialect, "QEMU");
    assert_eq!(departing(&report), known("QEMU"), "{}", aquifer_fmapi_cli::text(&report));
    assert_eq!(report.counts()[2], 0);
}

/// The switch itself was recorded: `golden/README.md`.
#[test]
fn opencis_departs_as_it_is_known_to() {
    let report = checked(peers::recorded("OpenCIS"));
    let text = aquifer_fmapi_cli::text(&report);
    assert_eq!((report.dialect, departing(&report)), ("OpenCIS", known("OpenCIS")), "{text}");
    let [conforms, _, departs, _] = report.counts();
    assert!(conforms >= 15 && departs == 0, "{text}");
    for case in ["bind", "bind.second", "unbind", "lds", "vcs", "ports"] {
        assert!(!matches!(verdict(&report, case), Verdict::Skipped { .. }), "{case}: {text}");
    }
}

/// The emulator itself was recorded: `golden/README.md`.
#[test]
fn jackrabbit_departs_as_it_is_known_to() {
    let report = checked(peers::recorded("Jackrabbit"));
    let text = aquifer_fmapi_cli::text(&report);
    // No vPPB was bound when it was recorded, and then the zeros in place of the wanted one are right.
    let mut known = known("Jackrabbit");
    assert!(known.remove("vcs.pieces"));
    assert_eq!((report.dialect, departing(&report)), ("Jackrabbit", known), "{text}");
    let [conforms, _, departs, _] = report.counts();
    assert!(conforms >= 15 && departs == 0, "{text}");
    for case in ["bind", "unbind", "lds", "vcs", "ports"] {
        assert!(!matches!(verdict(&report, case), Verdict::Skipped { .. }), "{case}: {text}");
    }
}

/// One way of being wrong.
type Wrong = fn(&Message, &mut Message);

/// Each way of being wrong, and the case that finds it.
const WRONG: &[(&str, Wrong)] = &[
    ("identify", |asked, answer| at(asked, answer, Opcode::IDENTIFY, |payload| payload.push(0))),
    ("identify.switch", |asked, answer| at(asked, answer, Opcode::IDENTIFY, |payload| payload[17] = 3)),
    ("background-status", |asked, answer| {
        at(asked, answer, Opcode::BACKGROUND_STATUS, |payload| payload[0] = 101 << 1)
    }),
    ("message-limit", |asked, answer| at(asked, answer, Opcode::GET_MESSAGE_LIMIT, |payload| payload[0] = 21)),
    ("events", |asked, answer| at(asked, answer, Opcode::GET_EVENT_RECORDS, |payload| payload[20] += 1)),
    ("interrupt-policy", |asked, answer| at(asked, answer, Opcode::GET_EVENT_INTERRUPT_POLICY, |it| it.truncate(4))),
    ("mctp-policy", |asked, answer| at(asked, answer, Opcode::GET_MCTP_EVENT_POLICY, |payload| payload.push(0))),
    ("timestamp", |asked, answer| at(asked, answer, Opcode::GET_TIMESTAMP, |payload| payload.truncate(4))),
    ("logs", |asked, answer| at(asked, answer, Opcode::GET_SUPPORTED_LOGS, |payload| payload[8] ^= 1)),
    ("effects", |asked, answer| at(asked, answer, Opcode::GET_LOG, |payload| payload.copy_within(0..4, 4))),
    ("effects.complete", |asked, answer| at(asked, answer, Opcode::GET_LOG, |payload| payload[0] = 0xff)),
    ("effects.true", |asked, answer| {
        at(asked, answer, Opcode::GET_LOG, |payload| payload[..2].copy_from_slice(&[0, 0x54]))
    }),
    ("unsupported", |asked, answer| code(asked, answer, Opcode(0x56ff), ReturnCode::INVALID_INPUT)),
    ("length.long", |asked, answer| lax(asked, answer, Opcode::IDENTIFY, 1)),
    ("length.short", |asked, answer| lax(asked, answer, Opcode::GET_PHYSICAL_PORT_STATE, 0)),
    ("switch", |asked, answer| at(asked, answer, Opcode::IDENTIFY_SWITCH_DEVICE, |payload| payload.push(0))),
    ("switch.counts", |asked, answer| at(asked, answer, Opcode::IDENTIFY_SWITCH_DEVICE, |payload| payload[35] = 0x80)),
    ("ports", |asked, answer| at(asked, answer, Opcode::GET_PHYSICAL_PORT_STATE, |payload| payload[4] ^= 1)),
    ("ports.values", |asked, answer| at(asked, answer, Opcode::GET_PHYSICAL_PORT_STATE, |payload| payload[4 + 7] = 64)),
    ("ports.state", |asked, answer| at(asked, answer, Opcode::GET_PHYSICAL_PORT_STATE, |payload| payload[4 + 11] = 1)),
    ("ports.type", |asked, answer| at(asked, answer, Opcode::GET_PHYSICAL_PORT_STATE, |payload| payload[4 + 4] = 5)),
    ("ports.unknown", |asked, answer| {
        if asked.payload == [1, 0x77] {
            answer.header.return_code = ReturnCode::INVALID_INPUT;
        }
    }),
    ("ports.control", |asked, answer| code(asked, answer, Opcode::PHYSICAL_PORT_CONTROL, ReturnCode::SUCCESS)),
    ("vcs.counts", |asked, answer| at(asked, answer, Opcode::IDENTIFY_SWITCH_DEVICE, |payload| payload[0x44] += 9)),
    ("vcs.pieces", |asked, answer| {
        if asked.payload == [1, 1, 1, 0] {
            answer.payload[8] = 2;
        }
    }),
    ("vcs.unknown", |asked, answer| {
        if asked.payload == [0, 255, 1, 0x77] {
            answer.payload[5] = 1;
        }
    }),
    ("bind.unknown", |asked, answer| {
        if asked.header.opcode == Opcode::BIND_VPPB && asked.payload[0] == 0xee {
            answer.header.return_code = ReturnCode::INTERNAL_ERROR;
        }
    }),
    ("unbind.unknown", |asked, answer| {
        if asked.header.opcode == Opcode::UNBIND_VPPB && asked.payload[0] == 0xee {
            answer.header.return_code = ReturnCode::SUCCESS;
        }
    }),
    ("bind", |asked, answer| {
        if asked.header.opcode == Opcode::BIND_VPPB {
            answer.header.is_background = false;
        }
    }),
    ("unbind", |asked, answer| {
        if asked.header.opcode == Opcode::UNBIND_VPPB && asked.payload[0] == 0 && asked.payload[1] == 0 {
            answer.header.return_code = ReturnCode::INTERNAL_ERROR;
        }
    }),
    ("tunnel", |asked, answer| inner(asked, answer, Opcode::IDENTIFY, |payload| payload[17] = 0)),
    ("tunnel.unknown", |asked, answer| {
        if asked.header.opcode == Opcode::TUNNEL && asked.payload.first() == Some(&0xee) {
            answer.header.return_code = ReturnCode::INTERNAL_ERROR;
        }
    }),
    ("tunnel.short", |asked, answer| {
        if asked.header.opcode == Opcode::TUNNEL && asked.payload.len() == 8 {
            answer.header.return_code = ReturnCode::SUCCESS;
        }
    }),
    ("lds", |asked, answer| inner(asked, answer, Opcode::GET_LD_INFO, |payload| payload.push(0))),
    ("lds.direct", |asked, answer| code(asked, answer, Opcode::GET_LD_INFO, ReturnCode::SUCCESS)),
    ("lds.allocations", |asked, answer| inner(asked, answer, Opcode::GET_LD_ALLOCATIONS, |payload| payload[10] = 0xff)),
    ("qos", |asked, answer| inner(asked, answer, Opcode::GET_QOS_CONTROL, |payload| payload[1] = 0)),
    ("capacity", |asked, answer| inner(asked, answer, Opcode::GET_DCD_INFO, |payload| payload.push(0))),
    ("capacity.regions", |asked, answer| inner(asked, answer, Opcode::GET_HOST_DC_REGIONS, |payload| payload[4] = 1)),
    ("capacity.extents", |asked, answer| {
        inner(asked, answer, Opcode::GET_DC_EXTENT_LISTS, |payload| {
            payload[8] = 1;
            payload[12] = 1;
            payload.extend([0; 40]);
        });
    }),
];

fn at(asked: &Message, answer: &mut Message, opcode: Opcode, change: impl FnOnce(&mut Vec<u8>)) {
    let is_meant = asked.header.opcode == opcode && answer.header.return_code == ReturnCode::SUCCESS;
    // The port and the virtual switch that do not exist have cases of their own.
    if is_meant && !asked.payload.ends_with(&[0x77]) {
        change(&mut answer.payload);
    }
}

fn code(asked: &Message, answer: &mut Message, opcode: Opcode, code: ReturnCode) {
    if asked.header.opcode == opcode {
        answer.header.return_code = code;
    }
}

fn lax(asked: &Message, answer: &mut Message, opcode: Opcode, length: usize) {
    if asked.header.opcode == opcode && asked.payload.len() == length {
        answer.header.return_code = ReturnCode::SUCCESS;
    }
}

/// Changes the answer in a tunnel.
fn inner(asked: &Message, answer: &mut Message, opcode: Opcode, change: impl FnOnce(&mut Vec<u8>)) {
    let is_tunnel = asked.header.opcode == Opcode::TUNNEL && answer.payload.len() >= 16;
    let Some(Ok(mut message)) = is_tunnel.then(|| Message::decode(&answer.payload[4..], &Dialect::STANDARD)) else {
        return;
    };
    if message.header.opcode != opcode || message.header.return_code != ReturnCode::SUCCESS {
        return;
    }
    change(&mut message.payload);
    message.header.payload_bytes = message.payload.len() as u32;
    let bytes = message.encode(&Dialect::STANDARD);
    answer.payload = [&(bytes.len() as u16).to_le_bytes()[..], &[0, 0], &bytes].concat();
}

#[test]
fn every_way_of_being_wrong_is_found_by_its_case() {
    for (case, wrong) in WRONG {
        let report = checked(peers::switch(&Dialect::STANDARD, wrong));
        assert!(departing(&report).contains(case), "{case}\n{}", aquifer_fmapi_cli::text(&report));
    }
    // The rest are judged by the tests of dialects, and by the next one.
    let wrong: BTreeSet<&str> = WRONG.iter().map(|(case, _)| *case).collect();
    let left: Vec<&str> = CASES.iter().map(|case| case.id).filter(|case| !wrong.contains(case)).collect();
    let of_dialects = ["header.category", "header.length", "header.opcode", "vcs", "bind.second", "tunnel.format"];
    assert_eq!(left, of_dialects);
}

/// Changes the answer to a request.
type Spoils = Box<dyn FnMut(&Message, &mut Message) + Send>;

/// Peers that spoil some answers at random.
const HISTORIES: u64 = 2000;

/// What a hostile peer does to one answer, with a random number.
type Spoil = (&'static str, fn(&mut Message, u64));

const SPOILS: [Spoil; 9] = [
    ("no answer", |answer, _| answer.header.tag = answer.header.tag.wrapping_add(9)),
    ("busy", |answer, _| answer.header.return_code = ReturnCode::BUSY),
    ("unsupported", |answer, _| answer.header.return_code = ReturnCode::UNSUPPORTED),
    ("another code", |answer, random| answer.header.return_code = ReturnCode(random as u16)),
    ("nothing", |answer, _| answer.payload.clear()),
    ("cut", |answer, random| answer.payload.truncate(random as usize % (answer.payload.len() + 1))),
    ("longer", |answer, random| answer.payload.resize(answer.payload.len() + random as usize % 300, random as u8)),
    ("all ones", |answer, _| answer.payload.fill(0xff)),
    ("a flipped bit", |answer, random| {
        let bits = answer.payload.len() as u64 * 8;
        if let Some(bit) = random.checked_rem(bits) {
            answer.payload[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }),
];

/// Each case is judged, and judged once, whatever a peer answers; the suite panics if one is judged twice. The case of
/// Physical Port Control was missing in the report of a switch that was not identified.
#[test]
fn every_case_is_judged_once_whatever_a_peer_answers() {
    let opcodes: Vec<Opcode> = (0..=u16::MAX).map(Opcode).filter(|opcode| opcode.name().is_some()).collect();
    let judge = |name: String, mut spoil: Spoils| {
        let client = peers::switch(&Dialect::STANDARD, move |asked, answer| {
            // A peer that does not answer Identify at first is not judged at all.
            if asked.header.tag != 1 {
                spoil(asked, answer);
            }
        });
        let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| checked(client)));
        assert!(judged.is_ok(), "{name}");
    };
    for (name, spoil) in SPOILS {
        for opcode in opcodes.iter().copied() {
            let mut random = Random(22);
            let spoilt = move |asked: &Message, answer: &mut Message| {
                if asked.header.opcode == opcode {
                    spoil(answer, random.bits());
                }
            };
            judge(format!("{name} to {opcode}"), Box::new(spoilt));
        }
    }
    for seed in 0..HISTORIES {
        let mut random = Random(seed);
        let every = 1 + random.below(20);
        let spoilt = move |_: &Message, answer: &mut Message| {
            if random.one_in(every) {
                let spoil = random.pick(&SPOILS).expect("some").1;
                spoil(answer, random.bits());
            }
        };
        judge(format!("seed {seed}"), Box::new(spoilt));
    }
}

/// The vPPBs of each virtual switch, and what is bound to them.
fn bindings(client: &mut Client) -> Vec<Vec<Vppb>> {
    let count = client.identify_switch().unwrap().virtual_switches;
    (0..count).map(|vcs_id| client.virtual_switch(vcs_id).unwrap().vppbs).collect()
}

/// A check that may bind leaves nothing bound, also if it cannot judge the bind.
#[test]
fn what_a_check_has_bound_is_unbound_whatever_the_peer_answers_to_it() {
    let spoilt = [Opcode::BIND_VPPB, Opcode::BACKGROUND_STATUS];
    for (name, spoil) in SPOILS {
        for opcode in spoilt {
            let is_right = Arc::new(AtomicBool::new(true));
            let answers_right = Arc::clone(&is_right);
            let mut random = Random(9);
            let mut client = peers::switch(&Dialect::STANDARD, move |asked, answer| {
                if asked.header.opcode == opcode && !answers_right.load(Ordering::Relaxed) {
                    spoil(answer, random.bits());
                }
            });
            let before = bindings(&mut client);
            is_right.store(false, Ordering::Relaxed);
            let report = check(&mut client, true, None, LIMIT).unwrap();
            is_right.store(true, Ordering::Relaxed);
            client.wait_for_background().unwrap();
            assert_eq!(bindings(&mut client), before, "{name} to {opcode}:\n{}", aquifer_fmapi_cli::text(&report));
        }
    }
}

/// Returns the verdict on a case.
fn verdict<'a>(report: &'a Report, case: &str) -> &'a Verdict {
    &report.findings.iter().find(|finding| finding.case.id == case).unwrap().verdict
}

/// The suite bound the first two logical devices, which in a switch before a pool of donors have no memory at first.
#[test]
fn only_logical_devices_with_memory_are_bound() {
    let skipped = |why: &str| Verdict::Skipped { why: why.into() };
    let one = skipped("no port has two logical devices with memory that are unbound");
    for (sizes, lds, second) in [
        ([0, 256, 0, 256], vec![1, 3], Verdict::Conforms),
        ([0, 0, 256, 0], vec![2], one.clone()),
        // Then the SLD is bound.
        ([0; 4], vec![BindVppb::NO_LD], one),
    ] {
        let mut config = SwitchConfig::example();
        let mld = config.devices.iter_mut().find(|device| device.lds_mib.len() == 4).unwrap();
        mld.lds_mib = sizes.to_vec();
        let bound = Arc::<Mutex<Vec<u16>>>::default();
        let seen = Arc::clone(&bound);
        let client = peers::switch_of(config, Duration::from_millis(1), &Dialect::STANDARD, move |asked, _| {
            if asked.header.opcode == Opcode::BIND_VPPB && asked.payload[0] != 0xee {
                seen.lock().unwrap().push(u16::from_le_bytes([asked.payload[4], asked.payload[5]]));
            }
        });
        let report = checked(client);
        let text = aquifer_fmapi_cli::text(&report);
        assert_eq!(*bound.lock().unwrap(), lds, "{sizes:?}\n{text}");
        assert_eq!((verdict(&report, "bind"), verdict(&report, "unbind")), (&Verdict::Conforms, &Verdict::Conforms));
        assert_eq!((verdict(&report, "bind.second"), departing(&report)), (&second, BTreeSet::new()), "{text}");
    }
}

/// Wherever its limit falls, also while something is bound.
#[test]
fn a_check_ends_at_its_limit_says_what_it_did_not_try_and_leaves_nothing_bound() {
    const DELAY: Duration = Duration::from_secs(1);
    let mut complete = 0;
    for seconds in 1..=200 {
        let limit = Duration::from_secs(seconds);
        let mut client = peers::switch_of(SwitchConfig::example(), DELAY, &Dialect::STANDARD, |_, _| {});
        let before = bindings(&mut client);
        let begun = client.now();
        let report = check(&mut client, true, None, limit).unwrap();
        let (took, text) = (client.now() - begun, aquifer_fmapi_cli::text(&report));
        client.end_by(LIMIT);
        assert_eq!(bindings(&mut client), before, "{text}");
        assert!(took <= limit + DELAY + UNDO_TIME_MAX, "{took:?} of {limit:?}");
        assert_eq!((departing(&report), report.findings.len()), (BTreeSet::new(), CASES.len()), "{text}");
        let [conforms, _, _, skipped] = report.counts();
        assert_eq!((conforms + skipped, skipped == 0), (CASES.len(), report.is_complete), "{text}");
        assert_eq!(text.contains("not tried: the check reached its limit of time"), !report.is_complete, "{text}");
        assert_eq!(aquifer_fmapi_cli::json(&report)["is_complete"], report.is_complete);
        complete += usize::from(report.is_complete);
    }
    assert!((20..180).contains(&complete), "{complete} checks have ended in time");
}

/// The peer ends in the middle, or does not answer a command at all.
#[test]
fn a_peer_that_does_not_answer_is_reported_and_the_rest_is_judged() {
    let mut switch = peers::switch(&Dialect::STANDARD, |asked, answer| {
        // Not an answer to the request, because no request has this tag.
        if asked.header.opcode == Opcode::GET_VIRTUAL_SWITCH_INFO {
            answer.header.tag = answer.header.tag.wrapping_add(7);
        }
    });
    let report = check(&mut switch, true, None, LIMIT).unwrap();
    assert!(departing(&report).contains("vcs"), "{}", aquifer_fmapi_cli::text(&report));
    assert!(aquifer_fmapi_cli::text(&report).contains("no answer within 2000 ms"));
    let conforms = report.counts()[0];
    assert!(conforms > 30, "{conforms}");
}

#[test]
fn reports_say_the_same_in_every_form() {
    let report = checked(peers::qemu());
    let (text, json, page) =
        (aquifer_fmapi_cli::text(&report), aquifer_fmapi_cli::json(&report), aquifer_fmapi_cli::page(&report));
    let counts = report.counts();
    let names = ["conforms", "known", "departs", "skipped"];
    for (count, name) in counts.iter().zip(names) {
        assert_eq!(json[name], *count, "{name}");
        assert_eq!(page.matches(&format!("<tr class=\"{name}\">")).count(), *count, "{name}");
        assert_eq!(text.lines().filter(|line| line.split_whitespace().next() == Some(name)).count(), *count, "{name}");
    }
    assert_eq!(json["cases"].as_array().unwrap().len(), CASES.len());
    assert_eq!(json["dialect"], "QEMU");
    assert!(text.contains("every link is reported in L2 (7)") && page.contains("every link is reported in L2 (7)"));
    assert!(text.contains("  Identify Switch Device (5100h)\n"), "{text}");
}

/// A check of a file from `--trace` reaches the same verdicts as a check of the peer itself, with the known departures
/// of each dialect.
#[test]
fn a_peer_that_was_recorded_is_judged_as_the_peer_was() {
    let jackrabbit = || peers::switch(Dialect::named("Jackrabbit").unwrap(), |_, _| {});
    let opencis = || peers::switch(Dialect::named("OpenCIS").unwrap(), |_, _| {});
    let own = || peers::switch(&Dialect::STANDARD, |_, _| {});
    let peers: [(&str, Client); 4] =
        [("standard", own()), ("QEMU", peers::qemu()), ("OpenCIS", opencis()), ("Jackrabbit", jackrabbit())];
    for (name, mut client) in peers {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("recorded-{name}-{}.pcap", std::process::id()));
        client.add_trace(Box::new(PcapTrace::new(File::create(&file).unwrap()).unwrap()));
        let live = check(&mut client, true, None, LIMIT).unwrap();
        client.finish_traces().unwrap();
        let address: PeerAddress = format!("recorded:{}", file.display()).parse().unwrap();
        let limits = Limits::default();
        let mut recorded = Client::new(address.open(limits.connect).unwrap(), SystemClock::shared(), limits);
        let again = check(&mut recorded, true, None, LIMIT).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(again.dialect, name);
        assert_eq!(again.findings, live.findings, "{name}:\n{}", aquifer_fmapi_cli::text(&again));
        assert_eq!(again.counts()[1] > 0, name != "standard", "{name}: known departures");
    }
}
