// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Operations that are recorded as spans, or not at all.
//!
//! Threads: any. Finished spans wait in a queue of limited length for the sender's thread.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::{Span as _, SpanBuilder, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, Span, SpanData};

use crate::collector::Collector;
use crate::queue::{Counts, Queue};
use crate::sender::{Processor, Sender};
use crate::traceparent;

/// How long the last spans may take to be sent when the process ends.
const END_WAIT: Duration = Duration::from_secs(3);
/// Longest text of an attribute or of a failure, in characters; the rest is cut off.
const TEXT_CHARACTERS_MAX: usize = 512;

/// Why telemetry cannot be started: one line.
#[derive(Debug)]
pub struct TelemetryFailure(io::Error);

impl fmt::Display for TelemetryFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the thread that sends spans cannot be started: {}; raise the limit of tasks", self.0)
    }
}

impl std::error::Error for TelemetryFailure {}

/// The side of a request that an operation is on, as OpenTelemetry's kinds of spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It asks another process.
    Client,
    /// It is a part of what this process does.
    Internal,
    /// It answers another process.
    Server,
}

/// Records operations, if a collector was named.
#[derive(Clone, Debug, Default)]
pub struct Telemetry(Option<Arc<On>>);

#[derive(Debug)]
struct On {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    queue: Arc<Queue<SpanData>>,
}

impl Telemetry {
    /// Sends operations of this `service`, of which `instance` is one process, to a collector; `None`: to nobody. `log`
    /// gets a line when the collector stops taking them, and when it takes them again.
    pub fn start(
        collector: Option<&Collector>,
        service: &'static str,
        instance: &str,
        log: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> Result<Telemetry, TelemetryFailure> {
        let Some(collector) = collector else { return Ok(Telemetry::default()) };
        let resource = Resource::builder_empty()
            .with_service_name(service)
            .with_attributes([
                KeyValue::new("service.instance.id", instance.to_owned()),
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            ])
            .build();
        let queue = Arc::new(Queue::new());
        Sender::start(&queue, collector, &resource, log).map_err(TelemetryFailure)?;
        let provider = SdkTracerProvider::builder()
            .with_span_processor(Processor { queue: Arc::clone(&queue) })
            .with_resource(resource)
            // Every operation is recorded, unless its caller's `traceparent` says that the caller records nothing.
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
            .build();
        let tracer = provider.tracer(service);
        Ok(Telemetry(Some(Arc::new(On { provider, tracer, queue }))))
    }

    /// Returns whether operations are recorded.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Begins an operation, which ends when it is dropped. `traceparent` is the caller's header of that name: if it is
    /// valid, the operation belongs to the caller's trace.
    pub fn begin(&self, name: &'static str, side: Side, traceparent: Option<&str>) -> Operation {
        let Some(on) = &self.0 else { return Operation(None) };
        let kind = match side {
            Side::Client => SpanKind::Client,
            Side::Internal => SpanKind::Internal,
            Side::Server => SpanKind::Server,
        };
        let caller = traceparent.and_then(traceparent::parse);
        // An empty context: two operations of a thread need not belong together.
        let context = caller.map_or_else(Context::new, |caller| Context::new().with_remote_span_context(caller));
        let span = on.tracer.build_with_context(SpanBuilder::from_name(name).with_kind(kind), &context);
        Operation(Some(Box::new(span)))
    }

    /// Returns how many spans were sent and dropped.
    pub fn counts(&self) -> Counts {
        self.0.as_ref().map_or_else(Counts::default, |on| on.queue.counts())
    }

    /// Sends what is finished, within a time limit, and records nothing from then on.
    pub fn end(&self) {
        if let Some(on) = &self.0 {
            // The collector may be gone, which was reported.
            let _ = on.provider.shutdown_with_timeout(END_WAIT);
        }
    }
}

/// Something that takes time, and ends when this value is dropped.
#[derive(Debug)]
pub struct Operation(Option<Box<Span>>);

impl Operation {
    /// Names it more precisely.
    pub fn rename(&mut self, name: impl FnOnce() -> String) {
        if let Some(span) = &mut self.0 {
            span.update_name(name());
        }
    }

    /// Adds an attribute. `value` is called only if the operation is recorded.
    pub fn note(&mut self, key: &'static str, value: impl FnOnce() -> String) {
        if let Some(span) = self.0.as_mut().filter(|span| span.is_recording()) {
            span.set_attribute(KeyValue::new(key, cut(value())));
        }
    }

    /// Adds a number.
    pub fn count(&mut self, key: &'static str, value: u64) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX)));
        }
    }

    /// Notes that it has failed, and why.
    pub fn fail(&mut self, why: impl FnOnce() -> String) {
        if let Some(span) = self.0.as_mut().filter(|span| span.is_recording()) {
            span.set_status(Status::error(cut(why())));
        }
    }

    /// Returns the number of the trace that it belongs to, in hexadecimal digits; `None` if telemetry is off.
    pub fn trace_id(&self) -> Option<String> {
        self.0.as_ref().map(|span| span.span_context().trace_id().to_string())
    }

    /// Returns the header that makes the requests of this operation a part of its trace; `None` if telemetry is off.
    pub fn traceparent(&self) -> Option<String> {
        self.0.as_ref().map(|span| traceparent::format(span.span_context()))
    }
}

fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(TEXT_CHARACTERS_MAX) {
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(cut("ä".repeat(TEXT_CHARACTERS_MAX + 1)), "ä".repeat(TEXT_CHARACTERS_MAX));
        assert_eq!(cut("ab".into()), "ab");
    }
}
