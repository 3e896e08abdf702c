// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Information and status (00h) and timestamp (03h). CXL 3.1, sections 8.2.9.1 and 8.2.9.4.

use crate::codec::{Payload, Reader, Writer, field_enum, payload};
use crate::failure::DecodeFailure;

payload! {
    /// The response of a command that returns nothing.
    pub struct Empty {}
}
payload! {
    /// Identify (0001h), request.
    pub struct Identify {}
}
payload! {
    /// Background Operation Status (0002h), request.
    pub struct GetBackgroundStatus {}
}
payload! {
    /// Get Response Message Limit (0003h), request.
    pub struct GetMessageLimit {}
}
payload! {
    /// Set Response Message Limit (0004h), request.
    pub struct SetMessageLimit {
        /// The longest response is two to the power of this, in bytes.
        pub limit_log2: u8;
    }
}
payload! {
    /// Get and Set Response Message Limit (0003h, 0004h), response.
    pub struct MessageLimit {
        /// The longest response is two to the power of this, in bytes.
        pub limit_log2: u8;
    }
}
payload! {
    /// Request Abort Background Operation (0005h), request.
    pub struct AbortBackground {}
}
payload! {
    /// Get Timestamp (0300h), request.
    pub struct GetTimestamp {}
}
payload! {
    /// Get Timestamp (0300h), response.
    pub struct Timestamp {
        /// Nanoseconds since 1970 in UTC; 0 where it was never set.
        pub unix_ns: u64;
    }
}
payload! {
    /// Set Timestamp (0301h), request.
    pub struct SetTimestamp {
        /// Nanoseconds since 1970 in UTC.
        pub unix_ns: u64;
    }
}

field_enum! {
    /// What a component is.
    pub enum ComponentType {
        /// A switch, with its ports.
        Switch = 0,
        /// A memory device of type 3.
        Type3 = 3,
    }
}

/// Identify (0001h), response, 18 bytes; 17 in CXL 2.0, which has no component type; 14 of some peers, which leave out
/// the high half of the serial number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The PCI vendor number.
    pub vendor_id: u16,
    /// The PCI device number.
    pub device_id: u16,
    /// The PCI vendor number of the subsystem.
    pub subsystem_vendor_id: u16,
    /// The PCI device number of the subsystem.
    pub subsystem_id: u16,
    /// The serial number of the component.
    pub serial_number: u64,
    /// The longest message that it takes is two to the power of this, in bytes.
    pub message_limit_log2: u8,
    /// None if the peer does not report it.
    pub component_type: Option<ComponentType>,
}

/// Bytes after the subsystem's number in the short form: the low half of the serial number, the limit, and the type.
const SHORT_AFTER_SUBSYSTEM_BYTES: usize = 6;

impl Payload for Identity {
    fn write(&self, out: &mut Writer<'_>) {
        out.put_list(&[self.vendor_id, self.device_id, self.subsystem_vendor_id, self.subsystem_id]);
        out.put(&self.serial_number);
        out.put(&self.message_limit_log2);
        if let Some(component_type) = &self.component_type {
            out.put(component_type);
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let [vendor_id, device_id, subsystem_vendor_id, subsystem_id] = input.read()?;
        let is_short = input.dialect.identify_may_be_short && input.left() == SHORT_AFTER_SUBSYSTEM_BYTES;
        let serial_number = if is_short { u64::from(input.read::<u32>()?) } else { input.read()? };
        let message_limit_log2 = input.read()?;
        let component_type = if input.left() > 0 { Some(input.read()?) } else { None };
        Ok(Self {
            vendor_id,
            device_id,
            subsystem_vendor_id,
            subsystem_id,
            serial_number,
            message_limit_log2,
            component_type,
        })
    }
}

/// Background Operation Status (0002h), response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackgroundStatus {
    /// True while an operation runs.
    pub is_running: bool,
    /// How much of it is done, 0 to 100. The return code and the vendor's status are valid only at 100.
    pub percent: u8,
    /// The opcode of the command that started it.
    pub opcode: u16,
    /// The return code with which it ended.
    pub return_code: u16,
    /// The vendor's extended status.
    pub vendor_status: u16,
}

impl Payload for BackgroundStatus {
    fn write(&self, out: &mut Writer<'_>) {
        out.put(&(self.percent << 1 | u8::from(self.is_running)));
        out.reserved(1);
        out.put_list(&[self.opcode, self.return_code, self.vendor_status]);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let status: u8 = input.read()?;
        input.take(1)?;
        let [opcode, return_code, vendor_status] = input.read()?;
        Ok(Self { is_running: status & 1 == 1, percent: status >> 1, opcode, return_code, vendor_status })
    }
}
