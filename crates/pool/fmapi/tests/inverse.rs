// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Encoding and decoding are inverse in every dialect, and any bytes are decoded or refused.

use aquifer_fmapi::{
    Category, Dialect, Header, Message, Opcode, Payload, Reader, Request, Response, ReturnCode, Writer,
};
use proptest::prelude::*;

fn written(dialect: &Dialect, write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut out = Writer::new(dialect);
    write(&mut out);
    out.bytes
}

/// Generates bytes that are often a valid payload, because most of them are small, as counts are.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![3 => 0u8..4, 1 => any::<u8>()];
    prop_oneof![
        proptest::collection::vec(byte.clone(), 0..48),
        // The fixed lengths of the longer payloads.
        prop_oneof![Just(67usize), Just(69), Just(72), Just(73), Just(84), Just(340), Just(160), Just(64)]
            .prop_flat_map(move |length| proptest::collection::vec(byte.clone(), length)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn decoded_messages_are_written_and_decoded_to_the_same(
        opcode in 0..Opcode::ALL.len(), asked in payload(), reported in payload(), dialect in 0usize..5,
    ) {
        let (opcode, dialect) = (Opcode::ALL[opcode], &Dialect::ALL[dialect]);
        if let Ok(request) = Request::decode(opcode, &asked, dialect) {
            let bytes = written(dialect, |out| request.write(out));
            prop_assert_eq!(Request::decode(opcode, &bytes, dialect), Ok(request.clone()));
            if let Ok(response) = Response::decode(&request, &reported, dialect) {
                let bytes = written(dialect, |out| response.write(out));
                prop_assert_eq!(Response::decode(&request, &bytes, dialect), Ok(response));
            }
        }
    }

    #[test]
    fn headers_are_inverse_in_every_dialect(
        is_response: bool, tag: u8, opcode: u16, payload_bytes in 0u32..1 << 21, is_background: bool, code: u16,
        vendor_status: u16,
    ) {
        let category = if is_response { Category::Response } else { Category::Request };
        let return_code = ReturnCode(code);
        let opcode = Opcode(opcode);
        let header = Header { category, tag, opcode, payload_bytes, is_background, return_code, vendor_status };
        for dialect in &Dialect::ALL {
            let bytes = written(dialect, |out| header.write(out));
            prop_assert_eq!(bytes.len(), 12);
            prop_assert_eq!(Header::read(&mut Reader::new(&bytes, dialect)), Ok(header));
        }
    }

    #[test]
    fn any_bytes_are_a_message_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..64), dialect in 0usize..5,
    ) {
        let dialect = &Dialect::ALL[dialect];
        if let Ok(message) = Message::decode(&bytes, dialect) {
            prop_assert_eq!(Message::decode(&message.encode(dialect), dialect), Ok(message));
        }
    }
}

#[test]
fn a_false_count_allocates_nothing() {
    // The count announces 2^32 - 1 extents, and none follows.
    let mut asked = vec![0; 32];
    asked[28..].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(Request::decode(Opcode::INITIATE_DC_ADD, &asked, &Dialect::STANDARD).is_err());
}

#[test]
fn regions_are_read_padded_or_not_and_written_as_the_peer_reads_them() {
    use aquifer_fmapi::{DcRegion, GetHostDcRegions, HostDcRegions};
    let region = DcRegion { base: 1 << 30, block_bytes: 2 << 20, ..Default::default() };
    let regions = HostDcRegions { host_id: 1, region_count: 3, regions: vec![region; 2], room: [1, 2, 3, 4] };
    let asked = Request::GetHostDcRegions(GetHostDcRegions { host_id: 1, count: 2, first_region: 0 });
    let reported = Response::GetHostDcRegions(regions);
    for (dialect, length) in [(&Dialect::STANDARD, 4 + 2 * 40 + 16), (&Dialect::LIBCXLMI, 340)] {
        let bytes = written(dialect, |out| reported.write(out));
        assert_eq!(bytes.len(), length, "{}", dialect.name);
        assert_eq!(Response::decode(&asked, &bytes, &Dialect::STANDARD), Ok(reported.clone()), "{}", dialect.name);
    }
}

#[test]
fn a_request_without_a_list_may_leave_its_count_out() {
    let mut asked = vec![0; 28];
    asked[4] = 64;
    let Ok(Request::InitiateDcAdd(add)) = Request::decode(Opcode::INITIATE_DC_ADD, &asked, &Dialect::STANDARD) else {
        panic!("refused");
    };
    assert_eq!((add.length, add.extents.len()), (64, 0));
    assert!(Request::decode(Opcode::INITIATE_DC_ADD, &asked[..27], &Dialect::STANDARD).is_err());
    asked.extend([0, 0]);
    assert!(Request::decode(Opcode::INITIATE_DC_ADD, &asked, &Dialect::STANDARD).is_err());
}

#[test]
fn a_read_may_come_with_data_that_means_nothing() {
    let asked = [1, 0, 0xf0, 0x0f, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let decode = |bytes: &[u8]| Request::decode(Opcode::SEND_LD_MEMORY_REQUEST, bytes, &Dialect::STANDARD);
    let read = decode(&asked);
    assert!(read.is_ok());
    assert_eq!(decode(&[&asked[..], &[9; 4]].concat()), read);
    assert!(decode(&[&asked[..], &[9; 3]].concat()).is_err() && decode(&[&asked[..], &[9; 5]].concat()).is_err());
}

/// A peer of a later revision may use them, and a peer of this one may leave anything in them.
#[test]
fn reserved_bits_beside_a_field_of_four_bits_are_ignored() {
    use aquifer_fmapi::{DeviceMode, PortState, PortStatus, Tunnel, TunnelTarget, UnbindOption, UnbindVppb};
    let mut bytes = [0; 16];
    (bytes[1], bytes[2]) = (0xf3, 0x92);
    let port: PortStatus = Reader::new(&bytes, &Dialect::STANDARD).read().unwrap();
    assert_eq!((port.state, port.device_mode), (PortState::Downstream, DeviceMode::Flit68));
    let unbind: UnbindVppb = Reader::new(&[0, 1, 0xf1], &Dialect::STANDARD).read().unwrap();
    assert_eq!(unbind.option, UnbindOption::ManagedRemoval);
    let tunnel: Tunnel = Reader::new(&[3, 0xf1, 0, 0], &Dialect::STANDARD).read().unwrap();
    assert_eq!(tunnel.target, TunnelTarget::LdPool);
}

/// The answer is that of OpenCIS's opencis-core (cbcc15a).
#[test]
fn an_identity_with_half_a_serial_number_is_read_in_its_dialect_alone() {
    use aquifer_fmapi::{ComponentType, Identity};
    let bytes = [0xc5, 0x1d, 0, 0xf0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0];
    let identity: Identity = Reader::new(&bytes, &Dialect::OPENCIS).read().unwrap();
    assert_eq!((identity.vendor_id, identity.device_id, identity.serial_number), (0x1dc5, 0xf000, 0));
    assert_eq!((identity.message_limit_log2, identity.component_type), (10, Some(ComponentType::Switch)));
    assert!(Reader::new(&bytes, &Dialect::STANDARD).read::<Identity>().is_err());
}
