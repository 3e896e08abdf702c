// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The list of fetches in a forked child.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::Context;

use aquifer_test_support::skip;

use super::*;
use crate::{CloseError, Space, contexts};

const PAGE: usize = 4096;

/// A forked child waited for ever for a lock that another thread of its parent had when it forked.
#[test]
fn a_forked_child_does_not_wait_for_the_list() {
    if let Err(why) = crate::probe() {
        return skip(why);
    }
    // The fetches are under way for as long as the test needs.
    let tier = "failing:every=1,on=read,times=0,delay=300ms:dram:size=64MiB";
    let space = Space::builder().dram("16MiB").tier(tier).block_size("4KiB").open().expect("it can be opened");
    let mut mapping = space.map(1 << 20).expect("it can be mapped");
    mapping.write(0, &[7; 2 * PAGE]).expect("there is room");
    while mapping.ready(0..1) || mapping.ready(PAGE..PAGE + 1) {
        mapping.evict(0..2 * PAGE).expect("a hint");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut context = Context::from_waker(Waker::noop());
    let mut polled = pin!(mapping.fetch(0..PAGE));
    let mut dropped = Box::pin(mapping.fetch(PAGE..2 * PAGE));
    assert!(polled.as_mut().poll(&mut context).is_pending() && dropped.as_mut().poll(&mut context).is_pending());

    let list = Fetches::list(&space.shared);
    // SAFETY: the child calls this library and the standard library only, and ends by _exit(2); glibc lets a child
    // allocate.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: SIGALRM ends a child that waits.
        unsafe { libc::alarm(20) };
        std::mem::forget(list);
        drop(dropped);
        let is_told = polled.as_mut().poll(&mut context) == Poll::Ready(Err(Error::Forked));
        let is_open = space.clone().close() == Err(CloseError::InUse);
        let (mapping, told) = (&mapping, &Cell::new(0));
        let lookups = (0..2).map(|index| async move {
            let outcome = match index {
                0 => mapping.fetch(0..PAGE).await,
                _ => mapping.copy(0, &mut [0; 8]).await,
            };
            told.set(told.get() + u32::from(outcome == Err(Error::Forked)));
        });
        contexts::run(&space, lookups);
        let status = i32::from(!is_told) + 2 * i32::from(!is_open) + 4 * i32::from(told.get() != 2);
        // SAFETY: ends the child without running what the parent has registered.
        unsafe { libc::_exit(status) };
    }
    assert!(child > 0);
    drop(list);
    let mut status = 0;
    // SAFETY: waitpid(2) writes one number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "ended by signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "1: not told, 2: closed, 4: contexts");
}
