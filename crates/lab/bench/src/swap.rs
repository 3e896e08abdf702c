// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes swap areas for the bench, one kind at a time, and switches one on for the duration of a run.
//!
//! Only one area may be on during a run, or the kernel would choose between them. So a machine that already swaps is
//! refused before anything is made; `on` checks again each time, since other areas may have been added in the meantime.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::contender::SwapKind;
use crate::failure::BenchFailure;
use crate::machine;
use crate::process::{call, find_program};
use crate::size::{MIB, format_size};
use crate::undo::{self, Undo, UndoList, write_sys};

/// Swap in addition to the evicted memory: slots are allocated in clusters per CPU, and some stay half used.
const SPARE_BYTES: u64 = 256 * MIB;

/// Prefixes of the labels of a zram device that existed, and of one that the bench added.
pub const LABEL_PREFIXES: [&str; 2] = ["aqb", "aqh"];

/// A prepared swap area; everything made for it is removed when it is dropped.
#[derive(Debug)]
pub struct SwapArea {
    pub kind: SwapKind,
    device: PathBuf,
    /// Details for the reader, such as the compressor.
    pub about: String,
    _undo: UndoList,
}

/// The area is on while this value lives.
#[derive(Debug)]
pub struct SwapOn(#[expect(dead_code, reason = "held for its drop, which switches the area off")] UndoList);

/// Why no swap of any kind can be measured here; None if it can.
pub fn obstacle() -> Option<String> {
    let areas = machine::swap_areas_open();
    if !areas.is_empty() {
        let names: Vec<_> = areas.iter().map(|area| area.display().to_string()).collect();
        return Some(format!(
            "this machine already swaps to {}; switch it off (swapoff -a) for the measurement",
            names.join(", ")
        ));
    }
    if !rustix::process::geteuid().is_root() {
        return Some("switching swap on needs root".into());
    }
    ["mkswap", "swapon", "swapoff"]
        .iter()
        .find(|tool| find_program(tool).is_none())
        .map(|tool| format!("{tool} is not installed; install util-linux"))
}

/// Why swap on a RAM disk of this size cannot be measured here.
pub fn obstacle_ram(footprint: u64) -> Option<String> {
    let needed = footprint + SPARE_BYTES;
    let free = machine::memory_bytes("MemAvailable:");
    if free < needed + footprint {
        return Some(format!(
            "the RAM disk needs {}, and {} of memory are available",
            format_size(needed),
            format_size(free)
        ));
    }
    (!Path::new("/dev/loop-control").exists()).then(|| "there are no loop devices; modprobe loop".into())
}

/// Why zram cannot be measured here.
pub fn obstacle_zram() -> Option<String> {
    if !Path::new("/sys/class/zram-control").exists() {
        // Loading the module is the only change that is not undone: it takes no memory, and the bench must not unload
        // modules.
        let _ = call("modprobe", &["zram"]);
    }
    (!Path::new("/sys/class/zram-control").exists()).then(|| "this kernel has no zram; modprobe zram".into())
}

impl SwapArea {
    /// Makes an area that can hold a whole footprint.
    pub fn prepare(kind: SwapKind, directory: &Path, token: &str, footprint: u64) -> Result<Self, BenchFailure> {
        let bytes = (footprint + SPARE_BYTES + machine::swap_closing_bytes()).next_multiple_of(4 * MIB);
        let mut undo = UndoList::default();
        let (device, about) = match kind {
            SwapKind::Disk => on_disk(directory, token, bytes, &mut undo)?,
            SwapKind::Ram => in_ram(directory, token, bytes, &mut undo)?,
            SwapKind::Zram | SwapKind::ZramCounted => in_zram(token, bytes, &mut undo)?,
        };
        Ok(Self { kind, device, about, _undo: undo })
    }

    /// The memory that a zram device takes now; `None` for others. See `mm_stat` in the kernel's
    /// admin-guide/blockdev/zram.rst.
    pub fn zram_bytes(&self) -> Option<u64> {
        let name = self.device.file_name()?.to_str()?;
        let text = fs::read_to_string(format!("/sys/block/{name}/mm_stat")).ok()?;
        memory_used(&text)
    }

    /// Switches the area on, unless another one is already on.
    pub fn on(&self) -> Result<SwapOn, BenchFailure> {
        let others = machine::swap_areas_open();
        if !others.is_empty() {
            return Err(BenchFailure::trouble(
                format!("{} was switched on as swap meanwhile", others[0].display()),
                "only one area may be on during a run",
            ));
        }
        let mut undo = UndoList::default();
        undo.push(Undo::SwapOff(self.device.clone()));
        call("swapon", &[&self.device.to_string_lossy()])?;
        Ok(SwapOn(undo))
    }
}

/// The third number of `mm_stat`: what compressed pages and the allocator's rest take.
fn memory_used(mm_stat: &str) -> Option<u64> {
    mm_stat.split_whitespace().nth(2)?.parse().ok()
}

fn on_disk(directory: &Path, token: &str, bytes: u64, undo: &mut UndoList) -> Result<(PathBuf, String), BenchFailure> {
    let path = directory.join(undo::name(token, "swap"));
    undo.push(Undo::RemoveFile(path.clone()));
    write_zeros(&path, bytes)?;
    call("mkswap", &[&path.to_string_lossy()])?;
    Ok((path, format!("{} file", format_size(bytes))))
}

fn in_ram(directory: &Path, token: &str, bytes: u64, undo: &mut UndoList) -> Result<(PathBuf, String), BenchFailure> {
    let mount = directory.join(undo::name(token, "tmpfs"));
    undo.push(Undo::RemoveDirectory(mount.clone()));
    fs::create_dir(&mount).map_err(|error| BenchFailure::io(format!("cannot make {}", mount.display()), &error))?;
    undo.push(Undo::Unmount(mount.clone()));
    mount_unswappable(&mount, bytes)?;
    // Written here, outside the limited cgroup, so that its pages are charged to the bench and not to the run.
    let file = mount.join("swap");
    write_zeros(&file, bytes)?;
    let device = PathBuf::from(call("losetup", &["--find", "--show", &file.to_string_lossy()])?);
    undo.push(Undo::DetachLoop(device.clone()));
    call("mkswap", &[&device.to_string_lossy()])?;
    Ok((device, format!("{} loop device over tmpfs", format_size(bytes))))
}

/// Mounts memory that is never swapped out. If a page of the RAM disk were swapped out, to the RAM disk itself, the
/// very thread that serves the disk would have to read it back, and would wait for itself for ever. Machines that page
/// out cold memory on their own (DAMON) do that within minutes. tmpfs supports `noswap` since Linux 6.4; ramfs never
/// swaps.
fn mount_unswappable(mount: &Path, bytes: u64) -> Result<(), BenchFailure> {
    let point = mount.to_string_lossy();
    let options = format!("size={},mode=700,noswap", bytes + 16 * MIB);
    call("mount", &["-t", "tmpfs", "-o", &options, "aquifer-bench", &point])
        .or_else(|_| call("mount", &["-t", "ramfs", "-o", "mode=700", "aquifer-bench", &point]))
        .map(drop)
}

fn in_zram(token: &str, bytes: u64, undo: &mut UndoList) -> Result<(PathBuf, String), BenchFailure> {
    // Reading hot_add makes a new device. Without it, an unused device is taken.
    let added = fs::read_to_string("/sys/class/zram-control/hot_add").ok().and_then(|text| text.trim().parse().ok());
    let index: u32 = added
        .or_else(|| {
            (0..64).find(|index| {
                fs::read_to_string(format!("/sys/block/zram{index}/disksize")).is_ok_and(|size| size.trim() == "0")
            })
        })
        .ok_or_else(|| BenchFailure::trouble("every zram device is in use", "free one with zramctl --reset"))?;
    let sys = format!("/sys/block/zram{index}");
    undo.push(Undo::ResetZram { index, remove: added.is_some() });
    let algorithm = format!("{sys}/comp_algorithm");
    if fs::read_to_string(&algorithm).is_ok_and(|known| known.contains("lz4")) {
        write_sys(&algorithm, "lz4")?;
    }
    write_sys(&format!("{sys}/disksize"), &bytes.to_string())?;
    let device = PathBuf::from(format!("/dev/zram{index}"));
    let label = format!("{}{token}", LABEL_PREFIXES[usize::from(added.is_some())]);
    call("mkswap", &["-L", &label, &device.to_string_lossy()])?;
    let used = fs::read_to_string(&algorithm).ok().and_then(|text| machine::chosen(&text)).unwrap_or_default();
    Ok((device, format!("{} zram, {used}", format_size(bytes))))
}

/// Writes every byte, so that the area has no holes, bypassing the page cache if the file system allows it.
fn write_zeros(path: &Path, bytes: u64) -> Result<(), BenchFailure> {
    let failed = |error| BenchFailure::io(format!("cannot make {} of {}", path.display(), format_size(bytes)), &error);
    let file = File::create_new(path).map_err(failed)?;
    file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
    // Only makes a full disk fail immediately; ramfs has no fallocate.
    match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
        Err(errno) => return Err(failed(errno.into())),
    }
    let (of, count) = (format!("of={}", path.display()), format!("count={}", bytes / (4 * MIB)));
    let words = ["if=/dev/zero", &of, "bs=4M", &count, "conv=notrunc,fsync", "status=none"];
    call("dd", &[&words[..], &["oflag=direct"]].concat()).or_else(|_| call("dd", &words)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_zram_device_is_the_third_number() {
        assert_eq!(memory_used("12345344 1182924 2310144 0 2310144 10 0 0 0\n"), Some(2_310_144));
        assert_eq!(memory_used(""), None);
    }
}
