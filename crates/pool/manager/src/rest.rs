// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The Redfish interface: a table of routes (`rest/routes.rs`), and how one request is answered by it.
//!
//! Blocking and without sockets: `http.rs` calls [`Service::answer`] with a request that has arrived as a whole. The
//! OpenAPI document is generated from the same table, so that neither lacks what the other has.

mod access;
mod admission;
mod answer;
mod body;
mod collection;
mod devices;
mod events;
mod fabrics;
mod fuzzing;
mod joining;
mod memory;
mod metadata;
mod oem;
mod openapi;
mod protocol;
mod registries;
mod request_record;
mod roots;
mod routes;
mod service;
mod shape;
mod switches;
mod tasks;

pub use body::take_body;
pub use fuzzing::take_request;
pub use openapi::openapi;

pub(crate) use answer::{Answer, Problem};
pub(crate) use body::{BODY_BYTES_MAX, DECLARATION_BYTES_MAX};
pub(crate) use service::{Position, Request, Service};

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aquifer_fabric::Millis;

/// How long an order may wait for the writer. A round of a thousand donors takes far less.
const ORDER_WAIT_MAX: Duration = Duration::from_secs(60);

/// Returns the time now.
pub(crate) fn now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Returns an instant as Redfish writes it.
pub(crate) fn date(at: Millis) -> String {
    let (days, seconds) = (at.0 / 86_400_000, at.0 / 1000 % 86_400);
    // Howard Hinnant's days_from_civil, backwards, for days since 1970.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_shifted + 2) / 5 + 1;
    let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // From date(1): date -u -d @SECONDS +%FT%TZ
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
        ] {
            assert_eq!(date(Millis(seconds * 1000)), text);
        }
    }
}
