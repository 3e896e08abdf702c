// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Windows that are interleaved by XOR: the arithmetic against the specification's formula and against what Linux
//! computes, and the firmware's table that says which windows are.
//!
//! The trouble that it guards against: addresses that are plausible and wrong, which nobody notices.

use std::collections::BTreeSet;

use aquifer_hotness::{Cedt, CedtFailure, Decoder, HotRange, XorMaps, host_ranges};
use proptest::prelude::*;

/// The numbers of targets that have maps.
const WAYS: [u64; 6] = [2, 4, 6, 8, 12, 16];
/// Regions begin with a multiple of 256 MiB; of three of them, so that the division by 3 begins with 0.
const STEP: u64 = 3 * (256 << 20);
/// The maps that CXL's guide for driver writers has as an example, for 256 bytes.
const GUIDE: [u64; 4] = [0x202_0900, 0x404_1200, 0x101_0400, 0x800];

fn maps_len(ways: u64) -> usize {
    ways.trailing_zeros() as usize
}

/// A region in a window with maps: ways, granularity, chunks of each target, first address of the host, maps. A map
/// may have the lowest bit of a later one.
fn region() -> impl Strategy<Value = (u64, u64, u64, u64, Vec<u64>)> {
    let upper = prop::collection::vec(0..1_u64 << 40, 4);
    (prop::sample::select(WAYS.to_vec()), 8..=14_u32, 1..40_u64, 0..1_u64 << 12, upper).prop_map(
        |(ways, granularity_log2, chunks, at, upper)| {
            let map = |(index, upper): (usize, u64)| (upper << 1 | 1) << (granularity_log2 as usize + index);
            let maps = upper.into_iter().take(maps_len(ways)).enumerate().map(map).collect();
            (ways, 1 << granularity_log2, chunks, at * STEP, maps)
        },
    )
}

fn target(region: &(u64, u64, u64, u64, Vec<u64>), position: u64, device: u64) -> Decoder {
    let (ways, granularity, chunks, host, maps) = region;
    let decoder = Decoder::new(device, (*host, ways * granularity * chunks), *ways, *granularity, position).unwrap();
    decoder.with_xor(XorMaps::new(maps, *granularity).unwrap()).unwrap()
}

/// The target of an address as the specification has it: a bit for each map, and above them the rest of a division.
fn by_formula(address: u64, ways: u64, granularity: u64, maps: &[u64]) -> u64 {
    let bits = maps.iter().enumerate().map(|(index, map)| u64::from((address & map).count_ones() % 2) << index);
    let low: u64 = bits.sum();
    let rest = (address / granularity) >> maps.len();
    if ways.is_multiple_of(3) { low + ((rest % 3) << maps.len()) } else { low }
}

proptest! {
    #[test]
    fn every_address_of_the_host_is_one_of_the_target_of_the_formula(
        region in region(),
        device in 0..1_u64 << 40,
        at in any::<prop::sample::Index>(),
    ) {
        let (ways, granularity, chunks, host, maps) = &region;
        let address = host + at.index(usize::try_from(ways * granularity * chunks).unwrap()) as u64;
        let owner = by_formula(address, *ways, *granularity, maps);
        for position in 0..*ways {
            let decoder = target(&region, position, device);
            match decoder.to_device(address) {
                Some(of_device) => {
                    prop_assert_eq!((position, decoder.to_host(of_device)), (owner, Some(address)));
                }
                None => prop_assert_ne!(position, owner),
            }
        }
    }

    /// Exactly the region's addresses, and each once.
    #[test]
    fn the_targets_share_a_region_without_a_gap(region in region(), device in 0..1_u64 << 40) {
        let (ways, granularity, chunks, host, _) = &region;
        let chunks_of = |position: u64| {
            let decoder = target(&region, position, device);
            (0..*chunks).map(move |chunk| decoder.to_host(device + chunk * granularity).unwrap())
        };
        let found: BTreeSet<u64> = (0..*ways).flat_map(chunks_of).collect();
        let expected: BTreeSet<u64> = (0..ways * chunks).map(|chunk| host + chunk * granularity).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn the_device_and_the_host_translate_inversely(
        region in region(),
        device in 0..1_u64 << 40,
        (at, position) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let (ways, granularity, chunks, ..) = &region;
        let decoder = target(&region, position.index(usize::try_from(*ways).unwrap()) as u64, device);
        let of_device = device + at.index(usize::try_from(granularity * chunks).unwrap()) as u64;
        let address = decoder.to_host(of_device).unwrap();
        prop_assert_eq!(decoder.to_device(address), Some(of_device));
        prop_assert_eq!(decoder.to_host(device + granularity * chunks), None);
    }

    #[test]
    fn the_pages_of_a_range_are_those_of_its_bytes(
        region in region(),
        position in any::<prop::sample::Index>(),
        (from, len) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let (ways, granularity, chunks, ..) = &region;
        let decoder = target(&region, position.index(usize::try_from(*ways).unwrap()) as u64, 0);
        let bytes = granularity * chunks;
        let from = from.index(usize::try_from(bytes).unwrap()) as u64;
        let range = HotRange {
            start: from,
            bytes: len.index(usize::try_from(bytes - from).unwrap()) as u64 + 1,
            accesses: 9,
            is_saturated: false,
        };
        let pages = |from: u64, to: u64| (from / 4096..to.div_ceil(4096)).collect::<Vec<u64>>();
        // The smallest chunk has 256 bytes, so that no page is passed over.
        let last = range.start + range.bytes - 1;
        let some = (range.start..=last).step_by(256).chain([last]);
        let expected: BTreeSet<u64> = some.map(|address| decoder.to_host(address).unwrap() / 4096).collect();
        let (found, missing) = host_ranges(&[decoder], &range);
        let found_pages: BTreeSet<u64> = found.iter().flat_map(|it| pages(it.start, it.start + it.bytes)).collect();
        prop_assert_eq!((found_pages, missing), (expected, 0));
    }
}

/// Ways, position, the device's address and the host's offset with the guide's maps, as Linux 6.12 computes it.
const LINUX: [(u64, u64, u64, u64); 18] = [
    (2, 1, 0x4d3c1a6, 0x9a782a6),
    (2, 1, 0x18b8ffa, 0x3171efa),
    (2, 0, 0x3031d02, 0x6063b02),
    (4, 2, 0x1db208e, 0x76c838e),
    (4, 1, 0x1332a1b, 0x4cca81b),
    (4, 0, 0xde06ceb, 0x3781b1eb),
    (6, 3, 0x23c4171, 0xd698871),
    (6, 1, 0x2e71efb, 0x116ab4fb),
    (6, 4, 0xd95a944, 0x5181fb44),
    (8, 0, 0x3f62f84, 0x1fb17884),
    (8, 3, 0x1fac61e, 0xfd6351e),
    (8, 6, 0x1963c53, 0xcb1e053),
    (12, 3, 0x17d9af6, 0x11e339f6),
    (12, 8, 0x442f7d5, 0x33239fd5),
    (12, 4, 0xd699648, 0xa0f30c48),
    (16, 4, 0x3c4f438, 0x3c4f4138),
    (16, 9, 0x5c882b1, 0x5c882ab1),
    (16, 3, 0x6030a18, 0x6030a318),
];

#[test]
fn addresses_are_those_of_linux() {
    for (ways, position, device, offset) in LINUX {
        let host = 0x40_0000_0000;
        let decoder = Decoder::new(0, (host, ways << 28), ways, 256, position).unwrap();
        let decoder = decoder.with_xor(XorMaps::new(&GUIDE[..maps_len(ways)], 256).unwrap()).unwrap();
        assert_eq!(decoder.to_host(device), Some(host + offset), "{ways} {position} {device:#x}");
        assert_eq!(decoder.to_device(host + offset), Some(device));
    }
}

#[test]
fn a_region_that_the_maps_do_not_fit_is_none() {
    let decoder = |host, ways, granularity| Decoder::new(0, (host, ways << 28), ways, granularity, 0).unwrap();
    let two = XorMaps::new(&GUIDE[..2], 256).unwrap();
    assert!(decoder(1 << 28, 4, 256).with_xor(two).is_some());
    assert!(decoder(1 << 28, 8, 256).with_xor(two).is_some(), "the bridges' targets are interleaved, too");
    assert_eq!(decoder(1 << 28, 2, 256).with_xor(two), None, "it has one bit of a position, and there are two maps");
    assert_eq!(decoder(1 << 28, 6, 256).with_xor(two), None);
    assert_eq!(decoder(1 << 28, 4, 1024).with_xor(two), None, "the maps' bits are within a chunk");
    assert_eq!(decoder(512, 4, 256).with_xor(two), None, "it begins within a block");
    assert_eq!(decoder(512, 4, 256).with_xor(XorMaps::NONE), Some(decoder(512, 4, 256)));
}

/// A table with a bridge, windows of one target by modulo, two by modulo, four and six by XOR, and the guide's maps.
fn golden() -> Vec<u8> {
    let digits: String = include_str!("golden/cedt.hex").split_whitespace().collect();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

const GIB: u64 = 1 << 30;

#[test]
fn a_table_says_the_maps_of_each_window() {
    let cedt = Cedt::parse(&golden()).unwrap();
    let guide = |len| XorMaps::new(&GUIDE[..len], 256).unwrap();
    for (start, bytes, maps) in [
        (64 * GIB, 8 * GIB, XorMaps::NONE),
        (128 * GIB, 16 * GIB, XorMaps::NONE),
        (256 * GIB, 64 * GIB, guide(2)),
        (319 * GIB, GIB, guide(2)),
        (384 * GIB, 12 * GIB, guide(1)),
    ] {
        assert_eq!(cedt.xor_maps(start, bytes).unwrap(), maps, "{start:#x}");
    }
    for (start, bytes) in [(63 * GIB, 2 * GIB), (71 * GIB, 2 * GIB), (0, GIB), (u64::MAX, 2)] {
        assert!(matches!(cedt.xor_maps(start, bytes), Err(CedtFailure::NoWindow { .. })), "{start:#x}");
    }
}

#[test]
fn a_table_that_ends_early_or_lies_about_lengths_is_damaged() {
    let whole = golden();
    for bytes in 0..whole.len() {
        assert!(matches!(Cedt::parse(&whole[..bytes]), Err(CedtFailure::Damaged(_))), "{bytes}");
    }
    let longer = [&whole[..], b"beyond its end"].concat();
    assert_eq!(Cedt::parse(&longer).unwrap(), Cedt::parse(&whole).unwrap());
    // The length of the bridge, of the first window, and the number of maps, which come last.
    let maps_at = whole.len() - 8 * 4 - 1;
    for (at, value) in [(0, b'X'), (38, 0), (38, 3), (38, 255), (39, 255), (70, 8), (70, 35), (maps_at, 5)] {
        let mut table = whole.clone();
        table[at] = value;
        assert!(matches!(Cedt::parse(&table), Err(CedtFailure::Damaged(_))), "{at} {value}");
    }
}

/// In the window of four targets: arithmetic, number of targets, granularity; of the maps: for which granularity.
#[test]
fn a_window_of_an_unknown_kind_is_refused_with_the_cause() {
    let whole = golden();
    // The header, the bridge, the windows of one and two targets.
    let window = 36 + 32 + 40 + 44;
    let maps = whole.len() - 8 * 4 - 8;
    assert_eq!((whole[window], whole[window + 25], whole[maps]), (1, 1, 2), "the fields are where this test expects");
    for (at, value, what) in [
        (window + 25, 2, "has the unknown arithmetic 2"),
        (window + 24, 5, "has an unknown number of targets, 5"),
        (window + 24, 11, "has an unknown number of targets, 11"),
        (window + 28, 7, "has the unknown granularity 7"),
        (window + 28, 1, "needs 2 XOR maps for 512 bytes, and has 0"),
        (maps + 6, 3, "needs 2 XOR maps for 256 bytes, and has 0"),
        (maps + 8, 1, "has XOR maps for other bits"),
    ] {
        let mut table = whole.clone();
        table[at] = value;
        let failure = Cedt::parse(&table).unwrap().xor_maps(256 * GIB, GIB).unwrap_err().to_string();
        assert!(failure.contains(what) && failure.contains("0x4000000000"), "{failure}");
    }
    let mut few = whole.clone();
    few[maps + 7] = 1;
    let failure = Cedt::parse(&few).unwrap().xor_maps(256 * GIB, GIB).unwrap_err().to_string();
    assert!(failure.contains("needs 2 XOR maps for 256 bytes, and has 1"), "{failure}");
    assert!(Cedt::parse(&few).unwrap().xor_maps(384 * GIB, GIB).is_ok(), "six targets need one");
}

#[test]
fn every_message_is_one_line_with_a_remedy() {
    for failure in [
        CedtFailure::Unreadable(std::io::Error::from_raw_os_error(13)),
        CedtFailure::Damaged("its length is 0".into()),
        CedtFailure::Misfit { start: 1 << 32 },
        CedtFailure::NoWindow { start: 1 << 32 },
        CedtFailure::Window { start: 1 << 32, what: "has the unknown arithmetic 2".into() },
    ] {
        let text = failure.to_string();
        assert!(text.contains("; ") && !text.contains('\n') && text.contains("/CEDT"), "{text}");
    }
}
