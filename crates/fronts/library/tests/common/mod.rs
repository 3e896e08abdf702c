// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Spaces over small tiers, for tests.

#![allow(dead_code, reason = "each test file that includes this uses its part of it")]

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use aquifer::{Mapping, Space, Status};
use aquifer_test_support::skip;

pub const MIB: usize = 1 << 20;
pub const PAGE: usize = 4096;

/// How long a test waits for what happens in the background.
const WAIT_MAX: Duration = Duration::from_secs(120);

pub fn can_run() -> bool {
    match aquifer::probe() {
        Ok(()) => true,
        Err(why) => {
            skip(why.to_string());
            false
        }
    }
}

/// A thread that sleeps, and whether it was woken.
struct Sleeper(Thread, AtomicBool);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::Release);
        self.0.unpark();
    }
}

/// Runs a future on a minimal executor that knows nothing of spaces, and never polls without being woken.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let sleeper = Arc::new(Sleeper(std::thread::current(), AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&sleeper));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let began = Instant::now();
        while !sleeper.1.swap(false, Ordering::Acquire) {
            assert!(began.elapsed() < WAIT_MAX, "a future was not woken for {WAIT_MAX:?}");
            std::thread::park_timeout(WAIT_MAX);
        }
    }
}

/// Opens a space with the smallest budget over a tier, with blocks of one size or `auto`.
pub fn space(tier: &str, block_size: &str) -> Space {
    Space::builder().dram("16MiB").tier(tier).block_size(block_size).open().expect("it can be opened")
}

/// Returns a mapping in which every word is its index times `salt`.
pub fn filled(space: &Space, bytes: usize, salt: u64) -> Mapping {
    let mut mapping = space.map(bytes).expect("it can be mapped");
    let words = mapping.view_mut::<u64>(..).expect("aligned");
    words.iter_mut().enumerate().for_each(|(index, word)| *word = index as u64 * salt);
    mapping
}

/// Waits until `is_so`.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < WAIT_MAX, "{what}: not within {WAIT_MAX:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the number of bytes of the mapping whose status satisfies `is_so`.
pub fn bytes_with(mapping: &Mapping, is_so: impl Fn(Status) -> bool) -> usize {
    let runs = mapping.status(..).expect("it is open");
    runs.iter().filter(|run| is_so(run.status)).map(|run| run.range.len()).sum()
}

pub fn is_stored(status: Status) -> bool {
    matches!(status, Status::Stored { .. })
}

/// Evicts all of a mapping to the tier.
pub fn evict_all(mapping: &Mapping) {
    let (started, mut asked) = (Instant::now(), 0);
    while bytes_with(mapping, is_stored) < mapping.len() {
        assert!(started.elapsed() < WAIT_MAX, "not evicted: {:?}", mapping.status(..));
        // A hint may be dropped.
        if started.elapsed().as_secs() >= asked {
            asked += 8;
            mapping.evict(..).expect("it is open");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // The eviction looks at the range once more, and would take back what arrives meanwhile.
    std::thread::sleep(Duration::from_millis(200));
}

/// A directory of a test, removed at its end.
pub struct Scratch(pub std::path::PathBuf);

impl Scratch {
    pub fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("aquifer-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory can be made");
        Self(path)
    }

    /// Returns the file of a named mapping.
    pub fn file(&self, name: &str) -> std::path::PathBuf {
        self.0.join(format!("{name}.aquifer"))
    }

    /// Makes a device whose reads take 200 ms, and 100 ms more for each that is before them. Returns the name of its
    /// tier.
    pub fn slow_device(&self) -> String {
        let profile = "description = \"slow\"\n\
            [read]\nlatency_ns = [[0.0, 100_000_000], [1.0, 100_000_000]]\nrequest_ns = 100_000_000\n\
            bytes_per_second = 1_000_000_000\n\
            [write]\nlatency_ns = [[0.0, 0], [1.0, 0]]\nbytes_per_second = 1_000_000_000\n";
        let path = self.0.join("slow.toml");
        std::fs::write(&path, profile).expect("it can be written");
        format!("emulated:{},size=64MiB", path.display())
    }

    /// Opens a space with the smallest budget over tiers, separated by `>`, and this directory for named mappings.
    pub fn space(&self, tiers: &str, block_size: &str) -> Space {
        let builder = Space::builder().dram("16MiB").block_size(block_size);
        let builder = tiers.split('>').fold(builder, |builder, tier| builder.tier(tier));
        builder.named_in(&self.0).open().expect("it can be opened")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
