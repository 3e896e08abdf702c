// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory of a space.
//!
//! The crate's `Mapping` hands out slices under Rust's rules for references. Nothing here does: Python reads and writes
//! through buffers (`exporter.rs`) whenever it likes, and the calls below copy. `python/aquifer/_mapping.py` inherits
//! from this class and from the exporter.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use aquifer::{Error, Hints, Intent, Pattern, Priority};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use crate::errors::{self, OrRaise, Raised};
use crate::fetch::Fetch;
use crate::forked_child::{self, Reserved};
use crate::gather::{self, Items};
use crate::lifetime::{Busy, Lifetime};
use crate::offset::{BlockBytes, Offset, range};
use crate::pace::Pace;
use crate::pin::Pin;
use crate::prefetches::{self, Ahead};
use crate::queries::{self, Classes, StatusTuple, TemperatureTuple};
use crate::space::{Space, without_lock};

/// A mapping, and who uses it.
#[pyclass(frozen, subclass, module = "aquifer._native")]
pub struct Mapping {
    /// The mapping; `None` once it is closed. Calls that read lock it for reading, and calls that write for writing.
    memory: RwLock<Option<aquifer::Mapping>>,
    /// Works without the lock, and returns `Closed` by itself.
    hints: Hints,
    lifetime: Mutex<Lifetime>,
    ahead: Mutex<Ahead>,
    /// A share of the space while the mapping is open.
    share: Mutex<Option<Arc<()>>>,
    /// The addresses of a mapping that was closed: pointers that nobody counted may still refer to them.
    stale: Mutex<Option<Reserved>>,
    address: usize,
    len: usize,
    process: u32,
}

#[pymethods]
impl Mapping {
    #[new]
    #[pyo3(signature = (space, size, name = None))]
    fn new(py: Python<'_>, space: &Bound<'_, Space>, size: Option<Offset>, name: Option<&str>) -> PyResult<Self> {
        let (memory, share) = match (name, size) {
            (Some(name), size) => space.get().map_named(py, name, size.map(|size| size.0))?,
            (None, Some(size)) => space.get().map(py, size.0)?,
            (None, None) => return Err(PyValueError::new_err("a mapping without a name has a size; give it one")),
        };
        let (address, len, hints) = (memory.as_ptr().addr(), memory.len(), memory.hints());
        forked_child::add(address, len);
        Ok(Self {
            memory: RwLock::new(Some(memory)),
            hints,
            lifetime: Mutex::default(),
            ahead: Mutex::default(),
            share: Mutex::new(Some(share)),
            stale: Mutex::default(),
            address,
            len,
            process: std::process::id(),
        })
    }

    fn __len__(&self) -> usize {
        self.len
    }

    /// The address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    /// Whether the mapping is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.lifetime().is_closed()
    }

    /// Unmaps the memory. Raises InUseError, a BufferError, while arrays or memoryviews over it exist.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_foreign() {
            return Ok(());
        }
        let is_first = self.lifetime().close().map_err(|busy| in_use(py, busy))?;
        if is_first {
            py.detach(|| drop(self.memory.write().unwrap_or_else(PoisonError::into_inner).take()));
            self.end();
            *self.stale.lock().unwrap_or_else(PoisonError::into_inner) = Reserved::new(self.address, self.len);
        }
        Ok(())
    }

    /// Copies a range, without making it resident if `in_place`.
    fn copied<'py>(
        &self,
        py: Python<'py>,
        start: Offset,
        stop: Option<Offset>,
        in_place: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let range = self.checked(py, start, stop)?;
        PyBytes::new_with(py, range.len(), |into| {
            let (mut pace, mut left) = (Pace::of_bytes(), range.clone());
            let mut rest = into;
            while !left.is_empty() {
                let (into, later) = rest.split_at_mut(pace.step(left.len()));
                let (start, began) = (left.start, Instant::now());
                (left.start, rest) = (start + into.len(), later);
                self.reading(py, |memory| match in_place {
                    true => memory.read_in_place(start, into).map(|_pages| ()),
                    false => memory.read(start, into),
                })?;
                pace.took(began.elapsed());
                py.check_signals()?;
            }
            // A copy of no bytes also says whether the mapping is open.
            if range.is_empty() { self.reading(py, |_memory| Ok(())) } else { Ok(()) }
        })
    }

    /// Overwrites the bytes from `start` on, without making a page resident if `in_place`.
    fn overwrite(&self, py: Python<'_>, start: Offset, bytes: &Bound<'_, PyBytes>, in_place: bool) -> PyResult<()> {
        // A `bytes` never changes, and the caller has a reference to it.
        let bytes = bytes.as_bytes();
        self.writing(py, |memory| match in_place {
            true => memory.write_in_place(start.0, bytes).map(|_pages| ()),
            false => memory.write(start.0, bytes),
        })
    }

    /// Makes a range of a named mapping durable: after a crash, its file has all of the range as it is now, or as it
    /// was at the sync before. Nothing else writes to it meanwhile.
    #[pyo3(signature = (start = Offset(0), stop = None), text_signature = "($self, start=0, stop=None)")]
    fn sync(&self, py: Python<'_>, start: Offset, stop: Option<Offset>) -> PyResult<()> {
        self.writing(py, |memory| memory.sync(range(start, stop, self.len)))
    }

    /// Makes all of a named mapping durable, at one moment.
    fn snapshot(&self, py: Python<'_>) -> PyResult<()> {
        self.writing(py, aquifer::Mapping::snapshot)
    }

    /// The name of a named mapping; None if it has none.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.reading(py, |memory| Ok(memory.name().map(str::to_owned)))
    }

    /// Empties whole pages: they read as zeros from now on, even where bytes were lost.
    #[pyo3(signature = (start = Offset(0), stop = None), text_signature = "($self, start=0, stop=None)")]
    fn discard(&self, py: Python<'_>, start: Offset, stop: Option<Offset>) -> PyResult<()> {
        self.writing(py, |memory| memory.discard(range(start, stop, self.len)))
    }

    /// Copies the items with these indices, which are the bytes of 64-bit numbers.
    fn gathered<'py>(
        &self,
        py: Python<'py>,
        offset: Offset,
        stride: Offset,
        size: Offset,
        indices: &Bound<'py, PyBytes>,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let items = Items { offset: offset.0, stride: stride.0, size: size.0 };
        let indices = gather::indices(indices.as_bytes());
        let bytes =
            items.bytes(indices.len()).ok_or_else(|| PyMemoryError::new_err("the items have too many bytes"))?;
        self.here(py)?;
        items.check(&indices, self.len).or_raise(py)?;
        PyByteArray::new_with(py, bytes, |into| {
            let (mut pace, mut left, mut rest) = (Pace::of_items(), &*indices, into);
            while !left.is_empty() {
                let began = Instant::now();
                let (now, later) = left.split_at(pace.step(left.len()));
                let (into, free) = rest.split_at_mut(now.len() * items.size);
                (left, rest) = (later, free);
                self.reading(py, |memory| items.gather(memory, now, into))?;
                pace.took(began.elapsed());
                py.check_signals()?;
            }
            // A gather of nothing also says whether the mapping is open.
            if indices.is_empty() { self.reading(py, |_memory| Ok(())) } else { Ok(()) }
        })
    }

    fn prefetch_range(&self, py: Python<'_>, start: Offset, stop: Option<Offset>, write: bool) -> PyResult<()> {
        let intent = if write { Intent::Write } else { Intent::Read };
        self.hinting(py, |hints| hints.prefetch(range(start, stop, self.len), intent))
    }

    /// Prefetches the items with these indices, which are the bytes of 64-bit numbers. Never waits for the tier.
    fn prefetch_items(&self, py: Python<'_>, space: &Bound<'_, Space>, size: Offset, indices: &[u8]) -> PyResult<()> {
        self.here(py)?;
        let bytes_max = space.get().prefetch_bytes_max(py)?;
        self.hinting(py, |hints| {
            let indices = gather::indices(indices);
            let runs = prefetches::runs(&indices, size.0, self.len, bytes_max)?;
            self.ahead.lock().unwrap_or_else(PoisonError::into_inner).start(hints, runs)
        })
    }

    /// Moves a range that will not be used for a long time to the tier, in the background.
    #[pyo3(signature = (start = Offset(0), stop = None), text_signature = "($self, start=0, stop=None)")]
    fn evict(&self, py: Python<'_>, start: Offset, stop: Option<Offset>) -> PyResult<()> {
        self.hinting(py, |hints| hints.evict(range(start, stop, self.len)))
    }

    /// Says that the range will not be used again: it is the first to leave when room is needed.
    #[pyo3(signature = (start = Offset(0), stop = None), text_signature = "($self, start=0, stop=None)")]
    fn stream(&self, py: Python<'_>, start: Offset, stop: Option<Offset>) -> PyResult<()> {
        self.hinting(py, |hints| hints.stream(range(start, stop, self.len)))
    }

    /// Announces how a range will be used: "normal", "random" or "sequential".
    #[pyo3(signature = (pattern, start = Offset(0), stop = None), text_signature = "($self, pattern, start=0, stop=None)")]
    fn pattern(&self, py: Python<'_>, pattern: &str, start: Offset, stop: Option<Offset>) -> PyResult<()> {
        let pattern = match pattern {
            "normal" => Pattern::Normal,
            "random" => Pattern::Random,
            "sequential" => Pattern::Sequential,
            other => {
                let why = format!("'{other}' is not a pattern; choose one of normal, random, sequential");
                return Err(PyValueError::new_err(why));
            }
        };
        self.hinting(py, |hints| hints.pattern(range(start, stop, self.len), pattern))
    }

    /// Says how long a range is to stay in DRAM, compared with others: "low", "normal" or "high".
    #[pyo3(signature = (priority, start = Offset(0), stop = None), text_signature = "($self, priority, start=0, stop=None)")]
    fn priority(&self, py: Python<'_>, priority: &str, start: Offset, stop: Option<Offset>) -> PyResult<()> {
        let priority = match priority {
            "low" => Priority::Low,
            "normal" => Priority::Normal,
            "high" => Priority::High,
            other => {
                let why = format!("'{other}' is not a priority; choose one of low, normal, high");
                return Err(PyValueError::new_err(why));
            }
        };
        self.hinting(py, |hints| hints.priority(range(start, stop, self.len), priority))
    }

    /// Says how many bytes of a range move as one: a power of two from 4096 to 2 MiB, or None to learn it.
    #[pyo3(signature = (size, start = Offset(0), stop = None), text_signature = "($self, size, start=0, stop=None)")]
    fn block_size(
        &self,
        py: Python<'_>,
        size: Option<BlockBytes>,
        start: Offset,
        stop: Option<Offset>,
    ) -> PyResult<()> {
        self.hinting(py, |hints| hints.block_size(range(start, stop, self.len), size.map(|size| size.0)))
    }

    /// Returns whether a touch of the range would not wait: all of it was resident a moment ago.
    #[pyo3(signature = (start = Offset(0), stop = None), text_signature = "($self, start=0, stop=None)")]
    fn ready(&self, start: Offset, stop: Option<Offset>) -> bool {
        !self.is_foreign() && self.hints.ready(range(start, stop, self.len))
    }

    fn fetching(&self, py: Python<'_>, start: Offset, stop: Option<Offset>) -> PyResult<Fetch> {
        self.here(py)?;
        Ok(Fetch::new(self.hints.fetch(range(start, stop, self.len)), self.process))
    }

    /// Makes the range resident, and keeps it so until the pin is released: a context manager.
    #[pyo3(signature = (start = Offset(0), stop = None), text_signature = "($self, start=0, stop=None)")]
    fn pin(this: &Bound<'_, Self>, start: Offset, stop: Option<Offset>) -> PyResult<Pin> {
        let (py, mapping) = (this.py(), this.get());
        mapping.here(py)?;
        if !mapping.lifetime().pin() {
            return Err(errors::of(py, &Error::Closed));
        }
        let pin = mapping.hinting(py, |hints| hints.pin(range(start, stop, mapping.len)));
        match pin {
            Ok(pin) => Ok(Pin::new(pin, this.clone().unbind())),
            Err(refused) => {
                mapping.lifetime().unpin();
                Err(refused)
            }
        }
    }

    fn status_runs(&self, py: Python<'_>, start: Offset, stop: Option<Offset>) -> PyResult<Vec<StatusTuple>> {
        let runs = self.hinting(py, |hints| hints.status(range(start, stop, self.len)))?;
        Ok(runs.into_iter().map(queries::status).collect())
    }

    fn temperature_runs(&self, py: Python<'_>, start: Offset, stop: Option<Offset>) -> PyResult<Vec<TemperatureTuple>> {
        let runs = self.hinting(py, |hints| hints.temperature(range(start, stop, self.len)))?;
        Ok(runs.into_iter().map(queries::temperature).collect())
    }

    fn classes(&self, py: Python<'_>, start: Offset, stop: Option<Offset>) -> PyResult<(Classes, Classes)> {
        self.hinting(py, |hints| hints.histogram(range(start, stop, self.len))).map(queries::classes)
    }
}

impl Mapping {
    pub fn lifetime(&self) -> MutexGuard<'_, Lifetime> {
        self.lifetime.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the memory's address and length, for a buffer that `release` gives back.
    pub fn export(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        self.here(py)?;
        if self.lifetime().export() { Ok((self.address, self.len)) } else { Err(errors::of(py, &Error::Closed)) }
    }

    /// Returns whether the mapping belongs to the process that forked this one.
    fn is_foreign(&self) -> bool {
        self.process != std::process::id()
    }

    /// Refuses a forked child, where a lock may be held by a thread that the child does not have.
    fn here(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_foreign() { Err(errors::of(py, &Error::Forked)) } else { Ok(()) }
    }

    /// Checks that a range can be read, so that no memory is allocated for one that cannot.
    fn checked(&self, py: Python<'_>, start: Offset, stop: Option<Offset>) -> PyResult<Range<usize>> {
        self.here(py)?;
        let Range { start, end } = range(start, stop, self.len);
        if start > end || end > self.len {
            return Err(errors::of(py, &Error::OutOfRange { start, end, len: self.len }));
        }
        Ok(start..end)
    }

    fn reading<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&aquifer::Mapping) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        self.here(py)?;
        let made = py.detach(|| {
            let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
            memory.as_ref().ok_or(Error::Closed).and_then(call)
        });
        made.or_raise(py)
    }

    fn writing<T: Send, E: Raised + From<Error>>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut aquifer::Mapping) -> Result<T, E> + Send,
    ) -> PyResult<T> {
        self.here(py)?;
        let made = py.detach(|| {
            let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
            memory.as_mut().ok_or(E::from(Error::Closed)).and_then(call)
        });
        made.or_raise(py)
    }

    fn hinting<T: Send>(&self, py: Python<'_>, call: impl FnOnce(&Hints) -> Result<T, Error> + Send) -> PyResult<T> {
        self.here(py)?;
        py.detach(|| call(&self.hints)).or_raise(py)
    }

    /// Gives up the share of the space, after the memory is gone.
    fn end(&self) {
        forked_child::remove(self.address);
        self.share.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        without_lock(self.memory.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        self.end();
    }
}

/// Returns why a mapping cannot be closed now.
fn in_use(py: Python<'_>, busy: Busy) -> PyErr {
    match busy {
        Busy::Exported(count) => {
            let message = format!(
                "the mapping has {count} buffers in use; delete the arrays and release the memoryviews over it first"
            );
            errors::new(py, "InUseError", &message, None, &[])
        }
        Busy::Pinned(_) => errors::of(py, &Error::Pinned),
    }
}
