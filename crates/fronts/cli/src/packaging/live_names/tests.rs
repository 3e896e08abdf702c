// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Completions in real shells, with a stand-in for the command.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command as Process;

use clap_complete::Shell;

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

/// Completes the line in $1, and prints the words.
const IN_BASH: &str = "source ./script
    set -- \"./$1\"
    COMP_LINE=$1 COMP_POINT=${#1}
    read -ra COMP_WORDS <<< \"$1\"
    [[ $1 == *' ' ]] && COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _aquifer_live ./aquifer \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"
    echo \"${COMPREPLY[*]}\"";
const IN_FISH: &str = "set -p PATH $PWD
    source ./script
    complete -C $argv[1] | string replace -r '\\t.*' '' | string join ' '";
/// Types the line in $1 at a terminal of its own, whose shell reads ZSHRC, and then Tab. It has 40 seconds at most.
const IN_ZSH: &str = "zmodload zsh/zpty
    rm -f ready found
    ZDOTDIR=. PATH=$PWD:$PATH zpty shell zsh -d -i
    for ((i = 0; i < 400; i++)) { [[ -e ready ]] && break; sleep 0.1 }
    zpty -w -n shell \"$1\"$'\\t\\x18'
    for ((i = 0; i < 400; i++)) { [[ -e found ]] && break; sleep 0.1 }
    zpty -d shell
    cat found";
/// Notes what is added to the list of words, each once: clap's functions add them several times.
const ZSHRC: &str = "PROMPT=
    fpath=($PWD $fpath)
    autoload -Uz compinit && compinit -u -D
    typeset -gaU added
    compadd() { builtin compadd -O matches \"$@\"; added+=($matches); builtin compadd \"$@\" }
    report() { print -r -- $added > found.part; mv found.part found; exit }
    zle -N report
    bindkey '^X' report
    zle-line-init() { : > ready }
    zle -N zle-line-init
";

/// Returns what is completed after each line, and what the command was asked for it, or `None` without the shell.
fn completed(test: &str, shell: Shell, lines: &[&str]) -> Option<Vec<(String, String)>> {
    let (arguments, complete): (&[&str], &str) = match shell {
        Shell::Fish => (&["--no-config", "-c"], IN_FISH),
        Shell::Zsh => (&["-f", "-c"], IN_ZSH),
        _ => (&["-c"], IN_BASH),
    };
    let program = shell.to_string();
    if Process::new(&program).arg("--version").output().is_err() {
        aquifer_test_support::skip_part(&program, format!("there is no {program}"));
        return None;
    }
    let directory: PathBuf = std::env::temp_dir().join(format!("aquifer-names-{test}-{shell}-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    let at = |name: &str| directory.join(name);
    fs::write(at("aquifer"), STAND_IN).expect("written");
    fs::set_permissions(at("aquifer"), fs::Permissions::from_mode(0o755)).expect("set");
    fs::write(at(".zshrc"), ZSHRC).expect("written");
    for name in ["script", "_aquifer"] {
        fs::write(at(name), super::super::script(shell)).expect("written");
    }
    let one = |line: &&str| {
        let _ = fs::remove_file(at("asked"));
        let mut process = Process::new(&program);
        process.args(arguments).arg(complete).current_dir(&directory).env("HOME", &directory).env("TERM", "dumb");
        // The name of the script, as the first argument; fish has none.
        process.args((shell != Shell::Fish).then_some("complete")).arg(line);
        let output = process.output().expect("the shell is there");
        assert!(output.stderr.is_empty(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(!at("owned").exists(), "a name was expanded");
        let asked = fs::read_to_string(at("asked")).unwrap_or_default();
        let mut words: Vec<&str> = std::str::from_utf8(&output.stdout).expect("text").split_whitespace().collect();
        words.sort_unstable();
        (words.join(" "), asked.trim().to_owned())
    };
    let found = lines.iter().map(one).collect();
    fs::remove_dir_all(&directory).expect("removed");
    Some(found)
}

#[test]
fn names_of_the_pool_are_completed_where_they_are_meant() {
    let cases = [
        ("aquifer fabric bind ", "data db", "fabric volumes"),
        ("aquifer fabric bind da", "data", "fabric volumes"),
        ("aquifer fabric --json bind db ", "h001 h002", "fabric hosts"),
        ("aquifer fabric move db --off ", "d7", "fabric donors"),
        ("aquifer fabric drain --dry-run ", "d7", "fabric donors"),
        ("aquifer fabric declare-gone host h001", "h001", "fabric hosts"),
        ("aquifer fabric --url http://a:1 unbind ", "data db", "fabric --url http://a:1 volumes"),
        ("aquifer fabric unbind --ca=x ", "data db", "fabric --ca=x volumes"),
    ];
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        let found = completed("names", shell, &cases.map(|(line, _, _)| line)).unwrap_or_default();
        for ((line, names, asked), found) in cases.into_iter().zip(found) {
            assert_eq!(found, (names.to_owned(), asked.to_owned()), "{shell}: {line}");
        }
    }
}

#[test]
fn everything_else_is_completed_from_the_table() {
    let cases = [
        ("aquifer fabric bi", "bind", ""),
        ("aquifer fabric bind db h001 --dr", "--dry-run", ""),
        ("aquifer ru", "run", ""),
    ];
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        let found = completed("others", shell, &cases.map(|(line, _, _)| line)).unwrap_or_default();
        for ((line, expected, question), (words, asked)) in cases.into_iter().zip(found) {
            assert!(words.split(' ').any(|word| word == expected), "{shell}: {line}: {expected} is not in: {words}");
            assert_eq!(asked, question, "{shell}: {line}");
        }
    }
    let lines = ["aquifer fabric create ", "aquifer fabric accounts remove "];
    let found = completed("flags", Shell::Bash, &lines).expect("bash is there");
    for ((words, asked), (expected, question)) in found.iter().zip([
        ("--size", ""),
        // Without an answer, the flags.
        ("--json", "fabric accounts"),
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

#[test]
fn each_script_has_the_names_once() {
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        assert_eq!(super::super::script(shell).matches("timeout 2 ").count(), 1, "{shell}");
    }
    // clap's function for zsh is the one that was renamed.
    assert_eq!(super::super::script(Shell::Zsh).matches("_aquifer_of_table").count(), 2);
}
