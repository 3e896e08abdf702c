// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads from a certificate the name by which a donor identifies the tenant that presents it.
//!
//! The name is taken from the subject alternative names (RFC 5280, section 4.2.1.6): a URI, else a DNS name, else an
//! email address; of several names of one kind, the first. If there is none of these, it is the last common name of the
//! subject. The kind is part of the name, so that a certificate with one kind of name cannot pass for one with another:
//! `uri:spiffe://example/batch`, `dns:batch.example`, `email:batch@example`, `cn:batch`.
//!
//! Intended only for a certificate whose signature has been verified, but no input causes a panic.

use std::net::{IpAddr, Ipv6Addr};

use crate::der::{BOOLEAN, Der, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE};

/// Maximum length of a name. Longer ones do not name tenants.
const NAME_BYTES_MAX: usize = 512;

const SET: u8 = 0x31;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
/// The version and the extensions of a certificate.
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// 2.5.29.17
const SUBJECT_ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// The kinds of alternative names that are used, in order of preference.
const KINDS: [(u8, &str); 3] = [(0x86, "uri"), (0x82, "dns"), (0x81, "email")];

/// The tenant's name; `None` if the certificate has no usable name.
pub fn tenant_name(certificate: &[u8]) -> Option<String> {
    let mut certificate = Der(Der(certificate).take(SEQUENCE)?);
    let mut signed = Der(certificate.take(SEQUENCE)?);
    signed.skip(VERSION);
    // Serial number, algorithm, issuer, validity.
    for _ in 0..4 {
        signed.next()?;
    }
    let subject = signed.take(SEQUENCE)?;
    // The public key.
    signed.next()?;
    while let Some((tag, contents)) = signed.next() {
        if tag == EXTENSIONS
            && let Some(names) = alternative_names(contents)
            && let Some((kind, text)) = first_kind(names)
        {
            return alternative_name(kind, text);
        }
    }
    common_name(subject)
}

/// The name of a peer that shows no certificate. With IPv6 that is a network of 64 bits: a host takes another address
/// within it from time to time (RFC 8981), and must not lose its leases because of that.
pub fn address_name(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let network = Ipv6Addr::from(u128::from(address) & !u128::from(u64::MAX));
            format!("address:{network}/64")
        }
        address => format!("address:{address}"),
    }
}

/// The subject alternative names among extensions.
fn alternative_names(extensions: &[u8]) -> Option<&[u8]> {
    let mut extensions = Der(Der(extensions).take(SEQUENCE)?);
    while let Some(extension) = extensions.take(SEQUENCE) {
        let mut extension = Der(extension);
        let is_it = extension.take(OBJECT_IDENTIFIER)? == SUBJECT_ALTERNATIVE_NAME;
        extension.skip(BOOLEAN);
        let value = extension.take(OCTET_STRING)?;
        if is_it {
            return Der(value).take(SEQUENCE);
        }
    }
    None
}

/// The first name of the first kind.
fn first_kind(names: &[u8]) -> Option<(&'static str, &[u8])> {
    KINDS.into_iter().find_map(|(tag, kind)| {
        let mut names = Der(names);
        std::iter::from_fn(|| names.next()).find(|(found, _)| *found == tag).map(|(_, text)| (kind, text))
    })
}

/// A name with characters that its kind does not allow is rejected: it could be mistaken for another one.
fn alternative_name(kind: &str, text: &[u8]) -> Option<String> {
    let is_plain = (1..=NAME_BYTES_MAX).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic);
    let text = std::str::from_utf8(text).ok().filter(|_| is_plain)?;
    Some(if kind == "dns" { format!("{kind}:{}", text.to_ascii_lowercase()) } else { format!("{kind}:{text}") })
}

/// The last common name of a subject: the most specific one. Characters other than visible ASCII are written as `%XX`.
fn common_name(subject: &[u8]) -> Option<String> {
    let mut subject = Der(subject);
    let mut last = None;
    while let Some(part) = subject.take(SET) {
        let mut part = Der(part);
        while let Some(attribute) = part.take(SEQUENCE) {
            let mut attribute = Der(attribute);
            if attribute.take(OBJECT_IDENTIFIER)? == COMMON_NAME {
                last = attribute.next();
            }
        }
    }
    let (tag, text) = last?;
    let is_text = matches!(tag, UTF8_STRING | PRINTABLE_STRING | IA5_STRING) && std::str::from_utf8(text).is_ok();
    if !is_text || !(1..=NAME_BYTES_MAX).contains(&text.len()) {
        return None;
    }
    let mut name = String::from("cn:");
    for byte in text {
        match byte {
            b'%' => name.push_str("%25"),
            byte if byte.is_ascii_graphic() => name.push(char::from(*byte)),
            byte => name.push_str(&format!("%{byte:02X}")),
        }
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, contents: &[u8]) -> Vec<u8> {
        let length = u16::try_from(contents.len()).unwrap().to_be_bytes();
        [&[tag, 0x82][..], &length, contents].concat()
    }

    /// A certificate with these common names and alternative names, without the parts that are not read here.
    fn certificate(common: &[&[u8]], alternative: &[(u8, &[u8])]) -> Vec<u8> {
        let name = |text: &&[u8]| {
            let attribute = [der(OBJECT_IDENTIFIER, COMMON_NAME), der(UTF8_STRING, text)].concat();
            der(SET, &der(SEQUENCE, &attribute))
        };
        let subject = common.iter().flat_map(name).collect::<Vec<u8>>();
        let names = alternative.iter().flat_map(|(tag, text)| der(*tag, text)).collect::<Vec<u8>>();
        let extension = [
            der(OBJECT_IDENTIFIER, SUBJECT_ALTERNATIVE_NAME),
            der(BOOLEAN, &[0xff]),
            der(OCTET_STRING, &der(SEQUENCE, &names)),
        ];
        let other = [der(OBJECT_IDENTIFIER, &[0x55, 0x1d, 0x0f]), der(OCTET_STRING, &[])].concat();
        let extensions = [der(SEQUENCE, &other), der(SEQUENCE, &extension.concat())].concat();
        let signed = [
            der(VERSION, &[2, 1, 2]),
            der(2, &[1]),
            der(SEQUENCE, &[]),
            der(SEQUENCE, &[]),
            der(SEQUENCE, &[]),
            der(SEQUENCE, &subject),
            der(SEQUENCE, &[]),
            der(EXTENSIONS, &der(SEQUENCE, &extensions)),
        ];
        der(SEQUENCE, &der(SEQUENCE, &signed.concat()))
    }

    #[test]
    fn the_kinds_have_an_order() {
        let (uri, dns, email) = ((0x86, &b"spiffe://e/b"[..]), (0x82, &b"Batch.Example"[..]), (0x81, &b"b@e"[..]));
        for (names, name) in [
            (&[email, dns, uri][..], "uri:spiffe://e/b"),
            (&[email, dns][..], "dns:batch.example"),
            (&[email][..], "email:b@e"),
            (&[(0x87, &[10, 0, 0, 1][..])][..], "cn:batch"),
            (&[][..], "cn:batch"),
        ] {
            assert_eq!(tenant_name(&certificate(&[b"unit", b"batch"], names)).as_deref(), Some(name));
        }
    }

    #[test]
    fn names_that_could_be_mistaken_for_others_are_none() {
        for text in [&b"a b"[..], b"a\0.example", b"", &[b'x'; NAME_BYTES_MAX + 1], "ä".as_bytes()] {
            assert_eq!(tenant_name(&certificate(&[b"batch"], &[(0x82, text)])), None);
        }
        assert_eq!(tenant_name(&certificate(&[b"a 50%\n"], &[])).as_deref(), Some("cn:a%2050%25%0A"));
        assert_eq!(tenant_name(&certificate(&[b"\xff"], &[])), None);
        assert_eq!(tenant_name(&certificate(&[], &[])), None);
    }

    #[test]
    fn a_truncated_certificate_is_refused() {
        let whole = certificate(&[b"batch"], &[(0x82, b"batch.example")]);
        for length in 0..whole.len() {
            assert_eq!(tenant_name(&whole[..length]), None);
        }
    }
}
