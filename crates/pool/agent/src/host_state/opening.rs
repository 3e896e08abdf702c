// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which volume a program means when it opens one, and whether it may open it. Pure.
//!
//! A program that connects again, and its forked children, mean the volume that the program has open, although another
//! volume may have got its name meanwhile, and although the permit may be gone. For all others, a text is, in this
//! order: the name in a permit with an id, an id, the name that the manager gave a volume of this host.
//!
//! A user who may not open a volume gets the same answer whether it exists or not.
//!
//! Next on the path: `users.rs`, which notes the new user.

use std::collections::BTreeMap;

use aquifer_fabric::VolumeId;

use super::users::User;
use super::{HostState, UserId};
use crate::permits::Permits;
use crate::processes::Process;

/// A program that opens a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening<'a> {
    /// The volume's name or its id, as the program has written it.
    pub(crate) volume: &'a str,
    pub(crate) process: Process,
    /// The number that the program has drawn for this use. Its forked children have the same one.
    pub(crate) session: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The members that it has memory of.
    pub(crate) holds: &'a [u64],
}

/// Why a program cannot open a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Several volumes have the name.
    Ambiguous(Vec<VolumeId>),
    /// There is no room for another user.
    Busy,
    /// There is no such volume on this host.
    NotBound,
    /// Its user may not open it, if it exists.
    NotPermitted,
}

impl Opening<'_> {
    /// Returns whether this is the same use of a volume: by the same process, or by a forked child of the same user. A
    /// process that the agent cannot see may be any that its user runs.
    fn continues(&self, user: &User) -> bool {
        let is_same_process = user.process == self.process && self.process.pid != 0;
        let is_same_use = user.session == self.session && user.opened_as == self.volume;
        is_same_use && (is_same_process || user.uid == self.uid)
    }
}

impl HostState {
    /// Opens the volume that a program means, if it may open it and there is room for it.
    pub(crate) fn admit_program(
        &mut self,
        opening: Opening<'_>,
        permits: &Permits,
        programs_max: usize,
    ) -> Result<UserId, Refusal> {
        let Opening { volume, process, session, uid, holds, .. } = opening;
        let id = UserId { volume: self.find(opening, permits)?, process, session };
        if !self.has_room(id, uid, programs_max) {
            return Err(Refusal::Busy);
        }
        if !self.open(id, uid, holds) {
            return Err(Refusal::NotBound);
        }
        let user = self.user(id).expect("it was just added");
        if user.opened_as.is_empty() {
            volume.clone_into(&mut user.opened_as);
        }
        Ok(id)
    }

    fn find(&self, opening: Opening<'_>, permits: &Permits) -> Result<VolumeId, Refusal> {
        let Opening { volume: text, uid, gid, holds, .. } = opening;
        if let Some(user) = self.users.iter().find(|user| opening.continues(user)) {
            return Ok(user.volume);
        }
        let permit = permits.of_volume(text);
        let id = permit.map(|permit| permit.id).or_else(|| VolumeId::try_from(text.to_owned()).ok());
        if let Some(id) = id {
            let is_listed = permit.is_some_and(|permit| permit.users.include(uid, gid));
            let is_named = || self.name_of(id).is_some_and(|name| permits.allow_name(name, uid, gid));
            return if uid == 0 || is_listed || is_named() { Ok(id) } else { Err(Refusal::NotPermitted) };
        }
        if !permits.allow_name(text, uid, gid) {
            return Err(Refusal::NotPermitted);
        }
        // A program that has memory already may go on in a volume that has been withdrawn since.
        let may_be_withdrawn = !holds.is_empty();
        let volumes = self.volumes.iter().filter(|(_, held)| may_be_withdrawn || !held.is_withdrawn);
        let found: Vec<VolumeId> = volumes.map(|(id, _)| *id).filter(|id| self.name_of(*id) == Some(text)).collect();
        match found[..] {
            [] => Err(Refusal::NotBound),
            [id] => Ok(id),
            _ => Err(Refusal::Ambiguous(found)),
        }
    }

    /// Returns the name that the manager gave a volume of this host. A volume that an older manager has presented, or
    /// that an older agent has taken, has none.
    pub(super) fn name_of(&self, id: VolumeId) -> Option<&str> {
        self.volumes.get(&id)?.report.name.as_ref().map(|name| name.as_str())
    }

    /// Returns the names by which new programs open volumes as the manager has named them: those that mean one bound
    /// volume and nothing else.
    pub(super) fn plain_names(&self, permits: &Permits) -> BTreeMap<VolumeId, &str> {
        let mut volumes_of: BTreeMap<&str, Vec<VolumeId>> = BTreeMap::new();
        for (id, _) in self.volumes.iter().filter(|(_, held)| !held.is_withdrawn) {
            if let Some(name) = self.name_of(*id) {
                volumes_of.entry(name).or_default().push(*id);
            }
        }
        let means_something_else =
            |name: &str| permits.of_volume(name).is_some() || VolumeId::try_from(name.to_owned()).is_ok();
        let names = volumes_of.into_iter().filter(|(name, _)| !means_something_else(name));
        names.filter_map(|(name, ids)| Some((*ids.first().filter(|_| ids.len() == 1)?, name))).collect()
    }
}

#[cfg(test)]
mod tests {
    use aquifer_fabric::{Bytes, Command, MemberLease, Place, Presentation, Source, SpanId, Step, Token, VolumeName};

    use super::*;
    use crate::settings::Settings;

    /// A user of the host, in group 9.
    const USER: u32 = 5;
    const A: VolumeId = VolumeId(0xa1);
    const B: VolumeId = VolumeId(0xb2);

    fn permits(tables: &str) -> Permits {
        let text = format!("host = 'web-1'\n[manager]\naddresses = ['m:1']\n{tables}");
        text.parse::<Settings>().expect(tables).volumes
    }

    fn by_name(pattern: &str) -> Permits {
        permits(&format!("[[volume]]\nname = '{pattern}'\nuids = [{USER}]\n"))
    }

    struct Bench(HostState, u64);

    impl Bench {
        /// Creates a host with these volumes, each with member 1.
        fn with(volumes: &[(VolumeId, &str)]) -> Bench {
            let mut bench = Bench(HostState::new("boot"), 0);
            volumes.iter().for_each(|(id, name)| bench.present(*id, Some(name)));
            bench
        }

        fn order(&mut self, step: Step) {
            self.1 += 1;
            let (term, incarnation) = (self.0.term.max(aquifer_fabric::Term(1)), self.0.incarnation);
            let command = Command { term, sequence: self.1, incarnation, step, cause: None };
            self.0.carry_out(&command).expect("it is admitted");
            self.0.settle();
        }

        fn present(&mut self, volume: VolumeId, name: Option<&str>) {
            let lease = MemberLease {
                member: MEMBER,
                place: Place { span: SpanId(0), shard: 0 },
                source: Source::Slabs { donor: "d".parse().expect("a name") },
                bytes: Bytes::slabs(8),
                token: Token(1),
            };
            let name = name.map(|name| name.parse::<VolumeName>().expect("a name"));
            let (host, presentation) = ("web-1".parse().expect("a name"), Presentation::OneRange);
            let redundancy = aquifer_fabric::Redundancy::None;
            self.order(Step::Present { host, volume, name, redundancy, presentation, members: vec![lease] });
        }

        fn withdraw(&mut self, volume: VolumeId) {
            let host = "web-1".parse().expect("a name");
            self.order(Step::Withdraw { host, volume, members: vec![MEMBER] });
        }

        /// Opens a volume, with a new process and a new session each time.
        fn open(&mut self, permits: &Permits, uid: u32, volume: &str) -> Result<VolumeId, Refusal> {
            self.1 += 1;
            self.open_as(
                permits,
                Opening { volume, process: process(self.1), session: self.1, uid, gid: 9, holds: &[] },
            )
        }

        fn open_as(&mut self, permits: &Permits, opening: Opening<'_>) -> Result<VolumeId, Refusal> {
            self.0.admit_program(opening, permits, 1000).map(|user| user.volume)
        }

        fn names(&self, permits: &Permits, uid: u32) -> Vec<(String, bool)> {
            let listing = self.0.listing(permits, uid, 9).into_iter();
            listing.map(|volume| (format!("{}={}", volume.name, volume.id), volume.is_bound)).collect()
        }
    }

    const MEMBER: aquifer_fabric::MemberId = aquifer_fabric::MemberId(1);

    fn process(number: u64) -> Process {
        Process { pid: 1000 + number as u32, started: 5 }
    }

    #[test]
    fn root_opens_every_volume_by_name_and_by_id() {
        let (mut bench, none) = (Bench::with(&[(A, "db"), (B, "web-1")]), Permits::default());
        for (text, id) in [("db", A), (&*A.to_string(), A), ("web-1", B)] {
            assert_eq!(bench.open(&none, 0, text), Ok(id), "{text}");
            assert_eq!(bench.open(&none, USER, text), Err(Refusal::NotPermitted), "{text}");
        }
        for text in ["other", "00000000000000c3", "A b", ""] {
            assert_eq!(bench.open(&none, 0, text), Err(Refusal::NotBound), "{text}");
        }
    }

    #[test]
    fn a_permit_by_name_is_for_volumes_that_are_bound_later() {
        let (mut bench, permits) = (Bench::with(&[(A, "db")]), by_name("web-*"));
        assert_eq!(bench.open(&permits, USER, "web-1"), Err(Refusal::NotBound));
        assert_eq!(bench.open(&permits, USER, &B.to_string()), Err(Refusal::NotPermitted));
        bench.present(B, Some("web-1"));
        assert_eq!(bench.open(&permits, USER, "web-1"), Ok(B));
        assert_eq!(bench.open(&permits, USER, &B.to_string()), Ok(B));
        assert_eq!(bench.open(&permits, USER + 1, "web-1"), Err(Refusal::NotPermitted));
        // Neither by name nor by id, and whether they exist or not.
        for text in ["db", &*A.to_string(), "00000000000000c3", "other", "A b"] {
            assert_eq!(bench.open(&permits, USER, text), Err(Refusal::NotPermitted), "{text}");
        }
    }

    #[test]
    fn a_name_in_a_permit_with_an_id_means_that_volume_for_everybody() {
        let mut bench = Bench::with(&[(A, "db"), (B, "other")]);
        // On this host, 'db' is the volume that the manager calls 'other'.
        let of_b = format!("[[volume]]\nname = 'db'\nid = '{B}'\nuids = [{USER}]\n");
        let both =
            permits(&format!("{of_b}[[volume]]\nname = 'd*'\nuids = [6]\n[[volume]]\nname = 'o*'\nuids = [7]\n"));
        assert_eq!(bench.open(&both, USER, "db"), Ok(B));
        assert_eq!(bench.open(&both, 0, "db"), Ok(B));
        assert_eq!(bench.open(&both, 6, "db"), Err(Refusal::NotPermitted), "not the volume that has another name");
        assert_eq!(bench.open(&both, 6, &A.to_string()), Ok(A));
        assert_eq!(bench.open(&both, 7, "db"), Ok(B), "a user who may open it may use each of its names");
        assert_eq!(bench.open(&both, USER, "other"), Err(Refusal::NotPermitted), "its permit names it otherwise");
        let unbound = permits("[[volume]]\nname = 'db'\nid = '00000000000000c3'\nuids = [5]\n");
        assert_eq!(bench.open(&unbound, USER, "db"), Err(Refusal::NotBound), "it is not the other 'db'");
    }

    #[test]
    fn a_name_of_several_volumes_is_refused_with_their_ids() {
        let (mut bench, permits) = (Bench::with(&[(A, "db"), (B, "db")]), by_name("*"));
        for uid in [0, USER] {
            assert_eq!(bench.open(&permits, uid, "db"), Err(Refusal::Ambiguous(vec![A, B])));
            assert_eq!(bench.open(&permits, uid, &B.to_string()), Ok(B));
        }
        assert_eq!(bench.open(&permits, 6, "db"), Err(Refusal::NotPermitted), "not even that it is ambiguous");
        let chosen = self::permits(&format!("[[volume]]\nname = 'db'\nid = '{B}'\nuids = [{USER}]\n"));
        assert_eq!(bench.open(&chosen, USER, "db"), Ok(B));
        assert_eq!(bench.open(&chosen, 0, "db"), Ok(B));
    }

    #[test]
    fn the_form_of_an_id_is_an_id_and_never_a_name() {
        let (mut bench, permits) = (Bench::with(&[(A, &B.to_string())]), by_name("*"));
        assert_eq!(
            bench.open(&permits, 0, &B.to_string()),
            Err(Refusal::NotBound),
            "another volume has it as its name"
        );
        assert_eq!(bench.open(&permits, USER, &B.to_string()), Err(Refusal::NotPermitted));
        assert_eq!(bench.open(&permits, USER, &A.to_string()), Ok(A));
        assert_eq!(bench.names(&permits, USER), [(format!("{A}={A}"), true)]);
    }

    #[test]
    fn a_volume_without_a_name_opens_by_its_id_alone() {
        let (mut bench, permits) = (Bench::with(&[]), by_name("*"));
        bench.present(A, None);
        assert_eq!(bench.open(&permits, 0, &A.to_string()), Ok(A));
        assert_eq!(bench.open(&permits, USER, &A.to_string()), Err(Refusal::NotPermitted));
        assert_eq!((bench.names(&permits, 0), bench.names(&permits, USER)), (vec![(format!("{A}={A}"), true)], vec![]));
    }

    /// A volume that is unbound stays until its programs have ended, and meanwhile another one may get its name. If a
    /// program that connects again got that one, the agent would let its memory in the first one go.
    #[test]
    fn a_program_and_its_forked_children_keep_their_volume_when_another_gets_its_name() {
        let (mut bench, permits) = (Bench::with(&[(A, "db")]), by_name("db"));
        let program = Opening { volume: "db", process: process(0), session: 7, uid: USER, gid: 9, holds: &[] };
        assert_eq!(bench.open_as(&permits, program), Ok(A));
        bench.withdraw(A);
        bench.present(B, Some("db"));
        assert_eq!(bench.open(&permits, USER, "db"), Ok(B));
        let again = Opening { holds: &[1], ..program };
        let child = Opening { process: process(500), ..again };
        let stored = bench.0.to_store();
        bench.0 = serde_json::from_slice(&stored).expect("a state");
        for opening in [program, again, child] {
            assert_eq!(bench.open_as(&permits, opening), Ok(A), "{opening:?}");
        }
        // A process that nobody knows, and that has memory of one of them.
        let stranger = Opening { process: process(501), session: 8, ..again };
        assert_eq!(bench.open_as(&permits, stranger), Err(Refusal::Ambiguous(vec![A, B])));
    }

    #[test]
    fn a_program_keeps_its_volume_when_its_permit_is_removed() {
        let (mut bench, permits, none) = (Bench::with(&[(A, "db")]), by_name("db"), Permits::default());
        let program = Opening { volume: "db", process: process(0), session: 7, uid: USER, gid: 9, holds: &[] };
        assert_eq!(bench.open_as(&permits, program), Ok(A));
        let children = [Opening { process: process(500), ..program }, Opening { uid: 6, ..program }];
        for opening in [program, Opening { holds: &[1], ..program }].into_iter().chain(children) {
            assert_eq!(bench.open_as(&none, opening), Ok(A), "{opening:?}");
        }
        for opening in [
            Opening { session: 8, ..program },
            Opening { process: process(501), uid: 6, ..program },
            Opening { volume: "00000000000000a1", process: process(502), ..program },
        ] {
            assert_eq!(bench.open_as(&none, opening), Err(Refusal::NotPermitted), "{opening:?}");
        }
        // Programs that the agent cannot see have the same number.
        let hidden = Opening { process: Process { pid: 0, started: 0 }, session: 9, ..program };
        assert_eq!(bench.open_as(&permits, hidden), Ok(A));
        assert_eq!(bench.open_as(&none, hidden), Ok(A));
        assert_eq!(bench.open_as(&none, Opening { uid: 6, ..hidden }), Err(Refusal::NotPermitted));
    }

    #[test]
    fn a_listing_has_the_names_that_open_the_volumes() {
        let mut bench = Bench::with(&[(A, "db"), (B, "db"), (VolumeId(0xc3), "web-1"), (VolumeId(0xd4), "old")]);
        let permits = permits(&format!(
            "[[volume]]\nname = '*'\nuids = [{USER}]\n[[volume]]\nname = 'old'\nid = '00000000000000e5'\nuids = [6]\n\
             [[volume]]\nname = 'mine'\nid = '{A}'\nuids = [6, 7]\n[[volume]]\nname = 'web-*'\nuids = [7]\n"
        ));
        let bound = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), true)).collect::<Vec<_>>();
        let unnamed = ["00000000000000b2=00000000000000b2", "00000000000000d4=00000000000000d4"];
        assert_eq!(
            bench.names(&permits, USER),
            bound(&["00000000000000a1=00000000000000a1", unnamed[0], unnamed[1], "web-1=00000000000000c3"])
        );
        let old = ("old=00000000000000e5".to_owned(), false);
        let mine = "mine=00000000000000a1";
        assert_eq!(bench.names(&permits, 6), [(mine.to_owned(), true), old.clone()]);
        assert_eq!(bench.names(&permits, 7), bound(&[mine, "web-1=00000000000000c3"]));
        let mut all = bound(&[unnamed[0], unnamed[1], mine, "web-1=00000000000000c3"]);
        all.insert(3, old);
        assert_eq!(bench.names(&permits, 0), all);
        for uid in [0, USER, 7] {
            for volume in bench.0.listing(&permits, uid, 9).into_iter().filter(|volume| volume.is_bound) {
                assert_eq!(bench.open(&permits, uid, &volume.name).map(|id| id.to_string()), Ok(volume.id));
            }
        }
    }
}
