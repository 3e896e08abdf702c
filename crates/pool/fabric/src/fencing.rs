// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Refuses commands of a deposed fabric manager, and commands that arrive late.
//!
//! Each donor and each agent asks its [`Gate`] before it carries out a [`Command`]. Within a term, a command is carried
//! out only if it is newer than all before it, so one that was overtaken is refused. Once a greater term has been
//! seen, all commands of smaller terms are refused. A command for another incarnation is never carried out. The sender
//! repeats what it still needs: every step may be repeated.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cause::Cause;
use crate::id::{Incarnation, Term};
use crate::reconcile::Step;

/// One step on its way to a donor, an agent or a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The sender's term.
    pub term: Term,
    /// Counts the sender's commands to this receiver within its term, from 1 on.
    pub sequence: u64,
    /// The incarnation of the receiver that the sender knows.
    pub incarnation: Incarnation,
    /// The step that the receiver is to carry out.
    pub step: Step,
    /// The request that it is sent for, if it is sent for one. Nothing is decided by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
}

/// Why a command is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// It is for another incarnation of the receiver, whose state was different.
    Incarnation,
    /// A newer command came first.
    Sequence,
    /// A fabric manager with a greater term was seen.
    Term {
        /// The greatest term so far.
        seen: Term,
    },
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Incarnation => f.write_str("the command is for an earlier start of this end; read its report again"),
            Self::Sequence => f.write_str("a newer command was carried out; read the report of this end again"),
            Self::Term { seen } => {
                write!(f, "term {seen} was seen; this fabric manager was deposed and must step down")
            }
        }
    }
}

impl std::error::Error for Stale {}

/// What a donor or an agent remembers of the commands that it has admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    incarnation: Incarnation,
    term: Term,
    sequence: u64,
}

impl Gate {
    /// Creates the gate of a donor or an agent that has just started, with the greatest term seen in all its
    /// incarnations. The owner stores a term before it acts on it: if it forgot the term, it would obey a deposed
    /// manager, which would treat it as empty and lend memory that is no longer desired.
    pub const fn new(incarnation: Incarnation, term: Term) -> Gate {
        Gate { incarnation, term, sequence: 0 }
    }

    /// Returns the greatest term that was admitted.
    pub const fn term(&self) -> Term {
        self.term
    }

    /// Checks whether to report to a fabric manager with this term. If so, commands of smaller terms are refused from
    /// now on: a manager that has the report knows that no command of an older manager will follow it.
    pub fn report_to(&mut self, term: Term) -> Result<(), Stale> {
        if term < self.term {
            return Err(Stale::Term { seen: self.term });
        }
        if term > self.term {
            (self.term, self.sequence) = (term, 0);
        }
        Ok(())
    }

    /// Checks whether a command may be carried out. If so, records it as the newest one.
    pub fn admit(&mut self, command: &Command) -> Result<(), Stale> {
        if command.incarnation != self.incarnation {
            return Err(Stale::Incarnation);
        }
        if command.term < self.term {
            return Err(Stale::Term { seen: self.term });
        }
        if command.term == self.term && command.sequence <= self.sequence {
            return Err(Stale::Sequence);
        }
        (self.term, self.sequence) = (command.term, command.sequence);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{MemberId, VolumeId};

    fn command(term: u64, sequence: u64, incarnation: u64) -> Command {
        let donor = "d".parse().expect("a name");
        let step = Step::Release { donor, volume: VolumeId(1), member: MemberId(1) };
        Command { term: Term(term), sequence, incarnation: Incarnation(incarnation), step, cause: None }
    }

    #[test]
    fn only_what_is_newer_is_admitted() {
        let mut gate = Gate::new(Incarnation(7), Term(0));
        assert_eq!(gate.admit(&command(1, 1, 7)), Ok(()));
        assert_eq!(gate.admit(&command(1, 1, 7)), Err(Stale::Sequence));
        assert_eq!(gate.admit(&command(1, 9, 6)), Err(Stale::Incarnation));
        assert_eq!(gate.admit(&command(2, 1, 7)), Ok(()));
        assert_eq!(gate.admit(&command(1, 99, 7)), Err(Stale::Term { seen: Term(2) }));
        assert_eq!(gate.report_to(Term(1)), Err(Stale::Term { seen: Term(2) }));
        assert_eq!(gate.report_to(Term(3)), Ok(()));
        assert_eq!(gate.admit(&command(2, 2, 7)), Err(Stale::Term { seen: Term(3) }));
        assert_eq!(gate.term(), Term(3));
    }
}
