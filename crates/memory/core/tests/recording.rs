// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The format of recordings: every event is read back as it was written, the bytes are pinned, and every change of a
//! byte is detected.
//!
//! The trouble it guards against: a replay that reports a difference where there was none, or misses one, because
//! writer and reader do not agree on a byte. Also, a file that was cut short by a kill must be read up to the cut,
//! while a damaged file must not be read as if it had been cut.

use aquifer_core::engine::{Advice, Arrived, CleanVerdict, Settings};
use aquifer_core::map::Delivery;
use aquifer_core::policy::Arrival;
use aquifer_core::prefetch::WINDOW_PAGES;
use aquifer_core::record::{
    Call, Damage, End, Event, Guarded, Header, Recording, Runs, Summary, VERSION, batch_header, push_run, put_call,
    put_summary,
};
use aquifer_core::units::{BlockIndex, FrameIndex, Order, PageIndex, SlabIndex, ThreadIndex};
use proptest::prelude::*;

fn header() -> Header {
    Header {
        settings: Settings {
            budget_pages: 8192,
            tier_slabs: 100,
            prefetch: true,
            elastic: false,
            copied_pages_max: 4,
            seals: true,
            fetch_cost: 5,
            window_pages: WINDOW_PAGES,
        },
        policy: "s3fifo".into(),
        pid: 4711,
        release: "0.1.0".into(),
        program: "/usr/bin/caf\u{e9}".into(),
    }
}

fn runs(of: &[(u8, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    of.iter().for_each(|(kind, len)| push_run(&mut bytes, *kind, *len));
    bytes
}

/// One event for each call of the engine, and several for calls with several forms.
fn every_call<'a>(present: &'a [u8], guards: &'a [u8]) -> Vec<Event<'a>> {
    let (block, thread) = (BlockIndex(300), ThreadIndex(200));
    let (present, guards) = (Runs::new(present), Runs::new(guards));
    let flag = |call, flag| Event { call, summary: Summary::of_flag(flag) };
    let digest = |call, kind| Event { call, summary: Summary { kind, digest: 0x1234_5678 } };
    let nothing = |call| Event { call, summary: Summary::default() };
    let order = Order::DEFAULT;
    vec![
        nothing(Call::Add {
            start: PageIndex(1 << 35),
            end: PageIndex((1 << 35) + 4096),
            order,
            delivery: Delivery::Listener,
            present,
        }),
        flag(Call::Cleaned { block, verdict: CleanVerdict::Stored, guards }, false),
        flag(Call::Cleaned { block, verdict: CleanVerdict::Failed, guards: Runs::default() }, true),
        digest(Call::Discard { start: PageIndex(1000), end: PageIndex(1001), remove: false }, 1),
        digest(Call::Discard { start: PageIndex(1000), end: PageIndex(9000), remove: true }, 0),
        flag(Call::Dropped { block }, false),
        nothing(Call::Emptied { frame: FrameIndex::in_class(Order::MAX, 5) }),
        flag(Call::Evicted { block }, true),
        flag(Call::EvictionRefused { block }, false),
        digest(Call::Fault { page: PageIndex(1 << 35), thread, write: false, first: true }, 4),
        digest(Call::Fault { page: PageIndex(1 << 35), thread, write: true, first: false }, 0),
        flag(Call::FetchFailed { block, lost: true }, true),
        flag(Call::Installed { first: block, count: 1, arrival: Arrival::Fresh }, false),
        flag(Call::Installed { first: block, count: 16, arrival: Arrival::Prefetched }, true),
        flag(Call::Installed { first: block, count: 1, arrival: Arrival::Refault { distance: 70_000 } }, false),
        flag(Call::Installed { first: block, count: 1, arrival: Arrival::Rescued }, false),
        digest(Call::Plan { blocks: 32, pages: 1024 }, 64),
        flag(Call::ReadAheadArrived { block }, false),
        digest(Call::SlotFor { block }, 1),
        nothing(Call::TryAgain),
        nothing(Call::Advise { start: PageIndex(1000), end: PageIndex(9000), advice: Advice::PageOut }),
        Event { call: Call::HasArrived { page: PageIndex(1 << 35) }, summary: Summary::of_arrived(Arrived::Busy) },
        nothing(Call::AwaitArrivals { are_awaited: true }),
        flag(Call::BeginChange { page: PageIndex(1 << 35) }, true),
        flag(Call::EndChange { page: PageIndex(1 << 35), guarded: Some(Guarded::Other) }, false),
        flag(Call::EndChange { page: PageIndex(7), guarded: None }, true),
        nothing(Call::SetFile {
            start: PageIndex(1 << 35),
            end: PageIndex((1 << 35) + 4096),
            first: SlabIndex(SlabIndex::FILES.0 + 9),
            contents: present,
        }),
        flag(Call::Renew { page: PageIndex(1 << 35), guarded: Guarded::Zero }, true),
        digest(Call::FaultWithoutCredit { page: PageIndex(1 << 35), thread, write: false }, 7),
        digest(Call::FaultWithoutCredit { page: PageIndex(9), thread, write: true }, 4),
    ]
}

fn batch(file: &mut Vec<u8>, is_state: bool, number: u64, payload: &[u8]) {
    file.extend(batch_header(is_state, number, payload));
    file.extend(payload);
}

fn payload(events: &[Event<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for event in events {
        put_call(&mut bytes, &event.call);
        put_summary(&mut bytes, &event.call, event.summary);
    }
    bytes
}

/// A recording of two batches that lost events.
fn file() -> Vec<u8> {
    let (present, guards) = (runs(&[(0, 100), (1, 28)]), runs(&[(2, 30), (0, 1), (1, 1)]));
    let events = every_call(&present, &guards);
    let (first, second) = events.split_at(8);
    let mut file = header().bytes().to_vec();
    batch(&mut file, false, 0, &payload(first));
    batch(&mut file, false, 1, &payload(second));
    let end = End { events: events.len() as u64, lost: 3, closed: true };
    batch(&mut file, true, 2, &end.payload());
    file
}

/// Returns how many events are read, and how the recording ended.
fn read(file: &[u8]) -> Result<(u64, End), Damage> {
    let (_, mut recording) = Recording::open(file)?;
    let mut count = 0;
    let end = recording.read(|number, _| {
        assert_eq!(number, count);
        count += 1;
        true
    })?;
    Ok((count, end))
}

#[test]
fn a_written_recording_is_read_back() {
    let (present, guards) = (runs(&[(0, 100), (1, 28)]), runs(&[(2, 30), (0, 1), (1, 1)]));
    let events = every_call(&present, &guards);
    let file = file();
    let (found, mut recording) = Recording::open(&file).unwrap();
    let expected = header();
    assert_eq!((found.settings, found.policy, found.pid), (expected.settings, expected.policy, expected.pid));
    assert_eq!((found.release, found.program), (expected.release, expected.program));
    let mut back = Vec::new();
    let end = recording.read(|_, event| {
        back.push(event);
        true
    });
    assert_eq!(back, events);
    assert_eq!(end, Ok(End { events: events.len() as u64, lost: 3, closed: true }));
}

/// Golden: a change here is a change of [`VERSION`].
#[test]
fn the_bytes_are_pinned() {
    let golden = include_bytes!("golden/recording_v2.bin");
    assert_eq!(VERSION, 2, "a golden file for each version");
    if file() != golden {
        let path = std::env::temp_dir().join("recording_v2.bin");
        std::fs::write(&path, file()).unwrap();
        panic!("the bytes are not the golden ones any more; they are now in {}", path.display());
    }
}

#[test]
fn a_file_that_ends_anywhere_is_read_up_to_its_last_whole_batch() {
    let file = file();
    let (whole, _) = read(&file).unwrap();
    let mut counts = Vec::new();
    for len in 0..file.len() {
        match read(&file[..len]) {
            Ok((count, end)) => {
                assert!(!end.closed && end.lost == 0 && end.events == count, "{len}: {end:?}");
                counts.push(count);
            }
            Err(damage) => assert!(matches!(damage, Damage::Empty | Damage::Headless), "{len}: {damage:?}"),
        }
    }
    counts.dedup();
    assert_eq!(counts, [0, 8, whole]);
}

#[test]
fn no_flipped_bit_goes_unseen() {
    let file = file();
    for at in 0..file.len() {
        for bit in 0..8 {
            let mut damaged = file.clone();
            damaged[at] ^= 1 << bit;
            let damage = read(&damaged).expect_err(&format!("bit {bit} of byte {at} was flipped"));
            let text = damage.to_string();
            assert!(!text.contains('\n') && text.len() > 20, "{text}");
            if at < 8 {
                assert_eq!(damage, Damage::Foreign);
            }
        }
    }
}

#[test]
fn batches_that_are_swapped_missing_or_repeated_are_damage() {
    let (present, guards) = (runs(&[]), runs(&[]));
    let events = every_call(&present, &guards);
    let build = |order: &[(u64, usize)]| {
        let mut file = header().bytes().to_vec();
        for (number, event) in order {
            batch(&mut file, false, *number, &payload(&events[*event..event + 1]));
        }
        read(&file)
    };
    assert!(build(&[(0, 5), (1, 6), (2, 7)]).is_ok());
    for wrong in [&[(1, 5), (0, 6)][..], &[(0, 5), (2, 6)], &[(0, 5), (0, 5)]] {
        assert!(matches!(build(wrong), Err(Damage::Batch { .. })), "{wrong:?}");
    }
    // A state with a wrong number of events.
    let mut file = header().bytes().to_vec();
    batch(&mut file, true, 0, &End { events: 1, lost: 0, closed: true }.payload());
    assert!(matches!(read(&file), Err(Damage::Batch { .. })));
}

#[test]
fn an_event_that_is_none_is_damage_also_under_a_good_checksum() {
    let evicted = [6, 7, 1];
    for payload in [
        &[0][..],
        &[99],
        &[6],
        &[6, 7],
        &[6, 7, 2],
        &[1, 0, 0, 5, 0, 0],
        &[5, 0xff, 0xff, 0xff, 0xff, 15],
        &[21, 7, 5],
        &[22, 2],
        &[24, 7, 4, 0],
        &[25, 0, 1, 5, 0],
        &[26, 7, 3, 0],
        &[27, 7, 0x80, 0x80, 4, 0, 0, 0, 0, 0],
        &[29, 7, 5],
    ] {
        let mut file = header().bytes().to_vec();
        batch(&mut file, false, 0, &[&evicted, payload].concat());
        assert!(matches!(read(&file), Err(Damage::Batch { .. })), "{payload:?}");
    }
}

fn any_call() -> impl Strategy<Value = Call<'static>> {
    let block = any::<u32>().prop_map(BlockIndex);
    let range = (0..1u64 << 40, 1..1u64 << 20).prop_map(|(start, pages)| (PageIndex(start), PageIndex(start + pages)));
    let arrival = prop_oneof![
        Just(Arrival::Fresh),
        Just(Arrival::Prefetched),
        Just(Arrival::Rescued),
        any::<u64>().prop_map(|distance| Arrival::Refault { distance })
    ];
    prop_oneof![
        (range.clone(), 0..10u8, any::<bool>()).prop_map(|((start, end), order, listener)| Call::Add {
            start,
            end,
            order: Order::new(order).expect("below 10"),
            delivery: if listener { Delivery::Listener } else { Delivery::Signal },
            present: Runs::default(),
        }),
        (range, any::<bool>()).prop_map(|((start, end), remove)| Call::Discard { start, end, remove }),
        (0..10u8, 0..1u32 << 28).prop_map(|(order, index)| Call::Emptied {
            frame: FrameIndex::in_class(Order::new(order).expect("below 10"), index)
        }),
        block.clone().prop_map(|block| Call::Evicted { block }),
        (0..1u64 << 52, any::<u16>(), any::<bool>(), any::<bool>()).prop_map(|(page, thread, write, first)| {
            Call::Fault { page: PageIndex(page), thread: ThreadIndex(thread), write, first }
        }),
        (block, 1..=512u32, arrival).prop_map(|(first, count, arrival)| Call::Installed { first, count, arrival }),
        (any::<u32>(), any::<u32>()).prop_map(|(blocks, pages)| Call::Plan { blocks, pages }),
    ]
}

proptest! {
    #[test]
    fn any_event_is_read_back(all in proptest::collection::vec((any_call(), any::<bool>()), 0..50)) {
        let of = |(call, flag): &(Call<'static>, bool)| {
            let summary = match call {
                Call::Add { .. } | Call::Emptied { .. } => Summary::default(),
                Call::Evicted { .. } | Call::Installed { .. } => Summary::of_flag(*flag),
                _ => Summary { kind: u8::from(*flag) * 200, digest: 0xdead_beef },
            };
            Event { call: *call, summary }
        };
        let events: Vec<Event<'_>> = all.iter().map(of).collect();
        let mut file = header().bytes().to_vec();
        batch(&mut file, false, 0, &payload(&events));
        let (_, mut recording) = Recording::open(&file).unwrap();
        let mut back = Vec::new();
        recording.read(|_, event| { back.push(event); true }).unwrap();
        prop_assert_eq!(back, events);
    }
}
