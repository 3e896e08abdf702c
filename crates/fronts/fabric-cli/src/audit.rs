// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Shows the audit log: a part of it, or all of it, page by page; or has the manager verify it.

use std::time::{Duration, Instant};

use aquifer_fabric::{Millis, date};
use aquifer_fabric_args::Audit;
use aquifer_manager_client::{Answer, Failure, Request, failed, plain, refused};
use aquifer_terminal::{Output, Tone};
use serde_json::Value;

use crate::show::{STATUS, Session, cell};
use crate::table::columns;

/// The check of the log. Reading it begins one, or waits for the one that is under way.
const VERIFICATION: &str = "/redfish/v1/Oem/Aquifer/Audit/Verification";
/// The remedy for a log that has gaps.
const VERIFY: &str = "have it verified: 'aquifer fabric audit --verify'";
const TITLES: [&str; 4] = ["NUMBER", "TIME", "WHO", "WHAT"];
/// Records of one page: the most that a manager gives.
const PAGE_RECORDS: u64 = 1000;
/// Maximum number of pages of a log: a hundred million records.
const PAGES_MAX: usize = 100_000;
/// How long the manager may take to check its log. It checks some ten thousand records in a second.
const VERIFICATION_WAIT_MAX: Duration = Duration::from_secs(3600);
/// The pauses before the manager is asked again, whatever it says.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The exit code of `--verify` if the log is damaged.
const DAMAGED: u8 = 3;

/// Shows the audit log, or has it verified. Returns the exit code.
pub(crate) fn audit(session: &mut Session<'_>, args: &Audit) -> Result<u8, Failure> {
    match (args.verify, args.all) {
        (true, _) => verify(session),
        (false, true) => all(session, args.after).map(|()| 0),
        (false, false) => {
            let answer = read(session, args.after, args.count)?;
            session.show_table(&answer, &TITLES, |answer| rows(records(answer))).map(|()| 0)
        }
    }
}

fn read(session: &Session<'_>, after: u64, count: u64) -> Result<Value, Failure> {
    Ok(session.client.ask(&Request::get(&format!("{STATUS}/Audit?$skip={after}&$top={count}")))?.body)
}

fn records(page: &Value) -> &[Value] {
    page["Records"].as_array().map_or(&[], Vec::as_slice)
}

fn rows(records: &[Value]) -> Vec<Vec<String>> {
    let row = |record: &Value| {
        let at = record["at"].as_u64().map(|at| date(Millis(at))).unwrap_or_default();
        vec![cell(&record["sequence"]), at, cell(&record["who"]), cell(&record["what"])]
    };
    records.iter().map(row).collect()
}

/// Shows all records after a number, to the last one that there was at the beginning. People get the titles with each
/// page, and with `--json` each record is one line.
fn all(session: &mut Session<'_>, mut after: u64) -> Result<(), Failure> {
    let mut last = None;
    for _ in 0..PAGES_MAX {
        let page = read(session, after, PAGE_RECORDS)?;
        let last = *last.get_or_insert_with(|| page["Tail"]["records"].as_u64().unwrap_or_default());
        let (records, newest) = part(&page, after, last)?;
        let text = match session.json {
            true => records.iter().map(|record| format!("{record}\n")).collect(),
            false => columns(&TITLES, &rows(records), &session.output),
        };
        session.print(&text)?;
        if newest >= last {
            return Ok(());
        }
        after = newest;
    }
    Err(failed(format!("the audit log has more than {PAGES_MAX} pages; continue with --after {after}")))
}

/// Returns the records of a page up to the one with the number `last`, and the number of the newest of them. They
/// follow the record `after` without a gap.
fn part(page: &Value, after: u64, last: u64) -> Result<(&[Value], u64), Failure> {
    let all = records(page);
    let count = usize::try_from(last.saturating_sub(after)).unwrap_or(usize::MAX);
    let wanted = &all[..all.len().min(count)];
    let mut newest = after;
    for record in wanted {
        if record["sequence"].as_u64() != newest.checked_add(1) {
            let found = &record["sequence"];
            return Err(failed(format!("after record {newest} of the audit log comes {found}; {VERIFY}")));
        }
        newest += 1;
    }
    match wanted.is_empty() && after < last {
        true => Err(failed(format!("the audit log ends after record {after}, and should have {last}; {VERIFY}"))),
        false => Ok((wanted, newest)),
    }
}

/// Has the manager check its log, and shows what it has found.
fn verify(session: &mut Session<'_>) -> Result<u8, Failure> {
    let (client, output) = (&session.client, session.output);
    let found = wait_verified(|| client.try_ask(&Request::get(VERIFICATION)), VERIFICATION_WAIT_MAX)?;
    let is_intact = found["IsIntact"].as_bool().ok_or_else(|| {
        failed("the answer does not say whether the audit log is intact; check --url, or upgrade the manager")
    })?;
    session.show(&found, |found| text(found, is_intact, &output))?;
    Ok(if is_intact { 0 } else { DAMAGED })
}

/// Asks until there is a result. While the check is under way, the answer is 503, and says when to ask again.
fn wait_verified(ask: impl Fn() -> Result<(u16, Answer), Failure>, limit: Duration) -> Result<Value, Failure> {
    let begun = Instant::now();
    loop {
        let (status, answer) = ask()?;
        let pause = match (status, answer.retry_after) {
            (200..300, _) => return Ok(answer.body),
            (503, Some(pause)) => pause.clamp(PAUSE_MIN, PAUSE_MAX),
            _ => return Err(refused(status, &answer.body)),
        };
        if begun.elapsed() + pause > limit {
            let seconds = limit.as_secs();
            return Err(failed(format!("not verified after {seconds} s: {}", refused(status, &answer.body))));
        }
        std::thread::sleep(pause);
    }
}

fn text(found: &Value, is_intact: bool, output: &Output) -> String {
    let (state, tone) = if is_intact { ("intact", Tone::Good) } else { ("damaged", Tone::Bad) };
    let mut text = format!("{:<9}{}\n", "state", output.toned(state, tone));
    let tail = &found["Tail"];
    for (name, value) in [("damage", &found["Damage"]), ("records", &tail["records"]), ("hash", &tail["hash"])] {
        if !value.is_null() {
            text += &format!("{name:<9}{}\n", plain(&cell(value)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use std::cell::Cell;

    use super::*;

    fn page(numbers: impl Iterator<Item = u64>) -> Value {
        json!({ "Records": numbers.map(|number| json!({ "sequence": number })).collect::<Vec<_>>() })
    }

    #[test]
    fn a_page_goes_on_where_the_one_before_has_ended_and_not_beyond_the_last_record() {
        let part = |page: &Value, after, last| {
            let found = super::part(page, after, last).map_err(|failure| failure.line)?;
            Ok::<_, String>((found.0.len(), found.1))
        };
        assert_eq!(part(&page(8..=10), 7, 12), Ok((3, 10)));
        assert_eq!(part(&page(8..=20), 7, 12), Ok((5, 12)), "records that came later are left out");
        assert_eq!(part(&page(0..0), 12, 12), Ok((0, 12)));
        assert_eq!(part(&page(0..0), 90, 12), Ok((0, 90)), "there are fewer");
        assert!(part(&page(0..0), 7, 12).is_err_and(|line| line.contains("ends after record 7, and should have 12; ")));
        for wrong in [7..=9, 9..=10] {
            let line = part(&page(wrong), 7, 12).expect_err("a gap");
            assert!(line.contains("after record 7 of the audit log comes ") && line.contains("--verify"), "{line}");
        }
        assert!(part(&json!({ "Records": [{}] }), 7, 12).is_err());
        assert!(part(&json!([]), u64::MAX, u64::MAX).is_ok());
    }

    #[test]
    fn a_check_is_waited_for_and_no_other_trouble() {
        let under_way = || Answer { retry_after: Some(Duration::ZERO), ..Answer::default() };
        let (asked, limit) = (Cell::new(0), Duration::from_secs(600));
        let ask = || {
            asked.set(asked.get() + 1);
            let verified = Answer { body: json!(7), ..Answer::default() };
            Ok(if asked.get() == 1 { (503, under_way()) } else { (200, verified) })
        };
        assert_eq!((wait_verified(ask, limit), asked.get()), (Ok(json!(7)), 2));
        let line = wait_verified(|| Ok((503, under_way())), Duration::ZERO).expect_err("at once").to_string();
        assert!(line.starts_with("not verified after 0 s: ") && line.contains("; "), "{line}");
        assert_eq!(wait_verified(|| Ok((503, Answer::default())), limit).expect_err("at once").status, Some(503));
        let other = Answer { retry_after: Some(Duration::ZERO), ..Answer::default() };
        assert_eq!(wait_verified(|| Ok((429, other.clone())), limit).expect_err("at once").status, Some(429));
    }

    #[test]
    fn what_was_found_is_text_without_control_characters() {
        let tail = json!({ "records": 9, "hash": "ab" });
        let intact = text(&json!({ "Damage": null, "Tail": tail }), true, &Output::default());
        assert_eq!(intact, "state    intact\nrecords  9\nhash     ab\n");
        let damaged = text(&json!({ "Damage": "record 2\n; b", "Tail": null }), false, &Output::default());
        assert_eq!(damaged, "state    damaged\ndamage   record 2\\n; b\n");
    }
}
