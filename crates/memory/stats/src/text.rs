// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Short texts in words of memory that other processes may read during a write (`sequenced.rs`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sequenced::{self, SettleTime};

/// Writes as much of `text` as fits, cut at a character boundary. `words` are sequence, length, bytes. Returns whether
/// the text was written; it is not when another write is in progress.
pub fn write(words: &[AtomicU64], text: &str) -> bool {
    sequenced::write(words, |words| {
        let [length, bytes @ ..] = words else { return };
        let text = &text.as_bytes()[..boundary_at_or_before(text, bytes.len() * 8)];
        length.store(text.len() as u64, Ordering::Relaxed);
        for (word, piece) in bytes.iter().zip(text.chunks(8)) {
            let mut padded = [0; 8];
            padded[..piece.len()].copy_from_slice(piece);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
    })
}

/// Reads a text; `load` gives the word at an index, with Acquire. `None` when a write does not end in time.
///
/// Control characters become question marks: another user may have written the text, and it is shown on terminals.
pub fn read(words: usize, load: impl Fn(usize) -> u64, timeout: &SettleTime) -> Option<String> {
    let bytes = || {
        let length = usize::try_from(load(1)).unwrap_or(0).min((words - 2) * 8);
        let mut bytes = Vec::with_capacity(length + 8);
        for index in 0..length.div_ceil(8) {
            bytes.extend_from_slice(&load(2 + index).to_ne_bytes());
        }
        bytes.truncate(length);
        bytes
    };
    let bytes = sequenced::read(&load, bytes, timeout)?;
    Some(String::from_utf8_lossy(&bytes).replace(char::is_control, "?"))
}

/// The last character boundary at or before `index`: `str::floor_char_boundary` is newer than our oldest compiler.
fn boundary_at_or_before(text: &str, index: usize) -> usize {
    if index >= text.len() {
        return text.len();
    }
    (0..=index).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::sequenced::WAITED_MAX;

    fn room(bytes: usize) -> Vec<AtomicU64> {
        (0..2 + bytes / 8).map(|_| AtomicU64::new(0)).collect()
    }

    fn read_all(words: &[AtomicU64]) -> Option<String> {
        read(words.len(), |index| words[index].load(Ordering::Acquire), &SettleTime::default())
    }

    #[test]
    fn a_text_reads_back_and_a_long_one_is_cut_at_a_character() {
        let words = room(16);
        for (text, kept) in [
            ("", ""),
            ("s3fifo", "s3fifo"),
            ("0123456789abcdefXYZ", "0123456789abcdef"),
            ("0123456789abcdeé", "0123456789abcde"),
        ] {
            assert!(write(&words, text));
            assert_eq!(read_all(&words).as_deref(), Some(kept));
        }
    }

    #[test]
    fn control_characters_are_replaced_when_text_is_read() {
        let words = room(32);
        assert!(write(&words, "a\u{1b}[31mb\n\u{9b}1mc"));
        assert_eq!(read_all(&words).as_deref(), Some("a?[31mb??1mc"));
    }

    #[test]
    fn a_second_writer_gives_up_and_a_dead_writer_is_unreadable() {
        let words = room(16);
        write(&words, "before");
        words[0].fetch_add(1, Ordering::Relaxed);
        assert!(!write(&words, "after"));
        assert_eq!(read_all(&words), None);
    }

    #[test]
    fn any_number_of_dead_writers_is_waited_for_once() {
        let (dead, good) = (room(16), room(16));
        dead[0].store(7, Ordering::Relaxed);
        write(&good, "good");
        let timeout = SettleTime::default();
        let of = |words: &[AtomicU64]| read(words.len(), |index| words[index].load(Ordering::Acquire), &timeout);
        let started = Instant::now();
        assert!((0..10_000).all(|_| of(&dead).is_none()));
        // With a separate time limit for each read, this took 17 s and more.
        assert!(started.elapsed() < 50 * WAITED_MAX, "{:?}", started.elapsed());
        assert_eq!(of(&good).as_deref(), Some("good"));
    }

    #[test]
    fn readers_never_see_a_mixture() {
        let words = room(64);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..20_000 {
                    write(
                        &words,
                        if round % 2 == 0 { "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" } else { "bbbbbbbbbbbbbbbbbbbbbbbbb" },
                    );
                }
            });
            for _ in 0..2000 {
                let Some(text) = read_all(&words) else { continue };
                let first = text.chars().next().unwrap_or('a');
                assert!(text.chars().all(|c| c == first), "{text}");
            }
        });
    }
}
