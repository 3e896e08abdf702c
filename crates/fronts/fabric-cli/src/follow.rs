// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Follows the event stream: first the events that the manager still has, then new ones.

use aquifer_fabric_args::Events;
use aquifer_manager_client::{Failure, Request, failed, plain};
use serde_json::Value;

use crate::show::{Session, cell};
use crate::sse::{Decoder, EVENT_BYTES_MAX, Sent};

const STREAM: &str = "/redfish/v1/EventService/SSE";

/// Prints events until there were enough, or the stream ends, which is a failure.
pub(crate) fn events(session: &mut Session<'_>, args: &Events) -> Result<(), Failure> {
    let request = Request { last_event: Some(args.after), ..Request::get(STREAM) };
    let (mut decoder, mut shown, mut last) = (Decoder::default(), 0, args.after);
    let Session { client, json, out, .. } = session;
    client.follow(&request, |bytes| {
        let events = decoder
            .push(bytes)
            .map_err(|_| failed(format!("an event is larger than {EVENT_BYTES_MAX} bytes; check --url")))?;
        for event in events {
            last = event.id.unwrap_or(last);
            let text = line(&event, *json)?;
            let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            written.map_err(|error| aquifer_manager_client::unwritten(&error))?;
            shown += 1;
            if args.count == Some(shown) {
                return Ok(false);
            }
        }
        Ok(true)
    })?;
    match args.count == Some(shown) {
        true => Ok(()),
        false => Err(failed(format!("the manager has ended the event stream; continue with --after {last}"))),
    }
}

fn line(event: &Sent, json: bool) -> Result<String, Failure> {
    let value: Value = serde_json::from_str(&event.data)
        .map_err(|error| failed(format!("an event is not JSON: {error}; is it a fabric manager?")))?;
    if json {
        return Ok(format!("{value}\n"));
    }
    let one = &value["Events"][0];
    let [number, at, severity, what] =
        ["EventId", "EventTimestamp", "MessageSeverity", "Message"].map(|name| plain(&cell(&one[name])));
    Ok(format!("{number}  {at}  {severity:<8}  {what}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let data =
            r#"{"Events": [{"EventId": "7", "EventTimestamp": "t", "MessageSeverity": "OK", "Message": "a\nb"}]}"#;
        let event = Sent { id: Some(7), data: data.to_owned() };
        assert_eq!(line(&event, false).expect("a line"), "7  t  OK        a\\nb\n");
        assert_eq!(line(&event, true).expect("a line").lines().count(), 1);
        assert!(line(&Sent::default(), true).is_err());
    }
}
