// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer completions` and `aquifer man`: generate files for packages from the one table of flags.

mod live_names;

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use clap_complete::Shell;

use crate::exit::{ExitCode, Failure};
use crate::{args, output};

/// Print shell completions
///
/// Those for bash, zsh and fish also complete the names of volumes, hosts, donors, zones and pools, which they get from
/// the fabric manager with the session of 'aquifer fabric login'.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer completions bash > /etc/bash_completion.d/aquifer
  aquifer completions zsh > ~/.zfunc/_aquifer
  aquifer completions fish > ~/.config/fish/completions/aquifer.fish")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Print the manual page, or write all of them to a directory
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer man | man -l -
  aquifer man --dir /usr/share/man/man1")]
pub struct ManArgs {
    /// Write aquifer.1 and one page per command to this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the completions.
pub fn completions(args: &CompletionsArgs) -> Result<process::ExitCode, Failure> {
    output::print(&script(args.shell))?;
    Ok(ExitCode::Success.into())
}

/// Returns the completions: the table of flags, and the names that a pool has when they are asked for.
fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command_line(), "aquifer", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match args::command_line().find_subcommand("fabric") {
        Some(fabric) => live_names::with_names(shell, script, fabric),
        None => script,
    }
}

/// Prints or writes the manual.
pub fn man(args: &ManArgs) -> Result<process::ExitCode, Failure> {
    match &args.dir {
        None => {
            output::print(&page(args::command_line())?)?;
        }
        Some(dir) => {
            for (name, page) in pages()? {
                fs::write(dir.join(&name), page).map_err(|error| unwritable(dir, &name, &error))?;
            }
        }
    }
    Ok(ExitCode::Success.into())
}

/// Returns every page with its file name.
fn pages() -> Result<Vec<(String, String)>, Failure> {
    let mut whole = args::command_line();
    // Gives every command its full name and its help flag.
    whole.build();
    let mut pages = vec![("aquifer.1".to_owned(), page(args::command_line())?)];
    add_commands(&whole, "aquifer", &mut pages)?;
    Ok(pages)
}

/// Adds the pages of a command's subcommands, recursively.
fn add_commands(of: &clap::Command, path: &str, pages: &mut Vec<(String, String)>) -> Result<(), Failure> {
    for command in of.get_subcommands().filter(|command| command.get_name() != "help") {
        let name = format!("{path}-{}", command.get_name());
        pages.push((format!("{name}.1"), page(command.clone().name(name.clone()))?));
        add_commands(command, &name, pages)?;
    }
    Ok(())
}

fn page(command: clap::Command) -> Result<String, Failure> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text).map_err(|error| {
        Failure::new(ExitCode::Failure, format!("the manual cannot be made: {error}"), "report this bug")
    })?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn unwritable(dir: &Path, name: &str, error: &std::io::Error) -> Failure {
    let cause = format!("{} cannot be written: {error}", dir.join(name).display());
    Failure::new(ExitCode::Failure, cause, "name a directory that exists")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_examples() {
        let pages = pages().unwrap();
        assert!(pages.len() > args::command_line().get_subcommands().count() + 1);
        assert!(pages.iter().any(|(name, _)| name == "aquifer-donor-reclaim.1"));
        for (name, page) in pages {
            assert!(page.contains(".SH"), "{name}");
            assert!(page.contains("Examples:"), "{name}");
        }
    }
}
