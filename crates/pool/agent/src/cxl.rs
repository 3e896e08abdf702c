// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Carries out the host state's tasks for memory devices: brings their memory online after a bind, and takes it offline
//! before an unbind.
//!
//! Each turn starts from the kernel's state, so it does not matter where an earlier turn was interrupted. The agent
//! records a region's name, and the place of its device, before it creates the region. It reports failures to the
//! managers, and the next turn tries again.
//!
//! Threads: one, which sleeps between turns. A turn can take minutes while the kernel migrates memory; the agent exits
//! only after the turn.

use std::io;
use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use aquifer_cxl_host::{Bound, CxlFailure, Identity, Nodes, Progress, attach, detach};
use aquifer_fabric::{Bytes, MemberState, NO_LD};
use aquifer_nodes::{Machine, Tree};
use aquifer_sys::wakeup::Wakeup;

use crate::host::Shared;
use crate::host_state::{Act, DeviceTask, HostState, Outcome};
use crate::settings::CxlSettings;

/// How long the thread sleeps if nothing changes: a device may appear or disappear at any time, and memory may become
/// free.
const TURN_EVERY: Duration = Duration::from_secs(2);
/// The pause between two turns even if the host state has changed, because this thread may have changed it.
const PAUSE: Duration = Duration::from_millis(250);
/// The time between two notes of progress: each note is written to disk.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// Changes the host state, and stores it.
pub(crate) type Change<'a> = &'a dyn Fn(&mut dyn FnMut(&mut HostState)) -> io::Result<()>;

/// The thread that brings memory devices online and offline.
pub(crate) struct CxlThread {
    thread: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    wakeup: Arc<Wakeup>,
}

impl CxlThread {
    /// Starts it.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        settings: CxlSettings,
        log: &Arc<dyn Fn(&str) + Send + Sync>,
    ) -> io::Result<CxlThread> {
        let wakeup = Arc::new(Wakeup::new().map_err(|errno| io::Error::from_raw_os_error(errno.0))?);
        shared.watch(&wakeup);
        let is_over = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new().name("agent-cxl".into()).spawn({
            let (shared, log) = (Arc::clone(shared), Arc::clone(log));
            let (wakeup, is_over) = (Arc::clone(&wakeup), Arc::clone(&is_over));
            move || {
                let tree = Machine::running();
                while !is_over.load(Ordering::SeqCst) {
                    let change = |note: &mut dyn FnMut(&mut HostState)| shared.change(|host_state| note(host_state)).1;
                    turn(&tree, &settings, &change, &mut |line| log(line));
                    thread::sleep(PAUSE);
                    wakeup.sleep(None, TURN_EVERY);
                }
            }
        })?;
        Ok(CxlThread { thread: Some(thread), is_over, wakeup })
    }
}

impl Drop for CxlThread {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.wakeup.wake();
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}

/// Carries out each task once.
pub(crate) fn turn(tree: &dyn Tree, settings: &CxlSettings, change: Change<'_>, log: &mut dyn FnMut(&str)) {
    let mut tasks = Vec::new();
    // If storing fails, the next change stores this one, too; only the name of a region must be stored at once.
    let _ = change(&mut |host_state| tasks = host_state.device_tasks());
    for task in tasks {
        let outcome = match settings.serial_of(&task.device) {
            Some(serial) => carry_out(tree, settings, &task, serial, change),
            None => Outcome::Hindered(format!(
                "the name of device {} has no serial number; write it into [cxl.serials] of the agent's configuration",
                task.device
            )),
        };
        let mut is_news = false;
        let _ = change(&mut |host_state| {
            let before = logged_part(host_state, &task);
            host_state.note(&task, outcome.clone());
            host_state.settle();
            is_news = before != logged_part(host_state, &task);
        });
        if is_news {
            log(&line(&task, &outcome));
        }
    }
}

/// Returns the part of a member's report whose changes are logged: its state, and whether there is trouble. Details,
/// such as how much memory a holder has, appear only in the report.
fn logged_part(host_state: &HostState, task: &DeviceTask) -> (Option<Discriminant<MemberState>>, bool) {
    let report = host_state.report();
    let state = report.member(task.volume, task.member).map(|member| discriminant(&member.state));
    (state, report.trouble_of(task.volume, task.member).is_some())
}

fn carry_out(tree: &dyn Tree, settings: &CxlSettings, task: &DeviceTask, serial: u64, change: Change<'_>) -> Outcome {
    let mut twins = Vec::new();
    // An earlier task of this turn may have found its device, so the tasks do not have the twins.
    let _ = change(&mut |host_state| twins = host_state.twins(task));
    let is_ld = task.ld_id != NO_LD;
    let bound = Bound { serial, bytes: task.bytes, is_ld, identity: task.identity.clone(), twins };
    let note = |outcome: Outcome| change(&mut |host_state| host_state.note(task, outcome.clone()));
    let mut noted = Instant::now();
    let mut progress = |progress: &Progress| {
        if noted.elapsed() >= NOTE_EVERY {
            noted = Instant::now();
            let blocks = progress.all.saturating_sub(progress.done) as u64;
            let _ = note(Outcome::Left(Bytes(blocks.saturating_mul(progress.block_bytes))));
        }
    };
    let done = match task.act {
        Act::Attach => {
            let nodes = if task.has_own_node { Nodes::Each } else { settings.nodes };
            let how = (settings.purpose, nodes);
            let mut record = |identity: &Identity| note(Outcome::Makes(identity.clone()));
            attach(tree, &bound, how, &mut record, &mut progress).map(drop)
        }
        Act::Detach => detach(tree, &bound, settings.migrate, &mut progress),
    };
    match done {
        Ok(()) => Outcome::Done,
        Err(failure @ CxlFailure::Absent { .. }) => Outcome::Absent(failure.to_string()),
        // It is not known which of the devices that look like it is the bound one.
        Err(failure @ CxlFailure::Alike { .. }) if task.act == Act::Attach => Outcome::Absent(failure.to_string()),
        Err(failure) => Outcome::Hindered(failure.to_string()),
    }
}

fn line(task: &DeviceTask, outcome: &Outcome) -> String {
    let of = format!("device {} (member {} of volume {})", task.device, task.member, task.volume);
    match (outcome, task.act) {
        (Outcome::Absent(why) | Outcome::Hindered(why), _) => format!("{of}: {why}"),
        (_, Act::Attach) => format!("{of} is online"),
        (_, Act::Detach) => format!("{of} is offline, and can be unbound"),
    }
}

impl CxlSettings {
    /// Returns the serial number of a device: from the configuration, or from the end of its name.
    fn serial_of(&self, device: &aquifer_fabric::DeviceId) -> Option<u64> {
        let of_name = || u64::from_str_radix(device.as_str().rsplit_once('.')?.1, 16).ok();
        self.serials.get(device).copied().or_else(of_name)
    }
}

#[cfg(test)]
mod tests;
