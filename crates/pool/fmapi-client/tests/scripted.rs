// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Peers that behave as few correct switches do: they send without end, answer another command inside a tunnel, report
//! another manager's background operation, or have more tags than fit into one answer.

use std::sync::{Arc, Mutex};

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

/// Returns a client of a device with this many tags, which lists them in pieces and changes its list while these pieces
/// are read. The bit maps of the piece at `invalid` are not valid.
fn tagged(tags: u32, changes_at: &'static [u32], invalid: Option<u32>) -> (Client, Arc<Mutex<u32>>) {
    let count = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&count);
    let client = client(false, move |asked| {
        let Ok(Request::DcListTags(list)) = Request::decode(asked.header.opcode, &asked.payload, &Dialect::STANDARD)
        else {
            panic!("another command")
        };
        let mut requests = counted.lock().unwrap();
        *requests += 1;
        let generation = changes_at.iter().filter(|at| **at <= *requests).count() as u32;
        let one = |number: u32| {
            // The first tag names the generation.
            let tag = u128::from(if number == 0 { 1 << 20 | generation } else { number });
            DcTag { tag: tag.to_be_bytes(), ..DcTag::default() }
        };
        let listed = (0..tags).skip(list.first as usize).take(list.count as usize).map(one).collect();
        let validity = if invalid == Some(*requests) { DcTags::HOSTS_VALID } else { 3 };
        let response = Response::DcListTags(DcTags { generation, total: tags, validity, tags: listed });
        vec![answer(asked, ReturnCode::SUCCESS, Some(&response))]
    });
    (client, count)
}

/// 96 tags fit into a message of 8 KiB.
#[test]
fn tags_are_read_to_the_last_and_are_of_one_generation() {
    for (tags, changes_at, requests, generation) in [
        (0, &[][..], 1, 0),
        (96, &[], 1, 0),
        (97, &[], 2, 0),
        (200, &[], 3, 0),
        (200, &[2], 5, 1),
        (200, &[3, 6], 9, 2),
    ] {
        let (mut client, count) = tagged(tags, changes_at, None);
        let list = client.dc_tags(&[]).unwrap();
        assert_eq!((list.tags.len() as u32, list.total, list.generation), (tags, tags, generation));
        assert_eq!(*count.lock().unwrap(), requests, "{tags} tags, changes at {changes_at:?}");
        let named = list.tags.first().map(|first| u128::from_be_bytes(first.tag));
        assert_eq!(named.unwrap_or(1 << 20), 1 << 20 | u128::from(generation), "all pieces are of one generation");
    }
    for invalid in 1..=3 {
        let validity = tagged(200, &[], Some(invalid)).0.dc_tags(&[]).unwrap().validity;
        assert_eq!(validity, DcTags::HOSTS_VALID, "piece {invalid}");
    }
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

/// Answers a bind, says that the last one failed, and reports this status of the vPPB.
fn failed_bind(status: BindingStatus) -> Client {
    client(false, move |asked| {
        let background = BackgroundStatus {
            percent: 100,
            opcode: Opcode::BIND_VPPB.0,
            return_code: ReturnCode::ABORTED.0,
            ..Default::default()
        };
        let vppb = Vppb { status, port_id: 3, ld_id: Vppb::NO_LD };
        let switch = VirtualSwitch { vppbs_total: 1, vppbs: vec![vppb], ..Default::default() };
        match asked.header.opcode {
            Opcode::BIND_VPPB => vec![answer(asked, ReturnCode::BACKGROUND_STARTED, None)],
            Opcode::BACKGROUND_STATUS => {
                let response = Response::GetBackgroundStatus(background);
                vec![answer(asked, ReturnCode::SUCCESS, Some(&response))]
            }
            Opcode::GET_VIRTUAL_SWITCH_INFO if status == BindingStatus::InProgress => Vec::new(),
            _ => {
                let response = Response::GetVirtualSwitches(VirtualSwitches { switches: vec![switch] });
                vec![answer(asked, ReturnCode::SUCCESS, Some(&response))]
            }
        }
    })
}

/// Two managers bind one after the other. The second one's bind fails before the first one asks how its own has ended:
/// the first one was answered that nothing had changed, and its device was bound.
#[test]
fn a_bind_is_judged_by_the_state_even_if_the_last_one_failed() {
    let bind = BindVppb { port_id: 3, ld_id: BindVppb::NO_LD, ..Default::default() };
    failed_bind(BindingStatus::Port).bind(&bind).expect("the vPPB is bound");
    let failure = failed_bind(BindingStatus::Unbound).bind(&bind).unwrap_err();
    assert!(matches!(failure.cause, Cause::BackgroundFailed(ReturnCode::ABORTED)), "{failure}");
    assert_eq!(failure.effect, Effect::NotCarriedOut);
    let failure = failed_bind(BindingStatus::InProgress).bind(&bind).unwrap_err();
    assert_eq!(failure.effect, Effect::Unknown, "the state cannot be read: {failure}");
}

/// A bind of the switch that did not end kept the client from ever dividing a device again: it asked the device, which
/// has no background operations, how that one was going.
#[test]
fn an_operation_of_the_switch_does_not_stop_commands_to_a_device() {
    let mut client = client(false, |asked| {
        let running = BackgroundStatus { is_running: true, opcode: Opcode::BIND_VPPB.0, ..Default::default() };
        match Request::decode(asked.header.opcode, &asked.payload, &Dialect::STANDARD).unwrap() {
            Request::BindVppb(_) => vec![answer(asked, ReturnCode::BACKGROUND_STARTED, None)],
            Request::GetBackgroundStatus(_) => {
                vec![answer(asked, ReturnCode::SUCCESS, Some(&Response::GetBackgroundStatus(running)))]
            }
            Request::Tunnel(tunnel) => {
                let inner = Message::decode(&tunnel.message, &Dialect::STANDARD).unwrap();
                let inner = match Request::decode(inner.header.opcode, &inner.payload, &Dialect::STANDARD).unwrap() {
                    Request::SetLdAllocations(set) => {
                        let SetLdAllocations { first_ld_id, allocations } = set;
                        let new = Response::SetLdAllocations(NewLdAllocations { first_ld_id, allocations });
                        answer(&inner, ReturnCode::SUCCESS, Some(&new))
                    }
                    _ => answer(&inner, ReturnCode::UNSUPPORTED, None),
                };
                let tunnelled = Response::Tunnel(Tunnelled { message: inner.encode(&Dialect::STANDARD) });
                vec![answer(asked, ReturnCode::SUCCESS, Some(&tunnelled))]
            }
            _ => vec![answer(asked, ReturnCode::ABORT_NOT_SUPPORTED, None)],
        }
    });
    let failure = client.bind(&BindVppb::default()).unwrap_err();
    assert!(matches!(failure.cause, Cause::BackgroundUnfinished { .. }), "{failure}");
    let set = SetLdAllocations { first_ld_id: 0, allocations: vec![LdAllocation { range_1: 1, range_2: 0 }] };
    client.set_ld_allocations(&[Hop::Port(1)], &set).unwrap();
    let failure = client.bind(&BindVppb::default()).unwrap_err();
    assert_eq!(failure.effect, Effect::NotCarriedOut, "it waits for the one before: {failure}");
}

/// A peer whose messages may be longer than what a tunnel can carry, as a mailbox of 1 MiB.
struct Large;

impl Transport for Large {
    fn name(&self) -> String {
        "large".into()
    }

    fn message_bytes_max(&self) -> usize {
        1 << 20
    }

    fn message_type(&self, _: Opcode) -> Option<MessageType> {
        None
    }

    fn send(&mut self, _: &[u8], _: &'static Dialect, _: std::time::Duration) -> Result<(), TransportFailure> {
        panic!("it is too long to be sent")
    }

    fn receive(&mut self, _: &'static Dialect, _: std::time::Duration) -> Result<Vec<u8>, TransportFailure> {
        Err(TransportFailure::TimedOut)
    }
}

/// The size of a tunnelled message has 16 bits. A longer one ended the program.
#[test]
fn what_no_tunnel_carries_is_refused_before_it_is_sent() {
    let mut client = Client::new(Box::new(Large), SystemClock::shared(), Limits::default());
    let add = InitiateDcAdd {
        policy: add_policy::PRESCRIPTIVE,
        extents: vec![Extent::default(); 2000],
        ..Default::default()
    };
    let failure = client.initiate_dc_add(&[Hop::Port(1)], &add).unwrap_err();
    assert!(matches!(failure.cause, Cause::TooLong { bytes_max: 65_534, .. }), "{failure}");
    assert_eq!(failure.effect, Effect::NotCarriedOut);
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
