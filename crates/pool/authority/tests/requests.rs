// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The authority refuses requests for other names, requests to be an authority, requests that are not signed with their
//! key, and other bytes; rustls accepts the certificates and lists that the authority signs.

use std::sync::Arc;
use std::time::Duration;

use aquifer_authority::{Authority, Kind, NotSigned, REQUEST_BYTES_MAX, Request, Subject, facts, first_of, replace};
use aquifer_fabric::Millis;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

const NOW: Millis = Millis(1_800_000_000_000);
const DAY_MS: u64 = 86_400_000;

fn subject() -> Subject {
    Subject::new(Kind::Donor, "d1", "pool.internal", &["10.0.0.7".into(), "d1.rack.example".into()]).expect("good")
}

fn authority() -> Authority {
    Authority::make("lab", NOW).expect("made")
}

/// Returns a request to which `change` has added something.
fn request(change: impl FnOnce(&mut CertificateParams)) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    change(&mut params);
    params.serialize_request(&KeyPair::generate().expect("a key")).expect("made").pem().expect("PEM")
}

fn with_names(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    request(|params| params.subject_alt_names = CertificateParams::new(names).expect("names").subject_alt_names)
}

fn verifier(authority: &Authority, list: Option<&str>) -> Arc<dyn ClientCertVerifier> {
    let mut roots = RootCertStore::empty();
    roots.add(first_of(authority.pem()).expect("a certificate")).expect("taken");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut builder = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
    if let Some(list) = list {
        let list = CertificateRevocationListDer::from_pem_slice(list.as_bytes()).expect("a list");
        builder = builder.with_crls([list]).only_check_end_entity_revocation();
    }
    builder.build().expect("built")
}

fn is_accepted(verifier: &dyn ClientCertVerifier, certificate: &[u8], at: Millis) -> bool {
    let at = UnixTime::since_unix_epoch(Duration::from_millis(at.0));
    verifier.verify_client_cert(&CertificateDer::from(certificate), &[], at).is_ok()
}

#[test]
fn a_certificate_has_the_names_of_its_subject_whatever_the_request_says() {
    let (authority, subject) = (authority(), subject());
    for text in [
        Request::new().expect("made").pem().to_owned(),
        request(|params| params.distinguished_name.push(DnType::CommonName, "d1")),
        with_names(&["10.0.0.7"]),
    ] {
        let signed = authority.sign(&text, &subject, 90, NOW).expect("signed");
        let found = facts(&signed.der).expect("a certificate");
        assert_eq!((&found.names, &found.serial), (&subject.names, &signed.serial));
        assert_eq!(found.validity, signed.validity);
        let verifier = verifier(&authority, None);
        assert!(is_accepted(&*verifier, &signed.der, NOW));
        assert!(!is_accepted(&*verifier, &signed.der, Millis(NOW.0 + 91 * DAY_MS)), "it has expired");
        assert!(!is_accepted(&*verifier, &signed.der, Millis(NOW.0 - DAY_MS)), "it is not valid yet");
    }
}

#[test]
fn a_request_for_more_than_its_subject_is_refused() {
    let (authority, subject) = (authority(), subject());
    for (text, name) in [
        (with_names(&["d2.donor.pool.internal"]), "d2.donor.pool.internal"),
        (with_names(&["d1.host.pool.internal"]), "d1.host.pool.internal"),
        (with_names(&["d1.donor.pool.internal", "10.0.0.8"]), "10.0.0.8"),
        (with_names(&["*.pool.internal"]), "*.pool.internal"),
        (request(|params| params.distinguished_name.push(DnType::CommonName, "manager")), "manager"),
        (request(|params| params.distinguished_name.push(DnType::OrganizationName, "d1")), "d1"),
    ] {
        assert_eq!(authority.sign(&text, &subject, 90, NOW), Err(NotSigned::OtherName(name.into())));
    }
    let signs = request(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    assert_eq!(authority.sign(&signs, &subject, 90, NOW), Err(NotSigned::Authority));
    let signs = request(|params| params.key_usages = vec![KeyUsagePurpose::KeyCertSign]);
    assert_eq!(authority.sign(&signs, &subject, 90, NOW), Err(NotSigned::Authority));
}

#[test]
fn what_is_no_request_or_lacks_the_key_is_refused() {
    let (authority, subject) = (authority(), subject());
    let whole = Request::new().expect("made").pem().to_owned();
    let refused = |text: &str| authority.sign(text, &subject, 90, NOW).expect_err("refused");
    for text in ["", "x", authority.pem(), &whole[..whole.len() / 2], &"A".repeat(REQUEST_BYTES_MAX + 1)] {
        assert_eq!(refused(text), NotSigned::NotARequest);
    }
    // Change one letter at every position. The signature covers the first 103 bytes, which include the key. After them,
    // the name of the algorithm can have another spelling, but no other signature is valid.
    let begin = whole.find('\n').expect("lines") + 1;
    let end = whole.rfind("\n-----").expect("the end");
    for at in (begin..end).filter(|at| !b"\r\n=".contains(&whole.as_bytes()[*at])) {
        let mut bytes = whole.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'Q' } else { b'A' };
        let text = String::from_utf8(bytes).expect("ASCII");
        if let Err(not) = authority.sign(&text, &subject, 90, NOW) {
            let line = not.to_string();
            assert!(line.contains("; ") && !line.contains('\n'), "{line}");
        } else {
            let before = text[begin..at].bytes().filter(|letter| !b"\r\n".contains(letter)).count();
            assert!(before * 6 / 8 >= 103, "a changed request was signed: {text}");
        }
    }
}

#[test]
fn an_authority_signs_nothing_after_its_end_and_nothing_with_the_key_of_another() {
    let (certificate, key) = Authority::make_files("lab", NOW).expect("made");
    let (_, other) = Authority::make_files("lab", NOW).expect("made");
    for (certificate, key, at) in [
        (certificate.as_str(), other.as_str(), NOW),
        (&certificate, &key, Millis(NOW.0 + 3651 * DAY_MS)),
        (&certificate, &key, Millis(NOW.0 - 400 * DAY_MS)),
        ("", &key, NOW),
        (&certificate, "", NOW),
        (&key, &certificate, NOW),
    ] {
        let line = Authority::load(certificate, key, at).expect_err("unusable").to_string();
        assert!(line.contains("; ") && !line.contains('\n'), "{line}");
    }
    let authority = Authority::load(&certificate, &key, NOW).expect("good");
    let late = Millis(authority.until().0 + 1);
    let request = Request::new().expect("made");
    assert_eq!(authority.sign(request.pem(), &subject(), 90, late), Err(NotSigned::Expired));
}

/// An authority is replaced by one of the same pool, and both are trusted meanwhile.
#[test]
fn two_authorities_of_one_pool_are_not_mistaken_for_each_other() {
    let (one, other) = (authority(), authority());
    assert_ne!(one.name(), other.name());
    let sign = |by: &Authority| by.sign(Request::new().expect("made").pem(), &subject(), 90, NOW).expect("signed");
    let (of_one, of_other) = (sign(&one), sign(&other));
    assert_eq!(facts(&of_one.der).expect("a certificate").issuer, one.name());
    let (mut roots, mut lists) = (RootCertStore::empty(), Vec::new());
    for (authority, revoked) in [(&one, vec![]), (&other, vec![(of_other.serial.clone(), NOW)])] {
        roots.add(first_of(authority.pem()).expect("a certificate")).expect("taken");
        let list = authority.revocations(&revoked, 1, NOW).expect("signed").list;
        lists.push(CertificateRevocationListDer::from_pem_slice(list.as_bytes()).expect("a list"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).with_crls(lists);
    let both = builder.only_check_end_entity_revocation().build().expect("built");
    assert!(is_accepted(&*both, &of_one.der, NOW) && is_accepted(&*both, &sign(&other).der, NOW));
    assert!(!is_accepted(&*both, &of_other.der, NOW), "its own authority's list has it");
    assert!(!is_accepted(&*verifier(&one, None), &of_other.der, NOW));
}

#[test]
fn a_listed_certificate_is_accepted_no_more_and_others_are() {
    let (authority, subject) = (authority(), subject());
    let sign = || authority.sign(Request::new().expect("made").pem(), &subject, 90, NOW).expect("signed");
    let (one, other) = (sign(), sign());
    assert_ne!(one.serial, other.serial);
    let empty = authority.revocations(&[], 1, NOW).expect("signed");
    assert!(is_accepted(&*verifier(&authority, Some(&empty.list)), &one.der, NOW));
    let list = authority.revocations(&[(one.serial.clone(), NOW)], 2, NOW).expect("signed");
    let verifier = verifier(&authority, Some(&list.list));
    assert!(!is_accepted(&*verifier, &one.der, NOW) && is_accepted(&*verifier, &other.der, NOW));
}

#[test]
fn a_file_is_replaced_as_a_whole_and_only_its_owner_reads_it() {
    use std::os::unix::fs::PermissionsExt;
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("replace-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join("key.pem");
    for text in ["one", "another"] {
        replace(&path, text).expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), text);
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(std::fs::read_dir(&directory).expect("listed").count(), 1, "nothing is left");
    assert!(replace(&directory.join("none/key.pem"), "x").is_err());
    std::fs::remove_dir_all(directory).expect("removed");
}
