// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The command line, and how a listening switch is made from it.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use aquifer_cxl_switch::{Switch, SwitchConfig};
use aquifer_fmapi::Dialect;
use clap::{Parser, ValueEnum};

use crate::listen::Sockets;
use crate::server::{Hosts, Server};

const EXAMPLES: &str = "Examples:
  # The built-in example: two hosts, an SLD, an MLD of four logical devices, and dynamic capacity
  aquifer-cxl-switchd

  # A configuration of your own, to begin with
  aquifer-cxl-switchd --print-example > switch.json
  aquifer-cxl-switchd --config switch.json --listen 127.0.0.1:2508

  # 22 devices of 256 GiB and three hosts
  aquifer-cxl-switchd --example box

  # For Jackrabbit's jack, on every address
  aquifer-cxl-switchd --dialect jackrabbit --listen 0.0.0.0:2508

  # Without TCP, and failures on a control socket
  aquifer-cxl-switchd --no-tcp --socket /run/switch.sock --control /run/switch.control
  echo '{\"link_flap\": {\"port_id\": 1, \"down_ms\": 500}}' | nc -U /run/switch.control

Lines of the control socket, each answered by {\"ok\": true}, or by a cause and a remedy:
  {\"answer\": {\"how\": HOW, \"opcode\": N, \"times\": N}}   HOW is \"busy\", \"drop\", \"duplicate\", \"wrong_tag\",
                                     {\"delay_ms\": N}, {\"truncate\": N} or {\"return_code\": N}
  \"background_stalls\"                {\"background_fails\": {\"return_code\": N}}
  {\"link_flap\": {\"port_id\": N, \"down_ms\": N}}            {\"event_overflow\": {\"log\": N}}
  {\"remove_device\": {\"device\": N}}                        {\"insert_device\": {\"device\": N}}
  {\"mld_error\": {\"port_id\": N, \"kind\": N}}               {\"back_pressure\": {\"device\": N, \"percent\": N}}

Exit status: 0 help, version or example; 1 it could not start, and may later, such as when a port is in use; 2 bad
arguments, a bad configuration, or a socket that cannot be opened there; 101 a bug.

Anyone who can connect can bind and unbind, without authentication: listen where only the fabric's managers can connect.";

/// A CXL switch in software: answers the FM API over MCTP, with simulated devices and hosts.
#[derive(Clone, Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
pub struct Args {
    /// Ports, virtual switches and devices, as JSON [default: a built-in example]
    #[arg(long, value_name = "FILE", conflicts_with = "example")]
    pub config: Option<PathBuf>,

    /// The built-in configuration to use or print
    #[arg(long, value_enum, default_value = "small")]
    pub example: Example,

    /// Where to listen for MCTP over TCP; port 0 takes a free one, which is printed
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:2508")]
    pub listen: String,

    /// Do not listen on TCP
    #[arg(long, requires = "socket")]
    pub no_tcp: bool,

    /// A Unix socket to listen on as well, with the same packets
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// A Unix socket for failures: one JSON object per line, each answered by one
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,

    /// How managers write what peers disagree about
    #[arg(long, value_enum, default_value = "standard")]
    pub dialect: DialectName,

    /// Managers that may be connected at a time, 1 to 64
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub connections: u16,

    /// What simulated hosts do when they are offered or asked for dynamic capacity
    #[arg(long, value_enum, default_value = "answer")]
    pub hosts: Hosts,

    /// Print what the switch has its driver do, one line each, to standard error
    #[arg(long)]
    pub trace: bool,

    /// Print the built-in configuration and exit
    #[arg(long)]
    pub print_example: bool,
}

/// A built-in configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Example {
    /// 22 devices of 256 GiB for three hosts
    Box,
    /// Two hosts, an SLD, an MLD of four logical devices, and dynamic capacity
    Small,
}

impl Example {
    fn config(self) -> SwitchConfig {
        match self {
            Self::Box => SwitchConfig::memory_box(),
            Self::Small => SwitchConfig::example(),
        }
    }
}

/// See `aquifer_fmapi::Dialect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DialectName {
    /// Jackrabbit's jack, written to CXL 2.0
    Jackrabbit,
    /// libcxlmi
    Libcxlmi,
    /// OpenCIS's fabric manager
    Opencis,
    /// CXL 3.1
    Standard,
}

impl DialectName {
    /// Returns the dialect of this name.
    pub fn dialect(self) -> &'static Dialect {
        const JACKRABBIT: Dialect = Dialect::JACKRABBIT;
        const LIBCXLMI: Dialect = Dialect::LIBCXLMI;
        const OPENCIS: Dialect = Dialect::OPENCIS;
        match self {
            Self::Jackrabbit => &JACKRABBIT,
            Self::Libcxlmi => &LIBCXLMI,
            Self::Opencis => &OPENCIS,
            Self::Standard => &Dialect::STANDARD,
        }
    }
}

/// Why the switch does not start, in one line: what, why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What is wrong.
    pub cause: String,
    /// What to do.
    pub remedy: String,
}

impl Failure {
    /// Creates a failure.
    pub fn new(cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { cause: cause.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.cause.replace('\n', " "), self.remedy)
    }
}

impl std::error::Error for Failure {}

/// Why a program with a switch has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What has failed, and what to do.
    pub failure: Failure,
    /// True where the program fails again until somebody changes its arguments, its configuration or this machine: its
    /// unit must not start it again.
    pub is_final: bool,
}

impl Ended {
    /// Ended for a reason that stays.
    pub fn final_by(failure: Failure) -> Self {
        Self { failure, is_final: true }
    }

    /// Ended for a reason that may pass.
    pub fn passing(failure: Failure) -> Self {
        Self { failure, is_final: false }
    }
}

/// The largest configuration that is read; 32 ports, 16 virtual switches and their devices take some KiB.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

fn read_config(path: &Path) -> Result<SwitchConfig, Failure> {
    let name = path.display();
    let cause = |error: io::Error| Failure::new(format!("{name}: {error}"), "name a file that can be read");
    // A device has the length 0, and can deliver bytes for ever.
    let mut text = Vec::new();
    fs::File::open(path).and_then(|file| file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut text)).map_err(cause)?;
    if text.len() as u64 > CONFIG_BYTES_MAX {
        let more = format!("{name}: it has more than {CONFIG_BYTES_MAX} bytes");
        return Err(Failure::new(more, "name a configuration, as --print-example prints one"));
    }
    serde_json::from_slice(&text)
        .map_err(|error| Failure::new(format!("{name}: {error}"), "begin with the output of --print-example"))
}

/// Does what the arguments say: prints, or listens until a signal ends the process.
pub fn run(args: &Args) -> Result<(), Ended> {
    if args.print_example {
        let example = serde_json::to_string_pretty(&args.example.config()).expect("a configuration is JSON");
        println!("{example}");
        return Ok(());
    }
    let config = args.config.as_deref().map_or_else(|| Ok(args.example.config()), read_config);
    let config = config.map_err(Ended::final_by)?;
    let name = args.config.as_ref().map_or("the example".into(), |path| path.display().to_string());
    let place = |failure: aquifer_cxl_switch::ConfigFailure| {
        Ended::final_by(Failure::new(format!("{name}: {}: {}", failure.place, failure.cause), failure.remedy))
    };
    let switch = Switch::new(config).map_err(place)?;
    let server = Server::new(switch, args.dialect.dialect(), args.connections, args.hosts, args.trace);
    let listen = (!args.no_tcp).then_some(args.listen.as_str());
    let (socket, control) = (args.socket.as_deref(), args.control.as_deref());
    crate::listen::serve(&server, &Sockets { listen, socket, control, ready: None })
}
