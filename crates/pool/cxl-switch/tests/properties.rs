// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Any bytes, at any time, in any dialect: one answer that belongs to them, or a refusal, and never a panic.

use aquifer_cxl_switch::*;
use aquifer_fmapi::*;
use proptest::prelude::*;

mod client;
mod driver;

/// Generates how a driver ends an order.
fn ending() -> impl Strategy<Value = Ending> {
    let codes = [ReturnCode::SUCCESS, ReturnCode::RESOURCES_EXHAUSTED, ReturnCode::RETRY_REQUIRED];
    let code = (0usize..3).prop_map(move |at| codes[at]);
    prop_oneof![Just(Ending::Done), code.clone().prop_map(Ending::Refused), code.prop_map(Ending::Unknown)]
}

/// Generates bytes, most of which are small, as valid numbers are.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![6 => 0u8..4, 1 => any::<u8>()]
}

/// Generates a message with a good header, to the switch or along a path.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![8 => (0..Opcode::ALL.len()).prop_map(|at| Opcode::ALL[at].0), 1 => any::<u16>()];
    let payload = prop_oneof![
        proptest::collection::vec(byte(), 0..48),
        prop_oneof![Just(72usize), Just(112), Just(40), Just(16)]
            .prop_flat_map(|length| proptest::collection::vec(byte(), length)),
    ];
    let hops = proptest::collection::vec((byte(), 0u8..2), 0..4);
    (opcode, payload, any::<u8>(), hops, any::<bool>()).prop_map(|(opcode, payload, tag, hops, lies)| {
        let dialect = &Dialect::STANDARD;
        let inner = Message::new(Category::Request, tag, Opcode(opcode), ReturnCode::SUCCESS, payload);
        let outer = hops.into_iter().fold(inner, |inner, (port_or_ld_id, target)| {
            let target = TunnelTarget::of_bits(target);
            let tunnel = Request::Tunnel(Tunnel { port_or_ld_id, target, message: inner.encode(dialect) });
            Message::request(tag, &tunnel, dialect)
        });
        let mut bytes = outer.encode(dialect);
        if lies && tag.is_multiple_of(8) {
            bytes.truncate(usize::from(tag));
        }
        bytes
    })
}

fn check(outcome: &Outcome, bytes: &[u8], connection: &Connection) {
    let header = Header::read(&mut Reader::new(bytes, connection.dialect));
    let is_request = header.is_ok_and(|header| header.category == Category::Request);
    assert_eq!(outcome.refusal.is_none(), is_request, "{bytes:?}");
    let answers = outcome.replies.iter().map(|reply| Message::decode(&reply.bytes, connection.dialect).unwrap());
    let answers: Vec<Message> = answers.filter(|answer| answer.header.category == Category::Response).collect();
    assert_eq!(answers.len(), usize::from(is_request));
    if let (Some(answer), Ok(header)) = (answers.first(), header) {
        assert_eq!(answer.check_answers(&header, connection.dialect), Ok(()));
        let code = answer.header.return_code;
        assert!(code.name().is_some(), "{code}");
        assert!(answer.payload.is_empty() || code == ReturnCode::SUCCESS, "{code}");
        assert_eq!(answer.header.is_background, code == ReturnCode::BACKGROUND_STARTED);
    }
    if let Some(refusal) = &outcome.refusal {
        assert!(!refusal.to_string().contains('\n'));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_answered_or_refused(
        all in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..64), 0usize..5), 1..8),
    ) {
        let mut switch = Switch::new(client::config()).unwrap();
        for (bytes, dialect) in all {
            const DIALECTS: [Dialect; 5] = Dialect::ALL;
            static STATIC: [Dialect; 5] = DIALECTS;
            let connection = Connection { id: 3, ingress_port_id: 0, dialect: &STATIC[dialect] };
            let outcome = switch.receive(0, &connection, &bytes);
            check(&outcome, &bytes, &connection);
        }
    }

    #[test]
    fn any_messages_in_any_order_are_answered(
        all in proptest::collection::vec((message(), 0u64..30_000_000), 1..40),
    ) {
        let mut switch = Switch::new(client::config()).unwrap();
        let connection = Connection { id: 3, ingress_port_id: 0, dialect: &Dialect::STANDARD };
        let mut now_ns = 0;
        for (bytes, later_ns) in all {
            now_ns += later_ns;
            let outcome = switch.receive(now_ns, &connection, &bytes);
            check(&outcome, &bytes, &connection);
        }
    }

    /// An allocation is ended at once, so that its answer belongs to its request; a bind and an unbind go on.
    #[test]
    fn a_driven_switch_answers_any_messages_in_any_order(
        all in proptest::collection::vec((message(), 0u64..300_000_000, ending(), 0u64..3, 0u8..8), 1..40),
    ) {
        let mut rig = driver::Rig::new();
        let connection = Connection { id: 3, ingress_port_id: 0, dialect: &Dialect::STANDARD };
        let (mut now_ns, mut last_id) = (0, 0);
        for (bytes, later_ns, ending, back, adopts) in all {
            now_ns += later_ns;
            if adopts == 0 {
                rig.client.now_ns = now_ns;
                rig.adopt();
            }
            let mut outcome = rig.client.switch.receive(now_ns, &connection, &bytes);
            let ordered = outcome.effects.iter().find_map(|effect| match effect {
                Effect::Ordered { id, order } => Some((*id, matches!(order, Order::Allocate { .. }))),
                _ => None,
            });
            last_id = ordered.map_or(last_id, |(id, _)| id);
            let is_waiting = ordered.is_some_and(|(_, is_allocation)| is_allocation);
            // Otherwise the driver says what it may have said before, or of an order that never was.
            let id = if is_waiting { last_id } else { (last_id + 1).saturating_sub(back) };
            outcome.replies.extend(rig.client.switch.conclude(now_ns, id, ending).replies);
            check(&outcome, &bytes, &connection);
        }
    }
}

#[test]
fn time_never_runs_back_and_overflows_nothing() {
    let mut manager = client::Client::new(client::config());
    manager.now_ns = u64::MAX - 1;
    let bind = Request::BindVppb(BindVppb { vcs_id: 0, vppb_id: 0, port_id: 0, ld_id: 0xffff });
    assert_eq!(manager.code(&client::at_switch(), &bind), ReturnCode::BACKGROUND_STARTED);
    manager.now_ns = 0;
    assert!(manager.background().is_running);
    manager.switch.advance(u64::MAX);
    assert!(!manager.background().is_running);
    let flap = Injection::LinkFlap { port_id: 0, down_ns: 3_600_000_000_000 };
    manager.switch.inject(u64::MAX, flap).unwrap();
}
