// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The console: built from its sources, its parts tested by vitest, and used in a real headless Chromium on a real
//! daemon. `npm ci` in crates/pool/console installs the tools.
//!
//! `AQUIFER_CHROMIUM` names another browser than the first of chromium, chromium-browser and google-chrome on the path;
//! `AQUIFER_CONSOLE_SHOTS` names a directory for pictures of the pages.

mod daemon;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use aquifer_manager::SimulatedConfig;
use aquifer_test_support::skip;
use daemon::{APPLY, Daemon, apply_body, directory, rack};
use serde_json::{Value, json};

/// The oldest Node.js that the tools run on.
const NODE_MIN: (u32, u32) = (20, 19);
const BROWSERS: &[&str] = &["chromium", "chromium-browser", "google-chrome"];
/// Logins of the tests come from one address.
const SESSIONS: &str = "[sessions]\nlogins-per-minute = 1000\n";

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../console")
}

/// Waits until no other tool runs: each takes all that the machine has.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn version_of(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns why the tools cannot run here.
fn tools_missing() -> Option<String> {
    let Some(version) = version_of("node") else {
        return Some("there is no Node.js for the console; install nodejs and npm".into());
    };
    let mut numbers = version.trim_start_matches('v').split('.').map_while(|number| number.parse::<u32>().ok());
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < NODE_MIN {
        return Some(format!("there is no Node.js {}.{} for the console; {version} is here", NODE_MIN.0, NODE_MIN.1));
    }
    let is_installed = sources().join("node_modules/vitest/vitest.mjs").is_file();
    (!is_installed).then(|| "the console's tools are not installed; run `npm ci` in crates/pool/console".into())
}

fn browser() -> Result<String, String> {
    if let Ok(named) = std::env::var("AQUIFER_CHROMIUM") {
        return Ok(named);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut programs = BROWSERS.iter().flat_map(|name| directories.iter().map(move |directory| directory.join(name)));
    let program = programs.find(|program| program.is_file()).map(|program| program.display().to_string());
    program.ok_or_else(|| "there is no Chromium for the console; install it, or name it by AQUIFER_CHROMIUM".into())
}

/// Runs one of the installed tools with Node.js, and fails with everything that it has printed.
#[track_caller]
fn tool(script: &str, args: &[&str], variables: &[(&str, &str)]) {
    let mut command = Command::new("node");
    command.arg(sources().join("node_modules").join(script)).args(args).current_dir(sources());
    // Colours and the habits of test runners in CI would only make its output harder to read.
    command.env("NO_COLOR", "1").env_remove("FORCE_COLOR").envs(variables.iter().copied());
    let output = command.output().expect("Node.js was found");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script} {}: {}\n{out}\n{err}", args.join(" "), output.status);
    println!("{out}");
}

fn build_into(directory: &Path) {
    tool("vite/bin/vite.js", &["build", "--emptyOutDir", "--outDir", &directory.display().to_string()], &[]);
}

/// Returns the console, built once for this program; `None`, and reported, if it cannot be built here.
fn built() -> Option<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let _turn = turn();
        let directory = directory("console-built");
        build_into(&directory);
        directory
    };
    match BUILT.get_or_init(|| tools_missing().map_or_else(|| Ok(build()), Err)) {
        Ok(directory) => Some(directory),
        Err(why) => {
            skip(why);
            None
        }
    }
}

/// Returns the names and bytes of all files.
fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(contents(&path)),
            path => found.push((path.clone(), fs::read(&path).expect("a file"))),
        }
    }
    found.sort();
    found
}

#[test]
fn the_console_is_built_from_its_sources_with_the_same_bytes_each_time() {
    let Some(first) = built() else { return };
    let _turn = turn();
    tool("typescript/bin/tsc", &["--noEmit"], &[]);
    tool("prettier/bin/prettier.cjs", &["--check", "--log-level", "warn", "."], &[]);
    let second = directory("console-again");
    build_into(&second);
    let relative = |directory: &Path| -> Vec<(PathBuf, Vec<u8>)> {
        let all = contents(directory).into_iter();
        all.map(|(path, bytes)| (path.strip_prefix(directory).expect("inside").to_owned(), bytes)).collect()
    };
    let (first, again) = (relative(first), relative(&second));
    let names = |files: &[(PathBuf, Vec<u8>)]| files.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>();
    assert_eq!(names(&first), names(&again));
    assert!(first == again, "the bytes differ");
    let page = first.iter().find(|(path, _)| path.ends_with("index.html")).expect("the page");
    let page = String::from_utf8_lossy(&page.1);
    assert!(page.contains("src=\"/console/assets/") && !page.contains("<style"), "{page}");
    fs::remove_dir_all(second).expect("removed");
}

#[test]
fn the_parts_of_the_console_do_what_they_say() {
    if built().is_none() {
        return;
    }
    let _turn = turn();
    tool("vitest/vitest.mjs", &["run", "--project", "parts"], &[]);
}

/// A file of tests in a browser, and the pool that they are about.
struct Scene {
    file: &'static str,
    peers: SimulatedConfig,
    rounds: &'static str,
    declaration: Value,
}

/// Starts a daemon, applies the declaration and carries it out; then runs the tests.
fn browse(name: &str, scene: &Scene) {
    let Some(console) = built() else { return };
    let browser = match browser() {
        Ok(browser) => browser,
        Err(why) => return skip(why),
    };
    let _turn = turn();
    let head = format!("console = {console:?}\n");
    let daemon = Daemon::start_with(&directory(name), &scene.peers, &head, &format!("{}{SESSIONS}", scene.rounds));
    let token = daemon.login("admin", &daemon.password());
    let applied = daemon.ask("POST", APPLY, &token, &apply_body(&scene.declaration)).expect("an answer");
    assert_eq!(applied.status, 200, "{applied:?}");
    assert!(daemon.settle(&token));
    tool(
        "vitest/vitest.mjs",
        &["run", "--project", "browser", scene.file],
        &[
            ("AQUIFER_CONSOLE_URL", &format!("http://{}", daemon.address)),
            ("AQUIFER_CONSOLE_PASSWORD", &daemon.password()),
            ("AQUIFER_CONSOLE_BROWSER", &browser),
        ],
    );
    let directory = daemon.directory.clone();
    drop(daemon);
    fs::remove_dir_all(directory).expect("removed");
}

fn names(prefix: &str, count: u32, digits: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number:0digits$}")).collect()
}

#[test]
fn a_rack_is_steered_by_hand_in_a_browser() {
    let peers = SimulatedConfig { donors: 22, hosts: 3, devices: 4, ..rack(None) };
    let volume =
        |size: &str, width: u32| json!({ "size": size, "pool": "main", "zone": "lab", "class": "tcp", "width": width });
    let mut mirrored = volume("8GiB", 1);
    mirrored["redundancy"] = json!({ "mirror": { "copies": 2 } });
    let declaration = json!({
        "pools": { "main": { "donors": names("d", 22, 4), "devices": names("m", 4, 3) } },
        "zones": { "lab": { "quota": "500GiB", "hosts": names("h", 3, 3) } },
        "volumes": { "db": { "spec": mirrored, "host": "h000" }, "cache": { "spec": volume("4GiB", 1) },
                     "wide": { "spec": volume("88GiB", 11), "host": "h002" } },
    });
    let rounds = "[rounds]\nidle-ms = 200\nbusy-ms = 5\n";
    browse("console-rack", &Scene { file: "e2e/rack.test.ts", peers, rounds, declaration });
}

#[test]
fn a_hall_of_a_thousand_donors_is_usable_in_a_browser() {
    let peers = SimulatedConfig { donors: 1000, hosts: 200, devices: 0, ..rack(None) };
    let volumes: serde_json::Map<String, Value> = (0..60)
        .map(|number| {
            let spec = json!({ "size": "64GiB", "pool": "main", "zone": if number % 2 == 0 { "lab" } else { "web" },
                               "class": "tcp", "width": 4 });
            (format!("v{number:02}"), json!({ "spec": spec, "host": format!("h{:03}", number) }))
        })
        .collect();
    let declaration = json!({
        "pools": { "main": { "donors": names("d", 1000, 4) } },
        "zones": { "lab": { "quota": "64TiB", "hosts": names("h", 200, 3) },
                   "web": { "quota": "64TiB", "hosts": names("h", 200, 3) } },
        "volumes": volumes,
    });
    let rounds = "[rounds]\nidle-ms = 1000\nbusy-ms = 50\n";
    browse("console-hall", &Scene { file: "e2e/hall.test.ts", peers, rounds, declaration });
}

/// The test needs none of the tools: its page has one line.
#[test]
fn a_console_is_served_with_a_policy_and_one_that_is_missing_says_how_to_get_it() {
    let files = directory("console-page");
    fs::write(files.join("index.html"), "<p>page</p>").expect("written");
    let daemon = Daemon::start_with(&directory("console-served"), &rack(None), &format!("console = {files:?}\n"), "");
    let page = daemon.ask("GET", "/console/", "", "").expect("an answer");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")), "{page:?}");
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; ") && !policy.contains("unsafe"), "{policy}");
    let root = daemon.ask("GET", "/", "", "").expect("an answer");
    assert_eq!((root.status, root.header("location")), (302, Some("/console/")));
    let head = daemon.raw(daemon::request("HEAD", "/console/", "", "").as_bytes()).expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    let outside = daemon.ask("GET", "/console/../state/initial-password", "", "").expect("an answer");
    assert_eq!(outside.status, 404);
    drop(daemon);
    let gone = files.join("nowhere");
    let config = format!("console = {gone:?}\nstate = {:?}\n[peers]\nkind = \"simulated\"\n", files.join("state"));
    let config = aquifer_manager::Config::parse(&config).expect("settings");
    let refused = aquifer_manager::Daemon::start(&config).err().expect("it is refused").to_string();
    assert!(refused.contains("; name the directory that `make console` has built"), "{refused}");
    assert!(!files.join("state").exists(), "nothing was made before");
    fs::remove_dir_all(files).expect("removed");
}

/// Sends what a browser would send for a page of another site.
#[test]
fn a_page_of_another_site_changes_nothing_and_is_asked_for_no_password() {
    let daemon = Daemon::start(&directory("console-foreign"), &rack(None), "");
    let token = daemon.login("admin", &daemon.password());
    let adopt = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Adopt";
    let status =
        |headers: &str| daemon.ask("POST", adopt, &format!("{token}{headers}"), "{}").expect("an answer").status;
    for headers in [
        "sec-fetch-site: cross-site\r\n",
        "sec-fetch-site: same-site\r\n",
        "origin: https://elsewhere.example\r\n",
        "origin: null\r\n",
    ] {
        assert_eq!(status(headers), 403, "{headers}");
    }
    // The client of these tests sends `host: a`.
    for headers in ["", "sec-fetch-site: same-origin\r\n", "sec-fetch-site: none\r\n", "origin: http://a\r\n"] {
        assert_eq!(status(headers), 200, "{headers}");
    }
    let asks = |headers: &str| daemon.ask("GET", "/redfish/v1/Oem/Aquifer", headers, "").expect("an answer");
    assert!(asks("").header("www-authenticate").is_some());
    assert_eq!(asks("sec-fetch-mode: cors\r\n").header("www-authenticate"), None);
    let directory = daemon.directory.clone();
    drop(daemon);
    fs::remove_dir_all(directory).expect("removed");
}
