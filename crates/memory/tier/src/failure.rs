// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What can go wrong with one operation of a tier, and what the caller should do about it.
//!
//! Plain values without heap memory: they are made on the faulting thread, inside a signal handler.
//! Failures of opening a tier are another type, with paths in it: `open_failure.rs`.

use std::{fmt, io};

/// What the tier was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activity {
    /// Give space back.
    Discard,
    /// Wait until everything has reached the medium.
    Flush,
    /// Open or kick a queue.
    Queue,
    /// Tier to frame.
    Read,
    /// Frame to tier.
    Write,
}

impl Activity {
    /// The word for messages and for the rules of the failing tier.
    pub const fn name(self) -> &'static str {
        match self {
            Activity::Discard => "discard",
            Activity::Flush => "flush",
            Activity::Queue => "queue",
            Activity::Read => "read",
            Activity::Write => "write",
        }
    }
}

/// Why it did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The kernel said so.
    Errno(i32),
    /// The range ends beyond the tier's capacity.
    OutOfRange {
        /// What the tier can hold, in bytes.
        capacity_bytes: u64,
    },
    /// The table of slabs, which related processes share, names a place that does not exist: one of them has
    /// overwritten it.
    Overwritten,
    /// Only a part was transferred, and the rest could not be.
    Short {
        /// Bytes that were transferred.
        transferred: u64,
    },
    /// Offset, length or address are not multiples of a page, or the length is 0.
    Unaligned,
}

impl From<&io::Error> for Cause {
    fn from(error: &io::Error) -> Cause {
        Cause::Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// What the caller should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// A write failed and may fail again: keep the block in its frame, try a bounded number of times,
    /// then stop evicting it. Nothing is lost.
    Keep,
    /// The bytes cannot be read: poison the block, so that its next access is an error and never returns zeros.
    Poison,
    /// The tier is full: keep the block, and refuse further memory to the program or use another tier.
    Refuse,
    /// The kernel was temporarily short of something: ask again, a bounded number of times.
    Retry,
    /// The caller asked for something that no tier does. This is a bug of the caller.
    Stop,
}

/// One operation that a tier could not carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierFailure {
    /// Which tier, by the word that names its kind.
    pub tier: &'static str,
    /// What it was asked to do.
    pub activity: Activity,
    /// Where, in bytes; 0 for operations without an offset.
    pub offset: u64,
    /// Why it did not happen.
    pub cause: Cause,
}

impl TierFailure {
    /// The kernel's error number, where there was one.
    pub fn errno(&self) -> Option<i32> {
        match self.cause {
            Cause::Errno(errno) => Some(errno),
            _ => None,
        }
    }

    /// What the caller should do.
    pub fn disposition(&self) -> Disposition {
        let errno = match self.cause {
            Cause::OutOfRange { .. } | Cause::Unaligned => return Disposition::Stop,
            Cause::Overwritten | Cause::Short { .. } => libc::EIO,
            Cause::Errno(errno) => errno,
        };
        match (errno, self.activity) {
            (libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::ENOBUFS, _) => Disposition::Retry,
            (libc::ENOSPC | libc::EDQUOT | libc::EFBIG, _) => Disposition::Refuse,
            (_, Activity::Read) => Disposition::Poison,
            _ => Disposition::Keep,
        }
    }
}

impl fmt::Display for TierFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tier, activity, offset, cause } = self;
        write!(f, "{tier} tier: {} at {offset:#x} failed: ", activity.name())?;
        match cause {
            Cause::Errno(errno) => write!(f, "{}", io::Error::from_raw_os_error(*errno))?,
            Cause::OutOfRange { capacity_bytes } => write!(f, "the tier ends at {capacity_bytes:#x}")?,
            Cause::Overwritten => write!(f, "a related process has overwritten the table of slabs")?,
            Cause::Short { transferred } => write!(f, "only {transferred} bytes were transferred")?,
            Cause::Unaligned => write!(f, "not a whole number of pages")?,
        }
        write!(f, "; {}", self.remedy())
    }
}

impl std::error::Error for TierFailure {}

impl TierFailure {
    /// What an operator does about it, as the end of a sentence.
    pub fn remedy(&self) -> &'static str {
        if self.cause == Cause::Overwritten {
            return "find the process that writes to memory that it did not allocate";
        }
        match (self.disposition(), self.errno()) {
            (_, Some(libc::EMFILE | libc::ENFILE)) => "raise the limit of open files (ulimit -n)",
            (Disposition::Refuse, _) if self.tier == "compressed" => {
                "give it a larger size=, or a tier after it; its memory is part of --dram"
            }
            (Disposition::Refuse, _) if self.tier == "donor" => "let the donor lend more (its --size, its --quota)",
            (Disposition::Poison | Disposition::Keep, _) if self.tier == "donor" => {
                "check the donor and the network to it"
            }
            (Disposition::Refuse, Some(libc::EDQUOT)) => "raise the quota, or give the tier another directory",
            (Disposition::Refuse, Some(libc::EFBIG)) => "raise the file size limit (ulimit -f), or add a tier",
            (Disposition::Refuse, _) => "free space where the tier lives, or add a tier",
            (Disposition::Poison | Disposition::Keep, _) => "check the medium and the kernel log (dmesg)",
            (Disposition::Retry, _) => "the machine is temporarily short of memory; the operation is retried",
            (Disposition::Stop, _) => "this is a bug in Aquifer; please report it",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(activity: Activity, cause: Cause) -> TierFailure {
        TierFailure { tier: "flash", activity, offset: 0x2000, cause }
    }

    #[test]
    fn each_failure_says_what_to_do() {
        for (activity, cause, expected) in [
            (Activity::Read, Cause::Errno(libc::EIO), Disposition::Poison),
            (Activity::Read, Cause::Short { transferred: 4096 }, Disposition::Poison),
            (Activity::Read, Cause::Errno(libc::ENODEV), Disposition::Poison),
            (Activity::Read, Cause::Errno(libc::ENOMEM), Disposition::Retry),
            (Activity::Write, Cause::Errno(libc::EIO), Disposition::Keep),
            (Activity::Write, Cause::Errno(libc::ENOSPC), Disposition::Refuse),
            (Activity::Write, Cause::Errno(libc::EDQUOT), Disposition::Refuse),
            (Activity::Write, Cause::Errno(libc::EFBIG), Disposition::Refuse),
            (Activity::Write, Cause::Errno(libc::EAGAIN), Disposition::Retry),
            (Activity::Discard, Cause::Errno(libc::EIO), Disposition::Keep),
            (Activity::Write, Cause::Unaligned, Disposition::Stop),
            (Activity::Read, Cause::OutOfRange { capacity_bytes: 1 }, Disposition::Stop),
            (Activity::Read, Cause::Overwritten, Disposition::Poison),
            (Activity::Write, Cause::Overwritten, Disposition::Keep),
        ] {
            assert_eq!(failure(activity, cause).disposition(), expected, "{activity:?} {cause:?}");
        }
    }

    #[test]
    fn messages_name_cause_and_remedy_in_one_line() {
        let text = failure(Activity::Write, Cause::Errno(libc::ENOSPC)).to_string();
        assert_eq!(
            text,
            "flash tier: write at 0x2000 failed: No space left on device (os error 28); \
             free space where the tier lives, or add a tier"
        );
        assert!(!text.contains('\n'));
        let text = failure(Activity::Queue, Cause::Errno(libc::EMFILE)).to_string();
        assert!(
            text.ends_with("Too many open files (os error 24); raise the limit of open files (ulimit -n)"),
            "{text}"
        );
    }
}
