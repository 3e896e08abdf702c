// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What is held up holds up nobody else: executors whose thread blocks, reads that take long, wakers that do more than
//! wake, and processes that get no more threads.

#![allow(unsafe_code, reason = "a thread is refused further threads by the kernel")]

mod common;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use aquifer::{Copying, Mapping, Space, contexts};
use common::{MIB, PAGE, Scratch, block_on, can_run, evict_all, filled, space};

/// How long a test may take before it counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// Runs `act` on a thread of its own, and fails if it does not end.
#[track_caller]
fn ends(act: impl FnOnce() + Send + 'static) {
    let (ended, outcome) = mpsc::channel();
    std::thread::spawn(move || {
        act();
        let _ = ended.send(());
    });
    let outcome = outcome.recv_timeout(STUCK_AFTER);
    assert!(outcome != Err(mpsc::RecvTimeoutError::Timeout), "stuck");
    assert!(outcome.is_ok(), "it has panicked");
}

fn evicted(space: &Space, bytes: usize) -> Mapping {
    let mapping = filled(space, bytes, 3);
    evict_all(&mapping);
    mapping
}

/// Polls a future once.
fn once<F: Future + Unpin>(future: &mut F, context: &mut Context<'_>) -> Poll<F::Output> {
    Pin::new(future).poll(context)
}

/// Only executors took turns while there were any, so this thread waited for the context that waited for it.
#[test]
fn a_context_may_join_a_thread_that_fetches() {
    if !can_run() {
        return;
    }
    ends(|| {
        let space = space("emulated:cmm-h,size=64MiB", "4KiB");
        let mapping = &evicted(&space, MIB);
        let joins = (0..3).map(|index| async move {
            let fetch = |page: usize| block_on(mapping.fetch(page * PAGE..(page + 1) * PAGE));
            std::thread::scope(|scope| scope.spawn(|| fetch(index * 2)).join()).unwrap().unwrap();
            // The executor's own thread is no better.
            fetch(index * 2 + 1).unwrap();
        });
        assert_eq!(contexts::run(&space, joins).contexts, 3);
    });
}

/// As above, for futures that have nothing to do with the executor.
#[test]
fn a_blocked_executor_does_not_stop_the_fetches_of_others() {
    if !can_run() {
        return;
    }
    ends(|| {
        let space = space("emulated:cmm-h,size=64MiB", "4KiB");
        let mapping = &evicted(&space, 2 * MIB);
        let (go_on, told) = mpsc::channel::<()>();
        let (space, is_blocked) = (&space, &AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let told = &told;
                contexts::run(
                    space,
                    [async move {
                        // Its own fetch has ended, so turns have been taken.
                        mapping.fetch(..PAGE).await.unwrap();
                        is_blocked.store(true, Ordering::SeqCst);
                        let _ = told.recv();
                    }],
                )
            });
            while !is_blocked.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            for page in 1..40 {
                let at = page * 3 * PAGE;
                block_on(mapping.fetch(at..at + PAGE)).unwrap();
                assert_eq!(mapping.view::<u64>(at..at + 8).unwrap(), [at as u64 / 8 * 3]);
            }
            drop(go_on);
        });
    });
}

/// A tier whose reads in place take long holds up those that need its memory: neither contexts that other threads wake,
/// nor threads that drop copies. The executor waited for the device with the lock of its reads.
#[test]
fn a_slow_read_in_place_holds_up_nobody_who_does_not_need_it() {
    const ROUNDS: usize = 20;
    if !can_run() {
        return;
    }
    ends(|| {
        let scratch = Scratch::new("slow-device");
        let space = &space(&scratch.slow_device(), "4KiB");
        let mapping = &evicted(space, MIB);
        let (pass, passed) = mpsc::channel::<(Option<Copying<'_, '_>>, Waker)>();
        std::thread::scope(move |scope| {
            scope.spawn(move || {
                for (copy, waker) in passed {
                    drop(copy);
                    std::thread::sleep(Duration::from_micros(200));
                    waker.wake();
                }
            });
            // Dropped with the scope, which ends the thread.
            let (order, pass) = (&RefCell::new(Vec::new()), &{ pass });
            let contexts = (0..5).map(|index| async move {
                if index < 4 {
                    let (at, mut found) = (index * 2 * PAGE, [0; 8]);
                    mapping.copy(at, &mut found).await.unwrap();
                    assert_eq!(u64::from_ne_bytes(found), at as u64 / 8 * 3);
                } else {
                    let mut round = 0;
                    std::future::poll_fn(|context| {
                        round += 1;
                        let mut copy = mapping.copy((100 + round) * PAGE, vec![0; 8].leak());
                        assert!(once(&mut copy, context).is_pending());
                        // One of two is dropped here.
                        let copy = Some(copy).filter(|_| round % 2 == 0);
                        pass.send((copy, context.waker().clone())).unwrap();
                        if round > ROUNDS { Poll::Ready(()) } else { Poll::Pending }
                    })
                    .await;
                }
                order.borrow_mut().push(index);
            });
            contexts::run(space, contexts);
            let order = order.borrow();
            let last_copy = order.iter().rposition(|index| *index < 4);
            assert!(order.iter().position(|index| *index == 4) < last_copy, "{order:?}");
        });
    });
}

/// A task that consists of a copy, which is dropped with the last waker.
struct Task {
    _copy: Mutex<Copying<'static, 'static>>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

/// The last waker of a task drops its futures, which may be copies of the same executor. The executor's list dropped
/// wakers with its lock held.
#[test]
fn the_last_waker_of_a_task_may_drop_copies() {
    if !can_run() {
        return;
    }
    ends(|| {
        let space = space("emulated:xl-flash-slc,size=64MiB", "4KiB");
        // Such a task outlives what it borrows.
        let mapping: &'static Mapping = Box::leak(Box::new(evicted(&space, MIB)));
        let dropped = &Cell::new(0);
        let contexts = (0..2).map(|index| async move {
            std::future::poll_fn(|context| {
                let copy = |page: usize| mapping.copy((index * 100 + page) * PAGE, vec![0; 8].leak());
                let mut inner = copy(2);
                assert!(once(&mut inner, context).is_pending());
                let task = Arc::new(Task { _copy: Mutex::new(inner) });
                let (held, waker) = (Arc::downgrade(&task), Waker::from(task));
                let mut outer = copy(4);
                assert!(once(&mut outer, &mut Context::from_waker(&waker)).is_pending());
                drop(waker);
                assert_eq!(held.strong_count(), 1, "the list has it");
                if index == 0 {
                    // Another waker replaces it.
                    assert!(once(&mut outer, context).is_pending());
                } else {
                    drop(outer);
                }
                dropped.set(dropped.get() + usize::from(held.strong_count() == 0));
                Poll::Ready(())
            })
            .await;
        });
        assert_eq!(contexts::run(&space, contexts).contexts, 2);
        assert_eq!(dropped.get(), 2);
    });
}

/// The thread that takes turns uses a mapping for a moment, in which `unmap` said that it is pinned.
#[test]
fn a_fetch_under_way_does_not_count_as_a_pin() {
    const MAPPINGS: usize = 24;
    if !can_run() {
        return;
    }
    ends(|| {
        let space = space("failing:every=1,on=read,times=0,delay=1ms:dram:size=64MiB", "4KiB");
        let other = &evicted(&space, MIB);
        let mappings: Vec<_> = (0..MAPPINGS).map(|_| evicted(&space, MIB)).collect();
        let is_over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // Each fetch causes a turn.
                for page in (0..256).cycle().take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    let mut fetch = other.fetch(page * PAGE..(page + 1) * PAGE);
                    let _ = once(&mut fetch, &mut Context::from_waker(Waker::noop()));
                }
            });
            for (number, mapping) in mappings.into_iter().enumerate() {
                let mut fetches: Vec<_> = (0..24).map(|_| mapping.fetch(..)).collect();
                for fetch in &mut fetches {
                    let _ = once(fetch, &mut Context::from_waker(Waker::noop()));
                }
                std::thread::sleep(Duration::from_millis(1));
                let unmapped = mapping.unmap();
                is_over.fetch_or(unmapped.is_err() || number == MAPPINGS - 1, Ordering::Relaxed);
                assert_eq!(unmapped, Ok(()), "mapping {number}");
            }
        });
    });
}

/// Refuses this thread further threads: clone(2) and clone3(2) fail with EAGAIN, as at the limit of processes.
fn refuse_threads() {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let skip_unless = |number: i64| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: 1,
        k: number as u32,
    };
    let refusal = statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32);
    let mut filter = [
        // The number of the system call is the first word of the data.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        skip_unless(libc::SYS_clone),
        refusal,
        skip_unless(libc::SYS_clone3),
        refusal,
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: prctl(2) changes an attribute of this thread.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the kernel copies the filter, which is valid for the call; it applies to this thread only.
    let filtered = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(filtered, 0, "{}", std::io::Error::last_os_error());
    assert!(std::thread::Builder::new().spawn(|| ()).is_err());
}

/// Fetches that an executor leaves when it ends were left for ever if no thread could be started for them.
#[test]
fn fetches_left_by_an_executor_end_without_a_thread() {
    if !can_run() {
        return;
    }
    ends(|| {
        let space = space("failing:every=1,on=read,times=0,delay=5ms:dram:size=64MiB", "4KiB");
        let mapping = &evicted(&space, MIB);
        let mut fetches: Vec<_> = (0..80).map(|page| mapping.fetch(page * PAGE..(page + 1) * PAGE)).collect();
        refuse_threads();
        let (begun, mut polls) = (&RefCell::new(Vec::new()), 0);
        let begin = std::future::poll_fn(move |context| {
            for mut fetch in fetches.drain(..) {
                let _ = once(&mut fetch, &mut Context::from_waker(Waker::noop()));
                begun.borrow_mut().push(fetch);
            }
            // The executor's turns start some of them, and others still wait when it ends.
            polls += 1;
            context.waker().wake_by_ref();
            if polls < 200 { Poll::Pending } else { Poll::Ready(()) }
        });
        contexts::run(&space, [begin]);
        for (page, fetch) in begun.take().into_iter().enumerate() {
            block_on(fetch).unwrap();
            assert_eq!(mapping.view::<u64>(page * PAGE..page * PAGE + 8).unwrap(), [(page * PAGE / 8 * 3) as u64]);
        }
    });
}
