// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads from an ELF file what is needed to tell whether a library can be preloaded into it. Pure. See elf(5).
//!
//! | offset | bytes | field     | of the file header             |
//! |--------|-------|-----------|--------------------------------|
//! | 0      | 4     | magic     | 7f `ELF`                       |
//! | 4      | 1     | class     | 1: 32 bit, 2: 64 bit           |
//! | 5      | 1     | data      | 1: little-endian               |
//! | 16     | 2     | type      | 2: executable, 3: shared       |
//! | 18     | 2     | machine   | 62: x86-64, 183: AArch64, …    |
//! | 32     | 8     | phoff     | where the program headers are  |
//! | 54     | 2     | phentsize | bytes of each                  |
//! | 56     | 2     | phnum     | how many                       |

use std::io::{self, Read, Seek, SeekFrom};

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
/// The kernel refuses program headers of more than about a page; a file that claims more is broken.
const PROGRAM_HEADERS_MAX: u16 = 4096;
/// PATH_MAX, the longest interpreter name that the kernel accepts.
const INTERPRETER_BYTES_MAX: u64 = 4096;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;

/// The kinds of ELF files that matter to Aquifer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elf {
    /// A program started by the dynamic loader `interpreter`: it can be managed.
    Dynamic {
        /// The loader's path.
        interpreter: String,
    },
    /// A file for another kind of machine.
    Foreign {
        /// The machine's name.
        machine: String,
    },
    /// A shared library.
    Library,
    /// A program that no loader starts, so nothing can be preloaded.
    Static,
}

/// Whether a file with this start is an ELF file.
pub fn is_elf(start: &[u8]) -> bool {
    start.starts_with(b"\x7fELF")
}

/// Reads the headers. Returns `InvalidData` if the file is broken.
pub fn read(file: &mut (impl Read + Seek)) -> io::Result<Elf> {
    let mut header = [0; HEADER_BYTES];
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut header).map_err(cut_short)?;
    if !is_elf(&header) {
        return Err(broken("it is not an ELF file"));
    }
    let machine = half(&header, 18);
    if header[4] != 2 || header[5] != 1 || machine != NATIVE_MACHINE {
        return Ok(Elf::Foreign { machine: machine_name(header[4], header[5], machine) });
    }
    let (offset, size, count) = (long(&header, 32), half(&header, 54), half(&header, 56));
    if usize::from(size) < PROGRAM_HEADER_BYTES || count > PROGRAM_HEADERS_MAX {
        return Err(broken("its program headers make no sense"));
    }
    let mut dynamic = false;
    for index in 0..u64::from(count) {
        let mut entry = [0; PROGRAM_HEADER_BYTES];
        let at = offset.checked_add(index * u64::from(size)).ok_or_else(|| broken("its headers lie outside"))?;
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut entry).map_err(cut_short)?;
        match word(&entry, 0) {
            PT_INTERP => return interpreter(file, long(&entry, 8), long(&entry, 32)),
            PT_DYNAMIC => dynamic = true,
            _ => {}
        }
    }
    // A shared object without an interpreter is a library, or a static position-independent program. Only a name could
    // distinguish them; the caller knows which of the two it expects.
    Ok(if dynamic && half(&header, 16) == 3 { Elf::Library } else { Elf::Static })
}

fn interpreter(file: &mut (impl Read + Seek), offset: u64, bytes: u64) -> io::Result<Elf> {
    if bytes > INTERPRETER_BYTES_MAX {
        return Err(broken("the name of its loader is too long"));
    }
    let mut name = vec![0; bytes as usize];
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(&mut name).map_err(cut_short)?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(Elf::Dynamic { interpreter: String::from_utf8_lossy(name).into_owned() })
}

fn broken(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn cut_short(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof { broken("it is cut short") } else { error }
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes were cut"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes were cut"))
}

/// Numbers of elf(5) with the names that `uname -m` uses.
const MACHINES: &[(u16, &str)] = &[
    (3, "i386"),
    (20, "ppc"),
    (21, "ppc64"),
    (22, "s390x"),
    (40, "arm"),
    (62, "x86_64"),
    (183, "aarch64"),
    (243, "riscv64"),
    (258, "loongarch64"),
];

const NATIVE_MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else if cfg!(target_arch = "aarch64") {
    183
} else if cfg!(target_arch = "riscv64") {
    243
} else {
    panic!("add the ELF machine number of this architecture")
};

fn machine_name(class: u8, data: u8, machine: u16) -> String {
    let machine = if data == 2 { machine.swap_bytes() } else { machine };
    let name = MACHINES.iter().find(|(number, _)| *number == machine).map(|(_, name)| *name);
    let name = name.map_or_else(|| format!("ELF machine {machine}"), str::to_owned);
    if class == 1 && machine == NATIVE_MACHINE { format!("{name} with 32-bit pointers") } else { name }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A file with one program header of `kind` whose bytes are `contents`.
    fn file(elf_type: u16, machine: u16, kind: u32, contents: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + PROGRAM_HEADER_BYTES];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[16..18].copy_from_slice(&elf_type.to_le_bytes());
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
        bytes[64..68].copy_from_slice(&kind.to_le_bytes());
        bytes[72..80].copy_from_slice(&120_u64.to_le_bytes());
        bytes[96..104].copy_from_slice(&(contents.len() as u64).to_le_bytes());
        bytes.extend_from_slice(contents);
        bytes
    }

    fn kind_of(bytes: Vec<u8>) -> io::Result<Elf> {
        read(&mut Cursor::new(bytes))
    }

    #[test]
    fn kinds_are_told_apart() {
        let loader = b"/lib64/ld-linux-x86-64.so.2\0";
        let interpreter = "/lib64/ld-linux-x86-64.so.2".to_owned();
        assert_eq!(
            kind_of(file(3, NATIVE_MACHINE, PT_INTERP, loader)).unwrap(),
            Elf::Dynamic { interpreter: interpreter.clone() }
        );
        assert_eq!(kind_of(file(2, NATIVE_MACHINE, PT_INTERP, loader)).unwrap(), Elf::Dynamic { interpreter });
        assert_eq!(kind_of(file(2, NATIVE_MACHINE, 1, b"")).unwrap(), Elf::Static);
        assert_eq!(kind_of(file(3, NATIVE_MACHINE, PT_DYNAMIC, b"")).unwrap(), Elf::Library);
        assert_eq!(kind_of(file(2, 22, PT_INTERP, loader)).unwrap(), Elf::Foreign { machine: "s390x".into() });
        assert_eq!(
            kind_of(file(2, 9999, PT_INTERP, loader)).unwrap(),
            Elf::Foreign { machine: "ELF machine 9999".into() }
        );
    }

    #[test]
    fn this_very_test_is_a_dynamic_program() {
        let mut file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(matches!(read(&mut file).unwrap(), Elf::Dynamic { .. }) || cfg!(target_feature = "crt-static"));
    }

    #[test]
    fn broken_files_are_errors_and_never_panic() {
        let whole = file(3, NATIVE_MACHINE, PT_INTERP, b"/lib64/ld.so\0");
        for length in 0..whole.len() {
            assert_eq!(kind_of(whole[..length].to_vec()).unwrap_err().kind(), io::ErrorKind::InvalidData, "{length}");
        }
        for (at, value) in [(32, 0xff), (54, 1), (57, 0xff), (72 + 7, 0x7f), (96 + 4, 1), (0, 0)] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            if at == 32 {
                bytes[32..40].fill(0xff);
            }
            assert!(kind_of(bytes).is_err(), "{at}");
        }
    }
}
