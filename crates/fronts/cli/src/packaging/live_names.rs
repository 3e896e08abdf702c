// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The part of the completions that asks the manager of a pool which volumes, hosts, donors, zones, pools and accounts
//! there are. What takes such a name is read from the table of flags. One script for sh(1) reads the words that are
//! typed, asks with the session that `aquifer fabric login` has kept, and waits two seconds at most; bash, zsh and fish
//! each have a few lines around it.
//!
//! The names come from the network, and bash expands what it completes with: whatever is not a name is left out.

use std::fmt::Write;

use clap::{Arg, Command};
use clap_complete::Shell;

/// What flags call a name, and the command that lists these names in its first column.
const LISTS: [(&str, &str); 6] = [
    ("ACCOUNT", "accounts"),
    ("DONOR", "donors"),
    ("HOST", "hosts"),
    ("POOL", "pools"),
    ("VOLUME", "volumes"),
    ("ZONE", "zones"),
];
/// Commands that take a new name, or a name that is needed before there is a session: these names are not completed.
const NEW: [&str; 3] = ["accounts add", "create", "login"];

/// Prints the names for the next word. Its arguments are the command and the words before that one. It stands between
/// single quotes in each shell, so it has none.
const NAMES: &str = r#"
    LC_ALL=C command="" option="" place=0 last="" list="" aquifer=$1
    [ "$2" = fabric ] || exit 0
    shift 2
    # What says where the manager is is kept; the list of words is that of the beginning.
    for word do
        shift
        if [ -n "$option" ]; then
            case "$option" in --url | --ca | --member) set -- "$@" "$option" "$word" ;; esac
            option=""
            continue
        fi
        case "$word" in
            --url=* | --ca=* | --member=*) set -- "$@" "$word" ;;
            OPTIONS) option=$word ;;
            -*) ;;
            *)
                case "$command" in
                    "" | GROUPS) command="${command:+$command }$word" ;;
                    *) place=$((place + 1)) last=$word ;;
                esac
                ;;
        esac
    done
    case "${option:-$command $((place + 1))}" in
CASES
        "declare-gone 2") list="${last}s" ;;
    esac
    [ -n "$list" ] || exit 0
    # Words that are no names are left out, because bash would expand them.
    timeout 2 "$aquifer" fabric "$@" "$list" 2> /dev/null < /dev/null | {
        read -r title
        while read -r name rest; do
            case "$name" in "" | *[!a-z0-9._-]*) ;; *) printf "%s\n" "$name" ;; esac
        done
    }
"#;

const BASH: &str = r#"
_aquifer_live() {
    local typed names=""
    # COMP_WORDS has an address in pieces.
    read -ra typed <<< "${COMP_LINE:0:COMP_POINT}"
    [[ -n $2 ]] && unset 'typed[-1]'
    if [[ ${typed[1]} == fabric && $2 != -* ]]; then
        names=$(sh -c 'NAMES' sh "$1" "${typed[@]:1}")
    fi
    if [[ -n $names ]]; then
        COMPREPLY=($(compgen -W "$names" -- "$2"))
    else
        _aquifer "$@"
    fi
}

complete -F _aquifer_live -o bashdefault -o default aquifer
"#;

/// The function for zsh that replaces the one that clap makes from the table.
const ZSH: &str = r#"
_aquifer() {
    local -a names
    if [[ ${words[2]} == fabric && ${words[CURRENT]} != -* ]]; then
        names=(${(f)"$(sh -c 'NAMES' sh "${(@Q)words[1,CURRENT-1]}")"})
    fi
    if (( $#names )); then
        compadd -- "${names[@]}"
    else
        _aquifer_of_table "$@"
    fi
}

"#;
/// Where the function of the table begins, in what clap writes for zsh; and where its functions have ended.
const ZSH_FUNCTION: &str = "\n_aquifer() {";
const ZSH_END: &str = "if [ \"$funcstack[1]\" = \"_aquifer\" ]; then";

const FISH: &str = r#"
function __fish_aquifer_live
    set -l typed (commandline -opc)
    set -g __fish_aquifer_names
    test "$typed[2]" = fabric; or return 1
    string match -q -- '-*' (commandline -ct); and return 1
    set -g __fish_aquifer_names (sh -c 'NAMES' sh $typed)
    set -q __fish_aquifer_names[1]
end

complete -c aquifer -n __fish_aquifer_live -f -a '$__fish_aquifer_names'
"#;

/// Returns the completions of the table, with the names of a pool.
pub fn with_names(shell: Shell, table: String, fabric: &Command) -> String {
    let (names, options) = script(fabric);
    match shell {
        Shell::Bash => table + &BASH.replace("NAMES", &names),
        Shell::Fish => {
            let mut text = table + &FISH.replace("NAMES", &names);
            for name in options {
                let name = name.trim_start_matches('-');
                let live = format!("-n __fish_aquifer_live -l {name} -x -a '$__fish_aquifer_names'");
                writeln!(text, "complete -c aquifer {live}").expect("a text takes what is written");
            }
            text
        }
        Shell::Zsh => {
            let table = table.replacen(ZSH_FUNCTION, "\n_aquifer_of_table() {", 1);
            let live = format!("{}{ZSH_END}", ZSH.replace("NAMES", &names));
            table.replacen(ZSH_END, &live, 1)
        }
        _ => table,
    }
}

/// Returns the script that finds names, for the commands of a pool; and the options that take one.
fn script(fabric: &Command) -> (String, Vec<String>) {
    let (mut groups, mut options, mut cases) = (Vec::new(), Vec::new(), String::new());
    let mut commands: Vec<(String, &Command)> = Vec::new();
    options.extend(fabric.get_arguments().filter_map(option));
    for command in fabric.get_subcommands() {
        let name = command.get_name().to_owned();
        if command.has_subcommands() {
            groups.push(name.clone());
            commands.extend(command.get_subcommands().map(|part| (format!("{name} {}", part.get_name()), part)));
        }
        commands.push((name, command));
    }
    for (name, command) in &commands {
        options.extend(command.get_arguments().filter_map(option));
        let is_new = NEW.contains(&name.as_str());
        let named = command.get_positionals().enumerate().filter(|_| !is_new);
        for (list, place) in named.filter_map(|(before, arg)| Some((list(arg)?, before + 1))) {
            line(&mut cases, &format!("{name} {place}"), list);
        }
    }
    let lists = commands.iter().flat_map(|(_, command)| command.get_arguments());
    // An option calls an address HOST, too.
    let lists = lists.filter(|arg| list(arg) != Some("hosts"));
    let mut of_options: Vec<(String, &str)> = lists.filter_map(|arg| Some((option(arg)?, list(arg)?))).collect();
    for all in [&mut groups, &mut options] {
        all.sort_unstable();
        all.dedup();
    }
    of_options.sort_unstable();
    of_options.dedup();
    of_options.iter().for_each(|(option, list)| line(&mut cases, option, list));
    let script = NAMES.replace("OPTIONS", &options.join(" | ")).replace("GROUPS", &groups.join(" | "));
    (script.replace("CASES\n", &cases), of_options.into_iter().map(|(option, _)| option).collect())
}

fn line(cases: &mut String, what: &str, list: &str) {
    writeln!(cases, "        \"{what}\") list={list} ;;").expect("a text takes what is written");
}

/// Returns the flag, if it takes a value.
fn option(arg: &Arg) -> Option<String> {
    arg.get_long().filter(|_| arg.get_action().takes_values()).map(|name| format!("--{name}"))
}

/// Returns the command that lists what an argument names.
fn list(arg: &Arg) -> Option<&'static str> {
    let name = arg.get_value_names()?.first()?;
    LISTS.iter().find(|(value, _)| value == name).map(|(_, list)| *list)
}

#[cfg(test)]
mod tests;
