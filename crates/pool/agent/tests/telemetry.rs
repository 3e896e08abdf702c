// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! An agent with a collector sends it a span for each step that it carries out and each volume that a program opens.

mod world;

use aquifer_fabric::Redundancy;
use aquifer_test_support::SpanCollector;
use world::{World, lease};

#[test]
fn steps_and_opened_volumes_are_recorded_with_their_outcome() {
    let collector = SpanCollector::start();
    let mut world = World::start(1, 4);
    world.kill_agent();
    let file = world.directory.join("agent.toml");
    let settings = std::fs::read_to_string(&file).expect("the configuration");
    let telemetry = format!("{settings}[telemetry]\ncollector = '{}'\n", collector.url());
    std::fs::write(&file, telemetry).expect("a file");
    world.start_agent();
    world.present(Redundancy::None, vec![lease(0, 0, 0)]);
    drop(world.open("2MiB"));
    let spec = format!("pool:other,agent={},size=2MiB", world.socket().display());
    let refused = world.try_open(&spec).err().expect("it is bound to nobody");
    assert!(refused.contains("not bound"), "{refused}");
    collector.wait_for(&[
        "aquifer-agent",
        "web-1",
        "carry out step",
        "aquifer.step.id",
        "open volume",
        "aquifer.volume.id",
        "00000000000000a1",
        "other",
        "not bound",
    ]);
}
