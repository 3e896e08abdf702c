// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Traces: the text of every kind of message, and pcap files that are read back, whole and damaged.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use aquifer_cxl_switch::SwitchConfig;
use aquifer_fmapi::*;
use aquifer_fmapi_client::*;

mod world;

use world::random::Random;
use world::{Injected, VirtualClock, Wire, World};

/// Files with changed bytes; a second of them.
const CHANGED_FILES: usize = 4000;

/// A file that a test can read while a trace writes it. It has room for a limited number of bytes.
#[derive(Clone)]
struct Shared(Arc<Mutex<Vec<u8>>>, usize);

impl Shared {
    fn new(room: usize) -> Self {
        Self(Arc::default(), room)
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut kept = self.0.lock().unwrap();
        if kept.len() + bytes.len() > self.1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        kept.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Asks a switch one thing after the other, with a failure injected here and there, and traces all of it.
fn traced(room: usize) -> (String, Vec<u8>, io::Result<()>) {
    let (text, pcap) = (Shared::new(usize::MAX), Shared::new(room));
    let (world, clock) = (World::shared(SwitchConfig::example()), Arc::<VirtualClock>::default());
    let mut wire = Wire::new(&world, &clock, 1);
    let mut injections = vec![Injected::Truncate(3), Injected::LengthLies(2), Injected::WrongTag];
    wire.injections = Box::new(move |opcode| {
        let is_meant = opcode == Opcode::BACKGROUND_STATUS;
        if is_meant { injections.pop().unwrap_or(Injected::None) } else { Injected::None }
    });
    let mut client = wire.client(Limits { lost_retries: 3, ..Limits::default() });
    client.add_trace(Box::new(TextTrace::new(text.clone())));
    client.add_trace(Box::new(PcapTrace::new(pcap.clone()).unwrap()));
    client.recognise().unwrap();
    client.background_status().unwrap();
    client.port_states(&[0]).unwrap();
    client.identify(&[Hop::Port(1), Hop::Ld(2)]).unwrap();
    client.identify(&[Hop::Port(77)]).unwrap_err();
    client.bind(&BindVppb { vcs_id: 0, vppb_id: 1, port_id: 0, ld_id: BindVppb::NO_LD }).unwrap();
    (String::from_utf8(text.bytes()).unwrap(), pcap.bytes(), client.finish_traces())
}

#[test]
fn every_message_is_described() {
    let (text, _, finished) = traced(usize::MAX);
    finished.unwrap();
    for line in [
        "08:00:00.000000 > tag 1   Identify (0001h), 0 bytes",
        "08:00:00.000100 < tag 1   Identify (0001h), 18 bytes: Success (0000h)",
        "    Identity { vendor_id: 65534,",
        "x tag 3   Background Operation Status (0002h), 8 bytes: Success",
        "< tag 3   Background Operation Status (0002h): damaged",
        "    not decoded: the header says 10 bytes of payload, and 8 follow: 01 03 00 02 00",
        "x no message, 3 bytes; one has at least 12",
        "\n    GetPortStates { port_ids: [0] }\n",
        "> tag 9   Tunnel Management Command (5300h), 32 bytes",
        "\n    tag 8   Tunnel Management Command (5300h), 16 bytes",
        "\n        tag 7   Identify (0001h), 0 bytes",
        "\n        tag 7   Identify (0001h), 18 bytes: Success",
        "\n            Identity { vendor_id: 65534, device_id: 2,",
        "Tunnel Management Command (5300h), 0 bytes: Invalid Input (0002h)",
        "Bind vPPB (5201h), 0 bytes: Background Command Started (0001h), goes on in the background",
        "is_running: true,",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn a_pcap_file_is_read_back_and_describes_the_same() {
    let (text, pcap, finished) = traced(usize::MAX);
    finished.unwrap();
    // The link type is where any reader of pcap files looks for it.
    assert_eq!(pcap[..4], [0xd4, 0xc3, 0xb2, 0xa1]);
    assert_eq!(u32::from_le_bytes(pcap[20..24].try_into().unwrap()), 291);
    // The first packet: Identify, as type 8, from the tag's owner.
    assert_eq!(pcap[40..][..12], [1, 8, 9, 0xc9, 8, 0, 1, 0, 1, 0, 0, 0]);
    let mut reader = PcapReader::new(&pcap[..]).unwrap();
    let (mut describer, mut again, mut messages) = (Describer::default(), String::new(), 0);
    while let Some(message) = reader.read().unwrap() {
        let direction = if message.is_sent { Direction::Sent } else { Direction::Received };
        again += &describer.describe(message.unix, direction, &message.bytes, &Dialect::STANDARD);
        messages += 1;
    }
    assert!(messages > 20, "{messages}");
    // A file does not say which messages were dropped; all else is the same.
    let lines = |text: &str| text.lines().filter(|line| line.contains(" tag ")).count();
    assert_eq!(lines(&again), lines(&text));
    assert!(again.contains("Background Operation Status (0002h): damaged"), "{again}");
}

#[test]
fn a_file_that_is_cut_or_changed_is_refused() {
    let (_, pcap, _) = traced(usize::MAX);
    let read = |bytes: &[u8]| -> Result<usize, PcapFailure> {
        let mut reader = PcapReader::new(bytes)?;
        let mut messages = 0;
        while reader.read()?.is_some() {
            messages += 1;
        }
        Ok(messages)
    };
    let all = read(&pcap).unwrap();
    for length in 0..pcap.len().min(400) {
        // A file that ends between two packets is a shorter file.
        assert!(read(&pcap[..length]).map_or(true, |messages| messages < all), "{length}");
    }
    assert!(matches!(read(&pcap[..pcap.len() - 1]), Err(PcapFailure::Io(_))));
    for (at, value, what) in [
        (0, 0, "magic"),
        (20, 1, "link type"),
        (29, 0xff, "us after its second"),
        (35, 0xff, "a packet of"),
        (40, 2, "a packet that begins"),
        (43, 0, "a packet that begins"),
        (44, 9, "a packet that begins"),
    ] {
        let mut changed = pcap.clone();
        (changed[at], changed[at + 1]) = (value, if at == 29 { 0xff } else { changed[at + 1] });
        if at == 29 {
            changed[30] = 0xff;
        }
        let failure = read(&changed).unwrap_err();
        assert!(failure.to_string().contains(what), "{at}: {failure}");
    }
}

/// Files and messages of any bytes end in an error or in text, in every dialect.
#[test]
fn no_bytes_of_a_file_are_taken_for_granted() {
    let (_, pcap, _) = traced(usize::MAX);
    let mut random = Random(7);
    for _ in 0..CHANGED_FILES {
        let mut changed = pcap.clone();
        for _ in 0..=random.below(4) {
            // Mostly beyond the file's header, whose every change is refused.
            let at = if random.chance(95) { 24 + random.below(pcap.len() as u64 - 24) } else { random.below(24) };
            changed[at as usize] = random.next() as u8;
        }
        changed.truncate(random.below(pcap.len() as u64 * 2) as usize);
        let Ok(mut reader) = PcapReader::new(&changed[..]) else { continue };
        let dialect = Dialect::named(random.one_of(&Dialect::ALL).name).unwrap();
        let mut describer = Describer::default();
        while let Ok(Some(message)) = reader.read() {
            let direction = if message.is_sent { Direction::Sent } else { Direction::Received };
            let text = describer.describe(message.unix, direction, &message.bytes, dialect);
            assert!(text.ends_with('\n'), "{text}");
        }
    }
}

/// Commands are carried out without their trace, and the end says that it is not whole.
#[test]
fn a_full_disk_ends_the_trace_and_nothing_else() {
    let (text, pcap, finished) = traced(100);
    assert!(pcap.len() <= 100 && text.contains("Bind vPPB"));
    assert_eq!(finished.unwrap_err().kind(), io::ErrorKind::StorageFull);
}
