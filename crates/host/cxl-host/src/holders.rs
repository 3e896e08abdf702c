// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which processes have memory of a node: what keeps its memory from going offline.
//!
//! See numa(7) on `/proc/PID/numa_maps`, which other users' processes show to root only. The kernel's own memory has no
//! process.

use std::fmt;
use std::io;

use aquifer_nodes::Tree;
use serde::Serialize;

use crate::failure::CxlFailure;
use crate::listing::is_not_there;

/// A process with memory of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// How much it has there; shared memory counts for each process.
    pub bytes: u64,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {} MiB)", self.name.escape_debug(), self.pid, self.bytes.div_ceil(1 << 20))
    }
}

/// The processes with memory of `node`, those with the most first. Fails if it cannot be found out what one has.
pub fn holders(tree: &dyn Tree, node: u32) -> Result<Vec<Holder>, CxlFailure> {
    let names = unless_gone("/proc", tree.names("/proc"))?.unwrap_or_default();
    let mut holders = Vec::new();
    for pid in names.iter().filter_map(|name| name.parse::<u32>().ok()) {
        let path = format!("/proc/{pid}/numa_maps");
        let bytes = unless_gone(&path, tree.text(&path))?.map_or(0, |maps| bytes_on(&maps, node));
        if bytes > 0 {
            let name = tree.text(&format!("/proc/{pid}/comm")).unwrap_or_default();
            holders.push(Holder { pid, name, bytes });
        }
    }
    holders.sort_by(|one, other| other.bytes.cmp(&one.bytes).then(one.pid.cmp(&other.pid)));
    Ok(holders)
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
