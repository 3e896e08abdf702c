// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A memory device that a program has open or mapped is not taken away from it.
//!
//! Guards against this story: an agent with `memory = "device"` brings a device for a program, such as a tier
//! `dax:/dev/dax0.0`. The manager unbinds the volume, or the administrator makes the device a node. The kernel takes a
//! device from its driver without asking, so the program's next access to its memory was SIGBUS.

use aquifer_cxl_host::model::{CAPACITY_BYTES, KernelModel as Model};
use aquifer_cxl_host::{Attached, Bound, CxlFailure, Holder, Identity, Listing, Nodes, Purpose, Zone};
use aquifer_cxl_host::{attach, destroy, detach, online, users};
use aquifer_nodes::Tree;
use aquifer_nodes::dax::Mode;

const PID: u32 = 4711;
const DEVICE: &str = "/dev/dax0.0";

fn bound() -> Bound {
    let identity = Identity { region: Some("region0".into()), pci_path: None };
    Bound { serial: 0x1001, bytes: CAPACITY_BYTES, is_ld: false, identity, twins: Vec::new() }
}

fn attach_for(model: &Model, purpose: Purpose) -> Result<Attached, CxlFailure> {
    attach(model, &bound(), (purpose, Nodes::One), &mut |_| Ok(()), &mut |_| ())
}

/// A host with a device for programs.
fn with_device() -> Model {
    let model = Model::new(1);
    attach_for(&model, Purpose::Device).unwrap();
    model
}

/// Everything that would take the device away refuses, changes nothing, and says this.
fn nothing_takes_it(model: &Model, said: &str) {
    let (before, writes) = (model.state(), model.writes());
    let device = Listing::read(model).unwrap().device("dax0.0").unwrap().clone();
    for (what, failure) in [
        ("destroy", destroy(model, "region0", false, &mut |_| ()).map(drop)),
        ("destroy, by migration", destroy(model, "region0", true, &mut |_| ()).map(drop)),
        ("detach", detach(model, &bound(), true, &mut |_| ())),
        ("attach as a node", attach_for(model, Purpose::Node).map(drop)),
        ("online", online(model, &device, Zone::Movable, &mut |_| ()).map(drop)),
    ] {
        let failure = failure.expect_err(what);
        assert!(matches!(failure, CxlFailure::Opened { .. }), "{what}: {failure}");
        assert!(failure.to_string().contains(said), "{what}: {failure}");
        assert_eq!((model.writes(), model.state()), (writes, before.clone()), "{what}");
    }
}

#[test]
fn a_device_is_taken_from_no_program_that_has_it() {
    let model = with_device();
    for (mapped_bytes, said) in [
        (CAPACITY_BYTES, "/dev/dax0.0 is in use by redis-server (4711, 512 MiB); end the programs"),
        (0, "/dev/dax0.0 is in use by redis-server (4711); end the programs"),
    ] {
        model.open(PID, DEVICE, mapped_bytes);
        nothing_takes_it(&model, said);
        model.end(PID);
    }
    assert_eq!(Listing::read(&model).unwrap().device("dax0.0").unwrap().mode, Mode::Devdax);
    attach_for(&model, Purpose::Node).expect("nobody has it any more");
    assert_eq!(Listing::read(&model).unwrap().device("dax0.0").unwrap().mode, Mode::SystemRam);
    detach(&model, &bound(), false, &mut |_| ()).unwrap();
    assert!(Listing::read(&model).unwrap().regions.is_empty());
}

/// A program in another process namespace has no number here, and an agent may not see the descriptors of other users.
#[test]
fn a_device_that_a_program_of_aquifer_has_locked_is_in_use() {
    let model = with_device();
    model.set_locked(DEVICE, true);
    nothing_takes_it(&model, "/dev/dax0.0 is in use; end the programs");
    model.set_locked(DEVICE, false);
    destroy(&model, "region0", false, &mut |_| ()).unwrap();
}

#[test]
fn a_device_is_known_by_its_number_and_by_its_name_where_that_is_not_shown() {
    let users = |model: &Model| users(model, "dax0.0").unwrap();
    let user = |bytes| vec![Holder { pid: PID, name: "redis-server".into(), bytes }];
    // Files that are not the device.
    let model = with_device();
    for path in ["/tmp/dax0.0", "/dev/dax0.1", "/dev/shm/dax0.0", "/dev/zero"] {
        model.open(PID, path, 2 << 20);
        assert_eq!(users(&model), [], "{path}");
        model.end(PID);
    }
    // A container has it under another name, which has its number.
    model.open(PID, "/dev/far", 2 << 20);
    let number = model.text("/sys/bus/dax/devices/dax0.0/dev").unwrap();
    model.set("/sys/bus/dax/devices/far/dev", &number);
    assert_eq!(users(&model), user(2 << 20));
    model.end(PID);
    // Only the mappings are shown, as to the packaged agent.
    let line = |path: &str| format!("7f0000000000-7f0000200000 rw-s 00000000 00:06 470    {path}");
    model.set("/proc/4711/comm", "redis-server");
    for (path, is_it) in [
        (DEVICE, true),
        ("/dev/dax0.0 (deleted)", true),
        ("/dev/dax0.01", false),
        ("/tmp/a /dev/dax0.0", false),
        ("/srv/dev/dax0.0", false),
    ] {
        model.set("/proc/4711/maps", &line(path));
        assert_eq!(users(&model), if is_it { user(2 << 20) } else { Vec::new() }, "{path}");
    }
    model.set("/proc/4711/maps", &format!("{}\n{}", line(DEVICE), line(DEVICE)));
    assert_eq!(users(&model), user(4 << 20));
    for junk in
        ["", "7f00 rw-s 0 0 0 /dev/dax0.0", "x-y rw-s /dev/dax0.0", "-", "/dev/dax0.0", "7f00-7e00 rw-s /dev/dax0.0"]
    {
        model.set("/proc/4711/maps", junk);
        let bytes: u64 = users(&model).iter().map(|user| user.bytes).sum();
        assert_eq!(bytes, 0, "{junk}");
    }
}
