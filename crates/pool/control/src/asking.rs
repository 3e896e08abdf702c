// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Carries requests to many ends at once, and waits for answers: for those of prompt ends within a limit, for those of
//! slow ends not at all, so that one slow end does not delay what others are asked.
//!
//! An end is slow if its last answer took longer than [`PROMPT_MAX`], or if it let a round wait in vain. It is sent one
//! request at a time, as all are. A report that comes when nobody waits for it any more is kept for the next query,
//! which the end then does not get: it is free for the commands that follow from the report, which it would never be if
//! each round sent it a query first.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use aquifer_fabric::Term;

use crate::channel::{Answer, Job, Request};
use crate::registrar::{Registrar, lock};
use crate::registration::EndId;

/// How long a prompt end takes at most for an answer: more than any takes whose machine is not overloaded, and less
/// than a person notices when it delays an order.
const PROMPT_MAX: Duration = Duration::from_millis(250);
/// How often a round that waits looks whether those that it waits for still have their channels.
const LOOK: Duration = Duration::from_millis(50);

/// What a registrar shares with the thread of one connection.
#[derive(Default)]
pub(crate) struct Line {
    /// `true` from the moment that a job is handed over until it is answered.
    pub(crate) is_busy: AtomicBool,
    /// Whether nobody waits for its answers.
    is_slow: AtomicBool,
    /// How many lists of commands were handed over.
    orders: AtomicU64,
    /// The newest answer that came too late for the query that led to it.
    late: Mutex<Option<Late>>,
}

/// An answer that nobody has waited for.
struct Late {
    /// The term of the query that led to it.
    term: Term,
    /// How many lists of commands had been handed over when the end was asked.
    orders: u64,
    answer: Answer,
}

impl Line {
    /// Notes how long an answer has taken.
    pub(crate) fn answered_after(&self, time: Duration) {
        self.is_slow.store(time > PROMPT_MAX, Ordering::Relaxed);
    }

    /// Returns how many lists of commands were handed over. It stays as it is while the line is busy.
    pub(crate) fn orders(&self) -> u64 {
        self.orders.load(Ordering::Relaxed)
    }

    /// Keeps an answer to a query that nobody waits for, which was made after so many lists of commands. The outcomes
    /// of commands are found in the next report.
    pub(crate) fn keep(&self, term: Term, orders: u64, answer: Answer) {
        if matches!(answer, Answer::Deposed(_) | Answer::Reported(_)) {
            *lock(&self.late) = Some(Late { term, orders, answer });
        }
    }

    /// Takes the late answer to a query of this term; but not one from before the latest commands, because a report
    /// that does not show what they did would be taken for one that shows that they did nothing.
    fn take_late(&self, term: Term) -> Option<Answer> {
        let late = lock(&self.late).take()?;
        (late.term == term && late.orders == self.orders()).then_some(late.answer)
    }
}

/// What became of requests.
#[derive(Default)]
pub(crate) struct Asked {
    /// Answers, in the order in which they came.
    pub(crate) answers: Vec<(EndId, Answer)>,
    /// Ends that have no channel.
    pub(crate) apart: BTreeSet<EndId>,
    /// Slow ends, and those that still owe an earlier answer, whose time is not over.
    pub(crate) pending: BTreeSet<EndId>,
}

impl Registrar {
    /// Sends requests to all ends at the same time, and returns the answers that come within `wait`, and late answers
    /// to earlier queries if these are queries.
    pub(crate) fn ask(&self, requests: Vec<(EndId, Request)>, wait: Duration) -> Asked {
        let begun = Instant::now();
        let mut asked = Asked::default();
        let mut awaited: BTreeSet<(EndId, u64)> = BTreeSet::new();
        let (replies, answers) = sync_channel(requests.len().max(1));
        let mut connected = lock(&self.shared.connected);
        for (id, request) in requests {
            let Some(one) = connected.get_mut(&id) else {
                asked.apart.insert(id);
                continue;
            };
            if let Request::Query { term, .. } = request
                && let Some(late) = one.line.take_late(term)
            {
                asked.answers.push((id, late));
                continue;
            }
            let is_slow = one.line.is_slow.load(Ordering::Relaxed);
            // AcqRel pairs with the Release in `channel.rs`, after which the thread takes another job.
            if !one.line.is_busy.swap(true, Ordering::AcqRel) {
                if matches!(request, Request::Commands(_)) {
                    one.line.orders.fetch_add(1, Ordering::Relaxed);
                }
                one.due = begun + wait;
                let job = Job { request, id: id.clone(), replies: replies.clone() };
                if one.jobs.try_send(job).is_ok() && !is_slow {
                    awaited.insert((id, one.connection));
                    continue;
                }
            }
            if begun < one.due {
                asked.pending.insert(id);
            }
        }
        drop((connected, replies));
        let deadline = begun + wait;
        while !awaited.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            match answers.recv_timeout(left.min(LOOK)) {
                Ok((id, answer)) => {
                    awaited.retain(|(of, _)| *of != id);
                    self.take(&mut asked, id, answer);
                }
                Err(RecvTimeoutError::Timeout) if left > LOOK => {
                    let connected = lock(&self.shared.connected);
                    awaited.retain(|(id, number)| connected.get(id).is_some_and(|one| one.connection == *number));
                }
                // Every end has answered or lost its channel, or the time is over.
                Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => break,
            }
        }
        answers.try_iter().for_each(|(id, answer)| self.take(&mut asked, id, answer));
        let connected = lock(&self.shared.connected);
        for one in awaited.iter().filter_map(|(id, _)| connected.get(id)) {
            one.line.is_slow.store(true, Ordering::Relaxed);
        }
        asked
    }

    /// Takes an answer that came in time. A late one from before is out of date then.
    fn take(&self, asked: &mut Asked, id: EndId, answer: Answer) {
        if let Some(one) = lock(&self.shared.connected).get(&id) {
            drop(lock(&one.line.late).take());
        }
        asked.pending.remove(&id);
        asked.answers.push((id, answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_answer_counts_only_if_no_command_has_followed_its_query() {
        let line = Line::default();
        let deposed = || Answer::Deposed(Term(9));
        line.keep(Term(1), line.orders(), deposed());
        assert!(matches!(line.take_late(Term(1)), Some(Answer::Deposed(Term(9)))));
        assert!(line.take_late(Term(1)).is_none(), "it counts once");
        line.keep(Term(1), line.orders(), deposed());
        assert!(line.take_late(Term(2)).is_none(), "it is of another term");
        let asked_after = line.orders();
        line.orders.fetch_add(1, Ordering::Relaxed);
        line.keep(Term(1), asked_after, deposed());
        assert!(line.take_late(Term(1)).is_none(), "a command has followed");
    }
}
