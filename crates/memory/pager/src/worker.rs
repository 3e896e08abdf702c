// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Starts the workers' threads, one for each shard. What the worker does is in `driver/src/worker.rs`.

use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;

use aquifer_driver::Worker;

use crate::pager::{Pager, StartFailure};
use crate::shard::ShardView;
use crate::space::queue_depth;

/// Starts the workers of `pager`, as many as can be started. The first failure counts.
pub fn start(pager: &'static Pager) -> Result<(), StartFailure> {
    pager.shards().map(start_one).fold(Ok(()), Result::and)
}

fn start_one(shard: ShardView<'static>) -> Result<(), StartFailure> {
    let (opened, outcome) = sync_channel(1);
    shard.pager.start_thread(c"aquifer-worker", move || {
        let queue = match shard.open_queue() {
            Ok(queue) => queue,
            Err(failure) => {
                let _ = opened.send(Err(failure));
                return;
            }
        };
        let mut worker = Worker::new(&shard, queue, queue_depth(&*shard.pager.tier, shard.shard.budget_pages_max));
        // Before its first turn, which finds what nobody has woken it for: pairs with `Pager::worker_for`.
        shard.shard.has_worker.store(true, Ordering::SeqCst);
        if opened.send(Ok(())).is_ok()
            && let Err(fatal) = worker.run()
        {
            shard.pager.cannot_go_on(fatal);
        }
    })?;
    outcome.recv().expect("the worker answers before it ends").map_err(StartFailure::Queue)
}
