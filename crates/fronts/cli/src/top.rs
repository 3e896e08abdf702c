// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer top`: one line per running program, with rates, redrawn every second.
//!
//! `screen.rs` formats the text and is pure; `terminal.rs` sets the terminal's modes, and restores them however the
//! command exits.

mod screen;
mod terminal;

use std::fs;
use std::io::{self, IsTerminal};
use std::process;
use std::time::{Duration, Instant};

use aquifer_stats::{SettleTime, Snapshot, Text};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use self::screen::{Look, Program, View};
use self::terminal::{Input, Terminal};
use crate::exit::{ExitCode, Failure};
use crate::instances;

/// Watch running programs
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Keys:
  q, Ctrl-C   end
  < and >     sort by the column to the left and to the right
  r           reverse the order
  /           show only programs whose name or arguments contain a text; Enter keeps it, Esc drops it

Examples:
  aquifer top                 every program that runs under aquifer
  aquifer top --interval 5    update every 5 seconds
For scripts: aquifer stat --json --watch 1")]
pub struct TopArgs {
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = crate::stat::seconds)]
    interval: Duration,
}

/// Draws until a key ends the command. On a signal, and if the terminal hangs up, the process exits by itself.
pub fn top(args: &TopArgs) -> Result<process::ExitCode, Failure> {
    if !io::stdout().is_terminal() {
        return Err(Failure::new(
            ExitCode::Usage,
            "'aquifer top' draws on a terminal, and standard output is not one",
            "for scripts use 'aquifer stat --json --watch 1'",
        ));
    }
    let mut terminal = Terminal::take()?;
    let mut view = View::default();
    let mut before: Option<Look> = None;
    loop {
        let now = Look { at: Instant::now(), programs: programs()? };
        loop {
            terminal.draw(|width, height| screen::draw(before.as_ref(), &now, &view, width, height))?;
            let next = now.at + args.interval;
            match terminal.input(next.saturating_duration_since(Instant::now()))? {
                Input::Nothing => break,
                Input::Resized => {}
                Input::Key(key) if ends(key) && !view.is_typing() => return Ok(ExitCode::Success.into()),
                Input::Key(KeyEvent { code: KeyCode::Char('c'), modifiers: KeyModifiers::CONTROL, .. }) => {
                    return Ok(ExitCode::Success.into());
                }
                Input::Key(key) => view.press(key.code),
            }
        }
        before = Some(now);
    }
}

fn ends(key: KeyEvent) -> bool {
    key.code == KeyCode::Char('q')
}

fn programs() -> Result<Vec<Program>, Failure> {
    let instances = instances::all()?;
    // Skips programs that have just ended.
    let timeout = SettleTime::default();
    let snapshots = instances.iter().filter_map(|instance| instance.snapshot(&timeout).ok());
    Ok(snapshots.map(|numbers| Program { command: command(&numbers), numbers }).collect())
}

/// Returns the program's name and arguments; see proc_pid_cmdline(5).
fn command(snapshot: &Snapshot) -> String {
    let line = snapshot.pid().map(|pid| fs::read(format!("/proc/{pid}/cmdline")));
    let bytes = line.and_then(Result::ok).unwrap_or_default();
    let words: Vec<String> =
        bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let command = words.join(" ").trim_end().replace(char::is_control, "?");
    if command.is_empty() { snapshot.text(Text::Program).replace(char::is_control, "?") } else { command }
}
