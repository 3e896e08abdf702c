// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The sessions of borrowers that use RDMA: each one's domain and queue pairs, and the window on each slab.
//! Pure: `one_sided.rs` creates and closes what is recorded here, in part without the lock around it.
//!
//! Invariants: a recorded queue pair belongs to its borrower's current domain, and so does each open window. A borrower
//! whose window could not be closed gets another domain, so that nobody can use that window any more. A window never
//! has the key of one of the borrower's last closed windows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use aquifer_wire::{BorrowerId, LentSlab};

/// The maximum number of queue pairs of one borrower: those of sixteen processes.
pub(crate) const PAIRS_MAX: usize = 128;
/// How many keys of a borrower's closed windows are not used again for it. An access by a closed key is late by at most
/// a time limit of the device, so the last few would suffice; some drivers hand out first the key that was given back
/// last.
const KEYS_KEPT: usize = 16;

/// The RDMA sessions of all borrowers, and the windows on their slabs. `D` is a protection domain, `P` a queue pair,
/// `W` a window.
pub(crate) struct Sessions<D, P, W> {
    sessions: BTreeMap<BorrowerId, Session<D, P>>,
    windows: BTreeMap<LentSlab, Opened<W>>,
}

/// A borrower, from its first connection until the last one has ended and no window of the borrower is open.
pub(crate) struct Session<D, P> {
    connections: usize,
    windows: usize,
    // Declared before the domain to which they belong, so that they are dropped first.
    pairs: BTreeMap<u32, P>,
    domain: Option<Arc<D>>,
    /// The keys of closed windows, the most recent one last.
    keys: VecDeque<u32>,
}

impl<D, P> Default for Session<D, P> {
    fn default() -> Self {
        Session { connections: 0, windows: 0, pairs: BTreeMap::new(), domain: None, keys: VecDeque::new() }
    }
}

/// An open window, and the borrower and token that it is for.
pub(crate) struct Opened<W> {
    pub(crate) who: BorrowerId,
    token: u64,
    key: u32,
    pub(crate) window: W,
}

/// What is recorded for a slab whose key somebody asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// A window for this token, with this key.
    Key(u32),
    /// No window.
    Nothing,
    /// A window for another token.
    Other,
}

/// The borrower has its maximum of queue pairs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

impl<D, P, W> Default for Sessions<D, P, W> {
    fn default() -> Self {
        Sessions { sessions: BTreeMap::new(), windows: BTreeMap::new() }
    }
}

impl<D, P, W> Sessions<D, P, W> {
    /// Counts one more connection of a borrower.
    pub(crate) fn enter(&mut self, who: BorrowerId) {
        self.sessions.entry(who).or_default().connections += 1;
    }

    /// A connection has ended. Returns what ends with it. With the last connection the queue pairs end, so that nobody
    /// bypasses a donor that no longer knows the borrower. Windows stay for a borrower that comes back, while their
    /// leases last.
    pub(crate) fn leave(&mut self, who: BorrowerId) -> (Vec<P>, Option<Session<D, P>>) {
        let Some(session) = self.sessions.get_mut(&who) else { return (Vec::new(), None) };
        session.connections -= 1;
        let pairs = if session.connections == 0 { std::mem::take(&mut session.pairs) } else { BTreeMap::new() };
        (pairs.into_values().collect(), self.take_idle(who))
    }

    fn take_idle(&mut self, who: BorrowerId) -> Option<Session<D, P>> {
        let session = self.sessions.get(&who)?;
        let is_idle = session.connections == 0 && session.windows == 0;
        if is_idle { self.sessions.remove(&who) } else { None }
    }

    /// The domain of a borrower.
    pub(crate) fn domain<E>(&mut self, who: BorrowerId, make: impl FnOnce() -> Result<D, E>) -> Result<Arc<D>, E> {
        let session = self.sessions.entry(who).or_default();
        let domain = match &session.domain {
            Some(domain) => Arc::clone(domain),
            None => Arc::new(make()?),
        };
        session.domain = Some(Arc::clone(&domain));
        Ok(domain)
    }

    /// Makes room for a queue pair with this number: if one exists, it is returned and no longer recorded.
    pub(crate) fn make_room(&mut self, who: BorrowerId, number: u32) -> Result<Option<P>, TooMany> {
        let session = self.sessions.entry(who).or_default();
        match session.pairs.remove(&number) {
            None if session.pairs.len() >= PAIRS_MAX => Err(TooMany),
            before => Ok(before),
        }
    }

    /// Records a queue pair, and returns the one that was recorded in the meantime. Fails and returns `pair` if its
    /// borrower is gone, has its maximum of pairs by now, or has another domain.
    pub(crate) fn keep(&mut self, who: BorrowerId, number: u32, domain: &Arc<D>, pair: P) -> Result<Option<P>, P> {
        let Some(session) = self.sessions.get_mut(&who).filter(|session| session.connections > 0) else {
            return Err(pair);
        };
        let is_its_domain = session.domain.as_ref().is_some_and(|own| Arc::ptr_eq(own, domain));
        if !is_its_domain || (session.pairs.len() >= PAIRS_MAX && !session.pairs.contains_key(&number)) {
            return Err(pair);
        }
        Ok(session.pairs.insert(number, pair))
    }

    /// What is recorded for a slab, for the holder of this token.
    pub(crate) fn known(&self, slab: LentSlab, token: u64) -> Known {
        match self.windows.get(&slab) {
            Some(opened) if opened.token == token => Known::Key(opened.key),
            Some(_) => Known::Other,
            None => Known::Nothing,
        }
    }

    /// Whether a window of a borrower may have this key.
    pub(crate) fn is_new(&self, who: BorrowerId, key: u32) -> bool {
        self.sessions.get(&who).is_none_or(|session| !session.keys.contains(&key))
    }

    /// Records the window on a slab that had none.
    pub(crate) fn open(&mut self, who: BorrowerId, slab: LentSlab, token: u64, key: u32, window: W) {
        let before = self.windows.insert(slab, Opened { who, token, key, window });
        assert!(before.is_none(), "a slab has one window");
        self.sessions.entry(who).or_default().windows += 1;
    }

    /// Takes the window on a slab, to be closed, if it is for an older token than this one. The caller calls
    /// [`closed`](Self::closed) or [`cast_out`](Self::cast_out) next.
    pub(crate) fn take_before(&mut self, slab: LentSlab, token: u64) -> Option<Opened<W>> {
        if self.windows.get(&slab)?.token >= token {
            return None;
        }
        let opened = self.windows.remove(&slab)?;
        let session = self.sessions.get_mut(&opened.who).expect("a session stays while a window of its is open");
        session.windows -= 1;
        session.keys.push_back(opened.key);
        if session.keys.len() > KEYS_KEPT {
            session.keys.pop_front();
        }
        Some(opened)
    }

    /// A borrower's window has been closed. Returns what nobody needs any more.
    pub(crate) fn closed(&mut self, who: BorrowerId) -> Option<Session<D, P>> {
        self.take_idle(who)
    }

    /// A borrower's window cannot be closed. Returns what the borrower has, so that nobody keeps access: queue pairs
    /// and windows to be dropped, in this order. What the borrower asks for next belongs to another domain.
    pub(crate) fn cast_out(&mut self, who: BorrowerId) -> (Vec<P>, Vec<W>) {
        let session = self.sessions.entry(who).or_default();
        let pairs = std::mem::take(&mut session.pairs).into_values().collect();
        (session.domain, session.windows) = (None, 0);
        let theirs: Vec<LentSlab> =
            self.windows.iter().filter(|(_, opened)| opened.who == who).map(|(slab, _)| *slab).collect();
        let windows = theirs.iter().filter_map(|slab| self.windows.remove(slab)).map(|opened| opened.window).collect();
        self.take_idle(who);
        (pairs, windows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type TestSessions = Sessions<u8, u32, &'static str>;

    const WHO: BorrowerId = BorrowerId(1);
    const OTHER: BorrowerId = BorrowerId(2);

    fn domain(sessions: &mut TestSessions, who: BorrowerId) -> Arc<u8> {
        sessions.domain(who, || Ok::<_, ()>(0)).unwrap()
    }

    /// Two borrowers: each with a queue pair, and the first one with windows on the slabs 3 and 4, the second one with
    /// one on 5.
    fn two_borrowers() -> TestSessions {
        let mut sessions = TestSessions::default();
        for (who, slabs) in [(WHO, &[3, 4][..]), (OTHER, &[5][..])] {
            sessions.enter(who);
            let domain = domain(&mut sessions, who);
            assert_eq!(sessions.keep(who, 7, &domain, 70), Ok(None));
            for slab in slabs {
                sessions.open(who, LentSlab(*slab), 10, 100 + slab, "window");
            }
        }
        sessions
    }

    #[test]
    fn a_window_is_for_one_token_and_is_taken_by_a_newer_one() {
        let mut sessions = two_borrowers();
        assert_eq!((sessions.known(LentSlab(3), 10), sessions.known(LentSlab(3), 11)), (Known::Key(103), Known::Other));
        assert!(sessions.take_before(LentSlab(3), 10).is_none(), "it is for that token itself");
        assert!(sessions.take_before(LentSlab(3), 11).is_some_and(|opened| opened.who == WHO));
        assert_eq!(
            (sessions.known(LentSlab(3), 10), sessions.known(LentSlab(3), 11)),
            (Known::Nothing, Known::Nothing)
        );
    }

    #[test]
    fn a_borrower_whose_window_cannot_be_closed_loses_its_queue_pairs() {
        let mut sessions = two_borrowers();
        let before = domain(&mut sessions, WHO);
        let opened = sessions.take_before(LentSlab(3), u64::MAX).unwrap();
        let (pairs, windows) = sessions.cast_out(opened.who);
        assert_eq!((pairs.len(), windows.len()), (1, 1));
        assert_eq!(sessions.known(LentSlab(4), 10), Known::Nothing, "what is of the domain before is closed, too");
        assert_eq!(sessions.keep(WHO, 7, &before, 71), Err(71), "one that was being made meanwhile does not stay");
        let after = domain(&mut sessions, WHO);
        assert!(!Arc::ptr_eq(&before, &after));
        assert_eq!(sessions.keep(WHO, 7, &after, 72), Ok(None), "it may come again");
        assert_eq!(sessions.known(LentSlab(5), 10), Known::Key(105), "nobody else notices");
        assert_eq!(sessions.make_room(OTHER, 7), Ok(Some(70)));
    }

    #[test]
    fn a_key_that_was_given_back_is_not_given_out_again_soon() {
        let mut sessions = two_borrowers();
        assert!(sessions.is_new(WHO, 103), "it is open, and so nobody else's");
        sessions.take_before(LentSlab(3), 11);
        assert!(!sessions.is_new(WHO, 103) && sessions.is_new(OTHER, 103), "another one has another domain");
        for slab in 1000..1000 + KEYS_KEPT as u32 {
            sessions.open(WHO, LentSlab(slab), 1, slab, "window");
            sessions.take_before(LentSlab(slab), 2);
        }
        assert!(sessions.is_new(WHO, 103) && !sessions.is_new(WHO, 1000));
    }

    #[test]
    fn a_borrower_stays_until_its_connections_and_windows_are_gone() {
        let mut sessions = two_borrowers();
        let (pairs, gone) = sessions.leave(WHO);
        assert!(pairs == [70] && gone.is_none(), "it reaches nothing without a connection, and its windows stay");
        let its = domain(&mut sessions, WHO);
        assert_eq!(sessions.keep(WHO, 7, &its, 71), Err(71), "nor does one that was being made meanwhile");
        for slab in [3, 4] {
            assert!(sessions.take_before(LentSlab(slab), 11).is_some());
            assert_eq!(sessions.closed(WHO).is_some(), slab == 4);
        }
        let gone = Arc::new(0);
        assert_eq!(sessions.keep(WHO, 7, &gone, 71), Err(71), "a pair that was being made does not stay without it");
    }

    #[test]
    fn queue_pairs_have_a_bound_and_the_newest_of_a_number_counts() {
        let mut sessions = two_borrowers();
        let its = domain(&mut sessions, WHO);
        for number in 100..100 + PAIRS_MAX as u32 - 1 {
            assert_eq!(
                (sessions.make_room(WHO, number), sessions.keep(WHO, number, &its, number)),
                (Ok(None), Ok(None))
            );
        }
        assert_eq!(sessions.make_room(WHO, 99), Err(TooMany));
        assert_eq!(sessions.keep(WHO, 99, &its, 99), Err(99));
        assert_eq!(sessions.keep(WHO, 100, &its, 1), Ok(Some(100)), "two of the same number at once");
        assert_eq!(sessions.make_room(WHO, 100), Ok(Some(1)));
    }
}
