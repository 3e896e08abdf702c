// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer vm`: `aquifer run` for a virtual machine, with a suitable command line for QEMU.
//!
//! Reading order: `accelerator` (KVM or TCG, and the delivery that it needs) → `qemu` (the arguments) → `run` (as for
//! any other program). This file starts nothing itself. docs/virtual-machines.md explains the arguments.

mod accelerator;
mod qemu;

use std::ffi::OsString;
use std::process;

use aquifer_config::Delivery;
use aquifer_core::units::ByteSize;

use crate::exit::{self, ExitCode, Failure, say};
use crate::output;
use crate::run::{self, Allowed, Dram, HowArgs, RunArgs, on_or_off, words};
use accelerator::Choice;

/// Run a virtual machine in QEMU on less DRAM than its guest has memory
///
/// The guest sees --memory. At most --dram of its memory and QEMU's own is in local DRAM. The guest is not changed.
/// Memory that it frees is freed on the host too, by its balloon's free page reporting. Arguments after -- are QEMU's
/// own: disks, networks, a kernel, a display.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = after_help())]
pub struct VmArgs {
    /// Memory that the guest has, for example 16GiB
    #[arg(long, value_name = "SIZE")]
    memory: ByteSize,

    /// Processors that the guest has
    #[arg(long, value_name = "NUMBER", default_value = "2", value_parser = clap::value_parser!(u16).range(1..=1024))]
    cpus: u16,

    /// What runs the guest's instructions: the processor itself (kvm), QEMU's translator (tcg), or kvm where it works
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = words(Choice::ALL, Choice::word))]
    accel: Choice,

    /// Whether the guest gets a balloon that reports free pages
    #[arg(long, value_name = "on|off", default_value = "on", action = clap::ArgAction::Set, value_parser = on_or_off())]
    balloon: bool,

    /// The QEMU to run
    #[arg(long, value_name = "PROGRAM", default_value = "qemu-system-x86_64")]
    qemu: OsString,

    /// Print the command instead of running it
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    how: HowArgs,

    /// Further arguments for QEMU, after those that this command makes
    #[arg(last = true, value_name = "ARG")]
    rest: Vec<OsString>,
}

/// Runs the guest, and ends as QEMU did.
pub fn vm(args: VmArgs) -> Result<process::ExitCode, Failure> {
    check_memory(args.memory)?;
    let (accelerator, notice) = accelerator::choose(args.accel, args.how.delivery)?;
    if let Some(notice) = notice {
        say(&notice);
    }
    let mut how = args.how;
    let dram = how.dram.of(&Allowed::read()?)?;
    how.dram = Dram::Bytes(dram);
    if let Some(notice) = nothing_to_page(dram, args.memory) {
        say(&notice);
    }
    if how.delivery == Delivery::Auto {
        how.delivery = accelerator.delivery();
    }
    let guest = qemu::Guest { memory: args.memory, cpus: args.cpus, accelerator, balloon: args.balloon };
    let command: Vec<OsString> = [args.qemu].into_iter().chain(guest.words()).chain(args.rest).collect();
    if args.dry_run {
        output::print(&qemu::shown(&how, &command))?;
        return Ok(ExitCode::Success.into());
    }
    run::run(RunArgs { how, command })
}

/// Checks that the size is a whole number of MiB. QEMU needs at least whole pages, and its own error would be harder to
/// understand.
fn check_memory(memory: ByteSize) -> Result<(), Failure> {
    if memory.0 >= 1 << 20 && memory.0.is_multiple_of(1 << 20) {
        return Ok(());
    }
    let cause = format!("--memory of {} bytes is not a whole number of MiB", memory.0);
    Err(Failure::new(ExitCode::Usage, cause, "give a multiple of 1MiB, for example 1GiB"))
}

/// Returns a notice if the guest fits the budget, which would surprise a user who meant to save memory.
fn nothing_to_page(dram: ByteSize, memory: ByteSize) -> Option<String> {
    let fits = dram.0 >= memory.0;
    fits.then(|| {
        format!("--dram {dram} holds all of the guest's --memory {memory}; nothing is paged unless you give less")
    })
}

/// Returns the end of `aquifer vm --help`.
fn after_help() -> String {
    const TEXT: &str = "\
Tiers are those of 'aquifer run --help'.

Delivery, unless it is given:
  listener  under KVM, where the kernel takes the guest's faults
  signal    under TCG, where QEMU's own threads take them

Examples:
  aquifer vm --dram 4GiB --memory 16GiB -- -drive file=disk.qcow2,if=virtio -nographic
  aquifer vm --dram 300MiB --memory 1GiB --accel tcg -- -kernel vmlinuz -initrd initrd -nographic
  aquifer vm --dram 4GiB --memory 16GiB --dry-run";
    format!("{TEXT}\n\n{}\nOtherwise QEMU's own, and 128 + n when signal n ended it.", exit::section())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_fits_is_reported() {
        let [small, large] = [ByteSize(1 << 30), ByteSize(2 << 30)];
        assert_eq!(nothing_to_page(small, large), None);
        assert!(nothing_to_page(small, small).is_some() && nothing_to_page(large, small).is_some());
    }

    #[test]
    fn memory_is_a_whole_number_of_mebibytes() {
        assert!(check_memory(ByteSize(1 << 30)).is_ok());
        for memory in [0, 4096, (1 << 30) + 4096] {
            assert_eq!(check_memory(ByteSize(memory)).unwrap_err().code, ExitCode::Usage);
        }
    }
}
