// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A driven switch with a manager and the state of a pool: two hosts, and two devices of 4 GiB.

#![allow(dead_code, reason = "each test asks for less than all of it")]

use aquifer_cxl_switch::*;
use aquifer_fmapi::*;

use crate::client::{Client, Hop, at_device, at_switch};

pub mod history;
mod shown;

pub const GIB: u64 = 1 << 30;
/// How long an order may take.
pub const LIMIT_NS: u64 = 1_000_000_000;

/// Returns a switch with devices at ports 0 and 1, and hosts at 2 and 3.
fn config() -> SwitchConfig {
    let port = |role| PortConfig { role, link_width: 16, link_speed: 5, lds: 16 };
    let device = |port_id: u8| DeviceConfig {
        kind: DeviceKind::Mld,
        ports: vec![port_id],
        memory_mib: 256,
        lds_mib: vec![0; 16],
        ld_heads: Vec::new(),
        link_width: 16,
        link_speed: 5,
        capacity: None,
    };
    let roles = [PortRole::Downstream, PortRole::Downstream, PortRole::Upstream, PortRole::Upstream];
    SwitchConfig {
        ports: roles.map(port).to_vec(),
        virtual_switches: [2, 3]
            .map(|port| VirtualSwitchConfig { upstream_port: port, vppbs: 8, enabled: true })
            .to_vec(),
        devices: [0, 1].map(device).to_vec(),
        ..SwitchConfig::example()
    }
}

/// A driven switch, a manager of it, and the pool's state.
pub struct Rig {
    pub client: Client,
    /// What is adopted next.
    pub pool: Adopted,
    /// The number of the last order.
    last: u64,
}

impl Rig {
    /// Creates a rig whose pool has everybody, and whose switch has not adopted it yet.
    pub fn new() -> Self {
        let mut client = Client::new(SwitchConfig::example());
        client.switch = Switch::driven(config(), LIMIT_NS).expect("a good configuration");
        let device = AdoptedDevice { is_present: true, memory_bytes: 4 * GIB, lds: Vec::new() };
        let hosts = vec![AdoptedHost { is_known: true, is_up: true }; 2];
        Self { client, pool: Adopted { hosts, devices: vec![device; 2], bindings: Vec::new() }, last: 0 }
    }

    /// Replaces the switch by one that has just started.
    pub fn restart(&mut self) {
        self.client.switch = Switch::driven(config(), LIMIT_NS).expect("a good configuration");
        self.client.seen = Outcome::default();
    }

    /// Lets the switch take over the pool's state.
    pub fn adopt(&mut self) {
        let outcome = self.client.switch.adopt(self.client.now_ns, &self.pool);
        assert!(self.client.see(outcome).is_empty());
    }

    /// Sends a request that is answered at once.
    pub fn code(&mut self, path: &[Hop], request: &Request) -> ReturnCode {
        self.client.code(path, request)
    }

    /// Sends Set LD Allocations. Returns the return code, or None where the answer waits for the driver.
    pub fn set(&mut self, port_id: u8, first_ld_id: u8, units: &[u64]) -> Option<ReturnCode> {
        let allocations = units.iter().map(|units| LdAllocation { range_1: *units, range_2: 0 }).collect();
        let request = Request::SetLdAllocations(SetLdAllocations { first_ld_id, allocations });
        let dialect = self.client.connection.dialect;
        let message = Message::request(3, &request, dialect).encode(dialect);
        let tunnel = Tunnel { port_or_ld_id: port_id, target: TunnelTarget::PortOrLd, message };
        let message = Message::request(4, &Request::Tunnel(tunnel), dialect).encode(dialect);
        let outcome = self.client.switch.receive(self.client.now_ns, &self.client.connection, &message);
        self.answered(outcome)
    }

    /// Returns the innermost return code of the only answer, if there is one.
    fn answered(&mut self, outcome: Outcome) -> Option<ReturnCode> {
        let replies = self.client.see(outcome);
        assert!(replies.len() <= 1);
        let dialect = self.client.connection.dialect;
        let outer = Message::decode(&replies.first()?.bytes, dialect).expect("a message");
        assert_eq!((outer.header.tag, outer.header.opcode), (4, Opcode::TUNNEL));
        if outer.header.return_code != ReturnCode::SUCCESS {
            return Some(outer.header.return_code);
        }
        let request = Request::Tunnel(Tunnel::default());
        let Ok(Response::Tunnel(inner)) = Response::decode(&request, &outer.payload, dialect) else {
            panic!("no tunnelled answer");
        };
        let inner = Message::decode(&inner.message, dialect).expect("a message");
        assert_eq!(inner.header.tag, 3);
        Some(inner.header.return_code)
    }

    /// Takes the orders that the switch has given, each with its number.
    fn take_orders(&mut self) -> Vec<(u64, Order)> {
        let effects = std::mem::take(&mut self.client.seen.effects);
        let orders = effects.into_iter().filter_map(|effect| match effect {
            Effect::Ordered { id, order } => Some((id, order)),
            _ => None,
        });
        let orders: Vec<(u64, Order)> = orders.collect();
        self.last = orders.last().map_or(self.last, |(id, _)| *id);
        orders
    }

    /// Returns the orders since the last call.
    pub fn orders(&mut self) -> Vec<Order> {
        self.take_orders().into_iter().map(|(_, order)| order).collect()
    }

    /// Returns the number of the last order.
    pub fn ordered(&mut self) -> u64 {
        self.take_orders();
        self.last
    }

    /// Ends the last order, and returns the return code of the answer that waited for it.
    pub fn end(&mut self, ending: Ending) -> Option<ReturnCode> {
        let id = self.ordered();
        let outcome = self.client.switch.conclude(self.client.now_ns, id, ending);
        self.answered(outcome)
    }

    /// Lets time pass, and returns the return code of an answer that came.
    pub fn advance(&mut self) -> Option<ReturnCode> {
        let outcome = self.client.switch.advance(self.client.now_ns);
        self.answered(outcome)
    }

    /// Returns what the switch says of itself.
    pub fn identity(&mut self) -> SwitchIdentity {
        match self.client.ask(&at_switch(), &Request::IdentifySwitch(IdentifySwitch {})) {
            Ok(Response::IdentifySwitch(identity)) => identity,
            other => panic!("{other:?}"),
        }
    }

    /// Returns a device's memory, its logical devices, and its telemetry.
    pub fn capabilities(&mut self, port_id: u8) -> (u64, u16, u8) {
        match self.client.ask(&at_device(port_id), &Request::GetLdCapabilities(GetLdCapabilities {})) {
            Ok(Response::GetLdCapabilities(has)) => (has.memory_bytes, has.ld_count, has.qos_telemetry),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the sizes of a device's logical devices, in units of 256 MiB.
    pub fn units(&mut self, port_id: u8) -> [u64; 16] {
        self.units_of(port_id, 0, 16).try_into().expect("it has 16")
    }

    /// Returns the sizes of some of them.
    pub fn units_of(&mut self, port_id: u8, first_ld_id: u8, count_max: u8) -> Vec<u64> {
        let request = Request::GetLdAllocations(GetLdAllocations { first_ld_id, count_max });
        match self.client.ask(&at_device(port_id), &request) {
            Ok(Response::GetLdAllocations(reported)) => reported.allocations.iter().map(|ld| ld.range_1).collect(),
            other => panic!("{other:?}"),
        }
    }
}
