// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a cache has counted, and the text of `INFO`. Pure.

use std::fmt::Write;

use aquifer::Statistics;

use crate::store::Store;

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Connections that were accepted.
    pub connections: u64,
    /// Connections that were refused, because there were as many as are allowed.
    pub rejected_connections: u64,
    /// Connections that were ended, because all buffers together had grown too large.
    pub evicted_clients: u64,
    /// Commands that were carried out, whether they succeeded or not.
    pub commands: u64,
    /// Reads of keys that existed.
    pub hits: u64,
    /// Reads of keys that did not exist.
    pub misses: u64,
    /// Reads that had to wait for a tier.
    pub far_reads: u64,
    /// Requests that failed because of a tier.
    pub tier_errors: u64,
}

/// Returns the reply to `INFO`. A figure that Redis has, too, has Redis's name.
pub fn info(figures: &Figures, connected: usize, store: &Store, space: &Statistics, uptime_s: u64) -> String {
    let mut text = String::new();
    let mut section = |name: &str, lines: &[(&str, u64)]| {
        let _ = write!(text, "# {name}\r\n");
        for (name, value) in lines {
            let _ = write!(text, "{name}:{value}\r\n");
        }
        text.push_str("\r\n");
    };
    let counts = store.counts();
    section("Server", &[("process_id", u64::from(std::process::id())), ("uptime_in_seconds", uptime_s)]);
    section("Clients", &[("connected_clients", connected as u64)]);
    section(
        "Memory",
        &[
            ("used_memory", store.live_bytes()),
            ("maxmemory", store.size_bytes()),
            ("resident_bytes", space.resident_bytes),
            ("stored_bytes", space.stored_bytes),
        ],
    );
    section(
        "Stats",
        &[
            ("total_connections_received", figures.connections),
            ("rejected_connections", figures.rejected_connections),
            ("evicted_clients", figures.evicted_clients),
            ("total_commands_processed", figures.commands),
            ("keyspace_hits", figures.hits),
            ("keyspace_misses", figures.misses),
            ("expired_keys", counts.expired_keys),
            ("evicted_keys", counts.evicted_keys),
            ("lost_keys", counts.lost_keys),
            ("moved_bytes", counts.moved_bytes),
            ("overwritten_values", counts.overwritten_values),
            ("far_reads", figures.far_reads),
            ("tier_errors", figures.tier_errors),
            ("faults", space.faults),
            ("fetched_bytes", space.fetched_bytes),
            ("written_back_bytes", space.written_back_bytes),
        ],
    );
    section("Keyspace", &[("keys", store.len()), ("keys_max", store.keys_max())]);
    text
}
