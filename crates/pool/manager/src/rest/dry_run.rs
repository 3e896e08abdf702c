// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Dry runs of changes that are no orders to the writer: of accounts, join tokens and certificates. They are decided as
//! the changes are, and nothing is stored. Their answer is a plan, as that of a dry run of an order.

use super::answer::{Answer, Problem};
use super::oem::plan_body;
use super::service::Call;
use crate::sessions::{Decided, Sessions};
use crate::writer::Done;

impl Call<'_> {
    /// Decides a change of accounts, and has it stored. Returns the plan if this is a dry run, which stores nothing.
    pub(super) fn keep_or_plan(
        &self,
        decide: impl FnOnce(&Sessions) -> Decided<()> + Send + 'static,
    ) -> Result<Option<Answer>, Problem> {
        if !self.is_dry_run() {
            return self.service.keep(decide).map(|()| None);
        }
        // The lock is released at the end of this statement.
        let decided = decide(&self.service.sessions());
        let ((), pending) = decided?;
        Ok(Some(self.planned(pending.entries.into_iter().map(|entry| entry.what))))
    }

    /// Returns the plan of a dry run with these changes, in the words of the audit log.
    pub(super) fn planned(&self, changes: impl IntoIterator<Item = String>) -> Answer {
        let changes = changes.into_iter().map(|what| format!("{} {what}", sign(&what))).collect();
        let version = self.snapshot.desired.version;
        Answer::of(200, plan_body(&Done { changes, version, ..Done::default() }))
    }
}

/// Returns the sign with which a plan shows a change: whether there is more afterwards, or less.
fn sign(what: &str) -> char {
    match what.split(' ').next() {
        Some("create") => '+',
        Some("change") => '~',
        _ => '-',
    }
}
