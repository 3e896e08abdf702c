// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The suite for peers that speak the FM API: sends commands that only read, then wrong ones, and binds if it may.
//!
//! A finding is a case's verdict. A command that a peer reports as unsupported is not a departure: most are optional.
//! A peer that stops in the middle of the suite departs, and the remaining cases are skipped. So are they when
//! the suite reaches its limit of time; what it has bound is unbound even so, within a limit of its own
//! ([`UNDO_TIME_MAX`]).

mod binding;
mod cases;
mod departures;
mod devices;
mod generic;
mod switch;
mod wrong;

use std::time::Duration;

use aquifer_fmapi::{Dialect, Opcode, ReturnCode, SwitchIdentity};
use aquifer_fmapi_client::{Cause, Client, Failure, Hop};

pub use cases::{CASES, Case, case};
pub use departures::{DEPARTURES, Departure, known};

/// How long a check may take to unbind what a bind may have bound, whatever its own limit is: a minute for the
/// background operation of each (`Limits::background`), and half a minute for their other answers.
pub const UNDO_TIME_MAX: Duration = Duration::from_secs(150);

/// The verdict on a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The peer does what the specification says.
    Conforms,
    /// The peer departs from the specification.
    Departs {
        /// What the peer does instead.
        what: String,
        /// The departure that is known of its dialect, if it is one.
        known: Option<&'static str>,
    },
    /// It was not tried, or could not be judged.
    Skipped {
        /// Why it was skipped.
        why: String,
    },
}

/// A case and its verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The case that was tried.
    pub case: &'static Case,
    /// The verdict on the case.
    pub verdict: Verdict,
}

/// What the suite found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The peer's address.
    pub peer: String,
    /// The name of the peer's dialect.
    pub dialect: &'static str,
    /// The commands that the peer itself answers, as far as they were tried.
    pub answered: Vec<Opcode>,
    /// One for each case, in the order of [`CASES`].
    pub findings: Vec<Finding>,
    /// False if cases were skipped because the check reached its limit of time.
    pub is_complete: bool,
}

impl Report {
    /// Returns how many cases conform, depart in a known way, depart otherwise, and were skipped.
    pub fn counts(&self) -> [usize; 4] {
        let mut counts = [0; 4];
        for finding in &self.findings {
            let at = match &finding.verdict {
                Verdict::Conforms => 0,
                Verdict::Departs { known: Some(_), .. } => 1,
                Verdict::Departs { known: None, .. } => 2,
                Verdict::Skipped { .. } => 3,
            };
            counts[at] += 1;
        }
        counts
    }
}

/// Why the suite stops.
enum Stop {
    /// The peer is gone, or the transport failed.
    Ended(Failure),
    /// The limit of time was reached.
    Late,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        if matches!(failure.cause, Cause::TooSlow) { Self::Late } else { Self::Ended(failure) }
    }
}

type Step = Result<(), Stop>;

/// Why a case was skipped for want of time.
const LATE: &str = "not tried: the check reached its limit of time";

/// A run of the suite.
struct Suite<'a> {
    client: &'a mut Client,
    dialect: &'static Dialect,
    may_change: bool,
    /// The time of the client's clock at which it ends.
    end_at: Duration,
    findings: Vec<Finding>,
    /// Commands of the peer itself: those that were answered with another code than Unsupported, and those that were
    /// not.
    answered: Vec<Opcode>,
    unanswered: Vec<Opcode>,
    /// Those that it lists.
    listed: Option<Vec<Opcode>>,
    switch: Option<SwitchIdentity>,
    /// Ports with a device, and whether it is reported as an MLD.
    devices: Vec<(u8, bool)>,
}

/// Checks a peer. `may_change`: bind and unbind, too. No command is sent after `limit`, except to unbind. Fails only if
/// the peer does not even answer Identify.
pub fn check(
    client: &mut Client,
    may_change: bool,
    dialect: Option<&'static Dialect>,
    limit: Duration,
) -> Result<Report, Failure> {
    let end_at = client.now().saturating_add(limit);
    client.end_by(end_at);
    let found = client.recognise()?;
    let dialect = dialect.unwrap_or(found);
    client.speak(dialect);
    let mut suite = Suite {
        client,
        dialect,
        may_change,
        end_at,
        findings: Vec::new(),
        answered: Vec::new(),
        unanswered: Vec::new(),
        listed: None,
        switch: None,
        devices: Vec::new(),
    };
    suite.judge_header(found);
    let ended = suite.run();
    match &ended {
        Ok(()) => {}
        Err(Stop::Ended(failure)) => suite.skip_rest(&format!("the peer ended before: {failure}")),
        Err(Stop::Late) => suite.skip_rest(LATE),
    }
    let is_complete = !matches!(ended, Err(Stop::Late));
    let peer = suite.client.peer();
    let mut answered = suite.answered;
    answered.sort_unstable();
    let place = |finding: &Finding| CASES.iter().position(|case| case == finding.case);
    let mut findings = suite.findings;
    findings.sort_by_key(place);
    Ok(Report { peer, dialect: dialect.name, answered, findings, is_complete })
}

impl Suite<'_> {
    fn run(&mut self) -> Step {
        self.generic()?;
        self.switch()?;
        self.virtual_switches()?;
        self.devices()?;
        self.wrong()?;
        self.bind_and_unbind()?;
        self.effects_agree();
        Ok(())
    }

    fn conclude(&mut self, id: &'static str, verdict: Verdict) {
        let case = case(id).expect("a case of the table");
        assert!(!self.findings.iter().any(|finding| finding.case == case), "{id} is judged once");
        self.findings.push(Finding { case, verdict });
    }

    fn conforms(&mut self, id: &'static str) {
        self.conclude(id, Verdict::Conforms);
    }

    fn departs(&mut self, id: &'static str, what: impl Into<String>) {
        let known = known(self.dialect.name, id);
        self.conclude(id, Verdict::Departs { what: what.into(), known });
    }

    fn skip(&mut self, id: &'static str, why: impl Into<String>) {
        self.conclude(id, Verdict::Skipped { why: why.into() });
    }

    /// Conforms, or departs for the first of these reasons.
    fn judge(&mut self, id: &'static str, wrong: Option<String>) {
        match wrong {
            Some(what) => self.departs(id, what),
            None => self.conforms(id),
        }
    }

    fn is_judged(&self, id: &str) -> bool {
        self.findings.iter().any(|finding| finding.case.id == id)
    }

    /// Skips the cases that were not judged.
    fn skip_rest(&mut self, why: &str) {
        for case in CASES {
            if !self.is_judged(case.id) {
                self.skip(case.id, why);
            }
        }
    }

    /// Skips these cases, unless they were judged.
    fn skip_all(&mut self, ids: &[&'static str], why: &str) {
        for id in ids {
            if !self.is_judged(id) {
                self.skip(id, why);
            }
        }
    }

    /// Returns why the suite stops. If the peer has ended, the case departs.
    fn stop(&mut self, id: &'static str, failure: Failure) -> Stop {
        let stop = failure.into();
        if let Stop::Ended(failure) = &stop {
            self.departs(id, format!("the peer ended: {failure}"));
        }
        stop
    }

    /// Sends a payload once, and notes whether the peer itself answers the command. `None`: no answer, which is a
    /// departure of this case.
    fn probe(
        &mut self,
        id: &'static str,
        path: &[Hop],
        opcode: Opcode,
        payload: &[u8],
    ) -> Result<Option<(ReturnCode, Vec<u8>)>, Stop> {
        // One lost answer is not yet a departure.
        let mut answer = self.client.probe(path, opcode, payload);
        if answer.as_ref().is_err_and(|failure| matches!(failure.cause, Cause::NoAnswer { .. })) {
            answer = self.client.probe(path, opcode, payload);
        }
        match answer {
            Ok(answer) => {
                let code = answer.header.return_code;
                if path.is_empty() && opcode.name().is_some() {
                    let list = if code == ReturnCode::UNSUPPORTED { &mut self.unanswered } else { &mut self.answered };
                    if !list.contains(&opcode) {
                        list.push(opcode);
                    }
                }
                Ok(Some((code, answer.payload)))
            }
            Err(failure) if failure.is_fatal() => Err(self.stop(id, failure)),
            Err(failure) => {
                self.departs(id, failure.cause.to_string());
                Ok(None)
            }
        }
    }

    /// Returns the payload of a successful answer. Otherwise the case is concluded: skipped if the command is not
    /// supported.
    fn ask(&mut self, id: &'static str, path: &[Hop], opcode: Opcode, payload: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        match self.probe(id, path, opcode, payload)? {
            Some((ReturnCode::SUCCESS, payload)) => return Ok(Some(payload)),
            Some((ReturnCode::UNSUPPORTED, _)) => self.skip(id, format!("{opcode} is not supported")),
            Some((code, _)) => self.departs(id, format!("{opcode} is answered by {code}")),
            None => {}
        }
        Ok(None)
    }

    /// Sends a request and expects this return code.
    fn expect(&mut self, id: &'static str, opcode: Opcode, payload: &[u8], expected: ReturnCode) -> Step {
        match self.probe(id, &[], opcode, payload)? {
            Some((code, _)) if code == expected => self.conforms(id),
            Some((ReturnCode::UNSUPPORTED, _)) => self.skip(id, format!("{opcode} is not supported")),
            Some((code, _)) => self.departs(id, format!("{opcode} is answered by {code}, not by {expected}")),
            None => {}
        }
        Ok(())
    }
}

/// Returns what is wrong with the length of an answer, if anything is.
fn length(payload: &[u8], expected: usize) -> Option<String> {
    (payload.len() != expected).then(|| format!("{} bytes, not {expected}", payload.len()))
}
