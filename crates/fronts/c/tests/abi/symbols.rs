// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the shared library exports is what the header declares, each with a version, and nothing else. That each of
//! them has a manual page is tested with the maker of the pages (`crates/xtask/src/man3.rs`).

use std::collections::BTreeSet;
use std::process::Command;

use aquifer_c::code::Code;

use crate::built::{folder, libraries, scratch, succeeds, text};

fn read(file: &str) -> String {
    std::fs::read_to_string(folder().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Returns the calls that the header declares.
fn declared() -> BTreeSet<String> {
    let header = read("include/aquifer.h");
    let lines =
        header.lines().filter(|line| line.starts_with("int aquifer_") || line.starts_with("const char *aquifer_"));
    let names = lines.filter_map(|line| line.split(['(', ' ', '*']).find(|word| word.starts_with("aquifer_")));
    names.map(str::to_owned).collect()
}

#[test]
fn the_library_exports_the_calls_of_the_header_with_their_version() {
    let mut nm = Command::new("nm");
    let listed = text(&succeeds(nm.args(["-D", "--defined-only"]).arg(libraries().join("libaquifer.so"))).stdout);
    let symbols = listed.lines().filter_map(|line| line.split_whitespace().nth(2));
    let mut exported = BTreeSet::new();
    for symbol in symbols.filter(|symbol| *symbol != "AQUIFER_0.1") {
        let name = symbol.strip_suffix("@@AQUIFER_0.1");
        exported.insert(name.unwrap_or_else(|| panic!("{symbol} has no version")).to_owned());
    }
    assert_eq!(exported, declared());
    let mut readelf = Command::new("readelf");
    let dynamic = text(&succeeds(readelf.arg("-d").arg(libraries().join("libaquifer.so"))).stdout);
    assert!(dynamic.contains("soname: [libaquifer.so.0]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}

#[test]
fn the_numbers_of_errors_are_those_of_the_header() {
    let header = read("include/aquifer.h");
    let lines = header.lines().filter(|line| line.trim_start().starts_with("AQUIFER_ERR_") && line.contains(" = -"));
    let numbers = lines.filter_map(|line| line.trim().split(&[',', ' '][..]).next().zip(line.split(" = ").nth(1)));
    let there: BTreeSet<(String, i32)> = numbers
        .map(|(name, rest)| {
            let number =
                rest.split(|letter: char| letter != '-' && !letter.is_ascii_digit()).next().unwrap_or_default();
            (name.to_owned(), number.parse().expect("a number"))
        })
        .collect();
    let here = Code::ALL.iter().filter(|code| **code != Code::Ok);
    let here: BTreeSet<_> = here.map(|code| (code.name().to_string_lossy().into_owned(), *code as i32)).collect();
    assert_eq!(there, here);
}

/// The C compiler finds the sizes and offsets that Rust uses, for every struct.
#[test]
fn structs_are_laid_out_as_the_compiler_does() {
    use aquifer_c::{contexts, curve, fetches, gathers, queries, space};

    let ours = [
        (
            "struct aquifer_options",
            size_of::<space::Options>(),
            "without_system_calls",
            std::mem::offset_of!(space::Options, without_system_calls),
        ),
        (
            "struct aquifer_limits",
            size_of::<space::Limits>(),
            "serves_system_calls",
            std::mem::offset_of!(space::Limits, serves_system_calls),
        ),
        (
            "struct aquifer_statistics",
            size_of::<space::Statistics>(),
            "errors",
            std::mem::offset_of!(space::Statistics, errors),
        ),
        (
            "struct aquifer_status_run",
            size_of::<queries::StatusRun>(),
            "is_clean",
            std::mem::offset_of!(queries::StatusRun, is_clean),
        ),
        (
            "struct aquifer_temperature_run",
            size_of::<queries::TemperatureRun>(),
            "temperature",
            std::mem::offset_of!(queries::TemperatureRun, temperature),
        ),
        (
            "struct aquifer_histogram",
            size_of::<queries::Histogram>(),
            "away_bytes",
            std::mem::offset_of!(queries::Histogram, away_bytes),
        ),
        (
            "struct aquifer_curve",
            size_of::<curve::Curve>(),
            "least_dram_bytes",
            std::mem::offset_of!(curve::Curve, least_dram_bytes),
        ),
        (
            "struct aquifer_curve_point",
            size_of::<curve::CurvePoint>(),
            "miss_ratio",
            std::mem::offset_of!(curve::CurvePoint, miss_ratio),
        ),
        ("struct aquifer_range", size_of::<fetches::Range>(), "len", std::mem::offset_of!(fetches::Range, len)),
        ("struct aquifer_piece", size_of::<gathers::Piece>(), "len", std::mem::offset_of!(gathers::Piece, len)),
        (
            "struct aquifer_context_options",
            size_of::<contexts::ContextOptions>(),
            "stack_bytes",
            std::mem::offset_of!(contexts::ContextOptions, stack_bytes),
        ),
        (
            "struct aquifer_contexts_report",
            size_of::<contexts::ContextsReport>(),
            "runs",
            std::mem::offset_of!(contexts::ContextsReport, runs),
        ),
        ("aquifer_space_t", size_of::<space::Space>(), "handle", 0),
    ];
    let asserted = ours.iter().map(|(name, size, member, offset)| {
        format!("_Static_assert(sizeof({name}) == {size} && offsetof({name}, {member}) == {offset}, \"{name}\");\n")
    });
    let source = format!("#include \"aquifer.h\"\n{}", asserted.collect::<String>());
    let file = scratch().join("layout.c");
    std::fs::create_dir_all(scratch()).unwrap();
    std::fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    succeeds(cc.args(["-std=c11", "-fsyntax-only", "-I"]).arg(folder().join("include")).arg(&file));
}

/// The header states the oldest standards that it needs; with them it has no warnings, and neither has the use of its
/// macros.
#[test]
fn the_header_needs_no_more_than_c99_or_cpp11() {
    let header = read("include/aquifer.h");
    let about = header.split("#ifndef").next().expect("a comment is before it");
    assert!(about.contains("C99") && about.contains("C++11"), "{about}");
    let names = header.lines().filter_map(|line| line.strip_prefix("#define AQUIFER_")?.split_once("_INIT "));
    let used: Vec<String> = names
        .map(|(name, _)| {
            let name = name.to_lowercase();
            format!("    struct aquifer_{name} {name} = AQUIFER_{}_INIT; (void){name};\n", name.to_uppercase())
        })
        .collect();
    assert!(used.len() >= 4, "{used:?}");
    let memory = "    aquifer_mapping_t memory = AQUIFER_MEMORY; (void)memory;\n";
    let source = format!("#include \"aquifer.h\"\nint main(void) {{\n{}{memory}    return 0;\n}}\n", used.concat());
    std::fs::create_dir_all(scratch()).unwrap();
    for (compiler, standard, kind) in [("cc", "c99", "c"), ("c++", "c++11", "cpp")] {
        let file = scratch().join(format!("oldest.{kind}"));
        std::fs::write(&file, &source).unwrap();
        let mut command = Command::new(compiler);
        command.arg(format!("-std={standard}")).args(["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]);
        succeeds(command.arg("-I").arg(folder().join("include")).arg(&file));
    }
}
