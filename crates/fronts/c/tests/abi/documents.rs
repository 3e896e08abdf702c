// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The examples of docs/c.md compile without warnings, and run; and the tests exist that docs/testing.md names for the
//! library.

use crate::built::{Linkage, compile, folder, run, scratch};
use crate::programs::can_run;

/// Returns the blocks of C in a document, with the number of the line that each begins at.
fn blocks(document: &str) -> Vec<(usize, String)> {
    let (mut blocks, mut inside) = (Vec::new(), false);
    for (number, line) in document.lines().enumerate() {
        match (line, inside) {
            ("```c" | "```cpp", false) => {
                blocks.push((number + 2, String::new()));
                inside = true;
            }
            ("```", true) => inside = false,
            (line, true) => {
                let (_, block) = blocks.last_mut().expect("one has begun");
                block.push_str(line);
                block.push('\n');
            }
            _ => {}
        }
    }
    blocks
}

#[test]
fn the_examples_of_the_page_run() {
    let page = std::fs::read_to_string(folder().join("../../../docs/c.md")).expect("the page exists");
    let blocks = blocks(&page);
    assert!(blocks.len() >= 4, "{} examples", blocks.len());
    std::fs::create_dir_all(scratch()).expect("the target directory can be written");
    for (line, block) in blocks {
        let kind = if block.contains("std::") { "cpp" } else { "c" };
        let source = scratch().join(format!("example_{line}.{kind}"));
        std::fs::write(&source, block).expect("it can be written");
        let program = compile(&source, Linkage::Shared);
        if can_run() {
            let output = run(&program);
            println!("docs/c.md:{line}: {output}");
        }
    }
}

/// Returns the sources in a folder of the library, as one text.
fn sources(of: &str) -> String {
    let files = std::fs::read_dir(folder().join("..").join(of)).expect("the folder exists").flatten();
    files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect()
}

#[test]
fn the_table_of_trouble_names_tests_that_exist_in_each_language() {
    let page = std::fs::read_to_string(folder().join("../../../docs/testing.md")).expect("the page exists");
    let (_, section) = page.split_once("\n## Trouble of the library\n").expect("the section exists");
    let (section, _) = section.split_once("\n## ").expect("another one follows");
    let rows: Vec<Vec<&str>> = section
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() > 15 && rows[0][1..] == ["Rust", "C", "Python"], "{rows:?}");
    let languages = [("library/tests", "fn "), ("c/tests/programs", ""), ("python/tests/py", "def ")];
    for (column, (of, before)) in languages.into_iter().enumerate() {
        let sources = sources(of);
        for row in &rows[1..] {
            let names: Vec<&str> = row[column + 1].split('`').skip(1).step_by(2).collect();
            assert!(!names.is_empty() || row[column + 1].starts_with("excluded"), "{row:?}");
            for name in names {
                assert!(sources.contains(&format!("{before}{name}(")), "{of} has no {name}");
            }
        }
    }
}
