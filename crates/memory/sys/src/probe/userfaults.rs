// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Tries userfaultfd(2), feature by feature, and PAGEMAP_SCAN.
//!
//! No trial can hang, although nothing resolves its faults: every access that might fault is made by the kernel on the
//! process's behalf, and every trial has `UFFD_FEATURE_SIGBUS`, which turns the fault into EFAULT.

use std::fs;

use crate::memory::map_anonymous;
use crate::pagemap_scan::PageScan;
use crate::raw::{Errno, syscall};
use crate::uffd::{Partial, Refused, Uffd, feature, mode};

use super::Ability;

const PAGE: usize = 4096;

/// The outcome of a trial: what was seen, or why it failed.
type Outcome = Result<String, String>;

/// Whether faults of the kernel's own accesses can be resolved, which listener delivery and KVM need.
pub fn kernel() -> Ability {
    Ability::tried(
        "kernel-faults",
        kernel_faults(),
        "no listener: no KVM and no io_uring; system calls get EFAULT for evicted memory of the library's spaces",
        "sysctl vm.unprivileged_userfaultfd=1, or read and write access to /dev/userfaultfd",
    )
}

/// All abilities that concern faults.
pub fn all() -> Vec<Ability> {
    vec![
        Ability::tried(
            "userfaultfd",
            opened(Uffd::open(0, false)).map(|()| "works for this program's own accesses".into()),
            "nothing works: faults cannot be resolved in user space",
            "use a kernel with CONFIG_USERFAULTFD; in a container, pass in /dev/userfaultfd: docs/containers.md",
        ),
        kernel(),
        Ability::tried(
            "missing",
            trial(0, missing),
            "nothing works: missing pages cannot be resolved",
            "use Linux 5.15 or newer",
        ),
        Ability::tried(
            "sigbus",
            trial(0, sigbus),
            "no signal delivery: each fault wakes a listener: 12 us instead of 9 us for 128 KiB at best",
            "use Linux 4.14 or newer",
        ),
        Ability::tried(
            "move",
            trial(feature::MOVE, moved),
            "pages are copied, in 31 us instead of 9 us for 128 KiB; calls pin their memory; io_uring and AIO are refused",
            "use Linux 6.8 or newer",
        ),
        Ability::tried(
            "write-protect",
            trial(feature::PAGEFAULT_FLAG_WP, write_protect),
            "without 'move' as well, a block cannot be evicted while its program runs",
            "use Linux 5.7 or newer",
        ),
        Ability::tried(
            "wp-unpopulated",
            trial(feature::PAGEFAULT_FLAG_WP | feature::WP_UNPOPULATED, write_protect_unpopulated),
            "writes to pages that were never touched cannot be detected",
            "use Linux 6.4 or newer",
        ),
        Ability::tried(
            "wp-async",
            trial(feature::PAGEFAULT_FLAG_WP | feature::WP_UNPOPULATED | feature::WP_ASYNC, write_protect_async),
            "which pages of a block were written is found by hashing them when it is evicted",
            "use Linux 6.7 or newer",
        ),
        Ability::tried(
            "poison",
            trial(feature::POISON, poison),
            "under listener delivery, a lost block ends the program instead of the one access",
            "use Linux 6.6 or newer",
        ),
        Ability::tried(
            "pagemap-scan",
            pagemap_scan(),
            "page tables are read eight bytes a page, when memory is registered",
            "use Linux 6.7 or newer",
        ),
    ]
}

/// Registered memory and its userfaultfd, for one trial.
struct Trial {
    uffd: Uffd,
    start: usize,
}

/// Pages of one trial. The last ones are never touched unless a trial says so.
const PAGES: usize = 4;

impl Trial {
    fn new(features: u64) -> Result<Self, Errno> {
        let uffd = Uffd::open(features | feature::SIGBUS, false)?;
        let trial = Self { uffd, start: map_anonymous(PAGES * PAGE)? };
        // Huge pages would change which pages are missing.
        let _ = crate::memory::advise(trial.start, PAGES * PAGE, libc::MADV_NOHUGEPAGE);
        Ok(trial)
    }

    fn page(&self, index: usize) -> usize {
        self.start + index * PAGE
    }

    fn register(&self, mode: u64) -> Result<(), Errno> {
        self.uffd.register(self.start, PAGES * PAGE, mode)
    }

    /// Makes the kernel write one byte to the page, as a system call of a program would.
    fn store(&self, page: usize) -> Result<(), Errno> {
        let pipe = Pipe::with_a_byte()?;
        // SAFETY: read(2) writes one byte to the trial's own memory, or fails.
        unsafe { syscall(libc::SYS_read, [pipe.read as usize, self.page(page), 1, 0, 0, 0]) }.map(|_| ())
    }

    /// Makes the kernel read one byte of the page.
    fn load(&self, page: usize) -> Result<u8, Errno> {
        let pipe = Pipe::new()?;
        let mut byte = 0u8;
        // SAFETY: write(2) reads one byte of the trial's own memory, or fails.
        unsafe { syscall(libc::SYS_write, [pipe.write as usize, self.page(page), 1, 0, 0, 0]) }?;
        // SAFETY: read(2) writes one byte to `byte`.
        unsafe { syscall(libc::SYS_read, [pipe.read as usize, &raw mut byte as usize, 1, 0, 0, 0]) }?;
        Ok(byte)
    }

    /// Bit 57 of /proc/self/pagemap: the page is write-protected by a userfaultfd (Linux 5.13).
    fn is_write_protected(&self, page: usize) -> Option<bool> {
        use std::os::unix::fs::FileExt;
        let mut entry = [0; 8];
        let file = fs::File::open("/proc/self/pagemap").ok()?;
        file.read_exact_at(&mut entry, (self.page(page) / PAGE * 8) as u64).ok()?;
        Some(u64::from_ne_bytes(entry) & 1 << 57 != 0)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // SAFETY: the memory is the trial's own, and none of it is used any more.
        let _ = unsafe { syscall(libc::SYS_munmap, [self.start, PAGES * PAGE, 0, 0, 0, 0]) };
    }
}

struct Pipe {
    read: i32,
    write: i32,
}

impl Pipe {
    fn new() -> Result<Self, Errno> {
        let mut ends = [0i32; 2];
        let args = [&raw mut ends as usize, (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize, 0, 0, 0, 0];
        // SAFETY: pipe2(2) writes two descriptors.
        unsafe { syscall(libc::SYS_pipe2, args) }?;
        Ok(Self { read: ends[0], write: ends[1] })
    }

    fn with_a_byte() -> Result<Self, Errno> {
        let pipe = Self::new()?;
        let byte = 7u8;
        // SAFETY: write(2) reads one byte.
        unsafe { syscall(libc::SYS_write, [pipe.write as usize, &raw const byte as usize, 1, 0, 0, 0]) }?;
        Ok(pipe)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        for end in [self.read, self.write] {
            // SAFETY: both ends belong to this value, and are not used again.
            let _ = unsafe { syscall(libc::SYS_close, [end as usize, 0, 0, 0, 0, 0]) };
        }
    }
}

fn opened(outcome: Result<Uffd, Errno>) -> Result<(), String> {
    outcome.map(drop).map_err(refused)
}

fn refused(errno: Errno) -> String {
    let cause = if Refused::of(errno).by_filter { ", most likely by a seccomp filter" } else { "" };
    format!("refused: {errno}{cause}")
}

/// Runs one trial on a userfaultfd with `features`.
fn trial(features: u64, attempt: fn(&Trial) -> Result<&'static str, Errno>) -> Outcome {
    let trial = Trial::new(features).map_err(|errno| match errno {
        Errno(libc::EINVAL) => "not in this kernel".to_owned(),
        errno => refused(errno),
    })?;
    match attempt(&trial) {
        Ok(seen) => Ok(seen.to_owned()),
        Err(Errno(0)) => Err("accepted, and without effect".to_owned()),
        Err(errno) => Err(refused(errno)),
    }
}

/// The errno of a trial that was allowed, but did not have its effect.
const NO_EFFECT: Errno = Errno(0);

fn all_of_it(outcome: Result<(), Partial>) -> Result<(), Errno> {
    outcome.map_err(|partial| partial.errno)
}

fn expect(effect: bool, seen: &'static str) -> Result<&'static str, Errno> {
    if effect { Ok(seen) } else { Err(NO_EFFECT) }
}

fn kernel_faults() -> Outcome {
    match Uffd::open(0, true) {
        Ok(_) => Ok(format!("allowed by {}", allowed_by())),
        Err(errno) => Err(refused(errno)),
    }
}

/// Which of the three permissions lets this process resolve faults of the kernel's own accesses.
fn allowed_by() -> &'static str {
    let setting = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    if setting.trim() == "1" {
        return "vm.unprivileged_userfaultfd=1";
    }
    const CAP_SYS_PTRACE: u32 = 19;
    if super::machine::has_capability(CAP_SYS_PTRACE) { "CAP_SYS_PTRACE" } else { "/dev/userfaultfd" }
}

fn missing(trial: &Trial) -> Result<&'static str, Errno> {
    trial.register(mode::MISSING)?;
    all_of_it(trial.uffd.zeropage(trial.page(0), PAGE))?;
    trial.store(0)?;
    // SAFETY: page 0 is the trial's, was just filled, and nothing changes it; page 1 is missing.
    all_of_it(unsafe { trial.uffd.copy(trial.page(1), trial.page(0), PAGE, false) })?;
    expect(trial.load(1)? == 7, "a zeroed and a copied page were installed")
}

fn sigbus(trial: &Trial) -> Result<&'static str, Errno> {
    trial.register(mode::MISSING)?;
    // The kernel's own access tests this without a signal: it fails instead of waiting.
    expect(trial.load(0) == Err(Errno(libc::EFAULT)), "a missing page is reported at once")
}

fn moved(trial: &Trial) -> Result<&'static str, Errno> {
    trial.store(0)?;
    trial.register(mode::MISSING)?;
    // SAFETY: both pages are the trial's private anonymous memory.
    all_of_it(unsafe { trial.uffd.move_pages(trial.page(1), trial.page(0), PAGE, false) })?;
    expect(trial.load(1)? == 7 && trial.load(0).is_err(), "a page was moved")
}

fn write_protect(trial: &Trial) -> Result<&'static str, Errno> {
    trial.store(0)?;
    trial.register(mode::MISSING | mode::WP)?;
    trial.uffd.write_protect(trial.page(0), PAGE, true)?;
    expect(trial.is_write_protected(0).unwrap_or(true) && trial.store(0).is_err(), "a page was write-protected")
}

fn write_protect_unpopulated(trial: &Trial) -> Result<&'static str, Errno> {
    trial.register(mode::WP)?;
    trial.uffd.write_protect(trial.page(0), PAGE, true)?;
    expect(trial.is_write_protected(0).unwrap_or(true), "a page that is not there was write-protected")
}

fn write_protect_async(trial: &Trial) -> Result<&'static str, Errno> {
    trial.store(0)?;
    trial.register(mode::WP)?;
    trial.uffd.write_protect(trial.page(0), PAGE, true)?;
    trial.store(0)?;
    expect(!trial.is_write_protected(0).unwrap_or(false), "a store was noted without a fault")
}

fn poison(trial: &Trial) -> Result<&'static str, Errno> {
    trial.register(mode::MISSING)?;
    all_of_it(trial.uffd.poison(trial.page(0), PAGE))?;
    expect(trial.load(0).is_err(), "a page was poisoned")
}

fn pagemap_scan() -> Outcome {
    let attempt = || {
        let trial = Trial::new(0)?;
        trial.store(1)?;
        let mut populated = 0;
        PageScan::open()?.populated(trial.start, PAGES * PAGE, &mut |run| populated += (run.end - run.start) / PAGE)?;
        expect(populated == 1, "runs of pages are reported by one call")
    };
    match attempt() {
        Ok(seen) => Ok(seen.to_owned()),
        Err(Errno(libc::ENOTTY | libc::EINVAL)) => Err("not in this kernel".to_owned()),
        Err(errno) => Err(refused(errno)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Each userfaultfd was closed twice: the second time, its number could be that of another thread's new file.
    #[test]
    fn a_trial_closes_no_descriptor_of_another_thread() {
        const OPENERS: usize = 3;
        const TRIALS: usize = 50_000;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let opener = || {
                while !is_over.load(Ordering::Relaxed) {
                    let file = fs::File::open("/dev/null").expect("there are descriptors");
                    (0..4).for_each(|_| _ = file.metadata().expect("nobody else closes it"));
                }
            };
            let openers: Vec<_> = (0..OPENERS).map(|_| scope.spawn(opener)).collect();
            (0..TRIALS).for_each(|_| drop(opened(Uffd::open(0, false))));
            is_over.store(true, Ordering::Relaxed);
            openers.into_iter().for_each(|opener| opener.join().expect("the file stays open"));
        });
    }
}
