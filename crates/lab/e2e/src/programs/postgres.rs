// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! PostgreSQL: queries with large sorts and hashes in work_mem, whose results are compared with those of a native
//! server.
//!
//! The server forks a process for each connection. It refuses to run as root; if the test runs as root, it starts the
//! server as nobody, provided that this user can access the binaries under test.

use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::trial::{Server, Trial, Verdict, Watch};
use crate::build::binaries;
use crate::run::{eventually, run};

const QUERIES: &str = include_str!("../../programs/postgres.sql");
/// The user nobody and its group, the same number on all systems.
const NOBODY: u32 = 65534;
/// Time limit for the server to end.
const STOP_MAX: Duration = Duration::from_secs(120);

/// The directory with the programs of the newest installed PostgreSQL.
fn programs() -> Option<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|entry| entry.path().join("bin")).collect();
    found.retain(|path| ["postgres", "initdb", "pg_ctl", "psql"].iter().all(|name| path.join(name).is_file()));
    found.sort();
    found.pop()
}

/// Whether this runs as root.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

/// The same command, run as a user who may run the server.
fn as_user(command: &Command) -> Command {
    let mut user = if is_root() {
        let mut user = Command::new("setpriv");
        user.arg(format!("--reuid={NOBODY}")).arg(format!("--regid={NOBODY}")).args(["--clear-groups", "--"]);
        user.arg(command.get_program());
        user
    } else {
        Command::new(command.get_program())
    };
    user.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => user.env(name, value),
            None => user.env_remove(name),
        };
    }
    user
}

/// A directory for one server. Not in the target directory: a socket path is limited to 107 bytes, and users other than
/// root may not have access there.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("aquifer-postgres-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).map_err(|error| error.to_string())?;
        if is_root() {
            chown(&path, Some(NOBODY), Some(NOBODY)).map_err(|error| error.to_string())?;
        }
        Ok(Self(path))
    }

    fn text(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn done(trial: &Trial, command: &Command) -> Result<String, String> {
    let ended = run(as_user(command), trial.limit());
    if ended.status == Some(0) { Ok(ended.stdout) } else { Err(format!("{:?}: {}", ended.status, ended.stderr)) }
}

/// Starts a server in `place`, runs all queries, and ends it. Returns the answers, and the peak of its processes.
fn ask_all(
    trial: &Trial,
    programs: &Path,
    place: &Place,
    server: impl FnOnce(&Path, &[&str]) -> Command,
) -> Result<(String, u64), String> {
    let (directory, data) = (place.text(), format!("{}/data", place.text()));
    let mut init = Command::new(programs.join("initdb"));
    init.args(["-D", &data, "-A", "trust", "-U", "aquifer", "-N", "--locale=C", "-E", "UTF8"]);
    done(trial, &init)?;
    let memory = format!("work_mem={}MB", trial.size(100, 1000));
    let words = ["-D", &data, "-k", &directory, "-c", "listen_addresses=", "-c", &memory, "-c", "fsync=off"];
    let mut command = as_user(&server(&programs.join("postgres"), &words));
    command.current_dir(&directory);
    let server = Server::start(command);
    let watch = Watch::new(server.id());
    let client = |more: [&str; 2]| {
        let mut client = Command::new(programs.join("psql"));
        client.args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-U",
            "aquifer",
            "-d",
            "postgres",
            "-h",
            &directory,
        ]);
        client.args(more);
        client
    };
    eventually("PostgreSQL's start", || done(trial, &client(["-c", "select 1"])).is_ok());
    let file = format!("{directory}/queries.sql");
    let text = QUERIES.replace("ROWS", &trial.size(150_000, 2_000_000).to_string());
    std::fs::write(&file, text).map_err(|error| error.to_string())?;
    let answers = done(trial, &client(["-f", &file]))?;
    let peak = watch.peak_bytes();
    let mut stop = Command::new(programs.join("pg_ctl"));
    stop.args(["-D", &data, "stop", "-m", "fast"]);
    done(trial, &stop)?;
    server.end(STOP_MAX)?;
    Ok((answers, peak))
}

/// Compares a managed server's answers with a native server's.
pub fn judge(trial: &Trial) -> Result<Verdict, String> {
    let Some(programs) = programs() else { return Ok(Verdict::Skipped("PostgreSQL is not installed".to_owned())) };
    let mut reach = Command::new("test");
    reach.arg("-x").arg(binaries().join("aquifer"));
    if done(trial, &reach).is_err() {
        return Ok(Verdict::Skipped(
            "PostgreSQL does not run as root, and no other user reaches the binaries".to_owned(),
        ));
    }
    let (native, managed) = (Place::new("native")?, Place::new("managed")?);
    let (wanted, peak) = ask_all(trial, &programs, &native, |program, words| {
        let mut command = Command::new(program);
        command.args(words);
        command
    })?;
    let (found, _) =
        ask_all(trial, &programs, &managed, |program, words| trial.managed_in(&managed.0, peak, program, words))?;
    if found != wanted {
        return Err(format!("it said\n{found}\nand natively\n{wanted}"));
    }
    trial.works_in(&managed.0, peak)
}
