// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! For fuzzing: the whole interface without sockets. A text is parsed as a request: request line, headers, an empty
//! line, body. A service whose pool, accounts and writer are all in memory answers it.
//!
//! What must hold for every request: nothing panics, a client's mistake is not answered with a server error (5xx), a
//! refusal has a remedy, and a client without a session can read only what is public.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use aquifer_fabric::{Bytes, Cause, Command, Declaration, DonorReport, HostReport, Term, Topology};
use aquifer_state_store::MemoryStore;

use super::answer::Answer;
use super::now;
use super::service::{Position, Request, Service};
use crate::accounts::{Account, Role};
use crate::audit_checks::AuditChecker;
use crate::config::{SessionsConfig, SimulatedConfig};
use crate::console::Console;
use crate::crash::CrashPoint;
use crate::manager_store::ManagerStore;
use crate::order::{Act, NotDone, Order};
use crate::peers::{Asked, Peers, Reports, SendFailure};
use crate::sessions::{Sessions, Who};
use crate::simulated::topology;
use crate::subscriptions::Subscriptions;
use crate::tenure::Tenure;
use crate::writer::{Done, Posted, Shared, Writer};

/// Values of the header X-Auth-Token that stand for a session, each with its account and role.
const SESSIONS: [(&str, &str, Role); 3] = [
    ("READER", "rita", Role::ReadOnly),
    ("OPERATOR", "oscar", Role::Operator),
    ("ADMINISTRATOR", "amy", Role::Administrator),
];
/// The paths at which requests are carried out. At all others they are dry runs, so that each request finds the same
/// pool.
const CARRIED_OUT: [&str; 3] = ["/redfish/v1/AccountService", "/redfish/v1/SessionService", "/redfish/v1/EventService"];
/// The paths that need no session.
const OPEN: [&str; 5] =
    ["/redfish", "/redfish/v1", "/redfish/v1/odata", "/redfish/v1/$metadata", "/redfish/v1/openapi.json"];
/// The 5xx answers that are no bug: to a query that is not supported, and from a pool that is full.
const NOT_BUGS: [u16; 2] = [501, 507];
/// A pool with a zone, a bound volume and one that is not.
const DECLARATION: &str = r#"{
    "pools": {"main": {"donors": ["d0000", "d0001", "d0002", "d0003"]}},
    "zones": {"lab": {"quota": "200GiB", "hosts": ["h000", "h001"]}},
    "volumes": {
        "db": {"spec": {"size": "8GiB", "pool": "main", "zone": "lab", "class": "tcp"}, "host": "h000"},
        "cache": {"spec": {"size": "4GiB", "pool": "main", "zone": "lab", "class": "tcp"}}}}"#;

/// Peers that report nothing and accept every command.
struct Idle {
    topology: Arc<Topology>,
}

impl Peers for Idle {
    fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology)
    }

    fn command_time_max(&self) -> Duration {
        Duration::ZERO
    }

    fn reports(&mut self, term: Term, _asked: Asked<'_>) -> Reports {
        let parts = self.topology.parts();
        let donor = |capacity: Bytes| Arc::new(DonorReport { term, capacity, ..DonorReport::default() });
        Reports {
            donors: parts.donors.iter().map(|(name, one)| (name.clone(), Ok(donor(one.capacity)))).collect(),
            hosts: parts
                .hosts
                .keys()
                .map(|id| (id.clone(), Ok(Arc::new(HostReport { term, ..HostReport::default() }))))
                .collect(),
            devices: BTreeMap::new(),
        }
    }

    fn send(&mut self, commands: &[Command]) -> Vec<Result<(), SendFailure>> {
        commands.iter().map(|_| Ok(())).collect()
    }
}

/// Returns the service that all requests for fuzzing get to.
fn service() -> &'static Service {
    static SERVICE: OnceLock<Service> = OnceLock::new();
    SERVICE.get_or_init(new_service)
}

/// Returns a service whose state is in memory, with its writer on a thread.
pub(super) fn new_service() -> Service {
    let gib64 = Bytes(64 << 30);
    let rack = SimulatedConfig {
        donors: 4,
        donor_capacity: gib64,
        hosts: 2,
        devices: 2,
        device_capacity: gib64,
        directory: None,
        kill_at_effect: None,
    };
    let shared = Arc::new(Shared::default());
    let store = ManagerStore::open(Box::new(MemoryStore::default()), CrashPoint::default()).expect("it is empty");
    let peers = Box::new(Idle { topology: Arc::new(topology(&rack)) });
    let writer = Writer::start(Arc::clone(&shared), store, Tenure::ForEver, peers, 60_000, now());
    let mut writer = writer.unwrap_or_else(|stop| panic!("{stop}"));
    let declaration: Declaration = serde_json::from_str(DECLARATION).expect("a declaration");
    let cause = Cause { request: "trial".parse().expect("an id"), traceparent: None };
    let act = Act::Apply(Box::new(declaration));
    let order = Order { act, who: "amy".into(), if_match: None, is_dry_run: false, cause };
    let answer = Box::new(|outcome: Result<Done, NotDone>| drop(outcome.expect("it can be applied")));
    writer.round(vec![Posted::Order(order, answer)], now()).unwrap_or_else(|stop| panic!("{stop}"));
    let (orders, posted) = sync_channel(16);
    let of_writer = Arc::clone(&shared);
    std::thread::spawn(move || write(writer, &posted, &of_writer));
    Service {
        shared,
        sessions: Arc::new(Mutex::new(Sessions::none(SessionsConfig::default()))),
        hashing: Default::default(),
        position: Position::Leader { orders }.into(),
        directory: "/nonexistent".into(),
        console: Console::default(),
        issuance: None,
        is_ending: false.into(),
    }
}

fn write(mut writer: Writer, posted: &Receiver<Posted>, shared: &Shared) {
    let mut checker = AuditChecker::default();
    while let Ok(first) = posted.recv() {
        writer.round(vec![first], now()).unwrap_or_else(|stop| panic!("{stop}"));
        while shared.audit.is_under_way() {
            checker.step(&writer.store, shared).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
}

/// Resets accounts and subscriptions, and returns the token of a session with this role.
pub(super) fn reset(service: &Service, wanted: Option<Role>) -> Option<String> {
    *service.shared.subscriptions() = Subscriptions::default();
    let mut sessions = service.sessions();
    sessions.sessions.clear();
    sessions.accounts.clear();
    for (_, name, role) in SESSIONS {
        let account = Account { role, hash: String::new(), is_enabled: true, changes: 0 };
        sessions.accounts.insert(name.to_owned(), account);
    }
    let (_, name, role) = SESSIONS.into_iter().find(|(_, _, role)| Some(*role) == wanted)?;
    let who = Who { name: name.to_owned(), role, account: sessions.accounts[name].etag(), session: None };
    let ((_, token), pending) = sessions.create(&who, now()).ok()?;
    sessions.take_over(pending);
    Some(token)
}

/// Parses a request. Returns `None` if the bytes are not text or have no request line.
pub(super) fn parse(text: &str) -> Option<Request> {
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.lines();
    let mut words = lines.next()?.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
    };
    Some(Request {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        headers: lines.filter_map(header).collect(),
        body: body.as_bytes().to_vec(),
        from: IpAddr::V4(Ipv4Addr::LOCALHOST),
    })
}

/// Answers bytes as a request, and checks the answer, for fuzzing.
pub fn take_request(bytes: &[u8]) {
    // A request may change accounts and subscriptions; the next one resets them.
    static ONE: Mutex<()> = Mutex::new(());
    let Some(mut request) = std::str::from_utf8(bytes).ok().and_then(parse) else { return };
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let service = service();
    let role_of = |token: &str| SESSIONS.iter().find(|one| one.0 == token).map(|one| one.2);
    let role = request.header("x-auth-token").and_then(role_of);
    let token = reset(service, role);
    if let Some(token) = token {
        request.headers.retain(|(name, _)| name != "x-auth-token");
        request.headers.push(("x-auth-token".to_owned(), token));
    }
    if !CARRIED_OUT.iter().any(|path| request.path.starts_with(path)) {
        request.headers.retain(|(name, _)| name != "aquifer-dry-run");
        request.headers.push(("aquifer-dry-run".to_owned(), "true".to_owned()));
    }
    let answer = service.answer(&request);
    check(&request, role, &answer);
}

fn check(request: &Request, role: Option<Role>, answer: &Answer) {
    let status = answer.status;
    assert!(status < 500 || NOT_BUGS.contains(&status), "{request:?} gets {answer:?}");
    let path = request.path.trim_end_matches('/');
    if role.is_none() && status < 400 {
        assert!(OPEN.contains(&path), "{request:?} gets {answer:?} without a session");
    }
    if status >= 400 {
        let body = answer.body.as_ref().unwrap_or_else(|| panic!("{request:?} gets {status} without a reason"));
        let said = &body["error"]["@Message.ExtendedInfo"][0];
        for part in ["MessageId", "Message", "Resolution"] {
            let text = said[part].as_str().unwrap_or_default();
            assert!(!text.is_empty() && !text.contains(['\n', '\r']), "{request:?} gets {answer:?}");
        }
    }
    for (name, value) in &answer.headers {
        assert!(!value.contains(['\n', '\r', '\0']), "header {name} of {request:?} is {value:?}");
    }
}
