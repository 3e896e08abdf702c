// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A block device is a flash tier, too, unless another program needs it. The tests use their own loop device, and
//! are skipped, with the reason, where none can be made (not root, no losetup).

mod scratch;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use aquifer_tiers::conformance::{check, frames};
use aquifer_tiers::{Flash, FlashSpec, OpenFailure, PAGE, TierSpec, report_exit};
use scratch::Scratch;

const DEVICE_BYTES: u64 = 128 << 20;

/// A loop device over a file, gone when the test ends.
struct Loop {
    device: PathBuf,
    _scratch: Scratch,
}

impl Loop {
    fn new() -> Option<Self> {
        let scratch = Scratch::new();
        let file = scratch.path().join("device");
        std::fs::File::create(&file).unwrap().set_len(DEVICE_BYTES).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
        match made {
            Ok(output) if output.status.success() => {
                let device = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
                Some(Self { device, _scratch: scratch })
            }
            Ok(output) => {
                aquifer_test_support::skip(format!("losetup says: {}", String::from_utf8_lossy(&output.stderr).trim()));
                None
            }
            Err(error) => {
                aquifer_test_support::skip(format!("losetup cannot be run: {error}"));
                None
            }
        }
    }

    fn spec(&self) -> FlashSpec {
        FlashSpec::at(&self.device)
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let device = std::fs::OpenOptions::new().write(true).open(&self.device).unwrap();
        device.write_all_at(bytes, offset).unwrap();
        device.sync_all().unwrap();
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

#[test]
fn a_device_passes_the_suite() {
    let Some(device) = Loop::new() else { return };
    let spec = FlashSpec { overwrite: true, ..device.spec() };
    assert_eq!(aquifer_tiers::Tier::capacity_bytes(&Flash::open(&spec).unwrap()), DEVICE_BYTES);
    check("flash on a block device", &|| Box::new(Flash::open(&spec).unwrap_or_else(|failure| panic!("{failure}"))));
}

#[test]
fn a_device_with_data_at_either_end_is_refused() {
    let Some(device) = Loop::new() else { return };
    drop(Flash::open(&device.spec()).unwrap_or_else(|failure| panic!("an empty device is taken: {failure}")));
    for offset in [1080, DEVICE_BYTES - 512] {
        device.write(offset, b"x");
        assert!(matches!(Flash::open(&device.spec()), Err(OpenFailure::NotOurs { .. })), "{offset}");
        device.write(offset, b"\0");
    }
}

#[test]
fn a_device_that_is_held_is_refused() {
    let Some(device) = Loop::new() else { return };
    let first = Flash::open(&device.spec()).unwrap();
    let second = Flash::open(&FlashSpec { overwrite: true, ..device.spec() });
    assert!(matches!(second, Err(OpenFailure::DeviceInUse { .. })));
    drop(first);
}

#[test]
fn a_device_that_its_holder_is_about_to_close_is_taken() {
    let Some(device) = Loop::new() else { return };
    let first = Flash::open(&device.spec()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            drop(first);
        });
        drop(Flash::open(&device.spec()).unwrap_or_else(|failure| panic!("it is closed soon: {failure}")));
    });
}

#[test]
fn blocks_that_a_program_leaves_on_a_device_are_discarded() {
    let Some(device) = Loop::new() else { return };
    let tier = Flash::open(&device.spec()).unwrap();
    let frame = frames::frame(64, 7);
    aquifer_tiers::Tier::write(&tier, 4 << 20, &frame).unwrap();
    frames::give_back(frame);
    drop(tier);
    let stored = || {
        let mut bytes = vec![0; 64 * PAGE];
        std::fs::File::open(&device.device).unwrap().read_exact_at(&mut bytes, 4 << 20).unwrap();
        bytes
    };
    assert!(stored().iter().any(|byte| *byte != 0), "its end takes nothing away, however it ends");
    report_exit(&TierSpec::Flash(device.spec()));
    let name = device.device.file_name().unwrap().to_string_lossy().into_owned();
    let bytes_max = std::fs::read_to_string(format!("/sys/block/{name}/queue/discard_max_bytes"));
    if bytes_max.is_ok_and(|bytes| bytes.trim() == "0") {
        return aquifer_test_support::skip("losetup makes a device here that cannot discard");
    }
    assert!(stored().iter().all(|byte| *byte == 0));
    drop(Flash::open(&device.spec()).unwrap_or_else(|failure| panic!("it is empty: {failure}")));
}

#[test]
fn the_root_disk_is_refused() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let root = mounts.lines().find_map(|line| {
        let (device, rest) = line.split_once(' ')?;
        (rest.starts_with("/ ") && Path::new(device).exists()).then_some(device)
    });
    let Some(root) = root else {
        aquifer_test_support::skip("the root file system is not on a device that can be seen");
        return;
    };
    // EBUSY if we may open the device at all, EACCES or EPERM otherwise; never an open tier.
    let refused = Flash::open(&FlashSpec::at(root));
    assert!(matches!(refused, Err(OpenFailure::DeviceInUse { .. } | OpenFailure::Path { .. })));
}
