// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Admits connections, up to the limits of `admission.rs`, and gives each its own thread.
//!
//! Blocking sockets and one thread for each: the kernel does the waiting, and the thread that is woken is the one that
//! answers. There is no queue of requests in between, in which a demand read would have to wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use aquifer_sys::wakeup::Wakeup;
use aquifer_wire::{BorrowerId, Figure, Message, Refusal};

use crate::admission::{Admission, Admitted, Number};
use crate::connection::{Connection, FrameSender};
use crate::listen_socket::{Accepted, ListenSocket};
use crate::reload::Watch;
use crate::service::Service;
use crate::settings::{Protection, Settings};
use crate::tenants::TenantId;

/// Nothing happens when this ends; it only bounds the wait for a connection.
const SLEEP: Duration = Duration::from_secs(3600);
/// The pause after a connection could not be accepted, for instance because there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);
/// The stack of a connection's thread; bodies are on the heap.
const STACK_BYTES: usize = 256 << 10;
/// The interval between checks whether the last connection has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Everything that the donor's threads share.
pub(crate) struct Shared {
    pub(crate) service: Service,
    pub(crate) settings: Settings,
    /// What protects new connections.
    protection: RwLock<Protection>,
    pub(crate) watch: Watch,
    pub(crate) wakeup: Wakeup,
    pub(crate) is_over: AtomicBool,
    started: Instant,
    admission: Mutex<Admission<Arc<FrameSender>>>,
}

impl Shared {
    pub(crate) fn new(service: Service, settings: Settings, protection: Protection, wakeup: Wakeup) -> Shared {
        let spare_after_ms = milliseconds(settings.timeouts.spare);
        let admission = Mutex::new(Admission::new(settings.connections_max, spare_after_ms));
        let (is_over, started) = (AtomicBool::new(false), Instant::now());
        let (protection, watch) = (RwLock::new(protection), Watch::default());
        Shared { service, settings, protection, watch, wakeup, is_over, started, admission }
    }

    fn admission(&self) -> MutexGuard<'_, Admission<Arc<FrameSender>>> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The donor's clock.
    pub(crate) fn now_ms(&self) -> u64 {
        milliseconds(self.started.elapsed())
    }

    fn protection(&self) -> Protection {
        self.protection.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Protects new connections this way from now on, and ends those whose certificates it does not accept.
    pub(crate) fn protect(&self, protection: Protection) {
        *self.protection.write().unwrap_or_else(PoisonError::into_inner) = protection.clone();
        let Protection::Tls(side) = protection else { return };
        // A connection that is promoted later checks this itself.
        let all: Vec<Arc<FrameSender>> = self.admission().all().cloned().collect();
        for sender in all {
            if let Some(tenant) = sender.is_revoked(&side) {
                self.end_revoked(tenant);
                sender.shut();
            }
        }
    }

    fn end_revoked(&self, tenant: &str) {
        self.service.note(format_args!("event=ended tenant={tenant} reason=certificate_not_good"));
        self.service.counters.say(&format!("ended a connection of {tenant}: its certificate is no longer valid"));
    }

    /// Whether a connection's certificate is no longer valid.
    pub(crate) fn is_revoked(&self, sender: &FrameSender) -> bool {
        let Protection::Tls(side) = self.protection() else { return false };
        let tenant = sender.is_revoked(&side);
        if let Some(tenant) = tenant {
            self.end_revoked(tenant);
        }
        tenant.is_some()
    }

    /// The number of open connections.
    pub(crate) fn count(&self) -> usize {
        self.admission().count()
    }

    /// Ends every connection, and waits for their threads, at most as long as a frame may take.
    pub(crate) fn end_connections(&self) {
        let deadline = Instant::now() + self.settings.timeouts.frame;
        loop {
            let admission = self.admission();
            admission.all().for_each(|sender| sender.shut());
            let threads = admission.threads();
            drop(admission);
            if threads == 0 || Instant::now() > deadline {
                return;
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Ends strangers whose deadline has passed. Returns the longest time until the next call.
    fn end_overdue(&self) -> Duration {
        let now_ms = self.now_ms();
        let mut admission = self.admission();
        let (overdue, next) = (admission.overdue(now_ms), admission.next_deadline_ms());
        drop(admission);
        overdue.iter().for_each(|sender| sender.shut());
        next.map_or(SLEEP, |end| Duration::from_millis(end.saturating_sub(now_ms).max(1)))
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A connection's place among those that the donor keeps, until it is dropped.
pub(crate) struct Permit {
    shared: Arc<Shared>,
    number: Number,
}

impl Permit {
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The stranger has sent something.
    pub(crate) fn spoke(&self) {
        self.shared.admission().spoke(self.number);
    }

    /// The stranger is a borrower now. Another connection may have to make room.
    pub(crate) fn promote(
        &self,
        tenant: TenantId,
        who: BorrowerId,
        tenant_max: usize,
        is_pinned: bool,
    ) -> Result<(), Refusal> {
        let now_ms = self.shared.now_ms();
        let displaced = self.shared.admission().promote(now_ms, self.number, (tenant, who), tenant_max, is_pinned)?;
        if let Some(sender) = displaced {
            sender.shut();
        }
        Ok(())
    }

    /// A borrower has got a queue pair, which ends with its last connection.
    pub(crate) fn paired(&self, who: BorrowerId) {
        self.shared.admission().paired(who);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let now_ms = self.shared.now_ms();
        self.shared.admission().leave(now_ms, self.number);
    }
}

/// The accepting thread's loop. `listening` does not block.
pub(crate) fn run(shared: &Arc<Shared>, listening: &ListenSocket) {
    while !shared.is_over.load(Ordering::Acquire) {
        let sleep = shared.end_overdue();
        match listening.accept() {
            Ok(accepted) => {
                // A failure concerns one connection only; its peer sees it end.
                let _ = take_in(shared, accepted);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                shared.wakeup.sleep(Some(listening.descriptor()), sleep);
            }
            Err(_) => shared.wakeup.sleep(None, PAUSE),
        }
    }
}

fn take_in(shared: &Arc<Shared>, accepted: Accepted) -> std::io::Result<()> {
    let timeouts = shared.settings.timeouts;
    let (peer, checked) = (accepted.peer(), accepted.check());
    let sender = Arc::new(FrameSender::new(accepted.channel(&shared.protection(), timeouts)?));
    shared.service.counters.add(Figure::ConnectionsTotal, 1);
    if let Err(refusal) = checked {
        shared.service.refuse(None, peer, refusal);
        // The frame fits into any socket's buffer, so this does not wait for the peer.
        return sender.send(0, Message::Error { refusal }, &[], timeouts.frame);
    }
    let now_ms = shared.now_ms();
    // Its own thread gives up earlier, and reports why; this deadline is for a connection whose bytes keep coming.
    let deadline_ms = now_ms.saturating_add(milliseconds(timeouts.handshake + timeouts.frame));
    let admitted = shared.admission().enter(now_ms, peer, deadline_ms, Arc::clone(&sender));
    let Some(Admitted { number, displaced }) = admitted else {
        // The connection is closed without an answer, so that a peer which connects this often takes none of the
        // donor's time.
        shared.service.refuse(None, peer, Refusal::TooManyConnections);
        return Ok(());
    };
    if let Some(displaced) = displaced {
        displaced.shut();
    }
    let permit = Permit { shared: Arc::clone(shared), number };
    // If the thread cannot be created, the permit is dropped with the closure.
    let serve = move || Connection::new(&permit, &sender, peer).serve();
    thread::Builder::new().name("donor-serve".into()).stack_size(STACK_BYTES).spawn(serve).map(|_| ())
}
