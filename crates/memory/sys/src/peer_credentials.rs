// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The credentials of the process at the other end of a Unix socket: SO_PEERCRED, unix(7).
//!
//! Not by rustix, whose type for a process cannot be 0: the kernel reports 0 for a peer in a PID namespace that this
//! process cannot see, such as a program in a container.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// What the kernel shows for users that a user namespace does not have, unless an administrator has changed it.
const OVERFLOW_UID: u32 = 65_534;

/// The process that connected, or that listened; or made the pair of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// The process. 0 if it is in a PID namespace that this process cannot see.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

impl PeerCredentials {
    /// Those of the other end of a connected Unix socket.
    pub fn of(socket: impl AsFd) -> io::Result<PeerCredentials> {
        let mut found = MaybeUninit::<libc::ucred>::uninit();
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: the descriptor is open while `socket` is borrowed, and the kernel writes at most `len` bytes to
        // `found`, which has as many.
        let result =
            unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, found.as_mut_ptr().cast(), &mut len) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        if len as usize != size_of::<libc::ucred>() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: the kernel has written all of it, and each value of its numbers is valid.
        let libc::ucred { pid, uid, gid } = unsafe { found.assume_init() };
        Ok(PeerCredentials { pid: u32::try_from(pid).unwrap_or(0), uid, gid })
    }

    /// The user, unless the number stands for all users that this process's user namespace does not have
    /// (user_namespaces(7)): files of any of them would seem to be this one's.
    pub fn known_user(&self) -> Option<u32> {
        let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        let overflow = overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW_UID);
        (self.uid != overflow).then_some(self.uid)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (one, other) = UnixStream::pair().expect("a pair of sockets");
        let found = PeerCredentials::of(&one).expect("they are connected");
        // SAFETY: the two calls only return numbers.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        assert_eq!(found, PeerCredentials { pid: std::process::id(), uid, gid });
        assert_eq!(PeerCredentials::of(&other).expect("they are connected"), found);
    }

    #[test]
    fn the_number_for_all_foreign_users_is_no_user() {
        let of = |uid| PeerCredentials { pid: 1, uid, gid: 1 }.known_user();
        let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").expect("every kernel has one");
        assert_eq!(of(overflow.trim().parse().expect("a number")), None);
        assert_eq!([of(0), of(990)], [Some(0), Some(990)]);
    }

    #[test]
    fn what_is_no_socket_has_no_other_end() {
        let file = std::fs::File::open("/dev/null").expect("it is always there");
        assert_eq!(PeerCredentials::of(&file).expect_err("a file").raw_os_error(), Some(libc::ENOTSOCK));
    }
}
