// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The `aquifer-device-plugin` program, for a DaemonSet of Kubernetes (`packaging/kubernetes/`).
//!
//! Exit codes: 0 ended by SIGTERM or SIGINT; 1 it cannot be started; 2 bad arguments.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use aquifer_device_plugin::{Domain, Naming, Settings, run};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

/// Hand the volumes of this host to pods, as a device plug-in of Kubernetes
///
/// Each volume that the host's agent lists becomes a resource of the node. A container that asks for one gets the
/// agent's socket, the device for its faults, and a variable with the tier for 'aquifer run'.
#[derive(Debug, Parser)]
#[command(
    name = "aquifer-device-plugin",
    version,
    max_term_width = 100,
    after_long_help = "\
Examples:
  aquifer-device-plugin
  aquifer-device-plugin --domain far.example.org --pods-max 1"
)]
struct Program {
    /// The socket of the host's agent; the same path on the host and in all containers
    #[arg(long, value_name = "SOCKET", default_value = aquifer_agent_wire::SOCKET)]
    agent: PathBuf,
    /// The directory in which kubelet and its plug-ins have their sockets
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/device-plugins")]
    kubelet: PathBuf,
    /// The domain of the resources: a volume db is DOMAIN/db
    #[arg(long, value_name = "DOMAIN", default_value = "aquifer.dev")]
    domain: Domain,
    /// How many containers can have a volume at a time; they share its memory
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pods_max: u32,
}

fn main() -> ExitCode {
    let Program { agent, kubelet, domain, pods_max } = Program::parse();
    if let Some(path) = [&agent, &kubelet].into_iter().find(|path| !path.is_absolute()) {
        eprintln!("aquifer-device-plugin: {} is not an absolute path; write one", path.display());
        return ExitCode::from(2);
    }
    let settings = Settings { agent, kubelet, naming: Naming { domain, pods_max } };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(until_ended(settings))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("aquifer-device-plugin: it cannot be started: {error}; raise its limits");
            ExitCode::FAILURE
        }
    }
}

async fn until_ended(settings: Settings) -> std::io::Result<()> {
    let (mut ended, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        () = run(settings, |line| eprintln!("aquifer-device-plugin: {line}")) => {}
        _ = ended.recv() => {}
        _ = interrupted.recv() => {}
    }
    Ok(())
}
