// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes the Debian packages of `packaging/debian` from programs that are already built.
//!
//! debhelper does the work: this task makes a tree with `debian/`, writes the two files in it that depend on the
//! repository (`changelog.rs`, `notices.rs`), and runs `debian/rules binary` there. `docs/decisions/0053` gives the
//! reasons.

mod changelog;
mod notices;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use self::changelog::Version;
use crate::ci::prepared;

/// The input and the output of the task.
#[derive(clap::Args)]
pub struct DebArgs {
    /// The directory of the programs and libraries, as `make build agent bench c ...` leaves them
    #[arg(long, value_name = "DIR", default_value = "target/release")]
    binaries: PathBuf,
    /// Where to put the packages; the earlier contents are removed
    #[arg(long, value_name = "DIR", default_value = "target/packages")]
    out: PathBuf,
    /// The version of the packages; by default the workspace's, with the revision 1
    #[arg(long, value_name = "VERSION")]
    version: Option<Version>,
    /// How to compress: xz, zstd, gzip or none
    #[arg(long, value_name = "NAME", default_value = "xz", value_parser = ["xz", "zstd", "gzip", "none"])]
    compression: String,
    /// Leave out the packages with debug information
    #[arg(long)]
    no_debug_packages: bool,
}

/// Builds the packages. Returns complaints.
pub fn build(root: &Path, args: &DebArgs) -> Vec<String> {
    match packages(root, args) {
        Ok(names) => {
            names.iter().for_each(|name| println!("{name}"));
            Vec::new()
        }
        Err(complaint) => vec![format!("deb: {complaint}")],
    }
}

/// Builds the packages, and returns their paths.
fn packages(root: &Path, args: &DebArgs) -> Result<Vec<String>, String> {
    for tool in ["dh", "dpkg-deb", "dpkg-shlibdeps", "make"] {
        let mut command = Command::new(tool);
        command.arg("--help").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().map_err(|error| format!("{tool} cannot be started: {error}; install debhelper"))?;
    }
    let binaries = args.binaries.canonicalize().map_err(|error| {
        format!("{}: {error}; build the programs first, as 'make deb' does", args.binaries.display())
    })?;
    let out = fresh(&args.out)?;
    let tree = fresh(&out.join("tree"))?;
    fill(root, &tree, &args.version.clone().map_or_else(|| Version::of_workspace(root), Ok)?)?;
    let mut rules = prepared(root, &tree.join("debian/rules").to_string_lossy(), &["binary"]);
    rules.current_dir(&tree).stdout(Stdio::null());
    rules.env("AQUIFER_SOURCE", root).env("AQUIFER_BINARIES", &binaries).env("AQUIFER_PACKAGES", &out);
    rules.env("AQUIFER_COMPRESSION", &args.compression).env("SOURCE_DATE_EPOCH", changed(root).to_string());
    rules.env("DEB_BUILD_OPTIONS", if args.no_debug_packages { "noautodbgsym" } else { "" });
    // As dpkg-buildpackage sets it: packed files belong to root, without the need to run as root.
    rules.env("DEB_RULES_REQUIRES_ROOT", "no");
    // The inner make must not inherit the variables of an outer one.
    rules.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env_remove("DESTDIR").env_remove("PREFIX");
    let status = rules.status().map_err(|error| format!("debian/rules cannot be run: {error}"))?;
    if !status.success() {
        return Err(format!(
            "debian/rules binary: {status}; its messages are above, and its tree is {}",
            tree.display()
        ));
    }
    if !tree.join("debian/tmp/usr/share/aquifer/console").is_dir() {
        eprintln!(
            "deb: aquifer-fabric is without the console, which was not built; run 'make console', then this again"
        );
    }
    fs::remove_dir_all(&tree).map_err(|error| format!("{}: {error}", tree.display()))?;
    let entries = fs::read_dir(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let mut names: Vec<String> = entries.flatten().map(|entry| entry.path().display().to_string()).collect();
    names.sort();
    Ok(names)
}

/// Fills the tree with `debian/` and the changelog for users.
fn fill(root: &Path, tree: &Path, version: &Version) -> Result<(), String> {
    let debian = tree.join("debian");
    let failed = |what: &Path, error: std::io::Error| format!("{}: {error}", what.display());
    fs::create_dir_all(&debian).map_err(|error| failed(&debian, error))?;
    let from = root.join("packaging/debian");
    for entry in fs::read_dir(&from).map_err(|error| failed(&from, error))?.flatten() {
        fs::copy(entry.path(), debian.join(entry.file_name())).map_err(|error| failed(&entry.path(), error))?;
    }
    fs::copy(root.join("CHANGELOG.md"), tree.join("CHANGELOG.md")).map_err(|error| failed(root, error))?;
    let entry = changelog::entry(version, changed(root));
    fs::write(debian.join("changelog"), entry).map_err(|error| failed(&debian, error))?;
    let notices = notices::of_all_packages(root)?;
    fs::write(debian.join("third-party-licences"), notices).map_err(|error| failed(&debian, error))
}

/// The time of the sources' last change, in seconds, so that a build is reproducible: that of the newest commit, or
/// now.
fn changed(root: &Path) -> u64 {
    if let Some(seconds) = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok()) {
        return seconds;
    }
    let log = Command::new("git").current_dir(root).args(["log", "-1", "--format=%ct"]).stderr(Stdio::null()).output();
    let committed = log.ok().and_then(|output| String::from_utf8_lossy(&output.stdout).trim().parse().ok());
    committed.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Replaces this directory by an empty one.
fn fresh(path: &Path) -> Result<PathBuf, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    if path.exists() {
        fs::remove_dir_all(path).map_err(failed)?;
    }
    fs::create_dir_all(path).map_err(failed)?;
    path.canonicalize().map_err(failed)
}
