// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A switch with two hosts, and a fabric manager. A script can answer in place of the switch.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aquifer_cxl_peers::{NotDone, Peer, SwitchConfig as Config};
use aquifer_cxl_switch::{Connection, Injection, Outcome, Switch, SwitchConfig};
use aquifer_fabric::{Content, DeviceId, LdId, Step};
use aquifer_fmapi::*;
use aquifer_fmapi_client::{Client, Clock, Limits, Transport, TransportFailure, VirtualClock};

/// The SLD: its place in the configuration, which is its port, too.
pub const SLD: usize = 0;
const DIALECT: &Dialect = &Dialect::STANDARD;

/// What becomes of a command.
pub enum Fate {
    /// The switch carries it out.
    Pass,
    /// This is the answer, and nothing is carried out.
    Answer(ReturnCode, Option<Response>),
}

type Script = Box<dyn FnMut(Opcode) -> Fate + Send>;

struct State {
    switch: Switch,
    script: Option<Script>,
    is_cut: bool,
    answers: VecDeque<Vec<u8>>,
    /// The commands of the fabric manager, the innermost of those in tunnels.
    sent: Vec<Opcode>,
}

struct Wire {
    state: Arc<Mutex<State>>,
    clock: Arc<VirtualClock>,
}

/// Returns the answer to a command, through its tunnels.
fn answer(to: &Message, code: ReturnCode, response: Option<&Response>) -> Message {
    match inside(to) {
        Some(message) => {
            let message = answer(&message, code, response).encode(DIALECT);
            Message::answer(&to.header, ReturnCode::SUCCESS, Some(&Response::Tunnel(Tunnelled { message })), DIALECT)
        }
        None => Message::answer(&to.header, code, response, DIALECT),
    }
}

/// Returns the message in a tunnel.
fn inside(message: &Message) -> Option<Message> {
    match Request::decode(message.header.opcode, &message.payload, DIALECT).ok()? {
        Request::Tunnel(tunnel) => Message::decode(&tunnel.message, DIALECT).ok(),
        _ => None,
    }
}

impl Transport for Wire {
    fn name(&self) -> String {
        "the switch of this test".into()
    }

    fn message_bytes_max(&self) -> usize {
        8 << 10
    }

    fn message_type(&self, opcode: Opcode) -> Option<MessageType> {
        Some(MessageType::of(opcode))
    }

    fn send(&mut self, bytes: &[u8], dialect: &'static Dialect, _: Duration) -> Result<(), TransportFailure> {
        let mut state = self.state.lock().unwrap();
        let request = Message::decode(bytes, dialect).unwrap();
        let mut innermost = request.clone();
        while let Some(message) = inside(&innermost) {
            innermost = message;
        }
        let mut fate = Fate::Pass;
        if state.is_cut {
            return Err(TransportFailure::Closed);
        }
        state.sent.push(innermost.header.opcode);
        if let Some(script) = &mut state.script {
            fate = script(innermost.header.opcode);
        }
        match fate {
            Fate::Pass => {
                let connection = Connection { id: 1, ingress_port_id: 0, dialect };
                let outcome = state.switch.receive(self.clock.now_ns(), &connection, bytes);
                state.take(outcome);
            }
            Fate::Answer(code, response) => {
                let bytes = answer(&request, code, response.as_ref()).encode(DIALECT);
                state.answers.push_back(bytes);
            }
        }
        Ok(())
    }

    fn receive(&mut self, _: &'static Dialect, wait: Duration) -> Result<Vec<u8>, TransportFailure> {
        let answer = self.state.lock().unwrap().answers.pop_front();
        answer.ok_or_else(|| {
            self.clock.sleep(wait);
            TransportFailure::TimedOut
        })
    }
}

impl State {
    fn take(&mut self, outcome: Outcome) {
        self.answers.extend(outcome.replies.into_iter().map(|reply| reply.bytes));
    }
}

/// The whole test site.
pub struct Rig {
    pub peer: Peer,
    clock: Arc<VirtualClock>,
    state: Arc<Mutex<State>>,
}

/// The small example, whose memory keeps its bytes when it is unbound.
pub fn example() -> SwitchConfig {
    SwitchConfig { wipe_on_unbind: false, ..SwitchConfig::example() }
}

pub fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(name: &str) -> T {
    name.parse().expect("a name")
}

pub fn device(index: usize) -> DeviceId {
    id(&format!("s0.{:x}", 1235 + index))
}

impl Rig {
    pub fn new(config: SwitchConfig) -> Rig {
        let clock = Arc::<VirtualClock>::default();
        let state = Arc::new(Mutex::new(State {
            switch: Switch::new(config).unwrap(),
            script: None,
            is_cut: false,
            answers: VecDeque::new(),
            sent: Vec::new(),
        }));
        let peer = Rig::manager("", &clock, &state);
        let mut rig = Rig { peer, clock, state };
        rig.peer.reports();
        rig
    }

    fn manager(more: &str, clock: &Arc<VirtualClock>, state: &Arc<Mutex<State>>) -> Peer {
        let text = format!(r#"{{"name": "s0", "address": "tcp:a", "hosts": {{"h0": [6], "h1": [7]}}{more}}}"#);
        let config: Config = serde_json::from_str(&text).unwrap();
        let (state, own) = (Arc::clone(state), Arc::clone(clock));
        let connect = move || {
            let wire = Wire { state: Arc::clone(&state), clock: Arc::clone(&own) };
            let limits = Limits { busy_retries: 0, ..Limits::default() };
            let mut client = Client::new(Box::new(wire), Arc::<VirtualClock>::clone(&own), limits);
            client.recognise().map_err(|failure| failure.to_string())?;
            Ok(client)
        };
        Peer::new(config, Arc::<VirtualClock>::clone(clock), Box::new(connect))
    }

    /// Restarts the manager with these further settings of the switch.
    pub fn restart(&mut self, more: &str) {
        self.peer = Rig::manager(more, &self.clock, &self.state);
        self.peer.reports();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Answers in place of the switch from now on.
    pub fn script(&mut self, script: impl FnMut(Opcode) -> Fate + Send + 'static) {
        self.state().script = Some(Box::new(script));
    }

    /// Cuts the manager's connection, or lets it connect again.
    pub fn cut(&mut self, is_cut: bool) {
        self.state().is_cut = is_cut;
        self.clock.sleep(Duration::from_secs(10));
    }

    /// Returns what the manager has sent since the last call.
    pub fn sent(&mut self) -> Vec<Opcode> {
        std::mem::take(&mut self.state().sent)
    }

    pub fn inject(&mut self, injection: Injection) {
        let mut state = self.state();
        state.switch.inject(self.clock.now_ns(), injection).unwrap();
        self.clock.sleep(Duration::from_millis(1));
    }

    pub fn send(&mut self, step: &Step) -> Result<(), String> {
        self.peer.send(step).map_err(|not: NotDone| not.to_string())
    }

    /// Reads the switch, and returns what an LD holds, as reported.
    pub fn content(&mut self, index: usize, ld_id: LdId) -> Content {
        let report = self.peer.reports().remove(&device(index)).flatten().expect("the device is reported");
        report.lds[&ld_id].content
    }
}
