// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The host of a device with dynamic capacity: reads the offers among the records of the device's own mailbox, and
//! answers them (4800h to 4803h).

use std::sync::{Arc, Mutex, PoisonError};

use aquifer_fmapi::{
    CapacityEventKind, DcRegion, Dialect, EventData, EventLog, Extent, Opcode, Payload, Reader, Writer,
};
use aquifer_fmapi_client::{Client, Limits, Mailbox, SystemClock};

use crate::bus::Function;

const DIALECT: &Dialect = &Dialect::STANDARD;
const GET_CONFIGURATION: Opcode = Opcode(0x4800);
const GET_EXTENTS: Opcode = Opcode(0x4801);
const RESPOND_ADD: Opcode = Opcode(0x4802);
const RELEASE: Opcode = Opcode(0x4803);
/// Bytes before the lists of the first two, and of an extent.
const REGIONS_AT: usize = 8;
const EXTENTS_AT: usize = 16;
const EXTENT_BYTES: usize = 40;
/// The flag of a record whose offer goes on with the next record.
const MORE: u8 = 1;
/// Maximum number of extents that are read: the mailbox has room for 50.
const EXTENTS_MAX: u32 = 48;

/// What the device tells its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostEvent {
    /// What happened.
    pub kind: CapacityEventKind,
    /// The capacity that it concerns.
    pub extent: Extent,
    /// The next event belongs to the same offer.
    pub more: bool,
}

/// A host.
#[derive(Clone)]
pub struct DcHost {
    client: Arc<Mutex<Client>>,
}

impl DcHost {
    /// The host of this device.
    pub fn new(device: &Function) -> Self {
        let registers = Box::new(device.device_registers());
        let mailbox = Mailbox::new("mailbox:device".into(), registers, SystemClock::shared()).expect("a mailbox");
        let client = Client::new(Box::new(mailbox), SystemClock::shared(), Limits::default());
        Self { client: Arc::new(Mutex::new(client)) }
    }

    fn ask(&self, opcode: Opcode, payload: &[u8]) -> Vec<u8> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = client.probe(&[], opcode, payload).expect("the device answers");
        assert_eq!(answer.header.return_code, aquifer_fmapi::ReturnCode::SUCCESS, "{opcode}");
        answer.payload
    }

    /// The regions, as the device describes them to its host.
    pub fn regions(&self) -> Vec<DcRegion> {
        let answer = self.ask(GET_CONFIGURATION, &[8, 0]);
        let mut input = Reader::new(&answer[REGIONS_AT..], DIALECT);
        let one = |input: &mut Reader<'_>| {
            let [base, decode_length, length, block_bytes]: [u64; 4] = input.read().expect("a region");
            let _handle_and_flags: [u32; 2] = input.read().expect("a region");
            DcRegion { base, decode_length, length, block_bytes, flags: 0, sanitize_on_release: 0 }
        };
        (0..answer[1]).map(|_| one(&mut input)).collect()
    }

    /// What the host has, and the generation of that list.
    pub fn extents(&self) -> (Vec<Extent>, u32) {
        let mut out = Writer::new(DIALECT);
        out.put_list(&[EXTENTS_MAX, 0]);
        let answer = self.ask(GET_EXTENTS, &out.bytes);
        let mut input = Reader::new(&answer, DIALECT);
        let [listed, _total, generation, _reserved]: [u32; 4] = input.read().expect("a list");
        assert_eq!(answer.len(), EXTENTS_AT + listed as usize * EXTENT_BYTES);
        (input.list(listed as usize).expect("extents"), generation)
    }

    /// Takes the records of dynamic capacity, and clears them.
    pub fn events(&self) -> Vec<HostEvent> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let log = client.events(&[], EventLog::DynamicCapacity, true).expect("the device's log");
        let meant = log.records.iter().filter_map(|record| record.meaning());
        let of_capacity = meant.filter_map(|data| match data {
            EventData::Capacity(event) => {
                Some(HostEvent { kind: event.kind, extent: event.extent, more: event.flags & MORE != 0 })
            }
            _ => None,
        });
        of_capacity.collect()
    }

    /// Accepts extents that were offered; none at all declines the oldest offer.
    pub fn accept(&self, extents: &[Extent]) {
        self.ask(RESPOND_ADD, &listed(extents));
    }

    /// Gives extents back.
    pub fn release(&self, extents: &[Extent]) {
        self.ask(RELEASE, &listed(extents));
    }

    /// Does what the records ask for: accepts each offer by an answer of its own, as the device expects, and gives
    /// back the extents that are requested. Returns how many extents.
    pub fn answer(&self) -> usize {
        let events = self.events();
        let of = |kind| events.iter().filter(|it| it.kind == kind).copied().collect::<Vec<_>>();
        let extents = |events: &[HostEvent]| events.iter().map(|it| it.extent).collect::<Vec<_>>();
        let (offered, asked) = (of(CapacityEventKind::Add), of(CapacityEventKind::Release));
        for offer in offered.split_inclusive(|it| !it.more) {
            self.accept(&extents(offer));
        }
        if !asked.is_empty() {
            self.release(&extents(&asked));
        }
        offered.len() + asked.len()
    }
}

/// A list as 4802h and 4803h take it: a count, flags, and the start and length of each.
fn listed(extents: &[Extent]) -> Vec<u8> {
    let mut out = Writer::new(DIALECT);
    (extents.len() as u32).write(&mut out);
    out.reserved(4);
    for extent in extents {
        out.put_list(&[extent.start, extent.length]);
        out.reserved(8);
    }
    out.bytes
}
