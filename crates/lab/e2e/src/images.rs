// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Builds the images of docs/containers.md from the packages, and runs containers of them, with buildah(1) and
//! podman(1). Needs root.
//!
//! Tests reach no registry of images. Instead, `AQUIFER_E2E_IMAGE_BASE=FILE` names a tar of a Debian system, which
//! `.ci/image-base FILE` makes, and which is imported under the name that the container file begins with. Packages that
//! an image needs besides ours come from Debian's mirror.
//!
//! Images and containers have a storage of their own, which is removed at the end. Nothing on the host is changed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::build::{scratch, workspace};
use crate::packages::Packages;
use crate::run::{Ended, run};

/// Names the tar of the base.
pub const VARIABLE: &str = "AQUIFER_E2E_IMAGE_BASE";
/// The name under which the base is imported.
const BASE: &str = "docker.io/library/debian:bookworm-slim";
/// The runtime to use where it is installed. The other usual one, crun, refuses machines with both versions of cgroups.
const RUNTIME: &str = "runc";
/// Limits of every container. podman's own defaults are higher than a process without CAP_SYS_RESOURCE can set.
const LIMITS: [&str; 4] = ["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"];
/// `--ulimit memlock=` without a limit.
pub const UNLIMITED: &str = "-1";
/// Bytes that a container may lock where this process may not raise limits: what Linux gives everybody.
const LOCKABLE: &str = "8388608:8388608";
/// Time limit for all images: most of it is apt's download of Debian's packages.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
/// Time limit for a command about a container.
const LIMIT: Duration = Duration::from_secs(120);

/// Images in a storage of their own.
#[derive(Debug)]
pub struct Images {
    storage: PathBuf,
    /// For sockets: their paths must be short.
    short: PathBuf,
}

/// The tar of the base. Returns `None`, and reports a skip, where images cannot be built or run.
#[must_use]
pub fn base() -> Option<PathBuf> {
    let why = if std::env::var_os(VARIABLE).is_none() {
        format!("{VARIABLE} is not set; as root, set it to the file that '.ci/image-base FILE' has made")
    } else if !std::fs::metadata("/proc/self").is_ok_and(|itself| itself.uid() == 0) {
        "images are built and run by root here".to_owned()
    } else if let Some(tool) = ["buildah", "podman"].into_iter().find(|tool| !starts(tool)) {
        format!("there is no {tool} (apt-get install {tool})")
    } else {
        return std::env::var_os(VARIABLE).map(PathBuf::from);
    };
    aquifer_test_support::skip(why);
    None
}

/// What `--ulimit memlock=` can give a container: no limit, as the page has it, or little where this process may not
/// raise its own limit. Then the donor reports at its start that it cannot lock its memory.
#[must_use]
pub fn lockable_bytes() -> &'static str {
    let raised = Command::new("sh").args(["-c", "ulimit -H -l unlimited"]).stderr(Stdio::null()).status();
    if raised.is_ok_and(|raised| raised.success()) { UNLIMITED } else { LOCKABLE }
}

impl Images {
    /// Imports the base, and builds the images by typing `commands` in the directory with the packages.
    #[must_use]
    pub fn build(base: &Path, packages: &Packages, commands: &str) -> Images {
        let storage = scratch("images").canonicalize().expect("just made");
        let short = std::env::temp_dir().join(format!("aq-images-{}", std::process::id()));
        std::fs::create_dir_all(&short).expect("a temporary directory");
        let images = Images { storage, short };
        images.configure();
        let mut import = images.command("podman");
        import.args(["import", "--quiet"]).arg(base).arg(BASE);
        run(import, BUILD_LIMIT).expect(0);
        // The page names the repository as ~/aquifer.
        let home = images.storage.join("home");
        std::fs::create_dir_all(&home).expect("the scratch directory can be written");
        let repository = workspace().canonicalize().expect("it was built there");
        std::os::unix::fs::symlink(repository, home.join("aquifer")).expect("the scratch directory can be written");
        let mut build = images.command("sh");
        build.args(["-e", "-c", commands]).env("HOME", home).current_dir(packages.directory());
        let built = run(build, BUILD_LIMIT);
        assert_eq!(built.status, Some(0), "{commands}\n{}{}", built.stdout, built.stderr);
        images
    }

    /// Writes the configuration of the storage, and of containers without systemd.
    fn configure(&self) {
        let (storage, short) = (self.storage.display(), self.short.display());
        let write = |name: &str, text: String| {
            std::fs::write(self.storage.join(name), text).expect("the scratch directory can be written");
        };
        write(
            "storage.conf",
            format!("[storage]\ndriver = \"overlay\"\ngraphroot = \"{storage}/images\"\nrunroot = \"{short}/run\"\n"),
        );
        let runtime = if starts(RUNTIME) { format!("runtime = \"{RUNTIME}\"\n") } else { String::new() };
        write(
            "containers.conf",
            format!(
                "[containers]\nlog_driver = \"k8s-file\"\n\
                 [engine]\n{runtime}cgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n\
                 tmp_dir = \"{short}/engine\"\n[network]\nnetwork_config_dir = \"{storage}/networks\"\n"
            ),
        );
    }

    /// A command that uses this storage.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("CONTAINERS_STORAGE_CONF", self.storage.join("storage.conf"));
        command.env("CONTAINERS_CONF", self.storage.join("containers.conf"));
        if starts(RUNTIME) {
            command.env("BUILDAH_RUNTIME", RUNTIME);
        }
        command
    }

    /// Runs podman with these words.
    #[must_use]
    pub fn podman(&self, words: &[&str]) -> Ended {
        let mut command = self.command("podman");
        command.args(words);
        run(command, LIMIT)
    }

    /// Starts a container of an image with these options and arguments.
    #[must_use]
    pub fn start(&self, name: &str, options: &[&str], image: &str, arguments: &[&str]) -> Container<'_> {
        let begin = ["run", "--detach", "--network", "host", "--name", name];
        self.podman(&[&begin[..], &LIMITS, options, &[image], arguments].concat()).expect(0);
        Container { images: self, name: name.to_owned() }
    }

    /// A directory with a short path.
    #[must_use]
    pub fn short(&self) -> &Path {
        &self.short
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        for words in [&["rm", "--all", "--force", "--time", "0"][..], &["rmi", "--all", "--force"]] {
            let _ = self.podman(words);
        }
        // The storage has mounted this directory on itself.
        let mut unmount = Command::new("umount");
        unmount.arg("--lazy").arg(self.storage.join("images/overlay"));
        let _ = run(unmount, LIMIT);
        let _ = std::fs::remove_dir_all(&self.storage);
        let _ = std::fs::remove_dir_all(&self.short);
    }
}

/// A container. It is removed on drop.
#[derive(Debug)]
pub struct Container<'a> {
    images: &'a Images,
    name: String,
}

impl Container<'_> {
    /// Runs a subcommand of podman on it. Panics with its log unless it succeeds. Returns the output.
    #[track_caller]
    pub fn does(&self, subcommand: &[&str], arguments: &[&str]) -> String {
        let ended = self.images.podman(&[subcommand, &[self.name.as_str()], arguments].concat());
        let name = &self.name;
        assert_eq!(ended.status, Some(0), "podman {subcommand:?} {name}: {}\n{}", ended.stderr, self.log());
        ended.stdout
    }

    /// Its output so far.
    #[must_use]
    pub fn log(&self) -> String {
        let ended = self.images.podman(&["logs", &self.name]);
        ended.stdout + &ended.stderr
    }

    /// Whether its program runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.does(&["inspect", "--format", "{{.State.Running}}"], &[]).trim() == "true"
    }

    /// The process of its program on the host; 0 if it does not run.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.does(&["inspect", "--format", "{{.State.Pid}}"], &[]).trim().parse().expect("a number")
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let _ = self.images.podman(&["rm", "--force", "--time", "0", &self.name]);
    }
}

fn starts(tool: &str) -> bool {
    Command::new(tool).arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}
