// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The table of flags: the commands, and the flags of those that only read.

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub mod account;
pub mod change;
pub mod joining;
mod lifetime;
pub mod watch;

use account::{Accounts, Login};
use change::{Apply, Bind, Create, DeclareGone, Drain, DryRun, Move, OfVolume, Release, Resize};
use joining::{Join, Tokens};
use watch::Watch;

const NOTES: &str = "\
Examples:
  aquifer fabric serve --config fabricd.toml
  aquifer fabric login admin --password-stdin < initial-password
  aquifer fabric create db --size 8GiB --zone lab --class tcp --redundancy mirror=2
  aquifer fabric bind db h000
  aquifer fabric status --until-settled
  aquifer fabric volumes --json

A declaration is JSON: `aquifer fabric export` prints the one that describes what is desired now.

Exit status: 0 done, and `diff` found no difference; 1 it could not be done; 2 bad arguments;
3 `diff` found differences, or `audit --verify` damage; 125 the program cannot be started.";

/// Serve and steer a pool of far memory through its fabric manager
///
/// The commands speak REST to the manager, `aquifer-fabricd`. Log in first: the session's token is kept in a file that
/// only its owner can read, and it is sent to no other manager. Every command ends within a minute or two, whatever the
/// manager does, except `serve`, `events`, `audit --all`, `audit --verify`, those with `--watch`, and `status
/// --until-settled`, which has `--limit`.
#[derive(Clone, Debug, Args)]
// One line of the short help for a command of the pool, within a screen.
#[command(after_long_help = NOTES, arg_required_else_help = true, disable_help_subcommand = true)]
pub struct FabricArgs {
    /// The manager.
    #[command(flatten)]
    pub access: ManagerAccess,
    /// The subcommand.
    #[command(subcommand)]
    pub command: FabricCommand,
}

/// Where the manager is, and how results are printed.
#[derive(Clone, Debug, Args)]
pub struct ManagerAccess {
    /// The manager's address: https, or http on this machine
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:7443",
        env = "AQUIFER_FABRIC_URL"
    )]
    pub url: String,
    /// The certificates of the authorities to trust, in PEM; needed for https
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE", env = "AQUIFER_FABRIC_CA")]
    pub ca: Option<PathBuf>,
    /// Another manager of the pool, to which a standby may send this command; once for each
    #[arg(
        long = "member",
        global = true,
        hide_short_help = true,
        value_name = "URL",
        env = "AQUIFER_FABRIC_MEMBERS",
        value_delimiter = ','
    )]
    pub members: Vec<String>,
    /// Print the manager's answers, one JSON value per line
    #[arg(long, global = true)]
    pub json: bool,
}

/// One variant for each command.
#[derive(Clone, Debug, Subcommand)]
pub enum FabricCommand {
    /// Run the fabric manager: replaces this process with aquifer-fabricd
    #[command(after_long_help = "\
Examples:
  aquifer fabric serve --print-config > fabricd.toml
  aquifer fabric serve --config fabricd.toml --check
  aquifer fabric serve --config /etc/aquifer/fabricd.toml")]
    Serve(Serve),
    /// Log in, and keep the session's token
    #[command(after_long_help = "\
Examples:
  aquifer fabric login admin --password-stdin < initial-password
  aquifer fabric login oscar --url https://fabric.example:7443 --ca ca.pem --password-stdin")]
    Login(Login),
    /// End the session, and forget its token
    #[command(after_long_help = "\
Examples:
  aquifer fabric logout")]
    Logout,
    /// Summarise which peers answer, what is lent, and what the manager waits for
    #[command(after_long_help = "\
Examples:
  aquifer fabric status
  aquifer fabric status --watch
  aquifer fabric status --until-settled --limit 60")]
    Status(Status),
    /// List the hosts
    #[command(after_long_help = "\
Examples:
  aquifer fabric hosts
  aquifer fabric hosts --watch --interval 10")]
    Hosts(Watch),
    /// List the donors
    #[command(after_long_help = "\
Examples:
  aquifer fabric donors --json
  aquifer fabric donors --watch")]
    Donors(Watch),
    /// List the memory devices
    #[command(after_long_help = "\
Examples:
  aquifer fabric devices
  aquifer fabric devices --watch")]
    Devices(Watch),
    /// List the ports of the switches, and what is connected to them
    #[command(after_long_help = "\
Examples:
  aquifer fabric ports
  aquifer fabric ports --watch")]
    Ports(Watch),
    /// List the pools
    #[command(after_long_help = "\
Examples:
  aquifer fabric pools
  aquifer fabric pools --watch")]
    Pools(Watch),
    /// List the zones: the quota of each tenant, and what it uses
    #[command(after_long_help = "\
Examples:
  aquifer fabric zones
  aquifer fabric zones --watch")]
    Zones(Watch),
    /// List the volumes of all pools
    #[command(after_long_help = "\
Examples:
  aquifer fabric volumes
  aquifer fabric volumes --watch --json")]
    Volumes(Watch),
    /// List the changes that are under way, and those that have ended
    #[command(after_long_help = "\
Examples:
  aquifer fabric tasks
  aquifer fabric tasks --watch")]
    Tasks(Watch),
    /// Create a volume
    #[command(after_long_help = "\
Examples:
  aquifer fabric create db --size 8GiB --zone lab --class tcp --redundancy mirror=2
  aquifer fabric create scratch --size 1TiB --zone lab --class tcp --redundancy parity=4+2 --dry-run
  aquifer fabric create cache --size 1GiB --zone lab --class tcp --donor d0002 --label owner=ada
  aquifer fabric create night --size 64GiB --zone lab --class tcp --expires 12h
  aquifer fabric create wide --size 64GiB --zone lab --class tcp --width 2 --weights 3,1")]
    Create(Create),
    /// Bind a volume to a host
    #[command(after_long_help = "\
Examples:
  aquifer fabric bind db h000")]
    Bind(Bind),
    /// Unbind a volume from its host
    #[command(after_long_help = "\
Examples:
  aquifer fabric unbind db")]
    Unbind(OfVolume),
    /// Make a volume larger
    #[command(after_long_help = "\
Examples:
  aquifer fabric grow db 16GiB")]
    Grow(Resize),
    /// Make a volume smaller
    #[command(after_long_help = "\
Examples:
  aquifer fabric shrink db 4GiB --dry-run")]
    Shrink(Resize),
    /// Move a volume to other donors while it is in use
    #[command(after_long_help = "\
Examples:
  aquifer fabric move db
  aquifer fabric move db --off d0002")]
    Move(Move),
    /// Give a volume's memory back to its pool; its bytes are lost
    #[command(after_long_help = "\
Examples:
  aquifer fabric release scratch
  aquifer fabric release scratch --unbind --dry-run")]
    Release(Release),
    /// Move everything off a donor, or use it again
    #[command(after_long_help = "\
Examples:
  aquifer fabric drain d0002
  aquifer fabric drain d0002 --undo")]
    Drain(Drain),
    /// State that a host is powered off, or that a donor is gone for good
    #[command(after_long_help = "\
Examples:
  aquifer fabric declare-gone host h001
  aquifer fabric declare-gone donor d0002 --dry-run")]
    DeclareGone(DeclareGone),
    /// Adopt memory that is in use, after the manager's state was lost
    #[command(after_long_help = "\
Examples:
  aquifer fabric adopt --dry-run")]
    Adopt(DryRun),
    /// Show what applying a declaration would change, and the steps that would follow
    #[command(after_long_help = "\
Examples:
  aquifer fabric plan pool.json")]
    Plan(Compare),
    /// Make the desired state fulfil a declaration, as a whole or not at all
    #[command(after_long_help = "\
Examples:
  aquifer fabric apply pool.json
  aquifer fabric export | aquifer fabric apply - --dry-run")]
    Apply(Apply),
    /// Show how a declaration differs from the desired state; exit status 3 if it does
    #[command(after_long_help = "\
Examples:
  aquifer fabric diff pool.json")]
    Diff(Compare),
    /// Print the declaration that the desired state fulfils
    #[command(after_long_help = "\
Examples:
  aquifer fabric export > pool.json")]
    Export,
    /// Show the audit log, who changed what; or have it verified
    #[command(after_long_help = "\
Examples:
  aquifer fabric audit
  aquifer fabric audit --after 1200 --count 50 --json
  aquifer fabric audit --all --json > audit.jsonl
  aquifer fabric audit --verify")]
    Audit(Audit),
    /// Follow the events, from those that the manager still has
    #[command(after_long_help = "\
Examples:
  aquifer fabric events
  aquifer fabric events --after 812 --count 10 --json")]
    Events(Events),
    /// List the accounts, or add, change and remove them
    #[command(after_long_help = "\
Examples:
  aquifer fabric accounts
  aquifer fabric accounts add oscar --role operator --password-stdin
  aquifer fabric accounts change admin --password-stdin
  aquifer fabric accounts remove oscar --dry-run")]
    Accounts(Accounts),
    /// List the tokens with which machines join, make them, and revoke certificates
    #[command(after_long_help = "\
Examples:
  aquifer fabric token
  aquifer fabric token create --kind donor --name d1 --address 10.0.0.7
  aquifer fabric token delete 0f3a5b7c9d1e2f40
  aquifer fabric token certificates
  aquifer fabric token revoke 5d0e8f1c2b3a49586776859403120f1e")]
    Token(Tokens),
    /// Join a pool: make a key here, and get its certificate for a join token
    #[command(after_long_help = "\
Examples:
  aquifer fabric join --manager fabric.example:7443 --token-stdin --out /etc/aquifer/pool < token
  aquifer fabric join --manager 10.0.0.1:7443 --token aqj1.... --out /etc/aquifer/pool")]
    Join(Join),
}

/// The arguments of `aquifer fabric serve`.
#[derive(Clone, Debug, Args)]
pub struct Serve {
    /// Its configuration
    #[arg(long, value_name = "FILE", required_unless_present = "print_config")]
    pub config: Option<PathBuf>,
    /// Check the configuration and exit
    #[arg(long)]
    pub check: bool,
    /// Print a configuration with every setting, and exit
    #[arg(long, conflicts_with_all = ["config", "check"])]
    pub print_config: bool,
}

/// The arguments of `aquifer fabric status`.
#[derive(Clone, Debug, Args)]
pub struct Status {
    /// Whether it is repeated.
    #[command(flatten)]
    pub watch: Watch,
    /// Wait until everything is as desired, then print it; status 1 if that takes longer than --limit
    #[arg(long, conflicts_with = "watch")]
    pub until_settled: bool,
    /// Seconds that --until-settled may take
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub limit: u64,
}

/// The arguments of commands that compare a declaration with the pool, and change nothing.
#[derive(Clone, Debug, Args)]
pub struct Compare {
    /// The declaration, in JSON; - is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// The arguments of `aquifer fabric audit`.
#[derive(Clone, Debug, Args)]
pub struct Audit {
    /// Show the records after this number
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub after: u64,
    /// Show at most this many records
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub count: u64,
    /// Show all records, to the last one that there is now; with --json, each record is one line
    #[arg(long, conflicts_with = "count")]
    pub all: bool,
    /// Have the manager check the chain of hashes over the whole log; exit status 3 if it is damaged
    #[arg(long, conflicts_with_all = ["all", "after", "count"])]
    pub verify: bool,
}

/// The arguments of `aquifer fabric events`.
#[derive(Clone, Debug, Args)]
pub struct Events {
    /// Show the events after this number
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub after: u64,
    /// End after this many events [default: when interrupted]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}
