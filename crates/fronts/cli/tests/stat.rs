// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer stat` names programs by numbers that mean something here.
//!
//! The trouble it guards against: a program without a pager was listed as process 0, and one in a container by its
//! number in the container, which is another process of the host, or none.

mod support;

use std::process::{Child, Command, Stdio};

use aquifer_stats::{Counters, Gauge, Text};
use support::{aquifer, eventually, stdout};

/// A program in a PID namespace of its own, where it has the number 1, with the segment as its standard input.
struct Inside(Child);

impl Inside {
    /// Starts it. `None` if that is not permitted here.
    fn start(counters: &Counters) -> Option<Inside> {
        let segment = counters.descriptor().expect("it is ours").try_clone_to_owned().expect("a descriptor");
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "sleep", "600"]);
        let child = command.stdin(Stdio::from(segment)).stderr(Stdio::null()).spawn().ok()?;
        let mut inside = Inside(child);
        let mut is_refused = false;
        eventually("the program starts, or is refused", || {
            is_refused = inside.0.try_wait().expect("a child").is_some();
            is_refused || inside.pid().is_some()
        });
        (!is_refused).then_some(inside)
    }

    /// Its number outside of the namespace.
    fn pid(&self) -> Option<u32> {
        let outside = self.0.id();
        let children = std::fs::read_to_string(format!("/proc/{outside}/task/{outside}/children")).ok()?;
        children.trim().parse().ok()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the row of a program, and its line of JSON.
fn listed(program: &str) -> (String, serde_json::Value) {
    let table = stdout(&aquifer().arg("stat").output().expect("it runs"));
    let row =
        table.lines().find(|line| line.contains(program)).unwrap_or_else(|| panic!("{program} is not in {table}"));
    let lines = stdout(&aquifer().args(["stat", "--json"]).output().expect("it runs"));
    let line = lines.lines().find(|line| line.contains(program)).expect("it is listed");
    (row.trim_start().to_owned(), serde_json::from_str(line).expect("JSON"))
}

#[test]
fn a_program_without_a_pager_has_no_number() {
    let counters = Counters::create().expect("a segment");
    counters.write(Text::Program, "/bin/unpaged");
    let (row, json) = listed("unpaged");
    assert!(row.starts_with("-  ") && json["pid"].is_null(), "{row} {json}");
    let prometheus = stdout(&aquifer().args(["stat", "--prometheus"]).output().expect("it runs"));
    assert!(prometheus.contains("{pid=\"\",program=\"/bin/unpaged\"}"), "{prometheus}");
}

#[test]
fn a_program_in_a_container_has_its_number_of_the_host() {
    let counters = Counters::create().expect("a segment");
    counters.write(Text::Program, "/bin/inside");
    counters.set(Gauge::Pid, 1);
    let Some(inside) = Inside::start(&counters) else {
        aquifer_test_support::skip("no PID namespace can be made here (unshare(1), user_namespaces(7))");
        return;
    };
    let pid = inside.pid().expect("it runs");
    let (row, json) = listed("inside");
    assert!(row.starts_with(&format!("{pid}  ")) && json["pid"] == pid, "{pid}: {row} {json}");
    let page = stdout(&aquifer().args(["stat", &pid.to_string()]).output().expect("it runs"));
    assert!(page.starts_with(&format!("/bin/inside (pid {pid}): ")), "{page}");
}
