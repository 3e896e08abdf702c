// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads and writes sizes and durations with units.

use std::time::Duration;

const UNITS: [(&str, u64); 22] = [
    ("", 1),
    ("B", 1),
    ("K", 1 << 10),
    ("k", 1 << 10),
    ("Ki", 1 << 10),
    ("KiB", 1 << 10),
    ("KB", 1_000),
    ("M", 1 << 20),
    ("m", 1 << 20),
    ("Mi", 1 << 20),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("G", 1 << 30),
    ("g", 1 << 30),
    ("Gi", 1 << 30),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("T", 1 << 40),
    ("t", 1 << 40),
    ("Ti", 1 << 40),
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
];

/// An exabyte: no machine has that much, and nothing computed from a size may overflow.
const BYTES_MAX: u64 = 1_000_000_000_000_000_000;

/// One mebibyte.
pub const MIB: u64 = 1 << 20;

/// Reads `64MiB`, `1.5GiB`, `4096`.
///
/// # Errors
/// One sentence that says what is wrong with the text.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: f64 =
        text[..digits].parse().map_err(|_| format!("'{text}' is not a size; write it like 64MiB or 1GiB"))?;
    let unit = text[digits..].trim();
    let (_, factor) = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| format!("'{unit}' is not a unit of size; use KiB, MiB, GiB or TiB"))?;
    // Whole numbers are parsed exactly: beyond 2^53 a floating-point number cannot hold all digits.
    let bytes = match text[..digits].parse::<u64>() {
        Ok(whole) => whole.saturating_mul(*factor),
        Err(_) => (number * *factor as f64) as u64,
    };
    if bytes > BYTES_MAX { Err(format!("'{text}' is larger than any machine")) } else { Ok(bytes) }
}

/// Reads a rate such as `250MB/s`, in bytes per second.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let size = text.strip_suffix("/s").ok_or_else(|| format!("'{text}' is not a rate; write it like 250MB/s"))?;
    parse_size(size)
}

/// Writes `250MB/s`, `1.5GB/s`: in powers of a thousand, as usual for network rates.
pub fn format_rate(rate: u64) -> String {
    let (number, unit) = match rate {
        ..1_000_000 => (rate as f64 / 1e3, "KB"),
        1_000_000..1_000_000_000 => (rate as f64 / 1e6, "MB"),
        1_000_000_000.. => (rate as f64 / 1e9, "GB"),
    };
    let digits = usize::from(number.fract() > 0.05);
    format!("{number:.digits$}{unit}/s")
}

/// Reads `90s`, `15min`, `500ms`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: f64 =
        text[..digits].parse().map_err(|_| format!("'{text}' is not a time; write it like 90s or 15min"))?;
    let factor = match text[digits..].trim() {
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        unit => return Err(format!("'{unit}' is not a unit of time; use ms, s, min or h")),
    };
    Duration::try_from_secs_f64(number * factor).map_err(|_| format!("'{text}' is too long"))
}

/// Writes `307MiB`, `1GiB`, `1.5GiB`: the largest unit that keeps the number at 1 or more.
pub fn format_size(bytes: u64) -> String {
    for (unit, factor) in [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        // A footprint up to 0.1 % short of 1GiB is written 1GiB, not 1024MiB.
        if bytes >= factor - factor / 1000 {
            let number = bytes as f64 / factor as f64;
            let whole = (number - number.round()).abs() < 0.005;
            return if whole || number >= 100.0 { format!("{number:.0}{unit}") } else { format!("{number:.1}{unit}") };
        }
    }
    format!("{bytes}B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_carry_units() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64MiB"), Ok(64 << 20));
        assert_eq!(parse_size("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_size("1GB"), Ok(1_000_000_000));
        for text in ["4GiB", "4Gi", "4G", "4g"] {
            assert_eq!(parse_size(text), Ok(4 << 30), "{text}");
        }
        for wrong in ["", "x", "-1", "1GiBB", "1..2", "GiB", "99999999TiB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_bytes_a_second() {
        assert_eq!(parse_rate("250MB/s"), Ok(250_000_000));
        for wrong in ["", "250MB", "2Gbit/s", "/s", "MB/s"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
        for text in ["250MB/s", "1.5GB/s", "100GB/s", "64KB/s"] {
            assert_eq!(format_rate(parse_rate(text).unwrap()), text);
        }
    }

    #[test]
    fn durations_carry_units() {
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1.5min"), Ok(Duration::from_secs(90)));
        for wrong in ["", "5", "s", "5 minutes"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_written_short() {
        assert_eq!(format_size(1 << 30), "1GiB");
        assert_eq!(format_size((1 << 30) - 16), "1GiB");
        assert_eq!(format_size(3 << 29), "1.5GiB");
        assert_eq!(format_size(307 << 20), "307MiB");
        assert_eq!(format_size(100), "100B");
    }
}
