// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Somebody on the path between a borrower and its donor passes on one byte of a TLS record now and then. The borrower
//! waits for that donor as long as for one that is silent, and then has the bytes from the others.
//!
//! The bug it guards against: each byte that arrived ended one wait in the kernel, and only a whole record ended the
//! waits, so a fault waited for an hour.

mod certificates;
mod peer;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aquifer_donor::{Donor, Settings, Timeouts};
use aquifer_tiers::conformance::frames;
use aquifer_tiers::{Tier, TierSpec, open};
use aquifer_wire::SLAB_BYTES;
use certificates::Protection;
use peer::{TIMEOUT, settings, start};

/// Shorter than one wait of the borrower in the kernel.
const PAUSE: Duration = Duration::from_millis(150);
/// How many bytes drip before the rest is passed on, so that the test ends whatever the borrower does.
const DRIPS_MAX: usize = 100;
/// The borrower waits for an answer and for a new connection, each for up to 0.6 s; the rest is for a busy machine.
const READ_MAX: Duration = Duration::from_secs(4);

/// A proxy that passes everything on, or lets answers drip.
struct Proxy {
    address: SocketAddr,
    drips: Arc<AtomicBool>,
}

impl Proxy {
    fn start(donor: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let drips = Arc::new(AtomicBool::new(false));
        let for_thread = Arc::clone(&drips);
        thread::spawn(move || {
            for borrower in listener.incoming().flatten() {
                let drips = Arc::clone(&for_thread);
                thread::spawn(move || drop(pass(borrower, donor, &drips)));
            }
        });
        Proxy { address, drips }
    }
}

fn pass(borrower: TcpStream, donor: SocketAddr, drips: &AtomicBool) -> std::io::Result<()> {
    let mut upstream = TcpStream::connect(donor)?;
    borrower.set_nodelay(true)?;
    let (from, mut to) = (borrower.try_clone()?, upstream.try_clone()?);
    thread::spawn(move || {
        let _ = std::io::copy(&mut (&from), &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    let mut bytes = [0; 16 << 10];
    loop {
        let count = upstream.read(&mut bytes)?;
        if count == 0 {
            return borrower.shutdown(Shutdown::Both);
        }
        let mut rest = &bytes[..count];
        for _ in 0..DRIPS_MAX {
            if rest.is_empty() || !drips.load(Ordering::SeqCst) {
                break;
            }
            (&borrower).write_all(&rest[..1])?;
            rest = &rest[1..];
            thread::sleep(PAUSE);
        }
        (&borrower).write_all(rest)?;
    }
}

fn donor() -> Donor {
    let timeouts = Timeouts { handshake: TIMEOUT, ..Timeouts::default() };
    start(Settings { security: Protection::Tls.security(), timeouts, ..settings(16) }).0
}

fn store(tier: &dyn Tier, offset: u64) {
    let mut frame = frames::frame(4, 0);
    frames::stamp(frame.bytes_mut(), offset, 1);
    tier.write(offset, &frame).unwrap_or_else(|failure| panic!("{failure}"));
    frames::give_back(frame);
}

fn fetch(tier: &dyn Tier, offset: u64) {
    let mut frame = frames::frame(4, 0xee);
    tier.read(offset, &mut frame).unwrap_or_else(|failure| panic!("{failure}"));
    frames::check_stamp(frame.bytes(), offset, 1);
    frames::give_back(frame);
}

/// Each of `count` donors in turn is behind a path that drips.
fn read_past_a_path_that_drips(count: usize, options: &str) {
    let donors: Vec<Donor> = (0..count).map(|_| donor()).collect();
    let proxies: Vec<Proxy> = donors.iter().map(|donor| Proxy::start(donor.address())).collect();
    let addresses: Vec<String> = proxies.iter().map(|proxy| proxy.address.to_string()).collect();
    let text = format!("donor:{}{options},size=8MiB{}", addresses.join("+"), Protection::Tls.options());
    let mut longest = Duration::ZERO;
    for proxy in &proxies {
        let tier = open(&text.parse::<TierSpec>().unwrap()).unwrap_or_else(|failure| panic!("{failure}"));
        let offsets: Vec<u64> = (0..4).map(|slab| slab * SLAB_BYTES).collect();
        offsets.iter().for_each(|offset| store(&*tier, *offset));
        offsets.iter().for_each(|offset| fetch(&*tier, *offset));
        proxy.drips.store(true, Ordering::SeqCst);
        for offset in &offsets {
            let begun = Instant::now();
            fetch(&*tier, *offset);
            longest = longest.max(begun.elapsed());
        }
        proxy.drips.store(false, Ordering::SeqCst);
    }
    println!("{options}: the longest read took {longest:?}");
    assert!(longest > PAUSE, "nothing has dripped");
    assert!(longest < READ_MAX, "a read took {longest:?}");
}

#[test]
fn a_record_that_drips_from_one_member_of_a_mirror_costs_no_more_than_silence() {
    read_past_a_path_that_drips(2, ",mirror=2");
}

#[test]
fn a_record_that_drips_from_one_member_with_parity_costs_no_more_than_silence() {
    read_past_a_path_that_drips(3, ",parity=2+1");
}
