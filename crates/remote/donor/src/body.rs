// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The buffer of a connection's bodies, which holds a borrower's bytes in transit: it leaves none of them behind.
//!
//! Its memory goes back to the allocator only after it has been wiped, also when it grows.

/// Empties the buffer and makes room for `bytes`. The room takes memory only as it is filled: a peer that only
/// announces bytes gets none for them.
pub(crate) fn make_room(body: &mut Vec<u8>, bytes: usize) {
    if body.capacity() < bytes {
        put_away(body);
        *body = Vec::with_capacity(bytes);
    }
    body.clear();
}

/// Wipes the buffer and frees its memory.
pub(crate) fn put_away(body: &mut Vec<u8>) {
    let mut old = std::mem::take(body);
    // The whole buffer, including what longer bodies have left after the end of this one.
    old.clear();
    old.resize(old.capacity(), 0);
    // Otherwise the compiler, which sees that nobody reads the buffer again, omits the line above.
    std::hint::black_box(&old);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_kept_and_grows() {
        let mut body = vec![7; 100];
        make_room(&mut body, 50);
        assert!(body.is_empty() && body.capacity() >= 100);
        make_room(&mut body, 5000);
        assert!(body.is_empty() && body.capacity() >= 5000);
        put_away(&mut body);
        assert_eq!(body.capacity(), 0);
    }
}
