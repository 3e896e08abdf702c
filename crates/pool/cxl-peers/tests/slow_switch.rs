// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A switch that answers every command correctly and at the last moment. Each wait has its limit, and there are
//! hundreds: without a limit on all of them, it would hold the fabric manager's rounds, in which others wait for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aquifer_cxl_peers::{Peer, SwitchConfig as Config};
use aquifer_cxl_switch::{Connection, Switch, SwitchConfig};
use aquifer_fmapi::{Dialect, MessageType, Opcode};
use aquifer_fmapi_client::{Client, Clock, Limits, Transport, TransportFailure, VirtualClock};

/// How long each answer takes: just less than the client waits.
const ANSWER: Duration = Duration::from_millis(1900);
/// What `one_switch.rs` allows for reading a switch; and connecting, and the last answer.
const READ_MAX: Duration = Duration::from_secs(60 + 2 * 2);

struct Slow {
    switch: Arc<Mutex<Switch>>,
    clock: Arc<VirtualClock>,
    answers: VecDeque<Vec<u8>>,
    answer: Duration,
}

impl Transport for Slow {
    fn name(&self) -> String {
        "a slow switch".into()
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

    fn receive(&mut self, _: &'static Dialect, wait: Duration) -> Result<Vec<u8>, TransportFailure> {
        assert!(wait >= self.answer, "an answer in time");
        self.clock.sleep(self.answer);
        self.answers.pop_front().ok_or(TransportFailure::TimedOut)
    }
}

/// Returns a fabric manager's switch, and how long reading it took.
fn read(answer: Duration) -> (Peer, Duration) {
    let clock = Arc::<VirtualClock>::default();
    let switch = Arc::new(Mutex::new(Switch::new(SwitchConfig::memory_box()).unwrap()));
    let config: Config = serde_json::from_str(r#"{"name": "s0", "address": "tcp:a", "hosts": {}}"#).unwrap();
    let of_client = Arc::clone(&clock);
    let connect = move || {
        let (switch, clock) = (Arc::clone(&switch), Arc::clone(&of_client));
        let transport = Slow { switch, clock: Arc::clone(&clock), answers: VecDeque::new(), answer };
        let mut client = Client::new(Box::new(transport), clock, Limits::default());
        client.recognise().map_err(|failure| failure.to_string())?;
        Ok(client)
    };
    let mut peer = Peer::new(config, Arc::<VirtualClock>::clone(&clock), Box::new(connect));
    peer.reports();
    let took = clock.now();
    (peer, took)
}

#[test]
fn a_switch_that_answers_at_the_last_moment_does_not_hold_a_round() {
    let (peer, took) = read(Duration::from_millis(100));
    assert!(peer.is_answering() && peer.inventory().devices.len() == 22, "it is read in {took:?}");
    let (peer, took) = read(ANSWER);
    assert!(!peer.is_answering() && took < READ_MAX, "{took:?}");
}
