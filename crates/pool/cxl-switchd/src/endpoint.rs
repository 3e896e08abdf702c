// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The switch as an endpoint of MCTP: its ID, and a UUID that follows from its numbers.

use aquifer_cxl_switch::SwitchConfig;
use aquifer_fmapi::Endpoint;

/// The switch's endpoint ID, until a manager sets another one: the first that is not reserved.
pub const OWN_EID: u8 = 8;
/// The version of a UUID whose bits its maker chooses, and the variant of RFC 9562.
const UUID_VERSION: u8 = 8 << 4;
const UUID_VARIANT: u8 = 2 << 6;

/// Returns the endpoint of a switch. The same switch has the same UUID after a restart, and two switches of one kind
/// differ by their serial numbers.
pub fn endpoint(config: &SwitchConfig) -> Endpoint {
    let [vendor, device] = [config.vendor_id, config.device_id].map(u16::to_be_bytes);
    let serial = config.serial_number.to_be_bytes();
    let mut uuid = [0; 16];
    uuid[..2].copy_from_slice(&vendor);
    uuid[2..4].copy_from_slice(&device);
    uuid[4..6].copy_from_slice(&serial[..2]);
    (uuid[6], uuid[8]) = (UUID_VERSION, UUID_VARIANT);
    uuid[10..].copy_from_slice(&serial[2..]);
    Endpoint { eid: OWN_EID, uuid }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_with_different_numbers_have_different_uuids() {
        let example = SwitchConfig::example();
        let uuid = |serial_number| endpoint(&SwitchConfig { serial_number, ..example.clone() }).uuid;
        assert_eq!(uuid(0x0102_0304_0506_0708), [0xff, 0xfe, 0, 0, 1, 2, 0x80, 0, 0x80, 0, 3, 4, 5, 6, 7, 8]);
        assert!(uuid(1) != uuid(2) && uuid(1) == uuid(1));
    }
}
