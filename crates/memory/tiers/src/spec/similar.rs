// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finds the word that somebody meant: the known word that differs only by a typing mistake.
//!
//! Pure.

/// The word of `known` that is nearest to `word`, if it is near: one edit in a word of up to four letters, two in a
/// longer one. Two exchanged neighbours are one edit. Called only for a word that is not in `known`.
pub fn among<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let nearest = known.iter().map(|known| (edits(word, known), *known)).min()?;
    let max = if nearest.1.len() <= 4 { 1 } else { 2 };
    (1..=max).contains(&nearest.0).then_some(nearest.1)
}

/// The number of letters to insert, remove or change, and of neighbours to exchange, from `one` to `other`: the optimal
/// string alignment distance.
fn edits(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().take(32).collect(), other.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for (i, letter) in one.iter().enumerate() {
        let above = &rows[i];
        let mut row = vec![i + 1];
        for (j, known) in other.iter().enumerate() {
            let mut min = (above[j] + usize::from(letter != known)).min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && one[i - 1] == *known && *letter == other[j - 1] {
                min = min.min(rows[i - 1][j - 1] + 1);
            }
            row.push(min);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_finger_are_found_and_other_words_are_not() {
        let kinds = ["flash", "dram", "donor", "emulated"];
        for (word, meant) in [("flahs", "flash"), ("fash", "flash"), ("dramm", "dram"), ("donar", "donor")] {
            assert_eq!(among(word, &kinds), Some(meant), "{word}");
        }
        for word in ["flash", "nvme", "", "swap", "x", &"a".repeat(1000)] {
            assert_eq!(among(word, &kinds), None, "{word}");
        }
    }
}
