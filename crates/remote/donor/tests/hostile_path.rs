// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Somebody on the path between a borrower and its donor sends each refusal in plain text: in place of the TLS
//! handshake, in the middle of it, and after it. The borrower concludes only that it cannot reach the donor at the
//! moment: it gives up no lease, and continues when the path is clear.
//!
//! The bug it guards against: a `NoLease` in plain text during a reconnect made a borrower forget a lease, and with it,
//! perhaps, the last copy of its bytes.

mod certificates;
mod peer;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use aquifer_donor::{Donor, Settings, Timeouts};
use aquifer_tiers::conformance::frames;
use aquifer_tiers::{Tier, TierFailure, TierSpec, open};
use aquifer_wire::{Figure, Header, Message, Refusal, SLAB_BYTES};
use certificates::Protection;
use peer::{TIMEOUT, settings, start};

/// When the proxy sends the refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// As soon as somebody connects, before their first byte.
    Before,
    /// In place of the donor's first answer.
    InPlace,
    /// After the first bytes of the donor's answer.
    During,
    /// In place of the donor's second answer, when the handshake is done.
    After,
}

const TIMES: [When; 4] = [When::Before, When::InPlace, When::During, When::After];

/// A proxy that passes everything on, or sends a refusal on each new connection.
struct Proxy {
    address: SocketAddr,
    says: Arc<Mutex<Option<(When, Refusal)>>>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn start(donor: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (says, streams) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(Vec::new())));
        let (for_thread, kept) = (Arc::clone(&says), Arc::clone(&streams));
        thread::spawn(move || {
            for borrower in listener.incoming().flatten() {
                kept.lock().unwrap().push(borrower.try_clone().unwrap());
                let says = *for_thread.lock().unwrap();
                thread::spawn(move || drop(pass(borrower, donor, says)));
            }
        });
        Proxy { address, says, streams }
    }

    /// Sends `what` from now on, or passes everything on; ends the existing connections.
    fn say(&self, what: Option<(When, Refusal)>) {
        *self.says.lock().unwrap() = what;
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pass(borrower: TcpStream, donor: SocketAddr, says: Option<(When, Refusal)>) -> std::io::Result<()> {
    let refusal = |refusal| Header::new(0, Message::Error { refusal }, &[]).encode();
    if let Some((When::Before, what)) = says {
        (&borrower).write_all(&refusal(what))?;
        return linger(&borrower);
    }
    let upstream = TcpStream::connect(donor)?;
    let (from, mut to) = (borrower.try_clone()?, upstream.try_clone()?);
    thread::spawn(move || {
        let _ = std::io::copy(&mut (&from), &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    let mut bytes = [0; 16 << 10];
    let mut answers = 0;
    loop {
        let count = (&upstream).read(&mut bytes)?;
        if count == 0 {
            return borrower.shutdown(Shutdown::Both);
        }
        answers += 1;
        match says {
            Some((When::InPlace, what)) => {
                (&borrower).write_all(&refusal(what))?;
                return linger(&borrower);
            }
            Some((When::During, what)) => {
                (&borrower).write_all(&bytes[..count.min(200)])?;
                (&borrower).write_all(&refusal(what))?;
                return linger(&borrower);
            }
            // The first answer is the donor's part of the handshake; the second one is its greeting.
            Some((When::After, what)) if answers > 1 => {
                (&borrower).write_all(&refusal(what))?;
                return linger(&borrower);
            }
            _ => (&borrower).write_all(&bytes[..count])?,
        }
    }
}

/// Lets the sent bytes arrive before the connection ends.
fn linger(stream: &TcpStream) -> std::io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    while (&mut &*stream).read(&mut [0; 1024])? > 0 {}
    Ok(())
}

fn donor() -> Donor {
    let timeouts = Timeouts { handshake: TIMEOUT, ..Timeouts::default() };
    start(Settings { security: Protection::Tls.security(), timeouts, ..settings(16) }).0
}

fn tier(text: &str) -> Box<dyn Tier> {
    open(&text.parse::<TierSpec>().unwrap()).unwrap_or_else(|failure| panic!("{failure}"))
}

fn store(tier: &dyn Tier, offset: u64, version: u64) -> Result<(), TierFailure> {
    let mut frame = frames::frame(4, 0);
    frames::stamp(frame.bytes_mut(), offset, version);
    let stored = tier.write(offset, &frame);
    frames::give_back(frame);
    stored
}

fn fetch(tier: &dyn Tier, offset: u64, version: u64) -> Result<(), TierFailure> {
    let mut frame = frames::frame(4, 0xee);
    let fetched = tier.read(offset, &mut frame);
    if fetched.is_ok() {
        frames::check_stamp(frame.bytes(), offset, version);
    }
    frames::give_back(frame);
    fetched
}

#[test]
fn nothing_that_is_said_in_plain_text_costs_a_lease() {
    let donor = donor();
    let proxy = Proxy::start(donor.address());
    let tier = tier(&format!("donor:{},size=16MiB{}", proxy.address, Protection::Tls.options()));
    let mut version = 0;
    for slab in 0..4 {
        store(&*tier, slab * SLAB_BYTES, version).unwrap();
    }
    for refusal in Refusal::ALL {
        for when in TIMES {
            proxy.say(Some((when, *refusal)));
            thread::scope(|scope| {
                // A read and a write begin while the path is not clear, and wait until it is.
                let reader = scope.spawn(|| fetch(&*tier, 0, version));
                let writer = scope.spawn(|| store(&*tier, SLAB_BYTES, version + 1));
                thread::sleep(Duration::from_millis(20));
                proxy.say(None);
                for outcome in [reader.join().unwrap(), writer.join().unwrap()] {
                    outcome.unwrap_or_else(|failure| panic!("{refusal} {when:?}: {failure}"));
                }
            });
            version += 1;
            fetch(&*tier, SLAB_BYTES, version).unwrap();
            store(&*tier, 0, version).unwrap();
        }
    }
    fetch(&*tier, 2 * SLAB_BYTES, 0).unwrap();
    let status = donor.status();
    assert_eq!(status.figure(Figure::LentBytes), 4 * SLAB_BYTES, "no lease was dropped");
    assert_eq!(status.figure(Figure::ReleasesTotal), 0);
}

/// A member of a mirror whose path is not clear has not lost anything: its slabs are not given up at once, and it is
/// taken back when the path is clear.
#[test]
fn a_member_is_not_thrown_out_by_what_a_stranger_says() {
    let (one, other) = (donor(), donor());
    let proxies = [Proxy::start(one.address()), Proxy::start(other.address())];
    let options = Protection::Tls.options();
    let text = format!("donor:{}+{},mirror=2,size=8MiB{options}", proxies[0].address, proxies[1].address);
    let tier = tier(&text);
    store(&*tier, 0, 1).unwrap();
    for when in TIMES {
        for proxy in &proxies {
            proxy.say(Some((when, Refusal::NoLease)));
        }
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let begun = Instant::now();
                loop {
                    match fetch(&*tier, 0, 1) {
                        Ok(()) => break,
                        Err(failure) => {
                            assert_ne!(failure.errno(), Some(libc::ENODATA), "{when:?}: the last copy was given up");
                            assert!(begun.elapsed() < TIMEOUT, "{when:?}: {failure}");
                        }
                    }
                }
            });
            thread::sleep(Duration::from_millis(100));
            proxies.iter().for_each(|proxy| proxy.say(None));
            reader.join().unwrap();
        });
    }
    for donor in [&one, &other] {
        assert_eq!(donor.status().figure(Figure::ReleasesTotal), 0);
    }
}
