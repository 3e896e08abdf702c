// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The terminal of `aquifer top`: raw mode and the alternate screen, restored at the end, on a panic, and on SIGTERM,
//! SIGHUP and SIGINT.
//!
//! Threads: one draws and reads keys. Another one ends the process on a signal, or when the terminal hangs up:
//! crossterm reads a terminal that has hung up again and again, and never returns. The signals are blocked and read
//! from a descriptor, so no handler runs while drawing.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::Duration;
use std::{panic, process, thread};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use crossterm::style::Print;
use crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{execute, queue, terminal};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::exit::{ExitCode, Failure};

/// What a wait for input ends with.
pub enum Input {
    /// No input before the deadline: time for the next sample.
    Nothing,
    /// The terminal was resized.
    Resized,
    /// A key was pressed.
    Key(KeyEvent),
}

/// The terminal in raw mode, restored on drop.
pub struct Terminal;

impl Terminal {
    /// Switches the terminal to raw mode and the alternate screen.
    pub fn take() -> Result<Terminal, Failure> {
        let ours: SigSet = [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT].into_iter().collect();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&ours), None).map_err(|errno| unusable(errno.into()))?;
        let signals = SignalFd::with_flags(&ours, SfdFlags::SFD_CLOEXEC).map_err(|errno| unusable(errno.into()))?;
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // Restores the terminal first, so that the message appears on the normal screen.
            give_back();
            before(info);
        }));
        terminal::enable_raw_mode().map_err(unusable)?;
        let terminal = Terminal;
        thread::Builder::new().name("end".into()).spawn(move || end(&signals)).map_err(unusable)?;
        execute!(io::stdout(), EnterAlternateScreen, Hide).map_err(unusable)?;
        Ok(terminal)
    }

    /// Draws the lines that `lines` returns for the terminal's width and height.
    pub fn draw(&mut self, lines: impl FnOnce(usize, usize) -> Vec<String>) -> Result<(), Failure> {
        let (width, height) = terminal::size().map_err(unusable)?;
        let mut stdout = io::stdout().lock();
        for (row, line) in (0..height).zip(lines(width.into(), height.into())) {
            queue!(stdout, MoveTo(0, row), Print(line), Clear(ClearType::UntilNewLine)).map_err(unusable)?;
        }
        stdout.flush().map_err(unusable)
    }

    /// Waits for input, for up to `timeout`.
    pub fn input(&mut self, timeout: Duration) -> Result<Input, Failure> {
        if !event::poll(timeout).map_err(unusable)? {
            return Ok(Input::Nothing);
        }
        match event::read().map_err(unusable)? {
            Event::Key(key) if key.kind != KeyEventKind::Release => Ok(Input::Key(key)),
            // Whatever else has happened, to draw again is harmless.
            _ => Ok(Input::Resized),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

/// Waits for a signal, or for the end of the terminal, then restores the terminal and ends the process with 128 + the
/// signal's number.
fn end(signals: &SignalFd) {
    let (stdin, stdout) = (io::stdin(), io::stdout());
    let mut ends = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    // The kernel always reports a hang-up. Not every terminal sends SIGHUP: one that controls no session does not, and
    // that signal may be ignored.
    ends.push(PollFd::new(stdout.as_fd(), PollFlags::empty()));
    if stdin.is_terminal() {
        ends.push(PollFd::new(stdin.as_fd(), PollFlags::empty()));
    }
    while poll(&mut ends, PollTimeout::NONE) == Err(Errno::EINTR) {}
    let is_signal = ends[0].any().unwrap_or_default();
    let signal = is_signal.then(|| signals.read_signal().ok().flatten()).flatten();
    let number = signal.map_or(Signal::SIGHUP as u32, |signal| signal.ssi_signo);
    // Nothing is drawn any more.
    let _stdout = stdout.lock();
    give_back();
    process::exit(128 + number as i32);
}

/// Restores the terminal. Calling it twice is harmless.
fn give_back() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = terminal::disable_raw_mode();
}

fn unusable(error: io::Error) -> Failure {
    let cause = format!("the terminal cannot be used: {error}");
    Failure::new(ExitCode::Failure, cause, "see 'aquifer stat --watch 1' instead")
}
