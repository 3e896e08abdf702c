// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The workspace's test programs, from what `cargo test --no-run --message-format json` prints. Pure.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A program that Cargo built to be run as a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestProgram {
    /// The name of its target, such as `forks`, or of its crate for the tests within the sources.
    pub name: String,
    /// The file to run.
    pub executable: PathBuf,
    /// The package's directory, where Cargo would run it.
    pub directory: PathBuf,
}

/// The test programs of the messages, in Cargo's order. Other lines are passed over.
pub fn read(messages: &str) -> Vec<TestProgram> {
    messages.lines().filter_map(|line| test_program(&serde_json::from_str(line).ok()?)).collect()
}

fn test_program(message: &Value) -> Option<TestProgram> {
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let executable = PathBuf::from(message["executable"].as_str().filter(|_| is_test)?);
    let name = message["target"]["name"].as_str()?.to_owned();
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    Some(TestProgram { name, executable, directory })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_among_other_messages() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/a/Cargo.toml","target":{"name":"a"},"profile":{"test":false},"executable":"/t/a"}
not JSON
{"reason":"compiler-artifact","manifest_path":"/a/Cargo.toml","target":{"name":"pins"},"profile":{"test":true},"executable":"/t/deps/pins-00"}
{"reason":"compiler-artifact","manifest_path":"/a/Cargo.toml","target":{"name":"lib"},"profile":{"test":true},"executable":null}
{"reason":"build-finished","success":true}"#;
        let expected =
            TestProgram { name: "pins".into(), executable: "/t/deps/pins-00".into(), directory: "/a".into() };
        assert_eq!(read(messages), [expected]);
    }
}
