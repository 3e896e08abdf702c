// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What volumes show while their hosts confirm nothing.

use std::sync::Arc;

use aquifer_fabric::{HostId, MemberLease, MemberReport, MemberState, Observed, Token, VolumeReport};
use serde_json::{Value, json};

use crate::accounts::Role;
use crate::rest::Service;
use crate::rest::fuzzing::{new_service, parse, reset};
use crate::snapshot::Snapshot;

const DB: &str = "/redfish/v1/Chassis/Pools/MemoryDomains/main/MemoryChunks/db";
const RELEASED: &str = "/redfish/v1/Oem/Aquifer/ReleasedVolumes";

/// Asks a service as an operator. Returns the status and the body.
fn ask(service: &Service, method: &str, path: &str, headers: &str) -> (u16, Value) {
    let token = reset(service, Some(Role::Operator)).expect("a session");
    let request = parse(&format!("{method} {path}\nx-auth-token: {token}\n{headers}")).expect("a request");
    let answer = service.answer(&request);
    (answer.status, answer.body.unwrap_or_default())
}

#[test]
fn a_host_that_keeps_a_volume_is_shown_until_it_has_let_go_even_after_the_release() {
    let service = new_service();
    let get = |path: &str| ask(&service, "GET", path, "");
    let ours = |path: &str| get(path).1["Oem"]["Aquifer"].clone();
    let seen = |path: &str| (ours(path)["IsAtHost"].clone(), ours(path)["LeavingHosts"].clone());
    assert_eq!(seen(DB), (json!(false), json!([])), "its host has reported that it does not have it");
    assert_eq!(get(RELEASED).1["Members"], json!([]));
    assert_eq!(ask(&service, "DELETE", "/redfish/v1/Fabrics/Aquifer/Connections/db", "").0, 200);
    assert_eq!(seen(DB), (json!(false), json!(["h000"])));
    let id = ours(DB)["VolumeId"].as_str().expect("an id").to_owned();
    assert_eq!(get(&format!("{RELEASED}/{id}")).0, 404, "it is not released");
    assert_eq!(ask(&service, "DELETE", DB, "").0, 200);
    assert_eq!(get(DB).0, 404);
    let filter = "$filter=Name%20ge%20'd'%20and%20Name%20lt%20'e'";
    let all = get(&format!("{RELEASED}?$expand=.&{filter}")).1;
    let released = get(&format!("{RELEASED}/{id}")).1;
    assert_eq!((&released["Id"], &released["Name"]), (&json!(id), &json!("db")));
    assert_eq!(released["Oem"]["Aquifer"]["LeavingHosts"], json!(["h000"]));
    assert_eq!(released["Oem"]["Aquifer"]["Spec"]["zone"], "lab");
    assert_eq!(all["Members"][0]["Oem"], released["Oem"]);
    for other in ["db", "0000000000000000", "../db"] {
        assert_eq!(get(&format!("{RELEASED}/{other}")).0, 404, "{other}");
    }
}

/// Publishes other reports, as the writer does after a round.
fn observe(service: &Service, change: impl FnOnce(&mut Observed)) {
    let last = service.shared.snapshot();
    let mut observed = Observed::clone(&last.observed);
    change(&mut observed);
    let next = Snapshot { observed: Arc::new(observed), ..Snapshot::clone(&last) };
    *service.shared.snapshot.write().expect("no panic") = Arc::new(next);
}

#[test]
fn a_volume_is_at_its_host_when_the_host_reports_it_and_unknown_before_the_first_report() {
    let service = new_service();
    let is_at_host = || ask(&service, "GET", DB, "").1["Oem"]["Aquifer"]["IsAtHost"].clone();
    assert_eq!(is_at_host(), json!(false));
    let host: HostId = "h000".parse().expect("a name");
    let desired = Arc::clone(&service.shared.snapshot().desired);
    let (id, volume) = desired.volume_named(&"db".parse().expect("a name")).expect("it is there");
    let members = volume.places().map(|(place, member)| {
        let (source, bytes, token) = (member.source.clone(), member.bytes, Token(1));
        let lease = MemberLease { member: member.id, place, source, bytes, token };
        (member.id, MemberReport { lease, state: MemberState::InSync })
    });
    let view = VolumeReport { members: members.collect(), ..VolumeReport::default() };
    observe(&service, |observed| {
        observed.hosts.value_mut(&host).expect("it has reported").volumes.insert(id, view);
    });
    assert_eq!(is_at_host(), json!(true));
    observe(&service, |observed| drop(observed.hosts.remove(&host)));
    assert_eq!(is_at_host(), json!(null), "a manager that was just started does not know");
}

#[test]
fn several_volumes_are_changed_under_their_own_etags_and_a_bound_one_is_released_only_when_asked() {
    const CHANGE: &str = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.ChangeVolumes";
    let service = new_service();
    let body = r#"{"Volumes": {"db": null}}"#;
    let refused = ask(&service, "POST", CHANGE, &format!("if-match: *\n\n{body}"));
    assert_eq!(refused.0, 400, "{refused:?}");
    let refused = ask(&service, "POST", CHANGE, &format!("\n{body}"));
    assert_eq!(refused.0, 409, "{refused:?}");
    let moved = ask(&service, "POST", CHANGE, "\n{\"Volumes\": {\"db\": {\"spec\": {\"class\": \"rdma\"}}}}");
    assert_eq!(moved.0, 409, "{moved:?}");
    assert_eq!(ask(&service, "GET", DB, "").1["Oem"]["Aquifer"]["Host"], "h000", "nothing was changed");
    let released = ask(&service, "POST", CHANGE, &format!("aquifer-unbind: true\n\n{body}"));
    assert_eq!(released.0, 200, "{released:?}");
    assert_eq!(ask(&service, "GET", DB, "").0, 404);
}
