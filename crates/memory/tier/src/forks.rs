// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What some tiers do when their process forks, so that parent and child share no connection, and no secret that one
//! of them makes later.
//!
//! A tier that has something to do says so with [`Tier::forks`](crate::Tier::forks).

use aquifer_sys::raw::Errno;

use crate::tier::Tier;

/// What a tier does at fork(2).
pub trait Forks {
    /// Called before fork(2) in a process that has something stored: acquires what is needed after the fork, while
    /// acquiring it can still fail. No request is in flight. May allocate.
    fn before_fork(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Called after fork(2) in the parent. The child has a copy of everything that this process knew and may drop
    /// privileges, so nothing that this process writes from now on may be readable for the child. `inherits`: the child
    /// keeps access to what is stored now.
    fn after_fork_in_parent(&self, inherits: bool) {
        let _ = inherits;
    }

    /// Called in a forked child: acquires what the child cannot share with its parent, for instance connections, and
    /// gives up what belongs to the parent alone. `inherits`: the child reads what its parent has stored. Runs before
    /// the program continues, before the tier is used and before the pager has threads in the child; no request is in
    /// flight. Does nothing elsewhere.
    fn after_fork_in_child(&self, inherits: bool) -> Result<(), Errno>;

    /// Called in a forked child that does not use the tier, nor its copy of this value, ever again: gives up all that
    /// the child has of its parent's, descriptors and mappings included. So the child can neither read what its parent
    /// stores, nor keep room or a device in use after its parent has closed the tier.
    fn give_up_in_child(&self) -> Result<(), Errno> {
        self.after_fork_in_child(false)
    }

    /// Whether a forked child can still read what this process writes later, using only what this process knew at the
    /// fork.
    fn is_shared_by_family(&self) -> bool {
        true
    }
}

/// Any tier, including one that has nothing to do.
impl Forks for dyn Tier + '_ {
    fn before_fork(&self) -> Result<(), Errno> {
        self.forks().map_or(Ok(()), |forks| forks.before_fork())
    }

    fn after_fork_in_parent(&self, inherits: bool) {
        self.forks().into_iter().for_each(|forks| forks.after_fork_in_parent(inherits));
    }

    fn after_fork_in_child(&self, inherits: bool) -> Result<(), Errno> {
        self.forks().map_or(Ok(()), |forks| forks.after_fork_in_child(inherits))
    }

    fn give_up_in_child(&self) -> Result<(), Errno> {
        self.forks().map_or(Ok(()), |forks| forks.give_up_in_child())
    }

    fn is_shared_by_family(&self) -> bool {
        self.forks().is_none_or(|forks| forks.is_shared_by_family())
    }
}
