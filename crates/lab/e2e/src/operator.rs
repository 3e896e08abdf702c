// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The operator of a guest's CXL switch: plugs and pulls a device when the guest asks for it.
//!
//! QEMU 10 has no binds. To a host, a bind is a device that is added to a port, and an unbind is one that is removed.
//! The guest sends its requests on its second serial line: `plug` and `pull` for a third device, `yank` for the first
//! one. It gets `done`, or why not. The operator passes them on to QEMU by QMP (its `docs/interop/qmp-spec.rst`), which
//! removes a device when the guest has released it.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

/// The device of the third port.
const NAME: &str = "mem2";
/// The device of the first port, which is there from the start.
const FIRST: &str = "mem0";
const SERIAL: u64 = 0x1002;

fn device() -> Value {
    json!({ "driver": "cxl-type3", "bus": "swport2", "id": NAME, "volatile-memdev": "cxlmem2", "sn": SERIAL })
}

/// The two connections: QEMU's monitor, and the guest's serial port.
pub struct Operator {
    qmp: BufReader<UnixStream>,
    guest: BufReader<UnixStream>,
}

impl Operator {
    /// Gives QEMU the arguments that connect it to an operator. Its thread waits for the guest, and ends with QEMU.
    pub fn start(qemu: &mut Command) {
        // Not in the scratch directory: the length of a socket's path is limited.
        let directory = std::env::temp_dir().join(format!("aq-operator-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a temporary directory");
        let listen = |name: &str| -> (UnixListener, PathBuf) {
            let path = directory.join(name);
            let _ = std::fs::remove_file(&path);
            (UnixListener::bind(&path).expect("a socket"), path)
        };
        let ((qmp, qmp_path), (guest, guest_path)) = (listen("qmp"), listen("guest"));
        qemu.arg("-qmp").arg(format!("unix:{}", qmp_path.display()));
        qemu.arg("-serial").arg(format!("unix:{}", guest_path.display()));
        std::thread::spawn(move || {
            let accept = |listener: &UnixListener| listener.accept().map(|(stream, _)| BufReader::new(stream));
            // QEMU connects in the order of its arguments, and does not wait to be accepted.
            let operator = accept(&qmp).and_then(|qmp| Ok(Operator { qmp, guest: accept(&guest)? }));
            let _ = std::fs::remove_dir_all(&directory);
            let ended = operator.and_then(Operator::serve);
            println!("the operator has ended: {ended:?}");
        });
    }

    fn serve(mut self) -> io::Result<()> {
        // The greeting.
        self.qmp.read_line(&mut String::new())?;
        self.order("qmp_capabilities", &json!({}))?.map_err(io::Error::other)?;
        let mut line = String::new();
        while self.guest.read_line(&mut line)? > 0 {
            let outcome = match line.trim() {
                "plug" => self.order("device_add", &device())?,
                "pull" => self.order("device_del", &json!({ "id": NAME }))?,
                "yank" => self.order("device_del", &json!({ "id": FIRST }))?,
                other => Err(format!("not an order: {other}")),
            };
            let answer = outcome.map_or_else(|why| format!("failed: {why}\n"), |()| "done\n".to_owned());
            self.guest.get_mut().write_all(answer.as_bytes())?;
            line.clear();
        }
        Ok(())
    }

    fn message(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        if self.qmp.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    fn order(&mut self, execute: &str, arguments: &Value) -> io::Result<Result<(), String>> {
        let order = json!({ "execute": execute, "arguments": arguments });
        writeln!(self.qmp.get_mut(), "{order}")?;
        loop {
            let answer = self.message()?;
            if !answer["return"].is_null() {
                return Ok(Ok(()));
            }
            // Everything else is an event.
            if !answer["error"].is_null() {
                return Ok(Err(answer["error"]["desc"].to_string()));
            }
        }
    }
}
