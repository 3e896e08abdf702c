// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Stackful contexts: thousands of calls of a C function on one thread, each of which may wait for memory at any point.
//!
//! Each context is a future to the executor of the crate `aquifer`. Polling it switches to the context's stack. A
//! library call that would have to wait registers the waker of that poll, and switches back. Later contexts reuse the
//! stacks.
//!
//! A stack with frames of C code is never unwound. Nothing here drops a context that has not ended, except when a panic
//! of the executor itself passes through: the stack is then abandoned with everything on it.

#![allow(unsafe_code, reason = "exports symbols, calls the program's function, and gives up stacks")]

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::future::Future;
use std::pin::Pin;
use std::ptr;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use aquifer::contexts;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::code::{Code, Failure};
use crate::guard::done;
use crate::sized::{self, Growing, SizedPlace};
use crate::space::{self, Space};

/// The allowed sizes of a context's stack. The smallest has room for a signal's frame and some calls.
const STACK_BYTES_MIN: usize = 16 << 10;
const STACK_BYTES_MAX: usize = 1 << 30;
const STACK_BYTES: usize = 64 << 10;

/// The layout of `struct aquifer_context_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "aquifer.h says what they mean")]
pub struct ContextOptions {
    pub size: usize,
    pub stack_bytes: usize,
}

// SAFETY: the first member is the size, of type `usize`; the other one is a number, after which there is no gap.
unsafe impl Growing for ContextOptions {
    const SIZE_MIN: usize = 16;
}

/// The layout of `struct aquifer_contexts_report`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "aquifer.h says what they mean")]
pub struct ContextsReport {
    pub size: usize,
    pub contexts: u64,
    pub in_flight_max: u64,
    pub runs: u64,
}

// SAFETY: the first member is the size, of type `usize`; the others are numbers of eight bytes, without gaps.
unsafe impl Growing for ContextsReport {
    const SIZE_MIN: usize = 32;
}

/// A context's function and its argument.
type Body = extern "C" fn(*mut c_void, usize);

/// The context that runs on this thread. It lives on the context's stack.
struct Running<'y> {
    yielder: &'y Yielder<Waker, ()>,
    /// The waker of the poll in which the context runs.
    waker: RefCell<Waker>,
}

thread_local! {
    /// The context that runs on this thread; null outside contexts.
    static RUNNING: Cell<*const Running<'static>> = const { Cell::new(ptr::null()) };
}

impl Running<'_> {
    /// Lets other contexts run until this one is woken.
    fn give_way(&self) {
        let itself = RUNNING.get();
        let waker = self.yielder.suspend(());
        RUNNING.set(itself);
        *self.waker.borrow_mut() = waker;
    }

    fn waker(&self) -> Waker {
        self.waker.borrow().clone()
    }
}

/// Calls `act` with the context that runs on this thread, if any.
fn with_running<T>(act: impl FnOnce(Option<&Running<'_>>) -> T) -> T {
    let running = RUNNING.get();
    // SAFETY: it is set while the context runs, on whose stack it lives; this code runs on that stack.
    act(unsafe { running.as_ref() })
}

/// Returns whether this code runs in a context.
pub(crate) fn is_in_context() -> bool {
    !RUNNING.get().is_null()
}

/// Stacks that no context uses now.
struct Stacks {
    free: RefCell<Vec<DefaultStack>>,
    bytes: usize,
}

impl Stacks {
    fn take(&self) -> std::io::Result<DefaultStack> {
        let free = self.free.borrow_mut().pop();
        free.map_or_else(|| DefaultStack::new(self.bytes), Ok)
    }
}

/// One context, as the executor sees it.
struct Stackful {
    /// `None` once it has ended.
    coroutine: Option<Coroutine<Waker, (), (), DefaultStack>>,
    stacks: Rc<Stacks>,
}

impl Stackful {
    fn new(stack: DefaultStack, stacks: &Rc<Stacks>, body: Body, argument: *mut c_void, index: usize) -> Self {
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<Waker, ()>, waker| {
            let running = Running { yielder, waker: RefCell::new(waker) };
            RUNNING.set((&raw const running).cast());
            body(argument, index);
        });
        Self { coroutine: Some(coroutine), stacks: Rc::clone(stacks) }
    }
}

impl Future for Stackful {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(coroutine) = &mut self.coroutine else { return Poll::Ready(()) };
        // A context may run contexts of its own.
        let outer = RUNNING.get();
        let result = coroutine.resume(context.waker().clone());
        RUNNING.set(outer);
        match result {
            CoroutineResult::Yield(()) => Poll::Pending,
            CoroutineResult::Return(()) => {
                if let Some(ended) = self.coroutine.take() {
                    self.stacks.free.borrow_mut().push(ended.into_stack());
                }
                Poll::Ready(())
            }
        }
    }
}

impl Drop for Stackful {
    fn drop(&mut self) {
        if let Some(given_up) = &mut self.coroutine {
            // SAFETY: what is on the stack is C's frames and values of this file, which may be leaked; nothing outside
            // refers to them, since `RUNNING` is set only while they run.
            unsafe { given_up.force_reset() };
        }
    }
}

/// Wakes a thread that waits for one thing.
#[derive(Default)]
struct Wakeup {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

impl Wakeup {
    /// Waits until it is set, or until `limit` has passed.
    fn wait(&self, limit: Duration) {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(is_set, limit, |is_set| !*is_set);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// How long a thread waits before it looks again by itself. A choice: rarely needed, since the fetch that it awaits
/// wakes it.
const WAIT_ONCE: Duration = Duration::from_millis(100);

/// Polls until there is an outcome, or until `until`. In a context, other contexts run meanwhile.
pub(crate) fn wait_for<T>(
    until: Option<Instant>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<Result<T, Failure>>,
) -> Result<T, Failure> {
    let wakeup = Arc::new(Wakeup::default());
    loop {
        let waker = with_running(|running| running.map(Running::waker)).unwrap_or_else(|| Arc::clone(&wakeup).into());
        if let Poll::Ready(outcome) = poll(&mut Context::from_waker(&waker)) {
            return outcome;
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Failure::new(Code::Timeout, "it has not ended within the time; wait longer, or close it"));
        }
        if left.is_some() {
            // Nothing wakes a context when its time limit has passed, so it polls.
            with_running(|running| running.is_some().then(|| waker.wake_by_ref()));
        }
        with_running(|running| match running {
            Some(running) => running.give_way(),
            None => wakeup.wait(left.map_or(WAIT_ONCE, |left| left.min(WAIT_ONCE))),
        });
    }
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_contexts_run(
    space: Space,
    count: usize,
    context: Option<Body>,
    argument: *mut c_void,
    options: *const ContextOptions,
    report: *mut ContextsReport,
) -> c_int {
    done(|| {
        let space = space::get(space)?;
        let body = context.ok_or_else(|| Failure::argument("`context` is NULL; give a function"))?;
        // SAFETY: the caller's promise.
        let (options, place) = unsafe { (stack_options(options)?, report_place(report)?) };
        let stacks = Rc::new(Stacks { free: RefCell::default(), bytes: options.stack_bytes });
        let mut refused = None;
        let begin = |index| match stacks.take() {
            Ok(stack) => Some(Stackful::new(stack, &stacks, body, argument, index)),
            Err(error) => {
                refused = Some(error);
                None
            }
        };
        let ran = contexts::run(&space, (0..count).map_while(begin));
        if let Some(place) = place {
            let in_flight_max = ran.in_flight_max as u64;
            place.put(ContextsReport { size: 0, contexts: ran.contexts, in_flight_max, runs: ran.runs });
        }
        refused.map_or(Ok(()), |error| Err(no_stack(&error)))
    })
}

/// # Safety
/// The pointer is as `aquifer.h` says.
unsafe fn stack_options(options: *const ContextOptions) -> Result<ContextOptions, Failure> {
    let initial = ContextOptions { size: size_of::<ContextOptions>(), stack_bytes: STACK_BYTES };
    if options.is_null() {
        return Ok(initial);
    }
    // SAFETY: the caller's promise.
    let options = unsafe { sized::read(options, initial, "options") }?;
    if !(STACK_BYTES_MIN..=STACK_BYTES_MAX).contains(&options.stack_bytes) {
        let why = format!("`stack_bytes` is {}; choose 16 KiB to 1 GiB", options.stack_bytes);
        return Err(Failure::argument(why));
    }
    Ok(options)
}

/// # Safety
/// The pointer is as `aquifer.h` says.
unsafe fn report_place(report: *mut ContextsReport) -> Result<Option<SizedPlace<ContextsReport>>, Failure> {
    // SAFETY: the caller's promise.
    if report.is_null() { Ok(None) } else { unsafe { SizedPlace::new(report, "report") }.map(Some) }
}

fn no_stack(error: &std::io::Error) -> Failure {
    let message = format!("there is no memory for one more stack ({error}); ask for smaller ones, or raise the limits");
    Failure { code: Code::System, message, errno: error.raw_os_error().unwrap_or(libc::ENOMEM) }
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_context_yield() -> c_int {
    with_running(|running| match running {
        None => 0,
        Some(running) => {
            running.waker().wake();
            running.give_way();
            1
        }
    })
}
