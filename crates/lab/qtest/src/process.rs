// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Starts QEMU with a CXL switch, and ends it.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::line::Line;
use crate::monitor::Monitor;

/// Bytes of each device's memory.
pub const DEVICE_BYTES: u64 = 256 << 20;
/// Bytes of each of the two regions of a device with dynamic capacity.
pub const REGION_BYTES: u64 = 256 << 20;
/// How long QEMU may take to connect, and then to answer, on a busy machine.
const START: Duration = Duration::from_secs(120);
const ANSWER: Duration = Duration::from_secs(60);

/// What the machine has behind its switch.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Downstream ports.
    pub ports: u8,
    /// Ports with a memory device: `mem0` at port 0, and so on. Their serial numbers are 4096 and the port.
    pub devices: Vec<u8>,
    /// Those that have two regions of dynamic capacity besides, of [`REGION_BYTES`] each.
    pub dynamic: Vec<u8>,
    /// A file with the dynamic capacity, which several machines may share.
    pub shared: Option<PathBuf>,
}

/// A running machine.
#[derive(Debug)]
pub struct Qemu {
    child: Child,
    directory: PathBuf,
    /// Its registers and memory.
    pub line: Line,
    /// Its monitor.
    pub monitor: Monitor,
}

impl Machine {
    fn words(&self) -> Vec<String> {
        let mut words = vec![
            "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1".to_owned(),
            "cxl-rp,port=0,bus=cxl.1,id=rp0,chassis=0,slot=2".into(),
            format!("cxl-upstream,port={},sn=1234,bus=rp0,id=us0,addr=0.0,multifunction=on", self.ports),
            "cxl-switch-mailbox-cci,bus=rp0,addr=0.1,target=us0".into(),
        ];
        let downstream =
            |port| format!("cxl-downstream,port={port},bus=us0,id=swport{port},chassis=0,slot={}", 4 + port);
        words.extend((0..self.ports).map(downstream));
        let mut all: Vec<String> = words.into_iter().flat_map(|word| ["-device".to_owned(), word]).collect();
        for port in &self.devices {
            let serial = 4096 + u64::from(*port);
            let mut device = format!("cxl-type3,bus=swport{port},id=mem{port},sn={serial},volatile-memdev=vmem{port}");
            all.extend(["-object".into(), format!("memory-backend-ram,id=vmem{port},share=on,size={DEVICE_BYTES}")]);
            if self.dynamic.contains(port) {
                let bytes = 2 * REGION_BYTES;
                let memory = match &self.shared {
                    Some(file) => format!("memory-backend-file,mem-path={},", file.display()),
                    None => "memory-backend-ram,".to_owned(),
                };
                all.extend(["-object".into(), format!("{memory}id=dcmem{port},share=on,size={bytes}")]);
                device += &format!(",volatile-dc-memdev=dcmem{port},num-dc-regions=2");
            }
            all.extend(["-device".into(), device]);
        }
        all.extend(["-machine".into(), "cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G".into()]);
        all
    }

    /// Starts it. The directory must be short, since sockets are made in it, and nobody else's.
    pub fn start(&self, program: &Path, directory: &Path) -> Qemu {
        let _ = std::fs::remove_dir_all(directory);
        std::fs::create_dir_all(directory).expect("a directory");
        let (line, monitor, firmware) = (directory.join("q"), directory.join("m"), directory.join("hlt.rom"));
        // HLT, so that no firmware assigns addresses while the test does.
        std::fs::write(&firmware, [0xf4; 65536]).expect("written");
        let listen = |path: &Path| UnixListener::bind(path).expect("a socket");
        let (line_socket, monitor_socket) = (listen(&line), listen(&monitor));
        let mut command = Command::new(program);
        command.args(["-machine", "q35,cxl=on", "-accel", "tcg", "-m", "256M", "-nodefaults", "-display", "none"]);
        command.args(self.words()).arg("-bios").arg(&firmware).args(["-qtest-log", "none", "-qtest"]);
        command.arg(format!("unix:{}", line.display())).arg("-qmp").arg(format!("unix:{}", monitor.display()));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("QEMU starts");
        let line = Line::new(accept(&mut child, &line_socket));
        let monitor = Monitor::new(accept(&mut child, &monitor_socket));
        Qemu { child, directory: directory.into(), line, monitor }
    }
}

impl Qemu {
    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }
}

fn accept(child: &mut Child, listener: &UnixListener) -> UnixStream {
    listener.set_nonblocking(true).expect("a socket");
    let begun = Instant::now();
    loop {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(false).expect("a socket");
            stream.set_read_timeout(Some(ANSWER)).expect("a timeout");
            return stream;
        }
        assert!(child.try_wait().expect("a child").is_none(), "QEMU has ended");
        assert!(begun.elapsed() < START, "QEMU does not connect");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
