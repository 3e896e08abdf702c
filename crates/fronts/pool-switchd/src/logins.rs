// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! When the program may log in again. Pure: time is an argument.
//!
//! A login makes a session, of which a manager has room for a few hundred, or counts as a wrong password, of which five
//! in a row lock the account. A manager that refuses every session, or a password that was changed, must cause neither
//! by the hundred, although the manager is asked every second.

use std::time::{Duration, Instant};

use crate::trouble::Trouble;

/// The shortest time between two logins that succeed. Sessions last for hours, so one that ends sooner is refused by a
/// manager that is broken, or is ended by somebody again and again.
const SESSION_MIN: Duration = Duration::from_secs(10);
/// How long a refused login is not repeated with the same password. A manager forgets wrong passwords after five
/// minutes by default and locks the account at the fifth one; then it refuses the right one, too.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// How long a login that may have been carried out, and was not answered, is not repeated.
const UNANSWERED_PAUSE: Duration = Duration::from_secs(2);

/// Why there is no session after a login that has succeeded.
const ENDED: &str = "the manager ended the session right after the login";

struct Login {
    at: Instant,
    password: String,
    /// Why it has failed, if it has.
    trouble: Option<Trouble>,
}

/// The last login.
#[derive(Default)]
pub(crate) struct Logins {
    last: Option<Login>,
}

impl Logins {
    /// Returns why the program must not log in now.
    pub fn check(&self, now: Instant, password: &str) -> Result<(), Trouble> {
        let Some(last) = &self.last else { return Ok(()) };
        let (pause, trouble) = match &last.trouble {
            None => (SESSION_MIN, Trouble::passing(ENDED, "look at the manager's log")),
            // Nothing has reached a manager.
            Some(trouble) if trouble.is_unsent => return Ok(()),
            Some(trouble) if trouble.is_refusal && last.password != password => return Ok(()),
            Some(trouble) if trouble.is_refusal => (REFUSED_PAUSE, trouble.clone()),
            Some(trouble) => (UNANSWERED_PAUSE, trouble.clone()),
        };
        // Nothing of what waits for the login was sent.
        let trouble = Trouble { is_unsent: true, ..trouble };
        if now.saturating_duration_since(last.at) < pause { Err(trouble) } else { Ok(()) }
    }

    /// Notes how a login has ended.
    pub fn note(&mut self, at: Instant, password: String, trouble: Option<Trouble>) {
        self.last = Some(Login { at, password, trouble });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(trouble: Option<Trouble>, password: &str) -> Option<u64> {
        let (mut logins, at) = (Logins::default(), Instant::now());
        assert!(logins.check(at, password).is_ok(), "the first one");
        logins.note(at, "old".into(), trouble);
        (0..100).find(|seconds| logins.check(at + Duration::from_secs(*seconds), password).is_ok())
    }

    #[test]
    fn logins_are_as_far_apart_as_their_end_demands() {
        let trouble = Trouble::passing("it failed", "look");
        let refused = Trouble { is_refusal: true, ..trouble.clone() };
        assert_eq!(after(None, "old"), Some(10), "a session that ended right after the login");
        assert_eq!(after(Some(trouble.clone()), "old"), Some(2));
        assert_eq!(after(Some(refused.clone()), "old"), Some(60));
        assert_eq!(after(Some(refused), "new"), Some(0), "another password may be right");
        assert_eq!(after(Some(Trouble { is_unsent: true, ..trouble }), "old"), Some(0));
    }
}
