// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Standard output, where a broken pipe is success: `aquifer stat --watch 1 | head` is no failure.

use std::io::{self, Write};

use crate::exit::{ExitCode, Failure};

/// What became of a piece of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Printed {
    /// It was taken.
    Taken,
    /// Nobody reads any more; a command that repeats should end.
    NobodyReads,
}

/// Prints all of `text` to standard output now.
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
