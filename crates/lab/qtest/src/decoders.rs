// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Maps addresses of the machine to a device's memory: HDM decoders of the upstream port and of the device. CXL 3.1,
//! section 8.2.4.20. The host bridge has one root port, so it decodes nothing itself.

use serde_json::json;

use crate::bus::{Bus, Function};
use crate::line::Line;
use crate::process::Qemu;

/// The registers of CXL.cache and CXL.mem among the component registers.
const CACHE_AND_MEMORY: u64 = 0x1000;
const HDM_DECODERS: u32 = 5;
const COMMIT: u32 = 1 << 9;
const COMMITTED: u32 = 1 << 10;
const ENABLE: u32 = 1 << 1;

/// A device's memory, from an address of the machine on.
pub struct Decoders {
    line: Line,
    base: u64,
}

impl Decoders {
    /// Programs the decoders for a device at a port: its memory, then its dynamic capacity.
    pub fn program(qemu: &Qemu, bus: &Bus, port: u8, bytes: u64) -> Self {
        let base = window(qemu);
        program(bus.upstream_port(), base, bytes, port.into());
        program(bus.memory_device(port), base, bytes, 0);
        Self { line: qemu.line.clone(), base }
    }

    /// Reads 64 bits at an address of the device.
    pub fn read(&self, at: u64) -> u64 {
        self.line.read_u64(self.base + at)
    }

    /// Writes 64 bits at an address of the device.
    pub fn write(&self, at: u64, value: u64) {
        self.line.write_u64(self.base + at, value);
    }
}

/// Where the fixed window of CXL memory begins, by the monitor's tree of memory.
fn window(qemu: &Qemu) -> u64 {
    let tree = qemu.monitor.execute("human-monitor-command", json!({ "command-line": "info mtree" })).expect("a tree");
    let text = tree.as_str().expect("text");
    let line = text.lines().find(|line| line.contains("cxl-fixed-memory-region")).expect("a window");
    let start = line.trim_start().split('-').next().expect("a range");
    u64::from_str_radix(start, 16).expect("an address")
}

/// The first decoder, one way; `target` is the port behind a switch.
fn program(function: &Function, at: u64, bytes: u64, target: u32) {
    let (line, registers) = (function.line(), function.component_registers() + CACHE_AND_MEMORY);
    let count = line.read_u32(registers) >> 24;
    let headers = (1..=u64::from(count)).map(|index| line.read_u32(registers + 4 * index));
    let header = headers.into_iter().find(|header| header & 0xffff == HDM_DECODERS).expect("decoders");
    let decoders = registers + u64::from(header >> 20);
    let decoder = decoders + 0x10;
    let words = [at as u32, (at >> 32) as u32, bytes as u32, (bytes >> 32) as u32];
    for (index, word) in (0..).zip(words) {
        line.write_u32(decoder + 4 * index, word);
    }
    line.write_u32(decoder + 0x14, target);
    line.write_u32(decoder + 0x18, 0);
    line.write_u32(decoder + 0x10, COMMIT);
    assert_ne!(line.read_u32(decoder + 0x10) & COMMITTED, 0, "the decoder has not committed");
    line.write_u32(decoders + 4, ENABLE);
}
