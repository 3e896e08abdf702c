// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The table of flags.

use std::path::PathBuf;

use aquifer_core::units::ByteSize;
use clap::{Args, Subcommand, ValueEnum};

/// How long a check may take, in seconds, unless `--limit` says otherwise. A check sends about a hundred commands, and
/// waits two seconds for each answer.
const CHECK_SECONDS_MAX: u64 = 300;

const PEERS: &str = "\
A PEER is the address of a CXL switch, in one of these forms:
  tcp:HOST[:PORT]     MCTP over TCP, port 2508 unless another one is given
  unix:PATH           the same over a Unix socket
  mailbox:PATH        the mailbox of a PCI function of class 0c0bh, by its file in sysfs; as root
  mctp:[NETWORK,]EID  an endpoint of the kernel's MCTP
  opencis:ADDR[:PORT] the address that OpenCIS's switch connects to, port 8100 unless one is given
  recorded:FILE       a file that --trace has written, replayed in place of its switch
  vfio:FUNCTION       the mailbox of a PCI function whose driver is vfio-pci, with or without IOMMU

Examples:
  aquifer fmapi check tcp:10.0.0.7 --html report.html --trace report.pcap
  aquifer fmapi ports mailbox:/sys/bus/pci/devices/0000:0d:00.1/resource0
  aquifer fmapi ports vfio:0000:0d:00.1
  aquifer fmapi identify unix:/run/switch.sock --port 1 --json
  aquifer fmapi bind tcp:10.0.0.7 --vcs 0 --vppb 3 --port 1 --ld 2
  aquifer fmapi decode report.pcap

Exit status: 0 done, and a check found no unknown departure; 1 it could not be done;
2 bad arguments; 3 a check found departures; 125 the program cannot be started.";

/// Speak the CXL fabric-manager API to a switch: check it, time it, bind and unbind
///
/// Every wait has a limit. A command that changes something is not sent again if its answer is lost, and a bind and an
/// unbind are judged by the state that the switch reports afterwards. Commands that are known to crash a peer are not
/// sent to it.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = PEERS, arg_required_else_help = true)]
pub struct FmapiArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: FmapiCommand,
}

/// One variant for each command.
#[derive(Clone, Debug, Subcommand)]
pub enum FmapiCommand {
    /// Give a logical device of a multi-logical device some of its memory, or take it back
    #[command(after_long_help = "\
A logical device that is bound keeps its size. Its earlier contents are lost.

The answer to the allocation itself may take a minute, unless --wait is given: a switch that shows a
donor pool asks the manager of the pool first.

Examples:
  aquifer fmapi allocate tcp:10.0.0.7 --port 1 --ld 2 --size 4GiB
  aquifer fmapi allocate tcp:10.0.0.7 --port 1 --ld 2 --size 0B")]
    Allocate(Allocate),
    /// Time commands: their own cost, a peer's answers, and the binding of all its devices
    #[command(after_long_help = "\
The commands' own cost is that of the codec, the client and MCTP packets: it is measured with a peer
in this process that answers at once. PEER gets commands that change nothing: Identify, and queries
of the switch, a port and a virtual switch. Each is sent for at most 10 s. Times include retries.

With --bind, a bench that is interrupted leaves devices bound; 'aquifer fmapi vcs' lists them.

Examples:
  aquifer fmapi bench tcp:10.0.0.7
  aquifer fmapi bench mailbox:/sys/bus/pci/devices/0000:0d:00.1/resource0 --count 100 --json

  # 22 devices for three hosts, from nothing to all bound: the software switch of a box
  aquifer-cxl-switchd --example box &
  aquifer fmapi bench tcp:127.0.0.1 --bind")]
    Bench(Bench),
    /// Find out what a peer answers, and where it departs from the specification's tables
    #[command(after_long_help = "\
Examples:
  aquifer fmapi check tcp:10.0.0.7
  aquifer fmapi check tcp:10.0.0.7 --change --html report.html --trace report.pcap
  aquifer fmapi check tcp:10.0.0.7 --limit 30
  aquifer fmapi check unix:/run/switch.sock --json")]
    Check(Check),
    /// Identify a component: the switch, the device at a port, or one of its logical devices
    #[command(after_long_help = "\
Examples:
  aquifer fmapi identify tcp:10.0.0.7
  aquifer fmapi identify tcp:10.0.0.7 --port 1 --ld 2 --json")]
    Identify(At),
    /// Show the state of the physical ports
    #[command(after_long_help = "\
Examples:
  aquifer fmapi ports tcp:10.0.0.7
  aquifer fmapi ports mailbox:/sys/bus/pci/devices/0000:0d:00.1/resource0 --verbose")]
    Ports(Peer),
    /// Show the virtual switches and what their vPPBs are bound to
    #[command(after_long_help = "\
Examples:
  aquifer fmapi vcs tcp:10.0.0.7 --json")]
    Vcs(Peer),
    /// Show how the memory of a multi-logical device is divided
    #[command(after_long_help = "\
Examples:
  aquifer fmapi lds tcp:10.0.0.7 --port 1")]
    Lds(At),
    /// Show the regions and extents of a device with dynamic capacity
    #[command(after_long_help = "\
Examples:
  aquifer fmapi capacity tcp:10.0.0.7 --port 2 --host 0")]
    Capacity(At),
    /// Show the event records
    #[command(after_long_help = "\
Examples:
  aquifer fmapi events tcp:10.0.0.7
  aquifer fmapi events tcp:10.0.0.7 --port 1 --clear")]
    Events(Log),
    /// Bind a vPPB to a port or to a logical device behind it
    #[command(after_long_help = "\
Examples:
  aquifer fmapi bind tcp:10.0.0.7 --vcs 0 --vppb 3 --port 0
  aquifer fmapi bind tcp:10.0.0.7 --vcs 0 --vppb 4 --port 1 --ld 2")]
    Bind(Bind),
    /// Unbind a vPPB
    #[command(after_long_help = "\
Examples:
  aquifer fmapi unbind tcp:10.0.0.7 --vcs 0 --vppb 3 --removal managed")]
    Unbind(Unbind),
    /// Print a recorded trace as text
    #[command(after_long_help = "\
Examples:
  aquifer fmapi decode report.pcap")]
    Decode {
        /// A file that --trace has written
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The dialect in which it was recorded
        #[arg(long, value_name = "NAME", default_value = "standard")]
        dialect: String,
    },
}

/// How the results of a command are printed.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Format {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The peer of a command, and how to speak to it.
#[derive(Clone, Debug, Args)]
pub struct Peer {
    /// The switch: tcp:HOST[:PORT], unix:PATH, or another form that 'aquifer fmapi --help' lists
    #[arg(value_name = "PEER")]
    pub peer: String,
    /// Its dialect: standard, QEMU, OpenCIS or Jackrabbit [default: detected from its first answer]
    #[arg(long, value_name = "NAME")]
    pub dialect: Option<String>,
    /// How long to wait for an answer, in milliseconds [default: 2000]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub wait: Option<u64>,
    /// The minimum time between two commands, in milliseconds, for devices that need a pause
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pub gap: u64,
    /// Record every message in a pcap file (link type MCTP)
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Print every message, decoded, to standard error
    #[arg(long, short)]
    pub verbose: bool,
    /// The output format.
    #[command(flatten)]
    pub format: Format,
}

/// The component that a command is for: the peer, or a component behind it.
#[derive(Clone, Debug, Args)]
pub struct At {
    /// The peer.
    #[command(flatten)]
    pub peer: Peer,
    /// Address the device at this port, instead of the switch
    #[arg(long, value_name = "N")]
    pub port: Option<u8>,
    /// Address this logical device of the device at the port
    #[arg(long, value_name = "N", requires = "port")]
    pub ld: Option<u8>,
    /// The host whose dynamic capacity is shown
    #[arg(long, value_name = "N", default_value_t = 0, hide_short_help = true)]
    pub host: u16,
}

/// The arguments of `aquifer fmapi allocate`.
#[derive(Clone, Debug, Args)]
pub struct Allocate {
    /// The peer.
    #[command(flatten)]
    pub peer: Peer,
    /// The port of the multi-logical device
    #[arg(long, value_name = "N")]
    pub port: u8,
    /// The logical device
    #[arg(long, value_name = "N")]
    pub ld: u8,
    /// Its new size, a multiple of the device's granularity, which is 256MiB or more; 0B takes its memory back
    #[arg(long, value_name = "SIZE")]
    pub size: ByteSize,
}

/// The arguments of `aquifer fmapi bench`.
#[derive(Clone, Debug, Args)]
pub struct Bench {
    /// The peer.
    #[command(flatten)]
    pub peer: Peer,
    /// How many times each command is sent
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub count: u32,
    /// Bind every device that is bound nowhere, and unbind it afterwards. Its memory may be wiped
    #[arg(long)]
    pub bind: bool,
}

/// The arguments of `aquifer fmapi check`.
#[derive(Clone, Debug, Args)]
pub struct Check {
    /// The peer.
    #[command(flatten)]
    pub peer: Peer,
    /// Bind and unbind, too: a vPPB that is unbound, and a device with memory that is bound nowhere. Its memory may be
    /// wiped
    #[arg(long)]
    pub change: bool,
    /// Skip the cases that are left after this many seconds. What was bound is unbound even then
    #[arg(long, value_name = "SECONDS", default_value_t = CHECK_SECONDS_MAX,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub limit: u64,
    /// Write the report as a page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// The arguments of `aquifer fmapi events`.
#[derive(Clone, Debug, Args)]
pub struct Log {
    /// The component.
    #[command(flatten)]
    pub at: At,
    /// Clear the records that are shown
    #[arg(long)]
    pub clear: bool,
}

/// The arguments of `aquifer fmapi bind`.
#[derive(Clone, Debug, Args)]
pub struct Bind {
    /// The peer.
    #[command(flatten)]
    pub peer: Peer,
    /// The virtual switch
    #[arg(long, value_name = "N")]
    pub vcs: u8,
    /// Its vPPB
    #[arg(long, value_name = "N")]
    pub vppb: u8,
    /// The port
    #[arg(long, value_name = "N")]
    pub port: u8,
    /// The logical device behind the port, if its device is an MLD
    #[arg(long, value_name = "N")]
    pub ld: Option<u16>,
}

/// How a device leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Removal {
    /// The host is asked first
    Managed,
    /// Surprise hot removal
    Surprise,
    /// Wait until the link is down
    Wait,
}

/// The arguments of `aquifer fmapi unbind`.
#[derive(Clone, Debug, Args)]
pub struct Unbind {
    /// The peer.
    #[command(flatten)]
    pub peer: Peer,
    /// The virtual switch
    #[arg(long, value_name = "N")]
    pub vcs: u8,
    /// Its vPPB
    #[arg(long, value_name = "N")]
    pub vppb: u8,
    /// How the device leaves
    #[arg(long, value_enum, default_value = "managed")]
    pub removal: Removal,
}
