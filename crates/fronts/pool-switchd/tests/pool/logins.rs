// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Sessions and passwords, and configurations that do not fit the manager.
//!
//! The program logged in again after any failure: a manager that answered every read with an error got two logins a
//! second, each of which made a session. And it waited 30 s for a password that would not become right.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};

use crate::fake::{Fake, error, healthy};
use crate::site::{
    ACCOUNTS, Front, PASSWORD, SEEN_MAX, Site, failed_start, new_directory, refused_start, write_config,
};

/// A start that cannot succeed ends long before the 30 s that it waits for a manager.
const AT_ONCE: Duration = Duration::from_secs(15);
/// How long a front is watched that has trouble: several looks.
const WATCHED: Duration = Duration::from_secs(6);

fn sessions(site: &Site) -> usize {
    let (status, body) = site.ask("GET", "/redfish/v1/SessionService/Sessions?$expand=.", &Value::Null);
    assert_eq!(status, 200);
    let all = body["Members"].as_array().expect("sessions");
    all.iter().filter(|session| session["UserName"] == "fmapi").count()
}

#[test]
fn a_start_that_cannot_succeed_ends_at_once_and_says_why() {
    let site = Site::without_front("final");
    let reader = json!({ "UserName": "reader", "Password": PASSWORD, "RoleId": "ReadOnly" });
    assert_eq!(site.ask("POST", ACCOUNTS, &reader).0, 201);
    for (from, to, cause, remedy) in [
        (
            "account = \"fmapi\"",
            "account = \"nobody\"",
            "refuses account nobody: name or password is wrong",
            "correct account",
        ),
        ("account = \"fmapi\"", "account = \"reader\"", "account reader has the role ReadOnly", "correct account"),
        ("password\"", "missing\"", "missing: No such file", "first line"),
        ("pool = \"main\"", "pool = \"mian\"", "has no pool mian", "correct pool"),
        ("zone = \"lab\"", "zone = \"lap\"", "has no zone lap", "correct zone"),
        ("[\"d0000\", \"d0099\"]", "[\"d0000\", \"d0000\"]", "donors: d0000 is listed twice", "list each name once"),
    ] {
        site.configure(from, to);
        let (text, took) = refused_start(&site.directory);
        assert!(text.contains(cause) && text.contains(remedy), "{text}");
        assert!(took < AT_ONCE, "{to}: {took:?}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert_eq!(sessions(&site), 0, "{to}: it has logged out");
        site.configure(to, from);
    }
    std::fs::write(site.directory.join("password"), "another password\n").expect("written");
    let (text, took) = refused_start(&site.directory);
    assert!(text.contains("refuses account fmapi: name or password is wrong; correct account, or the password in"));
    assert!(took < AT_ONCE, "{took:?}");
    write_config(&site.directory, &format!("http://{}", site.daemon.address));
    let names: Vec<String> = (0..17).map(|number| format!("\"d{number:04}\"")).collect();
    site.configure("[\"d0000\", \"d0099\"]", &format!("[{}]", names.join(", ")));
    let (text, _) = refused_start(&site.directory);
    assert!(text.contains("donors: 17 names are listed; list 1 to 16"), "{text}");
}

/// The unit restarted a program that could not start every two seconds: a wrong password locked the account, and
/// anything else made a session each time.
#[test]
fn a_start_that_fails_leaves_no_session_and_is_repeated_only_where_that_may_help() {
    let site = Site::without_front("leaves");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let (text, code) = failed_start(&site.directory, &["--listen", &address]);
    assert!(text.contains(&format!("cannot listen on {address}")), "{text}");
    assert_eq!((code, sessions(&site)), (Some(1), 0), "the port may become free");
    let nowhere = site.directory.join("none/switch.sock").display().to_string();
    let (text, code) = failed_start(&site.directory, &["--no-tcp", "--socket", &nowhere]);
    assert!(text.contains(&format!("cannot listen on {nowhere}")), "{text}");
    assert_eq!((code, sessions(&site)), (Some(2), 0), "the directory stays away");
    let unit = include_str!("../../../../../packaging/aquifer-pool-switchd.service");
    assert!(unit.contains("\nRestart=on-failure\nRestartPreventExitStatus=2\n"), "{unit}");
}

#[test]
fn a_check_reads_the_password() {
    let directory = new_directory("check");
    write_config(&directory, "http://127.0.0.1:1");
    let file = directory.join("password");
    std::fs::write(&file, "\n").expect("written");
    let (text, code) = failed_start(&directory, &["--check"]);
    assert!(text.contains("its first line is empty; name a file whose first line"), "{text}");
    assert_eq!(code, Some(2));
    std::fs::remove_file(&file).expect("removed");
    let (text, code) = failed_start(&directory, &["--check"]);
    assert!(text.contains("password: No such file"), "{text}");
    assert_eq!(code, Some(2));
}

#[test]
fn an_account_without_a_role_is_refused_in_words() {
    let fake = Fake::start(|method, path| match path.ends_with("/fmapi") {
        true => (200, json!({})),
        false => healthy(method, path),
    });
    let directory = new_directory("role");
    write_config(&directory, &fake.url);
    let (text, _) = refused_start(&directory);
    assert!(text.contains("account fmapi has no role and cannot change volumes; give it"), "{text}");
}

/// Starts a server that shakes hands with its certificate and then says nothing. Returns its port and the certificate.
fn shake_hands() -> (u16, String) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("a certificate");
    let (certificate, pem) = (made.cert.der().clone(), made.cert.pem());
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let builder = builder.expect("TLS 1.3").with_no_client_auth();
    let config = Arc::new(builder.with_single_cert(vec![certificate], key).expect("a pair"));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut connection = rustls::ServerConnection::new(Arc::clone(&config)).expect("a connection");
            // The client that this is for does not like the certificate.
            while connection.is_handshaking() && connection.complete_io(&mut stream).is_ok() {}
        }
    });
    (port, pem)
}

#[test]
fn a_manager_that_is_not_trusted_ends_the_start_at_once() {
    let directory = new_directory("untrusted");
    let ((port, _), (_, other)) = (shake_hands(), shake_hands());
    std::fs::write(directory.join("ca.pem"), other).expect("written");
    write_config(&directory, &format!("https://localhost:{port}"));
    let file = directory.join("front.toml");
    let text = std::fs::read_to_string(&file).expect("text");
    std::fs::write(&file, format!("ca = {:?}\n{text}", directory.join("ca.pem"))).expect("written");
    let (text, took) = refused_start(&directory);
    assert!(text.contains("invalid peer certificate"), "{text}");
    assert!(took < AT_ONCE, "{took:?}");
}

#[test]
fn a_manager_that_fails_is_not_flooded_with_sessions() {
    let fake = Fake::start(healthy);
    let directory = new_directory("flood");
    write_config(&directory, &fake.url);
    let front = Front::start(&directory);
    assert_eq!(fake.count("POST Sessions"), 1);
    // Every read fails, and that says nothing about the session.
    fake.forget();
    fake.answer(|method, path| if method == "GET" { (500, error("it is broken")) } else { healthy(method, path) });
    std::thread::sleep(WATCHED);
    assert_eq!(fake.count("POST Sessions"), 0);
    assert!(fake.count("GET Aquifer") > 2, "it is asked again");
    assert!(front.refused("allocate --port 0 --ld 0 --size 256MiB").contains("; "));
    // Every session is refused.
    fake.forget();
    fake.answer(|method, path| if method == "GET" { (401, error("log in")) } else { healthy(method, path) });
    std::thread::sleep(WATCHED);
    assert!(fake.count("POST Sessions") <= 2, "{} logins", fake.count("POST Sessions"));
    // Every login is refused.
    fake.forget();
    fake.answer(|_, _| (401, error("log in")));
    std::thread::sleep(WATCHED * 2);
    assert!(fake.count("POST Sessions") <= 2, "{} logins", fake.count("POST Sessions"));
    let said = front.said();
    let silent: Vec<&String> = said.iter().filter(|line| line.contains("what was last known")).collect();
    assert_eq!(silent.len(), 1, "{said:?}");
    fake.answer(healthy);
}

#[test]
fn a_session_that_has_ended_is_replaced() {
    let (site, front) = Site::start("session");
    assert_eq!(sessions(&site), 1);
    std::thread::sleep(Duration::from_secs(10));
    let (_, all) = site.ask("GET", "/redfish/v1/SessionService/Sessions?$expand=.", &Value::Null);
    let mine = all["Members"].as_array().expect("sessions").iter().find(|session| session["UserName"] == "fmapi");
    let path = mine.expect("a session")["@odata.id"].as_str().expect("a path").to_owned();
    assert_eq!(site.ask("DELETE", &path, &Value::Null).0, 204);
    front.fmapi("allocate --port 0 --ld 0 --size 256MiB").expect("room");
    assert_eq!(sessions(&site), 1);
    let said = front.said();
    assert!(said.iter().all(|line| line.contains("does not know")), "nobody has to do anything: {said:?}");
    site.finish(front);
}

#[test]
fn a_password_that_was_changed_is_reported_once_and_read_again() {
    let (site, front) = Site::start("password");
    let account = format!("{ACCOUNTS}/fmapi");
    assert_eq!(site.ask("PATCH", &account, &json!({ "Password": "one that is new" })).0, 200);
    front.refused("allocate --port 0 --ld 0 --size 256MiB");
    std::thread::sleep(WATCHED + SESSION_MIN);
    let said = front.said();
    let lines: Vec<&String> = said.iter().filter(|line| line.contains("what was last known")).collect();
    assert_eq!(lines.len(), 1, "{said:?}");
    let audit = site.ask("GET", "/redfish/v1/Oem/Aquifer/Audit", &Value::Null).1.to_string();
    let wrong = audit.matches("login: wrong password").count();
    assert!(wrong == 1, "{wrong} wrong passwords");
    std::fs::write(site.directory.join("password"), "one that is new\n").expect("written");
    let begun = Instant::now();
    while front.fmapi("allocate --port 0 --ld 0 --size 256MiB").is_err() {
        assert!(begun.elapsed() < SEEN_MAX, "{:?}", front.said());
        std::thread::sleep(Duration::from_millis(500));
    }
    site.finish(front);
}

/// As long as the program waits between two sessions.
const SESSION_MIN: Duration = Duration::from_secs(10);
