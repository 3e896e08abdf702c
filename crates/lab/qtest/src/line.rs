// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The text protocol of `-qtest`: one command per line, `OK` and a number in return.
//!
//! Threads: any; a lock makes each command and its answer one step.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use aquifer_fmapi_client::{RegisterFailure, Registers};

/// A connection to a machine: its ports, its memory, and its devices' registers.
#[derive(Clone, Debug)]
pub struct Line {
    stream: Arc<Mutex<BufReader<UnixStream>>>,
}

impl Line {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream: Arc::new(Mutex::new(BufReader::new(stream))) }
    }

    /// Sends a command, and returns the words after its `OK`.
    pub fn ask(&self, command: &str) -> Result<String, String> {
        // A panic while the lock was held has ended the test.
        let mut reader = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = writeln!(reader.get_mut(), "{command}");
        asked.map_err(|error| format!("QEMU has ended: {error}"))?;
        loop {
            let mut answer = String::new();
            let read = reader.read_line(&mut answer).map_err(|error| format!("QEMU does not answer: {error}"))?;
            if read == 0 {
                return Err("QEMU has ended".into());
            }
            // Lines about interrupts may come in between.
            match answer.strip_prefix("OK") {
                Some(rest) => return Ok(rest.trim().to_owned()),
                None if answer.starts_with("IRQ") => {}
                None => return Err(format!("QEMU refuses {command}: {}", answer.trim())),
            }
        }
    }

    fn must(&self, command: &str) -> u64 {
        let answer = self.ask(command).expect("QEMU answers");
        u64::from_str_radix(answer.trim_start_matches("0x"), 16).unwrap_or(0)
    }

    /// Writes an I/O port.
    pub fn write_port(&self, port: u16, value: u32) {
        self.must(&format!("outl {port:#x} {value:#x}"));
    }

    /// Reads 8 bits of memory.
    pub fn read_u8(&self, address: u64) -> u8 {
        self.must(&format!("readb {address:#x}")) as u8
    }

    /// Reads 32 bits of memory.
    pub fn read_u32(&self, address: u64) -> u32 {
        self.must(&format!("readl {address:#x}")) as u32
    }

    /// Writes 32 bits of memory.
    pub fn write_u32(&self, address: u64, value: u32) {
        self.must(&format!("writel {address:#x} {value:#x}"));
    }

    /// Writes 16 bits of memory.
    pub fn write_u16(&self, address: u64, value: u16) {
        self.must(&format!("writew {address:#x} {value:#x}"));
    }

    /// Reads 64 bits of memory.
    pub fn read_u64(&self, address: u64) -> u64 {
        self.must(&format!("readq {address:#x}"))
    }

    /// Writes 64 bits of memory.
    pub fn write_u64(&self, address: u64, value: u64) {
        self.must(&format!("writeq {address:#x} {value:#x}"));
    }
}

/// The registers of a device, from an address on.
#[derive(Clone, Debug)]
pub struct Window {
    line: Line,
    base: u64,
}

impl Window {
    /// The registers at an address.
    pub fn new(line: &Line, base: u64) -> Self {
        Self { line: line.clone(), base }
    }

    fn access(&self, offset: usize, verb: &str, value: Option<u64>) -> Result<u64, RegisterFailure> {
        let address = self.base + offset as u64;
        let value = value.map_or(String::new(), |value| format!(" {value:#x}"));
        let answer = self.line.ask(&format!("{verb} {address:#x}{value}"));
        let answer = answer.map_err(|why| RegisterFailure { offset, why })?;
        Ok(u64::from_str_radix(answer.trim_start_matches("0x"), 16).unwrap_or(0))
    }
}

impl Registers for Window {
    fn read_u32(&mut self, offset: usize) -> Result<u32, RegisterFailure> {
        self.access(offset, "readl", None).map(|value| value as u32)
    }

    fn write_u32(&mut self, offset: usize, value: u32) -> Result<(), RegisterFailure> {
        self.access(offset, "writel", Some(value.into())).map(drop)
    }

    fn read_u64(&mut self, offset: usize) -> Result<u64, RegisterFailure> {
        self.access(offset, "readq", None)
    }

    fn write_u64(&mut self, offset: usize, value: u64) -> Result<(), RegisterFailure> {
        self.access(offset, "writeq", Some(value)).map(drop)
    }
}
