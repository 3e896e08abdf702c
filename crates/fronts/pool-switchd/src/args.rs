// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The command line, and how the switch, its sockets and its driver are made from it.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use aquifer_cxl_switch::Switch;
use aquifer_cxl_switchd::{DialectName, Ended, Failure, Server, Sockets, serve, spawn};
use aquifer_sys::notify::Notify;
use clap::Parser;

use crate::config::{Config, EXAMPLE};
use crate::driver::{Driver, ORDER_WAIT_MAX};
use crate::places::Places;
use crate::pool::Pool;

const EXAMPLES: &str = "Examples:
  # A configuration to begin with, and a check of it
  aquifer-pool-switchd --print-config > pool-switch.toml
  aquifer-pool-switchd --config pool-switch.toml --check

  # The pool as a CXL switch at port 2508 of this machine, and what a client sees of it
  aquifer-pool-switchd --config pool-switch.toml
  aquifer fmapi ports tcp:127.0.0.1

  # Give logical device 3 of the donor at port 0 1 GiB, bind it to the first host, and undo both
  aquifer fmapi allocate tcp:127.0.0.1 --port 0 --ld 3 --size 1GiB
  aquifer fmapi bind tcp:127.0.0.1 --vcs 0 --vppb 0 --port 0 --ld 3
  aquifer fmapi unbind tcp:127.0.0.1 --vcs 0 --vppb 0
  aquifer fmapi allocate tcp:127.0.0.1 --port 0 --ld 3 --size 0B

Exit status: 0 help, version, check or configuration; 1 it could not start, and may later; 2 bad arguments, a bad
configuration, one that the manager refuses, or a socket that cannot be opened there; 101 a bug.

The FM API has no authentication: anyone who can connect can take, bind and release memory. Listen where only the
clients that are meant can connect.";

/// Show a donor pool as a CXL switch to clients of the FM API
///
/// Each host of the pool is a virtual CXL switch; each donor is a multi-logical device. The fabric manager has the
/// desired state; this program stores nothing.
#[derive(Clone, Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
pub struct Args {
    /// The configuration, in TOML: the manager, the pool, and which donor or host is at which port
    #[arg(long, value_name = "FILE", required_unless_present = "print_config")]
    pub config: Option<PathBuf>,

    /// Check the configuration, the password's file and the authorities' file, and exit
    #[arg(long)]
    pub check: bool,

    /// The file with the account's password, instead of the one that the configuration names
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,

    /// Where to listen for MCTP over TCP; port 0 takes a free one, which is printed
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:2508")]
    pub listen: String,

    /// Do not listen on TCP
    #[arg(long, requires = "socket")]
    pub no_tcp: bool,

    /// A Unix socket to listen on as well, with the same packets
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// The dialect of the clients
    #[arg(long, value_enum, default_value = "standard")]
    pub dialect: DialectName,

    /// How many clients may be connected at a time, 1 to 64
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub connections: u16,

    /// Print changes and orders to standard error, one line each
    #[arg(long)]
    pub trace: bool,

    /// Print a configuration with every setting, and exit
    #[arg(long)]
    pub print_config: bool,
}

/// Does what the arguments say: prints, or listens until a signal ends the process.
pub fn run(args: &Args) -> Result<(), Ended> {
    let Some(path) = args.config.as_deref().filter(|_| !args.print_config) else {
        print!("{EXAMPLE}");
        return Ok(());
    };
    let (config, places, switch) = configured(args, path).map_err(Ended::final_by)?;
    let pool = Pool::new(&config).map_err(Ended::final_by)?;
    if args.check {
        return Ok(());
    }
    let session = pool.session();
    let ended = show(args, config.clone(), places, switch, pool);
    // Where it cannot start. A signal ends it without that.
    session.end(&config);
    ended
}

/// Reads the configuration and the password, and makes the switch.
fn configured(args: &Args, path: &Path) -> Result<(Config, Places, Switch), Failure> {
    let mut config = Config::read(path)?;
    if let Some(file) = &args.password_file {
        config.password_file.clone_from(file);
    }
    let places = Places::of(&config)?;
    let limit_ns = u64::try_from(ORDER_WAIT_MAX.as_nanos()).unwrap_or(u64::MAX);
    let switch = Switch::driven(places.switch(&config), limit_ns)
        .map_err(|failure| Failure::new(format!("{}: {}", failure.place, failure.cause), failure.remedy))?;
    config.password()?;
    Ok((config, places, switch))
}

/// Shows the pool until a signal ends the process, or until something fails.
fn show(args: &Args, config: Config, places: Places, switch: Switch, pool: Pool) -> Result<(), Ended> {
    let (sender, orders) = channel();
    let server = Server::driven(switch, args.dialect.dialect(), args.connections, args.trace, sender);
    let mut driver = Driver::new(config, places, pool, server.clone(), orders);
    // Clients must not see an empty switch.
    driver.start().map_err(|trouble| Ended { failure: trouble.failure, is_final: trouble.is_final })?;
    spawn("driver", move || driver.run()).map_err(Ended::passing)?;
    let listen = (!args.no_tcp).then_some(args.listen.as_str());
    let ready: fn() = || Notify::from_environment().ready("shows the pool as a CXL switch");
    serve(&server, &Sockets { listen, socket: args.socket.as_deref(), control: None, ready: Some(ready) })
}
