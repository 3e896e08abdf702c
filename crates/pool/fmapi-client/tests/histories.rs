// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Histories of a client and a switch, each of which follows from its seed: commands whose requests and answers are
//! lost, late, duplicated, damaged or mismatched; a peer that is busy for ever, stalls or ends; and another manager at
//! the same time.
//!
//! After each command: it has ended within its bounds; a failure has a cause and a remedy; and once the switch has come
//! to rest, its state is that before the command or that after it, as the client says.
//!
//! `cargo test` plays 400 of them. More: `AQUIFER_FMAPI_HISTORIES=10000 cargo test -p aquifer-fmapi-client --test
//! histories`. One again: `AQUIFER_FMAPI_SEED=N`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aquifer_cxl_switch::{Connection, Injection, Switch, SwitchConfig};
use aquifer_fmapi::*;
use aquifer_fmapi_client::{Client, Clock, Effect, Failure, Hop, Limits};

mod world;

use world::random::Random;
use world::{Injected, VirtualClock, Wire, World};

const HISTORIES: u64 = 400;
const COMMANDS: u64 = 12;
/// Longer than anything that ends by itself takes.
const REST_NS: u64 = 3_600_000_000_000;
/// The device with logical devices, and how many it has.
const MLD: Hop = Hop::Port(1);
const LDS: u64 = 4;

/// What another manager does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    /// There is none.
    None,
    /// It binds and unbinds at its own virtual switch. The background operation is common to both.
    Apart,
    /// It binds and unbinds at the same virtual switch, and cuts in wherever it can.
    Same,
}

/// A command of the client.
#[derive(Clone, Debug)]
enum Command {
    Bind(BindVppb),
    Unbind(UnbindVppb),
    SetAllocations(SetLdAllocations),
    ResetPort(u8),
    ReadSwitch,
    ReadPorts,
    ReadVirtualSwitch,
    ReadAllocations,
    ReadEffects,
}

impl Command {
    fn random(random: &mut Random, other: Other) -> Self {
        // With another manager at the switch, this one has the first two logical devices.
        let lds = if other == Other::None { LDS } else { 2 };
        let vppb_id = random.below(4) as u8;
        match random.below(12) {
            0..4 => {
                let is_ld = random.chance(60);
                let ld_id = if is_ld { random.below(lds) as u16 } else { BindVppb::NO_LD };
                Self::Bind(BindVppb { vcs_id: 0, vppb_id, port_id: is_ld.into(), ld_id })
            }
            4..7 => Self::Unbind(UnbindVppb { vcs_id: 0, vppb_id, option: UnbindOption::SurpriseRemoval }),
            7 if other == Other::None => {
                let allocations = (0..LDS).map(|_| LdAllocation { range_1: random.below(2), range_2: 0 }).collect();
                Self::SetAllocations(SetLdAllocations { first_ld_id: 0, allocations })
            }
            7 => Self::ResetPort(random.below(6) as u8),
            8 => Self::ReadSwitch,
            9 => Self::ReadPorts,
            10 => Self::ReadVirtualSwitch,
            11 if random.chance(50) => Self::ReadAllocations,
            _ => Self::ReadEffects,
        }
    }

    fn carry_out(&self, client: &mut Client) -> Result<(), Failure> {
        match self {
            Self::Bind(bind) => client.bind(bind),
            Self::Unbind(unbind) => client.unbind(unbind),
            Self::SetAllocations(set) => client.set_ld_allocations(&[MLD], set),
            Self::ResetPort(port_id) => client.control_port(*port_id, PortOperation::ResetPpb),
            Self::ReadSwitch => client.identify_switch().map(|switch| assert_eq!(switch.physical_ports, 8)),
            Self::ReadPorts => client.port_states(&[0, 1, 2, 3]).map(|ports| assert_eq!(ports.len(), 4)),
            Self::ReadVirtualSwitch => client.virtual_switch(0).map(|switch| assert_eq!(switch.vppbs.len(), 8)),
            Self::ReadAllocations => client.ld_allocations(&[MLD]).map(|it| assert_eq!(it.allocations.len(), 4)),
            Self::ReadEffects => client.command_effects(&[]).map(|effects| assert_eq!(effects.len(), 29)),
        }
    }

    /// Returns the request that changes the state, without a client.
    fn request(&self) -> Option<Request> {
        match self {
            Self::Bind(bind) => Some(Request::BindVppb(*bind)),
            Self::Unbind(unbind) => Some(Request::UnbindVppb(*unbind)),
            Self::SetAllocations(set) => Some(tunnel(1, &Request::SetLdAllocations(set.clone()))),
            _ => None,
        }
    }
}

fn tunnel(port_or_ld_id: u8, inner: &Request) -> Request {
    let message = Message::request(1, inner, &Dialect::STANDARD).encode(&Dialect::STANDARD);
    Request::Tunnel(Tunnel { port_or_ld_id, target: TunnelTarget::PortOrLd, message })
}

/// Asks a switch without a client, and without injected failures.
fn ask(switch: &mut Switch, now_ns: u64, request: &Request) -> Vec<u8> {
    let connection = Connection { id: 99, ingress_port_id: 0, dialect: &Dialect::STANDARD };
    let bytes = Message::request(1, request, connection.dialect).encode(connection.dialect);
    let outcome = switch.receive(now_ns, &connection, &bytes);
    let answers = outcome.replies.iter().filter(|reply| reply.connection == connection.id);
    let answers = answers.map(|reply| Message::decode(&reply.bytes, connection.dialect).unwrap());
    answers.map(|answer| answer.payload).next().expect("an answer")
}

/// Returns the switch once it has come to rest: what ends by itself has ended, and what never would is aborted.
fn at_rest(switch: &Switch) -> Switch {
    let mut rested = switch.clone();
    let _ = rested.advance(REST_NS);
    ask(&mut rested, REST_NS, &Request::AbortBackground(AbortBackground {}));
    rested
}

/// Returns the state at rest: the first virtual switch, and what each logical device has.
fn state(switch: &Switch) -> (VirtualSwitch, Vec<u8>) {
    let mut rested = at_rest(switch);
    let get = GetVirtualSwitches { first_vppb: 0, vppbs_max: 255, vcs_ids: vec![0] };
    let get = Request::GetVirtualSwitches(get);
    let payload = ask(&mut rested, REST_NS, &get);
    let Ok(Response::GetVirtualSwitches(mut read)) = Response::decode(&get, &payload, &Dialect::STANDARD) else {
        panic!("no virtual switch");
    };
    let allocations = Request::GetLdAllocations(GetLdAllocations { first_ld_id: 0, count_max: 255 });
    (read.switches.remove(0), ask(&mut rested, REST_NS, &tunnel(1, &allocations)))
}

/// Returns the state after a command that nothing disturbs.
fn state_after(switch: &Switch, command: &Command) -> (VirtualSwitch, Vec<u8>) {
    let mut undisturbed = at_rest(switch);
    if let Some(request) = command.request() {
        ask(&mut undisturbed, REST_NS, &request);
        let _ = undisturbed.advance(2 * REST_NS);
    }
    state(&undisturbed)
}

fn injections(mut random: Random, percent: u64) -> world::Injections {
    let is_busy_for_ever = random.chance(5);
    let mut left = 400u32;
    Box::new(move |opcode| {
        left = left.saturating_sub(1);
        if is_busy_for_ever && left < 390 && opcode.is_fabric_manager() {
            return Injected::Busy;
        }
        if !random.chance(percent) {
            return Injected::None;
        }
        match random.below(26) {
            0..3 => Injected::DropAnswer,
            3..5 => Injected::DropRequest,
            5..8 => Injected::Late(random.below(6_000_000_000)),
            8..11 => Injected::Duplicate,
            11..13 => Injected::Truncate(random.below(60) as usize),
            13..15 => Injected::WrongTag,
            15..17 => Injected::WrongCategory,
            17 => Injected::WrongOpcode,
            18..21 => Injected::Busy,
            21..23 => Injected::LengthLies(1 + random.below(70_000) as u32),
            23 => Injected::Garbage,
            24 if random.chance(20) => Injected::PeerEndsBefore,
            25 if random.chance(20) => Injected::PeerEndsAfter,
            _ => Injected::None,
        }
    })
}

/// Returns another manager, which sends bytes and waits for nothing.
fn rival(mut random: Random, other: Other) -> world::Rival {
    Box::new(move |switch, now_ns| {
        if !random.chance(20) {
            return;
        }
        let (vcs_id, first_ld) = if other == Other::Same { (0, 0) } else { (1, 2) };
        let (vppb_id, ld_id) = (random.below(4) as u8, first_ld + random.below(2) as u16);
        let request = match random.below(5) {
            0 | 1 => Request::BindVppb(BindVppb { vcs_id, vppb_id, port_id: 1, ld_id }),
            2 | 3 => Request::UnbindVppb(UnbindVppb { vcs_id, vppb_id, option: UnbindOption::ManagedRemoval }),
            _ => Request::GetBackgroundStatus(GetBackgroundStatus {}),
        };
        ask(switch, now_ns, &request);
    })
}

/// What a history had.
#[derive(Debug, Default)]
struct Seen {
    commands: u64,
    failures: u64,
    unknown: u64,
    carried_out_although_lost: u64,
    ended_peers: u64,
}

/// Plays one history.
fn play(seed: u64, seen: &mut Seen) {
    let mut random = Random(seed);
    let other = random.one_of(&[Other::None, Other::None, Other::Apart, Other::Same]);
    let percent = random.one_of(&[0, 3, 10, 40]);
    let (world, clock) = (World::shared(SwitchConfig::example()), Arc::<VirtualClock>::default());
    let mut wire = Wire::new(&world, &clock, 1);
    wire.injections = injections(Random(random.next()), percent);
    wire.rival = (other != Other::None).then(|| rival(Random(random.next()), other));
    let limits = Limits { background: Duration::from_secs(5), ..Limits::default() };
    let mut client = wire.client(limits);
    for _ in 0..COMMANDS {
        if random.chance(8) {
            // With another manager apart, it depends on the order whose operation would stall or fail.
            let injection = match random.below(3) {
                _ if other == Other::Apart => Injection::LinkFlap { port_id: 0, down_ns: 40_000_000 },
                0 => Injection::BackgroundStalls,
                1 => Injection::BackgroundFails { return_code: ReturnCode::INTERNAL_ERROR },
                _ => Injection::LinkFlap { port_id: random.below(3) as u8, down_ns: 40_000_000 },
            };
            world.lock().unwrap().switch.inject(clock.now_ns(), injection).unwrap();
        }
        let command = Command::random(&mut random, other);
        seen.commands += 1;
        let is_over = judge(&command, other, &world, &clock, &mut client, seen);
        if is_over {
            seen.ended_peers += 1;
            return;
        }
        clock.sleep(Duration::from_millis(random.below(60)));
    }
}

/// Carries out one command and judges what followed. Returns true if the peer has ended.
fn judge(
    command: &Command,
    other: Other,
    world: &Arc<Mutex<World>>,
    clock: &Arc<VirtualClock>,
    client: &mut Client,
    seen: &mut Seen,
) -> bool {
    let before_switch = world.lock().unwrap().switch.clone();
    let (before, after) = (state(&before_switch), state_after(&before_switch, command));
    let begun = clock.now();
    let ended = command.carry_out(client);
    let taken = clock.now() - begun;
    // Its own command, two waits for a background operation with their last questions, an abort, and a read.
    let limits = *client.limits();
    let bound = limits.command_max() * 8 + limits.background * 3;
    assert!(taken <= bound, "{command:?} took {taken:?}, more than {bound:?}");
    if let Err(failure) = &ended {
        seen.failures += 1;
        let text = failure.to_string();
        let (cause, remedy) = text.rsplit_once("; ").expect("a cause and a remedy");
        assert!(cause.contains(" at model: ") && remedy.len() > 10 && !failure.remedy().is_empty(), "{text}");
    }
    let found = state(&world.lock().unwrap().switch);
    let is_between = |vppb: &Vppb| vppb.status == BindingStatus::InProgress;
    assert!(!found.0.vppbs.iter().any(is_between), "{command:?} {ended:?} {found:?}");
    if other != Other::Same {
        judge_state(command, &ended, (&before, &after, &found), seen);
    }
    ended.is_err_and(|failure| failure.is_fatal())
}

type State<'a> = &'a (VirtualSwitch, Vec<u8>);

fn judge_state(
    command: &Command,
    ended: &Result<(), Failure>,
    (before, after, found): (State<'_>, State<'_>, State<'_>),
    seen: &mut Seen,
) {
    match ended {
        Ok(()) => assert_eq!(found, after, "{command:?} is done, and the state is another one"),
        Err(failure) if failure.effect == Effect::NotCarriedOut => {
            assert_eq!(found, before, "{command:?} was carried out: {failure}");
        }
        Err(failure) => {
            seen.unknown += 1;
            seen.carried_out_although_lost += u64::from(found == after && found != before);
            assert!(found == before || found == after, "{command:?}: {failure}\n{before:?}\n{after:?}\n{found:?}");
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

#[test]
fn every_command_ends_within_bounds_and_leaves_the_state_before_or_after() {
    let mut seen = Seen::default();
    if let Some(seed) = number("AQUIFER_FMAPI_SEED") {
        return play(seed, &mut seen);
    }
    for seed in 0..number("AQUIFER_FMAPI_HISTORIES").unwrap_or(HISTORIES) {
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| play(seed, &mut seen)));
        if let Err(panic) = played {
            eprintln!("again: AQUIFER_FMAPI_SEED={seed} cargo test -p aquifer-fmapi-client --test histories");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{seen:?}");
    // Histories in which nothing goes wrong would judge nothing.
    assert!(seen.failures > seen.commands / 20 && seen.unknown > 10 && seen.ended_peers > 5, "{seen:?}");
    assert!(seen.carried_out_although_lost > 0, "{seen:?}");
}
