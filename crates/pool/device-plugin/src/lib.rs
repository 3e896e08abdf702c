// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A device plug-in for Kubernetes: hands the volumes of a host to pods.
//!
//! The agent of the host lists the volumes (`agent.rs`). Each is a resource of the node, such as `aquifer.dev/db`, with
//! as many devices as pods may share it (`resource.rs`, pure), and an endpoint in kubelet's directory (`endpoint.rs`)
//! at which kubelet watches the devices and asks what a container needs (`plugin.rs`, `allocation.rs`, pure). The
//! programs in the container speak to the agent and to the donors themselves, as on the host.
//!
//! It changes nothing on the host or in the pool, and uses no volume: while it is down, running pods continue, and new
//! ones wait.
//!
//! ```
//! use aquifer_device_plugin::{Domain, variable};
//!
//! assert_eq!(variable("db-1"), "AQUIFER_VOLUME_DB_1");
//! assert!("kubernetes.io".parse::<Domain>().is_err());
//! ```

#![forbid(unsafe_code)]

mod agent;
mod allocation;
pub mod api;
mod endpoint;
mod fleet;
mod plugin;
mod resource;

pub use allocation::{CONTAINERS_MAX, Refusal, variable};
pub use fleet::{Settings, run};
pub use resource::{Domain, Naming, USERFAULTFD};
