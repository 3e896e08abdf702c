// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Parses the rules of a failing tier, `after=100,errno=ENOSPC`. Their meaning: `failure_plan.rs`.

use std::time::Duration;

use aquifer_core::units::ByteSize;
use aquifer_tier::failure_plan::{DELAY_MAX, ERRNOS};
use aquifer_tier::{Activity, FailurePlan};

use super::grammar::options;

const RULES: &str =
    "after=N, every=K, offsets=A-B, on=read+write, times=N, errno=EIO, corrupt=K, full-after=SIZE or delay=200us";
const ACTIVITIES: [Activity; 5] =
    [Activity::Discard, Activity::Flush, Activity::Queue, Activity::Read, Activity::Write];

/// Parses a plan from its rules.
pub(super) fn parse(text: &str) -> Result<FailurePlan, String> {
    let mut plan = FailurePlan::default();
    for (name, value) in options(text) {
        let value = value.ok_or_else(|| unknown(name))?;
        match name {
            "after" => plan.after = Some(number(value)?),
            "every" => plan.every = Some(period(value)?),
            "times" => plan.times = number(value)?,
            "corrupt" => plan.corrupt = Some(period(value)?),
            "full-after" => plan.full_after_bytes = Some(value.parse::<ByteSize>()?.0),
            "errno" => plan.errno = errno(value)?,
            "offsets" => plan.offsets = Some(offsets(value)?),
            "on" => plan.on = value.split('+').map(activity).collect::<Result<_, _>>()?,
            "delay" => plan.delay = delay(value)?,
            _ => return Err(unknown(name)),
        }
    }
    Ok(plan)
}

fn unknown(name: &str) -> String {
    format!("'{name}' is not a rule of a failing tier, or lacks its value; write {RULES}")
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("'{text}' is not a number; write one, for example after=100"))
}

fn period(text: &str) -> Result<u64, String> {
    match number(text)? {
        0 => Err("'0' is not a period; write a number of at least 1, for example every=7".into()),
        period => Ok(period),
    }
}

fn errno(text: &str) -> Result<i32, String> {
    let known = || ERRNOS.map(|(name, _)| name).join(", ");
    let found = ERRNOS.iter().find(|(name, _)| *name == text);
    found
        .map(|(_, errno)| *errno)
        .ok_or_else(|| format!("'{text}' is not an errno to fail with; write one of {}", known()))
}

fn activity(text: &str) -> Result<Activity, String> {
    let known = || ACTIVITIES.map(Activity::name).join(", ");
    let found = ACTIVITIES.into_iter().find(|activity| activity.name() == text);
    found.ok_or_else(|| format!("'{text}' is not an operation; write one or several of {} with + between", known()))
}

fn offsets(text: &str) -> Result<std::ops::Range<u64>, String> {
    let advice = || format!("'{text}' is not a range of bytes; write for example offsets=0-1MiB");
    let (start, end) = text.split_once('-').ok_or_else(advice)?;
    let (start, end) = (start.parse::<ByteSize>()?.0, end.parse::<ByteSize>()?.0);
    if start < end { Ok(start..end) } else { Err(advice()) }
}

fn delay(text: &str) -> Result<Duration, String> {
    let advice = || format!("'{text}' is not a delay of at most {DELAY_MAX:?}; write for example 200us, 5ms or 1s");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(advice)?;
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err(advice()),
    };
    let number: f64 = number.parse().map_err(|_| advice())?;
    let delay = Duration::try_from_secs_f64((number * seconds * 1e9).round() / 1e9).map_err(|_| advice())?;
    if delay <= DELAY_MAX { Ok(delay) } else { Err(advice()) }
}
