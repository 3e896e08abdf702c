// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads what a person typed after `--tier` into a checked description of a tier.
//!
//! Pure: nothing is opened here, so every message is about the words. `open.rs` does the rest.
//!
//! ```text
//! flash:PATH[,size=SIZE][,overwrite][,buffered][,plain-queue]
//! dram:[size=SIZE]
//! ```
//!
//! A path cannot contain a comma: what follows a comma is an option.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use aquifer_core::units::ByteSize;

/// A tier, described.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TierSpec {
    /// Local memory.
    Dram {
        /// Capacity; by default half of the memory available.
        size: Option<ByteSize>,
    },
    /// A file or block device.
    Flash(FlashSpec),
}

/// A flash tier, described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashSpec {
    /// A directory, a file or a block device.
    pub path: PathBuf,
    /// Capacity; by default what fits, at most four times the memory of the machine.
    pub size: Option<ByteSize>,
    /// `true`: data that is not ours may be lost.
    pub overwrite: bool,
    /// `true`: goes through the page cache also where direct I/O works. For comparison and for tests.
    pub buffered: bool,
    /// `true`: queues do without io_uring also where it works. For comparison and for tests.
    pub plain_queue: bool,
}

impl FlashSpec {
    /// A tier at `path` with defaults for everything else.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), size: None, overwrite: false, buffered: false, plain_queue: false }
    }
}

/// What is wrong with a description, and what to write instead: one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecFailure {
    spec: String,
    reason: String,
}

impl fmt::Display for SpecFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--tier {}: {}", self.spec.escape_debug(), self.reason)
    }
}

impl std::error::Error for SpecFailure {}

const KINDS: &str = "flash:PATH or dram:";

impl FromStr for TierSpec {
    type Err = SpecFailure;

    fn from_str(text: &str) -> Result<Self, SpecFailure> {
        parse(text).map_err(|reason| SpecFailure { spec: text.into(), reason })
    }
}

fn parse(text: &str) -> Result<TierSpec, String> {
    let Some((kind, rest)) = text.split_once(':') else {
        return Err(format!("no kind of tier is named; write {KINDS}"));
    };
    match kind {
        "flash" => flash(rest).map(TierSpec::Flash),
        "dram" => {
            let mut size = None;
            for option in options(rest) {
                match option {
                    ("size", Some(value)) => set_size(&mut size, value)?,
                    (name, _) => return Err(unknown(name, "size=SIZE")),
                }
            }
            Ok(TierSpec::Dram { size })
        }
        "donor" | "pool" | "dax" => Err(format!("the {kind} tier is not in this build yet; use {KINDS}")),
        _ => Err(format!("'{kind}' is not a kind of tier; write {KINDS}")),
    }
}

fn flash(rest: &str) -> Result<FlashSpec, String> {
    let (path, rest) = rest.split_once(',').unwrap_or((rest, ""));
    if path.is_empty() {
        return Err("a flash tier needs a path; write flash:PATH with a directory, a file or a block device".into());
    }
    let mut spec = FlashSpec::at(path);
    for option in options(rest) {
        match option {
            ("size", Some(value)) => set_size(&mut spec.size, value)?,
            ("overwrite", None) => spec.overwrite = true,
            ("buffered", None) => spec.buffered = true,
            ("plain-queue", None) => spec.plain_queue = true,
            (name, _) => return Err(unknown(name, "size=SIZE, overwrite, buffered or plain-queue")),
        }
    }
    Ok(spec)
}

/// `a,b=c` as pairs. Nothing at all is no option; nothing between commas is one without a name.
fn options(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    text.split(',').filter(move |_| !text.is_empty()).map(|option| match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    })
}

fn set_size(size: &mut Option<ByteSize>, value: &str) -> Result<(), String> {
    if size.is_some() {
        return Err("size= is given twice; give it once".into());
    }
    *size = Some(value.parse()?);
    Ok(())
}

fn unknown(name: &str, known: &str) -> String {
    format!("'{name}' is not an option of this tier, or lacks its value; write {known} (a path cannot contain a comma)")
}
