// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the writer shares with requests: what they post, what they get, and what they read.

use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use aquifer_fabric::VolumeId;
use aquifer_telemetry::Telemetry;

use crate::audit_checks::AuditChecks;
use crate::events::Events;
use crate::manager_store::{ManagerStore, ManagerStoreFailure};
use crate::meters::Meters;
use crate::order::{NotDone, Order};
use crate::snapshot::Snapshot;
use crate::subscriptions::Subscriptions;

/// What runs with the store.
pub(crate) type Errand = Box<dyn FnOnce(&mut ManagerStore) -> Result<(), ManagerStoreFailure> + Send>;
/// What takes the answer to an order.
pub(super) type Answer = Box<dyn FnOnce(Result<Done, NotDone>) + Send>;

/// A request to the writer.
pub(crate) enum Posted {
    /// What needs the store and not the pool: accounts, sessions, the audit log. An error is the store's; one that is
    /// not a refusal ends the writer.
    Errand(Errand),
    /// An order, with the function that takes the answer.
    Order(Order, Answer),
}

/// What became of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Changes to pools, zones and volumes.
    pub(crate) changes: Vec<String>,
    /// Steps that become due.
    pub(crate) steps: Vec<String>,
    /// The same steps, with the names of volumes instead of their ids.
    pub(crate) named_steps: Vec<String>,
    /// What could not be adopted, zones that are above their quotas after an adoption, and what it has lost.
    pub(crate) remarks: Vec<String>,
    /// The version of the desired state after it.
    pub(crate) version: u64,
    pub(crate) task: Option<u64>,
    /// The volumes that it has changed.
    pub(crate) volumes: Vec<VolumeId>,
}

/// What the writer shares with requests.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) snapshot: RwLock<Arc<Snapshot>>,
    pub(crate) events: Events,
    pub(crate) audit: AuditChecks,
    pub(crate) meters: Arc<Meters>,
    pub(crate) telemetry: Telemetry,
    subscriptions: Mutex<Subscriptions>,
}

impl Shared {
    /// Creates the shared state with nothing in it yet. Operations are recorded by `telemetry`.
    pub(crate) fn recorded_by(telemetry: Telemetry) -> Shared {
        Shared { telemetry, ..Shared::default() }
    }

    /// Locks the subscriptions to events: for one look-up, never during a wait for the store or a listener.
    pub(crate) fn subscriptions(&self) -> MutexGuard<'_, Subscriptions> {
        self.subscriptions.lock().expect("a panic ends the daemon")
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().expect("a panic ends the daemon"))
    }
}
