// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A tier in a volume of the pool: an array of donors whose members change while programs run.
//!
//! The host's agent says who the members are and what to do with each (`aquifer_agent_wire`). The tier asks it when it
//! opens, and follows it from then on, in the calls of its upkeep (`follower.rs`): members join, drain and leave
//! (`changes.rs`, pure). Without the agent, or the fabric manager behind it, the tier continues with the members that
//! it has. If the volume is closed meanwhile, that is reported when the agent answers again (`closings.rs`).
//!
//! After fork(2), the child follows the agent by itself. Parent and child see each other's changes, because the array's
//! member table is in memory that they share (`borrower/src/array/member_table.rs`).

mod changes;
mod closings;
mod follower;
mod link;

use std::error::Error;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs, io};

use aquifer_agent_wire::{Denial, NotAFrame, View};
use aquifer_borrower::{Array, DATA_SHARDS, POSITIONS, Redundancy, VolumeTierSpec};
use aquifer_core::units::ByteSize;
use aquifer_sys::FrameBuffer;
use aquifer_sys::raw::{Errno, random};
use aquifer_tier::{Forks, KeepAlive, OpenFailure, Tier, TierFailure, TierFigures, TierQueue, Upkeep, Verify};
use aquifer_tls::{BorrowerFiles, Files};

use self::follower::Follower;

const NAME: &str = "pool";
/// How often to look for messages of the agent.
const FOLLOW_EVERY: Duration = Duration::from_millis(250);

/// The description of a tier in a volume of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSpec {
    /// The volume's name, or its id.
    pub volume: String,
    /// The socket of the host's agent.
    pub agent: PathBuf,
    /// Capacity; by default what the volume has. More than that can be used once the volume has grown.
    pub size: Option<ByteSize>,
    /// The tree of processes that borrows. Never typed by a user.
    pub tree: Option<u64>,
}

/// Why a volume could not be opened: one line with cause and remedy.
#[derive(Debug)]
pub(crate) enum PoolFailure {
    Agent { agent: PathBuf, source: io::Error },
    Denied { volume: String, denial: Denial },
    Malformed { agent: PathBuf, failure: NotAFrame },
    NoMember { volume: String },
    Redundancy { volume: String, data: u8, parity: u8 },
}

impl fmt::Display for PoolFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent { agent, source } if source.kind() == io::ErrorKind::PermissionDenied => write!(
                f,
                "this user may not use the agent at {0}: {source}; add the user to the group of that socket ('usermod \
                 --append --groups {1} USER', then log in again), or name another agent with agent=SOCKET",
                agent.display(),
                group_of(agent)
            ),
            Self::Agent { agent, source } => write!(
                f,
                "no agent answers at {}: {source}; start one there with 'aquifer agent', or name its socket with \
                 agent=SOCKET",
                agent.display()
            ),
            Self::Denied { volume, denial } => write!(f, "the volume {volume} cannot be used: {denial}"),
            Self::Malformed { agent, failure } => {
                write!(f, "the agent at {} cannot be understood: {failure}", agent.display())
            }
            Self::NoMember { volume } => write!(
                f,
                "the agent does not know where the donors of the volume {volume} are; let it reach the fabric manager once, \
                 or name them under [donors] in the agent's file"
            ),
            Self::Redundancy { volume, data, parity } => write!(
                f,
                "the volume {volume} has parity={data}+{parity}, which programs cannot use; create it with 2, 4 or 8 \
                 before the +, and {POSITIONS} at most together"
            ),
        }
    }
}

/// The name of a file's group, or its number.
fn group_of(path: &Path) -> String {
    let Ok(found) = fs::metadata(path) else { return "GROUP".to_owned() };
    let number = found.gid().to_string();
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let mut fields = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let named = fields.find(|fields| fields.get(2) == Some(&number.as_str()));
    named.map_or(number.clone(), |fields| fields[0].to_owned())
}

impl Error for PoolFailure {}

impl From<PoolFailure> for OpenFailure {
    fn from(failure: PoolFailure) -> OpenFailure {
        OpenFailure::Remote { failure: Box::new(failure) }
    }
}

/// A tier in a volume of the pool.
pub struct Pool {
    array: Array,
    follower: Follower,
}

impl Pool {
    /// Asks the agent for the volume, and greets its donors.
    pub fn open(spec: &PoolSpec) -> Result<Pool, OpenFailure> {
        let (follower, view, service) = Follower::open(spec)?;
        let array = volume_of(spec, &view, service).and_then(|volume| Ok(Array::open_volume(&volume)?));
        match array {
            Ok(array) => Ok(Pool { array, follower }),
            Err(failure) => {
                follower.close();
                Err(failure)
            }
        }
    }

    /// Refuses a volume that the agent does not give to this user.
    pub fn check_place(spec: &PoolSpec) -> Result<(), OpenFailure> {
        let (follower, view, service) = Follower::open(spec)?;
        let volume = volume_of(spec, &view, service);
        follower.close();
        volume.map(|_| ())
    }

    /// Gives back what the processes of the tree have borrowed, after they have ended.
    pub fn report_exit(spec: &PoolSpec) {
        if spec.tree.is_none() {
            return;
        }
        if let Ok((follower, view, service)) = Follower::open(spec) {
            if let Ok(volume) = volume_of(spec, &view, service) {
                Array::report_volume_exit(&volume);
            }
            follower.close();
        }
    }
}

/// The array that a view describes. The agent runs as the user `service`, and its files may be that user's.
fn volume_of(spec: &PoolSpec, view: &View, service: Option<u32>) -> Result<VolumeTierSpec, OpenFailure> {
    let volume = || spec.volume.clone();
    let redundancy = match view.redundancy {
        aquifer_agent_wire::Redundancy::None => Redundancy::Striped,
        aquifer_agent_wire::Redundancy::Mirror { copies } => Redundancy::Mirror { copies: copies.into() },
        aquifer_agent_wire::Redundancy::Parity { data, parity } => {
            let (data_shards, parity_shards) = (usize::from(data), usize::from(parity));
            if data_shards < 2 || !DATA_SHARDS.contains(&data_shards) || data_shards + parity_shards > POSITIONS {
                return Err(PoolFailure::Redundancy { volume: volume(), data, parity }.into());
            }
            Redundancy::Parity { data: data_shards, parity: parity_shards }
        }
    };
    let members = changes::newcomers(view);
    if members.is_empty() {
        return Err(PoolFailure::NoMember { volume: volume() }.into());
    }
    let files = view.files.as_ref();
    let files = files.map(|it| BorrowerFiles {
        identity: Files { cert: it.cert.clone(), key: it.key.clone(), ca: it.ca.clone() },
        crl: it.crl.clone(),
        service,
    });
    let tree = spec.tree.map_or_else(random, Ok).map_err(|Errno(errno)| OpenFailure::System {
        tier: NAME,
        what: "drawing a random number",
        source: io::Error::from_raw_os_error(errno),
    })?;
    Ok(VolumeTierSpec { members, redundancy, files, size: spec.size, tree })
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.follower.close();
    }
}

impl Tier for Pool {
    fn name(&self) -> &'static str {
        NAME
    }

    fn notices(&self) -> &[String] {
        self.array.notices()
    }

    fn remedy(&self) -> &'static str {
        self.array.remedy()
    }

    fn capacity_bytes(&self) -> u64 {
        self.array.capacity_bytes()
    }

    fn busy_bytes(&self) -> u64 {
        self.array.busy_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        self.array.read(offset, buffer)
    }

    fn read_other(&self, offset: u64, buffer: &mut FrameBuffer, way: u32) -> Result<bool, TierFailure> {
        self.array.read_other(offset, buffer, way)
    }

    fn read_verified(
        &self,
        offset: u64,
        buffer: &mut FrameBuffer,
        repaired: &mut dyn FnMut(u64, usize, u32),
    ) -> Result<(), TierFailure> {
        self.array.read_verified(offset, buffer, repaired)
    }

    fn report_corruption(&self, offset: u64, len: usize, way: u32) {
        self.array.report_corruption(offset, len, way);
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.array.write(offset, buffer)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        self.array.discard(offset, len)
    }

    fn flush(&self) -> Result<(), TierFailure> {
        self.array.flush()
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        self.array.open_queue(depth)
    }

    fn take_figures(&self) -> TierFigures {
        self.array.take_figures()
    }

    fn upkeep(&self) -> Option<&dyn Upkeep> {
        Some(self)
    }

    fn forks(&self) -> Option<&dyn Forks> {
        Some(self)
    }
}

impl Upkeep for Pool {
    fn turn(&self, verify: Option<&Verify<'_>>) -> Duration {
        self.follower.follow(&self.array);
        Upkeep::turn(&self.array, verify).min(FOLLOW_EVERY)
    }

    fn report_changes(&self, say: &mut dyn FnMut(&str)) {
        self.follower.take_notices().iter().for_each(|notice| say(notice));
        self.array.report_changes(say);
    }

    fn keep_alive_every(&self) -> Option<Duration> {
        self.array.keep_alive_every()
    }

    fn begin_keep_alive(&self) -> Vec<Box<dyn KeepAlive + '_>> {
        self.array.begin_keep_alive()
    }
}

impl Forks for Pool {
    fn after_fork_in_child(&self, inherits: bool) -> Result<(), Errno> {
        self.follower.forget();
        self.array.after_fork_in_child(inherits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_one_line_with_a_remedy() {
        let denial = Denial::NotBound { host: "web-1".into() };
        for (failure, remedy) in [
            (
                PoolFailure::Agent { agent: "/a".into(), source: io::ErrorKind::ConnectionRefused.into() },
                "aquifer agent",
            ),
            (
                PoolFailure::Agent { agent: "/a".into(), source: io::ErrorKind::PermissionDenied.into() },
                "usermod --append --groups GROUP USER",
            ),
            (PoolFailure::Denied { volume: "db".into(), denial }, "aquifer fabric bind"),
            (
                PoolFailure::Malformed { agent: "/a".into(), failure: NotAFrame::Oversized { bytes: 9 } },
                "fewer members",
            ),
            (PoolFailure::NoMember { volume: "db".into() }, "[donors]"),
            (PoolFailure::Redundancy { volume: "db".into(), data: 16, parity: 2 }, "create it with"),
        ] {
            let text = OpenFailure::from(failure).to_string();
            assert!(text.contains(remedy) && !text.contains('\n'), "{text}");
        }
    }
}
