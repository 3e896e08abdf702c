// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The settings of a space, in the syntax of `aquifer run`.

use std::path::PathBuf;

use aquifer_core::policy::PolicyName;
use aquifer_core::units::{ByteSize, Order, PAGE_BYTES, REGION_BYTES};
use aquifer_pager::memory_space::{MemorySpace, SpaceSettings};
use aquifer_tiers::{TierSpec, WithFiles, check_levels, open_levels};

use crate::{OpenError, Space};

/// Settings of a [`Space`]. They are checked when it is opened.
///
/// ```
/// # if aquifer::probe().is_err() { return Ok(()) }
/// use aquifer::Space;
///
/// // A chain: compressed memory first, and what does not fit there in a slower tier.
/// let space = Space::builder()
///     .dram("64MiB")
///     .tier("compressed:size=16MiB")
///     .tier("dram:size=256MiB")
///     .policy("s3fifo")
///     .block_size("auto")
///     .open()?;
/// space.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "settings alone open nothing"]
pub struct Builder {
    dram: Option<String>,
    tiers: Vec<String>,
    policy: Option<String>,
    block_size: Option<String>,
    recording: Option<String>,
    directory: Option<PathBuf>,
    refuses_system_calls: bool,
}

impl Builder {
    /// Sets the budget: DRAM for the space's memory, as `aquifer run --dram` takes it in bytes (`"4GiB"`, `"307MiB"`).
    /// At least 16 MiB, and less than 1 TiB. Must be given.
    pub fn dram(mut self, size: impl Into<String>) -> Self {
        self.dram = Some(size.into());
        self
    }

    /// Sets where cold blocks go, as `aquifer run --tier` takes it: `"flash:/nvme/cold"`, `"dram:size=1GiB"`,
    /// `"compressed:"`, `"donor:10.0.0.7:7411"` and others. Up to four times, for a chain of tiers: the fastest first.
    /// At least once.
    pub fn tier(mut self, spec: impl Into<String>) -> Self {
        self.tiers.push(spec.into());
        self
    }

    /// Sets the policy that chooses the blocks to evict, by its name for `aquifer run --policy`. By default `"s3fifo"`.
    pub fn policy(mut self, name: impl Into<String>) -> Self {
        self.policy = Some(name.into());
        self
    }

    /// Sets how many bytes move as one: a power of two from `"4KiB"` to `"2MiB"`, or `"auto"`, the default, to learn it
    /// for each range from its accesses.
    pub fn block_size(mut self, size: impl Into<String>) -> Self {
        self.block_size = Some(size.into());
        self
    }

    /// Records every decision of the space to this file, as `aquifer run --record` does for a program, for
    /// `aquifer-sim replay`. The file is created, or must be empty. A recorded space has its whole budget for blocks:
    /// its tables and buffers come on top, and two buffers of 4 MiB for the recording. If a write to the file fails,
    /// the recording ends with a message and the space goes on.
    pub fn record(mut self, file: impl Into<String>) -> Self {
        self.recording = Some(file.into());
        self
    }

    /// Sets the directory of the space's [named mappings](crate::named). It must exist, on a file system that is
    /// durable and fast: their contents are read from there. By default there are none.
    pub fn named_in(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Makes each thread fetch what it touches itself, instead of a thread of the space. A touch of evicted memory then
    /// takes the thread no wake-ups: 16 us instead of 55 us on a virtual machine with a device of 5 us, and half the
    /// CPU time.
    ///
    /// In return, the space does not [serve system calls](Space::serves_system_calls): a call that is given evicted
    /// memory fails with EFAULT, or does only a part of its work, unless the range is [pinned](crate::Mapping::pin).
    /// A datagram that it has taken may be lost. This also holds for calls that others make for the program: I/O of an
    /// async runtime, `std::io` without a copy, io_uring.
    ///
    /// A touch of evicted memory is a SIGBUS, which a handler of this crate resolves on the thread that touches. (In a
    /// process that cannot have listeners, every space works this way.) So:
    ///
    /// - **Signal masks.** Code that touches the memory must not block SIGBUS: neither a thread that blocks all signals
    ///   because another one waits for them by sigwait(3), nor a signal handler whose `sa_mask` is full. The kernel
    ///   ends a process whose fault it cannot signal. While a fault is resolved, which can take as long as the tier
    ///   does, all other signals of that thread wait.
    /// - **Other handlers.** The crate's handler is installed when the process opens its first space, and passes other
    ///   SIGBUS to the action that it finds then. A program must not replace it later: a crash reporter, for example,
    ///   is started before.
    /// - **Debuggers.** gdb stops at every fault unless you run `handle SIGBUS nostop noprint pass` first.
    /// - **Stacks.** The handler starts on the thread's alternate stack for signals (Rust's threads have one),
    ///   otherwise on the stack of the thread itself or of its coroutine, and takes a few KiB of it; the fault is
    ///   resolved on stacks of the crate. The smallest stack of a thread, `sysconf(_SC_THREAD_STACK_MIN)`, is
    ///   sufficient. At most 256 faults of the process are resolved at a time; more threads wait for one of these.
    /// - **Async runtimes.** A touch blocks the thread, and with it every task that the thread runs, as with listeners.
    ///   [`contexts`](crate::contexts) and [`Mapping::fetch`](crate::Mapping::fetch) do not.
    /// - **Forks.** As in any other space, the memory is not mapped in a forked child: a touch there is a SIGSEGV, and
    ///   calls return [`Error::Forked`](crate::Error::Forked). The child has the handler, and can open spaces.
    pub fn without_system_calls(mut self) -> Self {
        self.refuses_system_calls = true;
        self
    }

    /// Opens the space, with nothing mapped yet.
    pub fn open(self) -> Result<Space, OpenError> {
        let dram = self.dram.ok_or(OpenError::NoDram)?;
        let ByteSize(dram_bytes) = dram.parse().map_err(OpenError::Dram)?;
        let policy = self.policy.as_deref().map(str::parse).transpose().map_err(OpenError::Policy)?;
        let order = order(self.block_size.as_deref().unwrap_or("auto"))?;
        let specs = self.tiers.iter().map(|spec| spec.parse());
        let specs = specs.collect::<Result<Vec<TierSpec>, _>>().map_err(OpenError::of_spec)?;
        if specs.is_empty() {
            return Err(OpenError::NoTier);
        }
        check_levels(&specs).map_err(OpenError::of_spec)?;
        let (tier, files) = WithFiles::over(open_levels(&specs).map_err(OpenError::of_tier)?);
        let settings = SpaceSettings {
            dram_bytes,
            order,
            policy: policy.unwrap_or(PolicyName::ALL[0]),
            tier: Box::new(tier),
            way: None,
            system_calls: !self.refuses_system_calls,
            prefetch: true,
            record: self.recording,
        };
        let memory = MemorySpace::open(settings).map_err(OpenError::of_space)?;
        Ok(Space::of(memory, files, self.directory))
    }
}

/// Parses a block size. `None` means that the space learns it.
fn order(text: &str) -> Result<Option<Order>, OpenError> {
    if text == "auto" {
        return Ok(None);
    }
    let ByteSize(bytes) = text.parse().map_err(OpenError::BlockSize)?;
    if !bytes.is_power_of_two() || !(PAGE_BYTES..=REGION_BYTES).contains(&bytes) {
        let why = format!("'{text}' is not a power of two from 4KiB to 2MiB; choose one, or auto");
        return Err(OpenError::BlockSize(why));
    }
    Ok(Order::new((bytes / PAGE_BYTES).trailing_zeros() as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(builder: Builder) -> String {
        builder.open().map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn settings_that_cannot_be_are_refused_with_the_remedy() {
        let builder = || Space::builder().dram("16MiB").tier("dram:size=16MiB");
        for (bad, why) in [
            (Space::builder().tier("dram:size=16MiB"), "no budget of DRAM; call"),
            (Space::builder().dram("16MiB"), "no tier; call"),
            (builder().dram("much"), "budget of DRAM: 'much' is not a size"),
            (builder().dram("1MiB"), "budget of DRAM: it is below 16 MiB"),
            (builder().dram("1TiB"), "budget of DRAM: it is not below 1 TiB"),
            (builder().policy("mru"), "policy: 'mru' is not a policy; choose one of s3fifo"),
            (builder().block_size("3KiB"), "block size: '3KiB' is not a power of two"),
            (builder().block_size("4MiB"), "block size: '4MiB' is not a power of two"),
            (builder().block_size("small"), "block size: 'small' is not a size"),
            (builder().tier("tape:/dev/st0"), "tier: "),
            (builder().tier("flash:/nowhere/at/all"), "/nowhere/at does not exist"),
            (builder().tier("dram:size=16MiB"), "to the same place"),
            (builder().record("/nowhere/run.rec"), "cannot be recorded to /nowhere/run.rec: No such file"),
        ] {
            let message = refusal(bad);
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn block_sizes_are_powers_of_two() {
        assert_eq!(order("auto").unwrap(), None);
        assert_eq!(order("4KiB").unwrap(), Order::new(0));
        assert_eq!(order("2MiB").unwrap(), Some(Order::MAX));
    }
}
