// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Time, and who wakes whom: futexes for faults, an eventfd for the worker.

use std::time::Duration;

use aquifer_driver::{Clock, Fatal, WorkerClock};
use aquifer_sys::lifeline::Lifeline;
use aquifer_sys::raw::now_ns;
use aquifer_sys::signals::{self, HEEDED_WITHIN};

use crate::ending;
use crate::shard::ShardView;

/// Turns of spinning before a waiting fault sleeps: meant to cost less than waking another CPU. Not measured.
const SPIN_ROUNDS: u32 = 400;

/// How long an idle worker sleeps while a shard without a worker has a debt, which victims that are pinned may prolong.
const OWING_AGAIN: Duration = Duration::from_millis(50);

impl Clock for ShardView<'_> {
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn ticket(&self) -> u32 {
        self.shard.progress.ticket()
    }

    fn wait(&self, ticket: u32) {
        self.shard.progress.spin_then_sleep(ticket, SPIN_ROUNDS, HEEDED_WITHIN);
    }

    fn wait_at_most(&self, ticket: u32, limit: Duration) {
        self.shard.progress.sleep(ticket, limit);
    }

    fn signal(&self) {
        self.shard.progress.signal();
    }

    fn wake_worker(&self) {
        ShardView::wake_worker(*self);
    }

    fn heed(&self) -> Result<(), Fatal> {
        signals::end_if_asked();
        self.failure().map_or(Ok(()), Err)
    }
}

impl<'a> ShardView<'a> {
    /// The process's lifeline, for the one worker that looks after it.
    fn first_lifeline(&self) -> Option<&'a Lifeline> {
        self.pager.lifeline.as_ref().filter(|_| self.is_first())
    }
}

impl WorkerClock for ShardView<'_> {
    fn worker_goes_on(&self) -> bool {
        self.first_lifeline().inspect(|_| ending::look());
        self.follow_local_use();
        if let Some(huge_frames) = &self.huge_frames {
            huge_frames.turn(|| {
                self.publish_own_use(&self.engine());
                self.follow_own_use()
            });
        }
        self.balance_if_due();
        if let Err(fatal) = aquifer_driver::pay_debts(self.pager) {
            self.cannot_go_on(fatal);
        }
        self.service.goes_on()
    }

    fn worker_idles(&self, limit: Duration) {
        let limit = if aquifer_driver::owes(self.pager) { limit.min(OWING_AGAIN) } else { limit };
        let Some(lifeline) = self.first_lifeline() else { return self.shard.worker_wakeup.sleep(None, limit) };
        self.shard.worker_wakeup.sleep(ending::heard_by(lifeline), ending::sleep_max(limit));
        ending::hear(lifeline);
    }

    fn worker_waits(&self, descriptor: Option<i32>, limit: Duration) {
        let limit = if self.first_lifeline().is_some() { ending::sleep_max(limit) } else { limit };
        self.shard.worker_wakeup.sleep(descriptor, limit);
    }
}
