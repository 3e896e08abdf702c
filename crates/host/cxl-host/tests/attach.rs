// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A bound device comes online as memory, and goes offline before it is unbound, no matter before which of
//! its writes the process is killed.
//!
//! Guards against two failures: an agent that is killed between two writes leaves a region that is neither online nor
//! free, and an unbind that overtakes the kernel removes memory under programs.

use std::collections::BTreeMap;

use aquifer_cxl_host::model::{CAPACITY_BYTES, Failing, KernelModel as Model};
use aquifer_cxl_host::{Attached, Bound, CxlFailure, Identity, Listing, Nodes, Purpose, attach, check, detach};
use aquifer_nodes::Tree;
use aquifer_nodes::dax::Mode;

const NODE: (Purpose, Nodes) = (Purpose::Node, Nodes::One);

fn bound(serial: u64) -> Bound {
    Bound { serial, bytes: CAPACITY_BYTES, is_ld: false, identity: Identity::default(), twins: Vec::new() }
}

/// A logical device of the MLD with serial number 0x1001, with what is known of others.
fn ld(twins: &[&Bound]) -> Bound {
    Bound { is_ld: true, twins: twins.iter().map(|twin| twin.identity.clone()).collect(), ..bound(0x1001) }
}

/// The regions, by their decoders.
fn targets(model: &Model) -> Vec<String> {
    Listing::read(model).unwrap().regions.into_iter().flat_map(|region| region.targets).collect()
}

/// Attaches as an agent does, which records what the device is known by.
fn attach_kept(model: &Model, it: &mut Bound, how: (Purpose, Nodes)) -> Result<Attached, CxlFailure> {
    let mut kept = it.identity.clone();
    let outcome = attach(
        model,
        it,
        how,
        &mut |identity| {
            kept = identity.clone();
            Ok(())
        },
        &mut |_| (),
    );
    it.identity = kept;
    outcome
}

/// The state without the numbers of regions, which increase with every attempt.
fn numberless(model: &Model) -> BTreeMap<String, String> {
    let name = |text: &str| {
        let mut out = String::new();
        for (at, part) in text.split("region").enumerate() {
            out.push_str(if at == 0 { part } else { part.trim_start_matches(|it: char| it.is_ascii_digit()) });
        }
        out.replace("dax1.0", "dax0.0").replace("dax2.0", "dax0.0")
    };
    model.state().into_iter().map(|(path, text)| (name(&path), name(&text))).collect()
}

#[test]
fn a_device_becomes_a_node_and_goes_again() {
    let model = Model::new(2);
    let before = model.state();
    let mut it = bound(0x1000);
    let attached = attach_kept(&model, &mut it, NODE).unwrap();
    assert_eq!((attached.region.as_str(), attached.node), ("region0", Some(1)));
    let listing = Listing::read(&model).unwrap();
    let region = listing.region("region0").unwrap();
    assert_eq!((region.bytes, region.devices[0].mode), (CAPACITY_BYTES, Mode::SystemRam));
    assert_eq!(region.targets, ["decoder4.0"], "serial number 0x1000 is the second memdev");
    let writes = model.writes();
    assert_eq!(attach_kept(&model, &mut it, NODE).unwrap(), attached);
    assert_eq!(model.writes(), writes, "what is there already is left alone");
    detach(&model, &it, false, &mut |_| ()).unwrap();
    assert_eq!(model.state(), before);
    detach(&model, &it, false, &mut |_| ()).expect("nothing is left to be done");
}

#[test]
fn each_device_has_a_node_if_there_are_windows_enough() {
    let model = Model::with_windows(3, 2);
    let each = (Purpose::Node, Nodes::Each);
    let nodes = [0x1000, 0x1001, 0x1003].map(|serial| attach_kept(&model, &mut bound(serial), each).unwrap().node);
    assert_eq!(nodes, [Some(1), Some(2), Some(1)], "the third device shares a window");
    // A window that is too small for them does not count.
    let model = Model::with_windows(2, 3);
    model.set("/sys/bus/cxl/devices/decoder0.0/size", "0x10000000");
    let nodes = [0x1000, 0x1001].map(|serial| attach_kept(&model, &mut bound(serial), each).unwrap().node);
    assert_eq!(nodes, [Some(2), Some(3)]);
    let model = Model::with_windows(2, 2);
    let nodes = [0x1000, 0x1001].map(|serial| attach_kept(&model, &mut bound(serial), NODE).unwrap().node);
    assert_eq!(nodes, [Some(1), Some(1)]);
}

#[test]
fn a_device_can_be_for_the_program_that_opens_it() {
    let model = Model::new(1);
    let mut it = bound(0x1001);
    let attached = attach_kept(&model, &mut it, (Purpose::Device, Nodes::One)).unwrap();
    assert_eq!(Listing::read(&model).unwrap().device(&attached.device).unwrap().mode, Mode::Devdax);
    let attached = attach_kept(&model, &mut it, NODE).expect("it is changed over");
    assert_eq!(Listing::read(&model).unwrap().device(&attached.device).unwrap().mode, Mode::SystemRam);
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    let refused = |model: &Model, it: &Bound, part: &str| {
        let failure = attach(model, it, NODE, &mut |_| Ok(()), &mut |_| ()).unwrap_err().to_string();
        assert!(failure.contains(part) && failure.contains("; ") && model.writes() == 0, "{failure}");
    };
    let model = Model::new(2);
    refused(&model, &bound(0x9999), "was bound and is not here");
    refused(&model, &Bound { bytes: 1 << 30, ..bound(0x1000) }, "1073741824 were bound");
    model.declare("mem1", &[256 << 20]);
    refused(&model, &bound(0x1000), "the DVSEC of mem1");
    // Logical devices of one device have one serial number.
    model.plug(2, 0x1001, CAPACITY_BYTES);
    refused(&model, &bound(0x1001), "2 devices here have serial number 0x1001");
    model.plug(2, 0x1001, CAPACITY_BYTES / 2);
    attach_kept(&model, &mut bound(0x1001), NODE).expect("their sizes differ");
    let failure = attach(
        &model,
        &Bound { bytes: CAPACITY_BYTES / 2, ..bound(0x1001) },
        NODE,
        &mut |_| Err(std::io::Error::from_raw_os_error(28)),
        &mut |_| (),
    );
    assert!(matches!(failure, Err(CxlFailure::NotRecorded { .. })), "{failure:?}");
    assert_eq!(Listing::read(&model).unwrap().regions.len(), 1, "what is not recorded is not made");
}

/// A logical device leaves before it has come, or after it has vanished, while another one of its device is in use.
#[test]
fn a_logical_device_that_is_not_here_does_not_take_another_one_with_it() {
    let model = Model::new(1);
    attach_kept(&model, &mut bound(0x1001), NODE).unwrap();
    let before = model.state();
    for region in [None, Some("region7".to_owned())] {
        let identity = Identity { region, pci_path: None };
        let other = Bound { bytes: CAPACITY_BYTES / 2, identity, ..bound(0x1001) };
        detach(&model, &other, true, &mut |_| ()).expect("it is not here, so nothing is to be done");
        assert_eq!(model.state(), before, "the other logical device stays in use");
    }
}

/// Two logical devices of one device with one size. The first one is known, so the other one is the second.
#[test]
fn a_device_with_a_twin_is_known_once_the_twin_is() {
    let model = Model::new(1);
    let mut first = ld(&[]);
    attach_kept(&model, &mut first, NODE).unwrap();
    assert_eq!(first.identity.pci_path.as_deref(), Some("0000:0c:00.0/00.0/00.0/00.0"));
    let mut second = ld(&[&first]);
    let absent = attach_kept(&model, &mut second, NODE).unwrap_err();
    assert!(matches!(absent, CxlFailure::Absent { .. }), "{absent}");
    detach(&model, &second, true, &mut |_| ()).expect("it is not here, so nothing is to be done");
    assert_eq!(targets(&model), ["decoder3.0"], "the first one stays online");
    model.plug(2, 0x1001, CAPACITY_BYTES);
    attach_kept(&model, &mut second, NODE).unwrap();
    assert_eq!(second.identity.pci_path.as_deref(), Some("0000:0c:00.0/00.0/02.0/00.0"));
    assert_eq!(targets(&model), ["decoder3.0", "decoder5.0"]);
    first.twins = vec![second.identity.clone()];
    let writes = model.writes();
    attach_kept(&model, &mut first, NODE).unwrap();
    assert_eq!(model.writes(), writes, "it is online already");
    detach(&model, &first, true, &mut |_| ()).unwrap();
    assert_eq!(targets(&model), ["decoder5.0"], "each takes its own region with it");
    detach(&model, &second, true, &mut |_| ()).unwrap();
    assert_eq!(targets(&model), [""; 0]);
}

/// Whatever another device with the same looks does, one whose place is known is there or nowhere.
#[test]
fn a_logical_device_that_was_pulled_out_is_known_by_its_place() {
    let model = Model::new(1);
    let mut first = ld(&[]);
    attach_kept(&model, &mut first, NODE).unwrap();
    model.pull(0);
    model.plug(3, 0x1001, CAPACITY_BYTES);
    let absent = attach_kept(&model, &mut first, NODE).unwrap_err();
    assert!(matches!(absent, CxlFailure::Absent { .. }), "the other one is not it: {absent}");
    let mut second = ld(&[&first]);
    attach_kept(&model, &mut second, NODE).unwrap();
    // The kernel gives another number to the one that comes back, and another bus.
    model.plug_at(0, 5, 0x1001, CAPACITY_BYTES);
    first.twins = vec![second.identity.clone()];
    attach_kept(&model, &mut first, NODE).unwrap();
    let mut enabled = Listing::read(&model).unwrap().regions;
    enabled.retain(|region| region.is_enabled);
    let targets: Vec<&String> = enabled.iter().flat_map(|region| &region.targets).collect();
    assert_eq!(targets, ["decoder6.0", "decoder8.0"]);
}

/// Two devices that look the same, of which none is known.
#[test]
fn devices_that_nothing_tells_apart_are_left_alone() {
    let model = Model::new(1);
    model.plug(2, 0x1001, CAPACITY_BYTES);
    let before = model.state();
    let unknown = ld(&[]);
    for mut it in [ld(&[&unknown]), ld(&[])] {
        let failure = attach_kept(&model, &mut it, NODE).unwrap_err();
        assert!(matches!(failure, CxlFailure::Alike { count: 2, .. }), "{failure}");
    }
    detach(&model, &ld(&[&unknown]), true, &mut |_| ()).expect("none has a region, so nothing is to be done");
    assert_eq!(model.state(), before);
    // One is here already, and the other one may still be on its way.
    model.pull(2);
    let failure = attach_kept(&model, &mut ld(&[&unknown]), NODE).unwrap_err();
    assert!(matches!(failure, CxlFailure::Alike { .. }), "{failure}");
    // Whose region it is was forgotten: none of the two may be taken offline.
    attach_kept(&model, &mut ld(&[]), NODE).unwrap();
    let before = model.state();
    let failure = detach(&model, &ld(&[&unknown]), true, &mut |_| ()).unwrap_err();
    assert!(matches!(failure, CxlFailure::Alike { .. }) && model.state() == before, "{failure}");
}

/// An agent of an earlier version has recorded regions, and no places.
#[test]
fn a_device_that_is_known_by_its_region_alone_gets_its_place_recorded() {
    let model = Model::new(1);
    let mut first = ld(&[]);
    attach_kept(&model, &mut first, NODE).unwrap();
    let known = first.identity.clone();
    first.identity.pci_path = None;
    model.plug(2, 0x1001, CAPACITY_BYTES);
    attach_kept(&model, &mut ld(&[&first]), NODE).expect("the region shows which one is the first");
    first.twins = vec![Identity::default()];
    attach_kept(&model, &mut first, NODE).unwrap();
    assert_eq!(first.identity, known);
}

#[test]
fn a_region_that_is_there_already_is_recorded() {
    let model = Model::new(1);
    let mut it = bound(0x1001);
    let made = attach_kept(&model, &mut it, NODE).unwrap();
    let mut again = bound(0x1001);
    assert_eq!(attach_kept(&model, &mut again, NODE).unwrap(), made);
    assert_eq!(again.identity.region.as_deref(), Some("region0"));
    assert_eq!(again.identity.pci_path, None, "no other device has its serial number");
}

#[test]
fn a_region_that_interleaves_other_devices_is_left_alone() {
    let model = Model::new(2);
    let memdevs = vec!["mem0".to_owned(), "mem1".to_owned()];
    let request = aquifer_cxl_host::Request { memdevs, bytes: None, granularity_bytes: 256, window: None };
    aquifer_cxl_host::create(&model, &request).unwrap();
    let before = model.state();
    let attached = attach_kept(&model, &mut bound(0x1000), NODE).unwrap_err();
    let detached = detach(&model, &bound(0x1000), true, &mut |_| ()).unwrap_err();
    for failure in [attached, detached] {
        assert!(matches!(failure, CxlFailure::Interleaved { .. }), "{failure}");
    }
    assert_eq!(model.state(), before);
}

/// For every write: the process is killed right before it, and another one continues from the record.
#[test]
fn an_attach_that_was_killed_at_any_write_is_completed_later() {
    let whole = Model::new(2);
    attach_kept(&whole, &mut bound(0x1000), NODE).unwrap();
    let (steps, wanted) = (whole.writes(), numberless(&whole));
    assert!(steps >= 12, "{steps}");
    for failing in 0..steps {
        let model = Model::new(2);
        model.fail(Failing::From(failing));
        let mut it = bound(0x1000);
        let failed = attach_kept(&model, &mut it, NODE).unwrap_err();
        model.fail(Failing::None);
        attach_kept(&model, &mut it, NODE).unwrap_or_else(|failure| panic!("{failing}: {failed}; then {failure}"));
        assert_eq!(numberless(&model), wanted, "write {failing}");
        assert_eq!(check(&Listing::read(&model).unwrap(), &[(0x1000, CAPACITY_BYTES), (0x1001, CAPACITY_BYTES)]), []);
    }
}

/// The same for a detach, and for an attach that was interrupted and is no longer wanted.
#[test]
fn a_detach_completes_whatever_was_begun() {
    let empty = numberless(&Model::new(2));
    let (attaching, detaching) = {
        let model = Model::new(2);
        let mut it = bound(0x1000);
        attach_kept(&model, &mut it, NODE).unwrap();
        let attaching = model.writes();
        model.fail(Failing::None);
        detach(&model, &it, true, &mut |_| ()).unwrap();
        (attaching, model.writes())
    };
    for killed_at in 0..attaching + detaching {
        let model = Model::new(2);
        let mut it = bound(0x1000);
        if killed_at < attaching {
            model.fail(Failing::From(killed_at));
            let _ = attach_kept(&model, &mut it, NODE);
        } else {
            attach_kept(&model, &mut it, NODE).unwrap();
            model.fail(Failing::From(killed_at - attaching));
            let _ = detach(&model, &it, true, &mut |_| ());
        }
        model.fail(Failing::None);
        detach(&model, &it, true, &mut |_| ()).unwrap_or_else(|failure| panic!("{killed_at}: {failure}"));
        assert_eq!(numberless(&model), empty, "write {killed_at}");
    }
}

#[test]
fn memory_in_use_is_moved_or_its_holders_are_named() {
    let model = Model::new(1);
    let mut it = bound(0x1001);
    attach_kept(&model, &mut it, NODE).unwrap();
    model.set("/proc/4711/numa_maps", "7f00 default anon=512 N1=512 kernelpagesize_kB=4");
    model.set("/proc/4711/comm", "redis-server");
    let refused = detach(&model, &it, false, &mut |_| ()).unwrap_err().to_string();
    assert!(refused.contains("redis-server (4711, 2 MiB)"), "{refused}");
    let mut left = Vec::new();
    detach(&model, &it, true, &mut |progress| left.push(progress.all - progress.done)).unwrap();
    assert_eq!(left, [3, 2, 1, 0]);
    assert!(Listing::read(&model).unwrap().regions.is_empty());
}

/// Kernels with `auto_online_blocks` bring new memory online before anybody asks, often where they put their own.
#[test]
fn memory_that_the_kernel_brings_online_by_itself_becomes_movable() {
    let model = Model::new(1);
    model.auto_online("Normal");
    let mut it = bound(0x1001);
    let attached = attach_kept(&model, &mut it, NODE).unwrap();
    let device = aquifer_nodes::dax::device(&model, &attached.device).unwrap();
    let blocks = aquifer_cxl_host::blocks(&model, &device).unwrap();
    assert_eq!((blocks.online.len(), blocks.offline.len()), (4, 0));
    let zones = |block: &u64| model.text(&format!("/sys/devices/system/memory/memory{block}/valid_zones")).unwrap();
    assert!(blocks.online.iter().all(|block| zones(block) == "Movable"));
    model.fail(Failing::None);
    attach_kept(&model, &mut it, NODE).unwrap();
    assert_eq!(model.writes(), 0, "nothing is left to do");
    // Memory of the kernel keeps one of them.
    detach(&model, &it, true, &mut |_| ()).unwrap();
    model.hold(&blocks.online[2..3]);
    let failure = attach_kept(&model, &mut it, NODE).unwrap_err();
    assert!(matches!(failure, CxlFailure::Kept { block, .. } if block == blocks.online[2]), "{failure}");
    model.hold(&[]);
    attach_kept(&model, &mut it, NODE).unwrap();
    assert!(blocks.online.iter().all(|block| zones(block) == "Movable"));
}

/// A port flaps: the device disappears without warning, and comes back.
#[test]
fn a_device_that_is_pulled_out_leaves_nothing_and_can_come_back() {
    let model = Model::new(1);
    let mut it = bound(0x1001);
    for turn in 0..3 {
        attach_kept(&model, &mut it, NODE).unwrap_or_else(|failure| panic!("{turn}: {failure}"));
        model.pull(0);
        assert!(matches!(attach_kept(&model, &mut it, NODE), Err(CxlFailure::Absent { .. })));
        if turn == 1 {
            detach(&model, &it, false, &mut |_| ()).unwrap();
            assert!(Listing::read(&model).unwrap().regions.is_empty());
        }
        model.plug(0, 0x1001, CAPACITY_BYTES);
    }
    let listing = Listing::read(&model).unwrap();
    assert!(listing.regions.iter().all(|region| !region.is_enabled), "{listing:?}");
}
