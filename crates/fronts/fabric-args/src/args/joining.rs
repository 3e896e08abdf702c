// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The flags of join tokens, of machines that join, and of certificates.

use std::path::PathBuf;

use aquifer_fabric::DonorId;
use clap::{Args, Subcommand, ValueEnum};

use super::change::DryRun;
use super::lifetime::seconds;
use super::watch::Watch;

/// Maximum lifetime of a token, which the manager's is, too (`EXPIRES_SECONDS_MAX` of `aquifer-authority`).
const EXPIRES_DAYS_MAX: u64 = 7;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EndKind {
    /// A donor
    Donor,
    /// A host: its agent, and the programs on it
    Host,
    /// A fabric manager
    Manager,
}

/// The arguments of `aquifer fabric token`.
#[derive(Clone, Debug, Args)]
pub struct Tokens {
    /// Whether the list is repeated.
    #[command(flatten)]
    pub watch: Watch,
    /// The action; without one, the tokens are listed.
    #[command(subcommand)]
    pub command: Option<TokenCommand>,
}

/// The actions on tokens and on the certificates that were signed for them.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// List the certificates that the pool's authority has signed
    #[command(after_long_help = "\
Examples:
  aquifer fabric token certificates")]
    Certificates(Watch),
    /// Make a token and print it; no command shows it again
    #[command(after_long_help = "\
Examples:
  aquifer fabric token create --kind donor --name d1 --address 10.0.0.7
  aquifer fabric token create --kind host --name h1 --expires 15m")]
    Create(CreateToken),
    /// Delete a token, so that nobody can use it
    #[command(after_long_help = "\
Examples:
  aquifer fabric token delete 0f3a5b7c9d1e2f40")]
    Delete {
        /// The token's first part, as the list shows it
        #[arg(value_name = "ID", value_parser = digits)]
        id: String,
        /// Whether it is done.
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Revoke a certificate: its owner is cut off from managers and donors
    #[command(after_long_help = "\
Examples:
  aquifer fabric token revoke 5d0e8f1c2b3a49586776859403120f1e --dry-run")]
    Revoke {
        /// The certificate's serial number, as `aquifer fabric token certificates` shows it
        #[arg(value_name = "SERIAL", value_parser = digits)]
        serial: String,
        /// Whether it is done.
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// The arguments of `aquifer fabric token create`.
#[derive(Clone, Debug, Args)]
pub struct CreateToken {
    /// The kind of end that may join with the token
    #[arg(long, value_enum)]
    pub kind: EndKind,
    /// The name that the end gets in the pool; its certificate is for this name only
    #[arg(long, value_name = "NAME")]
    pub name: DonorId,
    /// A host name or an IP address at which others reach the end; once for each
    #[arg(long = "address", value_name = "HOST")]
    pub addresses: Vec<String>,
    /// When the token expires, in s, m, h or d from now
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = lifetime)]
    pub expires: u64,
    /// How many times the token can be used
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub uses: u32,
    /// Whether it is done.
    #[command(flatten)]
    pub dry_run: DryRun,
}

/// The arguments of `aquifer fabric join`.
#[derive(Clone, Debug, Args)]
pub struct Join {
    /// The manager's REST address
    #[arg(long, value_name = "HOST:PORT")]
    pub manager: String,
    /// The join token; other users may see it in the list of processes, so prefer --token-stdin
    #[arg(long, value_name = "TOKEN", env = "AQUIFER_JOIN_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Read the join token from the first line of standard input
    #[arg(long, conflicts_with = "token")]
    pub token_stdin: bool,
    /// The directory for the key with its certificate, the authority's certificate, and the revocation list
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Replace a certificate that is already in the directory
    #[arg(long)]
    pub replace: bool,
    /// Whether it is done.
    #[command(flatten)]
    pub dry_run: DryRun,
}

/// Parses hexadecimal digits, which need no escaping in a path.
fn digits(text: &str) -> Result<String, String> {
    let is_it = (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_it {
        Ok(text.to_ascii_lowercase())
    } else {
        Err("write the hexadecimal digits as the list shows them".into())
    }
}

/// Parses how long a token can be used, as seconds.
fn lifetime(text: &str) -> Result<u64, String> {
    seconds(text, EXPIRES_DAYS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_into_a_path_is_digits() {
        assert_eq!(digits("0F3a"), Ok("0f3a".to_owned()));
        for text in ["", "..", "a/b", "%2e", &"a".repeat(65)] {
            assert!(digits(text).is_err(), "{text}");
        }
    }
}
