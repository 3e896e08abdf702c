// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Whole-product tests: real programs under the real `aquifer`, with the real preload library.
//!
//! [`build`] makes the binaries and compiles C; [`run`] starts them with a time limit, since a hang is a failure;
//! [`away`] is C whose memory leaves all the time; [`guest`] is what virtual machines run, [`rdma_guest`] one with an
//! RDMA device; [`matrix`] lists settings;
//! `torture/` is the C program that knows what every byte must be, [`stress`] runs one for hours, with
//! [`stress_rows`] beside it; [`donor`] starts
//! donors, on this machine or on [`hosts`], [`verifying`] is a program for when they are lost, and [`programs`] are
//! those that people use; [`attacks`] are programs that try to break a promise, [`tier_kinds`] what they run over;
//! [`pages`] are the pages on operating, and [`machines`] such as they are followed on.
//!
//! `cargo test -p aquifer-e2e` takes some minutes; `cargo run --release -p aquifer-e2e --bin torture-sweep`
//! goes on for as long as it is told.

#![forbid(unsafe_code)]

pub mod attacks;
pub mod away;
pub mod build;
pub mod donor;
pub mod guest;
pub mod hosts;
pub mod machines;
pub mod matrix;
pub mod pages;
pub mod programs;
pub mod rdma_guest;
pub mod run;
pub mod stress;
pub mod stress_rows;
pub mod tier_kinds;
pub mod verifying;
