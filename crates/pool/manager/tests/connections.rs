// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Connections that are more than one request: TLS, and the stream of events, over real sockets.

mod daemon;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aquifer_manager::Config;
use daemon::{
    APPLY, Answer, CONNECTIONS, Daemon, SESSIONS, WAIT_MAX, apply_body, bind_body, declaration, directory, rack,
    request,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, StreamOwned};
use serde_json::{Value, json};

const STREAM: &str = "/redfish/v1/EventService/SSE";
/// The name in the daemon's certificate.
const NAME: &str = "fabric.example";

/// An authority, and a certificate that it signed, in a directory.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority"))
    }

    /// Writes a certificate and its key, and returns the settings for them.
    fn sign(&self, directory: &Path) -> String {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![NAME.to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, &self.0).expect("signed");
        std::fs::write(directory.join("cert.pem"), certificate.pem()).expect("written");
        std::fs::write(directory.join("key.pem"), key.serialize_pem()).expect("written");
        format!("[tls]\ncertificate = {:?}\nkey = {:?}\n", directory.join("cert.pem"), directory.join("key.pem"))
    }

    /// Returns a client that trusts only this authority.
    fn client(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let pem = self.0.pem();
        roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut client = builder.expect("TLS").with_root_certificates(roots).with_no_client_auth();
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(client)
    }
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

fn connect(daemon: &Daemon) -> TcpStream {
    let stream = TcpStream::connect(&daemon.address).expect("it listens");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
    stream
}

fn connect_tls(daemon: &Daemon, client: &Arc<ClientConfig>) -> Tls {
    let name = NAME.try_into().expect("a name");
    let connection = ClientConnection::new(Arc::clone(client), name).expect("a client");
    StreamOwned::new(connection, connect(daemon))
}

/// Sends one request over TLS. An answer counts only if the daemon ends it by close_notify: a cut connection fails.
fn ask_tls(daemon: &Daemon, client: &Arc<ClientConfig>, text: &str) -> (Answer, Tls) {
    let mut stream = connect_tls(daemon, client);
    stream.write_all(text.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer with its end");
    (Answer::parse(&answer).expect("an answer"), stream)
}

fn finish(daemon: Daemon) {
    let directory = daemon.directory.clone();
    drop(daemon);
    std::fs::remove_dir_all(directory).expect("removed");
}

/// Returns an event of the stream, and its number.
fn next_event(stream: &mut impl BufRead) -> (u64, Value) {
    let mut id = None;
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).expect("the stream goes on") > 0, "the stream has ended");
        // The lines between are lengths of chunks.
        if let Some(number) = line.strip_prefix("id: ") {
            id = Some(number.trim().parse().expect("a number"));
        } else if let Some(data) = line.strip_prefix("data: ") {
            let data: Value = serde_json::from_str(data).expect("an event on one line");
            return (id.expect("the number comes first"), data["Events"][0].clone());
        }
    }
}

/// Reads the head of an answer that goes on.
fn head(stream: &mut impl BufRead) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).expect("a head") > 0, "{head}");
    }
    head.to_lowercase()
}

fn until(stream: &mut impl BufRead, message: &str) -> u64 {
    loop {
        let (id, event) = next_event(stream);
        assert_eq!(event["EventId"], id.to_string());
        if event["Message"].as_str().expect("a message").contains(message) {
            return id;
        }
    }
}

#[test]
fn clients_that_send_or_read_nothing_keep_nobody_out() {
    let daemon = Daemon::start(&directory("crowd"), &rack(None), "");
    let token = daemon.login("admin", &daemon.password());
    // More than there is room for; the answers to each are more than the sockets hold.
    let asked = "GET /redfish/v1/openapi.json HTTP/1.1\r\nhost: a\r\n\r\n".repeat(200);
    for request in ["", "GET /redfish/v1 HTTP/1.1\r\n", &asked] {
        let crowd: Vec<TcpStream> = (0..300)
            .map(|_| {
                let mut stream = TcpStream::connect(&daemon.address).expect("a connection");
                stream.set_nonblocking(true).expect("set");
                // One that was ended for a later one takes nothing.
                let _ = stream.write(request.as_bytes());
                stream
            })
            .collect();
        let answer = daemon.ask("GET", "/redfish/v1/Oem/Aquifer", &token, "");
        assert_eq!(answer.map(|answer| answer.status), Some(200), "{request:.20}");
        drop(crowd);
    }
    finish(daemon);
}

#[test]
fn an_event_stream_ends_with_its_session() {
    let daemon = Daemon::start(&directory("ended"), &rack(None), "");
    let password = daemon.password();
    let (token, other) = (daemon.login("admin", &password), daemon.login("admin", &password));
    let follow = |token: &str| {
        let mut stream = connect(&daemon);
        let text = format!("GET {STREAM} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{token}\r\n");
        stream.write_all(text.as_bytes()).expect("sent");
        let mut stream = BufReader::new(stream);
        assert!(head(&mut stream).starts_with("http/1.1 200"));
        stream
    };
    let (mut ended, mut goes_on) = (follow(&token), follow(&other));
    let id = token.trim_start_matches("x-auth-token: ").split('.').next().expect("an id").to_owned();
    let gone = daemon.ask("DELETE", &format!("{SESSIONS}/{id}"), &other, "").expect("an answer");
    assert_eq!(gone.status, 204, "{gone:?}");
    let mut rest = Vec::new();
    ended.read_to_end(&mut rest).expect("it ends, and not by a timeout");
    let applied = daemon.ask("POST", APPLY, &other, &apply_body(&declaration())).expect("an answer");
    assert_eq!(applied.status, 200, "{applied:?}");
    until(&mut goes_on, "apply a declaration");
    drop((ended, goes_on));
    finish(daemon);
}

#[test]
fn an_event_stream_by_password_ends_when_the_password_changes() {
    const ACCOUNTS: &str = "/redfish/v1/AccountService/Accounts";
    let daemon = Daemon::start(&directory("withdrawn"), &rack(None), "");
    let token = daemon.login("admin", &daemon.password());
    let body = json!({ "UserName": "rita", "Password": "a long password", "RoleId": "ReadOnly" }).to_string();
    assert_eq!(daemon.ask("POST", ACCOUNTS, &token, &body).expect("an answer").status, 201);
    let mut stream = BufReader::new(connect(&daemon));
    // rita:a long password
    let basic = "authorization: Basic cml0YTphIGxvbmcgcGFzc3dvcmQ=\r\n";
    stream.get_mut().write_all(request("GET", STREAM, basic, "").as_bytes()).expect("sent");
    assert!(head(&mut stream).starts_with("http/1.1 200"));
    let body = json!({ "Password": "another password" }).to_string();
    let changed = daemon.ask("PATCH", &format!("{ACCOUNTS}/rita"), &token, &body).expect("an answer");
    assert_eq!(changed.status, 200, "{changed:?}");
    stream.get_ref().set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    let (begun, mut rest) = (Instant::now(), Vec::new());
    let ended = stream.read_to_end(&mut rest);
    assert!(ended.is_ok() && begun.elapsed() < Duration::from_secs(10), "it goes on: {ended:?}");
    finish(daemon);
}

#[test]
fn requests_and_events_go_over_tls() {
    let (directory, authority) = (directory("tls"), Authority::new());
    let daemon = Daemon::start(&directory, &rack(None), &authority.sign(&directory));
    let client = authority.client();
    // Clients that say nothing or talk nonsense take nothing from the others.
    let silent = connect(&daemon);
    let plain = daemon.raw(request("GET", "/redfish/v1", "", "").as_bytes()).unwrap_or_default();
    assert!(!plain.contains("HTTP/"), "an answer without TLS: {plain}");
    assert!(!daemon.raw(&[0x16; 70_000]).unwrap_or_default().contains("HTTP/"));
    let body = json!({ "UserName": "admin", "Password": daemon.password() }).to_string();
    let (login, stream) = ask_tls(&daemon, &client, &request("POST", SESSIONS, "", &body));
    assert_eq!(login.status, 201, "{login:?}");
    assert_eq!(stream.conn.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    let token = format!("x-auth-token: {}\r\n", login.header("x-auth-token").expect("a token"));
    let mut events = BufReader::new(connect_tls(&daemon, &client));
    events.get_mut().write_all(request("GET", STREAM, &token, "").as_bytes()).expect("sent");
    assert!(head(&mut events).starts_with("http/1.1 200"));
    let apply = request("POST", APPLY, &token, &apply_body(&declaration()));
    assert_eq!(ask_tls(&daemon, &client, &apply).0.status, 200);
    until(&mut events, "admin: apply a declaration");
    drop((silent, events));
    finish(daemon);
}

#[test]
fn a_client_that_trusts_another_authority_sends_nothing() {
    let (directory, authority) = (directory("distrust"), Authority::new());
    let daemon = Daemon::start(&directory, &rack(None), &authority.sign(&directory));
    let mut stream = connect_tls(&daemon, &Authority::new().client());
    let refused = stream.write_all(request("GET", "/redfish/v1", "", "").as_bytes()).expect_err("it is a stranger");
    assert!(refused.to_string().contains("invalid peer certificate"), "{refused}");
    assert_eq!(ask_tls(&daemon, &authority.client(), &request("GET", "/redfish/v1", "", "")).0.status, 200);
    finish(daemon);
}

#[test]
fn a_renewed_certificate_is_served_without_a_restart() {
    let (directory, old, new) = (directory("renewed"), Authority::new(), Authority::new());
    let daemon = Daemon::start(&directory, &rack(None), &old.sign(&directory));
    let text = request("GET", "/redfish/v1", "", "");
    assert_eq!(ask_tls(&daemon, &old.client(), &text).0.status, 200);
    // An unusable file leaves the old certificate in use.
    std::fs::write(directory.join("cert.pem"), "no certificate").expect("written");
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(ask_tls(&daemon, &old.client(), &text).0.status, 200);
    new.sign(&directory);
    let (begun, client) = (Instant::now(), new.client());
    while connect_tls(&daemon, &client).write_all(text.as_bytes()).is_err() {
        assert!(begun.elapsed() < WAIT_MAX, "the old certificate is still served");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(ask_tls(&daemon, &client, &text).0.status, 200);
    finish(daemon);
}

#[test]
fn certificates_that_cannot_be_used_are_refused_at_the_start() {
    let (directory, authority) = (directory("unusable"), Authority::new());
    let other = directory.join("other");
    std::fs::create_dir_all(&other).expect("a directory");
    authority.sign(&other);
    let start = |tls: &str| {
        let text = format!("state = {:?}\nlisten = \"127.0.0.1:0\"\n{tls}", directory.join("state"));
        let config = Config::parse(&format!("{text}[peers]\nkind = \"simulated\"\n")).expect("settings");
        aquifer_manager::Daemon::start(&config).err().expect("it is refused").to_string()
    };
    let good = authority.sign(&directory);
    let key = |text: &str| std::fs::write(directory.join("key.pem"), text).expect("written");
    std::fs::copy(other.join("key.pem"), directory.join("key.pem")).expect("copied");
    let refused = start(&good);
    assert!(refused.contains("name a pair that belongs together"), "{refused}");
    key("-----BEGIN PRIVATE KEY-----\n");
    assert!(start(&good).contains("key.pem"), "{}", start(&good));
    std::fs::remove_file(directory.join("key.pem")).expect("removed");
    let refused = start(&good);
    assert!(refused.contains("name a file with a private key in PEM") && !refused.contains('\n'), "{refused}");
    std::fs::write(directory.join("cert.pem"), "").expect("written");
    assert!(!start(&good).contains('\n'));
    assert!(!directory.join("state").exists(), "nothing was made before");
    std::fs::remove_dir_all(directory).expect("removed");
}

#[test]
fn a_client_that_reconnects_gets_the_events_that_it_missed() {
    let daemon = Daemon::start(&directory("events"), &rack(None), "");
    let token = daemon.login("admin", &daemon.password());
    assert_eq!(daemon.ask("GET", STREAM, "", "").expect("an answer").status, 401);
    let follow = |headers: &str| {
        let mut stream = BufReader::new(connect(&daemon));
        stream.get_mut().write_all(request("GET", STREAM, &format!("{token}{headers}"), "").as_bytes()).expect("sent");
        let head = head(&mut stream);
        assert!(head.starts_with("http/1.1 200") && head.contains("content-type: text/event-stream"), "{head}");
        stream
    };
    let mut first = follow("");
    let (oldest, _) = next_event(&mut first);
    assert_eq!(daemon.ask("POST", APPLY, &token, &apply_body(&declaration())).expect("an answer").status, 200);
    let seen = until(&mut first, "admin: apply a declaration");
    let (next, _) = next_event(&mut first);
    assert_eq!(next, seen + 1, "none is left out");
    drop(first);
    let bound = daemon.ask("POST", CONNECTIONS, &token, &bind_body("cache", "h001")).expect("an answer");
    assert_eq!(bound.status, 201, "{bound:?}");
    let mut second = follow(&format!("last-event-id: {seen}\r\n"));
    assert_eq!(next_event(&mut second).0, seen + 1, "the first that it missed");
    until(&mut second, "admin: bind volume cache to host h001");
    // Numbers that were never given are from other leaders: an earlier one, and one whose clock was ahead.
    let others = ["999999", "18446744073709551615", "nonsense"];
    let mut others = others.map(|number| follow(&format!("last-event-id: {number}\r\n")));
    assert_eq!(others.each_mut().map(|stream| next_event(stream).0), [oldest; 3]);
    let only_head = daemon.raw(request("HEAD", STREAM, &token, "").as_bytes()).expect("an answer");
    assert!(only_head.starts_with("HTTP/1.1 200") && only_head.ends_with("\r\n\r\n"), "{only_head}");
    drop((second, others));
    let directory = daemon.directory.clone();
    drop(daemon);
    let daemon = Daemon::start(&directory, &rack(None), "");
    let mut again = BufReader::new(connect(&daemon));
    let headers = format!("{token}last-event-id: {next}\r\n");
    again.get_mut().write_all(request("GET", STREAM, &headers, "").as_bytes()).expect("sent");
    head(&mut again);
    assert!(next_event(&mut again).0 > next, "the restarted one's first event");
    drop(again);
    finish(daemon);
}
