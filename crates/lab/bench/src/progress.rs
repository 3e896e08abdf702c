// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Shows progress: a bar on a terminal, one line per step otherwise. All of it on stderr.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The bar, or the count of steps where there is no terminal.
pub struct Progress {
    bar: Option<ProgressBar>,
    done: Cell<usize>,
    total: Cell<usize>,
}

impl Progress {
    pub fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed} (about {eta} left) {wide_msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { bar, done: Cell::new(0), total: Cell::new(0) }
    }

    /// From this call on, every `done` is one of `steps`.
    pub fn start(&self, steps: usize) {
        self.total.set(steps);
        self.done.set(0);
        if let Some(bar) = &self.bar {
            bar.set_length(steps as u64);
            bar.set_position(0);
            bar.reset_elapsed();
        }
    }

    pub fn begin(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_string());
        }
    }

    /// A detail within a step: shown on a terminal only.
    pub fn note(&self, what: &str) {
        self.begin(what);
    }

    pub fn done(&self, outcome: &str) {
        self.done.set(self.done.get() + 1);
        match &self.bar {
            Some(bar) => {
                bar.println(outcome);
                if self.total.get() > 0 {
                    bar.inc(1);
                }
            }
            None if self.total.get() > 0 => eprintln!("[{}/{}] {outcome}", self.done.get(), self.total.get()),
            None => eprintln!("{outcome}"),
        }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
