// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Carries out a borrower's request: the lease table decides, the memory is accessed, and the counters count.
//!
//! No thread holds the table's lock while it accesses memory or waits for a peer: an access is begun, carried out, and
//! ended. A request gets here only when all of its body has arrived and was checked, so a slow or broken peer holds no
//! slab and changes no byte.
//!
//! Threads: any connection's, and the keeper, which ends leases when they expire and wipes their slabs (`wiper.rs`).
//!
//! Next on the path: `leases.rs`, whether the lease and its token are valid; `memory.rs`, the bytes.

use std::fmt::Arguments;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use aquifer_wire::{BorrowerId, DonorStatus, EVERY_LEASE, Figure, Message, RangeIndex, Refusal, SLAB_BYTES};

use crate::audit::Audit;
use crate::body_budget::BodyBudget;
use crate::body_buffer;
use crate::counters::{Counters, Log, Peer};
use crate::leases::{Access, Claim, LeaseTable, TenantQuota};
use crate::lent_files::LentFiles;
use crate::memory::Slabs;
use crate::one_sided::OneSided;
use crate::settings::{Settings, StartFailure};
use crate::tenants::{Tenant, TenantLimits, Tenants};
use crate::wiper::Demand;

mod reclaim;
mod visit;
mod windows;

pub(crate) use self::visit::Visit;

/// The maximum number of revoked leases that a borrower is notified of before one answer: a faulting thread waits for
/// that answer, and these are a few packets. The rest comes with the next answers.
pub(crate) const NOTICES_AT_ONCE: usize = 64;
/// The same before the answer to a renewal, which no faulting thread waits for: notices for 32 GiB of leases, which
/// take a second at most.
pub(crate) const NOTICES_AT_RENEWAL: usize = 16 << 10;

/// The number of random bits of a run's first token: processes of a borrower that do not know yet of a restart have
/// tokens of the run before, which must not be valid in the new one. Borrowers keep 39 bits of a token, so this leaves
/// enough for a million grants a second for four days.
const FIRST_TOKEN_BITS: u32 = 37;

pub(crate) struct Service {
    table: Mutex<LeaseTable>,
    /// Signalled when leases may end earlier than the keeper knows, and when there is something to wipe.
    pub(crate) keeper: Condvar,
    /// What the wiper adapts to (`wiper.rs`).
    pub(crate) demand: Demand,
    /// The wiper takes 1/`wipe_parts` of a CPU.
    pub(crate) wipe_parts: u32,
    /// The number of orders to reclaim memory. A connection that notified its borrower before the last order has more
    /// notices to send.
    orders: AtomicU64,
    /// What borrowers reach without the donor. Declared before the memory that it refers to, so that it is dropped
    /// first.
    one_sided: Option<OneSided>,
    pub(crate) slabs: Slabs,
    tenants: Tenants,
    audit: Option<Audit>,
    /// The keys of `own_name`'s hash.
    names: RandomState,
    pub(crate) counters: Counters,
    /// `true` if fabric managers reserve memory: then a small number in place of a tree is a reservation's token.
    is_managed: bool,
    started: Instant,
    /// Random: identifies this run of the donor.
    pub(crate) instance: u64,
    lease_ms: u64,
}

impl Service {
    pub(crate) fn new(settings: &Settings, log: Log) -> Result<Service, StartFailure> {
        let slabs = settings.slabs()?;
        let lease_ms = u64::try_from(settings.lease.as_millis()).unwrap_or(u64::MAX).clamp(1, u64::from(u32::MAX));
        let random = || {
            let drawn = aquifer_sys::raw::random();
            drawn.map_err(|errno| StartFailure::System(std::io::Error::from_raw_os_error(errno.0)))
        };
        let (instance, first_token) = (random()?, random()? >> (u64::BITS - FIRST_TOKEN_BITS));
        let bodies = BodyBudget::new(settings.body_bytes_max, settings.body_bytes_max / 2);
        let open = |path: &PathBuf| Audit::open(path.clone()).map_err(|error| StartFailure::Audit(path.clone(), error));
        let audit = settings.audit.as_ref().map(open).transpose()?;
        let memory = Slabs::new(settings, slabs)?;
        let one_sided = match (&settings.rdma, memory.mapped()) {
            (Some(choice), Some(mapped)) => {
                let one_sided = OneSided::new(choice, settings.local_ip(), mapped.memory());
                Some(one_sided.map_err(StartFailure::Rdma)?)
            }
            _ => None,
        };
        let counters = Counters::new(log);
        if let Err(why) = memory.lock() {
            counters.say(&format!("lent memory may be swapped out, and copies stay in swap after it is wiped: {why}"));
        }
        Ok(Service {
            table: Mutex::new(LeaseTable::new(slabs, lease_ms).with_tokens_after(first_token)),
            keeper: Condvar::new(),
            demand: Demand::default(),
            wipe_parts: settings.wipe_parts,
            orders: AtomicU64::new(0),
            one_sided,
            slabs: memory,
            tenants: Tenants::new(settings.limits()?, bodies),
            audit,
            names: RandomState::new(),
            counters,
            is_managed: settings.managed.is_some(),
            started: Instant::now(),
            instance,
            lease_ms,
        })
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, LeaseTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).expect("584 million years of running")
    }

    pub(crate) fn lease_ms(&self) -> u32 {
        u32::try_from(self.lease_ms).expect("it was clamped")
    }

    /// How much a borrower may have at most: all of its reservation, or all that its tenant may have.
    pub(crate) fn lendable_bytes(&self, tenant: &Tenant, reservation: Option<u64>) -> u64 {
        let table = self.table();
        let slabs = match reservation.and_then(|token| table.reservation(token)) {
            Some(reservation) => reservation.slabs,
            None => table.lendable().min(tenant.limits().quota_slabs()),
        };
        u64::from(slabs) * SLAB_BYTES
    }

    /// The reservation that a borrower names. An old token, or another tenant's, gets nothing.
    pub(crate) fn reservation_of(&self, tenant: &Tenant, called: BorrowerId) -> Result<Option<u64>, Refusal> {
        let Some(token) = called.reservation().filter(|_| self.is_managed) else { return Ok(None) };
        match self.table().reservation(token) {
            Some(reservation) if reservation.is_released => Err(Refusal::NoLease),
            Some(reservation) if reservation.tenant != tenant.id => Err(Refusal::NotYours),
            Some(_) => Ok(Some(token)),
            None => Err(Refusal::NoLease),
        }
    }

    /// The tenant of this name.
    pub(crate) fn meet(&self, name: &str) -> Arc<Tenant> {
        self.tenants.meet(name, |tenant| self.table().used(tenant) > 0)
    }

    /// The budget for the buffers of bodies.
    pub(crate) fn bodies(&self) -> &BodyBudget {
        &self.tenants.bodies
    }

    pub(crate) fn set_limits(&self, limits: TenantLimits) {
        self.tenants.set_limits(limits);
    }

    /// Continues in a new file of audit lines.
    pub(crate) fn reopen_audit(&self) {
        if let Some(Err(error)) = self.audit.as_ref().map(Audit::reopen) {
            self.counters.say(&format!("no new audit file can be opened, and the previous one stays in use: {error}"));
        }
    }

    /// Writes one audit line about a tenant.
    pub(crate) fn note(&self, words: Arguments<'_>) {
        if let Some(Err(failure)) = self.audit.as_ref().map(|audit| audit.note(words)) {
            self.counters.say(&failure);
        }
    }

    /// Counts a refusal, reports it, and notes it for the audit.
    pub(crate) fn refuse(&self, tenant: Option<&Tenant>, peer: Peer, refusal: Refusal) {
        self.counters.refuse(peer, refusal);
        let reason = refusal.word();
        let noted = match (&self.audit, tenant) {
            (None, _) => Ok(()),
            (Some(audit), Some(tenant)) => {
                let (name, at) = (&tenant.name, peer.word());
                audit.note(format_args!("event=refused tenant={name} peer={at} reason={reason}"))
            }
            (Some(audit), None) => {
                audit.note_stranger(format_args!("event=refused peer={} reason={reason}", peer.word()))
            }
        };
        if let Err(failure) = noted {
            self.counters.say(&failure);
        }
    }

    /// The identity of a borrower within this donor. No two tenants get the same one, whatever number they choose. The
    /// lower half is the borrower's own; the upper half, the tree, is shared by all borrowers of the tenant that name
    /// the same tree, within one reservation if they name one.
    pub(crate) fn own_name(&self, tenant: &str, called: BorrowerId) -> BorrowerId {
        let tree = self.names.hash_one((tenant, called.family()));
        BorrowerId(u128::from(tree) << 64 | called.0 & u128::from(u64::MAX))
    }

    pub(crate) fn lent_bytes(&self) -> u64 {
        u64::from(self.table().leased()) * SLAB_BYTES
    }

    /// The bytes that borrowers still have to give back.
    pub(crate) fn draining_bytes(&self) -> u64 {
        u64::from(self.table().wanted()) * SLAB_BYTES
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.slabs.capacity_bytes()
    }

    /// Registers a borrower that has said who it is.
    pub(crate) fn enter(
        &self,
        tenant: Arc<Tenant>,
        peer: Peer,
        called: BorrowerId,
        reservation: Option<u64>,
    ) -> Result<Visit<'_>, Refusal> {
        let who = self.own_name(&tenant.name, called);
        let file = self.slabs.shared().map(|files| files.enter(who)).transpose().map_err(|error| {
            self.counters.say(&format!("a borrower cannot get a memory file: {error}; raise the limit on open files"));
            Refusal::TooManyConnections
        })?;
        if let Some(one_sided) = &self.one_sided {
            one_sided.enter(who);
        }
        Ok(Visit { service: self, tenant, peer, called, who, reservation, file })
    }

    /// Takes back the memory of whatever a borrower has stored where it has no slab. Returns whether there was any.
    pub(crate) fn takes_back(&self, who: BorrowerId) -> bool {
        self.slabs.shared().is_some_and(|files| files.take_back(who))
    }

    /// Carries out one request. `body` has the request's body, and receives the answer's.
    pub(crate) fn answer(
        &self,
        visit: &Visit<'_>,
        message: Message,
        body: &mut Vec<u8>,
        connections: usize,
    ) -> Result<Message, Refusal> {
        let who = visit.who;
        let _under_way = self.demand.request();
        match message {
            Message::Grant { range } => self.grant(visit, range),
            Message::Renew => {
                let (leases, expires_in_ms) = self.table().renew(self.now_ms(), who);
                self.note(format_args!("event=renewed {visit} slabs={leases}"));
                Ok(Message::Renewed { leases, expires_in_ms })
            }
            Message::Release { lease, token } => self.release(visit, lease, token),
            Message::Read { lease, token, offset, bytes } => {
                // A borrower that shares the memory reads it without the donor.
                let memory = self.slabs.mapped().ok_or(Refusal::UnknownKind)?;
                let access = self.begin(who, Claim { lease, token, offset, bytes })?;
                body_buffer::make_room(body, bytes as usize);
                body.resize(bytes as usize, 0);
                memory.read(&access, body);
                self.end(access);
                self.counters.add(Figure::ReadsTotal, 1);
                self.counters.add(Figure::ReadBytesTotal, bytes);
                Ok(Message::Found)
            }
            Message::Write { lease, token, offset } => {
                let memory = self.slabs.mapped().ok_or(Refusal::UnknownKind)?;
                let bytes = body.len() as u64;
                let access = self.begin(who, Claim { lease, token, offset, bytes })?;
                memory.write(&access, body);
                self.end(access);
                self.counters.add(Figure::WritesTotal, 1);
                self.counters.add(Figure::WrittenBytesTotal, bytes);
                Ok(Message::Written)
            }
            Message::Discard { lease, token, offset, bytes } => {
                let access = self.begin(who, Claim { lease, token, offset, bytes })?;
                match (&self.one_sided, self.slabs.mapped()) {
                    // Pages that the device has registered must stay.
                    (Some(_), Some(memory)) => memory.overwrite(&access, bytes),
                    _ => self.slabs.discard(&access, bytes),
                }
                self.end(access);
                self.counters.add(Figure::DiscardsTotal, 1);
                Ok(Message::Discarded)
            }
            Message::Pair { number, end } => self.pair(who, number, end),
            Message::Key { lease, token } => self.key(who, lease, token),
            Message::Status => {
                body.clear();
                body.extend_from_slice(&self.status(connections).encode());
                Ok(Message::StatusReport)
            }
            _ => Err(Refusal::UnknownKind),
        }
    }

    fn grant(&self, visit: &Visit<'_>, range: RangeIndex) -> Result<Message, Refusal> {
        let offset = range.checked_offset().ok_or(Refusal::OutsideLease)?;
        let who = visit.who;
        let (id, quota_slabs) = (visit.tenant.id, visit.tenant.limits().quota_slabs());
        let tenant = TenantQuota { id, quota_slabs, reservation: visit.reservation };
        let granted = self.grant_slab(tenant, who, range)?;
        self.keeper.notify_all();
        let (lease, token) = (granted.slab.lease(), granted.token);
        // Requests that were sent with the previous token are refused from the moment the new one is known.
        self.shut_out(|one_sided| one_sided.close_before(granted.slab, token));
        if let Some(files) = self.slabs.shared() {
            self.provide(files, visit, Claim { lease, token, offset, bytes: SLAB_BYTES })?;
        }
        self.note(format_args!("event=leased {visit} slab={lease} range={}", range.0));
        self.counters.add(Figure::GrantsTotal, 1);
        Ok(Message::Granted { lease, token, bytes: SLAB_BYTES, expires_in_ms: granted.expires_in_ms })
    }

    /// Puts a granted slab into its borrower's file. Counts as an access to the whole slab, so that it is not wiped
    /// meanwhile.
    fn provide(&self, files: &LentFiles, visit: &Visit<'_>, claim: Claim) -> Result<(), Refusal> {
        let access = self.begin(visit.who, claim)?;
        let provided = files.provide(visit.who, access.slab, claim.token);
        self.end(access);
        provided.map_err(|(had_it, error)| {
            self.counters.say(&format!("there is no memory for a slab: {error}; lend less, or free memory"));
            if !had_it {
                let _ = self.release(visit, claim.lease, claim.token);
            }
            Refusal::Full
        })
    }

    fn release(&self, visit: &Visit<'_>, lease: u64, token: u64) -> Result<Message, Refusal> {
        let who = visit.who;
        let slabs = match (lease, token) {
            (EVERY_LEASE, 0) => self.table().release_every(self.now_ms(), who),
            (EVERY_LEASE, tree) if tree == visit.called.tree() => self.table().release_tree(self.now_ms(), who.tree()),
            (EVERY_LEASE, _) => return Err(Refusal::NotYours),
            (lease, token) => {
                self.table().release(self.now_ms(), who, lease, token)?;
                1
            }
        };
        self.counters.add(Figure::ReleasesTotal, slabs);
        match lease {
            EVERY_LEASE => self.note(format_args!("event=released {visit} slabs={slabs}")),
            lease => self.note(format_args!("event=released {visit} slab={lease} slabs=1")),
        }
        self.keeper.notify_all();
        Ok(Message::Released { slabs })
    }

    fn begin(&self, who: BorrowerId, claim: Claim) -> Result<Access, Refusal> {
        self.table().begin(self.now_ms(), who, claim)
    }

    fn end(&self, access: Access) {
        // The lease may have ended during the access; then only the access kept its slab from being wiped.
        let can_be_wiped = self.table().end(access);
        if can_be_wiped {
            self.keeper.notify_all();
        }
    }

    /// Wakes the keeper to check whether it has to end.
    pub(crate) fn ring_keeper(&self) {
        // Taking the lock ensures that the keeper is either before its check, or asleep already.
        drop(self.table());
        self.keeper.notify_all();
    }

    pub(crate) fn status(&self, connections: usize) -> DonorStatus {
        let mut status = self.counters.status();
        let table = self.table();
        let endings = table.endings();
        let reservations = || table.reservations().map(|(_, one)| one).filter(|one| !one.is_released);
        for (figure, value) in [
            (Figure::CapacityBytes, self.slabs.capacity_bytes()),
            (Figure::LentBytes, u64::from(table.leased()) * SLAB_BYTES),
            (Figure::WipingBytes, u64::from(table.unwiped()) * SLAB_BYTES),
            (Figure::DrainingBytes, u64::from(table.wanted()) * SLAB_BYTES),
            (Figure::ReclaimedBytes, u64::from(table.reclaimed()) * SLAB_BYTES),
            (Figure::LockedBytes, self.slabs.locked_bytes()),
            (Figure::Reservations, reservations().count() as u64),
            (Figure::ReservedBytes, reservations().map(|one| u64::from(one.slabs) * SLAB_BYTES).sum()),
            (Figure::Borrowers, table.borrowers() as u64),
            (Figure::Connections, connections as u64),
            (Figure::UptimeMs, self.now_ms()),
            (Figure::ExpiriesTotal, endings.expired),
            (Figure::RevocationsTotal, endings.revoked),
        ] {
            status.figures[figure as usize] = value;
        }
        status
    }
}
