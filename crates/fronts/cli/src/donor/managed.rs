// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The arguments of a donor that belongs to a pool: its fabric managers, and what it reports to them.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use aquifer_donor::{DonorId, Files, Managed, ManagerAddress};

use crate::exit::{ExitCode, Failure};

/// The pool that the donor belongs to.
#[derive(Clone, Debug, clap::Args)]
pub struct ManagedArgs {
    /// Let this fabric manager place reservations here; once for each manager of the pool
    ///
    /// The donor keeps a control channel to it, over TLS with the certificate that borrowers are shown, unless
    /// --manager-cert names another; in plain text only on this machine. The certificate must be one for a client, too.
    #[arg(long = "manager", value_name = "HOST:PORT")]
    managers: Vec<ManagerAddress>,

    /// This donor's name in the pool [default: the machine's name]
    #[arg(long, value_name = "NAME", requires = "managers", hide_short_help = true)]
    id: Option<DonorId>,

    /// Tell the managers where this donor is: rack=NAME, enclosure=NAME, class=tcp, rdma or cxl; other names are for
    /// people
    #[arg(
        long = "label",
        value_name = "NAME=VALUE",
        requires = "managers",
        value_parser = label,
        hide_short_help = true
    )]
    labels: Vec<(String, String)>,

    /// Where borrowers reach this donor [default: where it listens]
    #[arg(long, value_name = "HOST:PORT", requires = "managers", hide_short_help = true)]
    advertise: Vec<String>,

    /// Remember here which manager was elected last, so that a restarted donor obeys no earlier one
    #[arg(long, value_name = "FILE", requires = "managers", hide_short_help = true)]
    manager_state: Option<PathBuf>,

    /// The certificate for managers, in PEM [default: that of --tls-cert]
    #[arg(long, value_name = "FILE", requires_all = ["managers", "manager_key", "manager_ca"], hide_short_help = true)]
    manager_cert: Option<PathBuf>,

    /// Its private key, in PEM
    #[arg(long, value_name = "FILE", requires = "manager_cert", hide_short_help = true)]
    manager_key: Option<PathBuf>,

    /// The authority that a manager's certificate must be signed by, in PEM
    #[arg(long, value_name = "FILE", requires = "manager_cert", hide_short_help = true)]
    manager_ca: Option<PathBuf>,
}

impl ManagedArgs {
    /// Returns the settings; `None` without managers.
    pub fn settings(&self, is_local: bool) -> Result<Option<Managed>, Failure> {
        if self.managers.is_empty() {
            return Ok(None);
        }
        let usage = |cause: &str, remedy: &str| Err(Failure::new(ExitCode::Usage, cause.to_owned(), remedy));
        if is_local {
            return usage(
                "--manager is for donors that other machines reach, and this one shares memory through a socket",
                "listen on a port, or leave --manager out",
            );
        }
        let id = match &self.id {
            Some(id) => id.clone(),
            None => match own_name().and_then(|name| name.parse().ok()) {
                Some(id) => id,
                None => return usage("this machine's name is not a name for a pool", "name the donor with --id"),
            },
        };
        let mut labels = BTreeMap::new();
        for (name, value) in &self.labels {
            if labels.insert(name.clone(), value.clone()).is_some() {
                return usage(&format!("label {name} is given twice"), "give it once");
            }
        }
        let tls = match (&self.manager_cert, &self.manager_key, &self.manager_ca) {
            (Some(cert), Some(key), Some(ca)) => Some(Files { cert: cert.clone(), key: key.clone(), ca: ca.clone() }),
            _ => None,
        };
        Ok(Some(Managed {
            managers: self.managers.clone(),
            id,
            addresses: self.advertise.clone(),
            labels,
            tls,
            state: self.manager_state.clone(),
        }))
    }
}

/// Returns the first part of the machine's name, in lower case.
fn own_name() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    name.trim().split('.').next().map(str::to_ascii_lowercase)
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE, for example rack=r1".into()),
    }
}
