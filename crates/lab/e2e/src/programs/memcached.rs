// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! memcached: every value must be the last stored one, after several rounds of storing and reading by its text
//! protocol.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::shell::mix;
use super::trial::{Server, Trial, Verdict, Watch, installed};
use crate::run::eventually;

const BATCH: u64 = 100;
/// Timeout of one reply; a later reply counts as a hang.
const REPLY_MAX: Duration = Duration::from_secs(120);

fn value(key: u64, round: u64) -> String {
    let seed = mix(key << 8 | round);
    format!("{key}/{round}/{seed:016x} ").chars().cycle().take(400 + seed as usize % 800).collect()
}

fn connect(socket: &Path) -> Result<BufReader<UnixStream>, String> {
    let mut stream = None;
    let started = Instant::now();
    eventually("memcached's start", || {
        stream = UnixStream::connect(socket).ok();
        stream.is_some() || started.elapsed().as_secs() > 60
    });
    let stream = stream.ok_or("memcached does not start")?;
    stream.set_read_timeout(Some(REPLY_MAX)).map_err(|error| error.to_string())?;
    Ok(BufReader::new(stream))
}

fn line(stream: &mut BufReader<UnixStream>) -> Result<String, String> {
    let mut line = String::new();
    stream.read_line(&mut line).map_err(|error| format!("memcached does not answer: {error}"))?;
    Ok(line.trim_end().to_owned())
}

fn store(stream: &mut BufReader<UnixStream>, keys: u64, round: u64) -> Result<(), String> {
    for first in (0..keys).step_by(BATCH as usize) {
        let batch = first..(first + BATCH).min(keys);
        let mut text = String::new();
        for key in batch.clone() {
            let value = value(key, round);
            let _ = write!(text, "set key{key} 0 0 {}\r\n{value}\r\n", value.len());
        }
        stream.get_mut().write_all(text.as_bytes()).map_err(|error| error.to_string())?;
        for key in batch {
            let answer = line(stream)?;
            if answer != "STORED" {
                return Err(format!("key {key} was not stored: {answer}"));
            }
        }
    }
    Ok(())
}

fn compare(stream: &mut BufReader<UnixStream>, keys: u64, round: u64) -> Result<(), String> {
    for number in 0..keys {
        // In an order that read-ahead cannot predict.
        let key = mix(number) % keys;
        let wanted = value(key, round);
        stream.get_mut().write_all(format!("get key{key}\r\n").as_bytes()).map_err(|error| error.to_string())?;
        let header = line(stream)?;
        if header != format!("VALUE key{key} 0 {}", wanted.len()) {
            return Err(format!("key {key}: '{header}' instead of a value of {} bytes", wanted.len()));
        }
        let mut bytes = vec![0; wanted.len() + 2];
        stream.read_exact(&mut bytes).map_err(|error| format!("a value ends early: {error}"))?;
        if bytes[..wanted.len()] != *wanted.as_bytes() || line(stream)? != "END" {
            return Err(format!("key {key} is not its write {round}"));
        }
    }
    Ok(())
}

/// Runs memcached natively for its peak, then managed with verification.
pub fn judge(trial: &Trial) -> Result<Verdict, String> {
    let program = match installed(&["memcached"]) {
        Ok(program) => program,
        Err(skipped) => return Ok(skipped),
    };
    let keys = trial.size(60_000, 500_000);
    let socket = std::env::temp_dir().join(format!("aquifer-{}-memcached.socket", std::process::id()));
    let path = socket.to_str().expect("the directory for temporary files has a plain name");
    let megabytes = trial.size(512, 4096).to_string();
    let arguments = ["-s", path, "-m", &megabytes, "-t", "4", "-u", "root", "-M", "-A"];
    let rounds = |stream: &mut BufReader<UnixStream>, rounds: u64| {
        (0..rounds).try_for_each(|round| store(stream, keys, round).and_then(|()| compare(stream, keys, round)))
    };
    let peak = {
        let mut command = Command::new(&program);
        command.args(arguments);
        let server = Server::start(command);
        let watch = Watch::new(server.id());
        rounds(&mut connect(&socket)?, 1)?;
        watch.peak_bytes()
    };
    let _ = std::fs::remove_file(&socket);
    let server = Server::start(trial.managed(peak, &program, &arguments));
    let mut stream = connect(&socket)?;
    rounds(&mut stream, 2)?;
    stream.get_mut().write_all(b"shutdown\r\n").map_err(|error| error.to_string())?;
    server.end(trial.limit())?;
    let _ = std::fs::remove_file(&socket);
    trial.works(peak)
}
