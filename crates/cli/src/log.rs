// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How messages are written to standard error: as lines for people, or as one JSON object per line for a journal.
//!
//! The pager inside the program writes its own messages, by the same choice: it finds it in [`VARIABLE`].

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

/// The environment variable that carries the choice to the program, and that people may set.
pub const VARIABLE: &str = "AQUIFER_LOG_FORMAT";

/// How a message is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line, with `source`, `pid` and `message`
    Json,
    /// A line that begins with `aquifer: `
    #[default]
    Text,
}

static CHOSEN: OnceLock<LogFormat> = OnceLock::new();

/// From now on messages are written so. Only the first call counts.
pub fn choose(format: LogFormat) {
    let _ = CHOSEN.set(format);
}

/// What was chosen. Before the command line has been read, what the environment says.
pub fn chosen() -> LogFormat {
    let from_environment = || {
        if std::env::var_os(VARIABLE).is_some_and(|word| word == "json") { LogFormat::Json } else { LogFormat::Text }
    };
    CHOSEN.get().copied().unwrap_or_else(from_environment)
}

/// One line on standard error. When nobody reads it, there is nobody to tell.
pub fn say(message: &dyn fmt::Display) {
    let _ = std::io::stderr().write_all(line(chosen(), &message.to_string()).as_bytes());
}

fn line(format: LogFormat, message: &str) -> String {
    match format {
        LogFormat::Text => format!("aquifer: {message}\n"),
        LogFormat::Json => {
            let object = serde_json::json!({ "source": "aquifer", "pid": std::process::id(), "message": message });
            format!("{object}\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_in_either_format() {
        assert_eq!(line(LogFormat::Text, "the disk is full"), "aquifer: the disk is full\n");
        let json = line(LogFormat::Json, "a \"quoted\"\nname");
        assert_eq!(json.lines().count(), 1);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&value["source"], &value["message"]), (&"aquifer".into(), &"a \"quoted\"\nname".into()));
    }
}
