// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Lists of volumes, as the device plug-in for Kubernetes requests them: they follow the manager's orders, and a client
//! that lists volumes uses none.

mod world;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use aquifer_agent_wire::{Answer, Decoder, Denial, ListedVolume, Request, encode};
use aquifer_fabric::{Redundancy, Why};

use world::{SLABS, TIMEOUT, VOLUME, World, lease, wait_until};

/// A connection, with the bytes that have arrived.
struct Client(UnixStream, Decoder);

impl Client {
    fn connect(world: &World) -> Client {
        let stream = UnixStream::connect(world.socket()).expect("the agent serves");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        Client(stream, Decoder::default())
    }

    fn list(world: &World) -> Client {
        let mut client = Client::connect(world);
        client.send(&Request::List { version: 1 });
        client
    }

    fn send(&mut self, request: &Request) {
        self.0.write_all(&encode(request).expect("it is short")).expect("the agent reads");
    }

    fn answer(&mut self) -> Option<Answer> {
        loop {
            if let Some(answer) = self.1.take().expect("an agent speaks the protocol") {
                return Some(answer);
            }
            let mut bytes = [0; 4096];
            match self.0.read(&mut bytes).expect("an answer in time") {
                0 => return None,
                count => self.1.push(&bytes[..count]),
            }
        }
    }

    /// Returns the next listing of the volume.
    fn listed(&mut self) -> ListedVolume {
        let Some(Answer::Listing(listing)) = self.answer() else { panic!("the agent lists") };
        let names: Vec<&str> = listing.volumes.iter().map(|volume| volume.name.as_str()).collect();
        assert_eq!((names, listing.files), (vec!["db", "other"], None));
        listing.volumes[0].clone()
    }
}

fn db(slabs: u64, is_bound: bool) -> ListedVolume {
    ListedVolume { name: "db".into(), id: VOLUME.to_string(), slabs, is_bound }
}

#[test]
fn a_list_follows_the_volume_and_uses_nothing() {
    let mut world = World::start(2, 4);
    let mut client = Client::list(&world);
    assert_eq!(client.listed(), db(0, false));
    world.present(Redundancy::None, vec![lease(0, 0, 0)]);
    assert_eq!(client.listed(), db(SLABS, true));
    world.join(vec![lease(1, 1, 0)]);
    assert_eq!(client.listed(), db(2 * SLABS, true));
    // Nobody uses the volume, so a member leaves at once.
    world.leave(&[1], Why::Shrunk);
    wait_until("the member has left", || world.has_left(1));
    client.send(&Request::Close);
    while client.answer().is_some() {}
}

#[test]
fn a_list_outlives_neither_a_wrong_version_nor_another_request() {
    let world = World::start(1, 4);
    let mut client = Client::connect(&world);
    client.send(&Request::List { version: 9 });
    assert_eq!(client.answer(), Some(Answer::Denied(Denial::Version { version: 1 })));
    assert_eq!(client.answer(), None);
    for request in
        [Request::List { version: 1 }, Request::Open { version: 1, volume: "db".into(), session: 1, holds: vec![] }]
    {
        let mut client = Client::list(&world);
        client.listed();
        client.send(&request);
        assert!(matches!(client.answer(), Some(Answer::Denied(Denial::Malformed { .. }))), "{request:?}");
    }
    assert_eq!(Client::list(&world).listed(), db(0, false));
}
