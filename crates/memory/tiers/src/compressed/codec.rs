// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Compresses and decompresses one page.
//!
//! LZ4 needs a table to compress, and nothing to decompress. Zstandard needs a context for each. All of it is made when
//! the tier is opened, and used once then, so that nothing is allocated afterwards. Both decode bytes that somebody may
//! have damaged: they fail, or return other bytes, which the pager's guards detect.
//!
//! Threads: any, including in a signal handler.

use std::sync::OnceLock;

use aquifer_sys::raw::Errno;
use aquifer_tier::PAGE;
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use zstd_safe::{CCtx, CParameter, DCtx};

use super::contexts::Contexts;
use super::entry::{Kind, Stored};

/// A page that compresses to more than this is stored as it is: to decompress it would save little memory.
const LEN_MAX: usize = PAGE / 4 * 3;
/// The level of Zstandard. A page of 4 KiB is too short for the longer searches of higher levels to find much; the time
/// to decompress does not depend on the level.
const ZSTD_LEVEL: i32 = 1;
/// Threads that decompress with Zstandard at a time; further ones wait. A context takes about 100 KiB.
const ZSTD_READERS: usize = 16;

/// A way to compress pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// LZ4: fast.
    #[default]
    Lz4,
    /// Zstandard: smaller and slower.
    Zstd,
}

impl Codec {
    /// All codecs, with their names in `codec=`.
    pub(crate) const ALL: [(&str, Codec); 2] = [("lz4", Codec::Lz4), ("zstd", Codec::Zstd)];
}

/// What one thread needs to compress pages.
pub(super) enum Compressor {
    Lz4(CompressTable),
    Zstd(CCtx<'static>),
}

/// A page in the form in which it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoded {
    /// Without a record.
    Alone(Stored),
    /// As a record of this kind, with this many bytes.
    Record(Kind, usize),
}

/// Maximum number of bytes that [`Compressor::encode`] writes.
pub(super) const ENCODED_MAX: usize = get_maximum_output_size(PAGE);

impl Compressor {
    /// ENOMEM if there is no memory for it.
    pub(super) fn new(codec: Codec) -> Result<Compressor, Errno> {
        let mut compressor = match codec {
            Codec::Lz4 => Compressor::Lz4(CompressTable::small()),
            Codec::Zstd => {
                let mut context = CCtx::try_create().ok_or(Errno(libc::ENOMEM))?;
                let level = CParameter::CompressionLevel(ZSTD_LEVEL);
                context.set_parameter(level).expect("the level exists");
                Compressor::Zstd(context)
            }
        };
        // A context allocates its tables at its first use.
        let page: [u8; PAGE] = std::array::from_fn(|index| (index * index / 7) as u8);
        compressor.encode(&page, &mut [0; ENCODED_MAX]);
        Ok(compressor)
    }

    /// Encodes a page into the start of `out`, which has room for [`ENCODED_MAX`] bytes.
    pub(super) fn encode(&mut self, page: &[u8], out: &mut [u8]) -> Encoded {
        if let Some(value) = repeated(page) {
            let alone = Stored::value(u64::from_le_bytes(value));
            return alone.map_or_else(
                || {
                    out[..value.len()].copy_from_slice(&value);
                    Encoded::Record(Kind::Repeated, value.len())
                },
                Encoded::Alone,
            );
        }
        let (kind, len) = match self {
            Compressor::Lz4(table) => (Kind::Lz4, compress_into_with_table(page, out, table).ok()),
            Compressor::Zstd(context) => (Kind::Zstd, context.compress2(out, page).ok()),
        };
        // A library that fails costs room, not the page.
        match len.filter(|len| (1..=LEN_MAX).contains(len)) {
            Some(len) => Encoded::Record(kind, len),
            None => {
                out[..PAGE].copy_from_slice(page);
                Encoded::Record(Kind::Raw, PAGE)
            }
        }
    }
}

/// The value that a page repeats.
fn repeated(page: &[u8]) -> Option<[u8; 8]> {
    let first: [u8; 8] = page[..8].try_into().expect("eight bytes");
    // Equal to itself shifted by one value. The comparison ends at the first difference.
    (page[8..] == page[..page.len() - 8]).then_some(first)
}

/// What decompressing needs.
pub(super) struct Decoder {
    /// `None` where nothing was compressed with Zstandard.
    zstd: Option<Contexts<DCtx<'static>>>,
}

/// Why a record could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undecoded {
    /// Other threads have all contexts.
    Busy,
    /// The record does not contain a page.
    Damaged,
}

impl Decoder {
    /// ENOMEM if there is no memory for it.
    pub(super) fn new(codec: Codec) -> Result<Decoder, Errno> {
        let context = || DCtx::try_create().ok_or(Errno(libc::ENOMEM));
        let zstd = match codec {
            Codec::Lz4 => None,
            Codec::Zstd => Some(Contexts::new((0..ZSTD_READERS).map(|_| context()).collect::<Result<_, _>>()?)?),
        };
        Ok(Decoder { zstd })
    }

    /// Fills `page` from the bytes of a record.
    pub(super) fn decode(&self, kind: Kind, record: &[u8], page: &mut [u8]) -> Result<(), Undecoded> {
        let len = match (kind, &self.zstd) {
            (Kind::Lz4, _) => decompress_into(record, page).ok(),
            (Kind::Zstd, Some(contexts)) => {
                contexts.with(|context| context.decompress(page, record).ok()).ok_or(Undecoded::Busy)?
            }
            // An entry that this tier has not made.
            (Kind::Zstd, None) => None,
            (Kind::Raw, _) => (record.len() == page.len()).then(|| {
                page.copy_from_slice(record);
                page.len()
            }),
            (Kind::Repeated, _) => (record.len() == 8).then(|| {
                page.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(record));
                page.len()
            }),
        };
        if len == Some(page.len()) { Ok(()) } else { Err(Undecoded::Damaged) }
    }
}

/// Decodes a record that may be anything, for fuzzing: the number of its kind, then its bytes. Returns whether that was
/// a page.
#[doc(hidden)]
pub fn decode_anything(bytes: &[u8]) -> bool {
    static DECODER: OnceLock<Decoder> = OnceLock::new();
    let decoder = DECODER.get_or_init(|| Decoder::new(Codec::Zstd).expect("memory for contexts"));
    let Some((first, record)) = bytes.split_first() else { return false };
    let kind = [Kind::Lz4, Kind::Raw, Kind::Repeated, Kind::Zstd][usize::from(first % 4)];
    decoder.decode(kind, &record[..record.len().min(PAGE)], &mut [0; PAGE]).is_ok()
}

/// A page as [`decode_anything`] takes it. `None` for a page that has no record.
#[doc(hidden)]
pub fn encode_for_fuzzing(codec: Codec, page: &[u8; PAGE]) -> Option<Vec<u8>> {
    let mut out = [0; ENCODED_MAX];
    let encoded = Compressor::new(codec).expect("memory for a context").encode(page, &mut out);
    let Encoded::Record(kind, len) = encoded else { return None };
    let number = [Kind::Lz4, Kind::Raw, Kind::Repeated, Kind::Zstd].iter().position(|one| *one == kind)?;
    Some(std::iter::once(number as u8).chain(out[..len].iter().copied()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages that compress more or less well.
    fn pages() -> Vec<[u8; PAGE]> {
        let mut state = 7u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let mut page = |kinds: u64| std::array::from_fn(|_| (next() % kinds) as u8);
        let words = std::array::from_fn(|index| [1, 2, 3, 4, 0xf0, 0x3f, 0, 0xff][index % 8]);
        let mut last = [0; PAGE];
        last[PAGE - 1] = 1;
        let kinds = [2, 3, 16, 64, 100, 180, 256];
        kinds.map(&mut page).into_iter().chain([[0; PAGE], [0xff; PAGE], words, last]).collect()
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        for (_, codec) in Codec::ALL {
            let decoder = Decoder::new(codec).unwrap();
            let mut compressor = Compressor::new(codec).unwrap();
            for page in pages() {
                let (mut out, mut back) = ([0xee; ENCODED_MAX], [0xdd; PAGE]);
                match compressor.encode(&page, &mut out) {
                    Encoded::Alone(stored) => assert_eq!((stored, page), (Stored::Value(0), [0; PAGE])),
                    Encoded::Record(kind, len) => {
                        assert!(len <= LEN_MAX || kind == Kind::Raw && len == PAGE, "{kind:?} {len}");
                        decoder.decode(kind, &out[..len], &mut back).unwrap();
                        assert!(back == page, "{codec:?} {kind:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn damaged_records_fail_or_give_other_bytes() {
        for (_, codec) in Codec::ALL {
            let decoder = Decoder::new(codec).unwrap();
            let mut compressor = Compressor::new(codec).unwrap();
            for page in pages() {
                let mut out = [0; ENCODED_MAX];
                let Encoded::Record(kind, len) = compressor.encode(&page, &mut out) else { continue };
                for bit in 0..len * 8 {
                    out[bit / 8] ^= 1 << (bit % 8);
                    let _ = decoder.decode(kind, &out[..len], &mut [0; PAGE]);
                    out[bit / 8] ^= 1 << (bit % 8);
                }
                for short in 0..len.min(100) {
                    assert_eq!(decoder.decode(kind, &out[..short], &mut [0; PAGE]), Err(Undecoded::Damaged));
                }
            }
        }
        assert_eq!(Decoder::new(Codec::Lz4).unwrap().decode(Kind::Zstd, &[1], &mut [0; PAGE]), Err(Undecoded::Damaged));
    }
}
