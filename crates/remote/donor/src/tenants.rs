// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The borrowers as the donor sees them: tenants, their limits, and what they use of them.
//!
//! A tenant is identified by what it cannot choose itself: the name in its certificate (`aquifer_tls::tenant_name`),
//! its address where there is no TLS, or its user on this machine. All its processes and tiers count together.
//!
//! The limits are in a file with one tenant on each line:
//!
//! ```text
//! # name               limits
//! dns:batch.example    quota=16GiB connections=64 rate=2GiB requests=100000
//! uri:spiffe://e/web   quota=4GiB
//! *                    quota=0
//! ```
//!
//! Threads: any connection's, and the one that reloads the file.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aquifer_core::units::ByteSize;
use aquifer_wire::SLAB_BYTES;

use crate::body_budget::BodyBudget;
use crate::rate_limit::Pace;

/// The lowest rates. If a donor answers more slowly, borrowers consider it lost.
const RATE_BYTES_MIN: u64 = 16 << 20;
const REQUESTS_MIN: u64 = 100;
/// How many tenants are remembered before those without connections and leases are forgotten.
const IDLE_TENANTS_MAX: usize = 1024;
/// The maximum number of tenants in a file: with more, it is probably another kind of file.
const TENANTS_MAX: usize = 1 << 16;
/// Maximum length of the file of tenants: 256 bytes for each.
pub(crate) const FILE_BYTES_MAX: u64 = (TENANTS_MAX as u64) << 8;

/// A tenant's number, unique in this run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TenantId(pub u64);

/// What a tenant may have and do. `None`: no limit but the donor's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The bytes that it may have.
    pub quota_bytes: Option<u64>,
    /// Connections at the same time.
    pub connections: Option<usize>,
    /// Bytes that it may read and write in a second.
    pub rate_bytes: Option<u64>,
    /// Requests in a second.
    pub requests: Option<u64>,
}

impl Limits {
    pub(crate) fn quota_slabs(&self) -> u32 {
        let slabs = self.quota_bytes.map_or(u64::MAX, |bytes| bytes / SLAB_BYTES);
        u32::try_from(slabs).unwrap_or(u32::MAX)
    }
}

/// The limits of all tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantLimits {
    named: BTreeMap<String, Limits>,
    /// The limits of tenants without their own line.
    others: Limits,
}

impl TenantLimits {
    /// The same limits for all tenants.
    pub fn same(limits: Limits) -> TenantLimits {
        TenantLimits { named: BTreeMap::new(), others: limits }
    }

    /// Parses a file's text. `others` are the limits of tenants without a line, unless a line `*` sets them.
    pub fn parse(text: &str, others: Limits) -> Result<TenantLimits, String> {
        let mut limits = TenantLimits::same(others);
        let mut has_others = false;
        for (index, line) in text.lines().enumerate() {
            let at = |cause: String| format!("line {}: {cause}", index + 1);
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(name) = words.next() else { continue };
            let mut own = Limits::default();
            let mut seen = Vec::new();
            for word in words {
                let (key, value) = word.split_once('=').ok_or_else(|| {
                    at(format!(
                        "'{}' is not a limit; write quota=, connections=, rate= or requests=",
                        word.escape_debug()
                    ))
                })?;
                if seen.contains(&key) {
                    return Err(at(format!("{key}= is given twice; leave one out")));
                }
                seen.push(key);
                own.set(key, value).map_err(at)?;
            }
            if seen.is_empty() {
                return Err(at("a name without limits; write quota=all where it may have everything".into()));
            }
            let is_new = if name == "*" {
                limits.others = own;
                !std::mem::replace(&mut has_others, true)
            } else {
                check_name(name).map_err(at)?;
                limits.named.insert(name.to_owned(), own).is_none()
            };
            if !is_new {
                return Err(at(format!("{name} has a line already; leave one out")));
            }
            if limits.named.len() > TENANTS_MAX {
                return Err(at(format!("more than {TENANTS_MAX} tenants; give a file of tenants")));
            }
        }
        Ok(limits)
    }

    fn of(&self, name: &str) -> Limits {
        self.named.get(name).copied().unwrap_or(self.others)
    }
}

impl Limits {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let size = |what: &str| ByteSize::from_str(value).map(|size| size.0).map_err(|why| format!("{what}: {why}"));
        let number = || value.parse::<u64>().map_err(|_| format!("{key}={} is not a number", value.escape_debug()));
        match key {
            "quota" if value == "all" => self.quota_bytes = None,
            "quota" if value == "0" => self.quota_bytes = Some(0),
            "quota" => match size("quota=")? {
                bytes if bytes < SLAB_BYTES => {
                    return Err("a quota below 2MiB lends nothing; write quota=0 to say so, or 2MiB or more".into());
                }
                bytes => self.quota_bytes = Some(bytes),
            },
            "connections" => match number()? {
                0 => return Err("connections=0 lends nothing; write quota=0 to say so, or 10 and more".into()),
                max => self.connections = Some(usize::try_from(max).unwrap_or(usize::MAX)),
            },
            "rate" => match size("rate=")? {
                bytes if bytes < RATE_BYTES_MIN => {
                    return Err("borrowers give up a donor that is slower than rate=16MiB; write that or more".into());
                }
                bytes => self.rate_bytes = Some(bytes),
            },
            "requests" => match number()? {
                count if count < REQUESTS_MIN => {
                    return Err("borrowers give up a donor that is slower than requests=100; write that or more".into());
                }
                count => self.requests = Some(count),
            },
            _ => {
                let key = key.escape_debug();
                return Err(format!("'{key}' is not a limit; write quota=, connections=, rate= or requests="));
            }
        }
        Ok(())
    }
}

fn check_name(name: &str) -> Result<(), String> {
    const KINDS: [&str; 6] = ["uri", "dns", "email", "cn", "address", "uid"];
    match name.split_once(':') {
        Some((kind, rest)) if KINDS.contains(&kind) && !rest.is_empty() => Ok(()),
        _ => Err(format!(
            "'{}' is not a tenant; write uri:, dns:, email:, cn:, address: or uid: and its name, or * for all others",
            name.escape_debug()
        )),
    }
}

/// A tenant, for as long as it has a connection or a lease.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) id: TenantId,
    pub(crate) name: String,
    limits: Mutex<Limits>,
    pace: Mutex<Pace>,
    /// The bytes of its requests' body buffers.
    pub(crate) bodies: AtomicU64,
}

impl Tenant {
    pub(crate) fn limits(&self) -> Limits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a request of `bytes` bytes has to wait, in milliseconds. `now_ms` is of a clock that never goes back.
    pub(crate) fn wait_ms(&self, now_ms: u64, bytes: u64) -> u64 {
        let limits = self.limits();
        if limits.rate_bytes.is_none() && limits.requests.is_none() {
            return 0;
        }
        self.pace.lock().unwrap_or_else(PoisonError::into_inner).charge(now_ms, bytes, limits)
    }
}

/// All tenants that the donor has met.
#[derive(Debug)]
pub(crate) struct Tenants {
    state: Mutex<State>,
    pub(crate) bodies: BodyBudget,
}

#[derive(Debug)]
struct State {
    limits: TenantLimits,
    known: BTreeMap<String, Arc<Tenant>>,
    last: u64,
}

impl Tenants {
    pub(crate) fn new(limits: TenantLimits, bodies: BodyBudget) -> Tenants {
        Tenants { state: Mutex::new(State { limits, known: BTreeMap::new(), last: 0 }), bodies }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tenant of this name. Calls `has_leases` for tenants that might be forgotten.
    pub(crate) fn meet(&self, name: &str, has_leases: impl Fn(TenantId) -> bool) -> Arc<Tenant> {
        let mut state = self.state();
        if let Some(tenant) = state.known.get(name) {
            return Arc::clone(tenant);
        }
        if state.known.len() >= IDLE_TENANTS_MAX {
            state.known.retain(|_, tenant| Arc::strong_count(tenant) > 1 || has_leases(tenant.id));
        }
        state.last += 1;
        let tenant = Arc::new(Tenant {
            id: TenantId(state.last),
            name: name.to_owned(),
            limits: Mutex::new(state.limits.of(name)),
            pace: Mutex::default(),
            bodies: AtomicU64::new(0),
        });
        state.known.insert(name.to_owned(), Arc::clone(&tenant));
        tenant
    }

    /// Sets other limits from now on. A tenant keeps what it has beyond them.
    pub(crate) fn set_limits(&self, limits: TenantLimits) {
        let mut state = self.state();
        for (name, tenant) in &state.known {
            *tenant.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits.of(name);
        }
        state.limits = limits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_tenants_and_their_limits() {
        let text =
            "# who\n\ndns:a quota=4MiB connections=3 rate=1GiB requests=1000 # more\n* quota=0\nuid:0 quota=all\n";
        let limits = TenantLimits::parse(text, Limits::default()).unwrap();
        let whole = Limits {
            quota_bytes: Some(4 << 20),
            connections: Some(3),
            rate_bytes: Some(1 << 30),
            requests: Some(1000),
        };
        assert_eq!(limits.of("dns:a"), whole);
        assert_eq!(limits.of("dns:b"), Limits { quota_bytes: Some(0), ..Limits::default() });
        assert_eq!((limits.of("uid:0"), whole.quota_slabs()), (Limits::default(), 2));
        let others = Limits { connections: Some(5), ..Limits::default() };
        assert_eq!(TenantLimits::parse("", others), Ok(TenantLimits::same(others)));
    }

    #[test]
    fn an_invalid_file_is_reported_in_one_line_with_a_remedy() {
        for (text, expected) in [
            ("batch quota=4MiB", "uri:, dns:"),
            ("dns: quota=4MiB", "is not a tenant"),
            ("dns:a", "without limits"),
            ("dns:a fast", "is not a limit"),
            ("dns:a speed=3", "is not a limit"),
            ("dns:a quota=1MiB", "2MiB or more"),
            ("dns:a quota=much", "quota="),
            ("dns:a connections=0", "quota=0"),
            ("dns:a connections=x", "not a number"),
            ("dns:a rate=1KiB", "16MiB"),
            ("dns:a requests=1", "requests=100"),
            ("dns:a quota=4MiB quota=8MiB", "twice"),
            ("dns:a quota=4MiB\ndns:a quota=8MiB", "line 2"),
            ("* quota=4MiB\n* quota=8MiB", "already"),
        ] {
            let message = TenantLimits::parse(text, Limits::default()).unwrap_err();
            assert!(message.contains(expected) && !message.contains('\n'), "{text}: {message}");
        }
    }

    #[test]
    fn tenants_keep_their_number_and_get_new_limits() {
        let tenants = Tenants::new(TenantLimits::default(), BodyBudget::new(1, 1));
        let one = tenants.meet("dns:a", |_| false);
        assert_eq!(tenants.meet("dns:a", |_| false).id, one.id);
        assert_ne!(tenants.meet("dns:b", |_| false).id, one.id);
        tenants.set_limits(TenantLimits::parse("dns:a quota=0", Limits::default()).unwrap());
        assert_eq!(one.limits().quota_bytes, Some(0));
        for other in 0..2 * IDLE_TENANTS_MAX {
            tenants.meet(&format!("address:{other}"), |_| false);
        }
        assert!(tenants.state().known.len() <= IDLE_TENANTS_MAX && tenants.meet("dns:a", |_| false).id == one.id);
    }
}
