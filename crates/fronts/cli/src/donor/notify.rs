// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Notifies systemd when the donor starts and stops lending.

use std::time::Duration;

use aquifer_sys::notify::Notify;

/// Time added to the grace period, for wiping what was lent.
const WIPE: Duration = Duration::from_secs(30);

/// Announces that borrowers can connect, and what is lent.
pub fn ready(status: &str) {
    Notify::from_environment().ready(status);
}

/// Announces that the donor is stopping, and how long that may take.
pub fn stopping(status: &str, within: Duration) {
    let max = within.saturating_add(WIPE).as_micros();
    Notify::from_environment().send(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={max}\nSTATUS={status}"));
}
