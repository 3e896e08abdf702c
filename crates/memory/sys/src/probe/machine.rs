// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Examines the rest of the machine: kernel, CPUs, storage, limits, and the needs of `aquifer bench`.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::raw::{Errno, syscall};
use crate::{direct_io, uring, verbs};

use super::Ability;

/// The oldest supported kernel.
const KERNEL_OLDEST: (u32, u32) = (5, 15);
/// Kernels allow this many mappings by default; a smaller limit was set by an administrator.
const MAPPINGS_DEFAULT: u64 = 65_530;
/// How much the pager locks: the counters, with room for growth.
const LOCKED_BYTES: u64 = 1 << 20;

const CAP_SYS_ADMIN: u32 = 21;
const CAP_IPC_LOCK: u32 = 14;

/// Kernel and CPUs.
pub fn kernel() -> Vec<Ability> {
    let release = read("/proc/sys/kernel/osrelease");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    vec![
        Ability {
            name: "kernel",
            found: version(&release).is_some_and(|found| found >= KERNEL_OLDEST),
            detail: format!("Linux {release}"),
            cost_without: "userfaultfd lacks features that the pager needs",
            remedy: "use Linux 5.15 or newer; 6.8 or newer is the fastest",
        },
        Ability {
            name: "cpus",
            found: cpus > 1,
            detail: format!("{cpus} for this process"),
            cost_without: "read-ahead and write-back take turns with the program",
            remedy: "give the process a second CPU (taskset, cpuset)",
        },
    ]
}

/// One-sided access to donors.
pub fn rdma() -> Ability {
    let opened = verbs::choose(None, None).and_then(|port| verbs::Device::open(&port).map(|_| port));
    let found = opened.map(|port| {
        let by = port.ip().map_or_else(|| format!("InfiniBand, LID {}", port.lid), |ip| format!("RoCE v2 at {ip}"));
        format!("{} port {}: {by}", port.device, port.number)
    });
    Ability::tried(
        "rdma",
        found.map_err(|failure| failure.to_string()),
        "donors are reached by TCP: the processors of both ends have a part in each read",
        "a card with its driver and rdma-core; or 'rdma link add rxe0 type rxe netdev eth0', in software, to try it",
    )
}

/// How cold memory is read and written.
pub fn storage(state_directory: &Path) -> Vec<Ability> {
    vec![
        Ability::tried(
            "direct-io",
            direct(state_directory),
            "transfers go through the page cache, one at a time, and take DRAM from the budget of others",
            "name a directory on ext4, xfs or a block device: --state-dir, or --tier flash:PATH",
        ),
        Ability::tried(
            "io-uring",
            uring::probe().map(|()| "reads and writes".to_owned()).map_err(|unusable| unusable.to_string()),
            "background transfers do not overlap: less bandwidth",
            "sysctl kernel.io_uring_disabled=0, and a container profile that allows io_uring_setup(2)",
        ),
    ]
}

/// Limits and switches of the kernel.
pub fn limits() -> Vec<Ability> {
    let huge = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let huge = huge.split(['[', ']']).nth(1).unwrap_or("absent").to_owned();
    let mappings: u64 = read("/proc/sys/vm/max_map_count").parse().unwrap_or(0);
    vec![
        Ability::tried(
            "syscall-user-dispatch",
            user_dispatch(),
            "system calls that do not pass through libc cannot be caught",
            "use Linux 5.11 or newer",
        ),
        Ability {
            name: "huge-pages",
            found: huge == "always" || huge == "madvise",
            detail: format!("transparent huge pages: {huge}"),
            cost_without: "MADV_HUGEPAGE does nothing, and programs that use it run slower",
            remedy: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        },
        memlock(),
        Ability {
            name: "mappings",
            found: mappings >= MAPPINGS_DEFAULT,
            detail: format!("vm.max_map_count = {mappings}"),
            cost_without: "a program with very many mappings gets ENOMEM",
            remedy: "sysctl vm.max_map_count=65530, or more",
        },
    ]
}

/// Abilities that only `aquifer bench` needs.
pub fn for_bench() -> Vec<Ability> {
    let areas = read("/proc/swaps").lines().skip(1).count();
    let areas = format!("{areas} in use");
    let zram = ["/sys/class/zram-control", "/sys/block/zram0"].into_iter().find(|path| Path::new(path).exists());
    vec![
        Ability::tried(
            "memory-cgroup",
            memory_cgroup(),
            "bench: nothing can be limited, so nothing is compared with swap",
            "run the bench as root, where the memory controller is mounted and writable",
        ),
        Ability::tried(
            "swap-areas",
            if has_capability(CAP_SYS_ADMIN) {
                Ok(format!("{areas}; may add its own"))
            } else {
                Err(format!("{areas}; may not add any"))
            },
            "bench: kernel swap is not measured",
            "run the bench as root (CAP_SYS_ADMIN)",
        ),
        Ability::tried(
            "zram",
            zram.map(str::to_owned).ok_or_else(|| "no such device".to_owned()),
            "bench: swap on zram is not measured",
            "modprobe zram",
        ),
    ]
}

/// Whether this process has a capability in effect: capabilities(7).
pub fn has_capability(number: u32) -> bool {
    let status = read("/proc/self/status");
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 << number != 0)
}

/// Tries direct I/O on an unlinked file, in the nearest directory that exists.
fn direct(state_directory: &Path) -> Result<String, String> {
    let there = state_directory.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    let shown = there.display();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC)
        .open(there)
        .map_err(|error| format!("{shown}: no file can be made: {error}"))?;
    let sized = file.set_len(u64::from(direct_io::ALIGNMENT));
    sized.map_err(|error| format!("{shown}: no file can be made: {error}"))?;
    match direct_io::enable(&file, true) {
        Ok(()) => Ok(format!("in {shown}")),
        Err(refusal) => Err(format!("{shown}: {refusal}")),
    }
}

/// Switches syscall user dispatch on and off again, with a selector that lets every call pass.
fn user_dispatch() -> Result<String, String> {
    const SET: usize = 59;
    const ON: usize = 1;
    const OFF: usize = 0;
    static ALLOW: u8 = 0;
    let call = |how: usize, selector: usize| {
        // SAFETY: prctl(2) with a selector that is a static byte with the value "allow", so that no call of this thread
        // is caught; the next line switches dispatch off.
        unsafe { syscall(libc::SYS_prctl, [SET, how, 0, 0, selector, 0]) }
    };
    let on = call(ON, &raw const ALLOW as usize);
    match on.and(call(OFF, 0)) {
        Ok(_) => Ok("was switched on and off".to_owned()),
        Err(Errno(libc::EINVAL)) => Err("not in this kernel".to_owned()),
        Err(errno) => Err(format!("refused: {errno}")),
    }
}

fn memlock() -> Ability {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit(2) writes one structure.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    let unlimited = limit.rlim_cur == libc::RLIM_INFINITY || has_capability(CAP_IPC_LOCK);
    Ability {
        name: "locked-memory",
        found: unlimited || limit.rlim_cur >= LOCKED_BYTES,
        detail: if unlimited { "unlimited".to_owned() } else { format!("{} KiB", limit.rlim_cur >> 10) },
        cost_without: "the kernel may swap out the pager's own memory, and a fault then waits for it",
        remedy: "ulimit -l 1024, or LimitMEMLOCK= in the service",
    }
}

/// The version and the mount point of the memory controller, if a group can be created there.
fn memory_cgroup() -> Result<String, String> {
    let mounts = read("/proc/self/mounts");
    let mut seen = Vec::new();
    for mount in mounts.lines() {
        let mut words = mount.split(' ').skip(1);
        let (Some(point), Some(kind), Some(options)) = (words.next(), words.next(), words.next()) else { continue };
        let version = match kind {
            "cgroup" if options.split(',').any(|option| option == "memory") => "v1",
            "cgroup2" if read(&format!("{point}/cgroup.controllers")).split(' ').any(|name| name == "memory") => "v2",
            _ => continue,
        };
        let path = std::ffi::CString::new(point).map_err(|_| "a mount point with a zero byte".to_owned())?;
        // SAFETY: access(2) reads a path that ends in NUL.
        let writable = unsafe { libc::access(path.as_ptr(), libc::W_OK) } == 0;
        if writable {
            return Ok(format!("{version} at {point}"));
        }
        seen.push(format!("{version} at {point} is read-only for this user"));
    }
    Err(seen.pop().unwrap_or_else(|| "no memory controller is mounted".to_owned()))
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The contents of a file of /proc or /sys without the last newline; empty if it is absent.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(version("6.18.44-generic"), Some((6, 18)));
        assert!(version("5.9.0").unwrap() < KERNEL_OLDEST);
        assert_eq!(version("5.15-rc1"), Some((5, 15)));
        assert_eq!(version(""), None);
    }
}
