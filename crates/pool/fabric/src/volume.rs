// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a volume is: its specification, its spans, and the members that hold their bytes.
//!
//! A volume's bytes are the bytes of its *spans*, one after the other. A span's bytes are with its *members*: with one,
//! in N copies, or in K shards of data and M of parity. The memory of a member is from one *source*: slabs of a donor,
//! an LD of a device, or dynamic capacity. What a member holds belongs to one binding; the next binding has members of
//! its own.
//!
//! Next: `placement.rs`, which donors and devices hold a new volume; `desired/change.rs`, how a volume is bound.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::id::{DeviceId, DonorId, LdId, MemberId, Millis, PoolId, SpanId, VppbAddress, ZoneId};
use crate::topology::{FaultDomain, LatencyClass};

/// Maximum number of spans of one volume. The box of 22 devices needs 22; a donor of 32 TiB needs one.
pub const SPANS_MAX: usize = 256;
/// Copies of a mirror at most, as an array of donors has them.
pub const COPIES_MAX: u8 = 4;
/// Maximum number of data shards.
pub const DATA_MAX: u8 = 16;
/// Maximum number of parity shards.
pub const PARITY_MAX: u8 = 4;
/// Labels of one volume at most.
pub const LABELS_MAX: usize = 16;
/// Longest name or value of a label, in bytes.
pub const LABEL_BYTES_MAX: usize = 128;
/// The greatest weight of a span, as in an array of donors (`aquifer-borrower`).
pub const WEIGHT_MAX: u8 = 16;
/// Weights of one volume at most. A choice: a list is repeated, and a change of a volume fits a line of the audit log.
pub const WEIGHTS_MAX: usize = 16;
/// Largest volume: far more than a rack holds, far less than would overflow once redundancy is added.
pub const VOLUME_MAX: Bytes = Bytes(1 << 56);

/// How many members may be lost before bytes are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Redundancy {
    /// Each byte has several copies.
    Mirror {
        /// How many copies there are.
        copies: u8,
    },
    /// None may be lost.
    #[default]
    None,
    /// Shards, any K of which have all bytes.
    Parity {
        /// K, shards of data.
        data: u8,
        /// M, shards of parity. This many members may be lost.
        parity: u8,
    },
}

impl Redundancy {
    /// Returns the number of members of one span.
    pub fn members(self) -> usize {
        match self {
            Self::Mirror { copies } => usize::from(copies),
            Self::None => 1,
            Self::Parity { data, parity } => usize::from(data) + usize::from(parity),
        }
    }

    /// Returns the number of members that is enough to read all bytes.
    pub fn members_needed(self) -> usize {
        match self {
            Self::Mirror { .. } | Self::None => 1,
            Self::Parity { data, .. } => usize::from(data),
        }
    }

    /// Returns what one member holds of a span: whole slabs.
    pub fn member_bytes(self, span: Bytes) -> Bytes {
        Bytes(span.0.div_ceil(self.members_needed() as u64)).round_up_to_slabs()
    }

    /// Returns what a span holds if each of its members has this much.
    pub fn span_bytes(self, member: Bytes) -> Bytes {
        member.times(self.members_needed() as u64)
    }

    /// Returns whether the redundancy is within its limits.
    pub fn is_possible(self) -> bool {
        match self {
            Self::Mirror { copies } => (2..=COPIES_MAX).contains(&copies),
            Self::None => true,
            Self::Parity { data, parity } => (2..=DATA_MAX).contains(&data) && (1..=PARITY_MAX).contains(&parity),
        }
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mirror { copies } => write!(f, "mirror={copies}"),
            Self::None => f.write_str("none"),
            Self::Parity { data, parity } => write!(f, "parity={data}+{parity}"),
        }
    }
}

/// What the host sees of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Presentation {
    /// One range with the sum of the spans. Programs use donors in proportion to what they lend, and devices become
    /// the nodes that the host's agent is set to.
    #[default]
    OneRange,
    /// One range for each span: programs use donors by weights, and each device becomes a node of its own, as long as
    /// the host has windows of addresses without other regions.
    RangePerSpan {
        /// How many slabs each span gets in turn, from the first span on, between 1 and [`WEIGHT_MAX`]. A list that is
        /// too short is repeated; if empty, one slab each. Only spans on donors have weights, and only without
        /// redundancy: the kernel has its own for nodes, and copies and shards are spread over all members.
        weights: Vec<u8>,
    },
}

impl Presentation {
    /// Returns the list of weights; empty if there are none.
    pub fn weights(&self) -> &[u8] {
        match self {
            Self::OneRange => &[],
            Self::RangePerSpan { weights } => weights,
        }
    }

    /// Returns the weight of a span, counted from 0; `None` if its size decides.
    pub fn weight(&self, span: usize) -> Option<u8> {
        match self {
            Self::OneRange => None,
            Self::RangePerSpan { weights } if weights.is_empty() => Some(1),
            Self::RangePerSpan { weights } => Some(weights[span % weights.len()]),
        }
    }

    /// Returns whether the weights are within their limits.
    pub fn is_possible(&self) -> bool {
        let weights = self.weights();
        weights.len() <= WEIGHTS_MAX && weights.iter().all(|weight| (1..=WEIGHT_MAX).contains(weight))
    }
}

impl fmt::Display for Presentation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneRange => f.write_str("one range"),
            Self::RangePerSpan { weights } if weights.is_empty() => f.write_str("one range per span"),
            Self::RangePerSpan { weights } => {
                let weights: Vec<String> = weights.iter().map(ToString::to_string).collect();
                write!(f, "one range per span, weights {}", weights.join(":"))
            }
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeSpec {
    /// The bytes that its host can use. At least that many are placed.
    pub size: Bytes,
    /// The pool that it is taken from.
    pub pool: PoolId,
    /// Whose quota it counts against, and whose hosts may have it.
    pub zone: ZoneId,
    /// The slowest class that will do. Faster ones are taken when that is full.
    pub class: LatencyClass,
    /// How many members may be lost.
    #[serde(default)]
    pub redundancy: Redundancy,
    /// What two members of a span never share.
    #[serde(default)]
    pub spread: FaultDomain,
    /// The minimum number of spans over which it is striped. 0 counts as 1.
    #[serde(default)]
    pub width: u16,
    /// What the host sees.
    #[serde(default)]
    pub presentation: Presentation,
    /// When it is released automatically.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Millis>,
    /// The only donor that may hold it; any of the pool if there is none. It does not move from there: a drain waits
    /// until it is released, and what the donor has lost is placed there again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub donor: Option<DonorId>,
    /// What people and programs note about it. The fabric manager decides nothing by them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Where a member's bytes are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Source {
    /// In blocks of a device, which are added and released.
    DynamicCapacity {
        /// The device that has the blocks.
        device: DeviceId,
    },
    /// In a logical device, which is bound and unbound.
    LogicalDevice {
        /// The device that has the LD.
        device: DeviceId,
        /// The LD's number on the device.
        ld_id: LdId,
    },
    /// In slabs, which a donor lends.
    Slabs {
        /// The donor that lends the slabs.
        donor: DonorId,
    },
}

impl Source {
    /// Returns the donor, if it is one.
    pub const fn donor(&self) -> Option<&DonorId> {
        match self {
            Self::Slabs { donor } => Some(donor),
            Self::DynamicCapacity { .. } | Self::LogicalDevice { .. } => None,
        }
    }

    /// Returns the device, if it is on one.
    pub const fn device(&self) -> Option<&DeviceId> {
        match self {
            Self::DynamicCapacity { device } | Self::LogicalDevice { device, .. } => Some(device),
            Self::Slabs { .. } => None,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DynamicCapacity { device } => write!(f, "device {device}"),
            Self::LogicalDevice { device, ld_id: crate::topology::NO_LD } => write!(f, "device {device}"),
            Self::LogicalDevice { device, ld_id } => write!(f, "LD {ld_id} of device {device}"),
            Self::Slabs { donor } => write!(f, "donor {donor}"),
        }
    }
}

/// One member of a span.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its id within the volume.
    pub id: MemberId,
    /// Where its bytes are.
    pub source: Source,
    /// The size of its bytes.
    pub bytes: Bytes,
    /// The vPPB that an LD is bound to, chosen with the binding; only LDs have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vppb: Option<VppbAddress>,
}

/// Where in a volume a member belongs: two members with the same place hold the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The span of the volume.
    pub span: SpanId,
    /// Which copy or shard of it.
    pub shard: u8,
}

/// A run of a volume's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// Its id within the volume.
    pub id: SpanId,
    /// Its members, in the order of their shards.
    pub members: Vec<Member>,
}

impl Span {
    /// Returns the members with their places.
    pub fn places(&self) -> impl Iterator<Item = (Place, &Member)> {
        let shards = 0..=u8::MAX;
        shards.zip(&self.members).map(|(shard, member)| (Place { span: self.id, shard }, member))
    }

    /// Returns what it takes from the pool.
    pub fn raw_bytes(&self) -> Bytes {
        self.members.iter().map(|member| member.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_hold_whole_slabs_and_at_least_the_span() {
        let kinds = [Redundancy::None, Redundancy::Mirror { copies: 3 }, Redundancy::Parity { data: 4, parity: 2 }];
        for redundancy in kinds {
            for span in [Bytes(1), Bytes::slabs(7), Bytes::gib(3)] {
                let member = redundancy.member_bytes(span);
                assert!(member.is_whole_slabs() && redundancy.span_bytes(member) >= span, "{redundancy} {span}");
            }
        }
        assert_eq!(Redundancy::Parity { data: 4, parity: 2 }.member_bytes(Bytes::slabs(8)), Bytes::slabs(2));
    }

    #[test]
    fn each_span_has_a_weight_and_a_short_list_is_repeated() {
        let weights = |list: &[u8]| Presentation::RangePerSpan { weights: list.to_vec() };
        let of = |presentation: &Presentation| [0, 1, 2].map(|span| presentation.weight(span));
        assert_eq!(of(&Presentation::OneRange), [None; 3]);
        assert_eq!(of(&weights(&[])), [Some(1); 3]);
        assert_eq!(of(&weights(&[3, 1])), [Some(3), Some(1), Some(3)]);
        assert!(weights(&[]).is_possible() && weights(&[1, 16]).is_possible() && weights(&[1; 16]).is_possible());
        assert!(!weights(&[0, 1]).is_possible() && !weights(&[17]).is_possible() && !weights(&[1; 17]).is_possible());
        assert_eq!(weights(&[3, 1]).to_string(), "one range per span, weights 3:1");
    }

    #[test]
    fn redundancy_has_bounds() {
        assert!(
            Redundancy::Mirror { copies: 2 }.is_possible() && Redundancy::Parity { data: 2, parity: 1 }.is_possible()
        );
        assert!(!Redundancy::Mirror { copies: 1 }.is_possible() && !Redundancy::Mirror { copies: 5 }.is_possible());
        assert!(!Redundancy::Parity { data: 1, parity: 1 }.is_possible());
        assert!(!Redundancy::Parity { data: 4, parity: 5 }.is_possible());
    }
}
