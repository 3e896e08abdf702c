// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A driven switch: which orders it gives to its driver, how it answers its managers before and after the driver ends
//! an order, and which state it adopts.

use aquifer_cxl_switch::*;
use aquifer_fmapi::*;

mod client;
mod driver;

use client::{at_device, at_ld, at_switch};
use driver::{GIB, LIMIT_NS, Rig};

const UNIT: u64 = 256 << 20;

fn bind(vppb_id: u8, ld_id: u16) -> Request {
    Request::BindVppb(BindVppb { vcs_id: 0, vppb_id, port_id: 0, ld_id })
}

fn unbind(vppb_id: u8) -> Request {
    Request::UnbindVppb(UnbindVppb { vcs_id: 0, vppb_id, option: UnbindOption::ManagedRemoval })
}

/// A rig whose first device has this many units in its first logical devices.
fn rig(units: &[u64]) -> Rig {
    let mut rig = Rig::new();
    rig.pool.devices[0].lds = (0..).zip(units.iter().map(|units| units * UNIT)).collect();
    rig.adopt();
    rig
}

#[test]
fn nothing_is_there_until_a_state_is_adopted() {
    let mut rig = Rig::new();
    let identity = rig.identity();
    assert_eq!((identity.physical_ports, identity.virtual_switches), (4, 2));
    assert_eq!((identity.active_virtual_switches[0], identity.vppbs_active), (0, 0));
    assert_eq!(rig.client.port(0).link_state, LinkState::Detect);
    assert_eq!(rig.code(&at_device(0), &Request::Identify(Identify {})), ReturnCode::INVALID_INPUT);
    assert_eq!(rig.code(&at_switch(), &bind(0, 0)), ReturnCode::INVALID_INPUT);
    rig.adopt();
    assert_eq!((rig.identity().active_virtual_switches[0], rig.client.port(0).link_state), (3, LinkState::L0));
    assert_eq!(rig.client.port(0).device_type, DeviceType::Type3Mld);
    assert_eq!(rig.capabilities(0), (4 * GIB, 16, 0));
    assert_eq!(rig.units(0), [0; 16]);
}

#[test]
fn an_allocation_is_answered_when_the_driver_has_ended_it() {
    let mut rig = rig(&[]);
    assert_eq!(rig.set(0, 0, &[1, 0, 2]), None, "it waits");
    let order = Order::Allocate { device: 0, lds: vec![(0, UNIT), (1, 0), (2, 2 * UNIT)] };
    assert_eq!(rig.orders(), std::slice::from_ref(&order));
    assert_eq!(rig.units(0), [0; 16], "until then, it is as before");
    // One at a time; what only reads is answered meanwhile. Busy would refer the manager to a background operation.
    assert!(!rig.client.background().is_running);
    assert_eq!(rig.set(1, 0, &[1]), Some(ReturnCode::RETRY_REQUIRED));
    assert_eq!(rig.code(&at_switch(), &bind(0, 0)), ReturnCode::RETRY_REQUIRED);
    assert_eq!(rig.code(&at_switch(), &unbind(0)), ReturnCode::RETRY_REQUIRED);
    assert_eq!(rig.end(Ending::Done), Some(ReturnCode::SUCCESS));
    assert_eq!(rig.units(0)[..3], [1, 0, 2]);
    assert_eq!(rig.set(0, 2, &[0]), None);
    assert_eq!(rig.orders(), [Order::Allocate { device: 0, lds: vec![(2, 0)] }]);
    assert_eq!(rig.end(Ending::Refused(ReturnCode::RESOURCES_EXHAUSTED)), Some(ReturnCode::RESOURCES_EXHAUSTED));
    assert_eq!(rig.units(0)[..3], [1, 0, 2]);
}

/// The state that is shown may be old, and only the driver knows the pool's. So Success was reported for sizes that the
/// pool no longer had.
#[test]
fn every_listed_logical_device_is_ordered_even_where_the_switch_shows_that_size() {
    let mut rig = rig(&[1, 2]);
    rig.pool.bindings.push(AdoptedBinding { vcs_id: 0, vppb_id: 0, device: 0, ld_id: 1, progress: Progress::Bound });
    rig.adopt();
    assert_eq!(rig.set(0, 0, &[1, 2, 0]), None);
    let order = Order::Allocate { device: 0, lds: vec![(0, UNIT), (1, 2 * UNIT), (2, 0)] };
    assert_eq!(rig.orders(), [order]);
    assert_eq!(rig.end(Ending::Refused(ReturnCode::RETRY_REQUIRED)), Some(ReturnCode::RETRY_REQUIRED));
    assert_eq!(rig.set(0, 0, &[1, 2, 3]), None);
    let order = Order::Allocate { device: 0, lds: vec![(0, UNIT), (1, 2 * UNIT), (2, 3 * UNIT)] };
    assert_eq!(rig.orders(), [order]);
    assert_eq!(rig.end(Ending::Done), Some(ReturnCode::SUCCESS));
    assert_eq!(rig.units(0)[..4], [1, 2, 3, 0]);
}

/// The answer was found to be too long after the memory had been taken, and said Invalid Input.
#[test]
fn an_answer_that_would_be_too_long_is_refused_before_memory_is_taken() {
    let mut rig = rig(&[]);
    let limit = |limit_log2| Request::SetMessageLimit(SetMessageLimit { limit_log2 });
    assert_eq!(rig.code(&at_device(0), &limit(8)), ReturnCode::SUCCESS);
    assert_eq!(rig.set(0, 0, &[1; 16]), Some(ReturnCode::INVALID_INPUT), "12 + 4 + 16 * 16 bytes are more than 256");
    assert_eq!(rig.orders(), []);
    // 15 fit in the device's limit, but not in that of the switch, whose answer carries them.
    assert_eq!(rig.code(&at_switch(), &limit(8)), ReturnCode::SUCCESS);
    assert_eq!(rig.set(0, 0, &[1; 15]), Some(ReturnCode::INVALID_INPUT));
    assert_eq!(rig.orders(), []);
    assert_eq!(rig.code(&at_switch(), &limit(13)), ReturnCode::SUCCESS);
    assert_eq!(rig.set(0, 0, &[1; 15]), None);
    assert_eq!(rig.end(Ending::Done), Some(ReturnCode::SUCCESS));
    assert_eq!(rig.units_of(0, 13, 3), [1, 1, 0]);
}

/// What the driver has done is reported, whatever another manager or a donor does meanwhile.
#[test]
fn an_order_that_was_carried_out_is_answered_so_whatever_has_happened_meanwhile() {
    let mut rig = rig(&[]);
    assert_eq!(rig.set(0, 0, &[1; 16]), None);
    let order = rig.ordered();
    let limit = Request::SetMessageLimit(SetMessageLimit { limit_log2: 8 });
    for path in [at_switch(), at_device(0)] {
        assert_eq!(rig.code(&path, &limit), ReturnCode::SUCCESS);
    }
    rig.pool.devices[0].is_present = false;
    rig.adopt();
    assert_eq!(rig.end(Ending::Done), Some(ReturnCode::SUCCESS));
    assert_eq!(rig.client.switch.conclude(rig.client.now_ns, order, Ending::Done), Outcome::default());
    rig.pool.devices[0].is_present = true;
    rig.pool.devices[0].lds = (0..16).map(|ld_id| (ld_id, UNIT)).collect();
    rig.adopt();
    assert_eq!(rig.units_of(0, 0, 8), [1; 8]);
}

#[test]
fn an_allocation_that_cannot_be_is_refused_without_an_order() {
    let mut rig = rig(&[1]);
    rig.pool.bindings.push(AdoptedBinding { vcs_id: 0, vppb_id: 0, device: 0, ld_id: 0, progress: Progress::Bound });
    rig.adopt();
    for (first, units) in [(0, &[2][..]), (0, &[0]), (1, &[16]), (15, &[1, 1]), (16, &[1]), (1, &[u64::MAX, 2])] {
        assert_eq!(rig.set(0, first, units), Some(ReturnCode::INVALID_INPUT), "{first} {units:?}");
    }
    let ranges = vec![LdAllocation { range_1: 0, range_2: 1 }];
    let request = Request::SetLdAllocations(SetLdAllocations { first_ld_id: 3, allocations: ranges });
    assert_eq!(rig.code(&at_device(0), &request), ReturnCode::INVALID_INPUT);
    rig.pool.devices[0].is_present = false;
    rig.adopt();
    assert_eq!(rig.set(0, 1, &[1]), Some(ReturnCode::INVALID_INPUT), "nobody is there");
    assert_eq!(rig.orders(), []);
}

#[test]
fn a_bind_and_an_unbind_run_until_the_driver_ends_them() {
    let mut rig = rig(&[1, 1]);
    assert_eq!(rig.code(&at_switch(), &bind(3, 1)), ReturnCode::BACKGROUND_STARTED);
    assert_eq!(rig.orders(), [Order::Bind { vcs_id: 0, vppb_id: 3, device: 0, ld_id: 1 }]);
    assert_eq!(rig.client.vppbs(0)[3].status, BindingStatus::InProgress);
    assert_eq!(rig.client.port(0).state, PortState::BindInProgress);
    rig.client.now_ns += LIMIT_NS / 2;
    assert_eq!((rig.client.background().is_running, rig.client.background().percent), (true, 50));
    // Neither another one, nor an adopted state from before, nor an abort changes it.
    assert_eq!(rig.code(&at_switch(), &bind(4, 0)), ReturnCode::BUSY);
    assert_eq!(rig.set(0, 5, &[1]), Some(ReturnCode::BUSY));
    rig.adopt();
    assert_eq!(rig.client.vppbs(0)[3].status, BindingStatus::InProgress);
    assert_eq!(rig.code(&at_switch(), &Request::AbortBackground(AbortBackground {})), ReturnCode::UNSUPPORTED);
    rig.end(Ending::Done);
    assert_eq!(ReturnCode(rig.client.background().return_code), ReturnCode::SUCCESS);
    assert_eq!(rig.client.vppbs(0)[3], Vppb { status: BindingStatus::Ld, port_id: 0, ld_id: 1 });

    assert_eq!(rig.code(&at_switch(), &unbind(3)), ReturnCode::BACKGROUND_STARTED);
    assert_eq!(rig.orders(), [Order::Unbind { vcs_id: 0, vppb_id: 3, device: 0, ld_id: 1 }]);
    rig.end(Ending::Refused(ReturnCode::RETRY_REQUIRED));
    assert_eq!(ReturnCode(rig.client.background().return_code), ReturnCode::RETRY_REQUIRED);
    assert_eq!(rig.client.vppbs(0)[3].status, BindingStatus::Ld);
    assert_eq!(rig.code(&at_switch(), &unbind(3)), ReturnCode::BACKGROUND_STARTED);
    rig.end(Ending::Done);
    assert_eq!(rig.client.vppbs(0)[3].status, BindingStatus::Unbound);
}

/// A host that does not take what it is to have does not have it because the unbind was refused.
#[test]
fn a_refused_unbind_leaves_a_vppb_as_it_was() {
    let mut rig = rig(&[1]);
    for (progress, status) in [(Progress::Binding, BindingStatus::InProgress), (Progress::Bound, BindingStatus::Ld)] {
        rig.pool.bindings = vec![AdoptedBinding { vcs_id: 0, vppb_id: 0, device: 0, ld_id: 0, progress }];
        rig.adopt();
        assert_eq!(rig.code(&at_switch(), &unbind(0)), ReturnCode::BACKGROUND_STARTED);
        assert_eq!(rig.client.vppbs(0)[0].status, BindingStatus::InProgress);
        rig.end(Ending::Refused(ReturnCode::RETRY_REQUIRED));
        assert_eq!(ReturnCode(rig.client.background().return_code), ReturnCode::RETRY_REQUIRED);
        assert_eq!(rig.client.vppbs(0)[0].status, status, "{progress:?}");
    }
}

#[test]
fn a_bind_that_cannot_be_is_refused_without_an_order() {
    let mut rig = rig(&[1]);
    assert_eq!(rig.code(&at_switch(), &bind(0, 1)), ReturnCode::INVALID_INPUT, "it has no memory");
    assert_eq!(rig.code(&at_switch(), &bind(0, 16)), ReturnCode::INVALID_INPUT);
    assert_eq!(rig.code(&at_switch(), &bind(9, 0)), ReturnCode::INVALID_INPUT);
    assert_eq!(rig.code(&at_switch(), &unbind(0)), ReturnCode::INVALID_INPUT);
    rig.pool.hosts[0].is_up = false;
    rig.adopt();
    assert_eq!(rig.code(&at_switch(), &bind(0, 0)), ReturnCode::RETRY_REQUIRED, "the host does not answer");
    rig.pool.hosts[0] = AdoptedHost::default();
    rig.adopt();
    assert_eq!(rig.code(&at_switch(), &bind(0, 0)), ReturnCode::INVALID_INPUT, "nobody knows the host");
    rig.pool.hosts[0] = AdoptedHost { is_known: true, is_up: true };
    rig.pool.devices[0].is_present = false;
    rig.adopt();
    assert_eq!(rig.code(&at_switch(), &bind(0, BindVppb::NO_LD)), ReturnCode::INVALID_INPUT, "no LD is there");
    assert_eq!(rig.orders(), []);
}

/// The driver does not answer: no success is reported, and the next adopted state shows what has happened.
#[test]
fn an_order_without_an_end_has_a_limit() {
    let mut rig = rig(&[1]);
    for is_carried_out in [false, true] {
        assert_eq!(rig.code(&at_switch(), &bind(0, 0)), ReturnCode::BACKGROUND_STARTED);
        let id = rig.ordered();
        assert_eq!(rig.client.switch.deadline_ns(), Some(rig.client.now_ns + LIMIT_NS));
        rig.client.now_ns += LIMIT_NS;
        let status = rig.client.background();
        assert_eq!((status.is_running, ReturnCode(status.return_code)), (false, ReturnCode::INTERNAL_ERROR));
        assert_eq!(rig.client.vppbs(0)[0].status, BindingStatus::InProgress, "nobody knows yet");
        // It is late.
        let outcome = rig.client.switch.conclude(rig.client.now_ns, id, Ending::Done);
        assert_eq!(outcome, Outcome::default());
        assert_eq!(rig.client.vppbs(0)[0].status, BindingStatus::InProgress);
        if is_carried_out {
            let bound = AdoptedBinding { vcs_id: 0, vppb_id: 0, device: 0, ld_id: 0, progress: Progress::Bound };
            rig.pool.bindings.push(bound);
        }
        rig.adopt();
        let expected = if is_carried_out { BindingStatus::Ld } else { BindingStatus::Unbound };
        assert_eq!(rig.client.vppbs(0)[0].status, expected);
    }
    assert_eq!(rig.set(0, 1, &[1]), None);
    rig.client.now_ns += LIMIT_NS;
    assert_eq!(rig.advance(), Some(ReturnCode::INTERNAL_ERROR));
    assert_eq!(rig.units(0)[..2], [1, 0]);
}

#[test]
fn what_others_change_is_recorded() {
    let mut rig = rig(&[1, 1]);
    rig.client.seen = Outcome::default();
    let binding = |ld_id, progress| AdoptedBinding { vcs_id: 1, vppb_id: ld_id + 2, device: 0, ld_id, progress };
    let seen = |rig: &mut Rig| {
        rig.adopt();
        let events = std::mem::take(&mut rig.client.seen).events;
        let meanings = events.iter().map(|event| event.record.meaning().expect("it has one"));
        meanings.collect::<Vec<EventData>>()
    };
    for (progress, status) in [
        (Progress::Binding, BindingStatus::InProgress),
        (Progress::Bound, BindingStatus::Ld),
        (Progress::Unbinding, BindingStatus::InProgress),
    ] {
        rig.pool.bindings = vec![binding(1, progress)];
        let [EventData::Vppb(event)] = seen(&mut rig)[..] else { panic!("one record") };
        assert_eq!((event.vcs_id, event.vppb_id, event.vppb.status), (1, 3, status));
        assert!(seen(&mut rig).is_empty(), "nothing new");
    }
    // A vPPB and a logical device are bound once, whatever is said.
    rig.pool.bindings = vec![binding(0, Progress::Bound), AdoptedBinding { vppb_id: 7, ..binding(0, Progress::Bound) }];
    seen(&mut rig);
    assert_eq!(rig.identity().vppbs_active, 1);
    rig.pool.bindings.clear();
    assert_eq!(seen(&mut rig).len(), 1);
    // A donor leaves, and comes back; a host stops answering.
    rig.pool.devices[0].is_present = false;
    rig.pool.hosts[1].is_up = false;
    let [EventData::Port(host), EventData::Port(device)] = seen(&mut rig)[..] else { panic!("two records") };
    assert_eq!((host.port.port_id, host.port.link_state), (3, LinkState::Detect));
    assert_eq!((device.port.port_id, device.port.device_type), (0, DeviceType::None));
    rig.pool.devices[0].is_present = true;
    assert_eq!(seen(&mut rig).len(), 1);
    // Another volume takes memory, and a logical device is resized.
    rig.pool.devices[0].memory_bytes = GIB + 1;
    rig.pool.devices[0].lds = vec![(0, UNIT), (1, 2 * UNIT)];
    seen(&mut rig);
    assert_eq!(rig.capabilities(0).0, GIB);
    assert_eq!(rig.units(0)[..2], [1, 2]);
}

/// A bind that its host never takes can be given up, and an unbind that its host delays ends by itself.
#[test]
fn what_is_in_progress_without_an_operation_is_told_from_what_cannot_be() {
    let mut rig = rig(&[1, 1]);
    let binding = |ld_id, progress| AdoptedBinding { vcs_id: 0, vppb_id: ld_id, device: 0, ld_id, progress };
    rig.pool.bindings = vec![binding(0, Progress::Binding), binding(1, Progress::Unbinding)];
    rig.adopt();
    assert_eq!(rig.code(&at_switch(), &bind(0, 1)), ReturnCode::INVALID_INPUT);
    assert_eq!(rig.code(&at_switch(), &bind(1, 0)), ReturnCode::INVALID_INPUT, "the LD is taken");
    assert_eq!(rig.code(&at_switch(), &unbind(1)), ReturnCode::RETRY_REQUIRED);
    assert_eq!(rig.set(0, 1, &[0]), Some(ReturnCode::INVALID_INPUT), "its host still has it");
    assert_eq!(rig.code(&at_switch(), &unbind(0)), ReturnCode::BACKGROUND_STARTED);
    assert_eq!(rig.orders(), [Order::Unbind { vcs_id: 0, vppb_id: 0, device: 0, ld_id: 0 }]);
}

#[test]
fn what_donors_do_not_have_is_unsupported_and_the_log_of_effects_says_so() {
    let mut rig = rig(&[1]);
    let listed = |rig: &mut Rig, path: &[client::Hop]| {
        rig.client.command_effects(path).iter().map(|effect| effect.opcode).collect::<Vec<Opcode>>()
    };
    let (switch, mld, ld) =
        (listed(&mut rig, &at_switch()), listed(&mut rig, &at_device(0)), listed(&mut rig, &at_ld(0, 0)));
    for opcode in [
        Opcode::ABORT_BACKGROUND,
        Opcode::PHYSICAL_PORT_CONTROL,
        Opcode::SEND_PPB_CONFIGURATION_REQUEST,
        Opcode::GENERATE_AER_EVENT,
        Opcode::GET_DOMAIN_SV,
        Opcode::SEND_LD_CONFIGURATION_REQUEST,
        Opcode::SEND_LD_MEMORY_REQUEST,
    ] {
        assert!(!switch.contains(&opcode), "{opcode:?}");
        assert_eq!(rig.client.code_of_payload(&at_switch(), opcode, &[0; 64]), ReturnCode::UNSUPPORTED, "{opcode:?}");
    }
    for opcode in [
        Opcode::GET_QOS_CONTROL,
        Opcode::SET_QOS_CONTROL,
        Opcode::GET_QOS_STATUS,
        Opcode::GET_QOS_ALLOCATED_BW,
        Opcode::SET_QOS_ALLOCATED_BW,
        Opcode::GET_QOS_BW_LIMIT,
        Opcode::SET_QOS_BW_LIMIT,
        Opcode::GET_DCD_INFO,
        Opcode::INITIATE_DC_ADD,
        Opcode::GET_MULTI_HEADED_INFO,
        Opcode::SANITIZE,
    ] {
        assert!(!mld.contains(&opcode) && !ld.contains(&opcode), "{opcode:?}");
        assert_eq!(rig.client.code_of_payload(&at_device(0), opcode, &[0; 8]), ReturnCode::UNSUPPORTED, "{opcode:?}");
    }
    assert!(mld.contains(&Opcode::SET_LD_ALLOCATIONS) && switch.contains(&Opcode::BIND_VPPB));
    assert_eq!(
        ld,
        [
            Opcode::IDENTIFY,
            Opcode::GET_SUPPORTED_LOGS,
            Opcode::GET_LOG,
            Opcode::GET_LOG_CAPABILITIES,
            Opcode::IDENTIFY_MEMORY_DEVICE
        ]
    );
}

/// The answer that waits fails as it was injected, and goes to the manager that has asked.
#[test]
fn two_managers_get_their_own_answers() {
    let mut rig = rig(&[]);
    rig.client.inject(Injection::Answer { failure: AnswerFailure::Duplicate, opcode: Some(Opcode::TUNNEL), times: 1 });
    rig.client.connection.id = 7;
    assert_eq!(rig.set(0, 0, &[1]), None);
    rig.client.connection.id = 8;
    assert_eq!(rig.set(0, 1, &[1]), Some(ReturnCode::RETRY_REQUIRED));
    let id = rig.ordered();
    let outcome = rig.client.switch.conclude(rig.client.now_ns, id, Ending::Done);
    assert_eq!(outcome.replies.iter().map(|reply| reply.connection).collect::<Vec<u32>>(), [7, 7]);
}

#[test]
fn only_mlds_with_one_port_can_be_driven() {
    let refusal = Switch::driven(SwitchConfig::example(), 1).expect_err("it has an SLD").to_string();
    assert!(refusal.starts_with("devices[0]: a driven switch has MLDs"), "{refusal}");
    let mut switch = Switch::new(SwitchConfig::example()).expect("a switch");
    let before = switch.config().clone();
    assert_eq!(switch.adopt(0, &Adopted::default()), Outcome::default());
    assert_eq!(*switch.config(), before);
}
