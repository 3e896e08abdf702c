// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A file of the kernel that cannot be read is not a file that is not there.
//!
//! Guards against this story: the agent has used up its open files when it is to take a device offline. The directory
//! of CXL devices cannot be opened, so the device counts as pulled out, and the agent reports that its memory is
//! offline. The manager unbinds the device, and the kernel loses memory that programs use. The same happened where only
//! the list of a region's memory devices, or the state of one memory block, could not be read.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::time::Duration;

use aquifer_cxl_host::model::{CAPACITY_BYTES, KernelModel as Model};
use aquifer_cxl_host::{Bound, CxlFailure, Identity, Listing, Nodes, Purpose, attach, detach};
use aquifer_nodes::Tree;

/// The kernel's files, of which one read fails as if all open files were used up.
struct Unreadable<'a> {
    model: &'a Model,
    /// The number of the read that fails, counted from 0.
    failing: usize,
    reads: Cell<usize>,
    /// What could not be read.
    path: Cell<String>,
}

impl<'a> Unreadable<'a> {
    fn new(model: &'a Model, failing: usize) -> Self {
        Self { model, failing, reads: Cell::new(0), path: Cell::default() }
    }

    fn read<T>(&self, path: &str, read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.reads.replace(self.reads.get() + 1) == self.failing {
            self.path.set(path.to_owned());
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        read()
    }
}

impl Tree for Unreadable<'_> {
    fn bytes(&self, path: &str, max: usize) -> io::Result<Vec<u8>> {
        self.read(path, || self.model.bytes(path, max))
    }

    fn text(&self, path: &str) -> io::Result<String> {
        self.read(path, || self.model.text(path))
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        self.read(path, || self.model.names(path))
    }

    fn link(&self, path: &str) -> io::Result<String> {
        self.read(path, || self.model.link(path))
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        self.model.write(path, value)
    }

    fn write_within(&self, path: &str, value: &str, limit: Duration) -> io::Result<()> {
        self.model.write_within(path, value, limit)
    }

    fn device_number(&self, path: &str) -> io::Result<(u32, u32)> {
        self.read(path, || self.model.device_number(path))
    }

    fn lock(&self, path: &str) -> io::Result<Option<File>> {
        self.read(path, || self.model.lock(path))
    }
}

const NODE: (Purpose, Nodes) = (Purpose::Node, Nodes::One);

/// A host with two devices, and one of them, which is bound.
fn bound() -> (Model, Bound) {
    let identity = Identity::default();
    (Model::new(2), Bound { serial: 0x1000, bytes: CAPACITY_BYTES, is_ld: true, identity, twins: Vec::new() })
}

/// A host with two devices, one of which is online as memory.
fn online() -> (Model, Bound) {
    let (model, mut it) = bound();
    let attached = attach(&model, &it, NODE, &mut |_| Ok(()), &mut |_| ()).unwrap();
    it.identity.region = Some(attached.region);
    (model, it)
}

/// For every read: it fails, and the memory is offline all the same, or the failure says so.
#[test]
fn a_detach_is_not_done_because_something_could_not_be_read() {
    let empty = Model::new(2).state();
    let (model, it) = online();
    let counted = Unreadable::new(&model, usize::MAX);
    detach(&counted, &it, true, &mut |_| ()).unwrap();
    let reads = counted.reads.get();
    assert!(reads > 100, "{reads}");
    for failing in 0..reads {
        let (model, it) = online();
        let tree = Unreadable::new(&model, failing);
        let detached = detach(&tree, &it, true, &mut |_| ());
        let path = tree.path.take();
        if let Err(failure) = detached {
            let text = failure.to_string();
            assert!(text.contains("; ") && !text.contains("was bound and is not here"), "{path}: {text}");
            detach(&model, &it, true, &mut |_| ()).unwrap_or_else(|failure| panic!("{path}: {failure}"));
        }
        assert_eq!(model.state(), empty, "read {failing}, of {path}");
    }
}

/// For every read, where memory is in use and was not to be moved: nothing is changed.
#[test]
fn memory_in_use_is_not_moved_because_its_holder_could_not_be_read() {
    let in_use = || {
        let (model, it) = online();
        model.set("/proc/4711/numa_maps", "7f00 default anon=512 N1=512 kernelpagesize_kB=4");
        (model, it)
    };
    let (model, it) = in_use();
    let (before, counted) = (model.state(), Unreadable::new(&model, usize::MAX));
    detach(&counted, &it, false, &mut |_| ()).unwrap_err();
    for failing in 0..counted.reads.get() {
        let (model, it) = in_use();
        let tree = Unreadable::new(&model, failing);
        detach(&tree, &it, false, &mut |_| ()).unwrap_err();
        assert_eq!(model.state(), before, "read {failing}, of {}", tree.path.take());
    }
}

/// For every read, where a program has the device file: nothing is changed.
#[test]
fn a_device_file_in_use_is_not_taken_because_its_user_could_not_be_read() {
    for mapped_bytes in [0, CAPACITY_BYTES] {
        let in_use = || {
            let (model, it) = bound();
            attach(&model, &it, (Purpose::Device, Nodes::One), &mut |_| Ok(()), &mut |_| ()).unwrap();
            model.open(4711, "/dev/dax0.0", mapped_bytes);
            (model, it)
        };
        let (model, it) = in_use();
        let (before, counted) = (model.state(), Unreadable::new(&model, usize::MAX));
        detach(&counted, &it, true, &mut |_| ()).unwrap_err();
        for failing in 0..counted.reads.get() {
            let (model, it) = in_use();
            let tree = Unreadable::new(&model, failing);
            detach(&tree, &it, true, &mut |_| ()).unwrap_err();
            assert_eq!(model.state(), before, "read {failing}, of {}", tree.path.take());
        }
    }
}

/// The same for an attach, which then can be repeated.
#[test]
fn an_attach_can_be_repeated_after_any_read_that_failed() {
    let (whole, _) = online();
    let (model, it) = bound();
    let counted = Unreadable::new(&model, usize::MAX);
    attach(&counted, &it, NODE, &mut |_| Ok(()), &mut |_| ()).unwrap();
    let reads = counted.reads.get();
    let devices = |model: &Model| {
        let listing = Listing::read(model).unwrap();
        listing.regions.into_iter().flat_map(|region| region.devices).map(|it| (it.mode, it.bytes)).collect::<Vec<_>>()
    };
    for failing in 0..reads {
        let model = Model::new(2);
        let (tree, mut it) = (Unreadable::new(&model, failing), it.clone());
        let mut kept = Identity::default();
        let mut record = |identity: &Identity| {
            kept = identity.clone();
            Ok(())
        };
        let attached = attach(&tree, &it, NODE, &mut record, &mut |_| ());
        let path = tree.path.take();
        it.identity = kept;
        if let Err(failure) = attached {
            assert!(!matches!(failure, CxlFailure::Absent { .. }), "{path}: {failure}");
            attach(&model, &it, NODE, &mut |_| Ok(()), &mut |_| ())
                .unwrap_or_else(|again| panic!("{path}: {failure}; then {again}"));
        }
        assert_eq!(devices(&model), devices(&whole), "read {failing}, of {path}");
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let (model, _) = online();
    let failure = Listing::read(&Unreadable::new(&model, 0)).unwrap_err();
    let text = failure.to_string();
    assert!(text.starts_with("/sys/bus/cxl/devices cannot be read: Too many open files"), "{text}");
    assert!(text.contains("; raise the limit"), "{text}");
}
