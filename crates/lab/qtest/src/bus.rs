// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The part of a firmware that CXL devices need: numbers the buses below the host bridge, gives the functions
//! addresses, and finds their registers.

use crate::line::{Line, Window};

/// Where configuration space and registers are put; nobody else assigns addresses.
const ECAM: u64 = 0xb000_0000;
const WINDOW: u64 = 0xe000_0000;
/// The bus of the host bridge (`bus_nr` of its device).
const ROOT_BUS: u64 = 12;
const MIB: u64 = 1 << 20;
const NOTHING: u32 = u32::MAX;
const BRIDGE: u8 = 1;
const DVSEC: u32 = 0x23;
const CXL_VENDOR: u32 = 0x1e98;
const REGISTER_LOCATOR: u32 = 8;
const COMPONENT_REGISTERS: u32 = 1;
const DEVICE_REGISTERS: u32 = 3;
/// Classes and device numbers.
const SWITCH_MAILBOX: u32 = 0x0c0b;
const MEMORY: u32 = 0x0502;
const UPSTREAM_PORT: u32 = 0xa128;
const DOWNSTREAM_PORT: u32 = 0xa129;
/// The PCIe capability, whose link capabilities have the port's number.
const PCIE_CAPABILITY: u32 = 0x10;
const SLOT_CONTROL: u64 = 0x18;
/// The power controller off, and the power indicator, too.
const POWER_OFF: u16 = 1 << 10 | 3 << 8;

/// A PCI function.
#[derive(Clone, Debug)]
pub struct Function {
    line: Line,
    config: u64,
    class: u32,
    device: u32,
    is_bridge: bool,
    /// The number of the port above it.
    port: Option<u8>,
    bars: [u64; 6],
    children: Vec<Function>,
}

/// All functions below the host bridge.
#[derive(Debug)]
pub struct Bus {
    line: Line,
    functions: Vec<Function>,
    next_bus: u64,
    cursor: u64,
}

impl Bus {
    /// Numbers the buses and assigns addresses.
    pub fn new(line: &Line) -> Self {
        // The window of configuration space is off at first: it is switched on through the old ports.
        for (register, value) in [(0x64, 0), (0x60, ECAM as u32 | 1)] {
            line.write_port(0xcf8, 0x8000_0000 + register);
            line.write_port(0xcfc, value);
        }
        let mut bus = Self { line: line.clone(), functions: Vec::new(), next_bus: ROOT_BUS + 1, cursor: WINDOW };
        let mut found = bus.scan(ROOT_BUS, None);
        found.iter_mut().for_each(|function| bus.assign(function));
        bus.functions = found;
        bus
    }

    fn scan(&mut self, bus: u64, port: Option<u8>) -> Vec<Function> {
        let mut found = Vec::new();
        for slot in 0..32 {
            for number in 0..8 {
                let config = ECAM + (bus << 20) + (slot << 15) + (number << 12);
                let vendor = self.line.read_u32(config);
                if vendor == NOTHING {
                    if number == 0 { break } else { continue }
                }
                let kind = self.line.read_u8(config + 0x0e);
                let class = self.line.read_u32(config + 8) >> 16;
                let (line, device, is_bridge) = (self.line.clone(), vendor >> 16, kind & 0x7f == BRIDGE);
                let mut function =
                    Function { line, config, class, device, is_bridge, port, bars: [0; 6], children: Vec::new() };
                if is_bridge {
                    let below = self.next_bus;
                    self.next_bus += 1;
                    self.line.write_u32(config + 0x18, 0xff << 16 | (below as u32) << 8 | bus as u32);
                    function.children = self.scan(below, function.port_number());
                    let last = self.next_bus - 1;
                    self.line.write_u32(config + 0x18, (last as u32) << 16 | (below as u32) << 8 | bus as u32);
                }
                found.push(function);
                if number == 0 && kind & 0x80 == 0 {
                    break;
                }
            }
        }
        found
    }

    fn align(&mut self, bytes: u64) {
        self.cursor = self.cursor.next_multiple_of(bytes);
    }

    fn assign(&mut self, function: &mut Function) {
        let count = if function.is_bridge { 2 } else { 6 };
        let mut index = 0;
        while index < count {
            let register = function.config + 0x10 + 4 * index as u64;
            self.line.write_u32(register, NOTHING);
            let found = self.line.read_u32(register);
            let is_wide = found & 6 == 4;
            if found != 0 && found & 1 == 0 {
                let bytes = u64::from(!(found & !0xf)) + 1;
                self.align(bytes);
                function.bars[index] = self.cursor;
                self.line.write_u32(register, self.cursor as u32);
                if is_wide {
                    self.line.write_u32(register + 4, 0);
                }
                self.cursor += bytes;
            }
            index += if is_wide { 2 } else { 1 };
        }
        if function.is_bridge {
            self.align(MIB);
            let start = self.cursor;
            let mut children = std::mem::take(&mut function.children);
            children.iter_mut().for_each(|child| self.assign(child));
            function.children = children;
            // Room for one that is added later.
            self.cursor += MIB;
            self.align(MIB);
            self.line.write_u16(function.config + 0x20, (start >> 16) as u16 & 0xfff0);
            self.line.write_u16(function.config + 0x22, ((self.cursor - 1) >> 16) as u16 & 0xfff0);
            // The prefetchable window is closed.
            self.line.write_u32(function.config + 0x24, 0xfff0);
        }
        let command = self.line.read_u32(function.config + 4) as u16;
        self.line.write_u16(function.config + 4, command | 6);
    }

    /// The registers of the switch's mailbox.
    pub fn switch_mailbox(&self) -> Window {
        let function = find(&self.functions, &|it| it.class == SWITCH_MAILBOX).expect("a switch with a mailbox");
        Window::new(&self.line, function.registers(DEVICE_REGISTERS).expect("device registers"))
    }

    /// The memory device at a port of the switch.
    pub fn memory_device(&self, port: u8) -> &Function {
        find(&self.functions, &|it| it.class == MEMORY && it.port == Some(port)).expect("a device at the port")
    }

    /// Switches off the power of a port's slot, as a host does when it gives up a device: QEMU removes the device.
    pub fn power_off(&self, port: u8) {
        let is_it = |it: &Function| it.device == DOWNSTREAM_PORT && it.port_number() == Some(port);
        let function = find(&self.functions, &is_it).expect("a downstream port");
        let at = function.config + u64::from(function.pcie_capability().expect("a PCIe port"));
        self.line.write_u16(at + SLOT_CONTROL, POWER_OFF);
    }

    /// The switch's upstream port.
    pub fn upstream_port(&self) -> &Function {
        find(&self.functions, &|it| it.device == UPSTREAM_PORT && it.is_bridge).expect("an upstream port")
    }
}

fn find<'a>(functions: &'a [Function], is_it: &dyn Fn(&Function) -> bool) -> Option<&'a Function> {
    let below = |function: &'a Function| find(&function.children, is_it);
    functions.iter().find_map(|function| if is_it(function) { Some(function) } else { below(function) })
}

impl Function {
    /// The registers of the device, with its mailbox.
    pub fn device_registers(&self) -> Window {
        Window::new(&self.line, self.registers(DEVICE_REGISTERS).expect("device registers"))
    }

    /// Where its component registers are.
    pub(crate) fn component_registers(&self) -> u64 {
        self.registers(COMPONENT_REGISTERS).expect("component registers")
    }

    pub(crate) fn line(&self) -> &Line {
        &self.line
    }

    fn port_number(&self) -> Option<u8> {
        let at = self.pcie_capability()?;
        Some((self.line.read_u32(self.config + u64::from(at) + 0x0c) >> 24) as u8)
    }

    fn pcie_capability(&self) -> Option<u8> {
        let mut at = self.line.read_u8(self.config + 0x34) & 0xfc;
        while at != 0 {
            let header = self.line.read_u32(self.config + u64::from(at));
            if header & 0xff == PCIE_CAPABILITY {
                return Some(at);
            }
            at = (header >> 8) as u8 & 0xfc;
        }
        None
    }

    /// The address of a block of registers, by the locator among the extended capabilities.
    fn registers(&self, block: u32) -> Option<u64> {
        let mut at = 0x100;
        while at != 0 {
            let read = |offset: u64| self.line.read_u32(self.config + at + offset);
            let (header, vendor, id) = (read(0), read(4), read(8) & 0xffff);
            if header & 0xffff == DVSEC && vendor & 0xffff == CXL_VENDOR && id == REGISTER_LOCATOR {
                let entries = (u64::from(vendor >> 20) - 0xc) / 8;
                let lows = (0..entries).map(|entry| read(0xc + 8 * entry));
                let found = lows.into_iter().find(|low| low >> 8 & 0xff == block)?;
                return Some(self.bars[(found & 7) as usize] + u64::from(found & 0xffff_0000));
            }
            at = u64::from(header >> 20 & 0xffc);
        }
        None
    }
}
