// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A small certificate authority for the donors, hosts and managers of one pool.
//!
//! An operator makes a [`JoinToken`]; the machine that joins makes a key and a [`Request`], shows the token, and gets a
//! certificate for the one name that the token is for. The rules are pure: whether a token admits a machine
//! (`token.rs`), which names a certificate has (`subject.rs`), how long it is valid and when it is renewed
//! (`validity.rs`), and what a request may contain (`sign.rs`, which signs with rcgen and ring). Sockets and the store
//! are in the manager.
//!
//! ```
//! use aquifer_authority::{Authority, Kind, Request, Subject, facts};
//! use aquifer_fabric::Millis;
//!
//! let now = Millis(1_800_000_000_000);
//! let authority = Authority::make("lab", now).unwrap();
//! let subject = Subject::new(Kind::Donor, "d1", "lab.internal", &["10.0.0.7".into()]).unwrap();
//! let request = Request::new().unwrap();
//! let signed = authority.sign(request.pem(), &subject, 90, now).unwrap();
//! assert_eq!(facts(&signed.der).unwrap().names[0], "d1.donor.lab.internal");
//! ```

#![forbid(unsafe_code)]

mod facts;
mod files;
mod pin;
mod request;
mod sign;
mod subject;
mod token;
mod validity;

pub use facts::{Facts, facts, first_of};
pub use files::replace;
pub use pin::{pin, pinned_client};
pub use request::Request;
pub use sign::{Authority, LIST_DAYS, NotSigned, REQUEST_BYTES_MAX, Revocations, Signed, Unusable};
pub use subject::{Kind, NAMES_MAX, NotASubject, Subject};
pub use token::{EXPIRES_SECONDS_MAX, JoinToken, NotAToken, NotAdmitted, TokenRecord, USES_MAX};
pub use validity::{DAYS_MAX, SKEW, Validity};
