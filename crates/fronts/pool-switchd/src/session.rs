// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The session at the manager, which a program that cannot start ends: a manager has room for a few hundred, and the
//! unit starts the program again and again.

use std::sync::{Arc, Mutex, PoisonError};

use aquifer_manager_client::{Answer, Client, Request};

use crate::config::Config;
use crate::pool::ANSWER_WAIT_MAX;

/// The path and the token of the last session, if there was one. Clones are the same session.
#[derive(Clone, Default)]
pub(crate) struct Session(Arc<Mutex<Option<(String, String)>>>);

impl Session {
    /// Notes the session that a login has made. Returns its token.
    pub fn note(&self, login: Answer) -> Option<String> {
        let path = login.location.filter(|location| location.starts_with('/'));
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *last = path.zip(login.token.clone());
        login.token
    }

    /// Logs out, if the manager answers within its usual time. Otherwise the session ends by its own timeout.
    pub fn end(&self, config: &Config) {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let client = Client::new(&config.url, config.ca.as_deref(), &config.members);
        let (Some((path, token)), Ok(client)) = (last, client) else { return };
        let mut client = client.with_wait(ANSWER_WAIT_MAX);
        client.token = Some(token);
        let _ = client.ask(&Request { method: "DELETE", path: &path, ..Request::default() });
    }
}
