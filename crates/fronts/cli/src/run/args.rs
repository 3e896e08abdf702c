// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The flags of `aquifer run`, as typed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use aquifer_config::{BlockSize, Budget, Delivery, Exchange, PolicyName, UnknownWord};
use aquifer_core::stripes::SHARDS_MAX;
use aquifer_core::units::ByteSize;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::dram::Dram;
use super::numa::Spread;
use crate::exit;

/// Run a program on less DRAM than it needs
///
/// The program's heap and anonymous mappings are kept within --dram; blocks that do not fit go to the
/// tier and come back when they are touched. Below the budget nothing is changed. The program must be
/// dynamically linked for this machine. Its standard streams, its terminal and its exit status are its own.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = after_help())]
pub struct RunArgs {
    #[command(flatten)]
    pub how: HowArgs,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

// The flags that `aquifer run` and `aquifer vm` share: how the memory of a program is managed. No doc comment, since
// clap would show it as the help of both.
#[derive(Clone, Debug, clap::Args)]
pub struct HowArgs {
    /// Local DRAM that managed memory may take: 4GiB, 40% or auto
    ///
    /// A percentage is relative to the memory that the cgroup allows or, without a limit, that the machine has; auto is
    /// 80%. More than all of it is refused. 4GiB, 4Gi and 4G are the same (powers of two); 4GB is 4,000,000,000 bytes.
    #[arg(long, value_name = "SIZE")]
    pub dram: Dram,

    /// Whether --dram is shared by the program and all processes that it starts (tree), or applies to each process;
    /// with --record it always applies to each process
    #[arg(long, value_name = "WHOSE", default_value = "tree", value_parser = words(Budget::ALL, Budget::word))]
    pub budget: Budget,

    /// Where cold blocks go [default: an unlinked file in the state directory]
    ///
    /// Up to four times, for a chain of tiers: the fastest first.
    #[arg(long, value_name = "SPEC")]
    pub tier: Vec<String>,

    /// The NUMA nodes to spread pages over: shares, such as dram:3,cxl:1 or node0:2,node1:1, or auto
    ///
    /// dram is every node with CPUs, cxl every node with only memory. One group binds the program to its nodes. Equal
    /// shares for each node work on every kernel. Unequal shares need Linux 6.9 and use the weights of the whole
    /// machine: root sets these if nobody has set them; otherwise pages are interleaved evenly, with a message. Without
    /// shares, the machine's weights are used as they are. auto gives each node a share by its bandwidth, which is
    /// measured once, in less than a second for each node, and kept in the state directory.
    #[arg(long, hide_short_help = true, value_name = "SHARES|auto")]
    pub numa: Option<Spread>,

    /// Which policy chooses the blocks to evict
    #[arg(long, value_name = "NAME", default_value = "s3fifo", value_parser = words(PolicyName::ALL, PolicyName::word))]
    pub policy: PolicyName,

    /// How many bytes move as one: a power of two from 4KiB to 2MiB, or auto to learn it per range
    #[arg(long, value_name = "SIZE|auto", default_value = "auto", value_parser = block)]
    pub block: BlockSize,

    /// Who resolves a fault: the faulting thread (signal), a thread of the pager (listener), or whichever
    /// fits each mapping
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = words(Delivery::ALL, Delivery::word))]
    pub delivery: Delivery,

    /// How pages move to and from the program's address: without a copy (move), by copying (copy), or whichever
    /// the kernel supports
    #[arg(long, hide_short_help = true, value_name = "HOW", default_value = "auto", value_parser = words(Exchange::ALL, Exchange::word))]
    pub exchange: Exchange,

    /// Whether blocks are fetched ahead of their faults
    #[arg(long, value_name = "on|off", default_value = "on", action = clap::ArgAction::Set, value_parser = on_or_off())]
    pub prefetch: bool,

    /// How many shards the memory is divided into, so that faults of many threads do not wait for one lock: 1 to 16;
    /// auto is one for every four CPUs, as long as each has 1GiB of the budget
    #[arg(long, hide_short_help = true, value_name = "N|auto", default_value = "auto", value_parser = shards)]
    pub shards: Shards,

    /// Refuse instead of warning when something would escape the budget
    ///
    /// The program is ended, or not started, and the exit status says so. A program that it executes and that cannot
    /// be managed is not executed (EACCES).
    #[arg(long)]
    pub strict: bool,

    /// Write the statistics to this file when the program has exited, however it did so; if that fails, a message says
    /// so, and the exit status is still the program's
    #[arg(long, value_name = "FILE")]
    pub stats_json: Option<PathBuf>,

    /// Record every engine call of the pager in this file, for replay in the simulator
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Time how long threads hold the lock of the pager's engine and wait for it, for the statistics
    #[arg(long, hide_short_help = true)]
    pub time_lock: bool,

    /// Directory on disk for the default tier; it must exist
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Say more on standard error; twice for even more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// Give no advice on standard error, such as which --dram would help; problems are still reported
    #[arg(short, long, hide_short_help = true, conflicts_with = "verbose")]
    pub quiet: bool,
}

/// Returns the end of `aquifer run --help`.
fn after_help() -> String {
    const FLASH_AND_DRAM: &str = "\
Sizes:
  K, M, G, T and Ki, Mi, Gi, Ti and KiB, MiB, GiB, TiB are powers of two; kB, MB, GB, TB of ten.

Tiers:
  flash:PATH[,OPTION]...  a directory, a file or a block device; if PATH does not exist, a file is
                          created there and unlinked at once, but not in / or /dev
      size=SIZE           capacity [default: what fits, at most four times the machine's memory]
      overwrite           take a file or device that holds other data, which is lost
      buffered            go through the page cache even where direct I/O works, to compare
      plain-queue         do without io_uring even where it works, to compare
      encrypt=ephemeral   seal what is stored, with keys that exist only for this run
  dram:[size=SIZE]        local memory, to measure the software alone [default: half of what is
                          available]
  node:N[,size=SIZE]      memory of NUMA node N, such as memory behind CXL [default: nine tenths of
                          what it has available]
  dax:PATH[,size=SIZE]    a memory device, such as /dev/dax0.0, or a file on a file system with
                          -o dax; what it holds is lost [default: all of it]
  compressed:[size=SIZE][,codec=lz4|zstd]
                          local memory, compressed 4KiB at a time; the next tier, such as a disk or
                          a donor, gets what does not compress or is cold
      size=SIZE           memory that it may take, which counts in --dram [default: half of what is
                          available]
      codec=lz4           fast [default]
      codec=zstd          smaller and slower
  donor:HOST:PORT,OPTION[,OPTION]...
                          memory of another machine, where 'aquifer donor' lends it: over TLS with
                          cert, key and ca, or in plain text
      cert=FILE           the borrower's certificate, then the intermediate ones up to its authority
      key=FILE            its private key
      ca=FILE             the authorities whose donors are trusted
      crl=FILE            their lists of revoked certificates: a donor on one of them is refused
                          [default: none are read]
      name=NAME           the name that the donor's certificate must have [default: HOST]
      security=plain      without TLS: anyone on the path can read and change the memory
      encrypt=ephemeral   as for flash: the donor cannot read the memory either
      size=SIZE           capacity [default: what the donor lends to one borrower]
  donor:HOST:PORT[*WEIGHT]+HOST:PORT[*WEIGHT]...,OPTION[,OPTION]...
                          memory of several machines; the options are those of one, and
      mirror=N            N of them hold each byte; losing one of them loses no memory
      parity=K+M          each page is cut into K parts (2, 4 or 8), and M parity parts are
                          added; any M of the K+M donors can be lost
                          [default: one donor holds each byte]
  donor:unix:PATH[,size=SIZE]
                          memory that 'aquifer donor --listen unix:PATH' shares on this machine
  donor:rdma:HOST:PORT[,device=NAME],OPTION[,OPTION]...
                          as donor:HOST:PORT, and the bytes come by RDMA
      device=NAME         the RDMA device [default: the one whose address reaches the donor]
  pool:VOLUME[,agent=SOCKET][,size=SIZE][,encrypt=ephemeral]
                          a volume of the pool, by way of this host's 'aquifer agent'
  emulated:PROFILE[,size=SIZE]
                          local memory that answers as slowly as a device does; PROFILE is the path
                          of a file, or one of those that aquifer has built in:";
    const DEFAULT_AND_EXAMPLES: &str = "\
Several tiers, at most four, are a chain: memory goes to the first that has room; what is fetched
  often moves to faster ones, and what is seldom fetched to slower ones, 2MiB at a time.

Without --tier: an unlinked file in the state directory. That is $XDG_STATE_HOME/aquifer or
  ~/.local/state/aquifer, and /var/lib/aquifer for root; --state-dir names another.

Examples:
  aquifer run --dram 4GiB -- ./program --its-own-flags
  aquifer run --dram 300MiB --tier flash:/mnt/nvme,size=8GiB --stats-json stats.json -- ./stream
  aquifer run --dram 1GiB --tier emulated:cmm-h,size=4GiB -- ./program
  aquifer run --dram 4GiB --tier compressed:size=2GiB --tier flash:/nvme -- ./program
  aquifer run --dram 1GiB --tier donor:10.0.0.2:7411,security=plain --tier flash:/nvme -- ./program
  aquifer run --dram 8GiB --numa dram:3,cxl:1 --tier flash:/nvme -- ./program
  aquifer run --dram 1GiB --tier node:1 --tier flash:/nvme -- ./program
  aquifer run --dram 1GiB --policy lru --block 128KiB --prefetch off -- python3 script.py

Environment:
  AQUIFER_PRELOAD   the preload library, when it is not installed with aquifer";
    let profiles: String =
        aquifer_tiers::profile::names().map(|name| format!("\n                            {name}")).collect();
    format!(
        "{FLASH_AND_DRAM}{profiles}\n  {DEFAULT_AND_EXAMPLES}\n\n{}\n\
        Otherwise the program's own, and 128 + n when signal n ended it.",
        exit::section()
    )
}

/// Returns a parser for a setting whose value is one of a list of words.
pub fn words<T>(choices: &'static [T], word: fn(T) -> &'static str) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = UnknownWord> + Copy + Send + Sync + 'static,
{
    PossibleValuesParser::new(choices.iter().map(move |choice| word(*choice))).try_map(|word| word.parse::<T>())
}

/// Returns a parser for a setting that is on or off.
pub fn on_or_off() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|word| word == "on")
}

/// How many shards to make; `None` leaves it to the pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards(pub Option<u32>);

fn shards(text: &str) -> Result<Shards, String> {
    if text == "auto" {
        return Ok(Shards(None));
    }
    match text.parse() {
        Ok(count) if (1..=SHARDS_MAX as u32).contains(&count) => Ok(Shards(Some(count))),
        _ => Err(format!("{text} is not a number of shards; choose one from 1 to {SHARDS_MAX}, or auto")),
    }
}

fn block(text: &str) -> Result<BlockSize, String> {
    if text == "auto" {
        return Ok(BlockSize::Auto);
    }
    let ByteSize(bytes) = text.parse()?;
    BlockSize::of_bytes(bytes)
        .ok_or_else(|| format!("{text} cannot be a block; choose a power of two from 4KiB to 2MiB, or auto"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_a_small_number_or_auto() {
        assert_eq!(shards("auto"), Ok(Shards(None)));
        assert_eq!(shards("16"), Ok(Shards(Some(16))));
        for text in ["0", "17", "-1", "four", ""] {
            assert!(shards(text).unwrap_err().contains("from 1 to 16"), "{text}");
        }
    }

    #[test]
    fn blocks_are_powers_of_two_or_auto() {
        assert_eq!(block("auto"), Ok(BlockSize::Auto));
        assert_eq!(block("128KiB"), Ok(BlockSize::Bytes(131_072)));
        for text in ["1KiB", "4MiB", "100KiB", "0", "", "big"] {
            assert!(block(text).is_err(), "{text}");
        }
    }
}
