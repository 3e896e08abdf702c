// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What an agent refuses, and that a client which misbehaves harms only itself.

mod world;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use aquifer_agent_wire::{Answer, Decoder, Denial, FRAME_BYTES_MAX, MemberProgress, Progress, Request, encode};
use aquifer_control::NotSent;
use aquifer_fabric::{Redundancy, Step, Why};

use world::{TIMEOUT, VOLUME, World, lease, wait_until};

fn connect(world: &World) -> UnixStream {
    let stream = UnixStream::connect(world.socket()).expect("the agent serves");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    stream
}

/// Sends a request. An agent that has ended the connection may have answered before, which `answer` shows.
fn send(mut stream: &UnixStream, request: &Request) {
    match stream.write_all(&encode(request).expect("it is short")) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => panic!("the agent does not read: {error}"),
        _ => {}
    }
}

/// Returns the agent's next answer; `None` if it has ended the connection.
fn answer(mut stream: &UnixStream) -> Option<Answer> {
    let mut decoder = Decoder::default();
    loop {
        if let Some(answer) = decoder.take().expect("an agent speaks the protocol") {
            return Some(answer);
        }
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(0) => return None,
            Ok(count) => decoder.push(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
            Err(error) => panic!("no answer: {error}"),
        }
    }
}

fn open(volume: &str, session: u64) -> Request {
    Request::Open { version: 1, volume: volume.into(), session, holds: Vec::new() }
}

fn world() -> World {
    let mut world = World::start(1, 4);
    world.present(Redundancy::None, vec![lease(0, 0, 0)]);
    world
}

fn is_served(world: &World) {
    let stream = connect(world);
    send(&stream, &open("db", 1));
    let Some(Answer::View(view)) = answer(&stream) else { panic!("the agent serves others") };
    assert_eq!(view.members.len(), 1);
    send(&stream, &Request::Close);
    assert_eq!(answer(&stream), None);
}

#[test]
fn a_client_that_misbehaves_harms_only_itself() {
    let world = world();
    let garbage: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 64],
        &(FRAME_BYTES_MAX as u32 + 1).to_le_bytes(),
        &[2, 0, 0, 0, b'a', b'='],
    ];
    for bytes in garbage {
        let mut stream = connect(&world);
        stream.write_all(bytes).expect("a socket");
        let refused = answer(&stream);
        assert!(matches!(refused, Some(Answer::Denied(Denial::Malformed { .. })) | None), "{bytes:?}: {refused:?}");
        is_served(&world);
    }
    // Half a message, and then nothing or the end.
    let half = &encode(&open("db", 2)).expect("it is short")[..9];
    let mut silent = connect(&world);
    silent.write_all(half).expect("a socket");
    let mut gone = connect(&world);
    gone.write_all(half).expect("a socket");
    drop(gone);
    is_served(&world);
    assert_eq!(answer(&silent), None, "it has five seconds to open a volume");
    // Something else than an open, and an open too many.
    let stream = connect(&world);
    send(&stream, &Request::Close);
    assert!(matches!(answer(&stream), Some(Answer::Denied(Denial::Malformed { .. }))));
    let stream = connect(&world);
    (0..2).for_each(|session| send(&stream, &open("db", session)));
    assert!(matches!(answer(&stream), Some(Answer::View(_))));
    assert!(matches!(answer(&stream), Some(Answer::Denied(Denial::Malformed { .. })) | None));
    // Its reports about members that it was never given are ignored.
    let stream = connect(&world);
    send(&stream, &open("db", 5));
    assert!(matches!(answer(&stream), Some(Answer::View(_))));
    let report = (0..500).map(|member| MemberProgress { member: member + 9, progress: Progress::Left }).collect();
    send(&stream, &Request::Progress(report));
    // And reports without a pause end the connection.
    let mut is_ended = false;
    for _ in 0..10_000 {
        let sent = (&stream).write_all(&encode(&Request::Progress(Vec::new())).expect("it is short"));
        is_ended |= sent.is_err();
    }
    assert!(is_ended || !matches!(answer(&stream), Some(Answer::View(_))));
    is_served(&world);
    assert!(!world.has_left(9));
}

/// It does not wait for the agent, which may be slow.
#[test]
fn a_program_that_closes_its_volume_and_goes_has_closed_it() {
    let mut world = World::start(1, 64);
    world.present(Redundancy::None, vec![lease(0, 0, 0)]);
    for session in 0..20 {
        let opened = connect(&world);
        send(&opened, &open("db", session));
        assert!(matches!(answer(&opened), Some(Answer::View(_))));
        drop(opened);
        let closing = connect(&world);
        let both = [open("db", session), Request::Close].map(|request| encode(&request).expect("it is short"));
        (&closing).write_all(&both.concat()).expect("the agent reads");
    }
    world.leave(&[0], Why::Shrunk);
    wait_until("no program has the member", || world.has_left(0));
}

#[test]
fn a_volume_is_closed_although_the_agent_was_full_at_first() {
    let mut world = World::start(1, 2);
    world.present(Redundancy::None, vec![lease(0, 0, 0)]);
    let tier = world.open("4MiB");
    let closing = std::thread::scope(|scope| {
        let mut taken = Vec::new();
        wait_until("the agent is full", || {
            let stream = connect(&world);
            send(&stream, &open("db", 100 + taken.len() as u64));
            let answer = answer(&stream);
            if matches!(answer, Some(Answer::View(_))) {
                taken.push(stream);
            }
            matches!(answer, Some(Answer::Denied(Denial::Busy { .. })))
        });
        let closing = scope.spawn(|| drop(tier));
        std::thread::sleep(Duration::from_millis(50));
        taken.iter().for_each(|stream| send(stream, &Request::Close));
        closing.join()
    });
    closing.expect("it closes the volume");
    world.leave(&[0], Why::Shrunk);
    wait_until("no program has the member", || world.has_left(0));
}

#[test]
fn nobody_takes_all_places() {
    let world = world();
    let taken: Vec<UnixStream> = (0..4).map(|_| connect(&world)).collect();
    let mut refused = connect(&world);
    let mut byte = [0];
    // The first four may not be admitted yet when the fifth connects, but one of the five is refused.
    let is_refused = refused.read(&mut byte).is_ok_and(|count| count > 0);
    assert!(is_refused || taken.iter().any(|mut stream| stream.read(&mut byte).is_ok_and(|count| count > 0)));
    drop(taken);
    wait_until("there is room again", || {
        let stream = connect(&world);
        send(&stream, &open("db", 1));
        matches!(answer(&stream), Some(Answer::View(_)))
    });
}

/// It could make the agent's state grow until the agent does not start with it.
#[test]
fn one_program_is_remembered_only_so_often() {
    let mut world = World::start(1, 256);
    world.present(Redundancy::None, vec![lease(0, 0, 0)]);
    let state = world.directory.join("state/agent.json");
    let mut refused = None;
    for session in 0..300 {
        let stream = connect(&world);
        send(&stream, &open("db", session));
        match answer(&stream) {
            Some(Answer::View(_)) => {}
            other => {
                refused = Some((session, other));
                break;
            }
        }
    }
    let Some((64, Some(Answer::Denied(denial)))) = refused else { panic!("{refused:?}") };
    let line = denial.to_string();
    assert!(line.contains("this program has it open too often; end some"), "{line}");
    let text = std::fs::read_to_string(&state).expect("a state");
    assert!(text.len() < 64 << 10, "{} bytes", text.len());
    // Those that it has may connect again, and closing one makes room for another.
    let stream = connect(&world);
    send(&stream, &open("db", 7));
    assert!(matches!(answer(&stream), Some(Answer::View(_))));
    send(&stream, &Request::Close);
    assert_eq!(answer(&stream), None);
    wait_until("there is room again", || {
        let stream = connect(&world);
        send(&stream, &open("db", 300));
        matches!(answer(&stream), Some(Answer::View(_)))
    });
}

#[test]
fn what_cannot_be_opened_says_why_and_what_to_do() {
    let world = world();
    let agent = world.socket().display().to_string();
    let is_root = std::fs::metadata("/proc/self").expect("it is there").uid() == 0;
    let unknown = if is_root { "not bound to this host" } else { "may not use it" };
    for (spec, cause, remedy) in [
        (format!("pool:Db,agent={agent}"), "cannot be the name", "use a-z"),
        (format!("pool:nothing,agent={agent}"), unknown, "'aquifer fabric volumes'"),
        (format!("pool:other,agent={agent}"), "not bound to this host", "aquifer fabric bind VOLUME web-1"),
        (format!("pool:db,agent={agent}x"), "no agent answers", "aquifer agent"),
        (format!("pool:db,agent={agent},size=4KiB"), "too small", "size="),
    ] {
        let failure = world.try_open(&spec).err().unwrap_or_else(|| panic!("{spec} opens"));
        assert!(failure.contains(cause), "{spec}: {failure}");
        assert!(failure.contains(remedy) || !is_root && cause == unknown, "{spec}: {failure}");
        assert!(!failure.contains('\n'), "{failure}");
    }
    let mode = std::fs::metadata(world.socket()).expect("it serves").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
}

/// The agent said that it had seen another term, which ended its channel in each round: to the manager, a host with a
/// full disk was one that was cut off.
#[test]
fn an_agent_that_cannot_store_its_state_keeps_its_channel_and_says_why() {
    let mut world = world();
    let (state, away) = (world.directory.join("state"), world.directory.join("away"));
    std::fs::rename(&state, &away).expect("ours");
    let step = Step::Withdraw { host: "web-1".parse().expect("a name"), volume: VOLUME, members: Vec::new() };
    let refusal = world.try_order(&step).expect_err("nothing can be stored");
    assert!(matches!(&refusal, NotSent::Refused(refused) if refused.why.contains("free space")), "{refusal:?}");
    for _ in 0..5 {
        assert_eq!(world.query(), (true, false), "what is not on disk is not reported");
    }
    std::fs::rename(&away, &state).expect("ours");
    assert_eq!(world.query(), (true, true));
    assert!(world.report().volumes.is_empty());
}

#[test]
fn a_bad_configuration_and_a_second_agent_are_refused_in_one_line() {
    let world = world();
    let run = |config: &str, check: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer-agentd"));
        command.arg("--config").arg(world.directory.join(config));
        if check {
            command.arg("--check");
        }
        let output = command.output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, line) = run("agent.toml", false);
    assert!(code == Some(1) && line.contains("another agent uses the state directory"), "{line}");
    assert_eq!(line.lines().count(), 1);
    assert_eq!(run("agent.toml", true), (Some(0), String::new()));
    std::fs::write(world.directory.join("bad.toml"), "host = 'A b'\n[manager]\naddresses = []\n").expect("a file");
    let (code, line) = run("bad.toml", true);
    assert!(code == Some(2) && line.contains("bad.toml"), "{line}");
    let (code, line) = run("none.toml", true);
    assert!(code == Some(2) && line.contains("docs/agent.md"), "{line}");
    // It used to be read until no memory was left.
    let (code, line) = run("/dev/zero", true);
    assert!(code == Some(2) && line.contains("it has more than 1048576 bytes"), "{line}");
    is_served(&world);
    std::thread::sleep(Duration::from_millis(1));
}
