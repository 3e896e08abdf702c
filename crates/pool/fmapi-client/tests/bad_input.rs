// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a client does with a peer whose answers are wrong or never arrive, or that ends: it returns an error with the
//! cause and the remedy, in bounded time, and bases no decision on what it cannot trust. `docs/fmapi.md` lists these
//! inputs and where each is tested.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aquifer_fmapi::*;
use aquifer_fmapi_client::*;

mod script;
mod world;

use script::answer;
use world::{Injected, VirtualClock, Wire, World};

/// Returns a client of a peer that answers every request with success and this payload; and the number of requests.
fn answering(payload: impl Fn(&Message) -> Vec<u8> + Send + 'static) -> (Client, Arc<Mutex<u32>>) {
    let count = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&count);
    let client = script::client(false, move |asked| {
        *counted.lock().unwrap() += 1;
        let payload = payload(asked);
        vec![Message::new(Category::Response, asked.header.tag, asked.header.opcode, ReturnCode::SUCCESS, payload)]
    });
    (client, count)
}

fn bytes(response: &impl Payload) -> Vec<u8> {
    let mut out = Writer::new(&Dialect::STANDARD);
    response.write(&mut out);
    out.bytes
}

fn tag(number: u8) -> DcTag {
    DcTag { tag: [number; 16], ..DcTag::default() }
}

/// Every way to read a list, with an answer that has two entries or more, and where its count is.
type Reads = (&'static str, Vec<u8>, usize, fn(&mut Client) -> Result<(), Failure>);

fn lists() -> Vec<Reads> {
    let port = |port_id| PortStatus { port_id, ..PortStatus::default() };
    let ports = PortStates { ports: vec![port(0), port(1)] };
    let vppbs = vec![Vppb::default(); 2];
    let switch = VirtualSwitch { vppbs_total: 2, vppbs, ..VirtualSwitch::default() };
    let allocations =
        LdAllocations { ld_count: 2, allocations: vec![LdAllocation::default(); 2], ..Default::default() };
    let extent = |start| Extent { start, length: 16, ..Extent::default() };
    let extents = DcExtentLists { total: 2, extents: vec![extent(0), extent(16)], ..DcExtentLists::default() };
    let tags = DcTags { total: 2, tags: vec![tag(1), tag(2)], ..DcTags::default() };
    vec![
        ("ports", bytes(&ports), 0, |client| client.port_states(&[0, 1]).map(drop)),
        ("virtual switches", bytes(&VirtualSwitches { switches: vec![switch] }), 0, |client| {
            client.virtual_switch(0).map(drop)
        }),
        ("logical devices", bytes(&allocations), 3, |client| client.ld_allocations(&[]).map(drop)),
        ("extents", bytes(&extents), 8, |client| client.dc_extents(&[], 0).map(drop)),
        ("tags", bytes(&tags), 8, |client| client.dc_tags(&[]).map(drop)),
    ]
}

/// Returns true for a failure that says that the answer is wrong, and what to do.
fn is_refused(failure: &Failure) -> bool {
    let is_named = matches!(failure.cause, Cause::Damaged(_) | Cause::Inconsistent { .. });
    is_named && failure.to_string().contains("record it with --trace, and run 'aquifer fmapi check' on the peer")
}

#[test]
fn a_list_whose_count_lies_is_refused_and_one_that_is_true_is_read() {
    for (name, payload, at, read) in lists() {
        let sent = payload.clone();
        read(&mut answering(move |_| sent.clone()).0).unwrap_or_else(|failure| panic!("{name}: {failure}"));
        for lie in [0, 1, 3, 255].into_iter().filter(|lie| *lie != payload[at]) {
            let mut lying = payload.clone();
            lying[at] = lie;
            let (mut client, _) = answering(move |_| lying.clone());
            let failure = read(&mut client).expect_err(name);
            assert!(is_refused(&failure), "{name}, {lie}: {failure}");
        }
    }
}

#[test]
fn an_answer_that_is_cut_anywhere_or_too_long_is_refused() {
    for (name, payload, _, read) in lists() {
        for length in 0..payload.len() {
            let cut = payload[..length].to_vec();
            let failure = read(&mut answering(move |_| cut.clone()).0).expect_err(name);
            assert!(is_refused(&failure), "{name}, {length} bytes: {failure}");
        }
        for more in [1, 4, 16, 4096] {
            let long = [&payload[..], &vec![0; more]].concat();
            let (mut client, count) = answering(move |_| long.clone());
            let failure = read(&mut client).expect_err(name);
            assert!(is_refused(&failure) && failure.effect == Effect::NotCarriedOut, "{name}, {more} more: {failure}");
            assert!(*count.lock().unwrap() <= 3, "{name}: a wrong answer is asked for again {count:?} times");
        }
    }
    // After a command that changes something, only the report is lost.
    let (mut client, count) = answering(|_| vec![0; 999]);
    let failure = client.call(&[], &SetMessageLimit { limit_log2: 9 }).unwrap_err();
    assert!(matches!(failure.cause, Cause::Damaged(_)) && failure.effect == Effect::Unknown, "{failure}");
    assert_eq!(*count.lock().unwrap(), 1, "what changes something is sent once");
}

#[test]
fn a_tunnel_whose_lengths_lie_is_refused() {
    let tunnelled = |inner: fn(&mut Vec<u8>), outer: fn(&mut Vec<u8>)| {
        script::client(false, move |asked| {
            let request = Request::decode(asked.header.opcode, &asked.payload, &Dialect::STANDARD);
            let Ok(Request::Tunnel(tunnel)) = request else { panic!("not a tunnel") };
            let asked_inside = Message::decode(&tunnel.message, &Dialect::STANDARD).unwrap();
            let identity = Response::Identify(Identity::default());
            let mut message = answer(&asked_inside, ReturnCode::SUCCESS, Some(&identity)).encode(&Dialect::STANDARD);
            inner(&mut message);
            let mut payload = bytes(&Tunnelled { message });
            outer(&mut payload);
            let (tag, opcode) = (asked.header.tag, asked.header.opcode);
            vec![Message::new(Category::Response, tag, opcode, ReturnCode::SUCCESS, payload)]
        })
    };
    type Spoil = fn(&mut Vec<u8>);
    let keep: Spoil = |_| {};
    tunnelled(keep, keep).identify(&[Hop::Port(1)]).unwrap();
    let cases: [(&str, Spoil, Spoil); 6] = [
        ("the message inside says that it is longer", |message| message[5] += 1, keep),
        ("the message inside says that it is shorter", |message| message[5] -= 1, keep),
        ("the message inside ends in its header", |message| message.truncate(11), keep),
        ("the message inside is a request", |message| message[0] = 0, keep),
        ("the tunnel says that its message is longer", keep, |payload| payload[0] += 1),
        ("the tunnel says that its message is shorter", keep, |payload| payload[0] -= 1),
    ];
    for (name, inner, outer) in cases {
        let failure = tunnelled(inner, outer).identify(&[Hop::Port(1)]).expect_err(name);
        assert!(is_refused(&failure), "{name}: {failure}");
    }
}

#[test]
fn an_answer_about_something_else_is_refused() {
    let port = PortStatus { port_id: 9, ..PortStatus::default() };
    let (mut client, _) = answering(move |_| bytes(&PortStates { ports: vec![port] }));
    let failure = client.port_states(&[4]).unwrap_err();
    assert!(is_refused(&failure) && failure.to_string().contains("ports [9] for [4]"), "{failure}");
    let other = VirtualSwitch { vcs_id: 7, ..VirtualSwitch::default() };
    let (mut client, _) = answering(move |_| bytes(&VirtualSwitches { switches: vec![other.clone()] }));
    let failure = client.virtual_switch(0).unwrap_err();
    assert!(is_refused(&failure) && failure.to_string().contains("virtual switch 0 alone"), "{failure}");
    let (mut client, _) = answering(|_| bytes(&DcExtentLists { host_id: 3, ..DcExtentLists::default() }));
    let failure = client.dc_extents(&[], 1).unwrap_err();
    assert!(is_refused(&failure) && failure.to_string().contains("extents of host 3 from 0"), "{failure}");
    let extent = Extent { length: 16, ..Extent::default() };
    let (mut client, _) =
        answering(move |_| bytes(&DcExtentLists { extents: vec![extent], ..DcExtentLists::default() }));
    let failure = client.dc_extents(&[], 0).unwrap_err();
    assert!(is_refused(&failure) && failure.to_string().contains("1 extents of 0"), "{failure}");
    // What another logical device has.
    let allocations = vec![LdAllocation { range_1: 4, range_2: 0 }];
    let other = LdAllocations { ld_count: 1, first_ld_id: 3, allocations, ..LdAllocations::default() };
    let (mut client, _) = answering(move |_| bytes(&other));
    let failure = client.ld_allocations(&[]).unwrap_err();
    assert!(is_refused(&failure) && failure.to_string().contains("logical devices from 3, not from 0"), "{failure}");
}

/// What a host has is the sum of its extents: one that is counted twice would make a part of an offer look like all.
#[test]
fn extents_that_overlap_repeat_or_wrap_around_are_refused() {
    let read = |extents: &[(u64, u64)]| {
        let extent = |(start, length): &(u64, u64)| Extent { start: *start, length: *length, ..Extent::default() };
        let extents: Vec<Extent> = extents.iter().map(extent).collect();
        let list = DcExtentLists { total: extents.len() as u32, extents, ..DcExtentLists::default() };
        answering(move |_| bytes(&list)).0.dc_extents(&[], 0)
    };
    assert_eq!(read(&[(32, 16), (0, 16), (16, 16)]).unwrap().extents.len(), 3);
    for (list, what) in [
        (&[(0, 32), (16, 32)][..], "overlap"),
        (&[(64, 16), (0, 16), (64, 16)], "overlap"),
        (&[(0, 16), (16, 0)], "an extent of 0 bytes"),
        (&[(u64::MAX - 8, 16)], "an extent of 16 bytes at 0xfffffffffffffff7"),
    ] {
        let failure = read(list).unwrap_err();
        assert!(is_refused(&failure) && failure.to_string().contains(what), "{failure}");
        assert_eq!(failure.effect, Effect::NotCarriedOut);
    }
}

/// Capacity that is pending at a host is found by its tag: one that a list leaves out would be offered again.
#[test]
fn tags_that_repeat_or_exceed_their_number_are_refused() {
    for (total, tags, what) in [
        (2, vec![tag(1), tag(1)], "2 tags of 2, 1 of them distinct"),
        (1, vec![tag(1), tag(2)], "2 tags of 1, 2 of them distinct"),
    ] {
        let list = DcTags { total, tags, ..DcTags::default() };
        let failure = answering(move |_| bytes(&list)).0.dc_tags(&[]).unwrap_err();
        assert!(is_refused(&failure) && failure.to_string().contains(what), "{failure}");
        assert_eq!(failure.effect, Effect::NotCarriedOut);
    }
    // A peer that answers with the first piece, whichever is requested.
    let list = DcTags { total: 4, tags: vec![tag(1), tag(2)], ..DcTags::default() };
    let failure = answering(move |_| bytes(&list)).0.dc_tags(&[]).unwrap_err();
    assert!(is_refused(&failure) && failure.to_string().contains("4 tags of 4, 2 of them distinct"), "{failure}");
}

#[test]
fn a_list_that_never_ends_is_given_up() {
    // Each answer has another generation, so that its pieces never make one list.
    let generation = Mutex::new(0);
    let (mut client, count) = answering(move |_| {
        let mut generation = generation.lock().unwrap();
        *generation += 1;
        let extents = vec![Extent { length: 1, ..Extent::default() }];
        bytes(&DcExtentLists { total: 2, generation: *generation, extents, ..DcExtentLists::default() })
    });
    let failure = client.dc_extents(&[], 0).unwrap_err();
    assert!(is_refused(&failure), "{failure}");
    assert!(*count.lock().unwrap() < 32, "{count:?} requests");
    let generation = Mutex::new(0);
    let (mut client, count) = answering(move |_| {
        let mut generation = generation.lock().unwrap();
        *generation += 1;
        bytes(&DcTags { total: 2, generation: *generation, tags: vec![tag(1)], ..DcTags::default() })
    });
    let failure = client.dc_tags(&[]).unwrap_err();
    assert!(is_refused(&failure) && failure.to_string().contains("the list of tags changes"), "{failure}");
    assert!(*count.lock().unwrap() < 32, "{count:?} requests");
    // More vPPBs in all than any answer lists.
    let (mut client, count) = answering(|_| bytes(&VirtualSwitches { switches: vec![VirtualSwitch::default()] }));
    assert!(client.virtual_switch(0).unwrap().vppbs.is_empty());
    assert_eq!(*count.lock().unwrap(), 1);
    // A log that has more records whatever is cleared.
    let records = EventRecords {
        flags: 2,
        records: vec![EventData::Capacity(Default::default()).record(0)],
        ..Default::default()
    };
    let (mut client, count) = answering(move |asked| match asked.header.opcode {
        Opcode::GET_EVENT_RECORDS => bytes(&records),
        _ => Vec::new(),
    });
    let failure = client.events(&[], EventLog::Warning, true).unwrap_err();
    assert!(is_refused(&failure) && failure.to_string().contains("does not become empty"), "{failure}");
    assert_eq!(*count.lock().unwrap(), 2 * Limits::default().pieces);
}

#[test]
fn events_that_overflowed_are_read_and_the_loss_is_counted() {
    for (flags, overflow_count, lost) in [(0, 0, 0), (1, 7, 7), (1, 0, 1), (1, u16::MAX, u16::MAX)] {
        let record = EventData::Capacity(Default::default()).record(0);
        let records = EventRecords { flags, overflow_count, records: vec![record], ..Default::default() };
        let (mut client, _) = answering(move |_| bytes(&records));
        let contents = client.events(&[], EventLog::Warning, false).unwrap();
        assert_eq!((contents.records.len(), contents.lost), (1, lost));
    }
}

const BIND: BindVppb = BindVppb { vcs_id: 0, vppb_id: 2, port_id: 0, ld_id: BindVppb::NO_LD };

#[test]
fn a_peer_that_is_busy_for_ever_ends_every_command_in_bounded_time() {
    type Call = fn(&mut Client) -> Result<(), Failure>;
    let calls: [(&str, Call); 5] = [
        ("identify", |client| client.identify(&[]).map(drop)),
        ("in a tunnel", |client| client.identify(&[Hop::Port(1), Hop::Ld(0)]).map(drop)),
        ("bind", |client| client.bind(&BIND)),
        ("control a port", |client| client.control_port(0, PortOperation::ResetPpb)),
        ("events", |client| client.events(&[], EventLog::Warning, true).map(drop)),
    ];
    for (name, call) in calls {
        for code in [ReturnCode::BUSY, ReturnCode::RETRY_REQUIRED] {
            let mut client = script::client(false, move |asked| vec![answer(asked, code, None)]);
            let failure = call(&mut client).expect_err(name);
            assert!(matches!(failure.cause, Cause::Busy { attempts: 13, .. }), "{name}: {failure}");
            assert_eq!(failure.effect, Effect::NotCarriedOut, "{name}");
            assert!(failure.to_string().contains("find out what keeps the peer busy (0002h)"), "{name}: {failure}");
        }
    }
}

/// The bind was started, so that nobody knows how it ends.
#[test]
fn a_peer_that_is_busy_for_ever_or_ends_in_mid_operation_leaves_the_effect_unknown() {
    for injected in [Injected::Busy, Injected::PeerEndsBefore, Injected::PeerEndsAfter, Injected::DropAnswer] {
        let (world, clock) =
            (World::shared(aquifer_cxl_switch::SwitchConfig::example()), Arc::<VirtualClock>::default());
        let mut wire = Wire::new(&world, &clock, 1);
        let mut polls = 0;
        wire.injections = Box::new(move |opcode| {
            polls += u32::from(opcode == Opcode::BACKGROUND_STATUS);
            if polls >= 2 { injected } else { Injected::None }
        });
        let mut client = wire.client(Limits::default());
        let failure = client.bind(&BIND).expect_err("its end is never reported");
        assert_eq!((failure.opcode, failure.effect), (Opcode::BIND_VPPB, Effect::Unknown), "{injected:?}: {failure}");
        let line = failure.to_string();
        assert!(line.contains("it may have been carried out") && line.contains("read the state"), "{line}");
        assert!(clock.now() < client.limits().background + client.limits().command_max() * 3, "{injected:?}");
        // At the switch the operation ends, whatever became of its manager: bound, and not something between.
        world.lock().unwrap().has_ended = false;
        clock.sleep(Duration::from_secs(1));
        let next = Wire::new(&world, &clock, 2).client(Limits::default()).virtual_switch(0).unwrap();
        assert_eq!((next.vppbs[2].status, next.vppbs[2].port_id), (BindingStatus::Port, 0), "{injected:?}");
    }
}
