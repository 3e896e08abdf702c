// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which owners, modes, links and names are accepted, and that a refusal names the remedy.

use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};

use super::*;

const ME: u32 = 1000;
const OTHER: u32 = 1001;
const DISK: u32 = 6;

#[test]
fn the_table_of_owners_and_rights() {
    let (regular, directory, block) = (libc::S_IFREG, libc::S_IFDIR, libc::S_IFBLK);
    let (memory, key, input, output) = (Purpose::Memory, Purpose::PrivateKey, Purpose::Input, Purpose::Output);
    let owner = Some(Objection::Owner(OTHER));
    let read = |mode| Some(Objection::OthersRead(mode));
    let write = Some(Objection::OthersWrite);
    for (purpose, kind, rights, uid, gid, expected) in [
        (memory, regular, 0o600, ME, ME, None),
        (memory, regular, 0o600, 0, 0, None),
        (memory, regular, 0o600, OTHER, ME, owner),
        (memory, regular, 0o640, ME, ME, read(regular | 0o640)),
        (memory, regular, 0o604, ME, ME, read(regular | 0o604)),
        (memory, regular, 0o620, ME, ME, write),
        (memory, regular, 0o602, 0, 0, write),
        (memory, directory, 0o755, ME, ME, None),
        (memory, directory, 0o755, 0, 0, None),
        (memory, directory, 0o777, ME, ME, write),
        (memory, directory, 0o1777, 0, 0, None),
        (memory, directory, 0o700, OTHER, OTHER, owner),
        (memory, directory, 0o1777, OTHER, OTHER, owner),
        (memory, block, 0o660, 0, DISK, None),
        (memory, block, 0o660, 0, 27, read(block | 0o660)),
        (memory, block, 0o666, 0, DISK, read(block | 0o666)),
        (memory, block, 0o600, OTHER, DISK, owner),
        (key, regular, 0o600, ME, ME, None),
        (key, regular, 0o640, ME, ME, read(regular | 0o640)),
        (key, regular, 0o640, 0, 110, None),
        (key, regular, 0o644, 0, 0, read(regular | 0o644)),
        (input, regular, 0o644, ME, ME, None),
        (input, regular, 0o644, OTHER, ME, owner),
        (input, regular, 0o664, ME, ME, write),
        (output, regular, 0o644, ME, ME, None),
        (output, regular, 0o644, OTHER, ME, owner),
        (output, regular, 0o666, 0, 0, write),
        (output, libc::S_IFCHR, 0o666, OTHER, 0, None),
        (output, libc::S_IFIFO, 0o600, OTHER, 0, owner),
    ] {
        let facts = Facts { mode: kind | rights, uid, gid, links: 1, in_shared_directory: false };
        let user = User { uid: ME, disk_group: Some(DISK), service: None };
        assert_eq!(objection(purpose, &facts, &user), expected, "{purpose:?} {facts:?}");
    }
}

/// The host's agent runs as a user of its own, and keeps the list for programs of all users.
#[test]
fn a_signed_file_may_be_anyones_where_nobody_else_can_write() {
    let (regular, fifo) = (libc::S_IFREG, libc::S_IFIFO);
    let owner = Some(Objection::Owner(OTHER));
    for (kind, rights, uid, in_shared_directory, expected) in [
        (regular, 0o644, OTHER, false, None),
        (regular, 0o644, OTHER, true, owner),
        (regular, 0o644, ME, true, None),
        (regular, 0o644, 0, true, None),
        (regular, 0o664, OTHER, false, Some(Objection::OthersWrite)),
        (regular, 0o646, 0, false, Some(Objection::OthersWrite)),
        (fifo, 0o644, OTHER, false, owner),
    ] {
        let facts = Facts { mode: kind | rights, uid, gid: ME, links: 1, in_shared_directory };
        let user = User { uid: ME, disk_group: None, service: None };
        assert_eq!(objection(Purpose::Signed, &facts, &user), expected, "{facts:?}");
    }
}

/// The agent's user keeps the files that programs of other users borrow with. Only the owner is judged differently.
#[test]
fn what_a_service_has_named_may_be_the_services_and_nobody_elses() {
    const AGENT: u32 = 990;
    let (regular, key, input) = (libc::S_IFREG, Purpose::PrivateKey, Purpose::Input);
    let (owner, write) = (|uid| Some(Objection::Owner(uid)), Some(Objection::OthersWrite));
    let read = |mode| Some(Objection::OthersRead(regular | mode));
    for (purpose, rights, uid, me, service, expected) in [
        (key, 0o600, AGENT, ME, Some(AGENT), None),
        (key, 0o640, AGENT, ME, Some(AGENT), None),
        (key, 0o640, AGENT, AGENT, Some(AGENT), None),
        (key, 0o640, AGENT, AGENT, None, read(0o640)),
        (key, 0o640, AGENT, ME, None, owner(AGENT)),
        (key, 0o644, AGENT, ME, Some(AGENT), read(0o644)),
        (key, 0o660, AGENT, ME, Some(AGENT), write),
        (key, 0o600, OTHER, ME, Some(AGENT), owner(OTHER)),
        (key, 0o640, ME, ME, Some(AGENT), read(0o640)),
        (key, 0o640, 0, ME, Some(AGENT), None),
        (input, 0o644, AGENT, ME, Some(AGENT), None),
        (input, 0o644, AGENT, ME, None, owner(AGENT)),
        (input, 0o664, AGENT, ME, Some(AGENT), write),
        (input, 0o646, AGENT, ME, Some(AGENT), write),
        (input, 0o644, OTHER, ME, Some(AGENT), owner(OTHER)),
    ] {
        let facts = Facts { mode: regular | rights, uid, gid: ME, links: 1, in_shared_directory: false };
        let user = User { uid: me, disk_group: None, service };
        assert_eq!(objection(purpose, &facts, &user), expected, "{purpose:?} {facts:?} {user:?}");
    }
}

#[test]
fn a_second_name_counts_where_others_can_write() {
    let user = User { uid: ME, disk_group: None, service: None };
    let facts = |links, in_shared_directory| Facts {
        mode: libc::S_IFREG | 0o600,
        uid: ME,
        gid: ME,
        links,
        in_shared_directory,
    };
    assert_eq!(objection(Purpose::Memory, &facts(2, false), &user), None);
    assert_eq!(objection(Purpose::Memory, &facts(1, true), &user), None);
    assert_eq!(objection(Purpose::Memory, &facts(2, true), &user), Some(Objection::HardLink));
}

#[test]
fn the_group_disk_is_found_by_name() {
    assert_eq!(open::disk_group("root:x:0:\nlogdisk:x:9:\ndisk:x:6:alice\n"), Some(6));
    assert_eq!(open::disk_group("root:x:0:\ndisk\n"), None);
}

#[test]
fn links_are_followed_only_where_nobody_else_can_make_them() {
    let scratch = std::env::temp_dir().join(format!("aquifer-safe-open-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    std::fs::set_permissions(&scratch, PermissionsExt::from_mode(0o755)).unwrap();
    let (file, link) = (scratch.join("file"), scratch.join("link"));
    std::fs::File::options().create(true).write(true).truncate(true).mode(0o600).open(&file).unwrap();
    symlink("file", &link).unwrap();
    let open = || open(&link, Purpose::Memory, libc::O_RDWR, 0).map_err(|failure| failure.to_string());
    assert!(open().is_ok());
    std::fs::set_permissions(&scratch, PermissionsExt::from_mode(0o1777)).unwrap();
    let refused = open().unwrap_err();
    // The same for directories, and for files opened only to be examined.
    for flags in [libc::O_PATH, libc::O_RDWR | libc::O_DIRECTORY] {
        let other = super::open(&link, Purpose::Memory, flags, 0).unwrap_err().to_string();
        assert_eq!(other, refused, "{flags:#x}");
    }
    std::fs::remove_dir_all(&scratch).unwrap();
    assert!(refused.contains("is a symbolic link in a directory where others can write"), "{refused}");
}

#[test]
fn refusals_name_the_remedy() {
    let text = |objection| Objected { path: "/m/cold".into(), objection, uid: ME }.to_string();
    for (objection, remedy) in [
        (Objection::HardLink, "name a file with one name"),
        (Objection::OthersRead(libc::S_IFREG | 0o644), "chmod go= /m/cold"),
        (Objection::OthersRead(libc::S_IFBLK | 0o666), "chmod o= /m/cold"),
        (Objection::OthersRead(libc::S_IFBLK | 0o660), "chgrp disk /m/cold"),
        (Objection::OthersWrite, "chmod go-w /m/cold"),
        (Objection::Owner(OTHER), "chown 1000 /m/cold"),
        (Objection::SymbolicLink, "name what it leads to"),
    ] {
        assert!(text(objection).ends_with(remedy), "{}", text(objection));
    }
}

#[test]
fn only_a_number_names_an_own_descriptor() {
    for (path, expected) in [
        ("/dev/fd/3", true),
        ("/proc/self/fd/12", true),
        ("/dev/stdout", true),
        ("/dev/fd/", false),
        ("/dev/fd/../../tmp/x", false),
        ("/proc/self/fd/3/x", false),
    ] {
        assert_eq!(is_own_descriptor(Path::new(path)), expected, "{path}");
    }
}
