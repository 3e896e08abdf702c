// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The driver of hotness monitors on a model of one, in histories that follow from their seeds.
//!
//! The trouble that it guards against: a hot list that overflows while nobody looks, so that the hottest memory is
//! missing from what is promoted, and everything seems to be in order.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use aquifer_hotness::model::{Model, Shape};
use aquifer_hotness::{Hot, HotnessFailure, HotnessSource, Monitor, RegisterFailure, Registers, Requests, Settings};

const EPOCH: Duration = Duration::from_millis(100);
const PAGE: u64 = 4096;

type Device = Rc<RefCell<Model>>;

fn started(shape: Shape, settings: Settings) -> (Device, Monitor<Device>) {
    let device = Model::shared(shape);
    let mut monitor = Monitor::open("model".into(), Rc::clone(&device), 0, 0, settings).unwrap();
    monitor.start().unwrap();
    (device, monitor)
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) % end
    }
}

fn counts(hot: &Hot) -> BTreeMap<u64, u64> {
    hot.ranges.iter().map(|range| (range.start / PAGE, range.accesses)).collect()
}

#[test]
fn exactly_the_pages_that_reach_the_threshold_within_an_epoch_are_found() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let settings = Settings { threshold: 8, ..Settings::default() };
        let (device, mut monitor) = started(Shape::default(), settings);
        for _ in 0..4 {
            let mut expected = BTreeMap::new();
            for page in 0..40 {
                let accesses = if random.below(4) == 0 { 8 + random.below(50) } else { random.below(8) };
                for _ in 0..accesses {
                    device.borrow_mut().access(page * PAGE + random.below(PAGE), random.below(2) == 0);
                }
                if accesses >= 8 {
                    expected.insert(page, accesses);
                }
            }
            assert_eq!(monitor.collect().unwrap(), Hot::default(), "seed {seed}: the epoch has not ended");
            device.borrow_mut().pass(EPOCH);
            let hot = monitor.collect().unwrap();
            assert_eq!((counts(&hot), hot.has_lost), (expected, false), "seed {seed}");
            assert!(hot.ranges.is_sorted_by(|a, b| a.accesses >= b.accesses), "seed {seed}");
        }
        monitor.stop().unwrap();
        assert!(!device.borrow().is_enabled());
    }
}

#[test]
fn counters_begin_at_zero_in_each_epoch() {
    let settings = Settings { threshold: 10, ..Settings::default() };
    let (device, mut monitor) = started(Shape::default(), settings);
    for _ in 0..5 {
        (0..9).for_each(|_| device.borrow_mut().access(0, false));
        device.borrow_mut().pass(EPOCH);
    }
    assert_eq!(monitor.collect().unwrap(), Hot::default(), "45 accesses, never 10 in an epoch");
    (0..10).for_each(|_| device.borrow_mut().access(0, false));
    device.borrow_mut().pass(EPOCH);
    assert_eq!(monitor.collect().unwrap().ranges[0].accesses, 10);
}

#[test]
fn an_overflow_is_reported_and_what_was_listed_is_not_lost() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let shape = Shape { list_entries: 16, ..Shape::default() };
        let (device, mut monitor) = started(shape, Settings { threshold: 1, ..Settings::default() });
        let (mut accessed, mut reported, mut lost_before) = (0, 0, 0);
        for _ in 0..30 {
            let pages = random.below(24);
            for page in 0..pages {
                device.borrow_mut().access(page * PAGE, false);
            }
            accessed += pages;
            device.borrow_mut().pass(EPOCH);
            if random.below(3) == 0 {
                continue;
            }
            let hot = monitor.collect().unwrap();
            reported += hot.ranges.iter().map(|range| range.accesses).sum::<u64>();
            let lost = device.borrow().lost();
            assert_eq!(reported + lost, accessed, "seed {seed}");
            // A list that is exactly full may or may not have lost something.
            assert!(hot.has_lost || lost == lost_before, "seed {seed}: {lost} entries are lost, and not reported");
            lost_before = lost;
            assert_eq!(monitor.collect().unwrap(), Hot::default(), "seed {seed}: reported once");
        }
        assert!(lost_before > 0, "seed {seed}: nothing was lost");
    }
}

#[test]
fn a_counter_at_its_end_says_that_there_may_have_been_more() {
    let shape = Shape { counter_bits: 6, ..Shape::default() };
    let (device, mut monitor) = started(shape, Settings { threshold: 20, ..Settings::default() });
    (0..1000).for_each(|_| device.borrow_mut().access(PAGE, false));
    (0..62).for_each(|_| device.borrow_mut().access(2 * PAGE, false));
    device.borrow_mut().pass(EPOCH);
    let found: Vec<_> =
        monitor.collect().unwrap().ranges.iter().map(|it| (it.start / PAGE, it.accesses, it.is_saturated)).collect();
    assert_eq!(found, [(1, 63, true), (2, 62, false)]);
}

#[test]
fn memory_is_counted_by_granules_and_by_the_kind_of_request() {
    let settings = Settings { granule_bytes: 2 << 20, threshold: 4, requests: Requests::Writes, ..Settings::default() };
    let (device, mut monitor) = started(Shape::default(), settings);
    for page in 0..8 {
        device.borrow_mut().access((2 << 20) + page * PAGE, true);
        device.borrow_mut().access((8 << 20) + page * PAGE, false);
    }
    device.borrow_mut().pass(EPOCH);
    let hot = monitor.collect().unwrap();
    assert_eq!(hot.ranges.iter().map(|it| (it.start, it.bytes)).collect::<Vec<_>>(), [(2 << 20, 2 << 20)]);
}

#[test]
fn a_monitor_without_epochs_reports_what_reaches_the_threshold_and_counts_it_again() {
    let shape = Shape { has_epochs: false, ..Shape::default() };
    let (device, mut monitor) = started(shape, Settings { threshold: 5, ..Settings::default() });
    (0..14).for_each(|_| device.borrow_mut().access(0, false));
    let hot = monitor.collect().unwrap();
    assert_eq!(hot.ranges.iter().map(|it| (it.start, it.accesses)).collect::<Vec<_>>(), [(0, 10)]);
}

#[test]
fn what_the_monitor_does_not_support_is_refused_with_what_it_does() {
    for (settings, part) in [
        (Settings { granule_bytes: 8192, ..Settings::default() }, "counts by 4096 or 2097152 bytes"),
        (Settings { epoch: Duration::from_secs(200), ..Settings::default() }, "has epochs of 1ms to 100s"),
        (Settings { epoch: Duration::from_micros(100), ..Settings::default() }, "has epochs of 1ms to 100s"),
        (Settings { threshold: 1 << 16, ..Settings::default() }, "has thresholds of 1 to 65535"),
        (Settings { threshold: 0, ..Settings::default() }, "has thresholds of 1 to 65535"),
    ] {
        let device = Model::shared(Shape::default());
        let mut monitor = Monitor::open("model".into(), Rc::clone(&device), 0, 0, settings).unwrap();
        let text = monitor.start().unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
        assert!(!device.borrow().is_enabled());
    }
}

#[test]
fn a_monitor_that_another_program_uses_is_left_alone_and_one_that_was_reset_is_reported() {
    let (device, mut first) = started(Shape::default(), Settings::default());
    let mut second = Monitor::open("model".into(), Rc::clone(&device), 0, 0, Settings::default()).unwrap();
    assert!(matches!(second.start(), Err(HotnessFailure::InUse { .. })));
    assert!(matches!(second.collect(), Err(HotnessFailure::Stopped { .. })));
    assert!(device.borrow().is_enabled());
    device.borrow_mut().reset_device();
    assert!(matches!(first.collect(), Err(HotnessFailure::Stopped { .. })));
    first.start().unwrap();
    assert_eq!(first.collect().unwrap(), Hot::default());
    let third = Monitor::open("model".into(), device, 0, 1, Settings::default());
    assert!(matches!(third.err().unwrap(), HotnessFailure::NoMonitor { monitors: 1, .. }));
}

/// After n accesses to registers the device answers no more, for each n.
#[test]
fn a_device_that_fails_at_any_access_is_an_error_and_no_finding() {
    let mut ended = false;
    for accesses in 0..500 {
        let device = Model::shared(Shape::default());
        device.borrow_mut().fail_after(Some(accesses));
        let run = || -> Result<Hot, HotnessFailure> {
            let mut monitor = Monitor::open("model".into(), Rc::clone(&device), 0, 0, Settings::default())?;
            monitor.start()?;
            for page in 0..8 {
                (0..40).for_each(|_| device.borrow_mut().access(page * PAGE, false));
            }
            device.borrow_mut().pass(EPOCH);
            let hot = monitor.collect()?;
            monitor.stop()?;
            Ok(hot)
        };
        match run() {
            Ok(hot) => {
                assert_eq!((hot.ranges.len(), ended), (8, true));
                return;
            }
            Err(failure) => {
                assert!(matches!(failure, HotnessFailure::Register { .. }), "{failure}");
                ended = true;
            }
        }
    }
    panic!("it never came to its end");
}

/// Registers that contain anything.
struct Anything(Random);

impl Registers for Anything {
    fn read_u16(&mut self, _: usize) -> Result<u16, RegisterFailure> {
        Ok(self.0.below(1 << 16) as u16)
    }

    fn write_u16(&mut self, _: usize, _: u16) -> Result<(), RegisterFailure> {
        Ok(())
    }

    fn read_u64(&mut self, offset: usize) -> Result<u64, RegisterFailure> {
        Ok(match self.0.below(8) {
            _ if offset == 0 => 1 | 1 << 8,
            _ if offset == 8 => 0xffff,
            0 => u64::MAX,
            1 => 0,
            // Offsets and states as a monitor has them, so that some are opened and started.
            2..=6 if offset == 0x10 => self.0.below(u64::MAX) & !(0xffff << 48) | self.0.below(512) << 48,
            2..=5 if offset == 0x20 => 0x70,
            2..=5 if offset == 0x28 => 0x70 + 8 * self.0.below(64),
            2..=6 if offset == 0x70 => self.0.below(2) | 16 << 32,
            _ => self.0.below(u64::MAX),
        })
    }

    fn write_u64(&mut self, _: usize, _: u64) -> Result<(), RegisterFailure> {
        Ok(())
    }
}

#[test]
fn registers_with_any_contents_end_in_an_error_or_in_a_bounded_list() {
    let mut opened = 0;
    for seed in 0..3000 {
        let Ok(mut monitor) = Monitor::open("any".into(), Anything(Random(seed)), 0, 0, Settings::default()) else {
            continue;
        };
        opened += 1;
        let entries = usize::from(monitor.capabilities().list_entries);
        let _ = monitor.start();
        match monitor.collect() {
            Ok(hot) => assert!(hot.ranges.len() < entries, "seed {seed}"),
            Err(failure) => assert!(!failure.to_string().contains('\n')),
        }
    }
    assert!(opened > 50, "{opened} opened");
}
