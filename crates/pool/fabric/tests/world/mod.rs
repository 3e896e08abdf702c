// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A pool in one thread: donors, agents, a switch, fabric managers, and a network that loses and delays messages.
//!
//! Everything follows from the seed. Donors, agents and the switch keep the contract that `aquifer_fabric` states for
//! them, managers do only what the crate decides, and `judge.rs` checks after each tick what is true, whatever the
//! reports say. A [`Plant`] makes one part break its contract, to see that the judge finds it.

pub mod agent;
pub mod backup;
pub mod device;
pub mod donor;
pub mod judge;
pub mod operator;
pub mod site;
pub mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aquifer_fabric::*;
use aquifer_test_support::Random;

use agent::SimAgent;
use backup::Backup;
use device::SimSwitch;
use donor::SimDonor;
use judge::Judge;
use writer::Writer;

/// Ticks of trouble in one history.
const TROUBLE_TICKS: u64 = 160;
/// Ticks that are enough to settle when nothing fails any more.
const CALM_TICKS: u64 = 400;
/// Terms follow the clock. A tick is long enough for the members that a volume gets in it: see `Term::first_member`.
const TERMS_PER_TICK: u64 = 100_000;
/// How long a source may be silent before it is replaced.
pub const TIMEOUT_MS: u64 = 25;

/// A bug that is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A manager acts before it has stored what it acts on.
    ActsBeforeStoring,
    /// An agent takes half of the members when a volume is presented.
    AgentPresentsHalf,
    /// An agent lets a member go whatever depends on it, and the manager does not wait for its successor.
    CopiesAreNotAwaited,
    /// A donor lends slabs before they are wiped.
    DonorDoesNotWipe,
    /// A donor grants again what it has lent already.
    DonorGrantsTwice,
    /// A manager drops members although no report says that they were given back.
    DropsWithoutConfirmation,
    /// Donors and agents admit commands of a smaller term, and commands that were overtaken.
    GateIsOpen,
    /// A manager takes an LD that its host does not have yet for one that is online there.
    LdsAreNotAwaited,
    /// A manager takes the silence of an agent for a confirmation that a member has left.
    SilenceIsConsent,
}

/// What ends a history.
#[derive(Clone, Debug)]
pub enum Wrong {
    /// The judge finds that a part has broken the contract.
    Judged(String),
    /// What a manager kept from round to round differs from what it decides when it looks at everything. No planted bug
    /// explains that, so it does not count as finding one.
    Mismatch(String),
}

impl From<String> for Wrong {
    fn from(what: String) -> Wrong {
        Wrong::Judged(what)
    }
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Judged(what) | Self::Mismatch(what) => f.write_str(what),
        }
    }
}

/// A command on its way.
#[derive(Clone)]
struct Letter {
    arrives_at: u64,
    end: End,
    command: Command,
}

/// What is stored, as a store with compare-and-swap keeps it.
pub struct Store {
    /// The term of the elected writer.
    pub term: Term,
    /// The desired state.
    pub desired: Desired,
}

/// Everything.
pub struct World {
    pub now: u64,
    pub random: Random,
    pub plant: Option<Plant>,
    /// `true` while things fail.
    pub trouble: bool,
    /// `true` in histories in which no donor loses its memory: then no byte may be lost.
    pub donors_keep_memory: bool,
    pub topology: Arc<Topology>,
    pub donors: BTreeMap<DonorId, SimDonor>,
    pub agents: BTreeMap<HostId, SimAgent>,
    pub switch: SimSwitch,
    pub store: Store,
    pub writers: Vec<Writer>,
    pub judge: Judge,
    letters: Vec<Letter>,
    /// Hosts that were declared dead but still run.
    pub zombies: BTreeSet<HostId>,
    /// `true` to print every command that arrives.
    pub traces: bool,
    /// When the store loses everything but pools and zones, if it does.
    loses_state_at: Option<u64>,
    /// Whether the store has lost its state: from then on managers adopt what they find.
    pub has_lost_state: bool,
    /// The backup of the store, in a history in which an older state is restored.
    pub backup: Option<Backup>,
    /// Whether an older state was restored: from then on operators adopt what they find.
    pub is_restored: bool,
    /// Volumes that were adopted. They may exceed a quota.
    pub adopted: BTreeSet<VolumeId>,
    /// `true` with one donor and volumes without redundancy, all of which the donor has room for.
    pub has_one_donor: bool,
}

impl World {
    /// Creates a pool with nothing in it, and a history of trouble ahead.
    pub fn new(seed: u64, plant: Option<Plant>) -> World {
        let mut world = World::at(site::topology(), seed, plant);
        world.donors_keep_memory = world.random.one_in(2);
        // A host that was declared dead must be restarted before its state is forgotten: see `Edit::declare_dead`.
        let loses = world.donors_keep_memory && world.random.one_in(3);
        world.loses_state_at = loses.then(|| 60 + world.random.below(90));
        world
    }

    /// Creates a pool of one donor, which loses its memory at times, and a history of trouble ahead.
    pub fn with_one_donor(seed: u64) -> World {
        let mut world = World::at(site::one_donor(), seed, None);
        (world.donors_keep_memory, world.has_one_donor) = (false, true);
        world
    }

    /// Creates a pool of MLDs whose LDs look alike, and a history of trouble ahead.
    pub fn with_mlds(seed: u64) -> World {
        World::at(site::mlds(), seed, None)
    }

    /// Creates a pool with nothing in it.
    pub fn at(topology: Topology, seed: u64, plant: Option<Plant>) -> World {
        let random = Random(seed);
        let parts = topology.parts();
        let donors = parts.donors.iter().map(|(name, donor)| (name.clone(), SimDonor::new(donor.capacity, plant)));
        let agents = parts.hosts.keys().map(|name| (name.clone(), SimAgent::new(plant)));
        World {
            now: 0,
            plant,
            trouble: true,
            donors_keep_memory: true,
            donors: donors.collect(),
            agents: agents.collect(),
            switch: SimSwitch::new(&topology),
            store: Store { term: Term(0), desired: site::desired(&topology) },
            writers: Vec::new(),
            judge: Judge::default(),
            letters: Vec::new(),
            zombies: BTreeSet::new(),
            traces: false,
            loses_state_at: None,
            has_lost_state: false,
            backup: None,
            is_restored: false,
            adopted: BTreeSet::new(),
            has_one_donor: false,
            topology: Arc::new(topology),
            random,
        }
    }

    /// Runs one history: trouble, then calm, in which the desired state must be reached.
    pub fn run(mut self) -> Result<World, Wrong> {
        while self.now < TROUBLE_TICKS {
            self.tick()?;
        }
        self.calm_down();
        for _ in 0..CALM_TICKS {
            self.tick()?;
            if self.is_settled()? {
                self.check_nothing_is_lost()?;
                return Ok(self);
            }
            self.give_up_what_does_not_fit();
        }
        let writer = self.writers.last().expect("a writer in calm");
        let round = reconcile(&self.store.desired, &writer.observed);
        Err(Wrong::Judged(format!("not settled after {CALM_TICKS} calm ticks: {round:#?}")))
    }

    /// Runs one tick: commands arrive; donors, the switch and agents proceed; writers run their rounds; an order or a
    /// failure may happen.
    pub fn tick(&mut self) -> Result<(), Wrong> {
        self.now += 1;
        if self.loses_state_at == Some(self.now) {
            self.lose_state();
        }
        self.save_or_restore();
        self.deliver()?;
        for donor in self.donors.values_mut().filter(|donor| donor.is_on) {
            donor.tick();
        }
        self.switch.tick();
        for (host, agent) in self.agents.iter_mut().filter(|(_, agent)| agent.is_on) {
            agent.tick(host, &mut self.donors, &self.switch, &mut self.judge);
        }
        self.elect();
        let mut writers = std::mem::take(&mut self.writers);
        for writer in &mut writers {
            writer.round(self)?;
        }
        writers.retain(|writer| !writer.has_crashed && (writer.term == self.store.term || self.trouble));
        // At most three at once: the elected one and two that do not know yet that they are deposed.
        let surplus = writers.len().saturating_sub(3);
        writers.drain(..surplus);
        self.writers = writers;
        if self.trouble {
            operator::something_happens(self);
        }
        Ok(self.judge_all()?)
    }

    /// Loses the store and all managers. The next term is greater than any that a donor or an agent has seen.
    pub fn lose_state(&mut self) {
        self.store.desired = site::desired(&self.topology);
        self.writers.clear();
        self.has_lost_state = true;
    }

    /// Elects a writer if there is none, and now and then replaces the elected one.
    fn elect(&mut self) {
        let has_elected = self.writers.iter().any(|writer| writer.term == self.store.term);
        if !has_elected || (self.trouble && self.random.one_in(40)) {
            self.store.term = Term((self.store.term.0 + 1).max(self.now * TERMS_PER_TICK));
            self.writers.push(Writer::new(self.store.term, self.store.desired.clone(), self.now));
        }
    }

    /// Sends a command to a donor or an agent: it may be lost, late, or doubled.
    pub fn send(&mut self, end: End, command: Command) {
        if self.trouble && self.random.one_in(7) {
            return;
        }
        let copies = if self.trouble && self.random.one_in(12) { 2 } else { 1 };
        for _ in 0..copies {
            let late = if self.trouble && self.random.one_in(5) { self.random.below(40) } else { self.random.below(3) };
            let letter = Letter { arrives_at: self.now + 1 + late, end: end.clone(), command: command.clone() };
            self.letters.push(letter);
        }
    }

    /// Prints a command that arrives, in a history that is repeated.
    pub fn trace(&self, end: &End, command: &Command) {
        if self.traces {
            let Command { term, sequence, step, .. } = command;
            println!("{:4} term {term} #{sequence} at {end:?}: {step}", self.now);
        }
    }

    fn deliver(&mut self) -> Result<(), String> {
        let (due, later): (Vec<Letter>, _) =
            std::mem::take(&mut self.letters).into_iter().partition(|letter| letter.arrives_at <= self.now);
        self.letters = later;
        for Letter { end, command, .. } in due {
            self.trace(&end, &command);
            match end {
                End::Donor(name) => {
                    self.judge_release(&name, &command)?;
                    let donor = self.donors.get_mut(&name).expect("a donor of the site");
                    if donor.is_on && !donor.is_cut {
                        donor.obey(&command, &mut self.judge)?;
                    }
                }
                End::Host(name) => {
                    let agent = self.agents.get_mut(&name).expect("a host of the site");
                    if agent.is_on && !agent.is_cut {
                        agent.obey(&command, &mut self.judge)?;
                        self.judge_views(&name)?;
                    }
                }
                End::Device(_) => unreachable!("a switch is asked at once"),
            }
        }
        Ok(())
    }

    /// Ends the trouble: from now on nothing fails, and everything is back. Retired donors, and hosts that were off or
    /// declared dead, come back restarted.
    fn calm_down(&mut self) {
        self.trouble = false;
        let retired: BTreeSet<DonorId> = self.store.desired.retired_donors.keys().cloned().collect();
        for (name, donor) in &mut self.donors {
            (donor.is_cut, donor.is_draining) = (false, false);
            if retired.contains(name) {
                donor.restart_empty();
            }
            donor.is_on = true;
        }
        for (name, agent) in &mut self.agents {
            agent.is_cut = false;
            let dead = self.store.desired.dead_hosts.contains_key(name);
            if !agent.is_on || dead || self.zombies.contains(name) {
                agent.restart_host();
            }
        }
        self.zombies.clear();
        self.switch.is_cut = false;
        self.store.desired.draining.clear();
        self.store.desired.version += 1;
        self.writers.clear();
    }

    /// Plays an operator who releases volumes for which there is no room, neither to grant nor to repair them.
    fn give_up_what_does_not_fit(&mut self) {
        // One donor has room for all that was placed on it, whatever it has lost since.
        if self.has_one_donor || !self.now.is_multiple_of(60) {
            return;
        }
        let Some(writer) = self.writers.last_mut() else { return };
        // A volume can no longer be adopted: restart its host, which ends its programs, as the message demands.
        for stray in reconcile(&self.store.desired, &writer.observed).strays {
            if let Stray::Volume { host, .. } = stray {
                self.agents.get_mut(&host).expect("a host of the site").restart_host();
            }
        }
        let stuck = writer.stuck.clone();
        for id in stuck.into_iter().take(1) {
            writer.orders.push(writer::Order::Release(id));
        }
    }
}
