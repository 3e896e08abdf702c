// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which process of this host a program is, and to which systemd unit it belongs. See proc_pid_status(5), cgroups(7).

use std::fs;

/// Returns the number that a process has here and that has written `written`, its number in its own PID namespace: one
/// of the `holders` of the segment, of whose numbers the innermost is that one. A program may have closed the segment;
/// then `written` is its number if its launcher has no other namespace than this one. See pid_namespaces(7).
pub fn pid_here(written: u32, holders: &[u32], numbers: impl Fn(u32) -> Vec<u32>) -> Option<u32> {
    let is_writer = |holder: u32| numbers(holder).last() == Some(&written);
    // Where there is one namespace only, no other process has to be looked at.
    if holders.contains(&written) && is_writer(written) {
        return Some(written);
    }
    let writer = holders.iter().copied().find(|holder| is_writer(*holder));
    let is_one_of_us = || holders.iter().any(|holder| numbers(*holder).len() == 1);
    writer.or_else(|| is_one_of_us().then_some(written))
}

/// Returns the numbers of a process, from this PID namespace to its own: `NSpid` in proc_pid_status(5). A process that
/// has ended, and each process of a kernel without such namespaces, has only the number by which it is known.
pub fn namespaced(pid: u32) -> Vec<u32> {
    let numbers = numbers_of(pid, "NSpid:");
    if numbers.is_empty() { vec![pid] } else { numbers }
}

/// Returns whether a process runs as this user, by one of its ids.
pub fn runs_as(pid: u32, uid: u32) -> bool {
    numbers_of(pid, "Uid:").contains(&uid)
}

/// Returns the children of a process that its first thread has started.
pub fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// Returns the numbers in a line of a process's status; none if it has ended.
fn numbers_of(pid: u32, field: &str) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// Returns the systemd unit of a process. See cgroups(7), and `Delegate=` in systemd.resource-control(5).
pub fn unit_of(pid: u32) -> Option<String> {
    unit_in(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// Returns the innermost service or scope in the process's cgroup path: from the line `0::PATH`, or from systemd's own
/// hierarchy.
fn unit_in(cgroup: &str) -> Option<String> {
    let path = cgroup.lines().find_map(|line| {
        line.strip_prefix("0::").or_else(|| line.split_once(":name=systemd:").map(|(_, path)| path))
    })?;
    let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
    path.split('/').rev().find(is_unit).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_the_number_that_it_has_here() {
        let here = |pid: u32| vec![pid];
        assert_eq!(pid_here(7, &[5, 7], here), Some(7));
        assert_eq!(pid_here(7, &[5], here), Some(7), "it has closed the segment, and its launcher has not");
        // A container, with a launcher and a program that have the numbers 6 and 7 there.
        let container = |pid: u32| if pid < 100 { vec![pid] } else { vec![pid, pid - 94] };
        assert_eq!(pid_here(7, &[100, 101], container), Some(101));
        assert_eq!(pid_here(7, &[100], container), None, "another process has this number here");
        // The launcher is outside of the container.
        assert_eq!(pid_here(7, &[5, 101], container), Some(101));
        assert_eq!(pid_here(7, &[7, 101], container), Some(7));
        assert_eq!(namespaced(std::process::id()).first(), Some(&std::process::id()));
        assert_eq!(namespaced(u32::MAX - 1), [u32::MAX - 1]);
    }

    #[test]
    fn a_process_is_known_by_its_user_and_its_children() {
        let own = std::process::id();
        let uid = std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").unwrap());
        assert!(runs_as(own, uid) && !runs_as(own, uid + 1) && !runs_as(u32::MAX - 1, uid));
        // Not a child of this test's thread, but of another process's first one.
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "sleep 60 & echo $!; wait"]).stdout(std::process::Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut line = String::new();
        let output = shell.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
        let child: u32 = line.trim().parse().unwrap();
        assert_eq!(children(shell.id()), [child]);
        std::process::Command::new("kill").arg(child.to_string()).status().unwrap();
        shell.wait().unwrap();
    }

    #[test]
    fn the_unit_is_the_innermost_one() {
        let unit = |text: &str| unit_in(text);
        assert_eq!(unit("0::/system.slice/aquifer@web.service\n").as_deref(), Some("aquifer@web.service"));
        assert_eq!(unit("0::/system.slice/a.service/inner\n").as_deref(), Some("a.service"));
        assert_eq!(unit("4:memory:/x\n1:name=systemd:/user.slice/b.scope\n").as_deref(), Some("b.scope"));
        assert_eq!(unit("0::/\n"), None);
        assert_eq!(unit(""), None);
    }
}
