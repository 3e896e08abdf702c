// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The pages that are being watched until their next touch.
//!
//! Pure. `touched` is called on the fault path: it allocates nothing, and without a sample near the touched pages it
//! costs one look into a table. A sample begins when its page was chosen; if the page's block is resident then, the
//! engine is asked to move it to standby, and the next look tells whether that has happened.

use super::IdleTimes;
use crate::units::PageIndex;

/// Maximum number of pages that are watched at a time. Beyond it, the sample that has been watched for longest is
/// given up.
pub const SAMPLES_MAX: usize = 2048;

/// Heads of the lists of samples with the same place in the table.
const HEADS: usize = 4096;
/// Pages that share a head: 2 MiB, so that a block has at most two.
const NEAR_BITS: u32 = 9;
const NONE: u16 = u16::MAX;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// At the program's address: a touch is not seen. The page's block has this many pages.
    Resident(u32),
    /// Elsewhere: a touch is a fault.
    Away,
    /// Without contents, or no longer managed.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    page: u64,
    since_ns: u64,
    /// Whether a touch has been a fault since `since_ns`, as far as is known: until then the eviction may be refused.
    is_away: bool,
    is_used: bool,
    /// The next sample of the list; of an unused one, the next unused one.
    next: u16,
}

/// The pages that are being watched, and how long those before them stayed idle.
#[derive(Debug)]
pub struct Samples {
    samples: Vec<Sample>,
    heads: Vec<u16>,
    unused: u16,
    len: usize,
    /// Where the next look begins.
    cursor: usize,
    times: IdleTimes,
}

impl Default for Samples {
    fn default() -> Self {
        let sample = Sample { page: 0, since_ns: 0, is_away: false, is_used: false, next: NONE };
        let mut all = Self {
            samples: vec![sample; SAMPLES_MAX],
            heads: vec![NONE; HEADS],
            unused: NONE,
            len: 0,
            cursor: 0,
            times: IdleTimes::default(),
        };
        all.clear();
        all
    }
}

impl Samples {
    /// Forgets everything. Allocates nothing.
    pub fn clear(&mut self) {
        self.heads.fill(NONE);
        for (index, sample) in self.samples.iter_mut().enumerate() {
            let next = if index + 1 < SAMPLES_MAX { index as u16 + 1 } else { NONE };
            *sample = Sample { page: 0, since_ns: 0, is_away: false, is_used: false, next };
        }
        (self.unused, self.len, self.cursor) = (0, 0, 0);
        self.times.clear();
    }

    /// The number of pages that are being watched.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no page is being watched.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The idle times of the samples that are over.
    pub fn times(&self) -> &IdleTimes {
        &self.times
    }

    /// How long the pages that are being watched have been idle, as far as is known.
    pub fn idle_ns(&self, now_ns: u64) -> impl Iterator<Item = u64> + '_ {
        let idle = self.samples.iter().filter(|sample| sample.is_used && sample.is_away);
        idle.map(move |sample| now_ns.saturating_sub(sample.since_ns))
    }

    /// Watches `page` from now on. `is_away`: a touch of it is a fault already.
    pub fn add(&mut self, page: PageIndex, now_ns: u64, is_away: bool) {
        if self.unused == NONE {
            self.give_up_oldest(now_ns);
        }
        let (index, head) = (self.unused, head_of(page.0 >> NEAR_BITS));
        self.unused = self.samples[usize::from(index)].next;
        self.samples[usize::from(index)] =
            Sample { page: page.0, since_ns: now_ns, is_away, is_used: true, next: self.heads[head] };
        self.heads[head] = index;
        self.len += 1;
    }

    /// The program touched one of `pages` from `first` on, which were not at its addresses, in blocks of `block_pages`
    /// pages. A touch of a run counts as one touch of each of its blocks.
    pub fn touched(&mut self, first: PageIndex, pages: u32, block_pages: u32, now_ns: u64) {
        let end = first.0 + u64::from(pages);
        if self.len == 0 || pages == 0 {
            return;
        }
        for near in first.0 >> NEAR_BITS..=(end - 1) >> NEAR_BITS {
            let is_within =
                |_, sample: &Sample| sample.page >> NEAR_BITS == near && (first.0..end).contains(&sample.page);
            while let Some(since_ns) = self.take(head_of(near), is_within) {
                self.times.count_touched(now_ns.saturating_sub(since_ns), block_pages);
            }
        }
    }

    /// Looks at up to `count` samples, in turn: those whose pages came back unseen were touched, those whose eviction
    /// was refused are dropped, and those whose pages are gone are given up.
    pub fn look(&mut self, count: usize, now_ns: u64, mut see: impl FnMut(PageIndex) -> Seen) {
        for _ in 0..count.min(SAMPLES_MAX) {
            let index = self.cursor;
            self.cursor = (self.cursor + 1) % SAMPLES_MAX;
            let Sample { page, since_ns, is_away, is_used, .. } = self.samples[index];
            if !is_used {
                continue;
            }
            let idle_ns = now_ns.saturating_sub(since_ns);
            match (see(PageIndex(page)), is_away) {
                (Seen::Away, _) => self.samples[index].is_away = true,
                (Seen::Resident(block_pages), true) => {
                    self.remove(index);
                    self.times.count_touched(idle_ns, block_pages);
                }
                (Seen::Resident(_), false) => self.remove(index),
                (Seen::Gone, is_away) => {
                    self.remove(index);
                    if is_away {
                        self.times.count_given_up(idle_ns);
                    }
                }
            }
        }
    }

    fn give_up_oldest(&mut self, now_ns: u64) {
        let all = self.samples.iter().enumerate().filter(|(_, sample)| sample.is_used);
        let Some((index, oldest)) = all.min_by_key(|(_, sample)| sample.since_ns) else { return };
        if oldest.is_away {
            self.times.count_given_up(now_ns.saturating_sub(oldest.since_ns));
        }
        self.remove(index);
    }

    fn remove(&mut self, index: usize) {
        let page = self.samples[index].page;
        self.take(head_of(page >> NEAR_BITS), |place, _| usize::from(place) == index);
    }

    /// Takes the first sample that is `wanted` out of a list. Returns since when it was watched.
    fn take(&mut self, head: usize, wanted: impl Fn(u16, &Sample) -> bool) -> Option<u64> {
        let (mut before, mut index) = (NONE, self.heads[head]);
        while index != NONE {
            let sample = &self.samples[usize::from(index)];
            let next = sample.next;
            if wanted(index, sample) {
                let since_ns = sample.since_ns;
                match before {
                    NONE => self.heads[head] = next,
                    before => self.samples[usize::from(before)].next = next,
                }
                self.samples[usize::from(index)].is_used = false;
                self.samples[usize::from(index)].next = std::mem::replace(&mut self.unused, index);
                self.len -= 1;
                return Some(since_ns);
            }
            (before, index) = (index, next);
        }
        None
    }
}

fn head_of(near: u64) -> usize {
    (near.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_touch_ends_the_samples_of_its_pages_and_no_others() {
        let mut samples = Samples::default();
        for page in [100, 131, 132, 5000] {
            samples.add(PageIndex(page), 0, true);
        }
        samples.touched(PageIndex(100), 32, 32, 7 * MS);
        assert_eq!((samples.len(), samples.times().touched()), (2, 2));
        samples.touched(PageIndex(100), 32, 32, 8 * MS);
        assert_eq!(samples.times().touched(), 2, "a sample ends once");
        samples.touched(PageIndex(0), 8192, 512, 9 * MS);
        assert!(samples.is_empty());
    }

    #[test]
    fn a_look_finds_touches_that_were_not_seen_and_drops_what_was_refused() {
        let mut samples = Samples::default();
        samples.add(PageIndex(1), 0, false);
        samples.add(PageIndex(2), 0, false);
        samples.add(PageIndex(3), 0, true);
        samples.add(PageIndex(4), 0, true);
        let see = |page: PageIndex| match page.0 {
            1 => Seen::Away,
            2 | 3 => Seen::Resident(1),
            _ => Seen::Gone,
        };
        samples.look(SAMPLES_MAX, 5 * MS, see);
        // 1 has left; 2 was refused; 3 came back; 4 has lost its contents.
        assert_eq!((samples.len(), samples.times().touched()), (1, 1));
        assert_eq!(samples.idle_ns(6 * MS).collect::<Vec<_>>(), [6 * MS]);
        assert_eq!(samples.times().curve(100, samples.idle_ns(6 * MS)).map(|curve| curve.samples()), Some(3));
    }

    #[test]
    fn a_full_table_gives_up_the_oldest() {
        let mut samples = Samples::default();
        for page in 0..3 * SAMPLES_MAX as u64 {
            samples.add(PageIndex(page * 100), page, true);
        }
        assert_eq!(samples.len(), SAMPLES_MAX);
        let curve = samples.times().curve(1, samples.idle_ns(1 << 40)).expect("samples");
        assert_eq!(curve.samples(), 3 * SAMPLES_MAX as u64);
        assert_eq!(samples.idle_ns(1 << 40).min(), Some((1 << 40) - (3 * SAMPLES_MAX as u64 - 1)));
        samples.clear();
        assert!(samples.is_empty() && samples.times().touched() == 0);
    }

    /// A plain list of what is watched, against the table.
    #[test]
    fn the_table_keeps_exactly_what_was_added_and_not_touched() {
        let (mut samples, mut model) = (Samples::default(), Vec::new());
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut touched = 0;
        for step in 0..20_000 {
            let page = draw(50_000);
            if draw(3) > 0 {
                samples.add(PageIndex(page), step, true);
                model.push(page);
                if model.len() > SAMPLES_MAX {
                    model.remove(0);
                }
            } else {
                let count = 1 << draw(10);
                samples.touched(PageIndex(page), count as u32, count as u32, step);
                let before = model.len();
                model.retain(|watched| !(page..page + count).contains(watched));
                touched += before - model.len();
            }
            assert_eq!((samples.len(), samples.times().touched()), (model.len(), touched as u64), "step {step}");
        }
    }
}
