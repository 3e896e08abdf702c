// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A client of one peer: carries out one command at a time, with its retries.
//!
//! Threads: the caller's. A client is used by one thread at a time; it keeps no connection of its own alive.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use aquifer_fmapi::{
    Category, Command, Dialect, Disposition, Header, IdentifyAnswer, Identity, Message, Opcode, Payload, Reader,
    ReturnCode, Writer,
};

use crate::clock::Clock;
use crate::failure::{Cause, Effect, Failure};
use crate::limits::Limits;
use crate::trace::{Direction, Trace, Traced};
use crate::transport::Transport;
use crate::tunnel::Hop;

/// The base-2 logarithm of the smallest message limit in use. A smaller value that a peer reports is raised to it,
/// because requests would not fit otherwise.
const MESSAGE_LIMIT_LOG2_MIN: u8 = 8;
/// The base-2 logarithm of the largest message limit: a length field has 21 bits.
const MESSAGE_LIMIT_LOG2_MAX: u8 = 20;

/// A client of one peer; see the crate.
pub struct Client {
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limits: Limits,
    pub(crate) dialect: &'static Dialect,
    /// The longest message that the peer takes.
    pub(crate) message_bytes_max: usize,
    pub(crate) last_tag: u8,
    /// The path to the component on which a background operation of ours may still run. Each component has its own.
    pub(crate) unfinished: Option<Vec<Hop>>,
    /// No command is sent before this time.
    free_at: Duration,
    /// No command is sent after this time.
    pub(crate) end_at: Option<Duration>,
    traces: Vec<Box<dyn Trace>>,
}

impl Client {
    /// Creates a client that speaks the standard dialect, until [`Client::recognise`] or [`Client::speak`] says
    /// otherwise.
    pub fn new(transport: Box<dyn Transport>, clock: Arc<dyn Clock>, limits: Limits) -> Self {
        Self {
            message_bytes_max: transport.message_bytes_max(),
            transport,
            clock,
            limits,
            dialect: &Dialect::STANDARD,
            last_tag: 0,
            unfinished: None,
            free_at: Duration::ZERO,
            end_at: None,
            traces: Vec::new(),
        }
    }

    /// Returns the dialect in use.
    pub fn dialect(&self) -> &'static Dialect {
        self.dialect
    }

    /// Uses this dialect from now on.
    pub fn speak(&mut self, dialect: &'static Dialect) {
        self.dialect = dialect;
    }

    /// Waits at most this long for each answer from now on.
    pub fn wait_for_answers(&mut self, answer: Duration) {
        self.limits.answer = answer;
    }

    /// Sends no command from this time of its clock on, so that a task of many commands has a limit, too.
    pub fn end_by(&mut self, end_at: Duration) {
        self.end_at = Some(end_at);
    }

    /// Returns the time of its clock, from which [`Client::end_by`] counts.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Returns the bounds of its waits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the peer, as it was named.
    pub fn peer(&self) -> String {
        self.transport.name()
    }

    /// Asks the peer who it is, and speaks its dialect from then on. The request is the same in every dialect.
    pub fn recognise(&mut self) -> Result<&'static Dialect, Failure> {
        let mut attempt = 0;
        let raw = loop {
            self.last_tag = self.last_tag.wrapping_add(1);
            let payload = Vec::new();
            let request =
                Message::new(Category::Request, self.last_tag, Opcode::IDENTIFY, ReturnCode::SUCCESS, payload);
            match self.exchange_unknown(&request) {
                Err(failure) if failure.is_lost() && attempt < self.limits.lost_retries => attempt += 1,
                ended => break ended?,
            }
        };
        let (header, payload) = raw.split_at(aquifer_fmapi::HEADER_BYTES);
        let opcode = Opcode(u16::from_le_bytes([header[3], header[4]]));
        self.dialect = Dialect::of(&IdentifyAnswer { opcode, first_byte: header[0], payload });
        let answer = Header::read(&mut Reader::new(header, self.dialect));
        let answer =
            answer.map_err(|failure| self.failure(Opcode::IDENTIFY, Cause::Damaged(failure), Effect::NotCarriedOut))?;
        if answer.return_code == ReturnCode::SUCCESS {
            // Bytes after the fields are ignored here.
            if let Ok(identity) = Reader::new(payload, self.dialect).read::<Identity>() {
                self.note_identity(&identity);
            }
        }
        Ok(self.dialect)
    }

    /// Adopts the message limit that the peer reports.
    fn note_identity(&mut self, identity: &Identity) {
        let log2 = identity.message_limit_log2.clamp(MESSAGE_LIMIT_LOG2_MIN, MESSAGE_LIMIT_LOG2_MAX);
        // A mailbox's limit is on the payload.
        let header =
            if self.transport.message_type(Opcode::IDENTIFY).is_none() { aquifer_fmapi::HEADER_BYTES } else { 0 };
        self.message_bytes_max = ((1 << log2) + header).min(self.transport.message_bytes_max());
    }

    /// Carries out a command at the component at the end of a path; the empty path is the peer itself. Waits for its
    /// background operation, if it starts one.
    pub fn call<C: Command>(&mut self, path: &[Hop], command: &C) -> Result<C::Response, Failure> {
        let payload = self.carry_out(path, C::OPCODE, &self.encode(command))?;
        self.decode(command, &payload)
    }

    /// Works like [`Client::call`], for a command whose response says nothing new. Peers leave it out after a
    /// background operation.
    pub fn run<C: Command>(&mut self, path: &[Hop], command: &C) -> Result<(), Failure> {
        self.carry_out(path, C::OPCODE, &self.encode(command)).map(drop)
    }

    /// Sends a command once, as these bytes, and returns its answer: no retries, no wait for a background operation.
    /// For a suite that sends what is wrong on purpose.
    pub fn probe(&mut self, path: &[Hop], opcode: Opcode, payload: &[u8]) -> Result<Message, Failure> {
        self.check_survives(path, opcode)?;
        self.send_along(path, opcode, payload, effect_of(opcode))
    }

    /// Returns the payload of a command in the dialect of the peer.
    pub fn encode<C: Command>(&self, command: &C) -> Vec<u8> {
        let mut out = Writer::new(self.dialect);
        command.write(&mut out);
        out.bytes
    }

    fn decode<C: Command>(&self, command: &C, payload: &[u8]) -> Result<C::Response, Failure> {
        let mut input = Reader::new(payload, self.dialect);
        let is_padded = self.dialect.switch_identity_is_padded && C::OPCODE == Opcode::IDENTIFY_SWITCH_DEVICE;
        let response = command.read_response(&mut input);
        let response =
            response.and_then(|response| if is_padded { Ok(response) } else { input.finish().map(|()| response) });
        // The command did succeed: only what it reports is lost.
        response.map_err(|failure| self.failure(C::OPCODE, Cause::Damaged(failure), effect_of(C::OPCODE)))
    }

    /// Carries out a command with its retries, and returns the payload of its answer; nothing after a background
    /// operation.
    fn carry_out(&mut self, path: &[Hop], opcode: Opcode, payload: &[u8]) -> Result<Vec<u8>, Failure> {
        self.check_survives(path, opcode)?;
        if may_run_in_background(opcode) {
            self.finish_unfinished(path, opcode)?;
        }
        let effect = effect_of(opcode);
        let (mut busy, mut lost) = (0, 0);
        loop {
            let answer = match self.send_along(path, opcode, payload, effect) {
                // Without its answer, only a command that changes nothing can be sent again.
                Err(failure)
                    if failure.is_lost() && effect == Effect::NotCarriedOut && lost < self.limits.lost_retries =>
                {
                    lost += 1;
                    continue;
                }
                answer => answer?,
            };
            let code = answer.header.return_code;
            match code.disposition() {
                Disposition::Done => return Ok(answer.payload),
                Disposition::Running => return self.finish_background(path, opcode).map(|()| Vec::new()),
                Disposition::Retry if busy < self.limits.busy_retries => {
                    self.clock.sleep(self.limits.busy_pause(busy));
                    busy += 1;
                }
                Disposition::Retry => {
                    let cause = Cause::Busy { code, attempts: busy + 1 };
                    return Err(self.failure(opcode, cause, Effect::NotCarriedOut));
                }
                Disposition::Final => {
                    return Err(self.failure(opcode, Cause::Refused(code), Effect::NotCarriedOut));
                }
            }
        }
    }

    /// Refuses a command that crashes the peer. Behind a tunnel, another component answers it.
    fn check_survives(&self, path: &[Hop], opcode: Opcode) -> Result<(), Failure> {
        if path.is_empty() && self.dialect.never_sent.contains(&opcode) {
            let cause = Cause::NeverSent { dialect: self.dialect.name };
            return Err(self.failure(opcode, cause, Effect::NotCarriedOut));
        }
        Ok(())
    }

    pub(crate) fn failure(&self, opcode: Opcode, cause: Cause, effect: Effect) -> Failure {
        Failure { peer: self.transport.name(), opcode, cause, effect }
    }

    /// Waits until the peer takes the next command.
    pub(crate) fn keep_gap(&mut self) {
        let left = self.free_at.saturating_sub(self.clock.now());
        if !left.is_zero() {
            self.clock.sleep(left);
        }
    }

    /// Notes that an exchange has ended: the gap begins.
    pub(crate) fn ended<T>(&mut self, opcode: Opcode, result: T) -> T {
        let own = if opcode == Opcode::PHYSICAL_PORT_CONTROL { self.dialect.port_control_gap_ms } else { 0 };
        self.free_at = self.clock.now() + self.limits.gap.max(Duration::from_millis(own.into()));
        result
    }

    /// Records every message from now on.
    pub fn add_trace(&mut self, trace: Box<dyn Trace>) {
        self.traces.push(trace);
    }

    /// Ends the traces. Returns the error of the first trace that failed.
    pub fn finish_traces(&mut self) -> io::Result<()> {
        let ended: Vec<io::Result<()>> = self.traces.drain(..).map(|mut trace| trace.finish()).collect();
        ended.into_iter().collect()
    }

    pub(crate) fn traced(&mut self, direction: Direction, opcode: Opcode, bytes: &[u8]) {
        if self.traces.is_empty() {
            return;
        }
        let peer = self.transport.name();
        let (unix, kind) = (self.clock.unix(), self.transport.message_type(opcode));
        let message = Traced { unix, peer: &peer, direction, kind, dialect: self.dialect, bytes };
        self.traces.iter_mut().for_each(|trace| trace.record(&message));
    }
}

/// Returns the effect of a command whose answer was lost: none if it only reads.
fn effect_of(opcode: Opcode) -> Effect {
    if is_read_only(opcode) { Effect::NotCarriedOut } else { Effect::Unknown }
}

/// Returns true for commands that change nothing. A tunnel is judged by the command inside.
fn is_read_only(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::IDENTIFY
            | Opcode::BACKGROUND_STATUS
            | Opcode::GET_MESSAGE_LIMIT
            | Opcode::GET_EVENT_RECORDS
            | Opcode::GET_EVENT_INTERRUPT_POLICY
            | Opcode::GET_MCTP_EVENT_POLICY
            | Opcode::GET_TIMESTAMP
            | Opcode::GET_SUPPORTED_LOGS
            | Opcode::GET_LOG
            | Opcode::GET_LOG_CAPABILITIES
            | Opcode::IDENTIFY_SWITCH_DEVICE
            | Opcode::GET_PHYSICAL_PORT_STATE
            | Opcode::GET_DOMAIN_SV_STATE
            | Opcode::GET_VCS_DOMAIN_SV_STATE
            | Opcode::GET_DOMAIN_SV
            | Opcode::GET_VIRTUAL_SWITCH_INFO
            | Opcode::GET_LD_INFO
            | Opcode::GET_LD_ALLOCATIONS
            | Opcode::GET_QOS_CONTROL
            | Opcode::GET_QOS_STATUS
            | Opcode::GET_QOS_ALLOCATED_BW
            | Opcode::GET_QOS_BW_LIMIT
            | Opcode::GET_MULTI_HEADED_INFO
            | Opcode::GET_HEAD_INFO
            | Opcode::GET_DCD_INFO
            | Opcode::GET_HOST_DC_REGIONS
            | Opcode::GET_DC_EXTENT_LISTS
            | Opcode::DC_LIST_TAGS
    )
}

/// Returns true for commands that some peer carries out in the background.
fn may_run_in_background(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::BIND_VPPB | Opcode::UNBIND_VPPB | Opcode::SET_LD_ALLOCATIONS)
}
