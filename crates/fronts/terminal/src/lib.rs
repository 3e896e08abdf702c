// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the command and the programs that it starts show on a terminal: tables that fit its width, and colours.

#![forbid(unsafe_code)]

mod output;
mod table;

pub use self::output::{Output, Tone};
pub use self::table::{broken, columns, cut, toned_columns, width};
