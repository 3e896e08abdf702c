// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bytes between the threads that record events and the thread that writes them to a file.
//!
//! Threads: one producer at a time, the holder of the engine's lock; one consumer, the recorder's thread. The producer
//! may be in a signal handler: it does not allocate, and never waits. An event that finds no room is lost, and so is
//! every later one, since a replay cannot continue after a gap. Lost events are counted.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use aquifer_core::record::{Call, Sink, Summary, put_call, put_summary};

/// A ring of bytes between one producer of recorded events and the thread that writes them to a file.
#[derive(Debug)]
pub(crate) struct ByteRing {
    /// The length is a power of two.
    bytes: Box<[AtomicU8]>,
    /// Bytes put in so far, by whole events. Written by the producer.
    head: AtomicU64,
    /// Bytes taken out so far. Written by the consumer.
    tail: AtomicU64,
    /// Events that found no room.
    lost: AtomicU64,
    /// False once nothing more is to be recorded.
    open: AtomicBool,
}

impl ByteRing {
    /// An empty ring of `len` bytes, a power of two. All of it is touched now, so that no event has to wait for the
    /// kernel to allocate pages.
    pub(crate) fn new(len: usize) -> Self {
        assert!(len.is_power_of_two());
        // Not zeros: the kernel would allocate zeroed pages one by one, at their first touch.
        let bytes = (0..len).map(|_| AtomicU8::new(0xff)).collect();
        let zero = || AtomicU64::new(0);
        Self { bytes, head: zero(), tail: zero(), lost: zero(), open: AtomicBool::new(true) }
    }

    /// Puts one event in. True if the consumer has work to do.
    pub(crate) fn push(&self, call: &Call<'_>, summary: Summary) -> bool {
        if !self.open.load(Ordering::Relaxed) {
            return false;
        }
        if self.lost.load(Ordering::Relaxed) == 0 {
            let head = self.head.load(Ordering::Relaxed);
            // Acquire pairs with the Release in `take`: bytes that were taken may be overwritten.
            let limit = self.tail.load(Ordering::Acquire) + self.bytes.len() as u64;
            let mut writer = Writer { ring: self, at: head, limit, full: false };
            put_call(&mut writer, call);
            put_summary(&mut writer, call, summary);
            if !writer.full {
                // Release pairs with the Acquire in `take`: the bytes have been written.
                self.head.store(writer.at, Ordering::Release);
                return true;
            }
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Appends all events in the ring to `bytes`, which has room for them.
    pub(crate) fn take(&self, bytes: &mut Vec<u8>) {
        let (tail, head) = (self.tail.load(Ordering::Relaxed), self.head.load(Ordering::Acquire));
        bytes.extend((tail..head).map(|at| self.byte(at).load(Ordering::Relaxed)));
        self.tail.store(head, Ordering::Release);
    }

    /// The number of events that have found no room so far.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// From now on events are neither recorded nor counted.
    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::Relaxed);
    }

    fn byte(&self, at: u64) -> &AtomicU8 {
        &self.bytes[at as usize & (self.bytes.len() - 1)]
    }
}

/// Puts the bytes of one event after the others, where the consumer does not see them yet.
struct Writer<'a> {
    ring: &'a ByteRing,
    at: u64,
    limit: u64,
    full: bool,
}

impl Sink for Writer<'_> {
    fn put(&mut self, byte: u8) {
        if self.at == self.limit {
            self.full = true;
            return;
        }
        self.ring.byte(self.at).store(byte, Ordering::Relaxed);
        self.at += 1;
    }
}

#[cfg(test)]
mod tests {
    use aquifer_core::record::count_events;
    use aquifer_core::units::BlockIndex;

    use super::*;

    const EVENT: Call<'_> = Call::Evicted { block: BlockIndex(7) };

    fn push(ring: &ByteRing) -> bool {
        ring.push(&EVENT, Summary::of_flag(true))
    }

    #[test]
    fn events_come_out_in_order_and_around_the_end() {
        let ring = ByteRing::new(16);
        let mut all = Vec::new();
        for block in 0..100 {
            assert!(ring.push(&Call::Evicted { block: BlockIndex(block) }, Summary::of_flag(false)));
            if block % 5 == 4 {
                ring.take(&mut all);
            }
        }
        assert_eq!(all, (0..100).flat_map(|block| [6, block, 0]).collect::<Vec<u8>>());
        assert_eq!((count_events(&all), ring.lost()), (Some(100), 0));
    }

    #[test]
    fn a_full_ring_keeps_what_it_has_and_takes_nothing_more() {
        let ring = ByteRing::new(16);
        (0..7).for_each(|_| {
            push(&ring);
        });
        let mut bytes = Vec::new();
        ring.take(&mut bytes);
        assert_eq!((count_events(&bytes), ring.lost()), (Some(5), 2));
        // There is room again, and a gap before it.
        push(&ring);
        ring.take(&mut bytes);
        assert_eq!((count_events(&bytes), ring.lost()), (Some(5), 3));
        ring.close();
        assert!(!push(&ring));
        assert_eq!(ring.lost(), 3);
    }

    #[test]
    fn a_consumer_sees_whole_events_only() {
        let ring = ByteRing::new(1 << 10);
        std::thread::scope(|scope| {
            let producer = scope.spawn(|| (0..200_000).filter(|_| push(&ring)).count());
            let (mut bytes, mut taken) = (Vec::new(), 0);
            while !producer.is_finished() {
                bytes.clear();
                ring.take(&mut bytes);
                taken += count_events(&bytes).expect("whole events");
            }
            bytes.clear();
            ring.take(&mut bytes);
            taken += count_events(&bytes).expect("whole events");
            assert_eq!(taken + ring.lost(), 200_000);
        });
    }
}
