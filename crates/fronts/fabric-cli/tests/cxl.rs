// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The fabric manager with real switches: the software switch over TCP and Unix sockets, from nothing to a box that is
//! handed out, and what operators order directly.

mod site;
mod switch;

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use site::{DCD, DEVICES, ENDPOINTS, MLD, SLD, SWITCHES, Site, declaration, site, small, volume};

/// Not a test: the program of the switches that the others start.
#[test]
fn switch_program() {
    switch::serve_if_asked();
}

/// Not a test: the program of the managers that the others start.
#[test]
fn manager_program() {
    site::daemon::serve_if_asked();
}

#[test]
fn a_box_of_22_devices_is_handed_out_to_three_hosts_and_moves_between_them() {
    let begun = Instant::now();
    let site = site("box", "box", 22, 3, true);
    site.wait_for_devices(22);
    println!("22 devices are known {:?} after the start of manager and switch", begun.elapsed());
    let devices: Vec<String> = (0..22).map(|number| format!("s0.{:x}", 1235 + number)).collect();
    let one = |number: usize, host: usize| (format!("v{number}"), volume("256GiB", "cxl", &format!("h{host:03}")));
    let volumes =
        |shift: usize| (0..22).map(|number| one(number, (number + shift) % 3)).collect::<serde_json::Map<_, _>>();
    let declare = |shift| {
        json!({
            "pools": { "main": { "devices": devices } },
            "zones": { "lab": { "quota": "6TiB", "hosts": ["h000", "h001", "h002"] } },
            "volumes": volumes(shift),
        })
    };
    let begun = Instant::now();
    site.apply(&declare(0));
    site.settle();
    let took = begun.elapsed();
    println!("22 devices are wiped and bound to three hosts {took:?} after that was declared (bar: 5 s)");
    assert_eq!(site.bound(), 22);
    let bound = |host: u32| {
        let vppbs = site.get(&format!("{SWITCHES}/s0/VCSs/{host}/VPPBs?$expand=."))["Members"].clone();
        let all = vppbs.as_array().expect("a list").iter();
        all.filter(|vppb| vppb["BindingStatus"] == "BoundPhysicalPort").count()
    };
    assert_eq!([bound(0), bound(1), bound(2)], [8, 7, 7]);
    // Every one of them gets another host, and is wiped on the way.
    site.apply(&declare(1));
    site.settle();
    assert_eq!([bound(0), bound(1), bound(2)], [7, 8, 7]);
    site.apply(&json!({ "pools": { "main": { "devices": devices } }, "zones": declare(0)["zones"] }));
    site.settle();
    assert_eq!(site.bound(), 0);
    site.wait("every device is wiped", |site| site.ld("s0.4d3", "65535")["content"] == "wiped");
    site.finish();
}

#[test]
fn volumes_are_made_of_lds_of_dynamic_capacity_and_of_donors_too() {
    let site = small("kinds");
    let mirror = json!({ "spec": { "size": "512MiB", "pool": "mixed", "zone": "lab", "class": "tcp",
                                   "redundancy": { "mirror": { "copies": 2 } } }, "host": "h000" });
    let dynamic =
        |size| json!({ "spec": { "size": size, "pool": "blocks", "zone": "lab", "class": "cxl" }, "host": "h001" });
    let mut declared = declaration(
        &[],
        &[MLD],
        json!({
            "ld": volume("256MiB", "cxl", "h000"), "lds": volume("512MiB", "cxl", "h001"),
            "both": mirror, "a": dynamic("64MiB"), "b": dynamic("128MiB"),
        }),
    );
    declared["pools"]["mixed"] = json!({ "donors": ["d0000"], "devices": [SLD] });
    declared["pools"]["blocks"] = json!({ "devices": [DCD] });
    site.apply(&declared);
    site.settle();
    assert_eq!(site.ld(SLD, "65535")["binding"]["bound"]["vcs_id"], 0);
    let hosts: Vec<Value> =
        (0..4).map(|ld| site.ld(MLD, &ld.to_string())["binding"]["bound"]["vcs_id"].clone()).collect();
    assert_eq!(hosts.iter().filter(|vcs_id| **vcs_id == 1).count(), 2, "{hosts:?}");
    let added = |site: &Site| site.get(&format!("{ENDPOINTS}/Device.{DCD}"))["Oem"]["Aquifer"]["Added"].clone();
    assert_eq!(added(&site), "192MiB");
    let dcd = site.get(&format!("{DEVICES}/{DCD}"))["CXLDevice"]["DynamicCapacity"].clone();
    assert_eq!(
        (dcd["MaxHosts"].as_u64(), dcd["Oem"]["Aquifer"]["IsSanitizedOnRelease"].as_bool()),
        (Some(1), Some(true))
    );
    // The other host gets the capacity when the first one has none left.
    for name in ["a", "b"] {
        declared["volumes"].as_object_mut().expect("an object").remove(name);
    }
    let mut other = dynamic("256MiB");
    other["host"] = json!("h000");
    declared["volumes"]["c"] = other;
    site.apply(&declared);
    site.settle();
    assert_eq!(added(&site), "256MiB");
    site.finish();
}

#[test]
fn operators_control_ports_vppbs_and_lds_unless_a_volume_has_them() {
    let site = small("orders");
    site.apply(&declaration(&[], &[MLD], json!({ "v0": volume("256MiB", "cxl", "h000") })));
    site.settle();
    let vppb = |number: u32| format!("{SWITCHES}/s0/VCSs/1/VPPBs/{number}");
    let port = |number: u32| format!("{SWITCHES}/s0/Ports/{number}");
    let link = |number: u32, ld: Value| json!({ "Links": { "Port": { "@odata.id": port(number) }, "Oem": { "Aquifer": { "LDId": ld } } } });
    let used = (0..4).find(|ld| !site.ld(MLD, &ld.to_string())["binding"]["bound"].is_null()).expect("one is bound");
    let free = (used + 1) % 4;
    site.wait("a free LD is wiped", |site| site.ld(MLD, &free.to_string())["content"] == "wiped");
    let refused = site.ask("PATCH", &vppb(3), &link(1, json!(used)));
    assert_eq!(refused.status, 409, "{refused:?}");
    let several = site.ask("PATCH", &vppb(3), &link(1, Value::Null));
    assert_eq!(several.status, 400, "{several:?}");
    let bound = site.ask("PATCH", &vppb(3), &link(1, json!(free)));
    assert_eq!(bound.status, 200, "{bound:?}");
    site.wait("it is bound", |site| site.get(&vppb(3))["BindingStatus"] == "BoundLD");
    let body = site.get(&vppb(3));
    assert_eq!((body["BoundPortId"].as_u64(), body["BoundLDId"].as_u64()), (Some(1), Some(u64::from(free))));
    let resized =
        site.ask("PATCH", &format!("{DEVICES}/{MLD}/CXLLogicalDevices/{free}"), &json!({ "MemorySizeMiB": 512 }));
    assert_eq!(resized.status, 409, "a host has it: {resized:?}");
    let unbound = site.ask("PATCH", &vppb(3), &json!({ "Links": { "Port": null } }));
    assert_eq!(unbound.status, 200, "{unbound:?}");
    site.wait("it is unbound", |site| site.get(&vppb(3))["BindingStatus"] == "Unbound");
    // Memory of one LD goes to another.
    let (last, path) = ((used + 2) % 4, |ld: u32| format!("{DEVICES}/{MLD}/CXLLogicalDevices/{ld}"));
    for (ld, mib) in [(last, 0), (free, 512)] {
        let resized = site.ask("PATCH", &path(ld), &json!({ "MemorySizeMiB": mib }));
        assert_eq!(resized.status, 200, "{resized:?}");
    }
    site.wait("it is larger", |site| site.get(&path(free))["MemorySizeMiB"] == 512);
    let limited = site.ask("PATCH", &path(free), &json!({ "QoS": { "LimitPercent": 50 } }));
    assert_eq!(limited.status, 200, "{limited:?}");
    site.wait("it is limited", |site| site.get(&path(free))["QoS"]["LimitPercent"] == 50);
    let congestion = json!({ "Oem": { "Aquifer": { "Congestion": { "Telemetry": 1, "ModeratePercent": 20, "SeverePercent": 40 } } } });
    assert_eq!(site.ask("PATCH", &format!("{DEVICES}/{MLD}"), &congestion).status, 200);
    site.wait("it reports congestion", |site| {
        site.get(&format!("{DEVICES}/{MLD}"))["Oem"]["Aquifer"]["Congestion"]["SeverePercent"] == 40
    });
    assert_eq!(site.ask("PATCH", &port(1), &json!({ "LinkState": "Disabled" })).status, 409, "a volume is behind it");
    assert_eq!(site.ask("PATCH", &port(0), &json!({ "LinkState": "Disabled" })).status, 200);
    site.wait("the link is down", |site| site.get(&port(0))["LinkStatus"] == "LinkDown");
    assert_eq!(site.ask("PATCH", &port(0), &json!({ "LinkState": "Enabled" })).status, 200);
    assert_eq!(site.ask("POST", &format!("{}/Actions/Port.Reset", port(0)), &json!({})).status, 200);
    site.wait("the link is up", |site| site.get(&port(0))["LinkStatus"] == "LinkUp");
    assert_eq!(site.state_of("v0"), "Enabled");
    let audit = site.get("/redfish/v1/Oem/Aquifer/Audit").to_string();
    assert!(audit.contains("disable port 0 of switch s0") && audit.contains("unbind vPPB s0/vcs1/vppb3"), "{audit}");
    site.finish();
}

#[test]
fn the_page_about_switches_is_typed() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/fabric.md"))
        .expect("the page");
    let part = page.split("\n## CXL switches\n").nth(1).expect("the section").split("\n## ").next().expect("its text");
    let toml = part.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a configuration");
    let config = format!("state = \"s\"\n[peers]\nkind = \"simulated\"\n{toml}");
    let config = aquifer_manager::Config::parse(&config).expect("the page's configuration");
    assert_eq!(config.switches.len(), 1);
    for sentence in ["LinkState", "Links", "LDId", "MemorySizeMiB", "LimitPercent"] {
        assert!(part.contains(sentence), "{sentence}");
    }
}
