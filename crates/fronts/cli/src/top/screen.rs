// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The contents of the `aquifer top` screen: pure text, for any width and height.

use std::cmp::Ordering;
use std::time::Instant;

use aquifer_core::units::ByteSize;
use aquifer_stats::{Counter, Gauge, Snapshot};
use aquifer_terminal::cut;
use crossterm::event::KeyCode;

use crate::stat::{short, shown};

/// One running program, as the screen shows it.
pub struct Program {
    pub numbers: Snapshot,
    /// Its name with arguments.
    pub command: String,
}

/// One sample of all programs.
pub struct Look {
    pub at: Instant,
    pub programs: Vec<Program>,
}

/// A column: its heading, its width, and the smallest terminal width at which it is shown.
struct Column {
    head: &'static str,
    width: usize,
    from: usize,
}

const fn column(head: &'static str, width: usize, from: usize) -> Column {
    Column { head, width, from }
}

/// The last column is the command, which takes the remaining width.
const COLUMNS: [Column; 13] = [
    column("PID", 7, 0),
    column("RESIDENT", 9, 0),
    column("BUDGET", 9, 0),
    column("UNMANAGED", 9, 80),
    column("MANAGED", 9, 140),
    column("STORED", 9, 100),
    column("FAULTS/s", 8, 0),
    column("FETCH/s", 9, 80),
    column("WRITE/s", 9, 120),
    column("P50 us", 8, 150),
    column("P99 us", 8, 110),
    column("ERRORS", 6, 130),
    column("COMMAND", 0, 0),
];
const BY_FAULTS: usize = 6;

/// A value to sort by and the text to show.
enum Cell {
    Bytes(u64),
    Count(u64),
    Micros(f64),
    Pid(Option<u32>),
    Words(String),
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Cell::Bytes(bytes) => ByteSize(*bytes).to_string(),
            Cell::Count(count) => short(*count),
            Cell::Micros(us) => format!("{us:.1}"),
            Cell::Pid(pid) => shown(*pid),
            Cell::Words(words) => words.clone(),
        }
    }

    fn compare(&self, other: &Cell) -> Ordering {
        match (self, other) {
            (Cell::Words(one), Cell::Words(other)) => one.cmp(other),
            (one, other) => one.number().total_cmp(&other.number()),
        }
    }

    fn number(&self) -> f64 {
        match self {
            Cell::Bytes(number) | Cell::Count(number) => *number as f64,
            Cell::Pid(pid) => f64::from(pid.unwrap_or_default()),
            Cell::Micros(us) => *us,
            Cell::Words(_) => -1.0,
        }
    }
}

/// The user's choices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    sort: usize,
    reverse: bool,
    filter: String,
    typing: bool,
}

impl Default for View {
    fn default() -> View {
        View { sort: BY_FAULTS, reverse: false, filter: String::new(), typing: false }
    }
}

impl View {
    /// Returns whether keys currently edit the filter.
    pub fn is_typing(&self) -> bool {
        self.typing
    }

    /// Handles a key that does not end the command.
    pub fn press(&mut self, key: KeyCode) {
        match (self.typing, key) {
            (true, KeyCode::Enter) => self.typing = false,
            (_, KeyCode::Esc) => {
                self.typing = false;
                self.filter.clear();
            }
            (true, KeyCode::Backspace) => drop(self.filter.pop()),
            (true, KeyCode::Char(character)) => self.filter.push(character),
            (false, KeyCode::Char('/')) => self.typing = true,
            (false, KeyCode::Char('r')) => self.reverse = !self.reverse,
            (false, KeyCode::Char('<') | KeyCode::Left) => {
                self.sort = self.sort.checked_sub(1).unwrap_or(COLUMNS.len() - 1)
            }
            (false, KeyCode::Char('>') | KeyCode::Right) => self.sort = (self.sort + 1) % COLUMNS.len(),
            _ => {}
        }
    }
}

/// Returns the lines of the screen: none wider than `width`, and exactly `height` of them.
pub fn draw(before: Option<&Look>, now: &Look, view: &View, width: usize, height: usize) -> Vec<String> {
    let mut rows: Vec<Vec<Cell>> =
        now.programs.iter().map(|program| cells(earlier(before, now, program), program)).collect();
    let command = COLUMNS.len() - 1;
    rows.retain(|row| matches!(&row[command], Cell::Words(words) if words.contains(&view.filter)));
    rows.sort_by(|one, other| {
        // Numbers in descending order, names in ascending order.
        let order = one[view.sort].compare(&other[view.sort]);
        let order = if view.sort == command { order } else { order.reverse() };
        if view.reverse { order.reverse() } else { order }
    });
    let mut lines = vec![title(now, rows.len()), line(width, view, |index, _| COLUMNS[index].head.to_owned())];
    lines.extend(rows.iter().map(|row| line(width, view, |index, room| cut(&row[index].text(), room))));
    if now.programs.is_empty() {
        lines.push("no program is running under aquifer here".into());
    }
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), String::new());
    lines.push(footer(view));
    lines.iter().map(|line| cut(line, width).trim_end().to_owned()).collect()
}

fn title(now: &Look, shown: usize) -> String {
    let sum = |gauge| ByteSize(now.programs.iter().map(|program| program.numbers.gauge(gauge)).sum());
    let (resident, budget) = (sum(Gauge::ResidentBytes), sum(Gauge::DramBudgetBytes));
    format!("aquifer top: {shown} of {} programs, resident {resident}, budgets {budget}", now.programs.len())
}

fn footer(view: &View) -> String {
    match (view.typing, view.filter.is_empty()) {
        (true, _) => format!("/{}_", view.filter),
        (false, true) => format!("q quit  < > sort ({})  r reverse  / filter", COLUMNS[view.sort].head),
        (false, false) => {
            format!("q quit  < > sort ({})  r reverse  /{}  Esc all", COLUMNS[view.sort].head, view.filter)
        }
    }
}

/// Returns one row. Numbers are right-aligned in their columns; the command is left-aligned in the remaining width.
fn line(width: usize, view: &View, text: impl Fn(usize, usize) -> String) -> String {
    let mut line = String::new();
    for (index, column) in COLUMNS.iter().enumerate() {
        // Shows the sort column on any terminal, however narrow.
        if width < column.from && index != view.sort {
            continue;
        }
        if column.width == 0 {
            line.push_str(&text(index, width.saturating_sub(line.chars().count())));
        } else {
            line.push_str(&format!("{:>1$} ", text(index, column.width), column.width));
        }
    }
    line
}

fn earlier<'a>(before: Option<&'a Look>, now: &Look, program: &Program) -> Option<(&'a Snapshot, f64)> {
    let before = before?;
    let identity = |snapshot: &Snapshot| (snapshot.gauge(Gauge::Pid), snapshot.gauge(Gauge::StartTimeUnixS));
    let same = before.programs.iter().find(|other| identity(&other.numbers) == identity(&program.numbers))?;
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    (seconds > 0.0).then_some((&same.numbers, seconds))
}

/// Returns one cell for each of [`COLUMNS`].
fn cells(earlier: Option<(&Snapshot, f64)>, program: &Program) -> Vec<Cell> {
    let numbers = &program.numbers;
    let rate = |counter: Counter| {
        earlier.map_or(0, |(before, seconds)| {
            let more = numbers.counter(counter).saturating_sub(before.counter(counter));
            (more as f64 / seconds) as u64
        })
    };
    let bytes = |gauge: Gauge| Cell::Bytes(numbers.gauge(gauge));
    let latencies = numbers.fault_latencies();
    vec![
        Cell::Pid(numbers.pid()),
        bytes(Gauge::ResidentBytes),
        bytes(Gauge::DramBudgetBytes),
        bytes(Gauge::UnmanagedResidentBytes),
        bytes(Gauge::ManagedBytes),
        bytes(Gauge::StoredBytes),
        Cell::Count(rate(Counter::Faults)),
        Cell::Bytes(rate(Counter::FetchedBytes)),
        Cell::Bytes(rate(Counter::WrittenBackBytes)),
        Cell::Micros(latencies.quantile_us(0.5)),
        Cell::Micros(latencies.quantile_us(0.99)),
        Cell::Count(numbers.counter(Counter::Errors)),
        Cell::Words(program.command.clone()),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use aquifer_stats::Counters;

    use super::*;

    fn look(at: Instant, programs: &[(&Counters, &str)]) -> Look {
        let program = |(counters, command): &(&Counters, &str)| Program {
            numbers: counters.snapshot(),
            command: (*command).to_owned(),
        };
        Look { at, programs: programs.iter().map(program).collect() }
    }

    fn two() -> (Counters, Counters) {
        let (one, other) = (Counters::create().unwrap(), Counters::create().unwrap());
        one.set(Gauge::Pid, 7);
        other.set(Gauge::Pid, 4_194_303);
        other.set(Gauge::ResidentBytes, (1023 << 20) + (1 << 19));
        other.set(Gauge::DramBudgetBytes, 1 << 30);
        (one, other)
    }

    #[test]
    fn rates_are_per_second_between_two_looks() {
        let (one, other) = two();
        let start = Instant::now();
        let before = look(start, &[(&one, "sort -n"), (&other, "python3 train.py")]);
        one.add(Counter::Faults, 500);
        one.add(Counter::FetchedBytes, 20 << 20);
        let now = look(start + Duration::from_secs(2), &[(&one, "sort -n"), (&other, "python3 train.py")]);
        let screen = draw(Some(&before), &now, &View::default(), 80, 6);
        assert!(
            screen[2].contains(" 250 ") && screen[2].contains(" 10MiB ") && screen[2].ends_with("sort -n"),
            "{screen:#?}"
        );
        assert!(draw(None, &look(start, &[]), &View::default(), 80, 6)[2].contains("no program"));
    }

    /// Golden test: the output on terminals of three widths.
    #[test]
    fn it_fits_terminals_of_three_widths() {
        let (one, other) = two();
        let now = look(Instant::now(), &[(&one, "sort -n"), (&other, "python3 train.py --epochs 40 --batch-size 128")]);
        let mut all = String::new();
        for width in [60, 80, 200] {
            let screen = draw(None, &now, &View::default(), width, 6);
            assert_eq!(screen.len(), 6);
            assert!(screen.iter().all(|line| line.chars().count() <= width), "{width}: {screen:#?}");
            all += &format!("--- {width}\n{}\n", screen.join("\n"));
        }
        let golden = include_str!("../../tests/golden/top.screens");
        assert!(all == golden, "the screens are not the golden ones any more; they are now:\n{all}");
    }

    #[test]
    fn programs_are_filtered_and_sorted() {
        let (one, other) = two();
        let now = look(Instant::now(), &[(&one, "sort -n"), (&other, "python3 train.py")]);
        let mut view = View::default();
        "/train".chars().for_each(|key| view.press(KeyCode::Char(key)));
        assert!(view.is_typing());
        view.press(KeyCode::Enter);
        let screen = draw(None, &now, &view, 80, 6);
        assert!(screen[0].contains("1 of 2") && screen[2].contains("train") && screen[3].is_empty(), "{screen:#?}");
        view.press(KeyCode::Esc);
        view.sort = 1;
        assert!(draw(None, &now, &view, 80, 6)[2].contains("train"), "the largest first");
        view.press(KeyCode::Char('r'));
        assert!(draw(None, &now, &view, 80, 6)[2].contains("sort"));
        view.sort = COLUMNS.len() - 1;
        assert!(draw(None, &now, &view, 80, 6)[2].contains("sort"), "reversed: from Z on");
        (0..COLUMNS.len()).for_each(|_| view.press(KeyCode::Char('>')));
        assert_eq!(view.sort, COLUMNS.len() - 1);
    }
}
