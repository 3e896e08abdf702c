// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why the writer ends, and whether a manager may lead afterwards.

use aquifer_fabric::Term;

use crate::manager_store::ManagerStoreFailure;

/// Why the writer ends.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Another manager has a greater term.
    Deposed { seen: Term },
    /// A signal ends this manager.
    Ended,
    /// The leadership of the leader was not kept alive in time.
    LeadershipLost,
    /// The store has failed.
    Store(ManagerStoreFailure),
}

impl Stop {
    /// Returns whether this manager or another one may lead afterwards.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Deposed { .. } | Self::LeadershipLost => true,
            Self::Ended => false,
            Self::Store(failure) => failure.may_pass(),
        }
    }
}

impl From<ManagerStoreFailure> for Stop {
    fn from(failure: ManagerStoreFailure) -> Stop {
        Stop::Store(failure)
    }
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Deposed { seen } => {
                write!(f, "another fabric manager has term {seen}; stop one of the two, then start again")
            }
            Self::Ended => f.write_str("a signal ends this manager; start it again"),
            Self::LeadershipLost => {
                f.write_str("the lease in etcd was not renewed in time; check the members and the network")
            }
            Self::Store(failure) => failure.fmt(f),
        }
    }
}
