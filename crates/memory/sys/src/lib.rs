// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Thin bindings to the kernel, with safe interfaces.
//!
//! Contains no policy. Public functions are safe, or state a `# Safety` contract.

#![allow(unsafe_code, reason = "the crate that holds the kernel boundary; each site states its contract")]

mod abandoned;
pub mod any_readable;
pub mod async_io;
pub mod bounded_write;
pub mod cancellation;
pub mod dax_memory;
pub mod deep_stack;
pub mod descriptors;
pub mod device_memory;
pub mod direct_io;
pub mod dispatch;
pub mod elf;
pub mod file_lock;
pub mod frame_buffer;
pub mod futex;
pub mod lent_memory;
pub mod lifeline;
pub mod liveness;
pub mod made_in;
pub mod mapped_file;
pub mod mctp_socket;
pub mod memory;
pub mod notify;
pub mod numa;
pub mod own_descriptors;
pub mod own_stack;
pub mod pagemap;
pub mod pagemap_scan;
pub mod peer_credentials;
pub mod probe;
pub mod program_file;
pub mod protection;
pub mod raw;
pub mod readiness;
pub mod safe_open;
pub mod shared_segment;
pub mod shown_calls;
pub mod signal_actions;
pub mod signal_frames;
pub mod signal_stack;
pub mod signals;
pub mod small_file;
pub mod spare_frames;
pub mod state_directory;
pub mod thread_pidfd;
pub mod thread_slot;
pub mod thread_state;
pub mod threads;
pub mod uffd;
pub mod uring;
pub mod verbs;
pub mod vfio;
pub mod wakeup;
pub mod words;

pub use frame_buffer::FrameBuffer;

/// The atomics of `futex.rs` and `wakeup.rs`, so that a test can substitute its own.
mod atomic {
    pub use std::sync::atomic::{AtomicU32, Ordering};
}
