// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The interface as clients and strangers meet it, over real sockets: a volume's life, roles, stale ETags, replayed
//! tokens, malformed and oversized requests, smuggling; and the golden OpenAPI document.

mod daemon;

use std::path::Path;

use daemon::{APPLY, CHUNKS, CONNECTIONS, Daemon, SESSIONS, apply_body, bind_body, declaration, directory, rack};
use serde_json::{Value, json};

#[test]
fn the_openapi_document_is_the_golden_one() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/openapi.json");
    let text = format!("{:#}\n", aquifer_manager::openapi());
    if std::env::var_os("AQUIFER_BLESS").is_some() {
        std::fs::write(&file, &text).expect("written");
    }
    let golden = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(text == golden, "accept with AQUIFER_BLESS=1 cargo test -p aquifer-manager --test requests:\n{text}");
}

/// Starts a daemon, applies the declaration, and returns the daemon and its administrator's token.
fn ready(name: &str, more: &str) -> (Daemon, String) {
    let daemon = Daemon::start(&directory(name), &rack(None), more);
    let token = daemon.login("admin", &daemon.password());
    let applied = daemon.ask("POST", APPLY, &token, &apply_body(&declaration())).expect("an answer");
    assert_eq!(applied.status, 200, "{applied:?}");
    assert!(daemon.settle(&token));
    (daemon, token)
}

fn finish(daemon: Daemon) {
    let directory = daemon.directory.clone();
    drop(daemon);
    std::fs::remove_dir_all(directory).expect("removed");
}

#[test]
fn a_volume_is_created_bound_grown_moved_and_released() {
    let (daemon, token) = ready("life", "");
    let ask = |method: &str, path: &str, headers: &str, body: &str| {
        daemon.ask(method, path, &format!("{token}{headers}"), body).expect("an answer")
    };
    let body = json!({ "Name": "scratch", "MemoryChunkSizeMiB": 2048,
                       "Oem": { "Aquifer": { "zone": "lab", "class": "tcp" } } });
    let dry = ask("POST", CHUNKS, "aquifer-dry-run: true\r\n", &body.to_string());
    assert_eq!((dry.status, dry.body["Changes"].as_array().map(Vec::len)), (200, Some(1)), "{dry:?}");
    assert_eq!(ask("GET", &format!("{CHUNKS}/scratch"), "", "").status, 404, "a dry run changes nothing");
    let created = ask("POST", CHUNKS, "", &body.to_string());
    assert_eq!(created.status, 201, "{created:?}");
    let path = created.header("location").expect("a location").to_owned();
    let old = ask("GET", &path, "", "");
    let tag = old.header("etag").expect("an ETag").to_owned();
    let bound = ask("POST", CONNECTIONS, "", &bind_body("scratch", "h001"));
    assert_eq!(bound.status, 201, "{bound:?}");
    let taken = ask("POST", CONNECTIONS, "", &bind_body("scratch", "h000"));
    assert_eq!(taken.status, 409, "{taken:?}");
    assert!(daemon.settle(&token));
    assert_eq!(ask("GET", &path, "", "").body["Status"]["State"], "Enabled");
    let size = json!({ "MemoryChunkSizeMiB": 4096 }).to_string();
    let stale = ask("PATCH", &path, &format!("if-match: {tag}\r\n"), &size);
    assert_eq!(stale.status, 412, "the volume was bound since: {stale:?}");
    let fresh = ask("GET", &path, "", "").header("etag").expect("an ETag").to_owned();
    assert_eq!(ask("GET", &path, &format!("if-none-match: {fresh}\r\n"), "").status, 304);
    assert_eq!(ask("GET", &path, &format!("if-none-match: {tag}\r\n"), "").status, 200);
    let stale = format!("if-match: {tag}\r\n");
    assert_eq!(ask("DELETE", &path, &stale, "").status, 412);
    assert_eq!(ask("DELETE", &format!("{CONNECTIONS}/scratch"), &stale, "").status, 412);
    assert_eq!(ask("POST", &format!("{path}/Actions/Oem/AquiferMemoryChunk.Move"), &stale, "{}").status, 412);
    assert_eq!(ask("PATCH", &path, &format!("if-match: {fresh}\r\n"), &size).status, 200);
    assert_eq!(ask("POST", &format!("{path}/Actions/Oem/AquiferMemoryChunk.Move"), "", "{}").status, 200);
    assert!(daemon.settle(&token));
    let bound = ask("DELETE", &path, "", "");
    let info = &bound.body["error"]["@Message.ExtendedInfo"][0];
    assert_eq!((bound.status, &info["Message"]), (409, &json!("volume scratch is bound to host h001")), "{bound:?}");
    let resolution = info["Resolution"].as_str().expect("a remedy");
    assert!(resolution.starts_with("unbind it first, or release it with --unbind"), "{resolution}");
    assert!(resolution.contains("Aquifer-Unbind: true"), "{resolution}");
    let dry = "aquifer-dry-run: true\r\n";
    assert_eq!(ask("DELETE", &path, dry, "").status, 409, "a dry run is refused as the release is");
    let planned = ask("DELETE", &path, &format!("{dry}aquifer-unbind: true\r\n"), "");
    let both = ["- unbind volume scratch from host h001", "- release volume scratch"];
    assert_eq!((planned.status, &planned.body["Changes"]), (200, &json!(both)), "{planned:?}");
    assert_eq!(ask("GET", &format!("{CONNECTIONS}/scratch"), "", "").status, 200, "nothing was unbound");
    let released = ask("DELETE", &path, "aquifer-unbind: true\r\n", "");
    assert_eq!((released.status, &released.body["Changes"]), (200, &json!(both)), "{released:?}");
    assert!(daemon.settle(&token));
    assert_eq!(ask("GET", &path, "", "").status, 404);
    let audit = ask("GET", "/redfish/v1/Oem/Aquifer/Audit", "", "").body;
    let records: Vec<aquifer_fabric::Record> = serde_json::from_value(audit["Records"].clone()).expect("records");
    let tail: aquifer_fabric::Tail = serde_json::from_value(audit["Tail"].clone()).expect("a tail");
    assert_eq!(aquifer_fabric::verify(&records, tail), Ok(tail));
    for what in ["bind volume scratch to host h001", "release volume scratch, bound or not"] {
        assert!(records.iter().any(|record| record.who == "admin" && record.what == what), "{what}");
    }
    let again = ask("POST", APPLY, "", &apply_body(&declaration()));
    assert_eq!(again.body["Changes"], json!([]), "what is fulfilled changes nothing");
    let exported = ask("GET", "/redfish/v1/Oem/Aquifer/Declaration", "", "").body["Declaration"].clone();
    assert_eq!(exported["volumes"]["db"]["host"], "h000");
    let filter = "/redfish/v1/Fabrics/Aquifer/Endpoints?$expand=.&$filter=Oem/Aquifer/Kind%20eq%20'Donor'&$top=3";
    let donors = ask("GET", filter, "", "").body;
    assert_eq!(
        (donors["Members@odata.count"].as_u64(), donors["Members"].as_array().map(Vec::len)),
        (Some(4), Some(3))
    );
    finish(daemon);
}

/// Clients took the free memory of a donor from its capacity and what is promised, which leaves out what its pool
/// promises beyond the capacity, and counts donors that give nothing.
#[test]
fn what_is_free_of_a_donor_is_what_a_volume_gets() {
    let daemon = Daemon::start(&directory("free"), &rack(None), "");
    let token = daemon.login("admin", &daemon.password());
    let ask = |method: &str, path: &str, body: &str| daemon.ask(method, path, &token, body).expect("an answer");
    let declared = json!({
        "pools": { "main": { "donors": ["d0000", "d0001"], "overcommit_percent": 50 } },
        "zones": { "lab": { "quota": "1TiB", "hosts": ["h000"] } },
    });
    assert_eq!(ask("POST", APPLY, &apply_body(&declared)).status, 200);
    let donor = |name: &str| format!("/redfish/v1/Fabrics/Aquifer/Endpoints/Donor.{name}");
    let figures = |name: &str| {
        assert!(daemon.settle(&token));
        let ours = ask("GET", &donor(name), "").body["Oem"]["Aquifer"].clone();
        ["Capacity", "Promised", "Free"].map(|figure| ours[figure].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(figures("d0000"), ["64GiB", "0B", "96GiB"]);
    assert_eq!(figures("d0002"), ["64GiB", "0B", "0B"], "it is in no pool");
    let create = |name: &str, mib: u64| {
        let body = json!({ "Name": name, "MemoryChunkSizeMiB": mib,
                           "Oem": { "Aquifer": { "zone": "lab", "class": "tcp", "donor": "d0000" } } });
        ask("POST", CHUNKS, &body.to_string()).status
    };
    assert_eq!(create("most", 80 << 10), 201);
    assert_eq!(figures("d0000"), ["64GiB", "80GiB", "16GiB"], "more is promised than there is");
    assert_eq!(create("too-much", (16 << 10) + 2), 507);
    assert_eq!(create("rest", 16 << 10), 201);
    assert_eq!(figures("d0000"), ["64GiB", "96GiB", "0B"]);
    let collection = "/redfish/v1/Fabrics/Aquifer/Endpoints?$expand=.&$filter=Oem/Aquifer/Kind%20eq%20'Donor'";
    let listed = ask("GET", collection, "").body;
    let free: Vec<&Value> =
        listed["Members"].as_array().expect("a list").iter().map(|one| &one["Oem"]["Aquifer"]["Free"]).collect();
    assert_eq!(free, ["0B", "96GiB", "0B", "0B"]);
    let drain = format!("{}/Actions/Oem/AquiferEndpoint.Drain", donor("d0001"));
    assert_eq!(ask("POST", &drain, "{}").status, 200);
    assert_eq!(figures("d0001"), ["64GiB", "0B", "0B"], "it takes no new volumes");
    finish(daemon);
}

#[test]
fn every_link_leads_somewhere() {
    let (daemon, token) = ready("links", "");
    let (mut waiting, mut seen) = (vec!["/redfish/v1".to_owned()], std::collections::BTreeSet::new());
    let document = "GET /redfish/v1/$metadata HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let metadata = daemon.raw(document.as_bytes()).expect("an answer");
    assert!(metadata.contains("content-type: application/xml"), "{metadata}");
    while let Some(path) = waiting.pop() {
        if path.ends_with("/SSE") || !seen.insert(path.clone()) {
            continue;
        }
        let answer = daemon.ask("GET", &path, &token, "").expect("an answer");
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        let kind = answer.body["@odata.type"].as_str().expect("a type").trim_start_matches('#').to_owned();
        let space = kind.rsplit_once('.').map_or(kind.as_str(), |(space, _)| space);
        let is_described = kind.starts_with("Aquifer") || metadata.contains(&format!("Namespace=\"{space}\""));
        assert!(is_described, "the metadata document lacks {kind}");
        links(&answer.body, &mut waiting);
    }
    assert!(seen.len() > 30, "only {} resources were found", seen.len());
    finish(daemon);
}

fn links(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Array(all) => all.iter().for_each(|one| links(one, found)),
        Value::Object(map) => {
            found.extend(map.get("@odata.id").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|one| links(one, found));
        }
        _ => {}
    }
}

#[test]
fn roles_tokens_and_passwords_are_checked() {
    let (daemon, admin) = ready("roles", "[sessions]\nfailures = 3\n");
    let accounts = "/redfish/v1/AccountService/Accounts";
    for (name, role) in [("rita", "ReadOnly"), ("oscar", "Operator")] {
        let body = json!({ "UserName": name, "Password": "a long password", "RoleId": role }).to_string();
        assert_eq!(daemon.ask("POST", accounts, &admin, &body).expect("an answer").status, 201);
    }
    let (rita, oscar) = (daemon.login("rita", "a long password"), daemon.login("oscar", "a long password"));
    let status = |method: &str, path: &str, token: &str, body: &str| {
        daemon.ask(method, path, token, body).expect("an answer").status
    };
    assert_eq!(status("GET", CHUNKS, &rita, ""), 200);
    assert_eq!(status("POST", CONNECTIONS, &rita, &bind_body("cache", "h001")), 403);
    assert_eq!(status("POST", CONNECTIONS, &oscar, &bind_body("cache", "h001")), 201);
    assert_eq!(status("POST", APPLY, &oscar, &apply_body(&declaration())), 403);
    assert_eq!(status("GET", accounts, &oscar, ""), 403);
    assert_eq!(status("PATCH", &format!("{accounts}/rita"), &rita, r#"{"RoleId": "Administrator"}"#), 403);
    assert_eq!(status("PATCH", &format!("{accounts}/admin"), &admin, r#"{"RoleId": "ReadOnly"}"#), 409);
    assert_eq!(status("GET", CHUNKS, "", ""), 401);
    assert_eq!(status("GET", CHUNKS, "x-auth-token: 00.11\r\n", ""), 401);
    assert_eq!(status("GET", CHUNKS, "authorization: Basic !!!\r\n", ""), 401);
    // "rita:a long password"
    assert_eq!(status("GET", CHUNKS, "authorization: Basic cml0YTphIGxvbmcgcGFzc3dvcmQ=\r\n", ""), 200);
    let session =
        rita.trim().split_once(": ").and_then(|(_, token)| token.split_once('.')).expect("a token").0.to_owned();
    assert_eq!(status("DELETE", &format!("{SESSIONS}/{session}"), &rita, ""), 204);
    assert_eq!(status("GET", CHUNKS, &rita, ""), 401, "a replayed token");
    let wrong = json!({ "UserName": "rita", "Password": "a wrong password" }).to_string();
    let tried: Vec<u16> = (0..4).map(|_| status("POST", SESSIONS, "", &wrong)).collect();
    assert_eq!(tried, [401, 401, 401, 429], "the account is locked");
    let right = json!({ "UserName": "rita", "Password": "a long password" }).to_string();
    assert_eq!(status("POST", SESSIONS, "", &right), 429, "for the right password, too");
    assert_eq!(status("GET", CHUNKS, "authorization: Basic cml0YTphIGxvbmcgcGFzc3dvcmQ=\r\n", ""), 429);
    assert_eq!(status("GET", CHUNKS, &oscar, ""), 200, "other accounts are not");
    assert_eq!(status("PATCH", &format!("{accounts}/admin"), &admin, r#"{"Password": "another long one"}"#), 200);
    assert!(!daemon.directory.join("state/initial-password").exists());
    assert_eq!(status("GET", CHUNKS, &admin, ""), 401, "a changed account has no sessions");
    finish(daemon);
}

/// Goes over the whole table of routes, so that a new one cannot be left open by mistake.
#[test]
fn strangers_read_nothing_and_readers_change_nothing() {
    // The roots of the service, and its documents.
    const OPEN: [&str; 5] =
        ["/redfish", "/redfish/v1", "/redfish/v1/odata", "/redfish/v1/$metadata", "/redfish/v1/openapi.json"];
    let (daemon, admin) = ready("sweep", "");
    let body = json!({ "UserName": "rita", "Password": "a long password", "RoleId": "ReadOnly" }).to_string();
    let added = daemon.ask("POST", "/redfish/v1/AccountService/Accounts", &admin, &body).expect("an answer");
    assert_eq!(added.status, 201);
    let rita = daemon.login("rita", "a long password");
    let before = daemon.ask("GET", "/redfish/v1/Oem/Aquifer/Declaration", &admin, "").expect("an answer").body;
    let document = aquifer_manager::openapi();
    let mut changes = 0;
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let concrete = path.replace("{PoolId}", "main").replace("{VolumeId}", "db").replace(['{', '}'], "");
        for method in methods.as_object().expect("methods").keys().map(|method| method.to_uppercase()) {
            // Each account may change its own password, so only the handler can refuse.
            let is_account = method == "PATCH" && path.starts_with("/redfish/v1/AccountService/");
            let body = if is_account { r#"{"Password": "a long password"}"# } else { "" };
            let status = |token: &str| daemon.ask(&method, &concrete, token, body).expect("an answer").status;
            let is_login = method == "POST" && (path == SESSIONS || path.ends_with("/Aquifer.Join"));
            if is_login || OPEN.contains(&path.as_str()) {
                continue;
            }
            assert_eq!(status(""), 401, "{method} {path} for a stranger");
            // Readers end their own sessions, and may ask what a declaration would change.
            let is_theirs = path.starts_with(SESSIONS) || path.ends_with("/Plans");
            if method != "GET" && !is_theirs {
                assert_eq!(status(&rita), 403, "{method} {path} for a reader");
                changes += 1;
            }
        }
    }
    assert!(changes >= 12, "only {changes} routes that change something were found");
    let after = daemon.ask("GET", "/redfish/v1/Oem/Aquifer/Declaration", &admin, "").expect("an answer").body;
    assert_eq!(after, before);
    finish(daemon);
}

#[test]
fn a_move_leaves_what_is_on_devices_where_it_is() {
    let (daemon, token) = ready("devices", "");
    let ask = |method: &str, path: &str, body: &str| daemon.ask(method, path, &token, body).expect("an answer");
    let body = json!({ "Name": "near", "MemoryChunkSizeMiB": 2048,
                       "Oem": { "Aquifer": { "zone": "lab", "class": "cxl" } } });
    assert_eq!(ask("POST", CHUNKS, &body.to_string()).status, 201);
    assert_eq!(ask("POST", CONNECTIONS, &bind_body("near", "h001")).status, 201);
    assert!(daemon.settle(&token));
    let near = format!("{CHUNKS}/near");
    let members = |path: &str| ask("GET", path, "").body["Oem"]["Aquifer"]["Members"].clone();
    let before = members(&near);
    assert!(before[0]["Source"]["@odata.id"].as_str().is_some_and(|of| of.contains("Device.")), "{before}");
    let moved = ask("POST", &format!("{near}/Actions/Oem/AquiferMemoryChunk.Move"), "{}");
    assert_eq!((moved.status, &moved.body["Changes"]), (200, &json!([])), "{moved:?}");
    assert_eq!(members(&near), before);
    let db = format!("{CHUNKS}/db");
    let before = members(&db);
    let moved = ask("POST", &format!("{db}/Actions/Oem/AquiferMemoryChunk.Move"), "{}");
    assert_eq!(moved.status, 200, "{moved:?}");
    assert_ne!(members(&db), before, "what is on donors moves");
    assert!(daemon.settle(&token));
    finish(daemon);
}

#[test]
fn an_idle_session_ends() {
    let (daemon, token) = {
        let daemon = Daemon::start(&directory("idle"), &rack(None), "[sessions]\nidle-seconds = 1\n");
        let token = daemon.login("admin", &daemon.password());
        (daemon, token)
    };
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(daemon.ask("GET", CHUNKS, &token, "").expect("an answer").status, 401);
    finish(daemon);
}

#[test]
fn bad_requests_get_an_error_with_a_remedy_and_change_nothing() {
    let (daemon, token) = ready("bad", "");
    let version =
        || daemon.ask("GET", "/redfish/v1/Oem/Aquifer", &token, "").expect("an answer").body["Version"].clone();
    let before = version();
    let deep = "[".repeat(60_000);
    let large = format!("{{\"Name\": \"{}\"}}", "x".repeat(5 << 20));
    let oem = r#""Oem": {"Aquifer": {"zone": "lab", "class": "tcp"}}"#;
    for (path, body, status) in [
        (CHUNKS, "{", 400),
        (CHUNKS, "[]", 400),
        (CHUNKS, deep.as_str(), 400),
        (CHUNKS, large.as_str(), 413),
        (CHUNKS, r#"{"Name": "v"}"#, 400),
        (CHUNKS, &format!(r#"{{"Name": "v", "MemoryChunkSizeMiB": 2, "Nmae": 1, {oem}}}"#), 400),
        (CHUNKS, &format!(r#"{{"Name": "v", "MemoryChunkSizeMiB": -2, {oem}}}"#), 400),
        (CHUNKS, &format!(r#"{{"Name": "v", "MemoryChunkSizeMiB": 0, {oem}}}"#), 409),
        (CHUNKS, &format!(r#"{{"Name": "v", "MemoryChunkSizeMiB": 18446744073709551615, {oem}}}"#), 400),
        (CHUNKS, &format!(r#"{{"Name": "v", "MemoryChunkSizeMiB": 1048576, {oem}}}"#), 507),
        (CHUNKS, &format!(r#"{{"Name": "db", "MemoryChunkSizeMiB": 2, {oem}}}"#), 409),
        (CHUNKS, &format!("{{\"Name\": \"\u{430}\u{202e}\", \"MemoryChunkSizeMiB\": 2, {oem}}}"), 400),
        (CHUNKS, r#"{"Name": "v", "MemoryChunkSizeMiB": 2, "Oem": {"Aquifer": {"zone": "lab", "clas": 1}}}"#, 400),
        (CONNECTIONS, &bind_body("nothing", "h000"), 404),
        (CONNECTIONS, &bind_body("cache", "h999"), 404),
        (CONNECTIONS, &bind_body("cache", "../h000"), 400),
        (CONNECTIONS, r#"{"MemoryChunkInfo": [], "Links": {}}"#, 400),
        (APPLY, r#"{"Declaration": {"volums": {}}}"#, 400),
        (APPLY, r#"{"Declaration": {"pools": {"main": {"donors": ["d9999"]}}}}"#, 409),
        ("/redfish/v1/Fabrics/Aquifer", "{}", 405),
        ("/redfish/v1/%2e%2e/etc/passwd", "{}", 404),
        ("/redfish/v1/Nothing", "{}", 404),
    ] {
        let answer = daemon.ask("POST", path, &token, body).expect("an answer");
        let short: String = body.chars().take(100).collect();
        assert_eq!(answer.status, status, "{path} {short}: {answer:?}");
        let said = &answer.body["error"]["@Message.ExtendedInfo"][0];
        assert!(said["Resolution"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{path} {short}: {answer:?}");
    }
    assert_eq!(version(), before, "something was half done");
    finish(daemon);
}

#[test]
fn requests_cannot_be_smuggled() {
    let (daemon, token) = ready("smuggle", "");
    let inner = format!("GET /redfish/v1/Oem/Aquifer HTTP/1.1\r\nhost: a\r\n{token}connection: close\r\n\r\n");
    for head in [
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        "transfer-encoding: chunked\r\n",
        "transfer-encoding: identity\r\n",
        "content-length: 0\r\ncontent-length: 5\r\n",
        "content-length: +3\r\n",
        "content-length: 0x3\r\n",
        "content-length : 3\r\n",
        "bad header\r\n",
        "x: a\0b\r\n",
    ] {
        let outer = format!("POST {CHUNKS} HTTP/1.1\r\nhost: a\r\n{token}{head}\r\n0\r\n\r\n{inner}");
        let answer = daemon.raw(outer.as_bytes()).unwrap_or_default();
        assert!(!answer.contains("\"Term\""), "{head:?} lets a second request through: {answer}");
    }
    assert!(daemon.raw(&[b'A'; 100_000]).is_none_or(|answer| answer.contains(" 4")), "a head without an end");
    assert!(daemon.settle(&token), "and it goes on serving");
    finish(daemon);
}

#[test]
fn of_two_binds_at_once_one_is_done() {
    let (daemon, token) = ready("two", "");
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let bind = |host: &'static str| {
            let (daemon, token) = (&daemon, &token);
            scope.spawn(move || {
                daemon.ask("POST", CONNECTIONS, token, &bind_body("cache", host)).expect("an answer").status
            })
        };
        let both = [bind("h000"), bind("h001")];
        both.map(|thread| thread.join().expect("a status")).to_vec()
    });
    assert!(statuses == [201, 409] || statuses == [409, 201], "{statuses:?}");
    finish(daemon);
}

#[test]
fn a_large_rack_is_served() {
    let mut large = rack(None);
    (large.donors, large.hosts) = (1000, 200);
    let daemon = Daemon::start(&directory("large"), &large, "");
    let token = daemon.login("admin", &daemon.password());
    let donors: Vec<String> = (0..1000).map(|number| format!("d{number:04}")).collect();
    let hosts: Vec<String> = (0..200).map(|number| format!("h{number:03}")).collect();
    let volume = |number: usize| json!({ "spec": { "size": "1GiB", "pool": "main", "zone": "lab", "class": "tcp" }, "host": hosts[number % 200] });
    let volumes: serde_json::Map<String, Value> =
        (0..1000).map(|number| (format!("v{number}"), volume(number))).collect();
    let declaration = json!({ "pools": { "main": { "donors": donors } },
                              "zones": { "lab": { "quota": "2TiB", "hosts": hosts } }, "volumes": volumes });
    let applied = daemon.ask("POST", APPLY, &token, &apply_body(&declaration)).expect("an answer");
    assert_eq!(applied.status, 200, "{:?}", applied.body["error"]);
    assert!(daemon.settle(&token));
    let page = daemon
        .ask("GET", &format!("{CHUNKS}?$top=5&$filter=Status/State%20eq%20'Enabled'"), &token, "")
        .expect("an answer");
    assert_eq!(page.body["Members@odata.count"], 1000);
    finish(daemon);
}
