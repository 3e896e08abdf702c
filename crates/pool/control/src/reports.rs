// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reports over one connection: the first is sent whole, and after it only changes (version 3). Pure.
//!
//! A query names the last report that the manager has, by the number of the request that it answered. The end compares
//! its report with that one. If it has another one, or none, it sends the whole report. So neither side depends on what
//! the other one remembers.

use std::sync::Arc;

use aquifer_fabric::{DonorReport, HostReport};

use crate::changes::Changes;
use crate::message::{FRAME_BYTES_MAX, Message, Query, Report};

/// The first version in which ends send changes.
const VERSION: u16 = 3;

/// A report that a manager has heard. The same one is the same allocation, until it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The report of a donor.
    Donor(Arc<DonorReport>),
    /// The report of a host's agent.
    Host(Arc<HostReport>),
}

impl From<Report> for Heard {
    fn from(report: Report) -> Heard {
        match report {
            Report::Donor(report) => Heard::Donor(Arc::new(report)),
            Report::Host(report) => Heard::Host(Arc::new(report)),
        }
    }
}

impl From<Heard> for Report {
    fn from(heard: Heard) -> Report {
        match heard {
            Heard::Donor(report) => Report::Donor(Arc::unwrap_or_clone(report)),
            Heard::Host(report) => Report::Host(Arc::unwrap_or_clone(report)),
        }
    }
}

impl Heard {
    /// Applies changes, or returns those of a report of the other kind.
    fn change(&mut self, changes: Changes) -> Result<(), Changes> {
        match (self, changes) {
            (Heard::Donor(report), Changes::Donor(changes)) => changes.apply(Arc::make_mut(report)),
            (Heard::Host(report), Changes::Host(changes)) => changes.apply(Arc::make_mut(report)),
            (Heard::Donor(_) | Heard::Host(_), changes) => return Err(changes),
        }
        Ok(())
    }
}

/// The manager's side: the end's last report.
#[derive(Debug)]
pub(crate) struct Held {
    is_spoken: bool,
    /// The number of the request that it answered, and the report.
    last: Option<(u32, Heard)>,
    /// The bytes of which it consists: those of a whole report, and of all changes since.
    bytes: usize,
}

impl Held {
    /// Creates a report with nothing in it, of an end that speaks this version.
    pub(crate) const fn new(version: u16) -> Held {
        Held { is_spoken: version >= VERSION, last: None, bytes: 0 }
    }

    /// Returns the report that the end need not send again. A whole one is asked for once all changes together are as
    /// long as the longest message, so that an end that only ever adds to its report cannot fill the manager's memory.
    pub(crate) fn known(&self) -> Option<u32> {
        let is_bounded = self.bytes <= FRAME_BYTES_MAX;
        self.last.as_ref().filter(|_| self.is_spoken && is_bounded).map(|(number, _)| *number)
    }

    /// Takes the answer with this number and length to a query. `is_named`: the query named the last report, so the
    /// answer may be relative to it. Any answer that is no report is returned.
    pub(crate) fn take(
        &mut self,
        is_named: bool,
        number: u32,
        answer: Message,
        bytes: usize,
    ) -> Result<Heard, Message> {
        match (answer, &mut self.last, is_named) {
            (Message::Reported(report), last, _) => {
                let heard = Heard::from(report);
                *last = Some((number, heard.clone()));
                self.bytes = bytes;
                Ok(heard)
            }
            (Message::Unchanged, Some((_, heard)), true) => Ok(heard.clone()),
            (Message::Changed(changes), Some((of, heard)), true) => {
                heard.change(changes).map_err(Message::Changed)?;
                *of = number;
                self.bytes = self.bytes.saturating_add(bytes);
                Ok(heard.clone())
            }
            (other, _, _) => Err(other),
        }
    }
}

/// The end's side: the last report that was sent.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    last: Option<(u32, Report)>,
}

impl Sent {
    /// Returns the answer to the query with this number.
    pub(crate) fn answer(&mut self, number: u32, query: &Query, report: Report) -> Message {
        let last = self.last.as_ref().filter(|(of, _)| query.known == Some(*of)).map(|(_, last)| last);
        let answer = match last {
            Some(last) if *last == report => return Message::Unchanged,
            Some(last) => Changes::between(last, &report).map(Message::Changed),
            None => None,
        };
        let answer = answer.unwrap_or_else(|| Message::Reported(report.clone()));
        self.last = Some((number, report));
        answer
    }
}

#[cfg(test)]
mod tests;
