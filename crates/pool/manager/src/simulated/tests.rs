// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A peer still knows what it has reported or confirmed after its process was killed. A peer that reported to a new
//! manager used to raise its term only in memory: killed and started again, it would have obeyed the earlier manager.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use aquifer_fabric::{Bytes, Incarnation, LeaseState, Step, Token};

use super::*;
use crate::peers::Silent;

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// A directory of this test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("aquifer-simulated-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Scratch(path)
    }

    fn open(&self) -> Simulated {
        let capacity = Bytes::slabs(8);
        let (donors, hosts, devices) = (2, 1, 1);
        let config = SimulatedConfig {
            donors,
            donor_capacity: capacity,
            hosts,
            devices,
            device_capacity: capacity,
            directory: None,
            kill_at_effect: None,
        };
        Simulated::open(&config, &self.0, CrashPoint::default()).expect("opened")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn donor() -> DonorId {
    "d0000".parse().expect("a name")
}

fn grant(term: u64, sequence: u64, member: u64, slabs: u64) -> Command {
    let (volume, member, host) = (VolumeId(1), MemberId(member), "h000".parse().expect("a name"));
    let step = Step::Grant { donor: donor(), host, volume, member, bytes: Bytes::slabs(slabs) };
    Command { term: Term(term), sequence, incarnation: Incarnation(1), step, cause: None }
}

/// Returns what a donor reports to a term, or why it does not.
fn answer(simulated: &mut Simulated, term: u64) -> Result<BTreeMap<MemberId, Token>, Silent> {
    let report = simulated.reports(Term(term), Asked::All).donors.remove(&donor()).expect("every donor answers")?;
    let leases = report.leases.values().flatten();
    let lent = leases.filter_map(|(member, lease)| match lease.state {
        LeaseState::Lent { token } => Some((*member, token)),
        _ => None,
    });
    Ok(lent.collect())
}

#[test]
fn peers_that_reported_to_a_term_refuse_smaller_ones_after_a_restart() {
    let scratch = Scratch::new();
    let first = scratch.open().reports(Term(5), Asked::All);
    assert!(first.donors.values().all(Result::is_ok) && first.hosts.values().all(Result::is_ok));
    let mut restarted = scratch.open();
    let second = restarted.reports(Term(4), Asked::All);
    for (name, report) in &second.donors {
        assert_eq!(report.as_ref().err(), Some(&Silent::Deposed { seen: Term(5) }), "donor {name}");
    }
    for (name, report) in &second.hosts {
        assert_eq!(report.as_ref().err(), Some(&Silent::Deposed { seen: Term(5) }), "host {name}");
    }
    assert!(restarted.send(&[grant(4, 9, 1, 1)])[0].is_err(), "a deposed manager's command");
}

#[test]
fn a_command_that_fails_behind_the_gate_still_counts_after_a_restart() {
    let scratch = Scratch::new();
    let refused = scratch.open().send(&[grant(7, 3, 1, 1000)]).remove(0).expect_err("less is free");
    assert!(refused.to_string().contains("less is free"), "{refused}");
    let mut restarted = scratch.open();
    assert_eq!(answer(&mut restarted, 6), Err(Silent::Deposed { seen: Term(7) }));
    assert!(restarted.send(&[grant(7, 3, 1, 1)])[0].is_err(), "it was overtaken by itself");
}

#[test]
fn a_peer_whose_file_cannot_be_written_says_nothing_until_it_can() {
    let scratch = Scratch::new();
    let mut simulated = scratch.open();
    let donors = scratch.0.join("donors");
    fs::remove_dir_all(&donors).expect("removed");
    assert_eq!(answer(&mut simulated, 2), Err(Silent::NoAnswer), "its term is not stored");
    assert_eq!(answer(&mut simulated, 2), Err(Silent::NoAnswer), "and not the second time");
    assert!(simulated.reports(Term(2), Asked::All).hosts.values().all(Result::is_ok), "others answer");
    assert!(simulated.send(&[grant(2, 1, 1, 1)])[0].is_err(), "what cannot be stored is not confirmed");
    fs::create_dir_all(&donors).expect("made");
    let lent = answer(&mut simulated, 2).expect("a report");
    assert_eq!(answer(&mut scratch.open(), 2), Ok(lent), "what was reported is stored");
    assert_eq!(answer(&mut scratch.open(), 1), Err(Silent::Deposed { seen: Term(2) }));
}

/// Reports, commands, kills and failures of the disk in any order: the model is what the donor has reported.
#[test]
fn whatever_was_told_survives_a_kill() {
    for seed in 1..=30 {
        let (scratch, mut random) = (Scratch::new(), Random(seed));
        let (donors, away) = (scratch.0.join("donors"), scratch.0.join("away"));
        let mut simulated = scratch.open();
        let (mut term, mut sequence, mut known) = (1, 0, BTreeMap::new());
        let mut told = 0;
        for step in 0..60 {
            match random.below(6) {
                0 => term += random.below(3),
                1 if away.exists() => fs::rename(&away, &donors).expect("renamed"),
                1 => fs::rename(&donors, &away).expect("renamed"),
                2 if !away.exists() => {
                    drop(simulated);
                    simulated = scratch.open();
                    if told > 0 {
                        assert!(answer(&mut simulated, told - 1).is_err(), "seed {seed}, step {step}: term {told}");
                    }
                    let lent = answer(&mut simulated, term).expect("the newest manager gets a report");
                    let kept = known.iter().all(|(member, token)| lent.get(member) == Some(token));
                    assert!(kept, "seed {seed}, step {step}: {known:?} was told, {lent:?} is there");
                    (told, known) = (term, lent);
                }
                3 => {
                    sequence += 1;
                    simulated.send(&[grant(term, sequence, random.below(12), 1 + random.below(3))]);
                }
                _ => {
                    if let Ok(lent) = answer(&mut simulated, term) {
                        (told, known) = (term, lent);
                    }
                }
            }
        }
    }
}
