// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A link between a client and a server of a test: it forwards TCP, and can be cut, can hold what is on its way, and
//! can fail at a chosen transfer.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Bytes that are forwarded at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// How often a forwarding thread checks whether its link has been dropped.
const LOOK: Duration = Duration::from_millis(200);
/// How long after the held bytes the end of a connection is passed on: a server that learns of the end at once stops
/// working on the request that came before it.
const AFTER_HOLD: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    /// Connections are closed, and new ones too.
    Cut,
    /// What arrives is kept and forwarded later.
    Held,
    #[default]
    Open,
}

#[derive(Debug, Default)]
struct State {
    mode: Mode,
    /// Transfers until the link is cut, if it is to be cut.
    countdown: Option<u64>,
    /// Transfers so far.
    transfers: u64,
    /// Every transfer from the server whose number is a multiple of this is lost with its connection.
    loses_answers: Option<u64>,
    answers: u64,
    /// Counts the cuts of all connections.
    epoch: u64,
    is_over: bool,
}

/// A link.
#[derive(Debug)]
pub struct Link {
    address: String,
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl Link {
    /// A link to a server.
    pub fn to(server: &str) -> Link {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let shared: Arc<(Mutex<State>, Condvar)> = Arc::default();
        let (server, mine) = (server.to_owned(), Arc::clone(&shared));
        std::thread::spawn(move || accept(&listener, &server, &mine));
        Link { address, shared }
    }

    /// Where clients connect.
    pub fn address(&self) -> &str {
        &self.address
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.shared));
        self.shared.1.notify_all();
    }

    /// After `transfers` more transfers, in either direction, the next one is lost, and the link is cut.
    pub fn cut_after(&self, transfers: Option<u64>) {
        self.change(|state| state.countdown = transfers);
    }

    /// Loses every answer whose number is a multiple of `every`, and its connection.
    pub fn lose_answers(&self, every: Option<u64>) {
        self.change(|state| state.loses_answers = every);
    }

    /// Ends all connections, and refuses new ones.
    pub fn cut(&self) {
        self.change(|state| (state.mode, state.epoch) = (Mode::Cut, state.epoch + 1));
    }

    /// Keeps what arrives from now on.
    pub fn hold(&self) {
        self.change(|state| state.mode = Mode::Held);
    }

    /// Forwards again, first what was held.
    pub fn open(&self) {
        self.change(|state| (state.mode, state.countdown) = (Mode::Open, None));
    }

    /// Transfers so far, in both directions, with those that were lost or are held.
    pub fn transfers(&self) -> u64 {
        lock(&self.shared).transfers
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.change(|state| state.is_over = true);
        // The accepting thread notices with the next connection.
        let _ = TcpStream::connect(&self.address);
    }
}

fn lock(shared: &Arc<(Mutex<State>, Condvar)>) -> MutexGuard<'_, State> {
    shared.0.lock().expect("no holder of this lock panics")
}

fn accept(listener: &TcpListener, server: &str, shared: &Arc<(Mutex<State>, Condvar)>) {
    for client in listener.incoming() {
        if lock(shared).is_over {
            return;
        }
        let Ok(client) = client else { continue };
        if lock(shared).mode == Mode::Cut {
            continue;
        }
        let Ok(server) = TcpStream::connect(server) else { continue };
        let epoch = lock(shared).epoch;
        for (from, to, is_answer) in [(&client, &server, false), (&server, &client, true)] {
            let (Ok(from), Ok(to), shared) = (from.try_clone(), to.try_clone(), Arc::clone(shared)) else { continue };
            std::thread::spawn(move || forward(from, to, &shared, epoch, is_answer));
        }
    }
}

/// Whether a transfer goes on, and whether it was held. Waits while the link holds.
fn may_pass(shared: &Arc<(Mutex<State>, Condvar)>, epoch: u64, is_answer: bool) -> Option<bool> {
    let mut state = lock(shared);
    state.transfers += 1;
    if is_answer {
        state.answers += 1;
        if state.loses_answers.is_some_and(|every| state.answers.is_multiple_of(every)) {
            return None;
        }
    }
    match &mut state.countdown {
        Some(0) => (state.mode, state.epoch) = (Mode::Cut, state.epoch + 1),
        Some(left) => *left -= 1,
        None => {}
    }
    let was_held = state.mode == Mode::Held;
    while state.mode == Mode::Held && !state.is_over {
        state = shared.1.wait(state).expect("no holder of this lock panics");
    }
    (state.mode == Mode::Open && state.epoch == epoch && !state.is_over).then_some(was_held)
}

fn forward(mut from: TcpStream, mut to: TcpStream, shared: &Arc<(Mutex<State>, Condvar)>, epoch: u64, is_answer: bool) {
    let _ = from.set_read_timeout(Some(LOOK));
    let _ = to.set_nodelay(true);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => {
                let Some(was_held) = may_pass(shared, epoch, is_answer) else { break };
                if to.write_all(&chunk[..count]).is_err() {
                    break;
                }
                if was_held {
                    std::thread::sleep(AFTER_HOLD);
                }
            }
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                let state = lock(shared);
                if state.is_over || state.epoch != epoch {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
