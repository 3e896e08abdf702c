// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Donors that are lost under a program that verifies its memory: killed, stopped, cut off, told to reclaim, with
//! leases that they revoke, started anew, and with bytes that are not what was stored.
//!
//! With a mirror or with parity, none of that may be a wrong byte, an error, or a stand of more than two seconds. Where
//! more is lost than that makes up for, what was with the donors is an error, and the rest goes on.
//!
//! `AQUIFER_LOSS_ROUNDS` asks for more rounds, `AQUIFER_LOSS_SEED` for others, `AQUIFER_LOSS_ONLY` for one of the
//! things that happen to donors, by its number in `lose`, `AQUIFER_LOSS_OPTIONS` for more options behind the tier, such
//! as `,encrypt=ephemeral`; a failure prints them. `docs/testing.md` has the commands.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::run::{Ended, LIMIT, Running, aquifer, eventually, managed, run, start};
use aquifer_e2e::verifying::{PROGRAM, Verified, verified};

/// The longest stand of the program that a loss may cost, with what a busy machine adds.
const STALL_MS_MOST: u64 = 2000;
/// How many donors there are where each byte is with two of them: one more.
const DONORS: usize = 3;
/// And where each page is with five of them.
const PARITY_DONORS: usize = 6;

/// A donor in a process of its own, and a link to it that can be cut.
struct Donor {
    child: Child,
    address: String,
    link: Link,
    control: PathBuf,
}

impl Donor {
    fn start() -> Donor {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Short, since the names of sockets are.
        let name = format!("aq-loss-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let control = std::env::temp_dir().join(name);
        let (child, address) = launch("127.0.0.1:0", &control);
        let link = Link::to(address.parse().expect("an address in numbers"));
        Donor { child, address, link, control }
    }

    fn signal(&self, signal: &str) {
        let sent = std::process::Command::new("kill").arg(signal).arg(self.child.id().to_string()).status();
        assert!(sent.is_ok_and(|status| status.success()));
    }

    /// Another run of it, with nothing of what the one before had.
    fn restart(&mut self) {
        let _ = self.child.wait();
        (self.child, self.address) = launch(&self.address, &self.control);
    }

    /// Takes back all that it lends, and does not wait for it: what its leases were for is gone.
    fn revoke(&self) {
        let mut command = aquifer();
        command.args(["donor", "reclaim"]).arg(&self.control).args(["--all", "--within", "1ms"]);
        run(command, LIMIT).expect(0);
    }

    /// Changes a byte here and there in what it lends. False where that is not allowed.
    fn corrupt(&self) -> bool {
        let process = self.child.id();
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).expect("our child");
        let range = |line: &str| {
            let (start, end) = line.split_whitespace().next()?.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some((number(start)?, number(end)?))
        };
        let largest = maps.lines().filter_map(range).max_by_key(|(start, end)| end - start);
        let (start, end) = largest.expect("it has memory");
        let memory = std::fs::OpenOptions::new().read(true).write(true).open(format!("/proc/{process}/mem"));
        let Ok(memory) = memory else { return false };
        // Some bytes of each page: whatever is read next from here is not what was stored.
        (start..end).step_by(4096).all(|page| {
            let mut bytes = [0; 8];
            memory.read_exact_at(&mut bytes, page + 64).is_ok()
                && memory.write_all_at(&bytes.map(|byte| byte ^ 0x55), page + 64).is_ok()
        })
    }
}

impl Drop for Donor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.control);
    }
}

fn launch(listen: &str, control: &Path) -> (Child, String) {
    let mut command = aquifer();
    command.args(["donor", "--json", "--security", "plain", "--size", "128MiB", "--grace", "1s", "--listen", listen]);
    command.arg("--control").arg(control);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("aquifer can be started");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("it says where");
    let said: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("one object, not '{line}'"));
    (child, said["address"].as_str().expect("an address").to_owned())
}

/// Passes bytes on between borrowers and a donor, until it is cut; then nothing goes through, and nobody is told.
struct Link {
    address: SocketAddr,
    is_cut: Arc<AtomicBool>,
}

impl Link {
    fn to(donor: SocketAddr) -> Link {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let link =
            Link { address: listener.local_addr().expect("it listens"), is_cut: Arc::new(AtomicBool::new(false)) };
        let is_cut = Arc::clone(&link.is_cut);
        std::thread::spawn(move || {
            for borrower in listener.incoming().map_while(Result::ok) {
                let Ok(donor) = TcpStream::connect(donor) else { continue };
                for (from, to) in [(&borrower, &donor), (&donor, &borrower)] {
                    let (from, to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
                    let is_cut = Arc::clone(&is_cut);
                    std::thread::spawn(move || pass(from, to, &is_cut));
                }
            }
        });
        link
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let _ = (from.set_nodelay(true), to.set_nodelay(true));
    let mut bytes = vec![0; 256 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while is_cut.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}

/// The program under way.
struct Game {
    running: Running,
    stop: PathBuf,
    donors: Vec<Donor>,
}

impl Game {
    fn start(name: &str, donors: usize, options: &str) -> Option<Game> {
        let program = compile_text(name, PROGRAM)?;
        let donors: Vec<Donor> = (0..donors).map(|_| Donor::start()).collect();
        let addresses: Vec<String> = donors.iter().map(|donor| donor.link.address.to_string()).collect();
        let tier = format!("donor:{},security=plain{options}", addresses.join("+"));
        let stop = scratch(name).join("stop");
        let words = ["--dram", "16MiB", "--tier", &tier];
        let running = start(managed(&words, &program, &[stop.to_str().expect("a path of ours")]));
        let game = Game { running, stop, donors };
        eventually("the program has filled its memory", || game.is_ready());
        Some(game)
    }

    fn is_ready(&self) -> bool {
        Path::new(&self.stop).with_extension("ready").exists()
    }

    fn figure(&self, name: &str) -> u64 {
        let mut command = aquifer();
        command.args(["stat", &self.running.child.id().to_string(), "--json"]);
        let stats: serde_json::Value = serde_json::from_str(&run(command, LIMIT).stdout).unwrap_or_default();
        stats[name].as_u64().unwrap_or_default()
    }

    /// Waits until every slab has its copies again.
    fn settle(&self) {
        // What is counted is published now and then.
        std::thread::sleep(Duration::from_millis(2500));
        let begun = Instant::now();
        let mut said = begun;
        eventually("all slabs have their copies", || {
            let (degraded, rebuilt) = (self.figure("slabs_degraded"), self.figure("slabs_rebuilt"));
            if said.elapsed() > SAID_EVERY {
                said = Instant::now();
                let (slabs, members) = (self.figure("slabs_lost"), self.figure("members_lost"));
                println!("  {degraded} degraded, {rebuilt} rebuilt, {slabs} lost; {members} times a donor was");
            }
            degraded == rebuilt
        });
        println!("  all slabs have their copies after {:?} more", begun.elapsed());
    }

    fn end(self) -> Ended {
        std::fs::write(&self.stop, "").expect("the scratch directory can be written");
        self.running.wait(LIMIT)
    }
}

/// How often what is waited for is said, where it takes long.
const SAID_EVERY: Duration = Duration::from_secs(30);

/// One at a time: each takes as much of the machine as there is.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn with_a_mirror_no_loss_of_a_donor_is_noticed() {
    no_loss_is_noticed("donor-loss", DONORS, 1, ",mirror=2,size=96MiB", &[0, 1, 2, 3, 4, 5]);
}

#[test]
fn with_parity_no_loss_of_a_donor_is_noticed() {
    no_loss_is_noticed("donor-loss-parity", PARITY_DONORS, 1, ",parity=4+1,size=96MiB", &[5, 1, 2, 4]);
}

#[test]
fn with_two_shards_of_parity_no_loss_of_two_donors_is_noticed() {
    no_loss_is_noticed("donor-loss-two", 7, 2, ",parity=4+2,size=96MiB", &[0, 1, 2, 3]);
}

/// Seeded rounds, of which each loses so many donors at once. Where nobody asks for a number of rounds, what happens in
/// them is said by `usual`: what differs from one kind of redundancy to the other.
fn no_loss_is_noticed(name: &str, donors: usize, at_once: usize, options: &str, usual: &[u64]) {
    let _turn = TURN.lock();
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let asked = setting("AQUIFER_LOSS_ROUNDS");
    let rounds = asked.unwrap_or(usual.len() as u64);
    let seed: u64 = setting("AQUIFER_LOSS_SEED").unwrap_or(1);
    let only = setting("AQUIFER_LOSS_ONLY");
    let more = std::env::var("AQUIFER_LOSS_OPTIONS").unwrap_or_default();
    let number = |setting: Option<u64>| setting.map(|number| number.to_string()).unwrap_or_default();
    println!(
        "to repeat: AQUIFER_LOSS_ROUNDS={} AQUIFER_LOSS_ONLY={} AQUIFER_LOSS_SEED={seed} AQUIFER_LOSS_OPTIONS={more}",
        number(asked),
        number(only)
    );
    let Some(mut game) = Game::start(name, donors, &format!("{options}{more}")) else { return };
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for round in 0..rounds {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let pause = Duration::from_millis(500 + (random >> 30) % 3000);
        let first = (random >> 20) as usize % donors;
        let mut lost: Vec<&mut Donor> = game.donors.iter_mut().collect();
        lost.rotate_left(first);
        let what = if asked.is_some() { round } else { usual[round as usize] };
        println!("round {round}:");
        lose(only.unwrap_or(what), pause, &mut lost[..at_once]);
        game.settle();
    }
    let rebuilt = game.figure("slabs_rebuilt");
    let ended = game.end();
    let Verified { wrong, lost, longest_ms } = verified(&ended);
    println!("{}", ended.stdout);
    assert_eq!((wrong, lost), (0, 0), "{}", ended.stderr);
    assert!(rebuilt > 0, "slabs got new copies");
    assert!(longest_ms <= STALL_MS_MOST, "the program stood still for {longest_ms} ms");
}

/// What these donors go through: each thing in its turn, so that few rounds have all of them.
fn lose(what: u64, pause: Duration, donors: &mut [&mut Donor]) {
    match what % 6 {
        0 => {
            println!("  killed, and started anew after {pause:?}");
            donors.iter().for_each(|donor| donor.signal("-KILL"));
            std::thread::sleep(pause);
            donors.iter_mut().for_each(|donor| donor.restart());
        }
        1 => {
            println!("  stopped for {pause:?}");
            donors.iter().for_each(|donor| donor.signal("-STOP"));
            std::thread::sleep(pause);
            donors.iter().for_each(|donor| donor.signal("-CONT"));
        }
        2 => {
            println!("  cut off for {pause:?}");
            donors.iter().for_each(|donor| donor.link.is_cut.store(true, Ordering::SeqCst));
            std::thread::sleep(pause);
            donors.iter().for_each(|donor| donor.link.is_cut.store(false, Ordering::SeqCst));
        }
        3 => {
            println!("  reclaims its memory, and lends it again after {pause:?}");
            donors.iter().for_each(|donor| donor.signal("-TERM"));
            std::thread::sleep(pause);
            donors.iter_mut().for_each(|donor| donor.restart());
        }
        4 => {
            println!("  revokes its leases, and is started anew after {pause:?}");
            donors.iter().for_each(|donor| donor.revoke());
            std::thread::sleep(pause);
            donors.iter().for_each(|donor| donor.signal("-KILL"));
            donors.iter_mut().for_each(|donor| donor.restart());
        }
        _ => {
            println!("  killed, and started anew at once");
            donors.iter().for_each(|donor| donor.signal("-KILL"));
            donors.iter_mut().for_each(|donor| donor.restart());
        }
    }
}

#[test]
fn what_is_not_what_was_stored_is_mended_from_the_other_copy() {
    mends("donor-damage", DONORS, ",mirror=2,size=96MiB");
}

#[test]
fn what_is_sealed_and_was_changed_is_mended_from_the_other_copy() {
    mends("donor-damage-sealed", DONORS, ",mirror=2,size=96MiB,encrypt=ephemeral");
}

#[test]
fn what_is_not_what_was_stored_is_mended_from_other_shards() {
    mends("donor-damage-parity", PARITY_DONORS, ",parity=4+1,size=96MiB");
}

#[test]
fn what_is_sealed_and_was_changed_is_mended_from_other_shards() {
    mends("donor-damage-parity-sealed", PARITY_DONORS, ",parity=4+1,size=96MiB,encrypt=ephemeral");
}

/// Before any loss: each donor has copies, or shards of data, of some of the slabs.
fn mends(name: &str, donors: usize, options: &str) {
    let _turn = TURN.lock();
    let Some(game) = Game::start(name, donors, options) else { return };
    let is_corrupt = game.donors[0].corrupt();
    if is_corrupt {
        eventually("what is not what had been stored is found elsewhere", || game.figure("mended_blocks") > 0);
    } else {
        println!("skipped, because other processes' memory cannot be written (ptrace_scope)");
    }
    let ended = game.end();
    let Verified { wrong, lost, .. } = verified(&ended);
    assert_eq!((wrong, lost), (0, 0), "{}", ended.stderr);
}

#[test]
fn without_a_mirror_a_killed_donor_is_an_error_and_the_rest_goes_on() {
    let _turn = TURN.lock();
    let Some(game) = Game::start("donor-loss-striped", DONORS, ",size=96MiB") else { return };
    let begun = Instant::now();
    game.donors[1].signal("-KILL");
    std::thread::sleep(Duration::from_secs(7));
    let ended = game.end();
    let Verified { wrong, lost, .. } = verified(&ended);
    assert_eq!(wrong, 0, "{}", ended.stderr);
    assert!(lost > 100, "a third of the memory is lost, and each access is told: {lost}");
    assert!(lost < 12288 + 100_000 && begun.elapsed() < LIMIT, "and nobody waits for each page anew");
    assert!(ended.said().iter().any(|line| line.contains("a fetch from the tier failed")), "{}", ended.stderr);
}

#[test]
fn more_losses_than_parity_are_an_error_and_the_rest_goes_on() {
    let _turn = TURN.lock();
    let Some(game) = Game::start("donor-loss-beyond", PARITY_DONORS, ",parity=4+1,size=96MiB") else { return };
    let begun = Instant::now();
    game.donors[1..3].iter().for_each(|donor| donor.signal("-KILL"));
    std::thread::sleep(Duration::from_secs(7));
    let ended = game.end();
    let Verified { wrong, lost, .. } = verified(&ended);
    println!("{lost} accesses were told, in {:?}", begun.elapsed());
    assert_eq!(wrong, 0, "{}", ended.stderr);
    assert!(lost > 100, "each access to what is lost is told: {lost}");
    assert!(begun.elapsed() < LIMIT, "and nobody waits for each page anew");
    assert!(ended.said().iter().any(|line| line.contains("a fetch from the tier failed")), "{}", ended.stderr);
}
