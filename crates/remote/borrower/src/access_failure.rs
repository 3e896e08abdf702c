// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why borrowed memory could not be read or written, and why a link to a donor cannot be used.
//!
//! Error numbers exist only at the edges of this crate: the kernel's become a [`LinkFailure`] (`of_errno`), and a tier
//! reports the number of an [`AccessFailure`] (`errno`). Every failure keeps the number that it came with.
//!
//! Plain values without heap memory: they are made on the faulting thread, inside a signal handler.

use aquifer_sys::raw::Errno;

/// Why a link to a donor cannot be used. It is unknown whether the donor has carried out what was in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkFailure {
    /// What arrived does not match its checksum.
    Damaged,
    /// The connection has ended.
    Ended,
    /// The link belongs to the process that has forked this one.
    Inherited,
    /// The donor has not even answered a greeting in time, and is not asked again.
    NoGreeting,
    /// What arrived does not follow the protocol.
    Protocol,
    /// The donor accepts no connection, now or at any time.
    Refused,
    /// The donor was restarted, and has lost everything that was stored before.
    Restarted,
    /// Another error of the kernel or of a device.
    System(Errno),
    /// No answer has arrived within the time limit.
    TimedOut,
    /// The donor has too many connections.
    TooManyConnections,
    /// No path leads from this host's RDMA device to the donor's.
    Unreachable,
}

impl LinkFailure {
    /// The failure that stands for an errno of the kernel, a device or a TLS session.
    pub(crate) fn of_errno(errno: i32) -> LinkFailure {
        match errno {
            libc::EBADMSG => LinkFailure::Damaged,
            libc::ECONNRESET => LinkFailure::Ended,
            libc::EOWNERDEAD => LinkFailure::Inherited,
            libc::EHOSTDOWN => LinkFailure::NoGreeting,
            libc::EPROTO => LinkFailure::Protocol,
            libc::ECONNREFUSED => LinkFailure::Refused,
            libc::ESTALE => LinkFailure::Restarted,
            libc::ETIMEDOUT => LinkFailure::TimedOut,
            libc::EUSERS => LinkFailure::TooManyConnections,
            libc::EHOSTUNREACH => LinkFailure::Unreachable,
            errno => LinkFailure::System(Errno(errno)),
        }
    }

    /// The errno that the tier reports to its caller.
    pub(crate) fn errno(self) -> i32 {
        match self {
            LinkFailure::Damaged => libc::EBADMSG,
            LinkFailure::Ended => libc::ECONNRESET,
            LinkFailure::Inherited => libc::EOWNERDEAD,
            LinkFailure::NoGreeting => libc::EHOSTDOWN,
            LinkFailure::Protocol => libc::EPROTO,
            LinkFailure::Refused => libc::ECONNREFUSED,
            LinkFailure::Restarted => libc::ESTALE,
            LinkFailure::System(Errno(errno)) => errno,
            LinkFailure::TimedOut => libc::ETIMEDOUT,
            LinkFailure::TooManyConnections => libc::EUSERS,
            LinkFailure::Unreachable => libc::EHOSTUNREACH,
        }
    }
}

impl From<Errno> for LinkFailure {
    fn from(Errno(errno): Errno) -> LinkFailure {
        LinkFailure::of_errno(errno)
    }
}

/// Why an access to borrowed memory, or an order to a donor, was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessFailure {
    /// Another thread or the donor is busy with the slab, and has been for longer than this thread waits.
    Busy,
    /// The copies of a page differ.
    Differ,
    /// There is no room for the slab.
    Full,
    /// The bytes of the slab are gone.
    Gone,
    /// The link to the donor cannot be used.
    Link(LinkFailure),
    /// No member of the array is present.
    NoMember,
    /// The access may succeed in a moment: the slab is on the move, or a member may soon be back.
    NotNow,
    /// The quota of the borrower's tenant is used up.
    OverQuota,
    /// The donor refuses the request for another reason.
    Refused,
    /// Fewer members have accepted a write than are needed to read it.
    TooFewMembers,
    /// The donor has too many connections.
    TooManyConnections,
}

impl AccessFailure {
    /// The failure that a member's queue reports by this number.
    pub(crate) fn of_errno(errno: i32) -> AccessFailure {
        match errno {
            libc::EBUSY => AccessFailure::Busy,
            libc::ENOSPC => AccessFailure::Full,
            libc::ENODATA => AccessFailure::Gone,
            libc::EAGAIN => AccessFailure::NotNow,
            libc::EDQUOT => AccessFailure::OverQuota,
            errno => AccessFailure::Link(LinkFailure::of_errno(errno)),
        }
    }

    /// The errno that the tier reports to its caller.
    pub(crate) fn errno(self) -> i32 {
        match self {
            AccessFailure::Busy => libc::EBUSY,
            AccessFailure::Differ => libc::EBADMSG,
            AccessFailure::Full => libc::ENOSPC,
            AccessFailure::Gone => libc::ENODATA,
            AccessFailure::Link(failure) => failure.errno(),
            AccessFailure::NoMember => libc::EHOSTDOWN,
            AccessFailure::NotNow => libc::EAGAIN,
            AccessFailure::OverQuota => libc::EDQUOT,
            AccessFailure::Refused => libc::EPROTO,
            AccessFailure::TooFewMembers => libc::EIO,
            AccessFailure::TooManyConnections => libc::EUSERS,
        }
    }
}

impl From<LinkFailure> for AccessFailure {
    fn from(failure: LinkFailure) -> AccessFailure {
        AccessFailure::Link(failure)
    }
}

impl From<Errno> for AccessFailure {
    fn from(Errno(errno): Errno) -> AccessFailure {
        AccessFailure::of_errno(errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_keeps_the_number_that_it_came_with() {
        for errno in 1..200 {
            assert_eq!(LinkFailure::of_errno(errno).errno(), errno);
            assert_eq!(AccessFailure::of_errno(errno).errno(), errno);
        }
    }
}
