// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! From a device's addresses to the host's: the arithmetic against the specification's bits, and the decoders of a tree
//! of files.

use std::collections::BTreeSet;

use aquifer_hotness::{CEDT, CedtFailure, Decoder, GRANULARITIES, HotRange, WAYS, host_ranges};
use aquifer_nodes::Fixture;
use proptest::prelude::*;

fn granularities() -> Vec<u64> {
    std::iter::successors(Some(*GRANULARITIES.start()), |it| Some(it * 2))
        .take_while(|it| GRANULARITIES.contains(it))
        .collect()
}

/// A region: ways, granularity, chunks of each target, first address of the host.
fn region() -> impl Strategy<Value = (u64, u64, u64, u64)> {
    (prop::sample::select(WAYS.to_vec()), prop::sample::select(granularities()), 1..200_u64, 0..1_u64 << 40)
        .prop_map(|(ways, granularity, chunks, at)| (ways, granularity, chunks, at << 8))
}

fn target((ways, granularity, chunks, host): (u64, u64, u64, u64), position: u64, device: u64) -> Decoder {
    Decoder::new(device, (host, ways * granularity * chunks), ways, granularity, position).unwrap()
}

/// The host's offset as the specification builds it from bits, and as Linux computes it (`cxl_dpa_to_hpa`): `eig` and
/// `eiw` are the encoded granularity and ways.
fn by_bits(offset: u64, ways: u64, granularity: u64, position: u64) -> u64 {
    let eig = u64::from(granularity.trailing_zeros()) - 8;
    let (upper, lower) = (offset >> (eig + 8), offset & (granularity - 1));
    let chunk = match ways {
        3 | 6 | 12 => {
            let eiw = u64::from((ways / 3).trailing_zeros()) + 8;
            ((upper * 3) << (eiw - 8)) + position
        }
        _ => upper << ways.trailing_zeros() | position,
    };
    chunk << (eig + 8) | lower
}

proptest! {
    #[test]
    fn every_address_of_the_host_is_one_of_exactly_one_device(
        region in region(),
        device in 0..1_u64 << 40,
        at in any::<prop::sample::Index>(),
    ) {
        let (ways, granularity, chunks, host) = region;
        let bytes = ways * granularity * chunks;
        let address = host + at.index(usize::try_from(bytes).unwrap()) as u64;
        let owners: Vec<(u64, u64)> = (0..ways)
            .filter_map(|position| Some((position, target(region, position, device).to_device(address)?)))
            .collect();
        prop_assert_eq!(owners.len(), 1);
        let (position, of_device) = owners[0];
        prop_assert_eq!(target(region, position, device).to_host(of_device), Some(address));
    }

    #[test]
    fn to_the_host_is_as_the_specification_builds_it_and_back_is_the_inverse(
        region in region(),
        device in 0..1_u64 << 40,
        at in any::<prop::sample::Index>(),
        position in any::<prop::sample::Index>(),
    ) {
        let (ways, granularity, chunks, host) = region;
        let position = position.index(usize::try_from(ways).unwrap()) as u64;
        let decoder = target(region, position, device);
        let offset = at.index(usize::try_from(granularity * chunks).unwrap()) as u64;
        let address = decoder.to_host(device + offset).unwrap();
        prop_assert_eq!(address, host + by_bits(offset, ways, granularity, position));
        prop_assert_eq!(decoder.to_device(address), Some(device + offset));
        let end = device + granularity * chunks;
        prop_assert_eq!(decoder.device_range(), (device, end));
        prop_assert_eq!((decoder.to_host(end), device.checked_sub(1).and_then(|it| decoder.to_host(it))), (None, None));
        let outside = [host.checked_sub(1), Some(host + ways * granularity * chunks)];
        prop_assert!(outside.into_iter().flatten().all(|it| decoder.to_device(it).is_none()));
    }

    /// The pages of a range are exactly those that have a byte of it.
    #[test]
    fn the_pages_of_a_range_are_those_of_its_bytes(
        (ways, granularity, chunks) in
            (prop::sample::select(WAYS.to_vec()), prop::sample::select(granularities()), 1..40_u64),
        position in any::<prop::sample::Index>(),
        (from, len) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        accesses in 1..1000_u64,
    ) {
        // Regions begin and end with 256 MiB; only a part of one is looked at.
        let (host, device) = (256 << 20, 512 << 20);
        let position = position.index(usize::try_from(ways).unwrap()) as u64;
        let decoder = Decoder::new(device, (host, ways * (256 << 20)), ways, granularity, position).unwrap();
        let (from, most) = (from.index(1 << 16) as u64, usize::try_from(granularity * chunks).unwrap());
        let range = HotRange { start: device + from, bytes: len.index(most) as u64 + 1, accesses, is_saturated: true };
        let pages = |from: u64, to: u64| (from / 4096..to.div_ceil(4096)).collect::<Vec<u64>>();
        let expected: BTreeSet<u64> = (range.start..range.start + range.bytes)
            .map(|address| decoder.to_host(address).unwrap() / 4096)
            .collect();
        let (found, missing) = host_ranges(&[decoder], &range);
        let found_pages: BTreeSet<u64> = found.iter().flat_map(|it| pages(it.start, it.start + it.bytes)).collect();
        prop_assert_eq!((found_pages, missing), (expected, 0));
        prop_assert!(found.iter().all(|it| it.is_saturated));
        prop_assert!(found.iter().map(|it| it.accesses).sum::<u64>() >= accesses);
    }
}

#[test]
fn a_region_that_cannot_be_is_none() {
    let decoder = |ways, granularity, position, bytes| Decoder::new(0, (0, bytes), ways, granularity, position);
    assert!(decoder(2, 256, 1, 512).is_some());
    for (ways, granularity, position, bytes) in
        [(0, 256, 0, 512), (5, 256, 0, 1280), (2, 128, 0, 512), (2, 768, 0, 1536), (2, 32768, 0, 65536)]
            .into_iter()
            .chain([(2, 256, 2, 512), (2, 256, 0, 256), (2, 256, 0, 0)])
    {
        assert_eq!(decoder(ways, granularity, position, bytes), None, "{ways} {granularity} {position} {bytes}");
    }
    assert_eq!(Decoder::new(0, (u64::MAX, 512), 2, 256, 0), None, "it would end after the last address");
    assert_eq!(Decoder::new(u64::MAX, (0, 512), 2, 256, 0), None);
}

#[test]
fn what_no_decoder_has_is_counted_and_two_decoders_share_a_range() {
    let first = Decoder::new(0, (1 << 30, 8192), 1, 256, 0).unwrap();
    let second = Decoder::new(8192, (2 << 30, 16384), 2, 4096, 1).unwrap();
    let range = HotRange { start: 4096, bytes: 16384, accesses: 9, is_saturated: false };
    let (found, missing) = host_ranges(&[first, second], &range);
    let part = |start| HotRange { start, bytes: 4096, accesses: 3, is_saturated: false };
    assert_eq!(found, [part((1 << 30) + 4096), part((2 << 30) + 4096), part((2 << 30) + 12288)]);
    assert_eq!(missing, 4096);
    assert_eq!(host_ranges(&[], &range), (Vec::new(), 16384));
}

const CXL: &str = "/sys/bus/cxl/devices";

fn decoders_of(tree: &Fixture, function: &str) -> Vec<Decoder> {
    aquifer_hotness::decoders_of(tree, function).unwrap()
}

/// The firmware's table with a window of 16 GiB at 16 GiB, of two targets and 4 KiB, and a map for such windows.
fn cedt(arithmetic: u8, map: u64) -> Vec<u8> {
    let mut table = vec![0; 36 + 44 + 16];
    let mut put = |at: usize, bytes: &[u8]| table[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"CEDT\x60");
    put(36, &[1, 0, 44]);
    put(44, &(16_u64 << 30).to_le_bytes());
    put(52, &(16_u64 << 30).to_le_bytes());
    put(60, &[1, arithmetic, 0, 0, 4]);
    put(80, &[2, 0, 16, 0, 0, 0, 4, 1]);
    put(88, &map.to_le_bytes());
    table
}

/// Two devices with a region of two ways, whose second target is the first device, and a free decoder.
fn machine() -> Fixture {
    let mut tree = Fixture::new();
    for (function, memdev, endpoint, target) in
        [("0000:0d:00.0", "mem1", "endpoint4", 1), ("0000:0e:00.0", "mem0", "endpoint3", 0)]
    {
        let number = endpoint.trim_start_matches("endpoint");
        let name = format!("decoder{number}.0");
        tree = tree
            .with(&format!("/sys/bus/pci/devices/{function}/{memdev}/serial"), "0x1000")
            .with(&format!("/sys/bus/pci/devices/{function}/class"), "0x050210")
            .with_link(&format!("{CXL}/{endpoint}/uport"), &format!("../../../{memdev}"))
            .with(&format!("{CXL}/region0/target{target}"), &name);
        for (decoder, region) in [(name.clone(), "region0"), (format!("decoder{number}.1"), "")] {
            for (file, text) in [
                ("dpa_resource", "0x10000000"),
                ("start", "0x490000000"),
                ("size", "0x20000000"),
                ("interleave_ways", "2"),
                ("interleave_granularity", "4096"),
                ("region", region),
            ] {
                tree = tree.with(&format!("{CXL}/{decoder}/{file}"), text);
            }
            tree = tree.with(&format!("{CXL}/{endpoint}/{decoder}/devtype"), "cxl_decoder_endpoint");
        }
    }
    let tree = tree.with(&format!("{CXL}/region0/commit"), "1").with(&format!("{CXL}/decoder0.0/start"), "0x490000000");
    tree.with_bytes(CEDT, &cedt(0, 0))
}

#[test]
fn the_decoders_of_a_function_are_those_of_its_memdev_in_committed_regions() {
    let decoder = |position| Decoder::new(256 << 20, (0x4_9000_0000, 512 << 20), 2, 4096, position).unwrap();
    assert_eq!(decoders_of(&machine(), "0000:0d:00.0"), [decoder(1)]);
    assert_eq!(decoders_of(&machine(), "0000:0e:00.0"), [decoder(0)]);
    assert_eq!(decoders_of(&machine(), "0000:0f:00.0"), []);
    let uncommitted = machine().with(&format!("{CXL}/region0/commit"), "0");
    assert_eq!(decoders_of(&uncommitted, "0000:0d:00.0"), []);
    let hidden = machine().without(&format!("{CXL}/decoder4.0/start"));
    assert_eq!(decoders_of(&hidden, "0000:0d:00.0"), [], "as others than root see it");
    for (file, text) in [("interleave_ways", "5"), ("interleave_granularity", "100"), ("size", "0x20000100")] {
        let odd = machine().with(&format!("{CXL}/decoder4.0/{file}"), text);
        assert_eq!(decoders_of(&odd, "0000:0d:00.0"), [], "{file} {text}");
    }
    let elsewhere = machine().with(&format!("{CXL}/region0/target1"), "decoder9.0");
    assert_eq!(decoders_of(&elsewhere, "0000:0d:00.0"), [], "no target of its region");
}

#[test]
fn a_region_whose_last_page_ends_beyond_all_addresses_is_none() {
    let start = u64::MAX - 0xfff - 0x1000;
    assert_eq!(Decoder::new(0, (start, 0x1f00), 1, 256, 0), None);
    assert!(Decoder::new(0, (start - 0x1000, 0x1f00), 1, 256, 0).is_some());
}

#[test]
fn a_long_range_of_interleaved_memory_is_one_range_of_the_host() {
    let decoder = Decoder::new(0, (1 << 40, 1 << 39), 2, 4096, 0).unwrap();
    let hot = |bytes| HotRange { start: 0, bytes, accesses: 7, is_saturated: false };
    let (found, outside) = host_ranges(&[decoder], &hot(256 << 30));
    assert_eq!((found.len(), found[0].start, outside), (1, 1 << 40, 0));
    assert_eq!(found[0].bytes, (1 << 39) - 4096, "up to its last chunk");
    assert_eq!(host_ranges(&[decoder], &hot(64 << 10)).0.len(), 16, "a short one is exact");
}

#[test]
fn the_window_of_a_region_says_its_arithmetic() {
    let modulo = Decoder::new(256 << 20, (0x4_9000_0000, 512 << 20), 2, 4096, 1).unwrap();
    let by_xor = machine().with_bytes(CEDT, &cedt(1, 0x11000));
    let found = decoders_of(&by_xor, "0000:0d:00.0")[0];
    assert_ne!(found, modulo);
    // The bit at 0x10000 inverts that at 0x1000: at first the device has odd pages, then even ones.
    for (device, host) in [(0, 0x1000), (0x7000, 0xf000), (0x8000, 0x1_0000), (0x9000, 0x1_2000), (0x1_0000, 0x2_1000)]
    {
        assert_eq!(found.to_host((256 << 20) + device), Some(0x4_9000_0000 + host), "{device:#x}");
        assert_eq!(found.to_device(0x4_9000_0000 + host), Some((256 << 20) + device));
    }
    assert_eq!(decoders_of(&machine().with_bytes(CEDT, &cedt(0, 0x11000)), "0000:0d:00.0"), [modulo]);
}

#[test]
fn an_interleaved_region_whose_arithmetic_is_not_known_has_no_decoders_but_a_cause() {
    let refused = |tree: Fixture| aquifer_hotness::decoders_of(&tree, "0000:0d:00.0").unwrap_err();
    let without = || Fixture::new().with(CEDT, "");
    assert!(aquifer_hotness::decoders_of(&without(), "0000:0d:00.0").unwrap().is_empty(), "it is not needed");
    let single = machine().with(&format!("{CXL}/decoder4.0/interleave_ways"), "1");
    let single = single.with(&format!("{CXL}/region0/target0"), "decoder4.0").with_bytes(CEDT, b"");
    assert_eq!(decoders_of(&single, "0000:0d:00.0").len(), 1, "one target has no order");

    assert!(matches!(refused(machine().with_bytes(CEDT, b"")), CedtFailure::Damaged(_)));
    assert!(matches!(refused(machine().without(CEDT)), CedtFailure::Unreadable(_)));
    assert!(matches!(refused(machine().with_bytes(CEDT, &cedt(2, 0x11000))), CedtFailure::Window { .. }));
    let elsewhere = machine().with(&format!("{CXL}/decoder4.0/start"), "0x90000000");
    assert!(matches!(refused(elsewhere), CedtFailure::NoWindow { start: 0x9000_0000 }));
    let coarser = machine().with(&format!("{CXL}/decoder4.0/interleave_granularity"), "8192");
    let failure = refused(coarser.with_bytes(CEDT, &cedt(1, 0x11000)));
    assert!(matches!(failure, CedtFailure::Misfit { start: 0x4_9000_0000 }), "{failure}");
}
