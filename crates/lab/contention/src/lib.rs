// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How many faults per second more cores would give a program whose threads fault all the time: a model of threads that
//! share cores, one lock for each part of a space, and a worker.
//!
//! A discrete-event simulation. A fault is CPU time of its thread, with a few uses of the lock in it, and CPU time of
//! the worker, which evicts what the fault displaced. `aquifer bench --overhead threads` measures these with one thread
//! on this machine, and compares the model's results for two and more threads with measurements.
//!
//! In the model as in the pager, a thread that finds the lock taken spins for a moment and then sleeps, a woken one may
//! find the lock taken again, a thread that holds the lock may be preempted, and a thread that is far ahead of the
//! worker evicts by itself. What cores do to each other outside of this lock (the kernel's locks, interrupts, memory
//! bandwidth) is not in the model: its figures are upper bounds.
//!
//! `model.rs` has the threads, `machine.rs` the cores, `lock.rs` the lock.

#![forbid(unsafe_code)]

mod lock;
mod machine;
mod model;

pub use model::{Cost, Setting, Throughput, simulate};
