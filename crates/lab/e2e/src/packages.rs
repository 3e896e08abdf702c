// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes the Debian packages of the binaries under test, as `make deb` does, and lists their contents.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::build::{BIN_VARIABLE, TORTURE_VARIABLE, binaries, scratch, torture, workspace, xtask};
use crate::run::run;

/// The packages.
pub const NAMES: [&str; 7] =
    ["aquifer", "aquifer-agent", "aquifer-donor", "aquifer-fabric", "aquifer-tools", "libaquifer-dev", "libaquifer0"];
/// Programs that `cargo build --workspace` makes besides the command.
const PROGRAMS: [&str; 13] = [
    "aquifer-agentd",
    "aquifer-bench",
    "aquifer-cache",
    "aquifer-device-plugin",
    "aquifer-fabric",
    "aquifer-fabricd",
    "aquifer-fmapi",
    "aquifer-metrics",
    "aquifer-pool-switchd",
    "aquifer-sim",
    "aquifer-stress",
    "aquifer-workloads",
    "libaquifer_c.a",
];
/// Time limit of one step: packing takes some seconds on a quiet machine.
const STEP: Duration = Duration::from_secs(600);

/// A directory with packages.
#[derive(Debug)]
pub struct Packages(PathBuf);

impl Packages {
    /// Builds the packages of the binaries under test, with this version, without compression: they are read once.
    /// Returns `None`, and reports a skip, without debhelper or a C compiler.
    pub fn build(version: &str) -> Option<Packages> {
        let mut dh = Command::new("dh");
        let is_there = dh.arg("--help").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        // The exit status is ignored: it is 1 even for the help.
        if is_there.is_err() {
            aquifer_test_support::skip("there is no debhelper (apt-get install debhelper)");
            return None;
        }
        let programs = scratch("packaged").canonicalize().expect("just made");
        gather_programs(&programs)?;
        let out = scratch(&format!("packages-{version}")).canonicalize().expect("just made");
        let mut deb = xtask();
        deb.args(["deb", "--version", version, "--compression", "none", "--no-debug-packages", "--binaries"]);
        deb.arg(programs).arg("--out").arg(&out);
        run(deb, STEP).expect(0);
        Some(Packages(out))
    }

    /// The same packages with another version, which stands for an earlier or a later release.
    #[must_use]
    pub fn as_version(&self, version: &str) -> Packages {
        let out = scratch(&format!("packages-{version}")).canonicalize().expect("just made");
        for name in NAMES {
            let (from, tree) = (self.path(name), out.join(name));
            let file = from.file_name().expect("a package").to_string_lossy().into_owned();
            let (_, rest) = file.split_once('_').expect("name_version_architecture");
            let (before, architecture) = rest.split_once('_').expect("name_version_architecture");
            dpkg_deb(&["--raw-extract".as_ref(), from.as_ref(), tree.as_ref()]);
            let control = tree.join("DEBIAN/control");
            let text = std::fs::read_to_string(&control).expect("every package has one").replace(before, version);
            std::fs::write(&control, text).expect("the scratch directory can be written");
            let to = out.join(format!("{name}_{version}_{architecture}"));
            dpkg_deb(&[
                "-Znone".as_ref(),
                "--root-owner-group".as_ref(),
                "--build".as_ref(),
                tree.as_ref(),
                to.as_ref(),
            ]);
            std::fs::remove_dir_all(tree).expect("just made");
        }
        Packages(out)
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// The file of a package.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        let entries = std::fs::read_dir(&self.0).expect("the packages are there").flatten().map(|entry| entry.path());
        let start = format!("{name}_");
        let is_it = |path: &PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&start));
        entries.into_iter().find(is_it).unwrap_or_else(|| panic!("there is no package {name}"))
    }

    /// A field of a package's control data.
    #[must_use]
    pub fn field(&self, name: &str, field: &str) -> String {
        let mut command = Command::new("dpkg-deb");
        command.arg("--field").arg(self.path(name)).arg(field);
        run(command, STEP).expect(0).stdout.trim().to_owned()
    }

    /// The files of each package, by absolute path, with the mode as `ls -l` shows it.
    #[must_use]
    pub fn files(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let files = |name: &str| {
            let mut command = Command::new("dpkg-deb");
            command.arg("--contents").arg(self.path(name));
            let listed = run(command, STEP).expect(0).stdout.clone();
            let entry = |line: &str| {
                let words: Vec<&str> = line.split_whitespace().collect();
                Some(((*words.get(5)?).trim_start_matches('.').to_owned(), (*words.first()?).to_owned()))
            };
            listed.lines().filter_map(entry).filter(|(path, _)| !path.ends_with('/')).collect()
        };
        NAMES.iter().map(|name| ((*name).to_owned(), files(name))).collect()
    }
}

impl Drop for Packages {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Collects all packaged programs in this directory, as `make` leaves them in target/release. Uses programs that are
/// already built: the command and its library in release mode, the others as `cargo test` builds them. Returns `None`,
/// and reports a skip, without a C compiler.
pub fn gather_programs(directory: &Path) -> Option<()> {
    let link = |from: &Path, name: &str| {
        std::fs::hard_link(from, directory.join(name))
            .or_else(|_| std::fs::copy(from, directory.join(name)).map(|_| ()))
    };
    let built = if std::env::var_os(BIN_VARIABLE).is_some() { binaries() } else { &binaries().join("../debug") };
    for name in PROGRAMS {
        let from = built.join(name);
        link(&from, name).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    }
    for name in ["aquifer", "libaquifer_preload.so"] {
        link(&binaries().join(name), name).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let torture = torture()?;
    link(torture, "aquifer-torture").unwrap_or_else(|error| panic!("{TORTURE_VARIABLE}: {error}"));
    let mut library = Command::new("make");
    library.args(["--silent", "-C"]).arg(workspace().join("crates/fronts/c"));
    library.arg(format!("ARCHIVE={}", directory.join("libaquifer_c.a").display()));
    library.arg(format!("OUT={}", directory.display())).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    run(library, STEP).expect(0);
    Some(())
}

fn dpkg_deb(words: &[&std::ffi::OsStr]) {
    let mut command = Command::new("dpkg-deb");
    command.args(words);
    run(command, STEP).expect(0);
}
