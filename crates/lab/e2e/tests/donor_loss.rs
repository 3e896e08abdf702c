// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Donors that are lost while a program verifies its memory: killed, stopped, disconnected, made to reclaim memory or
//! to revoke leases, restarted, and with corrupted bytes.
//!
//! With a mirror or with parity, none of that may cause a wrong byte, an error, or a stall of more than two seconds. If
//! more is lost than the redundancy covers, accesses to the lost memory are errors, and the rest works.
//!
//! `AQUIFER_LOSS_ROUNDS` sets the number of rounds, `AQUIFER_LOSS_SEED` the seed, `AQUIFER_LOSS_ONLY` a single kind of
//! loss by its number in `lose`, and `AQUIFER_LOSS_OPTIONS` more options of the tier, such as `,encrypt=ephemeral`; the
//! test prints them. `docs/testing.md` has the commands. If a number of rounds is set, each donor has a separate host,
//! where possible, and a cable is unplugged; otherwise a link in this process is cut.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aquifer_e2e::donor::{Donor, PLAIN, command};
use aquifer_e2e::hosts::{Hosts, address, on_host};
use aquifer_e2e::run::{LIMIT, aquifer, eventually, run};
use aquifer_e2e::verifying::{ALARM, Game, Verified, verified};

/// The longest stall of the program that a loss may cause, if a number of rounds is set by hand.
const STALL_MS_MAX: u64 = 2000;
/// The same in `make test`, which must not fail on a busy machine.
const HANG_MS: u64 = 60_000;
/// Number of donors for two copies of each byte, with one to spare.
const DONORS: usize = 3;
/// Number of donors for pages in five shards, with one to spare.
const PARITY_DONORS: usize = 6;
/// The number of kinds of loss in `lose`.
const KINDS: u64 = 8;
/// How long the long stop of a donor lasts.
const LONG_STOP: Duration = Duration::from_secs(60);
/// Maximum duration of a round, without long stops.
const ROUND_MAX: Duration = Duration::from_secs(12);

/// A donor, and the connection to it, which can be cut.
struct Lender {
    donor: Donor,
    way: Way,
    control: PathBuf,
    address: SocketAddr,
}

/// How borrowers reach a donor.
enum Way {
    /// By a cable to the host of this number.
    Cable(Arc<Hosts>, usize),
    Link(Link),
}

impl Lender {
    fn start(hosts: Option<(Arc<Hosts>, usize)>) -> Lender {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Short, because the length of a socket path is limited.
        let name = format!("aq-loss-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let control = std::env::temp_dir().join(name);
        let host = hosts.as_ref().map(|(_, host)| *host);
        let listen = host.map_or("127.0.0.1:0".into(), |host| format!("{}:7411", address(host)));
        let donor = launch(&listen, &control, host);
        let address: SocketAddr = donor.address.parse().expect("an address in numbers");
        let way = hosts.map_or_else(|| Way::Link(Link::to(address)), |(hosts, host)| Way::Cable(hosts, host));
        Lender { donor, way, control, address }
    }

    /// The address that borrowers use.
    fn address(&self) -> SocketAddr {
        match &self.way {
            Way::Cable(..) => self.address,
            Way::Link(link) => link.address,
        }
    }

    fn cut(&self, is_cut: bool) {
        match &self.way {
            Way::Cable(hosts, host) => hosts.set_cable(*host, true, if is_cut { "down" } else { "up" }),
            Way::Link(link) => link.is_cut.store(is_cut, Ordering::SeqCst),
        }
    }

    fn signal(&self, signal: &str) {
        self.donor.signal(signal);
    }

    /// Restarts the donor process, which then has none of the previous one's memory.
    fn restart(&mut self) {
        let _ = self.donor.child.wait();
        let host = match &self.way {
            Way::Cable(_, host) => Some(*host),
            Way::Link(_) => None,
        };
        self.donor = launch(&self.address.to_string(), &self.control, host);
    }

    /// Reclaims everything without waiting: the memory behind its leases is lost.
    fn revoke(&self) {
        let mut command = aquifer();
        command.args(["donor", "reclaim"]).arg(&self.control).args(["--all", "--within", "1ms"]);
        run(command, LIMIT).expect(0);
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        let _ = self.donor.child.kill();
        let _ = std::fs::remove_file(&self.control);
    }
}

fn launch(listen: &str, control: &std::path::Path, host: Option<usize>) -> Donor {
    let mut command = command(listen);
    command.args(PLAIN).args(["--size", "128MiB", "--grace", "1s", "--control"]).arg(control);
    Donor::run(host.into_iter().fold(command, |command, host| on_host(host, command)))
}

/// Forwards bytes between borrowers and a donor until it is cut; then nothing passes, and neither side is notified.
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

/// The program, and the donors with its memory.
struct Field {
    game: Game,
    lenders: Vec<Lender>,
}

impl Field {
    fn start(name: &str, donors: usize, options: &str) -> Option<Field> {
        Field::with(name, donors, options, None, ALARM)
    }

    /// With separate hosts: `hosts` has at least as many as there are donors.
    fn with(name: &str, donors: usize, options: &str, hosts: Option<&Arc<Hosts>>, alarm: Duration) -> Option<Field> {
        let lender = |host| Lender::start(hosts.map(|hosts| (Arc::clone(hosts), host)));
        let lenders: Vec<Lender> = (1..=donors).map(lender).collect();
        let addresses: Vec<String> = lenders.iter().map(|lender| lender.address().to_string()).collect();
        let tier = format!("donor:{},security=plain{options}", addresses.join("+"));
        let on_host = |command| if hosts.is_some() { on_host(0, command) } else { command };
        Some(Field { game: Game::start(name, &[tier], alarm, on_host)?, lenders })
    }
}

/// Serializes the tests, because each uses the whole machine.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn with_a_mirror_no_loss_of_a_donor_is_noticed() {
    no_loss_is_noticed("donor-loss", DONORS, 1, ",mirror=2,size=96MiB", &[0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn with_parity_no_loss_of_a_donor_is_noticed() {
    no_loss_is_noticed("donor-loss-parity", PARITY_DONORS, 1, ",parity=4+1,size=96MiB", &[5, 1, 2, 4, 6]);
}

#[test]
fn with_two_shards_of_parity_no_loss_of_two_donors_is_noticed() {
    no_loss_is_noticed("donor-loss-two", 7, 2, ",parity=4+2,size=96MiB", &[0, 1, 2, 3]);
}

/// Seeded rounds, each of which loses `at_once` donors at the same time. If no number of rounds is set, `usual` lists
/// the kinds of loss: those that differ between the kinds of redundancy.
fn no_loss_is_noticed(name: &str, donors: usize, at_once: usize, options: &str, usual: &[u64]) {
    let _turn = TURN.lock();
    let Rounds { asked, count, seed, only, more } = Rounds::from_environment(usual.len() as u64);
    let hosts = asked.then(|| Hosts::new(donors).map(Arc::new)).flatten();
    let long_stops = if asked { count.div_ceil(KINDS) } else { 0 };
    let alarm = ALARM + ROUND_MAX * count as u32 + LONG_STOP * long_stops as u32;
    let options = format!("{options}{more}");
    let Some(mut field) = Field::with(name, donors, &options, hosts.as_ref(), alarm) else { return };
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for round in 0..count {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let pause = Duration::from_millis(500 + (random >> 30) % 3000);
        let first = (random >> 20) as usize % donors;
        let mut lost: Vec<&mut Lender> = field.lenders.iter_mut().collect();
        lost.rotate_left(first);
        let what = if asked { round } else { usual[round as usize] };
        println!("round {round}:");
        lose(only.unwrap_or(what), pause, &mut lost[..at_once]);
        field.game.wait_for_copies();
        assert_eq!(field.game.figure("poisoned_blocks"), 0, "nothing is lost in round {round}");
    }
    let rebuilt = field.game.figure("slabs_rebuilt");
    let ended = field.game.end();
    let Verified { wrong, lost, longest_ms } = verified(&ended);
    assert_eq!((wrong, lost), (0, 0), "{}", ended.stderr);
    assert!(rebuilt > 0, "slabs got new copies");
    let reported = ended.said().iter().any(|line| line.contains("the donor at ") && line.contains(" was restarted"));
    assert!(reported || only.is_some(), "it is reported: {}", ended.stderr);
    let max = if asked { STALL_MS_MAX } else { HANG_MS };
    assert!(longest_ms <= max, "the program stood still for {longest_ms} ms");
}

/// The settings from the environment.
struct Rounds {
    asked: bool,
    count: u64,
    seed: u64,
    only: Option<u64>,
    more: String,
}

impl Rounds {
    /// Reads the settings, and prints how to repeat the run.
    fn from_environment(usual: u64) -> Rounds {
        let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let asked = setting("AQUIFER_LOSS_ROUNDS");
        let seed = setting("AQUIFER_LOSS_SEED").unwrap_or(1);
        let only = setting("AQUIFER_LOSS_ONLY");
        let more = std::env::var("AQUIFER_LOSS_OPTIONS").unwrap_or_default();
        let number = |setting: Option<u64>| setting.map(|number| number.to_string()).unwrap_or_default();
        println!(
            "to repeat: AQUIFER_LOSS_ROUNDS={} AQUIFER_LOSS_ONLY={} AQUIFER_LOSS_SEED={seed} AQUIFER_LOSS_OPTIONS={more}",
            number(asked),
            number(only)
        );
        Rounds { asked: asked.is_some(), count: asked.unwrap_or(usual), seed, only, more }
    }
}

/// Makes these donors suffer one kind of loss. The kinds take turns, so that few rounds cover all of them.
fn lose(what: u64, pause: Duration, lenders: &mut [&mut Lender]) {
    match what % KINDS {
        0 => {
            println!("  killed, and restarted after {pause:?}");
            lenders.iter().for_each(|lender| lender.signal("-KILL"));
            std::thread::sleep(pause);
            lenders.iter_mut().for_each(|lender| lender.restart());
        }
        1 => stop(pause, lenders),
        2 => {
            println!("  cut off for {pause:?}");
            lenders.iter().for_each(|lender| lender.cut(true));
            std::thread::sleep(pause);
            lenders.iter().for_each(|lender| lender.cut(false));
        }
        3 => {
            println!("  reclaims its memory, and lends it again after {pause:?}");
            lenders.iter().for_each(|lender| lender.signal("-TERM"));
            std::thread::sleep(pause);
            lenders.iter_mut().for_each(|lender| lender.restart());
        }
        4 => {
            println!("  revokes its leases, and is restarted after {pause:?}");
            lenders.iter().for_each(|lender| lender.revoke());
            std::thread::sleep(pause);
            lenders.iter().for_each(|lender| lender.signal("-KILL"));
            lenders.iter_mut().for_each(|lender| lender.restart());
        }
        5 => {
            println!("  killed, and restarted at once");
            lenders.iter().for_each(|lender| lender.signal("-KILL"));
            lenders.iter_mut().for_each(|lender| lender.restart());
        }
        6 => {
            println!("  has other bytes than what was stored, and is restarted after {pause:?}");
            // Reports a skip if that is not permitted.
            lenders.iter().for_each(|lender| _ = lender.donor.corrupt());
            std::thread::sleep(pause);
            // Damage that nobody has read is not known, so these donors are restarted without their memory.
            lenders.iter().for_each(|lender| lender.signal("-KILL"));
            lenders.iter_mut().for_each(|lender| lender.restart());
        }
        _ => stop(LONG_STOP, lenders),
    }
}

fn stop(pause: Duration, lenders: &[&mut Lender]) {
    println!("  stopped for {pause:?}");
    lenders.iter().for_each(|lender| lender.signal("-STOP"));
    std::thread::sleep(pause);
    lenders.iter().for_each(|lender| lender.signal("-CONT"));
}

#[test]
fn damaged_pages_are_repaired_from_the_other_copy() {
    repairs("donor-damage", DONORS, ",mirror=2,size=96MiB");
}

#[test]
fn changed_sealed_pages_are_repaired_from_the_other_copy() {
    repairs("donor-damage-sealed", DONORS, ",mirror=2,size=96MiB,encrypt=ephemeral");
}

#[test]
fn damaged_pages_are_repaired_from_other_shards() {
    repairs("donor-damage-parity", PARITY_DONORS, ",parity=4+1,size=96MiB");
}

#[test]
fn changed_sealed_pages_are_repaired_from_other_shards() {
    repairs("donor-damage-parity-sealed", PARITY_DONORS, ",parity=4+1,size=96MiB,encrypt=ephemeral");
}

/// Before any loss: each donor has copies, or data shards, of some of the slabs.
fn repairs(name: &str, donors: usize, options: &str) {
    let _turn = TURN.lock();
    let Some(Field { game, lenders }) = Field::start(name, donors, options) else { return };
    let is_corrupt = lenders[0].donor.corrupt();
    if is_corrupt {
        eventually("what is not what had been stored is found elsewhere", || game.figure("repaired_blocks") > 0);
    }
    let ended = game.end();
    let Verified { wrong, lost, .. } = verified(&ended);
    assert_eq!((wrong, lost), (0, 0), "{}", ended.stderr);
}

/// The good copy is on a donor that temporarily does not answer.
#[test]
fn while_what_is_stored_at_one_donor_is_wrong_the_other_one_is_waited_for() {
    let _turn = TURN.lock();
    let Some(Field { game, lenders }) = Field::start("donor-damage-silence", DONORS, ",mirror=2,size=96MiB") else {
        return;
    };
    if lenders[0].donor.corrupt() {
        eventually("it is found out", || game.figure("members_quarantined") > 0);
        lenders[1].signal("-STOP");
        std::thread::sleep(Duration::from_millis(1200));
        lenders[1].signal("-CONT");
        game.wait_for_copies();
    }
    let ended = game.end();
    let Verified { wrong, lost, .. } = verified(&ended);
    assert_eq!((wrong, lost), (0, 0), "{}", ended.stderr);
}

#[test]
fn without_a_mirror_a_killed_donor_is_an_error_and_the_rest_goes_on() {
    let _turn = TURN.lock();
    let Some(Field { game, lenders }) = Field::start("donor-loss-striped", DONORS, ",size=96MiB") else { return };
    let begun = Instant::now();
    lenders[1].signal("-KILL");
    std::thread::sleep(Duration::from_secs(7));
    let ended = game.end();
    let Verified { wrong, lost, .. } = verified(&ended);
    assert_eq!(wrong, 0, "{}", ended.stderr);
    assert!(lost > 100, "a third of the memory is lost, and each access fails: {lost}");
    assert!(lost < 12288 + 100_000 && begun.elapsed() < LIMIT, "and no thread waits again for each page");
    assert!(ended.said().iter().any(|line| line.contains("a fetch from the tier failed")), "{}", ended.stderr);
}

#[test]
fn more_losses_than_parity_are_an_error_and_the_rest_goes_on() {
    let _turn = TURN.lock();
    let Some(Field { game, lenders }) = Field::start("donor-loss-beyond", PARITY_DONORS, ",parity=4+1,size=96MiB")
    else {
        return;
    };
    let begun = Instant::now();
    lenders[1..3].iter().for_each(|lender| lender.signal("-KILL"));
    std::thread::sleep(Duration::from_secs(7));
    let ended = game.end();
    let Verified { wrong, lost, .. } = verified(&ended);
    println!("{lost} accesses failed, in {:?}", begun.elapsed());
    assert_eq!(wrong, 0, "{}", ended.stderr);
    assert!(lost > 100, "each access to lost memory fails: {lost}");
    assert!(begun.elapsed() < LIMIT, "and no thread waits again for each page");
    assert!(ended.said().iter().any(|line| line.contains("a fetch from the tier failed")), "{}", ended.stderr);
}
