// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The report of a check as one page, without scripts and without anything to load. All text of a peer is escaped.

use std::fmt::Write as _;

use crate::check::Report;
use crate::report::{detail, summary, word};

const STYLE: &str = "\
body{font:15px/1.4 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;color:#1b1b1b;background:#fff}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.3em .6em;border-bottom:1px solid #ddd}
td:first-child{font-weight:600;white-space:nowrap}code{white-space:nowrap}
.conforms td:first-child{color:#14662b}.departs td:first-child{color:#a40e1e}
.known td:first-child{color:#7a4b00}.skipped td{color:#666}";

/// Returns the report as a page.
pub fn page(report: &Report) -> String {
    let title = escaped(&format!("FM API check of {}", report.peer));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>\n{STYLE}\n</style></head>\n<body>\n<h1>{title}</h1>\n<p>Dialect: {}. {}.</p>\n\
         <table>\n<tr><th>Verdict</th><th>Case</th><th>What must hold</th><th>CXL 3.1</th><th>Found</th></tr>\n",
        escaped(report.dialect),
        escaped(&summary(report)),
    );
    for finding in &report.findings {
        let (case, verdict) = (finding.case, word(&finding.verdict));
        let _ = writeln!(
            page,
            "<tr class=\"{verdict}\"><td>{verdict}</td><td><code>{}</code></td><td>{}</td><td>{}</td><td>{}</td></tr>",
            case.id,
            escaped(case.title),
            escaped(case.section),
            escaped(&detail(&finding.verdict)),
        );
    }
    page.push_str("</table>\n<h2>Commands that were answered</h2>\n<ul>\n");
    for opcode in &report.answered {
        let _ = writeln!(page, "<li>{}</li>", escaped(&opcode.to_string()));
    }
    page.push_str("</ul>\n</body></html>\n");
    page
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{CASES, Finding, Verdict};

    #[test]
    fn what_a_peer_is_called_and_says_is_escaped() {
        let verdict = Verdict::Departs { what: "<b>\"&".into(), known: None };
        let findings = vec![Finding { case: &CASES[0], verdict }];
        let report = Report {
            peer: "unix:/<script>".into(),
            dialect: "standard",
            answered: Vec::new(),
            findings,
            is_complete: true,
        };
        let page = page(&report);
        assert!(page.contains("unix:/&lt;script&gt;") && page.contains("&lt;b&gt;&quot;&amp;"), "{page}");
        assert!(!page.contains("<script>") && page.contains("<tr class=\"departs\">"), "{page}");
    }
}
