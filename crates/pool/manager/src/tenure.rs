// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How long this manager may act as the leader: for ever with an embedded store; with etcd, as long as its seat is kept
//! alive.
//!
//! Threads: the keeper renews the seat, and the writer checks the tenure before it sends steps. The check is needed for
//! switches, which have no gate against a deposed manager's commands. What is stored, and what donors and agents obey,
//! is fenced by the term.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aquifer_state_store::Seat;

/// Number of renewals within the time of a lease: two may fail.
const RENEWALS: u32 = 3;

/// Until when this manager leads.
#[derive(Clone, Debug)]
pub(crate) enum Tenure {
    /// Nobody else can lead.
    ForEver,
    /// As long as the seat is held.
    Until(Arc<Mutex<Instant>>),
}

impl Tenure {
    /// Whether this manager leads now.
    pub(crate) fn is_held(&self) -> bool {
        match self {
            Self::ForEver => true,
            Self::Until(until) => Instant::now() < *until.lock().expect("no holder of this lock panics"),
        }
    }
}

/// The thread that keeps the seat alive. Dropping it gives the seat up.
pub(crate) struct Keeper {
    pub(crate) tenure: Tenure,
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(crate) fn start(seat: Seat, lease: Duration) -> Keeper {
        let until = Arc::new(Mutex::new(seat.until()));
        let (stop, stopped) = sync_channel(1);
        let shared = Arc::clone(&until);
        let thread = std::thread::spawn(move || keep(seat, lease, &shared, &stopped));
        Keeper { tenure: Tenure::Until(until), stop: Some(stop), thread: Some(thread) }
    }
}

fn keep(mut seat: Seat, lease: Duration, until: &Mutex<Instant>, stopped: &Receiver<()>) {
    let set = |to: Instant| *until.lock().expect("no holder of this lock panics") = to;
    loop {
        match stopped.recv_timeout(lease / RENEWALS) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                set(Instant::now());
                // If etcd does not answer, the lease ends by itself.
                let _ = seat.resign();
                return;
            }
        }
        match seat.renew() {
            Ok(true) => set(seat.until()),
            Ok(false) => return set(Instant::now()),
            // Until the lease's time is over, another attempt may succeed.
            Err(_) => {}
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenure_ends_by_the_clock() {
        assert!(Tenure::ForEver.is_held());
        let until = Arc::new(Mutex::new(Instant::now() + Duration::from_secs(3600)));
        let tenure = Tenure::Until(Arc::clone(&until));
        assert!(tenure.is_held());
        *until.lock().expect("a lock") = Instant::now();
        assert!(!tenure.is_held());
    }
}
