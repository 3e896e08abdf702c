// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The report of a check as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::check::{Report, Verdict};

/// Returns the word for a verdict, the same in every form of the report.
pub(crate) fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Conforms => "conforms",
        Verdict::Departs { known: Some(_), .. } => "known",
        Verdict::Departs { known: None, .. } => "departs",
        Verdict::Skipped { .. } => "skipped",
    }
}

/// Returns what was found, and what is known about it.
pub(crate) fn detail(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Conforms => String::new(),
        Verdict::Departs { what, known: Some(known) } => format!("{what} (known: {known})"),
        Verdict::Departs { what, known: None } => what.clone(),
        Verdict::Skipped { why } => why.clone(),
    }
}

/// Returns the counts as a sentence.
pub(crate) fn summary(report: &Report) -> String {
    let [conforms, known, departs, skipped] = report.counts();
    let dialect = report.dialect;
    let counts =
        format!("{conforms} conform, {departs} depart, {known} depart as known of {dialect}, {skipped} skipped");
    if report.is_complete { counts } else { format!("{counts}; the check reached its limit of time") }
}

/// Returns the report as text.
pub fn text(report: &Report) -> String {
    let mut text = format!("{} speaks the {} dialect\n\n", report.peer, report.dialect);
    for finding in &report.findings {
        let (case, verdict) = (finding.case, word(&finding.verdict));
        let _ = writeln!(text, "{verdict:<9} {:<18} {} ({})", case.id, case.title, case.section);
        let detail = detail(&finding.verdict);
        if !detail.is_empty() {
            let _ = writeln!(text, "{:<28} {detail}", "");
        }
    }
    let _ = writeln!(text, "\nanswered:");
    for opcode in &report.answered {
        let _ = writeln!(text, "  {opcode}");
    }
    let _ = writeln!(text, "\n{}", summary(report));
    text
}

/// Returns the report as one JSON object.
pub fn json(report: &Report) -> Value {
    let [conforms, known, departs, skipped] = report.counts();
    let cases: Vec<Value> = report
        .findings
        .iter()
        .map(|finding| {
            let case = finding.case;
            let (what, known) = match &finding.verdict {
                Verdict::Conforms => (None, None),
                Verdict::Departs { what, known } => (Some(what), *known),
                Verdict::Skipped { why } => (Some(why), None),
            };
            json!({
                "case": case.id, "section": case.section, "title": case.title,
                "verdict": word(&finding.verdict), "detail": what, "known": known,
            })
        })
        .collect();
    let answered: Vec<Value> = report.answered.iter().map(|it| json!({ "opcode": it.0, "name": it.name() })).collect();
    json!({
        "peer": report.peer, "dialect": report.dialect, "specification": "CXL 3.1",
        "conforms": conforms, "departs": departs, "known": known, "skipped": skipped,
        "is_complete": report.is_complete,
        "cases": cases, "answered": answered,
    })
}
