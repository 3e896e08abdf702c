// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A real Prometheus scrapes the daemon; the alerts and the dashboard in `packaging/` name only metrics that exist, and
//! Prometheus takes each of their queries.

mod daemon;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aquifer_manager::METRICS;
use aquifer_test_support::skip;
use daemon::{APPLY, Answer, Daemon, WAIT_MAX, address, apply_body, declaration, directory, rack, request};
use serde_json::Value;

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging").join(name)
}

fn dashboard() -> Vec<String> {
    let text = std::fs::read_to_string(packaging("grafana/aquifer.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("queries"));
    targets.map(|target| target["expr"].as_str().expect("a query").to_owned()).collect()
}

/// Returns the metrics that a text names, without the endings of histograms.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|one: char| !one.is_ascii_alphanumeric() && one != '_');
    let ours = words.filter(|word| word.starts_with("aquifer_fabric_"));
    let base =
        |word: &str| ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end).map(str::to_owned));
    ours.map(|word| base(word).unwrap_or_else(|| word.to_owned())).collect()
}

#[test]
fn alerts_and_dashboard_name_only_metrics_that_exist() {
    let known: BTreeSet<String> = METRICS.iter().map(|metric| metric.0.to_owned()).collect();
    let alerts = std::fs::read_to_string(packaging("prometheus/alerts.yml")).expect("the alerts");
    for (what, text) in [("the alerts", alerts), ("the dashboard", dashboard().join("\n"))] {
        let named = named(&text);
        assert!(named.len() >= 6, "{what}: {named:?}");
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{what}: {unknown:?}");
    }
}

#[test]
fn the_alerts_are_rules_that_fire_when_they_should() {
    for (action, file) in [("check", "prometheus/alerts.yml"), ("test", "prometheus/alerts_test.yml")] {
        let Ok(output) = Command::new("promtool").args([action, "rules"]).arg(packaging(file)).output() else {
            return skip("there is no promtool; install prometheus");
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
    }
}

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

/// Sends a request of HTTP/1.0, whose answer comes in one piece.
fn get(path: &str) -> String {
    request("GET", path, "", "").replacen("HTTP/1.1", "HTTP/1.0", 1)
}

impl Prometheus {
    fn start(directory: &Path, target: &str) -> Option<Prometheus> {
        if Command::new("prometheus").arg("--version").output().is_err() {
            skip("there is no prometheus; install prometheus");
            return None;
        }
        // A free port of a loopback address that only this process uses.
        let listener = TcpListener::bind((address().as_str(), 0)).expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        drop(listener);
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{:?}]\n\
             scrape_configs: [{{job_name: aquifer-fabricd, static_configs: [{{targets: [{target:?}]}}]}}]\n",
            packaging("prometheus/alerts.yml").canonicalize().expect("a path")
        );
        std::fs::write(directory.join("prometheus.yml"), config).expect("written");
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", directory.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", directory.join("tsdb").display()));
        command.arg(format!("--web.listen-address={address}"));
        let log = std::fs::File::create(directory.join("prometheus.log")).expect("a log");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("it starts");
        Some(Prometheus { child, address })
    }

    fn query(&self, daemon: &Daemon, query: &str) -> Option<Value> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let text = get(&format!("/api/v1/query?query={encoded}"));
        Answer::parse(&daemon.raw_at(&self.address, text.as_bytes())?).map(|answer| answer.body)
    }
}

#[test]
fn a_real_prometheus_scrapes_the_daemon_and_takes_every_query() {
    let directory = directory("prometheus");
    let daemon = Daemon::start(&directory, &rack(None), "");
    let config = std::fs::read_to_string(directory.join("fabricd.toml")).expect("the configuration");
    drop(daemon);
    let config = config.replacen("listen = ", &format!("metrics = \"{}:0\"\nlisten = ", address()), 1);
    let daemon = Daemon::launch(&directory, &config, &[]);
    let Some(prometheus) = Prometheus::start(&directory, &daemon.metrics) else { return };
    let token = daemon.login("admin", &daemon.password());
    assert_eq!(daemon.ask("POST", APPLY, &token, &apply_body(&declaration())).expect("an answer").status, 200);
    assert!(daemon.settle(&token));

    let wait_for = |query: &str, wanted: &str| {
        let begun = Instant::now();
        let mut last = None;
        while begun.elapsed() < WAIT_MAX {
            last = prometheus.query(&daemon, query);
            let value = last.as_ref().map(|body| &body["data"]["result"][0]["value"][1]);
            if value.and_then(Value::as_str) == Some(wanted) {
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        panic!("{query} is not {wanted}: {last:?}");
    };
    wait_for("up{job=\"aquifer-fabricd\"}", "1");
    wait_for("aquifer_fabric_leader", "1");
    wait_for("aquifer_fabric_capacity_bytes", &((4_u64 * 64) << 30).to_string());
    wait_for("aquifer_fabric_volumes{state=\"bound\"}", "1");
    wait_for("aquifer_fabric_peers{kind=\"donor\",answers=\"yes\"}", "4");
    wait_for("sum(aquifer_fabric_requests_total{status=\"200\",method=\"POST\"})", "1");
    for (name, kind, _) in METRICS {
        let name = if *kind == "histogram" { format!("{name}_count") } else { (*name).to_owned() };
        let found = prometheus.query(&daemon, &name).expect("an answer");
        assert!(found["data"]["result"].as_array().is_some_and(|found| !found.is_empty()), "{name}: {found}");
    }
    for query in dashboard() {
        let found = prometheus.query(&daemon, &query).expect("an answer");
        assert_eq!(found["status"], "success", "{query}: {found}");
    }
    let rules = get("/api/v1/rules");
    let rules = daemon.raw_at(&prometheus.address, rules.as_bytes()).expect("an answer");
    assert!(rules.contains("AquiferNoLeader") && !rules.contains("\"health\":\"err\""), "{rules}");
    drop((prometheus, daemon));
    std::fs::remove_dir_all(directory).expect("removed");
}
