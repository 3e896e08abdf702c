// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Accounts: names, roles, and Argon2id hashes of passwords. Stored under `account/NAME`.

use aquifer_fabric::VolumeName;
use argon2::password_hash::{Output, ParamsString, PasswordHash, Salt, SaltString};
use argon2::{Algorithm, Argon2, Block, Params, Version};
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

/// The memory in which one password at a time is hashed: 19 MiB from its first use on.
#[derive(Default)]
pub(crate) struct Memory(Vec<Block>);

impl Memory {
    /// Hashes a password with Argon2id. `None` for costs that need more memory than there is here.
    fn hash(&mut self, password: &str, salt: Salt<'_>, params: Params) -> Option<Output> {
        self.0.resize(Params::DEFAULT.block_count(), Block::default());
        let mut salt_bytes = [0; Salt::MAX_LENGTH];
        let salt = salt.decode_b64(&mut salt_bytes).ok()?;
        let length = params.output_len().unwrap_or(Params::DEFAULT_OUTPUT_LEN);
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        let fill = |output: &mut [u8]| {
            Ok(argon2.hash_password_into_with_memory(password.as_bytes(), salt, output, &mut self.0)?)
        };
        Output::init_with(length, fill).ok()
    }
}

/// Checks the length of a new password.
pub(crate) fn check_password(password: &str) -> Result<(), String> {
    if (PASSWORD_BYTES_MIN..=PASSWORD_BYTES_MAX).contains(&password.len()) {
        return Ok(());
    }
    Err(format!("the password does not have {PASSWORD_BYTES_MIN} to {PASSWORD_BYTES_MAX} bytes; choose another one"))
}

/// Hashes a new password. The error says what is wrong with it.
pub(crate) fn hash(password: &str, memory: &mut Memory) -> Result<String, String> {
    check_password(password)?;
    let salt = SaltString::encode_b64(&random::<16>()).expect("16 bytes are a salt");
    // The default costs are those that OWASP recommends: 19 MiB, two passes.
    let hashed = memory.hash(password, salt.as_salt(), Params::DEFAULT);
    let hashed = PasswordHash {
        algorithm: Algorithm::Argon2id.ident(),
        version: Some(Version::V0x13.into()),
        params: ParamsString::try_from(Params::DEFAULT).expect("numbers can be written"),
        salt: Some(salt.as_salt()),
        hash: Some(hashed.expect("a password and a salt of these lengths can be hashed")),
    };
    Ok(hashed.to_string())
}

/// Returns whether a password is right. Takes equally long for an account that does not exist.
pub(crate) fn verify(account: Option<&Account>, password: &str, memory: &mut Memory) -> bool {
    // The hash of a random password that was thrown away.
    const NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5bm9ib2R5bm9ib2R5\
        $1u3E5tbOPEZbUvf1YrFgHZ1nH8jXG2m1Jm0h6Xz1QmA";
    let hash = account.map_or(NOBODY, |account| &account.hash);
    let password = if password.len() > PASSWORD_BYTES_MAX { "" } else { password };
    let Ok(hash) = PasswordHash::new(hash) else { return false };
    let is_ours = hash.algorithm == Algorithm::Argon2id.ident() && hash.version == Some(Version::V0x13.into());
    let (true, Some(salt), Ok(params)) = (is_ours, hash.salt, Params::try_from(&hash)) else { return false };
    let found = memory.hash(password, salt, params);
    // Outputs are compared in constant time.
    let is_right = found.is_some() && found == hash.hash;
    is_right && account.is_some_and(|account| account.is_enabled)
}

#[cfg(test)]
mod tests {
    use argon2::password_hash::{PasswordHasher, PasswordVerifier};

    use super::*;

    #[test]
    fn a_password_is_right_or_wrong() {
        let memory = &mut Memory::default();
        let hash = hash("correct horse battery", memory).expect("hashed");
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        let mut account = Account { role: Role::Operator, hash, is_enabled: true, changes: 0 };
        assert!(verify(Some(&account), "correct horse battery", memory));
        assert!(!verify(Some(&account), "correct horse batterx", memory));
        assert!(!verify(None, "correct horse battery", memory) && !verify(None, "", memory));
        account.is_enabled = false;
        assert!(!verify(Some(&account), "correct horse battery", memory));
        assert!(super::hash("short", memory).is_err() && super::hash(&"x".repeat(257), memory).is_err());
        for damaged in ["", "$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5bm9ib2R5", "$argon2i$v=19$m=19456,t=2,p=1"] {
            let account = Account { hash: damaged.into(), is_enabled: true, ..account.clone() };
            assert!(!verify(Some(&account), "correct horse battery", memory), "{damaged}");
        }
    }

    #[test]
    fn hashes_are_those_of_the_library_with_memory_of_its_own() {
        let memory = &mut Memory::default();
        // The memory has been used before.
        hash("another horse", memory).expect("hashed");
        let ours = hash("correct horse battery", memory).expect("hashed");
        let library = Argon2::default();
        let parsed = PasswordHash::new(&ours).expect("a hash");
        assert_eq!(library.verify_password(b"correct horse battery", &parsed), Ok(()));
        let salt = SaltString::encode_b64(b"a salt of theirs").expect("a salt");
        let theirs = library.hash_password(b"correct horse battery", &salt).expect("hashed").to_string();
        let account = Account { role: Role::Operator, hash: theirs, is_enabled: true, changes: 0 };
        assert!(verify(Some(&account), "correct horse battery", memory));
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
