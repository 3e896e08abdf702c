// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A relay between borrowers and a donor: passes on all that arrives, with the descriptors attached to it; on request
//! it holds that back, drops it, or stops passing anything on.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aquifer_donor::Address;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    Shutdown,
};

use crate::kinds;

/// A borrower's request is complete when nothing more has arrived for this time.
const QUIET: Duration = Duration::from_millis(100);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// What happens next, once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The connection is cut when an answer arrives.
    CutAnswer,
    /// The connection is cut when a request arrives.
    CutRequest,
    /// A borrower's request is kept until it is let go, and then passed on, even if its sender has given up.
    KeepRequest,
    /// All is passed on.
    #[default]
    Pass,
}

/// A relay between borrowers and a donor that can hold back, drop or stop what it passes on.
pub struct Detour {
    pub address: Address,
    orders: Arc<Orders>,
}

#[derive(Default)]
struct Orders {
    next: Mutex<Order>,
    let_go: AtomicBool,
    stands_still: AtomicBool,
}

impl Orders {
    /// Whether this is what the test has ordered. An order is carried out once.
    fn takes(&self, order: Order) -> bool {
        let mut next = self.next.lock().unwrap();
        let is_it = *next == order;
        if is_it {
            *next = Order::Pass;
        }
        is_it
    }

    fn wait_while(&self, what: impl Fn() -> bool) {
        while what() {
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

impl Detour {
    pub fn start(donor: &Address) -> Detour {
        let orders = Arc::new(Orders::default());
        let for_thread = Arc::clone(&orders);
        let address = match donor.clone() {
            Address::Tcp(donor) => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let address = Address::Tcp(listener.local_addr().unwrap());
                let connect = move || TcpStream::connect(donor).map(OwnedFd::from);
                std::thread::spawn(move || {
                    listener.incoming().flatten().for_each(|borrower| join(borrower.into(), connect(), &for_thread));
                });
                address
            }
            Address::Local(donor) => {
                let Address::Local(path) = kinds::socket() else { unreachable!("it is a socket's") };
                let listener = UnixListener::bind(&path).unwrap();
                let connect = move || UnixStream::connect(&donor).map(OwnedFd::from);
                std::thread::spawn(move || {
                    listener.incoming().flatten().for_each(|borrower| join(borrower.into(), connect(), &for_thread));
                });
                Address::Local(path)
            }
        };
        Detour { address, orders }
    }

    pub fn order(&self, order: Order) {
        self.orders.let_go.store(false, Ordering::SeqCst);
        *self.orders.next.lock().unwrap() = order;
    }

    /// Passes on what was kept.
    pub fn let_go(&self) {
        self.orders.let_go.store(true, Ordering::SeqCst);
    }

    /// While this is true, nothing is passed on, on any connection.
    pub fn stand_still(&self, stands_still: bool) {
        self.orders.stands_still.store(stands_still, Ordering::SeqCst);
    }

    /// Whether the order has been carried out.
    pub fn is_done(&self) -> bool {
        *self.orders.next.lock().unwrap() == Order::Pass
    }
}

impl Drop for Detour {
    fn drop(&mut self) {
        if let Address::Local(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn join(borrower: OwnedFd, donor: std::io::Result<OwnedFd>, orders: &Arc<Orders>) {
    // A donor that is gone is seen by the borrower as a connection that ends.
    let Ok(donor) = donor else { return };
    let (borrower, donor) = (Arc::new(borrower), Arc::new(donor));
    for is_request in [true, false] {
        let (borrower, donor, orders) = (Arc::clone(&borrower), Arc::clone(&donor), Arc::clone(orders));
        std::thread::spawn(move || {
            let (from, to) = if is_request { (&borrower, &donor) } else { (&donor, &borrower) };
            pass(from.as_fd(), to.as_fd(), is_request, &orders);
            for end in [&borrower, &donor] {
                let _ = rustix::net::shutdown(end, Shutdown::Both);
            }
        });
    }
}

/// Passes on until one side is gone, or the connection is to be cut.
fn pass(from: BorrowedFd<'_>, to: BorrowedFd<'_>, is_request: bool, orders: &Orders) {
    while let Ok((mut bytes, descriptors)) = receive(from) {
        if bytes.is_empty() {
            return;
        }
        if orders.takes(if is_request { Order::CutRequest } else { Order::CutAnswer }) {
            return;
        }
        if is_request && orders.takes(Order::KeepRequest) {
            while is_readable(from)
                && let Ok((more, _)) = receive(from)
                && !more.is_empty()
            {
                bytes.extend(more);
            }
            orders.wait_while(|| !orders.let_go.load(Ordering::SeqCst));
        }
        orders.wait_while(|| orders.stands_still.load(Ordering::SeqCst));
        if send(to, &bytes, &descriptors).is_err() {
            return;
        }
    }
}

fn is_readable(socket: BorrowedFd<'_>) -> bool {
    let limit = Timespec { tv_sec: 0, tv_nsec: QUIET.as_nanos() as i64 };
    poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], Some(&limit)).is_ok_and(|count| count > 0)
}

fn receive(socket: BorrowedFd<'_>) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
    let mut bytes = vec![0; 64 << 10];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut beside, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = message {
            descriptors.extend(found);
        }
    }
    bytes.truncate(received.bytes);
    Ok((bytes, descriptors))
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[OwnedFd]) -> Result<(), Errno> {
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut sent = 0;
    while sent < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if sent == 0 && !borrowed.is_empty() {
            beside.push(SendAncillaryMessage::ScmRights(&borrowed));
        }
        sent += rustix::net::sendmsg(socket, &[IoSlice::new(&bytes[sent..])], &mut beside, SendFlags::NOSIGNAL)?;
    }
    Ok(())
}
