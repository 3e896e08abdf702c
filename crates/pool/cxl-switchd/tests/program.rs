// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program as managers and testers meet it: over TCP, over Unix sockets, with bad input, and with more managers
//! than it takes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use aquifer_fmapi::*;

mod running;

use running::{Client, POLLS_MAX, Running, output, program};

#[test]
fn a_manager_binds_over_tcp_and_another_sees_it_over_a_unix_socket() {
    let running = Running::new("binds", &[]);
    let mut first = Client::new(running.tcp(), &Dialect::STANDARD);
    let mut second = Client::new(running.unix("s"), &Dialect::STANDARD);
    for example in ["small", "box"] {
        let printed = output(&["--example", example, "--print-example"]);
        let config: Result<aquifer_cxl_switch::SwitchConfig, _> = serde_json::from_slice(&printed.stdout);
        assert_eq!(config.unwrap().check(), Ok(()));
    }
    let Ok(Response::IdentifySwitch(identity)) = second.ask(&Request::IdentifySwitch(IdentifySwitch {})) else {
        panic!("refused")
    };
    assert_eq!((identity.physical_ports, identity.virtual_switches), (8, 2));
    assert_eq!(first.bind(0, 1, 2), Err(ReturnCode::BACKGROUND_STARTED));
    assert_eq!(first.wait(), ReturnCode::SUCCESS);
    let get = GetVirtualSwitches { first_vppb: 0, vppbs_max: 1, vcs_ids: vec![0] };
    let Ok(Response::GetVirtualSwitches(reported)) = second.ask(&Request::GetVirtualSwitches(get)) else {
        panic!("refused")
    };
    assert_eq!(reported.switches[0].vppbs, [Vppb { status: BindingStatus::Ld, port_id: 1, ld_id: 2 }]);
}

#[test]
fn long_messages_are_split_into_packets_and_hosts_answer_offers() {
    let running = Running::new("long", &[]);
    let mut client = Client::new(running.tcp(), &Dialect::STANDARD);
    let data = vec![7; 4096];
    let write =
        LdMemoryRequest { port_id: 1, is_write: true, bytes: 4096, first_byte_enables: 15, data, ..Default::default() };
    let write = LdMemoryRequest { last_byte_enables: 15, ..write };
    assert!(client.ask(&Request::LdMemoryRequest(write)).is_ok());
    let read = LdMemoryRequest { port_id: 1, bytes: 4096, ..Default::default() };
    let reported = client.ask(&Request::LdMemoryRequest(read));
    assert_eq!(reported, Ok(Response::LdMemoryRequest(LdMemoryData { bytes: 4096, data: vec![7; 4096] })));
    // An offer made before its host is bound stays pending until it is.
    let tunnelled = |client: &mut Client<TcpStream>, request: &Request| {
        let message = Message::request(1, request, &Dialect::STANDARD).encode(&Dialect::STANDARD);
        let tunnel = Tunnel { port_or_ld_id: 2, message, ..Default::default() };
        let Ok(Response::Tunnel(reported)) = client.ask(&Request::Tunnel(tunnel)) else { panic!("refused") };
        let answer = Message::decode(&reported.message, &Dialect::STANDARD).unwrap();
        assert_eq!(answer.header.return_code, ReturnCode::SUCCESS);
        Response::decode(request, &answer.payload, &Dialect::STANDARD).unwrap()
    };
    let add = Request::InitiateDcAdd(InitiateDcAdd { length: 64 << 20, ..Default::default() });
    tunnelled(&mut client, &add);
    let list = Request::GetDcExtentLists(GetDcExtentLists { host_id: 0, count: 9, first_extent: 0 });
    let count = |response| match response {
        Response::GetDcExtentLists(reported) => reported.extents.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(count(tunnelled(&mut client, &list)), 0);
    assert_eq!(client.bind(0, 2, BindVppb::NO_LD), Err(ReturnCode::BACKGROUND_STARTED));
    assert_eq!(client.wait(), ReturnCode::SUCCESS);
    assert_eq!(count(tunnelled(&mut client, &list)), 1);
    tunnelled(&mut client, &add);
    assert_eq!(count(tunnelled(&mut client, &list)), 2);
}

#[test]
fn failures_are_injected_by_the_control_socket() {
    let running = Running::new("control", &[]);
    let mut client = Client::new(running.tcp(), &Dialect::STANDARD);
    let busy = running.control(r#"{"answer": {"how": "busy", "opcode": 20993, "times": 2}}"#);
    assert_eq!(busy["ok"], true);
    for _ in 0..2 {
        assert_eq!(client.bind(0, 0, BindVppb::NO_LD), Err(ReturnCode::BUSY));
    }
    assert_eq!(running.control(r#""background_stalls""#)["ok"], true);
    assert_eq!(client.bind(0, 0, BindVppb::NO_LD), Err(ReturnCode::BACKGROUND_STARTED));
    assert!(client.ask(&Request::AbortBackground(AbortBackground {})).is_ok());
    assert_eq!(client.wait(), ReturnCode::ABORTED);
    // A delayed answer still arrives, and a dropped one does not.
    assert_eq!(running.control(r#"{"answer": {"how": {"delay_ms": 30}}}"#)["ok"], true);
    assert!(client.ask(&Request::Identify(Identify {})).is_ok());
    assert_eq!(running.control(r#"{"answer": {"how": "drop"}}"#)["ok"], true);
    client.send(&Request::Identify(Identify {}), MessageType::ComponentCommand);
    assert!(client.ask(&Request::IdentifySwitch(IdentifySwitch {})).is_ok());
    for event in [
        r#"{"media": {"address": 4096, "is_uncorrectable": true}}"#,
        r#"{"dram": {"address": 64, "kind": 1, "transaction": 5}}"#,
        r#"{"module": {"kind": 3, "celsius": -2}}"#,
    ] {
        let line = format!(r#"{{"device_event": {{"device": 1, "log": 2, "event": {event}}}}}"#);
        assert_eq!(running.control(&line)["ok"], true, "{line}");
    }
    for (line, cause) in [
        (r#"{"remove_device": {"device": 9}}"#, "no such device"),
        (r#"{"device_event": {"device": 1, "log": 9, "event": {"media": {"address": 0}}}}"#, "no such port"),
        (r#"{"device_event": {"device": 1, "log": 1, "event": {"mould": {}}}}"#, "no command"),
        (r#"{"link_flap": {"port_id": 99, "down_ms": 1}}"#, "no such port"),
        (r#"{"link_flap": {"port_id": 1, "down_ms": 18446744073709551615}}"#, "a number is out of range"),
        ("nonsense", "no command"),
        (r#"{"unheard_of": {}}"#, "no command"),
    ] {
        let refused = running.control(line);
        let said = refused["cause"].as_str().unwrap();
        assert!(refused["ok"] == false && said.starts_with(cause), "{line}: {refused}");
        assert!(!refused["remedy"].as_str().unwrap().is_empty());
    }
}

#[test]
fn a_manager_is_notified_of_what_others_do() {
    let running = Running::new("notified", &[]);
    let mut watching = Client::new(running.tcp(), &Dialect::STANDARD);
    let mut acting = Client::new(running.tcp(), &Dialect::STANDARD);
    let policy = Request::SetMctpEventPolicy(SetMctpEventPolicy { events: 1 << 15 });
    assert!(watching.ask(&policy).is_ok());
    assert_eq!(acting.bind(0, 0, BindVppb::NO_LD), Err(ReturnCode::BACKGROUND_STARTED));
    // Nobody polls: time passes by itself.
    let notified = watching.receive();
    assert!(notified.is_owner);
    let message = Message::decode(&notified.bytes, &Dialect::STANDARD).unwrap();
    let request = Request::decode(message.header.opcode, &message.payload, &Dialect::STANDARD);
    assert_eq!(request, Ok(Request::EventNotification(EventNotification { events: 1 << 15 })));
}

#[test]
fn a_manager_in_another_dialect_is_understood() {
    let running = Running::new("dialect", &["--dialect", "jackrabbit"]);
    const JACKRABBIT: Dialect = Dialect::JACKRABBIT;
    let mut client = Client::new(running.tcp(), &JACKRABBIT);
    assert!(client.ask(&Request::Identify(Identify {})).is_ok());
    assert_eq!(client.bind(0, 1, 1), Err(ReturnCode::BACKGROUND_STARTED));
    let message =
        Message::request(1, &Request::GetLdCapabilities(GetLdCapabilities {}), &JACKRABBIT).encode(&JACKRABBIT);
    let tunnel = Tunnel { port_or_ld_id: 1, message, ..Default::default() };
    assert!(client.ask(&Request::Tunnel(tunnel)).is_ok());
}

/// The packets are those of Jackrabbit's `jack` (f1a0cd8): `jack mctp --get-eid`, `--get-uuid`, `--get-type`,
/// `--get-ver 7`, `--set-eid 0x21`, each on a connection of its own. It waited for ever.
#[test]
fn what_jack_asks_of_mctp_itself_is_answered() {
    let running = Running::new("control", &["--dialect", "jackrabbit"]);
    let ask = |request: &[u8]| {
        let mut stream = running.tcp();
        let mut packet = [0; PACKET_BYTES];
        packet[..request.len()].copy_from_slice(request);
        stream.write_all(&packet).unwrap();
        stream.read_exact(&mut packet).unwrap();
        let length = packet.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        packet[..length].to_vec()
    };
    let head = [1, 0, 0, 0xc0, 0, 0];
    let expect = |data: &[u8]| [&head[..], data].concat();
    let asked = |data: &[u8]| [&[1, 0, 0, 0xc8, 0, 0x80][..], data].concat();
    assert_eq!(ask(&asked(&[2])), expect(&[2, 0, 8]));
    // Version 8, of the switch's vendor, and its serial number, 1234.
    let uuid = [0xff, 0xfe, 0, 0, 0, 0, 0x80, 0, 0x80, 0, 0, 0, 0, 0, 4, 0xd2];
    assert_eq!(ask(&asked(&[3])), expect(&[&[3, 0][..], &uuid].concat()));
    assert_eq!(ask(&asked(&[5])), expect(&[5, 0, 2, 7, 8]));
    assert_eq!(ask(&asked(&[4, 7])), expect(&[4, 0, 1, 0xf1, 0xf0, 0xff]));
    assert_eq!(ask(&asked(&[1, 0, 0x21])), expect(&[1, 0, 0, 0x21]));
    assert_eq!(ask(&asked(&[2])), expect(&[2, 0, 0x21]));
}

#[test]
fn strangers_and_those_who_are_too_many_are_turned_away() {
    let running = Running::new("strangers", &["--connections", "2"]);
    let mut first = Client::new(running.tcp(), &Dialect::STANDARD);
    assert!(first.ask(&Request::Identify(Identify {})).is_ok());
    // Who has sent one good message keeps its place, whatever follows.
    let mut stranger = Client::new(running.tcp(), &Dialect::STANDARD);
    assert!(stranger.ask(&Request::Identify(Identify {})).is_ok());
    let mut stranger = stranger.stream;
    stranger.write_all(&[0xff; 10 * PACKET_BYTES]).unwrap();
    // The stranger has the second place; a third manager finds none, and its connection is closed.
    let turned_away = |running: &Running| {
        let mut third = Client::new(running.tcp(), &Dialect::STANDARD);
        let message = Message::request(1, &Request::Identify(Identify {}), &Dialect::STANDARD);
        let bytes = message.encode(&Dialect::STANDARD);
        let kind = MessageType::ComponentCommand;
        let sent = Received { kind, to: 8, from: 9, tag: 1, is_owner: true, bytes };
        let _ = third.stream.write_all(&packets(&sent, &mut 0));
        third.stream.read(&mut [0; PACKET_BYTES]).map_or(true, |bytes| bytes == 0)
    };
    assert!(turned_away(&running));
    drop(stranger);
    // Its place is free once its thread has noticed that it is gone.
    let is_served = (0..POLLS_MAX).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        !turned_away(&running)
    });
    assert!(is_served);
    // An FM API command of the wrong type is not answered, and the next one is.
    first.send(&Request::IdentifySwitch(IdentifySwitch {}), MessageType::ComponentCommand);
    assert!(first.ask(&Request::IdentifySwitch(IdentifySwitch {})).is_ok());
}

#[test]
fn the_example_is_a_configuration_and_bad_ones_are_refused_in_one_line() {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = directory.join(format!("config-{}.json", std::process::id()));
    let name = path.to_str().unwrap();
    let example = String::from_utf8(output(&["--print-example"]).stdout).unwrap();
    let change = |from: &str, to: &str| {
        assert!(example.contains(from), "{from}");
        example.replacen(from, to, 1)
    };
    for (config, said) in [
        (change("\"link_width\": 16", "\"link_width\": 3"), "ports[0]: link_width is 3; give 1, 2, 4, 8 or 16 lanes"),
        (change("\"upstream_port\": 6", "\"upstream_port\": 0"), "port 0 is not an upstream port; name a port"),
        (change("\"vppbs\": 8", "\"vppbs\": 8, \"colour\": 1"), "unknown field `colour`"),
        (String::new(), "EOF while parsing a value at line 1 column 0; begin with the output of --print-example"),
        ("x".repeat(2 << 20), "it has more than 1048576 bytes; name a configuration"),
    ] {
        std::fs::write(&path, config).unwrap();
        let refused = output(&["--config", name, "--listen", "127.0.0.1:0"]);
        let error = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{error}");
        assert!(error.contains(said) && error.contains(name) && error.lines().count() == 1, "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    for (arguments, code, said) in [
        (&["--config", "/dev/zero"][..], 2, "it has more than 1048576 bytes; name a configuration"),
        (&["--config", "/nowhere/at/all"], 2, "No such file or directory (os error 2); name a file"),
        (&["--listen", "256.0.0.1:1"], 1, "give another --listen ADDRESS:PORT"),
        (&["--no-tcp"], 2, "--socket"),
        (&["--connections", "0"], 2, "1..=64"),
        (&["--dialect", "french"], 2, "possible values: jackrabbit, libcxlmi, opencis, standard"),
        (&["--no-tcp", "--socket", "/nowhere/s"], 2, "give --socket a path that is free"),
    ] {
        let refused = output(arguments);
        let error = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(code), "{error}");
        assert!(error.contains(said), "{error}");
    }
}

/// A unit starts a program again that ends with 1, every two seconds: one that could not open its socket for a reason
/// that stays was started again for ever.
#[test]
fn a_socket_that_cannot_be_opened_ends_it_for_good_unless_that_may_pass() {
    let running = Running::new("sockets", &[]);
    let directory = running.directory.display().to_string();
    let path = |name: &str| format!("{directory}/{name}");
    std::fs::write(path("file"), "").unwrap();
    std::fs::create_dir(path("directory")).unwrap();
    let long = path(&"x".repeat(120));
    for (option, place, code) in [
        ("--socket", path("none/s"), 2),
        ("--socket", path("file/s"), 2),
        ("--socket", path("file"), 2),
        ("--socket", path("directory"), 2),
        ("--socket", long.clone(), 2),
        // The kernel refuses it there, also to root.
        ("--socket", "/sys/s".to_owned(), 2),
        ("--control", path("none/c"), 2),
        ("--listen", "nonsense".to_owned(), 2),
        // The program that listens there may end.
        ("--socket", path("s"), 1),
        ("--control", path("c"), 1),
        ("--listen", running.address.clone(), 1),
        // An address that this machine may get later.
        ("--listen", "192.0.2.1:0".to_owned(), 1),
    ] {
        let more: &[&str] = if option == "--listen" { &[] } else { &["--listen", "127.0.0.1:0"] };
        let refused = output(&[&[option, &place], more].concat());
        let error = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(code), "{option} {place}: {error}");
        assert!(error.contains("cannot listen on") && error.contains(&place), "{error}");
    }
}

#[test]
fn the_help_has_examples_and_a_stale_socket_is_replaced() {
    let help = String::from_utf8(output(&["--help"]).stdout).unwrap();
    assert!(help.contains("Examples:") && help.contains("--print-example > switch.json"), "{help}");
    let mut running = Running::new("stale", &[]);
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    let mut again = program(&["--no-tcp", "--socket", "s"]);
    let child = again.current_dir(&running.directory).stdout(Stdio::piped()).spawn().unwrap();
    let mut child = Running { child, directory: running.directory.clone(), address: String::new() };
    let mut line = String::new();
    BufReader::new(child.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "listening on s\n");
    let mut client = Client::new(child.unix("s"), &Dialect::STANDARD);
    assert!(client.ask(&Request::Identify(Identify {})).is_ok());
}

/// Another program has the same sockets, and its messages named this one.
#[test]
fn messages_name_the_program_that_runs() {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("named-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let _ = std::fs::remove_file(directory.join("another-switchd"));
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_aquifer-cxl-switchd"), directory.join("another-switchd")).unwrap();
    let mut command = Command::new(directory.join("another-switchd"));
    command.args(["--no-tcp", "--socket", "s", "--connections", "1"]).current_dir(&directory);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let running = Running { child, directory, address: String::new() };
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let (_first, _second) = (running.unix("s"), running.unix("s"));
    let mut line = String::new();
    BufReader::new(stderr).read_line(&mut line).unwrap();
    assert!(line.starts_with("another-switchd: a connection was turned away: 1 are there; "), "{line}");
}
