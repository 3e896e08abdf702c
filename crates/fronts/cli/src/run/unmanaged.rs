// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Measures how much unmanaged memory the program has in DRAM, and reports when managed and unmanaged memory together
//! exceed the budget.
//!
//! Shared memory, thread stacks, mappings below 64 KiB and private pages of files stay under the kernel's management.
//! They are counted from outside, from /proc, so that the program's threads do no work for it. Pages of files that the
//! kernel can drop or write back by itself (RssFile) do not count. See proc_pid_status(5), and proc_pid_smaps(5) for
//! `smaps_rollup`, which divides pages that several processes share.
//!
//! Threads: one of the launcher's. Signals are blocked there, since it starts after `Signals::take_over`.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use aquifer_config::{LEDGER_BUDGET_WORD, LEDGER_GIVEN_WORD};
use aquifer_core::units::{ByteSize, PAGE_BYTES};
use aquifer_stats::{Counters, Gauge};
use aquifer_sys::shared_segment::SharedSegment;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::exit::say;

/// Delay before the first look, short enough for programs that run for a moment; each later delay is twice as long.
const FIRST_LOOK: Duration = Duration::from_millis(10);
/// Maximum delay between looks, unless a look takes long.
const LOOKS_APART: Duration = Duration::from_secs(1);
/// A look may take at most 1/20 of the time: `smaps_rollup` of a large process walks its page tables.
const LOOK_PART: u32 = 20;
/// A total above the previous one is confirmed by a second look after this delay.
const CONFIRMED_AFTER: Duration = Duration::from_millis(50);
/// Looks that must all find the budget exceeded, `CONFIRMED_AFTER` apart. The kernel counts pages at once, and the
/// pager publishes its own figures a moment later: until then, pages that it manages look unmanaged.
const LOOKS_TO_JUDGE: u32 = 4;
/// Unmanaged memory that is tolerated above the budget: stacks, data of libraries, small mappings. An arbitrary choice:
/// as much as the smallest budget, or 1/64 of a large budget.
const ALLOWED_BYTES: u64 = 16 << 20;
const ALLOWED_PART: u64 = 64;
/// Maximum number of processes of one tree that are looked at.
const PROCESSES_MAX: usize = 4096;

/// The program to watch, and its settings.
#[derive(Debug)]
pub struct Watched<'a> {
    /// The program's name.
    pub name: &'a str,
    /// The program's process.
    pub child: Pid,
    /// The counters that receive the figures.
    pub counters: &'a Counters,
    /// The shared budget ledger, if the processes of a tree share a budget.
    pub ledger: Option<&'a SharedSegment>,
    /// Whether to end the program when it exceeds the budget.
    pub strict: bool,
}

/// The thread that watches the program's unmanaged memory.
#[derive(Debug)]
pub struct Watch<'scope> {
    thread: ScopedJoinHandle<'scope, ()>,
}

/// Whether the watch has ended the program, and whether the watch itself is to end.
#[derive(Debug, Default)]
pub struct State {
    over: AtomicBool,
    refused: AtomicBool,
}

impl State {
    /// Returns whether the program was ended because it exceeded its budget.
    pub fn has_refused(&self) -> bool {
        self.refused.load(Ordering::Acquire)
    }
}

impl<'scope> Watch<'scope> {
    /// Starts the watching thread.
    pub fn start<'env>(scope: &'scope Scope<'scope, 'env>, watched: Watched<'env>, state: &'env State) -> Self {
        Self { thread: scope.spawn(move || watched.look_on(state)) }
    }

    /// Ends the watch, because the program has exited.
    pub fn end(self, state: &State) {
        state.over.store(true, Ordering::Release);
        self.thread.thread().unpark();
    }
}

impl Watched<'_> {
    fn look_on(&self, state: &State) {
        let mut pause = FIRST_LOOK;
        let mut has_said = false;
        let mut before = Resident::default();
        loop {
            thread::park_timeout(pause);
            if state.over.load(Ordering::Acquire) {
                return;
            }
            let began = Instant::now();
            let processes = tree(self.child);
            let found = Resident::of(&processes);
            let took = began.elapsed();
            if let Some(found) = found {
                before =
                    if processes.len() > 1 && found.exceeds(&before) { found.confirmed(&processes) } else { found };
                has_said |= self.judge(&before, &processes, has_said, state);
            }
            pause = (pause * 2).min(LOOKS_APART).max(took * LOOK_PART);
        }
    }

    /// Publishes the figures. Returns whether the budget is exceeded, and reports it the first time.
    fn judge(&self, found: &Resident, processes: &BTreeSet<i32>, has_said: bool, state: &State) -> bool {
        let figures = self.figures(found, processes).confirmed(|| {
            thread::sleep(CONFIRMED_AFTER);
            Some(self.figures(&Resident::of(processes)?, processes))
        });
        self.counters.set(Gauge::UnmanagedResidentBytes, figures.unmanaged);
        self.counters.raise(Gauge::UnmanagedResidentBytesPeak, figures.unmanaged);
        if self.ledger.is_some() {
            // A process that fits its budget has no pager, which would otherwise publish a changed budget.
            self.counters.set(Gauge::DramBudgetBytes, figures.budget);
        }
        if !figures.exceed_budget() {
            return false;
        }
        if self.strict {
            state.refused.store(true, Ordering::Release);
            for process in processes {
                let _ = kill(Pid::from_raw(*process), Signal::SIGKILL);
            }
        }
        if !has_said {
            self.say(&figures);
        }
        true
    }

    /// Returns what the kernel and the pager say now.
    fn figures(&self, found: &Resident, processes: &BTreeSet<i32>) -> Figures {
        let count = processes.len().max(1) as u64;
        let managed = self.managed_bytes(found, count);
        let mapped = self.counters.gauge(Gauge::TierMappedBytes);
        let unmanaged = found.unmanaged_bytes(managed, self.counters.gauge(Gauge::OverheadBytes) * count, mapped);
        let budget = match self.ledger {
            Some(ledger) => ledger.words()[LEDGER_BUDGET_WORD].load(Ordering::Relaxed) * PAGE_BYTES,
            None => self.counters.gauge(Gauge::DramBudgetBytes) * count,
        };
        Figures { managed, unmanaged, budget }
    }

    /// Returns the part of the anonymous memory that the budget ledger covers.
    fn managed_bytes(&self, found: &Resident, count: u64) -> u64 {
        let is_active = self.counters.gauge(Gauge::Active) != 0;
        let managed = match self.ledger {
            _ if is_active && count == 1 => {
                self.counters.gauge(Gauge::ResidentBytes) + self.counters.gauge(Gauge::FramesFreeBytes)
            }
            Some(ledger) => ledger.words()[LEDGER_GIVEN_WORD].load(Ordering::Relaxed) * PAGE_BYTES,
            None if is_active => self.counters.gauge(Gauge::DramBudgetBytes) * count,
            None => self.counters.gauge(Gauge::ManagedBytes) * count,
        };
        managed.min(found.anonymous)
    }

    fn say(&self, figures: &Figures) {
        let Figures { managed, unmanaged, budget } = *figures;
        let (name, unmanaged, managed, budget) = (self.name, ByteSize(unmanaged), ByteSize(managed), ByteSize(budget));
        let what = format!(
            "'{name}' has {unmanaged} in DRAM that aquifer does not manage (shared memory, stacks, small mappings), \
             beside {managed} that it does: more than --dram {budget}"
        );
        if self.strict {
            say(&format!("{what}; it was ended, as --strict asks: raise --dram, or let it use less of these"));
        } else {
            say(&format!("{what}; let it use less of these, or refuse such programs with --strict"));
        }
    }
}

/// Returns whether `used` exceeds a budget by more than the unmanaged memory that every program has.
pub fn exceeds_budget(used: u64, budget: u64) -> bool {
    used > budget + allowed(budget)
}

fn allowed(budget: u64) -> u64 {
    ALLOWED_BYTES.max(budget / ALLOWED_PART)
}

/// Memory of the program in DRAM beside its budget, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Figures {
    managed: u64,
    unmanaged: u64,
    budget: u64,
}

impl Figures {
    fn exceed_budget(&self) -> bool {
        exceeds_budget(self.managed + self.unmanaged, self.budget)
    }

    /// Returns these figures if they are within the budget. Otherwise the first later ones that are, or the last of
    /// `LOOKS_TO_JUDGE`. `look` returns `None` when the program has ended.
    fn confirmed(self, mut look: impl FnMut() -> Option<Self>) -> Self {
        let mut latest = self;
        for _ in 1..LOOKS_TO_JUDGE {
            if !latest.exceed_budget() {
                break;
            }
            let Some(later) = look() else { break };
            latest = later;
        }
        latest
    }
}

/// Resident memory of processes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Resident {
    anonymous: u64,
    shared: u64,
}

impl Resident {
    /// Returns `None` if no process can be read, because all have ended.
    fn of(processes: &BTreeSet<i32>) -> Option<Self> {
        let is_alone = processes.len() == 1;
        let each = processes.iter().filter_map(|process| {
            let divided = (!is_alone).then(|| Self::read(*process, "smaps_rollup", ["Pss_Anon:", "Pss_Shmem:"]));
            divided.flatten().or_else(|| Self::read(*process, "status", ["RssAnon:", "RssShmem:"]))
        });
        each.reduce(|sum, one| Self { anonymous: sum.anonymous + one.anonymous, shared: sum.shared + one.shared })
    }

    fn read(process: i32, file: &str, names: [&str; 2]) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{process}/{file}")).ok()?;
        let [anonymous, shared] = names.map(|name| kibibytes(&text, name));
        Some(Self { anonymous: anonymous? << 10, shared: shared? << 10 })
    }

    fn exceeds(&self, other: &Self) -> bool {
        self.anonymous + self.shared > other.anonymous + other.shared
    }

    /// Returns the minimum of this look and another one a moment later. Processes are read one after another, so pages
    /// that they begin to share between two reads are counted more than once.
    fn confirmed(&self, processes: &BTreeSet<i32>) -> Self {
        thread::sleep(CONFIRMED_AFTER);
        Self::of(processes).map_or(*self, |later| self.min(&later))
    }

    fn min(&self, other: &Self) -> Self {
        Self { anonymous: self.anonymous.min(other.anonymous), shared: self.shared.min(other.shared) }
    }

    /// `mapped`: the most that a tier adds to the program's shared memory (`tier_mapped_bytes`). As much shared memory
    /// of the program's own may go unnoticed.
    fn unmanaged_bytes(&self, managed: u64, overhead: u64, mapped: u64) -> u64 {
        self.shared.saturating_sub(mapped) + self.anonymous.saturating_sub(managed + overhead)
    }
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// Returns a process and its descendants, except those whose parents have exited.
fn tree(root: Pid) -> BTreeSet<i32> {
    let mut found = BTreeSet::from([root.as_raw()]);
    let mut new = vec![root.as_raw()];
    while let Some(process) = new.pop() {
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for thread in threads.flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|word| word.parse().ok()) {
                if found.len() < PROCESSES_MAX && found.insert(child) {
                    new.push(child);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_neither_managed_nor_ours_is_unmanaged() {
        let found = Resident { anonymous: 100, shared: 30 };
        assert_eq!(found.unmanaged_bytes(60, 10, 0), 60);
        assert_eq!(found.unmanaged_bytes(95, 10, 0), 30);
        assert_eq!((found.unmanaged_bytes(60, 10, 20), found.unmanaged_bytes(60, 10, 50)), (40, 30));
        let before = Resident { anonymous: 70, shared: 90 };
        assert_eq!(found.min(&before), Resident { anonymous: 70, shared: 30 });
        assert_eq!((allowed(16 << 20), allowed(64 << 30)), (16 << 20, 1 << 30));
    }

    #[test]
    fn what_the_pager_publishes_a_moment_later_is_not_unmanaged() {
        let figures = |unmanaged| Figures { managed: 64 << 20, unmanaged, budget: 64 << 20 };
        let (within, above) = (figures(1 << 20), figures(90 << 20));
        let mut looks = 0;
        let mut look_twice = |later: [Figures; 3]| {
            looks = 0;
            let judged = above.confirmed(|| {
                looks += 1;
                Some(later[looks - 1])
            });
            (judged, looks)
        };
        assert_eq!(look_twice([within, above, above]), (within, 1));
        assert_eq!(look_twice([above, above, within]), (within, 3));
        assert_eq!(look_twice([above; 3]), (above, 3));
        assert_eq!(within.confirmed(|| unreachable!("nothing to confirm")), within);
    }

    #[test]
    fn this_process_and_its_children_are_found() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let processes = tree(Pid::this());
        assert!(processes.contains(&(std::process::id() as i32)) && processes.contains(&(child.id() as i32)));
        assert!(Resident::of(&processes).is_some_and(|found| found.anonymous > 0));
        assert!(Resident::of(&tree(Pid::this())).is_some_and(|found| found.anonymous > 0));
        let _ = child.kill();
        let _ = child.wait();
        assert_eq!(kibibytes("VmRSS:\t  12 kB\nRssAnon:\t   7 kB\n", "RssAnon:"), Some(7));
    }
}
