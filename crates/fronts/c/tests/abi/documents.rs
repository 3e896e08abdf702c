// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The examples of docs/c.md compile without warnings, and run.

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
