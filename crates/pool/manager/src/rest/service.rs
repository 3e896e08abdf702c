// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Answers one request: finds the route, the caller, the body; calls the route's function.
//!
//! Next on the path: `routes.rs`, the table; for a change, `memory.rs` or `switches.rs`, which hand an order to the
//! writer (`order.rs`).

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use aquifer_fabric::Cause;
use aquifer_telemetry::Side;
use serde_json::{Map, Value};

use super::answer::{Answer, Problem};
use super::body;
use super::collection::{Query, decoded};
use super::oem::VERIFICATION;
use super::routes::{Method, ROUTES, Route};
use super::{ORDER_WAIT_MAX, access, now, protocol, request_record, shape};
use crate::account_changes::carry_out;
use crate::accounts::Role;
use crate::console::Console;
use crate::hashing::Hashing;
use crate::issuance::Issuance;
use crate::manager_store::{ManagerStore, ManagerStoreFailure};
use crate::order::{Act, Order};
use crate::sessions::{Decided, Sessions, Who};
use crate::snapshot::Snapshot;
use crate::writer::{Done, Posted, Shared};

/// A request that has arrived as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    /// Names in lower case, each once.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) from: IpAddr,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// Whether this manager leads.
pub(crate) enum Position {
    /// This manager leads; orders go to its writer.
    Leader { orders: SyncSender<Posted> },
    /// Another one leads, at this URL if it is known.
    Standby { leader: Option<String> },
}

/// Everything that requests need.
pub(crate) struct Service {
    pub(crate) shared: Arc<Shared>,
    pub(crate) sessions: Arc<Mutex<Sessions>>,
    pub(crate) hashing: Hashing,
    pub(crate) position: RwLock<Position>,
    pub(crate) directory: PathBuf,
    pub(crate) console: Console,
    /// The pool's authority, if this manager has it.
    pub(crate) issuance: Option<Arc<Issuance>>,
    /// `true` once a signal has asked this manager to end.
    pub(crate) is_ending: AtomicBool,
}

/// One call of a route's function.
pub(super) struct Call<'a> {
    pub(super) service: &'a Service,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) path: &'a str,
    /// The values for the names in braces in the route's path.
    pub(super) names: Vec<String>,
    pub(super) query: Query,
    pub(super) request: &'a Request,
    pub(super) cause: &'a Cause,
    pub(super) body: Map<String, Value>,
    /// `None` on routes that are open to everybody.
    pub(super) who: Option<Who>,
}

impl Service {
    /// Locks the accounts and sessions: for one look-up or one entry, never while the store works.
    pub(crate) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().expect("a panic ends the daemon")
    }

    /// Records whether this manager leads from now on.
    pub(crate) fn take_position(&self, position: Position) {
        *self.position.write().expect("a panic ends the daemon") = position;
    }

    /// Ends this manager after its current round. A leader gives up its leadership, so that no other manager has to
    /// wait until the lease expires.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
        // Wakes a writer that is waiting for work. A busy writer checks by itself.
        let _ = self.post(Posted::Errand(Box::new(|_| Ok(()))));
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    pub(crate) fn is_leader(&self) -> bool {
        matches!(*self.position.read().expect("a panic ends the daemon"), Position::Leader { .. })
    }

    /// Answers a request.
    pub(crate) fn answer(&self, request: &Request) -> Answer {
        let mut operation = self.shared.telemetry.begin("request", Side::Server, request.header("traceparent"));
        let cause = request_record::cause(&operation, request);
        let mut route = None;
        let answer = self.try_answer(request, &cause, &mut route);
        let answer = answer.unwrap_or_else(|problem| without_dialog(request, problem).answer());
        let mut answer = protocol::with_etag(request, answer);
        let counted = route.unwrap_or(("other", "none"));
        self.shared.meters.count_answer(counted.0, counted.1, answer.status);
        request_record::record(&mut operation, request, route, &cause, &mut answer);
        answer
    }

    /// Tries to answer a request, and notes the method and the path of its route.
    fn try_answer(
        &self,
        request: &Request,
        cause: &Cause,
        found: &mut Option<(&'static str, &'static str)>,
    ) -> Result<Answer, Problem> {
        let path = protocol::plain_path(request);
        let at_path = || ROUTES.iter().filter_map(|route| Some((route, names(route, path)?)));
        let method = Method::named(&request.method);
        let Some((route, names)) = at_path().find(|(route, _)| Some(route.method) == method) else {
            let allow = protocol::allowed(at_path().map(|(route, _)| route));
            if allow.is_empty() {
                return Err(Problem::not_found(&request.path));
            }
            let what = format!("{} is not possible here", request.method.escape_default());
            let mut problem = Problem::new(405, "Base.1.18.OperationNotAllowed", what, format!("use one of {allow}"));
            problem.headers.push(("allow", allow));
            return Err(problem);
        };
        *found = Some((route.method.name(), route.path));
        check_site(request)?;
        protocol::check_headers(request, route)?;
        let is_local = route.needs.is_none() && route.method == Method::Get;
        if !is_local && let Some(answer) = self.elsewhere(request) {
            return answer;
        }
        let who = match route.needs {
            None => None,
            Some(needs) => Some(self.caller(request, needs)?),
        };
        let query = Query::parse(&request.query)?;
        let body = match route.method {
            // Redfish has the body of a read ignored, and HTTP gives that of a deletion no meaning.
            Method::Delete | Method::Get => Map::new(),
            Method::Patch | Method::Post => body::parse(&request.body, route.body, route.method == Method::Patch)?,
        };
        let snapshot = self.shared.snapshot();
        let call = Call { service: self, snapshot, path, names, query, request, cause, body, who };
        if matches!(route.method, Method::Delete | Method::Patch)
            && let Some(Ok(read)) = request.header("if-match").and_then(|_| call.read(path))
        {
            protocol::check_if_match(request, &read)?;
        }
        let answer = (route.answer)(&call)?;
        // An answer to `$select` has the ETag of the whole resource; an expanded answer has its own ETag.
        let answer = if call.query.expand.is_none() { protocol::tagged(request, answer) } else { answer };
        let answer = call.shaped(answer)?;
        Ok(protocol::with_headers(request, answer, protocol::allowed(at_path().map(|(route, _)| route))))
    }

    /// Returns what a standby answers: where the leader is. A reader is sent there; a change is refused, because its
    /// client must know that it asked the wrong manager.
    pub(super) fn elsewhere(&self, request: &Request) -> Option<Result<Answer, Problem>> {
        let leader = match &*self.position.read().expect("a panic ends the daemon") {
            Position::Leader { .. } => return None,
            Position::Standby { leader } => leader.clone(),
        };
        let Some(leader) = leader else {
            let what = "no manager leads at this moment";
            let mut problem = Problem::new(503, UNAVAILABLE, what, "try again in some seconds");
            problem.headers.push(("retry-after", "2".to_owned()));
            return Some(Err(problem));
        };
        let query = if request.query.is_empty() { String::new() } else { format!("?{}", request.query) };
        let location = format!("{leader}{}{query}", request.path);
        let is_read = matches!(request.method.as_str(), "GET" | "HEAD");
        let status = if is_read { 307 } else { 421 };
        let what = format!("this manager stands by; {leader} leads");
        let mut problem = Problem::new(status, "AquiferFabric.1.0.Standby", what, format!("ask {leader}"));
        problem.headers.push(("location", location));
        Some(Err(problem))
    }

    /// Hands something to the writer.
    pub(crate) fn post(&self, posted: Posted) -> Result<(), Problem> {
        let orders = match &*self.position.read().expect("a panic ends the daemon") {
            Position::Leader { orders } => orders.clone(),
            Position::Standby { .. } => return Err(busy("this manager has just stopped leading")),
        };
        orders.try_send(posted).map_err(|error| match error {
            TrySendError::Full(_) => busy("too many orders are waiting"),
            TrySendError::Disconnected(_) => busy("this manager has just stopped leading"),
        })
    }

    /// Has the writer run something with the store, and waits for the result. No lock may be held meanwhile.
    pub(super) fn errand<T: Send + 'static>(
        &self,
        errand: impl FnOnce(&mut ManagerStore) -> Result<T, ManagerStoreFailure> + Send + 'static,
    ) -> Result<T, Problem> {
        let (answer, answered) = sync_channel(1);
        let run = move |store: &mut ManagerStore| {
            let outcome = errand(store);
            let (told, outcome) = match outcome {
                Ok(value) => (Some(Ok(value)), Ok(())),
                Err(failure) => (failure.is_refused().then(|| Err(failure.to_string())), Err(failure)),
            };
            // The client may be gone by now.
            let _ = told.map(|told| answer.send(told));
            outcome
        };
        self.post(Posted::Errand(Box::new(run)))?;
        let told = answered.recv_timeout(ORDER_WAIT_MAX).map_err(|_| busy(UNANSWERED))?;
        told.map_err(|line| Problem::line(503, UNAVAILABLE, &line))
    }

    /// Decides a change of accounts or sessions, and has it stored.
    pub(super) fn keep<T: Send + 'static>(
        &self,
        decide: impl FnOnce(&Sessions) -> Decided<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let sessions = Arc::clone(&self.sessions);
        Ok(self.errand(move |store| carry_out(&sessions, store, now(), decide))??)
    }

    pub(super) fn caller(&self, request: &Request, needs: Role) -> Result<Who, Problem> {
        let who = access::recognise(self, request)?;
        if who.role < needs {
            let message = format!("account {} has role {}", who.name, who.role.name());
            let remedy = format!("use an account with role {}", needs.name());
            return Err(Problem::new(403, "Base.1.18.InsufficientPrivilege", message, remedy));
        }
        Ok(who)
    }
}

impl Call<'_> {
    /// Reads another resource for the caller. Returns `None` if it does not exist or the caller may not read it.
    fn read(&self, path: &str) -> Option<Result<Answer, Problem>> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let mut gets = ROUTES.iter().filter(|route| route.method == Method::Get);
        let (route, names) = gets.find_map(|route| Some((route, names(route, path)?)))?;
        let may = |needs| self.who.as_ref().is_some_and(|who| who.role >= needs);
        if !route.needs.is_none_or(may) {
            return None;
        }
        let (snapshot, query, body, who) = (Arc::clone(&self.snapshot), Query::default(), Map::new(), self.who.clone());
        let (service, request, cause) = (self.service, self.request, self.cause);
        let call = Call { service, snapshot, path, names, query, request, cause, body, who };
        Some((route.answer)(&call))
    }

    /// Applies the query's parameters to an answer.
    fn shaped(&self, mut answer: Answer) -> Result<Answer, Problem> {
        let Some(mut body) = answer.body.take() else { return Ok(answer) };
        let members = body.get("Members").and_then(Value::as_array);
        if self.query.is_for_collections() && members.is_none() {
            let what = "$filter and only are for collections, and this resource is not one";
            return Err(Problem::new(400, "Base.1.18.QueryNotSupportedOnResource", what, "leave them out"));
        }
        if let (true, Some([only])) = (self.query.only, members.map(Vec::as_slice))
            && let Some(read) = only["@odata.id"].as_str().and_then(|path| self.read(path))
        {
            return read;
        }
        if let Some(how) = self.query.expand {
            let is_read = |path: &&str| *path != VERIFICATION;
            let mut fetch = |path: &str| self.read(Some(path).filter(is_read)?)?.ok()?.body;
            shape::expand(how, &mut body, &mut fetch);
        }
        answer.body = Some(shape::select(&self.query, body));
        Ok(answer)
    }

    /// Returns the name of the caller.
    pub(super) fn who(&self) -> &str {
        self.who.as_ref().map_or("nobody", |who| &who.name)
    }

    /// Returns the first name of the path. Every route that calls this has one.
    pub(super) fn name(&self) -> &str {
        self.names.last().map_or("", String::as_str)
    }

    /// Returns a text property of the body.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.body.get(name).and_then(Value::as_str)
    }

    /// Returns the last name of the path as a name of ours. One that cannot be a name does not exist.
    pub(super) fn named<T: std::str::FromStr>(&self) -> Result<T, Problem> {
        self.name().parse().map_err(|_| Problem::not_found(self.path))
    }

    /// Returns whether the request asks what would happen.
    pub(super) fn is_dry_run(&self) -> bool {
        protocol::is_dry_run(self.request)
    }

    /// Returns whether a volume that is released is unbound first.
    pub(super) fn unbinds(&self) -> bool {
        protocol::unbinds(self.request)
    }

    /// Hands an order to the writer, and waits until it is stored.
    pub(super) fn order(&self, act: Act, is_dry_run: bool) -> Result<Done, Problem> {
        let (answer, answered) = sync_channel(1);
        let if_match = self.request.header("if-match").map(str::to_owned);
        let order = Order { act, who: self.who().to_owned(), if_match, is_dry_run, cause: self.cause.clone() };
        let line = (!is_dry_run).then(|| request_record::line(&order));
        let respond = move |outcome| {
            // The client may be gone by now; its order is carried out all the same.
            let _ = answer.send(outcome);
        };
        self.service.post(Posted::Order(order, Box::new(respond)))?;
        let outcome = answered.recv_timeout(ORDER_WAIT_MAX).ok();
        if let Some(line) = line {
            eprintln!("aquifer-fabricd: {line} {}", request_record::result(outcome.as_ref()));
        }
        Ok(outcome.ok_or_else(|| busy(UNANSWERED))??)
    }
}

/// Removes what would make a browser ask for the password itself, keep it, and send it with requests of any page.
pub(super) fn without_dialog(request: &Request, mut problem: Problem) -> Problem {
    if request.header("sec-fetch-mode").is_some() {
        problem.headers.retain(|(name, _)| *name != "www-authenticate");
    }
    problem
}

/// Refuses changes that a page of another site has sent. Such a page has no token, so that this is a second guard.
fn check_site(request: &Request) -> Result<(), Problem> {
    let is_foreign = match (request.header("sec-fetch-site"), request.header("origin")) {
        (Some(site), _) => !["none", "same-origin"].contains(&site),
        (None, Some(origin)) => origin.split_once("://").map(|(_, host)| host) != request.header("host"),
        (None, None) => false,
    };
    if !is_foreign || ["GET", "HEAD"].contains(&request.method.as_str()) {
        return Ok(());
    }
    let what = "a page of another site has sent this request";
    Err(Problem::new(403, "Base.1.18.AccessDenied", what, "use the console of this manager, or a program"))
}

const UNAVAILABLE: &str = "Base.1.18.ServiceTemporarilyUnavailable";
const UNANSWERED: &str = "the order was not answered; it may still be carried out";

fn busy(what: &str) -> Problem {
    Problem::new(503, UNAVAILABLE, what, "look at the state, then try again")
}

/// Returns the values for the names in braces in a route's path, if the path matches it.
pub(super) fn names(route: &Route, path: &str) -> Option<Vec<String>> {
    let (mut pattern, mut segments) = (route.path.split('/'), path.split('/'));
    let mut names = Vec::new();
    loop {
        match (pattern.next(), segments.next()) {
            (None, None) => return Some(names),
            (Some(wanted), Some(found)) if wanted.starts_with('{') => {
                names.push(decoded(found).filter(|name| !name.is_empty())?);
            }
            (Some(wanted), Some(found)) if wanted == found => {}
            _ => return None,
        }
    }
}
