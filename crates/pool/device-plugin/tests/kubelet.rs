// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs the plug-in with a kubelet and an agent that the test simulates, over real sockets: what pods get, restarts of
//! either side, volumes that appear and disappear, and requests that no kubelet would send.

mod node;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use aquifer_device_plugin::api::{AllocateRequest, ContainerAllocateRequest, HEALTHY, UNHEALTHY};
use node::{DB, LOGS, Node, TIMEOUT, volume, wait_until};

fn request(ids: &[&str]) -> AllocateRequest {
    let devices_ids = ids.iter().map(|id| (*id).to_owned()).collect();
    AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids }] }
}

#[test]
fn volumes_become_resources_and_containers_get_what_the_tier_needs() {
    let node = Node::start(&[volume("db", DB, true), volume("logs", LOGS, false)]);
    let registrations = node.wait_for_registrations(2);
    assert_eq!(registrations["aquifer.dev/db"], format!("aquifer-{DB}.sock"));
    assert_eq!(registrations["aquifer.dev/logs"], format!("aquifer-{LOGS}.sock"));
    assert_eq!(node.devices(DB), [("0".to_owned(), HEALTHY.to_owned()), ("1".to_owned(), HEALTHY.to_owned())]);
    assert!(node.devices(LOGS).iter().all(|(_, health)| health == UNHEALTHY));
    let answer = node.allocate(DB, request(&["1"])).expect("the volume is bound");
    let container = &answer.container_responses[0];
    let socket = node.agent_socket();
    assert_eq!(container.envs["AQUIFER_VOLUME_DB"], format!("pool:db,agent={}", socket.display()));
    let directory = socket.parent().expect("a file").to_str().expect("a path of ours");
    assert_eq!(container.mounts[0].host_path, directory);
    assert!(container.mounts.iter().all(|mount| mount.read_only));
    let paths: Vec<&str> = container.mounts[1..].iter().map(|mount| mount.container_path.as_str()).collect();
    assert_eq!(paths, ["/etc/tenant/ca.pem", "/etc/tenant/host.key", "/etc/tenant/host.pem"]);
    let refused = node.allocate(LOGS, request(&["0"])).expect_err("it is not bound");
    assert!(refused.contains("aquifer fabric bind"), "{refused}");
}

#[test]
fn a_restarted_kubelet_is_registered_with_again() {
    let mut node = Node::start(&[volume("db", DB, true)]);
    node.wait_for_registrations(1);
    for _ in 0..2 {
        node.restart_kubelet();
        node.wait_for_registrations(1);
        wait_until("the plug-in serves again", || node.try_devices(DB).is_some());
        assert!(node.allocate(DB, request(&["0"])).is_ok());
    }
    // Somebody removes the plug-in's socket from kubelet's directory by hand.
    node.remove_plugin_sockets();
    wait_until("the socket is back", || node.try_devices(DB).is_some());
}

#[test]
fn a_kubelet_that_is_late_or_refuses_is_asked_again() {
    let mut node = Node::without_kubelet(&[volume("db", DB, true)]);
    wait_until("the plug-in serves", || node.try_devices(DB).is_some());
    node.start_kubelet(true);
    wait_until("kubelet has refused", || node.refusals() > 1);
    node.stop_kubelet();
    node.start_kubelet(false);
    node.wait_for_registrations(1);
}

#[test]
fn without_its_agent_devices_are_unhealthy_until_it_is_back() {
    let mut node = Node::start(&[volume("db", DB, true)]);
    node.wait_for_registrations(1);
    let mut watched = node.watch(DB);
    assert!(watched.next().iter().all(|(_, health)| health == HEALTHY));
    node.stop_agent();
    assert!(watched.next().iter().all(|(_, health)| health == UNHEALTHY));
    let refused = node.allocate(DB, request(&["0"])).expect_err("the agent is gone");
    assert!(refused.contains("aquifer-agent"), "{refused}");
    node.start_agent(&[volume("db", DB, true)]);
    assert!(watched.next().iter().all(|(_, health)| health == HEALTHY));
    assert!(node.allocate(DB, request(&["0"])).is_ok());
}

#[test]
fn volumes_appear_change_and_go_while_kubelet_watches() {
    let node = Node::start(&[volume("db", DB, false)]);
    node.wait_for_registrations(1);
    let mut watched = node.watch(DB);
    assert!(watched.next().iter().all(|(_, health)| health == UNHEALTHY));
    node.list(&[volume("db", DB, true), volume("logs", LOGS, true)]);
    assert!(watched.next().iter().all(|(_, health)| health == HEALTHY));
    node.wait_for_registrations(2);
    node.list(&[volume("logs", LOGS, true)]);
    wait_until("the resource is gone", || node.try_devices(DB).is_none());
    assert!(!node.plugin_socket(DB).exists());
    // Under another name, it is another resource.
    node.list(&[volume("archive", LOGS, true)]);
    wait_until("the renamed volume is registered", || node.registrations().contains_key("aquifer.dev/archive"));
}

#[test]
fn hostile_requests_are_refused_and_harm_nobody() {
    let node = Node::start(&[volume("db", DB, true)]);
    node.wait_for_registrations(1);
    let many = AllocateRequest { container_requests: vec![ContainerAllocateRequest::default(); 10_000] };
    let long = "x".repeat(1 << 20);
    for (what, hostile) in [
        ("a device of nobody", request(&["2"])),
        ("a path", request(&["../../etc"])),
        ("lines", request(&["0\n1"])),
        ("thousands of containers", many),
        ("a request that is too long", request(&[&long])),
    ] {
        let refused = node.allocate(DB, hostile).expect_err(what);
        assert!(!refused.contains('\n') && refused.len() < 400, "{what}: {refused}");
        assert!(node.allocate(DB, request(&["0"])).is_ok(), "after {what}");
    }
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff"] {
        let mut stream = UnixStream::connect(node.plugin_socket(DB)).expect("it is served");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        assert!(node.allocate(DB, request(&["0"])).is_ok(), "after {bytes:?}");
    }
}

#[test]
fn bad_arguments_get_one_line_and_the_status_two() {
    for words in [&["--domain", "kubernetes.io"][..], &["--pods-max", "0"], &["--agent", "x"], &["--kubelet", "x"]] {
        let ended = std::process::Command::new(env!("CARGO_BIN_EXE_aquifer-device-plugin")).args(words).output();
        let ended = ended.expect("it starts");
        assert_eq!(ended.status.code(), Some(2), "{words:?}");
        assert!(!ended.stderr.is_empty(), "{words:?}");
    }
}

/// The manifest must agree with the program's defaults.
#[test]
fn the_manifest_mounts_what_the_program_uses() {
    let manifest = include_str!("../../../../packaging/kubernetes/device-plugin.yaml");
    for path in [aquifer_agent_wire::SOCKET, "/var/lib/kubelet/device-plugins"] {
        assert!(manifest.contains(&format!("\"{path}\"")), "{path}");
    }
    assert!(manifest.contains("mountPath: /run/aquifer\n") && manifest.contains("path: /run/aquifer\n"));
    let version = concat!("image: aquifer-agent:", env!("CARGO_PKG_VERSION"), "\n");
    assert!(manifest.contains(version), "the image is not {version}");
    let pod = include_str!("../../../../packaging/kubernetes/example-pod.yaml");
    assert!(
        pod.contains(&format!("\"${}\"", aquifer_device_plugin::variable("db"))) && pod.contains("aquifer.dev/db: 1")
    );
}
