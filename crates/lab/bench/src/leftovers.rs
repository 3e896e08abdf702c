// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finds the leftovers of a killed bench by their names, and removes them.
//!
//! A name contains the process id and the start time of its maker; it is a leftover when that process no longer exists.
//! Nothing else is touched, whatever it looks like.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::hosts;
use crate::machine;
use crate::swap::LABEL_PREFIXES;
use crate::undo::{CERTIFICATES_KIND, SERVER_KIND, Undo, is_alive, token_in};

/// Offset of a swap area's label: mkswap writes it 1052 bytes into the first page, 16 bytes long.
const LABEL_AT: u64 = 1052;

/// Kinds of directories that are removed with their contents.
const TREES: [&str; 2] = [CERTIFICATES_KIND, SERVER_KIND];

/// Removes every leftover and returns a line for each.
pub fn clean(directory: &Path, hierarchy: Option<&Path>) -> Vec<String> {
    let mut lines = Vec::new();
    for undo in find(directory, hierarchy) {
        lines.push(match undo.perform() {
            Ok(()) => format!("cleaned up after a killed bench: {undo:?}"),
            Err(failure) => format!("could not clean up after a killed bench ({undo:?}): {failure}"),
        });
    }
    lines
}

/// Lists the leftovers in an order in which they can be removed: users before the things that they use.
fn find(directory: &Path, hierarchy: Option<&Path>) -> Vec<Undo> {
    let mut found = Vec::new();
    if let Some(root) = hierarchy {
        found.extend(leftovers_in(root).into_iter().filter(|path| path.is_dir()).map(Undo::RemoveCgroup));
    }
    found.extend(leftovers_in(Path::new(hosts::DIRECTORY)).into_iter().map(Undo::RemoveHost));
    let loops = loops();
    let zrams = zrams();
    for area in machine::swap_areas() {
        let behind_loop = loops.iter().any(|(device, _)| *device == area);
        let behind_zram = zrams.iter().any(|(device, _)| *device == area);
        if behind_loop || behind_zram || is_left(&area.to_string_lossy()) {
            found.push(Undo::SwapOff(area));
        }
    }
    found.extend(zrams.into_iter().map(|(_, undo)| undo));
    found.extend(loops.into_iter().map(|(_, undo)| undo));
    // The name of a host is also a mount point.
    let is_leftover = |mount: &PathBuf| is_left(&mount.to_string_lossy()) && !mount.starts_with(hosts::DIRECTORY);
    for mount in machine::mount_points().into_iter().filter(is_leftover) {
        found.extend([Undo::Unmount(mount.clone()), Undo::RemoveDirectory(mount)]);
    }
    for path in leftovers_in(directory) {
        let known = found.iter().any(|undo| *undo == Undo::RemoveDirectory(path.clone()));
        match path.is_dir() {
            true if known => {}
            true if path.extension().is_some_and(|kind| TREES.iter().any(|tree| kind == *tree)) => {
                found.push(Undo::RemoveTree(path))
            }
            true => found.push(Undo::RemoveDirectory(path)),
            false => found.push(Undo::RemoveFile(path)),
        }
    }
    found
}

/// True when the text contains a name made by a bench that is no longer running.
fn is_left(text: &str) -> bool {
    token_in(text).is_some_and(|token| !is_alive(token))
}

fn leftovers_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| is_left(&name.to_string_lossy())))
        .collect()
}

/// Loop devices whose backing file is a leftover.
fn loops() -> Vec<(PathBuf, Undo)> {
    block_devices("loop")
        .filter(|name| {
            fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).is_ok_and(|file| is_left(&file))
        })
        .map(|name| PathBuf::from(format!("/dev/{name}")))
        .map(|device| (device.clone(), Undo::DetachLoop(device)))
        .collect()
}

/// zram devices whose label was written by a bench that is no longer running.
fn zrams() -> Vec<(PathBuf, Undo)> {
    block_devices("zram")
        .filter(|name| fs::read_to_string(format!("/sys/block/{name}/disksize")).is_ok_and(|size| size.trim() != "0"))
        .filter_map(|name| {
            let device = PathBuf::from(format!("/dev/{name}"));
            let mut label = [0u8; 16];
            File::open(&device).ok()?.read_exact_at(&mut label, LABEL_AT).ok()?;
            let remove = left_label(&label)?;
            Some((device, Undo::ResetZram { index: name.strip_prefix("zram")?.parse().ok()?, remove }))
        })
        .collect()
}

/// Whether the bench that wrote the label had also added the device. `None` if that bench is still running, or if the
/// label is not a bench's.
fn left_label(label: &[u8]) -> Option<bool> {
    let end = label.iter().position(|byte| *byte == 0).unwrap_or(label.len());
    let text = std::str::from_utf8(&label[..end]).ok()?;
    let kind = LABEL_PREFIXES.iter().position(|prefix| text.starts_with(prefix))?;
    let token = &text[3..];
    let ours = token_in(&format!("aquifer-bench-{token}.zram")) == Some(token);
    (ours && !is_alive(token)).then_some(kind == 1)
}

fn block_devices(prefix: &'static str) -> impl Iterator<Item = String> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(move |name| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::Hosts;
    use crate::undo::{name, own_token};
    use std::io::Read;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    #[test]
    fn only_the_files_of_the_dead_are_found() {
        let directory = std::env::temp_dir().join(format!("leftovers-test-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let dead = directory.join(name("1-zzzzzz", "swap"));
        let alive = directory.join(name(&own_token(), "swap"));
        for path in [&dead, &alive, &directory.join("swapfile")] {
            fs::write(path, "x").unwrap();
        }
        let trees = TREES.map(|kind| directory.join(name("1-zzzzzz", kind)));
        for tree in &trees {
            fs::create_dir(tree).unwrap();
        }
        fs::create_dir(directory.join(name(&own_token(), SERVER_KIND))).unwrap();
        let is_here = |undo: &Undo| matches!(undo, Undo::RemoveFile(_) | Undo::RemoveTree(_));
        let mut found: Vec<_> = find(&directory, None).into_iter().filter(is_here).collect();
        found.sort_by_key(|undo| format!("{undo:?}"));
        let [keys, server] = trees.map(Undo::RemoveTree);
        assert_eq!(found, [Undo::RemoveFile(dead), keys, server]);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_host_of_the_dead_is_taken_down_with_who_is_on_it() {
        // Both tokens name process 1 with a start time that is not its own, so they count as those of dead benches.
        if let Some(reason) = hosts::obstacle("1-zzzzzy", 250_000_000) {
            aquifer_test_support::skip(reason);
            return;
        }
        let left = Hosts::make("1-zzzzzz", 1, None).unwrap();
        let words = left.words(1);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["sh", "-c", "echo here; exec sleep 20"]).stdout(Stdio::piped());
        let mut on_it = command.spawn().unwrap();
        let mut said = [0u8; 4];
        on_it.stdout.take().unwrap().read_exact(&mut said).unwrap();
        let path = Path::new(hosts::DIRECTORY).join(name("1-zzzzzz", "host1"));
        let ours = |undo: &Undo| format!("{undo:?}").contains("1-zzzzzz.host1");
        let found: Vec<_> = find(Path::new("/nowhere"), None).into_iter().filter(ours).collect();
        assert_eq!(found, [Undo::RemoveHost(path.clone())]);
        assert_eq!(found[0].perform(), Ok(()));
        assert!(!path.exists());
        assert_eq!(on_it.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn labels_of_the_dead() {
        assert_eq!(left_label(b"aqb1-zzzzzz\0\0\0\0\0"), Some(false));
        assert_eq!(left_label(b"aqh1-zzzzzz\0\0\0\0\0"), Some(true));
        assert_eq!(left_label(format!("aqb{}", own_token()).as_bytes()), None);
        for foreign in [&b"swap\0"[..], b"\0\0\0", b"aqb", b"aqb\xff", b"aqbert"] {
            assert_eq!(left_label(foreign), None);
        }
    }
}
