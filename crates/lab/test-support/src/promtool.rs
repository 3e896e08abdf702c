// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Judges metrics as Prometheus does.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::skip_part;

/// Checks metrics with `promtool check metrics`, and returns its complaints; empty if there are none. Without promtool
/// this part of the test is skipped.
pub fn complaints_about_metrics(text: &str) -> String {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        skip_part("what promtool says of metrics", "there is no promtool (Debian's package prometheus)");
        return String::new();
    };
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}
