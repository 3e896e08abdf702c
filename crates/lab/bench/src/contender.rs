// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The ways of running a program that are compared.

use std::fmt;
use std::str::FromStr;

use crate::cache::{self, InCache};
use crate::hosts::HOSTS_MAX;
use crate::library::{self, InLibrary};

/// The medium of a swap area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SwapKind {
    /// A file on the disk that the flash tier uses too.
    Disk,
    /// A loop device over a file in tmpfs.
    Ram,
    /// A zram device, lz4; its own memory is outside the limit.
    Zram,
    /// The same, with its own memory inside the limit.
    ZramCounted,
}

/// One way of running a program.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Contender {
    /// No limit: the program with all the DRAM it wants.
    Dram,
    /// `aquifer run` over `--tier flash:`, inside the limit.
    AquiferFlash,
    /// As `AquiferFlash`, encrypted: shows the cost of encryption.
    AquiferFlashEncrypted,
    /// `aquifer run` over `--tier dram:`; the limit would charge the tier's memory too, so the budget is checked, not
    /// enforced.
    AquiferDram,
    /// `aquifer run` over `--tier compressed:`, inside the limit, in which the tier's memory counts.
    AquiferCompressed,
    /// `aquifer run` over a donor that the bench starts outside the limit, by TCP in plain text within this machine.
    AquiferDonor,
    /// As `AquiferDonor`, by TLS 1.3 with certificates on both sides.
    AquiferDonorTls,
    /// As `AquiferDonor`, over this many donors together, each on its own host behind a cable with a rate limit.
    AquiferDonors(u32),
    /// `aquifer run` over `--tier emulated:PROFILE`, checked like `AquiferDram`.
    AquiferEmulated(String),
    /// `aquifer run` over `--tier node:N`, the memory of one NUMA node, checked like `AquiferDram`.
    AquiferNode(u32),
    /// As `AquiferDonor`, over shared memory.
    AquiferShm,
    /// `aquifer cache` instead of Redis as the server of a workload.
    Cache(InCache),
    /// A workload that uses the library, in one of its ways. Its space's budget is the local memory.
    Library(InLibrary),
    /// Kernel swap.
    Swap(SwapKind),
    /// The arrays in a shared mapping of a file.
    MmapFile,
    /// No limit: the program with all of its memory on this NUMA node, placed by numactl(8).
    Numactl(u32),
    /// The arrays in a file that UMap pages.
    Umap,
    /// The best that the device can do: `fio` with the workload's mix of reads and writes.
    Fio,
    /// An Aquifer contender, run by another build (`--against`).
    OtherBuild(Box<Contender>),
}

/// The contenders that run when none is named.
pub const STANDARD: &str = "dram,aquifer-flash,aquifer-dram,aquifer-donor,aquifer-donor-tls,\
    aquifer-shm,swap-disk,swap-ram,swap-zram,mmap-file,umap,fio";

/// Prefixes of the names of contenders that run only when they are named.
const EMULATED: &str = "aquifer-emulated:";
const DONORS: &str = "aquifer-donors:";
const NODE: &str = "aquifer-node:";
const NUMACTL: &str = "numactl:";
const COMPRESSED: &str = "aquifer-compressed";
const FLASH_ENCRYPTED: &str = "aquifer-flash-encrypted";
const ZRAM_COUNTED: &str = "swap-zram-counted";
/// Suffix of the names of contenders that another build runs.
pub const OTHER_BUILD: &str = "@against";

impl Contender {
    /// The contender itself, regardless of the build that runs it.
    pub fn kind(&self) -> &Self {
        match self {
            Self::OtherBuild(kind) => kind,
            _ => self,
        }
    }

    /// True when another build of aquifer runs it.
    pub fn is_other_build(&self) -> bool {
        matches!(self, Self::OtherBuild(_))
    }

    pub fn is_ours(&self) -> bool {
        let is_local = matches!(
            self.kind(),
            Self::AquiferCompressed
                | Self::AquiferFlash
                | Self::AquiferFlashEncrypted
                | Self::AquiferDram
                | Self::AquiferEmulated(_)
                | Self::AquiferNode(_)
        );
        is_local || self.borrows()
    }

    /// True when it needs a donor.
    pub fn borrows(&self) -> bool {
        matches!(self.kind(), Self::AquiferDonor | Self::AquiferDonorTls | Self::AquiferDonors(_) | Self::AquiferShm)
    }

    /// True when the kernel enforces the limit. For the others, the limit would charge the memory of the tier itself.
    pub fn is_limited(&self) -> bool {
        let is_elsewhere = matches!(
            self.kind(),
            Self::AquiferCompressed
                | Self::AquiferFlash
                | Self::AquiferFlashEncrypted
                | Self::Swap(_)
                | Self::MmapFile
                | Self::Umap
        );
        is_elsewhere || self.borrows() || matches!(self, Self::Library(library) if library.is_limited())
    }

    /// The NUMA node that it takes.
    pub fn node(&self) -> Option<u32> {
        match self.kind() {
            Self::AquiferNode(node) | Self::Numactl(node) => Some(*node),
            _ => None,
        }
    }

    /// The tier in the form of `aquifer run --tier`. `place` is the file of a flash tier, or the addresses and security
    /// options of donors.
    pub fn tier(&self, place: &str, bytes: u64) -> Option<String> {
        match self.kind() {
            Self::AquiferFlash => Some(format!("flash:{place},size={bytes}")),
            Self::AquiferFlashEncrypted => Some(format!("flash:{place},size={bytes},encrypt=ephemeral")),
            _ if self.borrows() => Some(format!("donor:{place},size={bytes}")),
            Self::AquiferCompressed => Some(format!("compressed:size={bytes}")),
            Self::AquiferDram => Some(format!("dram:size={bytes}")),
            Self::AquiferEmulated(profile) => Some(format!("emulated:{profile}")),
            Self::AquiferNode(node) => Some(format!("node:{node},size={bytes}")),
            _ => None,
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Dram => "dram",
            Self::AquiferFlash => "aquifer-flash",
            Self::AquiferFlashEncrypted => FLASH_ENCRYPTED,
            Self::AquiferCompressed => COMPRESSED,
            Self::AquiferDonor => "aquifer-donor",
            Self::AquiferDonorTls => "aquifer-donor-tls",
            Self::AquiferDonors(count) => return f.pad(&format!("{DONORS}{count}")),
            Self::AquiferDram => "aquifer-dram",
            Self::AquiferShm => "aquifer-shm",
            Self::AquiferEmulated(profile) => return f.pad(&format!("{EMULATED}{profile}")),
            Self::AquiferNode(node) => return f.pad(&format!("{NODE}{node}")),
            Self::Cache(cache) => return cache.fmt(f),
            Self::Library(library) => return library.fmt(f),
            Self::Swap(SwapKind::Disk) => "swap-disk",
            Self::Swap(SwapKind::Ram) => "swap-ram",
            Self::Swap(SwapKind::Zram) => "swap-zram",
            Self::Swap(SwapKind::ZramCounted) => ZRAM_COUNTED,
            Self::MmapFile => "mmap-file",
            Self::Numactl(node) => return f.pad(&format!("{NUMACTL}{node}")),
            Self::Umap => "umap",
            Self::Fio => "fio",
            Self::OtherBuild(kind) => return f.pad(&format!("{kind}{OTHER_BUILD}")),
        };
        f.pad(name)
    }
}

impl FromStr for Contender {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "dram" => Self::Dram,
            "aquifer-flash" => Self::AquiferFlash,
            COMPRESSED => Self::AquiferCompressed,
            FLASH_ENCRYPTED => Self::AquiferFlashEncrypted,
            "aquifer-donor" => Self::AquiferDonor,
            "aquifer-donor-tls" => Self::AquiferDonorTls,
            "aquifer-dram" => Self::AquiferDram,
            "aquifer-shm" => Self::AquiferShm,
            "swap-disk" => Self::Swap(SwapKind::Disk),
            "swap-ram" => Self::Swap(SwapKind::Ram),
            "swap-zram" => Self::Swap(SwapKind::Zram),
            ZRAM_COUNTED => Self::Swap(SwapKind::ZramCounted),
            "mmap-file" => Self::MmapFile,
            "umap" => Self::Umap,
            "fio" => Self::Fio,
            _ => return parameterised(text).ok_or_else(|| {
                format!(
                    "'{text}' is not a contender; choose from {STANDARD},{COMPRESSED},{FLASH_ENCRYPTED},{ZRAM_COUNTED},{EMULATED}PROFILE,{DONORS}N (1 to \
                     {HOSTS_MAX}); {NODE}N and {NUMACTL}N take the memory of a NUMA node; workloads that use the library also have {}; ycsb-a and ycsb-c also have {}",
                    library::NAMES,
                    cache::NAMES
                )
            }),
        })
    }
}

/// A contender whose name has a parameter.
fn parameterised(text: &str) -> Option<Contender> {
    if let Ok(library) = text.parse() {
        return Some(Contender::Library(library));
    }
    if let Ok(cache) = text.parse() {
        return Some(Contender::Cache(cache));
    }
    if let Some(number) = text.strip_prefix(DONORS) {
        return (1..=HOSTS_MAX).find(|count| count.to_string() == number).map(Contender::AquiferDonors);
    }
    for (prefix, of_node) in [(NODE, Contender::AquiferNode as fn(u32) -> Contender), (NUMACTL, Contender::Numactl)] {
        if let Some(number) = text.strip_prefix(prefix) {
            // Written as the kernel does, so that names go there and back.
            return number.parse::<u32>().ok().filter(|node| node.to_string() == number).map(of_node);
        }
    }
    let profile = text.strip_prefix(EMULATED).filter(|profile| !profile.is_empty())?;
    Some(Contender::AquiferEmulated(profile.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back() {
        for name in STANDARD.split(',').chain([
            COMPRESSED,
            FLASH_ENCRYPTED,
            ZRAM_COUNTED,
            "aquifer-emulated:cmm-h",
            "aquifer-donors:1",
            "aquifer-donors:8",
            "aquifer-node:0",
            "aquifer-node:12",
            "numactl:1",
        ]) {
            assert_eq!(name.parse::<Contender>().unwrap().to_string(), name);
        }
        for wrong in ["aquifer-emulated:", "swap", "aquifer-donors", "aquifer-donors:0", "aquifer-donors:9"] {
            let refused = wrong.parse::<Contender>().unwrap_err();
            assert!(refused.contains("aquifer-emulated:PROFILE,aquifer-donors:N (1 to 8); "), "{refused}");
        }
        for odd in [
            "aquifer-node:",
            "aquifer-node:01",
            "aquifer-node:-1",
            "numactl:all",
            "aquifer-donors:01",
            "aquifer-donors:+1",
            "aquifer-donors:",
        ] {
            assert!(odd.parse::<Contender>().is_err(), "{odd}");
        }
    }

    #[test]
    fn tiers_are_written_as_the_command_line_wants_them() {
        assert_eq!(Contender::AquiferFlash.tier("/d/f", 5).unwrap(), "flash:/d/f,size=5");
        let encrypted = Contender::AquiferFlashEncrypted.tier("/d/f", 5).unwrap();
        assert_eq!(encrypted, "flash:/d/f,size=5,encrypt=ephemeral");
        assert_eq!(Contender::AquiferDram.tier("/d/f", 5).unwrap(), "dram:size=5");
        let donors = "10.0.0.2:7+10.0.0.3:8,security=plain";
        let tier = Contender::AquiferDonors(2).tier(donors, 5).unwrap();
        assert_eq!(tier, "donor:10.0.0.2:7+10.0.0.3:8,security=plain,size=5");
        let tier = Contender::AquiferDonorTls.tier("10.0.0.2:7,cert=/c,key=/k,ca=/a", 5).unwrap();
        assert_eq!(tier, "donor:10.0.0.2:7,cert=/c,key=/k,ca=/a,size=5");
        assert_eq!(Contender::AquiferShm.tier("unix:/d/s", 5).unwrap(), "donor:unix:/d/s,size=5");
        assert_eq!(Contender::AquiferNode(2).tier("/d/f", 5).unwrap(), "node:2,size=5");
        assert_eq!(Contender::Dram.tier("/d/f", 5), None);
        assert_eq!(Contender::Numactl(2).tier("/d/f", 5), None);
    }

    #[test]
    fn what_is_on_a_node_has_no_limit_of_the_kernel_which_would_charge_the_node() {
        let (ours, placed) = (Contender::AquiferNode(1), Contender::Numactl(1));
        assert_eq!((ours.is_ours(), placed.is_ours()), (true, false));
        assert_eq!((ours.is_limited(), placed.is_limited()), (false, false));
        assert_eq!((ours.node(), placed.node(), Contender::AquiferDram.node()), (Some(1), Some(1), None));
    }

    #[test]
    fn another_build_is_the_same_but_for_its_name() {
        let other = Contender::OtherBuild(Box::new(Contender::AquiferShm));
        assert_eq!(other.to_string(), "aquifer-shm@against");
        assert!(other.is_ours() && other.borrows() && other.is_limited() && other.is_other_build());
        assert_eq!(other.tier("unix:/d/s", 5), Contender::AquiferShm.tier("unix:/d/s", 5));
        assert!("aquifer-shm@against".parse::<Contender>().is_err(), "only --against makes one");
    }
}
