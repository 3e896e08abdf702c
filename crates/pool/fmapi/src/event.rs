// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Events (01h): records, interrupts and notifications. CXL 3.1, section 8.2.9.2.

use crate::codec::{Payload, Reader, Writer, field_enum, payload};
use crate::failure::DecodeFailure;

/// Bytes of a record's data.
pub const EVENT_DATA_BYTES: usize = 80;

field_enum! {
    /// The log that a record is in, by severity.
    pub enum EventLog {
        /// The log of informational records.
        Informational = 0,
        /// The log of warnings.
        Warning = 1,
        /// The log of failures.
        Failure = 2,
        /// The log of fatal errors.
        Fatal = 3,
        /// The log of dynamic capacity.
        DynamicCapacity = 4,
    }
}

/// An event record of 128 bytes (CXL 3.2, table 8-55).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// The kind of record, as a UUID in the order in which its bytes are sent.
    pub uuid: [u8; 16],
    /// The length of the record, as its own field gives it.
    pub record_bytes: u8,
    /// Flags, of which 24 bits are sent.
    pub flags: u32,
    /// The number by which it is cleared.
    pub handle: u16,
    /// The handle of another record that belongs to it; 0 if there is none.
    pub related_handle: u16,
    /// Nanoseconds since 1970 in UTC; 0 where the device has no time.
    pub unix_ns: u64,
    /// Class of the maintenance that it asks for.
    pub maintenance_class: u8,
    /// Subclass of the maintenance that it asks for.
    pub maintenance_subclass: u8,
    /// The logical device that it is about.
    pub ld_id: u16,
    /// The head that it is about.
    pub head_id: u8,
    /// The fields of this kind of record.
    pub data: [u8; EVENT_DATA_BYTES],
}

impl Payload for EventRecord {
    fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.uuid);
        out.put(&self.record_bytes);
        out.put_bytes(&self.flags.to_le_bytes()[..3]);
        out.put_list(&[self.handle, self.related_handle]);
        out.put(&self.unix_ns);
        out.put_list(&[self.maintenance_class, self.maintenance_subclass]);
        out.put(&self.ld_id);
        out.put(&self.head_id);
        out.reserved(11);
        out.put(&self.data);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let (uuid, record_bytes) = (input.read()?, input.read()?);
        let [low, middle, high]: [u8; 3] = input.read()?;
        let flags = u32::from_le_bytes([low, middle, high, 0]);
        let [handle, related_handle] = input.read()?;
        let unix_ns = input.read()?;
        let [maintenance_class, maintenance_subclass] = input.read()?;
        let (ld_id, head_id) = (input.read()?, input.read()?);
        input.take(11)?;
        Ok(Self {
            uuid,
            record_bytes,
            flags,
            handle,
            related_handle,
            unix_ns,
            maintenance_class,
            maintenance_subclass,
            ld_id,
            head_id,
            data: input.read()?,
        })
    }
}

payload! {
    /// Get Event Records (0100h), request.
    pub struct GetEventRecords {
        /// The log to read.
        pub log: EventLog;
    }
}

/// Get Event Records (0100h), response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventRecords {
    /// Bit 0: records were lost; bit 1: more follow.
    pub flags: u8,
    /// How many were lost.
    pub overflow_count: u16,
    /// When the first was lost.
    pub overflow_first_ns: u64,
    /// When the last was lost.
    pub overflow_last_ns: u64,
    /// The records, the oldest first.
    pub records: Vec<EventRecord>,
}

impl EventRecords {
    /// Returns true if records have been lost since the log was last cleared.
    pub fn has_overflowed(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Returns true if the log has more records.
    pub fn has_more(&self) -> bool {
        self.flags & 2 != 0
    }
}

impl Payload for EventRecords {
    fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.flags);
        out.reserved(1);
        out.put(&self.overflow_count);
        out.put_list(&[self.overflow_first_ns, self.overflow_last_ns]);
        out.put(&u16::try_from(self.records.len()).expect("at most 65,535 records"));
        out.reserved(10);
        out.put_list(&self.records);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let flags = input.read()?;
        input.take(1)?;
        let overflow_count = input.read()?;
        let [overflow_first_ns, overflow_last_ns] = input.read()?;
        let count: u16 = input.read()?;
        input.take(10)?;
        let records = input.list(count.into())?;
        Ok(Self { flags, overflow_count, overflow_first_ns, overflow_last_ns, records })
    }
}

/// Clear Event Records (0101h), request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClearEventRecords {
    /// The log to clear.
    pub log: EventLog,
    /// Bit 0: clear all records.
    pub flags: u8,
    /// The handles of the records to clear.
    pub handles: Vec<u16>,
}

impl Payload for ClearEventRecords {
    fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.log);
        out.put(&self.flags);
        out.count_u8(&self.handles);
        out.reserved(3);
        out.put_list(&self.handles);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let (log, flags, count): (_, _, u8) = (input.read()?, input.read()?, input.read()?);
        input.take(3)?;
        Ok(Self { log, flags, handles: input.list(count.into())? })
    }
}

payload! {
    /// Get Event Interrupt Policy (0102h), request.
    pub struct GetEventInterruptPolicy {}
}

/// How a device interrupts: a setting for each log. Four bytes in CXL 2.0, five since 3.0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventInterruptPolicy {
    /// The settings of the logs of informational records, warnings, failures and fatal errors.
    pub settings: [u8; 4],
    /// The setting of the log of dynamic capacity; None where the device has no such log.
    pub dynamic_capacity: Option<u8>,
}

impl Payload for EventInterruptPolicy {
    fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.settings);
        if let Some(setting) = self.dynamic_capacity.filter(|_| !out.dialect.interrupt_policy_is_short) {
            out.put(&setting);
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let settings = input.read()?;
        let is_long = input.left() > 0 && !input.dialect.interrupt_policy_is_short;
        let dynamic_capacity = if is_long { Some(input.read()?) } else { None };
        Ok(Self { settings, dynamic_capacity })
    }
}

/// Set Event Interrupt Policy (0103h), request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetEventInterruptPolicy {
    /// The policy to set.
    pub policy: EventInterruptPolicy,
}

impl Payload for SetEventInterruptPolicy {
    fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.policy);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        Ok(Self { policy: input.read()? })
    }
}

payload! {
    /// Get MCTP Event Interrupt Policy (0104h), request.
    pub struct GetMctpEventPolicy {}
}
payload! {
    /// Get MCTP Event Interrupt Policy (0104h), response.
    pub struct MctpEventPolicy {
        /// A bit for each log, and bit 15 for the end of a background operation.
        pub events: u16;
    }
}
payload! {
    /// Set MCTP Event Interrupt Policy (0105h), request.
    pub struct SetMctpEventPolicy {
        /// The events to notify of, as in the response.
        pub events: u16;
    }
}
/// Set MCTP Event Interrupt Policy (0105h), response: the policy that now applies, or nothing in a dialect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewMctpEventPolicy {
    /// The events that are notified of, as in [`MctpEventPolicy`].
    pub events: Option<u16>,
}

impl Payload for NewMctpEventPolicy {
    fn write(&self, out: &mut Writer<'_>) {
        if let Some(events) = self.events.filter(|_| !out.dialect.mctp_policy_is_not_echoed) {
            out.put(&events);
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let is_there = input.left() > 0 && !input.dialect.mctp_policy_is_not_echoed;
        Ok(Self { events: if is_there { Some(input.read()?) } else { None } })
    }
}

payload! {
    /// Event Notification (0106h), a request that the device sends.
    pub struct EventNotification {
        /// A bit for each log that has records.
        pub events: u16;
    }
}
