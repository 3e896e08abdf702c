// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The pool's manager, over REST: a session of an operator, reads, and changes of volumes. Every wait has a limit.
//!
//! The program logs in when it has no session, and again when the manager says that the session has ended, at the pace
//! of `logins.rs`. It reads the password from its file each time, so that a new one needs no restart.

use std::time::{Duration, Instant};

use aquifer_cxl_switch::Ending;
use aquifer_cxl_switchd::Failure;
use aquifer_fmapi::ReturnCode;
use aquifer_manager_client::{Client, Failure as Unanswered, Request, collection, refused};
use serde_json::{Value, json};

use crate::config::Config;
use crate::logins::Logins;
use crate::session::Session;
use crate::trouble::{Trouble, is_refusal};
use crate::view::{Answers, Ld, VOLUME_PREFIX, View, VolumeView, volume_name, volume_of};

/// How long the manager may take for one answer. A manager stores a change within milliseconds.
pub(crate) const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);
const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";
const ACCOUNTS: &str = "/redfish/v1/AccountService/Accounts";
const ENDPOINTS: &str = "/redfish/v1/Fabrics/Aquifer/Endpoints";
const ZONES: &str = "/redfish/v1/Fabrics/Aquifer/Zones";
const POOLS: &str = "/redfish/v1/Chassis/Pools/MemoryDomains";
const SUMMARY: &str = "/redfish/v1/Oem/Aquifer";
const RELEASED: &str = "/redfish/v1/Oem/Aquifer/ReleasedVolumes";
const CHANGE: &str = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.ChangeVolumes";
/// The status of a change that was refused, because somebody else has changed a volume since it was read.
const STALE: u16 = 412;
/// Roles that may change volumes.
const ROLES: [&str; 2] = ["Operator", "Administrator"];

/// How a change of volumes ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    pub ending: Ending,
    /// True if a volume was not as it was read.
    pub is_stale: bool,
    /// The manager's reason for a refusal.
    pub reason: String,
}

/// A session at the pool's manager.
pub(crate) struct Pool {
    client: Client,
    config: Config,
    logins: Logins,
    session: Session,
    /// The path of the pool's volumes.
    path: String,
}

/// Returns how an order ends by the status of the manager's answer.
fn ending(status: u16) -> Ending {
    match status {
        200..300 => Ending::Done,
        STALE => Ending::Refused(ReturnCode::RETRY_REQUIRED),
        507 => Ending::Refused(ReturnCode::RESOURCES_EXHAUSTED),
        429 => Ending::Refused(ReturnCode::RETRY_REQUIRED),
        status if is_refusal(status) => Ending::Refused(ReturnCode::INVALID_INPUT),
        // It asks to wait, or names another manager. Or nobody leads, or the writer has not answered, and may still
        // carry it out. A repetition finds that out.
        400..500 | 503 => Ending::Unknown(ReturnCode::RETRY_REQUIRED),
        _ => Ending::Unknown(ReturnCode::INTERNAL_ERROR),
    }
}

impl Pool {
    /// Creates the pool's client, which logs in when it is first used.
    pub fn new(config: &Config) -> Result<Self, Failure> {
        let client = Client::new(&config.url, config.ca.as_deref(), &config.members);
        let client = client.map_err(|unanswered| Trouble::of(&unanswered).failure)?.with_wait(ANSWER_WAIT_MAX);
        let path = format!("{POOLS}/{}/MemoryChunks", config.pool);
        Ok(Self { client, config: config.clone(), logins: Logins::default(), session: Session::default(), path })
    }

    /// Returns its session, for who ends it.
    pub fn session(&self) -> Session {
        self.session.clone()
    }

    fn log_in(&mut self) -> Result<(), Trouble> {
        let unread = |failure| Trouble { failure, is_unsent: true, is_refusal: false, is_final: true };
        let (now, password) = (Instant::now(), self.config.password().map_err(unread)?);
        self.logins.check(now, &password)?;
        self.client.token = None;
        let body = json!({ "UserName": self.config.account, "Password": password });
        let answer = self.client.ask(&Request::post(SESSIONS, body));
        let trouble = answer.as_ref().err().map(|unanswered| self.of_login(unanswered));
        // From the end on, because a late answer is a reason to wait.
        self.logins.note(Instant::now(), password, trouble.clone());
        self.client.token = answer.ok().and_then(|answer| self.session.note(answer));
        // What waits for the login was not sent.
        trouble.map_or(Ok(()), |trouble| Err(Trouble { is_unsent: true, ..trouble }))
    }

    fn of_login(&self, unanswered: &Unanswered) -> Trouble {
        let trouble = Trouble::of(unanswered);
        let account = &self.config.account;
        let cause = format!("the manager refuses account {account}: {}", trouble.failure.cause);
        match unanswered.status {
            Some(401) => {
                let remedy = format!("correct account, or {}", self.config.password_place());
                Trouble::of_configuration(cause, remedy)
            }
            // The remedy says how long to wait.
            Some(429) => Trouble { failure: Failure { cause, ..trouble.failure }, ..trouble },
            _ => Trouble { is_final: trouble.is_final || trouble.is_refusal, ..trouble },
        }
    }

    /// Does something, and again after a new login if the manager says that the session has ended. Then nothing was
    /// carried out.
    fn in_session<T>(&mut self, work: impl Fn(&Client) -> Result<T, Unanswered>) -> Result<T, Trouble> {
        if self.client.token.is_none() {
            self.log_in()?;
        }
        match work(&self.client) {
            Err(unanswered) if unanswered.status == Some(401) => {
                self.log_in()?;
                work(&self.client).map_err(|unanswered| Trouble::of(&unanswered))
            }
            outcome => outcome.map_err(|unanswered| Trouble::of(&unanswered)),
        }
    }

    /// Checks what the configuration says of the manager: the account's role, the pool, and the zone.
    pub fn check(&mut self) -> Result<(), Trouble> {
        let Config { account, pool, zone, .. } = self.config.clone();
        let found = self.in_session(|client| client.find(&format!("{ACCOUNTS}/{account}")))?;
        let role = found.and_then(|answer| answer.body["RoleId"].as_str().map(str::to_owned)).unwrap_or_default();
        if !ROLES.contains(&role.as_str()) {
            let has = if role.is_empty() { "no role".to_owned() } else { format!("the role {role}") };
            let cause = format!("account {account} has {has} and cannot change volumes");
            return Err(Trouble::of_configuration(cause, "give it the role Operator, or correct account"));
        }
        self.in_session(|client| client.find(&format!("{POOLS}/{pool}")))?.ok_or_else(|| self.no_pool())?;
        let found = self.in_session(|client| client.find(&format!("{ZONES}/{zone}")))?;
        found.map(drop).ok_or_else(|| {
            let cause = format!("the manager has no zone {zone}");
            Trouble::of_configuration(cause, "declare it with 'aquifer fabric apply', or correct zone")
        })
    }

    fn no_pool(&self) -> Trouble {
        let cause = format!("the manager has no pool {}", self.config.pool);
        Trouble::of_configuration(cause, "declare it with 'aquifer fabric apply', or correct pool")
    }

    /// Reads what the manager has in short: it differs where what [`read`](Self::read) returns may differ.
    pub fn read_summary(&mut self) -> Result<Value, Trouble> {
        let mut body = self.in_session(|client| client.ask(&Request::get(SUMMARY)))?.body;
        let names = ["Term", "Version", "NewestEvent", "Donors", "Hosts", "Volumes", "Capacity", "Lent"];
        Ok(names.iter().map(|name| body[*name].take()).collect())
    }

    /// Reads what the manager has.
    pub fn read(&mut self) -> Result<View, Trouble> {
        let path = self.path.clone();
        // The names of volumes sort by their bytes: those that begin with the prefix, and none after it.
        let next = VOLUME_PREFIX.replace('-', ".");
        let filter = |name| format!("&$filter={name}%20ge%20'{VOLUME_PREFIX}'%20and%20{name}%20lt%20'{next}'");
        let endpoints = self.in_session(|client| collection(client, ENDPOINTS, ""))?;
        let volumes = self.in_session(|client| match collection(client, &path, &filter("Id")) {
            Err(unanswered) if unanswered.status == Some(404) => Ok(None),
            outcome => outcome.map(Some),
        })?;
        let volumes = volumes.ok_or_else(|| self.no_pool())?;
        // After the volumes: what is released in between is in both, and a volume goes before.
        let released = self.in_session(|client| collection(client, RELEASED, &filter("Name")))?;
        let answers = Answers { endpoints: &endpoints, volumes: &volumes, released: &released };
        Ok(View::of(answers, &self.config.pool, &self.config.zone))
    }

    /// Reads a volume of a logical device, or what is left of it after its release; none if there is nothing.
    pub fn read_volume(&mut self, (donor, ld_id): &Ld, id: &str) -> Result<Option<VolumeView>, Trouble> {
        let zone = self.config.zone.clone();
        let path = format!("{}/{}", self.path, volume_name(donor, *ld_id));
        let found = self.in_session(|client| client.find(&path))?;
        let found = found.map(|answer| volume_of(donor, &zone, &answer.body)).filter(|volume| volume.id == id);
        if found.is_some() {
            return Ok(found);
        }
        let left = self.in_session(|client| client.find(&format!("{RELEASED}/{id}")))?;
        Ok(left.map(|answer| volume_of(donor, &zone, &answer.body)))
    }

    /// Changes volumes.
    pub fn change(&mut self, body: &Value) -> Changed {
        let changed = self.in_session(|client| match client.try_ask(&Request::post(CHANGE, body.clone()))? {
            (401, answer) => Err(refused(401, &answer.body)),
            answered => Ok(answered),
        });
        match changed {
            Ok((status, answer)) => {
                let reason = answer.body["error"]["message"].as_str().unwrap_or("no reason").to_owned();
                Changed { ending: ending(status), is_stale: status == STALE, reason }
            }
            Err(trouble) => {
                // Also where the session has ended again.
                let is_refused = trouble.is_unsent || trouble.is_refusal;
                let ending = match is_refused {
                    true => Ending::Refused(ReturnCode::RETRY_REQUIRED),
                    false => Ending::Unknown(ReturnCode::INTERNAL_ERROR),
                };
                Changed { ending, is_stale: false, reason: trouble.to_string() }
            }
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
        for status in [408, 421, 425, 503] {
            assert_eq!(ending(status), Ending::Unknown(ReturnCode::RETRY_REQUIRED), "{status}");
        }
    }
}
