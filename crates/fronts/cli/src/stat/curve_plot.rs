// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Draws a miss-ratio curve: as text, and as SVG. Pure.

use std::fmt::Write;

use aquifer_core::units::ByteSize;

use super::mrc::Row;

/// Columns and lines of the text.
pub const COLUMNS: usize = 60;
const LINES: usize = 12;
/// The size of the SVG, and its margins for the labels.
const SIZE: (f64, f64) = (720.0, 420.0);
const MARGIN: f64 = 60.0;

/// Returns the curve in characters: a column for each of the equal steps of `rows`, with `|` where the budget is.
pub fn text(rows: &[Row], budget_bytes: u64) -> String {
    let last = rows.last().map_or(0, |row| row.dram_bytes);
    let budget = rows.iter().position(|row| row.dram_bytes >= budget_bytes);
    let mut plot = String::new();
    for line in 0..LINES {
        let low = (LINES - 1 - line) as f64 / LINES as f64;
        let label = if line == 0 {
            "100 %"
        } else if line == LINES / 2 {
            " 50 %"
        } else {
            ""
        };
        let cell = |(column, row): (usize, &Row)| match (row.miss_ratio > low, Some(column) == budget) {
            (true, _) => '#',
            (false, true) => '|',
            (false, false) => ' ',
        };
        let cells: String = rows.iter().enumerate().map(cell).collect();
        writeln!(plot, "{label:>5} {}", cells.trim_end()).expect("a String takes any text");
    }
    let end = ByteSize(last).to_string();
    let (room, budget) = (COLUMNS.saturating_sub(end.len()), budget.map_or("", |_| "misses by DRAM; | is the budget"));
    writeln!(plot, "    0 {budget:<room$}{end}").expect("a String takes any text");
    plot
}

/// Returns the curve as a separate SVG: the part of the touches that miss, by DRAM.
pub fn svg(points: &[Row], content_bytes: u64, budget_bytes: u64) -> String {
    let (width, height) = (SIZE.0 - 2.0 * MARGIN, SIZE.1 - 2.0 * MARGIN);
    let most = content_bytes.max(1) as f64;
    let x = |bytes: u64| MARGIN + width * (bytes as f64 / most).min(1.0);
    let y = |ratio: f64| MARGIN + height * (1.0 - ratio);
    // A step at each point: down to the size of the point before, memory is fetched at the point's rate.
    let mut line = String::new();
    for pair in points.windows(2) {
        let (from, to) = (x(pair[0].dram_bytes), x(pair[1].dram_bytes));
        let level = y(pair[0].miss_ratio);
        write!(line, "{from:.1},{level:.1} {to:.1},{level:.1} ").expect("a String takes any text");
    }
    if let Some(last) = points.last() {
        let (from, level) = (x(last.dram_bytes), y(last.miss_ratio));
        write!(line, "{from:.1},{level:.1} {:.1},{level:.1}", x(content_bytes)).expect("a String takes any text");
    }
    let budget = x(budget_bytes);
    let (left, right, top, bottom) = (MARGIN, SIZE.0 - MARGIN, MARGIN, SIZE.1 - MARGIN);
    let (below, middle) = (bottom + 20.0, (left + right) / 2.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n\
         <path d=\"M{left} {top} V{bottom} H{right}\" fill=\"none\" stroke=\"black\"/>\n\
         <line x1=\"{budget:.1}\" y1=\"{top}\" x2=\"{budget:.1}\" y2=\"{bottom}\" stroke=\"#d55e00\" \
         stroke-dasharray=\"4 4\"/>\n\
         <polyline points=\"{line}\" fill=\"none\" stroke=\"#0072b2\" stroke-width=\"2\"/>\n\
         <text x=\"{left}\" y=\"{below}\">0</text>\n\
         <text x=\"{right}\" y=\"{below}\" text-anchor=\"end\">{2}</text>\n\
         <text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">DRAM (dashed: the budget, {3})</text>\n\
         <text x=\"{4}\" y=\"{5}\" text-anchor=\"end\">100 %</text>\n\
         <text x=\"{4}\" y=\"{bottom}\" text-anchor=\"end\">0 %</text>\n\
         <text x=\"{left}\" y=\"{6}\">touches that need a fetch</text>\n\
         </svg>\n",
        SIZE.0,
        SIZE.1,
        ByteSize(content_bytes),
        ByteSize(budget_bytes),
        left - 6.0,
        top + 5.0,
        top - 12.0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(ratios: &[f64]) -> Vec<Row> {
        let row = |(index, ratio): (usize, &f64)| Row {
            dram_bytes: (index as u64) << 20,
            miss_ratio: *ratio,
            fetched_bytes_per_s: 0.0,
            fetches_per_s: 0.0,
            loss_percent: None,
        };
        ratios.iter().enumerate().map(row).collect()
    }

    #[test]
    fn the_text_falls_with_the_curve_and_shows_the_budget() {
        let plot = text(&rows(&[1.0, 0.5, 0.25, 0.0, 0.0]), 3 << 20);
        let lines: Vec<&str> = plot.lines().collect();
        assert_eq!(lines.len(), LINES + 1);
        assert_eq!(lines[0], "100 % #  |");
        assert_eq!(lines[LINES / 2], " 50 % ## |");
        assert_eq!(lines[LINES - 1], "      ###|");
        assert!(lines[LINES].ends_with("4MiB"), "{plot}");
        assert!(lines.iter().all(|line| line.len() <= 80), "{plot}");
    }

    #[test]
    fn the_svg_is_whole_and_stays_within_its_frame() {
        for drawn in [svg(&rows(&[1.0, 0.5, 0.0]), 2 << 20, 1 << 40), svg(&[], 0, 0)] {
            assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"), "{drawn}");
            assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
            assert!(
                drawn.contains(&format!("x2=\"{:.1}\"", SIZE.0 - MARGIN)) || drawn.contains("x2=\"60.0\""),
                "{drawn}"
            );
        }
    }
}
