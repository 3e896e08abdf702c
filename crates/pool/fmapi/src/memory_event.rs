// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the records of a memory device say about its memory and its health. CXL 3.1, tables 8-45 to 8-47.
//!
//! The fields that only the device's maker can use, such as component identifiers and correction masks, are not kept.

use crate::codec::{field_enum, payload};
use crate::event::EventRecord;

/// The flags of a record (CXL 3.1, table 8-43).
const IS_PERMANENT: u32 = 1 << 2;
const NEEDS_MAINTENANCE: u32 = 1 << 3;
const NEEDS_REPLACEMENT: u32 = 1 << 5;
const LD_ID_IS_VALID: u32 = 1 << 7;
/// The bits of a memory address that are flags: volatile, and not repairable; the others of the six are reserved.
const ADDRESS_FLAGS: u64 = 0x3f;
/// The bit of a memory event's descriptor for one that is not corrected.
const IS_UNCORRECTABLE: u8 = 1;
/// What a device reports where it does not know a share of its life, or a temperature.
const UNKNOWN_LIFE: u8 = 0xff;
const UNKNOWN_TEMPERATURE: u16 = 0x7fff;

field_enum! {
    /// What is wrong with memory, in a record of general media.
    pub enum MediaErrorKind {
        /// The memory's error correction has found an error.
        Ecc = 0,
        /// An address is not valid.
        InvalidAddress = 1,
        /// The path of the data has an error.
        DataPath = 2,
        /// A trusted environment's state was violated.
        TrustedState = 3,
        /// A scrub's error correction has found an error.
        ScrubEcc = 4,
        /// A counter of corrected errors has expired.
        CorrectedCounter = 5,
        /// A context key was violated.
        ContextKey = 6,
    }
}
field_enum! {
    /// What is wrong with memory, in a record of DRAM.
    pub enum DramErrorKind {
        /// The memory's error correction has found an error.
        Ecc = 0,
        /// A scrub's error correction has found an error.
        ScrubEcc = 1,
        /// An address is not valid.
        InvalidAddress = 2,
        /// The path of the data has an error.
        DataPath = 3,
        /// A trusted environment's state was violated.
        TrustedState = 4,
        /// A counter of corrected errors has expired.
        CorrectedCounter = 5,
        /// A context key was violated.
        ContextKey = 6,
    }
}
field_enum! {
    /// The access in which an error of memory was found.
    pub enum Transaction {
        /// The device does not say.
        Unknown = 0,
        /// A read by the host.
        HostRead = 1,
        /// A write by the host.
        HostWrite = 2,
        /// A scan of the memory that the host has ordered.
        HostScan = 3,
        /// A poisoning that the host has ordered.
        HostPoison = 4,
        /// A scrub by the device itself.
        Scrub = 5,
        /// The device's own management of its memory.
        Management = 6,
    }
}
payload! {
    /// An error of a device's memory (fbcd0a77-c260-417f-85a9-088b1621eba6).
    pub struct MediaEvent {
        /// The device's address, with flags in its lowest six bits.
        pub address: u64;
        /// Bit 0: not corrected; bit 1: a threshold was exceeded; bit 2: the list of poisoned addresses was full.
        pub descriptor: u8;
        /// What is wrong.
        pub kind: MediaErrorKind;
        /// The access that found it.
        pub transaction: Transaction;
        /// Which of the fields that follow are valid.
        pub validity: u16;
        /// The channel.
        pub channel: u8;
        /// The rank.
        pub rank: u8;
    }
}
payload! {
    /// An error of a device's DRAM (601dcbb3-9c06-4eab-b8af-4e9bfb5c9624).
    pub struct DramEvent {
        /// The device's address, with flags in its lowest six bits.
        pub address: u64;
        /// Bit 0: not corrected; bit 1: a threshold was exceeded; bit 2: the list of poisoned addresses was full.
        pub descriptor: u8;
        /// What is wrong.
        pub kind: DramErrorKind;
        /// The access that found it.
        pub transaction: Transaction;
        /// Which of the fields that follow are valid.
        pub validity: u16;
        /// The channel.
        pub channel: u8;
        /// The rank.
        pub rank: u8;
        /// The nibbles of the channel, as bits.
        pub nibbles: [u8; 3];
        /// The group of the bank.
        pub bank_group: u8;
        /// The bank.
        pub bank: u8;
        /// The row.
        pub row: [u8; 3];
        /// The column.
        pub column: u16;
    }
}
field_enum! {
    /// What has changed in the health of a device.
    pub enum ModuleEventKind {
        /// Its health status.
        HealthStatus = 0,
        /// The status of its media.
        MediaStatus = 1,
        /// The share of its life that is used.
        LifeUsed = 2,
        /// Its temperature.
        Temperature = 3,
        /// The path of its data has an error.
        DataPath = 4,
        /// Its storage area for labels has an error.
        LabelStorage = 5,
        /// Its sideband bus has an error.
        Sideband = 6,
        /// A part that can be replaced has an error.
        ReplaceablePart = 7,
        /// Its power management has a fault.
        Power = 8,
    }
}
payload! {
    /// A change in the health of a device (fe927475-dd59-4339-a586-79bab113b774).
    pub struct ModuleEvent {
        /// What has changed.
        pub kind: ModuleEventKind;
        /// Bit 0: maintenance is needed; bit 1: performance is degraded; bit 2: it has to be replaced; bit 3: it has
        /// less capacity.
        pub health_status: u8;
        /// 0: its media are normal.
        pub media_status: u8;
        /// Levels of warnings about life, temperature and corrected errors.
        pub additional_status: u8;
        /// Which share of its life is used, in percent.
        pub life_used_percent: u8;
        /// Its temperature in degrees Celsius, as a signed number.
        pub temperature: u16;
        /// How often it lost power with data that was not stored.
        pub dirty_shutdowns: u32;
        /// Corrected errors of its volatile memory.
        pub corrected_volatile: u32;
        /// Corrected errors of its persistent memory.
        pub corrected_persistent: u32;
    }
}

/// Returns the address in a memory event's field, without its flags.
const fn memory_address(field: u64) -> u64 {
    field & !ADDRESS_FLAGS
}

impl MediaEvent {
    /// Returns the device's address.
    pub const fn memory_address(&self) -> u64 {
        memory_address(self.address)
    }

    /// Returns whether the error was not corrected.
    pub const fn is_uncorrectable(&self) -> bool {
        self.descriptor & IS_UNCORRECTABLE != 0
    }
}

impl DramEvent {
    /// Returns the device's address.
    pub const fn memory_address(&self) -> u64 {
        memory_address(self.address)
    }

    /// Returns whether the error was not corrected.
    pub const fn is_uncorrectable(&self) -> bool {
        self.descriptor & IS_UNCORRECTABLE != 0
    }
}

impl ModuleEvent {
    /// Returns which share of its life is used, in percent; None where the device does not know.
    pub fn life_used(&self) -> Option<u8> {
        Some(self.life_used_percent).filter(|percent| *percent != UNKNOWN_LIFE)
    }

    /// Returns its temperature in degrees Celsius; None where the device does not know.
    pub fn celsius(&self) -> Option<i16> {
        (self.temperature != UNKNOWN_TEMPERATURE).then_some(self.temperature.cast_signed())
    }
}

impl EventRecord {
    /// Returns whether the condition that it reports stays.
    pub const fn is_permanent(&self) -> bool {
        self.flags & IS_PERMANENT != 0
    }

    /// Returns whether the component needs maintenance.
    pub const fn needs_maintenance(&self) -> bool {
        self.flags & NEEDS_MAINTENANCE != 0
    }

    /// Returns whether the component has to be replaced.
    pub const fn needs_replacement(&self) -> bool {
        self.flags & NEEDS_REPLACEMENT != 0
    }

    /// Returns the logical device that it is about, if it is about one.
    pub fn about_ld(&self) -> Option<u16> {
        (self.flags & LD_ID_IS_VALID != 0).then_some(self.ld_id)
    }
}
