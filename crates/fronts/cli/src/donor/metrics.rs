// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `--metrics`: serves a donor's figures as Prometheus text. `scrape.rs` is the server; its thread takes no time from
//! the threads that serve borrowers.

use std::net::SocketAddr;
use std::sync::Arc;

use aquifer_donor::{Observer, to_prometheus};

use crate::exit::Failure;
use crate::scrape;

/// Listens, and serves from a separate thread until the process ends. Returns the bound address.
pub fn serve(address: SocketAddr, observer: Observer) -> Result<SocketAddr, Failure> {
    scrape::serve(address, Arc::new(move || to_prometheus(&observer.standing())))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use aquifer_donor::{Donor, Security, Settings, Source};

    use super::*;
    use crate::scrape::{CONNECTIONS_MAX, TIMEOUT};

    /// Forty clients that sent nothing used to make every other client wait for ten seconds.
    #[test]
    fn slow_clients_keep_nobody_from_the_metrics() {
        let any = ([127, 0, 0, 1], 0);
        let settings = Settings::new(any.into(), 4 << 20, Source::Anonymous, Security::Plain);
        let donor = Donor::start(settings, Box::new(|_| ())).unwrap();
        let address = serve(any.into(), donor.observer()).unwrap();
        let crowd = |count| (0..count).map(|_| TcpStream::connect(address).unwrap()).collect::<Vec<_>>();
        let _slow = crowd(2 * CONNECTIONS_MAX);
        let mut scraper = TcpStream::connect(address).unwrap();
        // A scraper that is served immediately never reaches this timeout.
        scraper.set_read_timeout(Some(TIMEOUT / 2)).unwrap();
        scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: donor\r\n\r\n").unwrap();
        let mut text = String::new();
        scraper.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("aquifer_donor_capacity_bytes"), "{text}");
        donor.stop(Duration::ZERO);
    }
}
