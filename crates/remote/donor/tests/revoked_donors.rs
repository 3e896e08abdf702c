// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor whose certificate was revoked gets nobody's memory.
//!
//! The trouble it guards against: a donor's key is stolen, or its machine is given away. Its authority revokes the
//! certificate, and managers and donors honour that. Programs did not: they would have sent their memory to anyone who
//! has the key, until the certificate expired.

mod certificates;
mod detour;
mod kinds;
mod peer;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aquifer_donor::{Address, Donor, Files, Security, Settings};
use aquifer_tiers::conformance::frames;
use aquifer_tiers::{OpenFailure, Operation, Request, Tier, TierFailure, TierQueue, TierSpec, Wait, open};
use aquifer_wire::{Figure, Refusal};
use certificates::{Authority, options, replace_text, write};
use detour::{Detour, Order};
use peer::{settings, start, wait_until};

/// How long to wait for what happens within seconds on a machine with nothing else to do.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The error number of a revoked key. The C library has it under no name that is portable.
const EKEYREVOKED: i32 = 128;
/// The serial numbers of the donor's and of the borrower's certificate.
const DONOR: u64 = 1;
const BORROWER: u64 = 2;

/// An authority, a donor with a certificate of it, the borrower's files, and the list that the borrower reads.
struct Site {
    authority: Authority,
    donor: Donor,
    borrower: Files,
    list: PathBuf,
}

impl Site {
    fn new(revoked: &[u64]) -> Site {
        let authority = Authority::new();
        let files = authority.sign_numbered("127.0.0.1", DONOR, &authority);
        let (donor, _) = start(Settings { security: Security::Tls(files), ..settings(4) });
        let borrower = authority.sign_numbered("borrower", BORROWER, &authority);
        let list = write("crl.pem", &authority.revoke(revoked));
        Site { authority, donor, borrower, list }
    }

    fn open_at(&self, address: SocketAddr) -> Result<Box<dyn Tier>, OpenFailure> {
        open_with(address, &self.borrower, &self.list)
    }

    fn refused(&self) -> String {
        reason(self.open_at(self.donor.address()))
    }

    /// Revokes these certificates from now on.
    fn revoke(&self, serials: &[u64]) {
        replace_text(&self.list, &self.authority.revoke(serials));
    }
}

fn open_with(address: SocketAddr, files: &Files, list: &Path) -> Result<Box<dyn Tier>, OpenFailure> {
    let spec = format!("donor:{address}{},crl={}", options(files), list.display());
    open(&spec.parse::<TierSpec>().unwrap())
}

/// Why a tier cannot be opened: one line.
fn reason(opened: Result<Box<dyn Tier>, OpenFailure>) -> String {
    let message = opened.err().expect("it is refused").to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

fn write_version(tier: &dyn Tier, version: u64) -> Result<(), TierFailure> {
    let mut frame = frames::frame(16, 0);
    frames::stamp(frame.bytes_mut(), 0, version);
    let written = tier.write(0, &frame);
    frames::give_back(frame);
    written
}

fn read_version(tier: &dyn Tier, version: u64) -> Result<(), TierFailure> {
    let mut frame = frames::frame(16, 0xee);
    let read = tier.read(0, &mut frame);
    if read.is_ok() {
        frames::check_stamp(frame.bytes(), 0, version);
    }
    frames::give_back(frame);
    read
}

/// As a worker reads: over a connection of its own.
fn read_by(queue: &mut dyn TierQueue) -> Result<(), TierFailure> {
    let request = Request { operation: Operation::Read, offset: 0, buffer: frames::frame(16, 0xee), tag: 0 };
    assert!(queue.submit(request).is_ok(), "it has room");
    queue.kick().unwrap();
    let (begun, mut outcome) = (Instant::now(), None);
    while outcome.is_none() {
        assert!(begun.elapsed() < TIMEOUT, "no completion");
        queue.complete(Wait::ForOne, 1, &mut |completion| {
            frames::give_back(completion.buffer);
            outcome = Some(completion.outcome);
        });
    }
    outcome.expect("the loop looks")
}

/// One turn of upkeep, which the pager makes at least every two seconds. Returns what it says.
fn turn(tier: &dyn Tier) -> Vec<String> {
    let upkeep = tier.upkeep().expect("leases have upkeep");
    assert!(upkeep.turn(None) <= Duration::from_secs(2), "changed files are noticed soon");
    let mut lines = Vec::new();
    upkeep.report_changes(&mut |line| lines.push(line.to_owned()));
    lines
}

#[test]
fn a_revoked_donor_is_refused_at_the_start_with_cause_and_remedy() {
    let site = Site::new(&[DONOR, 77]);
    let begun = Instant::now();
    let message = site.refused();
    assert!(begun.elapsed() < TIMEOUT, "the refusal is final");
    assert!(message.contains("the donor's certificate was revoked, says the list in crl="), "{message}");
    assert!(message.contains("; borrow from another donor"), "{message}");
    wait_until(&site.donor, |status| status.refused(Refusal::Distrusted) == 1);
    // The list names others alone, the borrower among them: that is its donors' concern.
    site.revoke(&[BORROWER, 77]);
    let tier = site.open_at(site.donor.address()).expect("nobody has revoked the donor");
    write_version(&*tier, 1).unwrap();
    read_version(&*tier, 1).unwrap();
}

#[test]
fn an_array_does_not_start_with_a_revoked_donor() {
    let site = Site::new(&[DONOR]);
    let good = site.authority.sign_numbered("127.0.0.1", 9, &site.authority);
    let (other, _) = start(Settings { security: Security::Tls(good), ..settings(4) });
    let array = |list: &Path| {
        let (one, other) = (site.donor.address(), other.address());
        let spec = format!("donor:{one}+{other}{},crl={},mirror=2", options(&site.borrower), list.display());
        open(&spec.parse::<TierSpec>().unwrap())
    };
    let message = reason(array(&site.list));
    assert!(message.contains("was revoked") && message.contains(&site.donor.address().to_string()), "{message}");
    site.revoke(&[]);
    array(&site.list).expect("nobody is revoked");
}

#[test]
fn lists_that_cannot_be_used_are_errors_at_the_start() {
    let site = Site::new(&[]);
    let stranger = Authority::named("stranger");
    let yesterday = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() - Duration::from_secs(86_400);
    let expired = site.authority.revoke_until(&[], Some(yesterday));
    let good = site.authority.revoke(&[]);
    // The last lines have the signature.
    let (lines, mut cut) = (good.lines().collect::<Vec<_>>(), String::new());
    lines.iter().enumerate().filter(|(at, _)| *at != 3).for_each(|(_, line)| cut += &format!("{line}\n"));
    let certificate = std::fs::read_to_string(&site.borrower.ca).unwrap();
    let missing = PathBuf::from("/nowhere/crl.pem");
    for (list, expected) in [
        (missing, "check the path"),
        (PathBuf::from("/"), "give another file"),
        (write("crl.pem", "no list at all"), "BEGIN X509 CRL"),
        (write("crl.pem", &certificate), "BEGIN X509 CRL"),
        (write("crl.pem", ""), "BEGIN X509 CRL"),
        (write("crl.pem", &cut), "one that the authority has signed"),
        (write("crl.pem", &expired), "has expired; get the authority's newest one"),
        (write("crl.pem", &stranger.revoke(&[])), "is not signed by an authority in"),
        (write("crl.pem", &format!("{good}{}", stranger.revoke(&[]))), "is not signed by an authority in"),
        (write("crl.pem", &format!("{good}{}", site.authority.revoke(&[DONOR]))), "has two lists of one authority"),
        (write("crl.pem", &format!("{good}{}", Authority::new().revoke(&[]))), "has two lists of one authority"),
    ] {
        // Nobody listens there: the list is read before the donor is asked.
        let message = reason(open_with(([127, 0, 0, 1], 1).into(), &site.borrower, &list));
        let file = format!("the revocation list {}", list.display());
        assert!(message.contains(&file) && message.contains(expected), "{message}");
    }
}

/// Only the first of them would be looked at, and it may be the older one.
#[test]
fn a_donor_does_not_start_with_two_lists_of_one_authority() {
    let authority = Authority::new();
    let files = || authority.sign_numbered("127.0.0.1", DONOR, &authority).load().expect("usable");
    let (older, newer) = (authority.revoke(&[]), authority.revoke(&[BORROWER]));
    files().for_donor(Some(&write("crl.pem", &newer))).expect("it is one");
    let other = Authority::named("other").revoke(&[]);
    files().for_donor(Some(&write("crl.pem", &format!("{newer}{other}")))).expect("they are two authorities'");
    let list = write("crl.pem", &format!("{older}{newer}"));
    let message = files().for_donor(Some(&list)).expect_err("it is refused").to_string();
    assert!(message.contains(&format!("{} has two lists of one authority", list.display())), "{message}");
}

/// A list of a large pool is as long as the manager may send it.
#[test]
fn a_long_list_is_read_to_its_end() {
    const PEM_BYTES: usize = 1 << 20;
    let site = Site::new(&[]);
    let serials: Vec<u64> = (1000..50_000).chain([DONOR]).collect();
    let list = site.authority.revoke(&serials);
    assert!(list.len() > PEM_BYTES, "{}", list.len());
    replace_text(&site.list, &list);
    let message = site.refused();
    assert!(message.contains("was revoked"), "{message}");
    // One that is longer than that is not read in part.
    replace_text(&site.list, &format!("{list}{}", "\n".repeat(16 << 20)));
    let message = site.refused();
    assert!(message.contains("is too large") && message.contains("16777216"), "{message}");
}

/// The host's agent runs as a user of its own, and keeps the list for programs of all users. Needs root, to give a file
/// to another user.
#[test]
fn a_list_of_another_user_is_read_unless_others_can_write_it() {
    const NOBODY: u32 = 65_534;
    let site = Site::new(&[]);
    if std::os::unix::fs::chown(&site.list, Some(NOBODY), None).is_err() {
        return;
    }
    site.open_at(site.donor.address()).expect("its authority has signed it");
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(&site.list, mode(0o646)).unwrap();
    let message = site.refused();
    assert!(message.contains("other users can write to"), "{message}");
}

/// Two authorities are trusted, as while one replaces the other, and only one has a list.
#[test]
fn a_donor_of_an_authority_without_a_list_is_refused() {
    let site = Site::new(&[]);
    let other = Authority::named("other");
    let both = [&site.borrower.ca, &other.file()].map(|path| std::fs::read_to_string(path).unwrap()).concat();
    let files = Files { ca: write("ca.pem", &both), ..site.borrower.clone() };
    let list = write("crl.pem", &other.revoke(&[]));
    let message = reason(open_with(site.donor.address(), &files, &list));
    assert!(message.contains("has no list in crl=; add the revocation list of that authority"), "{message}");
    replace_text(&list, &format!("{}{}", other.revoke(&[]), site.authority.revoke(&[])));
    open_with(site.donor.address(), &files, &list).expect("both have a list");
}

#[test]
fn a_donor_that_is_revoked_while_a_program_runs_is_not_connected_to_again() {
    let site = Site::new(&[]);
    let detour = Detour::start(&Address::Tcp(site.donor.address()));
    let Address::Tcp(address) = detour.address else { unreachable!("it is a port") };
    let tier = site.open_at(address).unwrap();
    write_version(&*tier, 1).unwrap();
    // A list that cannot be used is reported once, and the previous one stays in use.
    for (text, expected) in [("no list", "is not PEM"), (&Authority::new().revoke(&[DONOR]), "is not signed by")] {
        replace_text(&site.list, text);
        let said: Vec<String> = (0..4).flat_map(|_| turn(&*tier)).collect();
        assert!(said.len() == 1 && said[0].contains(expected), "{said:?}");
        assert!(said[0].contains("connections to donors use the files as they were read before"), "{said:?}");
    }
    detour.order(Order::CutRequest);
    read_version(&*tier, 1).unwrap();
    assert!(detour.is_done(), "the connection is a new one");
    site.revoke(&[DONOR]);
    assert_eq!(turn(&*tier), [""; 0]);
    let before = peer::refused(&site.donor, Refusal::Distrusted);
    assert_eq!(read_version(&*tier, 1).unwrap_err().errno(), Some(EKEYREVOKED));
    assert_eq!(write_version(&*tier, 2).unwrap_err().errno(), Some(EKEYREVOKED));
    wait_until(&site.donor, |status| status.refused(Refusal::Distrusted) > before);
    // The operator has named the wrong donor, and corrects that.
    site.revoke(&[77]);
    assert_eq!(turn(&*tier), [""; 0]);
    let begun = Instant::now();
    while let Err(failure) = read_version(&*tier, 1) {
        assert!(begun.elapsed() < TIMEOUT, "{failure}");
    }
}

/// Anyone who has the stolen key may be at the other end of a connection that is open.
#[test]
fn open_connections_to_a_donor_that_is_revoked_are_ended() {
    let site = Site::new(&[]);
    let tier = site.open_at(site.donor.address()).unwrap();
    write_version(&*tier, 1).unwrap();
    let mut queue = tier.open_queue(4).unwrap();
    read_by(&mut *queue).unwrap();
    let connections = || peer::figure(&site.donor, Figure::Connections);
    assert_eq!(connections(), 2, "one for demand, and the queue's");
    // A list that names others changes nothing.
    site.revoke(&[77]);
    let total = peer::figure(&site.donor, Figure::ConnectionsTotal);
    assert_eq!(turn(&*tier), [""; 0]);
    read_version(&*tier, 1).unwrap();
    read_by(&mut *queue).unwrap();
    assert_eq!(peer::figure(&site.donor, Figure::ConnectionsTotal), total);
    site.revoke(&[77, DONOR]);
    assert_eq!(turn(&*tier), [""; 0]);
    // That for demand ends at once; a queue's belongs to its worker, and ends before the next request.
    wait_until(&site.donor, |status| status.figure(Figure::Connections) == 1);
    assert_eq!(read_by(&mut *queue).unwrap_err().errno(), Some(EKEYREVOKED));
    wait_until(&site.donor, |status| status.figure(Figure::Connections) == 0);
    assert_eq!(write_version(&*tier, 2).unwrap_err().errno(), Some(EKEYREVOKED));
}

/// The worker always has a request in flight, so its connection is never idle.
#[test]
fn a_busy_queue_sends_nothing_more_to_a_donor_that_is_revoked() {
    let site = Site::new(&[]);
    let tier = site.open_at(site.donor.address()).unwrap();
    write_version(&*tier, 1).unwrap();
    let mut queue = tier.open_queue(4).unwrap();
    read_by(&mut *queue).unwrap();
    let submit = |queue: &mut dyn TierQueue, tag| {
        let request = Request { operation: Operation::Read, offset: 0, buffer: frames::frame(16, 0xee), tag };
        assert!(queue.submit(request).is_ok(), "it has room");
        queue.kick().unwrap();
    };
    submit(&mut *queue, 1);
    site.revoke(&[DONOR]);
    assert_eq!(turn(&*tier), [""; 0]);
    submit(&mut *queue, 2);
    let (begun, mut outcomes) = (Instant::now(), Vec::new());
    while outcomes.len() < 2 {
        assert!(begun.elapsed() < TIMEOUT, "no completion: {outcomes:?}");
        queue.complete(Wait::ForOne, 2, &mut |completion| {
            frames::give_back(completion.buffer);
            outcomes.push((completion.tag, completion.outcome.map_err(|failure| failure.errno())));
        });
    }
    assert!(outcomes.contains(&(2, Err(Some(EKEYREVOKED)))), "{outcomes:?}");
    wait_until(&site.donor, |status| status.figure(Figure::Connections) == 0);
}

/// "It does not answer" sent people to look at the network.
#[test]
fn an_array_says_that_a_member_is_lost_because_it_is_revoked() {
    let site = Site::new(&[]);
    let good = site.authority.sign_numbered("127.0.0.1", 9, &site.authority);
    let (other, _) = start(Settings { security: Security::Tls(good), ..settings(4) });
    let (one, list) = (site.donor.address(), site.list.display());
    let spec = format!("donor:{one}+{}{},crl={list},mirror=2", other.address(), options(&site.borrower));
    let tier = open(&spec.parse::<TierSpec>().unwrap()).unwrap();
    write_version(&*tier, 1).unwrap();
    assert_eq!(turn(&*tier), [""; 0]);
    site.revoke(&[DONOR]);
    let (begun, mut said) = (Instant::now(), Vec::new());
    while said.is_empty() {
        assert!(begun.elapsed() < TIMEOUT, "it says nothing");
        read_version(&*tier, 1).expect("the other one has it");
        std::thread::sleep(Duration::from_millis(50));
        said = turn(&*tier);
    }
    let line = format!("the donor at {one} is not used any more: its certificate was revoked, says the list in crl=");
    assert!(said.len() == 1 && said[0].starts_with(&line), "{said:?}");
    assert!(said[0].contains("; other donors have what it held; borrow from another donor"), "{said:?}");
    wait_until(&site.donor, |status| status.figure(Figure::Connections) == 0);
    site.revoke(&[]);
    while said.len() == 1 {
        assert!(begun.elapsed() < TIMEOUT, "it does not come back");
        std::thread::sleep(Duration::from_millis(50));
        said.extend(turn(&*tier));
    }
    assert_eq!(said[1], format!("the donor at {one} is back"));
}

/// Lists are short-lived, and a new one may be late: the program says so, and keeps its memory.
#[test]
fn a_list_that_expires_while_a_program_runs_is_reported_once_and_stays_in_use() {
    const VALID: Duration = Duration::from_secs(5);
    let site = Site::new(&[]);
    let detour = Detour::start(&Address::Tcp(site.donor.address()));
    let Address::Tcp(address) = detour.address else { unreachable!("it is a port") };
    // A machine may be too busy to use the list within this time: then it gets another one.
    let opened = (0..6).find_map(|_| {
        let expires = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + VALID;
        replace_text(&site.list, &site.authority.revoke_until(&[], Some(expires)));
        site.open_at(address).ok()
    });
    let tier = opened.expect("a machine opens a connection in five seconds, at least once");
    write_version(&*tier, 1).unwrap();
    let (begun, mut said) = (Instant::now(), Vec::new());
    while said.is_empty() {
        assert!(begun.elapsed() < TIMEOUT, "it does not notice");
        std::thread::sleep(Duration::from_millis(100));
        said = turn(&*tier);
    }
    assert!(said.len() == 1 && said[0].contains("has expired; get the authority's newest one"), "{said:?}");
    assert_eq!(turn(&*tier), [""; 0], "once");
    detour.order(Order::CutRequest);
    read_version(&*tier, 1).unwrap();
    let message = site.refused();
    assert!(message.contains("has expired"), "a program that starts now reads it, too: {message}");
    site.revoke(&[]);
    assert_eq!(turn(&*tier), [""; 0]);
    site.open_at(address).expect("there is a new list");
}
