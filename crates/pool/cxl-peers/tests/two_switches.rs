// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! An MLD with a head at each of two switches is one device: its memory counts once, and an LD that is bound at one
//! switch is not free at the other.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aquifer_cxl_peers::{Peer, SwitchConfig as Config, Switches};
use aquifer_cxl_switch::{Connection, Switch, SwitchConfig};
use aquifer_fabric::{DeviceId, LdBinding, LdId, Topology};
use aquifer_fmapi::{BindVppb, Dialect, Message, MessageType, Opcode, Request};
use aquifer_fmapi_client::{Client, Clock, Limits, Transport, TransportFailure, VirtualClock};

struct Wire {
    switch: Arc<Mutex<Switch>>,
    clock: Arc<VirtualClock>,
    answers: VecDeque<Vec<u8>>,
}

impl Transport for Wire {
    fn name(&self) -> String {
        "a switch of this test".into()
    }

    fn message_bytes_max(&self) -> usize {
        8 << 10
    }

    fn message_type(&self, opcode: Opcode) -> Option<MessageType> {
        Some(MessageType::of(opcode))
    }

    fn send(&mut self, message: &[u8], dialect: &'static Dialect, _: Duration) -> Result<(), TransportFailure> {
        let (now_ns, connection) =
            (self.clock.now().as_nanos() as u64, Connection { id: 1, ingress_port_id: 0, dialect });
        let outcome = self.switch.lock().unwrap().receive(now_ns, &connection, message);
        self.answers.extend(outcome.replies.into_iter().map(|reply| reply.bytes));
        Ok(())
    }

    fn receive(&mut self, _: &'static Dialect, _: Duration) -> Result<Vec<u8>, TransportFailure> {
        self.answers.pop_front().ok_or(TransportFailure::TimedOut)
    }
}

/// Returns a switch in software, and the fabric manager's end of it. The devices of both switches have the same serial
/// numbers: the MLD's is 4d4.
fn peer(name: &str, clock: &Arc<VirtualClock>) -> (Arc<Mutex<Switch>>, Peer) {
    let switch = Arc::new(Mutex::new(Switch::new(SwitchConfig::example()).unwrap()));
    let config: Config =
        serde_json::from_str(&format!(r#"{{"name": "{name}", "address": "tcp:a", "hosts": {{}}}}"#)).unwrap();
    let (of_client, at) = (Arc::clone(&switch), Arc::clone(clock));
    let connect = move || {
        let wire = Wire { switch: Arc::clone(&of_client), clock: Arc::clone(&at), answers: VecDeque::new() };
        let mut client = Client::new(Box::new(wire), Arc::<VirtualClock>::clone(&at), Limits::default());
        client.recognise().map_err(|failure| failure.to_string())?;
        Ok(client)
    };
    (switch, Peer::new(config, Arc::<VirtualClock>::clone(clock), Box::new(connect)))
}

/// Binds an LD of the MLD, as another manager does.
fn bind(switch: &Mutex<Switch>, clock: &VirtualClock, ld_id: u16) {
    let connection = Connection { id: 9, ingress_port_id: 0, dialect: &Dialect::STANDARD };
    let request = Request::BindVppb(BindVppb { vcs_id: 0, vppb_id: 2, port_id: 1, ld_id });
    let bytes = Message::request(1, &request, &Dialect::STANDARD).encode(&Dialect::STANDARD);
    let mut switch = switch.lock().unwrap();
    switch.receive(clock.now().as_nanos() as u64, &connection, &bytes);
    clock.sleep(Duration::from_millis(100));
    switch.advance(clock.now().as_nanos() as u64);
}

#[test]
fn an_mld_that_two_switches_show_counts_once() {
    let id = |name: &str| name.parse::<DeviceId>().unwrap();
    let clock = Arc::<VirtualClock>::default();
    let ((_, first), (second, other)) = (peer("s0", &clock), peer("s1", &clock));
    let mut switches = Switches::of(vec![first, other], Arc::<VirtualClock>::clone(&clock));
    let (mld, twin) = (id("s0.4d4"), id("s1.4d4"));
    let reports = switches.reports();
    assert!(reports.contains_key(&mld) && reports.contains_key(&twin), "{reports:?}");
    for _ in 0..2 {
        let topology = switches.topology(&Topology::default());
        let devices: Vec<&str> = topology.parts().devices.keys().map(DeviceId::as_str).collect();
        // SLDs with one serial number are two devices: an SLD has one head.
        assert_eq!(devices.iter().filter(|name| name.ends_with(".4d4")).collect::<Vec<_>>(), [&"s0.4d4"]);
        assert_eq!(devices.iter().filter(|name| name.ends_with(".4d3")).count(), 2, "{devices:?}");
    }
    let notices = switches.take_notices();
    let left_out: Vec<&str> =
        notices.iter().filter(|it| it.kind == "DeviceLeftOut").map(|it| it.message.as_str()).collect();
    assert_eq!(left_out.len(), 1, "{notices:?}");
    assert!(left_out[0].contains("s1.4d4 is left out: it is s0.4d4") && left_out[0].contains("; "), "{left_out:?}");
    bind(&second, &clock, 3);
    let reports = switches.reports();
    let binding = |device: &DeviceId, ld_id| reports[device].as_ref().unwrap().lds[&LdId(ld_id)].binding.clone();
    assert!(matches!(binding(&twin, 3), LdBinding::Bound(_)), "{reports:?}");
    assert_eq!([binding(&mld, 3), binding(&mld, 2)], [LdBinding::Busy, LdBinding::Unbound]);
}
