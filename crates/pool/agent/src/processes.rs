// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which process this is, and whether it still runs. See proc_pid_stat(5).

use std::fs;

use serde::{Deserialize, Serialize};

/// A process of this host. Its number alone may have been given to another process since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    /// Its number; 0 for a process that this host's agent cannot see.
    pub(crate) pid: u32,
    /// When it was started, in the kernel's ticks since boot.
    pub(crate) started: u64,
}

impl Process {
    /// Returns the process with this number now.
    pub(crate) fn of(pid: u32) -> Process {
        Process { pid, started: started(pid).unwrap_or(0) }
    }

    /// Returns whether it runs. A process that cannot be seen counts as running only while it is connected.
    pub(crate) fn runs(self) -> bool {
        self.pid != 0 && started(self.pid) == Some(self.started)
    }
}

/// Returns when a process was started; `None` if there is none, or only its exit status is left.
fn started(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses, and may contain any character.
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(started)
}

/// Returns the identity of this start of the host.
pub(crate) fn boot() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_until_it_has_ended() {
        let own = Process::of(std::process::id());
        assert!(own.runs() && own.started > 0);
        assert!(!Process { started: own.started + 1, ..own }.runs(), "another process had the number");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let of_child = Process::of(child.id());
        child.wait().unwrap();
        assert!(!of_child.runs() && !Process { pid: 0, started: 0 }.runs());
        assert_eq!(boot().unwrap().len(), 36);
    }
}
