// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The flags of sessions and accounts. A password is never an argument, which other users could read.

use aquifer_fabric::VolumeName;
use clap::{Args, Subcommand, ValueEnum};

use super::change::DryRun;
use super::watch::Watch;

/// Where a password comes from.
#[derive(Clone, Copy, Debug, Args)]
pub struct PasswordFrom {
    /// Read the password from the first line of standard input [default: $AQUIFER_FABRIC_PASSWORD]
    #[arg(long)]
    pub password_stdin: bool,
}

/// The arguments of `aquifer fabric login`.
#[derive(Clone, Debug, Args)]
pub struct Login {
    /// The account
    #[arg(value_name = "ACCOUNT")]
    pub account: VolumeName,
    /// Its password.
    #[command(flatten)]
    pub password: PasswordFrom,
}

/// The arguments of `aquifer fabric accounts`.
#[derive(Clone, Debug, Args)]
pub struct Accounts {
    /// Whether the list is repeated.
    #[command(flatten)]
    pub watch: Watch,
    /// What to do with them; without it, they are listed.
    #[command(subcommand)]
    pub command: Option<AccountCommand>,
}

/// A change of the accounts.
#[derive(Clone, Debug, Subcommand)]
pub enum AccountCommand {
    /// Add an account
    #[command(after_long_help = "\
Examples:
  aquifer fabric accounts add oscar --role operator --password-stdin")]
    Add(AddAccount),
    /// Change an account; its sessions end
    #[command(after_long_help = "\
Examples:
  aquifer fabric accounts change admin --password-stdin
  aquifer fabric accounts change oscar --role read-only --dry-run
  aquifer fabric accounts change oscar --enabled false")]
    Change(ChangeAccount),
    /// Remove an account; its sessions end
    #[command(after_long_help = "\
Examples:
  aquifer fabric accounts remove oscar")]
    Remove {
        /// The account
        #[arg(value_name = "ACCOUNT")]
        account: VolumeName,
        /// Whether it is done.
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// What an account may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Everything, including accounts and the audit log
    Administrator,
    /// Change volumes, bindings and donors
    Operator,
    /// Read the state of the pool
    ReadOnly,
}

/// The arguments of `aquifer fabric accounts add`.
#[derive(Clone, Debug, Args)]
pub struct AddAccount {
    /// The account
    #[arg(value_name = "ACCOUNT")]
    pub account: VolumeName,
    /// What it may do
    #[arg(long, value_enum)]
    pub role: Role,
    /// Its password.
    #[command(flatten)]
    pub password: PasswordFrom,
    /// Whether it is done.
    #[command(flatten)]
    pub dry_run: DryRun,
}

/// A changed account.
#[derive(Clone, Debug, Args)]
#[command(
    group(clap::ArgGroup::new("change").required(true).multiple(true)),
    override_usage = "aquifer fabric accounts change [OPTIONS] <ACCOUNT>"
)]
pub struct ChangeAccount {
    /// The account
    #[arg(value_name = "ACCOUNT")]
    pub account: VolumeName,
    /// What it may do
    #[arg(long, value_enum, group = "change")]
    pub role: Option<Role>,
    /// Whether it may log in
    #[arg(long, value_name = "BOOLEAN", group = "change")]
    pub enabled: Option<bool>,
    /// Read a new password from the first line of standard input
    #[arg(long, group = "change")]
    pub password_stdin: bool,
    /// Whether it is done.
    #[command(flatten)]
    pub dry_run: DryRun,
}
