// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why the manager could not be asked, and whether a repetition may help. Pure.

use std::fmt;

use aquifer_cxl_switchd::Failure;
use aquifer_manager_client::Failure as Unanswered;

/// Why something could not be asked, or was refused.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub failure: Failure,
    /// True where nothing was sent.
    pub is_unsent: bool,
    /// True where the manager has refused what was sent: the same request will be refused again.
    pub is_refusal: bool,
    /// True where only a change of the configuration helps, so a program that starts must not wait.
    pub is_final: bool,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.failure.fmt(f)
    }
}

impl Trouble {
    /// Creates one that a repetition may end.
    pub fn passing(cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        let failure = Failure::new(cause.into(), remedy.into());
        Self { failure, is_unsent: false, is_refusal: false, is_final: false }
    }

    /// Creates one that a change of the configuration ends.
    pub fn of_configuration(cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { is_refusal: true, is_final: true, ..Self::passing(cause, remedy) }
    }

    /// Returns the trouble of a request that failed.
    pub fn of(unanswered: &Unanswered) -> Self {
        let line = &unanswered.line;
        let (cause, remedy) = line.split_once("; ").unwrap_or((line, "look at the manager's log"));
        let is_refusal = unanswered.status.is_some_and(is_refusal);
        let is_final = unanswered.is_untrusted;
        Self { is_unsent: unanswered.is_unsent, is_refusal, is_final, ..Self::passing(cause, remedy) }
    }
}

/// Returns whether a status says that the request is refused, for a login, a read and a change alike. The others ask to
/// wait, name another manager, or are the manager's own failure.
pub(crate) fn is_refusal(status: u16) -> bool {
    (400..500).contains(&status) && ![408, 421, 425].contains(&status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_manager_refuses_is_told_from_what_may_pass() {
        for status in [400, 401, 403, 404, 412, 429] {
            assert!(is_refusal(status), "{status}");
        }
        for status in [307, 408, 421, 425, 500, 502, 503] {
            assert!(!is_refusal(status), "{status}");
        }
    }
}
