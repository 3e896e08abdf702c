// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Asks the command that started this program for texts. The bytes are in `config/src/scrape.rs`.
//!
//! At most one question is pending. Scrapes that arrive meanwhile share the next text, so that a crowd of scrapers does
//! not make the command write more texts than a single one could. A scrape always gets a text that was written after
//! the scrape arrived.

use std::future::Future;
use std::io;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use aquifer_config::scrape::{ASK, HEAD_BYTES, READY, text_bytes};
use hyper::body::Bytes;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::oneshot;

/// A scrape that waits for its text. Its other end is gone if its connection was dropped.
type Waiting = oneshot::Sender<Bytes>;

/// The handle with which connections ask for texts.
#[derive(Clone)]
pub struct Texts(Arc<Mutex<Questions>>);

struct Questions {
    command: OwnedWriteHalf,
    /// The scrapes for which the pending question was sent, if one is pending.
    asked: Vec<Waiting>,
    /// The scrapes that came after it: one for each connection at most, since those of dropped connections are removed.
    next: Vec<Waiting>,
}

impl Questions {
    /// Adds a scrape, and asks unless a question is pending.
    fn add(&mut self, waiting: Waiting) -> io::Result<()> {
        self.next.retain(|waiting| !waiting.is_closed());
        self.next.push(waiting);
        if self.asked.is_empty() { self.ask() } else { Ok(()) }
    }

    /// Gives the text to the scrapes that asked for it, and asks again if others have come meanwhile.
    fn answer(&mut self, text: &Bytes) -> io::Result<()> {
        for waiting in self.asked.drain(..) {
            // Fails where the connection has been dropped.
            let _ = waiting.send(text.clone());
        }
        if self.next.is_empty() { Ok(()) } else { self.ask() }
    }

    /// Sends the question. Never waits: at most one byte is on its way, for which there is always room.
    fn ask(&mut self) -> io::Result<()> {
        self.asked = mem::take(&mut self.next);
        self.command.try_write(&[ASK]).map(drop)
    }
}

impl Texts {
    /// Returns the text for one scrape; `None` if the command has exited.
    pub async fn next(&self) -> Option<Bytes> {
        let (waiting, text) = oneshot::channel();
        self.lock().add(waiting).ok()?;
        text.await.ok()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Questions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notifies the command that this program serves. Returns the handle with which connections ask, and the future that
/// takes the answers; it ends when the command does.
pub async fn connect(command: UnixStream) -> io::Result<(Texts, impl Future<Output = io::Result<()>>)> {
    let (answers, command) = command.into_split();
    // Before this wait, `try_write` does not know that there is room. Afterwards there always is.
    command.writable().await?;
    command.try_write(&[READY])?;
    let texts = Texts(Arc::new(Mutex::new(Questions { command, asked: Vec::new(), next: Vec::new() })));
    Ok((texts.clone(), take(answers, texts)))
}

/// Takes the answers of the command until it ends.
async fn take(mut answers: OwnedReadHalf, texts: Texts) -> io::Result<()> {
    let mut head = [0; HEAD_BYTES];
    loop {
        if answers.read(&mut head[..1]).await? == 0 {
            return Ok(());
        }
        answers.read_exact(&mut head[1..]).await?;
        let len = text_bytes(head).ok_or_else(|| io::Error::other("the command announces a text without bounds"))?;
        let mut text = vec![0; len];
        answers.read_exact(&mut text).await?;
        texts.lock().answer(&text.into())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As long as the command is busy, it writes no text, while any number of clients can connect and disconnect.
    #[test]
    fn scrapes_whose_connections_are_gone_are_forgotten() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let (ours, _command) = UnixStream::pair().unwrap();
            let (texts, _answers) = connect(ours).await.unwrap();
            let scrape = || {
                let (waiting, text) = oneshot::channel();
                texts.lock().add(waiting).unwrap();
                text
            };
            let _first = scrape();
            let kept = scrape();
            (0..1000).for_each(|_| drop(scrape()));
            let next = mem::take(&mut texts.lock().next);
            assert!(next.len() <= 2 && !next[0].is_closed(), "{} wait", next.len());
            drop(kept);
        });
    }
}
