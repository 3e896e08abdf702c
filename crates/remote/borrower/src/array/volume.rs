// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Opens an array for a volume of the pool: its members change while programs run (`membership.rs`).
//!
//! To a donor, each member is a borrower: one for all related processes, which share its leases, even if each of them
//! connects by itself because the member joined after they were forked. If a donor is several members of a volume, it
//! has several borrowers, in trees whose numbers follow one another.
//!
//! May allocate, and waits for donors.

use std::net::SocketAddr;

use aquifer_sys::raw::{Errno, random};
use aquifer_sys::words::Words;
use aquifer_tier::{Newcomer, OpenFailure};
use aquifer_tls::BorrowerFiles;
use aquifer_wire::{BorrowerId, SLAB_BYTES};

use super::membership::{Admission, Connect, Reached};
use super::{Array, MEMBERS_MAX, NAME, Shape, Store, layout};
use crate::borrow_failure::BorrowFailure;
use crate::donor::{Donor, Offer, SpareSockets};
use crate::spec::{DonorSecurity, DonorSpec, VolumeTierSpec};

/// How many members of one donor are looked for when a tree has ended. A choice: the pool rarely places two members of
/// a volume with one donor.
const ORDINALS_MAX: u32 = 4;

/// How many donors can join a program's array later. A choice: the sockets for them are opened at the start, and most
/// programs may open 1024 descriptors.
const DONORS_LATER: usize = 24;

/// Reaches the donors of a volume.
struct Volume {
    files: Option<BorrowerFiles>,
    tree: u64,
    /// The part of the borrowers' numbers that is drawn at random. Drawn before any fork(2), because related processes
    /// share the leases of each member, and a donor grants a lease to one borrower.
    own: u64,
    is_redundant: bool,
    /// The process that has opened the array.
    opener: u32,
    spares: SpareSockets,
}

impl Connect for Volume {
    fn reach(&self, newcomer: &Newcomer, ordinal: u32) -> Result<Reached<'_>, String> {
        let spec = donor(newcomer, self.files.as_ref(), self.tree, ordinal);
        let address = self.resolve(newcomer)?;
        let taken = self.spares.take().ok_or_else(|| {
            format!(
                "this program has had {} different donors, and has no sockets for another one; restart the program, with \
                 a greater limit of descriptors (ulimit -n) if that is less than 1024",
                self.spares.count()
            )
        })?;
        let offer = Offer::ask_on(taken.sockets(), address, &spec, self.who(ordinal), self.is_redundant);
        let offer = offer.map_err(|failure| failure.to_string())?;
        let is_opener = std::process::id() == self.opener;
        Ok(Reached {
            is_there: offer.slabs().is_some(),
            accept: Box::new(move |words| {
                let share = offer.join(words, is_opener).map_err(|failure| failure.to_string())?;
                taken.keep();
                Ok(Box::new(share) as Box<dyn Store>)
            }),
        })
    }

    fn after_fork_in_child(&self) -> Result<(), Errno> {
        self.spares.replace_in_child()
    }
}

impl Volume {
    /// The borrower that this member of its donor is.
    fn who(&self, ordinal: u32) -> BorrowerId {
        BorrowerId(u128::from(tree_of(self.tree, ordinal)) << 64 | u128::from(self.own))
    }

    /// The address of a donor to which this process has sockets.
    fn resolve(&self, newcomer: &Newcomer) -> Result<SocketAddr, String> {
        let Newcomer { address, .. } = newcomer;
        // Names are resolved by the agent: to resolve one here could take the program's locks and memory.
        let found: Option<SocketAddr> = address.parse().ok();
        let found = found.ok_or_else(|| {
            format!(
                "the donor's address {address} is not one in numbers; give the donor one that the agent can resolve"
            )
        })?;
        Some(found).filter(|address| self.spares.reach(address)).ok_or_else(|| {
            format!(
                "the donor at {address} is in a network of another kind (IPv4 or IPv6) than the volume's first; restart \
                 the program, or give all donors addresses of one kind"
            )
        })
    }
}

/// The tree of the borrower that this member of its donor is.
fn tree_of(tree: u64, ordinal: u32) -> u64 {
    tree.wrapping_add(ordinal.into())
}

fn donor(newcomer: &Newcomer, files: Option<&BorrowerFiles>, tree: u64, ordinal: u32) -> DonorSpec {
    let tls = |files: &BorrowerFiles| DonorSecurity::Tls { files: files.clone(), name: newcomer.server_name.clone() };
    DonorSpec {
        address: newcomer.address.clone(),
        size: None,
        security: files.map_or(DonorSecurity::Plain, tls),
        rdma: None,
        tree: Some(tree_of(tree, ordinal)),
        reservation: newcomer.reservation,
    }
}

impl Array {
    /// Greets the donors of a volume. Borrows nothing yet. If several donors have each byte, some may be absent.
    pub fn open_volume(spec: &VolumeTierSpec) -> Result<Array, BorrowFailure> {
        let shape = spec.redundancy.shape();
        let slabs = slabs_of(spec, shape)?;
        let opener = std::process::id();
        let first = spec.members.iter().find_map(|member| member.address.parse().ok());
        let family = first.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
        let spares = SpareSockets::new(family, (spec.members.len() + DONORS_LATER).min(MEMBERS_MAX));
        let is_redundant = shape.is_redundant();
        let own = random().map_err(|errno| system("drawing a random number", errno))?;
        let connect = Volume { files: spec.files.clone(), tree: spec.tree, own, is_redundant, opener, spares };
        let words = MEMBERS_MAX * shape.ranges(slabs);
        let leases = Words::shared(words).map_err(no_table)?;
        let doubted = shape.is_cut().then(|| Words::shared(words)).transpose().map_err(no_table)?;
        let mut array =
            Array::vacant(Admission::new(Box::new(connect), leases, doubted), shape, slabs).map_err(no_table)?;
        let (mut there, mut notices) = (0, Vec::new());
        for member in &spec.members {
            let joined = array.parts.join(member).map_err(|failure| BorrowFailure::Member { failure })?;
            there += usize::from(joined);
            if !joined {
                notices.push(format!(
                    "the donor at {} does not answer, and others keep what it should; start it, or check the network to it",
                    member.address
                ));
            }
        }
        if there < shape.needed {
            return Err(BorrowFailure::TooFewMembers { needed: shape.needed, there });
        }
        array.notices = notices;
        Ok(array)
    }

    /// Gives back what the processes of a tree have borrowed from a volume's donors, after they have ended.
    pub fn report_volume_exit(spec: &VolumeTierSpec) {
        for member in &spec.members {
            for ordinal in 0..ORDINALS_MAX {
                Donor::report_exit(&donor(member, spec.files.as_ref(), spec.tree, ordinal));
            }
        }
    }
}

/// How many slabs the tier has.
fn slabs_of(spec: &VolumeTierSpec, shape: Shape) -> Result<u32, BorrowFailure> {
    let room: Vec<u64> = spec.members.iter().map(|member| member.slabs).collect();
    let lent = layout::slabs(&room, shape.total).saturating_mul(shape.needed as u64);
    let wanted_bytes = spec.size.map_or(lent.saturating_mul(SLAB_BYTES), |size| size.0);
    if wanted_bytes < SLAB_BYTES {
        return Err(OpenFailure::TooSmall { tier: NAME, wanted_bytes, minimum_bytes: SLAB_BYTES }.into());
    }
    u32::try_from(wanted_bytes / SLAB_BYTES).map_err(|_| no_table(Errno(libc::ENOMEM)))
}

fn no_table(errno: Errno) -> BorrowFailure {
    system("mapping the table of slabs", errno)
}

fn system(what: &'static str, Errno(errno): Errno) -> BorrowFailure {
    OpenFailure::System { tier: NAME, what, source: std::io::Error::from_raw_os_error(errno) }.into()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use aquifer_tier::MemberKey;
    use aquifer_wire::{HEADER_BYTES, Header, Message};

    use super::*;

    /// A slab that a related process had moved to a member that joined after fork(2) was lost, because its lease was
    /// another borrower's.
    #[test]
    fn a_member_is_one_borrower_however_many_related_processes_reach_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = std::thread::spawn(move || {
            let borrower = |_| {
                let mut bytes = [0; HEADER_BYTES];
                listener.accept().unwrap().0.read_exact(&mut bytes).unwrap();
                let Message::Hello { borrower, .. } = Header::decode(&bytes).unwrap().message else { panic!("greets") };
                borrower
            };
            [0; 3].map(borrower)
        });
        let spares = SpareSockets::new(address, 1);
        let volume =
            Volume { files: None, tree: 1 << 40, own: 77, is_redundant: false, opener: std::process::id(), spares };
        let address = address.to_string();
        let server_name = String::new();
        let newcomer = Newcomer { key: MemberKey(1), address, server_name, weight: 1, slabs: 8, reservation: 9 };
        // Related processes have the same `Volume`, and tell each other nothing.
        for ordinal in [0, 0, 1] {
            assert!(volume.reach(&newcomer, ordinal).is_err(), "it ends the connection");
        }
        let [one, again, other] = seen.join().unwrap();
        assert_eq!(one, again);
        assert_ne!(one.family(), other.family());
    }
}
