// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Donors that hang, over TCP: a program that also has other donors does not hang for long.
//!
//! The donors are threads that store what they are sent and, from some moment on, answer nothing, like a process that
//! was stopped: the kernel still accepts connections and bytes for it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use aquifer_core::units::ByteSize;
use aquifer_wire::{HEADER_BYTES, Header, Message, VERSION_NEWEST};

use super::*;
use crate::spec::{ArraySpec, DonorSecurity, DonorSpec, MemberSpec, Redundancy};

/// 600 ms for answers, 400 ms for each of two that get a second chance (`donor/timeouts.rs`), and what a busy machine
/// adds. Waiting for answers one after the other, or giving all four a second chance, would exceed it.
const STAND_MAX: Duration = Duration::from_millis(1700);

/// Keeps its slabs' bytes by offset: whole tests use few of them.
#[derive(Default)]
struct Donor {
    instance: u64,
    bytes: Mutex<HashMap<u64, [u8; 512]>>,
    is_silent: AtomicBool,
    granted: AtomicU64,
}

impl Donor {
    fn start() -> (Arc<Donor>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Differs from every other donor's.
        let instance = u64::from(address.port());
        let (donor, address) = (Arc::new(Donor { instance, ..Donor::default() }), address.to_string());
        let shared = Arc::clone(&donor);
        std::thread::spawn(move || {
            for borrower in listener.incoming().map_while(Result::ok) {
                let donor = Arc::clone(&shared);
                // Ends with the borrower.
                std::thread::spawn(move || while donor.answer(&borrower).is_ok() {});
            }
        });
        (donor, address)
    }

    fn answer(&self, mut borrower: &TcpStream) -> std::io::Result<()> {
        let mut header = [0; HEADER_BYTES];
        borrower.read_exact(&mut header)?;
        let header = Header::decode(&header).expect("it is ours");
        let mut body = vec![0; header.body_bytes as usize];
        borrower.read_exact(&mut body)?;
        while self.is_silent.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (message, body) = self.carry_out(header.message, body);
        let mut answer = Header::new(header.request, message, &body).encode().to_vec();
        answer.extend(body);
        borrower.write_all(&answer)
    }

    fn carry_out(&self, message: Message, body: Vec<u8>) -> (Message, Vec<u8>) {
        let mut bytes = self.bytes.lock().unwrap();
        let message = match message {
            Message::Hello { .. } => Message::Welcome {
                version: VERSION_NEWEST,
                lease_ms: 60_000,
                instance: self.instance,
                first_request: 1,
                lendable_bytes: 64 * SLAB_BYTES,
            },
            Message::Grant { range } => {
                let token = self.granted.fetch_add(1, Ordering::SeqCst) + 1;
                Message::Granted { lease: range.0, token, bytes: SLAB_BYTES, expires_in_ms: 60_000 }
            }
            Message::Write { offset, .. } => {
                for (at, unit) in (offset..).step_by(512).zip(body.chunks_exact(512)) {
                    bytes.insert(at, unit.try_into().unwrap());
                }
                Message::Written
            }
            Message::Read { offset, bytes: count, .. } => {
                let unit = |at| bytes.get(&at).copied().unwrap_or([0; 512]);
                return (Message::Found, (offset..offset + count).step_by(512).flat_map(unit).collect());
            }
            Message::Renew => Message::Renewed { leases: 1, expires_in_ms: 60_000 },
            Message::Release { .. } => Message::Released { slabs: 1 },
            other => panic!("{other:?} is not asked here"),
        };
        (message, Vec::new())
    }
}

/// Some donors are silent from now on: as many as there are parity shards, those with data first.
fn with_silent_donors(data: usize, parity: usize, act: impl Fn(&Array, &mut dyn TierQueue)) {
    let donors: Vec<_> = (0..data + parity + 1).map(|_| Donor::start()).collect();
    let member = |address: &String| {
        let (address, security) = (address.clone(), DonorSecurity::Plain);
        MemberSpec {
            donor: DonorSpec { address, size: None, security, rdma: None, tree: None, reservation: 0 },
            weight: 1,
        }
    };
    let members = donors.iter().map(|(_, address)| member(address)).collect();
    let spec = ArraySpec { members, redundancy: Redundancy::Parity { data, parity }, size: Some(ByteSize(16 << 20)) };
    let array = Array::open(&spec).unwrap();
    let mut queue = array.open_queue(4).unwrap();
    for version in 0..3 {
        write(&array, 0, version).unwrap();
        read(&array, 0, version).unwrap();
        transfer(&mut *queue, Operation::Write, 16, version).unwrap();
        transfer(&mut *queue, Operation::Read, 16, version).unwrap();
    }
    let place = array.parts.where_is(0);
    let silent: Vec<usize> = place.members().take(parity).collect();
    silent.iter().for_each(|member| donors[*member].0.is_silent.store(true, Ordering::SeqCst));
    act(&array, &mut *queue);
    silent.iter().for_each(|member| donors[*member].0.is_silent.store(false, Ordering::SeqCst));
}

fn timed(what: &str, act: impl FnOnce()) {
    let begun = Instant::now();
    act();
    let stood = begun.elapsed();
    assert!(stood < STAND_MAX, "{what} stood for {stood:?}");
}

#[test]
fn a_read_stands_briefly_for_silent_donors() {
    for (data, parity) in [(4, 1), (4, 2), (4, 4)] {
        with_silent_donors(data, parity, |array, _| {
            // The first requests cost the silent donors' links their connections.
            for turn in 0..12 {
                timed(&format!("{data}+{parity}, read {turn}"), || read(array, 0, 2).unwrap());
            }
        });
    }
}

#[test]
fn a_write_stands_briefly_for_silent_donors() {
    for (data, parity) in [(4, 1), (4, 2), (4, 4)] {
        with_silent_donors(data, parity, |array, _| {
            timed(&format!("{data}+{parity}, write"), || write(array, 0, 9).unwrap());
            timed(&format!("{data}+{parity}, read"), || read(array, 0, 9).unwrap());
        });
    }
}

#[test]
fn the_background_stands_briefly_for_silent_donors() {
    for (data, parity) in [(4, 1), (4, 2), (4, 4)] {
        for operation in [Operation::Write, Operation::Read] {
            with_silent_donors(data, parity, |array, queue| {
                let version = if operation == Operation::Write { 9 } else { 2 };
                timed(&format!("{data}+{parity}, {operation:?}"), || {
                    transfer(queue, operation, 16, version).unwrap();
                });
                timed(&format!("{data}+{parity}, read"), || read(array, 16, version).unwrap());
            });
        }
    }
}
