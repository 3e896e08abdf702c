// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Turns an order of the switch into a request to the manager: changes of the declarations of volumes, on condition
//! that nobody has changed them since they were read. Pure.

use aquifer_cxl_switch::{Ending, Order};
use aquifer_fabric::Bytes;
use aquifer_fmapi::ReturnCode;
use serde_json::{Map, Value, json};

use crate::adoption::UNIT;
use crate::config::Config;
use crate::labels::label_of;
use crate::places::Places;
use crate::settling::{Goal, Wait};
use crate::view::{LABEL, Ld, View, VolumeView, volume_name};

/// How an order is carried out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Plan {
    /// Nothing is sent: the pool is already as ordered, or the order is refused.
    Ended(Ending),
    /// The body of a request to the manager, and what the order waits for afterwards.
    Request(Value, Option<Wait>),
}

/// What changes in the volume of one logical device, on condition that it is as it was read.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    pub ld: Ld,
    pub change: Value,
    /// The volume that was read, if there was one.
    pub found: Option<&'a VolumeView>,
}

/// Returns the body of a request that makes changes, all of them or none.
pub(crate) fn body(changes: &[Change<'_>]) -> Value {
    let (mut volumes, mut expected) = (Map::new(), Map::new());
    for Change { ld: (donor, ld_id), change, found } in changes {
        let name = volume_name(donor, *ld_id);
        expected.insert(name.clone(), found.map_or(Value::Null, |volume| volume.etag.clone().into()));
        volumes.insert(name, change.clone());
    }
    json!({ "Volumes": volumes, "Match": expected })
}

fn refused(code: ReturnCode) -> Plan {
    Plan::Ended(Ending::Refused(code))
}

/// Returns how an order is carried out in the pool of a view.
pub(crate) fn plan(order: &Order, view: &View, places: &Places, config: &Config) -> Plan {
    let ld = |device: usize, ld_id: u8| places.donor(device).map(|donor| (donor.clone(), ld_id));
    match order {
        Order::Allocate { device, lds } => {
            let sizes: Option<Vec<(Ld, u64)>> =
                lds.iter().map(|(id, bytes)| Some((ld(*device, *id)?, *bytes))).collect();
            sizes.map_or(refused(ReturnCode::INVALID_INPUT), |sizes| allocate(&sizes, view, config))
        }
        Order::Bind { vcs_id, vppb_id, device, ld_id } => match (ld(*device, *ld_id), places.host(*vcs_id)) {
            (Some(ld), Some(host)) => bind(ld, host.as_str(), *vppb_id, view),
            _ => refused(ReturnCode::INVALID_INPUT),
        },
        Order::Unbind { vcs_id, device, ld_id, .. } => match (ld(*device, *ld_id), places.host(*vcs_id)) {
            (Some(ld), Some(host)) => unbind(ld, host.as_str(), view),
            _ => refused(ReturnCode::INVALID_INPUT),
        },
    }
}

/// Lists all logical devices, those that stay as they are, too: then the manager's writer says that they are so, after
/// whatever was ordered before, and not what was read earlier.
fn allocate(sizes: &[(Ld, u64)], view: &View, config: &Config) -> Plan {
    let mut changes = Vec::new();
    for (ld, bytes) in sizes {
        let found = view.volumes.get(ld);
        // The switch shows whole units. A volume that somebody else has made, and that has more than these, stays so.
        let is_same = found.map_or(0, |volume| volume.bytes) / UNIT == *bytes / UNIT;
        if *bytes == 0 && found.is_some_and(|volume| !volume.is_in_place) {
            // It is no logical device, and the client does not ask for one.
            continue;
        }
        if found.is_some_and(|volume| !volume.is_in_place || !is_same && volume.host.is_some()) {
            return refused(ReturnCode::INVALID_INPUT);
        }
        if !is_same && (found.is_some_and(|volume| volume.is_leaving) || view.released.contains_key(ld)) {
            return refused(ReturnCode::RETRY_REQUIRED);
        }
        let size = Bytes(*bytes).to_string();
        let change = match (bytes, found) {
            (_, Some(_)) if is_same => json!({}),
            (0, _) => Value::Null,
            (_, Some(_)) => json!({ "spec": { "size": size } }),
            (_, None) => {
                json!({ "spec": { "size": size, "pool": config.pool, "zone": config.zone, "class": config.class,
                                  "donor": ld.0 } })
            }
        };
        changes.push(Change { ld: ld.clone(), change, found });
    }
    if changes.is_empty() { Plan::Ended(Ending::Done) } else { Plan::Request(body(&changes), None) }
}

fn bind(ld: Ld, host: &str, vppb_id: u8, view: &View) -> Plan {
    let Some(volume) = view.volumes.get(&ld).filter(|volume| volume.is_in_place) else {
        return refused(ReturnCode::INVALID_INPUT);
    };
    if volume.host.as_ref().is_some_and(|bound| bound != host) {
        return refused(ReturnCode::INVALID_INPUT);
    }
    if volume.is_leaving || view.released.contains_key(&ld) {
        return refused(ReturnCode::RETRY_REQUIRED);
    }
    let is_at_vppb = |volume: &VolumeView| volume.label.as_ref().is_some_and(|(of, at)| of == host && *at == vppb_id);
    let is_at_host = |volume: &VolumeView| volume.host.iter().chain(&volume.leaving_hosts).any(|of| of == host);
    if view.lds().any(|(other, volume)| *other != ld && is_at_vppb(volume) && is_at_host(volume)) {
        // Somebody else has bound another one there, which the switch does not show yet.
        return refused(ReturnCode::RETRY_REQUIRED);
    }
    let change = json!({ "host": host, "spec": { "labels": { LABEL: label_of(host, vppb_id) } } });
    let goal = Goal::AtHost { host: host.to_owned(), vppb_id };
    request(ld, change, volume, goal)
}

fn unbind(ld: Ld, host: &str, view: &View) -> Plan {
    let is_held = |volume: &VolumeView| volume.leaving_hosts.iter().any(|held| held == host);
    if view.released.get(&ld).is_some_and(is_held) {
        return Plan::Ended(Ending::Unknown(ReturnCode::RETRY_REQUIRED));
    }
    let Some(volume) = view.volumes.get(&ld).filter(|volume| volume.is_in_place) else {
        return Plan::Ended(Ending::Done);
    };
    // Also where it is unbound already: an order that the manager has not carried out yet comes before this one.
    let change = match &volume.host {
        // Another host has it by now, which is not this vPPB's.
        Some(bound) if bound != host => json!({}),
        _ => json!({ "host": null }),
    };
    request(ld, change, volume, Goal::Left { host: host.to_owned() })
}

fn request(ld: Ld, change: Value, volume: &VolumeView, goal: Goal) -> Plan {
    let wait = Wait { ld: ld.clone(), volume_id: volume.id.clone(), goal };
    Plan::Request(body(&[Change { ld, change, found: Some(volume) }]), Some(wait))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EXAMPLE;

    fn volume(host: Option<&str>) -> VolumeView {
        let host = host.map(str::to_owned);
        VolumeView {
            etag: "\"e\"".into(),
            id: "07".into(),
            bytes: UNIT,
            host,
            is_settled: true,
            is_in_place: true,
            ..VolumeView::default()
        }
    }

    fn planned(order: &Order, volumes: &[(u8, VolumeView)]) -> Plan {
        let config = Config::parse(EXAMPLE).expect("a configuration");
        let places = Places::of(&config).expect("places");
        let ld = |ld_id: u8| ("d2".parse().expect("a name"), ld_id);
        let volumes = volumes.iter().map(|(ld_id, volume)| (ld(*ld_id), volume.clone())).collect();
        plan(order, &View { volumes, ..View::default() }, &places, &config)
    }

    fn code(plan: Plan) -> Ending {
        let Plan::Ended(ending) = plan else { panic!("{plan:?}") };
        ending
    }

    #[test]
    fn an_allocation_makes_resizes_and_releases_volumes_that_are_as_they_were_read() {
        let order = Order::Allocate { device: 1, lds: vec![(0, 2 * UNIT), (1, 0), (2, 4 * UNIT), (3, UNIT), (4, 0)] };
        let there = [(0, volume(None)), (1, volume(None)), (3, volume(None))];
        let Plan::Request(body, None) = planned(&order, &there) else { panic!("no request") };
        let made = json!({ "size": "1GiB", "pool": "main", "zone": "lab", "class": "tcp", "donor": "d2" });
        assert_eq!(body["Volumes"]["fm-d2-0"], json!({ "spec": { "size": "512MiB" } }));
        assert_eq!((&body["Volumes"]["fm-d2-1"], &body["Volumes"]["fm-d2-2"]["spec"]), (&Value::Null, &made));
        let same = (&body["Volumes"]["fm-d2-3"], &body["Volumes"]["fm-d2-4"]);
        assert_eq!(same, (&json!({}), &Value::Null), "the writer confirms what is so already");
        let etag = "\"e\"";
        assert_eq!(
            body["Match"],
            json!({ "fm-d2-0": etag, "fm-d2-1": etag, "fm-d2-2": null, "fm-d2-3": etag, "fm-d2-4": null })
        );
        let invalid = Ending::Refused(ReturnCode::INVALID_INPUT);
        assert_eq!(code(planned(&order, &[(1, volume(Some("h9")))])), invalid, "somebody has bound it");
        assert_eq!(code(planned(&order, &[(0, VolumeView { is_in_place: false, ..volume(None) })])), invalid);
        assert_eq!(code(planned(&Order::Allocate { device: 7, lds: vec![(0, UNIT)] }, &[])), invalid);
        let leaving = VolumeView { is_leaving: true, ..volume(None) };
        assert_eq!(code(planned(&order, &[(1, leaving)])), Ending::Refused(ReturnCode::RETRY_REQUIRED));
        let bound = Order::Allocate { device: 1, lds: vec![(0, UNIT)] };
        assert!(matches!(planned(&bound, &[(0, volume(Some("h1")))]), Plan::Request(_, None)), "its size stays");
        // Of what others have made, the switch shows whole units.
        let odd = |bytes| [(0, VolumeView { bytes, ..volume(None) })];
        for (bytes, asked) in [(300 << 20, UNIT), (100 << 20, 0)] {
            let order = Order::Allocate { device: 1, lds: vec![(0, asked)] };
            let Plan::Request(body, None) = planned(&order, &odd(bytes)) else { panic!("no request") };
            assert_eq!(body["Volumes"]["fm-d2-0"], json!({}), "{bytes}");
        }
        let elsewhere = [(0, VolumeView { is_in_place: false, ..volume(None) })];
        assert_eq!(code(planned(&Order::Allocate { device: 1, lds: vec![(0, 0)] }, &elsewhere)), Ending::Done);
    }

    #[test]
    fn a_bind_names_its_host_and_its_vppb_and_steals_nothing() {
        let order = Order::Bind { vcs_id: 0, vppb_id: 7, device: 1, ld_id: 3 };
        let Plan::Request(body, Some(wait)) = planned(&order, &[(3, volume(None))]) else { panic!("no request") };
        assert_eq!((wait.ld.0.as_str(), wait.ld.1, wait.volume_id.as_str()), ("d2", 3, "07"));
        assert_eq!(wait.goal, Goal::AtHost { host: "h1".into(), vppb_id: 7 });
        let change = json!({ "host": "h1", "spec": { "labels": { "fm-vppb": "h1/7" } } });
        assert_eq!(body, json!({ "Volumes": { "fm-d2-3": change }, "Match": { "fm-d2-3": "\"e\"" } }));
        let other = VolumeView { label: Some(("h1".into(), 7)), ..volume(Some("h1")) };
        let unbound = VolumeView { host: None, ..other.clone() };
        assert_eq!(
            code(planned(&order, &[(2, other), (3, volume(None))])),
            Ending::Refused(ReturnCode::RETRY_REQUIRED),
            "another one is there"
        );
        assert!(matches!(planned(&order, &[(2, unbound), (3, volume(None))]), Plan::Request(..)));
        let invalid = Ending::Refused(ReturnCode::INVALID_INPUT);
        assert_eq!(code(planned(&order, &[(3, volume(Some("h2")))])), invalid);
        assert_eq!(code(planned(&order, &[])), invalid);
        assert_eq!(
            code(planned(&Order::Bind { vcs_id: 9, vppb_id: 0, device: 1, ld_id: 3 }, &[(3, volume(None))])),
            invalid
        );
    }

    #[test]
    fn an_unbind_waits_for_the_host_and_is_done_where_nothing_is_bound() {
        let order = Order::Unbind { vcs_id: 0, vppb_id: 7, device: 1, ld_id: 3 };
        let Plan::Request(body, Some(_)) = planned(&order, &[(3, volume(Some("h1")))]) else { panic!("no request") };
        let change = json!({ "fm-d2-3": { "host": null } });
        assert_eq!(body["Volumes"], change);
        // The manager says whether it is unbound, since what was read may be late.
        for there in [volume(None), VolumeView { is_leaving: true, ..volume(None) }] {
            let Plan::Request(body, Some(wait)) = planned(&order, &[(3, there)]) else { panic!("no request") };
            assert_eq!((&body["Volumes"], wait.goal), (&change, Goal::Left { host: "h1".into() }));
        }
        let elsewhere = VolumeView { leaving_hosts: vec!["h1".into()], ..volume(Some("h2")) };
        let Plan::Request(body, Some(wait)) = planned(&order, &[(3, elsewhere)]) else { panic!("no request") };
        assert_eq!(body["Volumes"]["fm-d2-3"], json!({}), "another host has it now, which is left alone");
        assert_eq!(wait.goal, Goal::Left { host: "h1".into() });
        assert_eq!(code(planned(&order, &[])), Ending::Done);
    }
}
