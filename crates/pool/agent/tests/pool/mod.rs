// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A whole pool: a manager in its own process, which this test program starts as itself; a donor; and the real agent.
//! Manager and agent send their spans to one collector, and write their logs into files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use aquifer_donor::{Donor, Managed, Security, Settings, Source};
use serde_json::{Value, json};

/// The variable that makes this test program a manager; its value is the configuration file.
const CONFIGURATION: &str = "AQUIFER_TEST_MANAGER";
/// Longer than anything takes on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(120);
pub const CONNECTIONS: &str = "/redfish/v1/Fabrics/Aquifer/Connections";
const APPLY: &str = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Apply";
const CHUNK: &str = "/redfish/v1/Chassis/Pools/MemoryDomains/main/MemoryChunks/db";

/// Serves as a manager if this process is to be one; otherwise returns at once. A test `manager_program` calls it.
pub fn serve_if_asked() {
    let Some(file) = std::env::var_os(CONFIGURATION) else { return };
    let config = aquifer_manager::Config::read(Path::new(&file)).expect("a configuration");
    let failure = aquifer_manager::run(&config);
    panic!("the manager has ended: {:?}", failure.map_err(|failure| failure.to_string()));
}

/// Waits until something holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An answer of the manager.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    head: String,
    pub body: Value,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

pub struct Pool {
    pub directory: PathBuf,
    manager: Child,
    agent: Child,
    _donor: Donor,
    address: String,
    token: String,
}

impl Pool {
    /// Starts all, with a volume `db` that is bound to no host, and waits until everything is settled.
    pub fn start(collector: &str) -> Pool {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Short, because the length of a socket path is limited.
        let name = format!("aq-trace-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a temporary directory");
        let (manager, address, control) = start_manager(&directory, collector);
        let donor = start_donor(&directory, control);
        let agent = start_agent(&directory, control, collector);
        let mut pool = Pool { directory, manager, agent, _donor: donor, address, token: String::new() };
        pool.login();
        wait_until("donor and host answer", || {
            ["Donor.d1", "Host.web-1"].iter().all(|end| {
                let answer = pool.ask("GET", &format!("/redfish/v1/Fabrics/Aquifer/Endpoints/{end}"), "", &Value::Null);
                answer.status == 200 && answer.body["Status"]["State"] == "Enabled"
            })
        });
        let declaration = json!({
            "pools": { "main": { "donors": ["d1"] } },
            "zones": { "lab": { "quota": "1GiB", "hosts": ["web-1"] } },
            "volumes": { "db": { "spec": { "size": "16MiB", "pool": "main", "zone": "lab", "class": "tcp" } } },
        });
        let applied = pool.ask("POST", APPLY, "", &json!({ "Declaration": declaration }));
        assert_eq!(applied.status, 200, "{applied:?}");
        pool.settle();
        pool
    }

    fn login(&mut self) {
        let password = std::fs::read_to_string(self.directory.join("state/initial-password")).expect("a password");
        let body = json!({ "UserName": "admin", "Password": password.trim() });
        let answer = self.ask("POST", "/redfish/v1/SessionService/Sessions", "", &body);
        assert_eq!(answer.status, 201, "{answer:?}");
        self.token = format!("x-auth-token: {}\r\n", answer.header("x-auth-token").expect("a token"));
    }

    /// Sends one request with more headers, and returns its answer.
    pub fn ask(&self, method: &str, path: &str, headers: &str, body: &Value) -> Answer {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{}{headers}content-length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        Answer { status, head: head.to_owned(), body: serde_json::from_str(body).unwrap_or(Value::Null) }
    }

    /// Binds the volume to the host, with more headers.
    pub fn bind(&self, headers: &str) -> Answer {
        let body = json!({
            "MemoryChunkInfo": [{ "MemoryChunk": { "@odata.id": CHUNK } }],
            "Links": { "InitiatorEndpoints": [{ "@odata.id": "/redfish/v1/Fabrics/Aquifer/Endpoints/Host.web-1" }] },
        });
        self.ask("POST", CONNECTIONS, headers, &body)
    }

    /// Waits until everything is as it is desired to be, for two rounds: the first may have begun before the last
    /// order.
    pub fn settle(&self) {
        let mut first = None;
        wait_until("everything is settled", || {
            let status = self.ask("GET", "/redfish/v1/Oem/Aquifer", "", &Value::Null);
            let round = status.body["Rounds"].as_u64().expect("a number");
            status.body["IsSettled"] == true && round >= *first.get_or_insert(round) + 2
        });
    }

    /// Returns what the manager or the agent has logged.
    pub fn log(&self, of: &str) -> String {
        std::fs::read_to_string(self.directory.join(format!("{of}.log"))).expect("a log")
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for child in [&mut self.agent, &mut self.manager] {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn log(directory: &Path, of: &str) -> File {
    File::create(directory.join(format!("{of}.log"))).expect("a log")
}

fn start_manager(directory: &Path, collector: &str) -> (Child, String, SocketAddr) {
    let config = format!(
        "state = {:?}\nlisten = \"127.0.0.1:0\"\n[control]\nlisten = \"127.0.0.1:0\"\n[peers]\nkind = \"registered\"\n\
         [rounds]\nidle-ms = 50\nbusy-ms = 5\n[telemetry]\ncollector = \"{collector}\"\n",
        directory.join("state")
    );
    let file = directory.join("fabricd.toml");
    std::fs::write(&file, config).expect("written");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["manager_program", "--exact", "--nocapture", "--test-threads=1"]).env(CONFIGURATION, &file);
    let mut child = command.stdout(Stdio::piped()).stderr(log(directory, "manager")).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map(|line| line.expect("text"));
    // The test program's own words may precede ours on the line.
    let mut after = |words: &str| {
        let found = lines.find_map(|line| line.split_once(words).map(|(_, rest)| rest.to_owned()));
        found.expect("it says where it listens")
    };
    let address = after("listening on http://");
    let control = after("donors and hosts register at ").parse().expect("an address");
    (child, address, control)
}

fn start_donor(directory: &Path, control: SocketAddr) -> Donor {
    let managed = Managed {
        managers: vec![control.to_string().parse().expect("an address")],
        id: "d1".parse().expect("a name"),
        addresses: Vec::new(),
        labels: BTreeMap::new(),
        tls: None,
        state: Some(directory.join("d1.json")),
    };
    let settings = Settings::new(([127, 0, 0, 1], 0).into(), 64 << 20, Source::Anonymous, Security::Plain);
    let settings = Settings { managed: Some(managed), ..settings };
    Donor::start(settings, Box::new(|line| println!("donor: {line}"))).expect("it starts")
}

fn start_agent(directory: &Path, control: SocketAddr, collector: &str) -> Child {
    let config = format!(
        "host = 'web-1'\nsocket = '{0}/s'\nstate = '{0}/agent'\n[manager]\naddresses = ['{control}']\n\
         [telemetry]\ncollector = '{collector}'\n",
        directory.display()
    );
    let file = directory.join("agent.toml");
    std::fs::write(&file, config).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer-agentd"));
    command.arg("--config").arg(&file).stdout(Stdio::null()).stderr(log(directory, "agent"));
    command.spawn().expect("the agent starts")
}
