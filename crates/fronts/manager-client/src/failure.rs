// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why a request fails: one line, with cause and remedy, and the exit code. The line names no option and no key of a
//! configuration, because the programs that use this client have different ones.

use std::fmt;
use std::io;

use serde_json::Value;

use crate::plain::plain;

/// Why a request has failed, and the exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The line to print: cause, then remedy.
    pub line: String,
    /// 1, 2 if the arguments are wrong, or 125 if no daemon can be started.
    pub code: u8,
    /// `true` if the reader of standard output has gone, which is no failure.
    pub is_broken_pipe: bool,
    /// `true` if nothing was sent: whatever was asked for is not carried out.
    pub is_unsent: bool,
    /// The status of the manager's answer, if the answer is what failed.
    pub status: Option<u16>,
    /// `true` if the manager's certificate is not trusted, which no repetition changes.
    pub is_untrusted: bool,
    /// `true` if the manager does not know the session. The line then has no remedy: the caller knows how its user logs
    /// in.
    pub needs_login: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for Failure {}

/// Creates the failure of something that could not be done.
pub fn failed(line: impl fmt::Display) -> Failure {
    let line = plain(&line.to_string());
    Failure {
        line,
        code: 1,
        is_broken_pipe: false,
        is_unsent: false,
        status: None,
        is_untrusted: false,
        needs_login: false,
    }
}

/// Creates the failure of wrong arguments.
pub fn usage(line: impl fmt::Display) -> Failure {
    Failure { code: 2, ..failed(line) }
}

/// Creates the failure to send anything.
pub(crate) fn unsent(line: impl fmt::Display) -> Failure {
    Failure { is_unsent: true, ..failed(line) }
}

/// Creates the failure to write to standard output.
pub fn unwritten(error: &io::Error) -> Failure {
    let line = format!("the result cannot be written: {error}; free space, or name another place");
    Failure { is_broken_pipe: error.kind() == io::ErrorKind::BrokenPipe, ..failed(line) }
}

/// Returns the manager's error: its message and its remedy. If the session has ended, there is no remedy.
pub fn refused(status: u16, body: &Value) -> Failure {
    let error = &body["error"];
    let said = &error["@Message.ExtendedInfo"][0];
    let failure = match (error["code"].as_str(), said["Message"].as_str(), error["message"].as_str()) {
        (Some(code), Some(message), _) if code.ends_with(".NoValidSession") => {
            Failure { needs_login: true, ..failed(message) }
        }
        (_, _, Some(line)) => failed(line),
        _ => failed(format!(
            "the answer has status {status} and no error message of a fabric manager; check the manager's address"
        )),
    };
    Failure { status: Some(status), ..failure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_managers_message_and_remedy_are_one_line() {
        let body = json!({ "error": { "code": "Base.1.18.ResourceInUse", "message": "it is\nbound; unbind it" } });
        let failure = refused(409, &body);
        assert_eq!((failure.to_string().as_str(), failure.code), ("it is\\nbound; unbind it", 1));
        assert_eq!(failure.status, Some(409));
        assert!(refused(502, &json!("<html>")).to_string().contains("status 502"));
        let body = json!({ "error": { "code": "Base.1.18.NoValidSession", "message": "ended; log in at /redfish",
                                      "@Message.ExtendedInfo": [{ "Message": "ended" }] } });
        let failure = refused(401, &body);
        assert_eq!((failure.to_string().as_str(), failure.needs_login), ("ended", true));
    }
}
