// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What programs send to their host's agent, and what it sends to them.

use std::fmt::Debug;

use aquifer_agent_wire::{Answer, Decoder, Request, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::one_line;

/// Frames on the agent's socket, in either direction. They are the same messages when they arrive in parts, and when
/// they are written again.
pub fn agent_messages(bytes: &[u8]) {
    decode::<Request>(bytes);
    decode::<Answer>(bytes);
}

fn decode<M: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) {
    let (mut whole, mut in_parts) = (Decoder::default(), Decoder::default());
    whole.push(bytes);
    let (first, second) = bytes.split_at(bytes.len() / 2);
    in_parts.push(first);
    let early = in_parts.take::<M>();
    in_parts.push(second);
    let mut early = Some(early).filter(|early| !matches!(early, Ok(None)));
    loop {
        let message = whole.take::<M>();
        let in_parts = early.take().unwrap_or_else(|| in_parts.take::<M>());
        assert_eq!(message, in_parts);
        match message {
            Ok(Some(message)) => {
                let mut again = Decoder::default();
                again.push(&encode(&message).expect("what was read can be written"));
                assert_eq!(again.take::<M>(), Ok(Some(message)));
            }
            Ok(None) => return,
            Err(failure) => return one_line(&failure.to_string()),
        }
    }
}
