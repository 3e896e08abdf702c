// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A borrower's lists of revoked certificates (RFC 5280, section 5), checked when they are read: each must be signed by
//! an authority that the borrower trusts, and must not have expired. rustls then looks donors' certificates up in them.
//!
//! rustls would find both faults, too, but only at a handshake, where they would look like faults of the donor, and
//! would take a running program's memory away.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use ring::digest::{Context, SHA256};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateRevocationListDer, TrustAnchor, UnixTime};
use rustls::{CertRevocationListError, RootCertStore};

use crate::der::{BIT_STRING, Der, GENERALIZED_TIME, INTEGER, SEQUENCE, UTC_TIME};
use crate::files::{CredentialFailure, File, Purpose, read};

/// The tag of a list's extensions, and of a certificate's version.
const EXTENSIONS: u8 = 0xa0;
const VERSION: u8 = 0xa0;
/// The length of a [`Mark`]. A choice: nobody finds two certificates with one mark.
const MARK_BYTES: usize = 16;
/// UTCTime has two digits for the year: from this one on, they are of the last century.
const YEARS_FROM: i64 = 50;

/// Reads a file with lists, one of each authority. rustls looks only at the first list whose issuer has the name of a
/// certificate's, so a second one would count for nothing, even if it is the newer one. Authorities of one name have
/// one list together, too: rustls refuses the certificates of those whose key has not signed it.
pub(crate) fn lists(file: &File) -> Result<Vec<CertificateRevocationListDer<'static>>, CredentialFailure> {
    let found: Result<Vec<_>, pem::Error> = CertificateRevocationListDer::pem_slice_iter(&read(file, None)?).collect();
    let lists = match found {
        Ok(found) if !found.is_empty() => found,
        _ => return Err(CredentialFailure::NotPem(file.clone())),
    };
    let mut issuers = BTreeSet::new();
    for list in &lists {
        let Some(issuer) = issuer(list) else { return Err(unparsable(file)) };
        if !issuers.insert(issuer) {
            return Err(CredentialFailure::TwoLists(file.clone()));
        }
    }
    Ok(lists)
}

fn unparsable(file: &File) -> CredentialFailure {
    CredentialFailure::Unusable(file.clone(), CertRevocationListError::ParseError.into())
}

/// The name of a list's authority.
fn issuer(list: &[u8]) -> Option<&[u8]> {
    issuer_of(&mut Der(Der(Der(list).take(SEQUENCE)?).take(SEQUENCE)?))
}

/// The same, from the fields that are signed; reads them up to there.
fn issuer_of<'a>(fields: &mut Der<'a>) -> Option<&'a [u8]> {
    // The version.
    fields.skip(INTEGER);
    // The algorithm again.
    fields.take(SEQUENCE)?;
    fields.take(SEQUENCE)
}

/// Identifies a certificate on lists: a hash of its authority's name and its serial number. Looking a mark up
/// allocates nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark([u8; MARK_BYTES]);

impl Mark {
    fn new(issuer: &[u8], serial: &[u8]) -> Mark {
        let mut hash = Context::new(&SHA256);
        hash.update(&(issuer.len() as u64).to_be_bytes());
        hash.update(issuer);
        hash.update(serial);
        let mut mark = [0; MARK_BYTES];
        mark.copy_from_slice(&hash.finish().as_ref()[..MARK_BYTES]);
        Mark(mark)
    }

    /// The mark of a certificate that rustls has accepted. `None` if it cannot be read here.
    pub(crate) fn of_certificate(certificate: &[u8]) -> Option<Mark> {
        let mut fields = Der(Der(Der(certificate).take(SEQUENCE)?).take(SEQUENCE)?);
        fields.skip(VERSION);
        let serial = fields.take(INTEGER)?;
        // The algorithm.
        fields.take(SEQUENCE)?;
        Some(Mark::new(fields.take(SEQUENCE)?, serial))
    }
}

/// Lists that can be used.
#[derive(Debug)]
pub(crate) struct Revocations {
    file: File,
    lists: Vec<CertificateRevocationListDer<'static>>,
    /// The revoked certificates, in order.
    pub(crate) revoked: Vec<Mark>,
    /// The first instant at which one of them has expired, in seconds since 1970.
    pub(crate) valid_until: u64,
}

impl Revocations {
    /// Reads a file with lists of these authorities. `authorities` is their file.
    pub(crate) fn load(
        path: &Path,
        roots: &RootCertStore,
        authorities: &Path,
        provider: &CryptoProvider,
    ) -> Result<Revocations, CredentialFailure> {
        let file = File { purpose: Purpose::Revocations, path: path.to_owned() };
        let lists = lists(&file)?;
        let (mut revoked, mut valid_until) = (Vec::new(), u64::MAX);
        for list in &lists {
            let Some(read) = List::read(list) else { return Err(unparsable(&file)) };
            if !roots.roots.iter().any(|root| read.is_signed_by(root, provider)) {
                return Err(CredentialFailure::OtherAuthority { list: file, ca: authorities.to_owned() });
            }
            valid_until = valid_until.min(read.next_update);
            let Some(()) = read.add_revoked(&mut revoked) else { return Err(unparsable(&file)) };
        }
        revoked.sort_unstable();
        let revocations = Revocations { file, lists, revoked, valid_until };
        match revocations.expired(UnixTime::now().as_secs()) {
            Some(failure) => Err(failure),
            None => Ok(revocations),
        }
    }

    /// Whether one of the lists has expired at this instant.
    fn expired(&self, now: u64) -> Option<CredentialFailure> {
        (now >= self.valid_until).then(|| CredentialFailure::Expired(self.file.clone()))
    }

    /// A verifier of donors' certificates. A certificate of an authority without a list is refused: otherwise nobody
    /// would notice that a list is missing.
    pub(crate) fn verifier(
        self,
        roots: Arc<RootCertStore>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<WebPkiServerVerifier>, CredentialFailure> {
        let builder = WebPkiServerVerifier::builder_with_provider(roots, provider).with_crls(self.lists);
        let unusable = |error: rustls::client::VerifierBuilderError| {
            CredentialFailure::Unusable(self.file, rustls::Error::General(error.to_string()))
        };
        builder.only_check_end_entity_revocation().build().map_err(unusable)
    }
}

/// What a list says about itself.
struct List<'a> {
    /// What is signed.
    signed: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
    issuer: &'a [u8],
    next_update: u64,
    /// An entry for each revoked certificate.
    revoked: &'a [u8],
}

impl<'a> List<'a> {
    fn read(list: &'a [u8]) -> Option<List<'a>> {
        let mut list = Der(Der(list).take(SEQUENCE)?);
        let signed = list.take_whole(SEQUENCE)?;
        let algorithm = list.take(SEQUENCE)?;
        let signature = bits(list.take(BIT_STRING)?)?;
        let mut fields = Der(Der(signed).take(SEQUENCE)?);
        let issuer = issuer_of(&mut fields)?;
        // When it was issued.
        instant(fields.next()?)?;
        // The standard requires it (RFC 5280, section 5.1.2.5), and rustls does, too.
        let next_update = instant(fields.next()?)?;
        let has_revoked = fields.0.first() == Some(&SEQUENCE);
        let revoked = if has_revoked { fields.take(SEQUENCE)? } else { &[] };
        fields.skip(EXTENSIONS);
        Some(List { signed, algorithm, signature, issuer, next_update, revoked })
    }

    /// Adds the marks of the revoked certificates. `None` if an entry cannot be read.
    fn add_revoked(&self, marks: &mut Vec<Mark>) -> Option<()> {
        let mut entries = Der(self.revoked);
        while !entries.0.is_empty() {
            let serial = Der(entries.take(SEQUENCE)?).take(INTEGER)?;
            marks.push(Mark::new(self.issuer, serial));
        }
        Some(())
    }

    fn is_signed_by(&self, authority: &TrustAnchor<'_>, provider: &CryptoProvider) -> bool {
        let mut key = Der(authority.subject_public_key_info.as_ref());
        let (Some(of_key), Some(key)) = (key.take(SEQUENCE), key.take(BIT_STRING).and_then(bits)) else { return false };
        let mut known = provider.signature_verification_algorithms.all.iter();
        authority.subject.as_ref() == self.issuer
            && known.any(|known| {
                known.signature_alg_id().as_ref() == self.algorithm
                    && known.public_key_alg_id().as_ref() == of_key
                    && known.verify_signature(key, self.signed, self.signature).is_ok()
            })
    }
}

/// A bit string of whole bytes.
fn bits(contents: &[u8]) -> Option<&[u8]> {
    contents.split_first().filter(|(unused, _)| **unused == 0).map(|(_, bytes)| bytes)
}

/// The seconds since 1970 at an instant `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`; 0 for earlier ones.
fn instant((tag, text): (u8, &[u8])) -> Option<u64> {
    let digits = text.strip_suffix(b"Z")?;
    let number = |digits: &[u8]| {
        let digit = |sum: i64, digit: &u8| digit.is_ascii_digit().then(|| sum * 10 + i64::from(digit - b'0'));
        digits.iter().try_fold(0, digit)
    };
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = digits.split_at_checked(2)?;
            let year = number(year)?;
            (year + if year < YEARS_FROM { 2000 } else { 1900 }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = digits.split_at_checked(4)?;
            (number(year)?, rest)
        }
        _ => return None,
    };
    let &[m1, m2, d1, d2, h1, h2, n1, n2, s1, s2] = rest else { return None };
    let (month, day) = (number(&[m1, m2])?, number(&[d1, d2])?);
    let (hour, minute, second) = (number(&[h1, h2])?, number(&[n1, n2])?, number(&[s1, s2])?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    Some(u64::try_from(seconds).unwrap_or(0))
}

/// The days from 1 January 1970 to a date of the Gregorian calendar. Years are counted from March, so that the leap day
/// is the last of a year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // 153 days have five months from March on; 719468 days lie between 1 March of year 0 and 1970.
    year * 365 + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_seconds_since_1970() {
        for (tag, text, seconds) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "000229235959Z", Some(951_868_799)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (UTC_TIME, "500101000000Z", Some(0)),
            (GENERALIZED_TIME, "20261127234133Z", Some(1_795_822_893)),
            (GENERALIZED_TIME, "21000301000000Z", Some(4_107_542_400)),
            (GENERALIZED_TIME, "19000101000000Z", Some(0)),
            (GENERALIZED_TIME, "20261327234133Z", None),
            (GENERALIZED_TIME, "20260027234133Z", None),
            (GENERALIZED_TIME, "2026112723413Z", None),
            (GENERALIZED_TIME, "20261127234133", None),
            (UTC_TIME, "26112723413xZ", None),
            (INTEGER, "261127234133Z", None),
        ] {
            assert_eq!(instant((tag, text.as_bytes())), seconds, "{text}");
        }
    }

    #[test]
    fn bytes_that_are_no_list_are_none() {
        assert!(List::read(&[]).is_none() && List::read(&[SEQUENCE, 2, SEQUENCE, 0]).is_none());
        assert!(List::read(&[SEQUENCE, 0x84, 255, 255, 255, 255]).is_none());
    }
}
