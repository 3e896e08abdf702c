// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Calls of the C library with arguments that the input chooses: handles that are open, closed or invented, pointers
//! that are NULL or not aligned, lengths of any size, numbers without meaning.
//!
//! A pointer that is not NULL points to as much memory as the call may use, since nobody could check that. What must
//! hold: no panic, no crash, only numbers that `aquifer.h` has, a message for each error, and memory that nobody wrote
//! to keeps its bytes.

#![allow(unsafe_code, reason = "calls what C programs call")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use aquifer_c::code::Code;
use aquifer_c::contexts::{ContextOptions, ContextsReport, aquifer_context_yield, aquifer_contexts_run};
use aquifer_c::curve::{Curve, CurvePoint, aquifer_miss_ratio_curve};
use aquifer_c::fetches::{
    Fetch, Range, aquifer_fetch, aquifer_fetch_close, aquifer_fetch_poll, aquifer_fetch_start, aquifer_fetch_wait,
};
use aquifer_c::gathers::{
    Gather, Piece, aquifer_gather, aquifer_gather_close, aquifer_gather_pieces, aquifer_gather_poll,
    aquifer_gather_start, aquifer_gather_wait,
};
use aquifer_c::guard::{aquifer_error_message, aquifer_error_name};
use aquifer_c::hints::{
    Pin, aquifer_block_size, aquifer_evict, aquifer_pattern, aquifer_pin, aquifer_prefetch, aquifer_priority,
    aquifer_ready, aquifer_stream, aquifer_unpin,
};
use aquifer_c::mapping::{
    Mapping, aquifer_address, aquifer_discard, aquifer_length, aquifer_map, aquifer_map_named, aquifer_read,
    aquifer_read_in_place, aquifer_sync, aquifer_unmap, aquifer_write, aquifer_write_in_place,
};
use aquifer_c::queries::{Histogram, aquifer_histogram, aquifer_status, aquifer_temperature};
use aquifer_c::space::{
    Limits, Options, Space, Statistics, aquifer_close, aquifer_open, aquifer_space_histogram, aquifer_space_limits,
    aquifer_space_statistics, aquifer_space_statistics_json,
};

/// Bytes of the mapping. Its second half is never written to.
const BYTES: usize = 64 << 10;
/// Bytes of every buffer: no length of a call is larger, unless it must be refused.
const BUFFER: usize = 256;
/// Bytes of a piece of a gather.
const PIECE: usize = 32;
/// Maximum number of calls of one input, so that an input takes microseconds.
const CALLS_MAX: usize = 24;

/// What all inputs share, since opening a space takes milliseconds. Zero handles where there can be no spaces: then
/// only refusals are tested.
fn shared() -> &'static (Space, Mapping) {
    static SHARED: OnceLock<(Space, Mapping)> = OnceLock::new();
    SHARED.get_or_init(|| {
        let (tier, mut space, mut mapping) = (c"dram:size=16MiB".as_ptr(), Space::default(), Mapping::default());
        let options = Options {
            size: size_of::<Options>(),
            dram: c"16MiB".as_ptr(),
            tiers: &raw const tier,
            tiers_count: 1,
            policy: ptr::null(),
            block_size: c"4KiB".as_ptr(),
            named_in: ptr::null(),
            without_system_calls: 0,
            reserved: 0,
        };
        // SAFETY: all pointers are to what the header says.
        unsafe {
            if aquifer_open(&raw const options, &raw mut space) == 0 {
                assert_eq!(aquifer_map(space, BYTES, &raw mut mapping), 0);
                let bytes = [0x5A_u8; BYTES];
                assert_eq!(aquifer_write(mapping, 0, bytes.as_ptr().cast(), BYTES), 0);
            }
        }
        (space, mapping)
    })
}

/// Takes arguments from an input.
struct Input<'i> {
    rest: &'i [u8],
}

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.rest.split_first().unwrap_or((&0, &[]));
        self.rest = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number: small, at a limit, or any.
    fn number(&mut self) -> usize {
        match self.byte() {
            kind @ 0..=199 => usize::from(kind),
            200..=219 => BYTES / 2 - usize::from(self.byte()),
            220..=229 => BYTES - usize::from(self.byte()),
            230..=239 => usize::MAX - usize::from(self.byte()),
            _ => self.word() as usize,
        }
    }

    /// The length of a buffer: one that it has, or one that no memory has.
    fn len(&mut self) -> usize {
        let len = self.number();
        if len <= BUFFER || len > isize::MAX as usize { len } else { len % (BUFFER + 1) }
    }

    /// A pointer to `place`, or NULL, or, if the call is to refuse that, one that is not aligned.
    fn pointer<T>(&mut self, place: *mut T) -> *mut T {
        match self.byte() {
            0..=19 => ptr::null_mut(),
            20..=29 if align_of::<T>() > 1 => place.wrapping_byte_add(1),
            _ => place,
        }
    }

    /// One of the existing handles, or an invented one.
    fn handle(&mut self, good: u64, others: &[u64]) -> u64 {
        match self.byte() {
            0..=179 => good,
            180..=229 => others.get(usize::from(self.byte()) % others.len().max(1)).copied().unwrap_or(0),
            _ => self.word(),
        }
    }
}

/// The handles that one input has made, some of which it has closed.
#[derive(Default)]
struct Made {
    all: Vec<u64>,
    pins: Vec<Pin>,
    fetches: Vec<Fetch>,
    gathers: Vec<Gather>,
}

extern "C" fn context(_argument: *mut c_void, _index: usize) {
    aquifer_context_yield();
}

/// Makes the calls of one input.
pub fn run(bytes: &[u8]) {
    let (space, mapping) = *shared();
    let mut input = Input { rest: bytes };
    let (mut made, mut buffer) = (Made::default(), Box::new([0_u64; BUFFER / 8]));
    for _ in 0..CALLS_MAX {
        if input.rest.is_empty() {
            break;
        }
        let space = Space { handle: input.handle(space.handle, &made.all) };
        let mapping = Mapping { handle: input.handle(mapping.handle, &made.all) };
        let returned = match input.byte() % 4 {
            0 => copy(&mut input, mapping, &mut buffer),
            1 => hint(&mut input, mapping, &mut made),
            2 => ask(&mut input, space, mapping, &mut buffer),
            _ => overlap(&mut input, space, mapping, &mut made, &mut buffer),
        };
        check(returned);
    }
    let closed = made.gathers.iter().map(|gather| aquifer_gather_close(*gather));
    let closed = closed.chain(made.fetches.iter().map(|fetch| aquifer_fetch_close(*fetch)));
    closed.chain(made.pins.iter().map(|pin| aquifer_unpin(*pin))).for_each(check);
    check_untouched(mapping);
}

/// A number that the header has, with a message if it is an error.
fn check(returned: c_int) {
    if returned < 0 {
        // SAFETY: both are strings, and this thread makes no call meanwhile.
        let (name, message) =
            unsafe { (CStr::from_ptr(aquifer_error_name(returned)), CStr::from_ptr(aquifer_error_message())) };
        let message = message.to_string_lossy();
        assert!(!message.is_empty() && !message.contains('\n'), "{name:?}: {message}");
        assert_ne!(returned, Code::Internal as c_int, "{message}");
        assert!(Code::ALL.iter().any(|code| *code as c_int == returned), "{returned}: {message}");
    } else {
        assert!(returned <= 1, "{returned}");
    }
}

/// What no input may write to.
fn check_untouched(mapping: Mapping) {
    let mut last = [0_u8; 16];
    // SAFETY: the buffer has as many bytes.
    let returned = unsafe { aquifer_read(mapping, BYTES - 16, last.as_mut_ptr().cast(), 16) };
    assert!(mapping.handle == 0 || (returned, last) == (0, [0x5A; 16]), "{returned}: {last:?}");
}

fn copy(input: &mut Input<'_>, mapping: Mapping, buffer: &mut [u64; BUFFER / 8]) -> c_int {
    let (at, len) = (input.number(), input.len());
    let pointer = input.pointer(buffer.as_mut_ptr().cast::<u8>()).cast::<c_void>();
    // A write that succeeds stays within the first half.
    let at_first = if at.saturating_add(len) <= BYTES { at % (BYTES / 2 - BUFFER) } else { at };
    let mut address = ptr::null_mut();
    let mut bytes = 0_usize;
    // SAFETY: buffers have as many bytes as a length that is not refused.
    unsafe {
        match input.byte() % 8 {
            6 => aquifer_write_in_place(mapping, at_first, pointer, len),
            7 => aquifer_sync(mapping, at, len),
            0 => aquifer_read(mapping, at, pointer, len),
            1 => aquifer_write(mapping, at_first, pointer, len),
            2 => aquifer_read_in_place(mapping, at, pointer, len),
            3 => aquifer_address(mapping, input.pointer(&raw mut address)),
            4 => aquifer_length(mapping, input.pointer(&raw mut bytes)),
            _ => {
                let start = at_first % 4096 * 4096;
                aquifer_discard(mapping, if start < BYTES / 2 { start } else { at | 1 }, len.min(4096))
            }
        }
    }
}

fn hint(input: &mut Input<'_>, mapping: Mapping, made: &mut Made) -> c_int {
    let (start, len, number) = (input.number(), input.number(), c_int::from(input.byte() as i8 % 4));
    let mut pin = Pin::default();
    match input.byte() % 9 {
        7 => aquifer_priority(mapping, start, len, number),
        8 => aquifer_block_size(mapping, start, len, input.number()),
        0 => aquifer_prefetch(mapping, start, len, number),
        1 => aquifer_evict(mapping, start, len),
        2 => aquifer_stream(mapping, start, len),
        3 => aquifer_pattern(mapping, start, len, number),
        4 => aquifer_ready(mapping, start, len),
        5 => aquifer_unpin(Pin { handle: input.handle(made.pins.pop().unwrap_or_default().handle, &made.all) }),
        _ => {
            // SAFETY: the place lives until the call has ended.
            let returned = unsafe { aquifer_pin(mapping, start, len, input.pointer(&raw mut pin)) };
            if returned == 0 {
                made.all.push(pin.handle);
                made.pins.push(pin);
            }
            returned
        }
    }
}

fn ask(input: &mut Input<'_>, space: Space, mapping: Mapping, buffer: &mut [u64; BUFFER / 8]) -> c_int {
    let (start, len, capacity) = (input.number(), input.number(), input.len());
    // Runs have up to 32 bytes.
    let runs = if capacity > BUFFER { capacity } else { capacity % (BUFFER / 32 + 1) };
    let (mut histogram, mut count) = (Histogram::default(), 0_usize);
    let size = input.number();
    let mut limits = Limits { size, prefetch_bytes_max: 0, pin_bytes_max: 0, serves_system_calls: 0, reserved: 0 };
    let (pointer, count) = (input.pointer(buffer.as_mut_ptr()), input.pointer(&raw mut count));
    // SAFETY: buffers have as many bytes as a length that is not refused; a size is what the struct has, or refused.
    unsafe {
        match input.byte() % 10 {
            8 if size <= size_of::<Curve>() => {
                let mut curve =
                    Curve { size, samples: 0, measured_ns: 0, content_bytes: 0, fetch_ns: 0, least_dram_bytes: 0 };
                let (loss, points) = (f64::from_bits(input.word()), pointer.cast::<CurvePoint>());
                aquifer_miss_ratio_curve(space, loss, start as u64, input.pointer(&raw mut curve), points, runs, count)
            }
            // The space has no directory: every name is refused.
            9 => {
                let name = [input.byte(), input.byte(), 0];
                aquifer_map_named(space, input.pointer(name.as_ptr().cast_mut().cast()), len, pointer.cast())
            }
            0 => aquifer_status(mapping, start, len, pointer.cast(), runs, count),
            1 => aquifer_temperature(mapping, start, len, pointer.cast(), runs, count),
            2 => aquifer_histogram(mapping, start, len, input.pointer(&raw mut histogram)),
            3 => aquifer_space_histogram(space, input.pointer(&raw mut histogram)),
            4 if size <= size_of::<Limits>() => aquifer_space_limits(space, input.pointer(&raw mut limits)),
            5 if size <= BUFFER => {
                buffer[0] = size as u64;
                aquifer_space_statistics(space, input.pointer(buffer.as_mut_ptr().cast::<Statistics>()))
            }
            6 => aquifer_close(Space { handle: mapping.handle }),
            _ => aquifer_space_statistics_json(space, pointer.cast(), capacity, count),
        }
    }
}

fn overlap(
    input: &mut Input<'_>,
    space: Space,
    mapping: Mapping,
    made: &mut Made,
    buffer: &mut [u64; BUFFER / 8],
) -> c_int {
    let (start, len, count) = (input.number(), input.len(), input.number());
    let ranges: [Range; 3] = std::array::from_fn(|_| Range { start: input.number(), len: input.number() });
    let few = if count > isize::MAX as usize { count } else { count % 4 };
    let (mut fetch, mut gather) = (Fetch::default(), Gather::default());
    let fetch_handle = input.handle(made.fetches.last().map_or(0, |fetch| fetch.handle), &made.all);
    let gather_handle = input.handle(made.gathers.last().map_or(0, |gather| gather.handle), &made.all);
    // Destinations may overlap, which the calls refuse.
    let mut destinations = [0_u8; 4 * PIECE];
    let pieces: [Piece; 3] = std::array::from_fn(|index| Piece {
        offset: input.number(),
        into: match input.byte() {
            0..=8 => ptr::null_mut(),
            byte @ 9..=39 => destinations.as_mut_ptr().wrapping_add(usize::from(byte)).cast(),
            _ => destinations.as_mut_ptr().wrapping_add(index * PIECE).cast(),
        },
        len: if input.byte() < 9 { usize::MAX } else { PIECE },
    });
    let overlaps = |few: usize| {
        let used = pieces.get(..few).unwrap_or(&pieces);
        used.iter()
            .enumerate()
            .any(|(index, one)| used[..index].iter().any(|other| one.into.addr().abs_diff(other.into.addr()) < PIECE))
    };
    let indices = [start, ranges[0].start, 7];
    let options = ContextOptions { size: 16, stack_bytes: input.number() };
    let mut report = ContextsReport { size: 32, contexts: 0, in_flight_max: 0, runs: 0 };
    // SAFETY: as in `ask`; a gather that is started is closed before its destinations are gone, below.
    unsafe {
        match input.byte() % 12 {
            0 => aquifer_fetch(mapping, start, len),
            1 => {
                let returned = aquifer_fetch_start(mapping, ranges.as_ptr(), few, input.pointer(&raw mut fetch));
                if returned == 0 {
                    made.all.push(fetch.handle);
                    made.fetches.push(fetch);
                }
                returned
            }
            2 => aquifer_fetch_poll(Fetch { handle: fetch_handle }),
            3 => aquifer_fetch_wait(Fetch { handle: fetch_handle }, i64::from(input.byte() as i8).min(0) + 100),
            4 => aquifer_fetch_close(made.fetches.pop().unwrap_or(Fetch { handle: fetch_handle })),
            5 => {
                let indices = input.pointer(indices.as_ptr().cast_mut());
                aquifer_gather(
                    mapping,
                    count,
                    indices,
                    few,
                    input.pointer(buffer.as_mut_ptr().cast::<u8>()).cast(),
                    len,
                )
            }
            6 => {
                let returned = aquifer_gather_pieces(mapping, pieces.as_ptr(), few);
                assert!(returned < 0 || !overlaps(few), "two destinations overlap: {pieces:?}");
                returned
            }
            7 => {
                let returned = aquifer_gather_start(mapping, pieces.as_ptr(), few, input.pointer(&raw mut gather));
                if returned == 0 {
                    assert!(!overlaps(few), "two destinations overlap: {pieces:?}");
                    check(aquifer_gather_poll(gather));
                    check(aquifer_gather_wait(gather));
                    made.all.push(gather.handle);
                    made.gathers.push(gather);
                }
                returned
            }
            8 => aquifer_gather_poll(Gather { handle: gather_handle }),
            9 => aquifer_gather_close(made.gathers.pop().unwrap_or(Gather { handle: gather_handle })),
            10 => {
                let body = (input.byte() > 9).then_some(context as extern "C" fn(*mut c_void, usize));
                let options = if input.byte() < 128 { ptr::null() } else { &raw const options };
                aquifer_contexts_run(space, count % 4, body, ptr::null_mut(), options, input.pointer(&raw mut report))
            }
            _ => aquifer_unmap(Mapping { handle: fetch_handle }),
        }
    }
}
