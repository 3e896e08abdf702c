// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Plain text in columns, for `doctor` and `top`.

/// Lines with the cells of each column below each other; the last column is not padded.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_below_each_other() {
        let rows = [vec!["a".into(), "b".into()], vec!["long".into(), "c".into()], vec!["x".into()]];
        assert_eq!(columns(&rows), "a     b\nlong  c\nx\n");
    }
}
