// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! NUMA policies of this process, and the node that each page is on.
//!
//! See set_mempolicy(2), get_mempolicy(2), mbind(2), move_pages(2), and numa(7). Weighted interleaving exists since
//! Linux 6.9; an older kernel answers EINVAL. `lent_memory.rs` binds files and ranges to one node.
//!
//! Threads: a policy is set for the calling thread, and is inherited by what it creates and executes.

use crate::raw::{Errno, syscall};

/// Number of nodes in a mask. More than the largest machines with CXL memory have; the kernel allows 1024.
pub const NODES_MAX: u32 = 64;
/// The page size that move_pages(2) counts in.
const PAGE_BYTES: usize = 4096;
/// Number of pages in one call of move_pages(2). A choice: 32 KiB of arguments.
const PAGES_PER_CALL: usize = 2048;

/// The nodes of a policy, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeMask(pub u64);

impl NodeMask {
    /// The given nodes. `None` if one of them has no bit.
    pub fn of(nodes: impl IntoIterator<Item = u32>) -> Option<NodeMask> {
        let mut mask = 0;
        for node in nodes {
            mask |= 1u64.checked_shl(node)?;
        }
        Some(NodeMask(mask))
    }

    /// The nodes, in ascending order.
    pub fn nodes(self) -> impl Iterator<Item = u32> {
        (0..NODES_MAX).filter(move |node| self.0 >> node & 1 == 1)
    }
}

/// Where new pages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// From these nodes only.
    Bind(NodeMask),
    /// The kernel's default: the node of the CPU.
    Default,
    /// From these nodes in turn.
    Interleave(NodeMask),
    /// From these nodes in turn, as many pages from each as the kernel's weights say. Linux 6.9 and later.
    WeightedInterleave(NodeMask),
}

impl Policy {
    fn mode(self) -> usize {
        match self {
            Policy::Default => 0,
            Policy::Bind(_) => 2,
            Policy::Interleave(_) => 3,
            Policy::WeightedInterleave(_) => 6,
        }
    }

    fn mask(self) -> NodeMask {
        match self {
            Policy::Default => NodeMask(0),
            Policy::Bind(mask) | Policy::Interleave(mask) | Policy::WeightedInterleave(mask) => mask,
        }
    }
}

/// Sets the policy of the calling thread for its new pages.
pub fn set_policy(policy: Policy) -> Result<(), Errno> {
    let mask = policy.mask();
    // One more than the number of bits: the kernel subtracts one.
    let (address, bits) = match policy {
        Policy::Default => (0, 0),
        _ => (&raw const mask.0 as usize, NODES_MAX as usize + 1),
    };
    // SAFETY: set_mempolicy(2) reads the mask, which lives until the call returns.
    unsafe { syscall(libc::SYS_set_mempolicy, [policy.mode(), address, bits, 0, 0, 0]) }.map(|_| ())
}

/// The policy of the calling thread, as far as [`Policy`] can say it: its mode and its nodes.
pub fn policy() -> Result<(i32, NodeMask), Errno> {
    // The kernel refuses a mask shorter than its own number of possible nodes, which is 1024 at the most.
    let (mut mode, mut mask) = (0i32, [0u64; 16]);
    let args = [&raw mut mode as usize, &raw mut mask as usize, 1024, 0, 0, 0];
    // SAFETY: get_mempolicy(2) writes the mode and 1024 bits.
    unsafe { syscall(libc::SYS_get_mempolicy, args) }?;
    Ok((mode, NodeMask(mask[0])))
}

/// Sets the policy of a range of addresses for its new pages.
///
/// It affects only where pages come from, never their contents, so it is safe for any range.
pub fn set_range_policy(start: usize, len: usize, policy: Policy) -> Result<(), Errno> {
    let mask = policy.mask();
    let args = [start, len, policy.mode(), &raw const mask.0 as usize, NODES_MAX as usize + 1, 0];
    // SAFETY: mbind(2) reads the mask, and changes no contents; an unmapped range is refused with EFAULT.
    unsafe { syscall(libc::SYS_mbind, args) }.map(|_| ())
}

/// Counts pages by the node they are on: `counts[n]` is the number on node n. Pages that are not resident are not
/// counted. `start` is the address of a page.
pub fn count_pages(start: usize, pages: usize) -> Result<[u64; NODES_MAX as usize], Errno> {
    let mut counts = [0; NODES_MAX as usize];
    let (mut addresses, mut statuses) = (vec![0usize; PAGES_PER_CALL], vec![0i32; PAGES_PER_CALL]);
    for first in (0..pages).step_by(PAGES_PER_CALL) {
        let count = PAGES_PER_CALL.min(pages - first);
        addresses.iter_mut().enumerate().for_each(|(at, address)| *address = start + (first + at) * PAGE_BYTES);
        let args = [0, count, addresses.as_ptr() as usize, 0, statuses.as_mut_ptr() as usize, 0];
        // SAFETY: without target nodes, move_pages(2) moves nothing: it reads `count` addresses and writes `count`
        // statuses, for which there is room.
        unsafe { syscall(libc::SYS_move_pages, args) }?;
        for status in &statuses[..count] {
            // A negative status is an errno: the page is not there.
            if let Some(counted) = usize::try_from(*status).ok().and_then(|node| counts.get_mut(node)) {
                *counted += 1;
            }
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{map_anonymous, unmap};

    fn has_policies() -> bool {
        let found = policy();
        if let Err(errno) = found {
            aquifer_test_support::skip(format!("this kernel has no memory policies: {errno}"));
        }
        found.is_ok()
    }

    #[test]
    fn a_mask_has_the_nodes_that_it_is_made_of() {
        let mask = NodeMask::of([0, 3, 63]).unwrap();
        assert_eq!(mask.nodes().collect::<Vec<_>>(), [0, 3, 63]);
        assert_eq!(NodeMask::of([64]), None);
        assert_eq!(NodeMask::of([]), Some(NodeMask(0)));
    }

    #[test]
    fn pages_of_a_bound_range_are_counted_on_its_node() {
        if !has_policies() {
            return;
        }
        const PAGES: usize = PAGES_PER_CALL + 100;
        let start = map_anonymous(PAGES * PAGE_BYTES).unwrap();
        set_range_policy(start, PAGES * PAGE_BYTES, Policy::Bind(NodeMask(1))).unwrap();
        for page in (0..PAGES).step_by(2) {
            // SAFETY: within the mapping made above, which nothing else uses.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(start + page * PAGE_BYTES).write_volatile(7) };
        }
        let counts = count_pages(start, PAGES).unwrap();
        // SAFETY: the mapping is this test's own.
        unsafe { unmap(start, PAGES * PAGE_BYTES) }.unwrap();
        assert_eq!((counts[0], counts[1..].iter().sum()), (PAGES as u64 / 2, 0));
    }

    /// The policy is that of a thread, so a thread of the test's own does not disturb other tests.
    #[test]
    fn a_policy_that_is_set_is_read_back() {
        if !has_policies() {
            return;
        }
        let set_and_read = || {
            set_policy(Policy::Interleave(NodeMask(1))).unwrap();
            let interleaved = policy().unwrap();
            set_policy(Policy::Default).unwrap();
            (interleaved, policy().unwrap())
        };
        let (interleaved, default) = std::thread::spawn(set_and_read).join().unwrap();
        assert_eq!(interleaved, (3, NodeMask(1)));
        assert_eq!(default.0, 0);
    }
}
