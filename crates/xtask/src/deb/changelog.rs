// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The version of the packages, and the entry of `debian/changelog` from which dpkg reads it. Pure except that it reads
//! the workspace's manifest. The changes themselves are in CHANGELOG.md, which the packages contain.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

/// The maintainer, as in `packaging/debian/control`.
const MAINTAINER: &str = "The Aquifer authors <packages@aquifer.dev>";

/// The version of a package: that of the sources, `-`, and the revision of the packaging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(String);

impl Version {
    /// The version of the workspace, with the revision 1.
    pub fn of_workspace(root: &Path) -> Result<Version, String> {
        let path = root.join("Cargo.toml");
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("version = "));
        let version = line.ok_or_else(|| format!("{} has no version", path.display()))?;
        format!("{}-1", version.trim_matches('"')).parse()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Version {
    type Err = String;

    /// See deb-version(7); without an epoch.
    fn from_str(text: &str) -> Result<Version, String> {
        let (upstream, revision) = text.rsplit_once('-').unwrap_or((text, ""));
        let is_allowed = |one: char| one.is_ascii_alphanumeric() || ['.', '+', '~'].contains(&one);
        let is_right = upstream.starts_with(|one: char| one.is_ascii_digit())
            && upstream.chars().all(|one| is_allowed(one) || one == '-')
            && !revision.is_empty()
            && revision.chars().all(is_allowed);
        is_right.then(|| Version(text.to_owned())).ok_or_else(|| format!("'{text}' is not a version such as 0.1.0-1"))
    }
}

/// The one entry of `debian/changelog`.
pub fn entry(version: &Version, seconds: u64) -> String {
    format!(
        "aquifer ({version}) unstable; urgency=medium\n\n  * See /usr/share/doc/aquifer/changelog.gz.\n\n \
         -- {MAINTAINER}  {}\n",
        date(seconds)
    )
}

/// A date of RFC 5322 in UTC, as dpkg-parsechangelog(1) reads it.
fn date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let week_day = DAYS[usize::try_from(days % 7).expect("less than 7")];
    let (mut year, mut left) = (1970, days);
    while left >= days_of(year, None) {
        left -= days_of(year, None);
        year += 1;
    }
    let mut month = 0;
    while left >= days_of(year, Some(month)) {
        left -= days_of(year, Some(month));
        month += 1;
    }
    format!("{week_day}, {:02} {} {year} {hour:02}:{minute:02}:{second:02} +0000", left + 1, MONTHS[month])
}

/// The days of a year, or of one of its months.
fn days_of(year: u64, month: Option<usize>) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        None => 365 + u64::from(is_leap),
        Some(1) => 28 + u64::from(is_leap),
        Some(3 | 5 | 8 | 10) => 30,
        Some(_) => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 +0000"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 +0000"),
            (1_767_225_599, "Wed, 31 Dec 2025 23:59:59 +0000"),
            (1_803_859_200, "Mon, 01 Mar 2027 00:00:00 +0000"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }

    #[test]
    fn versions_are_those_of_debian() {
        for text in ["0.1.0-1", "1.2.3~rc1-0ubuntu1", "2.0-pre-3"] {
            assert_eq!(text.parse::<Version>().unwrap().to_string(), text);
        }
        for text in ["", "1.0", "a-1", "1.0-", "1 0-1", "1.0-1\n", "1:1.0-1"] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
        let entry = entry(&"0.1.0-1".parse().unwrap(), 0);
        assert!(entry.starts_with("aquifer (0.1.0-1) unstable;") && entry.contains("\n -- The Aquifer authors <"));
    }
}
