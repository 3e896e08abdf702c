// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a donor or an agent does for a fabric manager.

use std::fmt;

use aquifer_fabric::{Command, Term};
use serde::{Deserialize, Serialize};

use crate::faults::Faults;
use crate::message::{Query, Report};

/// Longest reason for a refusal that is sent.
const REASON_BYTES_MAX: usize = 1024;

/// An end has seen a greater term than the manager's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deposed {
    /// The greatest term that it has seen.
    pub seen: Term,
}

/// Why a command is not carried out: one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Refused {
    /// One line: the cause, then the remedy.
    pub why: String,
}

impl Refused {
    /// Creates a refusal for this reason. Escapes its control characters, and cuts it to a maximum length.
    pub fn new(why: impl fmt::Display) -> Refused {
        let mut why: String = why.to_string().chars().flat_map(escaped).take(REASON_BYTES_MAX).collect();
        while why.len() > REASON_BYTES_MAX {
            why.pop();
        }
        Refused { why }
    }
}

fn escaped(one: char) -> impl Iterator<Item = char> {
    let plain = (!one.is_control()).then_some(one);
    let escape = plain.is_none().then(|| one.escape_default()).into_iter().flatten();
    plain.into_iter().chain(escape)
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Refused {}

/// A donor or an agent, as its managers see it. Calls come from the threads of a [`Keeper`](crate::Keeper), one at a
/// time.
///
/// An end asks an `aquifer_fabric::Gate` before it reports and before it carries out a command, and stores a greater
/// term before it acts on it.
pub trait End: Send {
    /// Stores a term that is greater than all before it, before the end reports to its manager or obeys it. If the term
    /// cannot be stored, returns the reason, which the manager gets instead of a report. By default nothing is stored.
    fn prepare(&mut self, term: Term) -> Result<(), Refused> {
        let _ = term;
        Ok(())
    }

    /// Returns a report to the manager with the query's term, and refuses commands of smaller terms from now on.
    fn report(&mut self, query: &Query) -> Result<Report, Deposed>;

    /// Stores a list of revoked certificates, in PEM, and refuses these certificates from now on. By default the list
    /// is ignored.
    fn take_revocations(&mut self, list: &str) -> Result<(), Refused> {
        let _ = list;
        Ok(())
    }

    /// Returns the faults of this host's programs since the end was started; `None` if it counts none, as by default.
    fn measure(&mut self) -> Option<Faults> {
        None
    }

    /// Carries out a command, at most once, or refuses it. It is done, or surely not done, when this returns.
    fn carry_out(&mut self, command: &Command) -> Result<(), Refused>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_of_bounded_length() {
        assert_eq!(Refused::new("a\nb\u{1b}").why, "a\\nb\\u{1b}");
        assert!(Refused::new("ä".repeat(4000)).why.len() <= REASON_BYTES_MAX);
    }
}
