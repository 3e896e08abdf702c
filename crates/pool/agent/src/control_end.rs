// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The agent as an end of the control channel: it reports the host state, and carries commands out in it.
//!
//! Threads: the keeper's, one call at a time.

use std::io;
use std::sync::Arc;

use aquifer_control::{Deposed, End, Faults, Query, Refused, Report, replace_readable};
use aquifer_fabric::{Command, Term};
use aquifer_telemetry::Side;

use crate::host::Shared;

/// This host's agent, as its managers see it.
pub(crate) struct HostEnd {
    shared: Arc<Shared>,
    log: Arc<dyn Fn(&str) + Send + Sync>,
    /// The last line about a step. A manager repeats a step that is refused, round after round.
    said: String,
    /// A list of revoked certificates that could not be stored, and the line that said so: the manager sends each list
    /// once.
    unstored: Option<(String, String)>,
}

impl HostEnd {
    pub(crate) fn new(shared: Arc<Shared>, log: Arc<dyn Fn(&str) + Send + Sync>) -> HostEnd {
        HostEnd { shared, log, said: String::new(), unstored: None }
    }

    /// Carries a step out, or says why not.
    fn change(&self, command: &Command) -> Result<(), String> {
        let (outcome, stored) = self.shared.change(|host_state| host_state.carry_out(command));
        outcome.and(stored.map_err(|error| unstored(&error)))
    }

    /// Stores a list for programs, or keeps it for the next report. Says only once why it cannot be stored.
    fn store_list(&mut self, list: String) {
        let Some(path) = &self.shared.settings.revocations else { return };
        let before = self.unstored.take().map(|(_, line)| line);
        if let Err(error) = replace_readable(path, &list) {
            let line = format!(
                "the manager's list of revoked certificates cannot be stored in {}: {error}; let the agent write to its \
                 directory, or keep the file up to date by other means",
                path.display()
            );
            if before.as_ref() != Some(&line) {
                (self.log)(&line);
            }
            self.unstored = Some((list, line));
        }
    }

    /// Writes what became of a step that a request has ordered into the log, under the request's id.
    fn say(&mut self, command: &Command, outcome: &Result<(), String>) {
        let Some(cause) = &command.cause else { return };
        let result = outcome.as_ref().map_or_else(|why| format!("refused why={why:?}"), |()| "done".to_owned());
        let (request, step) = (&cause.request, command.step.to_string());
        let line = format!("event=ordered term={} request={request} step={step:?} result={result}", command.term);
        if self.said != line {
            (self.log)(&line);
            self.said = line;
        }
    }
}

fn unstored(error: &io::Error) -> String {
    format!("the agent's state cannot be stored: {error}; free space in its state directory")
}

impl End for HostEnd {
    /// Stores the term, and all else that could not be stored so far. A manager must not act on a report that a
    /// restarted agent would not give, so it gets the reason instead.
    fn prepare(&mut self, term: Term) -> Result<(), Refused> {
        // A term that is too small is for `report` to refuse.
        let stored = self.shared.change(|host_state| host_state.admit_term(term)).1;
        stored.map_err(|error| Refused::new(unstored(&error)))
    }

    fn report(&mut self, query: &Query) -> Result<Report, Deposed> {
        let (outcome, stored) = self.shared.change(|host_state| {
            host_state.admit_term(query.term).map_err(|seen| Deposed { seen })?;
            if let Some(directory) = &query.directory {
                host_state.learn(directory.donors.clone());
            }
            Ok((host_state.report(), host_state.term()))
        });
        let (report, seen) = outcome?;
        // A term that is not greater ends the channel; over the next one, `prepare` says why.
        stored.map_err(|_| Deposed { seen })?;
        if let Some((list, _)) = self.unstored.clone() {
            self.store_list(list);
        }
        Ok(Report::Host(report))
    }

    /// Keeps the list for programs up to date, if the file is the agent's to write. If it is not, somebody else keeps
    /// it: that is no reason to be silent.
    fn take_revocations(&mut self, list: &str) -> Result<(), Refused> {
        self.store_list(list.to_owned());
        Ok(())
    }

    /// Without metrics, no program is shown to the agent.
    fn measure(&mut self) -> Option<Faults> {
        self.shared.settings.metrics.map(|_| self.shared.shown.faults())
    }

    fn carry_out(&mut self, command: &Command) -> Result<(), Refused> {
        let cause = command.cause.as_ref();
        let traceparent = cause.and_then(|cause| cause.traceparent.as_ref()).map(|header| header.as_str());
        let mut operation = self.shared.telemetry.begin("carry out step", Side::Server, traceparent);
        operation.note("aquifer.step", || command.step.to_string());
        operation.note("aquifer.step.id", || format!("{}.{}", command.term, command.sequence));
        if let Some(cause) = cause {
            operation.note("aquifer.request.id", || cause.request.to_string());
        }
        let outcome = self.change(command);
        self.say(command, &outcome);
        outcome.map_err(|why| {
            operation.fail(|| why.clone());
            Refused::new(why)
        })
    }
}
