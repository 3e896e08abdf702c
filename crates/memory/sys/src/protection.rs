// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What is mapped in this process, and its protection: /proc/self/maps, see proc_pid_maps(5).
//!
//! Allocates; not for the fault path.

use std::fs::File;
use std::io::{BufRead, BufReader};

use crate::raw::Errno;

/// A range of addresses, all of whose pages have the same protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its first address.
    pub start: usize,
    /// One past its last address.
    pub end: usize,
    /// In the form of mprotect(2).
    pub protection: i32,
}

/// The protection of `start..end`, in order and without gaps. EFAULT if part of the range is not mapped, EIO if the
/// kernel does not provide the list.
pub fn of(start: usize, end: usize) -> Result<Vec<Part>, Errno> {
    without_gaps(mapped(start, end)?, start, end)
}

/// The mapped parts of `start..end`, in order: one for each mapping of the kernel's. EIO if it does not provide the
/// list.
pub fn mapped(start: usize, end: usize) -> Result<Vec<Part>, Errno> {
    among(list()?, start, end)
}

/// `start..end` and the unmapped addresses on both sides of it. EIO if the kernel does not provide the list.
pub fn with_gaps_around(start: usize, end: usize) -> Result<(usize, usize), Errno> {
    around(list()?, start, end)
}

fn list() -> Result<impl BufRead, Errno> {
    // /proc/self/maps belongs to the main thread, and is empty once that thread has ended.
    File::open("/proc/thread-self/maps").map(BufReader::new).map_err(|_| Errno(libc::EIO))
}

fn parts_of(maps: impl BufRead) -> impl Iterator<Item = Result<Part, Errno>> {
    maps.lines().map(|line| line.ok().and_then(|line| part_of(&line)).ok_or(Errno(libc::EIO)))
}

fn among(maps: impl BufRead, start: usize, end: usize) -> Result<Vec<Part>, Errno> {
    let mut parts = Vec::new();
    for part in parts_of(maps) {
        let part = part?;
        if part.start >= end {
            break;
        }
        // Mappings can merge while the list is read; the merged mapping then repeats addresses that were listed before.
        let reached = parts.last().map_or(start, |last: &Part| last.end);
        if part.end > reached {
            parts.push(Part { start: part.start.max(reached), end: part.end.min(end), ..part });
        }
    }
    Ok(parts)
}

fn around(maps: impl BufRead, start: usize, end: usize) -> Result<(usize, usize), Errno> {
    let (mut low, mut high) = (0, usize::MAX);
    for part in parts_of(maps) {
        let part = part?;
        if part.start >= end {
            high = part.start;
            break;
        }
        if part.start < start {
            low = part.end.min(start);
        }
        if part.end > end {
            high = end;
            break;
        }
    }
    Ok((low, high))
}

fn without_gaps(parts: Vec<Part>, start: usize, end: usize) -> Result<Vec<Part>, Errno> {
    let mut reached = start;
    for part in &parts {
        if part.start != reached {
            break;
        }
        reached = part.end;
    }
    if reached >= end { Ok(parts) } else { Err(Errno(libc::EFAULT)) }
}

/// Parses one line, such as `7f0000000000-7f0000021000 rw-p 00000000 00:00 0`.
fn part_of(line: &str) -> Option<Part> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let letters = rest.as_bytes().get(..3)?;
    let right = |index: usize, letter: u8, right: i32| if letters[index] == letter { right } else { 0 };
    let protection =
        right(0, b'r', libc::PROT_READ) | right(1, b'w', libc::PROT_WRITE) | right(2, b'x', libc::PROT_EXEC);
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    Some(Part { start: address(start)?, end: address(end)?, protection })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
        1000-3000 r-xp 00000000 08:01 12 /bin/a b\n\
        5000-7000 rw-p 00000000 00:00 0 \n\
        7000-8000 ---p 00000000 00:00 0 \n\
        8000-a000 r--p 00000000 00:00 0 [anon: x]\n";

    #[test]
    fn parts_are_cut_to_the_range_and_gaps_are_an_error() {
        let parts = |start, end| without_gaps(among(MAPS.as_bytes(), start, end)?, start, end);
        let part = |start, end, protection| Part { start, end, protection };
        let (read, write) = (libc::PROT_READ, libc::PROT_WRITE);
        assert_eq!(
            parts(0x6000, 0x9000),
            Ok(vec![part(0x6000, 0x7000, read | write), part(0x7000, 0x8000, 0), part(0x8000, 0x9000, read)])
        );
        assert_eq!(parts(0x1000, 0x3000), Ok(vec![part(0x1000, 0x3000, read | libc::PROT_EXEC)]));
        for (start, end) in [(0x0, 0x2000), (0x2000, 0x6000), (0x8000, 0xb000), (0xb000, 0xc000)] {
            assert_eq!(parts(start, end), Err(Errno(libc::EFAULT)), "{start:x}..{end:x}");
        }
        assert_eq!(among(&b"what\n"[..], 0x1000, 0x2000), Err(Errno(libc::EIO)));
    }

    #[test]
    fn gaps_are_left_out_or_added() {
        let mapped = among(MAPS.as_bytes(), 0x2000, 0x6000).expect("a list");
        assert_eq!(
            mapped.iter().map(|part| (part.start, part.end)).collect::<Vec<_>>(),
            [(0x2000, 0x3000), (0x5000, 0x6000)]
        );
        let around = |start, end| around(MAPS.as_bytes(), start, end);
        assert_eq!(around(0x5000, 0x7000), Ok((0x3000, 0x7000)));
        assert_eq!(around(0x1000, 0x3000), Ok((0, 0x5000)));
        assert_eq!(around(0x1800, 0x2800), Ok((0x1800, 0x2800)));
        assert_eq!(around(0x8000, 0xa000), Ok((0x8000, usize::MAX)));
        assert_eq!(around(0x3800, 0x4000), Ok((0x3000, 0x5000)));
    }

    #[test]
    fn a_thread_may_write_to_its_stack() {
        let word = 0u64;
        let place = (&raw const word).addr();
        assert!(
            of(place & !4095, (place & !4095) + 4096).is_ok_and(|parts| parts[0].protection & libc::PROT_WRITE != 0)
        );
    }
}
