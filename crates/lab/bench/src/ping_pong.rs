// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The time of the network alone: a request and a response over TCP within this machine, of the sizes of a read from a
//! donor, by two threads that do nothing else. Both run on one CPU, where a wake-up is cheap and always the same.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::failure::BenchFailure;

/// Bytes of a frame's header: `docs/formats.md`.
pub const HEADER_BYTES: usize = 72;
const ROUNDS: usize = 16_384;
/// Maximum silence of either end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The median time, in microseconds, of a header one way and a header with `bytes` back.
pub fn round_trip_us(cpu: u32, bytes: usize) -> Result<f64, BenchFailure> {
    measure(cpu, bytes).map_err(|error| BenchFailure::io("cannot measure a round trip", &error))
}

fn measure(cpu: u32, bytes: usize) -> io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let answers = thread::spawn(move || -> io::Result<()> {
        stay_on(cpu)?;
        let mut stream = prepared(listener.accept()?.0)?;
        let (mut question, answer) = ([0; HEADER_BYTES], vec![7; HEADER_BYTES + bytes]);
        while stream.read_exact(&mut question).is_ok() {
            stream.write_all(&answer)?;
        }
        Ok(())
    });
    let asks = thread::spawn(move || -> io::Result<Vec<f64>> {
        stay_on(cpu)?;
        let mut stream = prepared(TcpStream::connect(address)?)?;
        let (question, mut answer) = ([7; HEADER_BYTES], vec![0; HEADER_BYTES + bytes]);
        let mut times = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let before = Instant::now();
            stream.write_all(&question)?;
            stream.read_exact(&mut answer)?;
            times.push(before.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times)
    });
    let panicked = |_| io::Error::other("a thread of it panicked");
    let mut times = asks.join().map_err(panicked)??;
    answers.join().map_err(panicked)??;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn prepared(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Keeps the calling thread on one CPU.
fn stay_on(cpu: u32) -> io::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu as usize);
    Ok(sched_setaffinity(None, &cpus)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_takes_some_time() {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
        assert!(round_trip_us(cpu as u32, 4096).unwrap() > 0.0);
    }
}
