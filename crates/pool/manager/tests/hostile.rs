// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Bodies and configurations from strangers: whatever the bytes are, they are decoded or refused, and nothing panics.
//! The same inputs each time; `AQUIFER_HOSTILE_ROUNDS=N` tries more.

use aquifer_manager::{Config, reference, take_body};

const BODIES: [&str; 4] = [
    r#"{"Name": "v", "MemoryChunkSizeMiB": 2, "Oem": {"Aquifer": {"zone": "lab", "class": "tcp"}}}"#,
    r#"{"Declaration": {"pools": {"main": {"donors": ["d0"]}}, "zones": {"lab": {"quota": "1GiB"}}}}"#,
    r#"{"pools": {"main": {"overcommit_percent": 20}}, "draining": ["d1"]}"#,
    r#"{"UserName": "a", "Password": "b"}"#,
];

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// Changes, drops, doubles or moves some bytes.
fn mutated(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(4) {
        let (at, length) = (random.below(bytes.len()), random.below(16));
        let end = (at + length).min(bytes.len());
        match random.below(4) {
            0 if !bytes.is_empty() => bytes[at] = random.below(256) as u8,
            1 => drop(bytes.drain(at..end)),
            2 => {
                let part = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, part);
            }
            _ => bytes.truncate(end),
        }
    }
    bytes
}

/// Checks that a refusal is one line, and that an accepted configuration is the same after it was written and read
/// again.
fn take_config(text: &str) {
    match Config::parse(text) {
        Ok(config) => assert_eq!(Config::parse(&config.to_toml()), Ok(config)),
        Err(not) => assert!(!not.to_string().contains(['\n', '\r']), "{not}"),
    }
}

#[test]
fn extreme_settings_are_written_as_they_are_read() {
    take_config("\"a\\r\\nb\" = 1");
    for number in ["0", "9223372036854775807", "9223372036854775808", "18446744073709551615", "-1", "1e3"] {
        let peers = format!("kind = \"simulated\"\nkill-at-effect = {number}\n");
        take_config(&format!("state = \"\\u0000\\n\\\"\"\nlisten = \"[::1]:0\"\n[peers]\n{peers}"));
    }
}

#[test]
fn whatever_arrives_is_decoded_or_refused() {
    let rounds = std::env::var("AQUIFER_HOSTILE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(2000);
    let mut random = Random(1);
    for seed in BODIES {
        take_body(seed.as_bytes());
        (0..rounds).for_each(|_| take_body(&mutated(seed.as_bytes(), &mut random)));
    }
    for _ in 0..rounds {
        let text = String::from_utf8_lossy(&mutated(reference().as_bytes(), &mut random)).into_owned();
        take_config(&text);
    }
}
