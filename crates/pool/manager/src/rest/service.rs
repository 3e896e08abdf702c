// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Answers one request: finds the route, the caller, the body; calls the route's function.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Map, Value};

use super::answer::{Answer, Problem};
use super::body;
use super::collection::{Query, decoded};
use super::routes::{Method, ROUTES, Route};
use super::{ORDER_WAIT_MAX, access};
use crate::accounts::Role;
use crate::console::Console;
use crate::order::{Act, NotDone, Order, etag_of};
use crate::sessions::{Sessions, Who};
use crate::snapshot::Snapshot;
use crate::writer::{Done, Shared};

/// An order on its way to the writer, with the function that takes the answer.
pub(crate) type Posted = (Order, Box<dyn FnOnce(Result<Done, NotDone>) + Send>);

/// A request that has arrived as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) from: IpAddr,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// Everything that requests need.
pub(crate) struct Service {
    pub(crate) shared: Arc<Shared>,
    pub(crate) sessions: Mutex<Sessions>,
    pub(crate) orders: SyncSender<Posted>,
    pub(crate) directory: PathBuf,
    pub(crate) console: Console,
}

/// One call of a route's function.
pub(super) struct Call<'a> {
    pub(super) service: &'a Service,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) path: &'a str,
    /// What stands for the names in braces of the route's path.
    pub(super) names: Vec<String>,
    pub(super) query: Query,
    pub(super) request: &'a Request,
    pub(super) body: Map<String, Value>,
    /// `None` on routes that are open to everybody.
    pub(super) who: Option<Who>,
}

impl Service {
    pub(super) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().expect("a panic ends the daemon")
    }

    /// Answers a request.
    pub(crate) fn answer(&self, request: &Request) -> Answer {
        let mut answer = self.try_answer(request).unwrap_or_else(Problem::answer);
        // A browser would ask for the password itself, keep it, and send it with requests of any page.
        if request.header("sec-fetch-mode").is_some() {
            answer.headers.retain(|(name, _)| *name != "www-authenticate");
        }
        with_etag(request, answer)
    }

    fn try_answer(&self, request: &Request) -> Result<Answer, Problem> {
        let path = request.path.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(&request.path);
        let at_path = || ROUTES.iter().filter_map(|route| Some((route, names(route, path)?)));
        let method = Method::named(&request.method);
        let Some((route, names)) = at_path().find(|(route, _)| Some(route.method) == method) else {
            let allowed: Vec<&str> = at_path().map(|(route, _)| route.method.name()).collect();
            if allowed.is_empty() {
                return Err(Problem::not_found(&request.path));
            }
            let mut problem = Problem::new(
                405,
                "Base.1.18.OperationNotAllowed",
                format!("{} is not possible here", request.method.escape_default()),
                format!("use {}", allowed.join(" or ")),
            );
            problem.headers.push(("allow", allowed.join(", ")));
            return Err(problem);
        };
        check_site(request)?;
        let who = match route.needs {
            None => None,
            Some(needs) => Some(self.caller(request, needs)?),
        };
        let query = Query::parse(&request.query)?;
        let body = body::parse(&request.body, route.body)?;
        let snapshot = self.shared.snapshot();
        let call = Call { service: self, snapshot, path, names, query, request, body, who };
        (route.answer)(&call)
    }

    fn caller(&self, request: &Request, needs: Role) -> Result<Who, Problem> {
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
    /// The name of the caller.
    pub(super) fn who(&self) -> &str {
        self.who.as_ref().map_or("nobody", |who| &who.name)
    }

    /// The first name of the path. Every route that asks has one.
    pub(super) fn name(&self) -> &str {
        self.names.last().map_or("", String::as_str)
    }

    /// A text property of the body.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.body.get(name).and_then(Value::as_str)
    }

    /// The last name of the path as a name of ours. One that cannot be a name does not exist.
    pub(super) fn named<T: std::str::FromStr>(&self) -> Result<T, Problem> {
        self.name().parse().map_err(|_| Problem::not_found(self.path))
    }

    /// Whether the request asks what would happen.
    pub(super) fn is_dry_run(&self) -> bool {
        self.request.header("aquifer-dry-run").is_some_and(|value| value == "true")
    }

    /// Hands an order to the writer, and waits until it is stored.
    pub(super) fn order(&self, act: Act, is_dry_run: bool) -> Result<Done, Problem> {
        let (answer, answered) = sync_channel(1);
        let if_match = self.request.header("if-match").map(str::to_owned);
        let order = Order { act, who: self.who().to_owned(), if_match, is_dry_run };
        let respond = move |outcome| {
            // The client may be gone by now; its order is carried out all the same.
            let _ = answer.send(outcome);
        };
        let busy =
            |what: &str| Problem::new(503, "Base.1.18.ServiceTemporarilyUnavailable", what, "try again in a second");
        self.service.orders.try_send((order, Box::new(respond))).map_err(|error| match error {
            TrySendError::Full(_) => busy("too many orders are waiting"),
            TrySendError::Disconnected(_) => busy("the manager is ending"),
        })?;
        let outcome = answered.recv_timeout(ORDER_WAIT_MAX);
        Ok(outcome.map_err(|_| busy("the order was not answered in time; it may still be carried out"))??)
    }
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

/// What stands for the braces of a route's path, if the path is one of its.
fn names(route: &Route, path: &str) -> Option<Vec<String>> {
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

/// Adds an ETag to what was read, and answers 304 to a client that has it.
fn with_etag(request: &Request, answer: Answer) -> Answer {
    let (200, Some(body), "GET" | "HEAD") = (answer.status, &answer.body, request.method.as_str()) else {
        return answer;
    };
    let given = answer.headers.iter().find(|(name, _)| *name == "etag").map(|(_, tag)| tag.clone());
    let tag = given.clone().unwrap_or_else(|| etag_of(body.to_string().as_bytes()));
    if request.header("if-none-match").is_some_and(|wanted| wanted == tag) {
        return Answer { status: 304, ..Answer::default() }.with("etag", tag);
    }
    if given.is_some() { answer } else { answer.with("etag", tag) }
}
