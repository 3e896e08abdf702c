// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Peers that behave as no correct switch does: they send without end, answer another command inside a tunnel, or
//! report another manager's background operation.

use aquifer_fmapi::*;
use aquifer_fmapi_client::*;

mod script;
mod world;

use script::{answer, client};

/// A peer that floods the client does not hold it up, although no time passes.
#[test]
fn a_peer_that_talks_without_end_is_given_up() {
    let mut client = client(true, |asked| {
        let mut late = answer(asked, ReturnCode::SUCCESS, None);
        late.header.tag = late.header.tag.wrapping_sub(1);
        vec![late]
    });
    let failure = client.identify(&[]).unwrap_err();
    assert!(matches!(failure.cause, Cause::NoAnswer { strays: 65, .. }), "{failure}");
}

#[test]
fn an_answer_to_another_question_inside_a_tunnel_is_refused() {
    let mut client = client(false, |asked| {
        let request = Request::decode(asked.header.opcode, &asked.payload, &Dialect::STANDARD);
        let Ok(Request::Tunnel(tunnel)) = request else { panic!("not a tunnel") };
        let mut inner = Message::decode(&tunnel.message, &Dialect::STANDARD).unwrap();
        inner.header.tag = inner.header.tag.wrapping_add(1);
        let message = answer(&inner, ReturnCode::SUCCESS, Some(&Response::Identify(Identity::default())));
        let tunnelled = Response::Tunnel(Tunnelled { message: message.encode(&Dialect::STANDARD) });
        vec![answer(asked, ReturnCode::SUCCESS, Some(&tunnelled))]
    });
    let failure = client.identify(&[Hop::Port(1)]).unwrap_err();
    assert!(failure.to_string().contains("in the tunnel, the response has tag"), "{failure}");
}

/// Answers a bind, and reports the status of this opcode and progress.
fn status_of(opcode: Opcode, percent: u8) -> Client {
    client(false, move |asked| {
        let status = BackgroundStatus { percent, opcode: opcode.0, ..Default::default() };
        let response = Response::GetBackgroundStatus(status);
        match asked.header.opcode {
            Opcode::BACKGROUND_STATUS => vec![answer(asked, ReturnCode::SUCCESS, Some(&response))],
            Opcode::BIND_VPPB => vec![answer(asked, ReturnCode::BACKGROUND_STARTED, None)],
            _ => vec![answer(asked, ReturnCode::UNSUPPORTED, None)],
        }
    })
}

#[test]
fn another_managers_background_operation_is_not_taken_for_ours() {
    let failure = status_of(Opcode::UNBIND_VPPB, 100).bind(&BindVppb::default()).unwrap_err();
    assert!(matches!(failure.cause, Cause::BackgroundForeign { found: Opcode::UNBIND_VPPB }), "{failure}");
    assert_eq!(failure.effect, Effect::Unknown);
    assert!(failure.to_string().contains("one manager at a time"), "{failure}");
}

#[test]
fn a_progress_beyond_the_end_is_refused() {
    let failure = status_of(Opcode::BIND_VPPB, 101).bind(&BindVppb::default()).unwrap_err();
    assert!(failure.to_string().contains("a progress of 101 %"), "{failure}");
}

/// The peer reports success, and its state is not what was asked for.
#[test]
fn a_bind_that_the_state_does_not_show_is_not_confirmed() {
    let mut client = client(false, |asked| {
        let switch = VirtualSwitch { vppbs_total: 1, vppbs: vec![Vppb::default()], ..Default::default() };
        let response = Response::GetVirtualSwitches(VirtualSwitches { switches: vec![switch] });
        let response = (asked.header.opcode == Opcode::GET_VIRTUAL_SWITCH_INFO).then_some(&response);
        vec![answer(asked, ReturnCode::SUCCESS, response)]
    });
    let failure = client.bind(&BindVppb::default()).unwrap_err();
    assert!(failure.to_string().contains("vPPB 0 of virtual switch 0 is Unbound"), "{failure}");
}
