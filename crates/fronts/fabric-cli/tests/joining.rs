// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Machines join with tokens: a token gives one certificate, for one name. Hostile joiners get nothing: with a wrong, a
//! used or a deleted token, with requests for other names, with another manager in between, and with a thousand
//! connections. No secret is in the log, in the audit log or in the store.

mod program;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aquifer_authority::{Authority, Kind, Request, Subject, facts, first_of, pin, pinned_client};
use program::{Rack, one_line};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde_json::{Value, json};

const JOIN: &str = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Join";

/// Starts a manager with an authority, and logs an administrator in.
fn site(name: &str, more: &str) -> Rack {
    let mut rack = Rack::start(name, &format!("[ca]\njoins-per-minute = 10000\n{more}"));
    let authority = rack.directory.join("state/ca/ca.pem").display().to_string();
    rack.more = vec!["--ca".into(), authority];
    rack.log_in();
    rack
}

fn token(rack: &Rack, words: &[&str]) -> String {
    rack.done(&[&["token", "create"], words].concat()).trim().to_owned()
}

fn manager(rack: &Rack) -> &str {
    rack.url.strip_prefix("https://").expect("TLS")
}

/// Joins by running the program, with nothing but the token.
fn join(rack: &Rack, token: &str, out: &Path) -> std::process::Output {
    join_with(rack, token, out, &[])
}

fn join_with(rack: &Rack, token: &str, out: &Path, more: &[&str]) -> std::process::Output {
    let out = out.display().to_string();
    let mut child = program::spawn(
        std::process::Command::new(env!("CARGO_BIN_EXE_aquifer-fabric"))
            .args(["join", "--manager", manager(rack), "--token-stdin", "--out", &out])
            .args(more)
            .env_clear()
            .stdin(std::process::Stdio::piped()),
    );
    let _ = child.stdin.take().expect("a pipe").write_all(token.as_bytes());
    child.wait_with_output().expect("it ends")
}

/// Sends a handwritten request to join, and returns the status and the body of the answer.
fn ask(rack: &Rack, fingerprint: &str, body: &Value) -> (u16, Value) {
    let address = manager(rack);
    let config = Arc::new(pinned_client(fingerprint).expect("a configuration"));
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let socket = TcpStream::connect(address).expect("it listens");
    let mut stream = StreamOwned::new(ClientConnection::new(config, name).expect("a session"), socket);
    let body = body.to_string();
    let length = body.len();
    let text =
        format!("POST {JOIN} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).expect("sent");
    let mut answer = String::new();
    // The server may close the connection without an answer.
    let _ = stream.read_to_string(&mut answer);
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

fn fingerprint(token: &str) -> String {
    token.rsplit('.').next().expect("a part").to_owned()
}

#[test]
fn a_machine_joins_once_under_the_name_of_its_token() {
    let rack = site("join", "");
    let text = token(&rack, &["--kind", "donor", "--name", "d1", "--address", "10.0.0.7", "--expires", "15m"]);
    let out: PathBuf = rack.directory.join("d1");
    let joined = join(&rack, &text, &out);
    assert_eq!(joined.status.code(), Some(0), "{joined:?}");
    assert!(program::stdout(&joined).starts_with("donor d1 has joined; "), "{joined:?}");
    let credentials = fs::read_to_string(out.join("credentials.pem")).expect("written");
    let found = facts(&first_of(&credentials).expect("a certificate")).expect("ours");
    assert_eq!(found.names, ["d1.donor.aquifer.internal", "10.0.0.7"]);
    for file in ["credentials.pem", "ca.pem", "revocations.pem"] {
        let mode = fs::metadata(out.join(file)).expect(file).permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let files = ["credentials.pem", "credentials.pem", "ca.pem"].map(|file| out.join(file));
    let [cert, key, ca] = files;
    let files = aquifer_tls::Files { cert, key, ca };
    let usable = files.load().and_then(|loaded| loaded.for_donor(Some(&out.join("revocations.pem"))));
    usable.expect("a donor can use what it got");

    // Another machine with the same token, and the same machine without --replace.
    let again = one_line(1, &join(&rack, &text, &rack.directory.join("other")));
    assert!(again.contains("was used already"), "{again}");
    assert!(!rack.directory.join("other/credentials.pem").exists());
    assert!(one_line(1, &join(&rack, &text, &out)).contains("add --replace"));

    let all = rack.json(&["token", "certificates"]);
    let one = &all["Members"][0];
    assert_eq!(
        (&one["Id"], &one["EndName"], &one["Revoked"]),
        (&found.serial.clone().into(), &"d1".into(), &Value::Null)
    );
    rack.done(&["token", "revoke", &found.serial]);
    assert_ne!(rack.json(&["token", "certificates"])["Members"][0]["Revoked"], Value::Null);
    let next = token(&rack, &["--kind", "host", "--name", "h1"]);
    let out = rack.directory.join("h1");
    assert_eq!(join(&rack, &next, &out).status.code(), Some(0));
    let list = fs::read_to_string(out.join("revocations.pem")).expect("written");
    assert_eq!(list, fs::read_to_string(rack.directory.join("state/ca/revocations.pem")).expect("written"));

    let audit = rack.json(&["audit"]);
    let lines: Vec<&str> =
        audit["Records"].as_array().expect("records").iter().filter_map(|one| one["what"].as_str()).collect();
    for part in ["create token ", "for donor d1 (d1.donor.aquifer.internal, 10.0.0.7)", "revoke certificate "] {
        assert!(lines.iter().any(|line| line.contains(part)), "{part}: {lines:?}");
    }
    let secret = text.split('.').nth(2).expect("a part");
    assert!(!audit.to_string().contains(secret) && !rack.json(&["token"]).to_string().contains(secret));
    let store = fs::read(rack.directory.join("state/state.redb")).expect("the store");
    let is_in_store = store.windows(secret.len()).any(|window| window == secret.as_bytes());
    assert!(!is_in_store, "the store has the secret");
}

#[test]
fn dry_runs_of_tokens_joins_and_revocations_check_everything_and_change_nothing() {
    let rack = site("dry", "");
    let words = ["token", "create", "--kind", "donor", "--name", "d1", "--address", "10.0.0.7"];
    let planned = rack.done(&[&words[..], &["--dry-run"]].concat());
    assert!(
        planned.starts_with("+ create token for donor d1 (d1.donor.aquifer.internal, 10.0.0.7) with 1 use, until 20"),
        "{planned}"
    );
    let foreign = ["token", "create", "--kind", "donor", "--name", "d1", "--address", "h1.host.aquifer.internal"];
    let refused = rack.fails(1, &foreign);
    assert_eq!(rack.fails(1, &[&foreign[..], &["--dry-run"]].concat()), refused, "it is checked as a real one");
    assert_eq!(rack.json(&["token"])["Members@odata.count"], 0, "no token was made");

    let text = token(&rack, &words[2..]);
    let out = rack.directory.join("above/d1");
    let planned = join_with(&rack, &text, &out, &["--dry-run"]);
    assert_eq!(planned.status.code(), Some(0), "{planned:?}");
    let lines = program::stdout(&planned);
    assert!(lines.starts_with("+ write credentials.pem, ca.pem and revocations.pem to "), "{lines}");
    assert!(lines.contains("\nremark  only the join itself shows whether the token"), "{lines}");
    assert!(!rack.directory.join("above").exists(), "nothing is written");
    assert_eq!(rack.json(&["token"])["Members"][0]["UsesLeft"], 1);
    let file = PathBuf::from(rack.file("file", ""));
    let refused = one_line(1, &join_with(&rack, &text, &file.join("d1"), &["--dry-run"]));
    assert!(refused.contains("cannot be used") && refused.contains("name another directory"), "{refused}");
    let other = site("dry-other", "");
    let refused = one_line(1, &join_with(&other, &text, &out, &["--dry-run"]));
    assert!(refused.contains("TLS with"), "another manager is not the one of the token: {refused}");

    let id = text.split('.').nth(1).expect("an id");
    assert_eq!(rack.done(&["token", "delete", id, "--dry-run"]), format!("- delete token {id}\n"));
    assert_eq!(rack.json(&["token"])["Members@odata.count"], 1, "it is still there");
    assert_eq!(join(&rack, &text, &out).status.code(), Some(0));
    assert!(one_line(1, &join_with(&rack, &text, &out, &["--dry-run"])).contains("add --replace"));
    rack.fails(1, &["token", "delete", "00ff", "--dry-run"]);

    let serial = rack.json(&["token", "certificates"])["Members"][0]["Id"].as_str().expect("a number").to_owned();
    let revoke = ["token", "revoke", &serial, "--dry-run"];
    assert_eq!(rack.done(&revoke), format!("- revoke certificate {serial} of donor d1\n"));
    assert_eq!(rack.json(&["token", "certificates"])["Members"][0]["Revoked"], Value::Null);
    rack.fails(1, &["token", "revoke", "00ff", "--dry-run"]);
    rack.done(&revoke[..3]);
    assert_eq!(rack.done(&revoke), "nothing changes\n", "it is revoked already");
}

/// A donor or an agent renews the files itself, as another user than the one who ran the command.
#[test]
fn what_root_joins_belongs_to_the_owner_of_the_directory_above() {
    if !nix::unistd::geteuid().is_root() {
        return aquifer_test_support::skip("only root can give files away");
    }
    let rack = site("owner", "");
    let above = rack.directory.join("state-of-another");
    fs::create_dir(&above).expect("made");
    chown(&above, Some(65534), Some(65534)).expect("root may");
    let out = above.join("d1");
    for replaces in [false, true] {
        let text = token(&rack, &["--kind", "donor", "--name", "d1", "--address", "10.0.0.7"]);
        let joined = join_with(&rack, &text, &out, if replaces { &["--replace"] } else { &[] });
        assert_eq!(joined.status.code(), Some(0), "{joined:?}");
        let files = ["credentials.pem", "ca.pem", "revocations.pem"].map(|file| out.join(file));
        for path in files.iter().chain([&out]) {
            let found = fs::metadata(path).expect("made");
            // The second time, the owner has let the group in.
            let group = if !replaces {
                0
            } else if found.is_dir() {
                0o050
            } else {
                0o040
            };
            assert_eq!((found.uid(), found.gid(), found.mode() & 0o077), (65534, 65534, group), "{}", path.display());
            let mode = if found.is_dir() { 0o750 } else { 0o640 };
            fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("root may");
        }
    }
}

#[test]
fn hostile_joiners_get_nothing() {
    let rack = site("hostile", "");
    let text = token(&rack, &["--kind", "host", "--name", "h1", "--uses", "3"]);
    let pinned = fingerprint(&text);
    let own = Request::new().expect("made");
    let request =
        |token: &str, pem: &str| ask(&rack, &pinned, &json!({ "Token": token, "CertificateSigningRequest": pem }));
    let mut wrong = text.clone();
    let at = text.find('.').expect("a dot") + 20;
    wrong.replace_range(at..=at, if &text[at..=at] == "0" { "1" } else { "0" });
    let stranger = text.replacen(&text[5..21], "0123456789abcdef", 1);
    for bad in [wrong.as_str(), &stranger, "", "aqj1", &"a".repeat(50_000), &"a".repeat(100_000), "\u{202e}"] {
        let (status, body) = request(bad, own.pem());
        // Longer than any body may be that is no declaration.
        let is_long = bad.len() > 64 << 10;
        assert_eq!(status, if is_long { 413 } else { 403 }, "{body}");
        let line = body["error"]["message"].as_str().expect("a message");
        assert!(line.contains("; ") && !line.contains('\n') && !line.contains(&text[22..80]), "{line}");
    }
    // Requests for another machine's name, for more names, and to be an authority.
    let named = |names: &[&str], is_ca: bool| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names).expect("names");
        params.distinguished_name = rcgen::DistinguishedName::new();
        if is_ca {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        }
        params.serialize_request(&rcgen::KeyPair::generate().expect("a key")).expect("made").pem().expect("PEM")
    };
    for pem in [
        named(&["h2.host.aquifer.internal"], false),
        named(&["h1.donor.aquifer.internal"], false),
        named(&["h1.host.aquifer.internal", "fabric.example"], false),
        named(&[], true),
        "no request".to_owned(),
    ] {
        assert_eq!(request(&text, &pem).0, 403);
    }
    assert_eq!(rack.json(&["token", "certificates"])["Members@odata.count"], 0, "nothing was signed");
    assert_eq!(rack.json(&["token"])["Members"][0]["UsesLeft"], 3, "a refused request uses nothing up");

    // Many joins at once with one token get only as many certificates as the token has uses.
    let given: usize = std::thread::scope(|scope| {
        let ask = || usize::from(request(&text, Request::new().expect("made").pem()).0 == 200);
        let asked: Vec<_> = (0..12).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().map(|one| one.join().expect("it ends")).sum()
    });
    assert_eq!(given, 3);
    assert_eq!(rack.json(&["token", "certificates"])["Members@odata.count"], 3);

    let next = token(&rack, &["--kind", "donor", "--name", "d9"]);
    let id = next.split('.').nth(1).expect("an id");
    rack.done(&["token", "delete", id]);
    let deleted = one_line(1, &join(&rack, &next, &rack.directory.join("d9")));
    assert!(deleted.contains("is not known here"), "{deleted}");
    rack.fails(1, &["token", "delete", id]);
    rack.fails(1, &["token", "revoke", "00ff"]);
    for words in [&["--kind", "donor", "--name", "D1"][..], &["--kind", "donor", "--name", "d1", "--expires", "8d"]] {
        assert_eq!(rack.run(&[&["token", "create"], words].concat()).status.code(), Some(2));
    }
    rack.fails(1, &["token", "create", "--kind", "donor", "--name", "d1", "--address", "h1.host.aquifer.internal"]);
}

#[test]
fn another_manager_in_between_gets_no_token() {
    let (rack, other) = (site("pinned", ""), site("between", ""));
    let text = token(&rack, &["--kind", "donor", "--name", "d1"]);
    // The other one's authority is not the one in the token.
    let refused = one_line(1, &join(&other, &text, &rack.directory.join("d1")));
    assert!(refused.contains("TLS with"), "{refused}");
    assert!(!rack.directory.join("d1/credentials.pem").exists());
    assert_eq!(join(&rack, &text, &rack.directory.join("d1")).status.code(), Some(0), "the token was not used up");
}

#[test]
fn a_fingerprint_admits_one_authority_and_the_managers_name() {
    let now = aquifer_fabric::Millis(1_800_000_000_000);
    let one = Authority::make("one", now).expect("made");
    assert_ne!(pin(one.der()), pin(Authority::make("one", now).expect("made").der()));
    let subject = Subject::new(Kind::Manager, "m1", "one.internal", &[]).expect("good");
    let signed = one.sign(Request::new().expect("made").pem(), &subject, 1, now).expect("signed");
    assert!(signed.chain.ends_with(one.pem()), "the chain has what a token names");
}

#[test]
fn a_thousand_connections_wait_and_an_address_that_asks_too_often_is_told_to() {
    let mut rack = Rack::start("crowd", "[ca]\njoins-per-minute = 5\n");
    rack.more = vec!["--ca".into(), rack.directory.join("state/ca/ca.pem").display().to_string()];
    rack.log_in();
    let text = token(&rack, &["--kind", "donor", "--name", "d1"]);
    // No more at a time than the manager accepts, so that the other tests of this process have descriptors left.
    for _ in 0..4 {
        let silent: Vec<TcpStream> = (0..250).map_while(|_| TcpStream::connect(manager(&rack)).ok()).collect();
        drop(silent);
    }
    let wrong = json!({ "Token": "aqj1.x", "CertificateSigningRequest": "x" });
    let statuses: Vec<u16> = (0..12).map(|_| ask(&rack, &fingerprint(&text), &wrong).0).collect();
    assert!(statuses.contains(&403) && statuses.contains(&429), "{statuses:?}");
    // The limit does not apply to an administrator.
    assert_eq!(rack.json(&["token"])["Members"][0]["UsesLeft"], 1);
}

#[test]
fn a_manager_without_an_authority_says_so() {
    let rack = Rack::start("without", "");
    rack.log_in();
    let line = rack.fails(1, &["token", "create", "--kind", "donor", "--name", "d1"]);
    assert!(line.contains("has no authority; add [ca]"), "{line}");
    assert_eq!(rack.json(&["token"])["Members@odata.count"], 0);
    assert_eq!(rack.json(&["token", "certificates"])["Members@odata.count"], 0);
}
