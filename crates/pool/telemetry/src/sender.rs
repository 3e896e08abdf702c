// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The thread that sends finished spans, and what the OpenTelemetry SDK hands them to.
//!
//! A batch that the collector does not take is dropped and counted: a span is not worth a second attempt, and spans
//! that wait for one would displace newer ones.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use prost::Message;

use crate::collector::Collector;
use crate::post::post;
use crate::queue::Queue;

/// A function that gets lines for the operator.
pub(crate) type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// Hands finished spans to the queue.
#[derive(Debug)]
pub(crate) struct Processor {
    pub(crate) queue: Arc<Queue<SpanData>>,
}

impl SpanProcessor for Processor {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        self.queue.add(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, wait: Duration) -> OTelSdkResult {
        self.queue.end(wait);
        Ok(())
    }
}

/// Sends what is in the queue until its end. Runs on a thread of its own.
pub(crate) struct Sender {
    queue: Arc<Queue<SpanData>>,
    collector: Collector,
    resource: ResourceAttributesWithSchema,
    log: Log,
    /// The spans dropped before the collector stopped taking them, while it does.
    silent_since: Option<u64>,
}

impl Sender {
    /// Starts the thread.
    pub(crate) fn start(
        queue: &Arc<Queue<SpanData>>,
        collector: &Collector,
        resource: &Resource,
        log: Log,
    ) -> io::Result<()> {
        let (queue, collector, resource) = (Arc::clone(queue), collector.clone(), resource.into());
        let mut sender = Sender { queue, collector, resource, log, silent_since: None };
        std::thread::Builder::new().name("spans".into()).spawn(move || {
            // Also when a log that panics unwinds this thread: no thread may wait for it for ever.
            let _ended = Ended(Arc::clone(&sender.queue));
            sender.run();
        })?;
        Ok(())
    }

    fn run(&mut self) {
        while let Some(spans) = self.queue.take() {
            let count = spans.len() as u64;
            let request =
                ExportTraceServiceRequest { resource_spans: group_spans_by_resource_and_scope(spans, &self.resource) };
            match post(&self.collector, &request.encode_to_vec()) {
                Ok(rejected) => {
                    let rejected = rejected.min(count);
                    self.queue.count(count - rejected, rejected);
                    self.report_taken();
                }
                Err(failure) => {
                    let before = self.queue.counts().dropped;
                    self.queue.count(0, count);
                    self.report_failure(before, &failure);
                    if self.queue.give_up() {
                        return;
                    }
                }
            }
        }
    }

    fn report_failure(&mut self, dropped: u64, failure: &io::Error) {
        if self.silent_since.is_none() {
            self.silent_since = Some(dropped);
            (self.log)(&format!(
                "the collector at {} does not take spans: {failure}; start it, or remove it from the configuration",
                self.collector
            ));
        }
    }

    fn report_taken(&mut self) {
        if let Some(before) = self.silent_since.take() {
            let dropped = self.queue.counts().dropped - before;
            (self.log)(&format!(
                "the collector at {} takes spans again; {dropped} were dropped in the meantime",
                self.collector
            ));
        }
    }
}

struct Ended(Arc<Queue<SpanData>>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.note_end();
    }
}
