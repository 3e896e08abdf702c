// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why a source of hotness cannot be used: one line each that names the cause and the remedy.

use std::error::Error;
use std::{fmt, io};

use aquifer_nodes::WriteFailure;

use crate::registers::RegisterFailure;

/// A source that cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum HotnessFailure {
    /// DAMON has no thread whose scheme counts.
    DamonOff,
    /// A file of DAMON cannot be read.
    Damon {
        /// Which.
        path: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// DAMON does not take a command.
    DamonCommand(WriteFailure),
    /// The monitor is enabled already.
    InUse {
        /// Which.
        name: String,
    },
    /// The device does not have such a monitor.
    NoMonitor {
        /// Which.
        name: String,
        /// How many it has.
        monitors: u8,
    },
    /// A register cannot be accessed.
    Register {
        /// Of which monitor.
        name: String,
        /// Which, and why.
        source: RegisterFailure,
    },
    /// The monitor does not support what was requested.
    Setting {
        /// Which.
        name: String,
        /// What it does not support, and what it does.
        why: String,
    },
    /// The monitor does not end an operation.
    Stuck {
        /// Which.
        name: String,
        /// The operation.
        operation: &'static str,
    },
    /// The monitor counts no more, although nobody stopped it through this source.
    Stopped {
        /// Which.
        name: String,
    },
    /// The registers contain something that no monitor has.
    Wrong {
        /// Which.
        name: String,
        /// What.
        what: String,
    },
}

impl fmt::Display for HotnessFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HotnessFailure::DamonOff => {
                f.write_str("DAMON does not watch the far nodes; run 'aquifer tiering apply --damon on' as root")
            }
            HotnessFailure::Damon { path, source } => {
                write!(f, "{path} cannot be read: {source}; it needs root, and Linux 6.2 or newer")
            }
            HotnessFailure::DamonCommand(failure) => failure.fmt(f),
            HotnessFailure::InUse { name } => {
                write!(f, "the hotness monitor {name} is enabled already; end the program that uses it, or --take it")
            }
            HotnessFailure::NoMonitor { name, monitors } => {
                write!(f, "there is no hotness monitor {name}; the device has {monitors}, counted from 0")
            }
            HotnessFailure::Register { name, source } => {
                write!(
                    f,
                    "the hotness monitor {name} cannot be accessed: {source}; check that the device decodes memory"
                )
            }
            HotnessFailure::Setting { name, why } => {
                write!(f, "the hotness monitor {name} {why}; request that instead")
            }
            HotnessFailure::Stuck { name, operation } => {
                write!(f, "the hotness monitor {name} has not ended its {operation} within 1s; reset the device")
            }
            HotnessFailure::Stopped { name } => {
                write!(
                    f,
                    "the hotness monitor {name} was stopped; check for a reset of the device (dmesg), and try again"
                )
            }
            HotnessFailure::Wrong { name, what } => {
                write!(f, "{name} is not a hotness monitor: {what}; check which register block it names")
            }
        }
    }
}

impl Error for HotnessFailure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_one_line_with_a_remedy() {
        let name = || "0000:0d:00.0".to_owned();
        for failure in [
            HotnessFailure::DamonOff,
            HotnessFailure::Damon { path: "/sys/x".into(), source: io::Error::from_raw_os_error(2) },
            HotnessFailure::InUse { name: name() },
            HotnessFailure::NoMonitor { name: name(), monitors: 1 },
            HotnessFailure::Register { name: name(), source: RegisterFailure { offset: 8, why: "gone".into() } },
            HotnessFailure::Setting { name: name(), why: "counts by 4KiB".into() },
            HotnessFailure::Stuck { name: name(), operation: "reset" },
            HotnessFailure::Stopped { name: name() },
            HotnessFailure::Wrong { name: name(), what: "version 15".into() },
        ] {
            let text = failure.to_string();
            assert!(text.contains("; ") && !text.contains('\n'), "{text}");
        }
    }
}
