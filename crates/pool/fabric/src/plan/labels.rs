// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which labels of a volume change, for people to read. Plans, events and the audit log have it.

use std::collections::BTreeMap;
use std::fmt;

/// Length of what is listed, in bytes: enough for a host and a vPPB, and little in a record of the audit log.
const LISTED_BYTES_MAX: usize = 160;

type Labels = BTreeMap<String, String>;

/// Writes the labels that differ, in the order of their names. Those that are too long for the list are counted.
pub(super) fn write_differences(f: &mut fmt::Formatter<'_>, before: &Labels, after: &Labels) -> fmt::Result {
    let removed = before.keys().filter(|name| !after.contains_key(*name)).map(|name| (name, None));
    let set = after.iter().filter(|(name, value)| before.get(*name) != Some(*value));
    let differences: BTreeMap<&String, Option<&String>> =
        removed.chain(set.map(|(name, value)| (name, Some(value)))).collect();
    let (mut listed, mut left_out) = (String::new(), 0);
    for (name, value) in differences {
        let text = match value {
            Some(value) => format!("{}={}", quoted(name), quoted(value)),
            None => format!("{} removed", quoted(name)),
        };
        let separator = if listed.is_empty() { "" } else { ", " };
        match listed.len() + separator.len() + text.len() <= LISTED_BYTES_MAX {
            true => listed.extend([separator, &text]),
            false => left_out += 1,
        }
    }
    match (listed.as_str(), left_out) {
        (listed, 0) => f.write_str(listed),
        ("", count) => write!(f, "{count} long ones"),
        (listed, count) => write!(f, "{listed}, and {count} more"),
    }
}

/// Returns a text as it is, or in quotes if it could be taken for something else, such as another change.
fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@+%".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text.to_owned(),
        false => format!("{text:?}"),
    }
}
