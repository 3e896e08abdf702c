// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Answers, and the standard error body with its remedy.

use aquifer_fabric::Refusal;
use serde_json::{Value, json};

use crate::login_attempts::TooMany;
use crate::order::NotDone;
use crate::sessions::{NotAllowed, Who};

/// An answer with a body of JSON, with a text of another type, or with none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Option<Value>,
    /// A body that is not JSON, and its media type.
    pub(crate) text: Option<(&'static str, String)>,
    /// The number after which events are to follow, and who follows them, if the answer is the event stream.
    pub(crate) follows: Option<(u64, Who)>,
}

impl Answer {
    pub(crate) fn of(status: u16, body: Value) -> Answer {
        Answer { status, body: Some(body), ..Answer::default() }
    }

    pub(crate) fn empty() -> Answer {
        Answer { status: 204, ..Answer::default() }
    }

    #[must_use]
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Answer {
        self.headers.push((name, value.into()));
        self
    }
}

/// How much of an unknown path an error repeats.
const PATH_SHOWN_MAX: usize = 200;

/// An error: status, the message's name in a registry, what happened, and what to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    pub(crate) status: u16,
    pub(crate) id: &'static str,
    pub(crate) message: String,
    pub(crate) remedy: String,
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl Problem {
    pub(crate) fn new(status: u16, id: &'static str, message: impl Into<String>, remedy: impl Into<String>) -> Problem {
        Problem { status, id, message: message.into(), remedy: remedy.into(), headers: Vec::new() }
    }

    /// Makes a problem from a message line, which has the cause and, after a semicolon, the remedy.
    pub(crate) fn line(status: u16, id: &'static str, line: &str) -> Problem {
        let (message, remedy) = line.split_once("; ").unwrap_or((line, "read the message"));
        Problem::new(status, id, message, remedy)
    }

    pub(crate) fn not_found(path: &str) -> Problem {
        let shown: String = path.chars().take(PATH_SHOWN_MAX).collect();
        let message = format!("there is nothing at {}", shown.escape_default());
        Problem::new(404, "Base.1.18.ResourceMissingAtURI", message, "follow the links from /redfish/v1")
    }

    pub(crate) fn value(property: &str, why: impl std::fmt::Display) -> Problem {
        Problem::line(400, "Base.1.18.PropertyValueError", &format!("{property}: {why}"))
    }

    /// Returns the error body.
    pub(crate) fn answer(self) -> Answer {
        let severity = if self.status >= 500 { "Critical" } else { "Warning" };
        let message = json!({
            "@odata.type": "#Message.v1_2_1.Message", "MessageId": self.id, "Message": self.message,
            "MessageSeverity": severity, "Resolution": self.remedy,
        });
        let body = json!({ "error": {
            "code": self.id, "message": format!("{}; {}", self.message, self.remedy),
            "@Message.ExtendedInfo": [message],
        } });
        Answer { status: self.status, headers: self.headers, body: Some(body), ..Answer::default() }
    }
}

impl From<NotDone> for Problem {
    fn from(not: NotDone) -> Problem {
        let line = not.to_string();
        let (status, id) = match &not {
            NotDone::Malformed(_) => (400, "Base.1.18.PropertyValueError"),
            NotDone::Stale => (412, "Base.1.18.PreconditionFailed"),
            NotDone::Unknown(_) | NotDone::UnknownVolume(_) => (404, "Base.1.18.ResourceNotFound"),
            NotDone::NotStored(_) => (503, "Base.1.18.ServiceTemporarilyUnavailable"),
            NotDone::TooLarge(_) => (413, "Base.1.18.GeneralError"),
            NotDone::Inconsistent(_) => (409, "Base.1.18.GeneralError"),
            NotDone::Switch(_) => (409, "Base.1.18.ResourceInUse"),
            NotDone::NotInPlace(_) => (409, "Base.1.18.ResourceInUse"),
            NotDone::NotApplied(_) => (409, "AquiferFabric.1.0.NotApplied"),
            NotDone::Refused(refusal) => match refusal {
                Refusal::UnknownVolume { .. } | Refusal::UnknownHost { .. } | Refusal::UnknownPool { .. } => {
                    (404, "Base.1.18.ResourceNotFound")
                }
                Refusal::NameTaken { .. } => (409, "Base.1.18.ResourceAlreadyExists"),
                Refusal::DonorFull { .. }
                | Refusal::NotElsewhere { .. }
                | Refusal::NotEnough { .. }
                | Refusal::Quota { .. }
                | Refusal::WeightsNeedDonors { .. } => (507, "Base.1.18.InsufficientStorage"),
                _ => (409, "Base.1.18.ResourceInUse"),
            },
        };
        Problem::line(status, id, &line)
    }
}

impl From<NotAllowed> for Problem {
    fn from(not: NotAllowed) -> Problem {
        match not {
            NotAllowed::Busy => {
                let what = "too many passwords are being hashed at the moment";
                let mut problem =
                    Problem::new(503, "Base.1.18.ServiceTemporarilyUnavailable", what, "try again in a second");
                problem.headers.push(("retry-after", "1".to_owned()));
                problem
            }
            NotAllowed::Exists => {
                Problem::new(409, "Base.1.18.ResourceAlreadyExists", "the name is taken", "choose another name")
            }
            NotAllowed::Invalid(line) => Problem::line(400, "Base.1.18.PropertyValueError", &line),
            NotAllowed::LastAdministrator => Problem::new(
                409,
                "Base.1.18.ResourceInUse",
                "this is the last administrator that is enabled",
                "make another administrator first",
            ),
            NotAllowed::Login => Problem::new(
                401,
                "Base.1.18.ResourceAtUriUnauthorized",
                "name or password is wrong",
                "check both, or ask an administrator for a new password",
            ),
            NotAllowed::TooMany(too_many) => {
                let (what, seconds) = match too_many {
                    TooMany::Locked { seconds } => {
                        ("the account is locked for this address after wrong passwords", seconds)
                    }
                    TooMany::Rate { seconds } => ("this address has tried to log in too often", seconds),
                };
                let mut problem =
                    Problem::new(429, "Base.1.18.AccessDenied", what, format!("wait {seconds} s, then try again"));
                problem.headers.push(("retry-after", seconds.to_string()));
                problem
            }
            NotAllowed::Stale => NotDone::Stale.into(),
            NotAllowed::Token => {
                let what = "the session is not known or has ended";
                let mut problem = Problem::new(
                    401,
                    "Base.1.18.NoValidSession",
                    what,
                    "log in at /redfish/v1/SessionService/Sessions",
                );
                problem.headers.push(("www-authenticate", "Basic realm=\"aquifer\"".to_owned()));
                problem
            }
            NotAllowed::Unknown(what) => Problem::new(
                404,
                "Base.1.18.ResourceNotFound",
                format!("there is no {}", what.escape_default()),
                "list what exists",
            ),
        }
    }
}
