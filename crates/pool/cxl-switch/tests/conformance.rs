// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Sends every command as it should be, with a byte too few, with a byte too many, and with invalid numbers: the return
//! code is the one in the table. Every command that a component does not answer is unsupported.

use aquifer_fmapi::*;

mod client;

use client::{Client, at_device, at_ld, at_pool, at_switch, config};

/// A command, and its return code. Each request in `bad` has an invalid number, and comes with its return code.
struct Line {
    request: Request,
    expected: ReturnCode,
    bad: Vec<(Request, ReturnCode)>,
    /// True if the payload without its last byte is a valid request, too.
    is_open: bool,
}

fn line(request: Request) -> Line {
    Line { request, expected: ReturnCode::SUCCESS, bad: Vec::new(), is_open: false }
}

impl Line {
    fn is(mut self, expected: ReturnCode) -> Self {
        self.expected = expected;
        self
    }

    fn bad(mut self, request: Request) -> Self {
        self.bad.push((request, ReturnCode::INVALID_INPUT));
        self
    }

    fn bad_as(mut self, request: Request, code: ReturnCode) -> Self {
        self.bad.push((request, code));
        self
    }
}

fn generic() -> Vec<Line> {
    let uuid = GetLog::COMMAND_EFFECTS;
    let policy = |setting| {
        let policy = EventInterruptPolicy { settings: [setting; 4], dynamic_capacity: Some(0) };
        Request::SetEventInterruptPolicy(SetEventInterruptPolicy { policy })
    };
    let clear = |log, flags, handles| Request::ClearEventRecords(ClearEventRecords { log, flags, handles });
    let log = |uuid, offset, length| Request::GetLog(GetLog { uuid, offset, length });
    vec![
        line(Request::Identify(Identify {})),
        line(Request::GetMessageLimit(GetMessageLimit {})),
        line(Request::SetMessageLimit(SetMessageLimit { limit_log2: 13 }))
            .bad(Request::SetMessageLimit(SetMessageLimit { limit_log2: 7 }))
            .bad(Request::SetMessageLimit(SetMessageLimit { limit_log2: 14 })),
        line(Request::GetEventRecords(GetEventRecords { log: EventLog::Fatal }))
            .bad(Request::GetEventRecords(GetEventRecords { log: EventLog::Reserved(5) })),
        line(clear(EventLog::Fatal, 0, vec![1]))
            .is(ReturnCode::INVALID_HANDLE)
            .bad(clear(EventLog::Fatal, 1, vec![]))
            .bad(clear(EventLog::Fatal, 0, vec![]))
            .bad(clear(EventLog::Reserved(9), 0, vec![1])),
        line(Request::GetEventInterruptPolicy(GetEventInterruptPolicy {})),
        // Four bytes are the policy of CXL 2.0.
        Line { is_open: true, ..line(policy(1)).bad(policy(3)) },
        line(Request::GetTimestamp(GetTimestamp {})),
        line(Request::SetTimestamp(SetTimestamp { unix_ns: 1 })),
        line(Request::GetSupportedLogs(GetSupportedLogs {})),
        line(log(uuid, 0, 4))
            .bad_as(log([0; 16], 0, 4), ReturnCode::INVALID_LOG)
            .bad(log(uuid, 4, u32::MAX))
            .bad(log(uuid, 4096, 4)),
        line(Request::GetLogCapabilities(GetLogCapabilities { uuid }))
            .bad_as(Request::GetLogCapabilities(GetLogCapabilities::default()), ReturnCode::INVALID_LOG),
    ]
}

fn memory() -> Vec<Line> {
    vec![line(Request::IdentifyMemory(IdentifyMemory {})), line(Request::Sanitize(Sanitize {}))]
}

fn switch() -> Vec<Line> {
    let notify = |events| Request::SetMctpEventPolicy(SetMctpEventPolicy { events });
    let control = |port_id, operation| Request::PortControl(PortControl { port_id, operation });
    let ppb = |port_id| Request::PpbConfigurationRequest(PpbConfigurationRequest { port_id, ..Default::default() });
    let bind = |vcs_id, vppb_id, port_id, ld_id| Request::BindVppb(BindVppb { vcs_id, vppb_id, port_id, ld_id });
    let unbind = |vcs_id, vppb_id, option| Request::UnbindVppb(UnbindVppb { vcs_id, vppb_id, option });
    let aer = |vcs_id, vppb_id, error| {
        Request::GenerateAerEvent(GenerateAerEvent { vcs_id, vppb_id, error, tlp_header: [0; 32] })
    };
    let ld = |port_id, ld_id| {
        Request::LdConfigurationRequest(LdConfigurationRequest { port_id, ld_id, ..Default::default() })
    };
    let memory = |port_id, ld_id, address, bytes| {
        Request::LdMemoryRequest(LdMemoryRequest { port_id, ld_id, address, bytes, ..Default::default() })
    };
    let switches =
        |vppbs_max, vcs_ids| Request::GetVirtualSwitches(GetVirtualSwitches { first_vppb: 0, vppbs_max, vcs_ids });
    let inner = Message::request(1, &Request::Identify(Identify {}), &Dialect::STANDARD).encode(&Dialect::STANDARD);
    let tunnel = |port_or_ld_id, target| Request::Tunnel(Tunnel { port_or_ld_id, target, message: inner.clone() });
    let no_ld = BindVppb::NO_LD;
    let mut lines = generic();
    lines.extend([
        line(Request::GetBackgroundStatus(GetBackgroundStatus {})),
        line(Request::AbortBackground(AbortBackground {})),
        line(Request::GetMctpEventPolicy(GetMctpEventPolicy {})),
        line(notify(0x801f)).bad(notify(0x20)),
        line(Request::IdentifySwitch(IdentifySwitch {})),
        // A port that does not exist is reported as such, in its own block.
        line(Request::GetPortStates(GetPortStates { port_ids: vec![0, 1, 99] }))
            .bad(Request::GetPortStates(GetPortStates { port_ids: vec![] })),
        line(control(0, PortOperation::ResetPpb))
            .bad(control(99, PortOperation::ResetPpb))
            .bad(control(6, PortOperation::ResetPpb))
            .bad(control(0, PortOperation::Reserved(3))),
        line(ppb(0)).bad(ppb(99)).bad(ppb(7)),
        line(Request::GetVcsDomainSvState(GetVcsDomainSvState { vcs_id: 0 }))
            .bad(Request::GetVcsDomainSvState(GetVcsDomainSvState { vcs_id: 9 })),
        line(Request::GetDomainSv(GetDomainSv { vcs_id: 0 }))
            .is(ReturnCode::INVALID_INPUT)
            .bad(Request::GetDomainSv(GetDomainSv { vcs_id: 9 })),
        // So is a virtual switch that does not exist.
        line(switches(255, vec![0, 9])).bad(switches(0, vec![0])).bad(switches(255, vec![])),
        line(bind(0, 0, 0, no_ld))
            .is(ReturnCode::BACKGROUND_STARTED)
            .bad(bind(9, 0, 0, no_ld))
            .bad(bind(0, 99, 0, no_ld))
            .bad(bind(0, 0, 99, no_ld))
            .bad(bind(0, 0, 6, no_ld))
            .bad(bind(0, 0, 0, 3))
            .bad(bind(0, 0, 1, no_ld))
            .bad(bind(0, 0, 1, 4)),
        line(unbind(0, 0, UnbindOption::ManagedRemoval))
            .is(ReturnCode::INVALID_INPUT)
            .bad(unbind(9, 0, UnbindOption::ManagedRemoval))
            .bad(unbind(0, 99, UnbindOption::ManagedRemoval))
            .bad(unbind(0, 0, UnbindOption::Reserved(3))),
        line(aer(0, 8, 1 << 31 | 4)).bad(aer(9, 0, 0)).bad(aer(0, 9, 0)),
        Line { is_open: false, ..line(tunnel(1, TunnelTarget::PortOrLd)) }
            .bad(tunnel(99, TunnelTarget::PortOrLd))
            .bad(tunnel(5, TunnelTarget::PortOrLd))
            .bad(tunnel(6, TunnelTarget::PortOrLd))
            .bad(tunnel(1, TunnelTarget::LdPool))
            .bad(tunnel(1, TunnelTarget::Reserved(2))),
        line(ld(1, 0)).bad(ld(1, 4)).bad(ld(0, 0)).bad(ld(99, 0)),
        line(memory(1, 0, 0, 64))
            .bad(memory(1, 4, 0, 64))
            .bad(memory(0, 0, 0, 64))
            .bad(memory(1, 0xffff, 0, 64))
            .bad(memory(1, 0, 256 << 20, 64))
            .bad(memory(1, 0, u64::MAX, 64)),
    ]);
    lines
}

fn mld() -> Vec<Line> {
    let get = |first_ld_id, count_max| Request::GetLdAllocations(GetLdAllocations { first_ld_id, count_max });
    let set = |first_ld_id, units: &[u64]| {
        let allocations = units.iter().map(|units| LdAllocation { range_1: *units, range_2: 0 }).collect();
        Request::SetLdAllocations(SetLdAllocations { first_ld_id, allocations })
    };
    let control = |moderate, severe, sample_interval| {
        Request::SetQosControl(SetQosControl {
            egress_moderate_percent: moderate,
            egress_severe_percent: severe,
            sample_interval,
            ..Default::default()
        })
    };
    let allocated = |count, first_ld_id| Request::GetQosAllocatedBw(GetQosAllocatedBw { count, first_ld_id });
    let limit = |count, first_ld_id| Request::GetQosBwLimit(GetQosBwLimit { count, first_ld_id });
    let set_allocated =
        |first_ld_id, count| Request::SetQosAllocatedBw(SetQosAllocatedBw { first_ld_id, fractions: vec![7; count] });
    let set_limit =
        |first_ld_id, count| Request::SetQosBwLimit(SetQosBwLimit { first_ld_id, fractions: vec![7; count] });
    vec![
        line(Request::GetLdCapabilities(GetLdCapabilities {})),
        line(get(0, 255)).bad(get(4, 1)).bad(get(0, 0)),
        line(set(0, &[1, 1, 2, 0]))
            .bad(set(0, &[1, 1, 2, 1]))
            .bad(set(0, &[u64::MAX, 1]))
            .bad(set(3, &[0, 0]))
            .bad(set(0, &[])),
        line(Request::GetQosControl(GetQosControl {})),
        line(control(10, 25, 15))
            .bad(control(0, 25, 8))
            .bad(control(10, 101, 8))
            .bad(control(26, 25, 8))
            .bad(control(10, 25, 16)),
        line(Request::GetQosStatus(GetQosStatus {})),
        // A request for more than there are lists all of them.
        line(allocated(255, 0)).bad(allocated(1, 4)).bad(allocated(0, 0)),
        line(set_allocated(0, 4)).bad(set_allocated(1, 4)).bad(set_allocated(0, 0)),
        line(limit(1, 3)).bad(limit(1, 4)).bad(limit(0, 0)),
        line(set_limit(3, 1)).bad(set_limit(4, 1)).bad(set_limit(0, 0)),
    ]
}

fn heads() -> Vec<Line> {
    let map = |first_ld_id, count_max| Request::GetHeadMap(GetHeadMap { first_ld_id, count_max });
    let heads = |first_head, count| Request::GetHeads(GetHeads { first_head, count });
    vec![line(map(1, 9)).bad(map(2, 1)).bad(map(0, 0)), line(heads(0, 2)).bad(heads(1, 2)).bad(heads(0, 0))]
}

fn capacity() -> Vec<Line> {
    const MIB: u64 = 1 << 20;
    const BASE: u64 = 256 * MIB;
    let regions =
        |host_id, first_region| Request::GetHostDcRegions(GetHostDcRegions { host_id, count: 8, first_region });
    let region = |region_id, block_bytes, sanitize_on_release| {
        Request::SetDcRegion(SetDcRegion { region_id, block_bytes, sanitize_on_release })
    };
    let lists = |host_id, first_extent| Request::GetDcExtentLists(GetDcExtentLists { host_id, count: 9, first_extent });
    let extent = |start, length| Extent { start, length, ..Default::default() };
    let add = |host_id, policy, region, length, extents| {
        Request::InitiateDcAdd(InitiateDcAdd { host_id, policy, region, length, tag: [0; 16], extents })
    };
    let release = |host_id, flags, length, tag, extents| {
        Request::InitiateDcRelease(InitiateDcRelease { host_id, flags, length, tag, extents })
    };
    let tag = [7; 16];
    let share = |region, tag| {
        Request::InitiateDcAdd(InitiateDcAdd {
            policy: add_policy::ENABLE_SHARED_ACCESS,
            region,
            tag,
            ..Default::default()
        })
    };
    let (list, address, exhausted) =
        (ReturnCode::INVALID_EXTENT_LIST, ReturnCode::INVALID_PHYSICAL_ADDRESS, ReturnCode::RESOURCES_EXHAUSTED);
    vec![
        line(Request::GetDcd(GetDcd {})),
        line(regions(0, 0)).bad(regions(1, 0)).bad(regions(0, 2)),
        line(region(0, 4 * MIB, 1)).bad(region(2, 4 * MIB, 0)).bad(region(0, 3 * MIB, 0)).bad(region(0, 1, 0)),
        line(lists(0, 0)).bad(lists(1, 0)).bad(lists(0, 1)),
        // A request without a list may leave out its count, but not a part of it.
        line(add(0, add_policy::FREE, 0, 4 * MIB, vec![]))
            .bad(add(1, add_policy::FREE, 0, 4 * MIB, vec![]))
            .bad(add(0, add_policy::FREE, 2, 4 * MIB, vec![]))
            .bad(add(0, add_policy::FREE, 0, MIB, vec![]))
            .bad(add(0, add_policy::FREE, 0, 0, vec![]))
            .bad(add(0, 4, 0, 4 * MIB, vec![]))
            .bad(share(1, tag))
            .bad(share(0, tag))
            .bad_as(add(0, add_policy::CONTIGUOUS, 0, 2048 * MIB, vec![]), exhausted)
            .bad_as(add(0, add_policy::PRESCRIPTIVE, 0, 0, vec![]), list)
            .bad_as(add(0, add_policy::PRESCRIPTIVE, 0, 0, vec![extent(BASE + MIB, 4 * MIB)]), list)
            .bad_as(add(0, add_policy::PRESCRIPTIVE, 0, 0, vec![extent(BASE, 4 * MIB); 2]), list)
            .bad_as(add(0, add_policy::PRESCRIPTIVE, 0, 0, vec![extent(0, 4 * MIB)]), address)
            .bad_as(add(0, add_policy::PRESCRIPTIVE, 0, 0, vec![extent(u64::MAX, 4 * MIB)]), list),
        line(release(0, 0, 4 * MIB, tag, vec![]))
            .is(ReturnCode::INVALID_INPUT)
            .bad(release(1, 1, 0, tag, vec![extent(BASE, 4 * MIB)]))
            .bad(release(0, 2, 0, tag, vec![extent(BASE, 4 * MIB)]))
            .bad_as(release(0, 1, 0, tag, vec![]), list)
            .bad_as(release(0, 1, 0, tag, vec![extent(BASE + 64 * MIB, 4 * MIB)]), list)
            .bad_as(release(0, 1, 0, tag, vec![extent(0, 4 * MIB)]), address),
        line(Request::DcAddReference(DcAddReference { tag })).is(ReturnCode::INVALID_INPUT),
        line(Request::DcRemoveReference(DcRemoveReference { tag })).is(ReturnCode::INVALID_INPUT),
        line(Request::DcListTags(DcListTags { first: 0, count: 9 })),
    ]
}

/// Sends the requests of each line of a table, and that of the line with other lengths. Returns the opcodes.
fn ask(place: &str, path: &[client::Hop], lines: Vec<Line>) -> Vec<Opcode> {
    let mut opcodes = Vec::new();
    for line in lines {
        let opcode = line.request.opcode();
        let mut manager = Client::new(config());
        for (request, code) in line.bad {
            assert_eq!(manager.code(path, &request), code, "{place}: {request:?}");
        }
        let payload = client::payload(&line.request);
        if !line.is_open && !payload.is_empty() {
            let short = manager.code_of_payload(path, opcode, &payload[..payload.len() - 1]);
            assert_eq!(short, ReturnCode::INVALID_PAYLOAD_LENGTH, "{place}: {opcode}, a byte too few");
        }
        let long = manager.code_of_payload(path, opcode, &[&payload[..], &[0]].concat());
        assert_eq!(long, ReturnCode::INVALID_PAYLOAD_LENGTH, "{place}: {opcode}, a byte too many");
        assert_eq!(manager.code(path, &line.request), line.expected, "{place}: {:?}", line.request);
        opcodes.push(opcode);
    }
    opcodes
}

/// Checks that every opcode that is not among these is unsupported, whatever comes with it.
fn ask_others(place: &str, path: &[client::Hop], mut known: Vec<Opcode>) {
    known.sort_unstable();
    known.dedup();
    let mut manager = Client::new(config());
    let others = Opcode::ALL.iter().copied().chain([Opcode(0x4001), Opcode(0x5700), Opcode(0xc000)]);
    for opcode in others.filter(|opcode| !known.contains(opcode)) {
        for payload in [&[][..], &[0; 64]] {
            let code = manager.code_of_payload(path, opcode, payload);
            assert_eq!(code, ReturnCode::UNSUPPORTED, "{place}: {opcode}");
        }
    }
    // The command effects log lists the same commands.
    let logged: Vec<Opcode> = manager.command_effects(path).iter().map(|line| line.opcode).collect();
    assert_eq!(logged, known, "{place}");
}

#[test]
fn the_switch_answers_as_the_table_says() {
    let known = ask("switch", &at_switch(), switch());
    ask_others("switch", &at_switch(), known);
}

#[test]
fn a_device_with_several_logical_devices_answers_as_the_table_says() {
    let mut lines = generic();
    lines.extend(mld());
    let mut known = ask("MLD", &at_device(1), lines);
    known.push(Opcode::TUNNEL);
    ask_others("MLD", &at_device(1), known);
}

#[test]
fn a_device_with_dynamic_capacity_answers_as_the_table_says() {
    let mut lines = generic();
    lines.extend(memory());
    lines.extend(capacity());
    let mut known = ask("DCD", &at_device(2), lines);
    known.push(Opcode::TUNNEL);
    ask_others("DCD", &at_device(2), known);
}

#[test]
fn logical_devices_and_pools_answer_as_the_tables_say() {
    let few = || generic().into_iter().filter(|line| [0, 4].contains(&line.request.opcode().set()));
    let few = || few().filter(|line| ![3, 4].contains(&line.request.opcode().0)).collect::<Vec<Line>>();
    let mut lines = few();
    lines.extend(memory());
    let known = ask("LD", &at_ld(1, 3), lines);
    ask_others("LD", &at_ld(1, 3), known);
    let mut lines = few();
    lines.extend(heads());
    let mut known = ask("pool", &at_pool(3), lines);
    known.extend(mld().iter().map(|line| line.request.opcode()));
    ask_others("pool", &at_pool(3), known);
}

#[test]
fn failures_of_a_tunnel_are_reported_outside_it_and_failures_behind_it_inside() {
    let mut manager = Client::new(config());
    let tunnel = |message: Vec<u8>| Request::Tunnel(Tunnel { port_or_ld_id: 1, message, ..Default::default() });
    assert_eq!(manager.code(&at_switch(), &tunnel(vec![0; 11])), ReturnCode::INVALID_PAYLOAD_LENGTH);
    let mut answer = vec![0; 12];
    answer[0] = 1;
    assert_eq!(manager.code(&at_switch(), &tunnel(answer)), ReturnCode::INVALID_INPUT);
    let mut lies = vec![0; 12];
    (lies[3], lies[5]) = (1, 9);
    assert_eq!(manager.code(&at_switch(), &tunnel(lies)), ReturnCode::SUCCESS);
    // A logical device that is not there, the FM-owned one, a pool that the device does not have, a third level.
    for hop in [client::Hop::Ld(4), client::Hop::Ld(0xff), client::Hop::Pool] {
        let path = [at_device(1), vec![hop]].concat();
        let refused = manager.ask(&path, &Request::Identify(Identify {}));
        assert_eq!(refused, Err(ReturnCode::INVALID_INPUT), "{hop:?}");
    }
    let path = [at_ld(1, 0), vec![client::Hop::Ld(0)]].concat();
    assert_eq!(manager.ask(&path, &Request::Identify(Identify {})), Err(ReturnCode::UNSUPPORTED));
}

#[test]
fn an_answer_is_never_longer_than_its_limit() {
    let mut manager = Client::new(config());
    let limit = Request::SetMessageLimit(SetMessageLimit { limit_log2: 8 });
    manager.ask(&at_switch(), &limit).unwrap();
    let ports = |count| Request::GetPortStates(GetPortStates { port_ids: vec![0; count] });
    // 256 bytes: 12 of header, 4, and 15 ports of 16 bytes.
    assert_eq!(manager.code(&at_switch(), &ports(15)), ReturnCode::SUCCESS);
    assert_eq!(manager.code(&at_switch(), &ports(16)), ReturnCode::INVALID_INPUT);
    let memory = |bytes| Request::LdMemoryRequest(LdMemoryRequest { port_id: 1, bytes, ..Default::default() });
    assert_eq!(manager.code(&at_switch(), &memory(240)), ReturnCode::SUCCESS);
    assert_eq!(manager.code(&at_switch(), &memory(241)), ReturnCode::INVALID_INPUT);
    // A request for up to 255 entries lists only those that exist.
    let list = Request::GetLdAllocations(GetLdAllocations { first_ld_id: 0, count_max: 255 });
    let Ok(Response::GetLdAllocations(reported)) = manager.ask(&at_device(1), &list) else { panic!("refused") };
    assert_eq!(reported.allocations.len(), 4);
    manager.ask(&at_switch(), &Request::SetMessageLimit(SetMessageLimit { limit_log2: 13 })).unwrap();
    assert_eq!(manager.code(&at_switch(), &memory(4096)), ReturnCode::SUCCESS);
}

/// Such an answer was refused after the allocations had been changed.
#[test]
fn a_command_whose_answer_would_be_too_long_changes_nothing() {
    let mut config = config();
    config.devices[1].lds_mib = vec![256; 16];
    config.devices[1].memory_mib = 16 * 256;
    config.devices[1].capacity = None;
    let mut manager = Client::new(config);
    let limit = Request::SetMessageLimit(SetMessageLimit { limit_log2: 8 });
    manager.ask(&at_device(1), &limit).unwrap();
    let set = |count| {
        let allocations = vec![LdAllocation::default(); count];
        Request::SetLdAllocations(SetLdAllocations { first_ld_id: 0, allocations })
    };
    let get = Request::GetLdAllocations(GetLdAllocations { first_ld_id: 0, count_max: 15 });
    let before = manager.ask(&at_device(1), &get);
    // 12 bytes of header, 4, and 16 for each allocation.
    assert_eq!(manager.code(&at_device(1), &set(16)), ReturnCode::INVALID_INPUT);
    assert_eq!(manager.ask(&at_device(1), &get), before);
    assert_eq!(manager.code(&at_device(1), &set(15)), ReturnCode::SUCCESS);
    assert_ne!(manager.ask(&at_device(1), &get), before);
}

#[test]
fn a_header_whose_length_lies_is_answered_as_such() {
    let mut client = Client::new(config());
    let bytes = Message::request(7, &Request::Identify(Identify {}), &Dialect::STANDARD).encode(&Dialect::STANDARD);
    for (said, found) in [(1, 0), (0, 1), (1 << 20, 4)] {
        let mut bytes = [&bytes[..], &vec![0; found]].concat();
        bytes[5..8].copy_from_slice(&u32::to_le_bytes(said)[..3]);
        let outcome = client.switch.receive(0, &client.connection, &bytes);
        let answer = Message::decode(&outcome.replies[0].bytes, &Dialect::STANDARD).unwrap();
        assert_eq!(answer.header.return_code, ReturnCode::INVALID_PAYLOAD_LENGTH, "{said} {found}");
    }
}
