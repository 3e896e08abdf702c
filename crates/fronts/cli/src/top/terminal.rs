// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The terminal of `aquifer top`: raw mode and the alternate screen, restored at the end, on a panic, and on SIGTERM,
//! SIGHUP and SIGINT.
//!
//! Threads: one. The signals are blocked and read from a descriptor, so no handler runs while drawing.

use std::io::{self, Write};
use std::panic;
use std::time::{Duration, Instant};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use crossterm::style::Print;
use crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{execute, queue, terminal};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::exit::{ExitCode, Failure};

/// Maximum delay before a signal is noticed.
const SLICE: Duration = Duration::from_millis(100);

/// What a wait for input ends with.
pub enum Input {
    /// No input before the deadline: time for the next sample.
    Nothing,
    /// The terminal was resized.
    Resized,
    /// A key was pressed.
    Key(KeyEvent),
    /// A signal ends this process.
    Ended {
        /// 128 + the signal's number.
        status: u8,
    },
}

/// The terminal in raw mode, restored on drop.
pub struct Terminal {
    signals: SignalFd,
}

impl Terminal {
    /// Switches the terminal to raw mode and the alternate screen.
    pub fn take() -> Result<Terminal, Failure> {
        let ours: SigSet = [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT].into_iter().collect();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&ours), None).map_err(|errno| unusable(errno.into()))?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&ours, flags).map_err(|errno| unusable(errno.into()))?;
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // Restores the terminal first, so that the message appears on the normal screen.
            give_back();
            before(info);
        }));
        terminal::enable_raw_mode().map_err(unusable)?;
        let terminal = Terminal { signals };
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
        let until = Instant::now() + timeout;
        loop {
            if let Ok(Some(signal)) = self.signals.read_signal() {
                return Ok(Input::Ended { status: 128 + u8::try_from(signal.ssi_signo).unwrap_or(0) });
            }
            let left = until.saturating_duration_since(Instant::now());
            if event::poll(left.min(SLICE)).map_err(unusable)? {
                match event::read().map_err(unusable)? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => return Ok(Input::Key(key)),
                    Event::Resize(..) => return Ok(Input::Resized),
                    _ => {}
                }
            } else if left.is_zero() {
                return Ok(Input::Nothing);
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
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
