// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A fabric manager for tests: it asks the switch, and the devices behind it, and reads their answers.

#![allow(dead_code, reason = "each test asks for less than all of it")]

use aquifer_cxl_switch::*;
use aquifer_fmapi::*;

/// From one CCI to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// From the switch to the device at a port.
    Port(u8),
    /// From a device to a logical device.
    Ld(u8),
    /// From a device to its LD pool.
    Pool,
}

/// Returns the path to the switch itself.
pub fn at_switch() -> Vec<Hop> {
    Vec::new()
}

/// Returns the path to the device at a port.
pub fn at_device(port_id: u8) -> Vec<Hop> {
    vec![Hop::Port(port_id)]
}

/// Returns the path to a logical device of the device at a port.
pub fn at_ld(port_id: u8, ld_id: u8) -> Vec<Hop> {
    vec![Hop::Port(port_id), Hop::Ld(ld_id)]
}

/// Returns the path to the LD pool of the device at a port.
pub fn at_pool(port_id: u8) -> Vec<Hop> {
    vec![Hop::Port(port_id), Hop::Pool]
}

/// Returns the example configuration, with a multi-headed MLD added at ports 3 and 4.
pub fn config() -> SwitchConfig {
    let mut config = SwitchConfig::example();
    let mld = config.devices[1].clone();
    config.devices.push(DeviceConfig { ports: vec![3, 4], lds_mib: vec![256; 2], ld_heads: vec![0, 1], ..mld });
    config
}

/// Returns the bytes of a request's payload.
pub fn payload(request: &Request) -> Vec<u8> {
    let mut out = Writer::new(&Dialect::STANDARD);
    request.write(&mut out);
    out.bytes
}

/// A fabric manager for tests, and the switch that it manages.
pub struct Client {
    /// The switch.
    pub switch: Switch,
    /// Its connection to the switch, with the dialect that it speaks.
    pub connection: Connection,
    /// The time of the next step.
    pub now_ns: u64,
    /// The events and effects of all steps since a test last cleared them.
    pub seen: Outcome,
    tag: u8,
}

impl Client {
    /// Creates a client of a new switch.
    pub fn new(config: SwitchConfig) -> Self {
        let switch = Switch::new(config).expect("a good configuration");
        let connection = Connection { id: 1, ingress_port_id: 0, dialect: &Dialect::STANDARD };
        Self { switch, connection, now_ns: 0, seen: Outcome::default(), tag: 0 }
    }

    /// Remembers what a step led to, except the replies, and returns those.
    pub fn see(&mut self, outcome: Outcome) -> Vec<Reply> {
        self.seen.events.extend(outcome.events);
        self.seen.effects.extend(outcome.effects);
        outcome.replies
    }

    /// Sends a message and reads the answer that belongs to it.
    pub fn converse(&mut self, message: &Message) -> Message {
        let outcome = self.switch.receive(self.now_ns, &self.connection, &message.encode(self.connection.dialect));
        assert_eq!(outcome.refusal, None);
        let replies = self.see(outcome);
        let answers = replies.iter().map(|reply| Message::decode(&reply.bytes, self.connection.dialect).unwrap());
        let mut answers = answers.filter(|answer| answer.header.category == Category::Response);
        let answer = answers.next().expect("an answer");
        assert_eq!(answer.check_answers(&message.header, self.connection.dialect), Ok(()));
        answer
    }

    /// Returns the message that carries another one along the path, as it is sent to the switch.
    fn wrap(&mut self, path: &[Hop], inner: Message) -> Message {
        path.iter().rev().fold(inner, |inner, hop| {
            self.tag = self.tag.wrapping_add(1);
            let (port_or_ld_id, target) = match hop {
                Hop::Port(id) | Hop::Ld(id) => (*id, TunnelTarget::PortOrLd),
                Hop::Pool => (0, TunnelTarget::LdPool),
            };
            let message = inner.encode(self.connection.dialect);
            let tunnel = Request::Tunnel(Tunnel { port_or_ld_id, target, message });
            Message::request(self.tag, &tunnel, self.connection.dialect)
        })
    }

    /// Sends a message along a path. Returns the innermost answer, or the return code of the tunnel that failed.
    pub fn send(&mut self, path: &[Hop], inner: Message) -> Result<Message, ReturnCode> {
        let message = self.wrap(path, inner);
        let mut answer = self.converse(&message);
        for _ in path {
            if answer.header.return_code != ReturnCode::SUCCESS {
                return Err(answer.header.return_code);
            }
            let request = Request::Tunnel(Tunnel::default());
            let Ok(Response::Tunnel(inner)) = Response::decode(&request, &answer.payload, self.connection.dialect)
            else {
                panic!("no tunnelled answer");
            };
            answer = Message::decode(&inner.message, self.connection.dialect).expect("a message");
        }
        Ok(answer)
    }

    /// Sends a request and decodes the response, or returns the return code of a refusal.
    pub fn ask(&mut self, path: &[Hop], request: &Request) -> Result<Response, ReturnCode> {
        self.tag = self.tag.wrapping_add(1);
        let answer = self.send(path, Message::request(self.tag, request, self.connection.dialect))?;
        match answer.header.return_code {
            ReturnCode::SUCCESS => {
                Ok(Response::decode(request, &answer.payload, self.connection.dialect).expect("a good answer"))
            }
            code => {
                assert_eq!(answer.header.is_background, code == ReturnCode::BACKGROUND_STARTED);
                assert!(answer.payload.is_empty(), "a refusal has no payload");
                Err(code)
            }
        }
    }

    /// Returns how a request ends.
    pub fn code(&mut self, path: &[Hop], request: &Request) -> ReturnCode {
        self.ask(path, request).err().unwrap_or(ReturnCode::SUCCESS)
    }

    /// Returns how a request with this payload ends.
    pub fn code_of_payload(&mut self, path: &[Hop], opcode: Opcode, payload: &[u8]) -> ReturnCode {
        let message = Message::new(Category::Request, 9, opcode, ReturnCode::SUCCESS, payload.to_vec());
        self.send(path, message).map_or_else(|code| code, |answer| answer.header.return_code)
    }

    /// Returns the command effects log.
    pub fn command_effects(&mut self, path: &[Hop]) -> Vec<CommandEffect> {
        let Ok(Response::GetSupportedLogs(logs)) = self.ask(path, &Request::GetSupportedLogs(GetSupportedLogs {}))
        else {
            panic!("no logs");
        };
        let (uuid, length) = (logs.logs[0].uuid, logs.logs[0].log_bytes);
        let Ok(Response::GetLog(log)) = self.ask(path, &Request::GetLog(GetLog { uuid, offset: 0, length })) else {
            panic!("no log");
        };
        log.command_effects()
    }

    /// Binds, and waits until it is done.
    pub fn bind(&mut self, vcs_id: u8, vppb_id: u8, port_id: u8, ld_id: u16) -> ReturnCode {
        let bind = Request::BindVppb(BindVppb { vcs_id, vppb_id, port_id, ld_id });
        let code = self.code(&at_switch(), &bind);
        if code == ReturnCode::BACKGROUND_STARTED { self.wait() } else { code }
    }

    /// Unbinds, and waits until it is done.
    pub fn unbind(&mut self, vcs_id: u8, vppb_id: u8) -> ReturnCode {
        let option = UnbindOption::ManagedRemoval;
        let unbind = Request::UnbindVppb(UnbindVppb { vcs_id, vppb_id, option });
        let code = self.code(&at_switch(), &unbind);
        if code == ReturnCode::BACKGROUND_STARTED { self.wait() } else { code }
    }

    /// Waits for the background operation, and says how it ended.
    pub fn wait(&mut self) -> ReturnCode {
        self.now_ns = self.switch.deadline_ns().expect("an operation runs").max(self.now_ns);
        let status = self.background();
        assert!(!status.is_running && status.percent == 100);
        ReturnCode(status.return_code)
    }

    /// Returns the status of the background operation.
    pub fn background(&mut self) -> BackgroundStatus {
        match self.ask(&at_switch(), &Request::GetBackgroundStatus(GetBackgroundStatus {})) {
            Ok(Response::GetBackgroundStatus(status)) => status,
            other => panic!("{other:?}"),
        }
    }

    /// Returns all vPPBs of a virtual switch.
    pub fn vppbs(&mut self, vcs_id: u8) -> Vec<Vppb> {
        let vcs_ids = vec![vcs_id];
        let get = GetVirtualSwitches { first_vppb: 0, vppbs_max: 255, vcs_ids };
        match self.ask(&at_switch(), &Request::GetVirtualSwitches(get)) {
            Ok(Response::GetVirtualSwitches(reported)) => reported.switches[0].vppbs.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the state of a port.
    pub fn port(&mut self, port_id: u8) -> PortStatus {
        match self.ask(&at_switch(), &Request::GetPortStates(GetPortStates { port_ids: vec![port_id] })) {
            Ok(Response::GetPortStates(reported)) => reported.ports[0],
            other => panic!("{other:?}"),
        }
    }

    /// Carries out a host's action.
    pub fn host(&mut self, vcs_id: u8, vppb_id: u8, action: HostAction) -> Result<Vec<u8>, HostFailure> {
        let answer = self.switch.host(self.now_ns, vcs_id, vppb_id, &action);
        self.see(answer.outcome);
        answer.result
    }

    /// Injects a failure.
    pub fn inject(&mut self, injection: Injection) {
        let outcome = self.switch.inject(self.now_ns, injection).expect("it can go wrong so");
        self.see(outcome);
    }
}
