// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A switch with two hosts, a fabric manager, and a rival: another manager. A script can answer in place of the switch.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aquifer_cxl_peers::{NotDone, Peer, SwitchConfig as Config};
use aquifer_cxl_switch::{Connection, DeviceConfig, DeviceKind, HostAction, Injection, Outcome, Switch, SwitchConfig};
use aquifer_fabric::{Bytes, Content, DeviceId, HostId, LdId, MemberId, Step, VolumeId};
use aquifer_fmapi::*;
use aquifer_fmapi_client::{Client, Clock, Hop, Limits, Transport, TransportFailure, VirtualClock};

/// The SLD, and the device with dynamic capacity: their places in the configuration, which are their ports, too.
pub const SLD: usize = 0;
pub const DCD: usize = 2;
pub const PATH: [Hop; 1] = [Hop::Port(DCD as u8)];
/// Bytes that a host must not find, and what it must find.
pub const STAMP: [u8; 16] = [0xee; 16];
pub const ZEROS: [u8; 16] = [0; 16];
pub const VOLUME: VolumeId = VolumeId(7);
const DIALECT: &Dialect = &Dialect::STANDARD;

/// What becomes of a command.
pub enum Fate {
    /// The switch carries it out.
    Pass,
    /// This is the answer, and nothing is carried out.
    Answer(ReturnCode, Option<Response>),
    /// It is lost on its way.
    Lost,
}

type Script = Box<dyn FnMut(Opcode) -> Fate + Send>;

struct State {
    switch: Switch,
    script: Option<Script>,
    is_cut: bool,
    /// `true` while hosts leave offers unanswered.
    hosts_wait: bool,
    answers: VecDeque<Vec<u8>>,
    /// The commands of the fabric manager, the innermost of those in tunnels.
    sent: Vec<Opcode>,
}

struct Wire {
    state: Arc<Mutex<State>>,
    clock: Arc<VirtualClock>,
    is_rivals: bool,
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
        if !self.is_rivals {
            if state.is_cut {
                return Err(TransportFailure::Closed);
            }
            state.sent.push(innermost.header.opcode);
            if let Some(script) = &mut state.script {
                fate = script(innermost.header.opcode);
            }
        }
        match fate {
            Fate::Pass => {
                let connection = Connection { id: 1, ingress_port_id: 0, dialect };
                let outcome = state.switch.receive(self.clock.now_ns(), &connection, bytes);
                state.take(self.clock.now_ns(), outcome);
            }
            Fate::Answer(code, response) => {
                let bytes = answer(&request, code, response.as_ref()).encode(DIALECT);
                state.answers.push_back(bytes);
            }
            Fate::Lost => {}
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
    fn take(&mut self, now_ns: u64, outcome: Outcome) {
        self.answers.extend(outcome.replies.into_iter().map(|reply| reply.bytes));
        if !self.hosts_wait {
            self.accept_all(now_ns);
        }
    }

    /// Hosts accept what they are offered.
    fn accept_all(&mut self, now_ns: u64) {
        for device in 0..self.switch.config().devices.len() {
            for host_id in 0..4 {
                while let (Some(accepted), Some((vcs_id, vppb_id))) =
                    (self.switch.oldest_offer(device, host_id), self.switch.vppb_of_host(device, host_id))
                {
                    let action = HostAction::AnswerOffer { accepted };
                    let answer = self.switch.host(now_ns, vcs_id, vppb_id, &action);
                    assert_eq!(answer.result, Ok(Vec::new()), "an offer");
                }
            }
        }
    }
}

/// The whole test site.
pub struct Rig {
    pub peer: Peer,
    pub rival: Client,
    clock: Arc<VirtualClock>,
    state: Arc<Mutex<State>>,
}

/// The small example, whose memory keeps its bytes when it is unbound.
pub fn example() -> SwitchConfig {
    SwitchConfig { wipe_on_unbind: false, ..SwitchConfig::example() }
}

/// The small example with an MLD of two LDs in place of the device with dynamic capacity, which has some, too.
pub fn example_with_mld() -> SwitchConfig {
    let mut config = example();
    let dcd = &mut config.devices[DCD];
    *dcd = DeviceConfig { kind: DeviceKind::Mld, memory_mib: 512, lds_mib: vec![256; 2], ..dcd.clone() };
    config
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
            hosts_wait: false,
            answers: VecDeque::new(),
            sent: Vec::new(),
        }));
        let wire = Wire { state: Arc::clone(&state), clock: Arc::clone(&clock), is_rivals: true };
        let rival = Client::new(Box::new(wire), Arc::<VirtualClock>::clone(&clock), Limits::default());
        let peer = Rig::manager("", &clock, &state);
        let mut rig = Rig { peer, rival, clock, state };
        rig.peer.reports();
        rig
    }

    fn manager(more: &str, clock: &Arc<VirtualClock>, state: &Arc<Mutex<State>>) -> Peer {
        let text = format!(r#"{{"name": "s0", "address": "tcp:a", "hosts": {{"h0": [6], "h1": [7]}}{more}}}"#);
        let config: Config = serde_json::from_str(&text).unwrap();
        let (state, own) = (Arc::clone(state), Arc::clone(clock));
        let connect = move || {
            let wire = Wire { state: Arc::clone(&state), clock: Arc::clone(&own), is_rivals: false };
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

    /// Lets the switch answer everything again.
    pub fn end_script(&mut self) {
        self.state().script = None;
    }

    /// Cuts the manager's connection, or lets it connect again.
    pub fn cut(&mut self, is_cut: bool) {
        self.state().is_cut = is_cut;
        self.clock.sleep(Duration::from_secs(10));
    }

    /// Lets hosts leave offers unanswered from now on.
    pub fn hosts_wait(&mut self) {
        self.state().hosts_wait = true;
    }

    /// Lets hosts accept all that they were offered, and from now on at once.
    pub fn hosts_accept(&mut self) {
        let mut state = self.state();
        state.hosts_wait = false;
        state.accept_all(self.clock.now_ns());
    }

    /// Lets time pass.
    pub fn wait(&mut self, time: Duration) {
        self.clock.sleep(time);
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

    /// Adds capacity to a host, which accepts it.
    pub fn add(&mut self, host: &str, member: u64, mib: u64) -> Result<(), String> {
        let (device, host, member, bytes) = (device(DCD), id::<HostId>(host), MemberId(member), Bytes(mib << 20));
        self.send(&Step::AddDynamicCapacity { device, host, volume: VOLUME, member, bytes })
    }

    /// Takes a host's capacity back, which the host gives.
    pub fn release(&mut self, host: &str, member: u64) {
        let ranges = self.ranges(aquifer_cxl_peers::tag_of(VOLUME, MemberId(member)));
        self.ask_back(host, member).unwrap();
        self.give_back(ranges);
        self.peer.reports();
    }

    /// Returns the blocks with a tag, and the device's number for their host.
    pub fn ranges(&mut self, tag: [u8; 16]) -> (u16, Vec<std::ops::Range<u64>>) {
        for host_id in 0..2 {
            let Ok(list) = self.rival.dc_extents(&PATH, host_id) else { continue };
            let of_tag = list.extents.iter().filter(|extent| extent.tag == tag);
            let ranges: Vec<_> = of_tag.map(|extent| extent.start..extent.start + extent.length).collect();
            if !ranges.is_empty() {
                return (host_id, ranges);
            }
        }
        panic!("nobody has blocks of {tag:02x?}")
    }

    /// Returns how many tags the device lists.
    pub fn tags(&mut self) -> u32 {
        self.rival.dc_tags(&PATH).unwrap().total
    }

    /// Lets a host give blocks back.
    pub fn give_back(&mut self, (host_id, ranges): (u16, Vec<std::ops::Range<u64>>)) {
        self.act(host_id, &HostAction::ReleaseCapacity { ranges }).unwrap();
    }

    fn act(&mut self, host_id: u16, action: &HostAction) -> Result<Vec<u8>, String> {
        let mut state = self.state();
        let (vcs_id, vppb_id) = state.switch.vppb_of_host(DCD, host_id).ok_or("no host is connected")?;
        let answer = state.switch.host(self.clock.now_ns(), vcs_id, vppb_id, action);
        answer.result.map_err(|failure| failure.to_string())
    }

    /// Lets a host of the device with dynamic capacity write the stamp.
    pub fn write(&mut self, host_id: u16, address: u64) {
        self.act(host_id, &HostAction::Write { address, bytes: STAMP.to_vec() }).unwrap();
    }

    /// Lets a host of the device with dynamic capacity read.
    pub fn read(&mut self, host_id: u16, address: u64) -> Result<Vec<u8>, String> {
        self.act(host_id, &HostAction::Read { address, bytes: STAMP.len() })
    }

    /// Returns the virtual switch whose host is connected.
    pub fn vcs_of(&mut self, host_id: u16) -> Option<u8> {
        self.state().switch.vppb_of_host(DCD, host_id).map(|(vcs_id, _)| vcs_id)
    }

    /// Lets the rival connect its host to the device with dynamic capacity.
    pub fn rival_binds(&mut self, ld_id: u16) {
        let is_mld = self.state().switch.config().devices[DCD].kind == DeviceKind::Mld;
        let ld_id = if is_mld { ld_id } else { BindVppb::NO_LD };
        self.rival.bind(&BindVppb { vcs_id: 1, vppb_id: 0, port_id: DCD as u8, ld_id }).unwrap();
    }

    /// Lets the rival disconnect what is at a vPPB.
    pub fn rival_unbinds(&mut self, vcs_id: u8, vppb_id: u8) {
        self.rival.unbind(&UnbindVppb { vcs_id, vppb_id, option: UnbindOption::SurpriseRemoval }).unwrap();
    }

    /// Lets the rival's host have all blocks of the first region, write to some, and give them back unwiped.
    pub fn rival_uses_blocks(&mut self, host_id: u16) {
        self.rival_takes_blocks(host_id, 1024);
        let ranges = self.ranges(STAMP);
        self.give_back(ranges);
    }

    /// Lets the rival connect its host, which leaves blocks that hold its bytes, and disconnect it.
    pub fn rival_leaves_used_blocks(&mut self) {
        self.rival_binds(0);
        self.rival_uses_blocks(0);
        self.rival_unbinds(1, 0);
    }

    /// The same, with the region's setting changed for as long as that takes.
    pub fn rival_hides_used_blocks(&mut self) {
        self.rival_binds(0);
        self.rival_sets(0);
        self.rival_uses_blocks(0);
        self.rival_sets(1);
        self.rival_unbinds(1, 0);
    }

    /// Lets the rival's host have blocks of the first region, and write to one of each 256 MiB.
    pub fn rival_takes_blocks(&mut self, host_id: u16, mib: u64) {
        self.rival_offers_blocks(host_id, mib);
        let (host_id, ranges) = self.ranges(STAMP);
        for range in ranges {
            range.step_by(256 << 20).for_each(|address| self.write(host_id, address));
        }
    }

    /// Lets the rival offer blocks of the first region.
    pub fn rival_offers_blocks(&mut self, host_id: u16, mib: u64) {
        let policy = add_policy::FREE;
        let add = InitiateDcAdd { host_id, policy, region: 0, length: mib << 20, tag: STAMP, extents: Vec::new() };
        self.rival.initiate_dc_add(&PATH, &add).unwrap();
    }

    /// Lets the rival decide whether the first region wipes what is released.
    pub fn rival_sets(&mut self, sanitize_on_release: u8) {
        self.rival
            .set_dc_region(&PATH, &SetDcRegion { region_id: 0, block_bytes: 2 << 20, sanitize_on_release })
            .unwrap();
    }

    /// Returns what the first bytes of a member are.
    pub fn first_bytes(&mut self, member: u64) -> Vec<u8> {
        let (host_id, ranges) = self.ranges(aquifer_cxl_peers::tag_of(VOLUME, MemberId(member)));
        self.read(host_id, ranges[0].start).unwrap()
    }

    /// Reads the switch, and returns what an LD holds, as reported.
    pub fn content(&mut self, index: usize, ld_id: LdId) -> Content {
        let report = self.peer.reports().remove(&device(index)).flatten().expect("the device is reported");
        report.lds[&ld_id].content
    }
}
