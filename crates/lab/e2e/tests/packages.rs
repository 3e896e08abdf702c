// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Installs the Debian packages in a container with systemd, starts them, upgrades them under running programs, removes
//! and purges them, by running the commands of docs/operating/packages.md from top to bottom. Also checks their
//! contents, so that the container files, which install them, name nothing that does not exist.
//!
//! Guards against these failures: an upgrade that restarts a donor loses the memory that it lends, and one that
//! restarts programs ends them; a purge that forgets a directory leaves a password of the manager; a setting of the
//! agent's unit hides programs from it, so that it counts running ones as ended.

mod packaged;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

use aquifer_e2e::build::{compile_text, scratch, workspace};
use aquifer_e2e::machines::Switch;
use aquifer_e2e::packages::{NAMES, Packages};
use aquifer_e2e::run::eventually;
use aquifer_e2e::verifying;
use packaged::agent::{agent_has_read_the_permits_again, agent_sees_programs, agent_that_hangs_is_restarted};
use packaged::{QUESTION, Site, lent_bytes};

/// The earlier version, from which to upgrade.
const OLDER: &str = "0.0.9-1";
const VERSION: &str = "0.1.0-1";
/// The units, with the user that runs each.
const UNITS: [&str; 5] =
    ["aquifer-donor", "aquifer-fabricd", "aquifer-agent", "aquifer-metrics", "aquifer-pool-switchd"];

/// The packages, built once for all tests here.
fn packages() -> Option<&'static Packages> {
    static BUILT: OnceLock<Option<Packages>> = OnceLock::new();
    BUILT.get_or_init(|| Packages::build(VERSION)).as_ref()
}

#[test]
fn every_package_has_what_its_description_says_and_nothing_that_can_be_written_by_others() {
    let Some(packages) = packages() else { return };
    let files = packages.files();
    for (package, path) in [
        ("aquifer", "/usr/bin/aquifer"),
        ("aquifer", "/usr/lib/aquifer/libaquifer_preload.so"),
        ("aquifer", "/usr/lib/sysusers.d/aquifer.conf"),
        ("aquifer", "/usr/share/bash-completion/completions/aquifer"),
        ("aquifer", "/usr/share/doc/aquifer/third-party-licences.gz"),
        ("aquifer", "/usr/share/man/man1/aquifer-run.1.gz"),
        ("aquifer", "/lib/systemd/system/aquifer@.service"),
        ("aquifer-agent", "/usr/libexec/aquifer/aquifer-device-plugin"),
        ("aquifer-donor", "/etc/aquifer/donor.conf"),
        ("aquifer-fabric", "/etc/aquifer/pool-switch.toml"),
        ("aquifer-fabric", "/lib/systemd/system/aquifer-pool-switchd.service"),
        ("aquifer-fabric", "/usr/libexec/aquifer/aquifer-fabricd"),
        ("aquifer-fabric", "/usr/libexec/aquifer/aquifer-pool-switchd"),
        ("aquifer-tools", "/usr/libexec/aquifer/aquifer-torture"),
        ("libaquifer-dev", "/usr/include/aquifer.h"),
        ("libaquifer-dev", "/usr/share/man/man3/aquifer_open.3.gz"),
    ] {
        assert!(files[package].contains_key(path), "{package} has no {path}: {:?}", files[package].keys());
    }
    for (package, files) in &files {
        for name in ["changelog.gz", "changelog.Debian.gz", "copyright"] {
            let path = format!("/usr/share/doc/{package}/{name}");
            assert!(files.contains_key(&path), "{package} has no {path}");
        }
        for (path, mode) in files.iter().filter(|(_, mode)| !mode.starts_with('l')) {
            assert!(!mode[5..].contains('w') && !mode.contains(['s', 't']), "{package}: {path} has mode {mode}");
        }
        assert!(packages.field(package, "Description").lines().count() > 2, "{package}");
        assert_eq!(packages.field(package, "Version"), VERSION);
    }
    // Packages declare the libraries that they link with, as dpkg-shlibdeps finds them, and none depends on a library
    // that is preloaded.
    assert!(packages.field("aquifer", "Depends").contains("libc6 (>= "), "{}", packages.field("aquifer", "Depends"));
    assert_eq!(packages.field("aquifer-agent", "Depends").split(", ").next(), Some("aquifer (>= 0.1.0-1)"));
    assert_eq!(packages.field("libaquifer-dev", "Depends"), format!("libaquifer0 (= {VERSION})"));
}

/// A block of the page: commands, or a file with its path.
enum Block {
    File(String, String),
    Typed(String),
}

/// The blocks of the page, each with the heading above it.
fn blocks() -> Vec<(String, Block)> {
    let page = include_str!("../../../../docs/operating/packages.md");
    let (mut blocks, mut section, mut open) = (Vec::new(), String::new(), None::<(String, String)>);
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(words), None) => open = Some((words.to_owned(), String::new())),
            (Some(_), Some(_)) => {
                let (words, text) = open.take().expect("it is open");
                match words.split_once(' ') {
                    None if words == "sh" => blocks.push((section.clone(), Block::Typed(text))),
                    Some(("sh", why)) if why.starts_with("skip: ") => {}
                    Some((_, path)) if path.starts_with('/') => {
                        blocks.push((section.clone(), Block::File(path.to_owned(), text)));
                    }
                    _ => panic!("'{words}' says nothing of how its block is tested"),
                }
            }
            (None, Some((_, text))) => *text += &format!("{line}\n"),
            (None, None) => section = line.strip_prefix("## ").map_or(section, str::to_owned),
        }
    }
    blocks
}

impl Site {
    /// Files that the packages or their services may have made.
    fn traces(&self) -> BTreeSet<String> {
        let found = self.0.run(
            "find /etc /lib/ /opt /run /srv /usr /var -xdev -iname '*aquifer*' -not -path '/usr/local/*' \
             -not -path '/run/systemd/*' -not -path '*/systemd-private-*'",
        );
        found.lines().map(str::to_owned).collect()
    }

    fn type_block(&self, section: &str, block: &Block) {
        let directory = if section == "Install" { "/root/older" } else { "/root/packages" };
        match block {
            Block::Typed(text) => {
                drop(self.0.run(&format!("cd {directory}\nexport DEBIAN_FRONTEND=noninteractive\n{text}")))
            }
            Block::File(path, text) => std::fs::write(self.0.path(path), text).expect("root may"),
        }
    }
}

#[test]
fn packages_install_start_upgrade_under_running_programs_and_leave_nothing_behind() {
    let Some(switch) = Switch::anywhere() else { return };
    let Some(packages) = packages() else { return };
    let Some(checking) = compile_text("checking", verifying::PROGRAM) else { return };
    let programs = scratch("packages-programs").canonicalize().expect("just made");
    std::fs::copy(checking, programs.join("checking")).expect("the scratch directory can be written");
    let older = packages.as_version(OLDER);
    let bind = |from: &Path, to: &str| format!("--bind-ro={}:/root/{to}", from.display());
    let words = [bind(packages.directory(), "packages"), bind(older.directory(), "older"), bind(&programs, "programs")];
    let mut machine = switch.plug("packages", "10.0.0.1", &words);
    machine.wait_until_started();
    let site = Site(machine);
    let blocks = blocks();
    let clean = site.traces();
    let mut before = None;
    for (index, (section, block)) in blocks.iter().enumerate() {
        let is_first = index == 0 || blocks[index - 1].0 != *section;
        if is_first && section == "Upgrade" {
            before = Some(Before::of(&site));
        }
        if is_first && section == "Remove" {
            removed_without_purge(&site);
        }
        site.type_block(section, block);
        let is_upgrade = section == "Upgrade" && is_first;
        let is_last = blocks.get(index + 1).is_none_or(|(next, _)| next != section);
        match section.as_str() {
            "Install" => installed(&site),
            "Configure and start" if is_last => started(&site),
            "Upgrade" if is_last => recovered(&site),
            "Upgrade" if is_upgrade => upgraded(&site, before.as_ref().expect("taken above")),
            "Remove" => purged(&site, &clean),
            _ => {}
        }
    }
}

/// Nothing runs and nothing is enabled, and the user is there.
fn installed(site: &Site) {
    for unit in UNITS {
        assert_eq!(site.property(unit, "UnitFileState"), "disabled", "{unit}");
        assert!(!site.is_active(unit), "{unit} was started");
    }
    let user = site.0.run("getent passwd aquifer");
    assert!(user.trim().ends_with("/nologin"), "{user}");
    let versions = site.0.run("dpkg-query --show --showformat='${Version}\\n' $(dpkg-query --list 'libaquifer*' 'aquifer*' | sed -n 's/^ii  \\([^ :]*\\).*/\\1/p')");
    assert_eq!(versions.lines().collect::<Vec<_>>(), [OLDER; NAMES.len()]);
    // A program that root runs makes the directory in which services keep their state; they must get at it.
    site.0.run("umask 077; aquifer run --dram 16MiB -- true; test -d /var/lib/aquifer");
    // A C program builds with the flags from pkg-config, and runs with the library's package.
    site.0.run(
        "printf '#include <aquifer.h>\\nint main(void) { return aquifer_error_name(0) == 0; }\\n' > one.c
         cc -o one one.c $(pkg-config --cflags --libs aquifer) && ./one",
    );
}

/// All units run, each as its user, and a program has memory at the donor.
fn started(site: &Site) {
    for unit in UNITS {
        eventually(&format!("{unit} starts"), || site.is_active(unit));
    }
    for (unit, user) in [
        ("aquifer-agent", Some("aquifer")),
        ("aquifer-donor", None),
        ("aquifer-fabricd", None),
        ("aquifer-pool-switchd", None),
    ] {
        let found = site.0.run(&format!("stat --format=%U /proc/{}", site.process(unit)));
        assert!(user.is_none_or(|user| found.trim() == user) && found.trim() != "root", "{unit} runs as {found}");
    }
    for (unit, status) in [
        ("aquifer-agent", "serves programs at /run/aquifer/agent.sock"),
        ("aquifer-donor", "lends 256MiB at 127.0.0.1:7411"),
        ("aquifer-fabricd", "leads"),
        ("aquifer-pool-switchd", "shows the pool as a CXL switch"),
    ] {
        assert_eq!(site.property(unit, "StatusText"), status, "{unit}");
        assert_eq!(site.property(unit, "NRestarts"), "0", "{unit}");
    }
    let ready = site.0.path("/root/stop.ready");
    eventually("the program has filled its memory", || ready.exists());
    assert!(lent_bytes(site) > 0, "the program has no memory at the donor");
    assert!(site.0.path("/var/lib/aquifer-donor/managers.json").exists(), "the donor forgets which manager it obeys");
    agent_has_read_the_permits_again(site);
    agent_sees_programs(site);
    agent_that_hangs_is_restarted(site);
}

/// The state that an upgrade must keep.
struct Before {
    donor: String,
    program: String,
    agent: String,
    manager: String,
    users: Vec<(u64, u64)>,
    configuration: String,
    password: String,
}

impl Before {
    fn of(site: &Site) -> Before {
        Before {
            donor: site.process("aquifer-donor"),
            program: site.process("aquifer@checking"),
            agent: site.process("aquifer-agent"),
            manager: site.process("aquifer-fabricd"),
            users: site.users(),
            configuration: site.0.run("cat /etc/aquifer/*"),
            password: site.0.run("cat /var/lib/private/aquifer-fabricd/initial-password"),
        }
    }
}

/// Checks that the new version is installed, that programs and the donor still run, and that manager and agent were
/// restarted with the same state.
fn upgraded(site: &Site, before: &Before) {
    let now = Before::of(site);
    assert_eq!((&now.donor, &now.program), (&before.donor, &before.program), "they were restarted");
    assert_ne!(now.agent, before.agent, "the agent runs the old version");
    assert_ne!(now.manager, before.manager, "the manager runs the old version");
    assert_eq!(now.users, before.users, "the agent has forgotten a program that uses a volume");
    assert_eq!(now.configuration, before.configuration);
    assert_eq!(now.password, before.password);
    for unit in UNITS {
        eventually(&format!("{unit} is back"), || site.is_active(unit));
    }
    assert_eq!(site.0.run("dpkg-query --show --showformat='${Version}' aquifer"), VERSION);
    // The program continues, and every byte that it has at the donor is right.
    site.0.run("touch stop");
    eventually("the program ends", || !site.is_active("aquifer@checking"));
    let said = site.0.run("journalctl --no-pager --output=cat --unit=aquifer@checking");
    assert!(said.lines().any(|line| line.starts_with("wrong 0 lost 0 ")), "{said}");
    assert_eq!(site.property("aquifer@checking", "Result"), "success", "{said}");
    site.0.run("rm stop stop.ready");
}

/// The volume of the only donor can be used again after each restart of the donor. A program that had memory there gets
/// errors for it, and never other bytes. It joins the donor again, and has memory there as soon as it needs some: here
/// it may go on with what it still has in DRAM.
fn recovered(site: &Site) {
    let settle = "aquifer fabric login admin --password-stdin < /var/lib/aquifer-fabricd/initial-password
        until aquifer fabric donors | grep --quiet Enabled; do sleep 1; done
        aquifer fabric status --until-settled";
    site.0.run(settle);
    site.0.run(
        "systemd-run --unit=third aquifer run --dram 16MiB --tier pool:db -- \
         /root/programs/checking /root/third 900",
    );
    let ready = site.0.path("/root/third.ready");
    eventually("the third program has filled its memory", || ready.exists());
    assert!(lent_bytes(site) > 0);
    let donor = site.process("aquifer-donor");
    site.0.run("systemctl kill --signal=KILL aquifer-donor");
    eventually("the donor is back", || {
        site.is_active("aquifer-donor") && ![donor.as_str(), "0"].contains(&site.process("aquifer-donor").as_str())
    });
    eventually("the program joins it again", || {
        let said = site.0.run("journalctl --no-pager --output=cat --unit=third --grep='has joined' || true");
        said.contains("the volume has changed: the donor at 127.0.0.1:7411 has joined")
    });
    site.0.run(settle);
    site.0.run("touch third");
    eventually("the third program ends", || !site.is_active("third"));
    let said = site.0.run("journalctl --no-pager --output=cat --unit=third");
    let result = said.lines().find(|line| line.starts_with("wrong ")).unwrap_or_else(|| panic!("{said}"));
    assert!(result.starts_with("wrong 0 lost ") && !result.starts_with("wrong 0 lost 0 "), "{result}");
    site.0.run("rm third third.ready; systemctl reset-failed third 2> /dev/null || true");
}

/// Removes the packages, which stops everything and keeps the files that a person has written. Then installs everything
/// again, for the page's purge.
fn removed_without_purge(site: &Site) {
    eventually("the donor runs the new version", || site.is_active("aquifer-donor"));
    site.0.run(&format!("DEBIAN_FRONTEND=noninteractive apt-get remove --yes {}", NAMES.join(" ")));
    for unit in UNITS {
        assert!(!site.is_active(unit), "{unit} still runs");
    }
    assert!(!site.0.path("/usr/bin/aquifer").exists() && !site.0.path("/usr/libexec/aquifer").exists());
    for kept in ["/etc/aquifer/donor.conf", "/etc/aquifer/agent.toml", "/var/lib/private/aquifer-fabricd"] {
        assert!(site.0.path(kept).exists(), "{kept} is gone");
    }
    // A purge of one package leaves the state of the others.
    site.0.run("DEBIAN_FRONTEND=noninteractive apt-get purge --yes aquifer");
    assert!(site.0.path("/var/lib/aquifer/agent").exists(), "the agent's state was purged with another package");
    let kept = site.0.run("ls /var/lib/aquifer");
    assert_eq!(kept.trim(), "agent");
    site.0.run("cd /root/packages; DEBIAN_FRONTEND=noninteractive apt-get install --yes ./*.deb");
}

/// Checks that nothing is left except the user and the test's own files.
fn purged(site: &Site, clean: &BTreeSet<String>) {
    let left: Vec<String> = site.traces().difference(clean).cloned().collect();
    assert_eq!(left, ["/etc/aquifer"]);
    // The page itself has written these files: an administrator's files stay.
    assert_eq!(site.0.run("ls /etc/aquifer").trim(), "checking.conf\nfmapi-password");
    assert!(site.0.run("getent passwd aquifer").starts_with("aquifer:"), "the user is gone");
    let known = site.0.attempt("dpkg-query --list 'aquifer*' 'libaquifer*' | grep -v '^un' | grep '^[a-z]'", QUESTION);
    assert_eq!(known.stdout, "");
}

/// The files for containers: see `docs/containers.md`.
#[test]
fn container_files_name_only_what_the_packages_have() {
    let Some(packages) = packages() else { return };
    let text = std::fs::read_to_string(workspace().join("packaging/containers/Containerfile")).expect("it is there");
    let files = packages.files();
    let (mut stage, mut installed, mut stages) = (String::new(), Vec::<String>::new(), Vec::new());
    for line in text.replace("\\\n", " ").lines().filter(|line| !line.trim_start().starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match &words[..] {
            ["FROM", _, "AS", name] => {
                stage = (*name).to_owned();
                stages.push(stage.clone());
                // Every stage except the first is based on the first.
                installed.truncate(usize::from(stage != "base"));
            }
            ["RUN", ..] => {
                // The base removes apt's lists, so each stage reads them again; none keeps them in its image.
                let is_step = |step: &str| line.split("&&").any(|one| one.trim().ends_with(step));
                for step in ["apt-get update", "rm -rf /var/lib/apt/lists/*"] {
                    assert_eq!(line.contains("apt-get install"), is_step(step), "{stage}: {step}");
                }
                let named = line.split_whitespace().filter_map(|word| word.strip_prefix("/packages/"));
                installed.extend(named.map(|file| file.split('_').next().expect("a name").to_owned()));
            }
            ["ENTRYPOINT", ..] => {
                let words: Vec<String> = serde_json::from_str(line.trim_start_matches("ENTRYPOINT ")).expect("JSON");
                let has = |package: &String| files[package].contains_key(&words[0]);
                assert!(installed.iter().any(has), "{stage}: {} is in none of {installed:?}", words[0]);
            }
            ["USER", user] => assert!(["aquifer", "65534:65534"].contains(user), "{stage} runs as {user}"),
            ["EXPOSE", port] => assert!(["6379", "7411", "7443", "7444"].contains(port), "{stage}: port {port}"),
            ["ARG" | "CMD" | "VOLUME", ..] | [] => {}
            other => panic!("{stage}: nothing judges {other:?}"),
        }
        installed.iter().for_each(|name| assert!(NAMES.contains(&name.as_str()), "{stage}: no package {name}"));
    }
    assert_eq!(stages, ["base", "donor", "manager", "agent", "cache"]);
}
