// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Regions are made and taken back on a model of the kernel: as a whole or not at all, whichever write fails, and
//! memory in use is moved, or its holders are named.
//!
//! The trouble that this guards against: a host that is left with half a region after a fabric manager's mistake has
//! decoders that nothing frees until it is restarted.

use aquifer_cxl_host::model::{BLOCK_BYTES, CAPACITY_BYTES, Failing, KernelModel as Model};
use aquifer_cxl_host::{
    CxlFailure, Listing, Progress, Region, Request, Zone, blocks, check, create, destroy, offline, online,
};
use aquifer_nodes::Tree;
use aquifer_nodes::dax::Mode;

fn request(memdevs: &[&str]) -> Request {
    let memdevs = memdevs.iter().map(|name| (*name).to_owned()).collect();
    Request { memdevs, bytes: None, granularity_bytes: 256, window: None }
}

fn made(model: &Model) -> Region {
    create(model, &request(&["0x1000", "0x1001"])).unwrap()
}

/// Brings all of a region's memory online.
fn with_memory(model: &Model) -> Region {
    let region = made(model);
    online(model, &region.devices[0], Zone::Movable, &mut |_| ()).unwrap();
    Listing::read(model).unwrap().regions[0].clone()
}

#[test]
fn a_region_takes_all_that_its_devices_have_and_gives_it_back() {
    let model = Model::new(2);
    let before = model.state();
    let region = made(&model);
    assert_eq!(
        (region.bytes, region.targets.as_slice()),
        (2 * CAPACITY_BYTES, &["decoder4.0".into(), "decoder3.0".into()][..])
    );
    assert!(region.is_committed && region.is_enabled);
    assert_eq!((region.devices[0].bytes, region.devices[0].mode), (2 * CAPACITY_BYTES, Mode::SystemRam));
    assert_eq!(check(&Listing::read(&model).unwrap(), &[(0x1000, CAPACITY_BYTES), (0x1001, CAPACITY_BYTES)]), []);
    destroy(&model, "region0", false, &mut |_| ()).unwrap();
    assert_eq!(model.state(), before);
}

#[test]
fn a_smaller_region_leaves_room_for_another() {
    let model = Model::new(1);
    let half = Request { bytes: Some(CAPACITY_BYTES / 2), ..request(&["mem0"]) };
    assert_eq!(create(&model, &half).unwrap().targets, ["decoder3.0"]);
    assert_eq!(create(&model, &half).unwrap().targets, ["decoder3.1"]);
    let failure = create(&model, &half).unwrap_err();
    assert!(matches!(failure, CxlFailure::Capacity { free: 0, .. }), "{failure}");
    assert_eq!(Listing::read(&model).unwrap().regions.len(), 2);
}

#[test]
fn a_request_that_cannot_be_carried_out_changes_nothing() {
    let model = Model::new(3);
    let before = model.state();
    let all = request(&["mem0"]);
    let cases: [(Request, &str); 10] = [
        (request(&[]), "0 devices cannot"),
        (request(&["mem0", "mem1", "mem2"]), "3 devices cannot"),
        (request(&["mem0", "0x1001"]), "named twice"),
        (request(&["mem9"]), "there is no memdev mem9"),
        (request(&["0xzz"]), "there is no memdev 0xzz"),
        (Request { granularity_bytes: 300, ..all.clone() }, "300 bytes are no granularity"),
        (Request { bytes: Some(100), ..all.clone() }, "256MiB"),
        (Request { bytes: Some(0), ..all.clone() }, "256MiB"),
        (Request { bytes: Some(1 << 40), ..all.clone() }, "512 MiB free"),
        (Request { window: Some("decoder9.0".into()), ..all }, "there is no window decoder9.0"),
    ];
    for (request, part) in cases {
        let text = create(&model, &request).unwrap_err().to_string();
        assert!(text.contains(part) && text.contains("; "), "{text}");
        assert_eq!((model.writes(), model.state()), (0, before.clone()), "{text}");
    }
    assert!(create(&Model::new(0), &request(&["mem0"])).unwrap_err().to_string().contains("no other memdev"));
}

/// For every write in turn: if it alone fails, everything is as before.
#[test]
fn a_creation_that_fails_at_any_write_changes_nothing() {
    let whole = Model::new(2);
    made(&whole);
    let steps = whole.writes();
    assert!(steps >= 12, "{steps}");
    for failing in 0..steps {
        let model = Model::new(2).failing(Failing::One(failing));
        let before = model.state();
        let failure = create(&model, &request(&["mem0", "mem1"])).unwrap_err();
        assert!(matches!(failure, CxlFailure::Write { left: None, .. }), "{failing}: {failure}");
        assert_eq!(model.state(), before, "write {failing}");
        model.fail(Failing::None);
        create(&model, &request(&["mem0", "mem1"])).unwrap_or_else(|failure| panic!("after {failing}: {failure}"));
    }
}

/// If writes fail from some point on, the error names what is left, which can be taken back later.
#[test]
fn what_cannot_be_undone_is_named_and_can_be_destroyed_later() {
    for failing in 1..14 {
        let model = Model::new(2).failing(Failing::From(failing));
        let Err(failure) = create(&model, &request(&["mem0", "mem1"])) else { continue };
        assert!(failure.to_string().contains("region0 could not be undone"), "{failing}: {failure}");
        model.fail(Failing::None);
        assert_ne!(check(&Listing::read(&model).unwrap(), &[]), [], "{failing}");
    }
}

#[test]
fn a_name_that_another_program_takes_first_is_not_used_twice() {
    let model = Model::new(2);
    let first = create(&model, &request(&["mem0"])).unwrap();
    let second = create(&model, &request(&["mem1"])).unwrap();
    assert_eq!((first.name.as_str(), second.name.as_str()), ("region0", "region1"));
}

#[test]
fn memory_goes_online_and_offline_with_progress() {
    let model = Model::new(2);
    let region = with_memory(&model);
    let device = &region.devices[0];
    let all = blocks(&model, device).unwrap();
    assert_eq!((all.online.len() as u64 * BLOCK_BYTES, all.offline.len()), (2 * CAPACITY_BYTES, 0));
    let mut seen = Vec::new();
    offline(&model, device, false, &mut |progress| seen.push(*progress)).unwrap();
    assert_eq!(seen.len(), 8);
    assert_eq!(seen[7], Progress { done: 8, all: 8, block_bytes: BLOCK_BYTES });
    assert_eq!(Listing::read(&model).unwrap().device("dax0.0").unwrap().mode, Mode::Devdax);
    let device = Listing::read(&model).unwrap().device("dax0.0").unwrap().clone();
    online(&model, &device, Zone::Normal, &mut |_| ()).unwrap();
    assert_eq!(Listing::read(&model).unwrap().device("dax0.0").unwrap().mode, Mode::SystemRam);
}

#[test]
fn memory_in_use_is_refused_with_its_holders_or_moved() {
    let model = Model::new(2);
    let region = with_memory(&model);
    model.set("/proc/4711/numa_maps", "7f00 default anon=512 N0=1 N1=512 kernelpagesize_kB=4");
    model.set("/proc/4711/comm", "redis-server");
    let before = model.state();
    let (so_far, device) = (model.writes(), &region.devices[0]);
    for refused in [
        offline(&model, device, false, &mut |_| ()).unwrap_err(),
        destroy(&model, "region0", false, &mut |_| ()).unwrap_err(),
    ] {
        assert!(refused.to_string().contains("redis-server (4711, 2 MiB)"), "{refused}");
    }
    assert_eq!((model.writes(), model.state()), (so_far, before));
    offline(&model, device, true, &mut |_| ()).unwrap();
    assert_eq!(Listing::read(&model).unwrap().device("dax0.0").unwrap().mode, Mode::Devdax);
}

/// For every block in turn: if it alone cannot be emptied, all are online as before, in the same zone.
#[test]
fn a_block_that_cannot_be_emptied_brings_the_others_back() {
    let model = Model::new(2);
    let region = with_memory(&model);
    let (before, device) = (model.state(), &region.devices[0]);
    for held in blocks(&model, device).unwrap().online {
        model.hold(&[held]);
        match destroy(&model, "region0", true, &mut |_| ()).unwrap_err() {
            CxlFailure::BlockHeld { block, left_offline: 0, .. } => assert_eq!(block, held),
            other => panic!("{held}: {other}"),
        }
        assert_eq!(model.state(), before, "block {held}");
    }
    model.hold(&[]);
    destroy(&model, "region0", true, &mut |_| ()).unwrap();
    assert!(Listing::read(&model).unwrap().regions.is_empty());
}

/// The kernel tries to move the pages of such a block until a signal arrives: an agent waited for ever, and served no
/// other device. For every block in turn: all are online as before, in the same zone.
#[test]
fn a_block_that_the_kernel_never_empties_is_given_up_and_brings_the_others_back() {
    let model = Model::new(2);
    let region = with_memory(&model);
    let (before, device) = (model.state(), &region.devices[0]);
    for endless in blocks(&model, device).unwrap().online {
        model.never_empty(&[endless]);
        let failure = destroy(&model, "region0", true, &mut |_| ()).unwrap_err();
        let text = failure.to_string();
        assert!(text.contains("cannot be emptied: its pages did not move within 30 s; "), "{text}");
        match failure {
            CxlFailure::BlockHeld { block, left_offline: 0, .. } => assert_eq!(block, endless),
            other => panic!("{endless}: {other}"),
        }
        assert_eq!(model.state(), before, "block {endless}");
    }
    model.never_empty(&[]);
    destroy(&model, "region0", true, &mut |_| ()).unwrap();
    assert!(Listing::read(&model).unwrap().regions.is_empty());
}

/// For every write in turn: a destruction that fails can be repeated, and then succeeds.
#[test]
fn a_destruction_that_fails_at_any_write_can_be_repeated() {
    let count = {
        let model = Model::new(2);
        with_memory(&model);
        model.fail(Failing::None);
        destroy(&model, "region0", false, &mut |_| ()).unwrap();
        model.writes()
    };
    for failing in 0..count {
        let model = Model::new(2);
        let empty = model.state();
        with_memory(&model);
        model.fail(Failing::One(failing));
        let first = destroy(&model, "region0", false, &mut |_| ());
        model.fail(Failing::None);
        if let Err(failure) = first {
            assert!(failure.to_string().contains("; "), "{failure}");
            match destroy(&model, "region0", false, &mut |_| ()) {
                Ok(_) | Err(CxlFailure::NoSuch { .. }) => {}
                Err(failure) => panic!("write {failing}: {failure}"),
            }
        }
        assert!(Listing::read(&model).unwrap().regions.is_empty(), "write {failing}");
        let left: Vec<_> = model.state().into_iter().filter(|(path, text)| empty.get(path) != Some(text)).collect();
        let is_decoder = |path: &str| path.ends_with("dpa_size");
        assert!(left.iter().all(|(path, _)| is_decoder(path)), "write {failing}: {left:?}");
    }
}

#[test]
fn a_machine_without_cxl_has_nothing() {
    let tree = aquifer_nodes::Fixture::new();
    assert_eq!(Listing::read(&tree).unwrap(), Listing::default());
    assert!(destroy(&tree, "region0", true, &mut |_| ()).unwrap_err().to_string().contains("no other region"));
}

/// Contents that no kernel writes: nothing panics.
#[test]
fn unreadable_files_count_as_absent() {
    for junk in ["", "x", "-1", "0xffffffffffffffff", "18446744073709551615", "region\u{0}", "../../etc"] {
        let model = Model::new(1);
        with_junk(&model, junk);
        let listing = Listing::read(&model).unwrap();
        let _ = (
            check(&listing, &[(0x1000, 1)]),
            create(&model, &request(&["mem0"])),
            destroy(&model, "region0", true, &mut |_| ()),
        );
        for device in listing.regions.iter().flat_map(|region| &region.devices) {
            let _ = blocks(&model, device);
        }
    }
}

fn with_junk(model: &Model, junk: &str) {
    create(model, &request(&["mem0"])).unwrap();
    for file in [
        "mem0/ram/size",
        "mem0/serial",
        "decoder0.0/size",
        "decoder0.0/start",
        "decoder3.1/dpa_size",
        "region0/interleave_ways",
        "region0/size",
        "region0/resource",
    ] {
        model.set(&format!("/sys/bus/cxl/devices/{file}"), junk);
    }
    model.set("/sys/bus/dax/devices/dax0.0/resource", "0xfffffffff0000000");
    model.set("/sys/devices/system/memory/block_size_bytes", junk);
    assert!(model.names("/sys/bus/cxl/devices").is_ok());
}
