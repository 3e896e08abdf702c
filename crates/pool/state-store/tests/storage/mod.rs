// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Storage that fails or loses its power at operation n: of what was not synchronised yet, some writes survive and
//! others do not, as the seed says.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;

#[derive(Debug)]
enum Unsynced {
    Length(u64),
    Write(u64, Vec<u8>),
}

#[derive(Debug, Default)]
struct Content {
    /// What the process sees.
    seen: Vec<u8>,
    /// What certainly survives.
    synced: Vec<u8>,
    unsynced: Vec<Unsynced>,
    countdown: Option<u64>,
}

/// The storage. Clones share the content.
#[derive(Clone, Debug, Default)]
pub struct Storage(Arc<Mutex<Content>>);

impl Storage {
    pub fn fail_after(&self, operations: Option<u64>) {
        self.lock().countdown = operations;
    }

    /// Cuts the power: each write that was not synchronised survives or does not.
    pub fn crash(&self, seed: u64) {
        let mut content = self.lock();
        content.countdown = None;
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut image = std::mem::take(&mut content.synced);
        for one in std::mem::take(&mut content.unsynced) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if random & 1 == 0 {
                continue;
            }
            match one {
                Unsynced::Length(length) => image.resize(length as usize, 0),
                Unsynced::Write(offset, bytes) => {
                    let end = offset as usize + bytes.len();
                    if image.len() < end {
                        image.resize(end, 0);
                    }
                    image[offset as usize..end].copy_from_slice(&bytes);
                }
            }
        }
        content.seen.clone_from(&image);
        content.synced = image;
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn counted(&self) -> io::Result<MutexGuard<'_, Content>> {
        let mut content = self.lock();
        match &mut content.countdown {
            Some(0) => return Err(io::Error::from_raw_os_error(5)),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(content)
    }
}

impl StorageBackend for Storage {
    fn len(&self) -> io::Result<u64> {
        Ok(self.counted()?.seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let content = self.counted()?;
        let bytes = content.seen.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut content = self.counted()?;
        content.seen.resize(length as usize, 0);
        content.unsynced.push(Unsynced::Length(length));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut content = self.counted()?;
        content.unsynced.clear();
        content.synced = content.seen.clone();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut content = self.counted()?;
        let end = offset as usize + data.len();
        if content.seen.len() < end {
            content.seen.resize(end, 0);
        }
        content.seen[offset as usize..end].copy_from_slice(data);
        content.unsynced.push(Unsynced::Write(offset, data.to_vec()));
        Ok(())
    }
}
