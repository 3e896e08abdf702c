// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Puts a mailbox behind a Unix socket, as MCTP packets, so that a manager in another process reaches it.
//!
//! Threads: one accepts, one serves each connection. The mailbox is behind one lock: it takes a command at a time.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aquifer_fmapi::{Assembler, Category, Dialect, Message, PACKET_BYTES, Received, packets};
use aquifer_fmapi_client::{Mailbox, Transport};

/// How long QEMU may take for a command, on a busy machine.
const ANSWER: Duration = Duration::from_secs(60);
/// The one dialect of the packets: QEMU's, which is written like the standard's.
const DIALECT: &Dialect = &Dialect::QEMU;

/// What answers commands in QEMU's place.
pub trait Supplement: Send {
    /// The answer to a request, or None if QEMU is to answer.
    fn answer(&mut self, request: &Message) -> Option<Message>;
}

/// A mailbox that several threads use.
pub type Shared = Arc<Mutex<Mailbox>>;

/// Lets several threads use a mailbox.
pub fn shared(mailbox: Mailbox) -> Shared {
    Arc::new(Mutex::new(mailbox))
}

/// Serves a mailbox until the test ends.
#[derive(Debug)]
pub struct Relay;

impl Relay {
    /// Listens at a path. Commands that the supplement leaves out go to the mailbox.
    pub fn start(path: &Path, mailbox: Shared, supplement: Option<Box<dyn Supplement>>) {
        let listener = UnixListener::bind(path).expect("a socket");
        let supplement = Arc::new(Mutex::new(supplement));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (mailbox, supplement) = (Arc::clone(&mailbox), Arc::clone(&supplement));
                std::thread::spawn(move || serve(stream, &mailbox, &supplement));
            }
        });
    }
}

fn serve(mut stream: UnixStream, mailbox: &Shared, supplement: &Mutex<Option<Box<dyn Supplement>>>) {
    let (mut assembler, mut sequence, mut packet) = (Assembler::new(DIALECT), 0, [0; PACKET_BYTES]);
    while stream.read_exact(&mut packet).is_ok() {
        let Some(request) = assembler.take(&packet).filter(|message| message.is_owner) else { continue };
        let Some(bytes) = answer(&request.bytes, mailbox, supplement) else { continue };
        let answer = Received { to: request.from, from: request.to, is_owner: false, bytes, ..request };
        if stream.write_all(&packets(&answer, &mut sequence)).is_err() {
            return;
        }
    }
}

/// Nothing, if what arrived is not a request.
fn answer(bytes: &[u8], mailbox: &Shared, supplement: &Mutex<Option<Box<dyn Supplement>>>) -> Option<Vec<u8>> {
    let request = Message::decode(bytes, DIALECT).ok().filter(|it| it.header.category == Category::Request)?;
    let mut supplement = supplement.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(answer) = supplement.as_mut().and_then(|it| it.answer(&request)) {
        return Some(answer.encode(DIALECT));
    }
    let mut mailbox = mailbox.lock().unwrap_or_else(PoisonError::into_inner);
    let carried = mailbox.send(bytes, DIALECT, ANSWER).and_then(|()| mailbox.receive(DIALECT, ANSWER));
    // After a failure, the machine has ended, and the manager hears nothing.
    carried.ok()
}
