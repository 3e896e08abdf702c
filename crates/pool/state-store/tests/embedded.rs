// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The embedded store keeps the contract when any of its operations fails and when the power is cut at any of them; and
//! it refuses files that it cannot read.

mod storage;

use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;

use aquifer_state_store::conformance::{Rig, check};
use aquifer_state_store::{EmbeddedStore, Key, StateStore, StoreFailure, Transaction};
use redb::{Database, TableDefinition};

use storage::Storage;

struct OnStorage {
    storage: Storage,
    seed: u64,
    /// Whether the store was made: an unfinished file never gets its name.
    is_made: bool,
}

impl Rig for OnStorage {
    fn make(&mut self, failing: Option<u64>) -> Option<Box<dyn StateStore>> {
        self.storage = Storage::default();
        self.storage.fail_after(failing);
        let made = EmbeddedStore::open_storage(self.storage.clone()).ok();
        self.is_made = made.is_some();
        made.map(|store| Box::new(store) as Box<dyn StateStore>)
    }

    fn reopen(&mut self) -> Box<dyn StateStore> {
        self.seed += 1;
        self.storage.crash(self.seed);
        if !self.is_made {
            self.storage = Storage::default();
        }
        Box::new(EmbeddedStore::open_storage(self.storage.clone()).expect("it opens after any crash"))
    }
}

#[test]
fn the_embedded_store_keeps_the_contract_whatever_crashes() {
    check(&mut OnStorage { storage: Storage::default(), seed: 1, is_made: false });
}

fn directory(name: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
}

struct InFile {
    directory: PathBuf,
    made: u64,
}

impl InFile {
    fn path(&self) -> PathBuf {
        self.directory.join(format!("{}.redb", self.made))
    }
}

impl Rig for InFile {
    fn make(&mut self, _: Option<u64>) -> Option<Box<dyn StateStore>> {
        self.made += 1;
        Some(Box::new(EmbeddedStore::open(&self.path()).expect("opened")))
    }

    fn reopen(&mut self) -> Box<dyn StateStore> {
        Box::new(EmbeddedStore::open(&self.path()).expect("opened"))
    }
}

#[test]
fn a_file_keeps_what_was_committed_and_has_one_user() {
    let directory = directory("state-store");
    // Nothing fails here, so the last part ends at once.
    check(&mut InFile { directory: directory.clone(), made: 0 });
    let path = directory.join("one.redb");
    let mut store = EmbeddedStore::open(&path).expect("opened");
    store.commit(&Transaction::new().put(Key::new("a").expect("a key"), vec![1])).expect("committed");
    let second = EmbeddedStore::open(&path).expect_err("another process may have it");
    assert!(matches!(second, StoreFailure::InUse { .. }) && second.to_string().contains("stop that"), "{second}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).expect("a file").permissions());
    assert_eq!(mode & 0o777, 0o600, "nobody else may read it");
    std::fs::remove_dir_all(directory).expect("removed");
}

/// Two fabric managers that started at the same moment in an empty directory wrote one unfinished file, or the second
/// replaced the state of the first.
#[test]
fn of_stores_that_are_made_at_the_same_moment_one_is_opened() {
    let directory = directory("state-same-moment");
    let (key, users) = (Key::new("a").expect("a key"), 4);
    for round in 0..20 {
        let path = directory.join(format!("{round}.redb"));
        let start = Barrier::new(users);
        let opened: Vec<_> = thread::scope(|scope| {
            let open = || (start.wait(), EmbeddedStore::open(&path)).1;
            let all: Vec<_> = (0..users).map(|_| scope.spawn(open)).collect();
            all.into_iter().map(|one| one.join().expect("no panic")).collect()
        });
        let mut stores = Vec::new();
        for one in opened {
            match one {
                Ok(store) => stores.push(store),
                Err(failure) => assert!(failure.to_string().contains("stop that fabric manager"), "{failure}"),
            }
        }
        assert_eq!(stores.len(), 1, "round {round}");
        stores[0].commit(&Transaction::new().put(key.clone(), vec![1])).expect("committed");
        drop(stores);
        let again = EmbeddedStore::open(&path).expect("its user has ended");
        assert!(again.read(&key).expect("read").is_some(), "round {round}");
    }
    std::fs::remove_dir_all(directory).expect("removed");
}

#[test]
fn a_file_of_another_format_is_refused_with_the_remedy() {
    let directory = directory("state-format");
    let path = directory.join("state.redb");
    let database = Database::create(&path).expect("created");
    let write = database.begin_write().expect("begun");
    write.open_table(TableDefinition::<&str, u64>::new("numbers")).expect("opened").insert("format", 2).expect("put");
    write.commit().expect("committed");
    drop(database);
    let failure = EmbeddedStore::open(&path).expect_err("another format");
    assert_eq!(
        failure.to_string(),
        "the state has format 2, this program reads format 1; start the version that wrote it"
    );
    std::fs::remove_dir_all(directory).expect("removed");
}

#[test]
fn a_file_that_was_cut_short_or_is_no_store_is_refused() {
    let directory = directory("state-damaged");
    let path = directory.join("state.redb");
    std::fs::write(&path, "{\"format\": 1}").expect("written");
    let failure = EmbeddedStore::open(&path).expect_err("no store").to_string();
    assert!(failure.contains("state file") && failure.contains("; "), "{failure}");
    std::fs::remove_file(&path).expect("removed");
    let mut store = EmbeddedStore::open(&path).expect("opened");
    store.commit(&Transaction::new().put(Key::new("a").expect("a key"), vec![1; 100_000])).expect("committed");
    drop(store);
    let whole = std::fs::read(&path).expect("read");
    for part in [100, 5000, whole.len() / 2] {
        std::fs::write(&path, &whole[..part]).expect("written");
        // redb asserts on some damage instead of reporting it; either way nothing is read as state.
        let opened = std::panic::catch_unwind(|| EmbeddedStore::open(&path).map(|store| store.scan_all("")));
        let is_refused = !matches!(opened, Ok(Ok(Ok(found))) if !found.is_empty());
        assert!(is_refused, "{part} bytes of {} are read as a state", whole.len());
    }
    std::fs::remove_dir_all(directory).expect("removed");
}
