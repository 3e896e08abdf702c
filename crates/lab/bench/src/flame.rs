// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A flame graph as SVG, from the output of `perf script`. Pure.
//!
//! Each box is a function; its width is the share of samples in which the function was on the stack, below the boxes
//! that it called. See Gregg, "The Flame Graph", CACM 59(6), 2016. Ours, because the libraries that draw one have a
//! licence that `deny.toml` does not accept.

use std::collections::BTreeMap;
use std::fmt::Write;

const WIDTH: f64 = 1200.0;
const ROW: f64 = 17.0;
const MARGIN: f64 = 10.0;
const TITLE: f64 = 34.0;
/// Narrower boxes are left out.
const NARROWEST: f64 = 0.4;
/// About the width of a character at the font's size.
const CHARACTER: f64 = 6.6;

/// Whose code a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Kernel,
    /// The preloaded library.
    Pager,
    Program,
}

/// A function and what it called, by name, so that equal stacks lie together.
#[derive(Debug, Default, PartialEq)]
struct Node {
    samples: u64,
    called: BTreeMap<(String, Origin), Node>,
}

impl Node {
    fn add(&mut self, stack: &[(&str, Origin)]) {
        self.samples += 1;
        if let Some(((name, origin), rest)) = stack.split_first() {
            self.called.entry(((*name).to_owned(), *origin)).or_default().add(rest);
        }
    }

    fn depth(&self) -> usize {
        self.called.values().map(|node| 1 + node.depth()).max().unwrap_or(0)
    }
}

/// The stacks of `perf script -F comm,ip,sym,dso`: a line with the thread's name, a line for each function, the
/// innermost first, and an empty line.
fn tree(text: &str) -> Node {
    let mut root = Node::default();
    for sample in text.split("\n\n") {
        let mut lines = sample.lines().skip_while(|line| line.trim().is_empty());
        let Some(thread) = lines.next().map(str::trim) else { continue };
        let mut stack: Vec<(&str, Origin)> = lines.filter_map(function).collect();
        if stack.is_empty() {
            continue;
        }
        stack.push((thread, Origin::Program));
        stack.reverse();
        root.add(&stack);
    }
    root
}

/// The function in a line such as `ffffffff81 do_user_addr_fault+0x1 ([kernel.kallsyms])`.
fn function(line: &str) -> Option<(&str, Origin)> {
    let (_, rest) = line.trim().split_once(' ')?;
    let (name, file) = rest.rsplit_once(" (").unwrap_or((rest, ""));
    let name = name.split("+0x").next().unwrap_or(name);
    let origin = match file {
        _ if file.starts_with("[kernel") => Origin::Kernel,
        _ if file.contains("libaquifer_preload") => Origin::Pager,
        _ => Origin::Program,
    };
    Some((if name == "[unknown]" { "?" } else { name }, origin))
}

/// Draws the samples of `perf script`.
pub fn draw(title: &str, text: &str) -> String {
    let root = tree(text);
    let height = TITLE + (root.depth() as f64) * ROW + MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"{MARGIN}\" y=\"20\" \
         font-size=\"15\">{}</text>\n",
        escaped(&format!("{title} ({} samples)", root.samples))
    );
    let scale = (WIDTH - 2.0 * MARGIN) / root.samples.max(1) as f64;
    draw_called(&mut svg, &root, MARGIN, height - MARGIN - ROW, scale, root.samples);
    svg.push_str("</svg>\n");
    svg
}

fn draw_called(svg: &mut String, node: &Node, mut left: f64, top: f64, scale: f64, all: u64) {
    for ((name, origin), called) in &node.called {
        let width = called.samples as f64 * scale;
        if width >= NARROWEST {
            let percent = called.samples as f64 * 100.0 / all.max(1) as f64;
            let _ = write!(
                svg,
                "<g><title>{} ({percent:.1} %, {} samples)</title><rect x=\"{left:.1}\" y=\"{top:.1}\" \
                 width=\"{width:.1}\" height=\"{:.1}\" rx=\"1\" fill=\"{}\"/>",
                escaped(name),
                called.samples,
                ROW - 1.0,
                colour(name, *origin)
            );
            let room = ((width - 4.0) / CHARACTER) as usize;
            if room >= 3 {
                let shown: String = name.chars().take(room).collect();
                let _ = write!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", left + 2.0, top + 12.0, escaped(&shown));
            }
            svg.push_str("</g>\n");
            draw_called(svg, called, left, top - ROW, scale, all);
        }
        left += width;
    }
}

/// The pager blue, the program green, the kernel orange; shades by name, so that neighbours differ.
fn colour(name: &str, origin: Origin) -> String {
    let shade = name.bytes().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte))) % 24;
    let hue = match origin {
        Origin::Pager => 205,
        Origin::Program => 130,
        Origin::Kernel => 32,
    };
    format!("hsl({hue},70%,{}%)", 60 + shade)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: &str = "random_access \n\tffff81 clear_page+0x4 ([kernel.kallsyms])\n\
                           \tffff82 do_fault+0x1 ([kernel.kallsyms])\n\t5555 main+0x2 (/bin/random_access)\n\n\
                           random_access \n\t7f01 fault::resolve<P>+0x9 (/usr/lib/libaquifer_preload.so)\n\
                           \t5555 main+0x2 (/bin/random_access)\n\n";

    #[test]
    fn equal_callers_share_a_box() {
        let root = tree(SAMPLES);
        let called = |node: &'_ Node, name: &str, origin| node.called[&(name.to_owned(), origin)].samples;
        let thread = &root.called[&("random_access".to_owned(), Origin::Program)];
        let main = &thread.called[&("main".to_owned(), Origin::Program)];
        assert_eq!((root.samples, main.samples), (2, 2));
        assert_eq!(
            (called(main, "do_fault", Origin::Kernel), called(main, "fault::resolve<P>", Origin::Pager)),
            (1, 1)
        );
        assert_eq!(root.depth(), 4);
    }

    #[test]
    fn a_graph_names_its_functions_and_is_well_formed() {
        let svg = draw("where it goes", SAMPLES);
        for word in ["clear_page (50.0 %, 1 samples)", "resolve&lt;P&gt;", "where it goes (2 samples)", "</svg>"] {
            assert!(svg.contains(word), "{word} is missing in {svg}");
        }
        assert_eq!(svg.matches("<g>").count(), svg.matches("</g>").count());
        assert!(draw("nothing", "").contains("0 samples"));
    }
}
