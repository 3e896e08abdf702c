// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Carries out the command line: opens the peer and its traces, asks, prints.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use aquifer_core::units::ByteSize;
use aquifer_fmapi::{BindVppb, Dialect, LdAllocation, ReturnCode, SetLdAllocations, UnbindOption, UnbindVppb};
use aquifer_fmapi_args::{Allocate, At, Bench, Bind, Check, FmapiArgs, FmapiCommand, Log, Peer, Removal, Unbind};
use aquifer_fmapi_client::{
    Client, Describer, Direction, Hop, Limits, PcapReader, PcapTrace, PeerAddress, SystemClock, TextTrace,
};
use serde_json::json;

use crate::bench;
use crate::check::check;
use crate::report;
use crate::show::{self, Logs, Shown};

/// The outcome of a command.
#[derive(Debug)]
pub struct Outcome {
    /// The text for standard output.
    pub output: String,
    /// 0, or 3 if a check found departures.
    pub code: u8,
}

/// A failed command, as one line: cause, then remedy.
#[derive(Debug)]
pub struct Failure {
    /// The line to print: cause, then remedy.
    pub line: String,
    /// 1, or 2 if the arguments are wrong.
    pub code: u8,
    /// The text for standard output all the same: what was done before.
    pub output: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

/// How long an allocation may take, unless `--wait` says otherwise: `aquifer-pool-switchd` ends one after 55 s, because
/// it is carried out at the pool's manager. A client that gave up before would not know whether the memory is taken.
const ALLOCATION_WAIT_MAX: Duration = Duration::from_secs(60);
/// The code of a check that found departures.
const DEPARTS: u8 = 3;

fn usage(line: impl fmt::Display) -> Failure {
    Failure { line: line.to_string(), code: 2, output: String::new() }
}

fn failed(line: impl fmt::Display) -> Failure {
    Failure { line: line.to_string(), code: 1, output: String::new() }
}

/// Carries out a command line.
pub fn run(args: &FmapiArgs) -> Result<Outcome, Failure> {
    match &args.command {
        FmapiCommand::Allocate(args) => allocate(args),
        FmapiCommand::Bench(bench) => run_bench(bench),
        FmapiCommand::Check(check) => run_check(check),
        FmapiCommand::Identify(at) => shown(&at.peer, |client| show::identify(client, &path(at))),
        FmapiCommand::Ports(peer) => shown(peer, show::ports),
        FmapiCommand::Vcs(peer) => shown(peer, show::virtual_switches),
        FmapiCommand::Lds(at) => of_device(at, |client| show::logical_devices(client, &path(at))),
        FmapiCommand::Capacity(at) => of_device(at, |client| show::capacity(client, &path(at), at.host)),
        FmapiCommand::Events(log) => events(log),
        FmapiCommand::Bind(args) => bind(args),
        FmapiCommand::Unbind(args) => unbind(args),
        FmapiCommand::Decode { file, dialect } => decode(file, dialect).map(|output| Outcome { output, code: 0 }),
    }
}

fn path(at: &At) -> Vec<Hop> {
    at.port.map(Hop::Port).into_iter().chain(at.ld.map(Hop::Ld)).collect()
}

fn named(name: &str) -> Result<&'static Dialect, Failure> {
    let names = Dialect::ALL.map(|dialect| dialect.name).join(", ");
    Dialect::named(name).ok_or_else(|| usage(format!("'{name}' is not a dialect; name one of {names}")))
}

/// Connects a client to the peer, with its traces.
fn connect(args: &Peer) -> Result<(Client, Option<&'static Dialect>), Failure> {
    let address: PeerAddress = args.peer.parse().map_err(usage)?;
    let dialect = args.dialect.as_deref().map(named).transpose()?;
    let usual = Limits::default();
    let limits = Limits {
        answer: args.wait.map_or(usual.answer, Duration::from_millis),
        gap: Duration::from_millis(args.gap),
        ..usual
    };
    let transport = address.open(limits.connect).map_err(failed)?;
    let mut client = Client::new(transport, SystemClock::shared(), limits);
    if let Some(file) = &args.trace {
        let trace = File::create(file).and_then(|file| PcapTrace::new(BufWriter::new(file)));
        client.add_trace(Box::new(trace.map_err(|error| cannot_write(file, &error))?));
    }
    if args.verbose {
        client.add_trace(Box::new(TextTrace::new(io::stderr())));
    }
    Ok((client, dialect))
}

fn cannot_write(file: &Path, error: &io::Error) -> Failure {
    failed(format!("{}: {error}; name a file that can be written", file.display()))
}

/// Connects, acts, and ends the traces. An incomplete trace is a separate failure.
fn with_client<T, E: fmt::Display>(
    args: &Peer,
    act: impl FnOnce(&mut Client, Option<&'static Dialect>) -> Result<T, E>,
) -> Result<T, Failure> {
    let (mut client, dialect) = connect(args)?;
    let acted = act(&mut client, dialect);
    let traced = client.finish_traces();
    let value = acted.map_err(failed)?;
    match (traced, &args.trace) {
        (Err(error), Some(file)) => Err(cannot_write(file, &error)),
        _ => Ok(value),
    }
}

/// Connects in the peer's dialect, or in the one that was named.
fn recognised<T, E: fmt::Display + From<aquifer_fmapi_client::Failure>>(
    args: &Peer,
    act: impl FnOnce(&mut Client) -> Result<T, E>,
) -> Result<T, Failure> {
    with_client(args, |client, dialect| {
        client.recognise()?;
        if let Some(dialect) = dialect {
            client.speak(dialect);
        }
        act(client)
    })
}

fn shown(
    args: &Peer,
    act: impl FnOnce(&mut Client) -> Result<Shown, aquifer_fmapi_client::Failure>,
) -> Result<Outcome, Failure> {
    Ok(printed(args, recognised(args, act)?))
}

/// Shows records. After a failure, too, those that were read before: they may have been cleared.
fn events(Log { at, clear }: &Log) -> Result<Outcome, Failure> {
    let mut logs = Logs::default();
    let read = recognised(&at.peer, |client| logs.read(client, &path(at), *clear));
    match read {
        Ok(()) => Ok(printed(&at.peer, logs.shown())),
        Err(failure) if logs.are_empty() => Err(failure),
        Err(failure) => Err(Failure { output: printed(&at.peer, logs.shown()).output, ..failure }),
    }
}

/// Why a command for a device has failed, with its remedy.
struct OfDevice(String);

impl fmt::Display for OfDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<aquifer_fmapi_client::Failure> for OfDevice {
    fn from(failure: aquifer_fmapi_client::Failure) -> Self {
        Self(failure.to_string())
    }
}

/// Works like [`shown`], for a command that a switch itself does not support: an endpoint can be a device without a
/// port.
fn of_device(
    at: &At,
    act: impl FnOnce(&mut Client) -> Result<Shown, aquifer_fmapi_client::Failure>,
) -> Result<Outcome, Failure> {
    let shown = recognised(&at.peer, |client| {
        act(client).map_err(|failure| match failure.return_code() {
            Some(ReturnCode::UNSUPPORTED) if at.port.is_none() => OfDevice(format!(
                "{} at {}: {}; name the port of a device with --port, as 'aquifer fmapi ports' lists them",
                failure.opcode, failure.peer, failure.cause
            )),
            _ => failure.into(),
        })
    })?;
    Ok(printed(&at.peer, shown))
}

fn printed(args: &Peer, shown: Shown) -> Outcome {
    Outcome { output: if args.format.json { format!("{}\n", shown.json) } else { shown.text }, code: 0 }
}

fn run_bench(args: &Bench) -> Result<Outcome, Failure> {
    let begun = Instant::now();
    let bench = recognised(&args.peer, |client| bench::bench(client, begun, args.count, args.bind))?;
    let output = if args.peer.format.json { format!("{}\n", bench.json()) } else { bench.text() };
    Ok(Outcome { output, code: 0 })
}

fn run_check(args: &Check) -> Result<Outcome, Failure> {
    // Before the check, which may take minutes, and would be lost.
    let page =
        args.html.as_ref().map(|file| Ok((file, File::create(file).map_err(|error| cannot_write(file, &error))?)));
    let page = page.transpose()?;
    let limit = Duration::from_secs(args.limit);
    let report = with_client(&args.peer, |client, dialect| check(client, args.change, dialect, limit))?;
    if let Some((file, mut open)) = page {
        open.write_all(crate::page(&report).as_bytes()).map_err(|error| cannot_write(file, &error))?;
    }
    let output = match args.peer.format.json {
        true => format!("{}\n", report::json(&report)),
        false => report::text(&report),
    };
    let [_, _, departs, _] = report.counts();
    match departs {
        0 if !report.is_complete => {
            let line = format!("the check did not end within {} s; give it more with --limit", args.limit);
            Err(Failure { output, ..failed(line) })
        }
        0 => Ok(Outcome { output, code: 0 }),
        _ => Ok(Outcome { output, code: DEPARTS }),
    }
}

/// Why a logical device cannot have a size, with the remedy; or why a command has failed.
struct NotAllocated(String);

impl fmt::Display for NotAllocated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<aquifer_fmapi_client::Failure> for NotAllocated {
    fn from(failure: aquifer_fmapi_client::Failure) -> Self {
        Self(failure.to_string())
    }
}

fn allocate(args: &Allocate) -> Result<Outcome, Failure> {
    let (path, size) = ([Hop::Port(args.port)], args.size);
    recognised(&args.peer, |client| {
        let found = client.ld_allocations(&path)?;
        let count = found.allocations.len();
        if usize::from(args.ld) >= count {
            return Err(NotAllocated(format!("the device has {count} logical devices; number them from 0")));
        }
        let unknown = || NotAllocated("the device's granularity is a reserved value; update its firmware".into());
        let unit = found.granularity.bytes().ok_or_else(unknown)?;
        if !size.0.is_multiple_of(unit) {
            let unit = ByteSize(unit);
            return Err(NotAllocated(format!("{size} is no multiple of {unit}, the device's granularity; give one")));
        }
        let allocations = vec![LdAllocation { range_1: size.0 / unit, range_2: 0 }];
        if args.peer.wait.is_none() {
            client.wait_for_answers(ALLOCATION_WAIT_MAX);
        }
        Ok(client.set_ld_allocations(&path, &SetLdAllocations { first_ld_id: args.ld, allocations })?)
    })?;
    let Allocate { port, ld, .. } = *args;
    let text = format!("logical device {ld} at port {port} has {size}\n");
    let json = json!({ "allocated": { "port_id": port, "ld_id": ld, "bytes": size.0 } });
    Ok(Outcome { output: if args.peer.format.json { format!("{json}\n") } else { text }, code: 0 })
}

fn bind(args: &Bind) -> Result<Outcome, Failure> {
    let Bind { vcs, vppb, port, .. } = *args;
    let bind = BindVppb { vcs_id: vcs, vppb_id: vppb, port_id: port, ld_id: args.ld.unwrap_or(BindVppb::NO_LD) };
    recognised(&args.peer, |client| client.bind(&bind))?;
    let ld = args.ld.map_or(String::new(), |ld| format!(", logical device {ld}"));
    let text = format!("vPPB {vppb} of virtual switch {vcs} is bound to port {port}{ld}\n");
    let json = json!({ "bound": { "vcs_id": vcs, "vppb_id": vppb, "port_id": port, "ld_id": args.ld } });
    Ok(Outcome { output: if args.peer.format.json { format!("{json}\n") } else { text }, code: 0 })
}

fn unbind(args: &Unbind) -> Result<Outcome, Failure> {
    let option = match args.removal {
        Removal::Managed => UnbindOption::ManagedRemoval,
        Removal::Surprise => UnbindOption::SurpriseRemoval,
        Removal::Wait => UnbindOption::WaitForLinkDown,
    };
    let unbind = UnbindVppb { vcs_id: args.vcs, vppb_id: args.vppb, option };
    recognised(&args.peer, |client| client.unbind(&unbind))?;
    let text = format!("vPPB {} of virtual switch {} is unbound\n", args.vppb, args.vcs);
    let json = json!({ "unbound": { "vcs_id": args.vcs, "vppb_id": args.vppb } });
    Ok(Outcome { output: if args.peer.format.json { format!("{json}\n") } else { text }, code: 0 })
}

/// Returns a trace as text.
fn decode(file: &Path, dialect: &str) -> Result<String, Failure> {
    let dialect = named(dialect)?;
    let cannot = |error: &dyn fmt::Display| failed(format!("{}: {error}", file.display()));
    let opened = File::open(file).map_err(|error| cannot(&format!("{error}; name a file of --trace")))?;
    let mut reader = PcapReader::new(BufReader::new(opened)).map_err(|failure| cannot(&failure))?;
    let (mut describer, mut text) = (Describer::default(), String::new());
    while let Some(message) = reader.read().map_err(|failure| cannot(&failure))? {
        let direction = if message.is_sent { Direction::Sent } else { Direction::Received };
        text += &describer.describe(message.unix, direction, &message.bytes, dialect);
    }
    Ok(text)
}
