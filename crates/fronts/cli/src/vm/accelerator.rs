// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Chooses KVM or TCG, and the delivery that each needs.
//!
//! Under KVM the kernel itself takes a guest's faults, and reports them only to a listener. Under TCG the guest's loads
//! and stores are QEMU's own, and the faulting thread resolves its fault itself.

use std::fs::OpenOptions;
use std::str::FromStr;

use aquifer_config::{Delivery, UnknownWord};
use aquifer_sys::probe;

use crate::exit::{ExitCode, Failure};

const DEVICE: &str = "/dev/kvm";

/// The values of `--accel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// KVM if it works, else TCG.
    Auto,
    /// KVM, or a failure.
    Kvm,
    /// TCG, QEMU's translator.
    Tcg,
}

impl Choice {
    /// Every choice, in the order of the help.
    pub const ALL: &'static [Choice] = &[Choice::Auto, Choice::Kvm, Choice::Tcg];

    /// Returns the word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Choice::Auto => "auto",
            Choice::Kvm => "kvm",
            Choice::Tcg => "tcg",
        }
    }
}

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor itself.
    Kvm,
    /// QEMU's translator.
    Tcg,
}

impl Accelerator {
    /// Returns QEMU's word for it.
    pub fn word(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        }
    }

    /// Returns the delivery that the guest's memory requires (KVM), or that suits it best (TCG).
    pub fn delivery(self) -> Delivery {
        match self {
            Accelerator::Kvm => Delivery::Listener,
            Accelerator::Tcg => Delivery::Signal,
        }
    }
}

/// Chooses the accelerator for this machine. The text is a notice to the user.
pub fn choose(choice: Choice, delivery: Delivery) -> Result<(Accelerator, Option<String>), Failure> {
    match choice {
        Choice::Tcg => Ok((Accelerator::Tcg, None)),
        choice => decide(choice, delivery, obstacle()),
    }
}

/// Why KVM cannot be used, and what to do.
struct Obstacle {
    cause: String,
    remedy: String,
}

fn obstacle() -> Option<Obstacle> {
    if let Err(error) = OpenOptions::new().read(true).write(true).open(DEVICE) {
        let cause = format!("{DEVICE} cannot be opened: {error}");
        return Some(Obstacle { cause, remedy: "load KVM's module, and be in the group that may use it".into() });
    }
    let listener = probe::kernel_faults();
    (!listener.found).then(|| Obstacle {
        cause: format!("KVM needs a listener, and there can be none: {}", listener.detail),
        remedy: listener.remedy.into(),
    })
}

fn decide(
    choice: Choice,
    delivery: Delivery,
    obstacle: Option<Obstacle>,
) -> Result<(Accelerator, Option<String>), Failure> {
    match (choice, obstacle) {
        (Choice::Kvm, _) if delivery == Delivery::Signal => Err(Failure::new(
            ExitCode::Usage,
            "--accel kvm cannot have --delivery signal: under KVM the kernel takes a guest's faults",
            "leave --delivery out",
        )),
        // Signal delivery implies TCG.
        (Choice::Auto | Choice::Tcg, _) if delivery == Delivery::Signal => Ok((Accelerator::Tcg, None)),
        (Choice::Tcg, _) => Ok((Accelerator::Tcg, None)),
        (Choice::Auto | Choice::Kvm, None) => Ok((Accelerator::Kvm, None)),
        (Choice::Auto, Some(Obstacle { cause, remedy })) => {
            Ok((Accelerator::Tcg, Some(format!("the guest runs under TCG, which is slow: {cause}; {remedy}"))))
        }
        (Choice::Kvm, Some(Obstacle { cause, remedy })) => {
            Err(Failure::new(ExitCode::CannotStart, cause, format!("{remedy}; or use --accel tcg")))
        }
    }
}

impl FromStr for Choice {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Choice, UnknownWord> {
        let found = Choice::ALL.iter().copied().find(|choice| choice.word() == word);
        found.ok_or_else(|| UnknownWord { word: word.into(), choices: "auto, kvm, tcg" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Option<Obstacle> {
        Some(Obstacle { cause: "no device".into(), remedy: "load it".into() })
    }

    #[test]
    fn kvm_is_used_where_it_works_and_its_absence_is_reported() {
        let auto = Delivery::Auto;
        assert_eq!(decide(Choice::Auto, auto, None).unwrap(), (Accelerator::Kvm, None));
        let (accelerator, notice) = decide(Choice::Auto, auto, some()).unwrap();
        assert_eq!(accelerator, Accelerator::Tcg);
        assert_eq!(notice.unwrap(), "the guest runs under TCG, which is slow: no device; load it");
        let failure = decide(Choice::Kvm, auto, some()).unwrap_err();
        assert_eq!(failure.to_string(), "no device; load it; or use --accel tcg");
    }

    #[test]
    fn signal_delivery_never_meets_kvm() {
        assert!(decide(Choice::Kvm, Delivery::Signal, None).is_err());
        assert_eq!(decide(Choice::Auto, Delivery::Signal, None).unwrap(), (Accelerator::Tcg, None));
        assert_eq!(Accelerator::Kvm.delivery(), Delivery::Listener);
    }

    #[test]
    fn every_choice_is_read_as_it_is_written() {
        for choice in Choice::ALL {
            assert_eq!(choice.word().parse(), Ok(*choice));
        }
        assert!("xen".parse::<Choice>().is_err());
    }
}
