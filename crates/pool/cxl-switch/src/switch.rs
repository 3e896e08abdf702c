// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The switch: takes messages and the time, answers or refuses, and lets time pass.
//!
//! A step first ends what is due, then carries out the request, then sends the notifications that follow. Time never
//! runs back: a step with an earlier time than the last step takes place at the time of the last step.

use aquifer_fmapi::{
    Category, ComponentType, EventNotification, HEADER_BYTES, Header, Identity, Message, Payload, Reader, Request,
    Response, ReturnCode, Writer,
};

use crate::background::Background;
use crate::commands::Commands;
use crate::component::{Component, MESSAGE_LIMIT_LOG2};
use crate::config::SwitchConfig;
use crate::config_check::ConfigFailure;
use crate::context::{Answer, Connection, Context};
use crate::device::Device;
use crate::injection::Injections;
use crate::orders::Orders;
use crate::outcome::{Outcome, Refusal, Reply};
use crate::ports::Port;
use crate::virtual_switch::VppbState;

/// The component command interface that a message is for. Devices are numbered as in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cci {
    /// A device's own; for an MLD, that of its FM-owned LD.
    Device(usize),
    /// A logical device's, by its number.
    Ld(usize, u8),
    /// That of a multi-headed device's LD pool.
    Pool(usize),
    /// The switch's.
    Switch,
}

/// A CXL switch: answers or refuses messages, and lets time pass.
#[derive(Clone, Debug)]
pub struct Switch {
    pub(crate) config: SwitchConfig,
    pub(crate) component: Component,
    pub(crate) ports: Vec<Port>,
    /// Whether each virtual CXL switch is enabled.
    pub(crate) vcs_enabled: Vec<bool>,
    /// The vPPBs of each virtual CXL switch.
    pub(crate) vppbs: Vec<Vec<VppbState>>,
    /// The secret values that hosts have set, of each virtual CXL switch.
    pub(crate) domain_svs: Vec<Option<[u8; 16]>>,
    pub(crate) devices: Vec<Device>,
    pub(crate) background: Background,
    pub(crate) orders: Orders,
    pub(crate) injections: Injections,
    /// The time of the last step.
    now_ns: u64,
}

impl Switch {
    /// Creates a switch with nothing bound.
    pub fn new(config: SwitchConfig) -> Result<Self, ConfigFailure> {
        config.check()?;
        let identity = Identity {
            vendor_id: config.vendor_id,
            device_id: config.device_id,
            serial_number: config.serial_number,
            component_type: Some(ComponentType::Switch),
            ..Identity::default()
        };
        Ok(Self {
            component: Component::new(identity, Commands::of_switch(), config.events_per_log, None),
            ports: config.ports.iter().map(|port| Port::new(&config, port)).collect(),
            vcs_enabled: config.virtual_switches.iter().map(|vcs| vcs.enabled).collect(),
            vppbs: config.virtual_switches.iter().map(|vcs| vec![VppbState::Unbound; vcs.vppbs.into()]).collect(),
            domain_svs: vec![None; config.virtual_switches.len()],
            devices: (0..config.devices.len()).map(|index| Device::new(&config, index)).collect(),
            background: Background::default(),
            orders: Orders::default(),
            injections: Injections::default(),
            now_ns: 0,
            config,
        })
    }

    /// Creates a switch whose driver carries out binds, unbinds and allocations, each within a limit. Its devices are
    /// MLDs that lend the memory of others: there are no accesses to it, no quality of service and no dynamic capacity.
    /// Until the first [`adopt`](Self::adopt), no device is there, and no virtual CXL switch is enabled.
    pub fn driven(config: SwitchConfig, limit_ns: u64) -> Result<Self, ConfigFailure> {
        config.check_driven()?;
        let mut switch = Self::new(config)?;
        switch.orders = Orders::of_driven(limit_ns);
        switch.component.commands = Commands::of_driven_switch();
        switch.vcs_enabled.iter_mut().for_each(|is_enabled| *is_enabled = false);
        for vcs in &switch.config.virtual_switches {
            switch.ports[usize::from(vcs.upstream_port)].is_cut = true;
        }
        for device in &mut switch.devices {
            device.is_present = false;
            device.is_driven = true;
            device.component.commands = Commands::of_driven_mld();
            device.ld_component.commands = Commands::of_driven_ld();
        }
        Ok(switch)
    }

    /// Returns the configuration that it was made from.
    pub fn config(&self) -> &SwitchConfig {
        &self.config
    }

    /// Takes the bytes of a message from a connection.
    pub fn receive(&mut self, now_ns: u64, connection: &Connection, bytes: &[u8]) -> Outcome {
        let mut context = Context { connection: *connection, ..self.begin(now_ns) };
        context.room = usize::MAX;
        let header = Header::read(&mut Reader::new(bytes, connection.dialect));
        let request = header.ok().filter(|header| header.category == Category::Request);
        let failure = request.and_then(|header| self.injections.take(header.opcode));
        let code = failure.as_ref().and_then(|failure| failure.return_code());
        let answer = self.converse(&mut context, Cci::Switch, bytes, code);
        match (context.ordered.take(), answer) {
            (Some(ordered), _) => self.order_and_wait(&mut context, ordered, failure),
            (_, Ok(answer)) => {
                let bytes = answer.encode(connection.dialect);
                let reply = Reply { connection: connection.id, due_ns: context.now_ns, bytes, is_of_order: false };
                context.outcome.answer(reply, failure.as_ref());
            }
            (_, Err(refusal)) => context.outcome.refusal = Some(refusal),
        }
        self.end(context)
    }

    /// Lets time pass: background operations end, links come up again.
    pub fn advance(&mut self, now_ns: u64) -> Outcome {
        let context = self.begin(now_ns);
        self.end(context)
    }

    /// Returns when something ends by itself next, so that [`Switch::advance`] has something to do.
    pub fn deadline_ns(&self) -> Option<u64> {
        let links = self.ports.iter().filter_map(|port| port.down_until_ns);
        self.background.deadline_ns().into_iter().chain(self.orders.deadline_ns()).chain(links).min()
    }

    /// Begins a step.
    pub(crate) fn begin(&mut self, now_ns: u64) -> Context {
        self.now_ns = self.now_ns.max(now_ns);
        let mut context = Context::of_nobody(self.now_ns);
        self.end_background(&mut context);
        self.end_late_request(&mut context);
        self.raise_links(&mut context);
        context
    }

    /// Ends a step.
    pub(crate) fn end(&mut self, mut context: Context) -> Outcome {
        if let Some((connection, events)) = self.component.take_notice() {
            let notification = Request::EventNotification(EventNotification { events });
            let bytes = Message::request(0, &notification, connection.dialect).encode(connection.dialect);
            let reply = Reply { connection: connection.id, due_ns: context.now_ns, bytes, is_of_order: false };
            context.outcome.replies.push(reply);
        }
        context.outcome
    }

    fn raise_links(&mut self, context: &mut Context) {
        for port_id in 0..self.ports.len() as u8 {
            let was_up = self.link_is_up(port_id);
            let port = &mut self.ports[usize::from(port_id)];
            if port.down_until_ns.is_some_and(|until_ns| until_ns <= context.now_ns) {
                port.down_until_ns = None;
                self.note_link(context, port_id, was_up);
            }
        }
    }

    fn component(&mut self, cci: Cci) -> &mut Component {
        match cci {
            Cci::Device(device) => &mut self.devices[device].component,
            Cci::Ld(device, _) => &mut self.devices[device].ld_component,
            Cci::Pool(device) => self.devices[device].pool.as_mut().expect("the tunnel found it"),
            Cci::Switch => &mut self.component,
        }
    }

    /// Answers the message in these bytes, or refuses them. If a return code is given, it is the answer, and nothing is
    /// carried out.
    pub(crate) fn converse(
        &mut self,
        context: &mut Context,
        at: Cci,
        bytes: &[u8],
        code: Option<ReturnCode>,
    ) -> Result<Message, Refusal> {
        let dialect = context.connection.dialect;
        let header = Header::read(&mut Reader::new(bytes, dialect)).map_err(Refusal::NoHeader)?;
        if header.category != Category::Request {
            return Err(Refusal::NotARequest);
        }
        let room = context.room;
        context.room = room.min((1 << self.component(at).limit_log2) - HEADER_BYTES);
        let answer = match code {
            Some(code) => Err(code),
            None => self.carry_out(context, at, &header, &bytes[HEADER_BYTES..]),
        };
        let answer = answer.and_then(|response| {
            let mut out = Writer::new(dialect);
            response.write(&mut out);
            if out.bytes.len() > context.room { Err(ReturnCode::INVALID_INPUT) } else { Ok(response) }
        });
        context.room = room;
        if let Some(ordered) = &mut context.ordered {
            ordered.headers.push(header);
        }
        Ok(match answer {
            Ok(response) => Message::answer(&header, ReturnCode::SUCCESS, Some(&response), dialect),
            Err(code) => Message::answer(&header, code, None, dialect),
        })
    }

    fn carry_out(&mut self, context: &mut Context, at: Cci, header: &Header, payload: &[u8]) -> Answer {
        if !self.component(at).commands.has(header.opcode) {
            return Err(ReturnCode::UNSUPPORTED);
        }
        let is_long = HEADER_BYTES + payload.len() > 1 << MESSAGE_LIMIT_LOG2;
        if is_long || header.payload_bytes as usize != payload.len() {
            return Err(ReturnCode::INVALID_PAYLOAD_LENGTH);
        }
        let request = Request::decode(header.opcode, payload, context.connection.dialect);
        let request = request.map_err(|failure| failure.return_code())?;
        let answer = self.component(at).answer(context, &request);
        let answer = answer.or_else(|| match at {
            Cci::Switch => self.answer_of_switch(context, &request),
            Cci::Device(device) | Cci::Pool(device) | Cci::Ld(device, _) => {
                self.answer_of_device(context, at, device, &request)
            }
        });
        answer.unwrap_or(Err(ReturnCode::UNSUPPORTED))
    }

    fn answer_of_switch(&mut self, context: &mut Context, request: &Request) -> Option<Answer> {
        match request {
            Request::GetBackgroundStatus(_) => {
                return Some(Ok(Response::GetBackgroundStatus(self.background.status(context.now_ns))));
            }
            Request::AbortBackground(_) => return Some(self.abort(context)),
            _ => {}
        }
        let answer = self.answer_of_ports(context, request);
        let answer = answer.or_else(|| self.answer_of_virtual_switches(context, request));
        answer.or_else(|| self.answer_of_tunnels(context, Cci::Switch, request))
    }

    fn answer_of_device(&mut self, context: &mut Context, at: Cci, device: usize, request: &Request) -> Option<Answer> {
        let bound = self.bound_lds(device);
        if let Cci::Ld(_, ld_id) = at {
            return self.devices[device].answer_of_memory(context, ld_id, request);
        }
        if let Some(answer) = self.devices[device].answer_of_memory(context, 0, request) {
            return Some(answer);
        }
        let answer = self.answer_of_heads(context, device, request);
        let answer = answer.or_else(|| self.answer_of_driver(context, device, request));
        let answer = answer.or_else(|| self.devices[device].answer(context, request, bound));
        answer.or_else(|| self.answer_of_tunnels(context, at, request))
    }
}
