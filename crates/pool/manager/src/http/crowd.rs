// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which connections there are, and which one ends when there are too many.
//!
//! A connection is always accepted. When [`CONNECTIONS_MAX`] are there, it takes the place of one of the network that
//! has the most, so that a network with few connections keeps them, whatever strangers at another do. Of those, one
//! that waits for its client ends before one with a request, and that one before an event stream; then the one that
//! was used least recently.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use aquifer_control::network;
use tokio::sync::Notify;

/// Maximum number of connections at a time.
pub(crate) const CONNECTIONS_MAX: usize = 256;

/// What a connection is doing, in the order in which they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Doing {
    /// It shakes hands, sends a request or takes an answer: it waits for its client.
    Waiting,
    /// The client waits for an answer.
    Answering,
    /// It is an event stream.
    Streaming,
}

struct Connection {
    network: IpAddr,
    doing: Doing,
    /// Grows with each use of any connection.
    used: u64,
    end: Arc<Notify>,
}

#[derive(Default)]
struct Connections {
    all: BTreeMap<u64, Connection>,
    uses: u64,
}

/// All connections, and the order in which they end.
#[derive(Default)]
pub(super) struct Crowd {
    connections: Mutex<Connections>,
}

/// The place of one connection, until it is dropped.
pub(super) struct Place {
    crowd: Arc<Crowd>,
    number: u64,
    end: Arc<Notify>,
}

impl Connections {
    /// Counts a use, and returns its number.
    fn next(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// Returns the connection that ends for a further one.
    fn victim(&self) -> Option<u64> {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        self.all.values().for_each(|connection| *counts.entry(connection.network).or_default() += 1);
        let most = counts.values().max()?;
        let crowded = self.all.iter().filter(|(_, connection)| counts[&connection.network] == *most);
        crowded.min_by_key(|(_, connection)| (connection.doing, connection.used)).map(|(number, _)| *number)
    }
}

impl Crowd {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().expect("a panic ends the daemon")
    }

    /// Makes a place for a connection from this address, and ends another one if there are too many.
    pub(super) fn enter(self: &Arc<Self>, from: IpAddr) -> Place {
        let end = Arc::new(Notify::new());
        let mut connections = self.connections();
        if connections.all.len() >= CONNECTIONS_MAX
            && let Some(victim) = connections.victim()
            && let Some(connection) = connections.all.remove(&victim)
        {
            connection.end.notify_one();
        }
        let number = connections.next();
        let connection =
            Connection { network: network(from), doing: Doing::Waiting, used: number, end: Arc::clone(&end) };
        connections.all.insert(number, connection);
        drop(connections);
        Place { crowd: Arc::clone(self), number, end }
    }
}

impl Place {
    /// Notes what the connection is doing.
    pub(super) fn note(&self, doing: Doing) {
        let mut connections = self.crowd.connections();
        let used = connections.next();
        if let Some(connection) = connections.all.get_mut(&self.number) {
            (connection.doing, connection.used) = (doing, used);
        }
    }

    /// Waits until another connection takes the place.
    pub(super) async fn taken(&self) {
        self.end.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crowd.connections().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn four(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn is_there(place: &Place) -> bool {
        place.crowd.connections().all.contains_key(&place.number)
    }

    #[test]
    fn a_crowd_from_one_network_displaces_itself_alone() {
        let crowd = Arc::new(Crowd::default());
        let operator = crowd.enter(four(1));
        let strangers: Vec<Place> = (0..3 * CONNECTIONS_MAX).map(|_| crowd.enter(four(2))).collect();
        assert!(is_there(&operator));
        assert_eq!(strangers.iter().filter(|place| is_there(place)).count(), CONNECTIONS_MAX - 1);
        assert!(is_there(strangers.last().expect("one")), "the newest one has a place");
        let another = crowd.enter(four(3));
        assert!(is_there(&operator) && is_there(&another));
        drop(strangers);
        assert_eq!(crowd.connections().all.len(), 2, "places are given back");
    }

    #[test]
    fn who_waits_ends_before_who_is_answered_and_streams_end_last() {
        let crowd = Arc::new(Crowd::default());
        let (stream, asking) = (crowd.enter(four(1)), crowd.enter(four(1)));
        stream.note(Doing::Streaming);
        asking.note(Doing::Answering);
        let waiting: Vec<Place> = (2..CONNECTIONS_MAX).map(|_| crowd.enter(four(1))).collect();
        waiting[0].note(Doing::Waiting);
        let _one = crowd.enter(four(9));
        assert!(is_there(&waiting[0]) && !is_there(&waiting[1]), "the least recently used one ends");
        let _more: Vec<Place> = (0..waiting.len() - 1)
            .map(|_| crowd.enter(four(1)))
            .inspect(|place| place.note(Doing::Answering))
            .collect();
        assert!(!waiting.iter().any(is_there) && is_there(&asking) && is_there(&stream));
        let _last = crowd.enter(four(8));
        assert!(!is_there(&asking) && is_there(&stream));
    }
}
