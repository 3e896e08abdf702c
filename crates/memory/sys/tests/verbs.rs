// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One-sided access between two queue pairs of this process: written bytes can be read, and none of them after their
//! window has been closed.
//!
//! Requires an RDMA device, such as one made by Soft-RoCE; `AQUIFER_RDMA=required` makes its absence a failure. The
//! guest in `crates/lab/e2e/tests/rdma.rs` has one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aquifer_sys::lent_memory::{LentMemory, Source};
use aquifer_sys::verbs::{BounceBuffer, Completion, Device, Domain, QueuePair, VerbsFailure, Window, Work, choose};

const SLAB: usize = 2 << 20;
const TIMEOUT: Duration = Duration::from_secs(20);

fn device() -> Option<Arc<Device>> {
    match choose(None, None).and_then(|port| Device::open(&port)) {
        Ok(device) => Some(Arc::new(device)),
        Err(failure) if std::env::var("AQUIFER_RDMA").as_deref() == Ok("required") => panic!("{failure}"),
        Err(failure) => {
            aquifer_test_support::skip(failure);
            None
        }
    }
}

/// A pair at each end, connected to each other: the second pair permits access by the first.
fn joined(domain: &Arc<Domain>, other: &Arc<Domain>) -> (QueuePair, QueuePair) {
    let (one, two) = (QueuePair::new(domain).unwrap(), QueuePair::new(other).unwrap());
    two.connect(22, &one.end(11), true).unwrap();
    one.connect(11, &two.end(22), false).unwrap();
    (one, two)
}

fn done(pair: &QueuePair) -> Completion {
    let begun = Instant::now();
    loop {
        if let Some(completion) = pair.poll().unwrap() {
            return completion;
        }
        assert!(begun.elapsed() < TIMEOUT, "no completion");
        pair.arm().unwrap();
        if let Some(completion) = pair.poll().unwrap() {
            return completion;
        }
        pair.wait(Duration::from_millis(100));
    }
}

#[test]
fn written_bytes_are_read_until_the_window_is_closed() {
    let Some(device) = device() else { return };
    println!("{:?}, packets of {} bytes", device.port(), 128 << device.mtu());
    let domains = [(); 3].map(|()| Arc::new(Domain::new(&device).unwrap()));
    let (one, two) = joined(&domains[0], &domains[1]);
    let memory = Arc::new(LentMemory::new(&Source::Anonymous, 2 * SLAB).unwrap());
    let window = Window::open(&domains[1], &memory, SLAB, SLAB).unwrap();
    let mut buffer = BounceBuffer::new(&domains[0], 1 << 20).unwrap();
    let page: Vec<u8> = (0..8192u32).map(|at| (at % 251) as u8).collect();
    buffer.copy_in(4096, &page);
    one.post(Work::Write, &mut buffer, 4096, page.len(), 40_960, window.key()).unwrap();
    assert_eq!(done(&one), Completion::Done);
    let mut there = vec![0; page.len()];
    memory.copy_out(SLAB + 40_960, &mut there);
    assert!(there == page);
    one.post(Work::Read, &mut buffer, 65_536, page.len(), 40_960, window.key()).unwrap();
    assert_eq!(done(&one), Completion::Done);
    there.fill(0);
    buffer.copy_out(65_536, &mut there);
    assert!(there == page);
    // A key of a domain to which the peer's pair does not belong is refused.
    let others = Window::open(&domains[2], &memory, 0, SLAB).unwrap();
    one.post(Work::Read, &mut buffer, 0, 4096, 0, others.key()).unwrap();
    assert_eq!(done(&one), Completion::Refused);
    // The pair works again after it has been reconnected.
    one.reset().unwrap();
    two.reset().unwrap();
    two.connect(5, &one.end(7), true).unwrap();
    one.connect(7, &two.end(5), false).unwrap();
    one.post(Work::Read, &mut buffer, 0, 1 << 20, 0, window.key()).unwrap();
    assert_eq!(done(&one), Completion::Done);
    // After the window was closed.
    let key = window.key();
    drop(window);
    let before = vec![7; 4096];
    memory.copy_in(SLAB, &before);
    one.post(Work::Write, &mut buffer, 0, 4096, 0, key).unwrap();
    assert_eq!(done(&one), Completion::Refused);
    let mut after = vec![0; 4096];
    memory.copy_out(SLAB, &mut after);
    assert!(after == before, "what is late changes nothing");
}

#[test]
fn a_read_beyond_the_window_is_refused() {
    let Some(device) = device() else { return };
    let domain = Arc::new(Domain::new(&device).unwrap());
    let (one, _two) = joined(&domain, &domain);
    let memory = Arc::new(LentMemory::new(&Source::Anonymous, 2 * SLAB).unwrap());
    let window = Window::open(&domain, &memory, 0, SLAB).unwrap();
    let mut buffer = BounceBuffer::new(&domain, 8192).unwrap();
    one.post(Work::Read, &mut buffer, 0, 8192, SLAB as u64 - 4096, window.key()).unwrap();
    assert_eq!(done(&one), Completion::Refused);
}

#[test]
fn a_peer_that_is_gone_is_known_within_a_bound() {
    let Some(device) = device() else { return };
    let domain = Arc::new(Domain::new(&device).unwrap());
    let (one, two) = joined(&domain, &domain);
    let memory = Arc::new(LentMemory::new(&Source::Anonymous, SLAB).unwrap());
    let window = Window::open(&domain, &memory, 0, SLAB).unwrap();
    let mut buffer = BounceBuffer::new(&domain, 4096).unwrap();
    drop(two);
    let begun = Instant::now();
    one.post(Work::Read, &mut buffer, 0, 4096, 0, window.key()).unwrap();
    assert_eq!(done(&one), Completion::Silent);
    println!("known after {:?}", begun.elapsed());
    // A caller that cannot wait resets the pair, and then finds no completion.
    one.reset().unwrap();
    one.connect(1, &one.end(1), false).unwrap();
    one.reset().unwrap();
    assert_eq!(one.poll().unwrap(), None);
}

#[test]
fn without_a_library_or_a_device_it_is_said_why() {
    let Err(failure) = choose(Some("no-such-device"), None) else { panic!("there is no such device") };
    assert!(matches!(failure, VerbsFailure::NoSuchDevice { .. }), "{failure}");
    match choose(None, None).and_then(|port| Device::open(&port)) {
        Ok(_) => aquifer_test_support::skip("there is a device"),
        Err(failure) => assert!(!failure.to_string().contains('\n'), "{failure}"),
    }
}
