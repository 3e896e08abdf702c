// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A peer without a valid certificate borrows nothing, and receives the reason; a peer that does not speak TLS gets
//! that answer, and delays no other.

mod certificates;
mod peer;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aquifer_donor::{Donor, Files, Security, Settings, status};
use aquifer_tiers::{TierSpec, open};
use aquifer_wire::{BorrowerId, Figure, HEADER_BYTES, Header, Message, Refusal};
use certificates::{Authority, good, options, write};
use peer::{Peer, impatient, settings, start, wait_until};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

fn secure(files: &Files) -> Settings {
    Settings { security: Security::Tls(files.clone()), ..settings(4) }
}

/// Why a tier cannot be opened: one line.
fn refused(address: SocketAddr, options: &str) -> String {
    let spec: TierSpec = format!("donor:{address}{options}").parse().unwrap();
    let begun = Instant::now();
    let message = open(&spec).err().expect("it is refused").to_string();
    assert!(begun.elapsed() < peer::TIMEOUT, "it takes {:?}", begun.elapsed());
    assert!(!message.contains('\n'), "{message}");
    message
}

fn is_lent_to_the_good(donor: &Donor) {
    let spec: TierSpec = format!("donor:{}{}", donor.address(), options(&good().borrower)).parse().unwrap();
    open(&spec).expect("a good borrower is served");
}

#[test]
fn a_borrower_without_a_good_certificate_is_refused_with_the_reason() {
    let pair = good();
    let (donor, lines) = start(secure(&pair.donor));
    let stranger = Authority::new();
    for (files, refusal, expected) in [
        (pair.authority.sign("borrower", 2001, &pair.authority), Refusal::CertificateExpired, "has expired"),
        (stranger.sign("borrower", 2100, &pair.authority), Refusal::CertificateUnknown, "not signed by its authority"),
    ] {
        let message = refused(donor.address(), &options(&files));
        assert!(message.contains("the donor says that the certificate") && message.contains(expected), "{message}");
        let before = peer::refused(&donor, refusal);
        refused(donor.address(), &options(&files));
        wait_until(&donor, |status| status.refused(refusal) > before.max(1));
        peer::reported_once(&lines, refusal);
    }
    assert_eq!(peer::figure(&donor, Figure::LentBytes), 0);
    is_lent_to_the_good(&donor);
}

/// No borrower of ours comes without a certificate, so this one is made by hand.
#[test]
fn a_borrower_without_any_certificate_is_refused() {
    let pair = good();
    let (donor, _) = start(secure(&pair.donor));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&pair.donor.ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]).unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"aquifer/1".to_vec()];
    let name = donor.address().ip().into();
    let session = ClientConnection::new(Arc::new(config), ServerName::IpAddress(name)).unwrap();
    let stream = TcpStream::connect(donor.address()).unwrap();
    stream.set_read_timeout(Some(peer::TIMEOUT)).unwrap();
    let mut stream = StreamOwned::new(session, stream);
    let hello = Message::Hello { oldest: 1, newest: 1, borrower: BorrowerId(7) };
    // In TLS 1.3 a client may send before the server has looked at its certificate.
    let answer =
        stream.write_all(&Header::new(0, hello, &[]).encode()).and_then(|()| stream.read_exact(&mut [0; HEADER_BYTES]));
    let message = answer.expect_err("it is not greeted").to_string();
    assert!(message.contains("CertificateRequired"), "{message}");
    wait_until(&donor, |status| status.refused(Refusal::NoCertificate) == 1);
    is_lent_to_the_good(&donor);
}

#[test]
fn a_donor_without_a_good_certificate_is_not_borrowed_from() {
    let pair = good();
    let stranger = Authority::new();
    for (files, expected) in [
        (pair.authority.sign("127.0.0.1", 2001, &pair.authority), "has expired"),
        (pair.authority.sign("elsewhere.example", 2100, &pair.authority), "for another name"),
        (stranger.sign("127.0.0.1", 2100, &pair.authority), "not signed by the authority"),
    ] {
        let (donor, _) = start(secure(&files));
        let message = refused(donor.address(), &options(&pair.borrower));
        assert!(message.contains("the donor's certificate") && message.contains(expected), "{message}");
        wait_until(&donor, |status| status.refused(Refusal::Distrusted) > 0);
    }
}

#[test]
fn a_name_can_be_given_that_the_address_has_not() {
    let pair = good();
    let (donor, _) = start(secure(&pair.authority.sign("memory.example", 2100, &pair.authority)));
    let spec = format!("donor:{}{},name=memory.example", donor.address(), options(&pair.borrower));
    open(&spec.parse::<TierSpec>().unwrap()).expect("the certificate is for this name");
    let message = refused(donor.address(), &format!("{},name=other.example", options(&pair.borrower)));
    assert!(message.contains("for another name"), "{message}");
}

#[test]
fn plain_text_and_tls_are_told_apart() {
    let (donor, lines) = start(secure(&good().donor));
    let message = refused(donor.address(), ",security=plain");
    assert!(message.contains("lends over TLS") && message.contains("cert=FILE"), "{message}");
    wait_until(&donor, |status| status.refused(Refusal::TlsOnly) > 0);
    assert!(lines.lock().unwrap().iter().any(|line| line.contains("tls_only")));
    let (plain, _) = start(settings(4));
    let message = refused(plain.address(), &options(&good().borrower));
    assert!(message.contains("lends in plain text") && message.contains("security=plain"), "{message}");
    wait_until(&plain, |status| status.refused(Refusal::PlainOnly) > 0);
}

#[test]
fn a_donor_that_serves_enough_connections_says_so_over_tls_too() {
    let (donor, _) = start(Settings { connections_max: 0, ..secure(&good().donor) });
    let message = refused(donor.address(), &options(&good().borrower));
    assert!(message.contains("more connections"), "{message}");
}

#[test]
fn connections_without_a_handshake_end_and_do_not_disturb_the_donor() {
    let (donor, _) = start(Settings { timeouts: impatient(4).timeouts, ..secure(&good().donor) });
    let begun = Instant::now();
    // The head of a record with which a handshake begins, and bytes that are no such head.
    let hello = [22u8, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];
    let foreign = [[b'G'; 200].to_vec(), [0; 4].to_vec(), [0xff; 1 << 16].to_vec(), [22, 3, 3, 255, 255].to_vec()];
    let cut = [Vec::new(), hello[..1].to_vec(), hello.to_vec(), [&hello[..], &[7; 300]].concat()];
    for bytes in foreign.iter().chain(&cut) {
        for ends in [false, true] {
            let mut peer = Peer::stranger(donor.address());
            peer.send_bytes(bytes);
            if ends {
                let _ = peer.stream.shutdown(std::net::Shutdown::Write);
            }
            while std::io::Read::read(&mut peer.stream, &mut [0; 256]).is_ok_and(|count| count > 0) {}
        }
    }
    // A byte now and then, for ever.
    let mut dripping = Peer::stranger(donor.address());
    let head = [22, 3, 1, 64, 0];
    for byte in head.iter().chain(&[1; 16384]) {
        if dripping.stream.write_all(&[*byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(begun.elapsed() < peer::TIMEOUT, "a byte now and then is enough for ever");
    }
    assert!(begun.elapsed() < peer::TIMEOUT, "{:?}", begun.elapsed());
    for refusal in [Refusal::Foreign, Refusal::Handshake, Refusal::Slow] {
        assert!(peer::refused(&donor, refusal) > 0, "{refusal}");
    }
    wait_until(&donor, |status| status.figure(Figure::Connections) == 0);
    is_lent_to_the_good(&donor);
}

#[test]
fn a_server_that_says_nothing_or_something_else_is_given_up() {
    for says in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", &[22, 3, 3, 0, 4, 1, 2, 3, 4], &[21, 3, 3, 0, 2, 2, 40]]
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let kept = std::thread::spawn(move || {
            let (mut stream, _): (TcpStream, _) = listener.accept().unwrap();
            let _ = stream.write_all(says);
            stream
        });
        let message = refused(address, &options(&good().borrower));
        assert!(message.contains("check the address"), "{message}");
        drop(kept.join());
    }
}

#[test]
fn files_that_are_none_are_named_with_a_remedy() {
    let pair = good();
    let other = pair.authority.sign("borrower", 2100, &pair.authority);
    let text = write("text.pem", "no PEM at all");
    let with = |change: &dyn Fn(&mut Files)| {
        let mut files = pair.borrower.clone();
        change(&mut files);
        files
    };
    let nowhere = || PathBuf::from("/nowhere/file.pem");
    for (files, file, expected) in [
        (with(&|files| files.cert = nowhere()), &*nowhere(), "check the path"),
        (with(&|files| files.key = nowhere()), &*nowhere(), "check the path"),
        (with(&|files| files.ca = nowhere()), &*nowhere(), "check the path"),
        (with(&|files| files.cert = text.clone()), &text, "BEGIN CERTIFICATE"),
        (with(&|files| files.key = text.clone()), &text, "BEGIN PRIVATE KEY"),
        (with(&|files| files.ca = text.clone()), &text, "BEGIN CERTIFICATE"),
        (with(&|files| files.key = pair.borrower.cert.clone()), &pair.borrower.cert, "BEGIN PRIVATE KEY"),
        (with(&|files| files.key = other.key.clone()), &other.key, "is not the key of"),
        (with(&|files| files.ca = "/".into()), Path::new("/"), "give another file"),
    ] {
        let message = refused(([127, 0, 0, 1], 1).into(), &options(&files));
        assert!(message.contains(expected) && message.contains(&file.display().to_string()), "{message}");
        let started = Donor::start(secure(&files), Box::new(|_| ()));
        assert_eq!(started.err().expect("it does not start").to_string(), message);
    }
}

#[test]
fn the_status_is_asked_the_same_way() {
    let pair = good();
    let (donor, _) = start(secure(&pair.donor));
    let timeout = Duration::from_secs(3);
    let security = Security::Tls(pair.borrower.clone());
    let found = status(donor.address(), "127.0.0.1", &security, timeout).unwrap();
    assert_eq!(found.figure(Figure::CapacityBytes), donor.capacity_bytes());
    assert!(status(donor.address(), "127.0.0.1", &Security::Plain, timeout).is_err());
    // The message names the flags of the command that asked.
    let reported = status(donor.address(), "elsewhere", &security, timeout).unwrap_err().to_string();
    assert!(reported.contains("--tls-name SERVERNAME"), "{reported}");
    let stranger = Authority::new();
    for (files, word) in [
        (stranger.sign("borrower", 2100, &pair.authority), "the certificate in --tls-cert"),
        (pair.authority.sign("borrower", 2100, &stranger), "the authority in --tls-ca"),
    ] {
        let reported = status(donor.address(), "127.0.0.1", &Security::Tls(files), timeout).unwrap_err().to_string();
        assert!(reported.contains(word), "{reported}");
    }
}
