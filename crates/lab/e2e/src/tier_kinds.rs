// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The kinds of tier that programs are tested over, and the donors that some of them need.

use std::path::PathBuf;

use crate::build::scratch;
use crate::donor::Donor;

/// A kind of tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierKind {
    /// A small tier in memory, and a tier on disk for the rest.
    Chain,
    /// A small tier in compressed memory, which counts in the budget, and a tier on disk for the rest.
    Compressed,
    /// A donor over TCP, in plain text.
    Donor,
    /// In memory.
    Dram,
    /// On disk.
    Flash,
    /// Two donors with one copy each.
    Mirror,
    /// Three donors, any two of which suffice to restore all data.
    Parity,
    /// A donor over TCP with TLS.
    Tls,
}

/// A tier that exists until this is dropped.
#[derive(Debug)]
pub struct Tiers {
    /// The arguments for `aquifer run`.
    pub words: Vec<String>,
    _donors: Vec<Donor>,
    directory: Option<PathBuf>,
}

impl Drop for Tiers {
    fn drop(&mut self) {
        let _ = self.directory.take().map(std::fs::remove_dir_all);
    }
}

impl TierKind {
    /// All kinds.
    pub const ALL: [TierKind; 8] = [
        TierKind::Chain,
        TierKind::Compressed,
        TierKind::Donor,
        TierKind::Dram,
        TierKind::Flash,
        TierKind::Mirror,
        TierKind::Parity,
        TierKind::Tls,
    ];

    /// The name on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TierKind::Chain => "chain",
            TierKind::Compressed => "compressed",
            TierKind::Donor => "donor",
            TierKind::Dram => "dram",
            TierKind::Flash => "flash",
            TierKind::Mirror => "mirror",
            TierKind::Parity => "parity",
            TierKind::Tls => "tls",
        }
    }

    /// Whether a program needs access to files of the user who runs the tests: data on disk or keys.
    #[must_use]
    pub fn has_files(self) -> bool {
        match self {
            TierKind::Chain | TierKind::Compressed | TierKind::Flash | TierKind::Tls => true,
            TierKind::Donor | TierKind::Dram | TierKind::Mirror | TierKind::Parity => false,
        }
    }

    /// Parses a name.
    pub fn parse(name: &str) -> Result<TierKind, String> {
        let known = TierKind::ALL.into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| format!("'{name}' is not a kind of tier"))
    }

    /// Creates a tier with capacity for `mib` MiB of a program's memory. `Err` says why it is not available here.
    pub fn make(self, test: &str, mib: u64) -> Result<Tiers, String> {
        let flash = || {
            let directory = scratch(&format!("tier-{test}"));
            (format!("flash:{}", directory.display()), Some(directory))
        };
        let lends = |mib: u64| Donor::start(&["--size", &format!("{mib}MiB")]);
        let array = |count: usize, options: &str| {
            let donors: Vec<Donor> = (0..count).map(|_| lends(mib)).collect();
            let addresses: Vec<&str> = donors.iter().map(|donor| donor.address.as_str()).collect();
            (format!("donor:{},security=plain,{options}", addresses.join("+")), donors)
        };
        let (tiers, donors, directory) = match self {
            TierKind::Chain => {
                let (flash, directory) = flash();
                (vec!["dram:size=24MiB".to_owned(), flash], Vec::new(), directory)
            }
            TierKind::Compressed => {
                let (flash, directory) = flash();
                (vec!["compressed:size=16MiB".to_owned(), flash], Vec::new(), directory)
            }
            TierKind::Donor => {
                let donor = lends(mib);
                (vec![donor.tier("")], vec![donor], None)
            }
            TierKind::Dram => (vec!["dram:".to_owned()], Vec::new(), None),
            TierKind::Flash => {
                let (flash, directory) = flash();
                (vec![flash], Vec::new(), directory)
            }
            TierKind::Mirror => {
                let (tier, donors) = array(2, "mirror=2");
                (vec![tier], donors, None)
            }
            TierKind::Parity => {
                let (tier, donors) = array(3, "parity=2+1");
                (vec![tier], donors, None)
            }
            TierKind::Tls => {
                let donor = Donor::start_secure(test, &["--size", &format!("{mib}MiB")])?;
                (vec![donor.tier("")], vec![donor], None)
            }
        };
        let words = tiers.into_iter().flat_map(|tier| ["--tier".to_owned(), tier]).collect();
        Ok(Tiers { words, _donors: donors, directory })
    }
}
