// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Fetches resolve in any executor, overlap on one thread, and can be given up at any time.

mod common;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use aquifer::{Error, Pattern, Status, contexts};
use common::{MIB, PAGE, Scratch, block_on, bytes_with, can_run, evict_all, filled, is_stored, space, wait_until};

/// A task of which only the references are counted: each fetch on a list has one.
struct Task;

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

/// The space knows that such pages are the tier's: it can evict many of them by one kernel call, and writes none back.
#[test]
fn what_is_fetched_or_read_stays_known_clean_until_it_is_written_to() {
    if !can_run() {
        return;
    }
    let space = space("emulated:cmm-h,size=64MiB", "4KiB");
    let mut mapping = filled(&space, 4 * MIB, 3);
    evict_all(&mapping);
    let is_clean = |mapping: &aquifer::Mapping, at: usize| {
        let runs = mapping.status(at..at + PAGE).unwrap();
        runs.iter().all(|run| run.status == Status::Resident { is_clean: true })
    };
    let (fetched, read, gathered) = (64 * PAGE, 128 * PAGE, 256 * PAGE);
    block_on(mapping.fetch(fetched..fetched + PAGE)).unwrap();
    let mut bytes = [0; 8];
    mapping.read(read, &mut bytes).unwrap();
    assert_eq!(bytes, (read as u64 / 8 * 3).to_ne_bytes());
    block_on(mapping.fetch(gathered..gathered + PAGE)).unwrap();
    mapping.gather(8, &[gathered / 8], &mut bytes).unwrap();
    assert_eq!(bytes, (gathered as u64 / 8 * 3).to_ne_bytes());
    for at in [fetched, read, gathered] {
        assert!(is_clean(&mapping, at), "{:?}", mapping.status(at..at + PAGE));
    }
    mapping.write(read, &[1; 8]).unwrap();
    mapping.view_mut::<u64>(fetched..fetched + 8).unwrap()[0] = 9;
    for (at, expected) in [(fetched, false), (read, false), (gathered, true)] {
        assert_eq!(is_clean(&mapping, at), expected, "{:?}", mapping.status(at..at + PAGE));
    }
    assert_eq!(mapping.view::<u64>(read..read + 8).unwrap(), [0x0101_0101_0101_0101]);
}

#[test]
fn a_fetch_makes_memory_ready_in_any_executor() {
    if !can_run() {
        return;
    }
    let space = space("emulated:cmm-h,size=64MiB", "64KiB");
    let mapping = filled(&space, 4 * MIB, 3);
    evict_all(&mapping);
    for at in (0..2 * MIB).step_by(3 * PAGE) {
        let fetch = mapping.fetch(at..at + PAGE);
        block_on(fetch).unwrap();
        assert!(mapping.ready(at..at + PAGE), "at {at:#x}");
        assert_eq!(mapping.view::<u64>(at..at + 8).unwrap(), [at as u64 / 8 * 3]);
    }
    // From several threads at the same time, over the same pages.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for at in (2 * MIB..4 * MIB).step_by(PAGE * 5) {
                    block_on(mapping.fetch(at..at + 8)).unwrap();
                    assert_eq!(mapping.view::<u64>(at..at + 8).unwrap(), [at as u64 / 8 * 3]);
                }
            });
        }
    });
    drop(mapping);
    space.close().unwrap();
}

/// Each read of the tier takes a while; on one thread many of them overlap.
#[test]
fn contexts_overlap_their_fetches_and_each_finds_its_bytes() {
    if !can_run() {
        return;
    }
    let space = space("emulated:cmm-h,size=64MiB", "4KiB");
    let mapping = filled(&space, 24 * MIB, 3);
    mapping.pattern(.., Pattern::Random).unwrap();
    mapping.evict(..).unwrap();
    wait_until("eviction", || bytes_with(&mapping, is_stored) > 20 * MIB);
    let (words, good) = (mapping.view::<u64>(..).unwrap(), Cell::new(0));
    let (mapping, good) = (&mapping, &good);
    let lookups = (0..5000_usize).map(|key| async move {
        let index = key.wrapping_mul(2_654_435_761) % words.len();
        if !mapping.ready(index * 8..index * 8 + 8) {
            mapping.fetch(index * 8..index * 8 + 8).await.unwrap();
        }
        good.set(good.get() + usize::from(words[index] == index as u64 * 3));
    });
    let report = contexts::run(&space, lookups);
    assert_eq!((report.contexts, good.get()), (5000, 5000));
    assert!(report.in_flight_max > 8, "{report:?}");
}

#[test]
fn contexts_that_come_later_do_not_wait_for_those_in_flight() {
    if !can_run() {
        return;
    }
    let space = space("failing:every=1,on=read,times=0,delay=300ms:dram:size=64MiB", "64KiB");
    let mapping = filled(&space, MIB / 4, 3);
    evict_all(&mapping);
    let (mapping, ended, mut asked) = (&mapping, &RefCell::new(Vec::new()), 0);
    let report = contexts::serve(&space, || {
        asked += 1;
        let waits = match asked {
            1 => true,
            3 => false,
            _ => return None,
        };
        Some(async move {
            if waits {
                mapping.fetch(0..PAGE).await.unwrap();
            }
            ended.borrow_mut().push(waits);
        })
    });
    assert_eq!((report.contexts, &*ended.borrow()), (2, &vec![false, true]));
    // An iterator is not asked again.
    let mut numbers = [Some(1), None, Some(2)].into_iter();
    let report = contexts::run(&space, std::iter::from_fn(|| numbers.next().flatten().map(|_| async {})));
    assert_eq!((report.contexts, numbers.next()), (1, Some(Some(2))));
}

#[test]
fn an_abandoned_fetch_harms_nothing() {
    if !can_run() {
        return;
    }
    let space = space("failing:every=1,on=read,times=0,delay=3ms:dram:size=64MiB", "64KiB");
    let mapping = filled(&space, 8 * MIB, 3);
    evict_all(&mapping);
    for at in (0..4 * MIB).step_by(64 << 10) {
        let mut fetch = mapping.fetch(at..at + PAGE);
        assert!(Pin::new(&mut fetch).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    // Contexts that end while their fetches are under way.
    let report = contexts::run(
        &space,
        (0..64).map(|index| {
            let mut fetch = mapping.fetch(4 * MIB + index * PAGE..4 * MIB + (index + 1) * PAGE);
            std::future::poll_fn(move |context| {
                let _ = Pin::new(&mut fetch).poll(context);
                Poll::Ready(())
            })
        }),
    );
    assert_eq!(report.contexts, 64);
    let words = mapping.view::<u64>(..).unwrap();
    assert!(words.iter().enumerate().step_by(512).all(|(index, word)| *word == index as u64 * 3));
    let mut fetch = mapping.fetch(0..PAGE);
    let _ = Pin::new(&mut fetch).poll(&mut Context::from_waker(Waker::noop()));
    drop(mapping);
    space.close().unwrap();
    assert!(matches!(block_on(fetch), Ok(()) | Err(Error::Closed)));
}

/// A fetch that is started puts nothing at its address, which could wait for the tier if it was evicted again.
#[test]
fn a_started_fetch_is_left_to_the_touch() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=64MiB", "64KiB");
    let mapping = filled(&space, MIB, 3);
    evict_all(&mapping);
    let is_standby = || matches!(mapping.status(..PAGE).unwrap()[0].status, Status::Standby { .. });
    let (mut fetch, mut later) = (mapping.fetch(..PAGE), mapping.fetch(..PAGE));
    // What the space has dropped is asked for again.
    wait_until("arrival", || {
        if fetch.start() == Ok(true) && !is_standby() {
            fetch = mapping.fetch(..PAGE);
        }
        is_standby()
    });
    assert_eq!((later.start(), mapping.ready(0..PAGE), is_standby()), (Ok(true), false, true));
    wait_until("its end is known", || fetch.start() == Ok(true));
    assert!(!mapping.ready(0..PAGE));
    block_on(fetch).unwrap();
    assert!(mapping.ready(0..PAGE));
    assert_eq!(mapping.fetch(7..7).start(), Err(Error::EmptyRange));
    let mut gone = mapping.fetch(..PAGE);
    drop(mapping);
    assert_eq!((gone.start(), later.start()), (Err(Error::Closed), Err(Error::Closed)));
}

/// While a context runs, turns are rare, so what a dropped fetch leaves on the space's list would stay there. Each
/// fetch on the list has a waker.
#[test]
fn dropped_fetches_leave_the_list_without_a_turn() {
    const DROPPED: usize = 1_000_000;
    const KEPT: usize = 20;
    /// The space's worker has up to 32 fetches, even if they are dropped. As many may just have ended.
    const WITH_WORKER: usize = 2 * 32;
    if !can_run() {
        return;
    }
    let scratch = Scratch::new("dropped-fetches");
    let space = space(&scratch.slow_device(), "64KiB");
    let mapping = filled(&space, 8 * MIB, 3);
    evict_all(&mapping);
    let task = Arc::new(Task);
    let waker = Waker::from(Arc::clone(&task));
    let held = || Arc::strong_count(&task) - 2;
    let mut kept = Vec::new();
    let begin_and_drop = std::future::poll_fn(|_| {
        for index in 0..DROPPED {
            let mut fetch = mapping.fetch(index % 2048 * PAGE..(index % 2048 + 1) * PAGE);
            if Pin::new(&mut fetch).poll(&mut Context::from_waker(&waker)).is_ready() {
                // A turn has been taken all the same, and this has arrived.
                continue;
            }
            if index % (DROPPED / KEPT) == 0 {
                kept.push((index % 2048, fetch));
            }
            let (held, kept) = (held(), kept.len());
            assert!(held <= kept + 1 + WITH_WORKER, "after {index}: {held} on the list, {kept} kept");
        }
        Poll::Ready(())
    });
    assert_eq!(contexts::run(&space, [begin_and_drop]).contexts, 1);
    // The others are still on it, and end.
    for (page, fetch) in kept.drain(..) {
        block_on(fetch).unwrap();
        assert_eq!(mapping.view::<u64>(page * PAGE..page * PAGE + 8).unwrap(), [(page * PAGE / 8 * 3) as u64]);
    }
    // The thread that takes turns may still hold wakers of fetches whose outcome it has stored.
    wait_until("their wakers go", || held() == 0);
    drop(mapping);
    space.close().unwrap();
}

#[test]
fn a_context_may_wait_for_another_thread() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=16MiB", "64KiB");
    let started = Instant::now();
    let report = contexts::run(
        &space,
        (0..3).map(|_| {
            let mut thread = None;
            std::future::poll_fn(move |context| {
                if thread.is_some() {
                    return Poll::Ready(());
                }
                let waker = context.waker().clone();
                thread = Some(std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(20));
                    waker.wake();
                }));
                Poll::Pending
            })
        }),
    );
    assert_eq!((report.contexts, report.in_flight_max), (3, 3));
    assert!(started.elapsed() < Duration::from_secs(10));
}
