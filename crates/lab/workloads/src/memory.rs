// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bytes of a workload, in DRAM, in a space, or in a file.

use std::fs::File;
use std::io::Write;

use aquifer::{Mapping, Pattern, Space};
use aquifer_sys::mapped_file::MappedFile;
use rustix::fs::{Advice, fadvise};

use crate::args::{Args, Way};
use crate::failure::Failure;

/// Where the bytes are.
pub enum Memory {
    /// All of them in DRAM.
    Dram(Vec<u64>),
    /// In a space with a budget.
    Far {
        /// The space.
        space: Space,
        /// The bytes.
        mapping: Mapping,
    },
    /// A file, mapped for scattered reads: the kernel's page cache is the local memory.
    File(MappedFile),
}

/// Number of items that are written to a file together.
const WRITTEN_TOGETHER: usize = 256;

impl Memory {
    /// This many words of zeros, in DRAM or in a space, as the arguments say. `ordinary_bytes` is what the workload
    /// takes in DRAM in any case, and is subtracted from the budget.
    pub fn open(args: &Args, words: usize, ordinary_bytes: u64) -> Result<Self, Failure> {
        if args.way == Way::Dram {
            return Ok(Self::Dram(vec![0; words]));
        }
        let missing = |flag: &str| Failure(format!("--way {} needs {flag}", args.way.name()));
        let dram_bytes = args.dram.ok_or_else(|| missing("--dram SIZE"))?.0;
        let tier = args.tier.as_deref().ok_or_else(|| missing("--tier SPEC"))?;
        let budget = dram_bytes.saturating_sub(ordinary_bytes);
        let builder = Space::builder().dram(budget.to_string()).tier(tier);
        let builder = if args.without_system_calls { builder.without_system_calls() } else { builder };
        let space = builder.open().map_err(|error| {
            Failure::of(&format!("a space with {budget} of {dram_bytes} bytes, beside ordinary memory"), error)
        })?;
        let mapping = space.map(words * 8)?;
        mapping.pattern(.., Pattern::Random)?;
        Ok(Self::Far { space, mapping })
    }

    /// Items of this many words, each filled by its number. Otherwise as [`open`](Self::open).
    pub fn filled(
        args: &Args,
        count: u32,
        item_words: usize,
        ordinary_bytes: u64,
        fill: impl Fn(u32, &mut [u64]),
    ) -> Result<Self, Failure> {
        if let Some(path) = &args.file {
            let written = write_items(path, count, item_words, fill);
            let failed = |error| Failure::of(&format!("the file {} cannot be written", path.display()), error);
            return written.map(Self::File).map_err(failed);
        }
        let mut memory = Self::open(args, count as usize * item_words, ordinary_bytes)?;
        let items = memory.words_mut()?.chunks_exact_mut(item_words);
        (0..).zip(items).for_each(|(number, words)| fill(number, words));
        Ok(memory)
    }

    /// All words, to be written.
    pub fn words_mut(&mut self) -> Result<&mut [u64], Failure> {
        match self {
            Self::Dram(words) => Ok(words),
            Self::Far { mapping, .. } => Ok(mapping.view_mut(..)?),
            Self::File(_) => Err(no_words()),
        }
    }

    /// All words, to be read by loads.
    pub fn words(&self) -> Result<&[u64], Failure> {
        match self {
            Self::Dram(words) => Ok(words),
            Self::Far { mapping, .. } => Ok(mapping.view(..)?),
            Self::File(_) => Err(no_words()),
        }
    }

    /// The space and its mapping.
    pub fn far(&self) -> Result<(&Space, &Mapping), Failure> {
        match self {
            Self::Dram(_) | Self::File(_) => {
                Err(Failure("memory in DRAM or in a file has no hints; use --way dram".to_owned()))
            }
            Self::Far { space, mapping } => Ok((space, mapping)),
        }
    }

    /// Bytes that were fetched so far.
    pub fn fetched_bytes(&self) -> u64 {
        match self {
            Self::Dram(_) | Self::File(_) => 0,
            Self::Far { space, .. } => space.statistics().fetched_bytes,
        }
    }
}

fn no_words() -> Failure {
    Failure("the items of a file are copied, not loaded; use kv, lookup or gather".to_owned())
}

/// Writes the items to a new file, removes it from the page cache, and maps it.
fn write_items(
    path: &std::path::Path,
    count: u32,
    item_words: usize,
    fill: impl Fn(u32, &mut [u64]),
) -> std::io::Result<MappedFile> {
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    let (mut words, mut bytes) = (vec![0; item_words], Vec::new());
    for number in 0..count {
        fill(number, &mut words);
        words.iter().for_each(|word| bytes.extend_from_slice(&word.to_ne_bytes()));
        if bytes.len() >= WRITTEN_TOGETHER * item_words * 8 || number + 1 == count {
            file.write_all(&bytes)?;
            bytes.clear();
        }
    }
    file.sync_data()?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let len = count as usize * item_words * 8;
    let mapped = MappedFile::new(&file, len).map_err(|errno| std::io::Error::from_raw_os_error(errno.0))?;
    mapped.expect_scattered_reads().map_err(|errno| std::io::Error::from_raw_os_error(errno.0))?;
    Ok(mapped)
}
