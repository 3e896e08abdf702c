// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Join tokens: their text, the record that the manager stores, and whether a token admits a machine. Pure; randomness
//! and time are arguments.
//!
//! ```text
//! aqj1.ID.SECRET.PIN
//!      │  │      └── SHA-256 of a certificate in the manager's chain: the joining machine trusts no other
//!      │  └───────── 32 random bytes, of which only the hash is stored
//!      └──────────── 8 random bytes that name the token; they may be logged
//! ```

use std::fmt;
use std::str::FromStr;

use aquifer_fabric::Millis;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::subject::Subject;
use crate::validity::SKEW;

/// Maximum lifetime of a token: a week. A choice: a token is for a machine that is being set up.
pub const EXPIRES_SECONDS_MAX: u64 = 7 * 86_400;
/// Largest number of uses.
pub const USES_MAX: u32 = 1000;

const PREFIX: &str = "aqj1";
const ID_DIGITS: usize = 16;
const HASH_DIGITS: usize = 64;

/// A token with its secret, which is shown once.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// The name under which the manager stores the token's record.
    pub id: String,
    secret: String,
    /// The fingerprint of a certificate in the manager's chain.
    pub pin: String,
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Prints no secret.
        f.debug_struct("JoinToken").field("id", &self.id).field("pin", &self.pin).finish_non_exhaustive()
    }
}

/// The text is not a join token. The message does not repeat the text, which may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAToken;

impl fmt::Display for NotAToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the text is not a join token; copy the whole line that 'aquifer fabric token create' printed")
    }
}

impl std::error::Error for NotAToken {}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl JoinToken {
    /// Makes a token from random bytes.
    pub fn new(id: [u8; 8], secret: [u8; 32], pin: &str) -> JoinToken {
        JoinToken { id: hex(&id), secret: hex(&secret), pin: pin.to_owned() }
    }

    /// Returns the token's text with its secret, for the only answer that shows it.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}.{}.{}.{}", self.id, self.secret, self.pin)
    }

    /// Returns the hash that is stored in place of the secret.
    pub fn secret_hash(&self) -> String {
        hex(digest(&SHA256, self.secret.as_bytes()).as_ref())
    }
}

impl FromStr for JoinToken {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<JoinToken, NotAToken> {
        let parts: Vec<&str> = text.trim().splitn(5, '.').collect();
        let [PREFIX, id, secret, pin] = parts[..] else { return Err(NotAToken) };
        let is_hex = |text: &str, digits: usize| {
            text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        };
        match is_hex(id, ID_DIGITS) && is_hex(secret, HASH_DIGITS) && is_hex(pin, HASH_DIGITS) {
            true => Ok(JoinToken { id: id.into(), secret: secret.into(), pin: pin.into() }),
            false => Err(NotAToken),
        }
    }
}

/// The record that a manager stores about a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TokenRecord {
    /// The subject of the certificate that the token admits to.
    pub subject: Subject,
    /// The hash of the token's secret, which itself is not stored.
    pub secret_hash: String,
    /// When it was made.
    pub created: Millis,
    /// When the token expires.
    pub expires: Millis,
    /// How many uses are left.
    pub uses_left: u32,
    /// Who made the token.
    pub by: String,
}

/// Why a token does not admit a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// The token has expired.
    Expired,
    /// It was made in the future: a clock is wrong.
    NotYet,
    /// The token is unknown or its secret is wrong. Callers cannot distinguish the two.
    Unknown,
    /// All uses of the token are spent.
    Used,
}

impl fmt::Display for NotAdmitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the join token has expired; ask an administrator for another one",
            Self::NotYet => "the join token is from the future; correct the manager's clock",
            Self::Unknown => "the join token is not known here; ask an administrator for another one",
            Self::Used => "the join token was used already; ask an administrator for another one, and who used it",
        })
    }
}

impl std::error::Error for NotAdmitted {}

impl TokenRecord {
    /// Counts one use of the token whose secret has this hash, if the token admits machines now. Returns the record
    /// after this use.
    pub fn admit(&self, secret_hash: &str, now: Millis) -> Result<TokenRecord, NotAdmitted> {
        // Compares hashes, so that the time of the comparison reveals nothing about the secret.
        if secret_hash != self.secret_hash {
            return Err(NotAdmitted::Unknown);
        }
        if self.uses_left == 0 {
            return Err(NotAdmitted::Used);
        }
        if now.0 >= self.expires.0 {
            return Err(NotAdmitted::Expired);
        }
        if now.0.saturating_add(SKEW.0) < self.created.0 {
            return Err(NotAdmitted::NotYet);
        }
        Ok(TokenRecord { uses_left: self.uses_left - 1, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Kind;

    const NOW: Millis = Millis(1_800_000_000_000);

    fn pair(uses_left: u32) -> (JoinToken, TokenRecord) {
        let token = JoinToken::new([7; 8], [9; 32], &"ab".repeat(32));
        let subject = Subject::new(Kind::Host, "h1", "pool.internal", &[]).expect("good");
        let expires = Millis(NOW.0 + 3_600_000);
        let secret_hash = token.secret_hash();
        (token, TokenRecord { subject, secret_hash, created: NOW, expires, uses_left, by: "amy".into() })
    }

    #[test]
    fn a_token_is_read_as_it_is_shown_and_never_printed_with_its_secret() {
        let (token, record) = pair(1);
        assert_eq!(token.reveal().parse(), Ok(token.clone()));
        assert_eq!(format!(" {}\n", token.reveal()).parse(), Ok(token.clone()));
        let secret = hex(&[9; 32]);
        assert!(token.reveal().contains(&secret));
        assert!(!format!("{token:?} {record:?}").contains(&secret));
        let whole = token.reveal();
        for end in 0..whole.len() {
            assert_eq!(whole[..end].parse::<JoinToken>(), Err(NotAToken));
        }
        for text in [whole.to_uppercase(), format!("{whole}.x"), whole.replace("aqj1", "aqj2"), "a".repeat(1 << 16)] {
            assert_eq!(text.parse::<JoinToken>(), Err(NotAToken));
        }
    }

    #[test]
    fn a_token_admits_as_often_as_it_says_and_no_longer_than_it_says() {
        let (token, mut record) = pair(2);
        let hash = token.secret_hash();
        for _ in 0..2 {
            record = record.admit(&hash, NOW).expect("it has uses left");
        }
        assert_eq!(record.admit(&hash, NOW), Err(NotAdmitted::Used));
        let (_, record) = pair(1);
        assert_eq!(record.admit("", NOW), Err(NotAdmitted::Unknown));
        assert_eq!(record.admit(&record.secret_hash.clone(), Millis(NOW.0 - 1)).map(|one| one.uses_left), Ok(0));
    }

    #[test]
    fn a_clock_that_jumps_admits_nothing() {
        let (token, record) = pair(1);
        let hash = token.secret_hash();
        for (at, why) in [
            (0, NotAdmitted::NotYet),
            (NOW.0 - SKEW.0 - 1, NotAdmitted::NotYet),
            (record.expires.0, NotAdmitted::Expired),
            (u64::MAX, NotAdmitted::Expired),
        ] {
            assert_eq!(record.admit(&hash, Millis(at)), Err(why), "{at}");
        }
        assert!(record.admit(&hash, Millis(NOW.0 - SKEW.0)).is_ok());
        assert!(record.admit(&hash, Millis(record.expires.0 - 1)).is_ok());
    }
}
