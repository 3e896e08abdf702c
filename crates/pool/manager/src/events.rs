// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The newest events, in a ring of fixed size, and the streams of clients that follow them.

use std::collections::VecDeque;
use std::sync::Mutex;

use aquifer_fabric::Millis;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::rest::date;

/// Events that are kept: a client that reconnects within that many misses none.
pub(crate) const EVENTS_MAX: usize = 1024;
/// How many events a slow stream may lag behind. Then it is ended, and its client reconnects with its last id.
const BEHIND_MAX: usize = 256;

/// Something that happened in the pool, for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Counts events since this manager began to lead, from the milliseconds of its clock on; see [`Events::lead`].
    pub(crate) id: u64,
    pub(crate) at: Millis,
    /// Its name in our message registry.
    pub(crate) kind: &'static str,
    pub(crate) severity: &'static str,
    pub(crate) message: String,
}

impl Event {
    /// Returns the event's name in the manager's message registry.
    pub(crate) fn message_id(&self) -> String {
        format!("AquiferFabric.1.0.{}", self.kind)
    }
}

/// Formats events as Redfish does, for a listener, which has a context, or for a stream, which has none.
pub(crate) fn body(events: &[Event], context: Option<&str>) -> Value {
    let last = events.last().map_or(0, |event| event.id);
    let record = |(number, event): (usize, &Event)| {
        json!({
            "EventId": event.id.to_string(), "EventTimestamp": date(event.at), "EventType": "Other",
            "MemberId": number.to_string(), "MessageId": event.message_id(), "MessageSeverity": event.severity,
            "Message": event.message, "MessageArgs": [event.message],
        })
    };
    let records: Vec<Value> = events.iter().enumerate().map(record).collect();
    let mut body = json!({
        "@odata.type": "#Event.v1_11_0.Event", "Id": last.to_string(), "Name": "Event", "Events": records,
    });
    if let Some(context) = context {
        body["Context"] = context.into();
    }
    body
}

/// The newest events, and those who wait for more.
pub(crate) struct Events {
    ring: Mutex<(u64, VecDeque<Event>)>,
    followers: broadcast::Sender<Event>,
}

impl Default for Events {
    fn default() -> Events {
        Events { ring: Mutex::default(), followers: broadcast::channel(BEHIND_MAX).0 }
    }
}

impl Events {
    /// Begins a leadership: the next event gets a number greater than this time in milliseconds. So every leader's
    /// numbers are greater than those of the leaders before it, and a client that sends one of those misses nothing:
    /// there is less than one event in a millisecond, and an election takes longer than clocks are apart.
    pub(crate) fn lead(&self, now: Millis) {
        let mut ring = self.ring.lock().expect("no holder of this lock panics");
        ring.0 = ring.0.max(now.0);
    }

    /// Adds an event and sends it to all followers.
    pub(crate) fn add(&self, at: Millis, kind: &'static str, severity: &'static str, message: String) {
        let mut ring = self.ring.lock().expect("no holder of this lock panics");
        ring.0 += 1;
        let event = Event { id: ring.0, at, kind, severity, message };
        if ring.1.len() == EVENTS_MAX {
            ring.1.pop_front();
        }
        ring.1.push_back(event.clone());
        // An error means that nobody follows.
        let _ = self.followers.send(event);
    }

    /// Returns the number of the newest event.
    pub(crate) fn newest(&self) -> u64 {
        self.ring.lock().expect("no holder of this lock panics").0
    }

    /// Returns the kept events after number `after`, and everything that follows. A number greater than the newest is
    /// from a leader whose clock was ahead: its client gets all kept events.
    pub(crate) fn follow(&self, after: u64) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let ring = self.ring.lock().expect("no holder of this lock panics");
        let after = if after > ring.0 { 0 } else { after };
        let kept = ring.1.iter().filter(|event| event.id > after).cloned().collect();
        // Subscribed under the lock, so that no event is missed or doubled.
        (kept, self.followers.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_newest_and_followers_miss_none() {
        let events = Events::default();
        for number in 0..EVENTS_MAX as u64 + 3 {
            events.add(Millis(number), "Test", "OK", format!("{number}"));
        }
        let (kept, mut following) = events.follow(EVENTS_MAX as u64);
        assert_eq!(kept.iter().map(|event| event.id).collect::<Vec<_>>(), [1025, 1026, 1027]);
        assert_eq!(events.follow(0).0.len(), EVENTS_MAX);
        assert_eq!(events.follow(1027).0, []);
        assert_eq!(events.follow(9999).0.len(), EVENTS_MAX, "a number of a leader whose clock was ahead");
        events.add(Millis(9), "Test", "OK", "next".into());
        assert_eq!(following.try_recv().expect("an event").id, 1028);
    }

    /// Each process counted from 1, so that a client of the earlier leader missed as many events as that had sent.
    #[test]
    fn a_client_of_an_earlier_leader_misses_no_event_of_this_one() {
        let ids = |events: &Events, after| events.follow(after).0.iter().map(|event| event.id).collect::<Vec<_>>();
        let add = |events: &Events, at| events.add(Millis(at), "Test", "OK", "an event".into());
        let (first, second) = (Events::default(), Events::default());
        first.lead(Millis(1000));
        (0..5).for_each(|_| add(&first, 1000));
        assert_eq!(ids(&first, 0), [1001, 1002, 1003, 1004, 1005]);
        second.lead(Millis(3000));
        (0..3).for_each(|_| add(&second, 3000));
        assert_eq!(ids(&second, 1005), [3001, 3002, 3003]);
        first.lead(Millis(9000));
        add(&first, 9000);
        assert_eq!(ids(&first, 3003), [9001], "it leads again");
        first.lead(Millis(10));
        add(&first, 10);
        assert_eq!(ids(&first, 9001), [9002], "its clock was set back");
    }
}
