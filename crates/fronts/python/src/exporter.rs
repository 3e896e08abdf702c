// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The buffer protocol: `memoryview(mapping)`, and arrays over it.
//!
//! The limited API has `Py_buffer` and the two slots for it from CPython 3.11 on, and pyo3 offers them only from that
//! version on. The interpreters of 3.9 and 3.10 take the slots as well, with the same numbers and the same struct,
//! which the stable ABI of 3.11 then fixed. So this file makes its own class that has nothing but these two slots, and
//! the Python class inherits from it and from [`Mapping`]. It calls no function that the stable ABI of 3.9 lacks.
//!
//! A consumer that takes a pointer and gives the buffer back at once, while it goes on to use the pointer, would use
//! memory that is unmapped after `close()`. `numpy.ndarray(buffer=mapping)` does that. Such a consumer asks for bytes
//! without their format; it is refused, with the remedy. A memoryview asks for the format, and keeps the buffer.

#![allow(unsafe_code, reason = "the slots are functions with Python's calling convention")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::mapping::Mapping;

/// The numbers of the slots and flags, as in the headers of CPython (`typeslots.h`, `pybuffer.h`).
const BF_GETBUFFER: c_int = 1;
const BF_RELEASEBUFFER: c_int = 2;
const BUF_FORMAT: c_int = 0x4;
const BUF_STRIDES: c_int = 0x18;

/// The layout of CPython's `Py_buffer`.
#[repr(C)]
struct Buffer {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: isize,
    itemsize: isize,
    readonly: c_int,
    ndim: c_int,
    format: *const c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

/// Makes the class.
pub fn class(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let get: unsafe extern "C" fn(*mut ffi::PyObject, *mut Buffer, c_int) -> c_int = get;
    let release: unsafe extern "C" fn(*mut ffi::PyObject, *mut Buffer) = release;
    let mut slots = [
        ffi::PyType_Slot { slot: BF_GETBUFFER, pfunc: get as *mut c_void },
        ffi::PyType_Slot { slot: BF_RELEASEBUFFER, pfunc: release as *mut c_void },
        ffi::PyType_Slot { slot: 0, pfunc: ptr::null_mut() },
    ];
    let mut spec = ffi::PyType_Spec {
        name: c"aquifer._native.Exporter".as_ptr(),
        // That of `object`, so that a class can inherit both from this one and from one with fields.
        basicsize: 0,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE) as c_uint,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: `spec` and `slots` live until the call returns, which copies them; the name is static, as older versions
    // need it. The functions have the types of getbufferproc and releasebufferproc. The interpreter's lock is held.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&raw mut spec)) }
}

/// Returns the mapping of an object whose class inherits from this exporter and from [`Mapping`].
///
/// # Safety
/// `this` is an object, and the interpreter's lock is held.
unsafe fn mapping<'py>(py: Python<'py>, this: *mut ffi::PyObject) -> PyResult<Bound<'py, Mapping>> {
    // SAFETY: the caller's promise.
    let this = unsafe { Bound::from_borrowed_ptr(py, this) };
    Ok(this.cast_into::<Mapping>()?)
}

/// Fills in a buffer, or raises.
unsafe extern "C" fn get(this: *mut ffi::PyObject, view: *mut Buffer, flags: c_int) -> c_int {
    // SAFETY: the interpreter calls slots with its lock held.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: `this` is the object whose slot is called.
    match unsafe { mapping(py, this) }.and_then(|mapping| exported(&mapping, flags)) {
        Ok((address, len)) => {
            // SAFETY: `view` is a `Py_buffer` of the caller's, to be filled in. The new reference to `this` in `obj`
            // is the caller's; it keeps the mapping for as long as the buffer is in use.
            unsafe {
                ffi::Py_INCREF(this);
                view.write(filled(this, ptr::with_exposed_provenance_mut(address), len));
                // As PyBuffer_FillInfo does: shape and strides of a run of bytes are fields of the buffer itself.
                (*view).format = c"B".as_ptr();
                (*view).shape = &raw mut (*view).len;
                if flags & BUF_STRIDES == BUF_STRIDES {
                    (*view).strides = &raw mut (*view).itemsize;
                }
            }
            0
        }
        Err(refused) => {
            refused.restore(py);
            // SAFETY: as above; after a refusal, `obj` is null.
            unsafe { (*view).obj = ptr::null_mut() };
            -1
        }
    }
}

fn exported(mapping: &Bound<'_, Mapping>, flags: c_int) -> PyResult<(usize, usize)> {
    if flags & BUF_FORMAT == 0 {
        let why = "give a memoryview of the mapping instead, memoryview(mapping); for an array, call mapping.array";
        return Err(PyBufferError::new_err(why));
    }
    mapping.get().export(mapping.py())
}

fn filled(this: *mut ffi::PyObject, buf: *mut c_void, len: usize) -> Buffer {
    Buffer {
        buf,
        obj: this,
        // A mapping has at most 1 TiB.
        len: len as isize,
        itemsize: 1,
        readonly: 0,
        ndim: 1,
        format: ptr::null(),
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        suboffsets: ptr::null_mut(),
        internal: ptr::null_mut(),
    }
}

/// Takes a buffer back. The interpreter gives up the reference in `obj` afterwards.
unsafe extern "C" fn release(this: *mut ffi::PyObject, _view: *mut Buffer) {
    // SAFETY: as in `get`.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: as in `get`.
    if let Ok(mapping) = unsafe { mapping(py, this) } {
        mapping.get().lifetime().release();
    }
}
