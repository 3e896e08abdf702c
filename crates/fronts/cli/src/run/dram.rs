// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The budget as typed: a size, a percentage, or `auto`; and its value relative to the available memory.
//!
//! Pure. `memory_limit.rs` determines how much memory the machine and the cgroup allow.

use std::fmt;
use std::str::FromStr;

use aquifer_core::units::{ByteSize, PAGE_BYTES};

use super::memory_limit::{Allowed, Limit};
use crate::exit::{ExitCode, Failure};

/// The pager's minimum: frames in flight, the standby list and blocks of 2 MiB need this much room.
pub const DRAM_MIN: ByteSize = ByteSize(16 << 20);
/// The part of the allowed memory that `auto` takes. The rest is for unmanaged memory: code, stacks, the page cache,
/// and the pager's own tables.
pub const AUTO_PERCENT: f64 = 80.0;

/// A budget as typed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dram {
    /// [`AUTO_PERCENT`] of the memory that the cgroup or the machine allows.
    Auto,
    /// A fixed size, in bytes.
    Bytes(ByteSize),
    /// A percentage of the memory that the cgroup or the machine allows.
    Percent(f64),
}

impl FromStr for Dram {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Dram::Auto);
        }
        let Some(number) = text.strip_suffix('%') else { return text.parse().map(Dram::Bytes) };
        let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let percent = number.trim().parse::<f64>().ok().filter(|percent| plain && *percent > 0.0 && *percent <= 100.0);
        percent.map(Dram::Percent).ok_or_else(|| format!("'{text}' is not a percentage from 1% to 100%; try 40%"))
    }
}

impl fmt::Display for Dram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dram::Auto => f.write_str("auto"),
            Dram::Bytes(bytes) => write!(f, "{bytes}"),
            Dram::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl Dram {
    /// Returns the budget in bytes, given the `allowed` memory; or why that budget is not possible.
    pub fn of(self, allowed: &Allowed) -> Result<ByteSize, Failure> {
        let total = allowed.bytes();
        let part = |percent: f64| ByteSize((total.0 as f64 * percent / 100.0) as u64 / PAGE_BYTES * PAGE_BYTES);
        let (dram, shown) = match self {
            Dram::Auto => (part(AUTO_PERCENT), format!("auto ({})", part(AUTO_PERCENT))),
            Dram::Bytes(bytes) => (bytes, bytes.to_string()),
            Dram::Percent(percent) => (part(percent), format!("{self} ({})", part(percent))),
        };
        if dram < DRAM_MIN {
            return Err(usage(
                format!("--dram {shown} is below the pager's minimum"),
                format!("give at least {DRAM_MIN}"),
            ));
        }
        if dram <= total {
            return Ok(dram);
        }
        Err(match &allowed.limit {
            Some(Limit { bytes, file }) => usage(
                format!("--dram {shown} is more than this cgroup may have ({bytes}, {})", file.display()),
                format!("give at most {bytes}, or --dram auto, or raise the cgroup's limit"),
            ),
            None => usage(
                format!("--dram {shown} is more than this machine's memory ({total})"),
                format!("give at most {total}, or run the program without aquifer"),
            ),
        })
    }
}

fn usage(cause: String, remedy: String) -> Failure {
    Failure::new(ExitCode::Usage, cause, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_percentages_and_auto_are_read() {
        for (text, dram) in [
            ("auto", Dram::Auto),
            ("4G", Dram::Bytes(ByteSize(4 << 30))),
            ("4GB", Dram::Bytes(ByteSize(4_000_000_000))),
            ("300M", Dram::Bytes(ByteSize(300 << 20))),
            ("40%", Dram::Percent(40.0)),
            ("12.5%", Dram::Percent(12.5)),
            ("100%", Dram::Percent(100.0)),
        ] {
            assert_eq!(text.parse(), Ok(dram), "{text}");
        }
        for text in ["%", "0%", "101%", "-1%", "+1%", "1e1%", "inf%", "nan%", "40 %", "Auto", "4G%"] {
            assert!(text.parse::<Dram>().is_err(), "{text}");
        }
    }

    #[test]
    fn percentages_are_of_what_is_allowed_in_whole_pages() {
        let machine = Allowed { machine: ByteSize(1 << 30), limit: None };
        assert_eq!(Dram::Percent(50.0).of(&machine), Ok(ByteSize(512 << 20)));
        assert_eq!(Dram::Auto.of(&machine), Ok(ByteSize((1 << 30) / 5 * 4 / 4096 * 4096)));
        let limit = Some(Limit { bytes: ByteSize(256 << 20), file: "/c/memory.max".into() });
        let limited = Allowed { machine: ByteSize(1 << 30), limit };
        assert_eq!(Dram::Percent(50.0).of(&limited), Ok(ByteSize(128 << 20)));
        assert_eq!(Dram::Bytes(ByteSize(256 << 20)).of(&limited), Ok(ByteSize(256 << 20)));
    }

    #[test]
    fn budgets_outside_the_machine_or_the_cgroup_are_refused_with_the_remedy() {
        let total = ByteSize(1 << 30);
        let machine = Allowed { machine: total, limit: None };
        assert_eq!(Dram::Bytes(DRAM_MIN).of(&machine), Ok(DRAM_MIN));
        assert_eq!(Dram::Bytes(total).of(&machine), Ok(total));
        for dram in [ByteSize(0), ByteSize(DRAM_MIN.0 - 1), ByteSize(total.0 + 1)] {
            assert_eq!(Dram::Bytes(dram).of(&machine).unwrap_err().code, ExitCode::Usage);
        }
        assert_eq!(Dram::Percent(1.0).of(&machine).unwrap_err().code, ExitCode::Usage);
        let limit = Some(Limit { bytes: ByteSize(512 << 20), file: "/sys/fs/cgroup/a/memory.max".into() });
        let failure = Dram::Bytes(ByteSize(600 << 20)).of(&Allowed { machine: total, limit }).unwrap_err();
        assert_eq!(
            failure.to_string(),
            "--dram 600MiB is more than this cgroup may have (512MiB, /sys/fs/cgroup/a/memory.max); \
             give at most 512MiB, or --dram auto, or raise the cgroup's limit"
        );
    }
}
