// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program as a user meets it, with the software switch at the other end: what it prints, its files, its exit
//! codes.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::Value;

/// How long the switch may take to listen.
const START: Duration = Duration::from_secs(30);

/// A switch that listens in its own directory until the test's process ends.
struct Switch {
    directory: PathBuf,
}

impl Switch {
    fn new(name: &str) -> Self {
        Self::with(name, &[])
    }

    fn with(name: &str, more: &[&str]) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let (socket, control) = (directory.join("s"), directory.join("c"));
        let words =
            ["switch", "--no-tcp", "--socket", socket.to_str().unwrap(), "--control", control.to_str().unwrap()];
        let args = aquifer_cxl_switchd::Args::parse_from([&words[..], more].concat());
        std::thread::spawn(move || aquifer_cxl_switchd::run(&args));
        let begun = Instant::now();
        while UnixStream::connect(&control).is_err() {
            assert!(begun.elapsed() < START, "the switch does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { directory }
    }

    fn peer(&self) -> String {
        format!("unix:{}", self.directory.join("s").display())
    }

    fn inject(&self, line: &str) {
        let mut stream = UnixStream::connect(self.directory.join("c")).unwrap();
        writeln!(stream, "{line}").unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        assert!(answer.contains("true"), "{answer}");
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn program(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_aquifer-fmapi")).args(words).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Returns what a command that succeeds prints.
fn prints(words: &[&str]) -> String {
    let output = program(words);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{words:?}");
    stdout(&output)
}

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&prints(&[words, &["--json"]].concat())).unwrap()
}

/// The records were cleared, the answer to that was lost, and so nobody ever saw them.
#[test]
fn records_that_were_cleared_are_printed_even_if_the_command_then_fails() {
    let switch = Switch::new("cleared");
    switch.inject(r#"{"event_overflow": {"log": 1}}"#);
    switch.inject(r#"{"answer": {"how": "drop", "opcode": 257}}"#);
    let output = program(&["events", &switch.peer(), "--clear", "--wait", "200"]);
    assert_eq!(output.status.code(), Some(1));
    let printed = stdout(&output);
    assert_eq!(printed.lines().filter(|line| line.starts_with("warning ")).count(), 63, "{printed}");
    assert!(stderr(&output).contains("no answer within"), "{}", stderr(&output));
}

#[test]
fn a_switch_is_shown_and_changed() {
    let switch = Switch::new("shown");
    let peer = switch.peer();
    assert!(prints(&["identify", &peer]).contains("8 ports, of which active"));
    assert_eq!(json(&["identify", &peer])["switch"]["virtual_switches"], 2);
    assert_eq!(json(&["identify", &peer, "--port", "1", "--ld", "2"])["component"], "type3");
    assert!(prints(&["ports", &peer]).lines().nth(2).unwrap().contains("type3-mld"));
    assert_eq!(json(&["ports", &peer])["ports"][1]["supported_lds"], 16);
    let bind = ["bind", &peer, "--vcs", "0", "--vppb", "2", "--port", "1", "--ld", "3"];
    assert_eq!(prints(&bind), "vPPB 2 of virtual switch 0 is bound to port 1, logical device 3\n");
    assert!(prints(&["vcs", &peer]).contains("  vPPB 2: ld, port 1, logical device 3\n"));
    assert_eq!(json(&["vcs", &peer])["virtual_switches"][0]["vppbs"][2]["ld_id"], 3);
    let output = program(&bind);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("refused with Invalid Input (0002h); compare the numbers"), "{}", stderr(&output));
    let unbind = ["unbind", &peer, "--vcs", "0", "--vppb", "2", "--removal", "surprise"];
    assert_eq!(json(&unbind)["unbound"]["vppb_id"], 2);
    assert!(prints(&["lds", &peer, "--port", "1"]).contains("logical device 3: 268435456 bytes"));
    assert_eq!(json(&["capacity", &peer, "--port", "2"])["regions"].as_array().unwrap().len(), 2);
    let events = prints(&["events", &peer, "--clear"]);
    assert!(events.contains(": bound to "), "{events}");
    assert_eq!(prints(&["events", &peer]), "no records\n");
}

#[test]
fn a_check_writes_its_report_and_its_trace() {
    let switch = Switch::new("check");
    let (peer, page, trace) = (switch.peer(), switch.directory.join("r.html"), switch.directory.join("t.pcap"));
    let files = ["--html", page.to_str().unwrap(), "--trace", trace.to_str().unwrap()];
    let text = prints(&[&["check", &peer, "--change"][..], &files].concat());
    assert!(text.contains("0 depart, 0 depart as known of standard, 0 skipped"), "{text}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("7.6.7.2.2"), "{page}");
    let decoded = prints(&["decode", trace.to_str().unwrap()]);
    assert!(decoded.contains("Identify Switch Device (5100h), 73 bytes: Success (0000h)"), "{decoded}");
    assert!(decoded.contains("BindVppb { vcs_id: 0"), "{decoded}");
    let report = json(&["check", &peer]);
    assert_eq!((&report["departs"], &report["skipped"]), (&Value::from(0), &Value::from(3)));
    // Internal Error in answer to one command is a departure, and the exit code says so.
    switch.inject(r#"{"answer": {"how": {"return_code": 4}, "opcode": 2, "times": 1}}"#);
    let output = program(&["check", &peer]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let line = "Background Operation Status (0002h) is answered by Internal Error (0004h)";
    assert!(stdout(&output).contains(line), "{}", stdout(&output));
}

#[test]
fn a_bench_prints_what_commands_take_and_leaves_the_switch_as_it_was() {
    let switch = Switch::with("bench", &["--example", "box"]);
    let peer = switch.peer();
    let text = prints(&["bench", &peer, "--count", "20"]);
    for part in ["bar: a median of at most 20 us", "Bind vPPB", "dialect standard", "commands/s"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("devices were bound"), "{text}");
    assert_eq!(prints(&["events", &peer]), "no records\n", "nothing was changed");
    let figures = json(&["bench", &peer, "--count", "20", "--bind"]);
    let own = &figures["own_cost"];
    assert_eq!((&own["bar_us"], own["commands"].as_array().unwrap().len()), (&Value::from(20.0), 3));
    for command in figures["commands"].as_array().unwrap() {
        assert_eq!(command["count"], 20, "{command}");
        let times = ["median_us", "p99_us", "max_us"].map(|time| command[time].as_f64().unwrap());
        assert!(times.is_sorted() && times[0] > 0.0 && command["commands_per_second"].as_f64().unwrap() > 0.0);
    }
    let bound = &figures["bound"];
    assert_eq!((&bound["devices"], &bound["hosts"]), (&Value::from(22), &Value::from(3)));
    // Whether the bar is kept depends on the machine; that there is a verdict does not.
    assert!(bound["keeps_bar"].is_boolean() && bound["left_bound"].as_array().unwrap().is_empty(), "{bound}");
    let switches = json(&["vcs", &peer]);
    let mut vppbs = switches["virtual_switches"].as_array().unwrap().iter().map(|vcs| vcs["vppbs"].as_array().unwrap());
    assert!(vppbs.all(|vppbs| vppbs.len() == 22 && vppbs.iter().all(|vppb| vppb["status"] == "unbound")));
}

/// A device with two heads lists all its logical devices at both, and each can be bound at one of them only.
#[test]
fn a_bench_that_cannot_bind_a_device_unbinds_the_others() {
    let example = aquifer_cxl_switch::SwitchConfig::example();
    let mut two_heads = example.devices[1].clone();
    (two_heads.ports, two_heads.lds_mib, two_heads.ld_heads) = (vec![0, 1], vec![256, 256], vec![0, 1]);
    let config = aquifer_cxl_switch::SwitchConfig { devices: vec![two_heads], ..example };
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("two-heads-{}.json", std::process::id()));
    std::fs::write(&file, serde_json::to_string(&config).unwrap()).unwrap();
    let switch = Switch::with("bench-fails", &["--config", file.to_str().unwrap()]);
    std::fs::remove_file(&file).unwrap();
    let peer = switch.peer();
    let output = program(&["bench", &peer, "--bind"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""));
    let line = stderr(&output);
    assert!(line.contains("Bind vPPB (5201h)") && line.contains("Invalid Input") && !line.contains("stay"), "{line}");
    let events = prints(&["events", &peer]);
    let count = |what: &str| events.lines().filter(|line| line.contains(what)).count();
    assert_eq!((count(": bound to "), count(": unbound")), (1, 1), "{events}");
    assert!(!prints(&["vcs", &peer]).contains("port 0, logical"));
}

#[test]
fn a_log_that_overflowed_says_how_many_records_are_lost_and_where_to_look() {
    let switch = Switch::new("overflow");
    let peer = switch.peer();
    assert_eq!(json(&["events", &peer])["lost"], serde_json::json!({}));
    switch.inject(r#"{"event_overflow": {"log": 1}}"#);
    let text = prints(&["events", &peer]);
    assert!(text.contains("warning: 1 records or more were lost, because the log was full; look at"), "{text}");
    assert_eq!(json(&["events", &peer])["lost"]["warning"], 1);
}

#[test]
fn verbose_prints_what_goes_over_the_wire() {
    let switch = Switch::new("verbose");
    let output = program(&["ports", &switch.peer(), "-v"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stderr(&output).contains("    GetPortStates { port_ids: [0, 1, 2, 3, 4, 5, 6, 7] }"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn bad_input_names_its_cause_and_its_remedy() {
    let switch = Switch::new("bad");
    let (peer, trace) = (switch.peer(), switch.directory.join("no.pcap"));
    std::fs::write(&trace, "no trace at all, and longer than a header").unwrap();
    let missing = switch.directory.join("missing/t.pcap");
    for (words, code, line) in [
        (&["ports", "switch"][..], 2, "'switch' is not a peer; write tcp:HOST[:PORT]"),
        (&["ports", "mctp:3"], 2, "'3' is not an MCTP endpoint"),
        (&["ports", &peer, "--dialect", "latin"], 2, "'latin' is not a dialect; name one of standard, QEMU"),
        (&["ports", "unix:/nowhere/s"], 1, "cannot open unix:/nowhere/s: No such file"),
        (&["ports", "mailbox:/dev/null"], 1, "cannot open mailbox:/dev/null: Invalid argument"),
        (&["identify", &peer, "--port", "99"], 1, "Identify (0001h) at unix:"),
        (&["lds", &peer], 1, "refused with Unsupported (0003h); name the port of a device with --port"),
        (&["capacity", &peer], 1, "refused with Unsupported (0003h); name the port of a device with --port"),
        (&["lds", &peer, "--port", "0"], 1, "refused with Unsupported (0003h); leave the command out"),
        (&["check", &peer, "--html", "/nowhere/r.html"], 1, "/nowhere/r.html: No such file"),
        (&["decode", "/nowhere/t.pcap"], 1, "name a file of --trace"),
        (&["decode", trace.to_str().unwrap()], 1, "this is not a trace of the FM API: magic"),
        (&["ports", &peer, "--trace", missing.to_str().unwrap()], 1, "name a file that can be written"),
        (&["ports", &peer, "--wait", "0"], 2, "0 is not in 1..=600000"),
        (&["bind", &peer], 2, "--vcs <N>"),
    ] {
        let output = program(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(line) && stdout(&output).is_empty(), "{words:?}: {}", stderr(&output));
    }
}

#[test]
fn a_check_that_does_not_end_in_time_is_printed_as_far_as_it_came_and_fails() {
    let switch = Switch::new("late");
    switch.inject(r#"{"answer": {"how": {"delay_ms": 1200}, "opcode": 2, "times": 1}}"#);
    let output = program(&["check", &switch.peer(), "--limit", "1", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stderr(&output).contains("did not end within 1 s; give it more with --limit"), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&report["is_complete"], &report["departs"]), (&Value::Bool(false), &Value::from(0)));
    assert!(report["skipped"].as_u64().is_some_and(|skipped| skipped > 30), "{report}");
}

/// The trace is on a full disk: the answer is lost neither to the user nor silently to the file.
#[test]
fn a_trace_that_is_not_whole_is_a_failure() {
    let switch = Switch::new("full");
    let output = program(&["ports", &switch.peer(), "--trace", "/dev/full"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("/dev/full: No space left on device"), "{}", stderr(&output));
}
