// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The agent of a host: it keeps the volumes of the pool that are bound to the host, and hands them to programs.
//!
//! It has two sides. To the fabric manager it is an end of the control channel (`control_end.rs`): it reports its
//! volumes, and adds and removes members as commanded. To programs it is a Unix socket (`server.rs`, `session.rs`): a
//! program that may use a volume gets a view of it, and a new one whenever it changes. What both sides share is the
//! host state (`host_state.rs`, pure), which is on disk (`state_file.rs`), so that programs start while the manager is
//! down and a restarted agent knows which programs may still have memory of a member (`processes.rs`). Who may open
//! which volume is in the configuration (`permits.rs`), which is read again on request (`reload.rs`).
//!
//! Members on memory devices are not memory of donors: `host_state/devices.rs` decides when such memory comes online
//! and goes offline, and `cxl.rs` has the kernel do it, so that a device is unbound only when this host has no memory
//! of it.
//!
//! Metrics are the agent's own (`exposition.rs`, pure) and those of the programs whose launchers show it their
//! statistics (`shown.rs`); `observer.rs` writes the text of a scrape.
//!
//! When an agent has ended, changes stop and programs go on: programs talk to donors themselves.
//!
//! ```
//! let settings: aquifer_agent::Settings = "
//!     host = 'web-1'
//!     [manager]
//!     addresses = ['127.0.0.1:7444']
//!     [[volume]]
//!     name = 'web-*'
//!     uids = [1000]
//! ".parse()?;
//! assert_eq!(settings.host.as_str(), "web-1");
//! # Ok::<(), aquifer_agent::SettingsFailure>(())
//! ```

#![forbid(unsafe_code)]

mod control_end;
mod cxl;
mod exposition;
mod host;
mod host_state;
mod named_files;
mod observer;
mod permits;
mod processes;
mod refusals;
mod reload;
mod server;
mod session;
mod settings;
mod shown;
mod state_file;

pub use exposition::METRICS;
pub use host::{AgentFailure, Host};
pub use observer::Observer;
pub use reload::Reloader;
pub use settings::{CxlSettings, Settings, SettingsFailure};
