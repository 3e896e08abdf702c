// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Accounts: names, roles, and Argon2id hashes of passwords. Stored under `account/NAME`.

use aquifer_fabric::VolumeName;
use argon2::Argon2;
use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use crate::manager_store::json;
use crate::order::etag_of;

/// Maximum number of accounts.
pub(crate) const ACCOUNTS_MAX: usize = 1000;
/// Minimum length of a password.
pub(crate) const PASSWORD_BYTES_MIN: usize = 12;
/// Maximum length of a password: it bounds the work of hashing one that a stranger has sent.
pub(crate) const PASSWORD_BYTES_MAX: usize = 256;

/// What an account may do. Each role may do all that those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Read the state of the pool.
    ReadOnly,
    /// Change volumes, bindings and donors.
    Operator,
    /// Change accounts, pools and zones, and read the audit log.
    Administrator,
}

impl Role {
    pub(crate) const ALL: [Role; 3] = [Role::ReadOnly, Role::Operator, Role::Administrator];

    /// Returns its name in Redfish.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "ReadOnly",
            Self::Operator => "Operator",
            Self::Administrator => "Administrator",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Returns the standard privileges that it has.
    pub(crate) fn privileges(self) -> &'static [&'static str] {
        const ALL: [&str; 5] = ["Login", "ConfigureSelf", "ConfigureComponents", "ConfigureUsers", "ConfigureManager"];
        match self {
            Self::ReadOnly => &ALL[..2],
            Self::Operator => &ALL[..3],
            Self::Administrator => &ALL,
        }
    }
}

/// An account, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Account {
    pub(crate) role: Role,
    /// In the PHC format, which holds algorithm, costs and salt.
    pub(crate) hash: String,
    pub(crate) is_enabled: bool,
    /// Counts the account's changes, so that no ETag is ever used twice.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) changes: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Account {
    /// Returns the account's ETag. A new password changes it, too.
    pub(crate) fn etag(&self) -> String {
        etag_of(&json(self))
    }
}

/// Checks a name: the same characters as in a volume's name, so that it needs no escaping in logs and URLs.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    name.parse::<VolumeName>().map(drop).map_err(|not| not.to_string())
}

/// Returns random bytes of the operating system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without randomness neither passwords nor tokens are safe, and Linux always has some after it has booted.
    SystemRandom::new().fill(&mut bytes).expect("the kernel gives random bytes");
    bytes
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hashes a new password. The error says what is wrong with it.
pub(crate) fn hash(password: &str) -> Result<String, String> {
    if !(PASSWORD_BYTES_MIN..=PASSWORD_BYTES_MAX).contains(&password.len()) {
        return Err(format!(
            "the password does not have {PASSWORD_BYTES_MIN} to {PASSWORD_BYTES_MAX} bytes; choose another one"
        ));
    }
    let salt = SaltString::encode_b64(&random::<16>()).expect("16 bytes are a salt");
    // The default costs are those that OWASP recommends: 19 MiB, two passes.
    let hashed = Argon2::default().hash_password(password.as_bytes(), &salt);
    Ok(hashed.expect("a password and a salt of these lengths can be hashed").to_string())
}

/// Returns whether a password is right. Takes equally long for an account that does not exist.
pub(crate) fn verify(account: Option<&Account>, password: &str) -> bool {
    // The hash of a random password that was thrown away.
    const NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5bm9ib2R5bm9ib2R5\
        $1u3E5tbOPEZbUvf1YrFgHZ1nH8jXG2m1Jm0h6Xz1QmA";
    let hash = account.map_or(NOBODY, |account| &account.hash);
    let password = if password.len() > PASSWORD_BYTES_MAX { "" } else { password };
    let Ok(hash) = PasswordHash::new(hash) else { return false };
    let is_right = Argon2::default().verify_password(password.as_bytes(), &hash).is_ok();
    is_right && account.is_some_and(|account| account.is_enabled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_right_or_wrong() {
        let hash = hash("correct horse battery").expect("hashed");
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        let mut account = Account { role: Role::Operator, hash, is_enabled: true, changes: 0 };
        assert!(verify(Some(&account), "correct horse battery") && !verify(Some(&account), "correct horse batterx"));
        assert!(!verify(None, "correct horse battery") && !verify(None, ""));
        account.is_enabled = false;
        assert!(!verify(Some(&account), "correct horse battery"));
        assert!(super::hash("short").is_err() && super::hash(&"x".repeat(257)).is_err());
    }

    #[test]
    fn the_hash_of_nobody_can_be_checked() {
        // Otherwise an unknown name would be answered faster than a known one.
        assert!(
            argon2::password_hash::PasswordHash::new(
                "$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5bm9ib2R5bm9ib2R5$1u3E5tbOPEZbUvf1YrFgHZ1nH8jXG2m1Jm0h6Xz1QmA"
            )
            .is_ok()
        );
    }
}
