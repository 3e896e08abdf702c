// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A fabric manager, a switch with its devices, two hosts, and a rival: another manager with its own host. In one
//! thread, on its own clock; everything follows from the seed.
//!
//! The manager decides with `aquifer_fabric` and reaches the switch by the crate under test. What is true is judged by
//! the bytes: programs stamp what they have and read it back (`agent.rs`), and so does the rival (`rival.rs`).

pub mod agent;
pub mod random;
pub mod rival;
pub mod trouble;
pub mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use aquifer_cxl_peers::{Peer, SwitchConfig as Config, Switches};
use aquifer_cxl_switch::{CapacityConfig, Connection, RegionConfig, SwitchConfig};
use aquifer_fabric::*;
use aquifer_fmapi::Dialect;
use aquifer_fmapi_client::{Client, Clock, Limits};

use agent::SimAgent;
use random::Random;
use wire::{Shared, SharedSwitch, VirtualClock, Wire};

/// Rounds of trouble in one history, and rounds that are enough to settle afterwards.
const TROUBLE_ROUNDS: u64 = 60;
const CALM_ROUNDS: u64 = 300;
/// How long a source may be silent.
const SILENT_MS: u64 = 5_000;
/// The MLD's port, and its LDs.
pub const MLD: u8 = 1;
pub const MLD_LDS: u64 = 3;
/// The port of the device with dynamic capacity.
pub const DCD: u8 = 3;
pub const DCD_MIB: u64 = 512;
pub const RIVAL_VCS: u8 = 2;

pub fn id<T: FromStr<Err: std::fmt::Debug>>(name: impl AsRef<str>) -> T {
    name.as_ref().parse().expect("a name")
}

/// Everything.
pub struct World {
    pub random: Random,
    pub clock: Arc<VirtualClock>,
    pub shared: Shared,
    pub switches: Switches,
    pub base: Topology,
    pub desired: Desired,
    pub observed: Observed,
    pub agents: BTreeMap<HostId, SimAgent>,
    pub vcs_of: BTreeMap<HostId, u8>,
    /// What the rival has: vPPBs, with port and LD.
    pub rival_has: BTreeMap<(u8, u8), (u8, u16)>,
    /// vPPBs that the rival has tried to bind.
    pub rival_tried: BTreeSet<(u8, u8)>,
    /// Ports and LDs whose loss is no error of our manager.
    pub excused: BTreeSet<(u8, u8)>,
    /// Devices that are pulled out.
    pub out: BTreeSet<usize>,
    pub orders: Vec<trouble::Order>,
    /// `true` once the manager has lost its state: it adopts what it finds.
    pub has_lost_state: bool,
    pub is_traced: bool,
    pub presented: u64,
    pub broken: u64,
    pub stolen: u64,
    pub restarts: u64,
    next_connection: u32,
    next_volume: u64,
}

fn switch_config() -> SwitchConfig {
    let mut config = SwitchConfig::example();
    let mib = |config: &mut SwitchConfig, device: usize, mib| config.devices[device].memory_mib = mib;
    let dcd = config.devices.remove(2);
    let (sld, vcs) = (config.devices[0].clone(), config.virtual_switches[0].clone());
    mib(&mut config, 0, 256);
    mib(&mut config, 1, 256 * MLD_LDS);
    config.devices[1].lds_mib = vec![256; MLD_LDS as usize];
    config.devices.push(aquifer_cxl_switch::DeviceConfig { ports: vec![2], memory_mib: 256, ..sld });
    let region =
        RegionConfig { length_mib: DCD_MIB, block_bytes: 2 << 20, sharable: false, sanitize_on_release: false };
    let capacity = Some(CapacityConfig { regions: vec![region], extents: 64, tags: 16 });
    config.devices.push(aquifer_cxl_switch::DeviceConfig { ports: vec![DCD], capacity, ..dcd });
    config.ports.truncate(4);
    let upstream = SwitchConfig::example().ports.pop().expect("an upstream port");
    config.ports.extend([upstream.clone(), upstream.clone(), upstream]);
    config.virtual_switches = (4..7)
        .map(|upstream_port| aquifer_cxl_switch::VirtualSwitchConfig { upstream_port, vppbs: 6, ..vcs.clone() })
        .collect();
    // The hardest case: what is unbound keeps its bytes until the manager wipes it.
    config.wipe_on_unbind = false;
    config
}

impl World {
    /// Creates a pool with nothing in it, and a history of trouble ahead.
    pub fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let (clock, shared) =
            (Arc::new(VirtualClock::default()), SharedSwitch::shared(switch_config(), Random::new(!seed)));
        let mut parts = Parts::default();
        parts.enclosures.insert(id("e0"), Enclosure { rack: id("r0") });
        for host in ["h0", "h1"] {
            parts.hosts.insert(id(host), Host { enclosure: id("e0") });
        }
        let mut desired = Desired::default();
        let serial = |index: u64| id(format!("s0.{:x}", 1235 + index));
        let devices = (0..4).map(serial).collect();
        desired.pools.insert(id("main"), Pool { donors: Default::default(), devices, overcommit_percent: 0 });
        let zone = Zone { quota: Bytes::gib(64), hosts: [id("h0"), id("h1")].into() };
        desired.zones.insert(id("lab"), zone);
        let has_lost_state = false;
        let mut world = World {
            clock: Arc::clone(&clock),
            switches: Switches::of(Vec::new(), clock),
            shared,
            base: Topology::new(parts).expect("a consistent site"),
            desired,
            observed: Observed::default(),
            agents: [(id("h0"), SimAgent::default()), (id("h1"), SimAgent::default())].into(),
            vcs_of: [(id("h0"), 0), (id("h1"), 1)].into(),
            rival_has: BTreeMap::new(),
            rival_tried: BTreeSet::new(),
            excused: BTreeSet::new(),
            out: BTreeSet::new(),
            orders: Vec::new(),
            has_lost_state,
            is_traced: false,
            presented: 0,
            broken: 0,
            stolen: 0,
            restarts: 0,
            next_connection: 1,
            next_volume: 1 + random.below(1000),
            random,
        };
        world.restart_manager();
        world
    }

    pub fn draw(&mut self) -> VolumeId {
        self.next_volume += 1;
        VolumeId(self.next_volume)
    }

    /// Restarts the manager, which then knows what it has stored, and nothing else.
    pub fn restart_manager(&mut self) {
        let text = r#"{"name": "s0", "address": "tcp:a", "background-seconds": 2, "hosts": {"h0": [4], "h1": [5]}}"#;
        let config: Config = serde_json::from_str(text).expect("a switch");
        let limits = Limits {
            answer: Duration::from_millis(200),
            background: Duration::from_secs(2),
            busy_retries: 0,
            ..Limits::default()
        };
        // Connections of different starts have different numbers.
        let (clock, shared, mut last) =
            (Arc::clone(&self.clock), Arc::clone(&self.shared), self.next_connection * 1000);
        self.next_connection += 1;
        let connect = move || {
            last += 1;
            let connection = Connection { id: last, ingress_port_id: 0, dialect: &Dialect::STANDARD };
            let wire = Wire { shared: Arc::clone(&shared), clock: Arc::clone(&clock), connection };
            let mut client = Client::new(Box::new(wire), Arc::<VirtualClock>::clone(&clock), limits);
            client.recognise().map_err(|failure| failure.to_string())?;
            Ok(client)
        };
        let clock: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&self.clock);
        let peer = Peer::new(config, Arc::clone(&clock), Box::new(connect));
        self.switches = Switches::of(vec![peer], clock);
        self.observed = Observed::default();
        self.restarts += 1;
    }

    /// Returns the place of a device in the switch's configuration, and the device's number for the host that has the
    /// source.
    pub fn index_of(&self, source: &Source) -> Option<(usize, u16)> {
        let (Source::DynamicCapacity { device } | Source::LogicalDevice { device, .. }) = source else { return None };
        let serial = u64::from_str_radix(device.as_str().strip_prefix("s0.")?, 16).ok()?;
        let ld_id = match source {
            Source::LogicalDevice { ld_id, .. } if *ld_id != NO_LD => ld_id.0,
            _ => 0,
        };
        Some((usize::try_from(serial - 1235).ok()?, ld_id))
    }

    fn target_of(&self, source: &Source) -> Option<(u8, u8)> {
        let (index, ld_id) = self.index_of(source)?;
        Some((index as u8, if index as u8 == MLD { ld_id as u8 } else { aquifer_fmapi::Vppb::NO_LD }))
    }

    pub fn is_excused(&self, source: &Source) -> bool {
        self.target_of(source).is_some_and(|target| self.excused.contains(&target))
    }

    /// Notes that a program has it again: the next loss is a new one.
    pub fn forgive_no_longer(&mut self, source: &Source) {
        // All capacity of one device was lost at once, and its members notice one by one.
        if let Some(target) = self.target_of(source).filter(|(port_id, _)| *port_id != DCD) {
            self.excused.remove(&target);
        }
    }

    /// Runs one history: trouble, then calm, in which the desired state must be reached.
    pub fn run(mut self) -> Result<World, String> {
        for _ in 0..TROUBLE_ROUNDS {
            self.something_happens();
            self.round()?;
        }
        self.calm_down();
        for round in 0..CALM_ROUNDS {
            self.round()?;
            if self.is_settled()? {
                return Ok(self);
            }
            self.give_up_what_does_not_fit(round);
        }
        let due = reconcile(&self.desired, &self.observed);
        Err(format!("not settled after {CALM_ROUNDS} calm rounds: {due:#?}"))
    }

    /// Runs one round of the manager.
    pub fn round(&mut self) -> Result<(), String> {
        let now = Millis(self.clock.now_ns() / 1_000_000);
        let reports = self.switches.reports();
        let topology = self.switches.topology(&self.base);
        for (name, report) in reports {
            match (report, self.observed.devices.value_mut(&name)) {
                (Some(report), _) => drop(self.observed.devices.insert(name, report)),
                (None, Some(known)) if known.availability.answers() => {
                    known.availability = Availability::Gone { since: now }
                }
                (None, _) => {}
            }
        }
        self.observed.hosts = self.agents.iter().map(|(name, agent)| (name.clone(), agent.report())).collect();
        self.switches
            .take_notices()
            .iter()
            .for_each(|notice| self.trace(|| format!("{}: {}", notice.kind, notice.message)));
        self.decide(&topology, now);
        self.rival_loses_what_is_wanted();
        if self.is_troubled() {
            self.let_rival_act();
        }
        let mut steps = reconcile(&self.desired, &self.observed).steps;
        let crashes = self.is_troubled() && self.random.one_in(12);
        if crashes {
            steps.truncate(self.random.below(steps.len() as u64 + 1) as usize);
        }
        for step in steps {
            self.carry_out(step)?;
        }
        if crashes {
            self.restart_manager();
        }
        self.clock.sleep(Duration::from_millis(20));
        let now_ns = self.clock.now_ns();
        let mut state = wire::lock(&self.shared);
        let outcome = state.switch.advance(now_ns);
        state.take(now_ns, outcome);
        drop(state);
        self.judge()
    }

    fn carry_out(&mut self, step: Step) -> Result<(), String> {
        match step.end() {
            End::Host(host) => {
                self.trace(|| format!("{step}"));
                self.obey(&host, step)
            }
            End::Device(name) => {
                let outcome = self.switches.send(std::slice::from_ref(&step)).pop().expect("one outcome");
                self.trace(|| format!("{step}: {outcome:?}"));
                self.observed.devices.remove(&name);
                if self.is_troubled() {
                    self.let_rival_act();
                }
                Ok(())
            }
            End::Donor(_) => Err(format!("there is no donor for {step}")),
        }
    }

    pub fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_traced {
            println!("{:6} {}", self.clock.now_ns() / 1_000_000, what());
        }
    }

    pub fn is_troubled(&self) -> bool {
        wire::lock(&self.shared).is_troubled
    }
}
