// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Opens an array: asks all donors how much they lend, and computes the array's capacity.

use aquifer_sys::raw::Errno;
use aquifer_tier::OpenFailure;
use aquifer_wire::SLAB_BYTES;

use super::{Array, NAME, Store, layout};
use crate::borrow_failure::BorrowFailure;
use crate::donor::{Donor, Offer, Writers};
use crate::spec::ArraySpec;

impl Array {
    /// Greets the donors. Borrows nothing yet. If several donors have each byte, some may be absent.
    pub fn open(spec: &ArraySpec) -> Result<Array, BorrowFailure> {
        let shape = spec.redundancy.shape();
        let ask = |member: &crate::spec::MemberSpec| Offer::ask(&member.donor, shape.is_redundant());
        let mut offers = spec.members.iter().map(ask).collect::<Result<Vec<Offer>, BorrowFailure>>()?;
        // Two copies of a slab would be with one donor, and lost together.
        if let Some((index, other)) = same(&offers) {
            let address = |index: usize| spec.members[index].donor.address.clone();
            return Err(BorrowFailure::SameDonor { address: address(index), other: address(other) });
        }
        // A donor that does not answer is assumed to lend as much as the others once it does.
        let Some(max) = offers.iter().filter_map(Offer::slabs).max() else {
            return Err(offers.swap_remove(0).why_absent().expect("who does not lend has said why"));
        };
        let there = offers.iter().filter(|offer| offer.slabs().is_some()).count();
        if there < shape.needed {
            let first = offers.into_iter().find_map(Offer::why_absent).expect("who does not lend has said why");
            return Err(BorrowFailure::TooFew { needed: shape.needed, there, first: Box::new(first) });
        }
        let room: Vec<u64> = offers.iter().map(|offer| offer.slabs().unwrap_or(max)).collect();
        let slabs = slabs(spec, layout::slabs(&room, shape.total) * shape.needed as u64)?;
        let absent = spec.members.iter().zip(&offers).filter(|(_, offer)| offer.slabs().is_none());
        let notices = absent
            .map(|(member, _)| {
                format!(
                    "the donor at {} does not answer, and others keep what it should; start it, or check the network to it",
                    member.donor.address
                )
            })
            .collect();
        // A donor's slab has shards of several slabs of the array, which different related processes may write.
        let writers = if shape.needed > 1 { Writers::Several } else { Writers::One };
        let mut stores: Vec<(Box<dyn Store>, u32)> = Vec::with_capacity(offers.len());
        for (offer, member) in offers.into_iter().zip(&spec.members) {
            stores.push((Box::new(offer.accept(shape.ranges(slabs), writers)?), member.weight));
        }
        Array::new(stores, shape, slabs, notices).map_err(no_table)
    }

    /// Refuses credential files that cannot protect a connection.
    pub fn check_place(spec: &ArraySpec) -> Result<(), BorrowFailure> {
        spec.members.iter().try_for_each(|member| Donor::check_place(&member.donor))
    }
}

/// The first two offers that are of one donor, under two names.
fn same(offers: &[Offer]) -> Option<(usize, usize)> {
    let first = |offer: &Offer| offers.iter().position(|other| other.run() == offer.run());
    let twice = |(index, offer): (usize, &Offer)| first(offer).map(|first| (first, index));
    let there = offers.iter().enumerate().filter(|(_, offer)| offer.run().is_some());
    there.filter_map(twice).find(|(first, index)| first < index)
}

/// How many slabs the array has if the donors have room for `lendable` slabs.
fn slabs(spec: &ArraySpec, lendable: u64) -> Result<u32, BorrowFailure> {
    let lendable_bytes = lendable * SLAB_BYTES;
    let wanted_bytes = spec.size.map_or(lendable_bytes, |size| size.0);
    if wanted_bytes < SLAB_BYTES {
        return Err(OpenFailure::TooSmall { tier: NAME, wanted_bytes, minimum_bytes: SLAB_BYTES }.into());
    }
    if wanted_bytes > lendable_bytes {
        let addresses: Vec<&str> = spec.members.iter().map(|member| &*member.donor.address).collect();
        return Err(BorrowFailure::LendsTooLittle { address: addresses.join("+"), wanted_bytes, lendable_bytes });
    }
    u32::try_from(wanted_bytes / SLAB_BYTES).map_err(|_| no_table(Errno(libc::ENOMEM)))
}

fn no_table(Errno(errno): Errno) -> BorrowFailure {
    let source = std::io::Error::from_raw_os_error(errno);
    OpenFailure::System { tier: NAME, what: "mapping the table of slabs", source }.into()
}
