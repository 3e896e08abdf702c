// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The pool's manager, over REST: a session of an operator, reads, and changes of volumes. Every wait has a limit.

use std::time::Duration;

use aquifer_cxl_switch::Ending;
use aquifer_cxl_switchd::Failure;
use aquifer_fmapi::ReturnCode;
use aquifer_manager_client::{Client, Failure as Unanswered, Request, collection};
use serde_json::{Value, json};

use crate::config::Config;
use crate::view::{Ld, VOLUME_PREFIX, View, VolumeView, volume_name, volume_of};

/// How long the manager may take for one answer. A manager stores a change within milliseconds.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);
const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";
const ENDPOINTS: &str = "/redfish/v1/Fabrics/Aquifer/Endpoints";
const POOLS: &str = "/redfish/v1/Chassis/Pools/MemoryDomains";
const CHANGE: &str = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.ChangeVolumes";

/// A session at the pool's manager.
pub(crate) struct Pool {
    client: Client,
    account: String,
    password: String,
    path: String,
}

/// Returns a failure of the client as one of this program.
fn failure(unanswered: &Unanswered) -> Failure {
    let (cause, remedy) = unanswered.line.split_once("; ").unwrap_or((&unanswered.line, "look at the manager's log"));
    Failure::new(cause, remedy)
}

/// Returns how an order ends by the status of the manager's answer.
fn ending(status: u16) -> Ending {
    match status {
        200..300 => Ending::Done,
        // Somebody else has changed the volume since it was read.
        412 => Ending::Refused(ReturnCode::RETRY_REQUIRED),
        507 => Ending::Refused(ReturnCode::RESOURCES_EXHAUSTED),
        429 => Ending::Refused(ReturnCode::RETRY_REQUIRED),
        400..500 => Ending::Refused(ReturnCode::INVALID_INPUT),
        // Nobody leads, or the writer has not answered, and may still carry it out. A repetition finds that out.
        503 => Ending::Unknown(ReturnCode::RETRY_REQUIRED),
        _ => Ending::Unknown(ReturnCode::INTERNAL_ERROR),
    }
}

impl Pool {
    /// Creates the pool's client, which logs in when it is first used.
    pub fn new(config: &Config) -> Result<Self, Failure> {
        let client = Client::new(&config.url, config.ca.as_deref(), &config.members);
        let client = client.map_err(|unanswered| failure(&unanswered))?.with_wait(ANSWER_WAIT_MAX);
        let (account, password) = (config.account.clone(), config.password()?);
        Ok(Self { client, account, password, path: format!("{POOLS}/{}/MemoryChunks", config.pool) })
    }

    fn log_in(&mut self) -> Result<(), Unanswered> {
        let body = json!({ "UserName": self.account, "Password": self.password });
        self.client.token = None;
        self.client.token = self.client.ask(&Request::post(SESSIONS, body))?.token;
        Ok(())
    }

    /// Does something, and again after a new login if the session has ended.
    fn in_session<T>(&mut self, work: impl Fn(&Client) -> Result<T, Unanswered>) -> Result<T, Unanswered> {
        if self.client.token.is_none() {
            self.log_in()?;
        }
        work(&self.client).or_else(|unanswered| {
            if unanswered.is_unsent {
                return Err(unanswered);
            }
            // A failure does not tell whether the session has ended, and to read once more does no harm.
            self.log_in()?;
            work(&self.client)
        })
    }

    /// Reads what the manager has.
    pub fn read(&mut self) -> Result<View, Failure> {
        let path = self.path.clone();
        // The names of volumes sort by their bytes: those that begin with the prefix, and none after it.
        let next = VOLUME_PREFIX.replace('-', ".");
        let filter = format!("&$filter=Id%20ge%20'{VOLUME_PREFIX}'%20and%20Id%20lt%20'{next}'");
        let read = self.in_session(|client| {
            Ok(View::of(&collection(client, ENDPOINTS, "")?, &collection(client, &path, &filter)?))
        });
        read.map_err(|unanswered| failure(&unanswered))
    }

    /// Reads the volume of a logical device; none if there is no such volume.
    pub fn read_volume(&mut self, (donor, ld_id): &Ld) -> Result<Option<VolumeView>, Failure> {
        let path = format!("{}/{}", self.path, volume_name(donor, *ld_id));
        let found = self.in_session(|client| client.find(&path)).map_err(|unanswered| failure(&unanswered))?;
        Ok(found.map(|answer| volume_of(donor, &answer.body)))
    }

    /// Changes volumes. Returns how that ended, and the manager's reason for a refusal.
    pub fn change(&mut self, body: &Value) -> (Ending, Option<String>) {
        match self.client.try_ask(&Request::post(CHANGE, body.clone())) {
            Ok((status, answer)) => {
                if status == 401 {
                    // The next read logs in again.
                    self.client.token = None;
                    return (Ending::Refused(ReturnCode::RETRY_REQUIRED), None);
                }
                let reason = answer.body["error"]["message"].as_str().map(str::to_owned);
                (ending(status), reason)
            }
            Err(unanswered) if unanswered.is_unsent => {
                (Ending::Refused(ReturnCode::RETRY_REQUIRED), Some(unanswered.line))
            }
            Err(unanswered) => (Ending::Unknown(ReturnCode::INTERNAL_ERROR), Some(unanswered.line)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_that_says_so_is_a_success() {
        for status in 100..600 {
            assert_eq!(ending(status) == Ending::Done, (200..300).contains(&status), "{status}");
        }
        assert_eq!(ending(507), Ending::Refused(ReturnCode::RESOURCES_EXHAUSTED));
        assert_eq!(ending(503), Ending::Unknown(ReturnCode::RETRY_REQUIRED));
    }
}
