// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The id by which people find a request again in answers, logs and spans, and what its span says about it.

use aquifer_fabric::{Cause, RequestId};
use aquifer_telemetry::Operation;

use super::answer::Answer;
use super::service::Request;
use crate::accounts::{hex, random};
use crate::order::{NotDone, Order};
use crate::writer::Done;

/// Random bytes of an id, as many as a trace's number has.
const ID_BYTES: usize = 16;

/// Returns the id of a request and the span that what it orders belongs to. The id is the one that the client has given
/// in `X-Request-Id`, or the number of the trace, or a random one. Without a span of its own, the client's is passed
/// on.
pub(super) fn cause(operation: &Operation, request: &Request) -> Cause {
    let given = request.header("x-request-id").and_then(|id| id.parse().ok());
    let trace = || operation.trace_id().and_then(|id| id.parse().ok());
    let drawn = || -> RequestId { hex(&random::<ID_BYTES>()).parse().expect("hexadecimal digits are an id") };
    let traceparent = operation.traceparent();
    let traceparent = traceparent.as_deref().or_else(|| request.header("traceparent"));
    Cause {
        request: given.or_else(trace).unwrap_or_else(drawn),
        traceparent: traceparent.and_then(|header| header.parse().ok()),
    }
}

/// Completes a recorded operation, and adds the request's id to the answer. `route` are the method and the path with
/// names in braces, of which there are few. The query and the bodies are not recorded, and neither is a path that is
/// not one of ours: they may have what its sender did not mean to send.
pub(super) fn record(
    operation: &mut Operation,
    request: &Request,
    route: Option<(&str, &str)>,
    cause: &Cause,
    answer: &mut Answer,
) {
    answer.headers.push(("x-request-id", cause.request.to_string()));
    if let Some((method, path)) = route {
        operation.rename(|| format!("{method} {path}"));
        operation.note("http.request.method", || method.to_owned());
        operation.note("http.route", || path.to_owned());
        operation.note("url.path", || request.path.escape_default().to_string());
    }
    operation.note("aquifer.request.id", || cause.request.to_string());
    operation.note("client.address", || request.from.to_string());
    operation.count("http.response.status_code", answer.status.into());
    // As OpenTelemetry's conventions for servers say: a client's mistake is no error of the server.
    if answer.status >= 500 {
        operation.fail(|| format!("status {}", answer.status));
    }
}

/// Returns the beginning of the log's line about an order: names and values, as in the lines of donors.
pub(super) fn line(order: &Order) -> String {
    let (who, what) = (&order.who, order.act.to_string());
    format!("event=order request={} who={who:?} order={what:?}", order.cause.request)
}

/// Returns the end of the line. An outcome of `None` means that the writer has not answered in time.
pub(super) fn result(outcome: Option<&Result<Done, NotDone>>) -> String {
    match outcome {
        Some(Ok(_)) => "result=stored".to_owned(),
        Some(Err(not)) => format!("result=refused why={:?}", not.to_string()),
        None => "result=unanswered".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Act;

    #[test]
    fn a_line_about_an_order_is_one_line_whatever_is_in_it() {
        let cause = Cause { request: "ticket-4711".parse().expect("an id"), traceparent: None };
        let order = Order { act: Act::Adopt, who: "a \"b\"\nc".into(), if_match: None, is_dry_run: false, cause };
        assert_eq!(line(&order), r#"event=order request=ticket-4711 who="a \"b\"\nc" order="adopt what is in use""#);
        let refused = Err(NotDone::TooLarge("too\nlarge".into()));
        assert_eq!(result(Some(&refused)), r#"result=refused why="too\nlarge""#);
        assert_eq!(result(Some(&Ok(Done::default()))), "result=stored");
    }
}
