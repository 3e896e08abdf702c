// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the tests with etcd share.

#![allow(dead_code, reason = "each test program uses a part")]

use std::path::PathBuf;
use std::time::Duration;

use aquifer_state_store::{Bounds, EtcdSettings, Key};

/// How long a test waits for what must come.
pub const WAIT_MAX: Duration = Duration::from_secs(120);

pub fn directory(name: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
}

pub fn key(text: &str) -> Key {
    Key::new(text).expect("a key")
}

pub fn settings(endpoints: &[String], prefix: &str, bounds: Bounds) -> EtcdSettings {
    EtcdSettings { endpoints: endpoints.to_vec(), prefix: prefix.into(), tls: None, bounds }
}
