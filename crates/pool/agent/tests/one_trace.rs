// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One request through a real manager and a real agent: its spans are one trace, and its id is in both logs. And
//! without the collector that both were given, everything is done as ever.

mod pool;

use std::net::TcpListener;

use aquifer_test_support::SpanCollector;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use pool::{CONNECTIONS, Pool, wait_until};
use prost::Message;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";
const ID: &str = "ticket-4711";

/// Not a test of anything by itself: the other tests start this program with this test alone, to be a manager.
#[test]
fn manager_program() {
    pool::serve_if_asked();
}

/// A span, with the name of the service that sent it.
#[derive(Clone, Debug)]
struct Sent {
    service: String,
    span: Span,
}

impl Sent {
    fn text(&self, key: &str) -> Option<&str> {
        let found = self.span.attributes.iter().find(|one| one.key == key)?;
        match found.value.as_ref()?.value.as_ref()? {
            Value::StringValue(text) => Some(text),
            _ => None,
        }
    }

    fn is(&self, service: &str, name: &str) -> bool {
        self.service == service && self.span.name == name
    }
}

/// Returns the spans that have arrived so far.
fn spans(collector: &SpanCollector) -> Vec<Sent> {
    let mut spans = Vec::new();
    for post in collector.posts() {
        let request = ExportTraceServiceRequest::decode(post.body.as_slice()).expect("a request of OTLP");
        for of_resource in request.resource_spans {
            let attributes = of_resource.resource.expect("a resource").attributes;
            let service = attributes.into_iter().find(|one| one.key == "service.name").and_then(|one| one.value?.value);
            let Some(Value::StringValue(service)) = service else { panic!("a resource without a name") };
            let found = of_resource.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans);
            spans.extend(found.map(|span| Sent { service: service.clone(), span }));
        }
    }
    spans
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_bind_is_one_trace_from_its_client_to_the_agent() {
    let collector = SpanCollector::start();
    let pool = Pool::start(&collector.url());
    let bound = pool.bind(&format!("traceparent: 00-{TRACE}-{CALLER}-01\r\nx-request-id: {ID}\r\n"));
    assert!((200..300).contains(&bound.status), "{bound:?}");
    assert_eq!(bound.header("x-request-id"), Some(ID));
    pool.settle();

    let of_request = |name: &str| {
        let service = if name == "carry out step" { "aquifer-agent" } else { "aquifer-fabricd" };
        let all = spans(&collector).into_iter();
        all.filter(|sent| sent.is(service, name) && sent.text("aquifer.request.id") == Some(ID)).collect::<Vec<_>>()
    };
    let request = format!("POST {CONNECTIONS}");
    wait_until("all spans have come", || {
        ["carry out order", "send step", "carry out step", &request].iter().all(|name| !of_request(name).is_empty())
    });
    let (requests, orders) = (of_request(&request), of_request("carry out order"));
    let ([request], [order]) = (&requests[..], &orders[..]) else { panic!("{requests:?}, {orders:?}") };
    let (sent, done) = (of_request("send step"), of_request("carry out step"));
    for one in requests.iter().chain(&orders).chain(&sent).chain(&done) {
        assert_eq!(hex(&one.span.trace_id), TRACE, "{one:?}");
    }
    assert_eq!(hex(&request.span.parent_span_id), CALLER);
    assert_eq!(order.span.parent_span_id, request.span.span_id);
    assert_eq!(order.text("aquifer.order"), Some("bind volume db to host web-1"));
    assert!(sent.iter().all(|step| step.span.parent_span_id == order.span.span_id), "{sent:?}");
    for step in &done {
        let sender = sent.iter().find(|sent| sent.span.span_id == step.span.parent_span_id);
        let sender = sender.unwrap_or_else(|| panic!("nobody has sent {step:?}"));
        assert_eq!(step.text("aquifer.step.id"), sender.text("aquifer.step.id"));
    }
    // What is done for others is not in this trace.
    let others = spans(&collector).into_iter().filter(|sent| sent.text("aquifer.request.id") != Some(ID));
    assert!(others.clone().count() > 0);
    others.for_each(|other| assert_ne!(hex(&other.span.trace_id), TRACE, "{other:?}"));

    let line = format!(r#"event=order request={ID} who="admin" order="bind volume db to host web-1" result=stored"#);
    assert!(pool.log("manager").contains(&line), "{}", pool.log("manager"));
    let line = format!(" request={ID} step=");
    let found = pool.log("agent").lines().any(|one| one.contains(&line) && one.ends_with("result=done"));
    assert!(found, "{}", pool.log("agent"));
}

#[test]
fn a_pool_whose_collector_is_gone_binds_and_says_so_once() {
    // A port that was free a moment ago. Another program that takes it now does not speak OTLP.
    let gone = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = gone.local_addr().expect("bound");
    drop(gone);
    let pool = Pool::start(&format!("http://{address}"));
    let bound = pool.bind("");
    assert!((200..300).contains(&bound.status), "{bound:?}");
    let id = bound.header("x-request-id").expect("an id").to_owned();
    pool.settle();
    for of in ["manager", "agent"] {
        wait_until("it says that spans are lost", || pool.log(of).contains("does not take spans"));
        assert_eq!(pool.log(of).matches("does not take spans").count(), 1, "{}", pool.log(of));
        assert!(pool.log(of).contains(&format!("request={id} ")), "{}", pool.log(of));
    }
}
