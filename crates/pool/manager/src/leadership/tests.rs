// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a new leader reads before it serves, what it forgets afterwards, and what goes on while it checks its log.

use super::*;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Mutex;

use aquifer_authority::{Kind, Subject};
use aquifer_fabric::{Millis, Term};
use aquifer_state_store::{Entry, Key, MemoryStore, NotCommitted, Refusal, SCAN_MAX, StoreFailure, Transaction, Write};

use crate::accounts::Role;
use crate::issuance::{CERTIFICATES, Issuance, Issued};
use crate::manager_store::json;
use crate::rest::{Answer, Request};
use crate::sessions::Who;

/// A manager with an authority that does not lead yet.
struct Standby {
    directory: PathBuf,
    config: Config,
    service: Service,
    issuance: Arc<Issuance>,
}

impl Standby {
    fn new(name: &str, peers: &str) -> Standby {
        let directory = std::env::temp_dir().join(format!("aquifer-{name}-{}", std::process::id()));
        make_directory(&directory).expect("ours");
        let text = format!("state = {directory:?}\n[ca]\n{peers}");
        let mut config = Config::parse(&text).expect("enough");
        let issuance = Issuance::open(&mut config).expect("usable").map(Arc::new).expect("there is one");
        let service = Service {
            shared: Arc::default(),
            sessions: Arc::new(Mutex::new(Sessions::none(config.sessions.clone()))),
            hashing: Default::default(),
            position: Position::Standby { leader: None }.into(),
            directory: directory.clone(),
            console: Default::default(),
            issuance: Some(Arc::clone(&issuance)),
            is_ending: false.into(),
        };
        Standby { directory, config, service, issuance }
    }

    fn finish(self) {
        std::fs::remove_dir_all(&self.directory).expect("ours");
    }
}

fn key(serial: &str) -> Key {
    Key::new(format!("{CERTIFICATES}{serial}")).expect("it is plain")
}

fn revoked() -> Vec<u8> {
    let subject = Subject::new(Kind::Donor, "d1", "pool.internal", &[]).expect("a subject");
    json(&Issued {
        subject,
        from: Millis(0),
        until: Millis(u64::MAX),
        is_renewal: false,
        revoked: Some(now()),
        authority: None,
        is_replaced: false,
    })
}

/// Returns a store with one revoked certificate.
fn store() -> MemoryStore {
    let mut store = MemoryStore::default();
    store.commit(&Transaction::new().put(key("0a"), revoked())).expect("it is empty");
    store
}

/// A store in which the previous leader revokes another certificate before it is deposed.
struct Overtaken {
    store: MemoryStore,
    has_revoked: bool,
}

impl StateStore for Overtaken {
    fn read(&self, key: &Key) -> Result<Option<Entry>, StoreFailure> {
        self.store.read(key)
    }

    fn scan(&self, prefix: &str, after: Option<&Key>) -> Result<Vec<(Key, Entry)>, StoreFailure> {
        self.store.scan(prefix, after)
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<u64, NotCommitted> {
        // The first commit takes the term.
        if !std::mem::replace(&mut self.has_revoked, true) {
            self.store.commit(&Transaction::new().put(key("0b"), revoked()))?;
        }
        self.store.commit(transaction)
    }
}

/// A store in which each page of the audit log takes a while to read, as in an etcd far away.
struct Slow(MemoryStore);

impl StateStore for Slow {
    fn read(&self, key: &Key) -> Result<Option<Entry>, StoreFailure> {
        self.0.read(key)
    }

    fn scan(&self, prefix: &str, after: Option<&Key>) -> Result<Vec<(Key, Entry)>, StoreFailure> {
        if prefix.starts_with("audit/") {
            std::thread::sleep(Duration::from_millis(200));
        }
        self.0.scan(prefix, after)
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<u64, NotCommitted> {
        self.0.commit(transaction)
    }
}

/// Says why a transaction fails, if it does.
type Rule = fn(&Transaction) -> Option<NotCommitted>;

/// A store in which transactions fail as a test says.
struct Failing {
    store: MemoryStore,
    rule: Arc<Mutex<Rule>>,
}

impl StateStore for Failing {
    fn read(&self, key: &Key) -> Result<Option<Entry>, StoreFailure> {
        self.store.read(key)
    }

    fn scan(&self, prefix: &str, after: Option<&Key>) -> Result<Vec<(Key, Entry)>, StoreFailure> {
        self.store.scan(prefix, after)
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<u64, NotCommitted> {
        let rule = *self.rule.lock().expect("no panic");
        rule(transaction).map_or_else(|| self.store.commit(transaction), Err)
    }
}

/// Returns a store whose audit log has four full pages, and one that is not.
fn long_log() -> MemoryStore {
    let store = MemoryStore::default();
    let mut manager = ManagerStore::open(Box::new(store.clone()), CrashPoint::default()).expect("opened");
    manager.take_term(Term(0)).expect("taken");
    for _ in 0..50 {
        let entries = vec![crate::manager_store::Entry::new("amy", "a change"); SCAN_MAX / 10];
        manager.keep(&[], &entries, Millis(1)).expect("stored");
    }
    store
}

fn administrator(service: &Service) -> String {
    let mut sessions = service.sessions();
    let account = sessions.accounts["admin"].etag();
    let who = Who { name: "admin".into(), role: Role::Administrator, account, session: None };
    let ((_, token), pending) = sessions.create(&who, now()).expect("created");
    sessions.take_over(pending);
    token
}

fn get(service: &Service, token: &str, path: &str, query: &str) -> Answer {
    service.answer(&Request {
        method: "GET".into(),
        path: path.into(),
        query: query.into(),
        headers: vec![("x-auth-token".into(), token.into())],
        body: Vec::new(),
        from: std::net::Ipv4Addr::LOCALHOST.into(),
    })
}

/// A log of millions of records takes minutes to check, and the watchdog ends a leader that has no round meanwhile.
#[test]
fn rounds_go_on_while_the_audit_log_is_verified() {
    const AUDIT: &str = "/redfish/v1/Oem/Aquifer/Audit";
    let standby = Standby::new("slow-audit", "[peers]\nkind = \"simulated\"\n");
    let service = &standby.service;
    let led = Lead::begin(&standby.config, Box::new(Slow(long_log())), Tenure::ForEver, service);
    let lead = led.map_err(|not| not.line).expect("it leads");
    let rounds = || service.shared.snapshot().rounds;
    let posted = Lead::take_orders(service);
    std::thread::scope(|scope| {
        scope.spawn(|| lead.serve(posted, service, &Notify::from_environment()));
        let token = administrator(service);
        let expanded = get(service, &token, AUDIT, "$expand=.").body.expect("a body");
        assert_eq!(expanded["Verification"].as_object().map(serde_json::Map::len), Some(1), "{expanded:.300}");
        while service.shared.audit.is_under_way() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let before = rounds();
        let verified = get(service, &token, &format!("{AUDIT}/Verification"), "");
        let during = rounds() - before;
        service.end();
        assert_eq!(verified.status, 200, "{verified:?}");
        let body = verified.body.expect("a body");
        assert!(body["IsIntact"] == true && body["Tail"]["records"].as_u64() >= Some(4000), "{body}");
        assert!(during >= 4, "{during} rounds while five pages were checked");
    });
    standby.finish();
}

/// The record of the wrong password was refused, and that ended the leadership; without space no manager could lead
/// afterwards.
#[test]
fn a_stranger_with_a_wrong_password_does_not_end_a_leader_whose_etcd_has_no_space() {
    let standby = Standby::new("no-space", "[peers]\nkind = \"simulated\"\n");
    let service = &standby.service;
    let rule: Arc<Mutex<Rule>> = Arc::new(Mutex::new(|_| None));
    let store = Failing { store: MemoryStore::default(), rule: Arc::clone(&rule) };
    let lead = Lead::begin(&standby.config, Box::new(store), Tenure::ForEver, service);
    let lead = lead.map_err(|not| not.line).expect("it leads");
    let posted = Lead::take_orders(service);
    *rule.lock().expect("no panic") =
        |_| Some(NotCommitted::Refused { refusal: Refusal::NoSpace, why: "in etcd's words".into() });
    std::thread::scope(|scope| {
        let led = scope.spawn(|| lead.serve(posted, service, &Notify::from_environment()));
        let answer = service.answer(&Request {
            method: "POST".into(),
            path: "/redfish/v1/SessionService/Sessions".into(),
            query: String::new(),
            headers: vec![("content-type".into(), "application/json".into())],
            body: br#"{"UserName": "admin", "Password": "not that of the admin"}"#.to_vec(),
            from: std::net::Ipv4Addr::LOCALHOST.into(),
        });
        let body = answer.body.map(|body| body.to_string()).unwrap_or_default();
        let is_leader = service.is_leader();
        service.end();
        let stop = led.join().expect("no panic");
        assert!(is_leader && matches!(stop, Stop::Ended), "{stop}");
        assert!(answer.status == 503 && body.contains("compact and defragment"), "{} {body}", answer.status);
    });
    standby.finish();
}

/// With etcd, the first manager ended for good if the answer about its first account was lost.
#[test]
fn a_first_account_that_is_not_stored_for_a_passing_reason_ends_no_manager() {
    let standby = Standby::new("first-account", "[peers]\nkind = \"simulated\"\n");
    let rule: Rule = |transaction| {
        let is_account = |write: &Write| matches!(write, Write::Put(key, _) if key.as_str() == "account/admin");
        let lost = || NotCommitted::Unknown(StoreFailure::Etcd { what: "no answer in time".into() });
        transaction.writes.iter().any(is_account).then(lost)
    };
    let store = Failing { store: MemoryStore::default(), rule: Arc::new(Mutex::new(rule)) };
    let led = Lead::begin(&standby.config, Box::new(store), Tenure::ForEver, &standby.service);
    let not = led.err().expect("the account is not stored");
    assert!(not.may_pass && not.line.contains("no answer in time"), "{}", not.line);
    standby.finish();
}

/// The first to connect after a failover gets the list at once: an older one would admit those whose
/// certificates were revoked since.
#[test]
fn the_list_is_read_from_the_store_before_the_control_port_is_opened() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let listen = taken.local_addr().expect("a port");
    let peers = format!("[peers]\nkind = \"registered\"\n[control]\nlisten = \"{listen}\"\n");
    let standby = Standby::new("list-first", &peers);
    let led = Lead::begin(&standby.config, Box::new(store()), Tenure::ForEver, &standby.service);
    let line = led.err().expect("the port is taken").line;
    assert!(line.contains(&listen.to_string()), "{line}");
    assert_eq!(standby.issuance.listed_serials(), ["0a"]);
    standby.finish();
}

/// Until it is deposed, the previous leader may revoke more.
#[test]
fn the_list_is_read_again_once_the_term_is_taken() {
    let standby = Standby::new("list-again", "[peers]\nkind = \"simulated\"\n");
    let store = Overtaken { store: store(), has_revoked: false };
    let led = Lead::begin(&standby.config, Box::new(store), Tenure::ForEver, &standby.service);
    assert!(led.is_ok(), "{:?}", led.err().map(|not| not.line));
    assert_eq!(standby.issuance.listed_serials(), ["0a", "0b"]);
    standby.finish();
}

/// Another manager may revoke more from now on, and this one's list would be signed again when it is due.
#[test]
fn a_manager_that_leads_no_longer_forgets_its_list() {
    let standby = Standby::new("list-forgotten", "[peers]\nkind = \"simulated\"\n");
    standby.service.end();
    let Standby { config, service, .. } = &standby;
    let notify = Notify::from_environment();
    let ended = lead_once(config, Box::new(store()), Tenure::ForEver, service, &notify);
    assert_eq!(ended.line, Stop::Ended.to_string());
    let file = std::fs::read_to_string(standby.directory.join("ca/revocations.pem"));
    assert!(file.is_ok_and(|file| file.contains("X509 CRL")), "it had one");
    assert_eq!((standby.issuance.listed_serials(), standby.issuance.current_list()), (vec![], None));
    // Nor does it keep one if it cannot lead.
    let broken = store();
    broken.fail_after(Some(12));
    lead_once(config, Box::new(broken), Tenure::ForEver, service, &notify);
    assert_eq!(standby.issuance.current_list(), None);
    standby.finish();
}

/// A volume that programs still used was looked at fifty times a second, for as long as they ran.
#[test]
fn what_takes_long_is_looked_at_less_often() {
    let [busy, idle] = [20, 1000].map(Duration::from_millis);
    let after = |seconds: f64| wait_again(busy, idle, Duration::from_secs_f64(seconds)).as_millis();
    assert_eq!([0.0, 0.5, 6.4, 32.0, 1e6].map(after), [20, 20, 200, 1000, 1000]);
}
