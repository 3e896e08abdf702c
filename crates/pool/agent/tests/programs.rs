// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Programs in a volume of the pool, with real donors and a real agent: the tier passes the suite of all tiers, and a
//! program that verifies every byte goes on while its volume grows, moves and shrinks, while the agent is killed, and
//! while there is no manager.

mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use aquifer_fabric::{MemberState, Redundancy, VolumeReport, Why};
use aquifer_tiers::Tier;
use aquifer_tiers::conformance::{check, frames};

use world::{VOLUME, World, lease, wait_until};

const SLAB_BYTES: u64 = 2 << 20;
/// Slabs that a program uses; each has some blocks.
const USED: u64 = 10;
const BLOCKS: u64 = 3;

const MIRROR: Redundancy = Redundancy::Mirror { copies: 2 };
const PARITY: Redundancy = Redundancy::Parity { data: 2, parity: 1 };

/// A program: one thread writes and verifies, another one does what the pager's upkeep thread does.
struct Program {
    tier: Arc<dyn Tier>,
    rounds: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Program {
    fn start(tier: Box<dyn Tier>) -> Program {
        let tier: Arc<dyn Tier> = Arc::from(tier);
        let (rounds, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let upkeep = std::thread::spawn({
            let (tier, is_over) = (Arc::clone(&tier), Arc::clone(&is_over));
            move || {
                while !is_over.load(Ordering::SeqCst) {
                    let upkeep = tier.upkeep().expect("a volume has upkeep");
                    let pause = upkeep.turn(None);
                    upkeep.report_changes(&mut |line| println!("program: {line}"));
                    std::thread::sleep(pause.min(Duration::from_millis(50)));
                }
            }
        });
        let verifying = std::thread::spawn({
            let (tier, rounds, is_over) = (Arc::clone(&tier), Arc::clone(&rounds), Arc::clone(&is_over));
            move || {
                let mut version = 0;
                while !is_over.load(Ordering::SeqCst) {
                    version += 1;
                    each_block(|offset| write(&*tier, offset, version));
                    each_block(|offset| read(&*tier, offset, version));
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        Program { tier, rounds, is_over, threads: vec![upkeep, verifying] }
    }

    /// Waits until the program has written and verified all its blocks.
    fn goes_on(&self) {
        let before = self.rounds.load(Ordering::SeqCst);
        wait_until("the program goes on", || {
            assert!(!self.threads.iter().any(JoinHandle::is_finished), "a thread has failed");
            self.rounds.load(Ordering::SeqCst) > before + 1
        });
    }

    fn end(self) {
        self.goes_on();
        self.is_over.store(true, Ordering::SeqCst);
        self.threads.into_iter().for_each(|thread| thread.join().expect("every byte is right"));
        let figures = self.tier.take_figures();
        assert_eq!(figures.slabs_lost, 0, "{figures:?}");
    }
}

fn each_block(act: impl FnMut(u64)) {
    (0..USED).flat_map(|slab| (0..BLOCKS).map(move |block| slab * SLAB_BYTES + block * (600 << 10))).for_each(act);
}

fn write(tier: &dyn Tier, offset: u64, version: u64) {
    let mut frame = frames::frame(8, 0);
    frames::stamp(frame.bytes_mut(), offset, version);
    tier.write(offset, &frame).unwrap_or_else(|failure| panic!("{failure}"));
    frames::give_back(frame);
}

fn read(tier: &dyn Tier, offset: u64, version: u64) {
    let mut frame = frames::frame(8, 0xee);
    tier.read(offset, &mut frame).unwrap_or_else(|failure| panic!("{failure}"));
    frames::check_stamp(frame.bytes(), offset, version);
    frames::give_back(frame);
}

fn volume(world: &World) -> VolumeReport {
    world.report().volumes.remove(&VOLUME).expect("it is bound")
}

fn is_in_sync(world: &World, member: u64) -> bool {
    let report = volume(world);
    report.members.get(&aquifer_fabric::MemberId(member)).is_some_and(|member| member.state == MemberState::InSync)
}

#[test]
fn a_volume_passes_the_suite_of_all_tiers() {
    for (redundancy, members) in [(Redundancy::None, 2), (MIRROR, 3), (PARITY, 4)] {
        let mut world = World::start(members as usize, 64);
        world.present(redundancy, (0..members).map(|member| lease(member, 0, member as u8)).collect());
        check(&format!("pool, {redundancy}"), &|| world.open("16MiB"));
    }
}

/// Changes a volume under a program: adds a second span, and replaces member 0.
fn change_everything(redundancy: Redundancy) {
    let count = redundancy.members() as u64;
    let mut world = World::start(2 * count as usize + 1, 64);
    let span = |first: u64, span: u32| (0..count).map(|it| lease(first + it, span, it as u8)).collect::<Vec<_>>();
    world.present(redundancy, span(0, 0));
    let program = Program::start(world.open("24MiB"));
    program.goes_on();

    // It grows.
    world.join(span(count, 1));
    program.goes_on();

    // Member 0 moves to another donor.
    let new = 2 * count;
    world.join(vec![lease(new, 0, 0)]);
    wait_until("member 0 is replaced", || is_in_sync(&world, new));
    wait_until("member 0 has left", || {
        world.leave(&[0], Why::Replaced);
        world.has_left(0)
    });
    program.goes_on();

    // The agent is killed, and comes back.
    world.kill_agent();
    program.goes_on();
    world.start_agent();
    // Even this soon after its start, the agent must not conclude that the program has ended.
    let second: Vec<u64> = (count..2 * count).collect();
    world.leave(&second, Why::Shrunk);
    wait_until("the second span has left", || second.iter().all(|member| world.has_left(*member)));
    program.goes_on();
    assert_eq!(volume(&world).members.len() as u64, count);

    // There is no manager: the program goes on, and another one can start.
    world.stop_manager();
    program.goes_on();
    let other = world.open("2MiB");
    drop(other);
    world.start_manager();
    assert_eq!(volume(&world).members.len() as u64, count);
    program.end();
}

#[test]
fn a_program_goes_on_while_its_striped_volume_changes() {
    change_everything(Redundancy::None);
}

#[test]
fn a_program_goes_on_while_its_mirrored_volume_changes() {
    change_everything(MIRROR);
}

#[test]
fn a_program_goes_on_while_its_volume_with_parity_changes() {
    change_everything(PARITY);
}

/// Two programs: a member leaves when both have moved everything, or have ended.
#[test]
fn a_member_waits_for_all_programs() {
    let mut world = World::start(3, 64);
    world.present(Redundancy::None, vec![lease(0, 0, 0), lease(1, 1, 0), lease(2, 2, 0)]);
    let program = Program::start(world.open("24MiB"));
    program.goes_on();
    // This one never does any upkeep, so it moves nothing.
    let idle = world.open("4MiB");
    write(&*idle, 0, 1);
    write(&*idle, SLAB_BYTES, 1);
    world.leave(&[0], Why::Shrunk);
    program.goes_on();
    std::thread::sleep(Duration::from_secs(1));
    assert!(!world.has_left(0));
    read(&*idle, 0, 1);
    read(&*idle, SLAB_BYTES, 1);
    drop(idle);
    wait_until("member 0 has left", || world.has_left(0));
    program.end();
}

/// A process may close a volume and go on, for example when it drops a space of the library. While its agent was down,
/// that was never reported: the agent waited for it until it ended.
#[test]
fn a_volume_that_was_closed_while_the_agent_was_down_is_reported_when_it_is_back() {
    let mut world = World::start(2, 64);
    world.present(Redundancy::None, vec![lease(0, 0, 0), lease(1, 1, 0)]);
    // Neither does any upkeep, so neither leaves a member before it is closed.
    let closed = world.open("4MiB");
    let stays = world.open("4MiB");
    world.kill_agent();
    drop(closed);
    world.start_agent();
    world.leave(&[0], Why::Shrunk);
    std::thread::sleep(Duration::from_secs(1));
    assert!(!world.has_left(0), "one program has it still");
    drop(stays);
    wait_until("member 0 has left", || world.has_left(0));
}

#[test]
fn a_shrink_that_does_not_fit_waits_and_loses_nothing() {
    let mut world = World::start(2, 64);
    world.present(Redundancy::None, vec![lease(0, 0, 0), lease(1, 1, 0)]);
    // More than one donor has room for.
    let tier = world.open("64MiB");
    for slab in 0..20 {
        write(&*tier, slab * SLAB_BYTES, slab);
    }
    let mut lines = String::new();
    let mut turn = |tier: &dyn Tier| {
        let upkeep = tier.upkeep().expect("a volume has upkeep");
        upkeep.turn(None);
        upkeep.report_changes(&mut |line| lines += line);
        lines.contains("add a donor first")
    };
    world.leave(&[0], Why::Shrunk);
    wait_until("the program says so", || turn(&*tier));
    assert!(!world.has_left(0));
    (0..20).for_each(|slab| read(&*tier, slab * SLAB_BYTES, slab));
    // The program frees memory, and then it fits.
    tier.discard(0, 12 * SLAB_BYTES).expect("it is ours");
    wait_until("member 0 has left", || {
        turn(&*tier);
        world.has_left(0)
    });
    (12..20).for_each(|slab| read(&*tier, slab * SLAB_BYTES, slab));
}
