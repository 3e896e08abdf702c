// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! gcc, and a program that uses its OpenMP. The compiler starts child processes, which share its budget.

use std::fmt::Write;
use std::process::Command;

use super::trial::{Trial, Verdict, installed};

const OPENMP: &str = include_str!("../../programs/openmp.c");

/// C source with many different functions.
fn source(functions: u64) -> String {
    let mut text = "#include <stdio.h>\n".to_owned();
    for number in 0..functions {
        let (turns, odd, shift, bit) = (3 + number % 9, 2 * number + 3, number % 17, 1 << (number % 20));
        let _ = writeln!(
            text,
            "__attribute__((noinline)) static unsigned f{number}(unsigned x, unsigned *a) {{ unsigned s = x; \
             for (int i = 0; i < {turns}; i++) {{ s = s * {odd}u + {number}; a[i & 7] ^= s >> {shift}; \
             if (s & {bit}) s ^= a[s >> 3 & 7]; switch (s % 5) {{ case 0: s += 1; break; case 1: s *= 3; break; \
             case 2: s ^= 77; break; default: s -= a[1]; }} }} return s; }}"
        );
    }
    let calls: String = (0..functions).map(|number| format!("s = f{number}(s, a);\n")).collect();
    let _ = writeln!(text, "int main(void) {{ unsigned a[8] = {{1, 2, 3}}, s = 1;\n{calls}printf(\"%u\\n\", s); }}");
    text
}

/// Compiles the same file natively and managed: the output must be identical.
pub fn gcc(trial: &Trial) -> Result<Verdict, String> {
    let program = match installed(&["gcc"]) {
        Ok(program) => program,
        Err(skipped) => return Ok(skipped),
    };
    let file = trial.write("large.c", &source(trial.size(250, 2000)))?;
    let built = trial.path("built");
    let read = || std::fs::read(&built).map(|bytes| format!("{bytes:?}")).map_err(|error| error.to_string());
    trial.same(&program, &["-O1", "-o", &built, &file], read)
}

/// Four threads share two arrays.
pub fn openmp(trial: &Trial) -> Result<Verdict, String> {
    let file = trial.write("openmp.c", OPENMP)?;
    let built = trial.directory.join("openmp");
    let compiled = Command::new("cc").args(["-O2", "-fopenmp", "-o"]).arg(&built).arg(&file).output();
    match compiled {
        Ok(output) if output.status.success() => {}
        Ok(_) => return Ok(Verdict::Skipped("cc has no OpenMP".to_owned())),
        Err(error) => return Ok(Verdict::Skipped(format!("cc cannot be started: {error}"))),
    }
    trial.same(&built, &[&trial.size(4 << 20, 64 << 20).to_string()], || Ok(String::new()))
}
