// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Redis: BGSAVE and AOF rewrite while keys are written, with redis-benchmark in parallel.
//!
//! One connection does the writing, and knows what every key must be. So the dump must hold each key as it was when
//! BGSAVE was called, without any later write: a native Redis loads it, and it is compared key by key.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::resp::{Client, Reply};
use super::shell::mix;
use super::trial::{Server, Trial, Verdict, Watch, installed, succeeded};
use crate::run::{eventually, run};

/// Commands sent in one batch.
const BATCH: usize = 100;
/// The expected state: for every key, the number of its latest write.
type Written = Vec<u32>;

fn key(index: usize) -> Vec<u8> {
    format!("written:{index}").into_bytes()
}

/// The value that this write stored: 300 to 1100 bytes.
fn value(index: usize, write: u32) -> Vec<u8> {
    let seed = mix((index as u64) << 32 | u64::from(write));
    let piece = format!("{index}/{write}/{seed:016x} ");
    piece.bytes().cycle().take(300 + seed as usize % 800).collect()
}

fn write_all(client: &mut Client, indices: impl Iterator<Item = usize>, written: &mut Written) -> Result<(), String> {
    let indices: Vec<usize> = indices.collect();
    for batch in indices.chunks(BATCH) {
        for index in batch {
            written[*index] += 1;
            client.add(&[b"SET", &key(*index), &value(*index, written[*index])]);
        }
        if client.exchange()?.iter().any(|reply| *reply != Reply::Line("OK".to_owned())) {
            return Err("a SET was not taken".to_owned());
        }
    }
    Ok(())
}

/// Checks that every key has its expected value.
fn compare(client: &mut Client, written: &Written, what: &str) -> Result<(), String> {
    for first in (0..written.len()).step_by(BATCH) {
        let batch = first..(first + BATCH).min(written.len());
        batch.clone().for_each(|index| client.add(&[b"GET", &key(index)]));
        for (index, reply) in batch.zip(client.exchange()?) {
            if reply != Reply::Bytes(value(index, written[index])) {
                return Err(format!("{what}: key {index} is not its write {}, but {reply:?}", written[index]));
            }
        }
    }
    Ok(())
}

/// A Redis in its own directory, with its own socket.
struct Place {
    program: PathBuf,
    directory: String,
    socket: PathBuf,
}

impl Place {
    fn new(trial: &Trial, program: &Path, name: &str) -> Result<Self, String> {
        let directory = trial.path(name);
        std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        // Not in the directory: a socket path is limited to 107 bytes.
        let socket = std::env::temp_dir().join(format!("aquifer-{}-{name}.socket", std::process::id()));
        Ok(Self { program: program.to_owned(), directory, socket })
    }

    fn arguments(&self, append_only: &'static str) -> Vec<&str> {
        let socket = self.socket.to_str().expect("the directory for temporary files has a plain name");
        let mut words = vec!["--port", "0", "--unixsocket", socket, "--dir", &self.directory, "--save", ""];
        words.extend(["--appendonly", append_only, "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0"]);
        words
    }

    fn connect(&self) -> Result<Client, String> {
        let mut client = Err(String::new());
        let started = Instant::now();
        eventually("redis-server's start", || {
            client = Client::connect(&self.socket).and_then(|mut client| client.ask("PING").map(|_| client));
            client.is_ok() || started.elapsed().as_secs() > 60
        });
        client
    }

    fn native(&self, append_only: &'static str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.arguments(append_only));
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Writes until the background operation is finished, and at least three times.
fn write_while(
    client: &mut Client,
    written: &mut Written,
    seed: u64,
    what: &str,
    limit: Duration,
) -> Result<(), String> {
    let keys = written.len() as u64;
    let started = Instant::now();
    for turn in 0u64.. {
        let some = (0..keys / 20).map(|number| (mix(seed << 40 | turn << 32 | number) % keys) as usize);
        write_all(client, some, written)?;
        if turn >= 2 && client.info(what)? == "0" {
            return Ok(());
        }
        if started.elapsed() > limit {
            return Err(format!("{what} does not become 0 within {limit:?}"));
        }
    }
    Ok(())
}

fn stop(client: &mut Client, server: Server, trial: &Trial) -> Result<(), String> {
    client.add(&[b"SHUTDOWN", b"NOSAVE"]);
    let _ = client.exchange(); // It closes the connection instead of an answer.
    server.end(trial.limit()).map(|_| ())
}

/// The peak of a native Redis that only holds the keys.
fn native_peak(trial: &Trial, program: &Path, keys: usize) -> Result<u64, String> {
    let place = Place::new(trial, program, "native")?;
    let server = Server::start(place.native("no"));
    let watch = Watch::new(server.id());
    let mut client = place.connect()?;
    write_all(&mut client, 0..keys, &mut vec![0; keys])?;
    let peak = watch.peak_bytes();
    stop(&mut client, server, trial)?;
    Ok(peak)
}

/// Checks that a native Redis which loads the data in `place` has what was written.
fn loads(trial: &Trial, place: &Place, append_only: &'static str, written: &Written) -> Result<(), String> {
    let mut other = Place::new(trial, &place.program, "loads")?;
    other.directory.clone_from(&place.directory);
    let server = Server::start(other.native(append_only));
    let mut client = other.connect()?;
    compare(&mut client, written, if append_only == "yes" { "the rewritten AOF" } else { "the dump" })?;
    stop(&mut client, server, trial)
}

/// Runs all steps and checks on a managed Redis.
pub fn judge(trial: &Trial) -> Result<Verdict, String> {
    let (program, benchmark) = match (installed(&["redis-server"]), installed(&["redis-benchmark"])) {
        (Ok(program), Ok(benchmark)) => (program, benchmark),
        (Err(skipped), _) | (_, Err(skipped)) => return Ok(skipped),
    };
    let keys = trial.size(50_000, 250_000) as usize;
    let peak = native_peak(trial, &program, keys)?;
    let place = Place::new(trial, &program, "managed")?;
    let server = Server::start(trial.managed(peak, &program, &place.arguments("no")));
    let mut client = place.connect()?;
    let mut written = vec![0; keys];
    write_all(&mut client, 0..keys, &mut written)?;
    for snapshot in 0..trial.size(1, 5) {
        snapshot_holds(trial, &place, &mut client, &mut written, snapshot, &benchmark)?;
    }
    client.ask("CONFIG SET appendonly yes")?;
    write_while(&mut client, &mut written, 100, "aof_rewrite_in_progress", trial.limit())?;
    client.ask("BGREWRITEAOF")?;
    write_while(&mut client, &mut written, 101, "aof_rewrite_in_progress", trial.limit())?;
    let status = client.info("aof_last_bgrewrite_status")?;
    if status != "ok" {
        return Err(format!("the rewrite of the AOF is {status}"));
    }
    compare(&mut client, &written, "the server")?;
    stop(&mut client, server, trial)?;
    loads(trial, &place, "yes", &written)?;
    trial.works(peak)
}

/// Checks one BGSAVE under load.
fn snapshot_holds(
    trial: &Trial,
    place: &Place,
    client: &mut Client,
    written: &mut Written,
    snapshot: u64,
    benchmark: &Path,
) -> Result<(), String> {
    let mut load = Command::new(benchmark);
    let requests = trial.size(20_000, 300_000).to_string();
    load.arg("-s").arg(&place.socket).args(["-q", "-t", "set,get,lpush", "-d", "200", "-P", "8", "-c", "10"]);
    load.args(["-r", "20000", "-n", &requests]);
    let limit = trial.limit();
    let load = std::thread::spawn(move || run(load, limit));
    let then = written.clone();
    client.ask("BGSAVE")?;
    write_while(client, written, snapshot, "rdb_bgsave_in_progress", limit)?;
    let status = client.info("rdb_last_bgsave_status")?;
    if status != "ok" {
        return Err(format!("BGSAVE is {status}"));
    }
    succeeded(&load.join().expect("running does not panic"))?;
    loads(trial, place, "no", &then)
}
