// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks of the audit log, which has a record of every change since the pool was made: page by page on the writer's
//! thread, one page after each round, so that a long log delays no round. A check begins when a manager becomes the
//! leader, and when an administrator asks for one. One runs at a time; all who ask meanwhile get its result.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use aquifer_fabric::Tail;

use crate::manager_store::{AuditCheck, AuditDamage, ManagerStore, ManagerStoreFailure};
use crate::rest::now;
use crate::writer::Shared;

/// How long a result is kept for a caller who was told to ask again.
const RESULT_AGE_MAX: Duration = Duration::from_secs(600);

/// What a check has found: the end of the log, or where it is damaged.
pub(crate) type Verdict = Result<Tail, AuditDamage>;

/// How far a check has come, in records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) checked: u64,
    pub(crate) all: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Whether a check is to begin.
    is_wanted: bool,
    running: Option<Progress>,
    /// The number of checks that have ended.
    ended: u64,
    /// The last result, and when it was found.
    last: Option<(Instant, Verdict)>,
    /// Whether somebody was told to ask again for the next result, or for the last one.
    is_owed: bool,
}

/// What those who ask for checks share with the writer.
#[derive(Debug, Default)]
pub(crate) struct AuditChecks {
    state: Mutex<State>,
    has_ended: Condvar,
}

impl AuditChecks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a panic ends the daemon")
    }

    /// Starts over with a check: this manager leads from now on, and an earlier check was of an earlier term.
    pub(crate) fn restart(&self) {
        let mut state = self.state();
        *state = State { is_wanted: true, ended: state.ended, ..State::default() };
    }

    /// Returns whether a check is under way, or is to begin.
    pub(crate) fn is_under_way(&self) -> bool {
        let state = self.state();
        state.is_wanted || state.running.is_some()
    }

    /// Asks for a check, unless one is under way or has ended for somebody who was told to ask again, and waits for its
    /// result. `wake` wakes the writer. The error says how far the check has come.
    pub(crate) fn ask<E>(
        &self,
        max: Duration,
        wake: impl FnOnce() -> Result<(), E>,
    ) -> Result<Result<Verdict, Progress>, E> {
        let mut state = self.state();
        let is_owed = std::mem::take(&mut state.is_owed);
        if state.running.is_none() && !state.is_wanted {
            let kept = state.last.as_ref().filter(|(at, _)| is_owed && at.elapsed() < RESULT_AGE_MAX);
            if let Some((_, verdict)) = kept {
                return Ok(Ok(verdict.clone()));
            }
            state.is_wanted = true;
        }
        let ended = state.ended;
        drop(state);
        wake()?;
        let waited = self.has_ended.wait_timeout_while(self.state(), max, |state| state.ended == ended);
        let mut state = waited.expect("a panic ends the daemon").0;
        Ok(match &state.last {
            Some((_, verdict)) if state.ended != ended => Ok(verdict.clone()),
            _ => {
                state.is_owed = true;
                Err(state.running.unwrap_or_default())
            }
        })
    }

    /// Returns whether a check is to begin, and notes that it does.
    fn begin(&self, all: u64) -> bool {
        let mut state = self.state();
        let begins = std::mem::take(&mut state.is_wanted);
        if begins {
            state.running = Some(Progress { checked: 0, all });
        }
        begins
    }

    fn note(&self, checked: u64) {
        if let Some(progress) = &mut self.state().running {
            progress.checked = checked;
        }
    }

    fn end(&self, verdict: Verdict) {
        let mut state = self.state();
        (state.running, state.last) = (None, Some((Instant::now(), verdict)));
        state.ended += 1;
        drop(state);
        self.has_ended.notify_all();
    }
}

/// The writer's part: the check that is under way.
#[derive(Default)]
pub(crate) struct AuditChecker {
    check: Option<AuditCheck>,
}

impl AuditChecker {
    /// Checks one page, if a check is under way or is asked for. Damage is only reported: if it stopped the manager,
    /// anyone who can change one record could stop the pool's management.
    pub(crate) fn step(&mut self, store: &ManagerStore, shared: &Shared) -> Result<(), ManagerStoreFailure> {
        if self.check.is_none() && shared.audit.begin(store.tail().records) {
            self.check = Some(store.begin_audit_check());
        }
        let Some(check) = &mut self.check else { return Ok(()) };
        let Some(verdict) = store.continue_audit_check(check)? else {
            shared.audit.note(check.checked);
            return Ok(());
        };
        self.check = None;
        shared.meters.note_audit(verdict.is_err());
        if let Err(damage) = &verdict {
            eprintln!("aquifer-fabricd: {}", damage.0);
            shared.events.add(now(), "AuditDamaged", "Critical", damage.0.clone());
        }
        shared.audit.end(verdict);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(checks: &AuditChecks) -> Result<Verdict, Progress> {
        checks.ask(Duration::ZERO, || Ok::<_, ()>(())).expect("woken")
    }

    #[test]
    fn one_check_runs_at_a_time_and_its_result_is_kept_for_callers_who_ask_again() {
        let (checks, whole) = (AuditChecks::default(), Tail::default());
        assert!(!checks.begin(9), "nobody has asked");
        assert_eq!(ask(&checks), Err(Progress::default()));
        assert!(checks.begin(9) && !checks.begin(9));
        checks.note(4);
        assert_eq!(ask(&checks), Err(Progress { checked: 4, all: 9 }));
        assert!(!checks.begin(9), "the second one has joined");
        checks.end(Ok(whole));
        assert_eq!(ask(&checks), Ok(Ok(whole)));
        assert_eq!(ask(&checks), Err(Progress::default()), "a result that was told is not told again");
        assert!(checks.begin(9));
        checks.restart();
        assert!(checks.is_under_way() && checks.begin(9), "a new leader checks once more");
    }

    #[test]
    fn who_waits_gets_the_result_of_a_check_that_ends_meanwhile() {
        let checks = AuditChecks::default();
        let damage = AuditDamage("record 3; restore it".into());
        let found = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| checks.ask(Duration::from_secs(60), || Ok::<_, ()>(())));
            while !checks.begin(9) {
                std::thread::yield_now();
            }
            checks.end(Err(damage.clone()));
            waiting.join().expect("it ends")
        });
        assert_eq!(found, Ok(Ok(Err(damage))));
        assert_eq!(checks.ask(Duration::ZERO, || Err("not a leader")), Err("not a leader"));
    }
}
