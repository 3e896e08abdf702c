// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The flags of commands that change volumes, donors and hosts.

use std::path::PathBuf;

use aquifer_fabric::{Bytes, DonorId, HostId, LABEL_BYTES_MAX, PoolId, Redundancy, VolumeName, WEIGHT_MAX, ZoneId};
use clap::{Args, ValueEnum};

use super::lifetime::seconds;

/// Maximum lifetime of a volume that expires, ten years: far more than anybody plans, and no clock overflows.
const EXPIRES_DAYS_MAX: u64 = 3650;

/// Whether a command carries its change out, or only shows it.
#[derive(Clone, Copy, Debug, Args)]
pub struct DryRun {
    /// Show what would change, and the steps that would follow, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// The slowest class of memory that is acceptable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Class {
    /// Loads and stores by CXL
    Cxl,
    /// One-sided reads by RDMA
    Rdma,
    /// Round trips over TCP
    Tcp,
}

/// What no two members of a span may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Spread {
    /// One donor or device
    Host,
    /// All of one chassis
    Enclosure,
    /// All of one rack
    Rack,
}

/// What the host of a volume sees of its spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ranges {
    /// One range with the sum of its spans: programs use donors in proportion to what they lend
    OneRange,
    /// One range for each span: each device is a node, and programs use donors evenly or by --weights
    RangePerSpan,
}

/// The arguments of `aquifer fabric create`: the specification of a volume.
#[derive(Clone, Debug, Args)]
pub struct Create {
    /// Its name
    #[arg(value_name = "VOLUME")]
    pub volume: VolumeName,
    /// The memory that its host can use, such as 8GiB
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    pub size: Bytes,
    /// The zone whose quota it counts against
    #[arg(long, value_name = "ZONE")]
    pub zone: ZoneId,
    /// The slowest class of memory that is acceptable
    #[arg(long, value_enum)]
    pub class: Class,
    /// The pool that it is taken from
    #[arg(long, value_name = "POOL", default_value = "main")]
    pub pool: PoolId,
    /// How many members may be lost: none, mirror=COPIES or parity=DATA+PARITY
    #[arg(long, value_name = "HOW", default_value = "none", value_parser = redundancy)]
    pub redundancy: Redundancy,
    /// What two members of a span never share
    #[arg(long, value_enum, default_value = "host")]
    pub spread: Spread,
    /// Stripe it over at least this many spans
    #[arg(long, value_name = "SPANS", default_value_t = 1)]
    pub width: u16,
    /// What its host sees of it [default: one-range; with --weights, range-per-span]
    #[arg(long, value_enum)]
    pub presentation: Option<Ranges>,
    /// How many slabs each span gets in turn, 1 to 16 each; a short list is repeated. Donors only, no redundancy
    #[arg(long, value_name = "WEIGHTS", value_delimiter = ',', value_parser = weight)]
    pub weights: Vec<u8>,
    /// Take it from this donor only; it never moves from there. Without redundancy
    #[arg(long, value_name = "DONOR")]
    pub donor: Option<DonorId>,
    /// Release it this long from now, in s, m, h or d, bound or not
    #[arg(long, value_name = "TIME", value_parser = lifetime)]
    pub expires: Option<u64>,
    /// A note about it, by which the manager decides nothing; repeat it for more, up to 16
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// Whether it is done.
    #[command(flatten)]
    pub dry_run: DryRun,
}

/// The arguments of `aquifer fabric bind`.
#[derive(Clone, Debug, Args)]
pub struct Bind {
    /// The volume
    #[arg(value_name = "VOLUME")]
    pub volume: VolumeName,
    /// The host
    #[arg(value_name = "HOST")]
    pub host: HostId,
    /// Whether it is done.
    #[command(flatten)]
    pub dry_run: DryRun,
}

/// The arguments of commands that need only a volume.
#[derive(Clone, Debug, Args)]
pub struct OfVolume {
    /// The volume
    #[arg(value_name = "VOLUME")]
    pub volume: VolumeName,
    /// Whether it is done.
    #[command(flatten)]
    pub dry_run: DryRun,
}

/// The arguments of `aquifer fabric release`.
#[derive(Clone, Debug, Args)]
pub struct Release {
    /// The volume
    #[arg(value_name = "VOLUME")]
    pub volume: VolumeName,
    /// Unbind it as well, if it is bound to a host
    #[arg(long)]
    pub unbind: bool,
    /// Whether it is done.
    #[command(flatten)]
    pub dry_run: DryRun,
}

/// The arguments of `aquifer fabric grow` and `shrink`.
#[derive(Clone, Debug, Args)]
pub struct Resize {
    /// The volume
    #[arg(value_name = "VOLUME")]
    pub volume: VolumeName,
    /// Its new size, such as 16GiB
    #[arg(value_name = "SIZE", value_parser = mebibytes)]
    pub size: Bytes,
    /// Whether it is done.
    #[command(flatten)]
    pub dry_run: DryRun,
}

/// The arguments of `aquifer fabric move`.
#[derive(Clone, Debug, Args)]
pub struct Move {
    /// The volume
    #[arg(value_name = "VOLUME")]
    pub volume: VolumeName,
    /// Move only what this donor has of it
    #[arg(long, value_name = "DONOR")]
    pub off: Option<DonorId>,
    /// Whether it is done.
    #[command(flatten)]
    pub dry_run: DryRun,
}

/// The arguments of `aquifer fabric drain`.
#[derive(Clone, Debug, Args)]
pub struct Drain {
    /// The donor
    #[arg(value_name = "DONOR")]
    pub donor: DonorId,
    /// Use it again
    #[arg(long)]
    pub undo: bool,
    /// Whether it is done.
    #[command(flatten)]
    pub dry_run: DryRun,
}

/// What can be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A donor that is gone for good
    Donor,
    /// A host that is powered off
    Host,
}

/// The arguments of `aquifer fabric declare-gone`.
#[derive(Clone, Debug, Args)]
pub struct DeclareGone {
    /// What it is
    #[arg(value_enum)]
    pub kind: Kind,
    /// Its name
    #[arg(value_name = "NAME")]
    pub name: HostId,
    /// Whether it is done.
    #[command(flatten)]
    pub dry_run: DryRun,
}

/// The arguments of `aquifer fabric apply`.
#[derive(Clone, Debug, Args)]
pub struct Apply {
    /// The declaration, in JSON; - is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Whether it is done.
    #[command(flatten)]
    pub dry_run: DryRun,
}

/// Parses a size, and rounds it up to whole MiB, which is what the interface can say: `16GB` is no multiple of them.
fn mebibytes(text: &str) -> Result<Bytes, String> {
    const MIB: u64 = 1 << 20;
    let size: Bytes = text.parse().map_err(|error: aquifer_fabric::NotBytes| error.to_string())?;
    match size.0.checked_next_multiple_of(MIB) {
        Some(rounded) if size.0 >= MIB => Ok(Bytes(rounded)),
        _ => Err(format!("{size} cannot be the size of a volume; write 1MiB or more, such as 16GiB")),
    }
}

/// Parses how long a volume is to exist, as seconds.
fn lifetime(text: &str) -> Result<u64, String> {
    seconds(text, EXPIRES_DAYS_MAX)
}

/// Parses the weight of a span.
fn weight(text: &str) -> Result<u8, String> {
    let within = text.parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight));
    within.ok_or_else(|| format!("it is not a weight; write numbers from 1 to {WEIGHT_MAX}, such as 3,1"))
}

/// Parses a label: the value begins after the first equals sign, and may be empty.
fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .filter(|(key, _)| !key.is_empty())
        .ok_or_else(|| "it has no key or no equals sign; write KEY=VALUE, such as owner=ada".to_owned())?;
    if key.len() > LABEL_BYTES_MAX || value.len() > LABEL_BYTES_MAX {
        return Err(format!("its key or its value is too long; write {LABEL_BYTES_MAX} bytes each at most"));
    }
    Ok((key.to_owned(), value.to_owned()))
}

/// Parses a redundancy as it is printed.
pub fn redundancy(text: &str) -> Result<Redundancy, String> {
    let number = |text: &str| text.parse::<u8>().ok();
    let parsed = match text.split_once('=') {
        None if text == "none" => Some(Redundancy::None),
        Some(("mirror", copies)) => number(copies).map(|copies| Redundancy::Mirror { copies }),
        Some(("parity", counts)) => counts
            .split_once('+')
            .and_then(|(data, parity)| Some(Redundancy::Parity { data: number(data)?, parity: number(parity)? })),
        _ => None,
    };
    parsed.filter(|redundancy| redundancy.is_possible()).ok_or_else(|| {
        "this redundancy is not possible; write none, mirror=2 to mirror=4, or parity=DATA+PARITY such as parity=4+2"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redundancy_is_read_as_it_is_printed() {
        for text in ["none", "mirror=2", "parity=4+2"] {
            assert_eq!(redundancy(text).expect(text).to_string(), text);
        }
        for text in ["", "mirror", "mirror=0", "mirror=x", "mirror=300", "parity=4", "parity=+", "parity=1+9", "none=1"]
        {
            assert!(redundancy(text).expect_err(text).contains("; write none"), "{text}");
        }
    }

    #[test]
    fn a_label_is_a_key_and_a_value() {
        for (text, key, value) in [("owner=ada", "owner", "ada"), ("a=b=c", "a", "b=c"), ("a=", "a", "")] {
            assert_eq!(label(text), Ok((key.to_owned(), value.to_owned())), "{text}");
        }
        for (text, remedy) in [
            ("", "; write KEY=VALUE"),
            ("owner", "; write KEY=VALUE"),
            ("=ada", "; write KEY=VALUE"),
            (&format!("a={}", "b".repeat(LABEL_BYTES_MAX + 1)), "; write 128 bytes each at most"),
        ] {
            assert!(label(text).expect_err(text).contains(remedy), "{text}");
        }
    }

    #[test]
    fn a_weight_is_a_number_within_bounds() {
        assert_eq!((weight("1"), weight("16")), (Ok(1), Ok(16)));
        for text in ["", "0", "17", "256", "-1", "1.5", "x"] {
            assert!(weight(text).expect_err(text).contains("; write numbers from 1 to 16"), "{text}");
        }
    }

    #[test]
    fn a_size_is_rounded_up_to_whole_mebibytes() {
        for (text, mebibytes_of) in [("2GiB", 2048), ("16G", 16 << 10), ("16GB", 15_259), ("1536KiB", 2), ("1MiB", 1)] {
            assert_eq!(mebibytes(text), Ok(Bytes(mebibytes_of << 20)), "{text}");
        }
        for (text, remedy) in [
            ("0MiB", "; write 1MiB or more"),
            ("3KiB", "; write 1MiB or more"),
            ("8", "; write 1MiB or more"),
            ("18446744073709551615B", "; write 1MiB or more"),
            ("8gb", "; write a number and a unit"),
            ("-1GiB", "; write a number and a unit"),
            ("99999999999PiB", "give less than 16EiB"),
        ] {
            assert!(mebibytes(text).expect_err(text).contains(remedy), "{text}");
        }
    }
}
