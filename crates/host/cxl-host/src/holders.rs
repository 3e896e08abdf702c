// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which processes have memory of a node, or a memory device: what keeps memory from going.
//!
//! A memory device counts as mapped where a shared mapping is of a file in /dev with its number, because a container
//! may have the device under another name. Where the number is not shown, the name decides. A descriptor without a
//! mapping counts, too; the files of other users' processes are shown only to who may read every directory
//! (CAP_DAC_READ_SEARCH), which the packaged agent may not.
//!
//! See numa(7) on `/proc/PID/numa_maps`, and proc_pid_maps(5), which other users' processes show to root only. The
//! kernel's own memory has no process.

use std::fmt;
use std::io;

use aquifer_nodes::Tree;
use serde::Serialize;

use crate::failure::CxlFailure;
use crate::listing::is_not_there;

/// How much of a process's mappings is read. The 65,530 of them that a process may have by default take about 7 MiB.
const MAPS_BYTES_MAX: usize = 64 << 20;

/// A process with memory of a node, or with a memory device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// How much it has there; shared memory counts for each process. 0 for a memory device that it has not mapped.
    pub bytes: u64,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes.div_ceil(1 << 20) {
            0 => write!(f, "{} ({})", self.name.escape_debug(), self.pid),
            mib => write!(f, "{} ({}, {mib} MiB)", self.name.escape_debug(), self.pid),
        }
    }
}

/// The processes with memory of `node`, those with the most first. Fails if it cannot be found out what one has.
pub fn holders(tree: &dyn Tree, node: u32) -> Result<Vec<Holder>, CxlFailure> {
    holders_by(tree, |pid| {
        let path = format!("/proc/{pid}/numa_maps");
        let maps = unless_gone(&path, tree.text(&path))?;
        Ok(maps.map(|maps| bytes_on(&maps, node)).filter(|bytes| *bytes > 0))
    })
}

/// The processes that have the memory device `name` open or mapped, those that have mapped the most first. Fails if it
/// cannot be found out what one has.
pub fn users(tree: &dyn Tree, name: &str) -> Result<Vec<Holder>, CxlFailure> {
    let path = format!("/sys/bus/dax/devices/{name}/dev");
    let text = unless_gone(&path, tree.text(&path))?;
    let number = text.as_deref().and_then(|text| text.split_once(':'));
    let number = number.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let wanted = Wanted { tree, name, number };
    holders_by(tree, |pid| match wanted.mapped_bytes(pid)? {
        0 => Ok(wanted.is_open(pid)?.then_some(0)),
        bytes => Ok(Some(bytes)),
    })
}

/// The processes of which `bytes` says that they hold something, and how much.
fn holders_by(
    tree: &dyn Tree,
    bytes: impl Fn(u32) -> Result<Option<u64>, CxlFailure>,
) -> Result<Vec<Holder>, CxlFailure> {
    let names = unless_gone("/proc", tree.names("/proc"))?.unwrap_or_default();
    let mut holders = Vec::new();
    for pid in names.iter().filter_map(|name| name.parse::<u32>().ok()) {
        if let Some(bytes) = bytes(pid)? {
            let name = tree.text(&format!("/proc/{pid}/comm")).unwrap_or_default();
            holders.push(Holder { pid, name, bytes });
        }
    }
    holders.sort_by(|one, other| other.bytes.cmp(&one.bytes).then(one.pid.cmp(&other.pid)));
    Ok(holders)
}

/// A memory device that is looked for.
struct Wanted<'a> {
    tree: &'a dyn Tree,
    name: &'a str,
    /// Its major and minor number, if the kernel shows it.
    number: Option<(u32, u32)>,
}

impl Wanted<'_> {
    /// How much of it a process has mapped.
    fn mapped_bytes(&self, pid: u32) -> Result<u64, CxlFailure> {
        let path = format!("/proc/{pid}/maps");
        // The names of mapped files need not be UTF-8.
        let maps = unless_gone(&path, self.tree.bytes(&path, MAPS_BYTES_MAX))?.unwrap_or_default();
        let mut bytes = 0u64;
        for mapping in String::from_utf8_lossy(&maps).lines().filter_map(Mapping::of) {
            let link = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
            if self.is_at(&link)?.unwrap_or(mapping.file == self.name) {
                bytes = bytes.saturating_add(mapping.end.saturating_sub(mapping.start));
            }
        }
        Ok(bytes)
    }

    /// Whether a process has it open.
    fn is_open(&self, pid: u32) -> Result<bool, CxlFailure> {
        let directory = format!("/proc/{pid}/fd");
        for descriptor in unless_gone(&directory, self.tree.names(&directory))?.unwrap_or_default() {
            let link = format!("{directory}/{descriptor}");
            // The name first: a question to a file of a network that is down would wait for the network.
            let name = match self.tree.link(&link) {
                Err(error) if error.raw_os_error().is_none() => None,
                read => unless_gone(&link, read)?,
            };
            if name.is_some_and(|name| name == self.name) && self.is_at(&link)?.unwrap_or(true) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a link leads to it. `None` if that is not shown.
    fn is_at(&self, link: &str) -> Result<Option<bool>, CxlFailure> {
        let Some(number) = self.number else { return Ok(None) };
        match self.tree.device_number(link) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => Ok(Some(false)),
            read => Ok(unless_gone(link, read)?.map(|found| found == number)),
        }
    }
}

/// A shared mapping of a file in /dev. A memory device has no other mappings.
struct Mapping<'a> {
    start: u64,
    end: u64,
    /// The file's name below /dev.
    file: &'a str,
}

impl Mapping<'_> {
    /// The mapping of a line such as `7f0000000000-7f0020000000 rw-s 00000000 00:06 470   /dev/dax0.0`.
    fn of(line: &str) -> Option<Mapping<'_>> {
        // Nothing before the file's path has a slash.
        let file = line.get(line.find('/')?..)?.strip_prefix("/dev/")?;
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let is_shared = words.next()?.ends_with('s');
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let file = file.strip_suffix(" (deleted)").unwrap_or(file);
        is_shared.then_some(Mapping { start: number(start)?, end: number(end)?, file })
    }
}

/// What was read. `None` where the process has ended meanwhile, or is not this user's: it holds nothing.
fn unless_gone<T>(path: &str, read: io::Result<T>) -> Result<Option<T>, CxlFailure> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if is_not_there(&error) => Ok(None),
        Err(source) => Err(CxlFailure::Unreadable { path: path.to_owned(), source }),
    }
}

/// The sum of `N1=COUNT` over all mappings, each in its own page size.
fn bytes_on(maps: &str, node: u32) -> u64 {
    let key = format!("N{node}=");
    let line = |line: &str| {
        let count =
            |prefix: &str| line.split_whitespace().find_map(|word| word.strip_prefix(prefix)?.parse::<u64>().ok());
        let pages = count(&key).unwrap_or(0);
        pages.saturating_mul(count("kernelpagesize_kB=").unwrap_or(4)).saturating_mul(1024)
    };
    maps.lines().map(line).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use aquifer_nodes::Fixture;

    use super::*;

    #[test]
    fn holders_are_listed_by_how_much_they_have() {
        let tree = Fixture::new()
            .with(
                "/proc/10/numa_maps",
                "7f00 default anon=3 N0=1 N1=2 kernelpagesize_kB=4\n7f01 default N1=1 kernelpagesize_kB=2048",
            )
            .with("/proc/10/comm", "redis\n")
            .with("/proc/11/numa_maps", "7f00 default N0=9 N11=4 kernelpagesize_kB=4")
            .with("/proc/12/numa_maps", "7f00 default N1=1024 kernelpagesize_kB=4")
            .with("/proc/13/comm", "gone")
            .with("/proc/self/numa_maps", "7f00 default N1=5 kernelpagesize_kB=4");
        let found = holders(&tree, 1).unwrap();
        assert_eq!(found.iter().map(|holder| holder.pid).collect::<Vec<_>>(), [12, 10]);
        assert_eq!(found[1], Holder { pid: 10, name: "redis".into(), bytes: (2 << 20) + 8192 });
        assert!(holders(&tree, 7).unwrap().is_empty() && holders(&Fixture::new(), 1).unwrap().is_empty());
    }

    #[test]
    fn unreadable_lines_count_as_nothing() {
        for junk in ["", "N1=", "N1=x", "N1=-1", "N1=18446744073709551615 kernelpagesize_kB=x"] {
            let bytes = bytes_on(junk, 1);
            assert!(bytes == 0 || bytes == u64::MAX, "{junk}: {bytes}");
        }
    }
}
