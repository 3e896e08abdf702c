// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What is taken for a memory device, and what is refused. A device itself is in the guest of
//! `crates/lab/e2e/tests/far_nodes.rs`.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use aquifer_nodes::Fixture;
use aquifer_sys::lent_memory::LentMemory;

use super::*;

fn device_file(name: &str, file: &str) -> String {
    format!("/sys/bus/dax/devices/{name}/{file}")
}

#[test]
fn a_device_that_the_kernel_has_is_refused_with_its_node() {
    let tree = Fixture::new()
        .with(&device_file("dax7.0", "size"), "4194304")
        .with(&device_file("dax7.0", "target_node"), "2")
        .with_link(&device_file("dax7.0", "driver"), "kmem")
        .with(&device_file("dax8.0", "size"), "4194304");
    for (path, part) in [
        ("/dev/dax7.0", "use --tier node:2"),
        ("/dev/dax8.0", "no driver has the memory device dax8.0"),
        ("/dev/dax9.0", "there is no /dev/dax9.0"),
    ] {
        let text = found(&tree, Path::new(path)).unwrap_err().to_string();
        assert!(text.contains(part) && text.contains(';') && !text.contains('\n'), "{text}");
    }
}

#[test]
fn what_is_no_memory_is_refused() {
    for path in ["/dev", "/dev/null", "/dev/zero"] {
        let text = Dax::open(Path::new(path), None).err().unwrap().to_string();
        assert!(text.contains("neither a memory device nor a file"), "{text}");
    }
}

#[test]
fn a_file_of_the_page_cache_is_refused_and_flash_is_named() {
    use std::os::unix::fs::OpenOptionsExt;
    let path = std::env::temp_dir().join(format!("aquifer-dax-{}", std::process::id()));
    let file = File::options().create_new(true).write(true).mode(0o600).open(&path).unwrap();
    file.set_len(4 << 20).unwrap();
    let refused = Dax::open(&path, None).err().map(|failure| failure.to_string());
    std::fs::remove_file(&path).unwrap();
    let text = refused.unwrap();
    assert!(text.contains("use flash:/") || text.contains("Operation not supported"), "{text}");
}

#[test]
fn a_capacity_is_whole_units_of_the_devices_alignment() {
    let path = Path::new("/dev/dax0.0");
    let capacity = |size: Option<u64>, room, align| capacity_bytes(size.map(ByteSize), room, align, path);
    assert_eq!(capacity(None, 5 << 20, 2 << 20).unwrap(), 4 << 20);
    assert_eq!(capacity(Some(3 << 20), 8 << 20, 2 << 20).unwrap(), 2 << 20);
    assert_eq!(capacity(Some(3 << 20), 8 << 20, 4096).unwrap(), 3 << 20);
    for (size, room, align, part) in [
        (Some(16 << 20), 8 << 20, 2 << 20, "size="),
        (Some(1 << 20), 8 << 20, 2 << 20, "at least 2MiB"),
        (None, 1 << 30, 2 << 30, "at least 2GiB"),
        (Some(4), 8 << 20, 4096, "at least 1MiB"),
    ] {
        let text = capacity(size, room, align).unwrap_err().to_string();
        assert!(text.contains(part) && !text.contains('\n'), "{text}");
    }
}

/// A file on another file system was made as long as the tier before it was refused. One that others can read, such as
/// /etc/passwd, was refused with the advice to change that.
#[test]
fn a_file_that_is_not_mapped_directly_is_left_as_it_is() {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::temp_dir().join(format!("aq-{}-not-direct", std::process::id()));
    for mode in [0o600, 0o644] {
        std::fs::write(&path, "something").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let refused = Dax::open(&path, Some(ByteSize(4 << 20))).err().unwrap().to_string();
        assert!(refused.contains("is not mapped directly to memory"), "{mode:o}: {refused}");
        assert!(std::fs::read(&path).unwrap() == b"something", "{mode:o}: it was changed");
    }
    std::fs::remove_file(&path).unwrap();
}

/// A donor took no lock, and wiped a device that was a program's tier. A memory file represents the device.
#[test]
fn a_device_is_a_tiers_or_a_donors_and_never_both() {
    const BYTES: usize = 2 << 20;
    let path = Path::new("/dev/shm").join(format!("aq-{}-tier-or-donor", std::process::id()));
    let device = || {
        std::fs::write(&path, vec![7; BYTES]).ok()?;
        let opened = [(); 2].map(|()| File::options().read(true).write(true).open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        Some(opened)
    };
    let Some([of_tier, of_donor]) = device() else {
        return aquifer_test_support::skip("there is no memory file");
    };
    let third = of_donor.try_clone().unwrap();
    lock(&of_tier, &path).unwrap();
    let _tier = Dax::on(of_tier, BYTES as u64, Reach::Any).unwrap();
    let refused = LentMemory::of_device(of_donor, BYTES).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "{refused}");
    let mut stored = vec![0; BYTES];
    third.read_exact_at(&mut stored, 0).unwrap();
    assert!(stored.iter().all(|byte| *byte == 7), "what the tier has stored was wiped");
    let [of_donor, of_tier] = device().unwrap();
    let _lent = LentMemory::of_device(of_donor, BYTES).unwrap();
    let text = lock(&of_tier, &path).unwrap_err().to_string();
    assert!(text.contains("is held by another instance or a donor; "), "{text}");
}

#[test]
fn every_message_is_one_line_with_a_remedy() {
    let (path, name) = (|| PathBuf::from("/dev/dax0.0"), || "dax0.0".to_owned());
    let source = io::Error::from_raw_os_error(libc::EINVAL);
    for failure in [
        DaxFailure::Disabled { path: path(), name: name() },
        DaxFailure::Held { path: path() },
        DaxFailure::KernelHasIt { path: path(), name: name(), node: Some(1) },
        DaxFailure::KernelHasIt { path: path(), name: name(), node: None },
        DaxFailure::Mapping { path: path(), source },
        DaxFailure::Missing { path: path() },
        DaxFailure::NoAddresses { path: path(), bytes: 1 << 40 },
        DaxFailure::NotDirect { path: path() },
        DaxFailure::NotMemory { path: path() },
        DaxFailure::TooShort { path: path(), wanted: 2 << 30, room: 1 << 30 },
    ] {
        let text = failure.to_string();
        assert!(text.contains("; ") && text.contains("dax0.0") && !text.contains('\n'), "{text}");
    }
}
