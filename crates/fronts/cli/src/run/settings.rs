// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Step two of two: turns what was typed into checked settings, or into a line for each reason why not.
//!
//! Reads the machine and the environment, and starts nothing. Creates nothing but the default state directory.

use std::env;
use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use aquifer_config::{Budget, Config};
use aquifer_core::stripes::SHARD_PAGES_MIN;
use aquifer_core::units::{ByteSize, PAGE_BYTES};
use aquifer_nodes::placement::Placement;
use aquifer_tiers::{ArraySpec, DonorSecurity, OpenFailure, SpecFailure, TierSpec};
use nix::unistd::geteuid;

use super::args::{RunArgs, Shards};
use super::memory_limit::Allowed;
use super::program::Program;
use super::{budget_max, numa, preload, state_dir};
use crate::exit::{ExitCode, Failure};

/// What `aquifer run` will do.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// The pager's configuration, still without the statistics descriptor.
    pub config: Config,
    /// The largest budget that `aquifer set` can give the program while it runs.
    pub dram_bytes_max: u64,
    /// The program to run.
    pub program: Program,
    /// Whether the budget applies to the whole tree or to each process.
    pub budget: Budget,
    /// The NUMA nodes for the program's pages; `None` for those of the launcher.
    pub placement: Option<Placement>,
    /// The value of `LD_PRELOAD` for the program.
    pub ld_preload: OsString,
    /// Whether to refuse, instead of warning, when something would escape the budget.
    pub strict: bool,
    /// The file for the statistics at the end.
    pub stats_json: Option<PathBuf>,
    /// Whether advice is suppressed.
    pub quiet: bool,
}

impl RunSettings {
    /// Checks everything, the cheapest and most likely errors first. What can be checked without the rest is reported
    /// together.
    pub fn check(args: RunArgs) -> Result<RunSettings, Failure> {
        let RunArgs { how, command } = args;
        let allowed = Allowed::read()?;
        let dram = how.dram.of(&allowed).and_then(|dram| {
            check_shards(how.shards, how.record.is_some(), dram.0)?;
            Ok(dram)
        });
        let outputs = check_outputs(how.record.as_deref(), how.stats_json.as_deref());
        let tiers = check_tiers(&how.tier);
        let program = Program::check(command, env::var_os("PATH").as_deref());
        let (((dram, ()), tiers), program) =
            Failure::both(Failure::both(Failure::both(dram, outputs), tiers), program)?;
        let library = preload::find(env::var_os(preload::VARIABLE), &own_path()?)?;
        let state_dir = check_state_dir(how.state_dir.as_deref(), !tiers.is_empty())?;
        // The last one, because it may measure the machine's memory.
        let placement = how.numa.as_ref().map(|spread| numa::check(spread, &state_dir, how.quiet)).transpose()?;
        let config = Config {
            dram_bytes: dram.0,
            tiers,
            policy: how.policy,
            block: how.block,
            delivery: how.delivery,
            exchange: how.exchange,
            prefetch: how.prefetch,
            shards: how.shards.0,
            record: how.record.as_deref().map(|path| absolute_text("--record", path)).transpose()?,
            time_lock: how.time_lock,
            // Without a tree number, borrowed memory returns when its leases expire.
            tree: aquifer_sys::raw::random().ok().filter(|tree| *tree != 0),
            state_dir,
            strict: how.strict,
            verbose: how.verbose,
            ..Config::default()
        };
        let ld_preload = preload::ld_preload(&library, env::var_os("LD_PRELOAD").as_deref());
        // A recording covers one process with its own budget.
        let budget = if how.record.is_some() { Budget::Process } else { how.budget };
        Ok(RunSettings {
            config,
            dram_bytes_max: budget_max::bytes(dram.0, &allowed),
            program,
            budget,
            placement: placement.flatten(),
            ld_preload,
            strict: how.strict,
            stats_json: how.stats_json,
            quiet: how.quiet,
        })
    }
}

/// Checks that a given number of shards suits the budget, and what else was asked for.
fn check_shards(Shards(shards): Shards, is_recorded: bool, dram_bytes: u64) -> Result<(), Failure> {
    let Some(shards) = shards.filter(|shards| *shards > 1) else { return Ok(()) };
    if is_recorded {
        return Err(usage(
            "--record records one engine, and --shards asks for several".into(),
            "leave one of them out",
        ));
    }
    let least = ByteSize(u64::from(shards) * SHARD_PAGES_MIN * PAGE_BYTES);
    if dram_bytes < least.0 {
        return Err(usage(
            format!("--shards {shards} needs a budget of at least {least}"),
            "give a larger --dram or fewer shards",
        ));
    }
    Ok(())
}

/// Checks the output files: none may be stdout, which belongs to the program, and no two may be the same.
fn check_outputs(record: Option<&Path>, stats_json: Option<&Path>) -> Result<(), Failure> {
    for (flag, path) in [("--record", record), ("--stats-json", stats_json)] {
        if path.is_some_and(|path| path.as_os_str() == "-") {
            return Err(usage(
                format!("{flag} - is not a file, and stdout is the program's"),
                "name a file, or ./- for one of that name",
            ));
        }
    }
    if record.is_some() && record == stats_json {
        return Err(usage("--record and --stats-json name the same file".into(), "give each a file of its own"));
    }
    Ok(())
}

/// Checks the tiers, and returns them with absolute paths.
fn check_tiers(specs: &[String]) -> Result<Vec<String>, Failure> {
    let parsed = Failure::all(specs.iter().map(|spec| check_tier(spec)))?;
    aquifer_tiers::check_levels(&parsed).map_err(|failure| usage(format!("--tier: {failure}"), ""))?;
    Failure::all(specs.iter().zip(&parsed).map(|(spec, parsed)| with_absolute_path(spec, parsed)))
}

fn check_tier(spec: &str) -> Result<TierSpec, Failure> {
    // The same wording as clap's for the other flags.
    let invalid =
        |why: String| usage(format!("invalid value '{}' for '--tier <SPEC>': {why}", spec.escape_debug()), "");
    let parsed: TierSpec = spec.parse().map_err(|failure: SpecFailure| invalid(failure.to_string()))?;
    aquifer_tiers::check_place(&parsed).map_err(|refused| match refused {
        OpenFailure::Profile { .. } => invalid(refused.to_string()),
        refused => Failure::new(ExitCode::CannotStart, format!("--tier {spec}: {refused}"), ""),
    })?;
    Ok(parsed)
}

/// Returns the description `spec` of `parsed`, with an absolute path or a numeric address where it has a path or an
/// address: the program's children open the tier, too, possibly from another directory.
fn with_absolute_path(spec: &str, parsed: &TierSpec) -> Result<String, Failure> {
    let (kind, rest) = spec.split_once(':').expect("it could be read, so it has a kind");
    let path = match parsed {
        TierSpec::Donor(donor) => {
            let way = donor.way();
            let named = rest.strip_prefix(way).and_then(|rest| rest.strip_prefix(&donor.address));
            let options = named.expect("the address comes first");
            if let Some(path) = donor.socket_path() {
                return Ok(format!("{kind}:unix:{}{options}", absolute_text("--tier", Path::new(path))?));
            }
            let name = name_of(&donor.security).unwrap_or_default();
            return Ok(format!("{kind}:{way}{}{}", resolved(&donor.address)?, donor_options(options, name)?));
        }
        TierSpec::Array(array) => return Ok(format!("{kind}:{}", with_resolved_addresses(rest, array)?)),
        TierSpec::Dax { path, .. } => path.as_path(),
        TierSpec::Flash(flash) => flash.path.as_path(),
        TierSpec::Emulated { profile, .. } if !aquifer_tiers::profile::names().any(|name| name == profile) => {
            Path::new(profile)
        }
        TierSpec::Encrypted { inner } => return with_absolute_path(spec, inner),
        TierSpec::Pool(pool) => return Ok(format!("{kind}:{}", with_absolute_agent(rest, &pool.agent)?)),
        TierSpec::Failing { inner, .. } => {
            let (rules, spec) = rest.split_once(':').expect("it could be read, so a tier follows its rules");
            return Ok(format!("{kind}:{rules}:{}", with_absolute_path(spec, inner)?));
        }
        _ => return Ok(spec.to_owned()),
    };
    let typed = path.to_str().expect("the path was cut out of a string");
    let options = rest.strip_prefix(typed).expect("the path comes first");
    Ok(format!("{kind}:{}{options}", absolute_text("--tier", path)?))
}

/// Returns what follows `pool:`, with the absolute path of the agent's socket.
fn with_absolute_agent(rest: &str, agent: &Path) -> Result<String, Failure> {
    let others = rest.split(',').filter(|option| !option.starts_with("agent=")).collect::<Vec<_>>();
    Ok(format!("{},agent={}", others.join(","), absolute_text("--tier", agent)?))
}

/// Returns what follows `donor:` for several donors, with numeric addresses.
fn with_resolved_addresses(rest: &str, array: &ArraySpec) -> Result<String, Failure> {
    let (_, options) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
    let mut addresses = Vec::new();
    for member in &array.members {
        addresses.push(format!("{}{}*{}", member.donor.way(), resolved(&member.donor.address)?, member.weight));
    }
    let names: Vec<&str> = array.members.iter().filter_map(|member| name_of(&member.donor.security)).collect();
    Ok(format!("{}{}", addresses.join("+"), donor_options(options, &names.join("+"))?))
}

/// Returns the name that a donor's certificate must be for, with TLS.
fn name_of(security: &DonorSecurity) -> Option<&str> {
    match security {
        DonorSecurity::Local | DonorSecurity::Plain => None,
        DonorSecurity::Tls { name, .. } => Some(name),
    }
}

/// Returns the options of donors, with absolute paths, and with the names that their addresses had before they were
/// resolved.
fn donor_options(options: &str, name: &str) -> Result<String, Failure> {
    if name.is_empty() {
        return Ok(options.into());
    }
    let mut written = String::new();
    for option in options.split(',').skip(1) {
        written += &match option.split_once('=') {
            Some((file @ ("cert" | "key" | "ca" | "crl"), path)) => {
                format!(",{file}={}", absolute_text("--tier", Path::new(path))?)
            }
            Some(("name", _)) => String::new(),
            _ => format!(",{option}"),
        };
    }
    Ok(format!("{written},name={name}"))
}

/// Resolves a donor's address here, so that a program does not look up names while it starts.
fn resolved(address: &str) -> Result<SocketAddr, Failure> {
    let failure = |error: std::io::Error| {
        let cause = format!("--tier donor:{address}: the name cannot be resolved: {error}");
        Failure::new(ExitCode::CannotStart, cause, "check the name, or give an address in numbers")
    };
    let mut found = address.to_socket_addrs().map_err(failure)?;
    found.next().ok_or_else(|| failure(std::io::ErrorKind::NotFound.into()))
}

/// Checks the state directory, and returns it as text. Without `--state-dir`, creates and checks the default directory
/// only if no tier was given: otherwise nothing is stored there.
fn check_state_dir(named: Option<&Path>, has_tier: bool) -> Result<String, Failure> {
    if let Some(named) = named {
        state_dir::check(named)?;
        return absolute_text("--state-dir", named);
    }
    let path = state_dir::default_path(geteuid().is_root(), env::var_os("XDG_STATE_HOME"), env::var_os("HOME"));
    match path {
        Some(path) => {
            if !has_tier {
                state_dir::create(&path)?;
                state_dir::check(&path)?;
            }
            absolute_text("the state directory", &path)
        }
        None if has_tier => Ok(String::new()),
        None => Err(Failure::new(
            ExitCode::CannotStart,
            "there is no state directory: neither XDG_STATE_HOME nor HOME is set",
            "name one on a disk with --state-dir",
        )),
    }
}

/// Returns an absolute path as text for the configuration.
fn absolute_text(what: &str, path: &Path) -> Result<String, Failure> {
    let absolute = std::path::absolute(path)
        .map_err(|error| usage(format!("{what} {}: {error}", path.display()), "give a path"))?;
    absolute
        .into_os_string()
        .into_string()
        .map_err(|path| usage(format!("{what} {} is not UTF-8", path.to_string_lossy()), "choose another name"))
}

fn own_path() -> Result<PathBuf, Failure> {
    env::current_exe().map_err(|error| {
        Failure::new(ExitCode::CannotStart, format!("/proc/self/exe cannot be read: {error}"), "mount /proc")
    })
}

fn usage(cause: String, remedy: impl Into<String>) -> Failure {
    Failure::new(ExitCode::Usage, cause, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_files_of_their_own() {
        let check = |record, stats| check_outputs(record, stats).map_err(|failure| failure.code);
        let path = |name| Some(Path::new(name));
        assert_eq!(check(path("a"), path("b")), Ok(()));
        assert_eq!(check(None, path("./-")), Ok(()));
        for (record, stats) in [(path("a"), path("a")), (path("-"), None), (None, path("-"))] {
            assert_eq!(check(record, stats), Err(ExitCode::Usage), "{record:?} {stats:?}");
        }
    }

    #[test]
    fn a_tier_keeps_its_options_and_gets_an_absolute_path() {
        let here = env::current_dir().unwrap();
        let here = here.display();
        for (typed, reported) in [
            ("flash:cold,size=1GiB", format!("flash:{here}/cold,size=1GiB")),
            ("emulated:my.toml,size=1GiB", format!("emulated:{here}/my.toml,size=1GiB")),
            ("emulated:cmm-h,size=1GiB", "emulated:cmm-h,size=1GiB".into()),
            (
                "failing:after=1:failing::flash:cold,buffered",
                format!("failing:after=1:failing::flash:{here}/cold,buffered"),
            ),
            ("dram:", "dram:".into()),
            ("node:1,size=1GiB", "node:1,size=1GiB".into()),
            ("dax:file,size=1GiB", format!("dax:{here}/file,size=1GiB")),
            ("donor:unix:here.sock,size=1GiB", format!("donor:unix:{here}/here.sock,size=1GiB")),
            ("donor:127.0.0.1:7411,security=plain", "donor:127.0.0.1:7411,security=plain".into()),
            ("donor:rdma:127.0.0.1:7411,security=plain", "donor:rdma:127.0.0.1:7411,security=plain".into()),
            (
                "donor:rdma:127.0.0.1:1+127.0.0.1:2*3,security=plain",
                "donor:rdma:127.0.0.1:1*1+127.0.0.1:2*3,security=plain".into(),
            ),
        ] {
            assert_eq!(with_absolute_path(typed, &typed.parse().unwrap()).unwrap(), reported);
        }
        let chain = check_tiers(&["dram:".into(), "flash:cold".into()]).unwrap();
        assert_eq!(chain, ["dram:".into(), format!("flash:{here}/cold")]);
        assert!(check_tiers(&[]).unwrap().is_empty());
    }
}
