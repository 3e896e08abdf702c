// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Times commands: the cost of a command itself, the answers of a peer, and the binding of all its devices.
//!
//! `bench/immediate.rs` is the peer that takes no time, `bench/bind_all.rs` binds, `bench/figures.rs` prints.
//!
//! A bench of a peer changes nothing, unless it has permission to bind; then it unbinds everything that it has bound.

mod bind_all;
mod figures;
mod immediate;

use std::fmt;
use std::time::{Duration, Instant};

use aquifer_fmapi::{BindVppb, ReturnCode};
use aquifer_fmapi_client::{Client, Failure, Limits, PacketStream, SystemClock};

pub(crate) use bind_all::Bound;
use immediate::{Immediate, PORTS};

/// How many times each command is sent to the peer that takes no time: enough for a 99th percentile of 20 commands.
const OWN_COUNT: u32 = 2000;
/// How often it is sent first, so that caches and the allocator are warm.
const OWN_WARM_UP: u32 = 200;
/// How long one kind of command is sent to a peer. Over I2C an answer takes 20 ms, so that 1000 of them take longer.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(10);

/// The cost of a command itself that must not be exceeded, as a median on an idle machine.
pub(crate) const OWN_COST_BAR: Duration = Duration::from_micros(20);

/// The times of one kind of command.
#[derive(Clone, Debug)]
pub(crate) struct Timed {
    /// The name of the command.
    pub name: &'static str,
    /// Every command's time, sorted; empty if the peer does not support the command.
    times: Vec<Duration>,
}

impl Timed {
    fn new(name: &'static str, mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self { name, times }
    }

    /// Returns how many commands were answered.
    pub fn count(&self) -> usize {
        self.times.len()
    }

    /// Returns the time that this share of the commands did not exceed, or None if nothing was timed.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = (self.times.len() as f64 * share).ceil() as usize;
        self.times.get(rank.max(1) - 1).copied()
    }

    /// Returns the longest time.
    pub fn max(&self) -> Option<Duration> {
        self.times.last().copied()
    }

    /// Returns how many commands a second are answered when they are sent one after the other.
    pub fn rate(&self) -> Option<f64> {
        let total: Duration = self.times.iter().sum();
        (!total.is_zero()).then(|| self.times.len() as f64 / total.as_secs_f64())
    }
}

/// What a bench has measured.
#[derive(Clone, Debug)]
pub(crate) struct Bench {
    /// The peer's address.
    pub peer: String,
    /// The name of the peer's dialect.
    pub dialect: &'static str,
    /// Commands to a peer that takes no time.
    pub own: Vec<Timed>,
    /// Commands to the peer.
    pub answers: Vec<Timed>,
    /// All devices bound, if that was allowed.
    pub bound: Option<Bound>,
}

impl Bench {
    /// Returns true if every command's own cost keeps its bar.
    pub fn keeps_own_cost(&self) -> bool {
        self.own.iter().all(|timed| timed.quantile(0.5).is_some_and(|median| median <= OWN_COST_BAR))
    }
}

/// Why a bench has ended early.
#[derive(Debug)]
pub(crate) struct BenchFailure {
    pub failure: Failure,
    /// vPPBs that the bench has bound and could not unbind: virtual switch and vPPB.
    pub left_bound: Vec<(u8, u8)>,
}

impl From<Failure> for BenchFailure {
    fn from(failure: Failure) -> Self {
        Self { failure, left_bound: Vec::new() }
    }
}

impl fmt::Display for BenchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.failure)?;
        if !self.left_bound.is_empty() {
            write!(f, "; these stay bound, unbind them with 'aquifer fmapi unbind': {}", list(&self.left_bound))?;
        }
        Ok(())
    }
}

/// Returns vPPBs as a list for a person.
pub(crate) fn list(vppbs: &[(u8, u8)]) -> String {
    let one = |(vcs, vppb): &(u8, u8)| format!("vPPB {vppb} of virtual switch {vcs}");
    vppbs.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// A kind of command, as which its answer is checked.
type Command<'a> = (&'static str, &'a dyn Fn(&mut Client) -> Result<(), Failure>);

/// Measures a peer: each command `count` times. `may_bind`: bind every device first; `begun` is when the connection was
/// begun.
pub(crate) fn bench(client: &mut Client, begun: Instant, count: u32, may_bind: bool) -> Result<Bench, BenchFailure> {
    let bound = if may_bind { Some(bind_all::bind_all(client, begun)?) } else { None };
    let commands: [Command<'_>; 4] = [
        ("Identify", &|client| client.identify(&[]).map(drop)),
        ("Identify Switch Device", &|client| client.identify_switch().map(drop)),
        ("Get Physical Port State, one port", &|client| client.port_states(&[0]).map(drop)),
        ("Get Virtual CXL Switch Info, one", &|client| client.virtual_switch(0).map(drop)),
    ];
    let answers = commands.iter().map(|command| time_answers(client, command, count)).collect::<Result<_, _>>()?;
    Ok(Bench { peer: client.peer(), dialect: client.dialect().name, own: own_cost(), answers, bound })
}

/// Times one kind of command. One that the peer does not support has no times.
fn time_answers(client: &mut Client, (name, command): &Command<'_>, count: u32) -> Result<Timed, Failure> {
    let (begun, mut times) = (Instant::now(), Vec::new());
    for _ in 0..count {
        let sent = Instant::now();
        match command(client) {
            Ok(()) => times.push(sent.elapsed()),
            Err(failure) if failure.return_code() == Some(ReturnCode::UNSUPPORTED) => break,
            Err(failure) => return Err(failure),
        }
        if begun.elapsed() > COMMAND_TIME_MAX {
            break;
        }
    }
    Ok(Timed::new(name, times))
}

/// Returns the cost of a command itself: codec, client, and MCTP packets on a stream, without a kernel and without a
/// peer.
fn own_cost() -> Vec<Timed> {
    let stream = PacketStream::new("immediate".into(), Immediate::new());
    let mut client = Client::new(Box::new(stream), SystemClock::shared(), Limits::default());
    let ports: Vec<u8> = (0..PORTS).collect();
    let bind = BindVppb { vcs_id: 0, vppb_id: 1, port_id: 1, ld_id: 2 };
    let commands: [Command<'_>; 3] = [
        ("Identify Switch Device", &|client| client.identify_switch().map(drop)),
        ("Get Physical Port State, 32 ports", &|client| client.port_states(&ports).map(drop)),
        ("Bind vPPB", &|client| client.run(&[], &bind)),
    ];
    let time = |client: &mut Client, command: &Command<'_>, count| {
        time_answers(client, command, count).expect("the peer in this process answers every command")
    };
    commands.iter().for_each(|command| drop(time(&mut client, command, OWN_WARM_UP)));
    commands.iter().map(|command| time(&mut client, command, OWN_COUNT)).collect()
}

impl Bench {
    /// Returns the figures as a table.
    pub fn text(&self) -> String {
        figures::text(self)
    }

    /// Returns the figures as one JSON object.
    pub fn json(&self) -> serde_json::Value {
        figures::json(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_time_that_its_share_of_commands_did_not_exceed() {
        let us = Duration::from_micros;
        let timed = Timed::new("any", (1..=200).rev().map(us).collect());
        assert_eq!([timed.quantile(0.5), timed.quantile(0.99), timed.max()], [100, 198, 200].map(|n| Some(us(n))));
        let one = Timed::new("any", vec![us(500)]);
        assert_eq!([one.quantile(0.5), one.quantile(0.99), one.max()], [Some(us(500)); 3]);
        assert_eq!(one.rate(), Some(2000.0));
        let none = Timed::new("any", Vec::new());
        assert_eq!((none.count(), none.quantile(0.5), none.max(), none.rate()), (0, None, None, None));
    }

    #[test]
    fn every_command_to_the_peer_that_takes_no_time_is_timed() {
        let own = own_cost();
        assert_eq!(own.len(), 3);
        assert!(own.iter().all(|timed| timed.count() == OWN_COUNT as usize), "{own:?}");
    }
}
