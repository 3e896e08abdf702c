// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a workload is: which program, with which arguments, with which footprint.
//!
//! The programs are those of `bench/workloads`. A program reports its footprint when called with `--footprint`, and
//! says in its result which of its numbers is the figure; nothing here knows what a program does. The list itself is in
//! `workload/list.rs`.

use std::path::Path;

use crate::library::{GATHER_PYTHON, PROGRAM, Way};

mod list;

pub use list::WORKLOADS;

/// The data of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Arrays of this many bytes, unless `--bytes` says otherwise.
    Arrays { bytes: u64 },
    /// A Kronecker graph; this many trials, unless `--trials` says otherwise.
    Graph { trials: u32 },
    /// Values of this many bytes in total, unless `--bytes` says otherwise, in a server that the program starts. The
    /// program runs outside the limit, and its server inside.
    Server { bytes: u64, program: &'static str },
    /// A program of the user, which takes no such arguments and prints no result (`user_program.rs`).
    Own,
}

/// One entry of the list.
#[derive(Debug, PartialEq, Eq)]
pub struct Workload {
    pub name: &'static str,
    /// File name of the program.
    pub program: &'static str,
    pub arguments: &'static [&'static str],
    pub input: Input,
    /// Why its memory cannot be put into a file; None if `--file` does it.
    pub no_file: Option<&'static str>,
    /// Number of processes that hold the data at the same time. They share the local memory; the limit has room for the
    /// pager of each.
    pub processes: u64,
    /// Reads and writes on the device per unit of work without a cache; the mix that `fio` measures.
    pub device_mix: Option<(u32, u32)>,
    pub about: &'static str,
}

/// Finds a workload by name.
pub fn find(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.name == name)
}

/// The sizes that the user may change for every workload.
#[derive(Debug, Clone, Default)]
pub struct Sizing {
    pub bytes: Option<u64>,
    pub iterations: Option<u32>,
    pub trials: Option<u32>,
    pub seconds: Option<f64>,
}

impl Workload {
    pub fn is_graph(&self) -> bool {
        matches!(self.input, Input::Graph { .. })
    }

    /// Whether it is the user's own program.
    pub fn is_own(&self) -> bool {
        self.input == Input::Own
    }

    /// Whether it uses the library, and has the contenders of `library.rs`.
    pub fn uses_library(&self) -> bool {
        self.program == PROGRAM || self.is_python()
    }

    /// Whether its program is a script that needs the Python package and NumPy.
    pub fn is_python(&self) -> bool {
        self.program == GATHER_PYTHON
    }

    /// The ways in which it can use the library.
    pub fn ways(&self) -> &'static [Way] {
        match self.name {
            "hints" => &[Way::Blocking, Way::Hints],
            _ if self.is_python() => &[Way::Blocking, Way::InPlace],
            // The program gives the memory of its items to no system call.
            _ if self.uses_library() => &[Way::Blocking, Way::Contexts, Way::Hints, Way::InPlace, Way::OwnFaults],
            _ => &[],
        }
    }

    /// Whether its figure says something only about the library, so that no other contender has one.
    pub fn is_about_library(&self) -> bool {
        self.name == "hints"
    }

    /// Whether it is one of YCSB's: then `aquifer cache` can be its server, too.
    pub fn is_ycsb(&self) -> bool {
        self.name.starts_with("ycsb-")
    }

    /// Local memory in per cent at which it is measured unless the user names another one.
    pub fn own_local(&self) -> Option<u32> {
        match self.name {
            "hints" | "kv" => Some(25),
            "lookup" => Some(10),
            "bfs-hints" | "gather" | "gather-python" => Some(30),
            "ycsb-a" | "ycsb-c" => Some(75),
            _ => None,
        }
    }

    /// The server that the program starts.
    pub fn server(&self) -> Option<&'static str> {
        match self.input {
            Input::Server { program, .. } => Some(program),
            Input::Arrays { .. } | Input::Graph { .. } | Input::Own => None,
        }
    }

    /// The UMap page size at which this workload was fastest on the disk of a virtual machine. The sizes tried were
    /// 4 KiB, 16 KiB and 64 KiB for random records, 4 KiB, 64 KiB and 1 MiB for graphs, 128 KiB to 2 MiB for the
    /// others.
    pub fn umap_page_bytes(&self) -> u64 {
        match self.program {
            "random_access" | "pointer_chase" => 4 << 10,
            "graph" => 64 << 10,
            _ => 1 << 20,
        }
    }

    /// The arguments of the program, without its name. `graph` is the path of the graph file.
    pub fn command_line(&self, sizing: &Sizing, graph: &Path) -> Vec<String> {
        let mut words: Vec<String> = self.arguments.iter().map(ToString::to_string).collect();
        let mut add = |flag: &str, value: String| words.extend([flag.to_string(), value]);
        match self.input {
            Input::Arrays { bytes } | Input::Server { bytes, .. } => {
                add("--bytes", sizing.bytes.unwrap_or(bytes).to_string())
            }
            Input::Graph { trials } => {
                add("--graph", graph.display().to_string());
                add("--trials", sizing.trials.unwrap_or(trials).to_string());
            }
            Input::Own => return words,
        }
        match self.program {
            // STREAM does not count the first iteration; three iterations give a best of two, and keep a run on disk
            // swap bearable.
            "stream" | "stream_static" => add("--iterations", sizing.iterations.unwrap_or(3).to_string()),
            "matmul" | "conjugate_gradient" => add("--trials", sizing.trials.unwrap_or(1).to_string()),
            "random_access" | "pointer_chase" => add("--seconds", sizing.seconds.unwrap_or(5.0).to_string()),
            PROGRAM | GATHER_PYTHON if !self.is_graph() => {
                // The same reads first fetch what is read often.
                let seconds = sizing.seconds.unwrap_or(5.0);
                add("--seconds", seconds.to_string());
                add("--warmup", seconds.to_string());
            }
            "redis_load" => {
                // The same requests must first fetch the hot data. With three quarters of the memory in DRAM, most of
                // the hot data is resident after half a minute.
                let seconds = sizing.seconds.unwrap_or(10.0);
                add("--seconds", seconds.to_string());
                add("--warmup", (3.0 * seconds).to_string());
            }
            _ => {}
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_workload() {
        let command = <crate::BenchArgs as clap::Args>::augment_args(clap::Command::new("bench"));
        let flag = command.get_arguments().find(|flag| flag.get_id() == "workload").expect("there is such a flag");
        let help = flag.get_long_help().expect("it has a long help").to_string();
        let words: Vec<&str> = help.split([' ', ',', '.', '\n']).collect();
        let missing: Vec<_> = WORKLOADS.iter().filter(|workload| !words.contains(&workload.name)).collect();
        assert!(missing.is_empty(), "{missing:?} are not in {help}");
    }

    #[test]
    fn names_are_unique_and_found() {
        for workload in &WORKLOADS {
            assert_eq!(find(workload.name), Some(workload));
            assert_eq!(WORKLOADS.iter().filter(|other| other.name == workload.name).count(), 1);
        }
        assert_eq!(find("quake"), None);
    }

    #[test]
    fn workloads_of_the_library_have_ways_and_a_local_memory_of_their_own() {
        for workload in &WORKLOADS {
            let has_own = workload.uses_library() || workload.is_ycsb();
            assert_eq!(workload.own_local().is_some(), has_own, "{}", workload.name);
            assert_eq!(workload.ways().is_empty(), !workload.uses_library(), "{}", workload.name);
        }
    }

    #[test]
    fn command_lines_follow_the_sizing() {
        let sizing = Sizing { bytes: Some(4096), iterations: Some(7), ..Sizing::default() };
        assert_eq!(
            find("stream").unwrap().command_line(&sizing, Path::new("g")),
            ["--bytes", "4096", "--iterations", "7"]
        );
        assert_eq!(find("bc").unwrap().command_line(&sizing, Path::new("g")), ["bc", "--graph", "g", "--trials", "1"]);
        assert_eq!(
            find("redis-save").unwrap().command_line(&sizing, Path::new("g")),
            ["--save", "--bytes", "4096", "--seconds", "10", "--warmup", "30"]
        );
    }
}
