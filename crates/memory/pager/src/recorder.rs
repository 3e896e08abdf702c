// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Records the calls into the engine, and their results, in a file: `aquifer run --record`, and a caller's space that
//! asks for it.
//!
//! Threads: events come from the thread that holds the engine's lock (`driver/src/engine_lock.rs`), through a ring
//! (`byte_ring.rs`); one pager thread takes them out and writes them. If it cannot keep up, or the file accepts no
//! more, the recording ends at that point and says so; the program never waits for it.
//!
//! A recording is of one space of one process. A forked child has no thread that writes, so its events are not
//! recorded. A program that runs others leaves one file for each process that outgrows its budget: the first has the
//! given name, each other one that name followed by its process id.
//!
//! The format is `aquifer_core::record`'s.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use aquifer_core::record::{BATCH_HEADER_BYTES, Call, End, Header, Summary, batch_header, count_events};
use aquifer_sys::futex;
use aquifer_sys::own_descriptors::{self, KeptFile};
use aquifer_sys::raw::now_ns;
use aquifer_sys::safe_open::{self, Purpose};
use aquifer_sys::thread_slot;
use aquifer_sys::wakeup::Wakeup;

use crate::abort::{Number, say};
use crate::byte_ring::ByteRing;
use crate::pager::Owner;
use crate::service::start_thread;

/// Maximum number of bytes that may wait to be written. `docs/recording.md` has the rate of events.
const RING_BYTES: usize = 4 << 20;

/// How long events gather before they are written together: the most that a kill can lose.
const GATHER: Duration = Duration::from_millis(10);

/// The longest sleep of the thread without events: only an upper limit.
const SLEEP_IDLE: Duration = Duration::from_secs(3600);

/// How long the end of the process waits for the last events to be written: longer than a busy disk takes.
const FINISH_MAX: Duration = Duration::from_secs(5);

/// The recorder of the unchanged program's space, for [`finish`].
static RECORDER: AtomicPtr<Recorder> = AtomicPtr::new(std::ptr::null_mut());

/// Records the calls into the engine, and their results, in a file.
#[derive(Debug)]
pub struct Recorder {
    ring: ByteRing,
    wakeup: Wakeup,
    /// The process that is recorded; its children have other ids.
    pid: u32,
    /// The writing thread's token, once it runs.
    thread: AtomicUsize,
    /// 1 when the recording is to be closed. A futex word: the writing thread sleeps on it.
    closing: AtomicU32,
    /// 1 when nothing more will be written. A futex word: [`finish`] sleeps on it.
    done: AtomicU32,
    /// The file of a caller's space, which a forked child must not keep open; -1 once it is closed.
    descriptor: AtomicI32,
}

impl Recorder {
    /// Starts to record the space of an unchanged program to `path`, or to that name followed by the process id.
    /// Reports a failure, and the program goes on.
    pub(crate) fn start_for_program(path: &str, header: &Header) -> Option<Arc<Recorder>> {
        let started = Output::claim(path, header.pid).and_then(|output| Self::start(Owner::Program, output, header));
        match started {
            Ok(recorder) => {
                // Never freed: it is needed until the process has ended.
                RECORDER.store(Arc::into_raw(Arc::clone(&recorder)).cast_mut(), Ordering::Release);
                Some(recorder)
            }
            Err(error) => {
                let error = error.to_string();
                say(&["this process is not recorded: ", path, ": ", &error, "; name a file that it can write"]);
                None
            }
        }
    }

    /// Starts to record a caller's space to `path`, which is made, or must be empty.
    pub(crate) fn start_for_caller(path: &str, header: &Header) -> io::Result<Arc<Recorder>> {
        Self::start(Owner::Caller, Output::empty(path)?, header)
    }

    fn start(owner: Owner, mut output: Output, header: &Header) -> io::Result<Arc<Recorder>> {
        output.write(&header.bytes())?;
        let recorder = Arc::new(Recorder {
            ring: ByteRing::new(RING_BYTES),
            wakeup: Wakeup::new().map_err(|errno| io::Error::from_raw_os_error(errno.0))?,
            pid: header.pid,
            thread: AtomicUsize::new(0),
            closing: AtomicU32::new(0),
            done: AtomicU32::new(0),
            descriptor: AtomicI32::new(output.file.as_raw_fd()),
        });
        let writer = Writer {
            recorder: Arc::clone(&recorder),
            output,
            batch: Vec::with_capacity(BATCH_HEADER_BYTES + RING_BYTES),
            batches: 0,
            events: 0,
            lost: 0,
        };
        let started = start_thread(owner, c"aquifer-record", move || writer.run_for(owner));
        started.map_err(|failure| io::Error::other(failure.to_string()))?;
        Ok(recorder)
    }

    /// Whether events of this process are still recorded.
    pub(crate) fn is_open(&self) -> bool {
        self.closing.load(Ordering::Acquire) == 0 && std::process::id() == self.pid
    }

    /// Records one event. Called with the engine's lock held, perhaps in a signal handler.
    pub(crate) fn event(&self, call: &Call<'_>, summary: Summary) {
        if self.ring.push(call, summary) {
            self.wakeup.wake();
        }
    }

    /// After fork(2), in the child of a process with a recorded space: closes the parent's file.
    pub(crate) fn close_in_child(&self) {
        let descriptor = self.descriptor.swap(-1, Ordering::AcqRel);
        if descriptor >= 0 {
            own_descriptors::close(descriptor);
        }
        self.wakeup.close_in_child();
    }

    /// Closes the recording: writes the events recorded so far, and waits for that up to a bound.
    pub(crate) fn finish(&self) {
        if std::process::id() != self.pid || self.thread.load(Ordering::Relaxed) == thread_slot::token() {
            return;
        }
        self.ring.close();
        self.closing.store(1, Ordering::Release);
        futex::wake_all(&self.closing);
        self.wakeup.wake();
        let started = now_ns();
        while self.done.load(Ordering::Acquire) == 0 {
            if now_ns() - started > FINISH_MAX.as_nanos() as u64 {
                say(&["the recording lacks its last events: its file did not take them within 5 s; use a faster disk"]);
                return;
            }
            futex::wait(&self.done, 0, FINISH_MAX);
        }
    }
}

/// Closes the process's recording, if there is one: writes the events recorded so far, and waits for that up to a
/// bound. For the end of the process, including by an abort. Nothing is recorded afterwards.
#[allow(unsafe_code, reason = "a static reference that is published once")]
pub fn finish() {
    // SAFETY: the pointer is null, or of an `Arc` that is never freed.
    if let Some(recorder) = unsafe { RECORDER.load(Ordering::Acquire).as_ref() } {
        recorder.finish();
    }
}

/// The state of the writing thread.
struct Writer {
    recorder: Arc<Recorder>,
    output: Output,
    /// One batch, its header first.
    batch: Vec<u8>,
    batches: u64,
    events: u64,
    /// The number of lost events that the file reports.
    lost: u64,
}

impl Writer {
    fn run_for(mut self, owner: Owner) {
        self.recorder.thread.store(thread_slot::token(), Ordering::Relaxed);
        self.write();
        let recorder = Arc::clone(&self.recorder);
        match owner {
            // Not closed: the program may have reused the descriptor's number for another file by now.
            Owner::Program => std::mem::forget(self),
            Owner::Caller => {
                recorder.descriptor.store(-1, Ordering::Release);
                drop(self);
            }
        }
        recorder.done.store(1, Ordering::Release);
        futex::wake_all(&recorder.done);
    }

    fn write(&mut self) {
        if let Err(error) = self.write_until_closed() {
            self.recorder.ring.close();
            let errno = Number::new(error.raw_os_error().unwrap_or(0).unsigned_abs().into());
            say(&[
                "the recording ends here, and the program goes on: its file cannot be written (errno ",
                errno.text(),
                "); free space where it lies, or record to another place",
            ]);
        }
    }

    fn write_until_closed(&mut self) -> io::Result<()> {
        loop {
            let closing = self.recorder.closing.load(Ordering::Acquire) != 0;
            let wrote = self.write_events()?;
            // Written immediately as well, since the program may be killed.
            let lost = self.recorder.ring.lost();
            if closing || (lost > 0 && self.lost == 0) {
                self.write_end(End { events: self.events, lost, closed: closing })?;
            }
            if closing {
                return Ok(());
            }
            match wrote {
                true => futex::wait(&self.recorder.closing, 0, GATHER),
                false => self.recorder.wakeup.sleep(None, SLEEP_IDLE),
            }
        }
    }

    /// Writes the events in the ring. False if there are none.
    fn write_events(&mut self) -> io::Result<bool> {
        self.batch.clear();
        self.batch.resize(BATCH_HEADER_BYTES, 0);
        self.recorder.ring.take(&mut self.batch);
        let payload = &self.batch[BATCH_HEADER_BYTES..];
        if payload.is_empty() {
            return Ok(false);
        }
        // Parses what it writes: a mistake in the format shows up here, and not when somebody needs the recording.
        self.events += count_events(payload).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADMSG))?;
        self.write_batch(false)?;
        Ok(true)
    }

    fn write_end(&mut self, end: End) -> io::Result<()> {
        self.batch.truncate(BATCH_HEADER_BYTES);
        self.batch.extend(end.payload());
        self.lost = end.lost;
        self.write_batch(true)
    }

    fn write_batch(&mut self, is_state: bool) -> io::Result<()> {
        let header = batch_header(is_state, self.batches, &self.batch[BATCH_HEADER_BYTES..]);
        self.batch[..BATCH_HEADER_BYTES].copy_from_slice(&header);
        self.batches += 1;
        self.output.write(&self.batch)
    }
}

/// The file. A program may close its descriptor in ways that the library does not see, and the number may be reused for
/// another file. So each write first checks whether the descriptor still refers to this file, and reopens it if not.
#[derive(Debug)]
struct Output {
    path: PathBuf,
    file: KeptFile,
    identity: (u64, u64),
}

impl Output {
    /// Opens `path` if it is a pipe, or is empty and no other process records to it. Otherwise creates a file with the
    /// process id appended to the name.
    fn claim(path: &str, pid: u32) -> io::Result<Self> {
        let file = open(Path::new(path), libc::O_CREAT)?;
        let kind = file.metadata()?;
        // A pipe has no length and no locks; its creator is responsible for who writes to it.
        let taken = kind.file_type().is_file() && (file.try_lock().is_err() || file.metadata()?.len() > 0);
        let (path, file) = if taken {
            let path = PathBuf::from(format!("{path}.{pid}"));
            let file = open(&path, libc::O_CREAT | libc::O_EXCL)?;
            (path, file)
        } else {
            (path.into(), file)
        };
        let identity = identity(&file)?;
        Ok(Self { path, file: KeptFile::new(file), identity })
    }

    /// Makes `path`, or takes it if it is empty and nobody else records to it.
    fn empty(path: &str) -> io::Result<Self> {
        let file = open(Path::new(path), libc::O_CREAT)?;
        if file.try_lock().is_err() || file.metadata()?.len() > 0 {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        let identity = identity(&file)?;
        Ok(Self { path: path.into(), file: KeptFile::new(file), identity })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if identity(&self.file).ok() != Some(self.identity) {
            let again = open(&self.path, libc::O_CREAT)?;
            if identity(&again)? != self.identity {
                return Err(io::Error::from_raw_os_error(libc::ESTALE));
            }
            std::mem::forget(std::mem::replace(&mut self.file, KeptFile::new(again)));
        }
        (&*self.file).write_all(bytes)
    }
}

/// A recording reveals a program's memory use, so only its user and root may read it.
fn open(path: &Path, flags: i32) -> io::Result<File> {
    let flags = libc::O_WRONLY | libc::O_APPEND | flags;
    Ok(safe_open::open(path, Purpose::Memory, flags, 0o600)?)
}

/// Identifies the file, whatever its name.
fn identity(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}
