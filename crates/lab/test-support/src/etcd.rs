// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A cluster of etcd for a test: real members on loopback addresses of the test's process, ended with their cluster.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::skips::skip;

/// How long a cluster may take until it answers. Members elect within seconds; a busy machine needs more.
const READY_MAX: Duration = Duration::from_secs(120);
/// How often a start with other ports is tried, should another program have taken one in between.
const STARTS_MAX: u32 = 3;

/// One member.
#[derive(Debug)]
pub struct EtcdMember {
    /// Where clients connect, as `ADDRESS:PORT`.
    pub client: String,
    peer: String,
    directory: PathBuf,
    child: Option<Child>,
}

/// A cluster.
#[derive(Debug)]
pub struct EtcdCluster {
    /// The members.
    pub members: Vec<EtcdMember>,
    more: Vec<String>,
    scheme: &'static str,
}

/// A free port at a loopback address that no other process uses. It stays free until its user starts, because the
/// kernel assigns ports of this address only to sockets that are bound to it by name.
fn free(number: u32) -> String {
    let pid = std::process::id();
    let address = format!("127.{}.{}.{}", 16 + pid % 200, 1 + pid / 200 % 250, 251 + number % 4);
    let listener = TcpListener::bind((address.as_str(), 0)).expect("a loopback address has free ports");
    listener.local_addr().expect("an address").to_string()
}

impl EtcdCluster {
    /// Starts members below a directory. Skips the test and returns nothing where there is no etcd.
    pub fn start(count: usize, directory: &Path) -> Option<EtcdCluster> {
        EtcdCluster::start_with(count, directory, "http", &[])
    }

    /// The same with further arguments, and `https` towards clients.
    pub fn start_with(count: usize, directory: &Path, scheme: &'static str, more: &[String]) -> Option<EtcdCluster> {
        if Command::new("etcd").arg("--version").output().is_err() {
            skip("there is no etcd; install etcd-server");
            return None;
        }
        for start in 0..STARTS_MAX {
            let directory = directory.join(format!("etcd{start}"));
            let member = |number: usize| EtcdMember {
                client: free(next()),
                peer: free(next()),
                directory: directory.join(number.to_string()),
                child: None,
            };
            let members = (0..count).map(member).collect();
            let mut cluster = EtcdCluster { members, more: more.to_vec(), scheme };
            (0..count).for_each(|number| cluster.begin(number));
            if cluster.is_ready() {
                return Some(cluster);
            }
            println!("the cluster does not answer at start {start}; its log:");
            for member in &cluster.members {
                println!("{}", std::fs::read_to_string(member.directory.join("log")).unwrap_or_default());
            }
        }
        panic!("etcd does not start");
    }

    /// Starts a member, or starts it again with what it has stored.
    pub fn begin(&mut self, number: usize) {
        let url = |member: &EtcdMember| format!("http://{}", member.peer);
        let all = self.members.iter().enumerate().map(|(number, member)| format!("m{number}={}", url(member)));
        let all = all.collect::<Vec<String>>().join(",");
        let member = &self.members[number];
        std::fs::create_dir_all(&member.directory).expect("a directory");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(member.directory.join("log"));
        let clients = format!("{}://{}", self.scheme, member.client);
        let mut command = Command::new("etcd");
        command.args(["--name", &format!("m{number}"), "--initial-cluster", &all]);
        command.arg("--data-dir").arg(member.directory.join("data"));
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &url(member), "--initial-advertise-peer-urls", &url(member)]);
        // Twice the default times, for busy machines.
        command.args(["--heartbeat-interval", "200", "--election-timeout", "2000"]).args(&self.more);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.expect("a log"));
        self.members[number].child = Some(command.spawn().expect("etcd starts"));
    }

    fn is_ready(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < READY_MAX {
            let is_there = |member: &EtcdMember| match self.scheme {
                "https" => TcpStream::connect(&member.client).is_ok(),
                _ => ask(&member.client, "GET", "/health", "").is_some_and(|answer| answer.contains("\"true\"")),
            };
            if self.members.iter().all(is_there) {
                return true;
            }
            let has_ended = |member: &mut EtcdMember| {
                member.child.as_mut().is_none_or(|child| child.try_wait().is_ok_and(|ended| ended.is_some()))
            };
            if self.members.iter_mut().any(has_ended) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }

    /// URLs of all members.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("{}://{}", self.scheme, member.client)).collect()
    }

    /// The number of the member that leads, if there is one now.
    pub fn leader(&self) -> Option<usize> {
        let field = |answer: &str, name: &str| {
            let (_, rest) = answer.split_once(&format!("\"{name}\":\""))?;
            rest.split_once('"').map(|(value, _)| value.to_owned())
        };
        (0..self.members.len()).find(|number| {
            let answer = ask(&self.members[*number].client, "POST", "/v3/maintenance/status", "{}").unwrap_or_default();
            let leader = field(&answer, "leader");
            leader.is_some() && leader == field(&answer, "member_id")
        })
    }

    /// The leader, when there is one.
    pub fn wait_for_leader(&self) -> usize {
        let begun = Instant::now();
        while begun.elapsed() < READY_MAX {
            if let Some(leader) = self.leader() {
                return leader;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the members elect no leader");
    }

    /// Ends a member with SIGKILL.
    pub fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.members[number].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops a member: it answers nobody, and the kernel still takes what is sent to it.
    pub fn stop(&self, number: usize) {
        self.signal(number, "-STOP");
    }

    /// Lets a stopped member go on.
    pub fn go_on(&self, number: usize) {
        self.signal(number, "-CONT");
    }

    fn signal(&self, number: usize, signal: &str) {
        let child = self.members[number].child.as_ref().expect("it runs");
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.is_ok_and(|sent| sent.success()), "kill {signal}");
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|number| self.kill(number));
        // Each has preallocated its log. After a failure the directories stay, with what the members wrote.
        if !std::thread::panicking() {
            self.members.iter().for_each(|member| drop(std::fs::remove_dir_all(&member.directory)));
        }
    }
}

fn next() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// One request, and the whole answer.
fn ask(address: &str, method: &str, path: &str, body: &str) -> Option<String> {
    let wait = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&address.parse().ok()?, wait).ok()?;
    stream.set_read_timeout(Some(wait)).ok()?;
    let length = body.len();
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}
