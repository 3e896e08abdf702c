// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A program whose certificate is renewed while it runs continues to borrow.
//!
//! The trouble it guards against: certificates are short-lived, and a program may run for months. It reads its files
//! when it starts. When its certificate has expired, its connections still work, so nobody notices. Then one of them is
//! lost, and with it the program.

mod certificates;
mod peer;

use std::time::{Duration, Instant};

use aquifer_donor::{Donor, Files, Security, Settings};
use aquifer_tiers::conformance::frames;
use aquifer_tiers::{OpenFailure, Tier, TierSpec, open};
use aquifer_wire::{Figure, Refusal, SLAB_BYTES};
use certificates::{Authority, options, replace, write};
use peer::{Lines, figure, settings, start};

const SLABS: u64 = 4;
/// How long to wait for what happens within seconds on a machine with nothing else to do.
const TIMEOUT: Duration = Duration::from_secs(60);

fn secure(files: &Files) -> Settings {
    Settings { security: Security::Tls(files.clone()), ..settings(2 * SLABS) }
}

fn try_open(donor: &Donor, files: &Files) -> Result<Box<dyn Tier>, OpenFailure> {
    open(&format!("donor:{}{}", donor.address(), options(files)).parse::<TierSpec>().unwrap())
}

/// A program's memory in a tier: what it reads is what it wrote.
struct Program {
    tier: Box<dyn Tier>,
    version: u64,
    notices: Vec<String>,
}

impl Program {
    fn on(tier: Box<dyn Tier>) -> Program {
        let mut program = Program { tier, version: 0, notices: Vec::new() };
        (0..SLABS).for_each(|slab| program.write(slab));
        program
    }

    fn write(&mut self, slab: u64) {
        let mut frame = frames::frame(16, 0);
        frames::stamp(frame.bytes_mut(), slab * SLAB_BYTES, self.version);
        let written = self.tier.write(slab * SLAB_BYTES, &frame);
        frames::give_back(frame);
        written.unwrap_or_else(|failure| panic!("version {}: {failure}", self.version));
    }

    /// Reads everything, and writes the next version of it.
    fn work(&mut self) {
        for slab in 0..SLABS {
            let mut frame = frames::frame(16, 0xee);
            let read = self.tier.read(slab * SLAB_BYTES, &mut frame);
            if read.is_ok() {
                frames::check_stamp(frame.bytes(), slab * SLAB_BYTES, self.version);
            }
            frames::give_back(frame);
            read.unwrap_or_else(|failure| panic!("version {}: {failure}", self.version));
        }
        self.version += 1;
        (0..SLABS).for_each(|slab| self.write(slab));
    }

    /// One turn of upkeep, which the pager makes at least every two seconds.
    fn turn(&mut self) {
        let upkeep = self.tier.upkeep().expect("leases have upkeep");
        assert!(upkeep.turn(None) <= Duration::from_secs(2), "changed files are noticed soon");
        upkeep.report_changes(&mut |line| self.notices.push(line.to_owned()));
    }
}

/// Waits until the donor has ended connections because of their certificates.
fn ends_connections(lines: &Lines) {
    let begun = Instant::now();
    while !lines.lock().unwrap().iter().any(|line| line.contains("its certificate is no longer valid")) {
        assert!(begun.elapsed() < TIMEOUT, "{lines:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The donor ends its connections while the program does not use them: the first that it uses is a new one.
#[test]
fn a_program_borrows_on_with_files_that_another_authority_has_signed() {
    let (old, new) = (Authority::new(), Authority::new());
    let of_donor = old.sign("127.0.0.1", 2100, &old);
    let (donor, lines) = start(secure(&of_donor));
    let files = old.sign("borrower", 2100, &old);
    let stale = old.sign("borrower", 2100, &old);
    let mut program = Program::on(try_open(&donor, &files).unwrap());
    program.work();
    replace(&files, &new.sign("borrower", 2100, &old));
    program.turn();
    program.work();
    let before = figure(&donor, Figure::ConnectionsTotal);
    replace(&of_donor, &old.sign("127.0.0.1", 2100, &new));
    ends_connections(&lines);
    program.work();
    assert!(figure(&donor, Figure::ConnectionsTotal) > before, "the connection is a new one");
    assert_eq!((peer::refused(&donor, Refusal::CertificateUnknown), program.notices.len()), (0, 0));
    let refused = try_open(&donor, &stale).err().expect("the old certificate is worth nothing").to_string();
    assert!(refused.contains("not signed by its authority"), "{refused}");
}

/// The validity is short, and a machine may be too busy to use it: then it gets another one.
#[test]
fn a_certificate_that_is_renewed_in_time_may_expire() {
    const VALID: Duration = Duration::from_secs(10);
    let authority = Authority::new();
    let of_donor = authority.sign("127.0.0.1", 2100, &authority);
    let (donor, lines) = start(secure(&of_donor));
    let opened = (0..6).find_map(|_| {
        let (signed, files) = (Instant::now(), authority.sign_for("borrower", VALID, &authority));
        try_open(&donor, &files).ok().map(|tier| (signed, files, tier))
    });
    let (signed, files, tier) = opened.expect("a machine opens a connection in ten seconds, at least once");
    let (stale, mut program) = (authority.sign_for("borrower", VALID, &authority), Program::on(tier));
    let is_over = || signed.elapsed() > 2 * VALID;
    program.work();
    replace(&files, &authority.sign("borrower", 2100, &authority));
    while !is_over() {
        program.work();
        program.turn();
        std::thread::sleep(Duration::from_millis(100));
    }
    // The donor reads its files again, and ends the connections whose certificates have expired.
    replace(&of_donor, &authority.sign("127.0.0.1", 2100, &authority));
    ends_connections(&lines);
    program.work();
    assert_eq!((peer::refused(&donor, Refusal::CertificateExpired), program.notices.len()), (0, 0));
    let expired = Instant::now();
    while try_open(&donor, &stale).is_ok() {
        assert!(expired.elapsed() < TIMEOUT, "a certificate of ten seconds is accepted for ever");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn files_that_cannot_be_used_are_reported_once_and_change_nothing() {
    let (old, new) = (Authority::new(), Authority::new());
    let of_donor = old.sign("127.0.0.1", 2100, &old);
    let (donor, lines) = start(secure(&of_donor));
    let files = old.sign("borrower", 2100, &old);
    let mut program = Program::on(try_open(&donor, &files).unwrap());
    let other = new.sign("borrower", 2100, &old);
    let mixed = Files { cert: files.cert.clone(), ..other.clone() };
    let broken = Files { cert: write("cert.pem", "not a certificate"), ..other.clone() };
    for (expected, wrong) in [("is not the key of", &mixed), ("is not PEM", &broken)] {
        replace(&files, wrong);
        // One turn may be in the middle of a replacement, so the first says nothing.
        (0..4).for_each(|_| program.turn());
        program.work();
        let notices = std::mem::take(&mut program.notices);
        assert!(notices.len() == 1 && notices[0].contains(expected), "{notices:?}");
    }
    replace(&files, &other);
    (0..2).for_each(|_| program.turn());
    replace(&of_donor, &old.sign("127.0.0.1", 2100, &new));
    ends_connections(&lines);
    program.work();
    assert_eq!(program.notices, [""; 0]);
}
