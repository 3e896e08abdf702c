// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The suite that every transport passes, each with the software switch at its other end: short and long messages,
//! tunnels, background operations, late, lost, duplicated and damaged answers, and a peer that ends.
//!
//! AF_MCTP needs an endpoint of a real bus: `AQUIFER_MCTP_PEER=mctp:1,8 cargo test -p aquifer-fmapi-client --test
//! transports` runs the part of the suite that needs no injected failures on one.

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use aquifer_cxl_switch::{AnswerFailure, Injection};
use aquifer_fmapi::*;
use aquifer_fmapi_client::*;
use aquifer_test_support::skip;

mod peers;

use peers::{Peer, RegisterFile};

/// Requests that a connection answers, unless a test says otherwise: all of them.
const ALL: usize = usize::MAX;
/// Short, so that lost answers do not take long; far longer than an answer takes.
const ANSWER: Duration = Duration::from_millis(400);
const LATE_NS: u64 = 600_000_000;

/// One transport, and what it can do.
struct Kind {
    name: &'static str,
    open: fn(&Peer, usize) -> Box<dyn Transport>,
    /// False for a mailbox: it has no messages, so none is lost, duplicated or mismatched.
    has_messages: bool,
    dialects: &'static [&'static str],
    /// A long message's payload.
    long_bytes: u16,
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "tcp",
        open: tcp,
        has_messages: true,
        dialects: &["standard", "OpenCIS", "Jackrabbit"],
        long_bytes: 4096,
    },
    Kind {
        name: "unix",
        open: unix,
        has_messages: true,
        dialects: &["standard", "OpenCIS", "Jackrabbit"],
        long_bytes: 4096,
    },
    Kind { name: "mailbox", open: mailbox, has_messages: false, dialects: &["standard"], long_bytes: 4096 },
    // The length of its frames has 12 bits.
    Kind { name: "opencis", open: opencis, has_messages: true, dialects: &["standard", "OpenCIS"], long_bytes: 2048 },
];

fn opencis(peer: &Peer, requests_max: usize) -> Box<dyn Transport> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    peer.serve_frames(theirs, requests_max);
    Box::new(OpenCis::new("opencis:pair".into(), ours))
}

fn tcp(peer: &Peer, requests_max: usize) -> Box<dyn Transport> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let transport = Tcp::connect(&address, Duration::from_secs(10)).unwrap();
    let (stream, _): (TcpStream, _) = listener.accept().unwrap();
    peer.serve(stream, requests_max);
    assert_eq!(transport.name(), format!("tcp:{address}"));
    Box::new(transport)
}

fn unix(peer: &Peer, requests_max: usize) -> Box<dyn Transport> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    peer.serve(theirs, requests_max);
    Box::new(Unix::new("unix:pair".into(), ours))
}

fn mailbox(peer: &Peer, _: usize) -> Box<dyn Transport> {
    let registers = Box::new(RegisterFile::new(peer));
    Box::new(Mailbox::new("mailbox:model".into(), registers, SystemClock::shared()).unwrap())
}

fn client(transport: Box<dyn Transport>) -> Client {
    Client::new(transport, SystemClock::shared(), Limits { answer: ANSWER, ..Limits::default() })
}

/// Checks what every peer with a device at port 1 answers.
fn converse(client: &mut Client, name: &str) {
    let switch = client.identify_switch().unwrap();
    let ports: Vec<u8> = (0..switch.physical_ports).collect();
    assert_eq!(client.port_states(&ports).unwrap().len(), ports.len(), "{name}");
    assert!(client.background_status().unwrap().percent <= 100, "{name}");
    let effects = client.command_effects(&[]).unwrap();
    assert!(effects.iter().any(|effect| effect.opcode == Opcode::TUNNEL), "{name}");
    client.identify(&[Hop::Port(1)]).unwrap();
}

#[test]
fn every_transport_carries_every_command() {
    for kind in &KINDS {
        for dialect in kind.dialects {
            let peer = Peer::new(Dialect::named(dialect).unwrap());
            let mut client = client((kind.open)(&peer, ALL));
            assert_eq!(client.recognise().unwrap().name, *dialect, "{}", kind.name);
            converse(&mut client, kind.name);
            let bind = BindVppb { vcs_id: 0, vppb_id: 1, port_id: 1, ld_id: 2 };
            client.bind(&bind).unwrap();
            client.identify(&[Hop::Port(1), Hop::Ld(2)]).unwrap();
            // Two long messages. A logical device that is bound belongs to its host.
            let data: Vec<u8> = (0..u32::from(kind.long_bytes)).map(|at| (at * 7) as u8).collect();
            let bytes = kind.long_bytes;
            let access = LdMemoryRequest { port_id: 1, ld_id: 3, bytes, address: 8192, ..Default::default() };
            let enables = LdMemoryRequest { first_byte_enables: 0xf, last_byte_enables: 0xf, ..access };
            let write = LdMemoryRequest { is_write: true, data: data.clone(), ..enables.clone() };
            client.run(&[], &write).unwrap();
            assert_eq!(client.call(&[], &enables).unwrap().data, data, "{} {dialect}", kind.name);
            client.unbind(&UnbindVppb { vcs_id: 0, vppb_id: 1, option: UnbindOption::ManagedRemoval }).unwrap();
            let failure = client.unbind(&UnbindVppb { vcs_id: 0, vppb_id: 1, ..Default::default() }).unwrap_err();
            assert_eq!(failure.return_code(), Some(ReturnCode::INVALID_INPUT), "{}: {failure}", kind.name);
        }
    }
}

impl Peer {
    fn fail(&self, failure: AnswerFailure, times: u32) {
        let opcode = Some(Opcode::IDENTIFY_SWITCH_DEVICE);
        let injection = Injection::Answer { failure, opcode, times };
        self.switch.lock().unwrap().inject(self.now_ns(), injection).unwrap();
    }
}

#[test]
fn every_transport_goes_on_after_an_answer_that_was_late_or_busy() {
    for kind in &KINDS {
        let peer = Peer::new(&Dialect::STANDARD);
        let mut client = client((kind.open)(&peer, ALL));
        peer.fail(AnswerFailure::Delay { by_ns: LATE_NS }, 1);
        assert_eq!(client.identify_switch().unwrap().physical_ports, 8, "{}", kind.name);
        peer.fail(AnswerFailure::Code(ReturnCode::BUSY), 2);
        assert_eq!(client.identify_switch().unwrap().physical_ports, 8, "{}", kind.name);
        peer.fail(AnswerFailure::Code(ReturnCode::INTERNAL_ERROR), 1);
        let failure = client.identify_switch().unwrap_err();
        assert_eq!(failure.return_code(), Some(ReturnCode::INTERNAL_ERROR), "{}: {failure}", kind.name);
        converse(&mut client, kind.name);
    }
}

#[test]
fn every_transport_with_messages_goes_on_after_one_that_is_lost_duplicated_or_damaged() {
    for kind in KINDS.iter().filter(|kind| kind.has_messages) {
        let peer = Peer::new(&Dialect::STANDARD);
        let mut client = client((kind.open)(&peer, ALL));
        for failure in [
            AnswerFailure::Drop,
            AnswerFailure::Duplicate,
            AnswerFailure::Truncate { bytes: 30 },
            AnswerFailure::Truncate { bytes: 3 },
            AnswerFailure::WrongTag,
        ] {
            peer.fail(failure.clone(), 1);
            assert_eq!(client.identify_switch().unwrap().physical_ports, 8, "{} {failure:?}", kind.name);
        }
        converse(&mut client, kind.name);
    }
}

#[test]
fn every_transport_reports_a_peer_that_answers_no_more() {
    for kind in &KINDS {
        let peer = Peer::new(&Dialect::STANDARD);
        let mut client = client((kind.open)(&peer, 2));
        client.recognise().unwrap();
        client.identify_switch().unwrap();
        if !kind.has_messages {
            // The doorbell of a device that hangs stays set.
            peer.fail(AnswerFailure::Drop, 1);
        }
        let begun = Instant::now();
        let failure = client.identify_switch().unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", kind.name);
        let is_closed = matches!(failure.cause, Cause::Transport(TransportFailure::Closed));
        let is_stuck = matches!(failure.cause, Cause::Transport(TransportFailure::TimedOut) | Cause::NoAnswer { .. });
        assert!(if kind.has_messages { is_closed } else { is_stuck }, "{}: {failure}", kind.name);
        assert!(failure.to_string().contains("check that the peer runs"), "{failure}");
    }
}

#[test]
fn af_mctp_passes_the_suite_where_there_is_a_peer() {
    let Ok(address) = std::env::var("AQUIFER_MCTP_PEER") else {
        return skip("AQUIFER_MCTP_PEER names no MCTP endpoint, such as mctp:1,8");
    };
    let transport = address.parse::<PeerAddress>().unwrap().open(Duration::from_secs(5)).unwrap();
    let mut client = client(transport);
    client.recognise().unwrap();
    converse(&mut client, &address);
}

/// The mailbox is in a plain file: nobody clears its doorbell, and its bytes show what was written.
#[test]
fn a_window_is_mapped_and_its_command_is_where_the_registers_say() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("resource0-{}", std::process::id()));
    let mut image = RegisterFile::new(&Peer::new(&Dialect::STANDARD));
    let words = (0..0x1000 / 4).map(|index| image.read_u32(4 * index).unwrap());
    let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    std::fs::write(&path, bytes).unwrap();
    let address = PeerAddress::Mailbox(path.clone());
    let mut client = client(address.open(Duration::from_secs(5)).unwrap());
    let failure = client.port_states(&[1, 2, 3, 4]).unwrap_err();
    let is_late = matches!(failure.cause, Cause::NoAnswer { .. } | Cause::Transport(TransportFailure::TimedOut));
    assert!(is_late, "{failure}");
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes[0x88 + 4], 1, "the doorbell");
    assert_eq!(bytes[0x88 + 8..][..4], [0x01, 0x51, 5, 0], "the command");
    assert_eq!(bytes[0x88 + 0x20..][..8], [4, 1, 2, 3, 4, 0, 0, 0], "the payload");
    drop(client);
    // A window that ends within the payload.
    std::fs::write(&path, &bytes[..0x88 + 0x20]).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0x88 + 0x20).unwrap();
    let mut client = self::client(address.open(Duration::from_secs(5)).unwrap());
    let failure = client.port_states(&[1]).unwrap_err();
    assert!(matches!(failure.cause, Cause::Transport(_)), "{failure}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn registers_that_are_no_mailbox_are_refused() {
    type Change = (usize, u32);
    let cases: [(&[Change], &str); 6] = [
        (&[(0, u32::MAX)], "all ones"),
        (&[(0, 7)], "id 0x7 and 2 capabilities at offset 0"),
        (&[(4, 65)], "65 capabilities"),
        (&[(0x20, 3)], "none of 2 capabilities has id 2"),
        (&[(0x24, 0x8c)], "the mailbox is at 0x8c"),
        (&[(0x88, 21)], "2 to the power of 21"),
    ];
    for (changes, what) in cases {
        let mut registers = RegisterFile::new(&Peer::new(&Dialect::STANDARD));
        changes.iter().for_each(|(at, value)| registers.put(*at, *value));
        let refused = Mailbox::new("mailbox".into(), Box::new(registers), SystemClock::shared()).err().unwrap();
        assert!(refused.to_string().contains(what), "{refused}");
        assert!(refused.remedy().contains("0c0bh"));
    }
    let mut registers = RegisterFile::new(&Peer::new(&Dialect::STANDARD));
    registers.put(0x24, 0x10_0000);
    let refused = Mailbox::new("mailbox".into(), Box::new(registers), SystemClock::shared()).err().unwrap();
    assert!(refused.to_string().contains("beyond the window"), "{refused}");
}

/// Registers that read as anything: a mailbox is refused, or its answer is, and neither takes longer than its limit.
#[test]
fn no_value_of_a_register_is_taken_for_granted() {
    struct Anything(u64, Vec<u32>);

    impl Anything {
        fn next(&mut self, offset: usize) -> u32 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let value = (self.0 >> 33) as u32;
            // Mostly as it should be, so that all of it is reached.
            let is_changed = value.is_multiple_of(16);
            if is_changed { value } else { self.1.get(offset / 4).copied().unwrap_or(value & 0xfff) }
        }
    }

    impl Registers for Anything {
        fn read_u32(&mut self, offset: usize) -> Result<u32, RegisterFailure> {
            Ok(self.next(offset))
        }

        fn write_u32(&mut self, _: usize, _: u32) -> Result<(), RegisterFailure> {
            Ok(())
        }

        fn read_u64(&mut self, offset: usize) -> Result<u64, RegisterFailure> {
            Ok(u64::from(self.next(offset)) | u64::from(self.next(offset + 4)) << 32)
        }

        fn write_u64(&mut self, _: usize, _: u64) -> Result<(), RegisterFailure> {
            Ok(())
        }
    }

    let mut image = RegisterFile::new(&Peer::new(&Dialect::STANDARD));
    let words: Vec<u32> = (0..0xa8 / 4).map(|index| image.read_u32(4 * index).unwrap()).collect();
    let begun = Instant::now();
    let mut opened = 0;
    for seed in 0..2000 {
        let registers = Box::new(Anything(seed, words.clone()));
        let Ok(mailbox) = Mailbox::new("mailbox:any".into(), registers, SystemClock::shared()) else { continue };
        opened += 1;
        let limits =
            Limits { answer: Duration::from_micros(300), lost_retries: 0, busy_retries: 0, ..Limits::default() };
        let mut client = Client::new(Box::new(mailbox), SystemClock::shared(), limits);
        let _ = client.identify_switch();
        let _ = client.port_states(&[0, 1]);
    }
    assert!(opened > 500 && begun.elapsed() < Duration::from_secs(60), "{opened} {:?}", begun.elapsed());
}

#[test]
fn a_mailbox_has_no_dialect_with_another_header() {
    let peer = Peer::new(&Dialect::STANDARD);
    let mut client = client(mailbox(&peer, ALL));
    client.speak(Dialect::named("Jackrabbit").unwrap());
    let failure = client.identify(&[]).unwrap_err();
    assert!(matches!(failure.cause, Cause::Transport(TransportFailure::Dialect { name: "Jackrabbit" })), "{failure}");
}
