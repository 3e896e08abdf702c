// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The service root and the services: sessions, accounts, tasks, events; and chassis.

use aquifer_fabric::EnclosureId;
use serde_json::{Value, json};

use super::answer::{Answer, Problem};
use super::collection::collection;
use super::openapi;
use super::service::Call;

const ROOT: &str = "/redfish/v1";
const CHASSIS: &str = "/redfish/v1/Chassis";

fn link(path: impl std::fmt::Display) -> Value {
    json!({ "@odata.id": path.to_string() })
}

pub(super) fn versions(_: &Call<'_>) -> Result<Answer, Problem> {
    Ok(Answer::of(200, json!({ "v1": "/redfish/v1/" })))
}

pub(super) fn root(_: &Call<'_>) -> Result<Answer, Problem> {
    let part = |name: &str| link(format!("{ROOT}/{name}"));
    Ok(Answer::of(
        200,
        json!({
            "@odata.id": "/redfish/v1/", "@odata.type": "#ServiceRoot.v1_18_0.ServiceRoot", "Id": "RootService",
            "Name": "Aquifer fabric manager", "RedfishVersion": "1.22.0", "Product": "Aquifer", "Vendor": "Aquifer",
            "ProtocolFeaturesSupported": {
                "ExpandQuery": { "ExpandAll": true, "Levels": true, "MaxLevels": 1, "Links": true, "NoLinks": true },
                "FilterQuery": true, "TopSkipQuery": true, "SelectQuery": true, "OnlyMemberQuery": true,
            },
            "SessionService": part("SessionService"), "AccountService": part("AccountService"),
            "Fabrics": part("Fabrics"), "Chassis": part("Chassis"), "Tasks": part("TaskService"),
            "EventService": part("EventService"), "Registries": part("Registries"),
            "Links": { "Sessions": link("/redfish/v1/SessionService/Sessions") },
            "Oem": { "Aquifer": link("/redfish/v1/Oem/Aquifer") },
        }),
    ))
}

pub(super) fn odata(_: &Call<'_>) -> Result<Answer, Problem> {
    let entry = |name: &str| json!({ "name": name, "kind": "Singleton", "url": format!("{ROOT}/{name}") });
    let names = ["SessionService", "AccountService", "Fabrics", "Chassis", "TaskService", "EventService", "Registries"];
    Ok(Answer::of(200, json!({ "@odata.context": "/redfish/v1/$metadata", "value": names.map(entry) })))
}

pub(super) fn document(_: &Call<'_>) -> Result<Answer, Problem> {
    Ok(Answer::of(200, openapi()))
}

pub(super) fn session_service(call: &Call<'_>) -> Result<Answer, Problem> {
    let timeout = call.service.sessions().idle_seconds();
    Ok(Answer::of(
        200,
        json!({
            "@odata.id": "/redfish/v1/SessionService", "@odata.type": "#SessionService.v1_1_9.SessionService",
            "Id": "SessionService", "Name": "Session service", "ServiceEnabled": true, "SessionTimeout": timeout,
            "Sessions": link("/redfish/v1/SessionService/Sessions"),
        }),
    ))
}

pub(super) fn account_service(_: &Call<'_>) -> Result<Answer, Problem> {
    Ok(Answer::of(
        200,
        json!({
            "@odata.id": "/redfish/v1/AccountService", "@odata.type": "#AccountService.v1_15_1.AccountService",
            "Id": "AccountService", "Name": "Account service", "ServiceEnabled": true,
            "MinPasswordLength": crate::accounts::PASSWORD_BYTES_MIN, "MaxPasswordLength": crate::accounts::PASSWORD_BYTES_MAX,
            "Accounts": link("/redfish/v1/AccountService/Accounts"), "Roles": link("/redfish/v1/AccountService/Roles"),
        }),
    ))
}

fn chassis_body(call: &Call<'_>, name: &str) -> Option<Value> {
    let path = format!("{CHASSIS}/{name}");
    if name == "Pools" {
        return Some(json!({
            "@odata.id": path, "@odata.type": "#Chassis.v1_26_0.Chassis", "Id": name, "Name": "All pools",
            "ChassisType": "RackGroup", "MemoryDomains": link(format!("{path}/MemoryDomains")),
            "Status": { "State": "Enabled", "Health": "OK" },
        }));
    }
    let enclosure = call.snapshot.topology.parts().enclosures.get(&name.parse::<EnclosureId>().ok()?)?;
    Some(json!({
        "@odata.id": path, "@odata.type": "#Chassis.v1_26_0.Chassis", "Id": name, "Name": "Enclosure",
        "ChassisType": "Enclosure", "Status": { "State": "Enabled", "Health": "OK" },
        "PCIeDevices": link(super::devices::devices_path(name)),
        "Location": { "Placement": { "Rack": enclosure.rack } },
    }))
}

pub(super) fn chassis_all(call: &Call<'_>) -> Result<Answer, Problem> {
    let enclosures = call.snapshot.topology.parts().enclosures.keys().map(ToString::to_string);
    // Names of enclosures have no capital letters, so none of them is "Pools".
    let ids: Vec<String> = ["Pools".to_owned()].into_iter().chain(enclosures).collect();
    let body = |id: &str| chassis_body(call, id);
    Ok(Answer::of(200, collection(CHASSIS, "ChassisCollection", "Chassis", &call.query, &ids, body)))
}

pub(super) fn chassis(call: &Call<'_>) -> Result<Answer, Problem> {
    chassis_body(call, call.name()).map(|body| Answer::of(200, body)).ok_or_else(|| Problem::not_found(call.path))
}
