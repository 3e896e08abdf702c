// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How messages are written to standard error: as lines for people, or as one JSON object per line for a journal.
//!
//! The pager inside the program writes its own messages in the same format, which it reads from [`VARIABLE`].

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

/// The environment variable that passes the format to the program. Users may set it, too.
pub const VARIABLE: &str = "AQUIFER_LOG_FORMAT";

/// The form in which a message is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line, with `source`, `pid` and `message`
    Json,
    /// A line that begins with `aquifer: `
    #[default]
    Text,
}

static CHOSEN: OnceLock<LogFormat> = OnceLock::new();

/// Sets the format of all further messages. Only the first call takes effect.
pub fn choose(format: LogFormat) {
    let _ = CHOSEN.set(format);
}

/// Returns the chosen format; before the command line has been parsed, the one from the environment.
pub fn chosen() -> LogFormat {
    let from_environment = || {
        if std::env::var_os(VARIABLE).is_some_and(|word| word == "json") { LogFormat::Json } else { LogFormat::Text }
    };
    CHOSEN.get().copied().unwrap_or_else(from_environment)
}

/// Writes one line to standard error. Ignores failures, since there is nowhere to report them.
pub fn say(message: &dyn fmt::Display) {
    let _ = std::io::stderr().write_all(line(chosen(), &message.to_string()).as_bytes());
}

fn line(format: LogFormat, message: &str) -> String {
    match format {
        // A path can contain whatever a terminal obeys, and line breaks.
        LogFormat::Text => format!("aquifer: {}\n", message.replace(char::is_control, "?")),
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
        assert_eq!(line(LogFormat::Text, "'a\nb\x1b[31m' ended"), "aquifer: 'a?b?[31m' ended\n");
        let json = line(LogFormat::Json, "a \"quoted\"\nname");
        assert_eq!(json.lines().count(), 1);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&value["source"], &value["message"]), (&"aquifer".into(), &"a \"quoted\"\nname".into()));
    }
}
