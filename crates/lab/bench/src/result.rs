// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads the output of a measured program: one line of JSON that says which of its numbers is the figure. Pure.

use serde_json::Value;

use crate::failure::BenchFailure;
use crate::record::Figure;

/// The figure in a program's output, which may contain other lines; or why there is none, in one line.
pub fn read_result(stdout: &str) -> Result<Figure, String> {
    parse_output(stdout).and_then(|printed| figure_of(&printed)).map_err(|failure| failure.to_string())
}

/// Parses the last line that looks like an object: a wrapper may print its own lines.
pub fn parse_output(stdout: &str) -> Result<Value, BenchFailure> {
    let line = stdout
        .lines()
        .rev()
        .find(|line| line.starts_with('{'))
        .ok_or_else(|| BenchFailure::trouble("it printed no result", ""))?;
    let value: Value = serde_json::from_str(line)
        .map_err(|error| BenchFailure::trouble(format!("its result is not JSON: {error}"), ""))?;
    if value.get("verified") == Some(&Value::Bool(true)) {
        Ok(value)
    } else {
        Err(BenchFailure::trouble("it did not verify its result", ""))
    }
}

pub fn figure_of(printed: &Value) -> Result<Figure, BenchFailure> {
    let figure = printed.get("figure").cloned().unwrap_or_default();
    let figure: Figure = serde_json::from_value(figure).map_err(|error| {
        // The parser quotes words as they are, line breaks included; a message is one line.
        let error = error.to_string().replace(char::is_control, "?");
        BenchFailure::trouble(format!("its result has no figure: {error}"), "")
    })?;
    if figure.value.is_finite() && figure.value > 0.0 {
        Ok(figure)
    } else {
        Err(BenchFailure::trouble(format!("its figure is {}", figure.value), ""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratios::Better;

    #[test]
    fn results_are_found_among_other_lines() {
        let line = r#"{"program":"stream","figure":{"name":"triad","value":1.5,"unit":"GB/s","better":"higher"},"verified":true}"#;
        let printed = parse_output(&format!("hello\n{line}\nbye\n")).unwrap();
        let figure = figure_of(&printed).unwrap();
        assert_eq!((figure.value, figure.better), (1.5, Better::Higher));
    }

    #[test]
    fn unproved_or_empty_results_do_not_count() {
        for wrong in ["", "{}", "{", r#"{"verified":false}"#, r#"{"verified":"true"}"#] {
            assert!(parse_output(wrong).is_err(), "{wrong}");
        }
        for wrong in [
            "{}",
            r#"{"figure":{"name":"a","value":0,"unit":"s","better":"lower"}}"#,
            r#"{"figure":{"name":"a","value":1,"unit":"s","better":"blue"}}"#,
        ] {
            assert!(figure_of(&serde_json::from_str(wrong).unwrap()).is_err(), "{wrong}");
        }
    }
}
