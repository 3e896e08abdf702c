// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Waits for the program, and makes launcher and program look like one process to other processes that send signals.
//!
//! Threads: one. Signals are blocked before the program starts and read from a descriptor, so none is lost and no
//! handler runs. See signalfd(2), and `siginfo_t` in sigaction(2).
//!
//! Which signal goes where: the terminal signals the whole foreground process group, so the program already has its
//! copy, and the launcher drops its own. The launcher forwards signals that other processes send to it. When the
//! terminal stops the program, the launcher stops, too, so that the shell sees a stopped job. When the launcher is
//! killed by SIGKILL, the kernel kills the program (`unsafe_edge::tie_to_parent`).

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, raise, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::unistd::Pid;

use super::unsafe_edge;
use crate::exit::{ExitCode, Failure};

/// Signals that are forwarded to the program. Others keep their default action in the launcher.
const HANDED_ON: [Signal; 9] = [
    Signal::SIGCONT,
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGTSTP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

/// How often `wait` calls `each_second`.
const LOOK_EVERY_MS: u16 = 1000;

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited by itself.
    Exited {
        /// Its exit status.
        status: u8,
    },
    /// A signal ended it.
    Signalled {
        /// The number of the signal that ended it, which may be a real-time signal.
        signal: i32,
        /// Whether the kernel wrote a core file.
        core: bool,
    },
}

impl End {
    /// Returns the launcher's exit status: the program's, or 128 + the signal, as shells report it.
    pub fn exit_status(self) -> u8 {
        match self {
            End::Exited { status } => status,
            End::Signalled { signal, .. } => 128 + u8::try_from(signal).unwrap_or(0),
        }
    }
}

/// The blocked signals, taken over before the program starts.
#[derive(Debug)]
pub struct Signals {
    descriptor: SignalFd,
    mask_before: SigSet,
}

impl Signals {
    /// Blocks the signals that `wait` will read.
    pub fn take_over() -> Result<Signals, Failure> {
        let mut ours: SigSet = HANDED_ON.into_iter().collect();
        ours.add(Signal::SIGCHLD);
        let mut mask_before = SigSet::empty();
        unsafe_edge::keep_exit_statuses()
            .and_then(|()| sigprocmask(SigmaskHow::SIG_BLOCK, Some(&ours), Some(&mut mask_before)))
            .and_then(|()| SignalFd::with_flags(&ours, SfdFlags::SFD_CLOEXEC))
            .map(|descriptor| Signals { descriptor, mask_before })
            .map_err(|errno| {
                let cause = format!("signals cannot be read: {}", errno.desc());
                Failure::new(ExitCode::CannotStart, cause, "check the limit on open files (ulimit -n)")
            })
    }

    /// Returns the signal mask that the launcher was started with, for the program.
    pub fn mask_before(&self) -> SigSet {
        self.mask_before
    }

    /// Waits for a signal, and calls `each_second` about once a second until one arrives.
    fn next(&self, each_second: &mut impl FnMut()) -> Result<siginfo, Errno> {
        loop {
            let mut descriptors = [PollFd::new(self.descriptor.as_fd(), PollFlags::POLLIN)];
            match poll(&mut descriptors, PollTimeout::from(LOOK_EVERY_MS)) {
                Ok(0) => each_second(),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
            if !descriptors[0].any().unwrap_or(false) {
                continue;
            }
            match self.descriptor.read_signal() {
                Ok(Some(signal)) => return Ok(signal),
                // A blocking descriptor returns no empty reads; if one did, reading again would be right.
                Ok(None) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// Forwards signals until the program has exited. Calls `each_second` about once a second while no signal arrives.
pub fn wait(child: Pid, signals: &Signals, mut each_second: impl FnMut()) -> Result<End, Failure> {
    loop {
        let signal = signals.next(&mut each_second).map_err(|errno| lost(child, errno))?;
        let number = i32::try_from(signal.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
        match number {
            Some(Signal::SIGCHLD) => {
                if let Some(end) = reap(child).map_err(|errno| lost(child, errno))? {
                    return Ok(end);
                }
            }
            Some(other) if was_sent_to_us(&signal, child) => {
                // Fails only if the program has just ended; its SIGCHLD is next.
                let _ = kill(child, other);
            }
            _ => {}
        }
    }
}

/// Returns whether a process sent the signal to the launcher alone (`si_code` ≤ 0), rather than the terminal to the
/// whole group. A signal that the program itself sends to its parent is not sent back.
fn was_sent_to_us(signal: &siginfo, child: Pid) -> bool {
    signal.ssi_code <= 0 && i32::try_from(signal.ssi_pid) != Ok(child.as_raw())
}

/// Collects every change of the program's state, because one SIGCHLD may stand for several.
fn reap(child: Pid) -> Result<Option<End>, Errno> {
    loop {
        let status = match unsafe_edge::changed_child() {
            Ok(Some((process, status))) if process == child => status,
            // The first process of a container inherits orphans, which would stay zombies.
            Ok(Some(_)) | Err(Errno::EINTR) => continue,
            Ok(None) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        match (status.code(), status.signal(), status.stopped_signal()) {
            (Some(status), ..) => return Ok(Some(End::Exited { status: status as u8 })),
            (_, Some(signal), _) => return Ok(Some(End::Signalled { signal, core: status.core_dumped() })),
            // A stop by job control stops the launcher, too. A SIGSTOP was meant for the program alone, for example by
            // a debugger.
            (_, _, Some(libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)) => raise(Signal::SIGSTOP)?,
            _ => {}
        }
    }
}

fn lost(child: Pid, errno: Errno) -> Failure {
    Failure::new(
        ExitCode::CannotStart,
        format!("the program (process {child}) cannot be waited for: {}", errno.desc()),
        "this is a bug in aquifer; please report it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_is_the_shells() {
        assert_eq!(End::Exited { status: 7 }.exit_status(), 7);
        assert_eq!(End::Signalled { signal: libc::SIGSEGV, core: true }.exit_status(), 139);
        assert_eq!(End::Signalled { signal: libc::SIGKILL, core: false }.exit_status(), 137);
        assert_eq!(End::Signalled { signal: 64, core: false }.exit_status(), 192);
    }
}
