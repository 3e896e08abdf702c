// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Builds the images of the servers from the Debian packages with the commands of docs/containers.md, and runs them
//! with podman and the options of that page: manager, donors and agent in containers make a pool over TLS, and a
//! program of the host verifies its memory in a volume of it while containers are killed; the cache serves a client.
//!
//! Needs root, buildah, podman, debhelper, and `AQUIFER_E2E_IMAGE_BASE`: see `src/images.rs`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use aquifer_e2e::build::{scratch, workspace};
use aquifer_e2e::images::{Container, Images, UNLIMITED, base, lockable_bytes};
use aquifer_e2e::packages::Packages;
use aquifer_e2e::pool::{HOST, make_certificates, own_address};
use aquifer_e2e::run::{Ended, LIMIT, aquifer, eventually, run};
use aquifer_e2e::verifying::{ALARM, Game, Verified, verified};
use serde_json::{Value, json};

const VERSION: &str = "0.1.0-1";
/// The user of manager, donor and cache.
const NOBODY: u32 = 65534;
/// A user of the host for the agent, who need not have a name.
const AGENT: u32 = 60123;

#[test]
fn images_are_built_from_the_packages_and_their_servers_work_together() {
    let Some(images) = built() else { return };
    pool(&images);
    cache(&images);
}

/// The images, built as the page says.
fn built() -> Option<Images> {
    let base = base()?;
    let page = include_str!("../../../../docs/containers.md");
    let block = page.split("```sh\n").find(|block| block.contains("buildah build")).expect("the page has it");
    let commands = block.split("```").next().expect("the block ends");
    let packages = Packages::build(VERSION)?;
    let images = Images::build(&base, &packages, commands);
    let listed = images.podman(&["images", "--format", "{{.Repository}}:{{.Tag}} {{.Size}}"]).stdout;
    println!("{listed}");
    Some(images)
}

/// What the containers have of the host: configuration and certificates, and the agent's directories.
struct Site {
    directory: PathBuf,
    sockets: PathBuf,
    ip: String,
}

impl Site {
    fn new(images: &Images) -> Option<Site> {
        let directory = scratch("images-site").canonicalize().expect("just made");
        let ip = own_address("images");
        make_certificates(&directory, &ip)?;
        for name in ["donor", "manager"] {
            give(&directory.join(format!("{name}.key")), 0, NOBODY, 0o640);
        }
        give(&directory.join("host.key"), 0, AGENT, 0o640);
        let sockets = images.short().join("agent");
        for (path, mode) in [(&sockets, 0o755), (&directory.join("agent"), 0o700)] {
            std::fs::create_dir_all(path).expect("the scratch directory can be written");
            give(path, AGENT, AGENT, mode);
        }
        let site = Site { directory, sockets, ip };
        let manager = format!(
            "state = '/var/lib/aquifer-fabricd'\nlisten = '{0}:7443'\n[control]\nlisten = '{0}:7444'\n\
             certificate = '/etc/aquifer/manager.pem'\nkey = '/etc/aquifer/manager.key'\n\
             authority = '/etc/aquifer/ca.pem'\ndonors = ['dns:*.donors.example']\nhosts = ['dns:*.hosts.example']\n\
             [peers]\nkind = 'registered'\n",
            site.ip
        );
        site.write("fabricd.toml", &manager);
        site.permit(None);
        Some(site)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.directory.join(name), text).expect("the scratch directory can be written");
    }

    /// Writes the agent's configuration, which lets root use this volume.
    fn permit(&self, volume: Option<&str>) {
        let at = self.directory.display();
        let mut text = format!(
            "host = '{HOST}'\n[manager]\naddresses = ['{}:7444']\n[tenant]\ncert = '{at}/host.pem'\n\
             key = '{at}/host.key'\nca = '{at}/ca.pem'\n",
            self.ip
        );
        if let Some(id) = volume {
            text += &format!("[[volume]]\nname = 'db'\nid = '{id}'\nuids = [0]\n");
        }
        self.write("agent.toml", &text);
    }

    /// The option that shows the configuration to a container, where the page has it.
    fn etc(&self) -> String {
        format!("--volume={}:/etc/aquifer:ro", self.directory.display())
    }

    fn manager<'a>(&self, images: &'a Images) -> Container<'a> {
        let etc = self.etc();
        let options = ["--volume", "aquifer-fabricd:/var/lib/aquifer-fabricd", &etc];
        images.start("manager", &options, "aquifer-manager:0.1.0", &[])
    }

    fn donor<'a>(&self, images: &'a Images, number: u16) -> Container<'a> {
        let (etc, name) = (self.etc(), format!("d{number}"));
        let (listen, manager) = (format!("{}:{}", self.ip, 7410 + number), format!("{}:7444", self.ip));
        let arguments = [
            ["--size", "128MiB"],
            ["--listen", &listen],
            ["--tls-cert", "/etc/aquifer/donor.pem"],
            ["--tls-key", "/etc/aquifer/donor.key"],
            ["--tls-ca", "/etc/aquifer/ca.pem"],
            ["--manager", &manager],
            ["--id", &name],
        ];
        let lockable = format!("memlock={}", lockable_bytes());
        images.start(&name, &["--ulimit", &lockable, &etc], "aquifer-donor:0.1.0", &arguments.concat())
    }

    /// The agent has the certificates where programs of the host have them, too.
    fn agent<'a>(&self, images: &'a Images) -> Container<'a> {
        let at = self.directory.display();
        let user = format!("{AGENT}:{AGENT}");
        let sockets = format!("{}:/run/aquifer", self.sockets.display());
        let (state, etc) = (format!("{at}/agent:/var/lib/aquifer/agent"), format!("{at}:{at}:ro"));
        let options = ["--pid", "host", "--user", &user, "--volume", &sockets, "--volume", &state, "--volume", &etc];
        images.start("agent", &options, "aquifer-agent:0.1.0", &["--config", &format!("{at}/agent.toml")])
    }

    /// Runs `aquifer fabric` with these words. Panics unless it succeeds.
    #[track_caller]
    fn fabric(&self, words: &[&str]) -> Ended {
        let ended = run(self.command(words), LIMIT);
        assert_eq!(ended.status, Some(0), "aquifer fabric {}: {}{}", words.join(" "), ended.stdout, ended.stderr);
        ended
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = aquifer();
        command.args(["fabric", "--url", &format!("http://{}:7443", self.ip)]).args(words);
        command.env("XDG_RUNTIME_DIR", &self.directory);
        command
    }

    fn settle(&self) {
        self.fabric(&["status", "--until-settled", "--limit", "240"]);
    }

    fn list(&self, of: &str) -> Vec<Value> {
        let text = self.fabric(&[of, "--json"]).stdout;
        let values = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        values.flat_map(|value| value["Members"].as_array().cloned().unwrap_or_else(|| vec![value])).collect()
    }

    fn wait_for_ends(&self, donors: usize) {
        let answer = |of: &str| self.list(of).iter().filter(|end| end["Status"]["State"] == "Enabled").count();
        eventually("all ends register", || answer("donors") == donors && answer("hosts") == 1);
    }

    /// The index of a donor that has a member of the volume.
    fn donor_of_volume(&self) -> usize {
        let volumes = self.list("volumes");
        let source = volumes[0]["Oem"]["Aquifer"]["Members"][0]["Source"]["@odata.id"].as_str().expect("a donor");
        let number = source.rsplit_once("Donor.d").and_then(|(_, number)| number.parse::<usize>().ok());
        number.expect("one of ours") - 1
    }

    /// The processes that the agent has stored as users of its volumes.
    fn users(&self) -> Vec<u64> {
        let text = std::fs::read(self.directory.join("agent/agent.json")).expect("the agent's state");
        let state: Value = serde_json::from_slice(&text).expect("one object");
        let users = state["users"].as_array().expect("a list");
        users.iter().map(|user| user["process"]["pid"].as_u64().expect("a number")).collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn give(path: &Path, user: u32, group: u32, mode: u32) {
    std::os::unix::fs::chown(path, Some(user), Some(group)).expect("root may");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("root may");
}

/// The user and the group of a process of the host.
fn user_of(process: u32) -> (u32, u32) {
    use std::os::unix::fs::MetadataExt;
    let about = std::fs::metadata(format!("/proc/{process}")).expect("it runs");
    (about.uid(), about.gid())
}

fn pool(images: &Images) {
    let Some(site) = Site::new(images) else { return };
    let manager = site.manager(images);
    let password = Path::new("/var/lib/aquifer-fabricd/initial-password");
    let mut words = String::new();
    eventually("the manager starts", || {
        assert!(manager.is_running(), "{}", manager.log());
        let ended = images.podman(&["exec", "manager", "cat", &password.to_string_lossy()]);
        words = ended.stdout.trim().to_owned();
        ended.status == Some(0)
    });
    let mut login = site.command(&["login", "admin"]);
    login.env("AQUIFER_FABRIC_PASSWORD", &words);
    run(login, LIMIT).expect(0);
    let donors = [1, 2, 3].map(|number| site.donor(images, number));
    let agent = site.agent(images);
    site.wait_for_ends(donors.len());
    for (container, user) in [(&manager, NOBODY), (&donors[0], NOBODY), (&agent, AGENT)] {
        assert_eq!(user_of(container.process()), (user, user), "{container:?}");
    }
    let declaration = json!({
        "pools": { "main": { "donors": ["d1", "d2", "d3"] } },
        "zones": { "lab": { "quota": "512MiB", "hosts": [HOST] } },
    });
    site.write("pool.json", &declaration.to_string());
    site.fabric(&["apply", site.directory.join("pool.json").to_str().expect("a path of ours")]);
    site.fabric(&["create", "db", "--size", "64MiB", "--zone", "lab", "--class", "tcp", "--redundancy", "mirror=2"]);
    let id = site.list("volumes")[0]["Oem"]["Aquifer"]["VolumeId"].as_str().expect("an ID").to_owned();
    site.permit(Some(&id));
    agent.does(&["restart"], &[]);
    site.wait_for_ends(donors.len());
    site.fabric(&["bind", "db", HOST]);
    site.settle();

    let tier = format!("pool:db,agent={}/agent.sock,size=160MiB", site.sockets.display());
    let Some(game) = Game::start("images", &[tier], ALARM, |command| command) else { return };
    assert_eq!(site.users(), [u64::from(game.program())], "the agent does not see the host's processes");
    let locked = std::fs::read_to_string(format!("/proc/{}/status", donors[0].process())).expect("it runs");
    let locked = locked.lines().find_map(|line| line.strip_prefix("VmLck:")).expect("a number").trim().to_owned();
    if lockable_bytes() == UNLIMITED {
        assert_ne!(locked, "0 kB", "lent memory is not locked");
    } else {
        println!("whether lent memory is locked is not checked: this process may not raise RLIMIT_MEMLOCK");
    }
    for (container, words) in [(&agent, ["grow", "db", "96MiB"]), (&manager, ["shrink", "db", "64MiB"])] {
        container.does(&["kill", "--signal", "KILL"], &[]);
        eventually("the container ends", || !container.is_running());
        container.does(&["start"], &[]);
        eventually("the manager answers", || run(site.command(&["status"]), LIMIT).status == Some(0));
        site.wait_for_ends(donors.len());
        site.fabric(&words);
        site.settle();
    }
    // SIGTERM: the manager moves what the donor has, and the container ends by itself.
    let (begun, stopped) = (Instant::now(), &donors[site.donor_of_volume()]);
    stopped.does(&["stop", "--time", "90"], &[]);
    println!("a donor's container stops within {:?}", begun.elapsed());
    let exit = stopped.does(&["inspect", "--format", "{{.State.ExitCode}}"], &[]);
    assert_eq!(exit.trim(), "0", "{}", stopped.log());
    let Verified { wrong, lost, longest_ms } = verified(&game.end());
    println!("the longest access took {longest_ms} ms");
    assert_eq!((wrong, lost), (0, 0));
    eventually("the agent notices that the program has ended", || site.users().is_empty());
}

/// Sends requests of Redis's protocol, each in a line, and returns the answer up to the end of the last line of it.
fn ask(address: &str, requests: &str, last: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    stream.write_all(requests.as_bytes()).ok()?;
    let (mut answer, mut bytes) = (String::new(), [0; 4096]);
    while !answer.ends_with(last) {
        let count = stream.read(&mut bytes).ok().filter(|count| *count > 0)?;
        answer.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    Some(answer)
}

fn cache(images: &Images) {
    let address = format!("{}:6379", own_address("images"));
    let arguments = ["--listen", &address, "--dram", "64MiB", "--tier", "dram:size=256MiB", "--size", "128MiB"];
    let refused = images.start("refused", &[], "aquifer-cache:0.1.0", &arguments);
    eventually("it ends", || !refused.is_running());
    let log = refused.log();
    assert!(log.contains("most likely by the seccomp filter of a container"), "{log}");

    // The device of the host belongs to root; this one is the same, and everybody's, as chgrp would make it a group's.
    let device = images.short().join("userfaultfd");
    let mut copy = Command::new("cp");
    copy.arg("-a").arg("/dev/userfaultfd").arg(&device);
    if run(copy, LIMIT).status == Some(0) {
        give(&device, 0, 0, 0o666);
        serves(images, &address, &[&format!("--device={}:/dev/userfaultfd", device.display())], &arguments);
    } else {
        aquifer_test_support::skip_part("the device", "this kernel has no /dev/userfaultfd");
    }

    let default = std::fs::File::open("/usr/share/containers/seccomp.json");
    let profile = images.short().join("aquifer.json");
    let made = default.is_ok_and(|default| {
        let mut make = Command::new(workspace().join("packaging/seccomp-profile"));
        let to = std::fs::File::create(&profile).expect("a temporary directory");
        make.stdin(default).stdout(to).status().is_ok_and(|status| status.success())
    });
    if made {
        serves(images, &address, &[&format!("--security-opt=seccomp={}", profile.display())], &arguments);
    } else {
        aquifer_test_support::skip_part("the profile", "there is no jq, or no default profile of podman");
    }
}

/// With these options, the cache stores more than its DRAM, and ends when its container is stopped.
fn serves(images: &Images, address: &str, options: &[&str], arguments: &[&str]) {
    let cache = images.start("cache", options, "aquifer-cache:0.1.0", arguments);
    eventually("the cache answers", || {
        assert!(cache.is_running(), "{options:?}: {}", cache.log());
        ask(address, "PING\r\n", "\r\n").as_deref() == Some("+PONG\r\n")
    });
    assert_eq!(user_of(cache.process()), (NOBODY, NOBODY));
    let value = |key: usize| format!("{key:08}").repeat(1 << 14);
    for key in 0..768 {
        let value = value(key);
        let set = format!("*3\r\n$3\r\nSET\r\n$8\r\n{key:08}\r\n${}\r\n{value}\r\n", value.len());
        assert_eq!(ask(address, &set, "\r\n").as_deref(), Some("+OK\r\n"), "{}", cache.log());
    }
    for key in 0..768 {
        let got = ask(address, &format!("GET {key:08}\r\n"), &format!("{}\r\n", value(key)));
        assert!(got.is_some(), "{key}: {}", cache.log());
    }
    cache.does(&["stop", "--time", "30"], &[]);
    assert_eq!(cache.does(&["inspect", "--format", "{{.State.ExitCode}}"], &[]).trim(), "0", "{}", cache.log());
}
