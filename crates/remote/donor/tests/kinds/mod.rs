// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The transports, as tests run over each of them.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use aquifer_donor::{Address, DeviceChoice, Security, Settings, Source};
use aquifer_sys::verbs;
use aquifer_tiers::{Tier, TierSpec, open};

use crate::certificates::{good, options};

/// A transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP in plain text.
    Plain,
    /// RDMA, with requests in plain text over TCP. Only where there is a device.
    Rdma,
    /// Memory that is shared within the machine.
    Shared,
    /// TCP under TLS.
    Tls,
}

impl Kind {
    /// The transports that are available here. With `AQUIFER_RDMA=required`, the lack of a device is a failure.
    pub fn all() -> Vec<Kind> {
        let mut all = vec![Kind::Plain, Kind::Shared, Kind::Tls];
        match Kind::Rdma.refusal() {
            None => all.push(Kind::Rdma),
            Some(why) => aquifer_test_support::skip_part("RDMA", why),
        }
        all
    }

    /// Whether it is available here. If not, reports why, because the test is only about this kind.
    pub fn is_there(self) -> bool {
        let refusal = self.refusal();
        refusal.iter().for_each(aquifer_test_support::skip);
        refusal.is_none()
    }

    /// Why it is not available here.
    fn refusal(self) -> Option<String> {
        if self != Kind::Rdma {
            return None;
        }
        let failure = verbs::choose(None, None).and_then(|port| verbs::Device::open(&port)).err()?;
        assert!(std::env::var("AQUIFER_RDMA").as_deref() != Ok("required"), "{failure}");
        Some(failure.to_string())
    }

    /// The settings of a donor that lends this many bytes, at its own address.
    pub fn settings(self, bytes: u64) -> Settings {
        let port = || Address::from(([127, 0, 0, 1], 0));
        let (address, security) = match self {
            Kind::Plain | Kind::Rdma => (port(), Security::Plain),
            Kind::Shared => (socket(), Security::Plain),
            Kind::Tls => (port(), Security::Tls(good().donor.clone())),
        };
        let rdma = (self == Kind::Rdma).then_some(DeviceChoice::Any);
        Settings { rdma, ..Settings::new(address, bytes, Source::Anonymous, security) }
    }

    /// A tier of the donor at this address, as a user types it.
    pub fn spec(self, address: &Address, size: &str) -> String {
        let security = match self {
            Kind::Plain | Kind::Rdma => ",security=plain".into(),
            Kind::Shared => String::new(),
            Kind::Tls => options(&good().borrower),
        };
        let way = if self == Kind::Rdma { "rdma:" } else { "" };
        format!("donor:{way}{address},size={size}{security}")
    }

    pub fn tier(self, address: &Address, size: &str) -> Box<dyn Tier> {
        open(&self.spec(address, size).parse::<TierSpec>().unwrap()).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Whether requests go over a network, where nobody reports that the other end is gone.
    pub fn is_network(self) -> bool {
        self != Kind::Shared
    }

    /// Whether bytes are read and written by requests, which wait for the connection and the donor.
    pub fn asks_for_bytes(self) -> bool {
        matches!(self, Kind::Plain | Kind::Tls)
    }
}

/// The longest path of a socket.
const PATH_BYTES_MAX: usize = 107;

/// A socket's path that no other test has.
pub fn socket() -> Address {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("{}-{number}.sock", std::process::id());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(&name);
    let fits = path.as_os_str().len() <= PATH_BYTES_MAX;
    Address::Local(if fits { path } else { std::env::temp_dir().join(format!("aquifer-test-{name}")) })
}

/// Every test of the list, once for each transport.
#[macro_export]
macro_rules! for_each_kind {
    ($($test:ident),+ $(,)?) => {
        mod plain { $(#[test] fn $test() { super::$test($crate::kinds::Kind::Plain); })+ }
        mod rdma {
            $(#[test] fn $test() {
                let kind = $crate::kinds::Kind::Rdma;
                if kind.is_there() {
                    super::$test(kind);
                }
            })+
        }
        mod shared { $(#[test] fn $test() { super::$test($crate::kinds::Kind::Shared); })+ }
        mod tls { $(#[test] fn $test() { super::$test($crate::kinds::Kind::Tls); })+ }
    };
}
