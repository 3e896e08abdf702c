// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! QEMU without a guest: its CPU stands on HLT instructions, and every register is accessed by this process, over the
//! text protocol of `-qtest`. Here is as much of a firmware as the switch's mailbox needs: the buses down to it, and
//! the address of its registers.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aquifer_fmapi_client::{RegisterFailure, Registers};

/// How long QEMU may take to connect, and then to answer.
const START: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(20);
/// Where configuration space and the registers are put; nobody else assigns addresses.
const ECAM: u64 = 0xb000_0000;
const WINDOW: u64 = 0xe000_0000;
/// The bus of the host bridge, and the one behind its root port.
const ROOT_BUS: u64 = 12;
const SWITCH_BUS: u64 = 13;
/// The function of the mailbox, beside the upstream port.
const MAILBOX_FUNCTION: u64 = 1;
const CLASS_CXL_CCI: u32 = 0x0c0b;
const DVSEC: u32 = 0x23;
const CXL_VENDOR: u32 = 0x1e98;
const REGISTER_LOCATOR: u32 = 8;
const DEVICE_REGISTERS: u32 = 3;

/// A QEMU with a CXL switch of four ports; three have memory devices.
pub struct Qemu {
    pub child: Child,
    directory: PathBuf,
}

/// The program, if it has a switch mailbox: that of the variable AQUIFER_QEMU, or the one in PATH.
pub fn find() -> Result<String, String> {
    let program = std::env::var("AQUIFER_QEMU").unwrap_or_else(|_| "qemu-system-x86_64".into());
    let listed = Command::new(&program).args(["-device", "cxl-switch-mailbox-cci,help"]).output();
    let listed = listed.map_err(|error| format!("there is no QEMU with a CXL switch mailbox: {program}: {error}"))?;
    match String::from_utf8_lossy(&listed.stdout).contains("options") {
        true => Ok(program),
        false => Err(format!("there is no QEMU with a CXL switch mailbox: {program} is older than 8.2")),
    }
}

impl Qemu {
    /// Starts it, and returns the registers of the switch's mailbox.
    pub fn start(program: &str, directory: &Path) -> (Self, Qtest) {
        let _ = std::fs::remove_dir_all(directory);
        std::fs::create_dir_all(directory).unwrap();
        let (socket, firmware) = (directory.join("q"), directory.join("hlt.rom"));
        // HLT, so that no firmware assigns addresses while this does.
        std::fs::write(&firmware, [0xf4; 65536]).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let mut command = Command::new(program);
        command.args(["-machine", "q35,cxl=on", "-accel", "tcg", "-m", "256M", "-nodefaults", "-display", "none"]);
        command.args(["-device", "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1"]);
        command.args(["-device", "cxl-rp,port=0,bus=cxl.1,id=rp0,chassis=0,slot=2"]);
        command.args(["-device", "cxl-upstream,port=4,sn=1234,bus=rp0,id=us0,addr=0.0,multifunction=on"]);
        command.args(["-device", "cxl-switch-mailbox-cci,bus=rp0,addr=0.1,target=us0"]);
        for port in 0..4 {
            let slot = 4 + port;
            let downstream = format!("cxl-downstream,port={port},bus=us0,id=swport{port},chassis=0,slot={slot}");
            command.args(["-device", &downstream]);
        }
        for port in 0..3 {
            command.args(["-object", &format!("memory-backend-ram,id=vmem{port},share=on,size=256M")]);
            let device =
                format!("cxl-type3,bus=swport{port},id=mem{port},sn={},volatile-memdev=vmem{port}", 4096 + port);
            command.args(["-device", &device]);
        }
        command.args(["-machine", "cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G"]);
        command.arg("-bios").arg(&firmware).args(["-qtest-log", "none", "-qtest"]);
        command.arg(format!("unix:{}", socket.display()));
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let mut qemu = Self { child, directory: directory.into() };
        let stream = qemu.accept(&listener);
        let mut qtest = Qtest { reader: BufReader::new(stream.try_clone().unwrap()), stream, base: 0 };
        qtest.base = qtest.locate();
        (qemu, qtest)
    }

    fn accept(&mut self, listener: &UnixListener) -> UnixStream {
        listener.set_nonblocking(true).unwrap();
        let begun = Instant::now();
        loop {
            if let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(ANSWER)).unwrap();
                return stream;
            }
            assert!(self.child.try_wait().unwrap().is_none(), "QEMU has ended");
            assert!(begun.elapsed() < START, "QEMU does not connect");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Registers behind a qtest socket.
pub struct Qtest {
    reader: BufReader<UnixStream>,
    stream: UnixStream,
    /// Where the registers begin.
    base: u64,
}

impl Qtest {
    /// Sends a line, and returns the number of its answer.
    fn ask(&mut self, line: &str) -> Result<u64, String> {
        writeln!(self.stream, "{line}").map_err(|error| format!("QEMU has ended: {error}"))?;
        loop {
            let mut answer = String::new();
            let read = self.reader.read_line(&mut answer).map_err(|error| format!("QEMU does not answer: {error}"))?;
            if read == 0 {
                return Err("QEMU has ended".into());
            }
            let Some(rest) = answer.strip_prefix("OK") else { continue };
            let number = rest.trim().trim_start_matches("0x");
            return Ok(u64::from_str_radix(number, 16).unwrap_or(0));
        }
    }

    fn must(&mut self, line: &str) -> u64 {
        self.ask(line).unwrap()
    }

    /// Numbers the buses, gives the mailbox an address, and finds its registers there.
    fn locate(&mut self) -> u64 {
        // The window of configuration space is off at first: it is switched on through the old ports.
        for (register, value) in [(0x64, 0), (0x60, ECAM | 1)] {
            self.must(&format!("outl 0xcf8 {:#x}", 0x8000_0000u64 + register));
            self.must(&format!("outl 0xcfc {value:#x}"));
        }
        let root_port = ECAM + (ROOT_BUS << 20);
        self.must(&format!("writel {:#x} {:#x}", root_port + 0x18, 0xff << 16 | SWITCH_BUS << 8 | ROOT_BUS));
        self.must(&format!("writel {:#x} {:#x}", root_port + 0x20, (WINDOW >> 16) | (WINDOW & 0xfff0_0000)));
        self.must(&format!("writel {:#x} 0x6", root_port + 0x04));
        let function = ECAM + (SWITCH_BUS << 20) + (MAILBOX_FUNCTION << 12);
        let class = self.must(&format!("readl {:#x}", function + 8)) as u32 >> 16;
        assert_eq!(class, CLASS_CXL_CCI, "the function beside the upstream port");
        self.must(&format!("writel {:#x} {WINDOW:#x}", function + 0x10));
        self.must(&format!("writel {:#x} 0x0", function + 0x14));
        self.must(&format!("writel {:#x} 0x6", function + 0x04));
        let mut at = 0x100;
        while at != 0 {
            let header = self.must(&format!("readl {:#x}", function + at)) as u32;
            let vendor = self.must(&format!("readl {:#x}", function + at + 4)) as u32;
            let id = self.must(&format!("readl {:#x}", function + at + 8)) as u32 & 0xffff;
            if header & 0xffff == DVSEC && vendor & 0xffff == CXL_VENDOR && id == REGISTER_LOCATOR {
                let entries = (u64::from(vendor >> 20) - 0xc) / 8;
                for entry in 0..entries {
                    let low = self.must(&format!("readl {:#x}", function + at + 0xc + 8 * entry)) as u32;
                    if low >> 8 & 0xff == DEVICE_REGISTERS {
                        return WINDOW + u64::from(low & 0xffff_0000);
                    }
                }
            }
            at = u64::from(header >> 20 & 0xffc);
        }
        panic!("the mailbox has no register locator");
    }

    fn access(&mut self, offset: usize, verb: &str, value: Option<u64>) -> Result<u64, RegisterFailure> {
        let address = self.base + offset as u64;
        let value = value.map_or(String::new(), |value| format!(" {value:#x}"));
        self.ask(&format!("{verb} {address:#x}{value}")).map_err(|why| RegisterFailure { offset, why })
    }
}

impl Registers for Qtest {
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
