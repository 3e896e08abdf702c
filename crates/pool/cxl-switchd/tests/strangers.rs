// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Connections that harm others if they can: that do not read, say nothing, say half of something, or are thousands.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use aquifer_fmapi::*;

mod running;

use running::{Client, POLLS_MAX, Running};

/// How often a manager binds and unbinds beside one that does not read.
const BINDS: u32 = 8;
/// For all of them. A switch that waited for that manager would wait 5 s each time.
const BINDS_TIME_MAX: Duration = Duration::from_secs(30);
/// More than the files that a process may open by default.
const CONNECTIONS: usize = 3000;
/// Lines of a trace, which together are longer than a pipe.
const TRACED: usize = 4000;
/// How long a manager waits for an answer while nobody reads the trace.
const TRACED_TIME_MAX: Duration = Duration::from_secs(10);
/// How long the thread that fills a pipe may take.
const FILLED: Duration = Duration::from_millis(200);

fn is_served(stream: TcpStream) -> bool {
    let message = Message::request(1, &Request::Identify(Identify {}), &Dialect::STANDARD);
    let (kind, bytes) = (MessageType::ComponentCommand, message.encode(&Dialect::STANDARD));
    let sent = Received { kind, to: 8, from: 9, tag: 1, is_owner: true, bytes };
    let mut stream = stream;
    let _ = stream.write_all(&packets(&sent, &mut 0));
    stream.read_exact(&mut [0; PACKET_BYTES]).is_ok()
}

/// Subscribes to the end of background operations, and then asks until no more fits into its socket, without reading.
fn subscribe_and_never_read(stream: UnixStream) -> Option<UnixStream> {
    let mut client = Client::new(stream, &Dialect::STANDARD);
    client.ask(&Request::SetMctpEventPolicy(SetMctpEventPolicy { events: 1 << 15 })).ok()?;
    let request = Request::GetPortStates(GetPortStates { port_ids: (0..8).collect() });
    let bytes = Message::request(1, &request, &Dialect::STANDARD).encode(&Dialect::STANDARD);
    let sent = Received { kind: MessageType::FabricManager, to: 8, from: 9, tag: 1, is_owner: true, bytes };
    let bytes = packets(&sent, &mut 0);
    client.stream.set_write_timeout(Some(Duration::from_millis(200))).ok()?;
    while client.stream.write_all(&bytes).is_ok() {}
    Some(client.stream)
}

/// Ends the other thread, also after a failure.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Each write to a manager that did not read kept others waiting for 5 s, and the switch's clock, too.
#[test]
fn a_manager_that_does_not_read_delays_nobody() {
    let running = Running::new("not-read", &[]);
    let (is_over, cut_off) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // It comes back whenever it was cut off.
                let Some(mut stream) = subscribe_and_never_read(running.unix("s")) else { continue };
                let is_cut = |stream: &mut UnixStream| {
                    stream.write_all(&[0]).is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
                };
                while !is_cut(&mut stream) && !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(10));
                }
                cut_off.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _over = Over(&is_over);
        let mut client = Client::new(running.tcp(), &Dialect::STANDARD);
        let begun = Instant::now();
        for _ in 0..BINDS {
            // The one that does not read has time to become one.
            std::thread::sleep(Duration::from_millis(500));
            assert_eq!(client.bind(0, 1, 0), Err(ReturnCode::BACKGROUND_STARTED));
            assert_eq!(client.wait(), ReturnCode::SUCCESS);
            let unbind = UnbindVppb { vcs_id: 0, vppb_id: 0, option: UnbindOption::SurpriseRemoval };
            assert_eq!(client.ask(&Request::UnbindVppb(unbind)), Err(ReturnCode::BACKGROUND_STARTED));
            assert_eq!(client.wait(), ReturnCode::SUCCESS);
        }
        let took = begun.elapsed();
        assert!(took < BINDS_TIME_MAX, "{took:?}");
    });
    assert!(cut_off.load(Ordering::Relaxed) > 0, "it was never cut off");
}

/// A place that was taken by a connection without a message was taken for ever.
#[test]
fn connections_that_say_nothing_give_up_their_places() {
    let running = Running::new("silent", &["--connections", "2"]);
    let mut manager = Client::new(running.tcp(), &Dialect::STANDARD);
    assert!(manager.ask(&Request::Identify(Identify {})).is_ok());
    let mut silent = running.tcp();
    let mut junk = running.tcp();
    let _ = junk.write_all(&[0xff; PACKET_BYTES]);
    let polls = (0..POLLS_MAX).take_while(|_| {
        std::thread::sleep(Duration::from_millis(10));
        !is_served(running.tcp())
    });
    assert!(polls.count() < POLLS_MAX, "nobody gets the place of a connection that has said nothing");
    assert_eq!(silent.read(&mut [0; 1]).ok(), Some(0), "it has lost its place");
    assert!(manager.ask(&Request::Identify(Identify {})).is_ok(), "who has spoken keeps it");
}

/// A line that could not be written to standard error ended the switch, and anybody can have a line written.
#[test]
fn a_full_disk_does_not_end_the_switch() {
    let full = |_: &std::path::Path| std::fs::File::options().write(true).open("/dev/full").unwrap();
    let running = Running::with_errors("full", &["--connections", "1", "--trace"], full);
    let mut manager = Client::new(running.tcp(), &Dialect::STANDARD);
    assert!(manager.ask(&Request::Identify(Identify {})).is_ok());
    for _ in 0..3 {
        assert!(!is_served(running.tcp()), "there is one place");
    }
    // Effects are traced.
    assert_eq!(manager.bind(0, 1, 0), Err(ReturnCode::BACKGROUND_STARTED));
    assert_eq!(manager.wait(), ReturnCode::SUCCESS);
}

/// A line was written while the switch was locked: with a full pipe as standard error, it stopped.
#[test]
fn a_trace_that_nobody_reads_does_not_stop_the_switch() {
    let (mut unread, errors) = std::io::pipe().unwrap();
    let errors = std::fs::File::from(std::os::fd::OwnedFd::from(errors));
    let running = Running::with_errors("unread", &["--trace"], |_| errors);
    let mut manager = Client::new(running.tcp(), &Dialect::STANDARD);
    manager.stream.set_read_timeout(Some(TRACED_TIME_MAX)).unwrap();
    let mut stranger = Client::new(running.tcp(), &Dialect::STANDARD);
    for _ in 0..TRACED {
        // It is not answered, but traced.
        stranger.send(&Request::IdentifySwitch(IdentifySwitch {}), MessageType::ComponentCommand);
    }
    assert!(stranger.ask(&Request::Identify(Identify {})).is_ok());
    assert_eq!(manager.bind(0, 1, 0), Err(ReturnCode::BACKGROUND_STARTED));
    assert_eq!(manager.wait(), ReturnCode::SUCCESS);
    assert!(manager.ask(&Request::IdentifySwitch(IdentifySwitch {})).is_ok());
    drop(running);
    let mut traced = String::new();
    unread.read_to_string(&mut traced).unwrap();
    let line = "an FM API command came as MCTP type 8; send it as type 7";
    assert!(traced.lines().next().unwrap().ends_with(line), "{traced}");
}

/// Returns the end of a full pipe that is written to, and the other one, which nobody reads.
fn full_pipe() -> (std::fs::File, std::io::PipeReader) {
    let (unread, errors) = std::io::pipe().unwrap();
    let errors = std::fs::File::from(std::os::fd::OwnedFd::from(errors));
    let mut filled = errors.try_clone().unwrap();
    // Its thread waits for room until the reading end is closed.
    std::thread::spawn(move || while filled.write_all(&[b'\n'; 4096]).is_ok() {});
    std::thread::sleep(FILLED);
    (errors, unread)
}

/// A report of a connection that was turned away waited for the reader of standard error, and with `--trace` for the
/// line that was just written there: nobody was served any more.
#[test]
fn a_report_that_nobody_reads_does_not_stop_the_switch() {
    for (name, arguments) in [("report", &["--connections", "1"][..]), ("both", &["--connections", "1", "--trace"])] {
        let (errors, unread) = full_pipe();
        let running = Running::with_errors(name, arguments, |_| errors);
        let mut manager = Client::new(running.tcp(), &Dialect::STANDARD);
        assert!(manager.ask(&Request::Identify(Identify {})).is_ok());
        // It is not answered, but traced.
        manager.send(&Request::IdentifySwitch(IdentifySwitch {}), MessageType::ComponentCommand);
        assert!(manager.ask(&Request::Identify(Identify {})).is_ok());
        for _ in 0..3 {
            let stranger = running.tcp();
            stranger.set_read_timeout(Some(TRACED_TIME_MAX)).unwrap();
            let begun = Instant::now();
            assert!(!is_served(stranger), "there is one place");
            assert!(begun.elapsed() < TRACED_TIME_MAX, "{name}: nobody is accepted, or turned away");
        }
        drop((running, unread));
    }
}

#[test]
fn a_packet_that_does_not_end_ends_its_connection() {
    let running = Running::new("half", &[]);
    let mut half = Client::new(running.tcp(), &Dialect::STANDARD);
    assert!(half.ask(&Request::Identify(Identify {})).is_ok());
    half.stream.write_all(&[1; PACKET_BYTES / 2]).unwrap();
    assert_eq!(half.stream.read(&mut [0; 1]).ok(), Some(0));
}

#[test]
fn thousands_of_connections_cost_a_connected_manager_nothing() {
    let running = Running::new("thousands", &[]);
    let mut manager = Client::new(running.tcp(), &Dialect::STANDARD);
    assert!(manager.ask(&Request::Identify(Identify {})).is_ok());
    let mut kept = Vec::new();
    for at in 0..CONNECTIONS {
        kept.push(running.tcp());
        if kept.len() == 100 {
            kept.clear();
            assert!(manager.ask(&Request::Identify(Identify {})).is_ok(), "after {at} connections");
        }
    }
    drop(kept);
    let polls = (0..POLLS_MAX).take_while(|_| {
        std::thread::sleep(Duration::from_millis(10));
        !is_served(running.tcp())
    });
    assert!(polls.count() < POLLS_MAX, "nobody is served after {CONNECTIONS} connections");
    // Of those that were turned away, one in a row is reported, not each.
    let reported = std::fs::read_to_string(running.directory.join("stderr")).unwrap();
    assert!(reported.lines().count() < CONNECTIONS / 10, "{} lines", reported.lines().count());
    let threads = std::fs::read_dir(format!("/proc/{}/task", running.child.id())).unwrap().count();
    assert!(threads < 100, "{threads} threads");
}
