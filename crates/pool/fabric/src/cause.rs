// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The request that a command is sent for, so that the logs and the spans of the manager and of an agent can be put
//! together. Pure; nothing is decided by it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest id of a request, and longest `traceparent`.
pub const REQUEST_ID_BYTES_MAX: usize = 64;

/// Why a text is not the id of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAnId;

impl fmt::Display for NotAnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the id of a request has 1 to {REQUEST_ID_BYTES_MAX} letters, digits, '-', '_', '.' and ':'; shorten it"
        )
    }
}

impl std::error::Error for NotAnId {}

/// The id of a request: 1 to [`REQUEST_ID_BYTES_MAX`] characters of ASCII letters, digits, `-`, `_`, `.` and `:`. It
/// stands in headers and in lines of logs, so it has nothing that must be escaped there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RequestId(String);

impl RequestId {
    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RequestId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<RequestId, NotAnId> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        let is_id = (1..=REQUEST_ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain);
        if is_id { Ok(RequestId(text.to_owned())) } else { Err(NotAnId) }
    }
}

impl TryFrom<String> for RequestId {
    type Error = NotAnId;

    fn try_from(text: String) -> Result<RequestId, NotAnId> {
        text.parse()
    }
}

impl From<RequestId> for String {
    fn from(id: RequestId) -> String {
        id.0
    }
}

/// What a command is sent for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Cause {
    /// The request that ordered it.
    pub request: RequestId,
    /// The sender's span, as W3C's header `traceparent` names it, if the sender records spans. It has the characters
    /// and the length of an id; a receiver that cannot read it begins a trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<RequestId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_short_and_plain() {
        for id in ["1", "a-b_c.d:E", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", &"x".repeat(64)] {
            assert_eq!(id.parse::<RequestId>().map(|id| id.to_string()), Ok(id.to_owned()));
        }
        for id in ["", "a b", "a\"", "a\n", "\u{e9}", "a/b", &"x".repeat(65)] {
            assert_eq!(id.parse::<RequestId>(), Err(NotAnId), "{id}");
            let json = serde_json::to_string(&serde_json::json!({ "request": id })).expect("JSON");
            assert!(serde_json::from_str::<Cause>(&json).is_err(), "{json}");
        }
    }
}
