// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads collections, which come in pages.

use serde_json::Value;

use crate::client::{Client, Request};
use crate::failure::{Failure, failed};

/// Maximum number of pages of a collection, of a thousand members each.
const PAGES_MAX: usize = 1000;

/// Reads a collection with its members, all pages as one.
pub fn collection(client: &Client, path: &str, filter: &str) -> Result<Value, Failure> {
    let mut whole = client.ask(&Request::get(&format!("{path}?$expand=.{filter}")))?.body;
    for _ in 0..PAGES_MAX {
        let Some(next) = whole["Members@odata.nextLink"].as_str().map(str::to_owned) else { return Ok(whole) };
        if !next.starts_with("/redfish/v1/") {
            return Err(failed("the next page is not at the manager; check the manager's address"));
        }
        let mut page = client.ask(&Request::get(&next))?.body;
        let members = page["Members"].take();
        if let (Some(all), Value::Array(members)) = (whole["Members"].as_array_mut(), members) {
            all.extend(members);
        }
        let Some(map) = whole.as_object_mut() else { break };
        map.remove("Members@odata.nextLink");
        map.extend(
            page["Members@odata.nextLink"].take().as_str().map(|next| ("Members@odata.nextLink".into(), next.into())),
        );
    }
    Err(failed(format!("the collection has more than {PAGES_MAX} pages; check the manager's address")))
}
