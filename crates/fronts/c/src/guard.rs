// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What surrounds every call: panics become an error, and errors are kept for the thread that made the call.

#![allow(unsafe_code, reason = "exports symbols")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::code::{Code, Failure};

/// The last error of a thread.
struct Last {
    message: CString,
    errno: c_int,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Runs the body of a call.
pub fn call(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    // State that a panic leaves behind is dropped, or is behind a lock that is taken even if it is poisoned.
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        Err(Failure::new(Code::Internal, "the library has a bug, and has said where on standard error; report it"))
    });
    match outcome {
        Ok(number) => number,
        Err(failure) => {
            let code = failure.code as c_int;
            keep(failure);
            code
        }
    }
}

/// Works like [`call`], for calls that have nothing to return.
pub fn done(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    call(|| body().map(|()| Code::Ok as c_int))
}

fn keep(failure: Failure) {
    let mut message = failure.message;
    message.retain(|letter| letter != '\0');
    let message = CString::new(message).unwrap_or_default();
    // A thread that is running its destructors no longer has a last error.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = Some(Last { message, errno: failure.errno });
        }
    });
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_error_message() -> *const c_char {
    const NONE: &CStr = c"";
    let pointer = LAST.try_with(|last| last.borrow().as_ref().map(|last| last.message.as_ptr()));
    pointer.ok().flatten().unwrap_or(NONE.as_ptr())
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_error_errno() -> c_int {
    LAST.try_with(|last| last.borrow().as_ref().map_or(0, |last| last.errno)).unwrap_or(0)
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_error_name(code: c_int) -> *const c_char {
    let known = Code::ALL.iter().find(|known| **known as c_int == code);
    known.copied().unwrap_or(Code::Other).name().as_ptr()
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_probe() -> c_int {
    done(|| aquifer::probe().map_err(|why| Failure::new(Code::Unsupported, why.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        // SAFETY: the message is a string, and this thread makes no call meanwhile.
        unsafe { CStr::from_ptr(aquifer_error_message()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_is_an_error_and_the_next_call_works() {
        assert_eq!(call(|| panic!("planted")), Code::Internal as c_int);
        assert!(message().contains("bug"));
        assert_eq!(call(|| Ok(7)), 7);
        assert!(message().contains("bug"), "a call that succeeds leaves the message");
    }

    #[test]
    fn an_error_is_its_threads_own() {
        assert_eq!(done(|| Err(Failure::argument("mine\0"))), Code::Argument as c_int);
        std::thread::spawn(|| assert_eq!((message(), aquifer_error_errno()), (String::new(), 0))).join().unwrap();
        assert_eq!(message(), "mine");
        let refused = aquifer::Error::System { errno: libc::ENOMEM };
        assert_eq!(done(|| Err(refused.into())), Code::System as c_int);
        assert_eq!(aquifer_error_errno(), libc::ENOMEM);
    }

    #[test]
    fn numbers_and_names_are_each_others() {
        for code in Code::ALL {
            // SAFETY: names are strings that last.
            let name = unsafe { CStr::from_ptr(aquifer_error_name(*code as c_int)) };
            assert_eq!(name, code.name());
        }
        for other in [1, 7, -9, c_int::MIN] {
            // SAFETY: as above.
            assert_eq!(unsafe { CStr::from_ptr(aquifer_error_name(other)) }, Code::Other.name());
        }
    }
}
