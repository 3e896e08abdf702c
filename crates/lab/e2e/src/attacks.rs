// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Parses the attacks: small programs in `attacks/`, each of which tries to break one promise.
//!
//! Each has one line that says how to run it: `// attack: tiers=flash,donor delivery=signal dram=32MiB needs=root`.
//!
//! | key | values | without it |
//! |---|---|---|
//! | `tiers` | kinds of tier (`tier_kinds.rs`), one run for each | `dram` |
//! | `delivery` | `auto`, `signal`, `listener`, one run for each | `signal,listener` |
//! | `dram` | the budget | `16MiB` |
//! | `flags` | more arguments for `aquifer run`, separated by commas | none |
//! | `needs` | `root`, or commands that must be installed; the attack is skipped without them | nothing |
//! | `run` | `aquifer`: under `aquifer run`; `alone`: the attack itself starts what it attacks | `aquifer` |
//! | `link` | libraries, such as `dl,m` | none |
//! | `limit` | seconds after which the attack counts as a hang, which breaks the promise, too | `120` |

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::tier_kinds::TierKind;

const MARK: &str = "attack: ";
const LIMIT: Duration = Duration::from_secs(120);

/// One attack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attack {
    /// The name of its file, without the extension.
    pub name: String,
    /// Its source file.
    pub source: PathBuf,
    /// Kinds of tier, one run for each.
    pub tiers: Vec<TierKind>,
    /// Deliveries, one run for each.
    pub deliveries: Vec<String>,
    /// `--dram`.
    pub dram: String,
    /// More arguments for `aquifer run`.
    pub flags: Vec<String>,
    /// `root`, or commands that must be installed.
    pub needs: Vec<String>,
    /// Whether it runs without `aquifer run`.
    pub is_alone: bool,
    /// Libraries to link with.
    pub libraries: Vec<String>,
    /// The time limit of one run.
    pub limit: Duration,
}

/// All attacks, sorted by name. Panics if one has no valid line that says how to run it.
#[must_use]
pub fn all() -> Vec<Attack> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("attacks");
    let files = fs::read_dir(folder).expect("the folder is there").map(|entry| entry.expect("it can be read").path());
    let is_program =
        |file: &PathBuf| file.extension().is_some_and(|ending| ["c", "py", "sh"].iter().any(|known| ending == *known));
    let mut files: Vec<PathBuf> = files.filter(is_program).collect();
    files.sort();
    let read = |file: PathBuf| {
        let text = fs::read_to_string(&file).expect("it can be read");
        parse(&file, &text).unwrap_or_else(|why| panic!("{}: {why}", file.display()))
    };
    files.into_iter().map(read).collect()
}

fn parse(source: &Path, text: &str) -> Result<Attack, String> {
    let line = text.lines().find_map(|line| line.trim_start_matches(['/', '*', '#', ' ']).strip_prefix(MARK));
    let line = line.ok_or(format!("no line '// {MARK}...' says how it is run"))?;
    let name = source.file_stem().and_then(|name| name.to_str()).ok_or("its name is not UTF-8")?;
    let mut attack = Attack {
        name: name.to_owned(),
        source: source.to_owned(),
        tiers: vec![TierKind::Dram],
        deliveries: vec!["signal".to_owned(), "listener".to_owned()],
        dram: "16MiB".to_owned(),
        flags: Vec::new(),
        needs: Vec::new(),
        is_alone: false,
        libraries: Vec::new(),
        limit: LIMIT,
    };
    for word in line.split_whitespace() {
        let (key, value) = word.split_once('=').ok_or(format!("'{word}' is not KEY=VALUE"))?;
        let values = || value.split(',').map(str::to_owned).collect::<Vec<_>>();
        match key {
            "tiers" => attack.tiers = value.split(',').map(TierKind::parse).collect::<Result<_, _>>()?,
            "delivery" => attack.deliveries = values(),
            "dram" => attack.dram = value.to_owned(),
            "flags" => attack.flags = values(),
            "needs" => attack.needs = values(),
            "run" => attack.is_alone = ["aquifer", "alone"].iter().position(|one| *one == value).ok_or(word)? == 1,
            "link" => attack.libraries = values(),
            "limit" => attack.limit = Duration::from_secs(value.parse().map_err(|_| word)?),
            _ => return Err(format!("'{key}' is not a key")),
        }
    }
    Ok(attack)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Attack, String> {
        parse(Path::new("attacks/reads_zeros.c"), &format!("// attack: {line}\nint main(void) {{}}\n"))
    }

    #[test]
    fn the_line_says_how_an_attack_is_run() {
        let attack = read("tiers=flash,chain delivery=auto dram=1GiB flags=--prefetch,off needs=root,gdb limit=5");
        let attack = attack.expect("a line as in the table");
        assert_eq!((attack.name.as_str(), attack.dram.as_str()), ("reads_zeros", "1GiB"));
        assert_eq!(attack.tiers, [TierKind::Flash, TierKind::Chain]);
        assert_eq!((attack.deliveries.len(), attack.needs.len(), attack.limit.as_secs()), (1, 2, 5));
        assert!(!attack.is_alone && attack.libraries.is_empty());
        assert!(read("run=alone").is_ok_and(|attack| attack.is_alone));
    }

    #[test]
    fn a_line_that_says_something_else_is_refused() {
        for line in ["tiers=moon", "tier=flash", "root", "limit=soon", "run=away"] {
            assert!(read(line).is_err(), "{line}");
        }
        assert!(parse(Path::new("a.c"), "int main(void) {}\n").is_err());
    }
}
