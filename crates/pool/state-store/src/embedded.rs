// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The embedded store: one file, kept by redb.
//!
//! | table | key | value |
//! |---|---|---|
//! | `entries` | a key | the version and the value |
//! | `numbers` | `commits` | the number of the last commit |
//! | `numbers` | `format` | [`FORMAT`] |
//!
//! A commit returns after redb has synchronised the file. After a crash, redb opens the last commit that was complete.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::ops::Bound;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use redb::{
    CommitError, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, StorageError,
    TableDefinition, TableError, TransactionError,
};

use crate::failure::{NotCommitted, StoreFailure};
use crate::key::Key;
use crate::store::{Entry, SCAN_MAX, StateStore, Transaction, Write, holds};

/// The version of the layout above. A file with another version is refused.
pub const FORMAT: u32 = 1;

const ENTRIES: TableDefinition<'_, &str, (u64, &[u8])> = TableDefinition::new("entries");
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
/// What redb may keep of the file in memory; the state of a large pool has some MiB.
const CACHE_BYTES_MAX: usize = 16 << 20;

/// A store in one file.
#[derive(Debug)]
pub struct EmbeddedStore {
    database: Database,
    /// Excludes other processes while it is open. `None`: the caller's storage does.
    _lock: Option<File>,
    /// Set by the first failure of a write.
    is_latched: bool,
}

impl EmbeddedStore {
    /// Opens the file, or makes an empty one that only its owner can read. A new file gets its name when it is
    /// complete: an unfinished one that a crash has left is replaced.
    ///
    /// A lock on a file beside it, which stays there, is taken first: the lock of redb comes too late for two processes
    /// that make the file at the same time.
    pub fn open(path: &Path) -> Result<EmbeddedStore, StoreFailure> {
        let lock = locked(path)?;
        if !path.try_exists().map_err(|error| io_failure("opened", error))? {
            let unfinished = path.with_extension("unfinished");
            let made =
                OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(&unfinished);
            let file: File = made.map_err(|error| io_failure("made", error))?;
            drop(EmbeddedStore::with(builder().create_file(file).map_err(|error| not_opened(error, path))?, None)?);
            std::fs::rename(&unfinished, path).map_err(|error| io_failure("made", error))?;
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(directory)
                .and_then(|directory| directory.sync_all())
                .map_err(|error| io_failure("made", error))?;
        }
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|error| io_failure("opened", error))?;
        let length = file.metadata().map_err(|error| io_failure("opened", error))?.len();
        if length == 0 {
            return Err(StoreFailure::Damaged { what: "it is empty".into() });
        }
        EmbeddedStore::with(builder().create_file(file).map_err(|error| not_opened(error, path))?, Some(lock))
    }

    /// Opens a store on storage that the caller provides.
    pub fn open_storage(storage: impl StorageBackend) -> Result<EmbeddedStore, StoreFailure> {
        let database =
            builder().create_with_backend(storage).map_err(|error| not_opened(error, Path::new("storage")))?;
        EmbeddedStore::with(database, None)
    }

    /// Checks the format, or records it in an empty file.
    fn with(database: Database, lock: Option<File>) -> Result<EmbeddedStore, StoreFailure> {
        let found = match database.begin_read().map_err(not_begun)?.open_table(NUMBERS) {
            Ok(numbers) => numbers.get("format").map_err(not_read)?.map(|found| found.value()),
            Err(TableError::TableDoesNotExist(_)) => None,
            Err(error) => return Err(not_a_table(error)),
        };
        match found {
            Some(found) if found == u64::from(FORMAT) => {}
            Some(found) => {
                let found = u32::try_from(found).unwrap_or(u32::MAX);
                return Err(StoreFailure::Format { found, known: FORMAT });
            }
            None => {
                let write = database.begin_write().map_err(not_begun)?;
                {
                    let mut numbers = write.open_table(NUMBERS).map_err(not_a_table)?;
                    numbers.insert("format", u64::from(FORMAT)).map_err(not_read)?;
                    numbers.insert("commits", 0).map_err(not_read)?;
                    write.open_table(ENTRIES).map_err(not_a_table)?;
                }
                write.commit().map_err(|error| io_failure("written", error))?;
            }
        }
        Ok(EmbeddedStore { database, _lock: lock, is_latched: false })
    }

    fn check_latch(&self) -> Result<(), StoreFailure> {
        if self.is_latched { Err(StoreFailure::Latched) } else { Ok(()) }
    }

    /// Does everything that a commit takes before redb's own. Stores nothing if it fails.
    fn prepare(&self, transaction: &Transaction) -> Result<(redb::WriteTransaction, u64), NotCommitted> {
        let failed = NotCommitted::Failed;
        let write = self.database.begin_write().map_err(|error| failed(not_begun(error)))?;
        let version;
        {
            let mut entries = write.open_table(ENTRIES).map_err(|error| failed(not_a_table(error)))?;
            for (key, expectation) in &transaction.expectations {
                let found = entries.get(key.as_str()).map_err(|error| failed(not_read(error)))?;
                if !holds(*expectation, found.map(|found| found.value().0)) {
                    return Err(NotCommitted::Conflict { key: key.clone() });
                }
            }
            let mut numbers = write.open_table(NUMBERS).map_err(|error| failed(not_a_table(error)))?;
            let last = numbers.get("commits").map_err(|error| failed(not_read(error)))?;
            version = last.map_or(0, |last| last.value()) + 1;
            numbers.insert("commits", version).map_err(|error| failed(not_read(error)))?;
            for one in &transaction.writes {
                let written = match one {
                    Write::Delete(key) => entries.remove(key.as_str()).map(drop),
                    Write::Put(key, value) => entries.insert(key.as_str(), (version, &**value)).map(drop),
                };
                written.map_err(|error| failed(not_read(error)))?;
            }
        }
        Ok((write, version))
    }
}

impl StateStore for EmbeddedStore {
    fn read(&self, key: &Key) -> Result<Option<Entry>, StoreFailure> {
        self.check_latch()?;
        let entries = self.database.begin_read().map_err(not_begun)?.open_table(ENTRIES).map_err(not_a_table)?;
        let found = entries.get(key.as_str()).map_err(not_read)?;
        Ok(found.map(|found| entry(found.value())))
    }

    fn scan(&self, prefix: &str, after: Option<&Key>) -> Result<Vec<(Key, Entry)>, StoreFailure> {
        self.check_latch()?;
        let entries = self.database.begin_read().map_err(not_begun)?.open_table(ENTRIES).map_err(not_a_table)?;
        let start = match after {
            Some(after) if after.as_str() >= prefix => Bound::Excluded(after.as_str()),
            _ => Bound::Included(prefix),
        };
        let mut found = Vec::new();
        for one in entries.range::<&str>((start, Bound::Unbounded)).map_err(not_read)? {
            let (key, value) = one.map_err(not_read)?;
            if !key.value().starts_with(prefix) || found.len() == SCAN_MAX {
                break;
            }
            let key = Key::new(key.value()).map_err(|not| StoreFailure::Damaged { what: not.to_string() })?;
            found.push((key, entry(value.value())));
        }
        Ok(found)
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<u64, NotCommitted> {
        self.check_latch().map_err(NotCommitted::Failed)?;
        transaction.check()?;
        let (write, version) = self.prepare(transaction).inspect_err(|not| {
            self.is_latched = matches!(not, NotCommitted::Failed(_));
        })?;
        write.commit().map_err(|error: CommitError| {
            self.is_latched = true;
            NotCommitted::Unknown(io_failure("written", error))
        })?;
        Ok(version)
    }
}

fn entry((version, value): (u64, &[u8])) -> Entry {
    Entry { version, value: value.to_vec() }
}

/// Locks the file beside the store for this process.
fn locked(path: &Path) -> Result<File, StoreFailure> {
    let lock =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path.with_extension("lock"));
    let lock = lock.map_err(|error| io_failure("locked", error))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(StoreFailure::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(io_failure("locked", error)),
    }
}

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES_MAX);
    builder
}

fn not_opened(error: DatabaseError, path: &Path) -> StoreFailure {
    match error {
        DatabaseError::DatabaseAlreadyOpen => StoreFailure::InUse { path: path.to_owned() },
        DatabaseError::Storage(StorageError::Corrupted(what)) => StoreFailure::Damaged { what },
        DatabaseError::Storage(StorageError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
            StoreFailure::Damaged { what: error.to_string() }
        }
        DatabaseError::UpgradeRequired(_) | DatabaseError::RepairAborted => {
            StoreFailure::Damaged { what: error.to_string() }
        }
        error => io_failure("opened", error),
    }
}

fn not_begun(error: TransactionError) -> StoreFailure {
    match error {
        TransactionError::Storage(error) => not_read(error),
        error => io_failure("read", error),
    }
}

fn not_a_table(error: TableError) -> StoreFailure {
    match error {
        TableError::Storage(error) => not_read(error),
        error => StoreFailure::Damaged { what: error.to_string() },
    }
}

fn not_read(error: StorageError) -> StoreFailure {
    match error {
        StorageError::Corrupted(what) => StoreFailure::Damaged { what },
        error => io_failure("read", error),
    }
}

fn io_failure(what: &'static str, error: impl std::error::Error + Send + Sync + 'static) -> StoreFailure {
    StoreFailure::Io { what, source: Box::new(error) }
}
