// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The `aquifer-agentd` program, which `aquifer agent` starts.
//!
//! Exit codes: 0 ended by SIGTERM or SIGINT; 1 it cannot be started; 2 bad arguments or a bad configuration.
//!
//! Signals: SIGTERM and SIGINT end it; on SIGHUP it reads the configuration again, for the permits of volumes.
//!
//! The socket that is served is the one line on standard output. With `metrics` in the configuration, the program
//! `aquifer-metrics` beside this one is started, and serves scrapers; the agent supplies the texts.

#![forbid(unsafe_code)]

use std::env;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use aquifer_agent::{Host, Reloader, Settings};
use aquifer_agent_args::AgentArgs;
use aquifer_exporter::{Exporter, PROGRAM};
use aquifer_sys::small_file;
use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

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
    match serve(settings, args.config) {
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

/// Writes a line for the operator. Standard error may be a terminal that is gone: SIGHUP does not end the agent.
fn log(line: &str) {
    let _ = writeln!(std::io::stderr(), "aquifer agent: {line}");
}

fn serve(settings: Settings, config: PathBuf) -> Result<(), Box<dyn std::error::Error>> {
    allow_descriptors();
    let socket = settings.socket.display().to_string();
    // Before programs are served: systemd sends the signal to an agent that is ready, and it would end the agent.
    let (requests, request) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGHUP, request)?;
    let exporter = settings.metrics.map(exporter).transpose()?;
    let host = Host::start(settings, Arc::new(log))?;
    if let Some(exporter) = exporter {
        log(&format!("metrics at http://{}/metrics", exporter.address()));
        let observer = host.observer();
        let supply = move || log(&exporter.supply(|| observer.metrics(), log).to_string());
        thread::Builder::new().name("agent-metrics".into()).spawn(supply)?;
    }
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, host.ender()?)?;
    }
    let reloader = host.reloader();
    thread::Builder::new().name("agent-reload".into()).spawn(move || reload_on(requests, &config, &reloader))?;
    // Standard output may be closed.
    let _ = writeln!(std::io::stdout(), "serving programs at {socket}");
    host.wait();
    Ok(())
}

/// Listens at an address for scrapers, and starts the program that serves them.
fn exporter(address: SocketAddr) -> Result<Exporter, Box<dyn std::error::Error>> {
    let program = env::current_exe()?.with_file_name(PROGRAM);
    if !program.is_file() {
        return Err(format!(
            "the program {PROGRAM} is not at {}, and metrics is set; install it (in Debian's packages, aquifer-tools has \
             it), or run 'make metrics' in the source tree",
            program.display()
        )
        .into());
    }
    Ok(Exporter::start(program, address)?)
}

/// Reads the configuration again whenever that is requested.
fn reload_on(mut requests: UnixStream, config: &Path, reloader: &Reloader) {
    // Several requests at a time are one.
    let mut bytes = [0; 64];
    loop {
        match requests.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => reloader.reload(settings(config)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
