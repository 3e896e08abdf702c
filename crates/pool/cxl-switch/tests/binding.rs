// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Binding and what follows from it: one operation at a time, in the background; a host reaches what is bound to it and
//! nothing else; the next host finds zeros.

use aquifer_cxl_switch::*;
use aquifer_fmapi::*;

mod client;

use client::{Client, at_device, at_switch, config};

const NO_LD: u16 = BindVppb::NO_LD;

fn write(address: u64, byte: u8) -> HostAction {
    HostAction::Write { address, bytes: vec![byte; 64] }
}

fn read(address: u64) -> HostAction {
    HostAction::Read { address, bytes: 64 }
}

#[test]
fn a_bind_runs_in_the_background_and_says_how_far_it_is() {
    let mut client = Client::new(config());
    let bind = Request::BindVppb(BindVppb { vcs_id: 0, vppb_id: 2, port_id: 1, ld_id: 3 });
    assert_eq!(client.code(&at_switch(), &bind), ReturnCode::BACKGROUND_STARTED);
    assert_eq!(client.vppbs(0)[2].status, BindingStatus::InProgress);
    assert_eq!(client.port(1).state, PortState::BindInProgress);
    // A bind takes twenty milliseconds, as configured.
    let percents: Vec<u8> = (0..4)
        .map(|step| {
            client.now_ns = step * 6_000_000;
            client.background().percent
        })
        .collect();
    assert_eq!(percents, [0, 30, 60, 90]);
    // A second background operation is refused, whichever it is.
    let unbind = Request::UnbindVppb(UnbindVppb { vcs_id: 0, vppb_id: 0, option: UnbindOption::SurpriseRemoval });
    let other = Request::BindVppb(BindVppb { vcs_id: 1, vppb_id: 0, port_id: 0, ld_id: NO_LD });
    assert_eq!(client.code(&at_switch(), &unbind), ReturnCode::BUSY);
    assert_eq!(client.code(&at_switch(), &other), ReturnCode::BUSY);
    // Other commands are carried out meanwhile.
    assert_eq!(client.code(&at_switch(), &Request::IdentifySwitch(IdentifySwitch {})), ReturnCode::SUCCESS);
    assert_eq!(client.wait(), ReturnCode::SUCCESS);
    assert_eq!(client.background().opcode, Opcode::BIND_VPPB.0);
    assert_eq!(client.vppbs(0)[2], Vppb { status: BindingStatus::Ld, port_id: 1, ld_id: 3 });
    assert_eq!(client.port(1).state, PortState::Downstream);
    let bound = Effect::Bound { vcs_id: 0, vppb_id: 2, port_id: 1, ld_id: Some(3) };
    assert_eq!(client.seen.effects, [bound]);
    let Some(EventData::Vppb(event)) = client.seen.events[0].record.meaning() else { panic!("no vPPB event") };
    assert_eq!((event.vcs_id, event.vppb_id, event.vppb.status), (0, 2, BindingStatus::Ld));
    assert_eq!(client.seen.events[0].log, EventLog::Informational);
}

#[test]
fn nothing_is_bound_twice() {
    let mut client = Client::new(config());
    assert_eq!(client.bind(0, 0, 0, NO_LD), ReturnCode::SUCCESS);
    assert_eq!(client.bind(0, 1, 1, 0), ReturnCode::SUCCESS);
    assert_eq!(client.bind(1, 0, 0, NO_LD), ReturnCode::INVALID_INPUT);
    assert_eq!(client.bind(1, 0, 1, 0), ReturnCode::INVALID_INPUT);
    // A vPPB has one target; an MLD has several logical devices, for several hosts.
    assert_eq!(client.bind(0, 0, 2, NO_LD), ReturnCode::INVALID_INPUT);
    assert_eq!(client.bind(1, 0, 1, 1), ReturnCode::SUCCESS);
    // A logical device of a multi-headed device can be bound only at its own head.
    assert_eq!(client.bind(1, 1, 3, 1), ReturnCode::INVALID_INPUT);
    assert_eq!(client.bind(1, 1, 4, 1), ReturnCode::SUCCESS);
    let active = match client.ask(&at_switch(), &Request::IdentifySwitch(IdentifySwitch {})) {
        Ok(Response::IdentifySwitch(identity)) => (identity.vppbs_total, identity.vppbs_active),
        other => panic!("{other:?}"),
    };
    assert_eq!(active, (16, 4));
}

#[test]
fn a_host_reaches_what_is_bound_to_it_and_the_next_one_finds_zeros() {
    for is_wiped in [true, false] {
        let mut client = Client::new(SwitchConfig { wipe_on_unbind: is_wiped, ..config() });
        for (port_id, ld_id) in [(0, NO_LD), (1, 2)] {
            assert_eq!(client.host(0, 0, read(0)), Err(HostFailure::NotBound));
            assert_eq!(client.bind(0, 0, port_id, ld_id), ReturnCode::SUCCESS);
            client.host(0, 0, write(4096, 7)).unwrap();
            assert_eq!(client.host(0, 0, read(4096)).unwrap(), [7; 64]);
            assert_eq!(client.host(1, 0, read(4096)), Err(HostFailure::NotBound));
            client.seen = Outcome::default();
            assert_eq!(client.unbind(0, 0), ReturnCode::SUCCESS);
            let wipes = client.seen.effects.iter().filter(|effect| matches!(effect, Effect::LdWiped { .. })).count();
            assert_eq!(wipes, usize::from(is_wiped));
            assert_eq!(client.host(0, 0, read(4096)), Err(HostFailure::NotBound));
            assert_eq!(client.bind(1, 0, port_id, ld_id), ReturnCode::SUCCESS);
            let expected = if is_wiped { 0 } else { 7 };
            assert_eq!(client.host(1, 0, read(4096)).unwrap(), [expected; 64]);
            assert_eq!(client.unbind(1, 0), ReturnCode::SUCCESS);
        }
    }
}

#[test]
fn the_manager_touches_logical_devices_without_a_host_alone() {
    let mut client = Client::new(config());
    let write = |ld_id, byte| {
        let data = vec![byte; 8];
        let (bytes, first_byte_enables, last_byte_enables) = (8, 0xf, 0xf);
        Request::LdMemoryRequest(LdMemoryRequest {
            port_id: 1,
            is_write: true,
            ld_id,
            bytes,
            first_byte_enables,
            last_byte_enables,
            data,
            address: 128,
        })
    };
    let read = |ld_id| {
        Request::LdMemoryRequest(LdMemoryRequest { port_id: 1, ld_id, bytes: 8, address: 128, ..Default::default() })
    };
    let reported = client.ask(&at_switch(), &write(0, 9));
    assert_eq!(reported, Ok(Response::LdMemoryRequest(LdMemoryData { bytes: 8, data: vec![] })));
    let reported = client.ask(&at_switch(), &read(0));
    assert_eq!(reported, Ok(Response::LdMemoryRequest(LdMemoryData { bytes: 8, data: vec![9; 8] })));
    assert_eq!(client.bind(0, 0, 1, 0), ReturnCode::SUCCESS);
    assert_eq!(client.host(0, 0, HostAction::Read { address: 128, bytes: 8 }).unwrap(), [9; 8]);
    assert_eq!(client.code(&at_switch(), &read(0)), ReturnCode::INVALID_INPUT);
    assert_eq!(client.code(&at_switch(), &write(0, 1)), ReturnCode::INVALID_INPUT);
    assert_eq!(client.code(&at_switch(), &read(1)), ReturnCode::SUCCESS);
    let configure = |ld_id| {
        let access = ConfigurationAccess { register: 0, byte_enables: 0xf, is_write: false };
        Request::LdConfigurationRequest(LdConfigurationRequest { port_id: 1, ld_id, access, data: 0 })
    };
    assert_eq!(client.code(&at_switch(), &configure(0)), ReturnCode::INVALID_INPUT);
    let identity = Ok(Response::LdConfigurationRequest(ReturnData { data: 0x0002_fffe }));
    assert_eq!(client.ask(&at_switch(), &configure(1)), identity);
    assert_eq!(client.ask(&at_switch(), &configure(0xffff)), identity);
}

#[test]
fn a_bound_logical_device_keeps_its_bytes_and_gets_zeros() {
    let mut client = Client::new(config());
    let set = |first_ld_id, units: &[u64]| {
        let allocations = units.iter().map(|units| LdAllocation { range_1: *units, range_2: 0 }).collect();
        Request::SetLdAllocations(SetLdAllocations { first_ld_id, allocations })
    };
    assert_eq!(client.bind(0, 0, 1, 0), ReturnCode::SUCCESS);
    client.host(0, 0, write(0, 5)).unwrap();
    assert_eq!(client.code(&at_device(1), &set(0, &[2, 1, 1, 0])), ReturnCode::INVALID_INPUT);
    // Setting the same allocation again is not a change.
    assert_eq!(client.code(&at_device(1), &set(0, &[1, 2, 1, 0])), ReturnCode::SUCCESS);
    assert_eq!(client.host(0, 0, read(0)).unwrap(), [5; 64]);
    assert_eq!(client.host(0, 0, read(256 << 20)), Err(HostFailure::Beyond));
    assert_eq!(client.bind(0, 1, 1, 1), ReturnCode::SUCCESS);
    assert_eq!(client.host(0, 1, read(511 << 20)).unwrap(), [0; 64]);
    let resized = Effect::LdResized { device: 1, ld_id: 1, bytes: 512 << 20 };
    assert!(client.seen.effects.contains(&resized));
}

#[test]
fn an_operation_is_aborted_or_ends_by_itself() {
    let mut client = Client::new(config());
    let abort = Request::AbortBackground(AbortBackground {});
    let bind = Request::BindVppb(BindVppb { vcs_id: 0, vppb_id: 0, port_id: 0, ld_id: NO_LD });
    assert_eq!(client.code(&at_switch(), &bind), ReturnCode::BACKGROUND_STARTED);
    client.now_ns = 10_000_000;
    assert_eq!(client.code(&at_switch(), &abort), ReturnCode::SUCCESS);
    assert_eq!(ReturnCode(client.background().return_code), ReturnCode::ABORTED);
    assert_eq!(client.vppbs(0)[0].status, BindingStatus::Unbound);
    assert_eq!(client.seen.events[0].log, EventLog::Warning);
    // At 90 per cent, it is too late.
    assert_eq!(client.code(&at_switch(), &bind), ReturnCode::BACKGROUND_STARTED);
    client.now_ns += 18_000_000;
    assert_eq!(client.code(&at_switch(), &abort), ReturnCode::SUCCESS);
    assert_eq!(client.wait(), ReturnCode::SUCCESS);
    assert_eq!(client.vppbs(0)[0].status, BindingStatus::Port);
    // An aborted unbind leaves the binding and the bytes as they were.
    let unbind = Request::UnbindVppb(UnbindVppb { vcs_id: 0, vppb_id: 0, option: UnbindOption::WaitForLinkDown });
    client.host(0, 0, write(0, 5)).unwrap();
    assert_eq!(client.code(&at_switch(), &unbind), ReturnCode::BACKGROUND_STARTED);
    assert_eq!(client.code(&at_switch(), &abort), ReturnCode::SUCCESS);
    assert_eq!(client.vppbs(0)[0].status, BindingStatus::Port);
    assert_eq!(client.host(0, 0, read(0)).unwrap(), [5; 64]);
}

#[test]
fn the_manager_controls_ports_without_a_host_and_those_of_mlds() {
    let mut client = Client::new(config());
    let control = |port_id, operation| Request::PortControl(PortControl { port_id, operation });
    assert_eq!(client.bind(0, 0, 0, NO_LD), ReturnCode::SUCCESS);
    assert_eq!(client.bind(0, 1, 1, 0), ReturnCode::SUCCESS);
    assert_eq!(client.code(&at_switch(), &control(0, PortOperation::AssertPerst)), ReturnCode::INVALID_INPUT);
    client.seen = Outcome::default();
    assert_eq!(client.code(&at_switch(), &control(1, PortOperation::AssertPerst)), ReturnCode::SUCCESS);
    assert_eq!(client.seen.effects, [Effect::PerstChanged { port_id: 1, is_asserted: true }]);
    assert_eq!(client.seen.events.len(), 1);
    let port = client.port(1);
    assert_eq!((port.link_flags & 2, port.link_state, port.link_width), (2, LinkState::Detect, 0));
    assert_eq!(client.ask(&at_device(1), &Request::Identify(Identify {})), Err(ReturnCode::RETRY_REQUIRED));
    assert_eq!(client.host(0, 1, read(0)), Err(HostFailure::LinkDown));
    assert_eq!(client.code(&at_switch(), &control(1, PortOperation::DeassertPerst)), ReturnCode::SUCCESS);
    assert!(client.host(0, 1, read(0)).is_ok());
    assert_eq!((client.port(1).link_state, client.seen.events.len()), (LinkState::L0, 2));
}

#[test]
fn an_error_is_handed_to_the_host_of_a_vppb() {
    let mut client = Client::new(config());
    let event = GenerateAerEvent { vcs_id: 1, vppb_id: 8, error: 1 << 31 | 20, tlp_header: [3; 32] };
    assert_eq!(client.code(&at_switch(), &Request::GenerateAerEvent(event)), ReturnCode::SUCCESS);
    let effect = Effect::AerGenerated { vcs_id: 1, instance: 8, error: 1 << 31 | 20, tlp_header: [3; 32] };
    assert_eq!(client.seen.effects, [effect]);
}

#[test]
fn a_secret_value_is_set_once_by_the_host_and_read_by_the_manager() {
    let mut client = Client::new(config());
    let state = Request::GetVcsDomainSvState(GetVcsDomainSvState { vcs_id: 1 });
    assert_eq!(client.ask(&at_switch(), &state), Ok(Response::GetVcsDomainSvState(SvState { state: 0 })));
    client.host(1, 0, HostAction::SetDomainSv { secret: [4; 16] }).unwrap();
    let again = client.host(1, 0, HostAction::SetDomainSv { secret: [5; 16] });
    assert_eq!(again, Err(HostFailure::SecretIsSet));
    assert_eq!(client.ask(&at_switch(), &state), Ok(Response::GetVcsDomainSvState(SvState { state: 1 })));
    let secret = client.ask(&at_switch(), &Request::GetDomainSv(GetDomainSv { vcs_id: 1 }));
    assert_eq!(secret, Ok(Response::GetDomainSv(DomainSv { secret: [4; 16] })));
}

#[test]
fn heads_and_their_logical_devices_are_reported() {
    let mut client = Client::new(config());
    let path = client::at_pool(4);
    let map = client.ask(&path, &Request::GetHeadMap(GetHeadMap { first_ld_id: 0, count_max: 255 }));
    let expected = HeadMap { ld_count: 2, head_count: 2, first_ld_id: 0, heads: vec![3, 4] };
    assert_eq!(map, Ok(Response::GetHeadMap(expected)));
    let Ok(Response::GetHeads(reported)) = client.ask(&path, &Request::GetHeads(GetHeads { first_head: 1, count: 1 }))
    else {
        panic!("refused")
    };
    assert_eq!((reported.heads[0].port_id, reported.heads[0].link[1], reported.heads[0].link_state), (4, 8, 4));
}

#[test]
fn all_devices_of_a_box_are_bound_to_three_hosts_and_to_the_next_ones_wiped() {
    let mut client = Client::new(SwitchConfig::memory_box());
    let host_of = |device: u8, round: u8| ((device + round) % 3, device);
    for round in 0..2 {
        for device in 0..22 {
            let (vcs_id, vppb_id) = host_of(device, round);
            assert_eq!(client.bind(vcs_id, vppb_id, device, NO_LD), ReturnCode::SUCCESS);
            assert_eq!(client.host(vcs_id, vppb_id, read(0)).unwrap(), [0; 64]);
            // The last bytes of 256 GiB.
            client.host(vcs_id, vppb_id, write((256 << 30) - 64, device)).unwrap();
            client.host(vcs_id, vppb_id, write(0, 1)).unwrap();
        }
        let Ok(Response::IdentifySwitch(reported)) =
            client.ask(&at_switch(), &Request::IdentifySwitch(IdentifySwitch {}))
        else {
            panic!("refused")
        };
        assert_eq!((reported.vppbs_total, reported.vppbs_active), (66, 22));
        for device in 0..22 {
            let (vcs_id, vppb_id) = host_of(device, round);
            assert_eq!(client.unbind(vcs_id, vppb_id), ReturnCode::SUCCESS);
        }
    }
}
