// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The header `traceparent` of W3C's Trace Context, with which a caller says which trace its request belongs to.
//!
//! Pure. `VERSION-TRACE-SPAN-FLAGS` in lower-case hexadecimal digits: 2, 32, 16 and 2 of them. Version ff is invalid;
//! a later version than 00 may have more after the flags.

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// Reads the header. Returns `None` if it is not one: then the request begins a trace.
pub(crate) fn parse(header: &str) -> Option<SpanContext> {
    let mut parts = header.split('-');
    let mut part = |digits: usize| {
        let is_hex = |text: &&str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        parts.next().filter(|text| text.len() == digits).filter(is_hex)
    };
    let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    Some(SpanContext::new(trace, span, flags, true, TraceState::default())).filter(SpanContext::is_valid)
}

/// Returns the header of what a span asks of others.
pub(crate) fn format(span: &SpanContext) -> String {
    format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), (span.trace_flags() & TraceFlags::SAMPLED).to_u8())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_names_its_trace() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        for (header, is_sampled) in [
            (format!("00-{trace}-00f067aa0ba902b7-01"), true),
            (format!("00-{trace}-00f067aa0ba902b7-00"), false),
            (format!("01-{trace}-00f067aa0ba902b7-03-more"), true),
        ] {
            let read = parse(&header).unwrap();
            assert_eq!((read.trace_id().to_string().as_str(), read.is_sampled()), (trace, is_sampled), "{header}");
            assert!(read.is_remote());
            assert_eq!(parse(&format(&read)), Some(read));
        }
    }

    #[test]
    fn anything_else_begins_a_trace() {
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        for header in [
            String::new(),
            "-".repeat(1000),
            format!("00-{trace}-{span}"),
            format!("00-{trace}-{span}-01-"),
            format!("ff-{trace}-{span}-01"),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-+{}-{span}-01", &trace[1..]),
            format!("00-{trace}-{span}-0é"),
        ] {
            assert!(parse(&header).is_none(), "{header}");
        }
    }

    #[test]
    fn every_change_of_a_character_is_read_as_it_is_written_or_refused() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        for at in 0..good.len() {
            for byte in 0..=127_u8 {
                let mut header = good.as_bytes().to_vec();
                header[at] = byte;
                let header = String::from_utf8(header).expect("ASCII");
                if let Some(read) = parse(&header) {
                    // Version and flags are those that we write, whatever the caller's are.
                    assert_eq!(format(&read)[3..52], header[3..52]);
                }
            }
            assert!(parse(&good[..at]).is_none() && parse(&good[at + 1..]).is_none(), "{at}");
        }
    }
}
