// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Bounds the connections that are not registered yet. They have their own limit and their own deadline, so that they
//! cannot keep registered ends from connecting.
//!
//! When there are too many, a newcomer takes the place of the oldest one of the most crowded network, or of its own
//! network if that has its share. It does so only if its network has far fewer connections than the other one, or if
//! the oldest one is slow: when a thousand ends reconnect together, those that have begun are to finish.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::network::network;
use crate::registrar::Shared;

/// Maximum number of connections that are not registered yet. A choice: a thousand ends that reconnect together
/// register within seconds, and strangers use few resources.
const STRANGERS_MAX: usize = 64;
/// Maximum number of such connections from one network.
const STRANGERS_PER_NETWORK_MAX: usize = 32;
/// How long a stranger keeps its place from newcomers. A handshake takes milliseconds.
const SLOW_AFTER: Duration = Duration::from_secs(1);

/// The connections that are not registered yet. Pure.
pub(crate) struct Strangers<C> {
    /// By a number that grows: the oldest is the first.
    all: BTreeMap<u64, Known<C>>,
}

struct Known<C> {
    network: IpAddr,
    since: Instant,
    connection: C,
}

/// What becomes of a newcomer.
#[derive(Debug, PartialEq, Eq)]
enum Room<C> {
    /// There is a place for it.
    Free,
    /// There is none.
    None,
    /// It has the place of this connection.
    Of(C),
}

impl<C> Default for Strangers<C> {
    fn default() -> Strangers<C> {
        Strangers { all: BTreeMap::new() }
    }
}

impl<C> Strangers<C> {
    /// Adds a connection, if there is room for it.
    fn add(&mut self, number: u64, address: IpAddr, connection: C, now: Instant) -> Room<C> {
        let network = network(address);
        let room = self.room(network, now);
        if !matches!(room, Room::None) {
            self.all.insert(number, Known { network, since: now, connection });
        }
        room
    }

    /// Makes room for a connection from a network.
    fn room(&mut self, own: IpAddr, now: Instant) -> Room<C> {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        self.all.values().for_each(|known| *counts.entry(known.network).or_default() += 1);
        let of_own = counts.get(&own).copied().unwrap_or(0);
        let crowded = match of_own >= STRANGERS_PER_NETWORK_MAX {
            true => Some((own, of_own)),
            false if self.all.len() >= STRANGERS_MAX => counts.into_iter().max_by_key(|(_, count)| *count),
            false => None,
        };
        let Some((crowded, count)) = crowded else { return Room::Free };
        let mut others = self.all.iter().filter(|(_, known)| known.network == crowded);
        let is_far_fewer = 2 * (of_own + 1) < count;
        let may_go = |known: &Known<C>| is_far_fewer || now.duration_since(known.since) >= SLOW_AFTER;
        let oldest = others.next().filter(|(_, known)| may_go(known)).map(|(number, _)| *number);
        oldest.and_then(|oldest| self.all.remove(&oldest)).map_or(Room::None, |known| Room::Of(known.connection))
    }
}

/// A connection that is not registered yet; counts until it is dropped.
pub(crate) struct Stranger {
    shared: Arc<Shared>,
    number: u64,
}

impl Stranger {
    /// Makes a place for a connection, which has this number, and ends another one for it if there are too many.
    /// Returns `None` if there is no place.
    pub(crate) fn admit(
        shared: &Arc<Shared>,
        socket: &TcpStream,
        address: IpAddr,
        number: u64,
    ) -> io::Result<Option<Stranger>> {
        let connection = socket.try_clone()?;
        match shared.strangers().add(number, address, connection, Instant::now()) {
            Room::Free => {}
            Room::None => return Ok(None),
            Room::Of(displaced) => drop(displaced.shutdown(Shutdown::Both)),
        }
        Ok(Some(Stranger { shared: Arc::clone(shared), number }))
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.shared.strangers().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    struct Gate {
        strangers: Strangers<u8>,
        number: u64,
        now: Instant,
    }

    impl Gate {
        /// Lets connections in, or not.
        fn add(&mut self, last: u8, count: usize) -> Vec<Room<u8>> {
            let add = |_| {
                self.number += 1;
                self.strangers.add(self.number, from(last), last, self.now)
            };
            (0..count).map(add).collect()
        }

        fn of(&self, last: u8) -> usize {
            self.strangers.all.values().filter(|known| known.connection == last).count()
        }
    }

    #[test]
    fn strangers_of_some_networks_keep_no_other_out() {
        let mut gate = Gate { strangers: Strangers::default(), number: 0, now: Instant::now() };
        for last in [1, 2] {
            let rooms = gate.add(last, 40);
            assert!(rooms[..32].iter().all(|room| *room == Room::Free), "{rooms:?}");
            assert!(rooms[32..].iter().all(|room| *room == Room::None), "a network has its share: {rooms:?}");
        }
        assert!(gate.add(3, 4).iter().all(|room| matches!(room, Room::Of(1 | 2))), "an end gets in at once");
        gate.now += SLOW_AFTER;
        assert_eq!((gate.add(3, 1), gate.add(1, 1).len()), (vec![Room::Of(2)], 1));
        assert_eq!((gate.of(3), gate.strangers.all.len()), (5, STRANGERS_MAX));
    }

    #[test]
    fn of_ends_that_come_together_those_finish_that_have_begun() {
        let mut gate = Gate { strangers: Strangers::default(), number: 0, now: Instant::now() };
        let together: Vec<Room<u8>> = (0..200).flat_map(|last| gate.add(last, 1)).collect();
        assert!(together[..64].iter().all(|room| *room == Room::Free));
        assert!(together[64..].iter().all(|room| *room == Room::None), "{together:?}");
        gate.now += SLOW_AFTER;
        assert!(matches!(gate.add(200, 1)[..], [Room::Of(_)]), "one that is slow makes room");
    }
}
