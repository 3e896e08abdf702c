// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Carries out a batch of requests of one client, in their order, as one context.
//!
//! The fetches of everything that the batch will read are started before its first request is carried out, so that they
//! overlap. Nothing is borrowed while a context waits. A request takes effect between two waits, so requests of
//! different clients are atomic, as in Redis; only `MSET` can end in the middle, when a tier fails.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use aquifer::{Error, Fetch};

use crate::command::{Command, CommandFailure, Condition, Expiry, parse};
use crate::index::{Found, NEVER_MS};
use crate::net::{Batch, ConnectionIndex, OUTPUT_BYTES_HIGH};
use crate::reply;
use crate::request::integer;
use crate::server::{ServerFailure, Shared};
use crate::store::StoreFailure;

/// Fetches that one context starts at a time.
const FETCHES_MAX: usize = 128;
/// How often a value is fetched again if it was evicted before it could be read. Then the read itself waits.
const TRIES_MAX: usize = 3;

/// Serves one batch. The connection is busy until this ends.
pub async fn serve(shared: &Shared, index: ConnectionIndex, batch: Batch) {
    let now_ms = shared.now_ms();
    let words = |ranges: &Vec<std::ops::Range<usize>>| {
        let words: Vec<&[u8]> = ranges.iter().map(|range| &batch.bytes[range.clone()]).collect();
        parse(&words, now_ms)
    };
    let commands: Vec<_> = batch.requests.iter().map(words).collect();
    fetch_all(shared, commands.iter().flatten().flat_map(keys_read)).await;
    let (mut out, mut done, mut is_last) = (Vec::new(), 0, false);
    for command in &commands {
        if is_last || out.len() >= OUTPUT_BYTES_HIGH {
            break;
        }
        done += 1;
        match command {
            Ok(command) => {
                is_last = *command == Command::Quit;
                if let Err(failure) = carry_out(shared, command, &mut out).await {
                    fail(shared, &failure, &mut out);
                }
            }
            Err(failure) => {
                is_last = *failure == CommandFailure::Http;
                reply::error(&mut out, failure);
            }
        }
    }
    shared.figures.borrow_mut().commands += done as u64;
    let undone = batch.starts.get(done).map_or(&[][..], |start| &batch.bytes[*start..]);
    if let (Some(failure), true, false) = (batch.failure, undone.is_empty(), is_last) {
        reply::error(&mut out, failure);
        is_last = true;
    }
    shared.net.borrow_mut().reply(index, &out, undone, is_last);
}

/// Returns the keys whose values a command reads.
fn keys_read<'c>(command: &'c Command<'c>) -> &'c [&'c [u8]] {
    match command {
        Command::Get(key) | Command::Add { key, .. } | Command::Set { key, returns_old: true, .. } => {
            std::slice::from_ref(key)
        }
        Command::MGet(keys) => keys,
        _ => &[],
    }
}

/// Starts the fetches of values that are not resident, and waits for them. What fails here fails again when the value
/// is read.
async fn fetch_all<'k>(shared: &Shared, keys: impl Iterator<Item = &'k &'k [u8]>) {
    let mut fetches: Vec<Fetch> = Vec::new();
    {
        let (mut store, now_ms) = (shared.store.borrow_mut(), shared.now_ms());
        // Also for commands that read nothing.
        store.note_time(now_ms);
        for key in keys {
            let found = store.find(key, now_ms);
            if let Some(found) = found.filter(|found| !store.is_ready(found.place)) {
                shared.figures.borrow_mut().far_reads += 1;
                fetches.extend(store.fetches(found.place));
            }
            if fetches.len() >= FETCHES_MAX {
                break;
            }
        }
    }
    let mut ended = vec![false; fetches.len()];
    // A future must not be polled again after it has ended.
    poll_fn(|context| {
        for (fetch, has_ended) in fetches.iter_mut().zip(&mut ended) {
            *has_ended = Pin::new(fetch).poll(context).is_ready();
        }
        Poll::Ready(())
    })
    .await;
    for (fetch, has_ended) in fetches.iter_mut().zip(ended) {
        if !has_ended {
            let _ = fetch.await;
        }
    }
}

/// Waits until the value of a key, if there is one, can be read without waiting.
async fn bring(shared: &Shared, key: &[u8]) -> Result<(), StoreFailure> {
    for _ in 0..TRIES_MAX {
        let fetches = {
            let mut store = shared.store.borrow_mut();
            match store.find(key, shared.now_ms()) {
                Some(Found { place, .. }) if !store.is_ready(place) => store.fetches(place),
                _ => return Ok(()),
            }
        };
        for fetch in fetches {
            match fetch.await {
                // The read makes room.
                Ok(()) | Err(Error::NoRoom) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

fn fail(shared: &Shared, failure: &StoreFailure, out: &mut Vec<u8>) {
    reply::error(out, failure);
    match failure {
        StoreFailure::Ended(why) => *shared.end.borrow_mut() = Some(ServerFailure::Ended(why.clone())),
        StoreFailure::Lost | StoreFailure::NoRoom => shared.figures.borrow_mut().tier_errors += 1,
        StoreFailure::Refused(_) => {}
    }
}

/// Carries out one command. Nothing is added to `out` before a failure.
async fn carry_out(shared: &Shared, command: &Command<'_>, out: &mut Vec<u8>) -> Result<(), StoreFailure> {
    let now_ms = shared.now_ms();
    match command {
        Command::Get(_) | Command::MGet(_) | Command::Set { .. } | Command::Add { .. } => {
            return with_values(shared, command, out).await;
        }
        Command::Del(keys) => {
            let mut store = shared.store.borrow_mut();
            reply::integer(out, keys.iter().filter(|key| store.remove(key, now_ms)).count() as i64);
        }
        Command::Exists(keys) => {
            let mut store = shared.store.borrow_mut();
            reply::integer(out, keys.iter().filter(|key| store.find(key, now_ms).is_some()).count() as i64);
        }
        Command::MSet(pairs) => {
            let mut store = shared.store.borrow_mut();
            pairs.iter().try_for_each(|(key, value)| store.set(key, value, NEVER_MS))?;
            reply::status(out, "OK");
        }
        Command::Expire { key, at_ms } => {
            let mut store = shared.store.borrow_mut();
            let is_set = match *at_ms <= now_ms {
                true => store.remove(key, now_ms),
                false => store.set_expiry(key, *at_ms, now_ms),
            };
            reply::integer(out, i64::from(is_set));
        }
        Command::Persist(key) => {
            let mut store = shared.store.borrow_mut();
            let expires = store.find(key, now_ms).is_some_and(|found| found.expires_ms != NEVER_MS);
            reply::integer(out, i64::from(expires && store.set_expiry(key, NEVER_MS, now_ms)));
        }
        Command::Ttl { key, unit_ms } => {
            let found = shared.store.borrow_mut().find(key, now_ms);
            reply::integer(out, found.map_or(-2, |found| time_left(&found, now_ms, *unit_ms)));
        }
        Command::Ping(None) => reply::status(out, "PONG"),
        Command::Ping(Some(word)) | Command::Echo(word) => reply::bulk(out, word),
        Command::Info => reply::bulk(out, shared.info().as_bytes()),
        Command::DbSize => reply::integer(out, shared.store.borrow().len() as i64),
        Command::Flush => {
            shared.store.borrow_mut().clear()?;
            reply::status(out, "OK");
        }
        Command::Commands | Command::Settings => reply::array(out, 0),
        Command::Agree | Command::Quit => reply::status(out, "OK"),
    }
    Ok(())
}

/// Carries out a command that reads or stores values.
async fn with_values(shared: &Shared, command: &Command<'_>, out: &mut Vec<u8>) -> Result<(), StoreFailure> {
    match command {
        Command::Get(key) => {
            bring(shared, key).await?;
            get(shared, key, out)
        }
        Command::MGet(keys) => {
            for part in keys.chunks(FETCHES_MAX) {
                fetch_all(shared, part.iter()).await;
            }
            reply_all(shared, keys, out)
        }
        Command::Add { key, by } => {
            bring(shared, key).await?;
            add(shared, key, *by, out)
        }
        Command::Set { key, returns_old, .. } => {
            if *returns_old {
                bring(shared, key).await?;
            }
            set(shared, command, out)
        }
        _ => Ok(()),
    }
}

/// Adds the reply with a value to `out`.
fn get(shared: &Shared, key: &[u8], out: &mut Vec<u8>) -> Result<(), StoreFailure> {
    let (mut store, mut figures) = (shared.store.borrow_mut(), shared.figures.borrow_mut());
    match store.value(key, shared.now_ms())? {
        Some(value) => {
            figures.hits += 1;
            reply::bulk(out, value);
        }
        None => {
            figures.misses += 1;
            reply::nothing(out);
        }
    }
    Ok(())
}

fn reply_all(shared: &Shared, keys: &[&[u8]], out: &mut Vec<u8>) -> Result<(), StoreFailure> {
    let now_ms = shared.now_ms();
    let found = |key: &&[u8]| shared.store.borrow_mut().find(key, now_ms).map_or(0, |found| found.place.bytes as usize);
    let bytes: usize = keys.iter().map(|key| found(key) + reply::BULK_FRAME_BYTES_MAX).sum();
    if bytes > reply::REPLY_BYTES_MAX {
        let bytes_max = reply::REPLY_BYTES_MAX;
        return Err(StoreFailure::Refused(format!(
            "the reply has more than {bytes_max} bytes; get fewer keys at a time"
        )));
    }
    let mut replies = Vec::with_capacity(bytes);
    reply::array(&mut replies, keys.len());
    keys.iter().try_for_each(|key| get(shared, key, &mut replies))?;
    out.append(&mut replies);
    Ok(())
}

fn add(shared: &Shared, key: &[u8], by: i64, out: &mut Vec<u8>) -> Result<(), StoreFailure> {
    let (mut store, now_ms) = (shared.store.borrow_mut(), shared.now_ms());
    let expires_ms = store.find(key, now_ms).map_or(NEVER_MS, |found| found.expires_ms);
    let before = store.value(key, now_ms)?.map_or(Some(0), integer);
    match before.map(|before| before.checked_add(by)) {
        None => reply::error(out, CommandFailure::NotInteger),
        Some(None) => reply::error(out, "ERR increment or decrement would overflow"),
        Some(Some(sum)) => {
            store.set(key, sum.to_string().as_bytes(), expires_ms)?;
            reply::integer(out, sum);
        }
    }
    Ok(())
}

fn set(shared: &Shared, command: &Command<'_>, out: &mut Vec<u8>) -> Result<(), StoreFailure> {
    let Command::Set { key, value, expiry, condition, returns_old } = command else { return Ok(()) };
    let (mut store, now_ms) = (shared.store.borrow_mut(), shared.now_ms());
    let mut before = Vec::new();
    if *returns_old {
        match store.value(key, now_ms)? {
            Some(value) => reply::bulk(&mut before, value),
            None => reply::nothing(&mut before),
        }
    }
    let found = store.find(key, now_ms);
    let is_stored = match condition {
        Condition::Always => true,
        Condition::Exists => found.is_some(),
        Condition::Missing => found.is_none(),
    };
    if is_stored {
        let expires_ms = match expiry {
            Expiry::At(at_ms) => *at_ms,
            Expiry::Keep => found.map_or(NEVER_MS, |found| found.expires_ms),
            Expiry::Never => NEVER_MS,
        };
        store.set(key, value, expires_ms)?;
    }
    match (*returns_old, is_stored) {
        (true, _) => out.append(&mut before),
        (false, true) => reply::status(out, "OK"),
        (false, false) => reply::nothing(out),
    }
    Ok(())
}

/// Returns how long a key will live, in the units of the reply, rounded as Redis does; -1 means forever.
fn time_left(found: &Found, now_ms: u64, unit_ms: u64) -> i64 {
    match found.expires_ms {
        NEVER_MS => -1,
        at_ms => ((at_ms.saturating_sub(now_ms) + unit_ms / 2) / unit_ms) as i64,
    }
}
