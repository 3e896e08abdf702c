// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Shows the longest read beside a wipe: `wipe_beside_reads [BYTES_MIB] [CPU_PERCENT] [SOURCE]...`; the defaults are
//! 8192, 25 and all sources.
//!
//! Starts `aquifer donor` (from `AQUIFER`, or `target/release/aquifer`) in a cgroup that limits its share of a CPU to
//! CPU_PERCENT, once for each source. One borrower fills the memory. Another one reads its own page once a millisecond:
//! first while the donor is at rest; then while it wipes what the first borrower has given back; then at rest again,
//! for as long as the wipe took, so that the machine's other work has the same chance to disturb the reads. Needs root,
//! for the cgroup.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aquifer_donor::{Security, status};
use aquifer_sys::direct_io::lasting_buffer;
use aquifer_tiers::{PAGE, TierSpec, open};
use aquifer_wire::{Figure, SLAB_BYTES};

/// How much longer a read beside the wipe may take than one at rest.
const BOUND: Duration = Duration::from_millis(50);
/// How long reads are measured at rest before the wipe.
const REST: Duration = Duration::from_secs(10);
const READ_PAUSE: Duration = Duration::from_millis(1);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Slabs that are filled between two renewals of leases: some seconds on a busy machine.
const SLABS_BETWEEN_RENEWALS: u64 = 256;
const TIMEOUT: Duration = Duration::from_secs(10);
/// The period over which the kernel limits the CPU time.
const PERIOD_US: u64 = 100_000;

fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let mib = words.next().map_or(Ok(8192), |word| word.parse::<u64>())?;
    let percent = words.next().map_or(Ok(25), |word| word.parse::<u64>())?;
    let mut sources: Vec<String> = words.collect();
    if sources.is_empty() {
        sources = ["anonymous", "memfd", "huge"].map(str::to_owned).to_vec();
    }
    let cgroup = Cgroup::new(percent)?;
    let mut is_met = true;
    println!("{mib} MiB, {percent} % of a CPU; the longest of many reads of 4 KiB");
    for source in &sources {
        match measure(&cgroup, source, mib << 20) {
            Ok(Measured { rest, beside, wiped_in }) => {
                let is_good = beside.longest <= rest.longest + BOUND;
                is_met &= is_good;
                let verdict = if is_good { "met" } else { "NOT met" };
                println!("{source:>10}: at rest {rest}; beside the wipe {beside}; wiped in {wiped_in:.1?}: {verdict}");
            }
            Err(error) => println!("{source:>10}: skipped, because {error}"),
        }
    }
    if is_met { Ok(()) } else { Err(format!("a read beside a wipe takes more than {BOUND:?} longer").into()) }
}

type Failure = Box<dyn std::error::Error>;

/// Reads of one phase.
#[derive(Default)]
struct Reads {
    longest: Duration,
    count: u64,
    /// Reads that took longer than [`BOUND`].
    late: u64,
    /// Periods in which the donor had used its part of a CPU, and stood still for the rest.
    held_up: u64,
}

impl std::fmt::Display for Reads {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Reads { longest, count, late, held_up } = self;
        write!(formatter, "{longest:.1?} ({late} of {count} above {BOUND:?}, held up {held_up} times)")
    }
}

struct Measured {
    rest: Reads,
    beside: Reads,
    wiped_in: Duration,
}

fn measure(cgroup: &Cgroup, source: &str, bytes: u64) -> Result<Measured, Failure> {
    let donor = Lender::start(source, bytes + SLAB_BYTES)?;
    let spec: TierSpec = format!("donor:{},security=plain", donor.address).parse()?;
    let (reader, filler) = (open(&spec)?, open(&spec)?);
    let mut page = lasting_buffer(1);
    page.bytes_mut().fill(7);
    reader.write(0, &page)?;
    let mut block = lasting_buffer(SLAB_BYTES as usize / PAGE);
    block.bytes_mut().fill(9);
    // Without the limit on the CPU: only what comes afterwards is measured.
    for slab in 0..bytes / SLAB_BYTES {
        filler.write(slab * SLAB_BYTES, &block)?;
        if slab.is_multiple_of(SLABS_BETWEEN_RENEWALS) {
            // No other thread renews the leases, and filling memory takes a while on a busy machine.
            [&reader, &filler].iter().filter_map(|tier| tier.upkeep()).for_each(|upkeep| _ = upkeep.turn(None));
        }
    }
    cgroup.take_in(donor.child.id())?;
    let mut read = |reads: &mut Reads, until: &mut dyn FnMut() -> Result<bool, Failure>| -> Result<(), Failure> {
        let held_up = cgroup.held_up()?;
        while !until()? {
            let started = Instant::now();
            reader.read(0, &mut page)?;
            let took = started.elapsed();
            reads.longest = reads.longest.max(took);
            reads.count += 1;
            reads.late += u64::from(took > BOUND);
            std::thread::sleep(READ_PAUSE);
        }
        reads.held_up += cgroup.held_up()? - held_up;
        Ok(())
    };
    let (mut rest, mut beside) = (Reads::default(), Reads::default());
    let started = Instant::now();
    read(&mut rest, &mut || Ok(started.elapsed() > REST))?;
    // The opener of a tier gives back what it has.
    drop(filler);
    let (started, mut looked) = (Instant::now(), Instant::now());
    read(&mut beside, &mut || {
        if looked.elapsed() < LOOK_EVERY {
            return Ok(false);
        }
        looked = Instant::now();
        let _ = reader.upkeep().map(|upkeep| upkeep.turn(None));
        let status = status(donor.address, "localhost", &Security::Plain, TIMEOUT)?;
        Ok(status.figure(Figure::WipingBytes) == 0 && status.figure(Figure::WipesTotal) >= bytes / SLAB_BYTES)
    })?;
    let (wiped_in, started) = (started.elapsed(), Instant::now());
    read(&mut rest, &mut || Ok(started.elapsed() > wiped_in))?;
    Ok(Measured { rest, beside, wiped_in })
}

/// A donor in its own process, until it is dropped.
struct Lender {
    child: Child,
    address: SocketAddr,
}

impl Lender {
    fn start(source: &str, bytes: u64) -> Result<Lender, Failure> {
        let aquifer =
            std::env::var_os("AQUIFER").map_or_else(|| PathBuf::from("target/release/aquifer"), PathBuf::from);
        let words = ["donor", "--security", "plain", "--listen", "127.0.0.1:0", "--json", "--source", source, "--size"];
        let mut child = Command::new(aquifer).args(words).arg(bytes.to_string()).stdout(Stdio::piped()).spawn()?;
        let mut said = String::new();
        let read = BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut said);
        // {..,"address":"127.0.0.1:1234",..}
        let address = said.split('"').find_map(|word| word.parse().ok());
        match (read, address) {
            (Ok(_), Some(address)) => Ok(Lender { child, address }),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("there is no donor with --source {source}").into())
            }
        }
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A cgroup with a limit on the CPU, of either version, until it is dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(percent: u64) -> io::Result<Cgroup> {
        let quota = percent * PERIOD_US / 100;
        let name = format!("aquifer-wipe-{}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/cpu");
        let is_v1 = v1.join("cpu.cfs_quota_us").exists() || v1.join("tasks").exists();
        let cgroup = Cgroup(if is_v1 { v1.join(name) } else { Path::new("/sys/fs/cgroup").join(name) });
        fs::create_dir(&cgroup.0)?;
        if is_v1 {
            fs::write(cgroup.0.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
            fs::write(cgroup.0.join("cpu.cfs_quota_us"), quota.to_string())?;
        } else {
            fs::write(cgroup.0.join("cpu.max"), format!("{quota} {PERIOD_US}"))?;
        }
        Ok(cgroup)
    }

    /// The number of periods in which its processes have used up their part of the CPU.
    fn held_up(&self) -> Result<u64, Failure> {
        let stat = fs::read_to_string(self.0.join("cpu.stat"))?;
        let count = stat.lines().find_map(|line| line.strip_prefix("nr_throttled "));
        Ok(count.ok_or("cpu.stat has no nr_throttled")?.parse()?)
    }

    fn take_in(&self, process: u32) -> io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), process.to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
