// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The buffer of a connection's bodies, which holds a borrower's bytes in transit: it leaves none of them behind.
//!
//! Its memory goes back to the allocator only after it has been wiped, even when the buffer grows.

/// Empties the buffer and reserves room for `bytes`. Reserved room takes up memory only as it is filled, so a peer that
/// announces bytes and does not send them uses none.
pub(crate) fn make_room(body: &mut Vec<u8>, bytes: usize) {
    if body.capacity() < bytes {
        wipe_and_free(body);
        *body = Vec::with_capacity(bytes);
    }
    body.clear();
}

/// Wipes the buffer and frees its memory.
pub(crate) fn wipe_and_free(body: &mut Vec<u8>) {
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
        wipe_and_free(&mut body);
        assert_eq!(body.capacity(), 0);
    }
}
