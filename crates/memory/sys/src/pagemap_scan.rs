// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which pages are populated, and which were written since the last query: PAGEMAP_SCAN.
//!
//! See `admin-guide/mm/pagemap.rst` of the kernel's documentation; since Linux 6.7. One call walks page tables and
//! returns runs, where `/proc/self/pagemap` alone returns eight bytes for each page. Together with
//! `UFFD_FEATURE_WP_ASYNC` it reports dirty pages exactly, without a fault that reaches user space. [`PageScan::open`]
//! and the first scan probe the kernel: without support, the scan fails with ENOTTY or EINVAL.
//!
//! Allocates nothing, and so may run on the fault path.

use std::mem::size_of;

use crate::raw::{Errno, syscall};

const IS_WRITTEN: u64 = 1 << 1;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;

const WP_MATCHING: u64 = 1 << 0;
const CHECK_WPASYNC: u64 = 1 << 1;

/// Maximum number of runs that one system call returns: 1.5 KiB of stack.
const RUNS_AT_ONCE: usize = 64;

#[repr(C)]
#[derive(Clone, Copy)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
struct Argument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: usize = 3 << 30 | size_of::<Argument>() << 16 | (b'f' as usize) << 8 | 16;

/// Adjacent pages with the same answer, as addresses `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Address of the first page.
    pub start: usize,
    /// One past the last byte of the last page.
    pub end: usize,
}

/// The page tables of this process, open for scanning. After `fork`, a child's value still refers to the parent.
#[derive(Debug)]
pub struct PageScan {
    descriptor: i32,
}

impl PageScan {
    /// Opens the page tables. Works on every kernel; the first scan shows whether this kernel can scan.
    pub fn open() -> Result<Self, Errno> {
        let path = c"/proc/thread-self/pagemap";
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        // SAFETY: openat(2) reads a path that ends in NUL.
        let opened =
            unsafe { syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0]) };
        opened.map(|descriptor| Self { descriptor: descriptor as i32 })
    }

    /// Calls `each` with every run of pages that have contents, in address order.
    pub fn populated(&self, start: usize, len: usize, each: &mut dyn FnMut(Run)) -> Result<(), Errno> {
        self.scan(start, len, 0, (0, IS_PRESENT | IS_SWAPPED), each)
    }

    /// Calls `each` with every run of pages written since the last call, in address order, and resets their tracking:
    /// both in one step for each page, so that no store is missed.
    ///
    /// The range must be registered for write-protection with a userfaultfd that has `WP_ASYNC` and `WP_UNPOPULATED`;
    /// otherwise EPERM. The first call reports every populated page.
    pub fn take_written(&self, start: usize, len: usize, each: &mut dyn FnMut(Run)) -> Result<(), Errno> {
        self.scan(start, len, WP_MATCHING | CHECK_WPASYNC, (IS_WRITTEN, 0), each)
    }

    /// One walk, in as many system calls as the runs need. `masks`: a page is reported if it has all categories of the
    /// first and, unless the second is 0, any of the second.
    fn scan(
        &self,
        start: usize,
        len: usize,
        flags: u64,
        masks: (u64, u64),
        each: &mut dyn FnMut(Run),
    ) -> Result<(), Errno> {
        let mut regions = [Region { start: 0, end: 0, categories: 0 }; RUNS_AT_ONCE];
        let end = (start + len) as u64;
        let mut argument = Argument {
            size: size_of::<Argument>() as u64,
            flags,
            start: start as u64,
            end,
            walk_end: 0,
            vec: regions.as_mut_ptr() as u64,
            vec_len: RUNS_AT_ONCE as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: masks.0,
            category_anyof_mask: masks.1,
            return_mask: masks.0 | masks.1,
        };
        // Adjacent runs are merged, whether they differ in their categories or come from two calls.
        let mut pending: Option<Run> = None;
        while argument.start < end {
            let args = [self.descriptor as usize, PAGEMAP_SCAN, &raw mut argument as usize, 0, 0, 0];
            // SAFETY: the ioctl reads and writes one `Argument` and writes at most `vec_len` regions, which outlive the
            // call. It changes protections of ranges that were registered for that, never bytes.
            let found = match unsafe { syscall(libc::SYS_ioctl, args) } {
                Err(Errno(libc::EINTR)) => continue,
                outcome => outcome?,
            };
            for region in &regions[..found] {
                let next = Run { start: region.start as usize, end: region.end as usize };
                match &mut pending {
                    Some(run) if run.end == next.start => run.end = next.end,
                    _ => pending.replace(next).into_iter().for_each(&mut *each),
                }
            }
            assert!(argument.walk_end > argument.start, "a scan that succeeds comes further");
            argument.start = argument.walk_end;
        }
        pending.into_iter().for_each(each);
        Ok(())
    }
}

impl Drop for PageScan {
    fn drop(&mut self) {
        // SAFETY: the descriptor belongs to this value, and is not used again.
        let _ = unsafe { syscall(libc::SYS_close, [self.descriptor as usize, 0, 0, 0, 0, 0]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Reserved;
    use crate::uffd::{Uffd, feature, mode};

    const PAGE: usize = 4096;

    /// Pages of the runs that `scan` reports, counted from `start`.
    fn pages(start: usize, scan: impl FnOnce(&mut dyn FnMut(Run)) -> Result<(), Errno>) -> Result<Vec<usize>, Errno> {
        let mut found = Vec::new();
        scan(&mut |run: Run| found.extend((run.start - start) / PAGE..(run.end - start) / PAGE))?;
        Ok(found)
    }

    fn touch(memory: &Reserved, page: usize, byte: u8) {
        // SAFETY: the reservation is this test's, and no other buffer is alive.
        unsafe { memory.buffer(page * PAGE, PAGE) }.bytes_mut()[0] = byte;
    }

    fn skip(errno: Errno) {
        aquifer_test_support::skip(format!("this kernel does not scan: {errno}"));
    }

    #[test]
    fn only_touched_pages_are_populated_also_when_runs_need_several_calls() {
        let memory = Reserved::new(1024 * PAGE).unwrap();
        let touched: Vec<usize> = (0..1024).filter(|page| page % 3 == 0).collect();
        touched.iter().for_each(|page| touch(&memory, *page, 1));
        let scan = PageScan::open().unwrap();
        match pages(memory.address(), |each| scan.populated(memory.address(), memory.len(), each)) {
            Ok(found) => assert_eq!(found, touched),
            Err(errno) => skip(errno),
        }
    }

    #[test]
    fn written_pages_are_reported_once_and_reads_are_not_writes() {
        let memory = Reserved::new(16 * PAGE).unwrap();
        (0..16).for_each(|page| touch(&memory, page, 1));
        let opened = Uffd::open(feature::WP_ASYNC | feature::WP_UNPOPULATED | feature::PAGEFAULT_FLAG_WP, false);
        let uffd = match opened {
            Ok(uffd) => uffd,
            Err(errno) => return skip(errno),
        };
        uffd.register(memory.address(), memory.len(), mode::WP).unwrap();
        let scan = PageScan::open().unwrap();
        let written = || pages(memory.address(), |each| scan.take_written(memory.address(), memory.len(), each));
        match written() {
            Ok(first) => assert_eq!(first, (0..16).collect::<Vec<_>>()),
            Err(errno) => return skip(errno),
        }
        assert_eq!(written().unwrap(), []);
        [3, 4, 9].into_iter().for_each(|page| touch(&memory, page, 2));
        // SAFETY: as in `touch`.
        assert_eq!(unsafe { memory.buffer(5 * PAGE, PAGE) }.bytes()[0], 1);
        assert_eq!(written().unwrap(), [3, 4, 9]);
        assert_eq!(written().unwrap(), []);
    }

    #[test]
    fn memory_that_nobody_watches_is_refused() {
        let memory = Reserved::new(PAGE).unwrap();
        touch(&memory, 0, 1);
        let scan = PageScan::open().unwrap();
        let outcome = scan.take_written(memory.address(), memory.len(), &mut |_| {});
        assert!(outcome.is_err(), "{outcome:?}");
    }
}
