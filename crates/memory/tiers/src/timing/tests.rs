// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What an emulated device may never do: be faster than its figures, or answer before it was asked.

use proptest::prelude::*;

use super::*;
use crate::profile::{Cache, Media, names};

const PAGE: u64 = 4096;

fn flat(latency_ns: u64, bytes_per_second: u64) -> Direction {
    Direction { latency_ns: vec![(0.0, latency_ns), (1.0, latency_ns)], request_ns: 0, bytes_per_second }
}

/// 1 GB/s and 100 ns, without media: 4096 ns per page.
fn memory() -> Profile {
    Profile {
        description: "test".into(),
        read: flat(100, 1_000_000_000),
        write: flat(100, 1_000_000_000),
        total_bytes_per_second: None,
        media: None,
        cache: None,
    }
}

/// Two planes of 10 us behind a link so fast that it does not count.
fn flash() -> Profile {
    Profile {
        read: flat(0, 4_096_000_000_000),
        media: Some(Media { page_bytes: PAGE, planes: 2, read_ns: 10_000, bytes_per_second: None }),
        ..memory()
    }
}

#[test]
fn an_idle_link_takes_its_latency_and_its_bytes() {
    let device = Device::new(memory(), 1 << 30);
    assert_eq!(device.completes_at_ns(0, Operation::Read, 0, PAGE), 4196);
    assert_eq!(device.completes_at_ns(1_000_000, Operation::Read, 0, 2 * PAGE), 1_000_000 + 8292);
}

#[test]
fn requests_queue_on_the_link_but_wait_for_the_latency_together() {
    let device = Device::new(memory(), 1 << 30);
    let done: Vec<u64> = (0..3).map(|_| device.completes_at_ns(0, Operation::Read, 0, PAGE)).collect();
    assert_eq!(done, [4196, 8292, 12388]);
    assert_eq!(device.completes_at_ns(0, Operation::Write, 0, PAGE), 4196, "the other direction is free");
}

#[test]
fn both_directions_share_the_total() {
    let device = Device::new(Profile { total_bytes_per_second: Some(1_000_000_000), ..memory() }, 1 << 30);
    assert_eq!(device.completes_at_ns(0, Operation::Read, 0, PAGE), 4196);
    assert_eq!(device.completes_at_ns(0, Operation::Write, 0, PAGE), 8292);
}

#[test]
fn pages_on_different_planes_are_read_together_and_on_the_same_one_in_turn() {
    let device = Device::new(flash(), 1 << 30);
    assert_eq!(device.completes_at_ns(0, Operation::Read, 0, 2 * PAGE), 10_002);
    let device = Device::new(flash(), 1 << 30);
    assert_eq!(device.completes_at_ns(0, Operation::Read, 0, PAGE), 10_001);
    assert_eq!(device.completes_at_ns(0, Operation::Read, 2 * PAGE, PAGE), 20_001);
    assert_eq!(device.completes_at_ns(0, Operation::Read, PAGE, PAGE), 10_001);
}

#[test]
fn the_cache_hides_the_media_until_the_working_set_outgrows_it() {
    let cache = Some(Cache { bytes: 4 * PAGE, line_bytes: PAGE });
    let device = Device::new(Profile { cache: cache.clone(), ..flash() }, 1 << 20);
    let read = |page: u64, now| device.completes_at_ns(now, Operation::Read, page * PAGE, PAGE) - now;
    assert_eq!(read(0, 0), 10_001);
    assert_eq!(read(0, 100_000), 1);
    assert_eq!(read(4, 200_000), 10_001, "the same place of the cache");
    assert_eq!(read(0, 300_000), 10_001);
    let all_fits = Device::new(Profile { cache, ..flash() }, 4 * PAGE);
    assert_eq!(all_fits.completes_at_ns(0, Operation::Read, 0, PAGE), 1);
}

#[test]
fn published_latencies_come_out() {
    let mean_ns = |name: &str, len: u64| {
        let device = Device::new(Profile::load(name).unwrap(), 1 << 30);
        let count = 20_000;
        let spacing_ns = 1_000_000;
        let sum: u64 = (0..count)
            .map(|index| {
                device.completes_at_ns(index * spacing_ns, Operation::Read, index % 64 * PAGE, len) - index * spacing_ns
            })
            .sum();
        sum / count
    };
    let near = |value: u64, wanted: u64| value.abs_diff(wanted) * 50 <= wanted;
    // One cache line of 64 bytes is what the papers measured.
    assert!(near(mean_ns("cmm-h", 64), 553), "{}", mean_ns("cmm-h", 64));
    assert!(near(mean_ns("cmm-b-switch", 64), 520), "{}", mean_ns("cmm-b-switch", 64));
    let median = Profile::load("cmm-h").unwrap().read.latency_ns_at(0.5);
    assert_eq!((median, Profile::load("cmm-h").unwrap().read.latency_ns_at(0.999)), (505, 1547));
    // "<5 us" and "<10 us" are the media's; request and transfer come on top.
    assert!((5_000..7_000).contains(&mean_ns("xl-flash-slc", PAGE)));
    assert!((10_000..12_000).contains(&mean_ns("xl-flash-mlc", PAGE)));
}

#[test]
fn no_answer_is_further_away_than_the_bound() {
    let device = Device::new(memory(), 1 << 40);
    assert_eq!(device.completes_at_ns(5, Operation::Read, 0, 1 << 39), 5 + WAIT_NS_MAX);
}

fn requests() -> impl Strategy<Value = Vec<(u64, bool, u64, u64)>> {
    // Gap since the last request, direction, page, pages.
    prop::collection::vec((0u64..50_000, any::<bool>(), 0u64..4096, 1u64..64), 1..200)
}

proptest! {
    #[test]
    fn no_device_is_faster_than_its_figures(
        name in prop::sample::select(names().collect::<Vec<_>>()), requests in requests(),
    ) {
        let profile = Profile::load(name).unwrap();
        let device = Device::new(profile.clone(), 1 << 34);
        let (mut now, mut last, mut moved) = (0, 0, [0u64; 2]);
        for (gap, is_write, page, pages) in requests {
            now += gap;
            let len = pages * PAGE;
            let (operation, direction) =
                if is_write { (Operation::Write, &profile.write) } else { (Operation::Read, &profile.read) };
            let done = device.completes_at_ns(now, operation, page * PAGE, len);
            let min = direction.latency_ns[0].1 + bytes_ns(len, direction.bytes_per_second);
            prop_assert!(done >= now + min || done == now + WAIT_NS_MAX);
            prop_assert!(done <= now + WAIT_NS_MAX);
            moved[usize::from(is_write)] += len;
            last = last.max(done);
        }
        prop_assert!(last >= bytes_ns(moved[0], profile.read.bytes_per_second));
        prop_assert!(last >= bytes_ns(moved[1], profile.write.bytes_per_second));
    }

    #[test]
    fn the_same_requests_get_the_same_answers(requests in requests()) {
        let answers = || {
            let device = Device::new(Profile::load("cmm-h").unwrap(), 1 << 36);
            let mut now = 0;
            requests.iter().map(|(gap, is_write, page, pages)| {
                now += gap;
                let operation = if *is_write { Operation::Write } else { Operation::Read };
                device.completes_at_ns(now, operation, page * PAGE, pages * PAGE)
            }).collect::<Vec<_>>()
        };
        prop_assert_eq!(answers(), answers());
    }
}
