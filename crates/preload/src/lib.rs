// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The library that `aquifer run` preloads: puts an unchanged program's memory under the pager's care.
//!
//! `start.rs` reads the configuration before `main` runs. `heap.rs` is the program's malloc, `mappings.rs` its mmap
//! (`remap.rs` its mremap; `by_number.rs` all of them by syscall(2)), both over adopted memory; `choice.rs` says which
//! mapping gets which delivery.
//!
//! System calls on memory that only a signal can bring come in through `transfers.rs` and `stdio.rs` by name, and
//! through `trap.rs` otherwise; `calls.rs` does them with what `pointers.rs` says they touch, `bounce.rs` what is
//! too large for that. `masks.rs`, `process.rs` and `threads.rs` keep the two signals that all this needs, `locks.rs`
//! is mlock, `programs.rs` execve and posix_spawn, `descendants.rs` what they leave out, `descriptors.rs` close,
//! `dropped_rights.rs` setuid, `locale.rs` setlocale, `unmovable.rs` what the kernel would go on using.
//! `own_allocator.rs` and `kernel.rs` keep the library's own memory and calls apart.

mod bounce;
mod by_number;
mod calls;
mod choice;
mod debugging;
mod deep_binding;
mod descendants;
mod descriptors;
mod dropped_rights;
mod forks;
mod guests;
mod heap;
mod inner_pointers;
mod inner_threads;
mod kernel;
mod locale;
mod locks;
mod mappings;
mod masks;
mod next;
mod own_allocator;
mod pointers;
mod process;
mod program_lists;
mod program_memory;
mod programs;
mod reach;
mod remap;
mod start;
mod stdio;
mod threads;
mod transfers;
mod trap;
mod unmovable;
