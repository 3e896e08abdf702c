// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Starts the worker's thread. What the worker does is in `driver/src/worker.rs`.

use std::sync::mpsc::sync_channel;

use aquifer_driver::Worker;

use crate::pager::{Pager, StartFailure};
use crate::space::QUEUE_DEPTH;

/// Starts the worker of `pager`.
pub fn start(pager: &'static Pager) -> Result<(), StartFailure> {
    let (opened, outcome) = sync_channel(1);
    pager.start_thread(c"aquifer-worker", move || {
        let queue = match pager.open_queue() {
            Ok(queue) => queue,
            Err(failure) => {
                let _ = opened.send(Err(failure));
                return;
            }
        };
        let mut worker = Worker::new(pager, queue, QUEUE_DEPTH);
        if opened.send(Ok(())).is_ok()
            && let Err(fatal) = worker.run()
        {
            pager.cannot_go_on(fatal);
        }
    })?;
    outcome.recv().expect("the worker answers before it ends").map_err(StartFailure::Queue)
}
