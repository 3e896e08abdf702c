// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which bodies are received. Strangers can send only short ones: as JSON, a body takes up to a hundred times its size
//! in memory. Long ones come with the token of a session, which is checked before the body is received; a password is
//! not, because hashing it takes long.

use super::answer::Problem;
use super::body::BODY_BYTES_MAX;
use super::protocol;
use super::routes::{Method, ROUTES};
use super::service::{Request, Service, names, without_dialog};

fn too_large(what: String, remedy: &str) -> Problem {
    Problem::new(413, "Base.1.18.GeneralError", what, remedy)
}

impl Service {
    /// Checks whether a body of this length is received, before it is. `head` has everything but the body.
    pub(crate) fn admit_body(&self, head: &Request, length: u64) -> Result<(), Problem> {
        let (method, path) = (Method::named(&head.method), protocol::plain_path(head));
        let route = ROUTES.iter().find(|route| Some(route.method) == method && names(route, path).is_some());
        let max = route.map_or(BODY_BYTES_MAX, |route| route.body_bytes_max);
        if length > max as u64 {
            return Err(too_large(format!("the body is larger than {max} bytes"), "send less at a time"));
        }
        let Some(needs) = route.and_then(|route| route.needs).filter(|_| length > BODY_BYTES_MAX as u64) else {
            return Ok(());
        };
        // A standby does not know the sessions.
        if let Some(Err(elsewhere)) = self.elsewhere(head) {
            return Err(elsewhere);
        }
        if head.header("x-auth-token").is_none() {
            let what = format!("a body larger than {BODY_BYTES_MAX} bytes needs the token of a session");
            return Err(too_large(what, "log in at /redfish/v1/SessionService/Sessions, and send X-Auth-Token"));
        }
        self.caller(head, needs).map(drop).map_err(|problem| without_dialog(head, problem))
    }
}
