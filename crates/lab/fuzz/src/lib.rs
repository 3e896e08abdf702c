// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks what must hold for every decoder of untrusted bytes, whatever their source.
//!
//! `targets.rs` has one function for each decoder: it decodes, and panics if a guarantee is violated. `seeds.rs` has
//! initial inputs, `mutate.rs` changes them. `tests/decoders.rs` runs all of it in the ordinary test run, with the same
//! inputs each time; the workspace in `fuzz/` runs the same functions under a coverage-guided fuzzer.

mod c_abi;
pub mod mutate;
pub mod seeds;
pub mod targets;

/// A decoder under test.
pub struct Target {
    /// The name of its function, and of its program in `fuzz/`.
    pub name: &'static str,
    /// Decodes; panics if a guarantee is violated.
    pub body: fn(&[u8]),
    /// Initial inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Every decoder of bytes that another program has written, and the C library's arguments.
pub const TARGETS: [Target; 27] = [
    Target { name: "agent_messages", body: targets::agent_messages, seeds: seeds::agent_messages },
    Target { name: "bench_result", body: targets::bench_result, seeds: seeds::bench_result },
    Target { name: "c_abi", body: targets::c_abi, seeds: seeds::c_abi },
    Target { name: "cache_requests", body: targets::cache_requests, seeds: seeds::cache_requests },
    Target { name: "cedt", body: targets::cedt, seeds: seeds::cedt },
    Target { name: "certificate", body: targets::certificate, seeds: seeds::certificate },
    Target { name: "compressed_page", body: targets::compressed_page, seeds: seeds::compressed_page },
    Target { name: "config", body: targets::config, seeds: seeds::config },
    Target { name: "control", body: targets::control, seeds: seeds::control },
    Target { name: "cxl_switch", body: targets::cxl_switch, seeds: seeds::cxl_switch },
    Target { name: "driven_switch", body: targets::driven_switch, seeds: seeds::driven_switch },
    Target { name: "elf", body: targets::elf, seeds: seeds::elf },
    Target { name: "etcd_answer", body: targets::etcd_answer, seeds: seeds::etcd_answer },
    Target { name: "fabric_body", body: targets::fabric_body, seeds: seeds::fabric_body },
    Target { name: "fabric_config", body: targets::fabric_config, seeds: seeds::fabric_config },
    Target { name: "fabric_request", body: targets::fabric_request, seeds: seeds::fabric_request },
    Target { name: "fmapi", body: targets::fmapi, seeds: seeds::fmapi },
    Target { name: "hotness", body: targets::hotness, seeds: seeds::hotness },
    Target { name: "join_token", body: targets::join_token, seeds: seeds::join_token },
    Target { name: "named", body: targets::named, seeds: seeds::named },
    Target { name: "profile", body: targets::profile, seeds: seeds::profile },
    Target { name: "recording", body: targets::recording, seeds: seeds::recording },
    Target { name: "size", body: targets::size, seeds: seeds::size },
    Target { name: "stats_segment", body: targets::stats_segment, seeds: seeds::stats_segment },
    Target { name: "tenants", body: targets::tenants, seeds: seeds::tenants },
    Target { name: "tier_spec", body: targets::tier_spec, seeds: seeds::tier_spec },
    Target { name: "wire", body: targets::wire, seeds: seeds::wire },
];
