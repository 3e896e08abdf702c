// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Limits guessing: locks an account for a network after wrong passwords in a row from there, and limits the logins of
//! one network. Pure.
//!
//! Not the whole account: then any stranger could keep its owner out.

use std::collections::BTreeMap;
use std::net::IpAddr;

use aquifer_control::network;
use aquifer_fabric::Millis;

use crate::config::SessionsConfig;

/// Networks, and names with networks, that are remembered. When there are more, those whose time is over are forgotten,
/// and then all: memory stays bounded whatever strangers send.
const REMEMBERED_MAX: usize = 4096;
const MINUTE_MS: u64 = 60_000;

/// Why an attempt is refused before its password is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooMany {
    /// The account is locked for this network.
    Locked { seconds: u64 },
    /// The network has tried too often.
    Rate { seconds: u64 },
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    count: u32,
    /// When the count restarts from 0, or the lock ends.
    until: u64,
}

/// Recent attempts, by network, and by network and account.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    networks: BTreeMap<IpAddr, Count>,
    accounts: BTreeMap<(IpAddr, String), Count>,
}

fn make_room<K: Ord>(map: &mut BTreeMap<K, Count>, now: Millis) {
    if map.len() >= REMEMBERED_MAX {
        map.retain(|_, count| count.until > now.0);
    }
    if map.len() >= REMEMBERED_MAX {
        map.clear();
    }
}

impl Attempts {
    /// Counts an attempt, before the password is checked.
    pub(crate) fn begin(
        &mut self,
        config: &SessionsConfig,
        address: IpAddr,
        account: &str,
        now: Millis,
    ) -> Result<(), TooMany> {
        make_room(&mut self.networks, now);
        let network = network(address);
        let rate = self.networks.entry(network).or_default();
        // An instant further away was noted before the clock was set back.
        if rate.until <= now.0 || rate.until > now.0 + MINUTE_MS {
            *rate = Count { count: 0, until: now.0 + MINUTE_MS };
        }
        let seconds = |until: u64| (until - now.0).div_ceil(1000);
        if rate.count >= config.logins_per_minute {
            return Err(TooMany::Rate { seconds: seconds(rate.until) });
        }
        rate.count += 1;
        let key = (network, account.to_owned());
        let mut lock = self.accounts.get(&key).copied().unwrap_or_default();
        let until_max = now.0 + config.locked_seconds * 1000;
        if lock.until > until_max {
            lock.until = until_max;
            self.accounts.insert(key, lock);
        }
        if lock.count >= config.failures && lock.until > now.0 {
            return Err(TooMany::Locked { seconds: seconds(lock.until) });
        }
        Ok(())
    }

    /// Counts a wrong password.
    pub(crate) fn fail(&mut self, config: &SessionsConfig, address: IpAddr, account: &str, now: Millis) {
        make_room(&mut self.accounts, now);
        let lock = self.accounts.entry((network(address), account.to_owned())).or_default();
        if lock.until <= now.0 {
            lock.count = 0;
        }
        *lock = Count { count: lock.count + 1, until: now.0 + config.locked_seconds * 1000 };
    }

    /// Forgets the wrong passwords, because the right one was given.
    pub(crate) fn succeed(&mut self, address: IpAddr, account: &str) {
        self.accounts.remove(&(network(address), account.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn wrong_passwords_lock_an_account_for_a_while() {
        let config = SessionsConfig { failures: 3, locked_seconds: 10, ..SessionsConfig::default() };
        let mut attempts = Attempts::default();
        for _ in 0..3 {
            assert_eq!(attempts.begin(&config, ADDRESS, "amy", Millis(0)), Ok(()));
            attempts.fail(&config, ADDRESS, "amy", Millis(0));
        }
        assert_eq!(attempts.begin(&config, ADDRESS, "amy", Millis(1)), Err(TooMany::Locked { seconds: 10 }));
        assert_eq!(attempts.begin(&config, ADDRESS, "bob", Millis(1)), Ok(()));
        assert_eq!(attempts.begin(&config, ADDRESS, "amy", Millis(10_000)), Ok(()));
        attempts.fail(&config, ADDRESS, "amy", Millis(10_000));
        attempts.succeed(ADDRESS, "amy");
        assert_eq!(attempts.begin(&config, ADDRESS, "amy", Millis(10_001)), Ok(()));
    }

    #[test]
    fn an_address_has_so_many_logins_in_a_minute() {
        let config = SessionsConfig { logins_per_minute: 2, ..SessionsConfig::default() };
        let mut attempts = Attempts::default();
        assert_eq!(attempts.begin(&config, ADDRESS, "a", Millis(0)), Ok(()));
        assert_eq!(attempts.begin(&config, ADDRESS, "b", Millis(0)), Ok(()));
        assert_eq!(attempts.begin(&config, ADDRESS, "c", Millis(30_000)), Err(TooMany::Rate { seconds: 30 }));
        assert_eq!(attempts.begin(&config, ADDRESS, "c", Millis(60_000)), Ok(()));
    }

    /// Anybody could lock the administrators' accounts, from anywhere, for as long as they liked.
    #[test]
    fn a_stranger_locks_an_account_for_no_other_network() {
        let config = SessionsConfig { failures: 1, ..SessionsConfig::default() };
        let [stranger, near, owner] =
            ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"].map(|text| text.parse().expect("an address"));
        let mut attempts = Attempts::default();
        assert_eq!(attempts.begin(&config, stranger, "amy", Millis(0)), Ok(()));
        attempts.fail(&config, stranger, "amy", Millis(0));
        assert_eq!(attempts.begin(&config, owner, "amy", Millis(1)), Ok(()));
        assert!(attempts.begin(&config, near, "amy", Millis(1)).is_err(), "another address of the same machine");
    }

    #[test]
    fn a_clock_that_is_set_back_locks_nobody_longer_than_from_then_on() {
        let config =
            SessionsConfig { failures: 1, locked_seconds: 10, logins_per_minute: 1, ..SessionsConfig::default() };
        let (late, early) = (Millis(1_000_000_000), Millis(1000));
        let mut attempts = Attempts::default();
        assert_eq!(attempts.begin(&config, ADDRESS, "amy", late), Ok(()));
        attempts.fail(&config, ADDRESS, "amy", late);
        assert_eq!(attempts.begin(&config, ADDRESS, "amy", early), Err(TooMany::Locked { seconds: 10 }));
        assert_eq!(attempts.begin(&config, ADDRESS, "bob", Millis(61_000)), Ok(()));
        assert_eq!(attempts.begin(&config, ADDRESS, "amy", Millis(121_000)), Ok(()), "and the lock ends");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let config = SessionsConfig::default();
        let mut attempts = Attempts::default();
        for number in 0..3 * REMEMBERED_MAX {
            attempts.fail(&config, ADDRESS, &format!("name{number}"), Millis(0));
        }
        assert!(attempts.accounts.len() <= REMEMBERED_MAX);
    }
}
