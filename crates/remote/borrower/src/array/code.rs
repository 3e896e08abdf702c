// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Cuts pages into shards with parity, and computes missing shards from the others.
//!
//! Pure. The code and its arithmetic, with the processor's vector instructions, are those of the library
//! `reed-solomon-simd`. The library's own encoder and decoder copy every shard, and its decoder takes a fifth of a
//! millisecond whatever the size of the shards: that is negligible for the thousands of shards that it is made for, but
//! long for a page. The code is linear, however: a shard is a sum of multiples of others. So the multiples are computed
//! once, when the array is opened, and those for missing shards come from elimination in a matrix of at most eight
//! rows. With one parity shard all multiples are 1, and the only operation is exclusive or. Why this library:
//! `docs/decisions/0020-parity-is-within-a-page.md`.
//!
//! Threads: any, including signal handlers. Allocates only in `new`.

use aquifer_wire::PAGE_BYTES;
use reed_solomon_simd::engine::{DefaultEngine, Engine, Naive, tables};
use reed_solomon_simd::rate::{DefaultRateEncoder, RateEncoder};

use super::place::POSITIONS;
use super::shape::DATA_SHARDS;

const DATA_MAX: usize = DATA_SHARDS[DATA_SHARDS.len() - 1];
/// The library's unit: 32 numbers of the field, their lower bytes first.
const UNIT: usize = 64;
/// How many units are multiplied at a time, in a buffer on the stack: it fits into the first-level cache.
const UNITS_AT_ONCE: usize = 16;
const PAGE: usize = PAGE_BYTES as usize;

/// One shard as a sum of multiples of the data shards: the factor of each data shard.
type Row = [u16; DATA_MAX];

/// A parity code: cuts pages into shards, and computes missing shards from the others.
pub(crate) struct Code {
    data: usize,
    total: usize,
    rows: [Row; POSITIONS],
    /// `None` if all factors are 1.
    engine: Option<DefaultEngine>,
}

impl Code {
    /// A code with `data` data shards and `total` shards in all.
    pub(crate) fn new(data: usize, total: usize) -> Code {
        assert!(data <= DATA_MAX && data < total && total <= POSITIONS, "a description is checked");
        let mut rows = [[0; DATA_MAX]; POSITIONS];
        (0..data).for_each(|shard| rows[shard][shard] = 1);
        (0..data).for_each(|shard| {
            // If this data shard is 1 and the others are 0, each parity shard is this data shard's factor in it.
            let parity = parity_of_one(data, total, shard);
            rows[data..total].iter_mut().zip(parity).for_each(|(row, multiple)| row[shard] = multiple);
        });
        let is_sum = rows.iter().flatten().all(|multiple| *multiple <= 1) && total == data + 1;
        Code { data, total, rows, engine: (!is_sum).then(DefaultEngine::new) }
    }

    /// The mask of all data positions.
    pub(crate) fn data_mask(&self) -> u16 {
        (1 << self.data) - 1
    }

    /// Cuts whole pages into shards, which lie one after the other, and adds parity.
    pub(crate) fn encode(&self, pages: &[u8], shards: &mut [u8]) {
        let len = pages.len() / self.data;
        let part = PAGE / self.data;
        for (page, bytes) in pages.chunks_exact(PAGE).enumerate() {
            for (shard, bytes) in bytes.chunks_exact(part).enumerate() {
                shards[shard * len + page * part..][..part].copy_from_slice(bytes);
            }
        }
        let parity = ((1 << self.total) - 1) & !self.data_mask();
        self.restore(shards, len, self.data_mask(), parity);
    }

    /// Assembles pages from data shards.
    pub(crate) fn join(&self, shards: &[u8], pages: &mut [u8]) {
        let len = pages.len() / self.data;
        shards.chunks_exact(len).take(self.data).enumerate().for_each(|(shard, bytes)| self.lay(shard, bytes, pages));
    }

    /// Copies one data shard to its positions in the pages.
    pub(crate) fn lay(&self, shard: usize, bytes: &[u8], pages: &mut [u8]) {
        let part = PAGE / self.data;
        for (bytes, page) in bytes.chunks_exact(part).zip(pages.chunks_exact_mut(PAGE)) {
            page[shard * part..][..part].copy_from_slice(bytes);
        }
    }

    /// Computes the shards at the positions `wanted` from those at the positions `there`; both are masks. `there` has
    /// as many positions as there are data shards, and none of them is in `wanted`. All shards have `len` bytes and lie
    /// one after the other.
    pub(crate) fn restore(&self, shards: &mut [u8], len: usize, there: u16, wanted: u16) {
        assert!(there.count_ones() as usize == self.data && there & wanted == 0, "as many as it takes");
        let inverse = if there == self.data_mask() { None } else { Some(self.inverse(there)) };
        for position in positions(wanted) {
            let multiples = match &inverse {
                None => self.rows[position],
                Some(inverse) => self.row_over(&self.rows[position], inverse),
            };
            shards[position * len..][..len].fill(0);
            for (from, multiple) in positions(there).zip(multiples) {
                let (target, source) = two(shards, len, position, from);
                self.add(target, source, multiple);
            }
        }
    }

    /// Converts a row of factors of the data shards to factors of the available shards.
    fn row_over(&self, row: &Row, inverse: &[Row; DATA_MAX]) -> Row {
        let mut over = [0; DATA_MAX];
        for (multiple, column) in row[..self.data].iter().zip(inverse) {
            over.iter_mut().zip(column).for_each(|(sum, inverse)| *sum ^= product(*multiple, *inverse));
        }
        over
    }

    /// For each data shard, the factors of the available shards, by Gauss–Jordan elimination. Any `data` rows of the
    /// code are independent, which is why this code is used.
    fn inverse(&self, there: u16) -> [Row; DATA_MAX] {
        let (mut left, mut right) = ([[0; DATA_MAX]; DATA_MAX], [[0; DATA_MAX]; DATA_MAX]);
        for (index, position) in positions(there).enumerate() {
            left[index] = self.rows[position];
            right[index][index] = 1;
        }
        for column in 0..self.data {
            let pivot = (column..self.data).find(|row| left[*row][column] != 0).expect("rows are independent");
            left.swap(column, pivot);
            right.swap(column, pivot);
            let scale = inverse_of(left[column][column]);
            for matrix in [&mut left, &mut right] {
                matrix[column].iter_mut().for_each(|value| *value = product(*value, scale));
            }
            for row in (0..self.data).filter(|row| *row != column) {
                let multiple = left[row][column];
                for matrix in [&mut left, &mut right] {
                    let pivot = matrix[column];
                    matrix[row].iter_mut().zip(pivot).for_each(|(value, pivot)| *value ^= product(multiple, pivot));
                }
            }
        }
        right
    }

    /// Adds a multiple of one shard to another.
    fn add(&self, target: &mut [u8], source: &[u8], multiple: u16) {
        match (multiple, &self.engine) {
            (0, _) => {}
            (1, _) | (_, None) => add(target, source),
            (multiple, Some(engine)) => {
                let log = tables::get_exp_log().log[usize::from(multiple)];
                let mut units = [[0; UNIT]; UNITS_AT_ONCE];
                for (target, source) in target.chunks_mut(UNIT * UNITS_AT_ONCE).zip(source.chunks(UNIT * UNITS_AT_ONCE))
                {
                    let units = &mut units[..source.len() / UNIT];
                    units.as_flattened_mut().copy_from_slice(source);
                    engine.mul(units, log);
                    add(target, units.as_flattened());
                }
            }
        }
    }
}

fn add(target: &mut [u8], source: &[u8]) {
    target.iter_mut().zip(source).for_each(|(target, source)| *target ^= source);
}

/// The positions of a mask.
pub(crate) fn positions(mask: u16) -> impl Iterator<Item = usize> + Clone {
    (0..POSITIONS).filter(move |position| mask & 1 << position != 0)
}

/// The shards at the positions `target`, which is writable, and `source`.
fn two(shards: &mut [u8], len: usize, target: usize, source: usize) -> (&mut [u8], &[u8]) {
    let (before, behind) = shards.split_at_mut(target.max(source) * len);
    if target < source {
        (&mut before[target * len..][..len], &behind[..len])
    } else {
        (&mut behind[..len], &before[source * len..][..len])
    }
}

fn product(one: u16, other: u16) -> u16 {
    let field = tables::get_exp_log();
    if other == 0 { 0 } else { tables::mul(one, field.log[usize::from(other)], &field.exp, &field.log) }
}

fn inverse_of(value: u16) -> u16 {
    let field = tables::get_exp_log();
    field.exp[usize::from((u16::MAX - field.log[usize::from(value)]) % u16::MAX)]
}

/// The numbers in the parity shards when data shard `one` is 1 and the others are 0.
fn parity_of_one(data: usize, total: usize, one: usize) -> impl Iterator<Item = u16> {
    // The engine without the large tables, because only a few bytes are encoded.
    let encoder = DefaultRateEncoder::new(data, total - data, UNIT, Naive::new(), None);
    let mut encoder = encoder.expect("the library takes such counts");
    for shard in 0..data {
        let mut unit = [0; UNIT];
        unit[0] = u8::from(shard == one);
        encoder.add_original_shard(unit).expect("they are as many and as long as was said");
    }
    let parity = encoder.encode().expect("all data shards are there");
    let numbers = parity.recovery_iter().map(|unit| u16::from_le_bytes([unit[0], unit[UNIT / 2]]));
    numbers.collect::<Vec<u16>>().into_iter()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn codes() -> impl Iterator<Item = (usize, usize)> {
        DATA_SHARDS.into_iter().flat_map(|data| (data + 1..=POSITIONS).map(move |total| (data, total)))
    }

    fn pages(seed: u64, count: usize) -> Vec<u8> {
        let mut random = seed | 1;
        let next = |_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 24) as u8
        };
        (0..count * PAGE).map(next).collect()
    }

    #[test]
    fn parity_is_that_of_the_library() {
        for (data, total) in codes() {
            let (pages, len) = (pages(data as u64 * 77, 3), 3 * PAGE / data);
            let mut shards = vec![0; total * len];
            Code::new(data, total).encode(&pages, &mut shards);
            let (ours, parity) = shards.split_at(data * len);
            let theirs = reed_solomon_simd::encode(data, total - data, ours.chunks(len)).unwrap();
            assert_eq!(theirs.concat(), parity, "{data}+{}", total - data);
        }
    }

    #[test]
    fn any_shards_that_are_enough_give_all_others() {
        for (data, total) in codes() {
            let code = Code::new(data, total);
            let (pages, len) = (pages(total as u64 * 99, 1), PAGE / data);
            let mut whole = vec![0; total * len];
            code.encode(&pages, &mut whole);
            let all = (1u16 << total) - 1;
            for there in (0..=all).filter(|mask| mask.count_ones() as usize == data) {
                let mut shards = whole.clone();
                positions(all & !there).for_each(|lost| shards[lost * len..][..len].fill(0xee));
                code.restore(&mut shards, len, there, all & !there);
                assert_eq!(shards, whole, "{data}+{} from {there:b}", total - data);
                let mut joined = vec![0; PAGE];
                code.join(&shards, &mut joined);
                assert_eq!(joined, pages);
            }
        }
    }

    #[test]
    fn one_parity_shard_needs_no_tables() {
        assert!(Code::new(4, 5).engine.is_none() && Code::new(8, 9).engine.is_none());
        assert!(Code::new(4, 6).engine.is_some());
    }

    proptest! {
        /// A page's shards are the same whether it is encoded alone or together with others, because blocks differ in
        /// size.
        #[test]
        fn a_page_is_encoded_by_itself(seed: u64, count in 1usize..9, which in 0usize..9, code in 0usize..20) {
            let all: Vec<(usize, usize)> = codes().collect();
            let (data, total) = all[code % all.len()];
            let (code, pages, which) = (Code::new(data, total), pages(seed, count), which % count);
            let (len, part) = (count * PAGE / data, PAGE / data);
            let mut together = vec![0; total * len];
            code.encode(&pages, &mut together);
            let mut alone = vec![0; total * part];
            code.encode(&pages[which * PAGE..][..PAGE], &mut alone);
            for position in 0..total {
                prop_assert_eq!(&together[position * len + which * part..][..part], &alone[position * part..][..part]);
            }
        }
    }
}
