// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! QEMU's arguments for a guest whose memory is managed, and the whole command quoted for a shell.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use aquifer_config::{BlockSize, Config};
use aquifer_core::units::ByteSize;

use super::accelerator::Accelerator;
use crate::run::HowArgs;

/// The guest's settings.
#[derive(Clone, Debug)]
pub struct Guest {
    pub memory: ByteSize,
    pub cpus: u16,
    pub accelerator: Accelerator,
    /// Whether it has a balloon that reports free pages.
    pub balloon: bool,
}

impl Guest {
    /// Returns QEMU's arguments.
    pub fn words(&self) -> Vec<OsString> {
        let mebibytes = self.memory.0 >> 20;
        let cpu = match self.accelerator {
            Accelerator::Kvm => "host",
            Accelerator::Tcg => "max",
        };
        // share=off: the pager manages private memory. prealloc=off: QEMU would touch all of it before the guest
        // starts. merge=off: pages that the kernel has merged cannot be moved.
        let memory = format!("memory-backend-ram,id=guest-memory,size={mebibytes}M,share=off,prealloc=off,merge=off");
        let mut words = vec![
            "-machine".into(),
            format!("q35,accel={},memory-backend=guest-memory", self.accelerator.word()),
            "-object".into(),
            memory,
            "-m".into(),
            format!("{mebibytes}M"),
            "-smp".into(),
            self.cpus.to_string(),
            "-cpu".into(),
            cpu.into(),
        ];
        if self.balloon {
            words.extend(["-device".into(), "virtio-balloon-pci,free-page-reporting=on".into()]);
        }
        words.into_iter().map(OsString::from).collect()
    }
}

/// Returns `aquifer run` with `how` and `command`, as one line for a shell. Leaves out defaults.
pub fn shown(how: &HowArgs, command: &[OsString]) -> String {
    let usual = Config::default();
    let mut words: Vec<OsString> = vec!["aquifer".into(), "run".into(), "--dram".into(), how.dram.to_string().into()];
    let mut add = |flag: &str, value: &OsStr| words.extend([flag.into(), value.to_owned()]);
    how.tier.iter().for_each(|spec| add("--tier", OsStr::new(spec)));
    if let Some(request) = &how.numa {
        add("--numa", OsStr::new(&request.to_string()));
    }
    if how.policy != usual.policy {
        add("--policy", OsStr::new(how.policy.word()));
    }
    if let BlockSize::Bytes(bytes) = how.block {
        add("--block", OsStr::new(&ByteSize(bytes).to_string()));
    }
    add("--delivery", OsStr::new(how.delivery.word()));
    if how.exchange != usual.exchange {
        add("--exchange", OsStr::new(how.exchange.word()));
    }
    if !how.prefetch {
        add("--prefetch", OsStr::new("off"));
    }
    let mut add_path = |flag: &str, path: Option<&Path>| path.iter().for_each(|path| add(flag, path.as_os_str()));
    add_path("--stats-json", how.stats_json.as_deref());
    add_path("--record", how.record.as_deref());
    add_path("--state-dir", how.state_dir.as_deref());
    words.extend(how.strict.then(|| "--strict".into()));
    words.extend((0..how.verbose).map(|_| "--verbose".into()));
    words.push("--".into());
    let quoted: Vec<String> = words.iter().chain(command).map(|word| quoted(&word.to_string_lossy()).into()).collect();
    quoted.join(" ") + "\n"
}

/// Quotes one word for a POSIX shell.
fn quoted(word: &str) -> Cow<'_, str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,+@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', "'\\''")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(accelerator: Accelerator, balloon: bool) -> String {
        let guest = Guest { memory: ByteSize(1 << 30), cpus: 2, accelerator, balloon };
        guest.words().iter().map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_guest_has_private_memory_that_nobody_touches_ahead() {
        assert_eq!(
            guest(Accelerator::Tcg, false),
            "-machine q35,accel=tcg,memory-backend=guest-memory -object memory-backend-ram,id=guest-memory,\
             size=1024M,share=off,prealloc=off,merge=off -m 1024M -smp 2 -cpu max"
        );
        let balloon = " -cpu host -device virtio-balloon-pci,free-page-reporting=on";
        assert!(guest(Accelerator::Kvm, true).ends_with(balloon));
    }

    #[test]
    fn a_shell_reads_every_word_as_it_was() {
        for (word, text) in [("-m", "-m"), ("", "''"), ("a b", "'a b'"), ("it's", "'it'\\''s'"), ("$x;", "'$x;'")] {
            assert_eq!(quoted(word), text);
        }
    }
}
