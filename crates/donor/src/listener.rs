// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Takes connections in, up to a bound, and gives each a thread of its own.
//!
//! Blocking sockets and a thread each: the kernel does the waiting, and the thread that is woken is the one that
//! answers. There is no queue of requests between the two that a demand read would have to wait in.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use aquifer_sys::wakeup::Wakeup;
use aquifer_wire::{Figure, Message, Refusal};

use crate::connection::{Connection, Outlet};
use crate::entrance::{Entrance, Visitor};
use crate::service::Service;
use crate::settings::{Protection, Settings};

/// Nothing happens when this ends; it only bounds the wait for a connection.
const SLEEP: Duration = Duration::from_secs(3600);
/// After a connection could not be taken in, for want of descriptors say.
const PAUSE: Duration = Duration::from_millis(100);
/// The stack of a connection's thread; bodies are on the heap.
const STACK_BYTES: usize = 256 << 10;
/// One look whether the last connection has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Everything that the donor's threads share.
pub(crate) struct Shared {
    pub(crate) service: Service,
    pub(crate) settings: Settings,
    pub(crate) protection: Protection,
    pub(crate) bell: Wakeup,
    pub(crate) is_over: AtomicBool,
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    outlets: BTreeMap<u64, Arc<Outlet>>,
    next: u64,
}

impl Shared {
    pub(crate) fn new(service: Service, settings: Settings, protection: Protection, bell: Wakeup) -> Shared {
        Shared { service, settings, protection, bell, is_over: AtomicBool::new(false), connections: Mutex::default() }
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self) -> usize {
        self.connections().outlets.len()
    }

    /// Ends every connection, and waits for their threads, at most as long as a frame may take.
    pub(crate) fn end_connections(&self) {
        let deadline = Instant::now() + self.settings.patience.frame;
        while self.count() > 0 && Instant::now() < deadline {
            self.connections().outlets.values().for_each(|outlet| outlet.shut());
            thread::sleep(LOOK_AGAIN);
        }
    }

    fn enter(&self, outlet: &Arc<Outlet>) -> Option<u64> {
        let mut connections = self.connections();
        if connections.outlets.len() >= self.settings.connections_most {
            return None;
        }
        connections.next += 1;
        let number = connections.next;
        connections.outlets.insert(number, Arc::clone(outlet));
        Some(number)
    }

    fn leave(&self, number: u64) {
        self.connections().outlets.remove(&number);
    }
}

/// The accepting thread's life. `entrance` does not block.
pub(crate) fn run(shared: &Arc<Shared>, entrance: &Entrance) {
    while !shared.is_over.load(Ordering::Acquire) {
        match entrance.accept() {
            Ok(visitor) => {
                // A failure is that of one connection; its peer sees it end.
                let _ = take_in(shared, visitor);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                shared.bell.sleep(Some(entrance.descriptor()), SLEEP);
            }
            Err(_) => shared.bell.sleep(None, PAUSE),
        }
    }
}

fn take_in(shared: &Arc<Shared>, visitor: Visitor) -> std::io::Result<()> {
    let patience = shared.settings.patience;
    let (peer, checked) = (visitor.peer(), visitor.check());
    let outlet = Arc::new(Outlet::new(visitor.channel(&shared.protection, patience)?));
    shared.service.tallies.add(Figure::ConnectionsTotal, 1);
    let entered = checked.and_then(|()| shared.enter(&outlet).ok_or(Refusal::TooManyConnections));
    let number = match entered {
        Ok(number) => number,
        Err(refusal) => {
            shared.service.tallies.refuse(peer, refusal);
            // It fits into any socket's buffer, so this does not wait for the peer.
            return outlet.send(0, Message::Error { refusal }, &[], patience.frame);
        }
    };
    let for_thread = Arc::clone(shared);
    let serve = move || {
        let shared = for_thread;
        Connection::new(&shared.service, &outlet, peer, patience).serve(|| shared.count());
        shared.leave(number);
    };
    let started = thread::Builder::new().name("donor-serve".into()).stack_size(STACK_BYTES).spawn(serve);
    if started.is_err() {
        shared.leave(number);
    }
    started.map(|_| ())
}
