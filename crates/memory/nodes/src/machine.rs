// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The files of this machine, or of a copy of them below another directory.
//!
//! See sysfs(5) and proc(5). Threads: any.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::time::Duration;

use aquifer_sys::{bounded_write, file_lock};

use crate::tree::Tree;

/// How much of a text is read. No file of sysfs has more than a page, and /proc/vmstat has about 6 KiB; a program with
/// 40,000 mappings has a numa_maps of this length.
const TEXT_BYTES_MAX: usize = 4 << 20;

/// The files of this machine.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    /// Those of the running kernel.
    pub fn running() -> Machine {
        Self::below("/")
    }

    /// A copy of them below `root`.
    pub fn below(root: impl Into<PathBuf>) -> Machine {
        Machine { root: root.into() }
    }

    fn place(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Opens a file to write it. Without O_CREAT: a setting that does not exist is not made, not even below a copy.
    fn setting(&self, path: &str) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.place(path))
    }
}

fn whole(written: usize, value: &str) -> io::Result<()> {
    if written == value.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

impl Tree for Machine {
    fn text(&self, path: &str) -> io::Result<String> {
        // The names of files that a program maps need not be UTF-8, and neither need its own name.
        let bytes = self.bytes(path, TEXT_BYTES_MAX)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    fn bytes(&self, path: &str, max: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.place(path))?.take(max as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.place(path))? {
            names.extend(entry?.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        let target = fs::read_link(self.place(path))?;
        let name = target.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        name.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        // One call, because each write(2) to such a file is a command.
        let written = self.setting(path)?.write(value.as_bytes())?;
        whole(written, value)
    }

    fn write_within(&self, path: &str, value: &str, limit: Duration) -> io::Result<()> {
        let written = bounded_write::write_within(self.setting(path)?, value.as_bytes(), limit)?;
        whole(written, value)
    }

    fn device_number(&self, path: &str) -> io::Result<(u32, u32)> {
        let found = fs::metadata(self.place(path))?;
        if !found.file_type().is_char_device() {
            return Err(io::Error::from_raw_os_error(libc::ENOTTY));
        }
        Ok((libc::major(found.rdev()), libc::minor(found.rdev())))
    }

    fn lock(&self, path: &str) -> io::Result<Option<File>> {
        let file = File::open(self.place(path))?;
        file_lock::lock(&file)?;
        Ok(Some(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_is_read_and_nothing_is_created() {
        let machine = Machine::running();
        assert!(machine.text("/proc/meminfo").unwrap().starts_with("MemTotal:"));
        assert!(machine.names("/proc/self").unwrap().contains(&"status".to_owned()));
        assert_eq!(machine.write("/proc/no-such-setting", "1").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(machine.bytes("/proc/self/exe", 4).unwrap(), b"\x7fELF");
        let elsewhere = Machine::below("/proc/self");
        assert!(elsewhere.text("/status").unwrap().contains("Name:"));
        assert!(elsewhere.link("/exe").is_ok());
    }

    #[test]
    fn a_write_with_a_limit_is_one_and_creates_nothing() {
        let path = std::env::temp_dir().join(format!("aq-{}-write-within", std::process::id()));
        let (machine, text, limit) = (Machine::running(), path.to_str().unwrap(), Duration::from_secs(60));
        assert_eq!(machine.write_within(text, "offline", limit).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&path, []).unwrap();
        machine.write_within(text, "offline", limit).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"offline");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn devices_are_known_by_their_numbers_and_locked_by_one_program_at_a_time() {
        let machine = Machine::running();
        let opened = File::open("/dev/null").unwrap();
        let descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&opened));
        for path in ["/dev/null", &descriptor] {
            assert_eq!(machine.device_number(path).unwrap(), (1, 3), "{path}");
        }
        assert_eq!(machine.device_number("/proc/self/status").unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        let path = std::env::temp_dir().join(format!("aq-{}-machine-lock", std::process::id()));
        fs::write(&path, []).unwrap();
        let text = path.to_str().unwrap();
        let first = machine.lock(text).unwrap();
        assert!(first.is_some() && machine.lock(text).unwrap_err().kind() == io::ErrorKind::WouldBlock);
        fs::remove_file(&path).unwrap();
    }

    /// A program with a mapping of such a file counted as one without memory, so its memory was moved without asking.
    #[test]
    fn a_text_that_is_not_utf_8_is_read_all_the_same() {
        let root = std::env::temp_dir().join(format!("aq-{}-not-utf-8", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("numa_maps"), b"7f00 default file=/tmp/caf\xe9 N1=3 kernelpagesize_kB=4\n").unwrap();
        let text = Machine::below(&root).text("/numa_maps").unwrap();
        fs::remove_dir_all(&root).unwrap();
        assert!(text.ends_with(" N1=3 kernelpagesize_kB=4"), "{text}");
    }
}
