// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Changes of several volumes: they depend on nothing else in the pool, and say what they have done.

use super::*;

/// Orders a change of volumes, as the body of a request says it.
fn amend(writer: &mut Writer, volumes: serde_json::Value) -> Result<Done, NotDone> {
    let amendment = serde_json::from_value(serde_json::json!({ "Volumes": volumes })).expect("an amendment");
    order(writer, Act::Amend(Box::new(amendment)))
}

fn spec(size: &str) -> serde_json::Value {
    serde_json::json!({ "spec": { "size": size, "pool": "main", "zone": "lab", "class": "tcp" } })
}

fn changed(writer: &Writer) -> Vec<String> {
    let (kept, _) = writer.shared.events.follow(0);
    kept.into_iter().filter(|event| event.kind == "Changed").map(|event| event.message).collect()
}

#[test]
fn records_and_tasks_say_what_was_changed_of_which_volumes() {
    let (mut writer, _) = start(&store(), |_, _| ());
    amend(&mut writer, serde_json::json!({ "v1": spec("256MiB"), "v2": spec("512MiB") })).expect("created");
    let labels = serde_json::json!({ "fm-vppb": "h1/7" });
    let bind = serde_json::json!({ "v1": { "host": "h1", "spec": { "labels": labels } }, "v2": null });
    let version = writer.desired.version;
    let done = amend(&mut writer, bind).expect("bound and released");
    assert_eq!((done.version, done.volumes.len()), (version + 1, 2));
    let said = changed(&writer);
    let expected = "amy: release volume v2, label volume v1: fm-vppb=h1/7, bind volume v1 to host h1";
    assert!(said.iter().any(|line| line == expected), "{said:?}");
    assert!(said.iter().any(|line| line.contains("create volume v1: 256MiB,")), "{said:?}");
    let task = writer.tasks.list.back().expect("a task");
    assert_eq!(format!("amy: {}", task.what), expected);
    assert_eq!(task.volumes.as_ref().map(|volumes| volumes.len()), Some(2));
}

#[test]
fn a_device_that_the_topology_lacks_stops_no_change_of_volumes() {
    let (mut writer, _) = start(&store(), |_, _| ());
    let pool = Pool { devices: [id("m1"), id("m9")].into(), ..writer.desired.pools.get(&id("main")).unwrap().clone() };
    writer.desired.pools.insert(id("main"), pool);
    amend(&mut writer, serde_json::json!({ "v1": spec("256MiB") })).expect("created");
    amend(&mut writer, serde_json::json!({ "v1": { "host": "h1" } })).expect("bound");
}

#[test]
fn a_part_that_is_refused_leaves_everything_as_it_was() {
    let (mut writer, _) = start(&store(), |_, _| ());
    let before = writer.desired.clone();
    let refused = amend(&mut writer, serde_json::json!({ "v1": spec("256MiB"), "v2": spec("100GiB") }));
    assert!(matches!(refused, Err(NotDone::Refused(_))), "{refused:?}");
    assert_eq!(writer.desired, before);
    // What was reserved for v1 is free again.
    amend(&mut writer, serde_json::json!({ "v3": spec("4GiB") })).expect("created");
}

#[test]
fn what_comes_back_after_an_unbind_counts_once() {
    let (mut writer, _) = start(&store(), |_, _| ());
    amend(&mut writer, serde_json::json!({ "v1": spec("256MiB") })).expect("created");
    amend(&mut writer, serde_json::json!({ "v1": { "host": "h1" } })).expect("bound");
    amend(&mut writer, serde_json::json!({ "v1": { "host": null } })).expect("unbound");
    assert!(writer.desired.volumes.values().all(|volume| !volume.leaving.is_empty()), "its host has it still");
    let snapshot = Snapshot { desired: Arc::new(writer.desired.clone()), ..Snapshot::default() };
    let promised: Bytes = snapshot.promised().values().copied().sum();
    assert_eq!(promised, "256MiB".parse().expect("a size"));
}
