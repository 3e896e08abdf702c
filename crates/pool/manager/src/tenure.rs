// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How long this manager may act as the leader: for ever with an embedded store; with etcd, as long as its leadership
//! is kept alive.
//!
//! Threads: the keeper renews the leadership, the writer asks before it sends steps. That is a courtesy to switches,
//! which have no gate against a deposed manager's commands, and to people. What is stored, and what donors and agents
//! obey, is fenced by the term.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aquifer_state_store::Leadership;

/// Number of renewals within the time of a lease: two may fail.
const RENEWALS: u32 = 3;

/// The time until which this manager leads.
#[derive(Clone, Debug)]
pub(crate) enum Tenure {
    /// Nobody else can lead.
    ForEver,
    /// As long as the leadership is held.
    Until(Arc<Mutex<Instant>>),
}

impl Tenure {
    /// Returns whether this manager leads now.
    pub(crate) fn is_held(&self) -> bool {
        match self {
            Self::ForEver => true,
            Self::Until(until) => Instant::now() < *until.lock().expect("no holder of this lock panics"),
        }
    }
}

/// The thread that keeps the leadership alive. Dropping it gives the leadership up.
pub(crate) struct Keeper {
    pub(crate) tenure: Tenure,
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(crate) fn start(leadership: Leadership, lease: Duration) -> Keeper {
        let until = Arc::new(Mutex::new(leadership.until()));
        let (stop, stopped) = sync_channel(1);
        let shared = Arc::clone(&until);
        let thread = std::thread::spawn(move || keep(leadership, lease, &shared, &stopped));
        Keeper { tenure: Tenure::Until(until), stop: Some(stop), thread: Some(thread) }
    }
}

fn keep(mut leadership: Leadership, lease: Duration, until: &Mutex<Instant>, stopped: &Receiver<()>) {
    let set = |to: Instant| *until.lock().expect("no holder of this lock panics") = to;
    loop {
        match stopped.recv_timeout(lease / RENEWALS) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                set(Instant::now());
                // If etcd does not answer, the lease ends by itself.
                let _ = leadership.resign();
                return;
            }
        }
        match leadership.renew() {
            Ok(true) => set(leadership.until()),
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
