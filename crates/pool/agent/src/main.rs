// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The `aquifer-agentd` program, which `aquifer agent` starts.
//!
//! Exit codes: 0 ended by SIGTERM or SIGINT; 1 it cannot be started; 2 bad arguments or a bad configuration.
//!
//! The socket that is served is the one line on standard output.

#![forbid(unsafe_code)]

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use aquifer_agent::{Host, Settings};
use aquifer_agent_args::AgentArgs;
use aquifer_sys::small_file;
use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};

#[derive(Debug, Parser)]
#[command(name = "aquifer agent", bin_name = "aquifer agent", version, max_term_width = 100)]
struct Program {
    #[command(flatten)]
    agent: AgentArgs,
}

/// The exit status for invalid arguments and configurations.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let args = Program::parse().agent;
    let settings = match settings(&args.config) {
        Ok(settings) => settings,
        Err(failure) => {
            eprintln!("aquifer agent: {failure}");
            return ExitCode::from(USAGE);
        }
    };
    if args.check {
        if let Err(failure) = settings.check_files() {
            eprintln!("aquifer agent: {}: {failure}", args.config.display());
            return ExitCode::from(USAGE);
        }
        println!("{} is a valid configuration of host {}", args.config.display(), settings.host);
        return ExitCode::SUCCESS;
    }
    match serve(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("aquifer agent: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Maximum length of the configuration: more than volumes for every user of a host take.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

fn settings(path: &Path) -> Result<Settings, String> {
    let at = path.display();
    let text = small_file::read_text(path, CONFIG_BYTES_MAX).map_err(|error| {
        format!("{at} cannot be read: {error}; write it as docs/agent.md says, or name it with --config")
    })?;
    text.parse().map_err(|failure| format!("{at}: {failure}"))
}

/// Raises the limit on open files: each program takes three, and the usual soft limit of 1024 exists for programs that
/// use select(2).
fn allow_descriptors() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // If the limit cannot be raised, the agent serves as many programs as the current limit allows.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn serve(settings: Settings) -> Result<(), Box<dyn std::error::Error>> {
    allow_descriptors();
    let socket = settings.socket.display().to_string();
    let host = Host::start(settings, Arc::new(|line| eprintln!("aquifer agent: {line}")))?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, host.ender()?)?;
    }
    // Standard output may be closed.
    let _ = writeln!(std::io::stdout(), "serving programs at {socket}");
    host.wait();
    Ok(())
}
