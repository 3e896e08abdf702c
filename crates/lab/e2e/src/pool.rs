// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A pool of real processes: a fabric manager, donors and the agents of its hosts, with TLS between them. Tests control
//! it with the command line, as operators do, or through [`crate::pool_switch`].
//!
//! All processes listen on one loopback address that no other test uses, so that a restarted process gets its port
//! again.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::build::{binaries, scratch};
use crate::donor::{self, Donor};
use crate::run::{Ended, LIMIT, aquifer, eventually, run};

/// Makes an authority and a certificate for each role: manager, donors, host. The first argument is the address.
const CERTIFICATES: &str = "set -e
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=pool -keyout ca.key -out ca.pem
printf 'subjectAltName = IP:%s\\n' \"$1\" > manager.ext
printf 'subjectAltName = DNS:box.donors.example, IP:%s\\n' \"$1\" > donor.ext
printf 'subjectAltName = DNS:h1.hosts.example\\n' > host.ext
for name in manager donor host; do
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=$name -keyout $name.key -out $name.csr
  openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -set_serial 0x$(openssl rand -hex 16) -days 30 \\
    -extfile $name.ext -out $name.pem
done";

/// Makes the certificate of another host, whose name is the first argument.
const HOST_CERTIFICATE: &str = "set -e
printf 'subjectAltName = DNS:%s.hosts.example\\n' \"$1\" > \"$1.ext\"
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj \"/CN=$1\" -keyout \"$1.key\" -out \"$1.csr\"
openssl x509 -req -in \"$1.csr\" -CA ca.pem -CAkey ca.key -set_serial 0x$(openssl rand -hex 16) -days 30 \\
  -extfile \"$1.ext\" -out \"$1.pem\"";

/// Makes these certificates in a directory, for ends at this address. Reports a skip and returns `None` without
/// openssl(1).
pub fn make_certificates(directory: &Path, ip: &str) -> Option<()> {
    let made = Command::new("sh").args(["-c", CERTIFICATES, "sh", ip]).current_dir(directory).output();
    match made {
        Ok(made) if made.status.success() => Some(()),
        Ok(made) if made.status.code() != Some(127) => panic!("{}", String::from_utf8_lossy(&made.stderr)),
        _ => {
            aquifer_test_support::skip("there is no openssl");
            None
        }
    }
}

/// A loopback address that no other test uses at the same time.
pub fn own_address(name: &str) -> String {
    let pid = std::process::id();
    format!("127.{}.{}.{}", 16 + pid % 200, 1 + pid / 200 % 250, 2 + name.len() % 250)
}

/// The first host.
pub const HOST: &str = "h1";

/// A running pool.
#[derive(Debug)]
pub struct Pool {
    directory: PathBuf,
    sockets: PathBuf,
    ip: String,
    /// The addresses at which the manager serves REST and registers ends.
    rest: String,
    control: String,
    manager: Option<Child>,
    /// The donors, d1 first. A donor that was killed stays in its place until it is started again.
    pub donors: Vec<Donor>,
    /// The hosts, the first one first.
    hosts: Vec<String>,
    /// The agents that run, by their hosts.
    agents: BTreeMap<String, Child>,
    donor_words: Vec<String>,
    /// Whether manager and agents serve metrics.
    is_scraped: bool,
    token: String,
}

/// The ports at which manager and agent serve metrics, on the address of the pool.
const METRICS_OF_MANAGER: u16 = 9465;
const METRICS_OF_AGENT: u16 = 9466;

impl Pool {
    /// Starts a manager, donors with these arguments, and the agent of [`HOST`]; declares a pool of all donors, and
    /// logs in. Reports a skip and returns `None` without openssl(1).
    #[must_use]
    pub fn start(name: &str, donors: usize, donor_words: &[&str], quota: &str) -> Option<Pool> {
        Pool::start_with(name, &[], donors, donor_words, quota)
    }

    /// Like [`Pool::start`], and manager, agent and donors serve metrics.
    #[must_use]
    pub fn start_scraped(name: &str, donors: usize, donor_words: &[&str], quota: &str) -> Option<Pool> {
        let metrics = format!("{}:0", own_address(name));
        let words = [donor_words, &["--metrics", &metrics]].concat();
        Pool::launch_all(name, &[], donors, &words, quota, true)
    }

    /// Like [`Pool::start`], with the agents of more hosts. All of them run on this machine.
    #[must_use]
    pub fn start_with(
        name: &str,
        more_hosts: &[&str],
        donors: usize,
        donor_words: &[&str],
        quota: &str,
    ) -> Option<Pool> {
        Pool::launch_all(name, more_hosts, donors, donor_words, quota, false)
    }

    fn launch_all(
        name: &str,
        more_hosts: &[&str],
        donors: usize,
        donor_words: &[&str],
        quota: &str,
        is_scraped: bool,
    ) -> Option<Pool> {
        let directory = scratch(&format!("{name}-processes"));
        let pid = std::process::id();
        let ip = own_address(name);
        make_certificates(&directory, &ip)?;
        for host in more_hosts {
            let made = Command::new("sh").args(["-c", HOST_CERTIFICATE, "sh", host]).current_dir(&directory).output();
            assert!(made.is_ok_and(|made| made.status.success()), "a certificate for {host}");
        }
        // Short, because the length of a socket path is limited.
        let sockets = std::env::temp_dir().join(format!("aq-{name}-{pid}"));
        std::fs::create_dir_all(&sockets).expect("a temporary directory");
        let free = format!("{ip}:0");
        let mut pool = Pool {
            directory,
            sockets,
            ip,
            rest: free.clone(),
            control: free,
            manager: None,
            donors: Vec::new(),
            hosts: [HOST].iter().chain(more_hosts).map(|host| (*host).to_owned()).collect(),
            agents: BTreeMap::new(),
            donor_words: donor_words.iter().map(|word| (*word).to_owned()).collect(),
            is_scraped,
            token: String::new(),
        };
        pool.start_manager();
        pool.login();
        pool.donors = (1..=donors).map(|number| pool.launch(number, "0")).collect();
        pool.start_agents(&[]);
        pool.wait_for_ends();
        let names: Vec<String> = (1..=donors).map(|number| format!("d{number}")).collect();
        let declaration = json!({
            "pools": { "main": { "donors": names } },
            "zones": { "lab": { "quota": quota, "hosts": pool.hosts } },
        });
        let file = pool.directory.join("pool.json");
        std::fs::write(&file, declaration.to_string()).expect("the scratch directory can be written");
        pool.fabric(&["apply", file.to_str().expect("a path of ours")]);
        Some(pool)
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).to_str().expect("a path of ours").to_owned()
    }

    /// Starts a manager with the addresses and the state of the previous one.
    pub fn start_manager(&mut self) {
        let metrics = self.metrics(METRICS_OF_MANAGER);
        let config = format!(
            "{metrics}state = {:?}\nlisten = \"{}\"\n[control]\nlisten = \"{}\"\n\
             certificate = {:?}\nkey = {:?}\nauthority = {:?}\n\
             donors = [\"dns:*.donors.example\"]\nhosts = [\"dns:*.hosts.example\"]\n[peers]\nkind = \"registered\"\n\
             [rounds]\nidle-ms = 50\nbusy-ms = 5\nsilent-seconds = 2\n",
            self.file("state"),
            self.rest,
            self.control,
            self.file("manager.pem"),
            self.file("manager.key"),
            self.file("ca.pem")
        );
        std::fs::write(self.file("fabricd.toml"), config).expect("the scratch directory can be written");
        let mut command = Command::new(binaries().join("aquifer-fabricd"));
        command.args(["--config", &self.file("fabricd.toml")]);
        let mut lines = Vec::new();
        let count = if self.is_scraped { 3 } else { 2 };
        self.manager = Some(started(command, count, &mut lines));
        self.rest = lines[0].rsplit('/').next().expect("an address").to_owned();
        self.control = lines[count - 1].rsplit(' ').next().expect("an address").to_owned();
    }

    /// The setting with which a process serves metrics at this port; empty if it serves none.
    fn metrics(&self, port: u16) -> String {
        if self.is_scraped { format!("metrics = \"{}:{port}\"\n", self.ip) } else { String::new() }
    }

    /// Where manager, agent and donors serve metrics, each with the name of its job.
    #[must_use]
    pub fn metrics_addresses(&self) -> Vec<(&'static str, String)> {
        let ours = [("aquifer-fabricd", METRICS_OF_MANAGER), ("aquifer-agent", METRICS_OF_AGENT)];
        let ours = ours.map(|(job, port)| (job, format!("{}:{port}", self.ip)));
        let donors = self.donors.iter().map(|donor| ("aquifer-donor", word(&donor.said["metrics"])));
        ours.into_iter().chain(donors).collect()
    }

    /// Kills the manager with SIGKILL.
    pub fn kill_manager(&mut self) {
        end(self.manager.take());
    }

    /// Ends the manager as systemd does.
    pub fn stop_manager(&mut self) {
        if let Some(mut manager) = self.manager.take() {
            let sent = Command::new("kill").arg("-TERM").arg(manager.id().to_string()).status();
            assert!(sent.is_ok_and(|status| status.success()), "a signal for the manager");
            manager.wait().expect("a child");
        }
    }

    /// Logs in with the command line and with REST.
    fn login(&mut self) {
        let password = std::fs::read_to_string(self.file("state/initial-password")).expect("the first password");
        let mut command = self.command(&["login", "admin"]);
        command.env("AQUIFER_FABRIC_PASSWORD", password.trim());
        run(command, LIMIT).expect(0);
        let body = json!({ "UserName": "admin", "Password": password.trim() });
        let head = self.rest("POST", "/redfish/v1/SessionService/Sessions", &body);
        let token = head.lines().find(|line| line.starts_with("x-auth-token: ")).expect("a token");
        self.token = format!("{token}\r\n");
    }

    /// Sends one REST request. Panics unless it succeeds. Returns the answer with its head.
    pub fn rest(&self, method: &str, path: &str, body: &Value) -> String {
        let (body, token) = (body.to_string(), &self.token);
        let mut stream = TcpStream::connect(&self.rest).expect("the manager listens");
        let head = format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{token}");
        write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).expect("the manager reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the manager answers");
        assert!(answer.starts_with("HTTP/1.1 2"), "{method} {path}: {answer}");
        answer
    }

    /// `aquifer fabric` with these words.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = aquifer();
        command.args(["fabric", "--url", &self.url()]).args(words);
        command.env("XDG_RUNTIME_DIR", &self.directory);
        command
    }

    /// Runs `aquifer fabric` with these arguments.
    pub fn try_fabric(&self, words: &[&str]) -> Ended {
        run(self.command(words), LIMIT)
    }

    /// Runs `aquifer fabric` with these arguments. Panics unless it succeeds.
    pub fn fabric(&self, words: &[&str]) -> Ended {
        let ended = self.try_fabric(words);
        assert_eq!(ended.status, Some(0), "aquifer fabric {}: {}{}", words.join(" "), ended.stdout, ended.stderr);
        ended
    }

    /// Waits until everything is as it is desired to be.
    pub fn settle(&self) {
        self.fabric(&["status", "--until-settled", "--limit", "240"]);
    }

    /// What a list of `aquifer fabric` has.
    pub fn list(&self, of: &str) -> Vec<Value> {
        let text = self.fabric(&[of, "--json"]).stdout;
        let values = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        values.flat_map(|value| value["Members"].as_array().cloned().unwrap_or_else(|| vec![value])).collect()
    }

    fn wait_for_ends(&self) {
        let answer = |of: &str| self.list(of).iter().filter(|end| end["Status"]["State"] == "Enabled").count();
        let hosts = self.agents.len();
        eventually("all ends register", || answer("donors") == self.donors.len() && answer("hosts") == hosts);
    }

    /// Creates a volume, binds it to the host, lets everybody on the host use it, and waits until it can be used.
    pub fn create(&mut self, name: &str, size: &str, redundancy: &str) {
        self.fabric(&["create", name, "--size", size, "--zone", "lab", "--class", "tcp", "--redundancy", redundancy]);
        self.permit_all();
        self.fabric(&["bind", name, HOST]);
        self.settle();
    }

    /// Starts all agents again, so that everybody on their hosts may use every volume that there is now.
    pub fn permit_all(&mut self) {
        std::mem::take(&mut self.agents).into_values().for_each(|agent| end(Some(agent)));
        let volumes = self.list("volumes");
        let permits: Vec<(String, String)> =
            volumes.iter().map(|volume| (word(&volume["Id"]), word(&volume["Oem"]["Aquifer"]["VolumeId"]))).collect();
        self.start_agents(&permits);
        self.wait_for_ends();
    }

    /// The numbers of the donors that have members of a volume.
    #[must_use]
    pub fn donors_of(&self, name: &str) -> Vec<usize> {
        let volumes = self.list("volumes");
        let volume = volumes.iter().find(|volume| volume["Id"] == name).expect("it is listed");
        let members = volume["Oem"]["Aquifer"]["Members"].as_array().expect("a list");
        let number = |member: &Value| member["Source"]["@odata.id"].as_str()?.rsplit_once("Donor.d")?.1.parse().ok();
        members.iter().filter_map(number).collect()
    }

    /// The volume as a tier of a program of the first host, with more options.
    #[must_use]
    pub fn tier(&self, name: &str, options: &str) -> String {
        self.tier_on(HOST, name, options)
    }

    /// The volume as a tier of a program of that host, with more options.
    #[must_use]
    pub fn tier_on(&self, host: &str, name: &str, options: &str) -> String {
        format!("pool:{name},agent={}{options}", self.socket(host).display())
    }

    fn socket(&self, host: &str) -> PathBuf {
        self.sockets.join(format!("{host}.sock"))
    }

    fn start_agents(&mut self, permits: &[(String, String)]) {
        let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&self.directory).expect("it was just made"));
        for host in self.hosts.clone() {
            let files = if host == HOST { "host" } else { &host };
            let metrics = self.metrics(METRICS_OF_AGENT);
            let mut text = format!(
                "{metrics}host = {host:?}\nsocket = {:?}\nstate = {:?}\n[manager]\naddresses = [{:?}]\n[tenant]\ncert = {:?}\n\
                 key = {:?}\nca = {:?}\n",
                self.socket(&host),
                self.file(&format!("agent-{host}")),
                self.control,
                self.file(&format!("{files}.pem")),
                self.file(&format!("{files}.key")),
                self.file("ca.pem")
            );
            for (name, id) in permits {
                text += &format!("[[volume]]\nname = {name:?}\nid = {id:?}\nuids = [{uid}]\n");
            }
            std::fs::write(self.file(&format!("agent-{host}.toml")), text).expect("the directory can be written");
            self.launch_agent(&host);
        }
    }

    /// Starts the agent of the first host with the configuration and the state of the last one.
    pub fn restart_agent(&mut self) {
        self.launch_agent(HOST);
    }

    fn launch_agent(&mut self, host: &str) {
        let mut command = Command::new(binaries().join("aquifer-agentd"));
        command.args(["--config", &self.file(&format!("agent-{host}.toml"))]);
        self.agents.insert(host.to_owned(), started(command, 1, &mut Vec::new()));
    }

    /// Kills the agent of the first host, as kill -9 does.
    pub fn kill_agent(&mut self) {
        end(self.agents.remove(HOST));
    }

    fn launch(&self, number: usize, port: &str) -> Donor {
        let mut command = donor::command(format!("{}:{port}", self.ip));
        command.args(["--tls-cert", &self.file("donor.pem"), "--tls-key", &self.file("donor.key")]);
        command.args(["--tls-ca", &self.file("ca.pem"), "--manager", &self.control, "--id", &format!("d{number}")]);
        command.args(["--manager-state", &self.file(&format!("d{number}.json"))]).args(&self.donor_words);
        let host = ["--tls-cert", &self.file("host.pem"), "--tls-key", &self.file("host.key")].map(str::to_owned);
        let flags = [&host[..], &["--tls-ca".to_owned(), self.file("ca.pem")]].concat();
        Donor::run(command).with_security("", &flags)
    }

    /// Starts a donor again, at its address, after it has ended.
    pub fn restart_donor(&mut self, number: usize) {
        let before = &mut self.donors[number - 1];
        let _ = before.child.wait();
        let port = before.address.rsplit(':').next().expect("a port").to_owned();
        self.donors[number - 1] = self.launch(number, &port);
        self.wait_for_ends();
    }

    /// Starts one more donor, which is in no pool yet.
    pub fn join_donor(&mut self) {
        let donor = self.launch(self.donors.len() + 1, "0");
        self.donors.push(donor);
        self.wait_for_ends();
    }

    /// The address at which the manager serves REST.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.rest)
    }

    /// The names of the hosts, the first one first.
    #[must_use]
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Where the files of the test can be.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        std::mem::take(&mut self.agents).into_values().for_each(|agent| end(Some(agent)));
        end(self.manager.take());
        let _ = std::fs::remove_dir_all(&self.sockets);
    }
}

fn word(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

/// Starts a program, and reads the lines with which it says that it is ready.
pub(crate) fn started(mut command: Command, count: usize, lines: &mut Vec<String>) -> Child {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the program can be started");
    let mut output = BufReader::new(child.stdout.as_mut().expect("piped"));
    for _ in 0..count {
        let mut line = String::new();
        output.read_line(&mut line).expect("a line, or the end");
        assert!(!line.is_empty(), "{command:?} does not start");
        lines.push(line.trim().to_owned());
    }
    child
}

pub(crate) fn end(child: Option<Child>) {
    if let Some(mut child) = child {
        let _ = child.kill();
        let _ = child.wait();
    }
}
