// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Follows the listing of the host's agent. Reconnects after a lost connection, with growing pauses; until the agent
//! answers, keeps its last listing, marked as unanswered.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use aquifer_agent_wire::{Answer, Decoder, Listing, Request, VERSION, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// The time limit for the agent's first answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// The first pause after a lost connection; each later one is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest such pause, the same as that of programs.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Size of one read.
const READ_BYTES: usize = 16 << 10;

/// What is known of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Its last listing; `None` before the first one.
    pub listing: Option<Listing>,
    /// Whether the agent is connected, so that the listing is current.
    pub is_answered: bool,
}

/// Follows the agent for ever. `log` gets a line when the connection is lost and when it is back.
pub async fn follow(socket: &Path, known: watch::Sender<Known>, log: fn(&str)) {
    let mut pause = PAUSE_FIRST;
    loop {
        let lost = listen(socket, &known, log).await;
        let was_answered = known.send_if_modified(|known| std::mem::take(&mut known.is_answered));
        if was_answered || pause == PAUSE_FIRST {
            log(&format!(
                "the agent at {} does not answer: {lost}; its volumes are unhealthy until it does; start it with \
                 'systemctl start aquifer-agent' on the host",
                socket.display()
            ));
        }
        pause = if was_answered { PAUSE_FIRST } else { pause };
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Receives listings until the connection is lost. Returns the cause.
async fn listen(socket: &Path, known: &watch::Sender<Known>, log: fn(&str)) -> io::Error {
    let mut listener = match Listener::connect(socket).await {
        Ok(listener) => listener,
        Err(error) => return error,
    };
    let mut wait = Some(ANSWER_WAIT);
    loop {
        let next = listener.next();
        let next = match wait.take() {
            Some(limit) => timeout(limit, next).await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())),
            None => next.await,
        };
        match next {
            Ok(listing) => {
                let is_news = known.send_if_modified(|known| {
                    let now = Known { listing: Some(listing), is_answered: true };
                    let is_news = *known != now;
                    *known = now;
                    is_news
                });
                if is_news {
                    log(&format!("the agent at {} has listed its volumes", socket.display()));
                }
            }
            Err(error) => return error,
        }
    }
}

/// A connection that lists volumes.
struct Listener {
    stream: UnixStream,
    decoder: Decoder,
}

impl Listener {
    async fn connect(socket: &Path) -> io::Result<Listener> {
        let mut stream = UnixStream::connect(socket).await?;
        stream.write_all(&encode(&Request::List { version: VERSION }).map_err(io::Error::other)?).await?;
        Ok(Listener { stream, decoder: Decoder::default() })
    }

    async fn next(&mut self) -> io::Result<Listing> {
        loop {
            match self.decoder.take().map_err(io::Error::other)? {
                Some(Answer::Listing(listing)) => return Ok(listing),
                Some(Answer::Denied(denial)) => return Err(io::Error::other(denial.to_string())),
                Some(Answer::View(_)) => return Err(io::Error::other("it has sent an answer that was not requested")),
                None => {}
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.read(&mut bytes).await? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.decoder.push(&bytes[..count]),
            }
        }
    }
}
