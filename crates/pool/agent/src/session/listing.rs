// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A connection that asks for the list of volumes, and gets a new list at every change, until it ends. It uses none of
//! the volumes. The device plug-in for Kubernetes is such a client.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::Duration;

use aquifer_agent_wire::{Answer, Denial, Request, VERSION, encode};
use aquifer_sys::wakeup::readable;

use super::{Ending, SLEEP, Session};

impl Session {
    pub(super) fn list(&mut self, version: u16) -> Result<(), Ending> {
        if version != VERSION {
            return Err(Ending::Denied(Denial::Version { version: VERSION }));
        }
        let wakeup = self.watch_changes()?;
        let mut sent = None;
        loop {
            let (peer, permits) = (self.peer, self.shared.permits());
            let files = self.shared.surroundings().files;
            // The host state does not change, so nothing is stored.
            let volumes = self.shared.change(|host_state| host_state.listing(&permits, peer.uid, peer.gid)).0;
            let listing = aquifer_agent_wire::Listing { files, volumes };
            if sent.as_ref() != Some(&listing) {
                self.stream.write_all(&encode(&Answer::Listing(listing.clone()))?)?;
                sent = Some(listing);
            }
            loop {
                if let Some(request) = self.decoder.take::<Request>()? {
                    return match request {
                        Request::Close => Ok(()),
                        _ => {
                            let why = "a connection that lists volumes does nothing else".into();
                            Err(Ending::Denied(Denial::Malformed { why }))
                        }
                    };
                }
                wakeup.sleep(Some(self.stream.as_raw_fd()), SLEEP);
                if !readable(self.stream.as_raw_fd(), Duration::ZERO) {
                    break;
                }
                self.receive()?;
            }
        }
    }
}
