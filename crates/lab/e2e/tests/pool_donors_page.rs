// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Types what docs/operating/pool-donors.md shows, from top to bottom, at a real manager with real donors and an agent,
//! and compares what the commands print. Programs verify their memory in the protected volumes all the time.
//!
//! What systemd does, the test does. What happens between two sections without a command of the page (a donor of a
//! machine that is added, changes after a backup) is in `before`.

use std::process::{Command, Stdio};

use aquifer_e2e::build::binaries;
use aquifer_e2e::pool::Pool;
use aquifer_e2e::run::eventually;
use aquifer_e2e::verifying::{ALARM, Game, Verified, verified};

const PAGE: &str = include_str!("../../../../docs/operating/pool-donors.md");

/// A block of the page: the heading above it, what follows its fence, and its text.
struct Block {
    section: String,
    words: String,
    text: String,
}

fn blocks() -> Vec<Block> {
    let (mut blocks, mut section) = (Vec::new(), String::new());
    let mut lines = PAGE.lines();
    while let Some(line) = lines.next() {
        if let Some(heading) = line.strip_prefix("## ") {
            heading.clone_into(&mut section);
        }
        let Some(words) = line.strip_prefix("```") else { continue };
        let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        blocks.push(Block { section: section.clone(), words: words.to_owned(), text: text.join("\n") + "\n" });
    }
    blocks
}

/// Returns whether a line is what the page shows. `...` stands for any text, and the widths of columns do not count.
fn is_line(shown: &str, printed: &str) -> bool {
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let (shown, printed) = (squeezed(shown), squeezed(printed));
    let mut parts = shown.split("...");
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first.trim_end()) else { return false };
    let others: Vec<&str> = parts.map(str::trim).collect();
    let Some((last, between)) = others.split_last() else { return rest.is_empty() };
    for part in between {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Returns the first line of the page that is not printed. A line `...` stands for any number of lines.
fn missing<'a>(shown: &'a str, printed: &str) -> Option<&'a str> {
    let mut lines = printed.lines();
    let mut may_skip = false;
    for line in shown.lines() {
        if line == "..." {
            may_skip = true;
            continue;
        }
        let is_found = match std::mem::take(&mut may_skip) {
            true => lines.any(|one| is_line(line, one)),
            false => lines.next().is_some_and(|one| is_line(line, one)),
        };
        if !is_found {
            return Some(line);
        }
    }
    (!may_skip && lines.next().is_some()).then_some("(the page ends here)")
}

struct Site {
    pool: Pool,
    games: Vec<Game>,
    /// Whether the manager was started again since the last wait for its ends.
    has_restarted: bool,
}

impl Site {
    /// Types commands, and returns what they print.
    fn type_lines(&self, text: &str) -> String {
        let directory = self.pool.directory();
        let here = |name: &str| directory.join(name).display().to_string();
        let text = text.replace("/var/lib/aquifer-fabricd", &here("state"));
        let text = text.replace("/root/fabricd-backup", &here("backup"));
        let path = format!("{}:{}", binaries().display(), std::env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", &text]).current_dir(directory).stdin(Stdio::null());
        shell.env("PATH", path).env("AQUIFER_FABRIC_URL", self.pool.url()).env("XDG_RUNTIME_DIR", directory);
        for variable in ["AQUIFER_CONFIG", "COLUMNS"] {
            shell.env_remove(variable);
        }
        let output = shell.output().expect("sh can be started");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}{printed}{complaints}");
        println!("{text}{printed}");
        printed
    }

    /// Types a line on a machine: what it says to systemd is done here.
    fn type_on(&mut self, machine: &str, line: &str) {
        let donor = machine.strip_prefix('d').and_then(|number| number.parse::<usize>().ok());
        match (donor, line) {
            (Some(number), "systemctl stop aquifer-donor") => {
                self.pool.donors[number - 1].signal("-TERM");
                self.pool.donors[number - 1].child.wait().expect("a child");
            }
            (Some(number), "systemctl kill --signal=SIGKILL aquifer-donor") => {
                self.pool.donors[number - 1].signal("-KILL");
                self.pool.donors[number - 1].child.wait().expect("a child");
                let missed = || self.pool.fabric(&["status"]).stdout.contains("donors   4 of 5 answer");
                eventually("it is missed", missed);
            }
            (Some(number), "systemctl start aquifer-donor") if number > self.pool.donors.len() => {
                self.pool.join_donor();
            }
            (Some(number), "systemctl start aquifer-donor") => self.pool.restart_donor(number),
            (None, "systemctl restart aquifer-agent") => {
                self.pool.kill_agent();
                self.pool.restart_agent();
            }
            (None, "systemctl stop aquifer-fabricd") => self.pool.stop_manager(),
            (None, "systemctl start aquifer-fabricd") => {
                self.pool.start_manager();
                self.has_restarted = true;
            }
            (_, line) if line.starts_with("systemctl ") => panic!("{machine}: {line}"),
            (_, line) => drop(self.type_lines(&format!("{line}\n"))),
        }
    }

    /// Waits until a manager that has just started has heard those that are alive: people are slower. After a lost
    /// state, nobody is logged in yet.
    fn wait_after_a_restart(&mut self) {
        if self.has_restarted && self.pool.try_fabric(&["status"]).status == Some(0) {
            let answer = |status: &str| status.contains("donors   4 of ") && status.contains("1 of 1 answer");
            eventually("donors and host answer", || answer(&self.pool.fabric(&["status"]).stdout));
            self.has_restarted = false;
        }
    }

    /// Does what the page says has happened before a section.
    fn before(&mut self, section: &str) {
        match section {
            "Service a donor" => {
                self.pool.permit_all();
                for name in ["db", "log"] {
                    let tier = [self.pool.tier(name, ",size=160MiB")];
                    self.games.extend(Game::start(&format!("page-{name}"), &tier, ALARM, |command| command));
                }
            }
            "Restore a backup" => {
                self.wait_after_a_restart();
                let late = ["create", "late", "--size", "1GiB", "--zone", "lab", "--class", "tcp"];
                for words in [&late[..], &["bind", "late", "h1"], &["grow", "db", "12GiB"]] {
                    self.pool.fabric(words);
                }
                self.pool.settle();
            }
            _ => {}
        }
    }
}

#[test]
fn the_page_can_be_typed_from_top_to_bottom() {
    if Command::new("jq").arg("--version").output().is_err() {
        return aquifer_test_support::skip("there is no jq; install it");
    }
    let Some(pool) = Pool::start("pool-page", 4, &["--size", "64GiB", "--grace", "60s"], "200GiB") else { return };
    let mut site = Site { pool, games: Vec::new(), has_restarted: false };
    let (mut section, mut printed, mut different) = (String::new(), String::new(), Vec::new());
    for block in blocks() {
        if block.section != section {
            section.clone_from(&block.section);
            site.before(&section);
        }
        println!("--- {section}: {}", block.words);
        match block.words.split_once(' ') {
            None if block.words == "sh" => {
                site.wait_after_a_restart();
                printed = site.type_lines(&block.text);
            }
            None if block.words == "text" => {
                let line = missing(&block.text, &printed);
                different.extend(line.map(|line| format!("{section}: not '{line}', but\n{printed}")));
            }
            Some(("json", file)) => {
                std::fs::write(site.pool.directory().join(file), &block.text).expect("the directory can be written");
            }
            Some(("sh", on)) => {
                let machine = on.strip_prefix("on ").expect("a machine");
                block.text.lines().for_each(|line| site.type_on(machine, line));
            }
            _ => panic!("the page has a block of another kind: {}", block.words),
        }
    }
    assert!(different.is_empty(), "what is printed is not what the page shows:\n{}", different.join("\n"));
    let games = std::mem::take(&mut site.games);
    for game in games {
        let Verified { wrong, lost, longest_ms } = verified(&game.end());
        println!("the longest access took {longest_ms} ms");
        assert_eq!((wrong, lost), (0, 0));
    }
    for volume in ["cache", "db", "late", "log"] {
        site.pool.fabric(&["unbind", volume]);
    }
    site.pool.settle();
    let lends = |number: usize| site.pool.donors[number - 1].number("lent_bytes") > 0;
    eventually("everything is given back", || ![1, 2, 4, 5].into_iter().any(lends));
}

#[test]
fn what_is_printed_is_compared_line_by_line() {
    assert!(is_line("d1   Enabled  ...", "d1 Enabled 64GiB  8GiB") && is_line("d1 Enabled ...", "d1  Enabled"));
    assert!(is_line("volume ... lacks ... now", "volume a lacks b now") && !is_line("volume ... now", "volume a then"));
    assert!(!is_line("d1 Enabled", "d1 Enabled 64GiB") && !is_line("d2 ...", "d1 x"));
    assert_eq!(missing("a\n...\nc\n", "a\nb\nb\nc\n"), None);
    assert_eq!(missing("a\n...\n", "a\nb\n"), None);
    assert_eq!(missing("a\nc\n", "a\nb\nc\n"), Some("c"));
    assert_eq!(missing("a\n", "a\nb\n"), Some("(the page ends here)"));
    assert_eq!(missing("...\nd\n", "a\n"), Some("d"));
}
