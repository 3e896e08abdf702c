// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Who may open which volumes of this host: the tables `[[volume]]` of the configuration, checked. Pure.
//!
//! A permit with an id is for that volume, and gives it the name by which programs of this host open it. A permit
//! without an id is for all volumes whose names in the pool match a pattern, also for those that are bound later: with
//! it, the pool's operators choose which volumes the users get. Root may open every volume.
//!
//! Next on the path: `host_state/opening.rs`, which volume a program means and whether it may open it.

use aquifer_agent_wire::is_name;
use aquifer_fabric::VolumeId;
use serde::Deserialize;

use crate::settings::{SettingsFailure, failure};

/// Maximum number of permits. A choice, far above what one host uses.
const PERMITS_MAX: usize = 4096;

/// Who may open which volumes, besides root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permits {
    volumes: Vec<VolumePermit>,
    names: Vec<NamePermit>,
}

/// Who may open one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumePermit {
    /// The volume's id in the pool.
    pub(crate) id: VolumeId,
    /// The name by which programs of this host open it, whatever its name in the pool is.
    pub(crate) name: String,
    pub(crate) users: Users,
}

/// Who may open all volumes whose names in the pool match.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamePermit {
    pattern: NamePattern,
    users: Users,
}

/// Users and groups of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Users {
    /// Users, by number.
    uids: Vec<u32>,
    /// Groups, by number: a program's own group, not its supplementary ones.
    gids: Vec<u32>,
}

impl Users {
    /// Returns whether a program of this user and group is one of them, or root's.
    pub(crate) fn include(&self, uid: u32, gid: u32) -> bool {
        uid == 0 || self.uids.contains(&uid) || self.gids.contains(&gid)
    }
}

/// A name in which each `*` stands for any characters, or for none.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamePattern(String);

impl NamePattern {
    /// Returns the pattern, if names can match it.
    fn new(text: &str) -> Option<NamePattern> {
        is_name(&text.replace('*', "x")).then(|| NamePattern(text.to_owned()))
    }

    fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().expect("a split has a part");
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        // The earliest place of each part leaves the most for the parts after it.
        for part in parts {
            let Some((_, after)) = rest.split_once(part) else { return false };
            rest = after;
        }
        rest.ends_with(last)
    }
}

impl Permits {
    /// Returns the permit for a volume, by the volume's id or by the name that the permit gives it.
    pub(crate) fn of_volume(&self, text: &str) -> Option<&VolumePermit> {
        let id = VolumeId::try_from(text.to_owned()).ok();
        self.volumes.iter().find(|permit| permit.name == text || Some(permit.id) == id)
    }

    /// Returns the permits for single volumes.
    pub(crate) fn of_volumes(&self) -> impl Iterator<Item = &VolumePermit> {
        self.volumes.iter()
    }

    /// Returns whether a program of this user and group may open all volumes that have this name in the pool.
    pub(crate) fn allow_name(&self, name: &str, uid: u32, gid: u32) -> bool {
        uid == 0 || self.names.iter().any(|permit| permit.users.include(uid, gid) && permit.pattern.matches(name))
    }
}

/// A table `[[volume]]` as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPermit {
    name: Option<String>,
    id: Option<String>,
    #[serde(default)]
    uids: Vec<u32>,
    #[serde(default)]
    gids: Vec<u32>,
}

impl TryFrom<Vec<RawPermit>> for Permits {
    type Error = SettingsFailure;

    fn try_from(tables: Vec<RawPermit>) -> Result<Permits, SettingsFailure> {
        if tables.len() > PERMITS_MAX {
            return Err(failure(format!(
                "there are {} tables [[volume]]; write {PERMITS_MAX} at most, and one with a pattern such as 'web-*' \
                 for several volumes",
                tables.len()
            )));
        }
        let mut permits = Permits::default();
        for RawPermit { name, id, uids, gids } in tables {
            let users = Users { uids, gids };
            match (id, name) {
                (Some(id), name) => permits.add_volume(id, name, users)?,
                (None, Some(pattern)) => permits.add_names(&pattern, users)?,
                (None, None) => return Err(failure("a [[volume]] has no name and no id; write one of them")),
            }
        }
        Ok(permits)
    }
}

impl Permits {
    fn add_volume(&mut self, id: String, name: Option<String>, users: Users) -> Result<(), SettingsFailure> {
        let (id, name) = (VolumeId::try_from(id.clone()).map_err(failure)?, name.unwrap_or(id));
        let shown = name.escape_debug();
        if name.contains('*') {
            return Err(failure(format!("'{shown}' is for several volumes; write it without an id, or without '*'")));
        }
        if !is_name(&name) {
            return Err(failure(format!("'{shown}' cannot be the name of a volume; use a-z, 0-9, '-', '_' and '.'")));
        }
        if VolumeId::try_from(name.clone()).is_ok_and(|other| other != id) {
            return Err(failure(format!(
                "the name '{shown}' for volume {id} is the id of another; write another name"
            )));
        }
        if self.volumes.iter().any(|permit| permit.name == name || permit.id == id) {
            return Err(failure(format!("volume {name} ({id}) is named twice; name it once")));
        }
        self.volumes.push(VolumePermit { id, name, users });
        Ok(())
    }

    fn add_names(&mut self, text: &str, users: Users) -> Result<(), SettingsFailure> {
        let shown = text.escape_debug();
        let pattern = NamePattern::new(text).ok_or_else(|| {
            failure(format!(
                "'{shown}' cannot be the name of a volume; use a-z, 0-9, '-', '_' and '.', and '*' for any characters"
            ))
        })?;
        if VolumeId::try_from(text.to_owned()).is_ok() {
            return Err(failure(format!("the name '{shown}' is an id; write it as id")));
        }
        if self.names.iter().any(|permit| permit.pattern == pattern) {
            return Err(failure(format!("volumes with the name {shown} are named twice; name them once")));
        }
        self.names.push(NamePermit { pattern, users });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    const LEAST: &str = "host = 'a'\n[manager]\naddresses = ['m:1']\n";

    fn permits(tables: &str) -> Result<Permits, String> {
        let settings: Result<Settings, SettingsFailure> = format!("{LEAST}{tables}").parse();
        settings.map(|settings| settings.volumes).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_permit_with_an_id_is_for_that_volume_under_its_own_name() {
        let permits = permits("[[volume]]\nid='00000000000000a1'\nuids=[5]\ngids=[6]\n").unwrap();
        let permit = permits.of_volume("00000000000000a1").unwrap();
        assert_eq!((permit.id, permit.name.as_str()), (VolumeId(0xa1), "00000000000000a1"));
        let include = |uid, gid| permit.users.include(uid, gid);
        assert!(include(5, 9) && include(9, 6) && include(0, 9) && !include(9, 9));
        assert!(!permits.allow_name("00000000000000a1", 5, 6), "it is not for names in the pool");
        let permits = self::permits("[[volume]]\nid='00000000000000a1'\nname='db'\n").unwrap();
        assert_eq!(permits.of_volume("db"), permits.of_volume("00000000000000a1"));
        assert!(permits.of_volume("db").is_some() && permits.of_volume("b").is_none());
    }

    #[test]
    fn a_permit_without_an_id_is_for_the_names_that_match() {
        let permits = permits("[[volume]]\nname='web-*'\nuids=[5]\n[[volume]]\nname='db'\ngids=[6]\n").unwrap();
        assert!(permits.allow_name("web-1", 5, 9) && permits.allow_name("web-", 5, 9));
        assert!(
            !permits.allow_name("web-1", 7, 9) && !permits.allow_name("db", 5, 9) && !permits.allow_name("we", 5, 9)
        );
        assert!(permits.allow_name("db", 9, 6) && !permits.allow_name("db2", 9, 6));
        assert!(permits.allow_name("anything", 0, 0), "root may open all");
        assert_eq!((permits.of_volume("db"), permits.of_volumes().count()), (None, 0));
    }

    #[test]
    fn each_star_stands_for_any_characters_or_none() {
        for (pattern, matching, others) in [
            ("db", &["db"][..], &["", "d", "db1", "xdb"][..]),
            ("*", &["a", "web-1.rack"], &[]),
            ("web-*", &["web-", "web-1"], &["web", "xweb-1"]),
            ("*-db", &["-db", "a-db", "a-db-db"], &["db", "a-db1"]),
            ("a*a", &["aa", "aba", "aaa"], &["a", "ab"]),
            ("a*b*c", &["abc", "axbxc", "abbcc"], &["ac", "acb", "abcx"]),
            ("*b*b*", &["bb", "abcbd"], &["b", "abc"]),
            ("a**b", &["ab", "axb"], &["a", "b"]),
            ("*ab*ab", &["abab", "xababab"], &["ab", "aab"]),
        ] {
            let pattern = NamePattern::new(pattern).unwrap();
            matching.iter().for_each(|name| assert!(pattern.matches(name), "{pattern:?} matches {name}"));
            others.iter().for_each(|name| assert!(!pattern.matches(name), "{pattern:?} does not match {name}"));
        }
    }

    #[test]
    fn every_mistake_gets_one_line_with_a_remedy() {
        let id = "id='00000000000000a1'";
        for (tables, part) in [
            ("[[volume]]\nid='1'\n".to_owned(), "16 hexadecimal digits"),
            (format!("[[volume]]\n{id}\nname='A b'\n"), "cannot be the name"),
            (format!("[[volume]]\n{id}\nname='web-*'\n"), "without an id"),
            (format!("[[volume]]\n{id}\nname='00000000000000b2'\n"), "write another name"),
            (format!("[[volume]]\n{id}\n[[volume]]\n{id}\nname='x'\n"), "named twice"),
            ("[[volume]]\nname='A*'\n".to_owned(), "'*' for any characters"),
            ("[[volume]]\nname=''\n".to_owned(), "cannot be the name"),
            ("[[volume]]\nname='00000000000000a1'\n".to_owned(), "write it as id"),
            ("[[volume]]\nname='x*'\n[[volume]]\nname='x*'\n".to_owned(), "name them once"),
            ("[[volume]]\nuids=[1]\n".to_owned(), "no name and no id"),
            ("[[volume]]\nname='x'\nuid=1\n".to_owned(), "line 6"),
            ("[[volume]]\nname='x'\n".repeat(PERMITS_MAX + 1), "4096 at most"),
        ] {
            let message = permits(&tables).expect_err(&tables);
            assert!(message.contains(part) && !message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn a_permit_by_name_may_stand_beside_one_with_an_id() {
        let permits = permits("[[volume]]\nname='db'\n[[volume]]\nname='db'\nid='00000000000000a1'\n").unwrap();
        assert_eq!(permits.of_volume("db").unwrap().id, VolumeId(0xa1));
    }
}
