// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The library that `aquifer run` preloads: puts an unchanged program's memory under the pager's care.
//!
//! `start.rs` reads the configuration before `main` runs. `heap.rs` is the program's malloc, `mappings.rs`
//! its mmap, both over adopted memory; `choice.rs` says which mapping gets which delivery. `transfers.rs`,
//! `messages.rs` and `stdio.rs` let system calls use memory that only a signal can bring; `process.rs` is
//! about fork and signal actions, `threads.rs` about stacks for the fault handler. `own_allocator.rs` and
//! `kernel.rs` keep the library's own memory and calls apart.

mod choice;
mod heap;
mod kernel;
mod mappings;
mod messages;
mod next;
mod own_allocator;
mod process;
mod start;
mod stdio;
mod threads;
mod transfers;
