// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the client does with each return code, each kind of lost answer and each background operation; and what it
//! never does.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aquifer_cxl_switch::{Injection, SwitchConfig};
use aquifer_fmapi::*;
use aquifer_fmapi_client::{Cause, Client, Clock, Effect, Hop, Limits, TransportFailure};

mod world;

use world::{Injected, VirtualClock, Wire, World};

/// A client of a switch. The failures are injected into its first requests of a command.
struct Setup {
    world: Arc<Mutex<World>>,
    clock: Arc<VirtualClock>,
    client: Client,
}

fn setup(opcode: Opcode, injections: &[Injected]) -> Setup {
    setup_with(opcode, injections, Limits::default())
}

fn setup_with(opcode: Opcode, injections: &[Injected], limits: Limits) -> Setup {
    let (world, clock) = (World::shared(SwitchConfig::example()), Arc::<VirtualClock>::default());
    let mut wire = Wire::new(&world, &clock, 1);
    let mut injections = injections.to_vec();
    injections.reverse();
    wire.injections = Box::new(move |sent| {
        let is_meant = sent == opcode;
        if is_meant { injections.pop().unwrap_or(Injected::None) } else { Injected::None }
    });
    Setup { client: wire.client(limits), world, clock }
}

impl Setup {
    /// Returns how many requests of a command the switch received.
    fn sent(&self, opcode: Opcode) -> usize {
        self.world.lock().unwrap().requests.iter().filter(|(_, message)| message.header.opcode == opcode).count()
    }
}

const BIND: BindVppb = BindVppb { vcs_id: 0, vppb_id: 2, port_id: 0, ld_id: BindVppb::NO_LD };
const UNBIND: UnbindVppb = UnbindVppb { vcs_id: 0, vppb_id: 2, option: UnbindOption::ManagedRemoval };

#[test]
fn a_switch_is_read_bound_and_unbound() {
    let mut it = setup(Opcode::IDENTIFY, &[]);
    assert_eq!(it.client.recognise().unwrap().name, "standard");
    let switch = it.client.identify_switch().unwrap();
    let ports: Vec<u8> = (0..switch.physical_ports).collect();
    assert_eq!(it.client.port_states(&ports).unwrap().len(), 8);
    it.client.bind(&BIND).unwrap();
    let vppb = it.client.virtual_switch(0).unwrap().vppbs[2];
    assert_eq!((vppb.status, vppb.port_id), (BindingStatus::Port, 0));
    it.client.unbind(&UNBIND).unwrap();
    assert_eq!(it.client.virtual_switch(0).unwrap().vppbs[2].status, BindingStatus::Unbound);
    let ld = BindVppb { port_id: 1, ld_id: 3, ..BIND };
    it.client.bind(&ld).unwrap();
    assert_eq!(it.client.virtual_switch(0).unwrap().vppbs[2].ld_id, 3);
    assert_eq!(it.client.command_effects(&[]).unwrap().len(), 29);
    assert!(!it.client.events(&[], EventLog::Informational, true).unwrap().records.is_empty());
    assert!(it.client.events(&[], EventLog::Informational, true).unwrap().records.is_empty());
}

#[test]
fn devices_are_reached_through_one_tunnel_or_two() {
    let mut it = setup(Opcode::IDENTIFY, &[]);
    let mld = [Hop::Port(1)];
    assert_eq!(it.client.identify(&mld).unwrap().component_type, Some(ComponentType::Type3));
    assert_eq!(it.client.identify(&[Hop::Port(1), Hop::Ld(2)]).unwrap().component_type, Some(ComponentType::Type3));
    assert_eq!(it.client.ld_capabilities(&mld).unwrap().ld_count, 4);
    let mut allocations = it.client.ld_allocations(&mld).unwrap().allocations;
    allocations[3].range_1 = 0;
    it.client.set_ld_allocations(&mld, &SetLdAllocations { first_ld_id: 0, allocations: allocations.clone() }).unwrap();
    assert_eq!(it.client.ld_allocations(&mld).unwrap().allocations, allocations);
    assert_eq!(it.client.qos_status(&mld).unwrap().back_pressure_percent, 0);
    let dcd = [Hop::Port(2)];
    assert_eq!(it.client.dcd(&dcd).unwrap().regions, 2);
    assert_eq!(it.client.dc_regions(&dcd, 0).unwrap().regions.len(), 2);
    assert_eq!(it.client.dc_extents(&dcd, 0).unwrap().total, 0);
    let failure = it.client.identify(&[Hop::Port(99)]).unwrap_err();
    assert!(matches!(failure.cause, Cause::Refused(ReturnCode::INVALID_INPUT)), "{failure}");
    assert_eq!(failure.effect, Effect::NotCarriedOut);
}

#[test]
fn a_busy_peer_is_asked_again_and_not_for_ever() {
    let mut it = setup(Opcode::BIND_VPPB, &[Injected::Busy; 3]);
    it.client.bind(&BIND).unwrap();
    assert_eq!(it.sent(Opcode::BIND_VPPB), 4);
    let mut it = setup(Opcode::BIND_VPPB, &[Injected::Busy; 100]);
    let failure = it.client.bind(&BIND).unwrap_err();
    assert!(matches!(failure.cause, Cause::Busy { code: ReturnCode::BUSY, attempts: 13 }), "{failure}");
    assert_eq!((failure.effect, it.sent(Opcode::BIND_VPPB)), (Effect::NotCarriedOut, 13));
    assert!(it.clock.now() < it.client.limits().command_max());
    assert_eq!(
        failure.to_string(),
        "Bind vPPB (5201h) at model: Busy (0006h) in answer to each of 13 attempts; \
         find out what keeps the peer busy (0002h), or allow more retries"
    );
}

#[test]
fn a_lost_answer_to_a_command_that_reads_is_asked_for_again() {
    for injected in [
        Injected::DropAnswer,
        Injected::DropRequest,
        Injected::Late(10_000_000_000),
        Injected::LengthLies(4),
        Injected::Truncate(20),
        Injected::Truncate(5),
        Injected::WrongCategory,
        Injected::WrongOpcode,
        Injected::WrongTag,
    ] {
        let mut it = setup(Opcode::IDENTIFY_SWITCH_DEVICE, &[injected, injected]);
        assert_eq!(it.client.identify_switch().unwrap().physical_ports, 8, "{injected:?}");
        assert_eq!(it.sent(Opcode::IDENTIFY_SWITCH_DEVICE), 3, "{injected:?}");
        let mut it = setup(Opcode::IDENTIFY_SWITCH_DEVICE, &[injected; 3]);
        let failure = it.client.identify_switch().unwrap_err();
        assert!(matches!(failure.cause, Cause::NoAnswer { .. } | Cause::Damaged(_)), "{failure}");
        assert_eq!(failure.effect, Effect::NotCarriedOut);
    }
    for injected in [Injected::Duplicate, Injected::Garbage] {
        let mut it = setup(Opcode::IDENTIFY_SWITCH_DEVICE, &[injected; 9]);
        (0..9).for_each(|_| assert_eq!(it.client.identify_switch().unwrap().physical_ports, 8, "{injected:?}"));
        assert_eq!(it.sent(Opcode::IDENTIFY_SWITCH_DEVICE), 9);
    }
}

#[test]
fn a_lost_answer_to_a_command_that_changes_is_never_asked_for_again() {
    for injected in [Injected::DropAnswer, Injected::Truncate(3), Injected::WrongTag, Injected::LengthLies(1)] {
        let mut it = setup(Opcode::PHYSICAL_PORT_CONTROL, &[injected]);
        let failure = it.client.control_port(0, PortOperation::ResetPpb).unwrap_err();
        assert_eq!((failure.effect, it.sent(Opcode::PHYSICAL_PORT_CONTROL)), (Effect::Unknown, 1), "{failure}");
        assert!(failure.to_string().contains("it may have been carried out"), "{failure}");
        // For a bind, the state shows it.
        let mut it = setup(Opcode::BIND_VPPB, &[injected]);
        it.client.bind(&BIND).unwrap();
        assert_eq!(it.sent(Opcode::BIND_VPPB), 1);
    }
    let mut it = setup(Opcode::BIND_VPPB, &[Injected::DropRequest]);
    let failure = it.client.bind(&BIND).unwrap_err();
    assert_eq!((failure.effect, it.sent(Opcode::BIND_VPPB)), (Effect::Unknown, 1), "{failure}");
    assert_eq!(it.client.virtual_switch(0).unwrap().vppbs[2].status, BindingStatus::Unbound);
}

#[test]
fn a_peer_that_ends_is_reported_at_once() {
    for (injected, effect) in [(Injected::PeerEndsBefore, Effect::Unknown), (Injected::PeerEndsAfter, Effect::Unknown)]
    {
        let mut it = setup(Opcode::BIND_VPPB, &[injected]);
        let failure = it.client.bind(&BIND).unwrap_err();
        assert!(matches!(failure.cause, Cause::Transport(TransportFailure::Closed)), "{failure}");
        assert_eq!(failure.effect, effect);
        assert!(it.clock.now() < Duration::from_secs(1));
    }
}

#[test]
fn a_background_operation_that_never_ends_is_aborted() {
    let mut it = setup(Opcode::IDENTIFY, &[]);
    it.world.lock().unwrap().switch.inject(0, Injection::BackgroundStalls).unwrap();
    let failure = it.client.bind(&BIND).unwrap_err();
    assert!(matches!(failure.cause, Cause::BackgroundAborted { .. }), "{failure}");
    assert!(it.clock.now() < it.client.limits().background + Duration::from_secs(1));
    assert_eq!(it.client.virtual_switch(0).unwrap().vppbs[2].status, BindingStatus::Unbound);
    it.client.bind(&BIND).unwrap();
    let code = ReturnCode::INTERNAL_ERROR;
    it.world.lock().unwrap().switch.inject(0, Injection::BackgroundFails { return_code: code }).unwrap();
    let failure = it.client.unbind(&UNBIND).unwrap_err();
    assert!(matches!(failure.cause, Cause::BackgroundFailed(found) if found == code), "{failure}");
    assert_eq!(it.client.virtual_switch(0).unwrap().vppbs[2].status, BindingStatus::Port);
}

/// The second command of a client that could not see how its first one ended waits for it.
#[test]
fn one_background_operation_runs_at_a_time() {
    let limits = Limits { background: Duration::from_millis(1), ..Limits::default() };
    let mut it = setup_with(Opcode::ABORT_BACKGROUND, &[Injected::DropAnswer; 9], limits);
    let world = Arc::clone(&it.world);
    world.lock().unwrap().switch.inject(0, Injection::BackgroundStalls).unwrap();
    // Neither its end nor its abort is seen.
    let failure = it.client.bind(&BIND).unwrap_err();
    assert_eq!(failure.effect, Effect::Unknown, "{failure}");
    let binds = it.sent(Opcode::BIND_VPPB);
    assert_eq!(binds, 1);
    it.client.bind(&BindVppb { vppb_id: 3, port_id: 1, ld_id: 0, ..BIND }).unwrap_err();
    it.client.bind(&BindVppb { vppb_id: 3, port_id: 1, ld_id: 0, ..BIND }).unwrap_err();
}

#[test]
fn a_command_that_ends_the_peer_is_never_sent() {
    let mut it = setup(Opcode::IDENTIFY, &[]);
    it.client.speak(&Dialect::QEMU);
    for failure in [
        it.client.call(&[], &GetTimestamp {}).unwrap_err(),
        it.client.call(&[], &SetTimestamp { unix_ns: 1 }).unwrap_err(),
        it.client.probe(&[], Opcode::GET_TIMESTAMP, &[]).unwrap_err(),
    ] {
        assert!(matches!(failure.cause, Cause::NeverSent { dialect: "QEMU" }), "{failure}");
    }
    assert!(it.world.lock().unwrap().requests.is_empty());
    // Behind the switch, a device answers it.
    it.client.call(&[Hop::Port(1)], &GetTimestamp {}).unwrap();
    it.client.speak(&Dialect::STANDARD);
    it.client.call(&[], &GetTimestamp {}).unwrap();
}

#[test]
fn gaps_are_kept() {
    let gaps = |it: &Setup| {
        let world = it.world.lock().unwrap();
        let times: Vec<Duration> = world.requests.iter().map(|(time, _)| *time).collect();
        times.windows(2).map(|two| two[1] - two[0]).min().unwrap()
    };
    let mut it = setup_with(Opcode::IDENTIFY, &[], Limits { gap: Duration::from_millis(7), ..Limits::default() });
    (0..5).for_each(|_| assert!(it.client.identify(&[]).is_ok()));
    assert!(gaps(&it) >= Duration::from_millis(7), "{:?}", gaps(&it));
    let mut it = setup(Opcode::IDENTIFY, &[]);
    it.client.speak(&Dialect::QEMU);
    it.client.control_port(0, PortOperation::AssertPerst).unwrap();
    it.client.identify(&[]).unwrap();
    assert!(gaps(&it) >= Duration::from_millis(100), "{:?}", gaps(&it));
}

#[test]
fn messages_that_are_no_answer_are_dropped_and_counted() {
    let mut it = setup(Opcode::IDENTIFY, &[]);
    // The switch notifies the manager of the end of every background operation, by a request.
    it.client.call(&[], &SetMctpEventPolicy { events: 0x801f }).unwrap();
    it.client.bind(&BIND).unwrap();
    it.client.unbind(&UNBIND).unwrap();
    let strays = Limits { strays: 2, ..Limits::default() };
    let mut it = setup_with(Opcode::IDENTIFY, &[Injected::WrongTag; 99], strays);
    let failure = it.client.identify(&[]).unwrap_err();
    assert!(matches!(failure.cause, Cause::NoAnswer { strays: 1, .. }), "{failure}");
    assert!(failure.to_string().contains("only 1 other messages"), "{failure}");
}

#[test]
fn a_request_that_the_peer_has_no_room_for_is_not_sent() {
    let mut it = setup(Opcode::IDENTIFY, &[]);
    it.client.recognise().unwrap();
    let before = it.world.lock().unwrap().requests.len();
    let data = vec![0; 9000];
    let request = LdMemoryRequest { port_id: 1, is_write: true, bytes: 4096, data, ..Default::default() };
    let failure = it.client.run(&[], &request).unwrap_err();
    assert!(matches!(failure.cause, Cause::TooLong { bytes: 9028, bytes_max: 8192 }), "{failure}");
    assert_eq!(it.world.lock().unwrap().requests.len(), before);
}

/// Lists that need several messages are read in pieces.
#[test]
fn long_lists_are_read_in_pieces() {
    let (world, clock) = (World::shared(SwitchConfig::memory_box()), Arc::<VirtualClock>::default());
    let mut wire = Wire::new(&world, &clock, 1);
    wire.bytes_max = 110;
    let mut client = wire.client(Limits::default());
    let ports: Vec<u8> = (0..25).collect();
    assert_eq!(client.port_states(&ports).unwrap().len(), 25);
    assert_eq!(client.virtual_switch(2).unwrap().vppbs.len(), 22);
    let sent = world.lock().unwrap().requests.len();
    assert!(sent > 8, "{sent}");
}

#[test]
fn every_dialect_is_recognised_and_spoken() {
    for dialect in &[Dialect::STANDARD, Dialect::OPENCIS, Dialect::JACKRABBIT] {
        let dialect = Dialect::named(dialect.name).unwrap();
        let (world, clock) = (World::shared(SwitchConfig::example()), Arc::<VirtualClock>::default());
        let mut wire = Wire::new(&world, &clock, 1);
        wire.connection.dialect = dialect;
        let mut client = wire.client(Limits::default());
        assert_eq!(client.recognise().unwrap().name, dialect.name);
        assert_eq!(client.identify_switch().unwrap().physical_ports, 8);
        client.bind(&BIND).unwrap();
        assert_eq!(client.identify(&[Hop::Port(1)]).unwrap().component_type, Some(ComponentType::Type3));
    }
}
