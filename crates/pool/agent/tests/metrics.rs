// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A real agent is scraped: it gives its own metrics and those of the programs whose launchers show it their
//! statistics, in the form that Prometheus takes, and neither scrapers nor launchers that misbehave delay anybody.

mod world;

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use aquifer_agent::METRICS;
use aquifer_agent_wire::{Answer, Decoder, Denial, Request, VERSION, encode};
use aquifer_exporter::Showing;
use aquifer_fabric::Redundancy;
use aquifer_stats::{Counter, Counters, FaultKind, Gauge, Text};
use aquifer_test_support::complaints_about_metrics;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use world::{TIMEOUT, World, lease, wait_until};

/// More connections than are served at the same time.
const CROWD: usize = 128;
/// The longest that one connection of a scraper is served.
const SCRAPE_MAX: Duration = Duration::from_secs(5);

fn get(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).expect("metrics are served");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("it is read");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text.split_once("\r\n\r\n").expect("a head").1.to_owned()
}

/// Returns the value of a sample; `None` if there is none.
fn value(page: &str, sample: &str) -> Option<u64> {
    let line = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.map(|value| value.parse().expect("a number"))
}

/// Waits until a sample has a value.
fn wait_for(address: SocketAddr, sample: &str, wanted: u64) {
    wait_until(&format!("{sample} is {wanted}"), || value(&get(address), sample) == Some(wanted));
}

/// Returns statistics as a program has them, whose process is this one.
fn program() -> Counters {
    let counters = Counters::create().expect("memory");
    counters.set(Gauge::Pid, u64::from(std::process::id()));
    counters.write(Text::Program, "a \"program\"");
    counters.add(Counter::Faults, 3);
    counters.record(FaultKind::Fetch, 30_000);
    counters
}

fn show(world: &World, counters: &Counters) -> Showing {
    let mut showing = Showing::new(world.socket(), counters.descriptor().expect("it is ours")).expect("/proc");
    showing.look(Instant::now());
    showing
}

#[test]
fn a_scrape_has_the_metrics_of_the_agent_and_of_the_programs() {
    let mut world = World::start(1, 8);
    let address = world.serve_metrics();
    world.present(Redundancy::None, vec![lease(0, 0, 0)]);
    let tier = world.open("2MiB");
    let other = format!("pool:other,agent={},size=2MiB", world.socket().display());
    assert!(world.try_open(&other).is_err(), "it is bound to nobody");
    let counters = program();
    let showing = show(&world, &counters);
    wait_for(address, "aquifer_agent_programs_shown", 1);

    let page = get(address);
    assert_eq!(complaints_about_metrics(&page), "", "promtool check metrics");
    for (name, kind, _) in METRICS {
        assert_eq!(page.matches(&format!("# TYPE {name} {kind}\n{name}")).count(), 1, "{name} in {page}");
    }
    for (sample, wanted) in [
        ("aquifer_agent_volumes{state=\"bound\"}", 1),
        ("aquifer_agent_members{state=\"in_sync\"}", 1),
        ("aquifer_agent_devices{state=\"attached\"}", 0),
        ("aquifer_agent_requests_refused_total{reason=\"not_bound\"}", 1),
        ("aquifer_agent_state_unsaved", 0),
    ] {
        assert_eq!(value(&page, sample), Some(wanted), "{sample} in {page}");
    }
    // The tier has no upkeep here, so its program is not connected any more.
    assert_eq!(value(&page, "aquifer_agent_users"), Some(1));
    let labels = format!("{{pid=\"{}\",program=\"a \\\"program\\\"\"", std::process::id());
    let faults = page.lines().find(|line| line.starts_with(&format!("aquifer_faults_total{labels}")));
    assert!(faults.is_some_and(|line| line.ends_with("} 3")), "{faults:?}");
    let count = format!("aquifer_fault_latency_seconds_count{labels}");
    assert!(page.lines().any(|line| line.starts_with(&count) && line.contains("kind=\"fetch\"")), "{count}");
    // Each scrape reads the numbers again.
    counters.add(Counter::Faults, 4);
    assert!(get(address).lines().any(|line| line.starts_with("aquifer_faults_total{") && line.ends_with("} 7")));

    drop((tier, showing));
    wait_for(address, "aquifer_agent_programs_shown", 0);
    assert!(!get(address).contains("aquifer_faults_total{"));
}

#[test]
fn a_manager_that_is_gone_is_seen_with_the_time_of_its_loss() {
    let mut world = World::start(1, 8);
    let address = world.serve_metrics();
    world.present(Redundancy::None, vec![lease(0, 0, 0)]);
    let sample = |page: &str, what: &str| {
        let prefix = format!("aquifer_agent_manager_{what}{{manager=\"127.0.0.1:");
        let line = page.lines().find(|line| line.starts_with(&prefix)).expect("there is one manager");
        line.rsplit(' ').next().expect("a value").parse::<u64>().expect("a number")
    };
    let connected = get(address);
    assert_eq!(sample(&connected, "connected"), 1);
    std::thread::sleep(Duration::from_secs(1));
    world.stop_manager();
    wait_until("the loss is seen", || sample(&get(address), "connected") == 0);
    assert!(sample(&get(address), "since_seconds") > sample(&connected, "since_seconds"));
}

#[test]
fn the_manager_learns_the_faults_of_programs_that_run_and_of_those_that_have_ended() {
    let mut world = World::start(1, 8);
    let address = world.serve_metrics();
    let counters = [program(), program()];
    let [running, ended] = counters.each_ref().map(|counters| show(&world, counters));
    wait_for(address, "aquifer_agent_programs_shown", 2);
    wait_until("the manager has figures", || world.faults().hosts == 1);
    assert_eq!(world.faults().total.count(), 0, "what older programs have counted before is of the past");
    counters.iter().for_each(|counters| counters.record(FaultKind::Fetch, 30_000));
    drop(ended);
    wait_until("it knows both faults", || world.faults().total.count() == 2);
    assert_eq!(world.faults().total.mean_us(), Some(30.0));
    drop(running);
}

#[test]
fn a_program_is_shown_again_after_the_agent_was_restarted() {
    let mut world = World::start(1, 8);
    let first = world.serve_metrics();
    let counters = program();
    let mut showing = show(&world, &counters);
    wait_for(first, "aquifer_agent_programs_shown", 1);
    let second = world.serve_metrics_again();
    // What `aquifer run` does once a second.
    wait_until("it is shown again", || {
        showing.look(Instant::now());
        value(&get(second), "aquifer_agent_programs_shown") == Some(1)
    });
}

/// Scrapers that send nothing or read nothing used to be a way to delay others, wherever metrics are served.
#[test]
fn scrapers_that_stand_still_delay_neither_others_nor_programs() {
    let mut world = World::start(1, 8);
    let address = world.serve_metrics();
    world.present(Redundancy::None, vec![lease(0, 0, 0)]);
    let silent: Vec<TcpStream> =
        (0..CROWD).map(|_| TcpStream::connect(address).expect("the kernel takes it")).collect();
    silent.iter().step_by(2).for_each(|mut stream| drop(stream.write_all(b"GET /met")));
    let deaf: Vec<TcpStream> = (0..CROWD / 4).map(|_| TcpStream::connect(address).expect("it takes it")).collect();
    for mut stream in &deaf {
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    let begun = Instant::now();
    assert_eq!(value(&get(address), "aquifer_agent_volumes{state=\"bound\"}"), Some(1));
    assert!(begun.elapsed() < SCRAPE_MAX, "a scraper has waited {:?} for others", begun.elapsed());
    let begun = Instant::now();
    drop(world.open("2MiB"));
    assert!(begun.elapsed() < SCRAPE_MAX, "a program has waited {:?} for scrapers", begun.elapsed());
    // Those that are too many lose their connections at once, and the others in time.
    let mut oldest = &silent[0];
    oldest.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    wait_until("the oldest one is dropped", || !matches!(oldest.read(&mut [0; 512]), Ok(1..)));
    drop((silent, deaf));
}

#[test]
fn the_program_that_serves_scrapers_is_replaced_when_it_ends() {
    let mut world = World::start(1, 8);
    let address = world.serve_metrics();
    let agent = world.agent.as_ref().expect("it runs").id();
    let children = || std::fs::read_to_string(format!("/proc/{agent}/task/{agent}/children")).expect("it runs");
    let child = children().trim().to_owned();
    assert!(Command::new("kill").args(["-KILL", &child]).status().expect("kill(1) is everywhere").success());
    wait_until("the agent has said so", || world.said().contains("the program aquifer-metrics has ended (signal: 9"));
    // The port is never closed, so this waits for the next one.
    assert_eq!(value(&get(address), "aquifer_agent_programs"), Some(0));
}

/// Sends bytes, with a descriptor if there is one.
fn send(stream: &UnixStream, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) {
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL).expect("the agent reads");
}

/// Returns the denial that a connection ends with.
fn denial(mut stream: &UnixStream) -> Denial {
    stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer");
    let mut decoder = Decoder::default();
    decoder.push(&bytes);
    match decoder.take::<Answer>() {
        Ok(Some(Answer::Denied(denial))) => denial,
        other => panic!("no denial: {other:?}"),
    }
}

fn connect(world: &World) -> UnixStream {
    UnixStream::connect(world.socket()).expect("the agent serves")
}

fn statistics(version: u16) -> Vec<u8> {
    encode(&Request::Statistics { version }).expect("it is short")
}

#[test]
fn an_agent_without_metrics_takes_no_statistics() {
    let world = World::start(1, 8);
    let (stream, counters) = (connect(&world), program());
    send(&stream, &statistics(VERSION), counters.descriptor());
    assert_eq!(denial(&stream), Denial::NoMetrics);
}

#[test]
fn what_is_no_statistics_is_denied_with_the_reason() {
    let mut world = World::start(1, 4);
    let address = world.serve_metrics();
    let counters = program();
    let file = std::fs::File::open("/dev/null").expect("it is always there");
    let why = |bytes: &[u8], descriptor: Option<BorrowedFd<'_>>| {
        let stream = connect(&world);
        send(&stream, bytes, descriptor);
        denial(&stream).to_string()
    };
    assert!(why(&statistics(VERSION), None).contains("no descriptor came with it"));
    assert!(why(&statistics(VERSION), Some(file.as_fd())).contains("cannot be mapped"));
    assert!(why(&statistics(VERSION + 1), counters.descriptor()).contains("speaks version"));
    let two = [statistics(VERSION), statistics(VERSION)].concat();
    assert!(why(&two, counters.descriptor()).contains("does nothing else"));
    assert_eq!(value(&get(address), "aquifer_agent_requests_refused_total{reason=\"malformed\"}"), Some(3));

    // Programs that are shown take no place from those that use volumes, and no more places than there are.
    let many: Vec<Counters> = (0..5).map(|_| program()).collect();
    let streams: Vec<UnixStream> = many
        .iter()
        .map(|counters| {
            let stream = connect(&world);
            send(&stream, &statistics(VERSION), counters.descriptor());
            // Before the next one connects: until the agent has read the message, this one takes a place of programs.
            std::thread::sleep(Duration::from_millis(200));
            stream
        })
        .collect();
    let places = if world.uid() == 0 { 4 } else { 3 };
    wait_for(address, "aquifer_agent_programs_shown", places as u64);
    assert_eq!(denial(&streams[places]), Denial::Busy { programs: 4 });
    world.present(Redundancy::None, vec![lease(0, 0, 0)]);
    drop(world.open("2MiB"));
    // All of them say that they are this process, which is named once.
    let page = get(address);
    let pid = format!("aquifer_faults_total{{pid=\"{}\"", std::process::id());
    assert_eq!(page.lines().filter(|line| line.starts_with(&pid)).count(), 1, "{page}");
    assert_eq!(complaints_about_metrics(&page), "", "promtool check metrics");
}

#[test]
fn a_start_without_the_program_that_serves_scrapers_says_what_to_install() {
    let directory = std::env::temp_dir().join(format!("aq-no-metrics-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a temporary directory");
    let agent = directory.join("aquifer-agentd");
    std::fs::copy(env!("CARGO_BIN_EXE_aquifer-agentd"), &agent).expect("a copy");
    let at = directory.display();
    let config = format!(
        "host = 'web-1'\nmetrics = '127.0.0.1:0'\nsocket = '{at}/s'\nstate = '{at}/state'\n[manager]\n\
         addresses = ['127.0.0.1:1']\n"
    );
    std::fs::write(directory.join("agent.toml"), config).expect("a file");
    let run = |agent: &Path| {
        // The copy may be busy: a child that another test has just forked can still have it open for writing.
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match Command::new(agent).arg("--config").arg(directory.join("agent.toml")).output() {
                Ok(output) => return output,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    };
    let output = run(&agent);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("aquifer-metrics is not at") && said.contains("aquifer-tools"), "{said}");
    assert!(!directory.join("s").exists(), "no program was served");
    std::fs::remove_dir_all(directory).expect("removed");
}
