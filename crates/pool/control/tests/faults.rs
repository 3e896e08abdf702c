// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A manager asks agents for the faults of programs: at intervals, no donor, and no agent that does not know the
//! question. One that answers nonsense harms nobody but itself.

mod ends;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aquifer_control::{FRAME_BYTES_MAX, Faults, HEADER_BYTES, Kind, Message, Registrar, decode, encode, payload_bytes};
use ends::{Noted, TIMEOUT, host, keep, plain, registrar, registration, report, wait_until};

/// The shortest time between two questions.
const PAUSE: Duration = Duration::from_secs(5);

fn counts(count: u64) -> Option<Faults> {
    Some(Faults { sum_ns: count * 9000, buckets: [(40, count)].into() })
}

fn measured(end: &Arc<Mutex<Noted>>) -> u32 {
    end.lock().expect("no panic").measured
}

#[test]
fn an_agent_is_asked_at_intervals_and_its_figures_are_those_of_the_last_one() {
    let (registrar, _) = registrar(plain());
    let (agent, donor) = (Noted::new(Kind::Host), Noted::new(Kind::Donor));
    let set = |faults| agent.lock().expect("no panic").faults = faults;
    set(counts(1_000_000));
    let begun = Instant::now();
    let _kept = [keep(&agent, "h1", &[registrar.address()], None), keep(&donor, "d1", &[registrar.address()], None)];
    // Queries, as rounds send them, come more often than the question.
    let wait = |what: &str, holds: &dyn Fn() -> bool| {
        wait_until(what, || {
            report(&registrar, &host("h1"), 1);
            holds()
        });
    };
    wait("it is asked", &|| measured(&agent) > 0);
    assert!(begun.elapsed() >= PAUSE, "{:?}", begun.elapsed());
    assert_eq!(registrar.faults().hosts, 0, "there was no interval yet");
    set(counts(1_000_500));
    wait("it has figures", &|| registrar.faults().newest.count() == 500);
    let figures = registrar.faults();
    assert_eq!((figures.hosts, figures.newest.mean_us()), (1, Some(9.0)));
    assert!((1.0..=200.0).contains(&figures.per_second), "{figures:?}");
    let (questions, took) = (measured(&agent), begun.elapsed());
    assert!(u64::from(questions) <= took.as_secs() / PAUSE.as_secs(), "{questions} in {took:?}");
    set(None);
    wait("it has no figures any more", &|| registrar.faults().hosts == 0);
    assert_eq!(registrar.faults().total.count(), 500);
    assert_eq!(measured(&donor), 0, "a donor has no programs");
}

/// An end that a test plays byte by byte.
struct Played(TcpStream);

impl Played {
    /// Registers as an agent that speaks this version.
    fn register(registrar: &Registrar, newest: u16) -> Played {
        let stream = TcpStream::connect(registrar.address()).expect("it listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        let mut played = Played(stream);
        played.send(0, &Message::Hello { oldest: 1, newest, registration: registration(Kind::Host, "h1") });
        assert_eq!(played.receive(), Some((0, Message::Welcome { version: newest })));
        played
    }

    fn send(&mut self, number: u32, message: &Message) {
        self.0.write_all(&encode(number, message).expect("short")).expect("sent");
    }

    /// Receives a message with its number; `None` if the channel has ended.
    fn receive(&mut self) -> Option<(u32, Message)> {
        let mut header = [0; HEADER_BYTES];
        self.0.read_exact(&mut header).ok()?;
        let (bytes, number) = payload_bytes(&header, FRAME_BYTES_MAX).expect("the manager sends frames");
        let mut payload = vec![0; bytes];
        self.0.read_exact(&mut payload).ok()?;
        Some((number, decode(&payload).expect("the manager sends messages")))
    }

    /// Answers a ping, and returns what comes next.
    fn next_after_ping(&mut self) -> Option<(u32, Message)> {
        let (number, message) = self.receive().expect("it is asked whether it is alive");
        assert_eq!(message, Message::Ping);
        self.send(number, &Message::Pong);
        self.receive()
    }
}

#[test]
fn an_agent_of_an_older_version_is_not_asked() {
    let (registrar, _) = registrar(plain());
    for (version, next) in [(5, Message::Ping), (6, Message::Measure)] {
        let mut agent = Played::register(&registrar, version);
        assert_eq!(agent.next_after_ping().map(|(_, message)| message), Some(next), "version {version}");
        drop(agent);
        wait_until("its channel has ended", || !registrar.connected().contains(&host("h1")));
    }
    assert_eq!(registrar.faults().hosts, 0);
}

#[test]
fn an_agent_that_answers_nonsense_loses_its_channel_and_nothing_else_happens() {
    let (registrar, _) = registrar(plain());
    let mut long = encode(0, &Message::Measured(counts(1))).expect("short");
    long[4..8].copy_from_slice(&((16_u32 << 10) + 1).to_le_bytes());
    let answers: [fn(u32) -> Vec<u8>; 3] = [
        |number| encode(number, &Message::Pong).expect("short"),
        |number| encode(number.wrapping_add(1), &Message::Measured(None)).expect("short"),
        |number| {
            let mut frame = encode(number, &Message::Measured(None)).expect("short");
            // A bucket that no byte can count.
            let text = br#"{"measured":{"sum-ns":0,"buckets":{"256":1}}}"#;
            frame.truncate(HEADER_BYTES);
            frame[4..8].copy_from_slice(&u32::try_from(text.len()).expect("small").to_le_bytes());
            frame.extend_from_slice(text);
            frame
        },
    ];
    for answer in answers {
        let mut agent = Played::register(&registrar, 6);
        let Some((number, Message::Measure)) = agent.next_after_ping() else { panic!("it is not asked") };
        agent.0.write_all(&answer(number)).expect("sent");
        assert_eq!(agent.receive(), None, "the channel has ended");
        wait_until("it has no channel", || !registrar.connected().contains(&host("h1")));
    }
    // One that announces more than all counts take is not read.
    let mut agent = Played::register(&registrar, 6);
    let Some((number, Message::Measure)) = agent.next_after_ping() else { panic!("it is not asked") };
    long[8..12].copy_from_slice(&number.to_le_bytes());
    agent.0.write_all(&long[..HEADER_BYTES]).expect("sent");
    assert_eq!(agent.receive(), None, "the channel has ended");
    assert_eq!(registrar.faults().hosts, 0);
}

#[test]
fn an_agent_that_lies_changes_no_figures_and_keeps_its_channel() {
    let (registrar, _) = registrar(plain());
    let agent = Noted::new(Kind::Host);
    agent.lock().expect("no panic").faults = counts(0);
    let _kept = keep(&agent, "h1", &[registrar.address()], None);
    wait_until("it is asked", || measured(&agent) == 1);
    let absurd = Faults { sum_ns: u64::MAX, buckets: (0..=255).map(|bucket| (bucket, u64::MAX)).collect() };
    agent.lock().expect("no panic").faults = Some(absurd);
    wait_until("it is asked again", || measured(&agent) == 3);
    report(&registrar, &host("h1"), 1);
    let figures = registrar.faults();
    assert_eq!((figures.per_second, figures.total.count()), (0.0, 0), "{figures:?}");
}
