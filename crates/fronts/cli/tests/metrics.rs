// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer metrics` serves what Prometheus accepts: checked by promtool, and scraped by a real Prometheus, if they are
//! installed. Its child, which serves scrapers, is replaced when it ends, and does not survive the command.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use aquifer_stats::{Counter, Counters, FaultKind, Gauge, Text};
use aquifer_test_support::complaints_about_metrics;
use support::{aquifer, build, eventually, scratch};

/// Kills its process on drop, and waits for it.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns an exporter at a port that the kernel chooses, its address, and what else it says.
fn exporter() -> (Ended, String, BufReader<ChildStderr>) {
    build("aquifer-metrics");
    let mut child =
        aquifer().args(["metrics", "--listen", "127.0.0.1:0"]).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut said = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("aquifer: metrics of programs at http://").expect("it says where");
    let address = address.strip_suffix("/metrics").expect("and the path").to_owned();
    (Ended(child), address, said)
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Returns a segment as a program has it, so that this process is found as an instance.
fn instance() -> Counters {
    let counters = Counters::create().unwrap();
    counters.set(Gauge::Pid, u64::from(std::process::id()));
    counters.write(Text::Program, "a \"program\"");
    counters.add(Counter::Faults, 3);
    counters.record(FaultKind::Fetch, 30_000);
    counters
}

#[test]
fn every_program_of_the_host_is_served() {
    let _counters = instance();
    let (_exporter, address, _said) = exporter();
    let answer = get(&address, "/metrics");
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain; version=0.0.4"), "{head}");
    let ours = format!("aquifer_faults_total{{pid=\"{}\",program=\"a \\\"program\\\"\"", std::process::id());
    assert!(text.lines().any(|line| line.starts_with(&ours) && line.ends_with(" 3")), "{text}");
    assert!(get(&address, "/").starts_with("HTTP/1.1 404"));
    assert_eq!(complaints_about_metrics(text), "", "promtool check metrics");
}

/// Returns the process that the exporter has started.
fn child(exporter: &Ended) -> u32 {
    let pid = exporter.0.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.trim().parse().expect("it has one child")
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

#[test]
fn a_child_that_ends_is_replaced_at_the_same_port() {
    let (exporter, address, mut said) = exporter();
    let first = child(&exporter);
    kill(first);
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let ended = "aquifer: the program aquifer-metrics has ended (signal: 9 (SIGKILL)); it is started again in 1s\n";
    assert_eq!(line, ended);
    // The port is never closed, so this waits for the next child.
    assert!(get(&address, "/metrics").starts_with("HTTP/1.1 200"));
    assert_ne!(child(&exporter), first);
}

#[test]
fn the_child_ends_with_the_command_and_its_port_is_free() {
    let (exporter, address, _said) = exporter();
    let child = child(&exporter);
    kill(exporter.0.id());
    // Immediately, as systemd restarts a unit.
    let again = aquifer().args(["metrics", "--listen", &address]).stderr(Stdio::piped()).spawn();
    let mut again = Ended(again.expect("it starts"));
    let mut line = String::new();
    BufReader::new(again.0.stderr.take().expect("piped")).read_line(&mut line).unwrap();
    assert_eq!(line, format!("aquifer: metrics of programs at http://{address}/metrics\n"));
    eventually("the child's end", || {
        let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        status.is_empty() || status.contains("State:\tZ")
    });
}

#[test]
fn a_port_that_is_taken_is_named_with_the_remedy() {
    build("aquifer-metrics");
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    let output = aquifer().args(["metrics", "--listen", &taken]).output().unwrap();
    drop(holder);
    let line = format!(
        "aquifer: metrics cannot be served at {taken}: Address already in use (os error 98); give an address on this \
         machine and a free port\n"
    );
    assert_eq!((output.status.code(), support::stderr(&output)), (Some(1), line));
}

#[test]
fn a_prometheus_scrapes_it() {
    let _counters = instance();
    let (_exporter, address, _said) = exporter();
    let directory = scratch("prometheus");
    let configuration = format!(
        "global:\n  scrape_interval: 1s\nscrape_configs:\n- job_name: aquifer\n  static_configs:\n  - targets: ['{address}']\n"
    );
    std::fs::write(directory.join("prometheus.yml"), configuration).unwrap();
    // A port that was free a moment ago, because Prometheus does not report which port it bound.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Command::new("prometheus")
        .current_dir(&directory)
        .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(server) = server else {
        return aquifer_test_support::skip("there is no prometheus (Debian's package prometheus)");
    };
    let _server = Ended(server);
    let query = "/api/v1/query?query=aquifer_fault_latency_seconds_count%7Bkind%3D%22fetch%22%7D";
    let begin = Instant::now();
    let mut answer = String::new();
    while !answer.contains("\"__name__\":\"aquifer_fault_latency_seconds_count\"") {
        assert!(begin.elapsed() < Duration::from_secs(120), "Prometheus has nothing of ours: {answer}");
        std::thread::sleep(Duration::from_millis(200));
        answer =
            TcpStream::connect(("127.0.0.1", port)).map_or(String::new(), |_| get(&format!("127.0.0.1:{port}"), query));
    }
}
