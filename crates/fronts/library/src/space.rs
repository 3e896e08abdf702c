// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A space: its builder opens it, mappings divide it, and it closes when no mapping, pin or clone is left.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aquifer_pager::memory_space::{MemorySpace, SpaceFailure};
use aquifer_sys::uffd;
use aquifer_tiers::Files;

use crate::fetches::Fetches;
use crate::named::NamedFile;
use crate::{Builder, CloseError, Error, Histogram, Mapping, NamedError, Statistics};

/// How long `close` waits for the thread that drives fetches, which uses the space for some milliseconds at a time, and
/// may do so once more after the last future was dropped.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(1);
const CLOSE_WAIT_ONCE: Duration = Duration::from_millis(1);

/// A budget of DRAM, the tiers that store what does not fit, and the mappings of both.
///
/// Clones are handles of the same space. Spaces of one process share neither budget nor lock, and fail independently.
///
/// ```
/// # if aquifer::probe().is_err() { return Ok(()) }
/// use aquifer::{CloseError, Space};
///
/// let space = Space::builder().dram("16MiB").tier("dram:size=16MiB").open()?;
/// let mut mapping = space.map(1 << 20)?;
/// mapping.write(10, b"far")?;
///
/// // A space with mappings stays open for them.
/// let handle = space.clone();
/// assert_eq!(handle.close(), Err(CloseError::InUse));
/// mapping.unmap()?;
/// space.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Space {
    pub(crate) shared: Arc<Shared>,
}

/// What the handles, the mappings and the pins of a space share.
pub(crate) struct Shared {
    pub(crate) memory: MemorySpace,
    pub(crate) fetches: Arc<Fetches>,
    /// Where the files of named mappings are added, and the directory that they are in.
    pub(crate) files: Arc<Files>,
    pub(crate) directory: Option<PathBuf>,
}

impl Space {
    /// Returns the settings of a space, of which at least a budget and a tier must be given.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn of(memory: MemorySpace, files: Arc<Files>, directory: Option<PathBuf>) -> Self {
        Self { shared: Arc::new(Shared { memory, fetches: Arc::default(), files, directory }) }
    }

    /// Maps `bytes` bytes of zeros, 1 byte to 1 TiB. They take address space in steps of 2 MiB, and DRAM and room in
    /// the tier only when they are written to.
    pub fn map(&self, bytes: usize) -> Result<Mapping, Error> {
        Mapping::of(&self.shared, bytes).map_err(|failure| match failure {
            SpaceFailure::OutOfRange => Error::MappingSize { bytes },
            other => other.into(),
        })
    }

    /// Opens the [named mapping](crate::named) `name` of `bytes` bytes. If there is none, creates one of zeros.
    ///
    /// # Errors
    /// [`NamedError::OtherSize`] if it exists with another size; [`NamedError::AlreadyOpen`], [`NamedError::BadName`],
    /// [`NamedError::FullDisk`], and everything else that can be wrong with its file.
    pub fn map_named(&self, name: &str, bytes: usize) -> Result<Mapping, NamedError> {
        self.named(name, Some(bytes))
    }

    /// Opens the [named mapping](crate::named) `name`, with the size that it has.
    ///
    /// # Errors
    /// [`NamedError::NotFound`]; otherwise as for [`map_named`](Self::map_named).
    pub fn open_named(&self, name: &str) -> Result<Mapping, NamedError> {
        self.named(name, None)
    }

    fn named(&self, name: &str, bytes: Option<usize>) -> Result<Mapping, NamedError> {
        let Shared { memory, files, directory, .. } = &*self.shared;
        memory.check().map_err(Error::from)?;
        let file = NamedFile::open(directory.as_deref(), files, name, bytes)?;
        Ok(Mapping::of_named(&self.shared, file).map_err(Error::from)?)
    }

    /// Returns what the space has counted so far.
    pub fn statistics(&self) -> Statistics {
        Statistics::of(self.shared.memory.statistics())
    }

    /// Returns how much memory is how hot. Costs the same for any size.
    pub fn histogram(&self) -> Result<Histogram, Error> {
        Ok(Histogram::of_pages(&self.shared.memory.histogram()?))
    }

    /// Returns the maximum number of bytes that one [`prefetch`](Mapping::prefetch) or [`fetch`](Mapping::fetch) can
    /// ask for: a fixed part of the budget, so that arriving blocks do not evict blocks that have just arrived.
    pub fn prefetch_bytes_max(&self) -> usize {
        self.shared.memory.wanted_bytes_max()
    }

    /// Returns the maximum number of bytes that may be [pinned](Mapping::pin) at a time: half of the budget. A pin
    /// counts with all the blocks that it keeps resident, each with the largest size that a block can have.
    pub fn pin_bytes_max(&self) -> usize {
        self.shared.memory.pinned_bytes_max()
    }

    /// Returns whether system calls may use memory of the space that is not resident. It depends on what this process
    /// may do (see userfaultfd(2), `/dev/userfaultfd` and `vm.unprivileged_userfaultfd`), and is false for a space
    /// opened [without](crate::Builder::without_system_calls).
    pub fn serves_system_calls(&self) -> bool {
        self.shared.memory.serves_system_calls()
    }

    /// Closes the space: ends its threads, and gives back its memory, its descriptors and its room in the tiers.
    ///
    /// Dropping the last handle, mapping and pin does the same.
    ///
    /// # Errors
    /// [`CloseError::InUse`] while there are mappings, pins or clones: the space then closes when the last of them is
    /// dropped. [`CloseError::NoAnswer`] if a tier does not answer.
    pub fn close(self) -> Result<(), CloseError> {
        let (mut shared, started) = (self.shared, Instant::now());
        loop {
            shared = match Arc::try_unwrap(shared) {
                Ok(shared) => return shared.memory.close().map_err(|_| CloseError::NoAnswer),
                Err(shared) => shared,
            };
            // Apart from a mapping, a pin or a clone, only this thread can still be using the space.
            if !Fetches::has_thread(&shared) || started.elapsed() > CLOSE_WAIT_MAX {
                return Err(CloseError::InUse);
            }
            std::thread::sleep(CLOSE_WAIT_ONCE);
        }
    }
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

/// Why this machine, or this process, cannot have spaces. Its text says the cause and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported(String);

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unsupported {}

/// Checks whether this process can have spaces: it needs Linux with userfaultfd(2).
///
/// ```
/// if let Err(why) = aquifer::probe() {
///     println!("without far memory: {why}");
/// }
/// ```
pub fn probe() -> Result<(), Unsupported> {
    uffd::probe().map_err(|refused| Unsupported(refused.to_string()))
}
