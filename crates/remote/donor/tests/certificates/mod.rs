// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Authorities and certificates for tests, in files.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aquifer_donor::{Files, Security};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};

/// How the connections of a test are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    Plain,
    Tls,
}

impl Protection {
    /// The donor's setting.
    pub fn security(self) -> Security {
        match self {
            Protection::Plain => Security::Plain,
            Protection::Tls => Security::Tls(good().donor.clone()),
        }
    }

    /// The options of a tier of such a donor.
    pub fn options(self) -> String {
        match self {
            Protection::Plain => ",security=plain".into(),
            Protection::Tls => options(&good().borrower),
        }
    }
}

/// Every test of the list, once for each protection.
#[allow(unused_macros, reason = "not every test file has a list")]
macro_rules! for_each_protection {
    ($($test:ident),+ $(,)?) => {
        mod plain { $(#[test] fn $test() { super::$test(crate::certificates::Protection::Plain); })+ }
        mod tls { $(#[test] fn $test() { super::$test(crate::certificates::Protection::Tls); })+ }
    };
}

/// An authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Authority {
        Authority::named("authority")
    }

    pub fn named(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A file with its certificate.
    pub fn file(&self) -> PathBuf {
        write("ca.pem", &self.0.pem())
    }

    /// A revocation list of the certificates with these serial numbers.
    pub fn revoke(&self, serials: &[u64]) -> String {
        self.revoke_until(serials, None)
    }

    /// The same, with a list that expires at this time after 1970.
    pub fn revoke_until(&self, serials: &[u64], expires: Option<Duration>) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: expires.map_or(date_time_ymd(2100, 1, 1), |time| date_time_ymd(1970, 1, 1) + time),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).unwrap().pem().unwrap()
    }

    /// A certificate with this serial number for `name`, and its key.
    pub fn sign_numbered(&self, name: &str, serial: u64, ca: &Authority) -> Files {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        self.write_signed(params, ca)
    }

    /// A certificate for `name` that is valid until the end of `year`, and its key. Its holder trusts `ca`.
    pub fn sign(&self, name: &str, year: i32, ca: &Authority) -> Files {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(year, 12, 31));
        self.write_signed(params, ca)
    }

    /// A certificate for `name` that is valid for `time` from now on, and its key. Its holder trusts `ca`.
    pub fn sign_for(&self, name: &str, time: Duration, ca: &Authority) -> Files {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(1970, 1, 1) + now + time);
        self.write_signed(params, ca)
    }

    fn write_signed(&self, params: CertificateParams, ca: &Authority) -> Files {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Files {
            cert: write("cert.pem", &certificate.pem()),
            key: write("key.pem", &key.serialize_pem()),
            ca: ca.file(),
        }
    }
}

/// A pair whose ends trust each other.
pub struct Pair {
    pub authority: Authority,
    pub donor: Files,
    pub borrower: Files,
}

pub fn good() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(|| {
        let authority = Authority::new();
        let (donor, borrower) =
            (authority.sign("127.0.0.1", 2100, &authority), authority.sign("borrower", 2100, &authority));
        Pair { authority, donor, borrower }
    })
}

/// Replaces the contents of files, one after the other, as a tool that renews certificates does.
pub fn replace(files: &Files, by: &Files) {
    for (old, new) in [(&files.key, &by.key), (&files.cert, &by.cert), (&files.ca, &by.ca)] {
        let beside = old.with_extension("new");
        // The copy has the permissions of the original.
        std::fs::copy(new, &beside).unwrap();
        std::fs::rename(&beside, old).unwrap();
    }
}

/// Replaces the contents of a file by a rename.
pub fn replace_text(path: &Path, text: &str) {
    std::fs::rename(write("new.pem", text), path).unwrap();
}

/// A tier's options.
pub fn options(files: &Files) -> String {
    format!(",cert={},key={},ca={}", files.cert.display(), files.key.display(), files.ca.display())
}

/// A file of a test's own.
pub fn write(name: &str, text: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("certificates");
    std::fs::create_dir_all(&directory).unwrap();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!("{}-{number}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    // A key that others can read is refused.
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    path
}
