// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Plans are read by people, applied as a whole, and empty when they have been applied.

use super::*;
use crate::example::{id, observed, racks};
use crate::volume::Redundancy;

const FILE: &str = r#"{
    "pools": {"main": {"donors": ["d0000", "d0001", "d0002", "d0003"]}},
    "zones": {"lab": {"quota": "100GiB", "hosts": ["h0", "h1"]}},
    "volumes": {
        "scratch": {"spec": {"size": "8GiB", "pool": "main", "zone": "lab", "class": "tcp"}, "host": "h0"},
        "cache": {"spec": {"size": "4GiB", "pool": "main", "zone": "lab", "class": "tcp",
                           "redundancy": {"mirror": {"copies": 2}}}}
    }
}"#;

/// A pool of four donors, in which a declaration is applied.
struct Site {
    topology: Topology,
    desired: Desired,
    observed: Observed,
    drawn: u64,
}

impl Site {
    fn new() -> Site {
        let topology = racks(4);
        let observed = observed(&topology);
        Site { topology, desired: Desired::default(), observed, drawn: 0 }
    }

    fn apply(&mut self, declaration: &Declaration) -> Result<Vec<String>, String> {
        let Site { topology, desired, observed, drawn } = self;
        let draw = || {
            *drawn += 1;
            VolumeId(*drawn)
        };
        let applied = apply(topology, desired, observed, declaration, draw);
        applied.map(|changes| changes.iter().map(Change::to_string).collect()).map_err(|refusal| refusal.to_string())
    }
}

fn declaration() -> Declaration {
    serde_json::from_str(FILE).expect("a declaration")
}

#[test]
fn a_declaration_is_applied_once() {
    let mut site = Site::new();
    let changes = site.apply(&declaration()).expect("applied");
    assert_eq!(
        changes,
        [
            "+ pool main: 4 donors, 0 devices",
            "+ zone lab: quota 100GiB, 2 hosts",
            "+ create volume cache: 4GiB, redundancy mirror=2, pool main, zone lab",
            "+ create volume scratch: 8GiB, redundancy none, pool main, zone lab",
            "+ bind volume scratch to host h0",
        ]
    );
    let before = site.desired.clone();
    assert_eq!(before.version, 1);
    assert_eq!(site.apply(&declaration()), Ok(Vec::new()), "the second time nothing changes");
    assert_eq!(site.desired, before);
    let exported = Declaration::of(&site.desired);
    assert_eq!(exported, declaration(), "what is exported is what was applied");
}

#[test]
fn changes_are_in_an_order_that_makes_room_first() {
    let mut site = Site::new();
    site.apply(&declaration()).expect("applied");
    let mut changed = declaration();
    let scratch = changed.volumes.get_mut(&id("scratch")).expect("declared");
    (scratch.spec.size, scratch.host) = (Bytes::gib(16), Some(id("h1")));
    let cache = changed.volumes.get_mut(&id("cache")).expect("declared");
    cache.spec.redundancy = Redundancy::None;
    cache.spec.expires_at = Some(Millis(5));
    changed.draining.insert(id("d0003"));
    let changes = site.apply(&changed).expect("applied");
    assert_eq!(
        changes,
        [
            "- unbind volume scratch from host h0",
            "- release volume cache",
            "+ create volume cache: 4GiB, redundancy none, pool main, zone lab, expires at 1970-01-01T00:00:00Z",
            "+ grow volume scratch from 8GiB to 16GiB",
            "+ bind volume scratch to host h1",
            "- drain donor d0003",
        ]
    );
    assert_eq!(diff(&Declaration::of(&site.desired), &changed), []);
}

#[test]
fn a_plan_is_refused_as_a_whole() {
    let mut site = Site::new();
    let mut too_much = declaration();
    too_much.volumes.get_mut(&id("scratch")).expect("declared").spec.size = Bytes::gib(99);
    let refusal = site.apply(&too_much).expect_err("over quota");
    assert!(refusal.contains("create volume scratch") && refusal.contains("quota of 100GiB"), "{refusal}");
    assert_eq!(site.desired, Desired::default(), "nothing is half done");
    let mut unknown = declaration();
    unknown.pools.get_mut(&id("main")).expect("declared").donors.insert(id("d9"));
    assert_eq!(
        site.apply(&unknown),
        Err("donor d9 is in a pool or zone of the declaration, and this manager does not know it; correct the name, or \
             start it with this manager's address first"
            .into())
    );
    let mut twice = declaration();
    twice.pools.insert(id("other"), twice.pools[&id("main")].clone());
    assert!(site.apply(&twice).expect_err("two pools").contains("is in pool main and in pool other"));
}

#[test]
fn a_zone_stays_until_its_last_volume_is_gone() {
    let mut site = Site::new();
    site.apply(&declaration()).expect("applied");
    let refusal = site.apply(&Declaration::default()).expect_err("scratch is bound");
    assert_eq!(refusal, "zone lab is in use; wait until its volumes are released, or keep it");
}

#[test]
fn unknown_properties_are_refused() {
    let typo = FILE.replace("\"quota\"", "\"qouta\"");
    let failure = serde_json::from_str::<Declaration>(&typo).expect_err("a typo").to_string();
    assert!(failure.contains("unknown field `qouta`"), "{failure}");
    let trick = FILE.replace("\"cache\"", "\"c\u{430}che\"");
    let failure = serde_json::from_str::<Declaration>(&trick).expect_err("a Cyrillic letter").to_string();
    assert!(failure.contains("use only a-z"), "{failure}");
}

#[test]
fn times_and_ranges_are_shown_as_people_read_them() {
    let with = |presentation: Presentation, expires_at: Option<u64>| {
        let mut volume = declaration().volumes[&id("cache")].clone();
        volume.spec.redundancy = Redundancy::None;
        (volume.spec.presentation, volume.spec.expires_at) = (presentation, expires_at.map(Millis));
        Declaration { volumes: [(id("v"), volume)].into(), ..Declaration::default() }
    };
    let changes = |from: &Declaration, to: &Declaration| {
        diff(from, to).iter().map(Change::to_string).collect::<Vec<String>>().join("; ")
    };
    let weights = |weights: &[u8]| Presentation::RangePerSpan { weights: weights.to_vec() };
    let (plain, eve) = (with(Presentation::OneRange, None), 1_798_761_599_000);
    let shown = with(weights(&[3, 1]), Some(eve));
    assert_eq!(
        changes(&Declaration::default(), &shown),
        "+ create volume v: 4GiB, redundancy none, pool main, zone lab, one range per span, weights 3:1, expires at \
         2026-12-31T23:59:59Z"
    );
    assert_eq!(
        changes(&plain, &shown),
        "~ volume v expires at 2026-12-31T23:59:59Z; ~ present volume v when it is bound next as one range per span, \
         weights 3:1"
    );
    assert_eq!(
        changes(&shown, &plain),
        "~ volume v does not expire; ~ present volume v when it is bound next as one range"
    );
    // Records of the audit log are cut at a length.
    let mut longest = with(weights(&[16; 16]), Some(eve));
    let volume = longest.volumes.pop_first().expect("there is one").1;
    longest.volumes.insert(id("v".repeat(crate::id::NAME_BYTES_MAX)), volume);
    let text = changes(&Declaration::default(), &longest);
    assert!(text.len() < 390 - 2 * crate::id::NAME_BYTES_MAX, "the names of pool and zone may be as long: {text}");
}

/// Returns a plan that changes only the labels of a volume, as text.
fn labelled(name: &str, before: &[(&str, &str)], after: &[(&str, &str)]) -> String {
    let with = |labels: &[(&str, &str)]| {
        let mut volume = declaration().volumes[&id("scratch")].clone();
        volume.spec.labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Declaration { volumes: [(id(name), volume)].into(), ..Declaration::default() }
    };
    let changes: Vec<String> = diff(&with(before), &with(after)).iter().map(Change::to_string).collect();
    changes.join("; ")
}

#[test]
fn a_change_of_labels_says_which_labels_change() {
    let (before, after) =
        ([("fm-vppb", "h1/3"), ("kept", "1"), ("owner", "ada")], [("fm-vppb", "h1/7"), ("kept", "1")]);
    assert_eq!(labelled("v", &before, &after), "~ label volume v: fm-vppb=h1/7, owner removed");
    assert_eq!(labelled("v", &[], &[("a", "x, release volume db")]), r#"~ label volume v: a="x, release volume db""#);
    assert_eq!(labelled("v", &[], &[("a", "b=c"), ("", "\"")]), r#"~ label volume v: ""="\"", a="b=c""#);
}

/// Records of the audit log are cut at a length; what is shown of a volume's labels is bounded by less.
#[test]
fn a_change_of_many_long_labels_is_short_and_counts_what_it_leaves_out() {
    let name = "v".repeat(crate::id::NAME_BYTES_MAX);
    let long: Vec<(String, String)> =
        (0..16).map(|number| (format!("{number:02}{}", "k".repeat(126)), "\u{202e}".repeat(42))).collect();
    let mut long: Vec<(&str, &str)> = long.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let text = labelled(&name, &long, &[]);
    assert!(text.len() < 300 && text.ends_with(" removed, and 15 more"), "{text}");
    long[15] = ("fm-vppb", "h1/7");
    let text = labelled(&name, &[], &long);
    assert!(text.len() < 300 && text.ends_with(": fm-vppb=h1/7, and 15 more"), "{text}");
}
