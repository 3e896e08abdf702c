// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How long something is to last, with a unit.

/// Parses a time such as `90s`, `15m`, `1h` or `2d`, as seconds. The error says what to write.
pub(super) fn seconds(text: &str, days_max: u64) -> Result<u64, String> {
    let wrong = || format!("write a number and s, m, h or d, such as 15m; {days_max}d at most");
    let unit = match text.bytes().last() {
        Some(b's') => 1,
        Some(b'm') => 60,
        Some(b'h') => 3600,
        Some(b'd') => 86_400,
        _ => return Err(wrong()),
    };
    let number = text[..text.len() - 1].parse::<u64>().map_err(|_| wrong())?;
    if number == 0 {
        return Err(format!("0 is too small; write 1s or more, such as 15m; {days_max}d at most"));
    }
    number.checked_mul(unit).filter(|seconds| *seconds <= days_max * 86_400).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_an_end() {
        assert_eq!(seconds("90s", 7), Ok(90));
        assert_eq!(seconds("15m", 7), Ok(900));
        assert_eq!(seconds("7d", 7), Ok(604_800));
        assert_eq!(seconds("8d", 8), Ok(691_200));
        for text in
            ["", "s", "1", "0s", "8d", "-1h", "1.5h", "99999999999999999999d", "18446744073709551615d", "1\u{e4}"]
        {
            let refusal = seconds(text, 7).expect_err(text);
            assert!(refusal.ends_with("; 7d at most"), "{refusal}");
        }
    }

    #[test]
    fn zero_is_too_small_in_every_unit() {
        for text in ["0s", "0m", "0h", "00d"] {
            assert_eq!(seconds(text, 7), Err("0 is too small; write 1s or more, such as 15m; 7d at most".to_owned()));
        }
        assert_eq!(seconds("1s", 7), Ok(1));
    }
}
