// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The list of revoked certificates: made from the store, signed again before it expires, and written to its file.

use std::sync::atomic::Ordering;

use aquifer_authority::{LIST_DAYS, Revocations, Validity};
use aquifer_fabric::Millis;

use super::certificates::{CERTIFICATES, Issued};
use super::{DAY_MS, Issuance, locked, write};
use crate::manager_store::{ManagerStore, ManagerStoreFailure};

/// The list of revoked certificates, as this manager has made it last.
pub(super) struct Listed {
    pub(super) list: Revocations,
    /// Serial numbers, and when each certificate was revoked.
    revoked: Vec<(String, Millis)>,
    validity: Validity,
}

impl Issuance {
    /// Signs the list again if two thirds of its validity are over. Otherwise writes its file again, if that does not
    /// have it.
    pub(crate) fn renew_list(&self, now: Millis) -> Result<(), String> {
        let mut kept = locked(&self.listed);
        let Some(listed) = kept.as_ref() else { return Ok(()) };
        if !listed.validity.is_due(now) {
            return self.write_list(listed);
        }
        let revoked = listed.revoked.clone();
        self.replace_list(&mut kept, revoked, now)
    }

    fn write_list(&self, listed: &Listed) -> Result<(), String> {
        write(&self.place("revocations.pem"), &listed.list.list)
    }

    /// Returns the list of revoked certificates, in PEM.
    pub(crate) fn current_list(&self) -> Option<String> {
        locked(&self.listed).as_ref().map(|found| found.list.list.to_string())
    }

    /// Returns the serial numbers on the list that is handed out.
    #[cfg(test)]
    pub(crate) fn listed_serials(&self) -> Vec<String> {
        locked(&self.listed).iter().flat_map(|found| &found.revoked).map(|(serial, _)| serial.clone()).collect()
    }

    /// Makes the list from the store: after a revocation, and when this manager begins to lead.
    pub(crate) fn read_list(
        &self,
        store: &ManagerStore,
        now: Millis,
    ) -> Result<Result<(), String>, ManagerStoreFailure> {
        let revoked = store
            .all::<Issued>(CERTIFICATES)?
            .into_iter()
            .filter_map(|(serial, issued)| Some((serial, issued.revoked?)));
        Ok(self.list(revoked.collect(), now))
    }

    /// Forgets the list, because this manager leads no longer: it hands out and signs none before it has read the
    /// store.
    pub(crate) fn forget_list(&self) {
        *locked(&self.listed) = None;
    }

    /// Makes the list and its file.
    pub(super) fn list(&self, revoked: Vec<(String, Millis)>, now: Millis) -> Result<(), String> {
        self.replace_list(&mut locked(&self.listed), revoked, now)
    }

    /// Signs a list, hands it out from now on, and writes its file. The list's number grows, even if the clock is set
    /// back.
    fn replace_list(
        &self,
        kept: &mut Option<Listed>,
        revoked: Vec<(String, Millis)>,
        now: Millis,
    ) -> Result<(), String> {
        let number = now.0.max(self.number.load(Ordering::Relaxed) + 1);
        let mut text = String::new();
        for authority in std::iter::once(&self.authority).chain(self.second.as_ref().map(|second| &second.authority)) {
            let list = authority.revocations(&revoked, number, now).map_err(|not| not.to_string())?;
            text.push_str(&list.list);
        }
        let list = Revocations { number, list: text.into() };
        // The lock orders the lists.
        self.number.store(number, Ordering::Relaxed);
        let validity = Validity { from: now, until: Millis(now.0.saturating_add(u64::from(LIST_DAYS) * DAY_MS)) };
        // Donors and hosts get the list even if its file cannot be written.
        self.write_list(kept.insert(Listed { list, revoked, validity }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;

    use aquifer_control::Issuer;

    use super::super::Renewals;
    use super::*;
    use crate::config::Config;
    use crate::rest::now;

    fn issuance(name: &str) -> (PathBuf, Issuance) {
        let directory = std::env::temp_dir().join(format!("aquifer-{name}-{}", std::process::id()));
        let text = format!("state = {directory:?}\n[peers]\nkind = \"simulated\"\n[ca]\n");
        let opened = Issuance::open(&mut Config::parse(&text).expect("enough"));
        (directory, opened.expect("usable").expect("there is one"))
    }

    /// A list that is not renewed expires, and programs then refuse to start.
    #[test]
    fn a_list_is_signed_again_even_if_the_managers_own_certificate_cannot_be() {
        let (directory, issuance) = issuance("both");
        let start = now();
        issuance.list(Vec::new(), start).expect("written");
        let own = issuance.place("manager.pem");
        fs::remove_file(&own).expect("ours");
        fs::create_dir(&own).expect("no file can replace it");
        let later = Millis(start.0 + 21 * DAY_MS);
        let why = issuance.renew(later).expect_err("it cannot be written");
        assert!(why.contains("manager.pem"), "{why}");
        assert_eq!(locked(&issuance.listed).as_ref().map(|listed| listed.list.number), Some(later.0));
        fs::remove_dir_all(&directory).expect("ours");
    }

    /// The revoked certificate stayed off every list until the next revocation: nothing was reported, and nothing tried
    /// again.
    #[test]
    fn a_revocation_is_handed_out_and_its_file_is_written_later_if_it_cannot_be_now() {
        let (directory, issuance) = issuance("full");
        let start = now();
        issuance.list(Vec::new(), start).expect("written");
        let file = issuance.place("revocations.pem");
        fs::remove_file(&file).expect("ours");
        fs::create_dir(&file).expect("no file can replace it");
        let why = issuance.list(vec![("0a".to_owned(), start)], start).expect_err("it cannot be written");
        assert!(why.contains("revocations.pem") && why.contains("; "), "{why}");
        assert_eq!(issuance.listed_serials(), ["0a"]);
        issuance.renew_list(start).expect_err("it still cannot be written");
        fs::remove_dir(&file).expect("ours");
        issuance.renew_list(start).expect("written");
        assert_eq!(fs::read_to_string(&file).ok(), issuance.current_list());
        fs::remove_dir_all(&directory).expect("ours");
    }

    /// While this manager stood by, another one may have revoked more.
    #[test]
    fn a_manager_that_leads_no_longer_hands_out_no_list_and_signs_none() {
        let (directory, issuance) = issuance("tenure");
        let (issuance, start) = (Arc::new(issuance), now());
        let handed_out = || Renewals(Arc::clone(&issuance)).revocations().map(|list| list.number);
        assert_eq!((handed_out(), issuance.current_list()), (None, None), "nothing was read yet");
        issuance.list(Vec::new(), start).expect("written");
        let first = handed_out().expect("it leads");
        issuance.forget_list();
        let file = || fs::read_to_string(issuance.place("revocations.pem")).expect("there is one");
        let before = file();
        issuance.renew(Millis(start.0 + 21 * DAY_MS)).expect("written");
        assert_eq!((handed_out(), file()), (None, before));
        issuance.list(Vec::new(), Millis(0)).expect("written");
        assert!(handed_out() > Some(first), "the number grows, even if the clock is set back");
        fs::remove_dir_all(&directory).expect("ours");
    }

    /// A manager may lead for months without a revocation, and programs refuse to start with an expired list.
    #[test]
    fn a_list_is_signed_again_before_it_expires() {
        let (directory, issuance) = issuance("list");
        let (start, revoked) = (now(), vec![("0a".to_owned(), now())]);
        issuance.list(revoked.clone(), start).expect("written");
        let kept = || locked(&issuance.listed).as_ref().map(|listed| (listed.list.number, listed.revoked.clone()));
        let after = |days: u64| Millis(start.0 + days * DAY_MS);
        let first = kept();
        issuance.renew_list(after(19)).expect("not due");
        assert_eq!(kept(), first);
        issuance.renew_list(after(21)).expect("written");
        let (number, still) = kept().expect("there is one");
        assert_eq!((number, still), (after(21).0, revoked), "a new number, so that it is sent to donors and hosts");
        assert_eq!(fs::read_to_string(issuance.place("revocations.pem")).ok(), issuance.current_list());
        issuance.renew_list(after(22)).expect("not due");
        assert_eq!(kept().expect("there is one").0, number);
        fs::remove_dir_all(&directory).expect("ours");
    }
}
