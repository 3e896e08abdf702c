// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A real Prometheus scrapes a whole pool: the manager, the donors, the agent of a host, and through the agent a
//! program of `aquifer run` there. It takes every alert, and every query of the dashboard.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use aquifer_e2e::build::workspace;
use aquifer_e2e::pool::{Pool, own_address};
use aquifer_e2e::run::eventually;
use aquifer_e2e::verifying::{ALARM, Game, verified};
use serde_json::Value;

/// Prometheus, ended with the test.
struct Prometheus {
    child: Child,
    address: String,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn start(directory: &Path, ip: &str, targets: &[(&str, String)]) -> Option<Prometheus> {
        if Command::new("prometheus").arg("--version").output().is_err() {
            aquifer_test_support::skip("there is no prometheus; install prometheus");
            return None;
        }
        // A free port of a loopback address that only this test uses.
        let listener = TcpListener::bind((ip, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        drop(listener);
        let rules = workspace().join("packaging/prometheus/alerts.yml").canonicalize().expect("the alerts");
        let mut config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{rules:?}]\nscrape_configs:\n"
        );
        for job in ["aquifer-fabricd", "aquifer-agent", "aquifer-donor"] {
            let of_job: Vec<&String> = targets.iter().filter(|(of, _)| *of == job).map(|(_, target)| target).collect();
            config += &format!("- {{job_name: {job}, static_configs: [{{targets: {of_job:?}}}]}}\n");
        }
        std::fs::write(directory.join("prometheus.yml"), config).expect("written");
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", directory.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", directory.join("tsdb").display()));
        command.arg(format!("--web.listen-address={address}"));
        let log = File::create(directory.join("prometheus.log")).expect("a log");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("it starts");
        Some(Prometheus { child, address })
    }

    /// Returns the answer to a request; `None` while Prometheus starts.
    fn get(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        // An answer of HTTP/1.0 comes in one piece.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    fn query(&self, query: &str) -> Option<Value> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        self.get(&format!("/api/v1/query?query={encoded}"))
    }

    /// Returns the first value of a query.
    fn number(&self, query: &str) -> Option<f64> {
        self.query(query)?["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    }

    fn wait_for(&self, query: &str, holds: impl Fn(f64) -> bool) {
        let mut last = None;
        eventually(query, || {
            let number = self.number(query);
            if number != last {
                println!("{query}: {number:?}");
                last = number;
            }
            number.is_some_and(&holds)
        });
    }
}

/// The queries of the dashboard, with the titles of their panels.
fn dashboard() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(workspace().join("packaging/grafana/aquifer.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let word = |value: &Value| value.as_str().expect("a text").to_owned();
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let queries = panels.flat_map(|panel| {
        let targets = panel["targets"].as_array().expect("queries").iter();
        targets.map(move |target| (word(&panel["title"]), word(&target["expr"])))
    });
    queries.collect()
}

#[test]
fn a_real_prometheus_scrapes_manager_donors_agent_and_programs() {
    let name = "metrics";
    let Some(mut pool) = Pool::start_scraped(name, 2, &["--size", "128MiB"], "1GiB") else { return };
    pool.create("db", "64MiB", "mirror=2");
    let targets = pool.metrics_addresses();
    let Some(prometheus) = Prometheus::start(pool.directory(), &own_address(name), &targets) else { return };
    let Some(game) = Game::start(name, &[pool.tier("db", "")], ALARM, |command| command) else { return };

    for (job, count) in [("aquifer-fabricd", 1.0), ("aquifer-agent", 1.0), ("aquifer-donor", 2.0)] {
        prometheus.wait_for(&format!("sum(up{{job=\"{job}\"}})"), |up| up == count);
    }
    prometheus.wait_for("aquifer_agent_manager_connected", |connected| connected == 1.0);
    prometheus.wait_for("aquifer_agent_volumes{state=\"bound\"}", |volumes| volumes == 1.0);
    prometheus.wait_for("aquifer_agent_members{state=\"in_sync\"}", |members| members == 2.0);
    prometheus.wait_for("aquifer_agent_programs", |programs| programs == 1.0);
    prometheus.wait_for("sum(aquifer_donor_lent_bytes)", |lent| lent > 0.0);
    // The program is named by its process, and its counters grow from scrape to scrape.
    let pid = game.program();
    let of_program = |metric: &str| format!("{metric}{{job=\"aquifer-agent\",pid=\"{pid}\"}}");
    prometheus.wait_for("aquifer_agent_programs_shown", |shown| shown == 1.0);
    prometheus.wait_for(&of_program("aquifer_faults_total"), |faults| faults > 0.0);
    prometheus.wait_for(&format!("rate({}[10s])", of_program("aquifer_fetched_bytes_total")), |rate| rate > 0.0);
    prometheus.wait_for(&of_program("aquifer_fault_latency_seconds_count"), |_| true);

    for (panel, query) in dashboard() {
        let found = prometheus.query(&query).expect("an answer");
        assert_eq!(found["status"], "success", "{query}: {found}");
        let is_shown = found["data"]["result"].as_array().is_some_and(|result| !result.is_empty());
        let is_ours = panel.starts_with("Hosts") || panel.starts_with("Programs");
        assert!(is_shown || !is_ours, "the panel '{panel}' shows nothing: {query}: {found}");
    }
    let rules = prometheus.get("/api/v1/rules").expect("an answer").to_string();
    assert!(rules.contains("AquiferAgentApart") && !rules.contains("\"health\":\"err\""), "{rules}");

    assert_eq!(verified(&game.end()).wrong, 0);
    prometheus.wait_for("aquifer_agent_programs_shown", |shown| shown == 0.0);
}
