// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `--metrics`: supplies a donor's figures as Prometheus text. A separate thread does this, so the threads that serve
//! borrowers are not delayed; scrapers connect to a separate process: see `exporter.rs`.

use std::net::SocketAddr;
use std::thread;

use aquifer_donor::{Observer, managed_to_prometheus, to_prometheus};

use super::cannot;
use crate::exit::{Failure, say};
use crate::exporter;

/// Listens, and supplies the text from a separate thread until the process exits. Returns the bound address.
pub fn serve(address: SocketAddr, observer: Observer) -> Result<SocketAddr, Failure> {
    let exporter = exporter::start(address)?;
    let address = exporter.address();
    let text = move || {
        let managed = observer.managed().map(|managed| managed_to_prometheus(&managed));
        to_prometheus(&observer.status()) + &managed.unwrap_or_default()
    };
    let supply = move || say(&exporter.supply(text, |line| say(&line)));
    let thread = thread::Builder::new().name("metrics".into()).spawn(supply);
    thread.map_err(|error| cannot(format!("metrics cannot be served at {address}: {error}")))?;
    Ok(address)
}
