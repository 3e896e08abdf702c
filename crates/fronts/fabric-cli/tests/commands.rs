// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The commands against a real daemon: a volume's whole life, tables and JSON, dry runs, declarations.

mod program;

use program::{Rack, declaration, stderr, stdout};
use serde_json::{Value, json};

/// Returns the cells of a volume's line.
fn volume(rack: &Rack, name: &str) -> Option<Vec<String>> {
    let table = rack.done(&["volumes"]);
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    Some(line.split_whitespace().map(str::to_owned).collect())
}

#[test]
fn a_volume_is_created_bound_grown_shrunk_moved_and_released() {
    let rack = Rack::ready("life", "");
    let settle = || rack.done(&["status", "--until-settled"]);
    let create = ["create", "scratch", "--size", "2GiB", "--zone", "lab", "--class", "tcp", "--redundancy", "mirror=2"];
    let dry = rack.done(&[&create[..], &["--dry-run"]].concat());
    assert!(dry.contains("scratch"), "{dry}");
    assert_eq!(volume(&rack, "scratch"), None, "a dry run changes nothing");
    let created = rack.done(&create);
    assert!(created.contains("scratch") && !created.contains("step"), "{created}");
    settle();
    assert_eq!(
        volume(&rack, "scratch").expect("it is listed"),
        ["scratch", "StandbyOffline", "2GiB", "main", "lab", "tcp", "mirror=2"]
    );
    let dry = rack.done(&["bind", "scratch", "h001", "--dry-run"]);
    assert!(dry.contains("\nstep    "), "memory is granted when there is a host: {dry}");
    let bound = rack.done(&["bind", "scratch", "h001"]);
    assert!(bound.contains("scratch") && dry.starts_with(&bound), "{bound}");
    settle();
    assert_eq!(volume(&rack, "scratch").expect("it is listed")[1..4], ["Enabled", "2GiB", "h001"]);
    assert!(rack.fails(1, &["bind", "scratch", "h000"]).contains("scratch"));
    rack.done(&["grow", "scratch", "4GiB"]);
    assert_eq!(rack.fails(1, &["grow", "scratch", "4GiB"]), "volume scratch has 4GiB; name another size");
    assert_eq!(rack.fails(1, &["grow", "scratch", "2GiB"]), "volume scratch has 4GiB; use 'shrink'");
    assert_eq!(rack.fails(1, &["shrink", "scratch", "8GiB"]), "volume scratch has 4GiB; use 'grow'");
    settle();
    rack.done(&["shrink", "scratch", "1GiB"]);
    settle();
    assert_eq!(volume(&rack, "scratch").expect("it is listed")[2], "1GiB");
    rack.done(&["move", "scratch"]);
    settle();
    let line = rack.fails(1, &["release", "scratch"]);
    assert!(
        line.contains("volume scratch is bound to host h001; unbind it first, or release it with --unbind"),
        "{line}"
    );
    let dry = rack.done(&["release", "scratch", "--unbind", "--dry-run"]);
    assert!(dry.starts_with("- unbind volume scratch from host h001\n- release volume scratch\n"), "{dry}");
    assert_eq!(volume(&rack, "scratch").expect("it is listed")[3], "h001");
    rack.done(&["unbind", "scratch"]);
    let line = rack.fails(1, &["unbind", "scratch"]);
    assert_eq!(line, "volume scratch is not bound; there is nothing to unbind");
    settle();
    rack.done(&["release", "scratch"]);
    settle();
    assert_eq!(volume(&rack, "scratch"), None);
    let released = rack.done(&["release", "db", "--unbind"]);
    assert_eq!(released, "- unbind volume db from host h000\n- release volume db\n");
    for words in
        [&["bind", "scratch", "h000"][..], &["unbind", "scratch"], &["release", "scratch"], &["move", "scratch"]]
    {
        assert_eq!(rack.fails(1, words), "there is no volume scratch; see 'aquifer fabric volumes'", "{words:?}");
    }
    let audit = rack.done(&["audit"]);
    for what in ["bind volume scratch to host h001", "release volume scratch"] {
        assert!(audit.lines().any(|line| line.contains("  admin ") && line.contains(what)), "{what}: {audit}");
    }
    let few = rack.json(&["audit", "--after", "2", "--count", "3"]);
    let numbers: Vec<u64> =
        few["Records"].as_array().expect("a list").iter().filter_map(|record| record["sequence"].as_u64()).collect();
    assert_eq!(numbers, [3, 4, 5]);
    assert!(rack.done(&["tasks"]).contains("Completed"));
}

#[test]
fn a_volume_expires_at_the_time_that_is_listed() {
    let rack = Rack::ready("expires", "");
    let of = |name, time| ["create", name, "--size", "1GiB", "--zone", "lab", "--class", "tcp", "--expires", time];
    let now_ms = || std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_millis() as u64;
    let before = now_ms();
    let planned = rack.done(&[&of("night", "12h")[..], &["--dry-run"]].concat());
    let at = planned.split_once(", expires at ").and_then(|(_, rest)| rest.lines().next()).expect("a time");
    assert!(at.len() == "2026-01-01T00:00:00Z".len() && at.ends_with('Z'), "{planned}");
    rack.done(&of("night", "12h"));
    let members = rack.json(&["volumes"])["Members"].clone();
    let night = members.as_array().and_then(|all| all.iter().find(|member| member["Id"] == "night"));
    let at = night.expect("it is listed")["Oem"]["Aquifer"]["Spec"]["expires_at"].as_u64().expect("a time");
    assert!((before..=now_ms()).contains(&(at - 12 * 3_600_000)), "{at}");
    let line = volume(&rack, "night").expect("it is listed");
    let listed = line.last().expect("the time");
    assert!(listed.len() == "2026-01-01T00:00:00Z".len() && listed.ends_with('Z'), "{line:?}");
    rack.done(&["bind", "night", "h001"]);
    rack.done(&of("short", "1s"));
    let begun = std::time::Instant::now();
    while volume(&rack, "short").is_some() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(120), "it stays");
    }
    assert!(volume(&rack, "night").is_some() && volume(&rack, "db").is_some_and(|line| !line.contains(listed)));
}

#[test]
fn a_volume_has_the_donor_and_the_labels_that_it_is_created_with() {
    let rack = Rack::ready("donor", "");
    let of = |name, more: &[&'static str]| {
        [&["create", name, "--size", "1GiB", "--zone", "lab", "--class", "tcp"][..], more].concat()
    };
    let labels = ["--label", "owner=ada", "--label", "a=b=c"];
    rack.done(&of("cache", &[&["--donor", "d0002"][..], &labels].concat()));
    rack.done(&["status", "--until-settled"]);
    let line = volume(&rack, "cache").expect("it is listed");
    assert_eq!(line[line.len() - 3..], ["none", "d0002", "a=b=c,owner=ada"]);
    let members = rack.json(&["volumes"])["Members"].clone();
    let ours = |name: &str| {
        let member = members.as_array().and_then(|all| all.iter().find(|member| member["Id"] == name));
        member.expect("it is listed")["Oem"]["Aquifer"].clone()
    };
    assert_eq!(ours("cache")["Spec"]["labels"], json!({ "owner": "ada", "a": "b=c" }));
    let source = ours("cache")["Members"][0]["Source"]["@odata.id"].clone();
    assert!(source.as_str().is_some_and(|source| source.ends_with("/Donor.d0002")), "{source}");
    assert!(ours("db")["Spec"].get("donor").is_none() && ours("db")["Spec"].get("labels").is_none());
    for (more, code, line) in [
        (&["--donor", "d9999"][..], 1, "donor d9999 is not in pool main, or has not registered; "),
        (
            &["--donor", "d0002", "--redundancy", "mirror=2"],
            2,
            "mirror=2 needs 2 donors, and --donor names one; leave one of them out",
        ),
        (&["--label", "a=1", "--label", "a=2"], 2, "label a is given twice; give each key once"),
    ] {
        let refused = rack.fails(code, &of("other", more));
        assert!(refused.contains(line), "{refused}");
    }
    let many: Vec<String> = (0..17).map(|number| format!("--label=k{number}=v")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let words = [&of("other", &[])[..], &many].concat();
    let refused = rack.fails(1, &words);
    assert!(refused.contains("the labels are too many or too long, or have control characters; give 16 at most"));
    assert_eq!(volume(&rack, "other"), None);
}

#[test]
fn what_a_host_sees_of_a_volume_is_chosen() {
    let rack = Rack::ready("ranges", "");
    let of = |name, more: &[&'static str]| {
        [&["create", name, "--size", "2GiB", "--zone", "lab", "--class", "tcp", "--width", "2"][..], more].concat()
    };
    let planned = rack.done(&of("wide", &["--weights", "3,1", "--dry-run"]));
    assert!(planned.contains("zone lab, one range per span, weights 3:1\n"), "{planned}");
    rack.done(&of("wide", &["--weights", "3,1"]));
    rack.done(&of("even", &["--presentation", "range-per-span"]));
    rack.done(&of("sum", &["--presentation", "one-range"]));
    let members = rack.json(&["volumes"])["Members"].clone();
    let presentation = |name: &str| {
        let member = members.as_array().and_then(|all| all.iter().find(|member| member["Id"] == name));
        member.expect("it is listed")["Oem"]["Aquifer"]["Spec"]["presentation"].clone()
    };
    assert_eq!(presentation("wide"), json!({ "range-per-span": { "weights": [3, 1] } }));
    assert_eq!(presentation("even"), json!({ "range-per-span": { "weights": [] } }));
    assert_eq!((presentation("sum"), presentation("db")), (json!("one-range"), json!("one-range")));
    let weights = ["create", "other", "--size", "2GiB", "--zone", "lab", "--weights", "3,1"];
    for (more, code, part) in [
        (&["--class", "tcp", "--redundancy", "mirror=2"][..], 1, "mirror=2 spreads it over all members; leave out"),
        (&["--class", "cxl"], 1, "weights are for donors, and those of pool main have 0B free"),
        (&["--class", "tcp", "--presentation", "one-range"], 2, "ask for range-per-span"),
    ] {
        let refused = rack.fails(code, &[&weights[..], more].concat());
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(volume(&rack, "other"), None);
}

#[test]
fn what_there_is_is_listed_as_tables_and_as_the_managers_answers() {
    let rack = Rack::ready("lists", "");
    for (words, titles, line) in [
        ("hosts", "HOST  STATE    VOLUMES  NOTE", "h000  Enabled  1"),
        ("donors", "DONOR  STATE    CAPACITY  LENT  PROMISED  FREE", "d0000  Enabled  64GiB"),
        (
            "devices",
            "DEVICE  STATE    KIND  CAPACITY  SWITCH  PORT  GIVEN",
            "m000    Enabled  SLD   64GiB     s0      2",
        ),
        ("ports", "SWITCH  PORT  KIND        LINK", "s0      0     upstream    LinkUp"),
        ("pools", "POOL  CAPACITY  DONORS", "main  256GiB    d0000,d0001,d0002,d0003"),
        ("zones", "ZONE  QUOTA   USED   HOSTS", "lab   200GiB  16GiB  h000,h001"),
        ("volumes", "VOLUME  STATE    SIZE  HOST  POOL  ZONE  CLASS  REDUNDANCY", "db      Enabled  8GiB  h000  main"),
        ("accounts", "ACCOUNT  ROLE           ENABLED", "admin    Administrator  true"),
    ] {
        let table = rack.done(&[words]);
        assert!(table.starts_with(titles) && table.contains(&format!("\n{line}")), "{words}:\n{table}");
        let answer = rack.json(&[words]);
        let count = answer["Members@odata.count"].as_u64().and_then(|count| usize::try_from(count).ok());
        assert_eq!(Some(table.lines().count() - 1), count, "{words}: {answer}");
        assert_eq!(answer["Members"].as_array().map(Vec::len), count, "{words}");
    }
    let id = rack.json(&["volumes"])["Members"][0]["Oem"]["Aquifer"]["VolumeId"].clone();
    assert_eq!(id.as_str().map(str::len), Some(16), "{id}");
    let status = rack.done(&["status"]);
    assert!(status.contains("donors   4 of 4 answer\n") && status.contains("lent     16GiB of 256GiB\n"), "{status}");
    assert_eq!(rack.json(&["status"])["IsSettled"], true);
}

#[test]
fn a_declaration_is_planned_compared_applied_and_exported() {
    let rack = Rack::ready("declare", "");
    let exported: Value = serde_json::from_str(&rack.done(&["export"])).expect("JSON");
    assert_eq!(exported["volumes"]["db"]["host"], "h000");
    let same = rack.file("same.json", &exported.to_string());
    assert_eq!(rack.done(&["diff", &same]), "");
    assert_eq!(rack.done(&["plan", &same]), "nothing changes\n");
    let mut other = declaration();
    other["volumes"]["log"] = json!({ "spec": { "size": "4GiB", "pool": "main", "zone": "lab", "class": "tcp" },
                                     "host": "h001" });
    let other = rack.file("other.json", &other.to_string());
    let differs = rack.run(&["diff", &other]);
    assert_eq!((differs.status.code(), stderr(&differs)), (Some(3), String::new()));
    assert!(stdout(&differs).contains("log") && stdout(&differs).lines().count() == 2, "{}", stdout(&differs));
    let plan = rack.done(&["plan", &other]);
    assert!(plan.starts_with(&stdout(&differs)) && plan.contains("step    "), "{plan}");
    let is_named = |line: &&str| line.starts_with("step    ") && line.contains(" for log/");
    assert!(plan.lines().any(|line| is_named(&line)), "people know volumes by name: {plan}");
    // With --json, steps have the volume's id, which each plan draws again.
    let steps = rack.json(&["plan", &other])["Steps"].to_string();
    assert!(steps.contains(" lends ") && !steps.contains("for log/"), "{steps}");
    let dry = rack.done(&["apply", &other, "--dry-run"]);
    assert!(dry.starts_with(&stdout(&differs)) && dry.lines().count() == plan.lines().count(), "{dry}");
    assert_eq!(volume(&rack, "log"), None, "plans, differences and dry runs change nothing");
    let text = std::fs::read_to_string(&other).expect("it was written");
    let applied = rack.fed(&["apply", "-"], &text);
    assert_eq!((stdout(&applied), stderr(&applied)), (stdout(&differs), String::new()));
    assert_eq!(rack.json(&["apply", &other])["Changes"], json!([]), "a second time it changes nothing");
    for (text, line) in [
        ("{", "is not JSON"),
        ("[]", "is not one JSON object"),
        ("\u{feff}{}", "is not JSON"),
        (r#"{"volumes": {"db": {}, "db": {}}}"#, "\"db\" is there twice"),
    ] {
        let file = rack.file("bad.json", text);
        for command in ["plan", "apply", "diff"] {
            assert!(rack.fails(2, &[command, &file]).contains(line), "{command} {text}");
        }
    }
    let file = rack.file("bad.json", r#"{"volums": {}}"#);
    assert!(rack.fails(1, &["apply", &file]).contains("volums"));
    let missing = rack.directory.join("missing.json").display().to_string();
    assert!(rack.fails(1, &["apply", &missing]).contains("No such file"));
}

#[test]
fn donors_are_drained_and_hosts_declared_gone() {
    let rack = Rack::ready("drain", "");
    let lent = |donor: &str| {
        let table = rack.done(&["donors"]);
        table.lines().find(|line| line.starts_with(donor)).expect("it is listed").to_owned()
    };
    let used = ["d0000", "d0001", "d0002", "d0003"].into_iter().find(|donor| lent(donor).contains("  8GiB"));
    let used = used.expect("the mirror has two donors");
    rack.done(&["drain", used, "--dry-run"]);
    assert!(!lent(used).contains("draining"));
    rack.done(&["drain", used]);
    assert!(rack.done(&["status", "--until-settled"]).contains("settled"));
    let cells = lent(used);
    let cells: Vec<&str> = cells.split_whitespace().skip(3).collect();
    assert_eq!(cells, ["0B", "0B", "0B", "draining"], "nothing is lent, promised or free");
    rack.done(&["drain", used, "--undo"]);
    assert!(!lent(used).contains("draining"));
    let dry = rack.json(&["declare-gone", "host", "h001", "--dry-run"]);
    assert_eq!(dry["Changes"].as_array().map(Vec::len), Some(1), "{dry}");
    assert!(rack.fails(1, &["declare-gone", "donor", "d9999"]).contains("d9999"));
    assert_eq!(rack.json(&["adopt", "--dry-run"])["Changes"], json!([]));
}

#[test]
fn events_are_followed_from_a_number_on() {
    let rack = Rack::ready("events", "");
    for name in ["a", "b"] {
        rack.done(&["create", name, "--size", "2MiB", "--zone", "lab", "--class", "tcp"]);
    }
    let all = rack.done(&["events", "--count", "3"]);
    assert_eq!(all.lines().count(), 3, "{all}");
    let first: u64 = all.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number");
    let after = rack.done(&["events", "--count", "1", "--after", &first.to_string(), "--json"]);
    let event: Value = serde_json::from_str(&after).expect("JSON");
    assert_eq!(event["Id"], (first + 1).to_string());
}
