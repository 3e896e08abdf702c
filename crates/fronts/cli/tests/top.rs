// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer top` on a terminal: how it ends.

mod support;

use std::fs::File;
use std::io::Read;
use std::process::{Child, Stdio};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{Winsize, openpty};
use support::{aquifer, eventually, signal};

/// The sequences that begin and end the alternate screen.
const BEGIN: &str = "\x1b[?1049h";
const END: &str = "\x1b[?1049l";

/// Starts the command on a terminal of its own, and waits until it has taken it. Returns the terminal's other end, too.
fn start() -> (Child, File) {
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let ends = openpty(&size, None).unwrap();
    // A child that has it, too, would keep the terminal connected.
    fcntl(&ends.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
    let terminal = || Stdio::from(ends.slave.try_clone().unwrap());
    let child = aquifer().arg("top").stdin(terminal()).stdout(terminal()).stderr(terminal()).spawn().unwrap();
    let mut master = File::from(ends.master);
    let mut seen = String::new();
    while !seen.contains(BEGIN) {
        let mut bytes = [0; 4096];
        let count = master.read(&mut bytes).unwrap();
        seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    (child, master)
}

/// The status with which the command ends by itself.
fn status(mut child: Child) -> Option<i32> {
    let mut ended = None;
    eventually("it ends", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    ended.unwrap().code()
}

/// A command whose connection was lost read its terminal again and again, on a whole CPU, and no signal but SIGKILL
/// ended it.
fn it_ends_with_its_terminal() {
    let (child, master) = start();
    drop(master);
    // It is 1 if it was just drawing.
    let status = status(child);
    assert!([Some(129), Some(1)].contains(&status), "{status:?}");
}

fn a_signal_ends_it_and_the_terminal_is_restored() {
    for (name, expected) in [("TERM", 143), ("HUP", 129), ("INT", 130)] {
        let (child, mut master) = start();
        signal(name, &child);
        assert_eq!(status(child), Some(expected), "{name}");
        let mut left = Vec::new();
        master.read_to_end(&mut left).expect_err("nobody has the terminal open");
        assert!(String::from_utf8_lossy(&left).contains(END), "{name}");
    }
}

/// One after the other: a child that starts meanwhile would inherit the other end of a terminal.
#[test]
fn it_ends_with_its_terminal_and_on_signals() {
    it_ends_with_its_terminal();
    a_signal_ends_it_and_the_terminal_is_restored();
}
