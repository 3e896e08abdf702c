// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the program shows, takes and gives back, what others change, and what it says without a manager.

use serde_json::json;

use crate::site::{CHANGE, Front, Site};

#[test]
fn a_donor_is_managed_as_a_device() {
    let (site, front) = Site::start("whole");
    let switch = front.fmapi("identify").expect("a switch")["switch"].clone();
    assert_eq!((&switch["physical_ports"], &switch["active_ports"]), (&json!(19), &json!([0, 1, 16, 17, 18])));
    let ports = front.fmapi("ports").expect("ports")["ports"].clone();
    let links = [0, 1, 16, 17, 18].map(|port: usize| ports[port]["link_state"].clone());
    assert_eq!(links, ["l0", "detect", "l0", "l0", "detect"], "d0099 and h099 do not exist");
    let said = front.said().join("\n");
    assert!(
        said.contains("donors: the manager does not know d0099") && said.contains("hosts: the manager does not know")
    );
    assert_eq!(said.lines().count(), 2, "{said}");
    assert_eq!(ports[0]["device_type"], "type3-mld");
    // What cannot be is refused, and the manager has nothing of it.
    for line in [
        "allocate --port 1 --ld 0 --size 256MiB",
        "allocate --port 0 --ld 16 --size 256MiB",
        "allocate --port 0 --ld 0 --size 300MiB",
        "allocate --port 0 --ld 0 --size 65GiB",
        "bind --vcs 0 --vppb 0 --port 0 --ld 0",
        "unbind --vcs 0 --vppb 0",
    ] {
        let line = front.refused(line);
        assert!(line.contains("; "), "{line}");
    }
    assert!(site.volume("fm-d0000-0").is_none());
    // Memory is taken, bound, unbound, and given back.
    front.fmapi("allocate --port 0 --ld 3 --size 1GiB").expect("room");
    let volume = site.volume("fm-d0000-3").expect("it is a volume");
    assert_eq!(
        (&volume["MemoryChunkSizeMiB"], &volume["Oem"]["Aquifer"]["Spec"]["donor"]),
        (&json!(1024), &json!("d0000"))
    );
    front.fmapi("bind --vcs 1 --vppb 5 --port 0 --ld 3").expect("bound");
    assert_eq!(site.volume("fm-d0000-3").expect("it is there")["Oem"]["Aquifer"]["Host"], "h001");
    for line in [
        "allocate --port 0 --ld 3 --size 0B",
        "allocate --port 0 --ld 3 --size 2GiB",
        "bind --vcs 0 --vppb 0 --port 0 --ld 3",
        "bind --vcs 2 --vppb 0 --port 0 --ld 3",
    ] {
        front.refused(line);
    }
    assert_eq!(site.volume("fm-d0000-3").expect("it is there")["MemoryChunkSizeMiB"], 1024);
    front.fmapi("unbind --vcs 1 --vppb 5").expect("unbound");
    front.fmapi("allocate --port 0 --ld 3 --size 512MiB").expect("smaller");
    assert_eq!(site.volume("fm-d0000-3").expect("it is there")["Oem"]["Aquifer"]["Members"][0]["Size"], "512MiB");
    front.fmapi("allocate --port 0 --ld 3 --size 0B").expect("given back");
    site.daemon.settle(&site.token);
    assert!(site.volume("fm-d0000-3").is_none());
    front.fmapi("check").expect("no departures");
    // It binds the first two logical devices.
    for ld in 0..2 {
        front.fmapi(&format!("allocate --port 0 --ld {ld} --size 256MiB")).expect("room");
    }
    front.fmapi("check --change").expect("no departures");
    site.finish(front);
}

#[test]
fn a_front_that_is_killed_shows_what_the_manager_has() {
    let (site, mut front) = Site::start("killed");
    front.fmapi("allocate --port 0 --ld 0 --size 256MiB").expect("room");
    front.fmapi("bind --vcs 0 --vppb 7 --port 0 --ld 0").expect("bound");
    let bound = front.vppb(0, 7);
    front.kill();
    // Somebody else binds a volume meanwhile.
    let spec = json!({ "size": "256MiB", "pool": "main", "zone": "lab", "class": "tcp", "donor": "d0000" });
    let change =
        json!({ "Volumes": { "fm-d0000-1": { "spec": spec, "host": "h000" } }, "Match": { "fm-d0000-1": null } });
    let (status, answer) = site.ask("POST", CHANGE, &change);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(site.ask("POST", CHANGE, &change).0, 412, "it is there now");
    let front = Front::start(&site.directory);
    assert_eq!(front.vppb(0, 7), bound);
    front.see("the other one is at the first free vPPB", |front| front.vppb(0, 0)["ld_id"] == 1);
    // Others unbind it while the front runs.
    assert_eq!(site.ask("POST", CHANGE, &json!({ "Volumes": { "fm-d0000-1": { "host": null } } })).0, 200);
    front.see("it is unbound", |front| front.vppb(0, 0)["ld_id"].is_null());
    site.finish(front);
}

#[test]
fn bindings_of_others_stay_at_their_vppbs_after_a_restart() {
    let (site, mut front) = Site::start("labels");
    let spec = json!({ "size": "256MiB", "pool": "main", "zone": "lab", "class": "tcp", "donor": "d0000" });
    for name in ["fm-d0000-4", "fm-d0000-5"] {
        let change = json!({ "Volumes": { name: { "spec": spec, "host": "h000" } } });
        assert_eq!(site.ask("POST", CHANGE, &change).0, 200);
        front.see("it is bound", |front| {
            (0..2).any(|at| front.vppb(0, at)["ld_id"] == name[9..].parse::<u8>().expect("a number"))
        });
    }
    let label =
        |name: &str| site.volume(name).expect("it is there")["Oem"]["Aquifer"]["Spec"]["labels"]["fm-vppb"].clone();
    front.see("their vPPBs are in their labels", |_| {
        (label("fm-d0000-4"), label("fm-d0000-5")) == (json!("h000/0"), json!("h000/1"))
    });
    // The first one goes, and the other one stays where it is.
    assert_eq!(site.ask("POST", CHANGE, &json!({ "Volumes": { "fm-d0000-4": { "host": null } } })).0, 200);
    front.see("it is unbound, and its label is gone", |front| {
        front.vppb(0, 0)["ld_id"].is_null() && label("fm-d0000-4").is_null()
    });
    assert_eq!(front.vppb(0, 1)["ld_id"], 5);
    front.kill();
    let front = Front::start(&site.directory);
    assert_eq!((&front.vppb(0, 0)["ld_id"], &front.vppb(0, 1)["ld_id"]), (&json!(null), &json!(5)));
    site.finish(front);
}

#[test]
fn a_name_that_another_pool_has_is_refused_for_good() {
    let (site, front) = Site::start("elsewhere");
    let declaration = json!({
        "pools": { "main": { "donors": ["d0000"] }, "other": { "donors": ["d0001"] } },
        "zones": { "lab": { "quota": "64GiB", "hosts": ["h000", "h001"] } },
    });
    let apply = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Apply";
    assert_eq!(site.ask("POST", apply, &json!({ "Declaration": declaration })).0, 200);
    let spec = json!({ "size": "256MiB", "pool": "other", "zone": "lab", "class": "tcp" });
    let (status, answer) = site.ask("POST", CHANGE, &json!({ "Volumes": { "fm-d0000-3": { "spec": spec } } }));
    assert_eq!(status, 200, "{answer}");
    let line = front.refused("allocate --port 0 --ld 3 --size 256MiB");
    assert!(line.contains("Invalid Input"), "{line}");
    front.see("it says why", |front| {
        front.said().iter().any(|line| line.contains("another pool has a volume of that name"))
    });
    site.finish(front);
}

#[test]
fn without_a_manager_nothing_is_reported_as_done() {
    let (mut site, front) = Site::start("gone");
    site.daemon.kill();
    let line = front.refused("allocate --port 0 --ld 0 --size 256MiB");
    assert!(line.contains("; "), "{line}");
    assert!(front.fmapi("ports").is_ok(), "what was last known is shown");
    site.finish(front);
}
