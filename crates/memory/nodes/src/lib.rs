// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The memory that the kernel shows: NUMA nodes, memory devices (`/dev/daxX.Y`), and its own tiering.
//!
//! Everything is a function of a [`Tree`], the files of sysfs(5) and proc(5): those of this machine ([`Machine`]), or a
//! tree in memory ([`Fixture`]) for tests, which also injects failures. What should be changed is decided apart from
//! carrying it out: [`tiering::changes`] and [`placement::decide`] return what to write, and [`write_all`] writes it.
//!
//! ```
//! use aquifer_nodes::{Fixture, Nodes};
//!
//! let tree = Fixture::new()
//!     .with("/sys/devices/system/node/online", "0-1")
//!     .with("/sys/devices/system/node/node0/cpulist", "0-3")
//!     .with("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1024 kB\nNode 0 MemFree: 512 kB\n")
//!     .with("/sys/devices/system/node/node1/cpulist", "")
//!     .with("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 2048 kB\nNode 1 MemFree: 2048 kB\n");
//! let nodes = Nodes::read(&tree)?;
//! assert_eq!(nodes.far().map(|node| node.number).collect::<Vec<_>>(), [1]);
//! # Ok::<(), aquifer_nodes::NodeFailure>(())
//! ```

#![forbid(unsafe_code)]

pub mod bandwidth;
pub mod dax;
pub mod dvsec;
mod fixture;
mod machine;
mod node;
mod number_list;
pub mod placement;
pub mod tiering;
mod tree;
pub mod weights;

pub use fixture::Fixture;
pub use machine::Machine;
pub use node::{Node, NodeFailure, Nodes};
pub use number_list::number_list;
pub use tree::{Tree, Write, WriteFailure, write_all};
