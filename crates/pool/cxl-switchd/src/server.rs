// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Carries messages between managers and the switch, lets time pass, and acts for the hosts.
//!
//! Threads: one reads each connection, one writes to it (`peer.rs`), and one lets time pass. The switch is behind one
//! lock, `state`, and no thread waits for a peer while it holds it. Only the thread that reads a connection waits for
//! that peer to read: the others leave what they have for it in its outbox.
//!
//! Standard error is written to by a thread of its own (`stderr.rs`), because its reader may be slow.
//!
//! What a driven switch orders goes to its driver, on a thread of the driver's own, which then calls
//! [`Server::conclude`] and, whenever it has read its state, [`Server::adopt`].

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aquifer_cxl_switch::{Adopted, Connection, Effect, Ending, HostAction, Injection, Order, Outcome, Switch};
use aquifer_fmapi::{Assembler, Category, Dialect, Endpoint, Header, MessageType, Payload, Reader, Received};
use clap::ValueEnum;

use crate::args::Failure;
use crate::endpoint::{OWN_EID, endpoint};
use crate::listen::spawn;
use crate::peer::{Peer, Stream};
use crate::stderr::Stderr;

/// After this time, a connection without a message gives its place to the next one, if there is no other place.
const SILENT_MAX: Duration = Duration::from_secs(5);
/// The same for one that has sent messages before, such as that of a manager whose machine has failed: TCP does not
/// report that. A manager reads its switches every few seconds.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// Answers that may wait until they are due. Further ones are sent at once.
const LATE_MAX: usize = 256;
/// The longest sleep of the thread that lets time pass.
const TICK: Duration = Duration::from_secs(1);
/// Maximum number of hosts of one device: its heads, or its logical devices.
const HOSTS_MAX: u16 = 32;

/// What simulated hosts do with dynamic capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Hosts {
    /// They take what is offered, and give back what is requested
    Answer,
    /// Nothing, so that offers stay pending
    Wait,
}

/// A message to a connection, to be sent when it is due.
struct Late {
    due_ns: u64,
    connection: u32,
    message: Received,
}

struct State {
    switch: Switch,
    /// What control messages of MCTP ask for.
    endpoint: Endpoint,
    peers: BTreeMap<u32, Arc<Peer>>,
    late: Vec<Late>,
    /// The request whose answer waits for the driver of a driven switch.
    asked: Option<Received>,
    last_id: u32,
    /// Whether the last connection was turned away, which is reported once.
    is_full: bool,
}

impl State {
    /// Makes room for a connection. Fails if there is none, and none of the others has been silent for long.
    fn make_room(&mut self, now: Instant, connections_max: usize) -> Result<(), usize> {
        // Those that have never sent a message go first.
        let can_go = |peer: &Peer| {
            let (silent, has_spoken) = peer.silent_for(now);
            (silent >= if has_spoken { IDLE_MAX } else { SILENT_MAX }).then_some((!has_spoken, silent))
        };
        if self.peers.len() >= connections_max {
            let longest = self.peers.iter().filter_map(|(id, peer)| Some((can_go(peer)?, *id))).max();
            let (_, id) = longest.ok_or(self.peers.len())?;
            self.peers.remove(&id).inspect(|peer| peer.end());
        }
        Ok(())
    }
}

/// The server: carries messages between managers and the switch, and acts for the hosts.
pub struct Server {
    state: Mutex<State>,
    /// Notified when something may be due earlier than before.
    changed: Condvar,
    started: Instant,
    dialect: &'static Dialect,
    connections_max: usize,
    hosts: Hosts,
    /// What is printed to standard error.
    stderr: Stderr,
    /// Whether a trace is printed there.
    is_traced: bool,
    /// Where a driven switch's orders go.
    driver: Option<Sender<(u64, Order)>>,
}

/// Locks. No lock is poisoned: a panic ends the process (`main.rs`).
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Creates a server with no connections.
    pub fn new(
        switch: Switch,
        dialect: &'static Dialect,
        connections: u16,
        hosts: Hosts,
        is_traced: bool,
    ) -> Arc<Self> {
        Arc::new(Self::with(switch, dialect, connections, hosts, is_traced, None))
    }

    /// Creates a server of a driven switch, with no connections. Its orders go to `driver`.
    pub fn driven(
        switch: Switch,
        dialect: &'static Dialect,
        connections: u16,
        is_traced: bool,
        driver: Sender<(u64, Order)>,
    ) -> Arc<Self> {
        Arc::new(Self::with(switch, dialect, connections, Hosts::Wait, is_traced, Some(driver)))
    }

    fn with(
        switch: Switch,
        dialect: &'static Dialect,
        connections: u16,
        hosts: Hosts,
        is_traced: bool,
        driver: Option<Sender<(u64, Order)>>,
    ) -> Self {
        let (peers, late) = (BTreeMap::new(), Vec::new());
        let endpoint = endpoint(switch.config());
        Self {
            state: Mutex::new(State { switch, endpoint, peers, late, asked: None, last_id: 0, is_full: false }),
            changed: Condvar::new(),
            started: Instant::now(),
            dialect,
            connections_max: connections.into(),
            hosts,
            stderr: Stderr::default(),
            is_traced,
            driver,
        }
    }

    /// Says how an order of a driven switch has ended.
    pub fn conclude(&self, id: u64, ending: Ending) {
        self.step(None, |switch, now_ns| switch.conclude(now_ns, id, ending));
    }

    /// Lets a driven switch take over a state.
    pub fn adopt(&self, adopted: &Adopted) {
        self.step(None, |switch, now_ns| switch.adopt(now_ns, adopted));
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Serves a connection on its own threads, if there is room for it. Of several connections in a row that are turned
    /// away, only the first one is a failure, so that nobody fills the log.
    pub fn admit(self: Arc<Self>, stream: Box<dyn Stream>) -> Result<(), Failure> {
        let (peer, outbox) = Peer::new(stream);
        let id = {
            let mut state = lock(&self.state);
            let room = state.make_room(Instant::now(), self.connections_max);
            let was_full = std::mem::replace(&mut state.is_full, room.is_err());
            if let Err(connected) = room {
                peer.end();
                let cause = format!("a connection was turned away: {connected} are there");
                let failure = Failure::new(cause, "disconnect one, or raise --connections");
                return if was_full { Ok(()) } else { Err(failure) };
            }
            state.last_id = state.last_id.wrapping_add(1);
            let id = state.last_id;
            state.peers.insert(id, Arc::clone(&peer));
            id
        };
        let server = Arc::clone(&self);
        let reads = move || {
            server.read(id, &peer);
            peer.end();
            lock(&server.state).peers.remove(&id);
        };
        let started = spawn("writer", move || outbox.write()).and_then(|_| spawn("manager", reads));
        if started.is_err() {
            lock(&self.state).peers.remove(&id).inspect(|peer| peer.end());
        }
        started.map(drop)
    }

    /// Reads packets until the peer is gone.
    fn read(&self, id: u32, peer: &Peer) {
        let mut assembler = Assembler::new(self.dialect);
        while let Some(packet) = peer.read_packet() {
            if let Some(message) = assembler.take(&packet).filter(|message| message.is_owner) {
                peer.note_message();
                self.answer(id, &message);
            }
        }
    }

    fn answer(&self, id: u32, message: &Received) {
        if message.kind == MessageType::Control {
            return self.answer_control(id, message);
        }
        let header = Header::read(&mut Reader::new(&message.bytes, self.dialect));
        // Commands of the generic sets may come as either type; FM API commands come only as type 7.
        let is_fabric_manager = header.is_ok_and(|header| header.opcode.is_fabric_manager());
        if is_fabric_manager && message.kind != MessageType::FabricManager {
            return self.say("an FM API command came as MCTP type 8; send it as type 7");
        }
        let connection = Connection { id, ingress_port_id: 0, dialect: self.dialect };
        self.step(Some((id, message)), |switch, now_ns| switch.receive(now_ns, &connection, &message.bytes));
    }

    /// Answers a message about MCTP itself, on the thread that reads the connection.
    fn answer_control(&self, id: u32, message: &Received) {
        let mut state = lock(&self.state);
        let (answer, peer) = (state.endpoint.answer(&message.bytes), state.peers.get(&id).cloned());
        drop(state);
        if let (Some(bytes), Some(peer)) = (answer, peer) {
            let (to, from) = (message.from, message.to);
            peer.answer(Received { to, from, is_owner: false, bytes, ..message.clone() });
        }
    }

    /// Injects a failure.
    pub fn inject(&self, injection: Injection) -> Result<(), Failure> {
        let mut refused = None;
        self.step(None, |switch, now_ns| {
            switch.inject(now_ns, injection).unwrap_or_else(|refusal| {
                refused = Some(refusal);
                Outcome::default()
            })
        });
        refused.map_or(Ok(()), |refusal| {
            let text = refusal.to_string();
            let (cause, remedy) = text.split_once("; ").unwrap_or((&text, "look at 5101h"));
            Err(Failure::new(cause, remedy))
        })
    }

    /// Takes one step of the switch, and does all that follows from it.
    ///
    /// With a request, the caller is the thread that reads its connection.
    fn step(&self, request: Option<(u32, &Received)>, step: impl FnOnce(&mut Switch, u64) -> Outcome) {
        let mut state = lock(&self.state);
        // Read under the lock: the switch's time would otherwise be ahead of it at times, and the answer would be late.
        let now_ns = self.now_ns();
        let mut outcome = step(&mut state.switch, now_ns);
        self.act_for_hosts(&mut state.switch, now_ns, &mut outcome);
        if let Some(refusal) = &outcome.refusal {
            self.say(&refusal.to_string());
        }
        let mut due = Vec::new();
        for reply in &outcome.replies {
            let asked = if reply.is_of_order { state.asked.as_ref() } else { request.map(|(_, request)| request) };
            let message = self.address(asked, &reply.bytes);
            let late = Late { due_ns: reply.due_ns, connection: reply.connection, message };
            if reply.due_ns > now_ns && state.late.len() < LATE_MAX {
                state.late.push(late);
            } else if let Some(peer) = state.peers.get(&reply.connection) {
                due.push((reply.connection, Arc::clone(peer), late.message));
            }
        }
        // After the replies are addressed: a step may end one order and begin the next one.
        self.hand_over_orders(&mut state, request.map(|(_, request)| request), &outcome);
        drop(state);
        self.changed.notify_one();
        let own = request.map(|(id, _)| id);
        // Those to others first, because its own may have to wait.
        let (own, others): (Vec<_>, Vec<_>) = due.into_iter().partition(|(id, ..)| Some(*id) == own);
        others.into_iter().for_each(|(_, peer, message)| peer.send(message));
        own.into_iter().for_each(|(_, peer, message)| peer.answer(message));
    }

    /// Hands the orders of a step to the driver, and keeps the request whose answer waits for it.
    fn hand_over_orders(&self, state: &mut State, request: Option<&Received>, outcome: &Outcome) {
        let Some(driver) = &self.driver else { return };
        for effect in &outcome.effects {
            let Effect::Ordered { id, order } = effect else { continue };
            if let Order::Allocate { .. } = order {
                state.asked = request.cloned();
            }
            // Without a driver, the order ends by its limit.
            let _ = driver.send((*id, order.clone()));
        }
    }

    /// Addresses a message: an answer goes back the way its request came; a notification is a request of the switch's
    /// own.
    fn address(&self, request: Option<&Received>, bytes: &[u8]) -> Received {
        let header = Header::read(&mut Reader::new(bytes, self.dialect));
        let is_notification = header.is_ok_and(|header| header.category == Category::Request);
        match request {
            Some(request) if !is_notification => Received {
                kind: request.kind,
                to: request.from,
                from: request.to,
                tag: request.tag,
                is_owner: false,
                bytes: bytes.to_vec(),
            },
            _ => Received {
                kind: MessageType::ComponentCommand,
                to: request.map_or(0, |request| request.from),
                from: request.map_or(OWN_EID, |request| request.to),
                tag: 0,
                is_owner: true,
                bytes: bytes.to_vec(),
            },
        }
    }

    /// Carries out the effects: hosts answer, and with `--trace` each effect is printed.
    fn act_for_hosts(&self, switch: &mut Switch, now_ns: u64, outcome: &mut Outcome) {
        let mut at = 0;
        while let Some(effect) = outcome.effects.get(at).cloned() {
            at += 1;
            if self.is_traced {
                self.say(&format!("{effect:?}"));
            }
            if self.hosts == Hosts::Wait {
                continue;
            }
            match &effect {
                // A host that was offered capacity before it was bound answers when it is bound.
                Effect::Bound { .. } | Effect::CapacityOffered { .. } => self.take_offers(switch, now_ns, outcome),
                Effect::CapacityReleaseRequested { device, host_id, extents } => {
                    let ranges = extents.iter().map(|it| it.start..it.start + it.length).collect();
                    self.act(switch, now_ns, outcome, (*device, *host_id), HostAction::ReleaseCapacity { ranges });
                }
                _ => {}
            }
        }
    }

    /// Lets every host that is bound accept all that it is offered. A device has at most 64 offers for each host.
    fn take_offers(&self, switch: &mut Switch, now_ns: u64, outcome: &mut Outcome) {
        for device in 0..switch.config().devices.len() {
            for host_id in 0..HOSTS_MAX {
                while let Some(accepted) = switch.oldest_offer(device, host_id) {
                    let action = HostAction::AnswerOffer { accepted };
                    if !self.act(switch, now_ns, outcome, (device, host_id), action) {
                        break;
                    }
                }
            }
        }
    }

    /// Carries out a host's action, if the host is bound. Returns whether that succeeded.
    fn act(
        &self,
        switch: &mut Switch,
        now_ns: u64,
        outcome: &mut Outcome,
        (device, host_id): (usize, u16),
        action: HostAction,
    ) -> bool {
        let Some((vcs_id, vppb_id)) = switch.vppb_of_host(device, host_id) else { return false };
        let answer = switch.host(now_ns, vcs_id, vppb_id, &action);
        outcome.replies.extend(answer.outcome.replies);
        outcome.effects.extend(answer.outcome.effects);
        answer.result.inspect_err(|failure| self.say(&failure.to_string())).is_ok()
    }

    fn say(&self, what: &str) {
        if self.is_traced {
            self.stderr.say(format!("{:>14} {what}", self.now_ns()));
        }
    }

    /// Has a line written to standard error, after the name of the program, and does not wait for that. Where standard
    /// error is full or closed, the line is lost.
    pub fn report(&self, what: &str) {
        let name = std::env::args_os().next().and_then(|path| Path::new(&path).file_name().map(OsStr::to_owned));
        let name = name.unwrap_or_else(|| "aquifer-cxl-switchd".into());
        self.stderr.say(format!("{}: {what}", name.display()));
    }

    /// Writes what is reported and traced to standard error. Never returns.
    pub fn write_stderr(&self) {
        self.stderr.write();
    }

    /// Ends background operations and sends late answers when they are due. Never returns.
    pub fn let_time_pass(&self) {
        loop {
            let now_ns = self.now_ns();
            let (due, later): (Vec<Late>, Vec<Late>) = {
                let mut state = lock(&self.state);
                std::mem::take(&mut state.late).into_iter().partition(|late| late.due_ns <= now_ns)
            };
            let peers: Vec<(Option<Arc<Peer>>, Received)> = {
                let mut state = lock(&self.state);
                state.late.extend(later);
                due.into_iter().map(|late| (state.peers.get(&late.connection).cloned(), late.message)).collect()
            };
            for (peer, message) in peers {
                peer.inspect(|peer| peer.send(message));
            }
            self.step(None, Switch::advance);
            let state = lock(&self.state);
            let late = state.late.iter().map(|late| late.due_ns);
            let deadline = state.switch.deadline_ns().into_iter().chain(late).min();
            let left = deadline.map_or(TICK, |due_ns| Duration::from_nanos(due_ns.saturating_sub(self.now_ns())));
            drop(self.changed.wait_timeout(state, left.min(TICK)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;

    use aquifer_cxl_switch::{AdoptedDevice, SwitchConfig};
    use aquifer_fmapi::{LdAllocation, Message, PACKET_BYTES, Request, SetLdAllocations, Tunnel};

    use super::*;

    /// Managers whose machines had failed kept their places for ever, until none was left.
    #[test]
    fn who_has_spoken_keeps_its_place_until_it_has_been_idle_for_long() {
        let switch = Switch::new(SwitchConfig::example()).unwrap();
        let server = Server::new(switch, &Dialect::STANDARD, 2, Hosts::Answer, false);
        let mut state = lock(&server.state);
        for id in 0..2 {
            let (peer, _) = Peer::new(Box::new(UnixStream::pair().unwrap().0));
            peer.note_message();
            state.peers.insert(id, peer);
        }
        let now = Instant::now();
        assert_eq!(state.make_room(now + SILENT_MAX, 2), Err(2));
        state.peers[&0].note_message();
        assert_eq!(state.make_room(now + IDLE_MAX + SILENT_MAX, 2), Ok(()));
        assert_eq!(state.peers.keys().copied().collect::<Vec<_>>(), [0], "the one that was idle longer has gone");
    }
    /// A driven switch with one MLD, at port 1, whose orders end by themselves at once.
    fn driven() -> (Arc<Server>, std::sync::mpsc::Receiver<(u64, Order)>) {
        let mut config = SwitchConfig::example();
        config.devices = vec![config.devices[1].clone()];
        config.devices[0].lds_mib = vec![0; 16];
        let (sender, orders) = channel();
        let switch = Switch::driven(config, 1).unwrap();
        let server = Server::driven(switch, &Dialect::STANDARD, 2, false, sender);
        let device = AdoptedDevice { is_present: true, memory_bytes: 1 << 30, lds: Vec::new() };
        server.adopt(&Adopted { devices: vec![device], ..Adopted::default() });
        (server, orders)
    }

    /// Connects a manager, whose requests a test makes, and returns what it is sent.
    fn connect(server: &Server, id: u32) -> UnixStream {
        let (ours, its) = UnixStream::pair().unwrap();
        let (peer, outbox) = Peer::new(Box::new(ours));
        std::thread::spawn(move || outbox.write());
        lock(&server.state).peers.insert(id, peer);
        its
    }

    fn allocation(from: u8, tag: u8) -> Received {
        let allocations = vec![LdAllocation { range_1: 1, range_2: 0 }];
        let set = Request::SetLdAllocations(SetLdAllocations { first_ld_id: 0, allocations });
        let message = Message::request(tag, &set, &Dialect::STANDARD).encode(&Dialect::STANDARD);
        let tunnel = Request::Tunnel(Tunnel { port_or_ld_id: 1, message, ..Default::default() });
        let bytes = Message::request(tag, &tunnel, &Dialect::STANDARD).encode(&Dialect::STANDARD);
        Received { kind: MessageType::FabricManager, to: 8, from, tag, is_owner: true, bytes }
    }

    /// The answer to an order that ended in the step in which the next one began had the next one's addresses.
    #[test]
    fn an_order_that_ends_as_the_next_one_begins_is_answered_to_the_manager_that_asked_for_it() {
        let (server, orders) = driven();
        let (mut first, _second) = (connect(&server, 1), connect(&server, 2));
        server.answer(1, &allocation(20, 3));
        // Time has passed the limit of the first order.
        server.answer(2, &allocation(30, 5));
        assert_eq!(orders.try_iter().map(|(id, _)| id).collect::<Vec<_>>(), [1, 2]);
        let mut packet = [0; PACKET_BYTES];
        first.read_exact(&mut packet).unwrap();
        let answer = Assembler::new(&Dialect::STANDARD).take(&packet).expect("one packet");
        assert_eq!((answer.to, answer.from, answer.tag, answer.is_owner), (20, 8, 3, false));
        let message = Message::decode(&answer.bytes, &Dialect::STANDARD).unwrap();
        assert_eq!(message.header.tag, 3);
        // The second one's answer has its own addresses.
        assert!(lock(&server.state).asked.as_ref().is_some_and(|asked| (asked.from, asked.tag) == (30, 5)));
    }
}
