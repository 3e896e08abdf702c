// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Measures the kernel's part of a fault, without a tier: the report of a missing page and its installation, each alone
//! and while another CPU runs a thread of the same address space.
//!
//! ```text
//! cargo run --release -p aquifer-pager --example primitives
//! ```
//!
//! The measured thread stays on CPU 0; the busy thread spins on CPU 1, and listeners live there. `fault` is a touch
//! of a missing block as the program sees it. `call` is one UFFDIO_MOVE outside of a fault, which is how blocks
//! are evicted. `call, WRITEPROTECT` protects as many bytes of resident memory, and `call, drop` drops single pages,
//! far from each other, by one process_madvise(2). `guard` is the CRC-64 of one block. If other programs take CPU 1,
//! the busy thread is seldom interrupted, and the last column is as low as the one before. Exit codes: 0 done, 1 the
//! kernel refused, or there is no CPU 1.

#![allow(unsafe_code, reason = "a signal handler, and pages that move: each site states its contract")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use aquifer_core::guard;
use aquifer_sys::memory::{MADV_POPULATE_WRITE, Reserved, Span, advise, drop_pages, drop_spans};
use aquifer_sys::raw::{Errno, now_ns, syscall};
use aquifer_sys::uffd::{Partial, Uffd, feature, mode};
use aquifer_sys::{signals, wakeup};

const SIZES: [usize; 3] = [4 << 10, 128 << 10, 2 << 20];
/// The number of faults for each size: enough for a median. Those of the largest size take 128 MiB.
const FAULTS: [usize; 3] = [4096, 512, 64];
/// How many single pages one call drops.
const DROPPED: [usize; 2] = [1, 32];
const PAGE: usize = 4 << 10;
/// The distance between such pages.
const APART: usize = 64 << 10;
/// The kernel returns EAGAIN while another thread changes the address space. Here each change is short.
const KERNEL_TRIES: u32 = 1000;

/// How a missing block is reported.
#[derive(Clone, Copy, PartialEq)]
enum Delivery {
    Signal,
    Listener,
}

/// How a block's pages are installed.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Copy,
    Move,
}

/// The state of the handler and the listener, as atomics, because they may read it at any time.
static TARGET: AtomicUsize = AtomicUsize::new(0);
static SOURCE: AtomicUsize = AtomicUsize::new(0);
static BLOCK: AtomicUsize = AtomicUsize::new(0);
static MOVES: AtomicBool = AtomicBool::new(false);
static UFFD: AtomicUsize = AtomicUsize::new(0);

fn main() -> ExitCode {
    match report() {
        Ok(()) => ExitCode::SUCCESS,
        Err(errno) => {
            eprintln!("primitives: the kernel refused: {errno:?}; `aquifer doctor` says what this machine can do");
            ExitCode::FAILURE
        }
    }
}

fn report() -> Result<(), Errno> {
    stay_on(0)?;
    println!("{:<28} {:>9} {:>12} {:>12}", "median us", "bytes", "alone", "other busy");
    for (delivery, way, name) in [
        (Delivery::Signal, Way::Copy, "fault, signal, COPY"),
        (Delivery::Signal, Way::Move, "fault, signal, MOVE"),
        (Delivery::Listener, Way::Copy, "fault, listener, COPY"),
        (Delivery::Listener, Way::Move, "fault, listener, MOVE"),
    ] {
        for (size, count) in SIZES.into_iter().zip(FAULTS) {
            let alone = faults(delivery, way, size, count)?;
            if delivery == Delivery::Listener {
                println!("{name:<28} {size:>9} {alone:>12.1}");
                continue;
            }
            let busy = beside_a_busy_thread(|| faults(delivery, way, size, count))?;
            println!("{name:<28} {size:>9} {alone:>12.1} {busy:>12.1}");
        }
    }
    for (size, count) in SIZES.into_iter().zip(FAULTS) {
        let alone = calls(size, count)?;
        let busy = beside_a_busy_thread(|| calls(size, count))?;
        println!("{:<28} {size:>9} {alone:>12.1} {busy:>12.1}", "call, MOVE");
    }
    for (size, count) in SIZES.into_iter().zip(FAULTS) {
        let alone = protections(size, count)?;
        let busy = beside_a_busy_thread(|| protections(size, count))?;
        println!("{:<28} {size:>9} {alone:>12.1} {busy:>12.1}", "call, WRITEPROTECT");
    }
    for pages in DROPPED {
        let alone = drops(pages)?;
        let busy = beside_a_busy_thread(|| drops(pages))?;
        println!("{:<28} {:>9} {alone:>12.1} {busy:>12.1}", "call, drop", pages * PAGE);
    }
    for (size, count) in SIZES.into_iter().zip(FAULTS) {
        println!("{:<28} {size:>9} {:>12.1}", "guard", guards(size, count)?);
    }
    Ok(())
}

/// Touches `count` missing blocks, each of which is resolved with pages that are allocated already.
fn faults(delivery: Delivery, way: Way, size: usize, count: usize) -> Result<f64, Errno> {
    let features = if delivery == Delivery::Signal { feature::SIGBUS } else { 0 };
    let moves = if way == Way::Move { feature::MOVE } else { 0 };
    // Neither the descriptor nor the memory is given back: the handler may be about to use them, and the process
    // ends soon.
    let uffd: &'static Uffd = Box::leak(Box::new(Uffd::open(features | moves, delivery == Delivery::Listener)?));
    let (target, source) = pages(size * count)?;
    if delivery == Delivery::Listener {
        let warmed = std::thread::spawn(move || stay_on(1).and_then(|()| warm(target))).join();
        warmed.expect("nothing there panics")?;
    }
    uffd.register(target.address(), target.len(), mode::MISSING)?;
    UFFD.store(std::ptr::from_ref(uffd) as usize, Ordering::Relaxed);
    TARGET.store(target.address(), Ordering::Relaxed);
    SOURCE.store(source.address(), Ordering::Relaxed);
    BLOCK.store(size, Ordering::Relaxed);
    MOVES.store(way == Way::Move, Ordering::Release);
    match delivery {
        // SAFETY: `on_sigbus` reads atomics and makes system calls, which may be done anywhere.
        Delivery::Signal => unsafe {
            signals::exchange_action(libc::SIGBUS, Some(&signals::fault_action(on_sigbus)))?;
        },
        Delivery::Listener => {
            std::thread::spawn(move || stay_on(1).map(|()| listen(uffd)));
        }
    }
    let touch = |index: usize| {
        // SAFETY: within the reservation, which is never unmapped, and which no other thread reads or writes.
        unsafe { std::ptr::read_volatile((target.address() + index * size) as *const u8) };
    };
    let median = median_us(count, touch);
    give_back(target)?;
    give_back(source)?;
    Ok(median)
}

/// A range without pages, and a range with pages. The first had pages a moment ago. Otherwise the measurement would
/// include the time in which the machine, or the host below it, finds and clears memory.
fn pages(len: usize) -> Result<(&'static Reserved, &'static Reserved), Errno> {
    let range = || Reserved::new(len).map(|range| &*Box::leak(Box::new(range)));
    let (target, source) = (range()?, range()?);
    advise(source.address(), len, MADV_POPULATE_WRITE)?;
    warm(target)?;
    Ok((target, source))
}

/// Populates a range and drops its pages. Each CPU keeps free pages of its own, so this runs on the CPU that will
/// allocate them.
fn warm(range: &Reserved) -> Result<(), Errno> {
    advise(range.address(), range.len(), MADV_POPULATE_WRITE)?;
    give_back(range)
}

fn give_back(range: &Reserved) -> Result<(), Errno> {
    // SAFETY: nobody needs the contents, and no buffer lies over the range.
    unsafe { drop_pages(range.address(), range.len()) }
}

/// Keeps this thread on one CPU.
fn stay_on(cpu: usize) -> Result<(), Errno> {
    let set = 1u64 << cpu;
    // SAFETY: sched_setaffinity(2) reads eight bytes of the set.
    let set = unsafe { syscall(libc::SYS_sched_setaffinity, [0, 8, &raw const set as usize, 0, 0, 0]) };
    set.map(|_| ())
}

extern "C" fn on_sigbus(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid siginfo, with an address for SIGBUS.
    resolve(unsafe { (*info).si_addr() } as usize);
}

fn listen(uffd: &'static Uffd) {
    loop {
        match uffd.read_fault() {
            Ok(Some(fault)) => resolve(fault.address as usize),
            Ok(None) => {
                wakeup::readable(uffd.descriptor(), Duration::from_secs(3600));
            }
            Err(errno) => {
                eprintln!("primitives: the userfaultfd cannot be read: {errno:?}");
                signals::exit_now(1);
            }
        }
    }
}

/// Installs the block around `address`. Runs in a signal handler.
fn resolve(address: usize) {
    let moves = MOVES.load(Ordering::Acquire);
    let (target, block) = (TARGET.load(Ordering::Relaxed), BLOCK.load(Ordering::Relaxed));
    // SAFETY: a leaked box, stored before the first fault.
    let uffd = unsafe { &*(UFFD.load(Ordering::Relaxed) as *const Uffd) };
    let at = (address - target) / block * block;
    let source = SOURCE.load(Ordering::Relaxed) + at;
    let mut done = 0;
    for _ in 0..KERNEL_TRIES {
        let (to, from, len) = (target + at + done, source + done, block - done);
        // SAFETY: both ranges belong to this program alone, and no buffer lies over them; the source is readable.
        let outcome =
            unsafe { if moves { uffd.move_pages(to, from, len, false) } else { uffd.copy(to, from, len, false) } };
        match outcome {
            Ok(()) => return,
            Err(Partial { done: more, errno: Errno(libc::EAGAIN) }) => done += more,
            Err(_) => break,
        }
    }
    aquifer_sys::raw::write_stderr(b"primitives: a block cannot be installed\n");
    signals::exit_now(1);
}

/// Moves `count` blocks from one place to another, outside of any fault.
fn calls(size: usize, count: usize) -> Result<f64, Errno> {
    let uffd = Uffd::open(feature::MOVE, false)?;
    let (target, source) = pages(size * count)?;
    uffd.register(target.address(), target.len(), mode::MISSING)?;
    let mut refused = None;
    let median = median_us(count, |index| {
        let at = index * size;
        // SAFETY: both ranges belong to this function alone, and no buffer lies over them.
        let moved = unsafe { uffd.move_pages(target.address() + at, source.address() + at, size, false) };
        refused = refused.or(moved.err());
    });
    give_back(target)?;
    refused.map_or(Ok(median), |partial| Err(partial.errno))
}

/// Write-protects `count` resident blocks, one after the other.
fn protections(size: usize, count: usize) -> Result<f64, Errno> {
    let uffd = Uffd::open(0, false)?;
    let (_, resident) = pages(size * count)?;
    uffd.register(resident.address(), resident.len(), mode::WP)?;
    let mut refused = None;
    let median = median_us(count, |index| {
        let protected = uffd.write_protect(resident.address() + index * size, size, true);
        refused = refused.or(protected.err());
    });
    give_back(resident)?;
    refused.map_or(Ok(median), Err)
}

/// Drops resident pages, `together` in each call.
fn drops(together: usize) -> Result<f64, Errno> {
    const CALLS: usize = 64;
    let range = Reserved::new(CALLS * together * APART)?;
    let place = |index: usize| Span { start: range.address() + index * APART, len: PAGE };
    for index in 0..CALLS * together {
        advise(place(index).start, PAGE, MADV_POPULATE_WRITE)?;
    }
    let mut refused = None;
    let median = median_us(CALLS, |call| {
        let spans: [Span; DROPPED[1]] = std::array::from_fn(|index| place(call * together + index % together));
        // SAFETY: nobody needs the contents, and no buffer lies over the range.
        refused = refused.or(unsafe { drop_spans(&spans[..together]) }.err());
    });
    refused.map_or(Ok(median), Err)
}

fn guards(size: usize, count: usize) -> Result<f64, Errno> {
    let area = Reserved::new(size * count)?;
    let mut found = vec![0; size / 4096];
    // SAFETY: the only buffer over this reservation.
    let mut buffer = unsafe { area.buffer(0, area.len()) };
    buffer.bytes_mut().iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 251) as u8 + 1);
    Ok(median_us(count, |index| {
        guard::of_block(&buffer.bytes()[index * size..(index + 1) * size], &mut found);
        std::hint::black_box(&found);
    }))
}

fn median_us(count: usize, mut what: impl FnMut(usize)) -> f64 {
    let mut times: Vec<u64> = Vec::with_capacity(count);
    for index in 0..count {
        let before = now_ns();
        what(index);
        times.push(now_ns() - before);
    }
    times.sort_unstable();
    times[count / 2] as f64 / 1000.0
}

/// Keeps another CPU in this address space, so that removing a page must invalidate that CPU's TLB, too.
fn beside_a_busy_thread(measure: impl FnOnce() -> Result<f64, Errno>) -> Result<f64, Errno> {
    let stop = AtomicBool::new(false);
    let beats = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = stay_on(1);
            while !stop.load(Ordering::Relaxed) {
                beats.fetch_add(1, Ordering::Relaxed);
            }
        });
        while beats.load(Ordering::Relaxed) == 0 {
            std::hint::spin_loop();
        }
        let measured = measure();
        stop.store(true, Ordering::Relaxed);
        measured
    })
}
