// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The fabric manager with real switches that fail, end and flap, through restarts of both sides, and beside another
//! manager.

mod site;
mod switch;

use serde_json::{Value, json};
use site::daemon::Daemon;
use site::{CHUNKS, ENDPOINTS, MLD, SLD, SWITCHES, Site, declaration, directory, section, small, volume};
use switch::RunningSwitch;

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
fn failures_leave_the_state_before_or_after_and_never_between() {
    let site = small("failures");
    let devices = &[SLD, MLD];
    let volumes = |host: &str| json!({ "v0": volume("1GiB", "cxl", host), "v1": volume("256MiB", "cxl", host) });
    site.apply(&declaration(&[], devices, json!({})));
    let (bind, unbind, sanitize) = (0x5201, 0x5202, 0x5300);
    let answer = |how: &str, opcode: u32, times: u32| {
        format!("{{\"answer\": {{\"how\": {how}, \"opcode\": {opcode}, \"times\": {times}}}}}")
    };
    let mut injections =
        vec!["\"background_stalls\"".to_owned(), "{\"background_fails\": {\"return_code\": 4}}".to_owned()];
    for how in ["\"busy\"", "\"drop\"", "\"duplicate\"", "\"wrong_tag\"", "{\"truncate\": 5}", "{\"delay_ms\": 700}"] {
        injections.extend([bind, unbind, sanitize].map(|opcode| answer(how, opcode, 1)));
    }
    // Busy for longer than one round waits.
    injections.push(answer("\"busy\"", bind, 30));
    for (number, injection) in injections.iter().enumerate() {
        let host = if number % 2 == 0 { "h000" } else { "h001" };
        site.switch.control(injection);
        site.apply(&declaration(&[], devices, volumes(host)));
        site.settle();
        // The SLD, or all four LDs of the MLD, for v0.
        assert!([2, 5].contains(&site.bound()), "{injection}: {}", site.bound());
        for name in ["v0", "v1"] {
            assert_eq!(site.state_of(name), "Enabled", "{injection}");
        }
    }
    site.apply(&declaration(&[], devices, json!({})));
    site.settle();
    assert_eq!(site.bound(), 0);
    site.finish();
}

#[test]
fn a_flapping_port_a_device_pulled_out_and_a_switch_that_ends_are_survived() {
    let mut site = small("surprise");
    let volumes = || json!({ "v0": volume("256MiB", "cxl", "h000") });
    site.apply(&declaration(&[], &[MLD], volumes()));
    site.settle();
    site.switch.control("{\"link_flap\": {\"port_id\": 1, \"down_ms\": 300}}");
    site.settle();
    // The SLD is as large as all LDs of the MLD together.
    site.apply(&declaration(&[], &[SLD, MLD], volumes()));
    let on = |site: &Site| site.get(&format!("{CHUNKS}/v0"))["Oem"]["Aquifer"].to_string();
    let (device, number, other) = (MLD, 1, SLD);
    site.switch.control(&format!("{{\"remove_device\": {{\"device\": {number}}}}}"));
    site.wait("the volume is on another device", |site| on(site).contains(other) && !on(site).contains(device));
    site.settle();
    assert_eq!(site.state_of("v0"), "Enabled");
    let endpoint = site.get(&format!("{ENDPOINTS}/Device.{device}"));
    assert_eq!(endpoint["Status"]["State"], "Quiesced", "{endpoint}");
    site.switch.control(&format!("{{\"insert_device\": {{\"device\": {number}}}}}"));
    site.wait("the device is wiped and can be used", |site| {
        site.get(&format!("{ENDPOINTS}/Device.{device}"))["Status"]["State"] == "Enabled"
    });
    // The switch ends while it binds. It starts again with nothing bound.
    site.apply(&declaration(&[], &[MLD], json!({ "v1": volume("256MiB", "cxl", "h001") })));
    site.switch.kill();
    site.switch.start_again();
    site.settle();
    assert_eq!((site.state_of("v1"), site.bound()), (json!("Enabled"), 1));
    site.finish();
}

#[test]
fn what_is_bound_stays_bound_when_the_manager_is_restarted_or_has_lost_its_state() {
    let mut site = small("restart");
    let declared = declaration(
        &[],
        &[SLD, MLD],
        json!({ "v0": volume("1GiB", "cxl", "h000"), "v1": volume("256MiB", "cxl", "h001") }),
    );
    site.apply(&declared);
    site.settle();
    let bindings = |site: &Site| {
        let of = |vcs: u32| site.get(&format!("{SWITCHES}/s0/VCSs/{vcs}/VPPBs?$expand=."))["Members"].clone();
        [of(0), of(1)]
    };
    let before = bindings(&site);
    let again = |site: &mut Site| {
        let directory = site.daemon.directory.clone();
        let section = section(&site.switch.unix(), 6, 0..2);
        // The store is closed before the next daemon opens it.
        site.daemon.kill();
        site.daemon = Daemon::start(&directory, 2, &section);
        site.token = site.daemon.login();
        site.wait_for_devices(3);
    };
    again(&mut site);
    site.settle();
    assert_eq!(bindings(&site), before);
    // Without its state, the manager leaves alone what it finds, until it is to adopt it.
    site.daemon.kill();
    let state = site.daemon.directory.join("state");
    std::fs::remove_file(state.join("state.redb")).expect("removed");
    std::fs::remove_file(state.join("initial-password")).expect("removed");
    again(&mut site);
    assert_eq!(bindings(&site), before);
    site.apply(&declaration(&[], &[SLD, MLD], json!({})));
    let adopted = site.ask("POST", "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Adopt", &json!({}));
    assert_eq!(adopted.status, 200, "{adopted:?}");
    site.settle();
    assert_eq!(bindings(&site), before);
    let export = site.get("/redfish/v1/Oem/Aquifer/Declaration")["Declaration"]["volumes"].clone();
    assert_eq!(export.as_object().map(serde_json::Map::len), Some(2), "{export}");
    // What was adopted is released like anything else.
    site.apply(&declaration(&[], &[SLD, MLD], json!({})));
    site.settle();
    assert_eq!(site.bound(), 0);
    site.finish();
}

#[test]
fn two_managers_at_one_switch_leave_each_other_what_they_have() {
    let first = small("two-first");
    let declared = |host: &str, name: &str| declaration(&[], &[MLD], json!({ name: volume("256MiB", "cxl", host) }));
    first.apply(&declared("h000", "mine"));
    first.settle();
    let other = directory("two-second");
    let daemon = Daemon::start(&other, 2, &section(&first.switch.unix(), 6, 1..2));
    let token = daemon.login();
    // The second has no switch of its own; this one ends with the test.
    let second = Site { daemon, token, switch: RunningSwitch::start(&other, &[]) };
    second.wait_for_devices(3);
    second.apply(&declared("h001", "theirs"));
    // What the first manager has is a stray to the second, which is never settled.
    second.wait("it has what it wants", |site| site.state_of("theirs") == "Enabled");
    let lds = |site: &Site| -> Vec<Value> {
        (0..4).map(|ld| site.ld(MLD, &ld.to_string())["binding"]["bound"].clone()).collect()
    };
    first.wait("the first manager sees both", |site| lds(site).iter().filter(|bound| !bound.is_null()).count() == 2);
    assert_eq!(lds(&first), lds(&second));
    second.apply(&declaration(&[], &[MLD], json!({})));
    second.wait("it has let go", |site| lds(site).iter().filter(|bound| !bound.is_null()).count() == 1);
    // Until the LD is wiped, the first manager reports its volumes as changing.
    first.wait("the first manager keeps what it has", |site| site.state_of("mine") == "Enabled");
    second.finish();
    first.finish();
}
