// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The Redfish interface: a table of routes (`rest/routes.rs`), and how one request is answered by it.
//!
//! Blocking and without sockets: `http.rs` calls [`Service::answer`] with a request that has arrived as a whole. The
//! OpenAPI document is generated from the same table, so that neither lacks what the other has.

mod access;
mod admission;
mod answer;
mod body;
mod collection;
mod devices;
mod dry_run;
mod events;
mod fabrics;
mod fuzzing;
mod joining;
mod memory;
mod metadata;
mod oem;
mod openapi;
mod protocol;
mod registries;
mod request_record;
mod roots;
mod routes;
mod service;
mod shape;
mod switches;
mod tasks;

pub use body::take_body;
pub use fuzzing::take_request;
pub use openapi::openapi;

pub(crate) use answer::{Answer, Problem};
pub(crate) use aquifer_fabric::date;
pub(crate) use body::{BODY_BYTES_MAX, DECLARATION_BYTES_MAX};
pub(crate) use service::{Position, Request, Service};

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aquifer_fabric::Millis;

/// How long an order may wait for the writer. A round of a thousand donors takes far less.
const ORDER_WAIT_MAX: Duration = Duration::from_secs(60);

/// Returns the time now.
pub(crate) fn now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
