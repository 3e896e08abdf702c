// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Bad input that `requests.rs` does not cover: deceptive Unicode names, exceeded quotas, a full disk under the store,
//! a store that is truncated or of another version, impossible listeners, stale ETags on any resource, headers and
//! bodies that could be taken for something else than was meant.

mod daemon;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use daemon::{
    APPLY, Answer, CHUNKS, CONNECTIONS, Daemon, SESSIONS, WAIT_MAX, address, apply_body, bind_body, declaration,
    directory, rack,
};
use serde_json::json;

const ACCOUNTS: &str = "/redfish/v1/AccountService/Accounts";
const SUBSCRIPTIONS: &str = "/redfish/v1/EventService/Subscriptions";

fn ready(name: &str) -> (Daemon, String) {
    let daemon = Daemon::start(&directory(name), &rack(None), "");
    let token = daemon.login("admin", &daemon.password());
    let applied = daemon.ask("POST", APPLY, &token, &apply_body(&declaration())).expect("an answer");
    assert_eq!(applied.status, 200, "{applied:?}");
    (daemon, token)
}

fn finish(daemon: Daemon) {
    let directory = daemon.directory.clone();
    drop(daemon);
    std::fs::remove_dir_all(directory).expect("removed");
}

/// Checks that an answer is an error with a remedy, on one line each.
fn check_refused(what: &str, answer: &Answer, statuses: &[u16]) {
    assert!(statuses.contains(&answer.status), "{what}: {answer:?}");
    let said = &answer.body["error"]["@Message.ExtendedInfo"][0];
    for part in ["MessageId", "Message", "Resolution"] {
        let text = said[part].as_str().unwrap_or_default();
        assert!(!text.is_empty() && !text.contains(['\n', '\r']), "{what}: {answer:?}");
    }
}

/// Names that look like others, contain invisible characters, or are empty.
const TRICKS: [&str; 18] = [
    "",
    " ",
    ".",
    "..",
    "a/b",
    "d\u{430}",           // a Cyrillic letter
    "db\u{200b}",         // zero width
    "db\u{feff}",         // byte order mark
    "\u{202e}bd",         // right to left
    "d\u{308}b",          // combining
    "\u{ff44}\u{ff42}",   // full width
    "\u{1d41d}\u{1d41b}", // mathematical letters
    "DB",
    "\u{131}", // dotless
    "db\u{0}",
    "db\r\nx-auth-token: a",
    "\u{1f4a3}",
    "\u{fffd}",
];

#[test]
fn names_with_tricks_of_unicode_are_refused_everywhere() {
    let (daemon, token) = ready("unicode");
    let ask = |method: &str, path: &str, body: &str| daemon.ask(method, path, &token, body).expect("an answer");
    let before = ask("GET", "/redfish/v1/Oem/Aquifer", "").body["Version"].clone();
    let long = "x".repeat(5000);
    for name in TRICKS.into_iter().chain([long.as_str()]) {
        let volume = json!({ "Name": name, "MemoryChunkSizeMiB": 2,
                             "Oem": { "Aquifer": { "zone": "lab", "class": "tcp" } } });
        check_refused(name, &ask("POST", CHUNKS, &volume.to_string()), &[400]);
        let account = json!({ "UserName": name, "Password": "a long password", "RoleId": "ReadOnly" });
        check_refused(name, &ask("POST", ACCOUNTS, &account.to_string()), &[400]);
        check_refused(name, &ask("POST", CONNECTIONS, &bind_body("cache", name)), &[400]);
        check_refused(name, &ask("POST", CONNECTIONS, &bind_body(name, "h001")), &[400]);
        let zone = json!({ "Declaration": { "zones": { name: { "quota": "1GiB" } } } }).to_string();
        check_refused(name, &ask("POST", APPLY, &zone), &[400]);
        let login = json!({ "UserName": name, "Password": "a long password" }).to_string();
        check_refused(name, &daemon.ask("POST", SESSIONS, "", &login).expect("an answer"), &[401, 429]);
        let encoded: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
        if !encoded.is_empty() && name.len() < 1000 {
            check_refused(name, &ask("GET", &format!("{CHUNKS}/{encoded}"), ""), &[404]);
            check_refused(name, &ask("DELETE", &format!("{ACCOUNTS}/{encoded}"), ""), &[404]);
            let filter = format!("{CHUNKS}?$filter=Name%20eq%20'{encoded}'");
            assert_eq!(ask("GET", &filter, "").body["Members@odata.count"], 0, "{name}");
        }
    }
    for path in ["%c0%af", "%ff", "%ed%a0%80", "%f8%88%80%80%80", "%", "%4", "%zz"] {
        check_refused(path, &ask("GET", &format!("{CHUNKS}/{path}"), ""), &[404]);
        check_refused(path, &ask("GET", &format!("{CHUNKS}?$filter=Name%20eq%20'{path}'"), ""), &[400]);
    }
    for body in [r#"{"Name": "\ud800", "MemoryChunkSizeMiB": 2}"#, r#"{"Name": "a", "Name": "b"}"#, "\u{feff}{}"] {
        check_refused(body, &ask("POST", CHUNKS, body), &[400]);
    }
    assert_eq!(ask("GET", "/redfish/v1/Oem/Aquifer", "").body["Version"], before, "something was half done");
    finish(daemon);
}

#[test]
fn a_zone_gets_no_more_than_its_quota() {
    let (daemon, token) = ready("quota");
    let mut small = declaration();
    let ask = |method: &str, path: &str, body: &str| daemon.ask(method, path, &token, body).expect("an answer");
    let used = ask("GET", "/redfish/v1/Fabrics/Aquifer/Zones/lab", "").body["Oem"]["Aquifer"]["Used"].clone();
    assert_eq!(used, "20GiB", "8 GiB in two copies, and 4");
    small["zones"]["lab"]["quota"] = json!("22GiB");
    assert_eq!(ask("POST", APPLY, &apply_body(&small)).status, 200);
    let volume = |mib: u64| {
        let oem = json!({ "Aquifer": { "zone": "lab", "class": "tcp" } });
        json!({ "Name": "more", "MemoryChunkSizeMiB": mib, "Oem": oem }).to_string()
    };
    let refused = ask("POST", CHUNKS, &volume(2050));
    check_refused("a volume", &refused, &[507]);
    assert!(refused.body.to_string().contains("quota"), "{refused:?}");
    assert_eq!(ask("POST", CHUNKS, &volume(2048)).status, 201, "up to the quota");
    let grown = ask("PATCH", &format!("{CHUNKS}/more"), r#"{"MemoryChunkSizeMiB": 2050}"#);
    check_refused("growth", &grown, &[507]);
    let mut smaller = small.clone();
    smaller["zones"]["lab"]["quota"] = json!("1GiB");
    assert_eq!(ask("POST", APPLY, &apply_body(&smaller)).status, 200, "what is there stays");
    check_refused("a volume over a lowered quota", &ask("POST", CHUNKS, &volume(4)), &[507]);
    finish(daemon);
}

#[test]
fn a_change_of_what_somebody_else_has_changed_is_refused_on_every_resource() {
    let (daemon, token) = ready("stale");
    let session = {
        let other = daemon.login("admin", &daemon.password());
        let id = other.trim().split_once(": ").and_then(|(_, token)| token.split_once('.')).expect("a token").0;
        format!("{SESSIONS}/{id}")
    };
    let port = "/redfish/v1/Fabrics/Aquifer/Switches/s0/Ports/2";
    let device = "/redfish/v1/Chassis/box/PCIeDevices/m000";
    let stale = format!("{token}if-match: \"000000000000000000000000\"\r\n");
    for (method, path, body) in [
        ("PATCH", format!("{CHUNKS}/db"), r#"{"MemoryChunkSizeMiB": 9216}"#),
        ("DELETE", format!("{CHUNKS}/cache"), ""),
        ("DELETE", format!("{CONNECTIONS}/db"), ""),
        ("PATCH", format!("{ACCOUNTS}/admin"), r#"{"Enabled": true}"#),
        ("DELETE", format!("{ACCOUNTS}/admin"), ""),
        ("DELETE", session, ""),
        ("PATCH", port.to_owned(), r#"{"LinkState": "Disabled"}"#),
        ("PATCH", "/redfish/v1/Fabrics/Aquifer/Switches/s0/VCSs/0/VPPBs/0".to_owned(), r#"{"Links": {"Port": null}}"#),
        ("PATCH", format!("{device}/CXLLogicalDevices/0"), r#"{"MemorySizeMiB": 512}"#),
    ] {
        let answer = daemon.ask(method, &path, &stale, body).expect("an answer");
        check_refused(&path, &answer, &[412]);
    }
    let tag = daemon.ask("GET", port, &token, "").expect("an answer").header("etag").expect("an ETag").to_owned();
    let fresh = format!("{token}if-match: {tag}\r\n");
    let answer = daemon.ask("PATCH", port, &fresh, r#"{"LinkState": "Disabled"}"#).expect("an answer");
    assert_ne!(answer.status, 412, "{answer:?}");
    finish(daemon);
}

#[test]
fn headers_and_bodies_are_taken_as_meant_or_refused() {
    let (daemon, token) = ready("meant");
    let version =
        || daemon.ask("GET", "/redfish/v1/Oem/Aquifer", &token, "").expect("an answer").body["Version"].clone();
    let before = version();
    let volume = r#"{"Name": "v", "MemoryChunkSizeMiB": 2, "Oem": {"Aquifer": {"zone": "lab", "class": "tcp"}}}"#;
    let account = r#"{"UserName": "rita", "Password": "a long password", "RoleId": "ReadOnly"}"#;
    let db = format!("{CHUNKS}/db");
    let grown = r#"{"MemoryChunkSizeMiB": 9216}"#;
    for (method, path, header, body, status) in [
        ("POST", CHUNKS, "aquifer-dry-run: TRUE", volume, 400),
        ("POST", CHUNKS, "aquifer-dry-run: 1", volume, 400),
        ("POST", CHUNKS, "aquifer-dry-run:", volume, 400),
        ("POST", CHUNKS, "aquifer-dry-run: true\r\naquifer-dry-run: true", volume, 400),
        ("POST", CHUNKS, "aquifer-dry-run: true\u{ff}", volume, 400),
        ("POST", ACCOUNTS, "aquifer-dry-run: 1", account, 400),
        (
            "POST",
            "/redfish/v1/SessionService/Sessions",
            "aquifer-dry-run: true",
            r#"{"UserName": "a", "Password": "b"}"#,
            400,
        ),
        ("POST", CHUNKS, "aquifer-unbind: true", volume, 400),
        ("DELETE", "/redfish/v1/Chassis/Pools/MemoryDomains/main/MemoryChunks/db", "aquifer-unbind: yes", "", 400),
        ("PATCH", "/redfish/v1/AccountService/Accounts/admin", "aquifer-dry-run: yes", r#"{"Enabled": true}"#, 400),
        ("PATCH", db.as_str(), "if-match: \"\u{ff}\"", grown, 412),
        ("PATCH", db.as_str(), "if-match: \"a\"\r\nif-match: \"b\"", grown, 412),
        ("PATCH", db.as_str(), "if-match:", grown, 412),
        ("POST", CHUNKS, "content-encoding: gzip", volume, 415),
        ("POST", CHUNKS, "x: a", &volume.replace(r#""Name""#, r#""Name": "w", "Name""#), 400),
        ("POST", APPLY, "x: a", r#"{"Declaration": {"volumes": {}, "volumes": {}}}"#, 400),
        ("POST", CHUNKS, "content-length: 99999999999\r\nx: a", "", 413),
    ] {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{token}{header}\r\n");
        let length = if header.contains("content-length") {
            String::new()
        } else {
            format!("content-length: {}\r\n", body.len())
        };
        // Header values are bytes; a character here is one of them.
        let mut bytes: Vec<u8> = head.chars().map(|one| u8::try_from(one).expect("Latin-1")).collect();
        bytes.extend_from_slice(format!("{length}\r\n{body}").as_bytes());
        let answer = daemon.raw(&bytes).and_then(|text| Answer::parse(&text)).expect("an answer");
        check_refused(header, &answer, &[status]);
    }
    assert_eq!(version(), before, "something was half done");
    assert_eq!(daemon.ask("GET", &format!("{ACCOUNTS}/rita"), &token, "").expect("an answer").status, 404);
    let long = format!("/redfish/v1/{}", "\u{7f}".repeat(2000).replace('\u{7f}', "%7f"));
    let lost = daemon.raw(daemon::request("GET", &long, "", "").as_bytes()).expect("an answer");
    assert!(lost.len() < 2000, "an error repeats {} bytes", lost.len());
    // The bodies of reads and deletions say nothing.
    assert_eq!(daemon.ask("GET", &db, &token, "what?").expect("an answer").status, 200);
    let dry = format!("{token}aquifer-dry-run: true\r\n");
    let planned = daemon.ask("DELETE", &format!("{CONNECTIONS}/db"), &dry, "what?").expect("an answer");
    assert_eq!((planned.status, version()), (200, before), "{planned:?}");
    finish(daemon);
}

/// As JSON, these bodies would take 400 MB each.
#[test]
fn strangers_get_no_memory_by_long_bodies() {
    const JOIN: &str = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Join";
    let (daemon, token) = ready("long");
    let before = daemon.peak_memory();
    let objects = |bytes: usize| format!(r#"{{"UserName":[{}0]}}"#, r#"{"":0},"#.repeat(bytes / 7 - 4));
    let all = objects(4 << 20);
    for (what, path, headers, body, status) in [
        ("a login", SESSIONS, "", all.as_str(), 413),
        ("a login that is a little too long", SESSIONS, "", &objects(17 << 10), 413),
        ("a login that is long", SESSIONS, "", &objects(16 << 10), 400),
        ("a login at the collection's members", &format!("{SESSIONS}/Members/"), "", &all, 413),
        ("a join", JOIN, "", &all, 413),
        ("a join that is long", JOIN, "", &objects(64 << 10), 400),
        ("nothing", "/redfish/v1/Nothing", "", &all, 413),
        ("a declaration of nobody", APPLY, "", &all, 413),
        ("a declaration with a password", APPLY, "authorization: Basic YWRtaW46cGFzcw==\r\n", &all, 413),
        ("a declaration with another's token", APPLY, "x-auth-token: a.b\r\n", &all, 401),
        ("a volume", CHUNKS, &token, &all, 413),
        ("a declaration of too many values", APPLY, &token, &all, 400),
    ] {
        let send = || daemon.ask("POST", path, headers, body).expect("an answer");
        let answers: Vec<Answer> = std::thread::scope(|scope| {
            let sent: Vec<_> = (0..8).map(|_| scope.spawn(send)).collect();
            sent.into_iter().map(|one| one.join().expect("an answer")).collect()
        });
        answers.iter().for_each(|answer| check_refused(what, answer, &[status]));
        let grown = daemon.peak_memory() - before;
        let max = if status == 400 && body.len() > 1 << 20 { 800 << 20 } else { 128 << 20 };
        assert!(grown < max, "{what}: {} MiB", grown >> 20);
    }
    let answer = daemon.ask("POST", APPLY, "", &all).expect("an answer");
    let said = answer.body["error"]["message"].as_str().expect("a message").to_owned();
    assert!(said.contains("needs the token of a session; log in"), "{said}");
    assert_eq!(daemon.ask("POST", APPLY, &token, &apply_body(&declaration())).expect("an answer").status, 200);
    finish(daemon);
}

#[test]
fn events_go_only_where_the_configuration_allows() {
    let (daemon, token) = ready("listeners");
    let ask = |method: &str, path: &str, body: &str| daemon.ask(method, path, &token, body).expect("an answer");
    let body = |destination: &str| json!({ "Destination": destination, "Protocol": "Redfish" }).to_string();
    for destination in [
        "https://listener.example/",
        "http://169.254.169.254/latest/meta-data",
        "http://name:secret@127.0.0.1/",
        "file:///etc/passwd",
        "http://127.0.0.1:0/",
        "",
    ] {
        check_refused(destination, &ask("POST", SUBSCRIPTIONS, &body(destination)), &[400]);
    }
    let other = json!({ "Destination": "http://127.0.0.1:9/", "Protocol": "SNMPv3" }).to_string();
    check_refused("another protocol", &ask("POST", SUBSCRIPTIONS, &other), &[400]);
    // Nobody listens there: the subscription is suspended after its attempts, and continues when it is resumed.
    let made = ask("POST", SUBSCRIPTIONS, &body("http://127.0.0.1:9/"));
    assert_eq!(made.status, 201, "{made:?}");
    let path = made.header("location").expect("a location").to_owned();
    let test = "/redfish/v1/EventService/Actions/EventService.SubmitTestEvent";
    assert_eq!(ask("POST", test, "{}").status, 204);
    let begun = Instant::now();
    while ask("GET", &path, "").body["Status"]["State"] != "Disabled" {
        assert!(begun.elapsed() < WAIT_MAX, "it is tried for ever");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(ask("POST", &format!("{path}/Actions/EventDestination.ResumeSubscription"), "{}").status, 204);
    for _ in 1..32 {
        assert_eq!(ask("POST", SUBSCRIPTIONS, &body("http://127.0.0.1:9/")).status, 201);
    }
    check_refused("one too many", &ask("POST", SUBSCRIPTIONS, &body("http://127.0.0.1:9/")), &[409]);
    assert_eq!(ask("DELETE", &path, "").status, 204);
    assert_eq!(ask("GET", &path, "").status, 404);
    finish(daemon);
}

/// Returns the message of a daemon that does not start.
fn last_words(directory: &Path) -> String {
    let file = directory.join("fabricd.toml");
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_aquifer-fabricd"));
    let output = daemon.arg("--config").arg(file).output().expect("it starts");
    assert!(!output.status.success() && output.stdout.is_empty(), "it serves: {output:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn a_store_that_is_cut_short_or_foreign_is_not_served() {
    let (mut daemon, _) = ready("store");
    daemon.kill();
    let store = daemon.directory.join("state/state.redb");
    let whole = std::fs::read(&store).expect("a store");
    let mut foreign = whole.clone();
    foreign[..16].copy_from_slice(b"SQLite format 3\0");
    for (what, bytes) in [("of another program", foreign.as_slice()), ("no store", b"hello\n"), ("empty", b"")] {
        std::fs::write(&store, bytes).expect("written");
        let said = last_words(&daemon.directory);
        assert!(said.trim_end().lines().count() == 1 && said.contains("; "), "{what}: {said}");
        assert_eq!(std::fs::read(&store).expect("a store"), bytes, "{what}: the file was changed");
    }
    // For some damage redb panics instead of reporting it, which also ends the daemon.
    for length in [100, 5000, whole.len() / 2] {
        std::fs::write(&store, &whole[..length]).expect("written");
        last_words(&daemon.directory);
    }
    std::fs::write(&store, &whole).expect("written");
    let again = Daemon::start(&daemon.directory, &rack(None), "");
    assert!(again.ask("GET", "/redfish/v1", "", "").is_some_and(|answer| answer.status == 200));
    finish(again);
}

#[test]
fn a_full_disk_under_the_store_loses_nothing_that_was_answered() {
    let directory = directory("full");
    let config = |directory: &Path| {
        format!(
            "state = {:?}\nlisten = \"{}:0\"\n[peers]\nkind = \"simulated\"\ndonors = 4\nhosts = 2\ndevices = 2\n",
            directory.join("state"),
            address()
        )
    };
    let (daemon, token) = {
        let daemon = Daemon::launch(&directory, &config(&directory), &[]);
        let token = daemon.login("admin", &daemon.password());
        assert_eq!(daemon.ask("POST", APPLY, &token, &apply_body(&declaration())).expect("an answer").status, 200);
        (daemon, token)
    };
    drop(daemon);
    let size = std::fs::metadata(directory.join("state/state.redb")).expect("a store").len();
    // A limit on the size of files, in blocks of 512 bytes, stops the growth of the store as a full disk does.
    let mut limited = Command::new("sh");
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", size / 512);
    limited.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_aquifer-fabricd")]);
    let mut daemon = Daemon::launch_by(&directory, &config(&directory), limited);
    let mut made = Vec::new();
    for number in 0..2000 {
        let body = json!({ "Name": format!("v{number}"), "MemoryChunkSizeMiB": 2,
                           "Oem": { "Aquifer": { "zone": "lab", "class": "tcp" } } });
        match daemon.ask("POST", CHUNKS, &token, &body.to_string()) {
            Some(answer) if answer.status == 201 => made.push(format!("v{number}")),
            Some(answer) => {
                check_refused("a full disk", &answer, &[503, 507]);
                break;
            }
            None => break,
        }
    }
    assert!(made.len() < 2000, "the disk was not full");
    daemon.wait_until_killed();
    let log = std::fs::read_to_string(directory.join("log")).expect("a log");
    assert!(log.lines().last().is_some_and(|line| line.contains("; ")), "no remedy: {log}");
    drop(daemon);
    let again = Daemon::launch(&directory, &config(&directory), &[]);
    for name in &made {
        let answer = again.ask("GET", &format!("{CHUNKS}/{name}"), &token, "").expect("an answer");
        assert_eq!(answer.status, 200, "{name} was answered and is gone");
    }
    let verified = again.ask("GET", "/redfish/v1/Oem/Aquifer/Audit/Verification", &token, "").expect("an answer");
    assert_eq!(verified.body["IsIntact"], true, "{verified:?}");
    finish(again);
}
