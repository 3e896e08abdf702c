// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Plays the accesses of a recorded program against an engine with other settings.
//!
//! `docs/recording.md` explains what the result can and cannot show, and every result is printed with [`NOTES`].

use aquifer_core::engine::Settings;
use aquifer_core::map::Pages;
use aquifer_core::policy::PolicyName;
use aquifer_core::units::{Order, PageIndex};

use crate::accesses::{Accesses, Act};
use crate::instant::InstantMachine;
use crate::instant_program::InstantProgram;
use crate::outcome::Outcome;

/// What a user must know before relying on a result.
pub const NOTES: [&str; 4] = [
    "a recording knows faults, not hits: touches of resident blocks are missing, so a smaller --dram is judged too well",
    "everything is done at once: counts are comparable with the row 'recorded settings', not with 'recorded' itself",
    "what was read ahead and installed along with a touched block counts as touched",
    "within a block that was fetched, only the page that faulted and pages found changed are known: \
     for smaller blocks fetched bytes are a lower bound",
];

/// The settings to play with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The policy that chooses victims.
    pub policy: PolicyName,
    /// The engine's settings.
    pub settings: Settings,
    /// The block size of every mapping; `None` means the recorded sizes.
    pub order: Option<Order>,
}

/// Plays all of `accesses`.
pub fn play(accesses: &Accesses, machine: Machine) -> Outcome {
    let instant = InstantMachine::new(machine.settings, machine.policy);
    let mut program = InstantProgram::new(&instant);
    for act in &accesses.acts {
        match act {
            Act::Map { start, end, order, delivery, present } => {
                let order = machine.order.unwrap_or(*order);
                program.map(*start, *end, order, *delivery, |page| contain(present, page));
            }
            Act::Discard { start, end, remove } => program.discard(*start, *end, *remove),
            Act::Touch { page, thread, write, writes } => {
                program.touch(*page, *thread, *write);
                for pages in writes {
                    program.visit(*pages, *thread, true);
                }
            }
        }
    }
    instant.outcome()
}

/// Whether one of `ranges`, which are in order, contains the page.
fn contain(ranges: &[Pages], page: PageIndex) -> bool {
    let behind = ranges.partition_point(|pages| pages.start <= page);
    behind > 0 && page < ranges[behind - 1].end()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use aquifer_core::record::{End, Header, batch_header};

    use super::*;
    use crate::recording::{self, Replayed};
    use crate::synthetic::{self, BLOCK_PAGES};
    use crate::workload::Workload;

    /// A recording of a synthetic workload, as a pager would have written it.
    fn recorded(workload: Workload, policy: PolicyName, machine: synthetic::Machine) -> (Vec<u8>, Outcome) {
        let trace = workload.trace(1000, 1);
        let settings = Settings {
            budget_pages: machine.budget_pages,
            tier_slabs: 100,
            prefetch: machine.prefetch,
            elastic: machine.elastic,
            // The smallest blocks are combined with a tier whose fetches cost no more than a rescue: then sealed blocks
            // are dropped.
            fetch_cost: if machine.order == Order::MIN { 1 } else { synthetic::SETTINGS.fetch_cost },
            ..synthetic::SETTINGS
        };
        let instant = InstantMachine::new(settings, policy);
        instant.record();
        synthetic::play_on(&instant, &trace, machine.order);
        let (payload, events) = instant.recorded();
        let policy = policy.to_string();
        let header = Header { settings, policy, pid: 1, release: "0".into(), program: workload.to_string() };
        let end = End { events, lost: 0, closed: true }.payload();
        let mut file = header.bytes().to_vec();
        for (number, (is_state, payload)) in [(false, &payload[..]), (true, &end[..])].into_iter().enumerate() {
            file.extend(batch_header(is_state, number as u64, payload));
            file.extend(payload);
        }
        (file, instant.outcome())
    }

    fn machine(prefetch: bool, elastic: bool) -> synthetic::Machine {
        synthetic::Machine { budget_pages: 300 * u64::from(BLOCK_PAGES), order: Order::DEFAULT, elastic, prefetch }
    }

    fn read(file: &[u8]) -> (Replayed, Accesses) {
        let mut accesses = Accesses::default();
        let replayed = recording::replay(Path::new("x"), file, |_, call, answer, plan, engine| {
            accesses.see(call, answer, plan, engine);
        });
        let replayed = replayed.expect("it can be read");
        accesses.finish(&replayed.engine);
        (replayed, accesses)
    }

    #[test]
    fn a_recording_is_answered_in_the_same_way_by_every_policy() {
        for policy in PolicyName::ALL {
            for workload in [Workload::Cyclic, Workload::Mixed, Workload::ZipfDrift] {
                // The smallest blocks are slow to play: one policy is enough to cover the calls that only they use.
                let orders = [Order::DEFAULT, Order::MIN];
                for order in &orders[..1 + usize::from(policy == PolicyName::S3Fifo)] {
                    let order = *order;
                    let machine = synthetic::Machine { order, ..machine(true, order == Order::DEFAULT) };
                    let (file, outcome) = recorded(workload, policy, machine);
                    let (replayed, accesses) = read(&file);
                    assert!(matches!(replayed.outcome, recording::Outcome::Same), "{policy}: {:?}", replayed.outcome);
                    assert_eq!(accesses.recorded, outcome, "{workload} {policy} {order:?}");
                }
            }
        }
    }

    #[test]
    fn another_policy_answers_otherwise_and_the_first_event_is_named() {
        let (mut file, _) = recorded(Workload::Cyclic, PolicyName::S3Fifo, machine(false, false));
        let header = Header { policy: "lru".into(), ..aquifer_core::record::Recording::open(&file).unwrap().0 };
        file[..aquifer_core::record::HEADER_BYTES].copy_from_slice(&header.bytes());
        let (replayed, _) = read(&file);
        let recording::Outcome::Differs(difference) = replayed.outcome else { panic!("lru is s3fifo") };
        assert!(difference.number > 300, "{difference:?}");
        assert!(difference.recorded.contains("plan of"), "{difference:?}");
    }

    /// Without read-ahead and with blocks of one size, the recording contains every fault of a cyclic scan.
    #[test]
    fn the_recorded_settings_cost_what_they_cost() {
        for workload in [Workload::Cyclic, Workload::Uniform] {
            let (file, _) = recorded(workload, PolicyName::Fifo, machine(false, false));
            let (replayed, accesses) = read(&file);
            let settings = replayed.header.settings;
            let again = play(&accesses, Machine { policy: PolicyName::Fifo, settings, order: None });
            assert_eq!(again.fetched_pages, accesses.recorded.fetched_pages, "{workload}");
            assert_eq!(again.written_back_pages, accesses.recorded.written_back_pages, "{workload}");
        }
    }

    #[test]
    fn other_settings_tell_policies_and_budgets_apart() {
        let (file, _) = recorded(Workload::Cyclic, PolicyName::Fifo, machine(false, false));
        let (replayed, accesses) = read(&file);
        let settings = replayed.header.settings;
        let fetched = |machine| play(&accesses, machine).fetched_pages;
        let fifo = fetched(Machine { policy: PolicyName::Fifo, settings, order: None });
        let s3fifo = fetched(Machine { policy: PolicyName::S3Fifo, settings, order: None });
        assert!(s3fifo < fifo * 9 / 10, "{s3fifo} of {fifo}");
        let all = Settings { budget_pages: 1100 * u64::from(BLOCK_PAGES), ..settings };
        assert_eq!(fetched(Machine { policy: PolicyName::Fifo, settings: all, order: None }), 0);
        let ahead = Settings { prefetch: true, ..settings };
        let outcome = play(&accesses, Machine { policy: PolicyName::Fifo, settings: ahead, order: None });
        assert!(outcome.fetches * 4 < fifo / u64::from(BLOCK_PAGES), "{outcome:?}");
    }
}
