// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a borrower on this machine can do with the memory that it shares, and cannot do to other borrowers.
//!
//! The bugs it guards against: a borrower reads what another one left, continues to write when its lease has ended,
//! takes more than it was lent, or ends and leaves its memory behind.

mod certificates;
mod kinds;
mod peer;

use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use aquifer_donor::{Address, Donor, EVERY_BYTE, Settings, StartFailure, local_status};
use aquifer_sys::shared_segment::SharedView;
use aquifer_tiers::conformance::frames;
use aquifer_tiers::{Disposition, TierSpec, open};
use aquifer_wire::{BorrowerId, EVERY_LEASE, Figure, HEADER_BYTES, Header, Message, RangeIndex, Refusal, SLAB_BYTES};
use kinds::Kind;
use peer::{TIMEOUT, figure, refused, start, wait_until};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

fn settings(slabs: u64) -> Settings {
    Kind::Shared.settings(slabs * SLAB_BYTES)
}

fn path(donor: &Donor) -> PathBuf {
    match donor.place() {
        Address::Local(path) => path.clone(),
        Address::Tcp(address) => panic!("{address} is not a socket"),
    }
}

/// A borrower that makes any request that a test asks for, including those that Aquifer's own borrowers never make.
struct RawBorrower {
    stream: UnixStream,
    next: u64,
    data: File,
    status_page: SharedView,
}

impl RawBorrower {
    fn new(donor: &Donor, who: u128) -> RawBorrower {
        let mut stream = UnixStream::connect(path(donor)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let hello = Message::Hello { oldest: 1, newest: 1, borrower: BorrowerId(who) };
        stream.write_all(&Header::new(0, hello, &[]).encode()).unwrap();
        let mut bytes = [0; HEADER_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        rustix::net::recvmsg(&stream, &mut [IoSliceMut::new(&mut bytes)], &mut beside, flags).unwrap();
        let mut given: Vec<OwnedFd> = Vec::new();
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                given.extend(descriptors);
            }
        }
        let welcome = Header::decode(&bytes).unwrap().message;
        let Message::Welcome { first_request, .. } = welcome else { panic!("not a welcome: {welcome:?}") };
        let [data, status_page]: [OwnedFd; 2] = given.try_into().expect("the data and the status page");
        RawBorrower {
            stream,
            next: first_request,
            data: data.into(),
            status_page: SharedView::open(status_page.as_fd()).unwrap(),
        }
    }

    fn try_ask(&mut self, message: Message, body: &[u8]) -> Option<Message> {
        let header = Header::new(self.next, message, body).encode();
        self.stream.write_all(&[&header[..], body].concat()).ok()?;
        self.next = self.next.wrapping_add(1);
        let mut bytes = [0; HEADER_BYTES];
        self.stream.read_exact(&mut bytes).ok()?;
        Some(Header::decode(&bytes).unwrap().message)
    }

    fn ask(&mut self, message: Message) -> Message {
        self.try_ask(message, &[]).expect("an answer")
    }

    /// The slab and its token.
    fn grant(&mut self, range: u64) -> (u64, u64) {
        match self.ask(Message::Grant { range: RangeIndex(range) }) {
            Message::Granted { lease, token, .. } => (lease, token),
            other => panic!("not granted: {other:?}"),
        }
    }

    fn write(&self, slab: u64, page: u64, byte: u8) {
        self.data.write_all_at(&[byte; 4096], slab * SLAB_BYTES + page * 4096).unwrap();
    }

    fn read(&self, slab: u64, page: u64) -> Vec<u8> {
        let mut bytes = vec![0xee; 4096];
        self.data.read_exact_at(&mut bytes, slab * SLAB_BYTES + page * 4096).unwrap();
        bytes
    }
}

#[test]
fn nobody_but_its_owner_and_root_may_connect_to_a_donors_socket() {
    let (donor, _) = start(settings(1));
    assert_eq!(std::fs::metadata(path(&donor)).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_slab_that_goes_round_takes_nothing_along() {
    let (donor, _) = start(settings(1));
    let mut one = RawBorrower::new(&donor, 1);
    let (slab, token) = one.grant(4);
    assert_eq!(one.status_page.load(slab as usize), token);
    (0..512).for_each(|page| one.write(slab, page, 0xab));
    let mut other = RawBorrower::new(&donor, 2);
    assert_eq!(other.status_page.load(slab as usize), 0, "another one's token is on another one's status page");
    assert_eq!(other.read(slab, 3), [0; 4096], "and its bytes are in another one's file");
    assert_eq!(other.ask(Message::Grant { range: RangeIndex(0) }), Message::Error { refusal: Refusal::Full });
    assert_eq!(one.ask(Message::Release { lease: EVERY_LEASE, token: 0 }), Message::Released { slabs: 1 });
    wait_until(&donor, |status| status.figure(Figure::WipesTotal) == 1);
    assert_eq!(
        (one.status_page.load(slab as usize), one.read(slab, 3)),
        (0, vec![0; 4096]),
        "what is released is wiped"
    );
    let (again, newer) = other.grant(0);
    assert_eq!((again, newer > token), (slab, true));
    (0..512).for_each(|page| assert_eq!(other.read(slab, page), [0; 4096], "page {page}"));
    // A late borrower writes into its own file, if there is room: the memory lent here belongs to the other one.
    other.write(slab, 0, 5);
    let _ = one.data.write_all_at(&[9; 4096], slab * SLAB_BYTES);
    assert_eq!((other.read(slab, 0), figure(&donor, Figure::WipesTotal)), (vec![5; 4096], 1));
}

#[test]
fn pages_written_without_a_lease_are_taken_back_and_counted() {
    let (donor, lines) = start(Settings { lease: Duration::from_millis(300), ..settings(4) });
    let mut one = RawBorrower::new(&donor, 1);
    let (slab, _) = one.grant(0);
    one.write(slab, 0, 7);
    assert!(matches!(one.ask(Message::Renew), Message::Renewed { leases: 1, .. }));
    assert_eq!(refused(&donor, Refusal::OutsideLease), 0);
    // Beside its slab.
    one.write((slab + 1) % 4, 0, 9);
    assert!(matches!(one.ask(Message::Renew), Message::Renewed { leases: 1, .. }));
    assert_eq!((one.read((slab + 1) % 4, 0), one.read(slab, 0)), (vec![0; 4096], vec![7; 4096]));
    assert_eq!(refused(&donor, Refusal::OutsideLease), 1);
    // In its slab, when the lease is over.
    wait_until(&donor, |status| status.figure(Figure::WipesTotal) == 1);
    assert_eq!(one.status_page.load(slab as usize), 0);
    one.write(slab, 0, 8);
    assert!(matches!(one.ask(Message::Renew), Message::Renewed { leases: 0, .. }));
    assert_eq!(one.read(slab, 0), [0; 4096]);
    assert_eq!(refused(&donor, Refusal::OutsideLease), 2);
    let reported = lines.lock().unwrap().iter().filter(|line| line.contains("outside_lease")).count();
    assert_eq!(reported, 1, "{lines:?}");
}

#[test]
fn the_status_page_is_the_donors_and_bytes_do_not_go_over_the_socket() {
    let (donor, _) = start(settings(4));
    let mut one = RawBorrower::new(&donor, 1);
    let (lease, token) = one.grant(0);
    let read = Message::Read { lease, token, offset: 0, bytes: 4096 };
    assert_eq!(one.ask(read), Message::Error { refusal: Refusal::UnknownKind });
    let mut one = RawBorrower::new(&donor, 1);
    let (lease, token) = one.grant(0);
    let write = Message::Write { lease, token, offset: 0 };
    let answer = one.try_ask(write, &[9; 4096]);
    assert_eq!(answer, Some(Message::Error { refusal: Refusal::UnknownKind }));
    assert!(one.try_ask(Message::Renew, &[]).is_none(), "the connection has ended");
    wait_until(&donor, |status| status.refused(Refusal::UnknownKind) == 2);
    let mut one = RawBorrower::new(&donor, 1);
    assert_eq!(
        one.ask(Message::Grant { range: RangeIndex(u64::MAX) }),
        Message::Error { refusal: Refusal::OutsideLease }
    );
}

#[test]
fn a_borrower_that_has_exited_has_given_everything_back() {
    let (donor, _) = start(settings(4));
    let mut one = RawBorrower::new(&donor, 1);
    let second = RawBorrower::new(&donor, 1);
    let (slab, _) = one.grant(0);
    one.write(slab, 0, 7);
    assert_eq!(second.read(slab, 0), [7; 4096], "one borrower has one file, whatever connection it came by");
    let data = one.data.try_clone().unwrap();
    drop(one);
    wait_until(&donor, |status| status.figure(Figure::Connections) == 1);
    assert_eq!(figure(&donor, Figure::LentBytes), SLAB_BYTES, "it is still there");
    // As a process that is killed. No lease has had the time to expire.
    drop(second);
    wait_until(&donor, |status| status.figure(Figure::LentBytes) == 0 && status.figure(Figure::WipesTotal) == 1);
    let mut bytes = [0xee; 4096];
    data.read_exact_at(&mut bytes, slab * SLAB_BYTES).unwrap();
    assert_eq!((bytes, figure(&donor, Figure::ExpiriesTotal)), ([0; 4096], 0));
}

#[test]
fn a_donor_that_ends_takes_its_memory_back() {
    let (donor, _) = start(settings(4));
    let mut one = RawBorrower::new(&donor, 1);
    let (slab, _) = one.grant(0);
    one.write(slab, 0, 7);
    let socket = path(&donor);
    assert!(std::fs::metadata(&socket).unwrap().file_type().is_socket());
    donor.stop(Duration::ZERO);
    assert_eq!((one.status_page.load(slab as usize), one.read(slab, 0)), (0, vec![0; 4096]));
    assert!(!socket.exists(), "its socket goes with it");
}

#[test]
fn a_socket_that_is_in_use_is_refused_and_one_that_was_left_is_replaced() {
    let (donor, _) = start(settings(4));
    let listen = || Settings { listen: donor.place().clone(), ..settings(4) };
    let failure: StartFailure = Donor::start(listen(), Box::new(|_| ())).err().expect("it is in use");
    assert!(failure.to_string().contains("another donor listens at"), "{failure}");
    assert!(local_status(&path(&donor), TIMEOUT).is_ok(), "and goes on being so");

    let Address::Local(left) = kinds::socket() else { unreachable!("it is a socket's") };
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    let (successor, _) = start(Settings { listen: Address::Local(left.clone()), ..settings(4) });
    assert_eq!(local_status(&left, TIMEOUT).unwrap().figure(Figure::CapacityBytes), 4 * SLAB_BYTES);
    successor.stop(Duration::ZERO);

    std::fs::write(&left, "somebody's").unwrap();
    let settings = Settings { listen: Address::Local(left.clone()), ..settings(4) };
    assert!(Donor::start(settings, Box::new(|_| ())).is_err());
    assert_eq!(std::fs::read_to_string(&left).unwrap(), "somebody's", "a file that is not a socket is left alone");
    std::fs::remove_file(&left).unwrap();
}

#[test]
fn another_user_neither_borrows_nor_lends() {
    if !rustix::process::geteuid().is_root() {
        aquifer_test_support::skip("only root can be another user");
        return;
    }
    let nobody = rustix::process::Uid::from_raw(65534);
    let as_nobody = |act: &(dyn Fn() -> String + Sync)| {
        // The kernel keeps the user IDs of each thread separately.
        let become_nobody = || rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                become_nobody();
                act()
            });
            thread.join().unwrap()
        })
    };
    // In a directory in which every user can create a socket.
    let public = |name: &str| {
        let path = std::env::temp_dir().join(format!("aquifer-test-{}-{name}.sock", std::process::id()));
        Settings { listen: Address::Local(path), ..settings(8) }
    };
    let (donor, lines) = start(public("own"));
    std::fs::set_permissions(path(&donor), PermissionsExt::from_mode(0o666)).unwrap();
    let spec = Kind::Shared.spec(donor.place(), "16MiB");
    let borrow = || match open(&spec.parse::<TierSpec>().unwrap()) {
        Ok(_) => "borrowed".to_owned(),
        Err(failure) => failure.to_string(),
    };
    assert_eq!(borrow(), "borrowed");
    let message = as_nobody(&borrow);
    assert!(message.contains("another user's") && message.contains("run both as the same user"), "{message}");
    assert!(refused(&donor, Refusal::OtherUser) > 0);
    assert!(lines.lock().unwrap().iter().any(|line| line.contains("a process of user 65534")), "{lines:?}");

    // Conversely, root sends no data to a donor of another user that listens at the expected place.
    let theirs = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            start(public("theirs")).0
        });
        thread.join().unwrap()
    });
    let spec: TierSpec = Kind::Shared.spec(theirs.place(), "16MiB").parse().unwrap();
    let message = open(&spec).err().expect("it is another user's").to_string();
    assert!(message.contains("another user's"), "{message}");
    theirs.stop(Duration::ZERO);
    donor.stop(Duration::ZERO);
}

#[test]
fn reclaimed_memory_is_requested_first_and_revoked_at_the_deadline() {
    let (donor, _) = start(settings(6));
    let tier = Kind::Shared.tier(donor.place(), "12MiB");
    let write = |slab: u64, version| {
        let mut frame = frames::frame(16, 0);
        frames::stamp(frame.bytes_mut(), slab * SLAB_BYTES, version);
        let written = tier.write(slab * SLAB_BYTES, &frame).map_err(|failure| failure.disposition());
        frames::give_back(frame);
        written
    };
    let read = |slab: u64, version| {
        let mut frame = frames::frame(16, 0xee);
        let read = tier.read(slab * SLAB_BYTES, &mut frame).map_err(|failure| failure.disposition());
        if read.is_ok() {
            frames::check_stamp(frame.bytes(), slab * SLAB_BYTES, version);
        }
        frames::give_back(frame);
        read
    };
    (0..4).for_each(|slab| write(slab, slab).unwrap());
    // Two slabs are free, so the donor requests one. The borrower is notified with the answer to any request. The donor
    // does not wait for its anchor connection, which the borrower does not read.
    assert_eq!(donor.reclaim(3 * SLAB_BYTES, Duration::from_secs(300)), SLAB_BYTES);
    assert_eq!(tier.leaving(0), None);
    tier.upkeep().unwrap().turn(None);
    assert_eq!(tier.leaving(0).map(|leaving| leaving.offset), Some(3 * SLAB_BYTES));
    write(3, 30).expect("it goes on as before until it is moved away");
    read(3, 30).unwrap();
    tier.discard(3 * SLAB_BYTES, SLAB_BYTES).unwrap();
    assert_eq!(tier.leaving(0), None);
    wait_until(&donor, |status| status.figure(Figure::ReclaimedBytes) == 3 * SLAB_BYTES);
    assert_eq!(write(3, 31), Err(Disposition::Refuse), "nothing new");
    // Slabs that are not returned by the deadline are lost: a read fails, and never returns other bytes.
    donor.reclaim(EVERY_BYTE, Duration::from_millis(300));
    (0..3).for_each(|slab| read(slab, slab).unwrap());
    let all = wait_until(&donor, |status| status.figure(Figure::ReclaimedBytes) == 6 * SLAB_BYTES);
    assert_eq!((all.figure(Figure::RevocationsTotal), all.figure(Figure::LentBytes)), (3, 0));
    (0..3).for_each(|slab| assert_eq!(read(slab, slab), Err(Disposition::Poison)));
}
