// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Starts the daemon, which lies beside this program in a build directory and where packages install it. It is trusted
//! as much as this program is, so neither a variable nor PATH names another place.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

use aquifer_fabric_args::Serve;
use aquifer_manager_client::{Failure, failed};

const DAEMON: &str = "aquifer-fabricd";
/// The exit code when it cannot be started.
const CANNOT_START: u8 = 125;

/// Replaces this process with the daemon. Returns only if that fails.
pub(crate) fn serve(args: &Serve) -> Failure {
    let unstarted = |what: String| {
        let remedy = "install aquifer again, or run 'make fabric' in the source tree";
        Failure { code: CANNOT_START, ..failed(format!("the program {DAEMON} {what}; {remedy}")) }
    };
    let daemon = match env::current_exe() {
        Ok(own) => own.with_file_name(DAEMON),
        Err(error) => return unstarted(format!("cannot be found: {error}")),
    };
    if !daemon.is_file() {
        return unstarted(format!("is not at {}", daemon.display()));
    }
    let mut command = Command::new(&daemon);
    if let Some(config) = &args.config {
        command.arg("--config").arg(config);
    }
    command.args(args.check.then_some("--check")).args(args.print_config.then_some("--print-config"));
    let error = command.exec();
    unstarted(format!("at {} cannot be started: {error}", daemon.display()))
}
