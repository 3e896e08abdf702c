// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The library that `aquifer run` preloads: puts an unchanged program's memory under the pager's management.
//!
//! `start.rs` reads the configuration before `main` runs. `heap.rs` is the program's malloc, `mappings.rs` its mmap and
//! `remap.rs` its mremap, all over adopted memory; `by_number.rs` handles the same calls on memory when they are made
//! through syscall(2). `choice.rs` decides which mapping gets which delivery.
//!
//! System calls on memory with signal delivery enter through `transfers.rs` and `stdio.rs` by name, and through
//! `trap.rs` otherwise. `calls.rs` makes them, using `pointers.rs` to find the memory they touch; `bounce.rs` handles
//! transfers too large to pin. `masks.rs`, `signal_actions.rs`, `threads.rs` and `stacks_of_thread.rs` protect the two
//! signals that all this needs. `locks.rs` wraps mlock, `programs.rs` execve and posix_spawn, `descriptors.rs` close,
//! `dropped_rights.rs` setuid, and `locale.rs` setlocale. `descendants.rs` keeps executed programs managed, and reports
//! those that cannot be. `ordinary_memory.rs` is what `libaquifer` finds here. `unmovable.rs` handles calls after which
//! the kernel would keep using the program's pages. `own_allocator.rs` and `kernel.rs` keep the library's own memory
//! and calls separate from the program's.

mod bounce;
mod by_number;
mod calls;
mod calls_in_progress;
mod choice;
mod debugging;
mod deep_binding;
mod descendants;
mod descriptors;
mod dropped_rights;
mod forks;
mod guest_memory;
mod heap;
mod inner_pointers;
mod inner_threads;
mod kernel;
mod libc_functions;
mod locale;
mod locks;
mod mappings;
mod masks;
mod ordinary_memory;
mod own_allocator;
mod pointers;
mod program_lists;
mod program_memory;
mod programs;
mod remap;
mod segments;
mod signal_actions;
mod stacks_of_thread;
mod start;
mod stdio;
mod threads;
mod transfers;
mod trap;
mod unmovable;
