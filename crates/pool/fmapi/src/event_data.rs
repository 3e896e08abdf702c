// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the records of a switch and of its devices say, in their 80 bytes of data: which port, which vPPB, which
//! extent, which memory. CXL 3.1, section 7.6.8 and tables 8-45 to 8-50; for records of memory see `memory_event.rs`.
//!
//! The kind of record is its UUID. A record of another kind keeps its bytes.

use crate::codec::{Payload, Reader, Writer, field_enum, payload};
use crate::dialect::Dialect;
use crate::dynamic_capacity::Extent;
use crate::event::{EVENT_DATA_BYTES, EventRecord};
use crate::failure::DecodeFailure;
use crate::memory_event::{DramEvent, MediaEvent, ModuleEvent};
use crate::physical_switch::PortStatus;
use crate::virtual_switch::Vppb;

/// Bytes of a record, all fields included.
const RECORD_BYTES: u8 = 128;

field_enum! {
    /// What happened to a physical port.
    pub enum PortEventKind {
        /// Its link went up or down.
        LinkStateChange = 0,
        /// Its slot status register was updated.
        SlotStatusUpdated = 1,
    }
}

/// An event of a physical port (77cf9271-9c02-470b-9fe4-bc7b75f2da97).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortEvent {
    /// What happened to the port.
    pub kind: PortEventKind,
    /// The slot status register.
    pub slot_status: u16,
    /// The state of the port after the event; `supported_lds` is not sent.
    pub port: PortStatus,
}

/// Bytes of a port's status without its first and its last field: the record has the port's number elsewhere, and no
/// count of logical devices.
const STATUS_BYTES: std::ops::Range<usize> = 1..15;

impl Payload for PortEvent {
    fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.port.port_id);
        out.put(&self.kind);
        out.put(&self.slot_status);
        out.reserved(1);
        let mut status = Writer::new(out.dialect);
        status.put(&self.port);
        out.put_bytes(&status.bytes[STATUS_BYTES]);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let (port_id, kind, slot_status): (u8, _, _) = (input.read()?, input.read()?, input.read()?);
        input.take(1)?;
        let status = [&[port_id], input.take(STATUS_BYTES.len())?, &[0]].concat();
        let port = Reader::new(&status, input.dialect).read()?;
        Ok(Self { kind, slot_status, port })
    }
}

field_enum! {
    /// What happened to a vPPB.
    pub enum VppbEventKind {
        /// It was bound or unbound, or that failed.
        BindingChange = 0,
        /// Its secondary bus was reset.
        SecondaryBusReset = 1,
        /// Its link control register was updated.
        LinkControlUpdated = 2,
        /// Its slot control register was updated.
        SlotControlUpdated = 3,
    }
}
payload! {
    /// An event of a vPPB (40d26425-3396-4c4d-a5da-3d47263af425).
    pub struct VppbEvent {
        /// The virtual CXL switch.
        pub vcs_id: u8;
        /// The vPPB's number in that switch.
        pub vppb_id: u8;
        /// What happened to the vPPB.
        pub kind: VppbEventKind;
        /// What the vPPB is bound to after the event. The link and slot control registers that follow it are not kept.
        pub vppb: Vppb;
    }
}
field_enum! {
    /// The kind of error message that a device with multiple logical devices has sent.
    pub enum ErrorKind {
        /// The error is correctable.
        Correctable = 0,
        /// The error is uncorrectable, but not fatal.
        NonFatal = 1,
        /// The error is fatal.
        Fatal = 2,
    }
}
payload! {
    /// An error of a device with multiple logical devices (8dc44363-0c96-4710-b7bf-04bb99534c3f).
    pub struct MldPortEvent {
        /// The kind of error.
        pub kind: ErrorKind;
        /// The port it came from.
        pub port_id: u8, reserved 2;
        /// The message's first eight bytes.
        pub message: [u8; 8];
    }
}
field_enum! {
    /// What happened to dynamic capacity.
    pub enum CapacityEventKind {
        /// It is offered to the host.
        Add = 0,
        /// The host is asked to release it.
        Release = 1,
        /// The host has lost it.
        ForcedRelease = 2,
        /// A region has another configuration.
        RegionConfigurationUpdated = 3,
        /// The host has answered an offer; for the fabric manager.
        AddResponse = 4,
        /// The host has released it; for the fabric manager.
        Released = 5,
    }
}
payload! {
    /// An event of dynamic capacity (ca95afa7-f183-4018-8c2f-95268e101a2a).
    pub struct CapacityEvent {
        /// What happened to the capacity.
        pub kind: CapacityEventKind;
        /// Which fields are valid: bit 0 for `extents_free` and `tags_free`.
        pub validity: u8;
        /// The number of the host.
        pub host_id: u16;
        /// The region whose configuration was updated.
        pub region_id: u8;
        /// Bit 0: more records belong to the same offer.
        pub flags: u8, reserved 2;
        /// The extent that it happened to.
        pub extent: Extent, reserved 24;
        /// Extents that the device can still hold.
        pub extents_free: u32;
        /// Tags that the device can still hold.
        pub tags_free: u32;
    }
}

/// What a record says, by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventData {
    /// The record is about dynamic capacity.
    Capacity(CapacityEvent),
    /// The record is about an error of DRAM.
    Dram(DramEvent),
    /// The record is about an error of memory.
    Media(MediaEvent),
    /// The record is about a port with multiple logical devices.
    MldPort(MldPortEvent),
    /// The record is about the health of a device.
    Module(ModuleEvent),
    /// The record is about a physical port.
    Port(PortEvent),
    /// The record is about a vPPB.
    Vppb(VppbEvent),
}

impl EventData {
    /// Returns the UUID of its kind, in the order in which the bytes are sent.
    pub fn uuid(&self) -> [u8; 16] {
        match self {
            Self::Capacity(_) => CAPACITY,
            Self::Dram(_) => DRAM,
            Self::Media(_) => MEDIA,
            Self::MldPort(_) => MLD_PORT,
            Self::Module(_) => MODULE,
            Self::Port(_) => PORT,
            Self::Vppb(_) => VPPB,
        }
    }

    /// Returns a record with this data. Its handle and its time are set when it is written to a log.
    pub fn record(&self, severity: u8) -> EventRecord {
        let mut out = Writer::new(&Dialect::STANDARD);
        match self {
            Self::Capacity(event) => out.put(event),
            Self::Dram(event) => out.put(event),
            Self::Media(event) => out.put(event),
            Self::MldPort(event) => out.put(event),
            Self::Module(event) => out.put(event),
            Self::Port(event) => out.put(event),
            Self::Vppb(event) => out.put(event),
        }
        let mut data = [0; EVENT_DATA_BYTES];
        data[..out.bytes.len()].copy_from_slice(&out.bytes);
        EventRecord {
            uuid: self.uuid(),
            record_bytes: RECORD_BYTES,
            flags: severity.into(),
            handle: 0,
            related_handle: 0,
            unix_ns: 0,
            maintenance_class: 0,
            maintenance_subclass: 0,
            ld_id: 0,
            head_id: 0,
            data,
        }
    }
}

impl EventRecord {
    /// Returns the data of this record; None for a kind that [`EventData`] does not have.
    pub fn meaning(&self) -> Option<EventData> {
        let mut input = Reader::new(&self.data, &Dialect::STANDARD);
        let read = match self.uuid {
            CAPACITY => input.read().map(EventData::Capacity),
            DRAM => input.read().map(EventData::Dram),
            MEDIA => input.read().map(EventData::Media),
            MLD_PORT => input.read().map(EventData::MldPort),
            MODULE => input.read().map(EventData::Module),
            PORT => input.read().map(EventData::Port),
            VPPB => input.read().map(EventData::Vppb),
            _ => return None,
        };
        read.ok()
    }
}

const CAPACITY: [u8; 16] = 0xca95_afa7_f183_4018_8c2f_9526_8e10_1a2a_u128.to_be_bytes();
const DRAM: [u8; 16] = 0x601d_cbb3_9c06_4eab_b8af_4e9b_fb5c_9624_u128.to_be_bytes();
const MEDIA: [u8; 16] = 0xfbcd_0a77_c260_417f_85a9_088b_1621_eba6_u128.to_be_bytes();
const MLD_PORT: [u8; 16] = 0x8dc4_4363_0c96_4710_b7bf_04bb_9953_4c3f_u128.to_be_bytes();
const MODULE: [u8; 16] = 0xfe92_7475_dd59_4339_a586_79ba_b113_b774_u128.to_be_bytes();
const PORT: [u8; 16] = 0x77cf_9271_9c02_470b_9fe4_bc7b_75f2_da97_u128.to_be_bytes();
const VPPB: [u8; 16] = 0x40d2_6425_3396_4c4d_a5da_3d47_263a_f425_u128.to_be_bytes();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_event::{DramErrorKind, MediaErrorKind, ModuleEventKind, Transaction};
    use crate::virtual_switch::BindingStatus;

    #[test]
    fn records_are_read_as_they_were_written() {
        let port = PortStatus { port_id: 7, link_width: 8, link_flags: 0x0102, first_lane: 3, ..Default::default() };
        let vppb = Vppb { status: BindingStatus::Ld, port_id: 9, ld_id: 2 };
        let extent = Extent { start: 1 << 30, length: 1 << 28, tag: [5; 16], shared_sequence: 1 };
        for said in [
            EventData::Port(PortEvent { slot_status: 0x40, port, ..Default::default() }),
            EventData::Vppb(VppbEvent { vcs_id: 1, vppb_id: 4, kind: VppbEventKind::BindingChange, vppb }),
            EventData::MldPort(MldPortEvent { kind: ErrorKind::Fatal, port_id: 3, message: [9; 8] }),
            EventData::Capacity(CapacityEvent { host_id: 2, extent, tags_free: 12, ..Default::default() }),
            EventData::Media(MediaEvent { address: 0x1043, descriptor: 1, rank: 3, ..Default::default() }),
            EventData::Dram(DramEvent { kind: DramErrorKind::ScrubEcc, column: 0x203, ..Default::default() }),
            EventData::Module(ModuleEvent { temperature: 41, corrected_persistent: 7, ..Default::default() }),
        ] {
            assert_eq!(said.record(1).meaning(), Some(said));
        }
        let mut other = EventData::MldPort(MldPortEvent::default()).record(0);
        other.uuid[0] ^= 1;
        assert_eq!(other.meaning(), None);
    }

    #[test]
    fn fields_are_where_the_tables_have_them() {
        let port = PortStatus { port_id: 7, supported_modes: 6, link_flags: 0x0102, ..Default::default() };
        let data = EventData::Port(PortEvent { slot_status: 0x40, port, ..Default::default() }).record(0).data;
        // Offsets of table 7-77, without the 30h bytes that every record has.
        assert_eq!((data[0], data[2], data[9], data[0x11], data[0x12]), (7, 0x40, 6, 2, 1));
        let event = CapacityEvent { extents_free: 3, tags_free: 4, ..Default::default() };
        let data = EventData::Capacity(event).record(0).data;
        assert_eq!((data[72], data[76]), (3, 4));
    }

    /// The offsets are those of Linux (include/cxl/event.h), which decodes the same records.
    #[test]
    fn fields_of_memory_are_where_other_readers_look_for_them() {
        let (kind, transaction) = (MediaErrorKind::DataPath, Transaction::HostWrite);
        let event = MediaEvent { address: 0x1043, descriptor: 1, kind, transaction, channel: 5, rank: 6, validity: 3 };
        let data = EventData::Media(event).record(0).data;
        assert_eq!((&data[..2], data[8], data[9], data[10], data[11]), (&[0x43, 0x10][..], 1, 2, 2, 3));
        assert_eq!((data[13], data[14]), (5, 6));
        assert_eq!((event.memory_address(), event.is_uncorrectable()), (0x1040, true));
        let event = DramEvent { bank_group: 1, bank: 2, row: [3, 0, 0], column: 4, ..Default::default() };
        let data = EventData::Dram(event).record(0).data;
        assert_eq!((data[18], data[19], data[20], data[23]), (1, 2, 3, 4));
        let kind = ModuleEventKind::Temperature;
        let event = ModuleEvent { kind, life_used_percent: 9, temperature: 0xfffe, ..Default::default() };
        let data = EventData::Module(ModuleEvent { dirty_shutdowns: 8, corrected_volatile: 7, ..event }).record(0).data;
        assert_eq!((data[0], data[4], data[5], data[7], data[11]), (3, 9, 0xfe, 8, 7));
        assert_eq!((event.celsius(), event.life_used()), (Some(-2), Some(9)));
        let unknown = ModuleEvent { life_used_percent: 0xff, temperature: 0x7fff, ..event };
        assert_eq!((unknown.celsius(), unknown.life_used()), (None, None));
        let mut record = EventData::Module(event).record(2);
        assert_eq!((record.is_permanent(), record.needs_replacement(), record.about_ld()), (false, false, None));
        (record.flags, record.ld_id) = (0xae, 3);
        assert!(record.is_permanent() && record.needs_maintenance() && record.needs_replacement());
        assert_eq!(record.about_ld(), Some(3));
    }
}
