// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The C library as programs see it: the header, the symbols, the manual, and programs in C and C++ that are compiled,
//! linked with the shared and with the static library, and run.

mod built;
mod documents;
mod programs;
mod sanitised;
mod symbols;
