// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The event service: the stream of events, and subscriptions of listeners to which the manager sends them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::answer::{Answer, Problem};
use super::collection::collection;
use super::now;
use super::service::Call;
use crate::manager_store::Entry;
use crate::push::{ATTEMPT_PAUSE, ATTEMPTS_MAX};
use crate::subscriptions::{
    Listener, MESSAGES_MAX, SUBSCRIPTIONS_MAX, Subscription, TEXT_BYTES_MAX, new_id, store_subscription,
};

const SERVICE: &str = "/redfish/v1/EventService";
const SUBSCRIPTIONS: &str = "/redfish/v1/EventService/Subscriptions";

pub(super) fn service(_: &Call<'_>) -> Result<Answer, Problem> {
    Ok(Answer::of(
        200,
        json!({
            "@odata.id": SERVICE, "@odata.type": "#EventService.v1_10_3.EventService",
            "Id": "EventService", "Name": "Event service", "ServiceEnabled": true,
            "ServerSentEventUri": "/redfish/v1/EventService/SSE", "EventFormatTypes": ["Event"],
            "RegistryPrefixes": ["AquiferFabric"], "DeliveryRetryAttempts": ATTEMPTS_MAX - 1,
            "DeliveryRetryIntervalSeconds": ATTEMPT_PAUSE.as_secs(),
            "Subscriptions": { "@odata.id": SUBSCRIPTIONS },
            "Actions": { "#EventService.SubmitTestEvent":
                { "target": format!("{SERVICE}/Actions/EventService.SubmitTestEvent") } },
        }),
    ))
}

pub(super) fn stream(call: &Call<'_>) -> Result<Answer, Problem> {
    let last = call.request.header("last-event-id").and_then(|id| id.parse().ok());
    let who = call.who.clone().ok_or_else(|| Problem::not_found(call.path))?;
    Ok(Answer { status: 200, follows: Some((last.unwrap_or(0), who)), ..Answer::default() })
}

/// Adds an event, so that a new listener receives one.
pub(super) fn submit_test(call: &Call<'_>) -> Result<Answer, Problem> {
    let what = format!("{} tests the subscriptions", call.who());
    call.service.shared.events.add(now(), "TestEvent", "OK", what);
    Ok(Answer::empty())
}

fn subscription_body(call: &Call<'_>, id: &str) -> Option<Value> {
    let subscriptions = call.service.shared.subscriptions();
    let one = subscriptions.all.get(id)?;
    let state = if subscriptions.is_suspended(id) { "Disabled" } else { "Enabled" };
    let path = format!("{SUBSCRIPTIONS}/{id}");
    Some(json!({
        "@odata.id": path, "@odata.type": "#EventDestination.v1_15_1.EventDestination", "Id": id,
        "Name": "Subscription", "Destination": one.destination, "Context": one.context, "Protocol": "Redfish",
        "SubscriptionType": "RedfishEvent", "EventFormatType": "Event", "MessageIds": one.messages,
        "DeliveryRetryPolicy": "SuspendRetries", "Status": { "State": state, "Health": "OK" },
        "Actions": { "#EventDestination.ResumeSubscription":
            { "target": format!("{path}/Actions/EventDestination.ResumeSubscription") } },
    }))
}

pub(super) fn subscriptions(call: &Call<'_>) -> Result<Answer, Problem> {
    let ids: Vec<String> = call.service.shared.subscriptions().all.keys().cloned().collect();
    let body = |id: &str| subscription_body(call, id);
    let kind = "EventDestinationCollection";
    Ok(Answer::of(200, collection(SUBSCRIPTIONS, kind, "Subscriptions", &call.query, &ids, body)))
}

pub(super) fn subscription(call: &Call<'_>) -> Result<Answer, Problem> {
    subscription_body(call, call.name()).map(|body| Answer::of(200, body)).ok_or_else(|| Problem::not_found(call.path))
}

/// Refuses any other value of a property for which this manager supports only one.
fn check_only(call: &Call<'_>, name: &str, value: &str) -> Result<(), Problem> {
    match call.text(name) {
        None => Ok(()),
        Some(found) if found == value => Ok(()),
        Some(_) => Err(Problem::value(name, format!("it is not supported; send {value}"))),
    }
}

fn context(call: &Call<'_>) -> Result<String, Problem> {
    let context = call.text("Context").unwrap_or_default();
    match context.len() > TEXT_BYTES_MAX {
        true => Err(Problem::value("Context", format!("it is longer than {TEXT_BYTES_MAX} bytes; shorten it"))),
        false => Ok(context.to_owned()),
    }
}

fn messages(call: &Call<'_>) -> Result<Vec<String>, Problem> {
    let listed = call.body.get("MessageIds").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let texts: Option<Vec<String>> = listed.iter().map(|one| one.as_str().map(str::to_owned)).collect();
    let is_short = |texts: &Vec<String>| texts.len() <= MESSAGES_MAX && texts.iter().all(|text| text.len() <= 128);
    let wrong = || Problem::value("MessageIds", format!("it is not a list of up to {MESSAGES_MAX} names; correct it"));
    texts.filter(is_short).ok_or_else(wrong)
}

pub(super) fn subscribe(call: &Call<'_>) -> Result<Answer, Problem> {
    check_only(call, "Protocol", "Redfish")?;
    check_only(call, "SubscriptionType", "RedfishEvent")?;
    check_only(call, "EventFormatType", "Event")?;
    check_only(call, "DeliveryRetryPolicy", "SuspendRetries")?;
    let destination = call.text("Destination").unwrap_or_default().to_owned();
    let config = call.service.shared.subscriptions().config.clone();
    let listener = Listener::parse(&destination).and_then(|listener| listener.check(&config).map(|()| listener));
    let listener = listener.map_err(|line| Problem::value("Destination", line))?;
    let new = Subscription { destination, context: context(call)?, messages: messages(call)? };
    let id = new_id();
    // The path of a URL may contain a secret, which must not get into the audit log.
    let entry = Entry::new(call.who(), format!("send events to {}", listener.authority));
    keep(call, &id, Some(new), entry)?;
    let body = subscription_body(call, &id).unwrap_or_default();
    Ok(Answer::of(201, body).with("location", format!("{SUBSCRIPTIONS}/{id}")))
}

/// Stores a subscription, or deletes it.
fn keep(call: &Call<'_>, id: &str, new: Option<Subscription>, entry: Entry) -> Result<(), Problem> {
    let (shared, id) = (Arc::clone(&call.service.shared), id.to_owned());
    let is_kept = call.service.errand(move |store| {
        if new.is_some() && !shared.subscriptions().has_room(&id) {
            return Ok(false);
        }
        store_subscription(store, &id, new.as_ref(), entry, now())?;
        let after = shared.events.newest();
        shared.subscriptions().take_over(&id, new, after);
        Ok(true)
    })?;
    if is_kept {
        return Ok(());
    }
    let what = format!("there are {SUBSCRIPTIONS_MAX} subscriptions");
    Err(Problem::new(409, "Base.1.18.CreateLimitReachedForResource", what, "delete one first"))
}

fn found(call: &Call<'_>) -> Result<Subscription, Problem> {
    let found = call.service.shared.subscriptions().all.get(call.name()).cloned();
    found.ok_or_else(|| Problem::not_found(call.path))
}

pub(super) fn change_subscription(call: &Call<'_>) -> Result<Answer, Problem> {
    let new = Subscription { context: context(call)?, ..found(call)? };
    let entry = Entry::new(call.who(), format!("change the context of subscription {}", call.name()));
    keep(call, call.name(), Some(new), entry)?;
    subscription(call)
}

pub(super) fn unsubscribe(call: &Call<'_>) -> Result<Answer, Problem> {
    found(call)?;
    let entry = Entry::new(call.who(), format!("delete subscription {}", call.name()));
    keep(call, call.name(), None, entry)?;
    Ok(Answer::empty())
}

/// Resumes a suspended subscription.
pub(super) fn resume(call: &Call<'_>) -> Result<Answer, Problem> {
    found(call)?;
    call.service.shared.subscriptions().resume(call.name());
    Ok(Answer::empty())
}
