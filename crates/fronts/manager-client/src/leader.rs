// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finds the leader among the managers of a pool.
//!
//! A standby names the leader. The command follows that name only to a manager that the user has named, with the same
//! scheme, so that no answer can make it send passwords and tokens elsewhere. TLS checks the leader's certificate as it
//! checked the standby's. A member that cannot be reached is passed over.

use std::cell::RefCell;

use crate::address::Address;
use crate::failure::{Failure, failed, usage};

/// Maximum number of redirects of a command. If standbys name each other, the pool has no leader.
const HOPS_MAX: usize = 3;
/// Maximum number of managers.
const MEMBERS_MAX: usize = 16;

/// The managers of a pool, and which one leads as far as is known.
pub(crate) struct Members {
    /// `None` for any, because another check verifies the manager.
    known: Option<Vec<Address>>,
    first: Address,
    leader: RefCell<Address>,
}

impl Members {
    /// Lists the manager that is asked first, and the others.
    pub(crate) fn new(first: &Address, others: &[String]) -> Result<Members, Failure> {
        if others.len() > MEMBERS_MAX {
            return Err(usage(format!("{} members are named; name {MEMBERS_MAX} at most", others.len())));
        }
        let others = others.iter().map(|url| Address::parse(url).map_err(usage));
        let mut known = others.collect::<Result<Vec<Address>, Failure>>()?;
        if let Some(other) = known.iter().find(|other| other.is_https != first.is_https) {
            return Err(usage(format!("{first} and {other} differ in TLS; name all managers with one scheme")));
        }
        known.push(first.clone());
        Ok(Members { known: Some(known), first: first.clone(), leader: first.clone().into() })
    }

    /// Allows any manager as a leader.
    pub(crate) fn any(first: &Address) -> Members {
        Members { known: None, first: first.clone(), leader: first.clone().into() }
    }

    /// Checks the manager to which a standby redirects a client.
    fn next(&self, location: &str) -> Result<Address, Failure> {
        let rest = location.find("://").map_or(location.len(), |at| at + 3);
        let end = location[rest..].find(['/', '?', '#']).map_or(location.len(), |at| rest + at);
        let shown: String = location[..end].chars().take(100).collect();
        let next = Address::parse(&location[..end]).map_err(|_| {
            failed(format!(
                "the manager at {} is a standby, and '{shown}' leads; name the leader in its place",
                self.first
            ))
        })?;
        let is_known = self.known.as_ref().is_none_or(|known| known.contains(&next));
        if next.is_https != self.first.is_https || !is_known {
            return Err(failed(format!(
                "the manager at {} is a standby, and {next} leads, which is none of the members that were named; add \
                 it to them if it belongs to the pool",
                self.first
            )));
        }
        Ok(next)
    }

    /// Returns the member after one.
    fn after(&self, at: &Address) -> Option<Address> {
        let known = self.known.as_ref()?;
        let next = known.iter().position(|member| member == at).map_or(0, |place| place + 1);
        known.get(next % known.len()).cloned()
    }

    /// Follows redirects until a manager does not redirect. `ask` returns the location of a redirect, if it got one.
    ///
    /// To a manager that cannot be reached nothing was sent, so the next member is asked, each once at most. One that
    /// does not answer may have carried the request out, so that is the caller's failure; the next request begins at
    /// another member, which knows who leads by then.
    pub(crate) fn find_leader<T>(
        &self,
        mut ask: impl FnMut(&Address) -> Result<(Option<String>, T), Failure>,
    ) -> Result<T, Failure> {
        let (mut hops, mut unreachable) = (0, Vec::new());
        loop {
            let at = self.leader.borrow().clone();
            let next = match ask(&at) {
                Ok((None, answer)) => return Ok(answer),
                Ok((Some(location), _)) if hops < HOPS_MAX => {
                    hops += 1;
                    self.next(&location)?
                }
                Ok((Some(_), _)) => {
                    return Err(failed(format!(
                        "the managers of {} name each other as the leader; try again in a few seconds",
                        self.first
                    )));
                }
                Err(failure) => {
                    let next = self.after(&at).unwrap_or_else(|| at.clone());
                    self.leader.replace(next.clone());
                    if !failure.is_unsent {
                        return Err(failure);
                    }
                    unreachable.push((at, failure));
                    if unreachable.iter().any(|(tried, _)| *tried == next) {
                        return Err(unreachable.swap_remove(0).1);
                    }
                    next
                }
            };
            self.leader.replace(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::unsent;

    fn address(url: &str) -> Address {
        Address::parse(url).expect(url)
    }

    fn members() -> Members {
        Members::new(&address("https://m1:1"), &["https://m2:1".into(), "https://[2001:db8::3]:1".into()])
            .expect("good")
    }

    #[test]
    fn a_command_is_sent_on_to_members_that_were_named_and_to_nobody_else() {
        for (location, leader) in [
            ("https://m2:1/redfish/v1?x=1", "https://m2:1"),
            ("https://[2001:db8::3]:1/redfish/v1", "https://[2001:db8::3]:1"),
        ] {
            let members = members();
            let mut asked = Vec::new();
            let led = members.find_leader(|at| {
                asked.push(at.to_string());
                Ok(((asked.len() == 1).then(|| location.to_owned()), ()))
            });
            assert_eq!((led, asked), (Ok(()), vec!["https://m1:1".to_owned(), leader.to_owned()]));
        }
        for location in [
            "https://m3:1/redfish/v1",
            "https://m2:2/redfish/v1",
            "http://m2:1/redfish/v1",
            "http://127.0.0.1:1/redfish/v1",
            "https://m2:1@evil:1/",
            "//m2:1/redfish/v1",
            "/redfish/v1",
            "",
            "https://m2:1\r\nx",
        ] {
            let mut count = 0;
            let refused = members().find_leader(|_| {
                count += 1;
                Ok((Some(location.to_owned()), ()))
            });
            let line = refused.expect_err(location).to_string();
            assert!(count == 1 && line.contains("; ") && !line.contains(['\n', '\r']), "{line}");
        }
    }

    #[test]
    fn managers_that_name_each_other_are_asked_a_few_times_only() {
        let (members, mut count) = (members(), 0);
        let refused = members.find_leader(|at| {
            count += 1;
            let other = if *at == address("https://m1:1") { "https://m2:1/" } else { "https://m1:1/" };
            Ok((Some(other.to_owned()), ()))
        });
        assert!(refused.expect_err("nobody leads").to_string().contains("name each other"));
        assert_eq!(count, HOPS_MAX + 1);
    }

    #[test]
    fn a_manager_that_is_gone_is_passed_over_and_a_silent_one_is_not_asked_again() {
        let (gone, silent) = (address("https://m1:1"), address("https://m2:1"));
        let members = members();
        let mut asked = Vec::new();
        let mut ask = |at: &Address| {
            asked.push(at.to_string());
            match *at {
                _ if *at == gone => Err(unsent("m1 is gone; start it")),
                _ if *at == silent => Err(failed("m2 is silent; look at it")),
                _ => Ok((None, 7)),
            }
        };
        // m2 may have carried it out, so nobody else is asked for the same, but the next request is another's.
        assert_eq!(members.find_leader(&mut ask).expect_err("silent").line, "m2 is silent; look at it");
        assert_eq!(members.find_leader(&mut ask), Ok(7));
        assert_eq!(members.find_leader(&mut ask), Ok(7));
        assert_eq!(asked, ["https://m1:1", "https://m2:1", "https://[2001:db8::3]:1", "https://[2001:db8::3]:1"]);
        // Where nobody can be reached, each is asked once, and the first one's failure is the answer.
        let mut count = 0;
        let refused = self::members().find_leader(|at| {
            count += 1;
            Err::<(Option<String>, ()), Failure>(unsent(format!("{at} is gone; start it")))
        });
        assert_eq!((refused.expect_err("gone").line.as_str(), count), ("https://m1:1 is gone; start it", 3));
        let alone = Members::any(&gone);
        assert!(alone.find_leader(|_| Err::<(Option<String>, ()), Failure>(unsent("it is gone; start it"))).is_err());
    }

    #[test]
    fn members_have_the_scheme_of_the_first() {
        assert!(Members::new(&address("http://127.0.0.1:1"), &["https://m2:1".into()]).is_err());
        assert!(Members::new(&address("https://m1:1"), &["http://127.0.0.1:1".into()]).is_err());
        assert!(Members::new(&address("https://m1:1"), &["m2".into()]).is_err());
        assert!(Members::new(&address("https://m1:1"), &vec!["https://m2:1".to_owned(); 17]).is_err());
    }
}
