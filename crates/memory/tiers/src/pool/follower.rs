// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The connection to the host's agent: the volume's view when the tier opens, and every later one.
//!
//! The upkeep thread looks for messages at intervals and never waits for the agent, except for what the kernel does
//! within this machine. A lost connection changes nothing, and is established again with growing pauses.
//!
//! Threads: the one that opens the tier, then the pager's upkeep thread, which has its own descriptor table; each
//! opens a connection for itself. Nobody waits for the lock, and it is held for a few instructions: fork(2) may have
//! copied it while it was held.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::mem;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use aquifer_agent_wire::{Answer, MemberProgress, NotAFrame, Request, SESSION_MAX, View};
use aquifer_borrower::Array;
use aquifer_sys::peer_credentials::PeerCredentials;
use aquifer_sys::raw::random;
use aquifer_tier::{MemberKey, MemberStatus, Membership, OpenFailure};

use super::changes::{Step, in_words, progress, steps};
use super::link::{CLOSE_WAIT, Link, Use};
use super::{PoolFailure, PoolSpec, closings};

/// How long the agent has for its first answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// The first pause after a lost connection; each later one is twice as long.
pub(super) const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest such pause: an agent that is back has its programs within that time.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often a change that was not possible is retried.
const RETRY_EVERY: Duration = Duration::from_secs(2);
/// How often progress is reported, if it has changed.
const REPORT_EVERY: Duration = Duration::from_millis(200);
/// Lines that wait to be reported.
const NOTICES_MAX: usize = 32;

/// The connection to the agent, and what the program does about its messages.
pub(super) struct Follower {
    use_of: Use,
    state: Mutex<Option<Following>>,
}

/// What the follower knows. Taken out of its lock while it is used.
#[derive(Default)]
struct Following {
    link: Option<Link>,
    /// When to connect next, and the pause after that.
    connect_at: Option<Instant>,
    pause: Duration,
    view: Option<View>,
    /// Changes that were not possible: why, and when to try again.
    refused: BTreeMap<MemberKey, (String, Instant)>,
    /// Members that were last seen to drain without a place to go to.
    stalled: BTreeMap<MemberKey, bool>,
    reported: Vec<MemberProgress>,
    report_at: Option<Instant>,
    /// Whether the loss of the agent was reported.
    is_alone: bool,
    notices: Vec<String>,
}

impl Follower {
    /// Opens the volume, and waits for the first view. Returns also as which user the agent runs, if that is known.
    pub(super) fn open(spec: &PoolSpec) -> Result<(Follower, View, Option<u32>), OpenFailure> {
        let failed = |source| PoolFailure::Agent { agent: spec.agent.clone(), source };
        let drawn = random().map_err(|errno| failed(io::Error::from_raw_os_error(errno.0)))?;
        let session = drawn & SESSION_MAX;
        let use_of = Use { agent: spec.agent.clone(), volume: spec.volume.clone(), session };
        let follower = Follower { use_of, state: Mutex::new(None) };
        let mut link = follower.use_of.connect(Vec::new()).map_err(failed)?;
        link.stream().and_then(|stream| stream.set_nonblocking(false)).map_err(failed)?;
        let agent = link.stream().and_then(PeerCredentials::of).map_err(failed)?;
        let deadline = Instant::now() + ANSWER_WAIT;
        let answer = loop {
            let malformed = |failure| PoolFailure::Malformed { agent: spec.agent.clone(), failure };
            if let Some(answer) = link.decoder.take::<Answer>().map_err(malformed)? {
                break answer;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failed(ErrorKind::TimedOut.into()).into());
            }
            link.stream().and_then(|stream| stream.set_read_timeout(Some(left))).map_err(failed)?;
            link.receive().map_err(failed)?;
        };
        match answer {
            Answer::Denied(denial) => Err(PoolFailure::Denied { volume: spec.volume.clone(), denial }.into()),
            Answer::Listing(_) => {
                let failure = NotAFrame::Message { why: "a listing was not requested".into() };
                Err(PoolFailure::Malformed { agent: spec.agent.clone(), failure }.into())
            }
            // The upkeep thread connects again. Until then, the agent remembers this process.
            Answer::View(view) => {
                let following = Following { view: Some(view.clone()), ..Following::default() };
                *follower.state.lock().unwrap_or_else(PoisonError::into_inner) = Some(following);
                Ok((follower, view, agent.known_user()))
            }
        }
    }

    /// Notifies the agent that this process has closed the volume: now, or when it answers again.
    pub(super) fn close(&self) {
        drop(self.state.try_lock().ok().and_then(|mut state| state.take()));
        let deadline = Instant::now() + CLOSE_WAIT;
        while let Err(error) = self.use_of.close(deadline) {
            if !is_crowded(&error) || Instant::now() >= deadline {
                return closings::keep(&self.use_of);
            }
            thread::sleep(PAUSE_FIRST);
        }
    }

    /// Called in a forked child, which follows the agent by itself.
    pub(super) fn forget(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            // What the parent's thread has taken out is made again.
            let before = state.take().unwrap_or_default();
            *state = Some(Following { view: before.view, ..Following::default() });
        }
    }

    /// Lines for the user since the last call.
    pub(super) fn take_notices(&self) -> Vec<String> {
        let mut state = self.state.try_lock().ok();
        let following = state.as_mut().and_then(|state| state.as_mut());
        following.map(|following| mem::take(&mut following.notices)).unwrap_or_default()
    }

    /// Takes what the agent has sent, changes the members as it says, and reports what was done.
    pub(super) fn follow(&self, array: &Array) {
        let taken = self.state.try_lock().ok().map(|mut state| state.take());
        let Some(following) = taken else { return };
        let mut following = following.unwrap_or_default();
        let now = Instant::now();
        self.listen(&mut following, array, now);
        following.change(array, now);
        if following.report(array, now).is_err() {
            following.lose(now);
        }
        if let Ok(mut state) = self.state.try_lock() {
            *state = Some(following);
        }
    }

    fn listen(&self, following: &mut Following, array: &Array, now: Instant) {
        if following.link.is_none() {
            if following.connect_at.is_some_and(|at| now < at) {
                return;
            }
            match self.use_of.connect(held(array)) {
                Ok(link) => following.link = Some(link),
                Err(error) => {
                    following.alone(&format!("the agent at {} does not answer ({error})", self.use_of.agent.display()));
                    return following.lose(now);
                }
            }
            following.reported.clear();
        }
        loop {
            match following.link.as_mut().map(Link::next) {
                Some(Ok(Some(Answer::View(view)))) => {
                    following.view = Some(view);
                    following.refused.clear();
                    (following.is_alone, following.pause) = (false, PAUSE_FIRST);
                }
                Some(Ok(Some(Answer::Denied(denial)))) => {
                    following.alone(&format!("the volume {} cannot be opened again: {denial}", self.use_of.volume));
                    return following.lose(now);
                }
                Some(Ok(Some(Answer::Listing(_)))) => {
                    following
                        .alone(&format!("the agent at {} has sent an unrequested answer", self.use_of.agent.display()));
                    return following.lose(now);
                }
                Some(Ok(None)) | None => return,
                Some(Err(error)) => {
                    following.alone(&format!(
                        "the connection to the agent at {} was lost ({error})",
                        self.use_of.agent.display()
                    ));
                    return following.lose(now);
                }
            }
        }
    }
}

/// The members of which this process may have memory.
fn held(array: &Array) -> Vec<u64> {
    let held = array.statuses().into_iter().filter(|(_, status)| *status != MemberStatus::Left);
    held.map(|(key, _)| key.0).collect()
}

impl Following {
    fn notice(&mut self, line: String) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push(line);
        }
    }

    /// Reports once that the agent is not there.
    fn alone(&mut self, why: &str) {
        if !mem::replace(&mut self.is_alone, true) {
            self.notice(format!("{why}; the program goes on, and changes of its volume wait until it is back"));
        }
    }

    fn lose(&mut self, now: Instant) {
        self.link = None;
        self.pause = self.pause.clamp(PAUSE_FIRST, PAUSE_MAX);
        self.connect_at = Some(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// Changes the members as the newest view says.
    fn change(&mut self, array: &Array, now: Instant) {
        let Some(view) = self.view.clone() else { return };
        let status: BTreeMap<MemberKey, MemberStatus> = array.statuses().into_iter().collect();
        for step in steps(&view, &status) {
            let key = step.key();
            if self.refused.get(&key).is_some_and(|(_, at)| now < *at) {
                continue;
            }
            let (outcome, done) = match &step {
                Step::Join(newcomer) => (array.join(newcomer), format!("the donor at {} has joined", newcomer.address)),
                Step::Drain(_) => (array.drain(key), format!("{} is being drained", in_words(&view, key))),
                Step::Leave(_) => {
                    array.leave(key);
                    (Ok(()), format!("{} was let go", in_words(&view, key)))
                }
            };
            match outcome {
                Ok(()) => {
                    self.refused.remove(&key);
                    self.notice(format!("the volume has changed: {done}"));
                }
                Err(failure) => {
                    let why = failure.to_string();
                    let is_news = self.refused.get(&key).is_none_or(|(before, _)| *before != why);
                    self.refused.insert(key, (why.clone(), now + RETRY_EVERY));
                    if is_news {
                        self.notice(format!("the volume cannot change yet: {why}"));
                    }
                }
            }
        }
    }

    /// Reports what was done about the newest view, if that has changed.
    fn report(&mut self, array: &Array, now: Instant) -> io::Result<()> {
        let Some(view) = &self.view else { return Ok(()) };
        if self.link.is_none() || self.report_at.is_some_and(|at| now < at) {
            return Ok(());
        }
        let status: BTreeMap<MemberKey, MemberStatus> = array.statuses().into_iter().collect();
        let refused = &self.refused;
        let report = progress(view, &status, |key| refused.contains_key(&key));
        self.note_stalls(&status);
        if report == self.reported {
            return Ok(());
        }
        self.report_at = Some(now + REPORT_EVERY);
        if let Some(link) = &mut self.link {
            link.send(&Request::Progress(report.clone()))?;
        }
        self.reported = report;
        Ok(())
    }

    fn note_stalls(&mut self, status: &BTreeMap<MemberKey, MemberStatus>) {
        for (key, now) in status {
            let is_stalled = matches!(now, MemberStatus::Draining { is_stalled: true, .. });
            let was_stalled = self.stalled.insert(*key, is_stalled).unwrap_or_default();
            if let (false, MemberStatus::Draining { slabs, is_stalled: true }) = (was_stalled, now) {
                self.notice(format!(
                    "member {} cannot be drained yet: no other donor has room for its {slabs} slabs; add a donor, or free \
                     memory in the program",
                    key.0
                ));
            }
        }
    }
}

/// Whether the agent serves as many programs as it may. It ends further connections, perhaps before anything is sent.
fn is_crowded(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ResourceBusy | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}
