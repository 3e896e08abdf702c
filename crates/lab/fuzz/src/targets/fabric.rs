// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Targets for the input of the fabric manager: requests and their bodies, its configuration file, and etcd's answers.

use aquifer_manager::{Config, take_body, take_request};
use aquifer_state_store::take_answer;

use super::one_line;

/// The body of a request, for each route.
pub fn fabric_body(bytes: &[u8]) {
    take_body(bytes);
}

/// A whole request, answered without sockets by a manager whose state is in memory.
pub fn fabric_request(bytes: &[u8]) {
    take_request(bytes);
}

/// The configuration file. An accepted file must be the same after it is written and read again.
pub fn fabric_config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Config::parse(&text) {
        Ok(config) => {
            let written = config.to_toml();
            assert_eq!(Config::parse(&written), Ok(config), "written as {written}");
        }
        Err(refused) => one_line(&refused.to_string()),
    }
}

/// An answer of etcd's: two bytes of status, and the body.
pub fn etcd_answer(bytes: &[u8]) {
    let (status, body) = bytes.split_at(bytes.len().min(2));
    let status = status.iter().fold(0, |status, byte| status << 8 | u16::from(*byte));
    take_answer(status, body);
    take_answer(200, body);
}
