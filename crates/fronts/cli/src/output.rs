// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Writes standard output. A broken pipe is success: `aquifer stat --watch 1 | head` does not fail.

use std::io::{self, Write};

use crate::exit::{ExitCode, Failure};

/// The result of writing to standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Printed {
    /// The output was written.
    Taken,
    /// The reader has closed the pipe; a command that repeats should end.
    NobodyReads,
}

/// Writes all of `text` to standard output and flushes it.
pub fn print(text: &str) -> Result<Printed, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Printed::Taken),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Printed::NobodyReads),
        Err(error) => Err(Failure::new(
            ExitCode::Failure,
            format!("standard output cannot be written: {error}"),
            "direct it somewhere with space",
        )),
    }
}
