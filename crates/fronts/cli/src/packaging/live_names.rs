// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The part of bash's completions that asks the manager of a pool which volumes, hosts, donors, zones, pools and
//! accounts there are. What takes such a name is read from the table of flags; the script asks with the session that
//! `aquifer fabric login` has kept, and waits two seconds at most.
//!
//! The names come from the network, and bash expands what it completes with: whatever is not a name is left out.

use std::fmt::Write;

use clap::{Arg, Command};

/// What flags call a name, and the command that lists these names in its first column.
const LISTS: [(&str, &str); 6] = [
    ("ACCOUNT", "accounts"),
    ("DONOR", "donors"),
    ("HOST", "hosts"),
    ("POOL", "pools"),
    ("VOLUME", "volumes"),
    ("ZONE", "zones"),
];
/// Commands whose name is a new one, or is needed before there is a session.
const NEW: [&str; 3] = ["accounts add", "create", "login"];

const SCRIPT: &str = r#"
# The names that a pool has now. Words that are no names are left out, because bash would expand them.
_aquifer_names() {
    timeout 2 "$@" 2> /dev/null < /dev/null | awk 'NR > 1 && $1 ~ /^[a-z0-9._-]+$/ { print $1 }'
}

_aquifer_live() {
    local typed word option="" command="" place=0 last="" list="" names="" access=()
    # COMP_WORDS has an address in pieces.
    read -ra typed <<< "${COMP_LINE:0:COMP_POINT}"
    [[ -n $2 ]] && unset 'typed[-1]'
    if [[ ${typed[1]} == fabric ]]; then
        for word in "${typed[@]:2}"; do
            if [[ -n $option ]]; then
                case "$option" in --url | --ca | --member) access+=("$option" "$word") ;; esac
                option=""
            elif [[ $word == --url=* || $word == --ca=* || $word == --member=* ]]; then
                access+=("$word")
            else
                case "$word" in
                    OPTIONS) option=$word ;;
                    -*) ;;
                    *)
                        case "$command" in
                            "" | GROUPS) command="${command:+$command }$word" ;;
                            *) place=$((place + 1)) last=$word ;;
                        esac
                        ;;
                esac
            fi
        done
        case "${option:-$command $((place + 1))}" in
CASES
            "declare-gone 2") list="${last}s" ;;
        esac
    fi
    if [[ -n $list && $2 != -* ]]; then
        names=$(_aquifer_names "$1" fabric "${access[@]}" "$list")
    fi
    if [[ -n $names ]]; then
        COMPREPLY=($(compgen -W "$names" -- "$2"))
    else
        _aquifer "$@"
    fi
}

complete -F _aquifer_live -o bashdefault -o default aquifer
"#;

/// The end of the script for bash, for the commands of a pool.
pub fn for_bash(fabric: &Command) -> String {
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
    let script = SCRIPT.replace("OPTIONS", &options.join(" | ")).replace("GROUPS", &groups.join(" | "));
    script.replace("CASES\n", &cases)
}

fn line(cases: &mut String, what: &str, list: &str) {
    writeln!(cases, "            \"{what}\") list={list} ;;").expect("a text takes what is written");
}

/// The flag, if it takes a value.
fn option(arg: &Arg) -> Option<String> {
    arg.get_long().filter(|_| arg.get_action().takes_values()).map(|name| format!("--{name}"))
}

/// The command that lists what an argument names.
fn list(arg: &Arg) -> Option<&'static str> {
    let name = arg.get_value_names()?.first()?;
    LISTS.iter().find(|(value, _)| value == name).map(|(_, list)| *list)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command as Process;

    use crate::args;

    /// A stand-in for the command, which lists names and notes what it was asked.
    const STAND_IN: &str = "#!/bin/sh
echo \"$*\" >> asked
case \"$*\" in
    *volumes) printf 'VOLUME  STATE\\ndb      bound\\ndata    bound\\n$(touch${IFS}owned) x\\n' ;;
    *hosts) printf 'HOST\\nh001\\nh002\\n' ;;
    *donors) printf 'DONOR\\nd7\\n' ;;
    *) exit 1 ;;
esac
";

    /// What is completed after each line, and what the command was asked for it.
    fn completed(test: &str, lines: &[&str]) -> Vec<(String, String)> {
        let directory = std::env::temp_dir().join(format!("aquifer-names-{test}-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let at = |name: &str| directory.join(name);
        fs::write(at("aquifer"), STAND_IN).expect("written");
        fs::set_permissions(at("aquifer"), fs::Permissions::from_mode(0o755)).expect("set");
        fs::write(at("script"), super::super::script(clap_complete::Shell::Bash)).expect("written");
        let complete = "source ./script
            set -- \"./$1\"
            COMP_LINE=$1 COMP_POINT=${#1}
            read -ra COMP_WORDS <<< \"$1\"
            [[ $1 == *' ' ]] && COMP_WORDS+=('')
            COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            _aquifer_live ./aquifer \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"
            echo \"${COMPREPLY[*]}\"";
        let one = |line: &&str| {
            let _ = fs::remove_file(at("asked"));
            let output = Process::new("bash").args(["-c", complete, "bash", line]).current_dir(&directory).output();
            let output = output.expect("bash");
            assert!(output.stderr.is_empty(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            assert!(!at("owned").exists(), "a name was expanded");
            let asked = fs::read_to_string(at("asked")).unwrap_or_default();
            (String::from_utf8_lossy(&output.stdout).trim().to_owned(), asked.trim().to_owned())
        };
        let found = lines.iter().map(one).collect();
        fs::remove_dir_all(&directory).expect("removed");
        found
    }

    #[test]
    fn names_of_the_pool_are_completed_where_they_are_meant() {
        let cases = [
            ("aquifer fabric bind ", "db data", "fabric volumes"),
            ("aquifer fabric bind da", "data", "fabric volumes"),
            ("aquifer fabric --json bind db ", "h001 h002", "fabric hosts"),
            ("aquifer fabric move db --off ", "d7", "fabric donors"),
            ("aquifer fabric drain --dry-run ", "d7", "fabric donors"),
            ("aquifer fabric declare-gone host h001", "h001", "fabric hosts"),
            ("aquifer fabric --url http://a:1 unbind ", "db data", "fabric --url http://a:1 volumes"),
            ("aquifer fabric unbind --ca=x ", "db data", "fabric --ca=x volumes"),
        ];
        let found = completed("names", &cases.map(|(line, _, _)| line));
        for ((line, names, asked), found) in cases.into_iter().zip(found) {
            assert_eq!(found, (names.to_owned(), asked.to_owned()), "{line}");
        }
    }

    #[test]
    fn everything_else_is_completed_from_the_table() {
        let found = completed(
            "others",
            &[
                "aquifer fabric bi",
                "aquifer fabric create ",
                "aquifer fabric bind db h001 --dr",
                "aquifer fabric accounts remove ",
                "aquifer ru",
            ],
        );
        for ((words, asked), (expected, question)) in found.iter().zip([
            ("bind", ""),
            ("--size", ""),
            ("--dry-run", ""),
            // Without an answer, the flags.
            ("--json", "fabric accounts"),
            ("run", ""),
        ]) {
            assert!(words.split(' ').any(|word| word == expected), "{expected} is not in: {words}");
            assert_eq!(asked, question);
        }
    }

    #[test]
    fn every_list_exists() {
        let cli = args::command_line();
        let fabric = cli.find_subcommand("fabric").expect("it exists");
        for (_, list) in super::LISTS {
            assert!(fabric.find_subcommand(list).is_some(), "{list}");
        }
    }
}
