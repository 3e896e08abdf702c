// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs before the program's `main`: reads the configuration and prepares everything, but registers nothing.
//!
//! Without a configuration in the environment the library does nothing at all.

#![allow(unsafe_code, reason = "the dynamic linker's tables of constructors and of program headers")]

use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use aquifer_config::{BlockSize, Config, Exchange};
use aquifer_core::units::{ByteSize, Order, PAGE_BYTES};
use aquifer_pager::abort::{refuse_to_start, say};
use aquifer_pager::exchange::Way;
use aquifer_pager::family::Family;
use aquifer_pager::ledger::{self, Ledger};
use aquifer_pager::{Adopter, Owner, Settings};
use aquifer_stats::{Counters, Gauge, Text};
use aquifer_sys::own_descriptors::protect;
use aquifer_sys::raw::Errno;
use aquifer_sys::signals::Blocked;
use aquifer_sys::thread_slot::Inside;
use aquifer_sys::uffd;
use aquifer_tiers::TierSpec;

use crate::choice::{self, Origin};
use crate::heap;

/// The state that the wrappers need once the library has started.
pub struct Instance {
    /// Adopts mappings of the program.
    pub adopter: Adopter,
    /// The delivery that the user has chosen.
    pub delivery: aquifer_config::Delivery,
}

const _: () = assert!(ledger::GIVEN == aquifer_config::LEDGER_GIVEN_WORD, "the launcher looks there");
const _: () = assert!(ledger::EVENTS == aquifer_config::LEDGER_EVENTS_WORD, "`aquifer set` counts there");
const _: () = assert!(ledger::BUDGET == aquifer_config::LEDGER_BUDGET_WORD, "`aquifer set` writes there");
const _: () = assert!(ledger::BUDGET_MAX == aquifer_config::LEDGER_BUDGET_MAX_WORD, "the launcher writes there");
const _: () =
    assert!(ledger::SAMPLED_UNTIL == aquifer_config::LEDGER_SAMPLED_UNTIL_WORD, "`aquifer stat` writes there");
const _: () = assert!(ledger::WORDS <= aquifer_config::LEDGER_WORDS, "the ledger fits into its segment");

static INSTANCE: OnceLock<Instance> = OnceLock::new();

/// Returns the instance, once it exists, for calls by the program; `None` for calls from inside the pager.
pub fn instance() -> Option<&'static Instance> {
    if aquifer_sys::thread_slot::inside() {
        return None;
    }
    aquifer_sys::dispatch::arm_if_due();
    let instance = INSTANCE.get();
    if let Some(instance) = instance {
        if instance.adopter.is_unseen_child() {
            instance.adopter.give_up_parents();
        }
        instance.adopter.upkeep();
    }
    instance
}

/// Returns the instance, including for calls from inside the pager.
pub fn instance_inside() -> Option<&'static Instance> {
    INSTANCE.get()
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const u8, *const *const u8) = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static STOP: extern "C" fn() = stop;

/// Runs when the program exits: writes the rest of the recording to its file.
extern "C" fn stop() {
    let _blocked = Blocked::all();
    aquifer_pager::recorder::finish();
}

extern "C" fn start(_: c_int, _: *const *const u8, _: *const *const u8) {
    let _inside = Inside::enter();
    let Ok(text) = std::env::var(aquifer_config::VARIABLE) else { return };
    let config = match Config::from_json(&text) {
        Ok(config) => config,
        Err(error) => refuse_to_start(&error.to_string()),
    };
    aquifer_pager::abort::on_panic();
    // The variable that `aquifer --log-format` sets for the program.
    if std::env::var_os("AQUIFER_LOG_FORMAT").is_some_and(|format| format == "json") {
        aquifer_pager::abort::say_in_json();
    }
    let counters = Arc::new(counters(&config));
    check_userfaultfd(&counters);
    describe(&counters, &config);
    let tier = open_tier(&config, &counters);
    let order = match config.block {
        BlockSize::Auto => Order::DEFAULT,
        BlockSize::Bytes(bytes) => Order::of_bytes(bytes).unwrap_or(Order::DEFAULT),
    };
    let way = match config.exchange {
        Exchange::Auto => None,
        Exchange::Move => Some(Way::Move),
        Exchange::Copy => Some(Way::Copy),
    };
    let policy = match config.policy.word().parse::<aquifer_core::policy::PolicyName>() {
        Ok(name) => name,
        Err(error) => refuse_to_start(&error.to_string()),
    };
    let elastic = config.block == BlockSize::Auto;
    let (dram_bytes, prefetch) = (config.dram_bytes, config.prefetch);
    let shards = config.shards.map(|shards| shards as usize);
    let program = std::env::current_exe().unwrap_or_default().to_string_lossy().into_owned();
    let record = config.record.clone();
    let family = family(&*tier);
    let ledger = ledger(&config);
    if let Some(ledger) = ledger {
        // The budget may have changed since the tree began.
        counters.set(Gauge::DramBudgetBytes, ledger.budget_pages() * PAGE_BYTES);
    }
    crate::descendants::prepare(&text, config.strict, ledger);
    let owner = Owner::Program;
    let time_lock = config.time_lock;
    let settings = Settings {
        owner,
        dram_bytes,
        order,
        elastic,
        policy,
        tier,
        family,
        ledger,
        way,
        shards,
        prefetch,
        record,
        may_listen: true,
        time_lock,
        program,
    };
    let adopter = match Adopter::new(settings, counters, crate::calls_in_progress::of) {
        Ok(adopter) => adopter,
        Err(errno) => {
            refuse_to_start(&format!("no address space ({errno}); raise the limit on address space (ulimit -v)"))
        }
    };
    if INSTANCE.set(Instance { adopter, delivery: config.delivery }).is_err() {
        refuse_to_start("the library was started twice");
    }
    drop(_inside);
    // The program that executed this one may have left these signals blocked.
    aquifer_sys::signals::unblock_ours();
    crate::by_number::prepare();
    crate::trap::prepare();
    crate::stacks_of_thread::prepare();
    crate::threads::give_stacks();
    heap::manage();
    adopt_static_arrays();
}

fn counters(config: &Config) -> Counters {
    let attached = config.stats_fd.and_then(|number| {
        let counters = Counters::attach(number).ok()?;
        // Programs that this one executes, and `aquifer stat`, find the statistics by this descriptor.
        protect(number);
        Some(counters)
    });
    match attached.map_or_else(Counters::create, Ok) {
        Ok(counters) => counters,
        Err(error) => refuse_to_start(&format!(
            "no shared memory for statistics: {error}; check the limits on memory, open files and file size (ulimit -a)"
        )),
    }
}

/// Refuses to start if this process cannot have a userfaultfd: it would otherwise end later, when it reaches the
/// budget. A program that the tree itself has started continues, since it works as long as it stays well below the
/// budget.
fn check_userfaultfd(counters: &Counters) {
    let Err(refused) = uffd::probe() else { return };
    // The number of open files can be different when the pager starts.
    if matches!(refused.errno, Errno(libc::EMFILE | libc::ENFILE)) {
        return;
    }
    let is_first = counters.snapshot().gauge(Gauge::Pid) == 0;
    let why = refused.to_string();
    if is_first {
        refuse_to_start(&why);
    }
    say(&["this program will be ended when its memory outgrows the budget: ", &why]);
}

fn describe(counters: &Counters, config: &Config) {
    let program = std::env::current_exe().unwrap_or_default();
    counters.write(Text::Program, &program.to_string_lossy());
    counters.write(Text::Policy, config.policy.word());
    let tiers = if config.tiers.is_empty() { "flash (default)".to_owned() } else { config.tiers.join(" ") };
    counters.write(Text::Tier, &tiers);
    counters.write(Text::Delivery, config.delivery.word());
    counters.write(Text::Exchange, config.exchange.word());
    let block = match config.block {
        BlockSize::Auto => "auto".to_owned(),
        BlockSize::Bytes(bytes) => ByteSize(bytes).to_string(),
    };
    counters.write(Text::Block, &block);
    counters.set(Gauge::Pid, u64::from(std::process::id()));
    counters.set(Gauge::DramBudgetBytes, config.dram_bytes);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
    counters.set(Gauge::StartTimeUnixS, now);
}

fn open_tier(config: &Config, counters: &Counters) -> Box<dyn aquifer_tiers::Tier> {
    let default = [format!("flash:{}", config.state_dir)];
    let words = if config.tiers.is_empty() { &default[..] } else { &config.tiers };
    let specs = words.iter().map(|spec| spec.parse::<TierSpec>());
    let mut specs: Vec<TierSpec> = match specs.collect() {
        Ok(specs) => specs,
        Err(error) => refuse_to_start(&error.to_string()),
    };
    // The launcher sees this process by the statistics segment that they share: without it, the launcher does not count
    // this process as part of the tree.
    let is_seen = counters.descriptor().is_none();
    if let Some(tree) = config.tree.filter(|_| is_seen) {
        specs.iter_mut().for_each(|spec| spec.belong_to(tree));
    }
    match aquifer_tiers::open_levels(&specs) {
        Ok(tier) => {
            if config.verbose > 0 {
                tier.notices().iter().for_each(|notice| say(&[notice]));
            }
            tier
        }
        Err(error) => refuse_to_start(&error.to_string()),
    }
}

/// Returns the ledger of the budget, if the whole tree shares the budget. A program whose parent had closed the
/// descriptor has a budget to itself.
fn ledger(config: &Config) -> Option<&'static Ledger> {
    let number = config.ledger_fd?;
    match Ledger::attach(number, config.dram_bytes / PAGE_BYTES) {
        Ok(ledger) => {
            // Programs that this one executes find the ledger by this descriptor number.
            protect(number);
            Some(Box::leak(Box::new(ledger)))
        }
        Err(_) => {
            // Another file may have this number by now.
            if config.verbose > 0 {
                say(&["the parent has closed the ledger of the budget, so this program gets a budget of its own"]);
            }
            None
        }
    }
}

/// Returns the state that this process shares with those that it forks.
fn family(tier: &dyn aquifer_tiers::Tier) -> Arc<Family> {
    match Family::new(aquifer_pager::slabs_of(tier)) {
        Ok(family) => Arc::new(family),
        Err(errno) => refuse_to_start(&format!(
            "no address space for the table of the tier's slabs ({errno}); raise the limit on address space (ulimit -v)"
        )),
    }
}

/// Adopts the executable's zero-initialised arrays, which are anonymous memory after its last segment.
fn adopt_static_arrays() {
    extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
        // SAFETY: the dynamic linker passes a valid entry; its program headers stay mapped.
        let (base, headers) = unsafe {
            let info = &*info;
            (info.dlpi_addr as usize, std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)))
        };
        for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
            let start = (base + header.p_vaddr as usize + header.p_filesz as usize).next_multiple_of(4096);
            let end = base + header.p_vaddr as usize + header.p_memsz as usize;
            if end > start
                && end - start >= choice::SMALLEST_MAPPING_BYTES
                && let Some(instance) = instance()
            {
                instance.adopter.adopt(start, end - start, choice::delivery(Origin::Bss, instance.delivery));
            }
        }
        1 // Only the first entry, which is the executable.
    }
    // SAFETY: the callback meets the requirements of dl_iterate_phdr(3).
    unsafe { libc::dl_iterate_phdr(Some(each), std::ptr::null_mut()) };
}
