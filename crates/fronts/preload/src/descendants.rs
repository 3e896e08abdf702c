// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes sure that the programs that this one executes are managed, too: restores the environment entries that they
//! need, if this program leaves them out. A program that cannot be managed is reported once for the whole tree, or
//! refused with EACCES under `--strict`.
//!
//! A program may be executed with an empty environment, or with another `LD_PRELOAD`; this library is then put before
//! the libraries listed there. An existing configuration is kept, since it is that of another `aquifer run`.
//!
//! Runs on the program's threads, also between vfork(2) and execve(2): nothing is allocated from the program's heap.
//! The new environment is on the stack, or in its own mapping if it is long.

#![allow(unsafe_code, reason = "the program's arrays of strings")]

use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use aquifer_pager::abort::say;
use aquifer_pager::ledger::Ledger;
use aquifer_sys::program_file::unmanageable;
use aquifer_sys::raw::syscall;
use aquifer_sys::signals::Blocked;
use aquifer_sys::thread_slot;

use crate::program_memory::{load, string_len};

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const CONFIGURATION: &[u8] = b"AQUIFER_CONFIG=";
/// From most callers, the kernel accepts no more than 2 MiB of strings and pointers; see execve(2).
const ENTRIES_MAX: usize = 256 << 10;
/// Sizes of environments that are built on the stack, in words: those that env(1) and servers pass on, and those of a
/// login session.
const SMALL_WORDS: usize = 256;
const LARGE_WORDS: usize = 2048;

unsafe extern "C" {
    static environ: AtomicPtr<c_void>;
}

/// The data that descendants need.
struct Needs {
    /// The entry `AQUIFER_CONFIG=…` of the environment.
    configuration: CString,
    /// The path of this library.
    library: Vec<u8>,
    /// Whether programs that cannot be managed are refused.
    strict: bool,
    /// The ledger of the whole tree, if there is one.
    ledger: Option<&'static Ledger>,
}

static NEEDS: OnceLock<Needs> = OnceLock::new();

/// Stores the data that descendants need: the configuration as text, and the path of this library.
pub fn prepare(configuration: &str, strict: bool, ledger: Option<&'static Ledger>) {
    let Some(library) = own_path() else { return };
    let entry = [CONFIGURATION, configuration.as_bytes()].concat();
    let Ok(configuration) = CString::new(entry) else { return };
    let _ = NEEDS.set(Needs { configuration, library, strict, ledger });
}

/// Returns the path from which this library was loaded.
fn own_path() -> Option<Vec<u8>> {
    // SAFETY: `Dl_info` is plain data for which all zeros is a value.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address in this library, and a writable structure; the name stays for as long as the library does.
    let name = unsafe {
        if libc::dladdr((prepare as *const ()).cast(), &raw mut found) == 0 || found.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(found.dli_fname)
    };
    Some(name.to_bytes().to_owned())
}

/// Returns the needs, for a call by the program; `None` inside the pager, which executes no programs.
fn needs() -> Option<&'static Needs> {
    if thread_slot::inside() { None } else { NEEDS.get() }
}

/// Which of the needed entries an environment has.
#[derive(Default)]
struct Found {
    entries: usize,
    has_configuration: bool,
    /// Address and length of the text after `LD_PRELOAD=`.
    preload: Option<(usize, usize)>,
    has_library: bool,
}

impl Found {
    /// Returns the number of words for an environment with all needed entries.
    fn words(&self, needs: &Needs) -> usize {
        let theirs = self.preload.map_or(0, |(_, len)| len + 1);
        let text = PRELOAD.len() + needs.library.len() + theirs + 1;
        self.entries + 3 + text.div_ceil(size_of::<usize>())
    }
}

/// Looks through an environment. Returns `None` if it cannot be read: the kernel could not read it either.
fn look(needs: &Needs, environment: usize) -> Option<Found> {
    let mut found = Found::default();
    if environment == 0 {
        return Some(found);
    }
    loop {
        let at = environment.checked_add(found.entries * size_of::<usize>())?;
        let entry: usize = load(at)?;
        if entry == 0 {
            break;
        }
        let text = text_at(entry)?;
        found.has_configuration |= text.starts_with(CONFIGURATION);
        if let Some(value) = text.strip_prefix(PRELOAD) {
            found.preload = Some((value.as_ptr().addr(), value.len()));
            let mut words = value.split(|byte| matches!(byte, b':' | b' '));
            found.has_library = words.any(|word| is_library(word, &needs.library));
        }
        found.entries += 1;
        if found.entries > ENTRIES_MAX {
            return None;
        }
    }
    Some(found)
}

/// Returns whether a word of `LD_PRELOAD` names this library, or that of another release, which another `aquifer run`
/// has named. The loader only warns about a library that it cannot read, and runs the program without it.
fn is_library(word: &[u8], ours: &[u8]) -> bool {
    fn name(path: &[u8]) -> Option<&[u8]> {
        path.rsplit(|byte| *byte == b'/').next()
    }
    // A name without a directory is looked for in the loader's own directories.
    word == ours || name(word) == name(ours) && word.contains(&b'/') && is_readable_file(word)
}

fn is_readable_file(path: &[u8]) -> bool {
    let mut text = [0u8; libc::PATH_MAX as usize];
    if path.len() >= text.len() {
        return false;
    }
    text[..path.len()].copy_from_slice(path);
    let args = [libc::AT_FDCWD as usize, text.as_ptr().expose_provenance(), libc::R_OK as usize, 0, 0, 0];
    // SAFETY: faccessat(2) reads the path, which ends in NUL.
    unsafe { syscall(libc::SYS_faccessat, args) }.is_ok()
}

/// Returns a string of the program.
fn text_at<'a>(start: usize) -> Option<&'a [u8]> {
    let len = string_len(start)?;
    // SAFETY: it was just read to its end, and stays until the caller's system call.
    Some(unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(start), len) })
}

/// Calls `call` with an environment that has all entries that descendants need: `environment` itself if it has them.
pub fn with_environment<T>(environment: usize, call: impl FnOnce(usize) -> T) -> T {
    let Some(needs) = needs() else { return call(environment) };
    let Some(found) = look(needs, environment) else { return call(environment) };
    if found.has_configuration && found.has_library {
        return call(environment);
    }
    let words = found.words(needs);
    if words <= SMALL_WORDS {
        on_stack::<SMALL_WORDS, T>(needs, environment, &found, call)
    } else if words <= LARGE_WORDS {
        on_stack::<LARGE_WORDS, T>(needs, environment, &found, call)
    } else {
        mapped(words, needs, environment, &found, call)
    }
}

#[inline(never)]
fn on_stack<const WORDS: usize, T>(
    needs: &Needs,
    environment: usize,
    found: &Found,
    call: impl FnOnce(usize) -> T,
) -> T {
    let mut words = [0usize; WORDS];
    fill(&mut words, needs, environment, found);
    call(words.as_ptr().expose_provenance())
}

/// Calls `call` with an environment in a mapping outside the program's memory. A child of vfork(2) that executes a
/// program cannot unmap it; the parent does, by [`child_has_left`].
fn mapped<T>(count: usize, needs: &Needs, environment: usize, found: &Found, call: impl FnOnce(usize) -> T) -> T {
    // The call itself most likely fails with ENOMEM as well.
    let Some(start) = map(count, needs, environment, found) else { return call(environment) };
    let before = thread_slot::environment();
    // SAFETY: the head of a mapping that was just made.
    unsafe { head_of(start).write(Head { before, count }) };
    thread_slot::set_environment(start);
    let result = call(start);
    thread_slot::set_environment(before);
    unmap(start, count);
    result
}

/// What precedes an environment in its mapping.
#[repr(C)]
struct Head {
    /// The environment of the call that this one has interrupted, on the same thread; 0 if there is none.
    before: usize,
    /// How many words the environment has.
    count: usize,
}

fn head_of(start: usize) -> *mut Head {
    std::ptr::with_exposed_provenance_mut(start - size_of::<Head>())
}

/// Unmaps the environments that a child of vfork(2) has left mapped, in the parent, after the child has ended or
/// executed a program. `before` is the thread's [environment](thread_slot::environment) before the child was made.
pub fn child_has_left(before: usize) {
    loop {
        let start = thread_slot::environment();
        if start == 0 || start == before {
            return;
        }
        // SAFETY: `mapped` has written it, and no other code has unmapped it.
        let Head { before, count } = unsafe { head_of(start).read() };
        thread_slot::set_environment(before);
        unmap(start, count);
    }
}

/// Maps room for a [`Head`] and an environment. Returns the address of the latter.
fn map(count: usize, needs: &Needs, environment: usize, found: &Found) -> Option<usize> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let args = [0, mapped_bytes(count), protection as usize, flags as usize, usize::MAX, 0];
    // SAFETY: new memory, wherever there is room.
    let start = unsafe { syscall(libc::SYS_mmap, args) }.ok()? + size_of::<Head>();
    // SAFETY: just mapped, zeros, and not shared with anybody.
    let words = unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(start), count) };
    fill(words, needs, environment, found);
    Some(start)
}

fn mapped_bytes(count: usize) -> usize {
    size_of::<Head>() + count * size_of::<usize>()
}

/// Unmaps memory from [`map`] that is no longer used.
fn unmap(start: usize, count: usize) {
    // SAFETY: the caller got it from `map`.
    let _ = unsafe { syscall(libc::SYS_munmap, [start - size_of::<Head>(), mapped_bytes(count), 0, 0, 0, 0]) };
}

/// Writes the pointers, a null pointer, and the text of the first entry. `words` must be zeros, and long enough.
fn fill(words: &mut [usize], needs: &Needs, environment: usize, found: &Found) {
    let (pointers, text) = words.split_at_mut(found.entries + 3);
    pointers[0] = text.as_ptr().expose_provenance();
    let mut next = 1;
    if !found.has_configuration {
        pointers[next] = needs.configuration.as_ptr().expose_provenance();
        next += 1;
    }
    for index in 0..found.entries {
        let entry: usize = load(environment + index * size_of::<usize>()).unwrap_or(0);
        let is_preload = entry != 0 && text_at(entry).is_some_and(|text| text.starts_with(PRELOAD));
        if entry != 0 && !is_preload && next + 1 < pointers.len() {
            pointers[next] = entry;
            next += 1;
        }
    }
    // SAFETY: the same memory as bytes; any bytes are words.
    let bytes = unsafe { std::slice::from_raw_parts_mut(text.as_mut_ptr().cast::<u8>(), size_of_val(text)) };
    let mut at = 0;
    let mut add = |part: &[u8]| {
        // Leaves room for the NUL; another thread may have changed the text since it was measured.
        let len = part.len().min(bytes.len() - 1 - at);
        bytes[at..at + len].copy_from_slice(&part[..len]);
        at += len;
    };
    add(PRELOAD);
    if !found.has_library {
        add(&needs.library);
    }
    if let Some((start, len)) = found.preload {
        if !found.has_library && len > 0 {
            add(b":");
        }
        // SAFETY: it was read in `look`.
        add(unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(start), len) });
    }
}

/// Exchanges the C library's environment for system(3) and popen(3), which use it, for as long as they need it.
///
/// Other threads may use it at the same time: setenv(3) copies its entries, and another system(3) passes it on. An
/// environment that another thread may still use is not freed.
pub fn with_own_environment<T>(call: impl FnOnce() -> T) -> T {
    /// The threads inside this function.
    static USERS: AtomicU32 = AtomicU32::new(0);
    let Some(needs) = needs() else { return call() };
    // SAFETY: the C library's variable, a pointer, which exists for as long as the process.
    let variable = unsafe { &environ };
    // SeqCst, so that a thread that enters after the count below was read finds the restored environment.
    USERS.fetch_add(1, Ordering::SeqCst);
    let before = variable.load(Ordering::SeqCst);
    let environment = before.expose_provenance();
    let lacking = look(needs, environment).filter(|found| !found.has_configuration || !found.has_library);
    let ours = lacking.and_then(|found| {
        let count = found.words(needs);
        map(count, needs, environment, &found).map(|start| (start, count))
    });
    ours.inspect(|(start, _)| variable.store(std::ptr::with_exposed_provenance_mut(*start), Ordering::SeqCst));
    let result = call();
    let is_back = |(start, _): &(usize, usize)| {
        let ours = std::ptr::with_exposed_provenance_mut(*start);
        variable.compare_exchange(ours, before, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    };
    let unused = ours.filter(is_back);
    let was_alone = USERS.fetch_sub(1, Ordering::SeqCst) == 1;
    if let Some((start, count)) = unused.filter(|_| was_alone) {
        unmap(start, count);
    }
    result
}

/// Returns whether the program at `path` may be executed. Returns false if `--strict` refuses it; the errno is then
/// EACCES. Reports the first program of the tree that cannot be managed.
pub fn may_execute(path: usize) -> bool {
    let Some(needs) = needs() else { return true };
    let Some(path) = text_at(path).filter(|path| !path.is_empty()) else { return true };
    // Not Aquifer's own: the stack may be evicted memory.
    let _blocked = Blocked::others();
    judge(needs, Path::new(OsStr::from_bytes(path)))
}

/// Works like [`may_execute`], for execveat(2).
pub fn may_execute_at(directory: usize, path: usize) -> bool {
    let Some(needs) = needs() else { return true };
    let Some(path) = text_at(path) else { return true };
    // Not Aquifer's own: the stack may be evicted memory.
    let _blocked = Blocked::others();
    let path = Path::new(OsStr::from_bytes(path));
    let directory = directory as i32;
    if path.is_absolute() || directory == libc::AT_FDCWD {
        return judge(needs, path);
    }
    let itself = PathBuf::from(format!("/proc/self/fd/{directory}"));
    judge(needs, &if path.as_os_str().is_empty() { itself } else { itself.join(path) })
}

/// Works like [`may_execute`], for a name that is looked up as execvp(3) does.
pub fn may_execute_found(name: *const c_char) -> bool {
    let Some(needs) = needs() else { return true };
    let Some(name) = text_at(name.expose_provenance()).filter(|name| !name.is_empty()) else { return true };
    // Not Aquifer's own: the stack may be evicted memory.
    let _blocked = Blocked::others();
    let name = Path::new(OsStr::from_bytes(name));
    if name.as_os_str().as_bytes().contains(&b'/') {
        return judge(needs, name);
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let found = std::env::split_paths(&search).map(|directory| directory.join(name)).find(|path| {
        let Ok(path) = CString::new(path.clone().into_os_string().into_vec()) else { return false };
        // SAFETY: a string that ends in NUL.
        unsafe { libc::access(path.as_ptr(), libc::X_OK) == 0 }
    });
    found.is_none_or(|path| judge(needs, &path))
}

fn judge(needs: &Needs, path: &Path) -> bool {
    static SAID: AtomicBool = AtomicBool::new(false);
    let Some(why) = unmanageable(path) else { return true };
    let shown = path.to_string_lossy();
    if needs.strict {
        say(&["'", &shown, "' ", why.words(), ", so it would escape the budget: refused (EACCES), as --strict asks"]);
        return false;
    }
    let is_first = !SAID.swap(true, Ordering::Relaxed);
    if is_first && needs.ledger.is_none_or(Ledger::is_first_to_report_unmanaged) {
        say(&[
            "'",
            &shown,
            "' ",
            why.words(),
            ", so its memory is outside of the budget; --strict refuses such programs",
        ]);
    }
    true
}
