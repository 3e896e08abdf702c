// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The buffer of a connection's bodies, which holds a borrower's bytes on their way: it leaves none behind.
//!
//! Its memory goes back to the allocator only when it has been wiped, also where it grows.

/// Empties the buffer, with room for `bytes`. Memory comes when the room is used: a peer that only announces bytes gets
/// none for them.
pub(crate) fn make_room(body: &mut Vec<u8>, bytes: usize) {
    if body.capacity() < bytes {
        put_away(body);
        *body = Vec::with_capacity(bytes);
    }
    body.clear();
}

/// Wipes the buffer and gives its memory back.
pub(crate) fn put_away(body: &mut Vec<u8>) {
    let mut old = std::mem::take(body);
    // All of it, also what longer bodies before have left behind the end of this one.
    old.clear();
    old.resize(old.capacity(), 0);
    // Or the compiler, which sees that nobody reads it again, leaves the line above out.
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
