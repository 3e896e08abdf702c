// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What must not work: bad input, a wrong password, no daemon, an expired session, files that others can read, servers
//! that are not a manager; and TLS with the wrong authority.

mod program;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use program::{Rack, directory, one_line, session_file, stderr, stdout};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

fn rack_at(name: &str, url: String) -> Rack {
    Rack { directory: directory(name), url, more: Vec::new() }
}

#[test]
fn bad_input_is_a_usage_error_before_anything_is_asked() {
    let rack = rack_at("input", "http://127.0.0.1:1".to_owned());
    let create = ["create", "a", "--zone", "lab", "--class", "tcp", "--size"];
    for (words, cause) in [
        (&["volums"][..], "volumes"),
        (&["create", "A b", "--size", "2MiB", "--zone", "lab", "--class", "tcp"], "use only a-z"),
        (&[&create[..], &["8gb"]].concat(), "is not a size"),
        (&[&create[..], &["1KiB"]].concat(), "1KiB cannot be the size of a volume; write 1MiB or more"),
        (&[&create[..], &["2MiB", "--redundancy", "mirror=1"]].concat(), "write none, mirror=2"),
        (&[&create[..], &["2MiB", "--label", "owner"]].concat(), "; write KEY=VALUE, such as owner=ada"),
        (&[&create[..], &["2MiB", "--donor", "D 1"]].concat(), "name"),
        (&[&create[..], &["2MiB", "--expires", "12"]].concat(), "write a number and s, m, h or d, such as 15m; 3650d"),
        (&[&create[..], &["2MiB", "--expires", "0s"]].concat(), "0 is too small; write 1s or more, such as 15m; 3650d"),
        (&["token", "create", "--kind", "host", "--name", "h1", "--expires", "0m"], "0 is too small; write 1s or more"),
        (&[&create[..], &["2MiB", "--weights", "3,0"]].concat(), "it is not a weight; write numbers from 1 to 16"),
        (&["bind", "db"], "<HOST>"),
        (&["bind", "db", "../h000"], "name"),
        (&["grow", "db", "0MiB"], "write 1MiB or more"),
        (&["declare-gone", "switch", "s0"], "invalid value 'switch'"),
        (&["status", "--interval", "0"], "0 is not in"),
        (&["accounts", "change", "rita"], "required"),
        (&["audit", "--count", "1001"], "1001 is not in"),
    ] {
        let output = rack.run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(cause), "{words:?}: {}", stderr(&output));
    }
    for (url, cause) in [
        ("http://10.0.0.7:7443", "would send the password"),
        ("fabric", "is not an address of a manager"),
        ("https://fabric.example", "name the file with their certificates"),
    ] {
        let rack = rack_at("url", url.to_owned());
        assert!(rack.fails(2, &["status"]).contains(cause), "{url}");
    }
}

#[test]
fn without_a_manager_or_a_session_the_line_says_what_to_do() {
    // A port that nobody has: it was free a moment ago, and its listener was closed without a connection.
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let rack = rack_at("nobody", format!("http://127.0.0.1:{port}"));
    let line = rack.fails(1, &["status"]);
    assert_eq!(line, format!("nobody is logged in at {}; run 'aquifer fabric login ACCOUNT'", rack.url));
    let line = one_line(1, &rack.fed(&["login", "admin", "--password-stdin"], "a long password"));
    assert!(line.contains("cannot be reached") && line.contains("aquifer fabric serve"), "{line}");
    assert!(rack.fails(2, &["login", "admin"]).contains("AQUIFER_FABRIC_PASSWORD"));
    assert!(one_line(2, &rack.fed(&["login", "admin", "--password-stdin"], "")).contains("has no password"));
}

#[test]
fn a_wrong_password_an_ended_and_an_expired_session_are_refused() {
    let rack = Rack::start("expired", "[sessions]\nidle-seconds = 1\n");
    let line = one_line(1, &rack.fed(&["login", "admin", "--password-stdin"], "a wrong password"));
    assert!(line.starts_with("name or password is wrong; check both"), "{line}");
    assert!(!rack.directory.join("aquifer").exists(), "nothing is kept");
    rack.log_in();
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let ended = "the session is not known or has ended; run 'aquifer fabric login ACCOUNT'";
    assert_eq!(rack.fails(1, &["status"]), ended);

    let rack = Rack::start("ended", "");
    rack.log_in();
    let file = session_file(&rack.directory);
    assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    let old = fs::read(&file).expect("it can be read");
    rack.done(&["logout"]);
    assert!(!file.exists());
    fs::write(&file, &old).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("ours");
    assert_eq!(rack.fails(1, &["status"]), ended, "a replayed token");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("ours");
    assert!(rack.fails(1, &["status"]).contains("other users can read"));
    fs::write(&file, "{").expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("ours");
    assert!(rack.fails(1, &["status"]).contains("is damaged"));
    rack.log_in();
    rack.done(&["status"]);
}

#[test]
fn a_token_is_sent_only_to_the_manager_that_gave_it() {
    let mut rack = Rack::start("given", "");
    rack.log_in();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let other = format!("http://{}", listener.local_addr().expect("an address"));
    let (sender, connections) = std::sync::mpsc::channel();
    // Each connection is ended at once, so that a program that makes one does not wait for an answer.
    std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(sender.send(stream.peer_addr()))));
    let copy = session_file(&rack.directory);
    let name = other.chars().map(|one| if one.is_ascii_alphanumeric() || one == '.' { one } else { '-' });
    let target = copy.with_file_name(format!("fabric-session-{}", name.collect::<String>()));
    fs::copy(&copy, target).expect("copied");
    let mut other_rack = rack_at("given-other", other);
    std::mem::swap(&mut other_rack.directory, &mut rack.directory);
    let line = one_line(1, &other_rack.run(&["status"]));
    assert!(line.starts_with("nobody is logged in at"), "{line}");
    assert!(connections.try_recv().is_err(), "nothing was sent");
}

/// Answers one request with these bytes.
fn answers(bytes: Vec<u8>) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let (mut request, mut piece) = (Vec::new(), [0; 4096]);
        // Closing with unread bytes would reset the connection, perhaps before the answer is read. The body is JSON.
        while !request.ends_with(b"}") {
            match stream.read(&mut piece) {
                Ok(count) if count > 0 => request.extend_from_slice(&piece[..count]),
                _ => break,
            }
        }
        let _ = stream.write_all(&bytes);
    });
    (url, thread)
}

#[test]
fn a_server_that_is_no_manager_gets_one_line_and_steers_no_terminal() {
    let http = |body: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes();
    let error = r#"{"error": {"code": "c", "message": "a\u001b[2J\nb; c"}}"#;
    let error = format!("HTTP/1.1 409 C\r\ncontent-length: {}\r\n\r\n{error}", error.len()).into_bytes();
    for (bytes, cause) in [
        (Vec::new(), "was lost"),
        (b"SSH-2.0-x\r\n".to_vec(), "was lost"),
        (http("<html>"), "is not JSON"),
        (http("{}"), "has no token"),
        (http(&"[".repeat(100_000)), "is not JSON"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{".to_vec(), "broke off"),
        (b"HTTP/1.1 302 F\r\nlocation: http://a/\r\ncontent-length: 0\r\n\r\n".to_vec(), "status 302"),
        (b"HTTP/1.1 500 E\r\ncontent-length: 2\r\n\r\n\xff\xfe".to_vec(), "status 500"),
        (error, "a\\u{1b}[2J\\nb; c"),
    ] {
        let (url, thread) = answers(bytes);
        let rack = rack_at("server", url);
        let line = one_line(1, &rack.fed(&["login", "admin", "--password-stdin"], "a long password"));
        assert!(line.contains(cause), "{cause}: {line}");
        thread.join().expect("it has answered");
    }
}

/// Makes an authority, and returns its file and a configuration of TLS with a certificate that it signed for an
/// address.
fn authority(directory: &Path, name: &str) -> (String, String) {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("parameters");
    let certificate = params.signed_by(&key, &issuer).expect("a certificate");
    let write = |file: &str, text: String| {
        let path = directory.join(format!("{name}-{file}"));
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
        path.display().to_string()
    };
    let (certificate, key) = (write("cert.pem", certificate.pem()), write("key.pem", key.serialize_pem()));
    (write("ca.pem", issuer.pem()), format!("[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n"))
}

#[test]
fn tls_is_with_the_managers_authority_alone() {
    let files = directory("authorities");
    let (ca, config) = authority(&files, "right");
    let (other, _) = authority(&files, "other");
    let mut rack = Rack::start("tls", &config);
    rack.more = vec!["--ca".to_owned(), ca];
    rack.log_in();
    assert!(rack.done(&["status"]).contains("donors   4 of 4 answer"));
    rack.more[1] = other;
    assert!(rack.fails(1, &["status"]).contains("invalid peer certificate"));
    rack.more[1] = rack.file("empty.pem", "");
    assert!(rack.fails(1, &["status"]).contains("it has no certificate"));
    let _ = fs::remove_dir_all(files);
}

/// The line named the parser's complaint about an answer in TLS, and not the letter that is missing in the address.
#[test]
fn a_manager_with_tls_that_is_asked_in_plain_text_is_named_by_its_right_address() {
    let files = directory("plain-text");
    let (_, config) = authority(&files, "right");
    let mut rack = Rack::start("plain", &config);
    let right = rack.url.clone();
    rack.url = right.replace("https://", "http://");
    let login = ["login", "admin", "--password-stdin"];
    let line = one_line(1, &rack.fed(&login, "a long password"));
    assert!(line.contains(&format!("if it uses TLS, its address is {right}; otherwise check")), "{line}");
    // Some servers only close the connection.
    let (url, thread) = answers(Vec::new());
    let line = one_line(1, &rack_at("closes", url.clone()).fed(&login, "a long password"));
    let right = url.replace("http://", "https://");
    assert!(line.contains(&format!("if it uses TLS, its address is {right}; otherwise check")), "{line}");
    thread.join().expect("it has closed");
    let _ = fs::remove_dir_all(files);
}

#[test]
fn serve_starts_the_daemon_beside_the_program() {
    let directory = directory("serve");
    let program = directory.join("aquifer-fabric");
    fs::hard_link(env!("CARGO_BIN_EXE_aquifer-fabric"), &program).expect("linked");
    let serve = |words: &[&str]| Command::new(&program).arg("serve").args(words).output().expect("it starts");
    let check = ["--config", "f.toml", "--check"];
    let line = one_line(125, &serve(&check));
    assert!(line.contains("aquifer-fabricd is not at") && line.contains("make fabric"), "{line}");
    // A shell writes it: a file that this process has written may be busy while another test forks.
    let write = r#"printf '#!/bin/sh\necho "$@"; exit 4\n' > "$0"; chmod 755 "$0""#;
    assert!(
        Command::new("sh").args(["-c", write]).arg(directory.join("aquifer-fabricd")).status().expect("sh").success()
    );
    for words in [&check[..], &["--print-config"]] {
        let output = serve(words);
        assert_eq!((output.status.code(), stdout(&output)), (Some(4), format!("{}\n", words.join(" "))));
    }
    assert_eq!(serve(&[]).status.code(), Some(2), "neither a file nor --print-config");
    let _ = fs::remove_dir_all(directory);
}
