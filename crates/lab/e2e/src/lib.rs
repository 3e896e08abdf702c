// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Whole-product tests: real programs under the real `aquifer`, with the real preload library.
//!
//! [`build`] builds the binaries and compiles C; [`run`] starts them with a time limit, since a hang is a failure;
//! [`evicted_memory`] has C programs whose memory is constantly evicted; [`guest`] builds what virtual machines run,
//! [`rdma_guest`] a guest with an RDMA device, [`scripted_guest`] those whose first process is a script of parts:
//! [`far_guest`] one with far memory, [`direct_guest`] one with hardware for programs; [`matrix`] lists settings;
//! `torture/` is the C program that knows what every byte must be, [`stress`]
//! runs it for hours, in parallel with [`stress_rows`]; [`donor`] starts donors, on this machine or on [`hosts`];
//! [`pool`] starts a fabric manager with donors and agents, [`pool_switch`] shows it as a CXL switch, and [`operator`]
//! plugs and pulls the devices of a guest;
//! [`verifying`] is a program for tests in which donors are lost, and [`programs`] are common programs; [`suites`] are
//! the test suites of other projects, whose programs take [`ballast`]; [`attacks`] are programs that try to break a
//! promise; [`tier_kinds`] lists the tiers that programs are tested over; [`own_use`] measures what the pager takes;
//! [`operating_docs`] parses the instructions in docs/operating, [`machines`] starts the machines on which tests carry
//! them out, [`packages`] makes the Debian packages, and [`images`] container images from them.
//!
//! `cargo test -p aquifer-e2e` takes some minutes; `cargo run --release -p aquifer-e2e --bin torture-sweep` runs for as
//! long as requested.

#![forbid(unsafe_code)]

pub mod attacks;
pub mod ballast;
pub mod build;
pub mod direct_guest;
pub mod donor;
pub mod evicted_memory;
pub mod far_guest;
pub mod guest;
pub mod hosts;
pub mod images;
pub mod machines;
pub mod matrix;
pub mod memory_programs;
pub mod operating_docs;
pub mod operator;
pub mod own_use;
pub mod packages;
pub mod pool;
pub mod pool_switch;
pub mod programs;
pub mod rdma_guest;
pub mod run;
pub mod scripted_guest;
pub mod stress;
pub mod stress_rows;
pub mod suites;
pub mod tier_kinds;
pub mod verifying;
