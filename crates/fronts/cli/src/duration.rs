// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Parses durations with a unit: `500ms`, `60s`, `10m`, `2h`.

use std::time::Duration;

/// The longest useful duration for anything that Aquifer waits for.
const MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Parses one duration.
pub fn duration(text: &str) -> Result<Duration, String> {
    let advice = || format!("'{text}' is not a time with a unit, up to 7 days; write for example 60s or 10m");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(advice)?;
    let (number, unit) = text.split_at(digits);
    let seconds = match unit.trim() {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(advice()),
    };
    let number: f64 = number.parse().map_err(|_| advice())?;
    // Rounds to the nanosecond, because a product of floats may differ slightly from the intended value.
    let time = Duration::try_from_secs_f64((number * seconds * 1e9).round() / 1e9).map_err(|_| advice())?;
    if time <= MAX { Ok(time) } else { Err(advice()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_carry_units() {
        for (text, ms) in [("500ms", 500), ("60s", 60_000), ("0s", 0), ("1.5m", 90_000), ("2h", 7_200_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "60", "s", "-1s", "1e9s", "8000h", "5 parsecs", "1..2s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
