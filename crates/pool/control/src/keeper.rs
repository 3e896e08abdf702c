// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! An end's side: keeps a channel to each of its managers, and reconnects.
//!
//! Threads: one for each manager. The end's lock is held while it reports or carries out a command, never during a wait
//! for a manager. Next: `stream.rs`.

use std::fmt;
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aquifer_fabric::{Command, Term};
use aquifer_sys::{raw, safe_open};
use aquifer_tls::{Borrower, Credentials, Files};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::end::{Deposed, End, Refused};
use crate::failure::{ChannelFailure, NotAnAddress, NotStarted};
use crate::message::{FRAME_BYTES_MAX, Message, Query, VERSION_NAMES, VERSION_NEWEST, VERSION_OLDEST};
use crate::registration::{Kind, Registration};
use crate::renewal::Renewal;
use crate::reports::Sent;
use crate::stream::Stream;

/// Maximum number of managers of one end: deployments have one, three or five.
const MANAGERS_MAX: usize = 8;
/// How long one address of a manager is tried.
const CONNECT_WAIT: Duration = Duration::from_secs(3);
/// How long handshake and registration take at most.
const REGISTER_WAIT: Duration = Duration::from_secs(10);
/// How long a manager may ask nothing before it counts as gone: three times the time after which it sends a ping.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// How long sending an answer may take.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// The first wait before a new attempt, doubled after each failure.
const BACKOFF_MIN_MS: u64 = 100;
/// The longest wait. A manager that was restarted has all its ends again within this time.
const BACKOFF_MAX_MS: u64 = 5000;

/// How far ahead of this machine's clock a manager's term may be: a hundred years. Terms are milliseconds since 1970,
/// at least those of the election. An end that stored a term near the greatest number would refuse every manager after
/// that. A closer limit would do harm: an end whose clock is behind would refuse all managers.
const TERM_AHEAD_MS_MAX: u64 = 100 * 365 * 24 * 60 * 60 * 1000;
/// 2020-01-01, in milliseconds since 1970. A clock that shows an earlier time has not been set yet.
const CLOCK_MS_MIN: u64 = 1_577_836_800_000;

/// Where a manager listens for ends: `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerAddress {
    host: String,
    port: u16,
}

impl FromStr for ManagerAddress {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<ManagerAddress, NotAnAddress> {
        let not = || NotAnAddress(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(not)?;
        let port = port.parse().map_err(|_| not())?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        match Borrower::name(host) {
            Some(_) => Ok(ManagerAddress { host: host.to_owned(), port }),
            None => Err(not()),
        }
    }
}

impl fmt::Display for ManagerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// How an end reaches its managers.
#[derive(Clone, Debug)]
pub struct KeeperSettings {
    /// The managers. All of them get a channel; the elected one uses it.
    pub managers: Vec<ManagerAddress>,
    /// This end's certificate, and the authority of the managers'; `None` for plain text, to this machine only.
    pub tls: Option<Files>,
    /// What this end says about itself.
    pub registration: Registration,
}

impl KeeperSettings {
    /// The user of this end, if it keeps its files for programs of other users: a host's agent does, and its group may
    /// read its key.
    fn service(&self) -> Option<u32> {
        (self.registration.kind == Kind::Host).then(safe_open::effective_user)
    }
}

/// How a channel stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChannelStatus {
    /// There is no channel, and the end retries.
    #[default]
    Apart,
    /// The manager has registered this end.
    Registered,
}

#[derive(Debug)]
struct Place {
    status: ChannelStatus,
    /// When the status became this one, or the keeper was started.
    since: SystemTime,
    socket: Option<TcpStream>,
}

#[derive(Debug, Default)]
struct State {
    places: Vec<Place>,
    is_over: bool,
}

struct Shared {
    settings: KeeperSettings,
    log: Box<dyn Fn(&str) + Send + Sync>,
    state: Mutex<State>,
    /// Signalled when the keeper ends.
    over: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps an end's channels until it is stopped or dropped.
pub struct Keeper {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

impl Keeper {
    /// Starts. `log` gets a line when a channel is established, and when it is lost or refused for a new reason.
    pub fn start(
        settings: KeeperSettings,
        end: &Arc<Mutex<dyn End>>,
        log: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Result<Keeper, NotStarted> {
        let count = settings.managers.len();
        if !(1..=MANAGERS_MAX).contains(&count) {
            return Err(NotStarted::Managers(count));
        }
        if let Some(files) = &settings.tls {
            // A wrong path is reported at once. Each connection reads the files again, since certificates are renewed.
            files.load_kept(settings.service()).and_then(Credentials::for_end).map_err(NotStarted::Credentials)?;
        }
        let place = |_| Place { status: ChannelStatus::Apart, since: SystemTime::now(), socket: None };
        let state = State { places: (0..count).map(place).collect(), is_over: false };
        let shared = Arc::new(Shared { settings, log, state: Mutex::new(state), over: Condvar::new() });
        let keeper = Keeper { shared, threads: Mutex::default() };
        for number in 0..count {
            let (shared, end) = (Arc::clone(&keeper.shared), Arc::clone(end));
            let thread = thread::Builder::new().name("control-end".into());
            let started = thread.spawn(move || Channel { shared: &shared, end: &end, number }.keep());
            keeper.threads().push(started.map_err(NotStarted::Thread)?);
        }
        Ok(keeper)
    }

    /// Returns how the channel to each manager stands, in the order of the settings.
    pub fn statuses(&self) -> Vec<ChannelStatus> {
        self.shared.state().places.iter().map(|place| place.status).collect()
    }

    /// Returns the same as [`statuses`](Self::statuses), each with the time since which it stands so.
    pub fn channels(&self) -> Vec<(ChannelStatus, SystemTime)> {
        self.shared.state().places.iter().map(|place| (place.status, place.since)).collect()
    }

    /// Ends all connections; they are established again. For tests of what a cut network does.
    pub fn cut(&self) {
        self.shared.state().places.iter().filter_map(|place| place.socket.as_ref()).for_each(|socket| {
            let _ = socket.shutdown(Shutdown::Both);
        });
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the channels, and waits for commands that are being carried out.
    pub fn stop(&self) {
        self.shared.state().is_over = true;
        self.shared.over.notify_all();
        self.cut();
        for thread in std::mem::take(&mut *self.threads()) {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The channel to one manager.
struct Channel<'a> {
    shared: &'a Shared,
    end: &'a Mutex<dyn End>,
    number: usize,
}

impl Channel<'_> {
    fn manager(&self) -> &ManagerAddress {
        &self.shared.settings.managers[self.number]
    }

    /// Connects, answers until the channel is lost, waits, and begins again.
    fn keep(&self) {
        let (mut wait_ms, mut last) = (BACKOFF_MIN_MS, String::new());
        while !self.shared.state().is_over {
            let ended = self.converse(&mut || {
                wait_ms = BACKOFF_MIN_MS;
                last.clear();
                (self.shared.log)(&format!("registered with the fabric manager at {}", self.manager()));
            });
            self.stand(ChannelStatus::Apart, None);
            if self.shared.state().is_over {
                return;
            }
            let Err(failure) = ended;
            let line = failure.to_string();
            // A repeated reason is logged once.
            if line != last {
                (self.shared.log)(&format!("no channel to the fabric manager at {}: {line}", self.manager()));
                last = line;
            }
            self.pause(wait_ms);
            wait_ms = (wait_ms * 2).min(BACKOFF_MAX_MS);
        }
    }

    /// Waits for between half of `wait_ms` and all of it, so that ends that lost a manager together do not come back
    /// together.
    fn pause(&self, wait_ms: u64) {
        let jitter = raw::random().unwrap_or(0) % (wait_ms / 2 + 1);
        let until = Duration::from_millis(wait_ms / 2 + jitter);
        let state = self.shared.state();
        let waited = self.shared.over.wait_timeout_while(state, until, |state| !state.is_over);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Notes how the channel stands. A keeper that has ended meanwhile ends the connection.
    fn stand(&self, status: ChannelStatus, socket: Option<TcpStream>) {
        let mut state = self.shared.state();
        if let (true, Some(socket)) = (state.is_over, &socket) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        let place = &mut state.places[self.number];
        if place.status != status {
            (place.status, place.since) = (status, SystemTime::now());
        }
        if status == ChannelStatus::Apart {
            place.socket = socket;
        }
    }

    fn converse(&self, registered: &mut dyn FnMut()) -> Result<std::convert::Infallible, ChannelFailure> {
        let mut stream = self.connect()?;
        stream.within(REGISTER_WAIT);
        let registration = self.shared.settings.registration.clone();
        let hello = Message::Hello { oldest: VERSION_OLDEST, newest: VERSION_NEWEST, registration };
        if let Err(failure) = stream.send(0, &hello) {
            // A manager that does not trust this end may have said so before it ended the connection.
            return Err(stream.receive(FRAME_BYTES_MAX).err().unwrap_or(failure));
        }
        let version = match stream.receive(FRAME_BYTES_MAX)?.1 {
            Message::Welcome { version } if (VERSION_OLDEST..=VERSION_NEWEST).contains(&version) => version,
            Message::Welcome { version } => return Err(ChannelFailure::Version { chosen: version }),
            Message::Refused(refused) => return Err(ChannelFailure::Refused(Refused::new(refused.why))),
            other => return Err(ChannelFailure::Confused { expected: "welcome", found: other.name() }),
        };
        self.stand(ChannelStatus::Registered, None);
        registered();
        let mut renewal = Renewal::new(self.shared.settings.tls.as_ref(), self.shared.settings.service());
        let mut sent = Sent::default();
        loop {
            stream.within(SILENCE_MAX);
            let (number, request) = stream.receive(FRAME_BYTES_MAX)?;
            let answer = self.answer((number, version), request, &mut renewal, &mut sent)?;
            stream.within(ANSWER_WAIT);
            stream.send(number, &answer)?;
        }
    }

    /// Returns the answer to a request with this number, in this version.
    fn answer(
        &self,
        (number, version): (u32, u16),
        request: Message,
        renewal: &mut Renewal<'_>,
        sent: &mut Sent,
    ) -> Result<Message, ChannelFailure> {
        let end = || self.end.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match request {
            Message::Ping => Message::Pong,
            Message::Query(query) => {
                let mut end = end();
                let prepared = check_term(query.term).and_then(|()| end.prepare(query.term));
                match prepared.map(|()| end.report(&query)) {
                    Ok(Ok(report)) => match self.take_revocations(&mut *end, &query) {
                        Ok(()) if version < VERSION_NAMES => sent.answer(number, &query, report.nameless()),
                        Ok(()) => sent.answer(number, &query, report),
                        Err(refused) => Message::Unable(refused),
                    },
                    Ok(Err(Deposed { seen })) => Message::Deposed(seen),
                    Err(refused) => Message::Unable(refused),
                }
            }
            Message::Commands(commands) => {
                let mut end = end();
                let carry_out = |command: &Command| check_term(command.term).and_then(|()| end.carry_out(command));
                Message::Outcomes(commands.iter().map(carry_out).collect())
            }
            Message::Measure => Message::Measured(end().measure()),
            Message::Renew => renewal.request().map_or_else(Message::Unable, Message::Request),
            Message::Certificate(chain) => match renewal.take(&chain) {
                Ok(()) => {
                    (self.shared.log)("the fabric manager has renewed the certificate");
                    Message::Renewed
                }
                Err(refused) => Message::Unable(refused),
            },
            other => return Err(ChannelFailure::Confused { expected: "query", found: other.name() }),
        })
    }

    /// Takes the list after the report, because the end accepts a list only from a manager whose term it accepts.
    fn take_revocations(&self, end: &mut dyn End, query: &Query) -> Result<(), Refused> {
        let Some(list) = &query.revocations else { return Ok(()) };
        let taken = end.take_revocations(list);
        if let Err(refused) = &taken {
            (self.shared.log)(&format!("the list of revoked certificates cannot be stored: {refused}"));
        }
        taken
    }

    fn connect(&self) -> Result<Stream, ChannelFailure> {
        let ManagerAddress { host, port } = self.manager();
        let tls = match &self.shared.settings.tls {
            None => None,
            Some(files) => {
                let config = files.load_kept(self.shared.settings.service()).and_then(Credentials::for_end);
                let config =
                    config.map_err(|failure| ChannelFailure::Io(std::io::Error::other(failure.to_string())))?;
                Some((config, Borrower::name(host).ok_or(ChannelFailure::NoAddress)?))
            }
        };
        let mut failure = ChannelFailure::NoAddress;
        for address in (host.as_str(), *port).to_socket_addrs()? {
            match self.connect_to(address, tls.as_ref()) {
                Ok(stream) => return Ok(stream),
                Err(why) => failure = why,
            }
        }
        Err(failure)
    }

    fn connect_to(
        &self,
        address: SocketAddr,
        tls: Option<&(Arc<ClientConfig>, ServerName<'static>)>,
    ) -> Result<Stream, ChannelFailure> {
        if tls.is_none() && !address.ip().to_canonical().is_loopback() {
            return Err(ChannelFailure::Plain(address));
        }
        let socket = TcpStream::connect_timeout(&address, CONNECT_WAIT)?;
        self.stand(ChannelStatus::Apart, Some(socket.try_clone()?));
        match tls {
            None => Ok(Stream::plain(socket, REGISTER_WAIT)?),
            Some((config, name)) => Stream::client(socket, config, name.clone(), REGISTER_WAIT),
        }
    }
}

/// Refuses a term that no manager takes, before the end remembers it.
fn check_term(term: Term) -> Result<(), Refused> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(since.as_millis()).unwrap_or(u64::MAX).max(CLOCK_MS_MIN);
    match term.0 > now.saturating_add(TERM_AHEAD_MS_MAX) {
        false => Ok(()),
        true => Err(Refused::new(format_args!(
            "the manager's term {term} is more than a hundred years ahead of this machine's clock; set the clock of the \
             manager, and examine it"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_has_a_host_and_a_port() {
        for text in ["pool.example:7444", "10.0.0.1:7444", "[::1]:7444", "localhost:1"] {
            assert_eq!(text.parse::<ManagerAddress>().expect(text).to_string(), text);
        }
        for text in ["pool.example", "pool.example:x", ":7444", "a b:1", "", "pool.example:70000"] {
            assert!(text.parse::<ManagerAddress>().is_err(), "{text}");
        }
    }
}
