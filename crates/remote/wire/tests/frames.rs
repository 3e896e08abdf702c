// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bytes of the protocol: pinned, read back as they were written, and every change of a byte is detected.
//!
//! The trouble it guards against: two releases that give the same byte different meanings, and memory that arrives at
//! the wrong place because a length or an offset changed in transit.

use aquifer_wire::{
    BODY_BYTES_MAX, BorrowerId, DonorStatus, EVERY_LEASE, HEADER_BYTES, Header, Message, PairEnd, RangeIndex, Refusal,
    STATUS_BYTES, VERSION_NEWEST, choose_version,
};

const REQUEST: u64 = 0x1122_3344_5566_7788;

fn status() -> DonorStatus {
    let mut count = 0;
    let mut next = || {
        count += 1;
        count << 32 | count
    };
    DonorStatus { figures: std::array::from_fn(|_| next()), refusals: std::array::from_fn(|_| next()) }
}

fn end() -> PairEnd {
    let gid = std::array::from_fn(|at| at as u8 + 0x30);
    PairEnd { pair: 0x0040_4142, psn: 0x0043_4445, lid: 0x4647, mtu: 5, gid }
}

/// One of each message, with its body.
fn every_message() -> Vec<(Message, Vec<u8>)> {
    let (lease, token, offset, bytes) = (0x0102_0304, 0x11_1213_1415, 0x7000, 0x2000);
    let page: Vec<u8> = (0..4096u32).map(|at| (at * 7 + at / 256) as u8).collect();
    let bare = |message| (message, Vec::new());
    vec![
        bare(Message::Hello { oldest: 1, newest: 9, borrower: BorrowerId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff) }),
        bare(Message::Grant { range: RangeIndex(0x0a0b_0c0d) }),
        bare(Message::Renew),
        bare(Message::Release { lease, token }),
        bare(Message::Release { lease: EVERY_LEASE, token: 0 }),
        bare(Message::Read { lease, token, offset, bytes }),
        (Message::Write { lease, token, offset }, page.clone()),
        bare(Message::Discard { lease, token, offset, bytes }),
        bare(Message::Status),
        bare(Message::Pair { number: 0x5152_5354, end: end() }),
        bare(Message::Key { lease, token }),
        bare(Message::Reclaim { bytes: 8 << 30, within_ms: 60_000 }),
        bare(Message::Welcome {
            version: 1,
            lease_ms: 60_000,
            instance: 0x2122_2324_2526_2728,
            first_request: REQUEST,
            lendable_bytes: 64 << 30,
        }),
        bare(Message::Granted { lease, token, bytes: 2 << 20, expires_in_ms: 60_000 }),
        bare(Message::Renewed { leases: 12, expires_in_ms: 60_000 }),
        bare(Message::Released { slabs: 1 }),
        (Message::Found, page),
        bare(Message::Written),
        bare(Message::Discarded),
        (Message::StatusReport, status().encode().to_vec()),
        bare(Message::Paired { end: end() }),
        bare(Message::Keyed { key: 0x6162_6364 }),
        bare(Message::Reclaiming { bytes: 3 << 30 }),
        bare(Message::Revoke { lease, range: RangeIndex(0x0a0b_0c0d), within_ms: 5000 }),
        bare(Message::Revoke { lease: EVERY_LEASE, range: RangeIndex(0), within_ms: 5000 }),
        bare(Message::Error { refusal: Refusal::StaleToken }),
    ]
}

fn frames() -> Vec<u8> {
    let frame =
        |(message, body): &(Message, Vec<u8>)| [&Header::new(REQUEST, *message, body).encode()[..], &body[..]].concat();
    every_message().iter().flat_map(frame).collect()
}

#[test]
fn the_bytes_are_those_of_version_1() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/frames_v1.bin");
    if std::env::var_os("AQUIFER_GOLDEN").is_some() {
        std::fs::write(golden, frames()).unwrap();
    }
    assert!(
        std::fs::read(golden).unwrap() == frames(),
        "the format has changed; if intended, make it version 2, or before the first release set AQUIFER_GOLDEN=1"
    );
}

#[test]
fn every_message_is_read_as_it_was_written() {
    for (message, body) in every_message() {
        let header = Header::new(REQUEST, message, &body);
        let read = Header::decode(&header.encode()).unwrap();
        assert_eq!(read, header);
        assert_eq!((read.request, read.message, read.body_bytes as usize), (REQUEST, message, body.len()));
        read.check_body(&body).unwrap();
    }
    let bytes: [u8; STATUS_BYTES] = status().encode();
    assert_eq!(DonorStatus::decode(&bytes), status());
}

#[test]
fn every_flipped_bit_shows() {
    for (message, mut body) in every_message() {
        let header = Header::new(REQUEST, message, &body);
        let good = header.encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            let refusal = Header::decode(&bytes).expect_err("a bit was flipped");
            assert_eq!(refusal, if bit < 32 { Refusal::Foreign } else { Refusal::HeaderDamaged }, "bit {bit}");
        }
        for bit in (0..body.len() * 8).step_by(13) {
            body[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(header.check_body(&body), Err(Refusal::BodyDamaged), "bit {bit}");
            body[bit / 8] ^= 1 << (bit % 8);
        }
        if !body.is_empty() {
            assert_eq!(header.check_body(&body[1..]), Err(Refusal::Truncated));
        }
    }
}

/// A header that is right except for a few bytes, with a valid checksum.
fn forged(message: Message, body: &[u8], at: usize, new: &[u8]) -> Result<Header, Refusal> {
    let mut bytes = Header::new(REQUEST, message, body).encode();
    bytes[at..at + new.len()].copy_from_slice(new);
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &bytes[..64]);
    bytes[64..].copy_from_slice(&sum.to_le_bytes());
    Header::decode(&bytes)
}

#[test]
fn frames_that_do_not_fit_are_refused_although_their_checksum_is_right() {
    let read = Message::Read { lease: 1, token: 1, offset: 0, bytes: 4096 };
    let write = Message::Write { lease: 1, token: 1, offset: 0 };
    let page = [7; 4096];
    let more = (BODY_BYTES_MAX + 4096).to_le_bytes();
    let (pair, paired) = (Message::Pair { number: 7, end: end() }, Message::Paired { end: end() });
    for (message, body, at, new, refusal) in [
        (read, &page[..0], 4, &2u16.to_le_bytes()[..], Refusal::Version),
        (read, &page[..0], 6, &0x77u16.to_le_bytes(), Refusal::UnknownKind),
        (read, &page[..0], 16, &4096u32.to_le_bytes(), Refusal::Oversized),
        (write, &page, 16, &more, Refusal::Oversized),
        (write, &page, 16, &u32::MAX.to_le_bytes(), Refusal::Oversized),
        (write, &page, 16, &100u32.to_le_bytes(), Refusal::Oversized),
        (write, &page, 16, &0u32.to_le_bytes(), Refusal::Oversized),
        (read, &page[..0], 20, &[1], Refusal::BadField),
        (read, &page[..0], 56, &[1], Refusal::BadField),
        (read, &page[..0], 40, &[1], Refusal::BadField),
        (read, &page[..0], 40, &(u64::MAX - 4095).to_le_bytes(), Refusal::BadField),
        (read, &page[..0], 48, &0u64.to_le_bytes(), Refusal::BadField),
        (read, &page[..0], 48, &u64::from(BODY_BYTES_MAX + 4096).to_le_bytes(), Refusal::BadField),
        (Message::Renew, &page[..0], 24, &[1], Refusal::BadField),
        // A number of a queue pair, or of a packet, that is too large; no address; packets of no size; another form.
        (pair, &page[..0], 27, &[1], Refusal::BadField),
        (paired, &page[..0], 31, &[1], Refusal::BadField),
        (pair, &page[..0], 32, &[0; 16], Refusal::BadField),
        (pair, &page[..0], 54, &[0], Refusal::BadField),
        (paired, &page[..0], 54, &[6], Refusal::BadField),
        (pair, &page[..0], 55, &[2], Refusal::BadField),
        (paired, &page[..0], 48, &[1], Refusal::BadField),
        (pair, &page[..0], 16, &4096u32.to_le_bytes(), Refusal::Oversized),
        (Message::Key { lease: 1, token: 1 }, &page[..0], 40, &[1], Refusal::BadField),
        (Message::Keyed { key: 1 }, &page[..0], 28, &[1], Refusal::BadField),
        (Message::Error { refusal: Refusal::Full }, &page[..0], 24, &0u64.to_le_bytes(), Refusal::BadField),
    ] {
        assert_eq!(forged(message, body, at, new), Err(refusal), "{message:?} with {new:?} at {at}");
    }
}

#[test]
fn bytes_are_asked_for_in_parts_of_a_page_and_discarded_in_pages() {
    let read = |bytes| Message::Read { lease: 1, token: 1, offset: 512, bytes };
    let discard = |offset| Message::Discard { lease: 1, token: 1, offset, bytes: 4096 };
    let decoded = |message: Message, body: &[u8]| Header::decode(&Header::new(REQUEST, message, body).encode());
    assert_eq!(decoded(read(1536), &[]).unwrap().message, read(1536));
    assert_eq!(decoded(read(1000), &[]), Err(Refusal::BadField));
    let write = Message::Write { lease: 1, token: 1, offset: 7 * 512 };
    assert_eq!(decoded(write, &[3; 512]).unwrap().body_bytes, 512);
    assert_eq!(decoded(discard(4096), &[]).unwrap().message, discard(4096));
    assert_eq!(decoded(discard(512), &[]), Err(Refusal::BadField));
}

#[test]
fn both_sides_choose_the_newest_version_that_they_share() {
    assert_eq!(choose_version(1, 1), Ok(1));
    assert_eq!(choose_version(0, 40), Ok(VERSION_NEWEST));
    assert_eq!(choose_version(VERSION_NEWEST + 1, VERSION_NEWEST + 3), Err(Refusal::Version));
    assert_eq!(choose_version(0, 0), Err(Refusal::Version));
}
