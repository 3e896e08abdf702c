// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The manager's message registry: the events, and the errors for which DMTF's registry has no message. Clients have
//! DMTF's registry already.

use serde_json::{Map, Value, json};

use super::answer::{Answer, Problem};
use super::collection::collection;
use super::service::Call;

const REGISTRIES: &str = "/redfish/v1/Registries";
const OURS: &str = "AquiferFabric";

/// The manager's messages: name, severity, meaning, resolution. Each has one argument, the whole text.
const MESSAGES: [(&str, &str, &str, &str); 36] = [
    ("AuditDamaged", "Critical", "The audit log is damaged.", "Compare it with an exported copy."),
    ("AuthorityReplaced", "OK", "Every end has a certificate of the new authority.", "Drop the old authority."),
    ("Changed", "OK", "Somebody changed the desired state.", "None."),
    ("ClockJumped", "Warning", "The clock of the manager has jumped ahead.", "Set the clock right."),
    ("DeliveryFailed", "Warning", "A listener did not take events.", "Check it, then resume its subscription."),
    ("DeviceError", "Warning", "A device reports an error.", "Look at the device."),
    ("DeviceEvent", "OK", "A device has written a record of another kind.", "None."),
    ("DeviceHealth", "Warning", "The health of a device has changed.", "Look at the device."),
    ("DeviceInserted", "OK", "A device was inserted.", "None."),
    ("DeviceLeftOut", "Warning", "Two switches show one device.", "Do what the message says."),
    ("DeviceRemoved", "Warning", "A device was pulled out.", "None; its members are replaced."),
    ("DynamicCapacity", "OK", "Dynamic capacity was added or released.", "None."),
    ("EventsLost", "Warning", "A switch has dropped event records.", "Compare the state of its devices."),
    ("Leads", "OK", "This manager leads.", "None."),
    ("MediaError", "Warning", "A device reports an error of its memory.", "Look at the device."),
    ("NotApplied", "Warning", "The declaration cannot be applied.", "Change it as the message says."),
    ("NotRecorded", "Warning", "A registration was not stored.", "Register fewer ends at a time."),
    ("NotStored", "Critical", "The store refuses changes of the pool's state.", "Do what the message says."),
    ("OldCertificates", "Warning", "Ends have certificates of another authority.", "Do what the message says."),
    ("OperationAborted", "Warning", "A background operation of a switch was aborted.", "None; it is tried again."),
    ("PeerAnswers", "OK", "A donor, a host or a device answers again.", "None."),
    ("PeerSilent", "Warning", "A donor, a host or a device does not answer.", "Look at it and at the network."),
    ("PortLinkDown", "Warning", "The link of a port went down.", "Look at the cable."),
    ("PortLinkUp", "OK", "The link of a port came up.", "None."),
    ("PortSlotChanged", "OK", "What is plugged in at a port has changed.", "None."),
    ("Standby", "OK", "Another manager leads.", "Ask the manager that the message names."),
    ("StepFailed", "Warning", "A step failed and is tried again.", "Look at the end that the message names."),
    ("SwitchAnswers", "OK", "A switch answers again.", "None."),
    ("SwitchSilent", "Warning", "A switch does not answer.", "Look at it and at the network."),
    ("SwitchLeftOut", "Critical", "A switch cannot be part of the pool.", "Do what the message says."),
    ("TaskDone", "OK", "A task has ended.", "None."),
    ("TermRejected", "Critical", "An end claims to have seen a greater term.", "Do what the message says."),
    ("TestEvent", "OK", "An event to test a subscription.", "None."),
    ("VppbBound", "OK", "A vPPB was bound.", "None."),
    ("VppbChanged", "OK", "A vPPB is being bound or unbound.", "None."),
    ("VppbUnbound", "OK", "A vPPB was unbound.", "None."),
];

fn path(id: &str) -> String {
    format!("{REGISTRIES}/{id}")
}

fn file_body(id: &str) -> Option<Value> {
    if id != OURS {
        return None;
    }
    let location = json!({ "Language": "en", "Uri": format!("{}/AquiferFabric.1.0.json", path(OURS)) });
    Some(json!({
        "@odata.id": path(id), "@odata.type": "#MessageRegistryFile.v1_1_5.MessageRegistryFile", "Id": id,
        "Name": "Messages", "Registry": "AquiferFabric.1.0", "Languages": ["en"], "Location": [location],
    }))
}

pub(super) fn files(call: &Call<'_>) -> Result<Answer, Problem> {
    let ids = [OURS.to_owned()];
    let kind = "MessageRegistryFileCollection";
    Ok(Answer::of(200, collection(REGISTRIES, kind, "Registries", &call.query, &ids, file_body)))
}

pub(super) fn file(call: &Call<'_>) -> Result<Answer, Problem> {
    file_body(call.name()).map(|body| Answer::of(200, body)).ok_or_else(|| Problem::not_found(call.path))
}

/// Returns our registry.
pub(super) fn ours(_: &Call<'_>) -> Result<Answer, Problem> {
    let message = |(name, severity, meaning, remedy): &(&str, &str, &str, &str)| {
        let body = json!({
            "Description": meaning, "Message": "%1", "MessageSeverity": severity, "NumberOfArgs": 1,
            "ParamTypes": ["string"], "Resolution": remedy,
        });
        ((*name).to_owned(), body)
    };
    let messages: Map<String, Value> = MESSAGES.iter().map(message).collect();
    Ok(Answer::of(
        200,
        json!({
            "@odata.type": "#MessageRegistry.v1_6_3.MessageRegistry", "Id": "AquiferFabric.1.0.0",
            "Name": "Messages of the fabric manager", "Language": "en", "Description": "Events and errors of a pool",
            "RegistryPrefix": OURS, "RegistryVersion": "1.0.0", "OwningEntity": "Aquifer", "Messages": messages,
        }),
    ))
}
