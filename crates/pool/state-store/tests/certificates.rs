// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Certificates for etcd that are replaced while a candidate stands by: the next connection is made with the new ones.
//! With a server that notes which certificate its client shows.

mod rig;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use aquifer_state_store::{Bounds, Election, EtcdSettings, EtcdTls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rig::{WAIT_MAX, directory, settings};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

/// Enough attempts for a connection that was closed after its last answer. Each answer comes at once.
const QUICK: Bounds =
    Bounds { connect_max: WAIT_MAX, answer_max: WAIT_MAX, attempts_max: 3, pause: Duration::from_millis(1) };
/// The address at which the server answers.
const NAME: &str = "127.0.0.1";
const NOBODY_LEADS: &str = r#"{"header":{"revision":"7"}}"#;

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Issuer {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

/// Returns a certificate and its key, in PEM.
fn signed_by(issuer: &Issuer) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec![NAME.to_owned()]).expect("parameters");
    (params.signed_by(&key, issuer).expect("signed").pem(), key.serialize_pem())
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")
}

/// The files of a candidate.
struct Files(PathBuf);

impl Files {
    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).expect("written");
    }

    fn tls(&self) -> EtcdTls {
        let Files(directory) = self;
        let identity = Some((directory.join("cert.pem"), directory.join("key.pem")));
        EtcdTls { ca: directory.join("ca.pem"), identity }
    }
}

/// A server that answers one request on each connection, and sends the certificate that its client has shown.
fn serve(issuer: &Issuer) -> (String, Receiver<CertificateDer<'static>>) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(der(&issuer.pem())).expect("an authority");
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider)).build();
    let (certificate, key) = signed_by(issuer);
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let builder = builder.expect("TLS 1.3").with_client_cert_verifier(verifier.expect("a verifier"));
    let config = Arc::new(builder.with_single_cert(vec![der(&certificate)], key).expect("a pair"));
    let listener = TcpListener::bind((NAME, 0)).expect("a free port");
    let endpoint = format!("https://{}", listener.local_addr().expect("bound"));
    let (shown, seen) = channel();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let connection = ServerConnection::new(Arc::clone(&config)).expect("a server");
            // A client whose certificate is refused gets no answer.
            let _ = answer(StreamOwned::new(connection, stream), &shown);
        }
    });
    (endpoint, seen)
}

fn answer(
    mut stream: StreamOwned<ServerConnection, TcpStream>,
    shown: &Sender<CertificateDer<'static>>,
) -> std::io::Result<()> {
    // The request is one record: its head and its body are one write.
    let mut request = [0; 4096];
    let count = stream.read(&mut request)?;
    assert!(count > 0 && request.starts_with(b"POST /v3/kv/range"), "{}", String::from_utf8_lossy(&request));
    let certificates = stream.conn.peer_certificates().expect("it has shown one");
    shown.send(certificates[0].clone().into_owned()).expect("the test waits");
    let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", NOBODY_LEADS.len());
    stream.write_all(format!("{head}{NOBODY_LEADS}").as_bytes())?;
    stream.conn.send_close_notify();
    stream.flush()
}

fn settings_with(endpoint: &str, files: &Files) -> EtcdSettings {
    EtcdSettings { tls: Some(files.tls()), ..settings(&[endpoint.to_owned()], "pool", QUICK) }
}

/// They were read once in a process, so that a standby whose certificate had expired could not reconnect.
#[test]
fn a_certificate_that_was_replaced_is_shown_on_the_next_connection() {
    let directory = directory("etcd-certificates");
    let (issuer, files) = (authority(), Files(directory.clone()));
    let (endpoint, seen) = serve(&issuer);
    files.write("ca.pem", &issuer.pem());
    let replace = |(certificate, key): (String, String)| {
        files.write("cert.pem", &certificate);
        files.write("key.pem", &key);
        der(&certificate)
    };
    let first = replace(signed_by(&issuer));
    let candidate = Election::new(&settings_with(&endpoint, &files), "http://a:1", 2).expect("a candidate");
    let shown = || {
        assert_eq!(candidate.holder().expect("an answer"), None);
        seen.recv_timeout(WAIT_MAX).expect("a certificate")
    };
    assert_eq!(shown(), first);
    let second = replace(signed_by(&issuer));
    assert_eq!(shown(), second);
    // The key of the next one is still to be written.
    let (certificate, key) = signed_by(&issuer);
    files.write("cert.pem", &certificate);
    assert_eq!(shown(), second, "the last pair is used");
    files.write("key.pem", &key);
    assert_eq!(shown(), der(&certificate));
    std::fs::remove_dir_all(directory).expect("removed");
}

#[test]
fn a_candidate_reconnects_once_it_has_a_certificate_of_the_new_authority() {
    let directory = directory("etcd-authorities");
    let (old, new, files) = (authority(), authority(), Files(directory.clone()));
    let (endpoint, seen) = serve(&new);
    let write = |issuer: &Issuer| {
        let (certificate, key) = signed_by(issuer);
        for (name, text) in [("ca.pem", issuer.pem()), ("cert.pem", certificate), ("key.pem", key)] {
            files.write(name, &text);
        }
    };
    write(&old);
    let candidate = Election::new(&settings_with(&endpoint, &files), "http://a:1", 2).expect("a candidate");
    candidate.holder().expect_err("the authorities differ");
    // Without a usable file, the message says so.
    let ca: &Path = &directory.join("ca.pem");
    std::fs::remove_file(ca).expect("removed");
    let line = candidate.holder().expect_err("the authorities differ").to_string();
    assert!(line.contains(&endpoint) && line.contains(&ca.display().to_string()), "{line}");
    write(&new);
    assert_eq!(candidate.holder().expect("an answer"), None);
    seen.recv_timeout(WAIT_MAX).expect("a certificate");
    std::fs::remove_dir_all(directory).expect("removed");
}
