// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The library that `aquifer run` preloads: puts an unchanged program's memory under the pager's management.
//!
//! `start.rs` reads the configuration before `main` runs. `heap.rs` is the program's malloc and `mappings.rs` its mmap
//! (`remap.rs` its mremap; `by_number.rs` all of them by syscall(2)), both over adopted memory; `choice.rs` decides
//! which mapping gets which delivery.
//!
//! System calls on memory with signal delivery enter through `transfers.rs` and `stdio.rs` by name, and through
//! `trap.rs` otherwise. `calls.rs` makes them, using `pointers.rs` to find the memory they touch; `bounce.rs` handles
//! transfers too large to pin. `masks.rs`, `process.rs` and `threads.rs` protect the two signals that all this needs.
//! `locks.rs` is mlock, `programs.rs` execve and posix_spawn, `descendants.rs` reports programs that leave the library
//! out, `descriptors.rs` is close, `dropped_rights.rs` setuid, `locale.rs` setlocale, and `unmovable.rs` concerns
//! memory that the kernel would keep using. `own_allocator.rs` and `kernel.rs` keep the library's own memory and calls
//! separate from the program's.

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
