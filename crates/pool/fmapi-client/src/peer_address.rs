// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Parses a peer's address and opens its transport: `tcp:HOST[:PORT]`, `unix:PATH`, `mailbox:PATH`,
//! `mctp:[NETWORK,]EID`, `opencis:ADDRESS[:PORT]`, `recorded:FILE`, `vfio:FUNCTION`.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use aquifer_sys::mctp_socket::MctpEndpoint;

use crate::af_mctp::AfMctp;
use crate::clock::SystemClock;
use crate::mailbox::{Mailbox, Registers};
use crate::opencis::{self, OpenCis};
use crate::recorded::Recorded;
use crate::resource_file::{ResourceFile, VfioFunction};
use crate::tcp::{self, Tcp};
use crate::transport::Transport;
use crate::unix::Unix;

/// The errno where the kernel has no address family.
const EAFNOSUPPORT: i32 = 97;
/// Endpoint IDs: 0 is null, 1 to 7 are reserved, 255 is broadcast.
const EIDS: std::ops::RangeInclusive<u8> = 8..=254;

/// Where a peer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// The file of a PCI function's window: `mailbox:/sys/bus/pci/devices/0000:0d:00.1/resource0`.
    Mailbox(PathBuf),
    /// An endpoint of the kernel's MCTP: `mctp:8`, `mctp:1,8`.
    Mctp(MctpEndpoint),
    /// The address to which OpenCIS's switch connects: `opencis:127.0.0.1`, `opencis:0.0.0.0:8100`.
    OpenCis(String),
    /// A recorded trace: `recorded:report.pcap`.
    Recorded(PathBuf),
    /// A host and port: `tcp:10.0.0.7`, `tcp:switch:2508`.
    Tcp(String),
    /// A socket: `unix:/run/switch.sock`.
    Unix(PathBuf),
    /// A PCI function whose driver is vfio-pci: `vfio:0000:0d:00.1`.
    Vfio(String),
}

/// Why a peer cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFailure {
    /// What is wrong.
    pub cause: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for OpenFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.cause, self.remedy)
    }
}

impl std::error::Error for OpenFailure {}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mailbox(path) => write!(f, "mailbox:{}", path.display()),
            Self::Mctp(endpoint) => write!(f, "mctp:{},{}", endpoint.network, endpoint.id),
            Self::OpenCis(address) => write!(f, "opencis:{address}"),
            Self::Recorded(path) => write!(f, "recorded:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Vfio(function) => write!(f, "vfio:{function}"),
        }
    }
}

impl FromStr for PeerAddress {
    type Err = OpenFailure;

    fn from_str(text: &str) -> Result<Self, OpenFailure> {
        let refuse = |cause: String| {
            let remedy = "write tcp:HOST[:PORT], unix:PATH, mailbox:PATH, mctp:[NETWORK,]EID, opencis:ADDRESS[:PORT], \
                          recorded:FILE or vfio:FUNCTION"
                .into();
            Err(OpenFailure { cause, remedy })
        };
        let Some((kind, place)) = text.split_once(':').filter(|(_, place)| !place.is_empty()) else {
            return refuse(format!("'{text}' is not a peer"));
        };
        match kind {
            "mailbox" => Ok(Self::Mailbox(place.into())),
            "mctp" => {
                let (network, id) = place.split_once(',').unwrap_or(("0", place));
                match (network.parse(), id.parse()) {
                    (Ok(network), Ok(id)) if EIDS.contains(&id) => Ok(Self::Mctp(MctpEndpoint { network, id })),
                    _ => refuse(format!("'{place}' is not an MCTP endpoint: their IDs are 8 to 254")),
                }
            }
            "opencis" => Ok(Self::OpenCis(with_port(place, opencis::PORT))),
            "recorded" => Ok(Self::Recorded(place.into())),
            "tcp" => Ok(Self::Tcp(with_port(place, tcp::PORT))),
            "unix" => Ok(Self::Unix(place.into())),
            "vfio" => Ok(Self::Vfio(place.into())),
            _ => refuse(format!("'{kind}' is not a kind of peer")),
        }
    }
}

/// Adds the port where there is none. An IPv6 address has brackets if a port follows it.
fn with_port(place: &str, port: u16) -> String {
    let after_brackets = place.rsplit_once(']').map_or(place, |(_, rest)| rest);
    let has_port = after_brackets.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':'));
    match (has_port, place.contains(':') && !place.contains('[')) {
        (true, _) => place.into(),
        (false, true) => format!("[{place}]:{port}"),
        (false, false) => format!("{place}:{port}"),
    }
}

impl PeerAddress {
    /// Opens the transport to it.
    pub fn open(&self, wait: Duration) -> Result<Box<dyn Transport>, OpenFailure> {
        let cannot = |error: io::Error, remedy: &str| OpenFailure {
            cause: format!("cannot open {self}: {error}"),
            remedy: remedy.into(),
        };
        match self {
            Self::Mailbox(path) => {
                let remedy = "name the resource0 of a function of class 0c0bh, as root, without a driver that uses it";
                let registers = ResourceFile::open(path).map_err(|error| match error.kind() {
                    io::ErrorKind::WouldBlock => OpenFailure {
                        cause: format!("cannot open {self}: another program has it"),
                        remedy: "one program at a time has a mailbox: end the other one, or ask the switch through it"
                            .into(),
                    },
                    _ => cannot(error, remedy),
                })?;
                self.mailbox(Box::new(registers))
            }
            Self::Mctp(endpoint) => {
                let transport = AfMctp::open(*endpoint).map_err(|error| match error.raw_os_error() {
                    Some(EAFNOSUPPORT) => OpenFailure {
                        cause: format!("cannot open {self}: this kernel has no MCTP"),
                        remedy: "load the module mctp, or use a kernel of 5.15 or newer with CONFIG_MCTP=y".into(),
                    },
                    _ => cannot(error, "see 'mctp link' and 'mctp route', and run as root or with CAP_NET_RAW"),
                })?;
                Ok(Box::new(transport))
            }
            Self::OpenCis(address) => {
                let remedy = "give an address of this machine and a free port, and start the switch with it";
                let accepted = OpenCis::accept(address, wait);
                Ok(Box::new(accepted.map_err(|error| cannot(error, remedy))?))
            }
            Self::Recorded(path) => {
                let remedy = "name a file of --trace";
                let file = File::open(path).map_err(|error| cannot(error, remedy))?;
                let recorded = Recorded::read(self.to_string(), BufReader::new(file));
                Ok(Box::new(recorded.map_err(|failure| self.explained(&failure))?))
            }
            Self::Tcp(address) => {
                let connected = Tcp::connect(address, wait);
                Ok(Box::new(connected.map_err(|error| cannot(error, "check that the switch listens there"))?))
            }
            Self::Unix(path) => {
                let connected = Unix::connect(path, wait);
                Ok(Box::new(connected.map_err(|error| cannot(error, "check that the switch listens there"))?))
            }
            Self::Vfio(function) => {
                let opened = VfioFunction::open(function);
                let registers = opened.map_err(|failure| self.explained(&failure))?;
                self.mailbox(Box::new(registers))
            }
        }
    }

    /// Returns a failure whose own message has a remedy.
    fn explained(&self, failure: &impl fmt::Display) -> OpenFailure {
        let text = failure.to_string();
        let (why, remedy) = text.split_once("; ").unwrap_or((&text, ""));
        OpenFailure { cause: format!("cannot open {self}: {why}"), remedy: remedy.into() }
    }

    fn mailbox(&self, registers: Box<dyn Registers>) -> Result<Box<dyn Transport>, OpenFailure> {
        let mailbox = Mailbox::new(self.to_string(), registers, SystemClock::shared());
        let mailbox = mailbox.map_err(|failure| OpenFailure {
            cause: format!("cannot use {self}: {failure}"),
            remedy: failure.remedy().into(),
        })?;
        Ok(Box::new(mailbox))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_read_and_written_alike() {
        for (text, whole) in [
            ("tcp:10.0.0.7", "tcp:10.0.0.7:2508"),
            ("tcp:switch:99", "tcp:switch:99"),
            ("tcp:::1", "tcp:[::1]:2508"),
            ("tcp:[::1]", "tcp:[::1]:2508"),
            ("tcp:[::1]:99", "tcp:[::1]:99"),
            ("unix:/run/a:b", "unix:/run/a:b"),
            ("mailbox:/sys/r", "mailbox:/sys/r"),
            ("mctp:8", "mctp:0,8"),
            ("mctp:3,254", "mctp:3,254"),
            ("opencis:127.0.0.1", "opencis:127.0.0.1:8100"),
            ("recorded:a.pcap", "recorded:a.pcap"),
            ("vfio:0000:0d:00.1", "vfio:0000:0d:00.1"),
        ] {
            assert_eq!(text.parse::<PeerAddress>().unwrap().to_string(), whole);
        }
        for (text, cause) in [
            ("switch", "'switch' is not a peer"),
            ("tcp:", "'tcp:' is not a peer"),
            ("usb:1", "'usb' is not a kind of peer"),
            ("mctp:7", "'7' is not an MCTP endpoint: their IDs are 8 to 254"),
            ("mctp:x,8", "'x,8' is not an MCTP endpoint: their IDs are 8 to 254"),
        ] {
            let failure = text.parse::<PeerAddress>().unwrap_err();
            assert_eq!(failure.cause, cause);
            assert!(failure.remedy.starts_with("write tcp:"), "{failure}");
        }
    }

    #[test]
    fn what_cannot_be_opened_says_why_and_what_to_do() {
        for (peer, cause, remedy) in [
            ("unix:/nowhere/at/all", "No such file", "check that the switch listens"),
            ("mailbox:/nowhere/at/all", "No such file", "resource0"),
            ("recorded:/nowhere/at/all", "No such file", "--trace"),
            ("recorded:/proc/self/exe", "not a trace of the FM API", "--trace"),
            ("recorded:/dev/null", "cannot be read", "record it again"),
            ("opencis:192.0.2.1:1", "opencis:192.0.2.1:1", "an address of this machine"),
            ("vfio:ffff:ff:1f.7", "there is no PCI function", "lspci"),
            ("vfio:../../../../etc", "there is no PCI function", "lspci"),
            ("tcp:127.0.0.1:1", "refused", "check that the switch listens"),
        ] {
            let failure = peer.parse::<PeerAddress>().unwrap().open(Duration::from_secs(5)).err().unwrap();
            assert!(failure.cause.contains(cause) && failure.remedy.contains(remedy), "{failure}");
            assert!(!failure.cause.contains(';'), "one remedy: {failure}");
        }
    }

    /// A regular file represents the registers.
    #[test]
    fn a_mailbox_of_another_program_is_refused_with_a_remedy() {
        let path = std::env::temp_dir().join(format!("aq-{}-mailbox-twice", std::process::id()));
        std::fs::write(&path, [0; 4096]).unwrap();
        let other = ResourceFile::open(&path).unwrap();
        let failure = PeerAddress::Mailbox(path.clone()).open(Duration::from_secs(5)).err().unwrap();
        drop(other);
        std::fs::remove_file(&path).unwrap();
        assert!(failure.cause.contains("mailbox-twice: another program has it"), "{failure}");
        assert!(failure.remedy.contains("end the other one") && !failure.cause.contains(';'), "{failure}");
    }

    /// A fabric manager that asked a stopped switch again and again filled the queue of its socket, and then waited for
    /// ever, with all other switches.
    #[test]
    fn a_socket_that_accepts_nobody_is_not_waited_for() {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
        let path = std::env::temp_dir().join(format!("aq-{}-accepts-nobody", std::process::id()));
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let listener = listener.unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let (peer, (done, outcome)) = (PeerAddress::Unix(path.clone()), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            // The queue has room for some.
            let failures = (0..100).map(|_| peer.open(Duration::from_millis(100)).err().map(|it| it.to_string()));
            let _ = done.send(failures.flatten().next());
        });
        let failure = outcome.recv_timeout(Duration::from_secs(60)).expect("the attempt ends").expect("it fails");
        assert!(failure.contains("it accepts no connection; check that the switch"), "{failure}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_kernel_without_mctp_is_named() {
        match "mctp:8".parse::<PeerAddress>().unwrap().open(Duration::from_secs(5)) {
            Ok(transport) => assert_eq!(transport.name(), "mctp:0,8"),
            Err(failure) => {
                assert_eq!(failure.cause, "cannot open mctp:0,8: this kernel has no MCTP");
                assert!(failure.remedy.contains("CONFIG_MCTP"), "{failure}");
            }
        }
    }
}
