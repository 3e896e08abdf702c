// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The flash tier is a tier in each of its shapes, and destroys nothing that is not ours.

mod scratch;
mod steps;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aquifer_core::units::ByteSize;
use aquifer_tiers::conformance::{check, frames, model};
use aquifer_tiers::{Flash, FlashSpec, OpenFailure, Tier, TierSpec, report_exit};
use proptest::prelude::*;
use scratch::Scratch;

const SIZE: Option<ByteSize> = Some(ByteSize(16 << 20));

fn spec(path: &Path) -> FlashSpec {
    FlashSpec { size: SIZE, ..FlashSpec::at(path) }
}

fn tier(spec: &FlashSpec) -> Box<dyn Tier> {
    Box::new(Flash::open(spec).unwrap_or_else(|failure| panic!("{failure}")))
}

fn refusal(spec: &FlashSpec) -> OpenFailure {
    Flash::open(spec).err().expect("this must be refused")
}

#[test]
fn a_directory_passes_the_suite() {
    let scratch = Scratch::new();
    check("flash in a directory", &|| tier(&spec(scratch.path())));
    assert!(scratch.is_empty(), "nothing is left behind");
}

#[test]
fn a_new_file_passes_the_suite_and_disappears() {
    let scratch = Scratch::new();
    check("flash in a new file", &|| tier(&spec(&scratch.path().join("blocks"))));
    assert!(scratch.is_empty(), "nothing is left behind");
}

#[test]
fn without_io_uring_it_passes_the_suite() {
    let scratch = Scratch::new();
    let spec = FlashSpec { plain_queue: true, ..spec(scratch.path()) };
    check("flash with plain queues", &|| tier(&spec));
}

#[test]
fn buffered_it_passes_the_suite() {
    let scratch = Scratch::new();
    let spec = FlashSpec { buffered: true, ..spec(scratch.path()) };
    check("buffered flash", &|| tier(&spec));
}

#[test]
fn a_file_system_in_memory_is_used_and_named() {
    let path = Path::new("/dev/shm");
    if !path.is_dir() {
        aquifer_test_support::skip("there is no /dev/shm");
        return;
    }
    let tier = tier(&spec(path));
    assert!(tier.notices().iter().any(|notice| notice.contains("saves no DRAM")), "{:?}", tier.notices());
}

#[test]
fn a_file_made_by_the_operator_must_be_private_and_is_taken_again() {
    let scratch = Scratch::new();
    let path = scratch.path().join("blocks");
    std::fs::write(&path, "").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    // A user who has already opened it for reading could read the program's memory.
    let refused = refusal(&spec(&path)).to_string();
    assert!(refused.contains("other users can read") && refused.contains("chmod go="), "{refused}");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    {
        let tier = tier(&spec(&path));
        let frame = frames::frame(1, 7);
        tier.write(0, &frame).unwrap();
        frames::give_back(frame);
    }
    let metadata = path.metadata().unwrap();
    assert_eq!((metadata.len(), metadata.permissions().mode() & 0o777), (16 << 20, 0o600));
    // It is full of blocks now, as if its instance had been killed.
    match Flash::open(&spec(&path)) {
        Ok(_) => {}
        Err(OpenFailure::NotOurs { .. }) => {
            aquifer_test_support::skip_part("the rest", "extended attributes are missing here")
        }
        Err(failure) => panic!("{failure}"),
    }
}

/// A file with a name used to keep all that the program had stored there, for the next reader of the disk.
#[test]
fn blocks_that_a_program_leaves_in_a_named_file_are_discarded() {
    let scratch = Scratch::new();
    let path = scratch.path().join("blocks");
    std::fs::write(&path, "").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let tier = tier(&spec(&path));
    let frame = frames::frame(64, 7);
    tier.write(0, &frame).unwrap();
    frames::give_back(frame);
    report_exit(&TierSpec::Flash(spec(&path)));
    assert_eq!(path.metadata().unwrap().len(), 16 << 20, "somebody has it open still");
    drop(tier);
    report_exit(&TierSpec::Flash(spec(&path)));
    if path.metadata().unwrap().len() > 0 && matches!(Flash::open(&spec(&path)), Err(OpenFailure::NotOurs { .. })) {
        return aquifer_test_support::skip_part("the rest", "extended attributes are missing here");
    }
    assert_eq!(path.metadata().unwrap().len(), 0);
    std::fs::write(&path, "all of my work").unwrap();
    rustix::fs::removexattr(&path, "user.aquifer.tier").unwrap();
    report_exit(&TierSpec::Flash(spec(&path)));
    assert_eq!(std::fs::read(&path).unwrap(), b"all of my work", "what is not ours stays");
}

#[test]
fn data_of_others_is_kept_unless_overwriting_is_asked_for() {
    let scratch = Scratch::new();
    let path = scratch.path().join("thesis");
    std::fs::write(&path, "all of my work").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    assert!(matches!(refusal(&spec(&path)), OpenFailure::NotOurs { .. }));
    // A file that others can read is not to be made ours by chmod(1).
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(matches!(refusal(&spec(&path)), OpenFailure::NotOurs { .. }));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"all of my work");
    tier(&FlashSpec { overwrite: true, ..spec(&path) }).flush().unwrap();
}

#[test]
fn two_instances_cannot_have_one_file_but_share_a_directory() {
    let scratch = Scratch::new();
    let path = scratch.path().join("blocks");
    std::fs::write(&path, "").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let first = tier(&spec(&path));
    assert!(matches!(refusal(&spec(&path)), OpenFailure::Held { .. }));
    drop(first);
    let _first = tier(&spec(scratch.path()));
    let _second = tier(&spec(scratch.path()));
}

#[test]
fn bad_places_are_refused_with_their_reason() {
    let scratch = Scratch::new();
    let missing = scratch.path().join("no/such");
    assert!(matches!(refusal(&spec(&missing)), OpenFailure::MissingDirectory { .. }));
    assert!(matches!(refusal(&spec(&scratch.path().join("none/"))), OpenFailure::MissingDirectory { .. }));
    assert!(matches!(refusal(&spec(Path::new("/dev/null"))), OpenFailure::NotStorage { .. }));
    let huge = FlashSpec { size: Some(ByteSize(1 << 60)), ..spec(scratch.path()) };
    assert!(matches!(refusal(&huge), OpenFailure::NoSpace { wanted_bytes: Some(_), .. }));
    let tiny = FlashSpec { size: Some(ByteSize(4)), ..spec(scratch.path()) };
    assert!(matches!(refusal(&tiny), OpenFailure::TooSmall { .. }));
    assert!(matches!(refusal(&spec(Path::new("/proc"))), OpenFailure::Path { .. }));
    assert!(scratch.is_empty(), "a refusal leaves nothing behind");
}

proptest! {
    #![proptest_config(steps::config())]

    #[test]
    fn every_read_returns_the_last_write(
        depth in 1u32..16, buffered: bool, plain_queue: bool, steps in steps::steps()
    ) {
        let scratch = Scratch::new();
        let spec = FlashSpec { buffered, plain_queue, ..spec(scratch.path()) };
        model::replay(&*tier(&spec), depth, &steps);
    }
}

/// Files that other users own, can change or could have put there: in a file of its own, `nobody` could read root's
/// memory, and could store pages with forged checksums.
#[test]
fn paths_that_other_users_own_or_can_reach_are_refused() {
    let scratch = Scratch::new();
    let refused = |path: &Path| match refusal(&spec(path)) {
        OpenFailure::Objected { objected } => objected.to_string(),
        other => panic!("{other}"),
    };
    let loose = scratch.path().join("loose");
    std::fs::create_dir(&loose).unwrap();
    std::fs::set_permissions(&loose, PermissionsExt::from_mode(0o777)).unwrap();
    assert!(refused(&loose).contains("other users can write to"));

    std::fs::set_permissions(&loose, PermissionsExt::from_mode(0o1777)).unwrap();
    tier(&spec(&loose)).flush().unwrap();
    let (own, link) = (scratch.path().join("own"), loose.join("link"));
    std::fs::write(&own, "").unwrap();
    std::fs::set_permissions(&own, PermissionsExt::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&own, &link).unwrap();
    assert!(refused(&link).contains("is a symbolic link in a directory where others can write"));

    let nobody = Some(65534);
    let foreign = scratch.path().join("foreign");
    std::fs::write(&foreign, "").unwrap();
    std::fs::set_permissions(&foreign, PermissionsExt::from_mode(0o600)).unwrap();
    if std::os::unix::fs::chown(&foreign, nobody, nobody).is_err() {
        aquifer_test_support::skip_part("files of other users", "only root can give files away");
        return;
    }
    assert!(refused(&foreign).contains("belongs to another user (uid 65534)"));
    let directory = scratch.path().join("directory");
    std::fs::create_dir(&directory).unwrap();
    std::os::unix::fs::chown(&directory, nobody, nobody).unwrap();
    assert!(refused(&directory).contains("belongs to another user (uid 65534)"));
}
