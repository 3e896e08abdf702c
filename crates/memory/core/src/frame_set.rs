// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A set of frame numbers, as a tree of bits: each level records which words of the level below are not empty.
//!
//! Pure, and allocation-free except in `new`, `full`, `make_room` and `extend`. Every other call takes a few steps,
//! regardless of the number of frames, but for a `take` that widens the window.

const WORD: usize = u64::BITS as usize;
/// How many of the latest insertions are remembered.
const RECENT_MAX: usize = 8;
/// The window's size at first, in frames.
const WINDOW_MIN: usize = 1024;
/// The window is widened while less than `1 / FREE_PART` of its frames are members: then runs of neighbours are short.
const FREE_PART: usize = 4;

/// Each take continues from the previous one, so that frames taken one after the other are neighbours wherever possible
/// and one kernel call can move them all. It does so within a *window* of the lowest numbers, since each frame that was
/// ever used takes an entry of the kernel's page tables, and one of ours.
#[derive(Debug)]
pub(crate) struct FrameSet {
    /// The members' bits first; the last level is a single word.
    levels: Vec<Box<[u64]>>,
    /// Where the search starts: one past the frame that was taken last.
    next: usize,
    len: usize,
    /// Numbers below this are taken while there are enough of them.
    window: usize,
    /// Members below the window's end.
    within: usize,
    /// The latest insertions, the newest at `newest`. They may no longer be members.
    recent: [Option<u32>; RECENT_MAX],
    newest: usize,
}

impl FrameSet {
    /// An empty set with room for the numbers below `frames`.
    pub(crate) fn new(frames: u32) -> Self {
        let levels = levels(frames);
        Self { levels, next: 0, len: 0, window: WINDOW_MIN, within: 0, recent: [None; RECENT_MAX], newest: 0 }
    }

    /// A set with all numbers below `frames`.
    pub(crate) fn full(frames: u32) -> Self {
        let mut set = Self::new(frames);
        set.extend(0, frames);
        set
    }

    /// Makes room for the numbers below `frames`, if there is less. Allocates.
    pub(crate) fn make_room(&mut self, frames: u32) {
        let mut levels = levels(frames);
        if levels[0].len() > self.levels[0].len() {
            levels[0][..self.levels[0].len()].copy_from_slice(&self.levels[0]);
            self.levels = levels;
            self.summarise();
        }
    }

    /// Inserts the numbers `from..to`, none of which is a member, and makes room for them. Allocates.
    pub(crate) fn extend(&mut self, from: u32, to: u32) {
        self.make_room(to);
        let (mut at, to) = (from as usize, to as usize);
        while at < to {
            let end = ((at / WORD + 1) * WORD).min(to);
            let bits = (u64::MAX >> (WORD - (end - at))) << (at % WORD);
            assert!(self.levels[0][at / WORD] & bits == 0, "a frame is in a set once");
            self.levels[0][at / WORD] |= bits;
            self.len += end - at;
            at = end;
        }
        self.within = self.count_within();
        self.summarise();
    }

    /// Sets the bits of the upper levels to match the lowest one.
    fn summarise(&mut self) {
        for level in 1..self.levels.len() {
            let (below, above) = self.levels.split_at_mut(level);
            for (at, _) in below[level - 1].iter().enumerate().filter(|(_, word)| **word != 0) {
                above[0][at / WORD] |= 1 << (at % WORD);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the bits.
    pub(crate) fn bytes(&self) -> u64 {
        self.levels.iter().map(|words| size_of_val(&**words) as u64).sum()
    }

    pub(crate) fn insert(&mut self, index: u32) {
        assert!(!self.contains(index), "a frame is in a set once");
        let mut at = index as usize;
        for words in &mut self.levels {
            let before = words[at / WORD];
            words[at / WORD] |= 1 << (at % WORD);
            if before != 0 {
                break; // The levels above have this bit already.
            }
            at /= WORD;
        }
        self.len += 1;
        self.within += usize::from((index as usize) < self.window);
        self.newest = (self.newest + 1) % RECENT_MAX;
        self.recent[self.newest] = Some(index);
    }

    /// Removes and returns the next member after the one that was taken last or, at the end of the window, the first
    /// one.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let index = self.next_within().or_else(|| self.at_least(0))?;
        self.remove(index);
        self.next = index + 1;
        Some(index as u32)
    }

    /// The next member in the window, which is widened at its end if few of its numbers are members.
    fn next_within(&mut self) -> Option<usize> {
        loop {
            let next = self.at_least(self.next).filter(|index| *index < self.window);
            if next.is_some() || self.within * FREE_PART >= self.window || self.window >= self.levels[0].len() * WORD {
                return next;
            }
            self.window *= 2;
            self.within = self.count_within();
        }
    }

    fn count_within(&self) -> usize {
        self.levels[0].iter().take(self.window / WORD).map(|word| word.count_ones() as usize).sum()
    }

    /// The most recently inserted member, if it is remembered; otherwise any member.
    pub(crate) fn take_newest(&mut self) -> Option<u32> {
        for _ in 0..RECENT_MAX {
            let index = self.recent[self.newest].take();
            self.newest = (self.newest + RECENT_MAX - 1) % RECENT_MAX;
            if let Some(index) = index.filter(|index| self.contains(*index)) {
                self.remove(index as usize);
                return Some(index);
            }
        }
        self.take()
    }

    fn contains(&self, index: u32) -> bool {
        self.levels[0][index as usize / WORD] & 1 << (index as usize % WORD) != 0
    }

    fn remove(&mut self, index: usize) {
        let mut at = index;
        for words in &mut self.levels {
            words[at / WORD] &= !(1 << (at % WORD));
            if words[at / WORD] != 0 {
                break;
            }
            at /= WORD;
        }
        self.len -= 1;
        self.within -= usize::from(index < self.window);
    }

    /// The lowest member from `from` on.
    fn at_least(&self, from: usize) -> Option<usize> {
        let mut at = from;
        for (level, words) in self.levels.iter().enumerate() {
            let ahead = words.get(at / WORD)? & (u64::MAX << (at % WORD));
            if ahead != 0 {
                let found = at / WORD * WORD + ahead.trailing_zeros() as usize;
                let below = self.levels[..level].iter().rev();
                return Some(below.fold(found, |at, words| at * WORD + words[at].trailing_zeros() as usize));
            }
            at = at / WORD + 1;
        }
        None
    }
}

/// Empty levels with room for the numbers below `frames`.
fn levels(frames: u32) -> Vec<Box<[u64]>> {
    let sizes = std::iter::successors(Some((frames as usize).div_ceil(WORD).max(1)), |words| {
        (*words > 1).then(|| words.div_ceil(WORD))
    });
    sizes.map(|words| vec![0; words].into_boxed_slice()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set_whose_members_come_in_order(
            frames in prop_oneof![1..70u32, 4000..4200u32, 262_100..262_200u32],
            steps in proptest::collection::vec((any::<u32>(), 0..4u8), 0..400),
        ) {
            let mut set = FrameSet::new(frames);
            let mut model = BTreeSet::new();
            let mut next = 0;
            for (number, kind) in steps {
                let index = number % frames;
                if kind < 2 && model.insert(index) {
                    set.insert(index);
                } else if kind == 2 {
                    let (following, first) = (model.range(next..).next().copied(), model.first().copied());
                    let taken = set.take();
                    prop_assert!(taken == following.or(first) || taken == first, "{taken:?} after {next}");
                    next = taken.map_or(next, |index| index + 1);
                    taken.map(|index| model.remove(&index));
                } else if kind == 3 {
                    let taken = set.take_newest();
                    prop_assert_eq!(taken.is_some(), !model.is_empty());
                    // A remembered number may no longer be a member; then any member is taken.
                    next = set.next as u32;
                    prop_assert!(taken.is_none_or(|index| model.remove(&index)));
                }
                prop_assert_eq!(set.len(), model.len());
            }
        }
    }

    #[test]
    fn few_numbers_are_used_by_those_who_give_them_back() {
        let mut set = FrameSet::full(100_000);
        let mut held = std::collections::VecDeque::new();
        let mut reached = 0;
        for turn in 0..300_000 {
            let taken = set.take().expect("most are members");
            reached = reached.max(taken);
            held.push_back(taken);
            if held.len() > 5000 {
                set.insert(held.pop_front().expect("it is not empty"));
            }
            let follows = held.len() < 2 || held[held.len() - 2] + 1 == taken;
            assert!(follows || taken == 0 || turn < 10_000, "{taken}: returned in order, they are taken in order");
        }
        assert!(reached < 8192, "{reached}");
        // All of them can be in use at once.
        let rest = std::iter::from_fn(|| set.take()).count();
        assert_eq!(rest + held.len(), 100_000);
    }

    #[test]
    fn the_newest_comes_first() {
        let mut set = FrameSet::full(1000);
        let taken: Vec<_> = (0..3).filter_map(|_| set.take()).collect();
        taken.iter().for_each(|index| set.insert(*index));
        assert_eq!((set.take_newest(), set.take_newest(), set.take_newest()), (Some(2), Some(1), Some(0)));
        assert_eq!(set.take(), Some(3));
    }
}
