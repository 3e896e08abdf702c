// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program, running, and a manager that speaks to it.

#![allow(dead_code, reason = "each test uses less than all of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use aquifer_fmapi::*;

/// How long a test waits for an answer that must come.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Polls of a background operation of 20 ms, 10 ms apart.
pub const POLLS_MAX: usize = 3000;

pub fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer-cxl-switchd"));
    command.args(arguments);
    command
}

pub fn output(arguments: &[&str]) -> Output {
    program(arguments).output().expect("the program starts")
}

/// A switch that runs until it is dropped, and the directory of its sockets.
pub struct Running {
    pub child: Child,
    pub directory: PathBuf,
    pub address: String,
}

impl Running {
    pub fn new(name: &str, arguments: &[&str]) -> Self {
        Self::with_errors(name, arguments, |directory| std::fs::File::create(directory.join("stderr")).unwrap())
    }

    /// Like the function above, with another standard error.
    pub fn with_errors(name: &str, arguments: &[&str], errors: impl FnOnce(&Path) -> std::fs::File) -> Self {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let mut command = program(&["--listen", "127.0.0.1:0", "--socket", "s", "--control", "c"]);
        let errors = errors(&directory);
        command.args(arguments).current_dir(&directory).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said: Vec<String> = (0..3).map(|_| lines.next().unwrap().unwrap()).collect();
        assert_eq!(said[..2], ["listening on s", "controlled by c"]);
        let address = said[2].strip_prefix("listening on ").unwrap().to_owned();
        Self { child, directory, address }
    }

    pub fn tcp(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).unwrap();
        stream
    }

    pub fn unix(&self, name: &str) -> UnixStream {
        let stream = UnixStream::connect(self.directory.join(name)).unwrap();
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).unwrap();
        stream
    }

    /// Returns what the control socket answers to a line.
    pub fn control(&self, line: &str) -> serde_json::Value {
        let mut stream = self.unix("c");
        writeln!(stream, "{line}").unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).expect("JSON")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A manager on a stream.
pub struct Client<S> {
    pub stream: S,
    assembler: Assembler,
    sequence: u8,
    pub tag: u8,
    dialect: &'static Dialect,
}

impl<S: Read + Write> Client<S> {
    pub fn new(stream: S, dialect: &'static Dialect) -> Self {
        Self { stream, assembler: Assembler::new(dialect), sequence: 0, tag: 0, dialect }
    }

    pub fn send(&mut self, request: &Request, kind: MessageType) -> Message {
        self.tag = (self.tag + 1) & 7;
        let message = Message::request(self.tag, request, self.dialect);
        let bytes = message.encode(self.dialect);
        let sent = Received { kind, to: 8, from: 9, tag: self.tag, is_owner: true, bytes };
        self.stream.write_all(&packets(&sent, &mut self.sequence)).unwrap();
        message
    }

    pub fn receive(&mut self) -> Received {
        let mut packet = [0; PACKET_BYTES];
        loop {
            self.stream.read_exact(&mut packet).expect("an answer");
            if let Some(message) = self.assembler.take(&packet) {
                return message;
            }
        }
    }

    pub fn ask(&mut self, request: &Request) -> Result<Response, ReturnCode> {
        let kind = match request.opcode().is_fabric_manager() {
            true => MessageType::FabricManager,
            false => MessageType::ComponentCommand,
        };
        let asked = self.send(request, kind);
        let reported = self.receive();
        assert_eq!(
            (reported.kind, reported.to, reported.from, reported.tag, reported.is_owner),
            (kind, 9, 8, self.tag, false)
        );
        let answer = Message::decode(&reported.bytes, self.dialect).unwrap();
        assert_eq!(answer.check_answers(&asked.header, self.dialect), Ok(()));
        match answer.header.return_code {
            ReturnCode::SUCCESS => Ok(Response::decode(request, &answer.payload, self.dialect).unwrap()),
            code => Err(code),
        }
    }

    pub fn bind(&mut self, vcs_id: u8, port_id: u8, ld_id: u16) -> Result<Response, ReturnCode> {
        self.ask(&Request::BindVppb(BindVppb { vcs_id, vppb_id: 0, port_id, ld_id }))
    }

    pub fn wait(&mut self) -> ReturnCode {
        for _ in 0..POLLS_MAX {
            let status = self.ask(&Request::GetBackgroundStatus(GetBackgroundStatus {}));
            let Ok(Response::GetBackgroundStatus(status)) = status else { panic!("{status:?}") };
            if !status.is_running {
                return ReturnCode(status.return_code);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the operation does not end");
    }
}
