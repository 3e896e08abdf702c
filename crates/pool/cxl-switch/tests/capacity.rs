// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Dynamic capacity: added, accepted, released, shared, kept by reference, and wiped.

use aquifer_cxl_switch::*;
use aquifer_fmapi::*;

mod client;

use client::{Client, at_device, at_switch};

const MIB: u64 = 1 << 20;
/// Where the second region is, which can be shared. The first, which is private, is at 0: there is no static memory.
const SHARED: u64 = 1024 * MIB;
const NO_LD: u16 = BindVppb::NO_LD;

/// Returns a device with two heads, at ports 2 and 3, each bound to a host. Host 0 is at virtual switch 0, host 1 at 1.
fn client() -> Client {
    let mut config = SwitchConfig::example();
    config.devices[2].ports = vec![2, 3];
    config.devices[2].memory_mib = 0;
    config.devices[2].capacity.as_mut().unwrap().extents = 8;
    config.devices[2].capacity.as_mut().unwrap().tags = 2;
    let mut client = Client::new(config);
    assert_eq!(client.bind(0, 0, 2, NO_LD), ReturnCode::SUCCESS);
    assert_eq!(client.bind(1, 0, 3, NO_LD), ReturnCode::SUCCESS);
    client.seen = Outcome::default();
    client
}

fn add(host_id: u16, policy: u8, region: u8, mib: u64, tag: u8) -> Request {
    let length = mib * MIB;
    Request::InitiateDcAdd(InitiateDcAdd { host_id, policy, region, length, tag: [tag; 16], extents: vec![] })
}

fn release(host_id: u16, flags: u8, mib: u64, tag: u8, extents: Vec<Extent>) -> Request {
    let length = mib * MIB;
    Request::InitiateDcRelease(InitiateDcRelease { host_id, flags, length, tag: [tag; 16], extents })
}

fn extent(start_mib: u64, mib: u64) -> Extent {
    Extent { start: start_mib * MIB, length: mib * MIB, ..Extent::default() }
}

/// Returns addresses in one piece, in MiB.
fn one(from_mib: u64, to_mib: u64) -> Vec<std::ops::Range<u64>> {
    std::iter::once(from_mib * MIB..to_mib * MIB).collect()
}

fn code(client: &mut Client, request: &Request) -> ReturnCode {
    client.code(&at_device(2), request)
}

fn list(client: &mut Client, host_id: u16) -> Vec<(u64, u64)> {
    let get = GetDcExtentLists { host_id, count: 99, first_extent: 0 };
    match client.ask(&at_device(2), &Request::GetDcExtentLists(get)) {
        Ok(Response::GetDcExtentLists(reported)) => {
            reported.extents.iter().map(|extent| (extent.start / MIB, extent.length / MIB)).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn tags(client: &mut Client) -> Vec<DcTag> {
    match client.ask(&at_device(2), &Request::DcListTags(DcListTags { first: 0, count: 99 })) {
        Ok(Response::DcListTags(reported)) => reported.tags,
        other => panic!("{other:?}"),
    }
}

fn offered(client: &Client) -> Vec<std::ops::Range<u64>> {
    let offers = client.seen.effects.iter().rev().find_map(|effect| match effect {
        Effect::CapacityOffered { extents, .. } => Some(extents.clone()),
        _ => None,
    });
    let range = |extent: &Extent| extent.start..extent.start + extent.length;
    offers.expect("an offer").iter().map(range).collect()
}

fn accept(client: &mut Client, vcs_id: u8) -> Vec<std::ops::Range<u64>> {
    let accepted = offered(client);
    client.host(vcs_id, 0, HostAction::AnswerOffer { accepted: accepted.clone() }).unwrap();
    accepted
}

#[test]
fn capacity_is_offered_accepted_used_and_given_back() {
    let mut client = client();
    assert_eq!(code(&mut client, &add(0, add_policy::FREE, 0, 64, 0)), ReturnCode::SUCCESS);
    // Until the host has answered, the capacity is nobody's, and is not listed.
    assert_eq!(list(&mut client, 0), []);
    let write = |byte| HostAction::Write { address: 0, bytes: vec![byte; 4] };
    assert_eq!(client.host(0, 0, write(1)), Err(HostFailure::NotHeld));
    accept(&mut client, 0);
    assert_eq!(list(&mut client, 0), [(0, 64)]);
    client.host(0, 0, write(1)).unwrap();
    assert_eq!(client.host(1, 0, write(2)), Err(HostFailure::NotHeld));
    // A release is a request; the host has the capacity until it gives it back.
    let ask = release(0, 1, 0, 0, vec![extent(16, 16)]);
    assert_eq!(code(&mut client, &ask), ReturnCode::SUCCESS);
    assert_eq!(list(&mut client, 0), [(0, 16), (16, 16), (32, 32)]);
    let ranges = one(16, 32);
    client.host(0, 0, HostAction::ReleaseCapacity { ranges: ranges.clone() }).unwrap();
    assert_eq!(list(&mut client, 0), [(0, 16), (32, 32)]);
    assert_eq!(client.host(0, 0, HostAction::ReleaseCapacity { ranges }), Err(HostFailure::NotHeld));
    // The manager finds both answers in the log.
    let kinds: Vec<CapacityEventKind> = client
        .seen
        .events
        .iter()
        .filter_map(|event| match event.record.meaning() {
            Some(EventData::Capacity(event)) => Some(event.kind),
            _ => None,
        })
        .collect();
    assert_eq!(kinds, [CapacityEventKind::AddResponse, CapacityEventKind::Released]);
}

#[test]
fn a_host_takes_a_part_and_refuses_the_rest() {
    let mut client = client();
    assert_eq!(code(&mut client, &add(0, add_policy::CONTIGUOUS, 0, 64, 0)), ReturnCode::SUCCESS);
    let none = client.host(1, 0, HostAction::AnswerOffer { accepted: vec![] });
    assert_eq!(none, Err(HostFailure::NoOffer));
    let beyond = HostAction::AnswerOffer { accepted: one(0, 65) };
    assert_eq!(client.host(0, 0, beyond), Err(HostFailure::NotOffered));
    client.host(0, 0, HostAction::AnswerOffer { accepted: one(2, 4) }).unwrap();
    assert_eq!(list(&mut client, 0), [(2, 2)]);
    // What was refused is free.
    assert_eq!(code(&mut client, &add(1, add_policy::PRESCRIPTIVE, 0, 0, 0)), ReturnCode::INVALID_EXTENT_LIST);
    let prescribed = |start_mib| {
        let extents = vec![extent(start_mib, 2)];
        Request::InitiateDcAdd(InitiateDcAdd {
            host_id: 1,
            policy: add_policy::PRESCRIPTIVE,
            extents,
            ..Default::default()
        })
    };
    assert_eq!(code(&mut client, &prescribed(2)), ReturnCode::INVALID_EXTENT_LIST);
    assert_eq!(code(&mut client, &prescribed(0)), ReturnCode::SUCCESS);
    accept(&mut client, 1);
    assert_eq!(list(&mut client, 1), [(0, 2)]);
    // An add takes several pieces, unless it must be contiguous.
    assert_eq!(code(&mut client, &add(0, add_policy::CONTIGUOUS, 0, 1022, 0)), ReturnCode::RESOURCES_EXHAUSTED);
    assert_eq!(code(&mut client, &add(0, add_policy::FREE, 0, 1020, 0)), ReturnCode::SUCCESS);
    assert_eq!(code(&mut client, &add(0, add_policy::FREE, 0, 2, 0)), ReturnCode::RESOURCES_EXHAUSTED);
}

#[test]
fn released_capacity_is_wiped_if_asked_and_kept_if_not() {
    for (flags, is_wiped) in [(0x11, false), (0x31, true)] {
        let mut client = client();
        assert_eq!(code(&mut client, &add(0, add_policy::FREE, 0, 4, 0)), ReturnCode::SUCCESS);
        accept(&mut client, 0);
        client.host(0, 0, HostAction::Write { address: 0, bytes: vec![9; 4] }).unwrap();
        // The release is forced: the host loses the capacity at once.
        assert_eq!(code(&mut client, &release(0, flags, 0, 0, vec![extent(0, 4)])), ReturnCode::SUCCESS);
        let read = HostAction::Read { address: 0, bytes: 4 };
        assert_eq!(client.host(0, 0, read.clone()), Err(HostFailure::NotHeld));
        assert_eq!(code(&mut client, &add(1, add_policy::FREE, 0, 4, 0)), ReturnCode::SUCCESS);
        accept(&mut client, 1);
        let expected = if is_wiped { 0 } else { 9 };
        assert_eq!(client.host(1, 0, read).unwrap(), [expected; 4]);
    }
}

#[test]
fn a_region_that_always_sanitizes_does() {
    let mut client = client();
    let set = SetDcRegion { region_id: 0, block_bytes: 4 * MIB, sanitize_on_release: 1 };
    assert_eq!(code(&mut client, &Request::SetDcRegion(set)), ReturnCode::SUCCESS);
    assert_eq!(code(&mut client, &add(0, add_policy::FREE, 0, 2, 0)), ReturnCode::INVALID_INPUT);
    assert_eq!(code(&mut client, &add(0, add_policy::FREE, 0, 4, 0)), ReturnCode::SUCCESS);
    let unsupported = code(&mut client, &Request::SetDcRegion(set));
    assert_eq!(unsupported, ReturnCode::UNSUPPORTED);
    accept(&mut client, 0);
    client.host(0, 0, HostAction::Write { address: 0, bytes: vec![9; 4] }).unwrap();
    client.host(0, 0, HostAction::ReleaseCapacity { ranges: one(0, 4) }).unwrap();
    assert!(client.seen.effects.iter().any(|effect| matches!(effect, Effect::CapacityFreed { is_wiped: true, .. })));
}

#[test]
fn hosts_share_what_has_a_tag_and_it_stays_while_the_manager_refers_to_it() {
    let mut client = client();
    assert_eq!(code(&mut client, &add(0, add_policy::FREE, 1, 8, 5)), ReturnCode::SUCCESS);
    accept(&mut client, 0);
    // A private region is not shared, nor is a tag that nobody has, nor a tag with the host that has it already.
    let share = |host_id, region, tag| add(host_id, add_policy::ENABLE_SHARED_ACCESS, region, 0, tag);
    assert_eq!(code(&mut client, &share(1, 0, 5)), ReturnCode::INVALID_INPUT);
    assert_eq!(code(&mut client, &share(1, 1, 6)), ReturnCode::INVALID_INPUT);
    assert_eq!(code(&mut client, &share(0, 1, 5)), ReturnCode::INVALID_INPUT);
    assert_eq!(code(&mut client, &share(1, 1, 5)), ReturnCode::SUCCESS);
    let reported = tags(&mut client)[0];
    assert_eq!((reported.hosts[0], reported.hosts_pending[0], reported.flags), (0b01, 0b10, 0));
    accept(&mut client, 1);
    client.host(0, 0, HostAction::Write { address: SHARED, bytes: vec![3; 4] }).unwrap();
    let read = HostAction::Read { address: SHARED, bytes: 4 };
    assert_eq!(client.host(1, 0, read.clone()).unwrap(), [3; 4]);
    // While the manager refers to it, the capacity stays when its last host is gone, and the next host finds the same
    // bytes.
    let tag = [5; 16];
    assert_eq!(code(&mut client, &Request::DcAddReference(DcAddReference { tag })), ReturnCode::SUCCESS);
    assert_eq!(code(&mut client, &release(0, 0x20, 4, 5, vec![])), ReturnCode::INVALID_INPUT);
    for host_id in 0..2 {
        assert_eq!(code(&mut client, &release(host_id, 0x30, 8, 5, vec![])), ReturnCode::SUCCESS);
    }
    let reported = tags(&mut client)[0];
    assert_eq!((reported.hosts[0], reported.hosts_pending[0], reported.flags), (0, 0, 1));
    assert_eq!(code(&mut client, &share(1, 1, 5)), ReturnCode::SUCCESS);
    accept(&mut client, 1);
    assert_eq!(client.host(1, 0, read).unwrap(), [3; 4]);
    // Without the reference, it is freed when its last host is gone, and wiped as requested.
    assert_eq!(code(&mut client, &Request::DcRemoveReference(DcRemoveReference { tag })), ReturnCode::SUCCESS);
    assert_eq!(tags(&mut client).len(), 1);
    client.seen = Outcome::default();
    assert_eq!(code(&mut client, &release(1, 0x10, 8, 5, vec![])), ReturnCode::SUCCESS);
    assert!(client.seen.effects.iter().any(|effect| matches!(effect, Effect::CapacityFreed { is_wiped: true, .. })));
    assert_eq!(tags(&mut client), []);
}

#[test]
fn a_tag_belongs_to_one_host_and_there_are_so_many_of_them() {
    let mut client = client();
    assert_eq!(code(&mut client, &add(0, add_policy::FREE, 0, 2, 5)), ReturnCode::SUCCESS);
    assert_eq!(code(&mut client, &add(0, add_policy::FREE, 0, 2, 5)), ReturnCode::SUCCESS);
    assert_eq!(code(&mut client, &add(1, add_policy::FREE, 0, 2, 5)), ReturnCode::INVALID_INPUT);
    assert_eq!(code(&mut client, &add(1, add_policy::FREE, 0, 2, 6)), ReturnCode::SUCCESS);
    assert_eq!(code(&mut client, &add(1, add_policy::FREE, 0, 2, 7)), ReturnCode::RESOURCES_EXHAUSTED);
    for _ in 0..2 {
        // The oldest offer first.
        client.host(0, 0, HostAction::AnswerOffer { accepted: vec![] }).unwrap();
    }
    // After these refusals, the tag is free.
    assert_eq!(code(&mut client, &add(1, add_policy::FREE, 0, 2, 7)), ReturnCode::SUCCESS);
}

#[test]
fn extents_are_bounded_also_by_what_a_release_cuts() {
    let mut client = client();
    for _ in 0..7 {
        assert_eq!(code(&mut client, &add(0, add_policy::FREE, 0, 8, 0)), ReturnCode::SUCCESS);
        accept(&mut client, 0);
    }
    // There is room for one more extent than seven: for a cut at one end, not at both.
    let middle = release(0, 1, 0, 0, vec![extent(2, 2)]);
    assert_eq!(code(&mut client, &middle), ReturnCode::RESOURCES_EXHAUSTED);
    let edge = release(0, 1, 0, 0, vec![extent(0, 2)]);
    assert_eq!(code(&mut client, &edge), ReturnCode::SUCCESS);
    assert_eq!(code(&mut client, &add(0, add_policy::FREE, 0, 8, 0)), ReturnCode::RESOURCES_EXHAUSTED);
    let both = HostAction::ReleaseCapacity { ranges: one(18, 20) };
    assert_eq!(client.host(0, 0, both), Err(HostFailure::Full));
}

#[test]
fn an_offer_that_was_taken_back_by_force_cannot_be_accepted() {
    let mut client = client();
    assert_eq!(code(&mut client, &add(0, add_policy::FREE, 0, 8, 0)), ReturnCode::SUCCESS);
    let pending = vec![extent(0, 8)];
    let gentle = release(0, 1, 0, 0, pending.clone());
    assert_eq!(code(&mut client, &gentle), ReturnCode::INVALID_PHYSICAL_ADDRESS);
    assert_eq!(code(&mut client, &release(0, 0x11, 0, 0, pending)), ReturnCode::SUCCESS);
    // The same blocks are offered to another host by now.
    assert_eq!(code(&mut client, &add(1, add_policy::FREE, 0, 8, 0)), ReturnCode::SUCCESS);
    let late = HostAction::AnswerOffer { accepted: one(0, 8) };
    assert_eq!(client.host(0, 0, late), Err(HostFailure::NotOffered));
    accept(&mut client, 1);
    assert_eq!((list(&mut client, 0), list(&mut client, 1)), (vec![], vec![(0, 8)]));
}

#[test]
fn offers_without_an_answer_are_bounded() {
    let mut config = SwitchConfig::example();
    config.devices[2].memory_mib = 0;
    let mut client = Client::new(config);
    for _ in 0..64 {
        assert_eq!(code(&mut client, &add(0, add_policy::FREE, 0, 2, 0)), ReturnCode::SUCCESS);
    }
    assert_eq!(code(&mut client, &add(0, add_policy::FREE, 0, 2, 0)), ReturnCode::RETRY_REQUIRED);
}

#[test]
fn a_host_that_is_unbound_or_loses_the_device_has_no_capacity() {
    for is_pulled_out in [false, true] {
        let mut client = client();
        assert_eq!(code(&mut client, &add(0, add_policy::FREE, 0, 8, 0)), ReturnCode::SUCCESS);
        accept(&mut client, 0);
        client.host(0, 0, HostAction::Write { address: 0, bytes: vec![9; 4] }).unwrap();
        assert_eq!(code(&mut client, &add(0, add_policy::FREE, 0, 8, 0)), ReturnCode::SUCCESS);
        if is_pulled_out {
            client.inject(Injection::RemoveDevice { device: 2 });
            client.inject(Injection::InsertDevice { device: 2 });
        } else {
            assert_eq!(client.unbind(0, 0), ReturnCode::SUCCESS);
            assert_eq!(client.bind(0, 0, 2, NO_LD), ReturnCode::SUCCESS);
        }
        assert_eq!(list(&mut client, 0), []);
        let answer = client.host(0, 0, HostAction::AnswerOffer { accepted: vec![] });
        assert_eq!(answer, Err(HostFailure::NoOffer));
        assert_eq!(code(&mut client, &add(1, add_policy::FREE, 0, 8, 0)), ReturnCode::SUCCESS);
        accept(&mut client, 1);
        assert_eq!(client.host(1, 0, HostAction::Read { address: 0, bytes: 4 }).unwrap(), [0; 4]);
    }
    let refused = client().code(&at_switch(), &Request::GetDcd(GetDcd {}));
    assert_eq!(refused, ReturnCode::UNSUPPORTED);
}
