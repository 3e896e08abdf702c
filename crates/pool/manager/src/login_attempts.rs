// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Limits guessing: locks an account after wrong passwords in a row, and limits logins of one address. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use aquifer_fabric::Millis;

use crate::config::SessionsConfig;

/// Addresses and names that are remembered. When there are more, those whose time is over are forgotten, and then all:
/// memory stays bounded whatever strangers send.
const REMEMBERED_MAX: usize = 4096;
const MINUTE_MS: u64 = 60_000;

/// Why an attempt is refused before its password is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooMany {
    /// The account is locked.
    Locked { seconds: u64 },
    /// The address has tried too often.
    Rate { seconds: u64 },
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    count: u32,
    /// When the count restarts from 0, or the lock ends.
    until: u64,
}

/// Recent attempts, by address and by account.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    addresses: BTreeMap<IpAddr, Count>,
    accounts: BTreeMap<String, Count>,
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
        make_room(&mut self.addresses, now);
        let rate = self.addresses.entry(address).or_default();
        // An instant further away was noted before the clock was set back.
        if rate.until <= now.0 || rate.until > now.0 + MINUTE_MS {
            *rate = Count { count: 0, until: now.0 + MINUTE_MS };
        }
        let seconds = |until: u64| (until - now.0).div_ceil(1000);
        if rate.count >= config.logins_per_minute {
            return Err(TooMany::Rate { seconds: seconds(rate.until) });
        }
        rate.count += 1;
        let mut lock = self.accounts.get(account).copied().unwrap_or_default();
        let until_max = now.0 + config.locked_seconds * 1000;
        if lock.until > until_max {
            lock.until = until_max;
            self.accounts.insert(account.to_owned(), lock);
        }
        if lock.count >= config.failures && lock.until > now.0 {
            return Err(TooMany::Locked { seconds: seconds(lock.until) });
        }
        Ok(())
    }

    /// The password was wrong.
    pub(crate) fn fail(&mut self, config: &SessionsConfig, account: &str, now: Millis) {
        make_room(&mut self.accounts, now);
        let lock = self.accounts.entry(account.to_owned()).or_default();
        if lock.until <= now.0 {
            lock.count = 0;
        }
        *lock = Count { count: lock.count + 1, until: now.0 + config.locked_seconds * 1000 };
    }

    /// The password was right.
    pub(crate) fn succeed(&mut self, account: &str) {
        self.accounts.remove(account);
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
            attempts.fail(&config, "amy", Millis(0));
        }
        assert_eq!(attempts.begin(&config, ADDRESS, "amy", Millis(1)), Err(TooMany::Locked { seconds: 10 }));
        assert_eq!(attempts.begin(&config, ADDRESS, "bob", Millis(1)), Ok(()));
        assert_eq!(attempts.begin(&config, ADDRESS, "amy", Millis(10_000)), Ok(()));
        attempts.fail(&config, "amy", Millis(10_000));
        attempts.succeed("amy");
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

    #[test]
    fn a_clock_that_is_set_back_locks_nobody_longer_than_from_then_on() {
        let config =
            SessionsConfig { failures: 1, locked_seconds: 10, logins_per_minute: 1, ..SessionsConfig::default() };
        let (late, early) = (Millis(1_000_000_000), Millis(1000));
        let mut attempts = Attempts::default();
        assert_eq!(attempts.begin(&config, ADDRESS, "amy", late), Ok(()));
        attempts.fail(&config, "amy", late);
        assert_eq!(attempts.begin(&config, ADDRESS, "amy", early), Err(TooMany::Locked { seconds: 10 }));
        assert_eq!(attempts.begin(&config, ADDRESS, "bob", Millis(61_000)), Ok(()));
        assert_eq!(attempts.begin(&config, ADDRESS, "amy", Millis(121_000)), Ok(()), "and the lock ends");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let config = SessionsConfig::default();
        let mut attempts = Attempts::default();
        for number in 0..3 * REMEMBERED_MAX {
            attempts.fail(&config, &format!("name{number}"), Millis(0));
        }
        assert!(attempts.accounts.len() <= REMEMBERED_MAX);
    }
}
