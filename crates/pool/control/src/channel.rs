// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One connection on a manager's side: first who the end is, then one request after the other.
//!
//! Threads: the connection's. It never waits for an end without a limit, and holds no lock while it waits.

use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::{Duration, Instant};

use aquifer_fabric::{Command, Step, Term};
use aquifer_tls::{DonorSide, address_name, tenant_name};

use crate::asking::Line;
use crate::end::Refused;
use crate::failure::ChannelFailure;
use crate::issuing::Issuing;
use crate::message::{
    Directory, FRAME_BYTES_MAX, HELLO_BYTES_MAX, Message, Query, VERSION_CAUSES, VERSION_FAULTS, VERSION_NAMES,
    VERSION_NEWEST, VERSION_OLDEST, encode,
};
use crate::registrar::{Shared, lock};
use crate::registration::{EndId, Kind};
use crate::reports::{Heard, Held};
use crate::strangers::Stranger;
use crate::stream::Stream;

/// How long a connection may take to register.
const STRANGER_WAIT: Duration = Duration::from_secs(5);
/// How long an end is asked nothing before it is sent a ping.
const PING_AFTER: Duration = Duration::from_secs(5);
/// How long an end may take to answer before it counts as gone.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// The shortest time between two directories that are sent to one end, while ends come and go.
const DIRECTORY_PAUSE: Duration = Duration::from_millis(500);
/// The time between two checks whether the certificate of an end is still good.
const CHECK_PAUSE: Duration = Duration::from_secs(10);

/// The shortest time between two questions for the faults of programs. The longest is this and [`PING_AFTER`].
const MEASURE_PAUSE: Duration = Duration::from_secs(5);
/// Longest answer to such a question: all buckets with the greatest counts fit.
const MEASURED_BYTES_MAX: usize = 16 << 10;

/// A request to an end.
pub(crate) enum Request {
    Commands(Vec<Command>),
    Query { term: Term, is_drained: bool },
}

impl Request {
    /// Returns the term of a query.
    const fn term(&self) -> Option<Term> {
        match self {
            Request::Query { term, .. } => Some(*term),
            Request::Commands(_) => None,
        }
    }
}

/// What an end has answered.
pub(crate) enum Answer {
    Deposed(Term),
    Outcomes(Vec<Result<(), Refused>>),
    Reported(Heard),
    /// The request was not sent, since it is too long.
    TooLong(String),
    Unable(Refused),
}

/// A request, and where its answer goes. If there is none, the channel of answers is dropped.
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) id: EndId,
    pub(crate) replies: SyncSender<(EndId, Answer)>,
}

/// Serves a connection until its end.
pub(crate) fn serve(shared: &Shared, stranger: Stranger, socket: TcpStream, peer: IpAddr, connection: u64) {
    let registered = match register(shared, socket, peer, connection) {
        Ok(registered) => registered,
        Err(failure) => return shared.refuse(peer.to_canonical(), &failure.at_manager()),
    };
    drop(stranger);
    let Some((id, mut channel, jobs)) = registered else { return };
    // Whatever ended it, the next round reports that this end has no channel, which is an event.
    let _ = channel.work(&jobs);
    shared.part(&id, connection);
}

type Registered<'a> = (EndId, Channel<'a>, Receiver<Job>);

/// Identifies the peer and registers it. Returns `None` if the peer was refused, and has been sent the reason.
fn register<'a>(
    shared: &'a Shared,
    socket: TcpStream,
    peer: IpAddr,
    connection: u64,
) -> Result<Option<Registered<'a>>, ChannelFailure> {
    socket.set_nonblocking(false)?;
    let own = socket.try_clone()?;
    let mut stream = match shared.side() {
        None => Stream::plain(socket, STRANGER_WAIT)?,
        Some(side) => Stream::server(socket, side.config(), STRANGER_WAIT)?,
    };
    let identity = match stream.certificates().first() {
        None => Some(address_name(peer)),
        Some(certificate) => tenant_name(certificate),
    };
    let (number, hello) = stream.receive(HELLO_BYTES_MAX)?;
    let Message::Hello { oldest, newest, mut registration } = hello else {
        return Err(ChannelFailure::Confused { expected: "hello", found: hello.name() });
    };
    registration.complete(peer);
    let chosen = newest.min(VERSION_NEWEST);
    let outcome = match identity {
        _ if chosen < oldest.max(VERSION_OLDEST) => {
            Err(format!("this manager speaks versions {VERSION_OLDEST} to {VERSION_NEWEST}; upgrade the older end"))
        }
        None => Err("the certificate has no name; give it a subject alternative name, or a common name".to_owned()),
        Some(identity) => {
            // The lock's guard must not live until the line below is written.
            let outcome = shared.roster().register(&identity, registration);
            outcome.map_err(|why| why.to_string())
        }
    };
    match outcome {
        Err(why) => {
            let refused = Refused::new(why);
            shared.refuse(peer.to_canonical(), &format!("not registered: {refused}"));
            stream.send(number, &Message::Refused(refused))?;
            Ok(None)
        }
        Ok(id) => {
            stream.send(number, &Message::Welcome { version: chosen })?;
            shared.refusals.forget(peer.to_canonical());
            let line = Arc::new(Line::default());
            let jobs = shared.connect(&id, connection, own, Arc::clone(&line));
            let channel = Channel {
                shared,
                id: id.clone(),
                stream,
                version: chosen,
                number: 0,
                line,
                told: None,
                told_at: None,
                checked_at: Instant::now(),
                checked_by: shared.side(),
                measured_at: Instant::now(),
                issuing: Issuing::new(shared.issuer.clone(), chosen),
                held: Held::new(chosen),
            };
            Ok(Some((id, channel, jobs)))
        }
    }
}

struct Channel<'a> {
    shared: &'a Shared,
    id: EndId,
    stream: Stream,
    /// The version that both speak.
    version: u16,
    /// The last request's number.
    number: u32,
    line: Arc<Line>,
    /// The changes that led to the directory that the end has.
    told: Option<u64>,
    told_at: Option<Instant>,
    checked_at: Instant,
    /// The authority and the revocation list against which the certificate was last checked.
    checked_by: Option<Arc<DonorSide>>,
    /// When the end was last asked for faults, or has registered.
    measured_at: Instant,
    issuing: Issuing,
    held: Held,
}

impl Channel<'_> {
    /// Carries out jobs until the end or the registrar is gone.
    fn work(&mut self, jobs: &Receiver<Job>) -> Result<(), ChannelFailure> {
        loop {
            let job = match jobs.recv_timeout(PING_AFTER) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            if self.shared.is_over() || !self.is_good() {
                return Ok(());
            }
            let Some(Job { request, id, replies }) = job else {
                match self.exchange(&Message::Ping)? {
                    Some(Message::Pong) => {}
                    other => return Err(confused("pong", other.as_ref())),
                }
                self.renew()?;
                self.measure()?;
                continue;
            };
            let (begun, term, orders) = (Instant::now(), request.term(), self.line.orders());
            let answer = match request {
                Request::Query { term, is_drained } => self.query(term, is_drained)?,
                Request::Commands(commands) => self.command(commands)?,
            };
            self.line.answered_after(begun.elapsed());
            // Release pairs with the AcqRel in `asking.rs`. Before the answer, whose receiver may send the next job.
            self.line.is_busy.store(false, Ordering::Release);
            // If it is late, nobody waits for it any more.
            let sent = replies.try_send((id, answer));
            if let (Some(term), Err(TrySendError::Disconnected((_, late)) | TrySendError::Full((_, late)))) =
                (term, sent)
            {
                self.line.keep(term, orders, late);
            }
            self.renew()?;
            self.measure()?;
        }
    }

    /// Returns whether the end's certificate is still accepted, by the newest files.
    fn is_good(&mut self) -> bool {
        let side = self.shared.side();
        let is_same = match (&side, &self.checked_by) {
            (Some(now), Some(then)) => Arc::ptr_eq(now, then),
            (now, then) => now.is_none() && then.is_none(),
        };
        if is_same && self.checked_at.elapsed() < CHECK_PAUSE {
            return true;
        }
        self.checked_at = Instant::now();
        self.checked_by.clone_from(&side);
        side.is_none_or(|side| side.check(self.stream.certificates()).is_ok())
    }

    /// Carries out the next step of renewing the end's certificate, if one is due.
    fn renew(&mut self) -> Result<(), ChannelFailure> {
        let certificate = self.stream.certificates().first().map(|certificate| certificate.to_vec());
        let Some(request) = self.issuing.due(certificate.as_deref()) else { return Ok(()) };
        let Some(answer) = self.exchange(&request)? else { return Ok(()) };
        match self.issuing.answered(answer, &certificate.unwrap_or_default()) {
            Ok(None) => Ok(()),
            Ok(Some(refused)) => {
                self.shared.say(&format!("a certificate is not renewed: {refused}"));
                Ok(())
            }
            Err(other) => Err(confused("request", Some(&other))),
        }
    }

    /// Asks an agent for the faults of its host's programs, if that is due.
    fn measure(&mut self) -> Result<(), ChannelFailure> {
        let is_asked = self.id.kind() == Kind::Host && self.version >= VERSION_FAULTS;
        if !is_asked || self.measured_at.elapsed() < MEASURE_PAUSE {
            return Ok(());
        }
        self.measured_at = Instant::now();
        match self.exchange_sized(&Message::Measure, MEASURED_BYTES_MAX)? {
            Some((Message::Measured(faults), _)) => {
                lock(&self.shared.measurements).take(&self.id, faults, Instant::now());
                Ok(())
            }
            other => Err(confused("measured", other.as_ref().map(|(answer, _)| answer))),
        }
    }

    fn query(&mut self, term: Term, is_drained: bool) -> Result<Answer, ChannelFailure> {
        let (directory, revocations, known) = (self.news(), self.issuing.news(), self.held.known());
        let query = Query { term, is_drained, directory, revocations, known };
        let Some((answer, bytes)) = self.exchange_sized(&Message::Query(query), FRAME_BYTES_MAX)? else {
            return Err(confused("reported", None));
        };
        match self.held.take(known.is_some(), self.number, answer, bytes) {
            Ok(heard) => Ok(Answer::Reported(heard)),
            Err(answer) => self.no_report(term, answer),
        }
    }

    /// Returns what an answer without a report means.
    fn no_report(&mut self, term: Term, answer: Message) -> Result<Answer, ChannelFailure> {
        match answer {
            Message::Deposed(seen) if seen > term => {
                // It may not have learned the directory.
                self.told = None;
                self.issuing.forget();
                Ok(Answer::Deposed(seen))
            }
            Message::Unable(refused) => {
                self.told = None;
                self.issuing.forget();
                Ok(Answer::Unable(Refused::new(refused.why)))
            }
            other => Err(confused("reported", Some(&other))),
        }
    }

    /// Returns the directory, if the end does not have it.
    fn news(&mut self) -> Option<Directory> {
        if self.told_at.is_some_and(|at| at.elapsed() < DIRECTORY_PAUSE) {
            return None;
        }
        let roster = self.shared.roster();
        let changes = Some(roster.changes_for(self.id.kind()));
        if self.told == changes {
            return None;
        }
        let directory = roster.directory_for(self.id.kind());
        drop(roster);
        (self.told, self.told_at) = (changes, Some(Instant::now()));
        Some(directory)
    }

    fn command(&mut self, mut commands: Vec<Command>) -> Result<Answer, ChannelFailure> {
        if self.version < VERSION_CAUSES {
            commands.iter_mut().for_each(|command| command.cause = None);
        }
        if self.version < VERSION_NAMES {
            commands.iter_mut().for_each(|command| {
                if let Step::Present { name, .. } = &mut command.step {
                    *name = None;
                }
            });
        }
        let count = commands.len();
        match self.exchange(&Message::Commands(commands))? {
            Some(Message::Outcomes(outcomes)) if outcomes.len() == count => Ok(Answer::Outcomes(outcomes)),
            None => Ok(Answer::TooLong(format!(
                "the commands have more than {FRAME_BYTES_MAX} bytes; spread the volume over fewer members"
            ))),
            other => Err(confused("outcomes", other.as_ref())),
        }
    }

    /// Sends a request and waits for its answer. Returns `None` if the request is too long, and was not sent.
    fn exchange(&mut self, request: &Message) -> Result<Option<Message>, ChannelFailure> {
        Ok(self.exchange_sized(request, FRAME_BYTES_MAX)?.map(|(answer, _)| answer))
    }

    /// Works like `exchange`, for an answer of at most `max` bytes, and also returns how many it has.
    fn exchange_sized(&mut self, request: &Message, max: usize) -> Result<Option<(Message, usize)>, ChannelFailure> {
        self.number = self.number.wrapping_add(1);
        let Ok(frame) = encode(self.number, request) else { return Ok(None) };
        self.stream.within(ANSWER_WAIT);
        self.stream.send_bytes(&frame)?;
        let (number, answer, bytes) = self.stream.receive_sized(max)?;
        match number == self.number {
            true => Ok(Some((answer, bytes))),
            false => Err(ChannelFailure::Confused { expected: "the answer's number", found: "another" }),
        }
    }
}

fn confused(expected: &'static str, found: Option<&Message>) -> ChannelFailure {
    ChannelFailure::Confused { expected, found: found.map_or("nothing", Message::name) }
}
