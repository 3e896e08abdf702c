// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Measures with fio what the disk can do with a workload's mix of reads and writes: the ceiling for a pager without a
//! cache. The mix [`RANDOM_READS`] stands for reads of single pages at random places.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::failure::BenchFailure;
use crate::interrupt::Interrupt;
use crate::process::{self, find_program};
use crate::size::{MIB, format_size};
use crate::undo::{self, Undo, UndoList};

/// The block sizes and depths tried. A faulting thread makes one request at a time; read-ahead and write-back may add
/// more.
const BLOCKS: [u64; 4] = [128 << 10, 512 << 10, 1 << 20, 2 << 20];
const DEPTHS: [u32; 3] = [1, 4, 16];
/// Reads at random places.
pub const RANDOM_READS: (u32, u32) = (1, 0);
/// Reads of one page, one at a time and as many at a time as contexts have in flight.
const RANDOM_BLOCKS: [u64; 1] = [4 << 10];
const RANDOM_DEPTHS: [u32; 2] = [1, 64];

/// Long enough to exhaust the write buffer of most devices, short enough for twelve points.
const SECONDS_PER_POINT: u32 = 3;
const FILE_BYTES: u64 = 1024 * MIB;
const POINT_TIMEOUT: Duration = Duration::from_secs(120);

/// One measured point.
#[derive(Debug, Clone, Serialize)]
pub struct FioPoint {
    pub reads: u32,
    pub writes: u32,
    pub block_bytes: u64,
    pub depth: u32,
    pub engine: String,
    pub read_bytes_per_second: f64,
    pub write_bytes_per_second: f64,
}

impl FioPoint {
    /// The rate of STREAM's triad that this point allows without a cache: triad moves 32 bytes for every 24 that STREAM
    /// counts.
    pub fn triad_bytes_per_second(&self) -> f64 {
        (self.read_bytes_per_second + self.write_bytes_per_second) * 24.0 / 32.0
    }

    /// Blocks read per second.
    pub fn reads_per_second(&self) -> f64 {
        self.read_bytes_per_second / self.block_bytes as f64
    }
}

/// The point with the greatest sum of reads and writes.
pub fn best(points: &[FioPoint], mix: (u32, u32)) -> Option<&FioPoint> {
    let sum = |point: &FioPoint| point.read_bytes_per_second + point.write_bytes_per_second;
    points.iter().filter(|point| (point.reads, point.writes) == mix).max_by(|a, b| sum(a).total_cmp(&sum(b)))
}

/// Why fio cannot run.
pub fn obstacle() -> Option<String> {
    find_program("fio").is_none().then(|| "fio is not installed; apt-get install fio".into())
}

/// Measures every block size and depth for each mix. The file is written once before, so that no read falls into a
/// hole.
pub fn measure(
    mixes: &[(u32, u32)],
    directory: &Path,
    token: &str,
    interrupt: &Interrupt,
    mut progress: impl FnMut(&FioPoint),
) -> Result<Vec<FioPoint>, BenchFailure> {
    let disk = Disk::prepare(directory, token, interrupt)?;
    let mut points = Vec::new();
    for mix in mixes {
        let (blocks, depths): (&[u64], &[u32]) = match *mix {
            RANDOM_READS => (&RANDOM_BLOCKS, &RANDOM_DEPTHS),
            _ => (&BLOCKS, &DEPTHS),
        };
        for block in blocks.iter().copied() {
            for depth in depths.iter().copied() {
                let point = disk.point(*mix, block, depth)?;
                progress(&point);
                points.push(point);
            }
        }
    }
    Ok(points)
}

/// The time of a read of one page when there is no other, in microseconds: by a point that was measured, or by one
/// measured now.
pub fn page_read_us(
    points: &[FioPoint],
    directory: &Path,
    token: &str,
    interrupt: &Interrupt,
) -> Result<f64, BenchFailure> {
    if let Some(reason) = obstacle() {
        return Err(BenchFailure::trouble(reason, ""));
    }
    let measured = points.iter().find(|point| (point.reads, point.writes) == RANDOM_READS && point.depth == 1);
    let point = match measured {
        Some(point) => point.clone(),
        None => Disk::prepare(directory, token, interrupt)?.point(RANDOM_READS, RANDOM_BLOCKS[0], 1)?,
    };
    let rate = point.reads_per_second();
    if rate <= 0.0 {
        return Err(BenchFailure::trouble("fio read nothing", "check fio --version"));
    }
    Ok(1e6 / rate)
}

/// A file on the disk, which is removed in the end, and how fio reads and writes it.
struct Disk<'a> {
    file: PathBuf,
    engine: &'static str,
    interrupt: &'a Interrupt,
    _undo: UndoList,
}

impl<'a> Disk<'a> {
    /// Writes the file once.
    fn prepare(directory: &Path, token: &str, interrupt: &'a Interrupt) -> Result<Self, BenchFailure> {
        let file = directory.join(undo::name(token, "fio"));
        let mut undo = UndoList::default();
        undo.push(Undo::RemoveFile(file.clone()));
        let mut refused = None;
        for engine in ["io_uring", "libaio", "psync"] {
            match call(&file, engine, &["--rw=write", "--bs=1M", "--iodepth=8"], interrupt) {
                Ok(_) => return Ok(Self { file, engine, interrupt, _undo: undo }),
                Err(failure) => refused = Some(failure),
            }
        }
        Err(refused.unwrap_or_else(|| BenchFailure::trouble("fio has no usable engine", "")))
    }

    fn point(&self, (reads, writes): (u32, u32), block: u64, depth: u32) -> Result<FioPoint, BenchFailure> {
        let share = format!("--rwmixread={}", reads * 100 / (reads + writes));
        let order = if (reads, writes) == RANDOM_READS { "--rw=randread" } else { "--rw=rw" };
        let arguments = [
            &format!("--bs={block}"),
            &format!("--iodepth={depth}"),
            &format!("--runtime={SECONDS_PER_POINT}"),
            "--time_based",
            order,
            &share,
        ];
        let document = call(&self.file, self.engine, &arguments.map(AsRef::as_ref), self.interrupt)?;
        let (read, write) =
            rates(&document).ok_or_else(|| BenchFailure::trouble("fio printed no rates", "check fio --version"))?;
        Ok(FioPoint {
            reads,
            writes,
            block_bytes: block,
            depth,
            engine: self.engine.into(),
            read_bytes_per_second: read,
            write_bytes_per_second: write,
        })
    }
}

fn call(file: &Path, engine: &str, arguments: &[&str], interrupt: &Interrupt) -> Result<Value, BenchFailure> {
    let mut command = Command::new(find_program("fio").unwrap_or_else(|| "fio".into()));
    command.args(["--name=aquifer-bench", "--direct=1", "--output-format=json", "--group_reporting"]);
    command
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--size={}", format_size(FILE_BYTES).trim_end_matches("iB")));
    command.arg(format!("--ioengine={engine}")).args(arguments);
    let finished = process::run(command, POINT_TIMEOUT, interrupt)?;
    if !finished.status.success() {
        return Err(BenchFailure::trouble(format!("fio failed: {}", finished.complaint()), ""));
    }
    // fio may print notes before the document.
    let begin = finished.stdout.find('{').unwrap_or(0);
    serde_json::from_str(&finished.stdout[begin..])
        .map_err(|error| BenchFailure::trouble(format!("fio printed no JSON: {error}"), ""))
}

/// Read and write rate of the single job.
fn rates(document: &Value) -> Option<(f64, f64)> {
    let job = document.get("jobs")?.get(0)?;
    Some((job.get("read")?.get("bw_bytes")?.as_f64()?, job.get("write")?.get("bw_bytes")?.as_f64()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_from_the_document() {
        let document = serde_json::json!({"jobs": [{"read": {"bw_bytes": 300}, "write": {"bw_bytes": 100}}]});
        assert_eq!(rates(&document), Some((300.0, 100.0)));
        assert_eq!(rates(&serde_json::json!({"jobs": []})), None);
    }

    #[test]
    fn the_best_point_of_a_mix() {
        let point = |reads, read| FioPoint {
            reads,
            writes: 1,
            block_bytes: 1,
            depth: 1,
            engine: "e".into(),
            read_bytes_per_second: read,
            write_bytes_per_second: 100.0,
        };
        let points = [point(3, 300.0), point(3, 600.0), point(1, 900.0)];
        let best = best(&points, (3, 1)).unwrap();
        assert_eq!(best.read_bytes_per_second, 600.0);
        assert_eq!(best.triad_bytes_per_second(), 525.0);
    }
}
