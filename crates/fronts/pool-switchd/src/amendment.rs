// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Turns an order of the switch into a request to the manager: changes of the declarations of volumes, on condition
//! that nobody has changed them since they were read. Pure.

use aquifer_cxl_switch::{Ending, Order};
use aquifer_fabric::Bytes;
use aquifer_fmapi::ReturnCode;
use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::places::Places;
use crate::view::{LABEL, Ld, View, VolumeView, volume_name};

/// How an order is carried out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Plan {
    /// Nothing is sent: the pool is already as ordered, or the order is refused.
    Ended(Ending),
    /// The body of a request to the manager, and the volume that has to settle afterwards, if the order waits for that.
    Request(Value, Option<Ld>),
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

fn request(entries: Vec<(&Ld, Value, Option<&VolumeView>)>, settles: Option<Ld>) -> Plan {
    let (mut volumes, mut expected) = (Map::new(), Map::new());
    for ((donor, ld_id), change, found) in entries {
        let name = volume_name(donor, *ld_id);
        expected.insert(name.clone(), found.map_or(Value::Null, |volume| volume.etag.clone().into()));
        volumes.insert(name, change);
    }
    Plan::Request(json!({ "Volumes": volumes, "Match": expected }), settles)
}

fn allocate(sizes: &[(Ld, u64)], view: &View, config: &Config) -> Plan {
    let mut entries = Vec::new();
    for (ld, bytes) in sizes {
        let found = view.volumes.get(ld);
        let is_free = found.is_none_or(|volume| volume.host.is_none() && volume.is_in_place);
        if !is_free {
            return refused(ReturnCode::INVALID_INPUT);
        }
        if found.is_some_and(|volume| volume.is_leaving) {
            return refused(ReturnCode::RETRY_REQUIRED);
        }
        let size = Bytes(*bytes).to_string();
        let change = match (bytes, found) {
            (0, None) => continue,
            (0, Some(_)) => Value::Null,
            (_, Some(volume)) if volume.bytes == *bytes => continue,
            (_, Some(_)) => json!({ "spec": { "size": size } }),
            (_, None) => {
                json!({ "spec": { "size": size, "pool": config.pool, "zone": config.zone, "class": config.class,
                                  "donor": ld.0 } })
            }
        };
        entries.push((ld, change, found));
    }
    if entries.is_empty() { Plan::Ended(Ending::Done) } else { request(entries, None) }
}

fn bind(ld: Ld, host: &str, vppb_id: u8, view: &View) -> Plan {
    let Some(volume) = view.volumes.get(&ld).filter(|volume| volume.is_in_place) else {
        return refused(ReturnCode::INVALID_INPUT);
    };
    if volume.host.as_ref().is_some_and(|bound| bound != host) {
        return refused(ReturnCode::INVALID_INPUT);
    }
    if volume.is_leaving {
        return refused(ReturnCode::RETRY_REQUIRED);
    }
    let change = json!({ "host": host, "spec": { "labels": { LABEL: format!("{host}/{vppb_id}") } } });
    request(vec![(&ld, change, Some(volume))], Some(ld.clone()))
}

fn unbind(ld: Ld, host: &str, view: &View) -> Plan {
    match view.volumes.get(&ld) {
        Some(volume) if volume.host.as_deref() == Some(host) => {
            request(vec![(&ld, json!({ "host": null }), Some(volume))], Some(ld.clone()))
        }
        Some(volume) if volume.is_leaving => Plan::Ended(Ending::Unknown(ReturnCode::RETRY_REQUIRED)),
        _ => Plan::Ended(Ending::Done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EXAMPLE;

    const UNIT: u64 = 256 << 20;

    fn volume(host: Option<&str>) -> VolumeView {
        let host = host.map(str::to_owned);
        VolumeView {
            etag: "\"e\"".into(),
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
        assert_eq!(body["Volumes"].as_object().map(Map::len), Some(3), "the rest is so already");
        assert_eq!(body["Match"], json!({ "fm-d2-0": "\"e\"", "fm-d2-1": "\"e\"", "fm-d2-2": null }));
        let invalid = Ending::Refused(ReturnCode::INVALID_INPUT);
        assert_eq!(code(planned(&order, &[(1, volume(Some("h9")))])), invalid, "somebody has bound it");
        assert_eq!(code(planned(&order, &[(0, VolumeView { is_in_place: false, ..volume(None) })])), invalid);
        assert_eq!(code(planned(&Order::Allocate { device: 7, lds: vec![(0, UNIT)] }, &[])), invalid);
        let leaving = VolumeView { is_leaving: true, ..volume(None) };
        assert_eq!(code(planned(&order, &[(1, leaving)])), Ending::Refused(ReturnCode::RETRY_REQUIRED));
        assert_eq!(code(planned(&Order::Allocate { device: 1, lds: vec![(0, UNIT)] }, &there)), Ending::Done);
    }

    #[test]
    fn a_bind_names_its_host_and_its_vppb_and_steals_nothing() {
        let order = Order::Bind { vcs_id: 0, vppb_id: 7, device: 1, ld_id: 3 };
        let Plan::Request(body, Some(ld)) = planned(&order, &[(3, volume(None))]) else { panic!("no request") };
        assert_eq!((ld.0.as_str(), ld.1), ("d2", 3));
        let change = json!({ "host": "h1", "spec": { "labels": { "fm-vppb": "h1/7" } } });
        assert_eq!(body, json!({ "Volumes": { "fm-d2-3": change }, "Match": { "fm-d2-3": "\"e\"" } }));
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
        assert_eq!(body["Volumes"], json!({ "fm-d2-3": { "host": null } }));
        assert_eq!(code(planned(&order, &[(3, volume(None))])), Ending::Done);
        assert_eq!(code(planned(&order, &[(3, volume(Some("h2")))])), Ending::Done, "another host has it now");
        assert_eq!(code(planned(&order, &[])), Ending::Done);
        let leaving = VolumeView { is_leaving: true, ..volume(None) };
        assert_eq!(code(planned(&order, &[(3, leaving)])), Ending::Unknown(ReturnCode::RETRY_REQUIRED));
    }
}
