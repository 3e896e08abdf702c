// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides what runs, in which order and in which limit, and what cannot run and why. Pure.
//!
//! Contenders take turns within a round, and every other round is in reverse order: A B C, C B A (`order.rs`).

use crate::contender::{Contender, SwapKind};
use crate::record::Skipped;
use crate::size::MIB;
use crate::workload::Workload;
use crate::{equal_memory, order};

/// The part of the budget by which a pager may exceed it for moments. Its tables and buffers count in the budget, so
/// they get no room of their own here: other contenders would fill that room with data.
const EXCESS_SHARE: u64 = 128;

/// Code, libraries and stacks of a program. STREAM over 10 MB peaked 3.9 MB above its arrays with two threads; this
/// leaves room for more threads and for the page cache of the binaries.
const CODE_AND_STACKS_BYTES: u64 = 16 * MIB;

/// A page table entry takes 8 of 4096 bytes, and the kernel charges page tables too.
pub(crate) const PAGE_TABLE_SHARE: u64 = 512;

/// A workload whose footprint is known.
#[derive(Debug, Clone)]
pub struct Measured {
    pub workload: &'static Workload,
    pub footprint_bytes: u64,
    /// The local memory at which it is measured alone, in per cent.
    pub own_local: Option<u32>,
}

/// Why something cannot be done here; None if it can.
#[derive(Debug, Clone, Default)]
pub struct Obstacles {
    pub aquifer: Option<String>,
    /// `aquifer cache`.
    pub cache: Option<String>,
    pub fio: Option<String>,
    /// Separate hosts, for several donors.
    pub hosts: Option<String>,
    pub limit: Option<String>,
    /// Servers of workloads that are not installed, by their programs.
    pub missing_servers: Vec<&'static str>,
    /// NUMA nodes with memory that contenders name and this machine does not have.
    pub missing_nodes: Vec<u32>,
    pub numactl: Option<String>,
    /// A Python with NumPy and the package.
    pub python: Option<String>,
    /// Any swap at all.
    pub swap: Option<String>,
    pub swap_ram: Option<String>,
    pub swap_zram: Option<String>,
    /// Certificates.
    pub tls: Option<String>,
    pub umap: Option<String>,
}

/// One run to be made.
#[derive(Debug, Clone)]
pub struct Step {
    pub workload: &'static Workload,
    pub footprint_bytes: u64,
    pub local_percent: u32,
    pub local_bytes: u64,
    pub contender: Contender,
    pub round: u32,
    /// Its place in the round, from 0.
    pub turn: u32,
    /// The limit that the kernel enforces; None for no limit.
    pub limit_bytes: Option<u64>,
    /// True for a run before the rounds that is not compared: it measures what ours has resident (`equal_memory.rs`).
    pub is_calibration: bool,
}

impl Step {
    /// When it is made, in words.
    pub fn turn_name(&self) -> String {
        match self.is_calibration {
            true => "for its memory".into(),
            false => format!("round {}", self.round + 1),
        }
    }
}

/// Everything that will run, and everything that will not.
#[derive(Debug, Default)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// Mixes of reads and writes to measure with `fio`.
    pub mixes: Vec<(u32, u32)>,
    pub skipped: Vec<Skipped>,
}

/// The local memory for a footprint, in whole pages.
pub fn local_bytes(footprint: u64, percent: u32) -> u64 {
    footprint * u64::from(percent) / 100 / 4096 * 4096
}

/// The limit that the kernel enforces, the same for every limited contender unless ours needs less (`equal_memory.rs`).
/// Processes share the local memory, and each has its own pager, code and page tables.
pub fn limit_bytes(footprint: u64, local: u64, processes: u64) -> u64 {
    let beside = CODE_AND_STACKS_BYTES + footprint / PAGE_TABLE_SHARE;
    (local + local / EXCESS_SHARE + beside * processes).next_multiple_of(4096)
}

impl Obstacles {
    fn to(&self, contender: &Contender, workload: &Workload) -> Option<String> {
        if let Some(server) = workload.server().filter(|server| self.missing_servers.contains(server)) {
            return Some(format!("{server} is not installed; install Redis, 6 or newer"));
        }
        if let Some(reason) = self.python.as_ref().filter(|_| workload.is_python()) {
            return Some(reason.clone());
        }
        if workload.is_about_library() && !matches!(contender, Contender::Library(_)) {
            return Some("its figure says what hints of the library are worth".to_owned());
        }
        if let Some(node) = contender.node().filter(|node| self.missing_nodes.contains(node)) {
            return Some(format!("there is no NUMA node {node} with memory; `aquifer tiering status` lists them"));
        }
        let no_file = workload.no_file.map(str::to_string);
        match contender.kind() {
            // Another build is never nested in another build.
            Contender::Dram | Contender::OtherBuild(_) => None,
            Contender::AquiferCompressed
            | Contender::AquiferDonor
            | Contender::AquiferDram
            | Contender::AquiferEmulated(_)
            | Contender::AquiferFlash
            | Contender::AquiferFlashEncrypted
            | Contender::AquiferNode(_)
            | Contender::AquiferShm => self.aquifer.clone(),
            Contender::AquiferDonorTls => self.aquifer.clone().or_else(|| self.tls.clone()),
            Contender::AquiferDonors(_) => self.aquifer.clone().or_else(|| self.hosts.clone()),
            Contender::Swap(kind) => {
                let own = match kind {
                    SwapKind::Disk => None,
                    SwapKind::Ram => self.swap_ram.clone(),
                    SwapKind::Zram | SwapKind::ZramCounted => self.swap_zram.clone(),
                };
                self.limit.clone().or_else(|| self.swap.clone()).or(own)
            }
            Contender::Library(_) if !workload.uses_library() => Some(
                "it does not use the library; kv, lookup, bfs-hints, gather, gather-python and hints do".to_owned(),
            ),
            Contender::Library(library) if !workload.ways().contains(&library.way()) => {
                Some("its program does not read in this way".to_owned())
            }
            Contender::Cache(_) if !workload.is_ycsb() => {
                Some("only ycsb-a and ycsb-c can have it as server".to_owned())
            }
            Contender::Cache(_) => self.cache.clone(),
            Contender::Library(_) => None,
            Contender::Numactl(_) => self.numactl.clone(),
            Contender::MmapFile => self.limit.clone().or(no_file),
            Contender::Umap if workload.uses_library() => Some("it is not built for UMap".to_owned()),
            Contender::Umap => self.limit.clone().or_else(|| self.umap.clone()).or(no_file),
            Contender::Fio => self.fio.clone(),
        }
    }
}

/// Makes the plan.
pub fn plan(
    workloads: &[Measured],
    locals: &[u32],
    contenders: &[Contender],
    rounds: u32,
    obstacles: &Obstacles,
) -> Plan {
    let mut plan = Plan::default();
    for Measured { workload, footprint_bytes, own_local } in workloads {
        let mut able = Vec::new();
        for contender in contenders {
            match (obstacles.to(contender, workload), contender, workload.device_mix) {
                (Some(reason), ..) => plan.skipped.push(Skipped {
                    workload: workload.name.into(),
                    contender: contender.to_string(),
                    reason,
                }),
                (None, Contender::Fio, Some(mix)) if !plan.mixes.contains(&mix) => plan.mixes.push(mix),
                (None, Contender::Fio, _) => {}
                (None, ..) => able.push(contender),
            }
        }
        for percent in own_local.as_ref().map_or(locals, std::slice::from_ref) {
            let local = local_bytes(*footprint_bytes, *percent);
            let step = |contender: &Contender, round, turn| Step {
                workload,
                footprint_bytes: *footprint_bytes,
                local_percent: *percent,
                local_bytes: local,
                contender: contender.clone(),
                round,
                turn,
                limit_bytes: (contender.is_limited() && obstacles.limit.is_none())
                    .then(|| limit_bytes(*footprint_bytes, local, workload.processes)),
                is_calibration: false,
            };
            let calibrations = equal_memory::to_calibrate(workload, &able).into_iter();
            plan.steps.extend((0..).zip(calibrations).map(|(turn, contender)| {
                let calibration = step(contender, 0, turn);
                Step { is_calibration: true, ..calibration }
            }));
            for round in 0..rounds {
                let in_order = (0..).zip(order::of_round(round, able.clone()));
                plan.steps.extend(in_order.map(|(turn, contender)| step(contender, round, turn)));
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload;

    fn measured(name: &str) -> Measured {
        Measured { workload: workload::find(name).unwrap(), footprint_bytes: 1 << 30, own_local: None }
    }

    /// The steps of the rounds: those that are compared.
    fn compared(plan: &Plan) -> Vec<&Step> {
        plan.steps.iter().filter(|step| !step.is_calibration).collect()
    }

    fn contenders(names: &str) -> Vec<Contender> {
        names.split(',').map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn contenders_take_turns_and_every_other_round_is_reversed() {
        let plan = plan(&[measured("stream")], &[30, 50], &contenders("dram,aquifer-flash"), 3, &Obstacles::default());
        let order: Vec<_> =
            plan.steps.iter().map(|s| format!("{} {}.{} {}", s.local_percent, s.round, s.turn, s.contender)).collect();
        let of_ratio = |percent: u32| {
            let turns =
                ["0.0 dram", "0.1 aquifer-flash", "1.0 aquifer-flash", "1.1 dram", "2.0 dram", "2.1 aquifer-flash"];
            turns.map(|turn| format!("{percent} {turn}"))
        };
        assert_eq!(order, [of_ratio(30), of_ratio(50)].concat());
    }

    #[test]
    fn contenders_that_cannot_run_have_no_turn() {
        let obstacles = Obstacles { limit: Some("not root".into()), ..Obstacles::default() };
        let names = contenders("dram,swap-disk,aquifer-flash,mmap-file,fio,aquifer-dram");
        let plan = plan(&[measured("stream")], &[30], &names, 2, &obstacles);
        let order: Vec<_> = plan.steps.iter().map(|s| format!("{}.{} {}", s.round, s.turn, s.contender)).collect();
        let first = ["0.0 dram", "0.1 aquifer-flash", "0.2 aquifer-dram"];
        assert_eq!(order, [first, ["1.0 aquifer-dram", "1.1 aquifer-flash", "1.2 dram"]].concat());
    }

    #[test]
    fn a_node_that_does_not_exist_is_skipped_and_one_that_does_has_no_limit() {
        let names = contenders("aquifer-node:1,numactl:1,aquifer-node:7,numactl:7");
        let obstacles = Obstacles { missing_nodes: vec![7], ..Obstacles::default() };
        let made = plan(&[measured("stream")], &[30], &names, 1, &obstacles);
        let steps: Vec<_> = made.steps.iter().map(|step| (step.contender.to_string(), step.limit_bytes)).collect();
        assert_eq!(steps, [("aquifer-node:1".to_owned(), None), ("numactl:1".to_owned(), None)]);
        let reasons: Vec<_> = made.skipped.iter().map(|skipped| skipped.reason.as_str()).collect();
        assert!(reasons.len() == 2 && reasons.iter().all(|reason| reason.contains("NUMA node 7")), "{reasons:?}");
        let obstacles = Obstacles { numactl: Some("numactl is not installed".into()), ..Obstacles::default() };
        let made = plan(&[measured("stream")], &[30], &names[..2], 1, &obstacles);
        assert_eq!((made.steps.len(), made.skipped[0].contender.as_str()), (1, "numactl:1"));
    }

    #[test]
    fn the_limit_is_the_same_for_ours_and_for_swap() {
        let plan = plan(
            &[measured("stream")],
            &[30],
            &contenders("dram,aquifer-flash,aquifer-dram,swap-disk,mmap-file"),
            1,
            &Obstacles::default(),
        );
        let before = plan.steps.iter().filter(|step| step.is_calibration);
        let before: Vec<_> = before.map(|step| step.contender.to_string()).collect();
        assert_eq!(before, ["aquifer-flash"], "swap gets what it has resident");
        assert!(plan.steps[0].is_calibration && !plan.steps[1].is_calibration);
        let limits: Vec<_> = compared(&plan).iter().map(|step| step.limit_bytes).collect();
        assert_eq!(limits[0], None);
        assert_eq!(limits[2], None);
        assert!(limits[1].is_some() && limits[1] == limits[3] && limits[3] == limits[4]);
        let local = plan.steps[0].local_bytes;
        assert_eq!(local, 322_121_728);
        assert!(limits[1].unwrap() > local + CODE_AND_STACKS_BYTES && limits[1].unwrap() < local + 24 * MIB);
    }

    #[test]
    fn a_workload_of_the_library_has_its_contenders_and_the_others_have_not() {
        let names = contenders("dram,contexts,own-faults:emulated:xl-flash-slc,aquifer-flash");
        let kv = Measured { own_local: Some(25), ..measured("kv") };
        let plan = plan(&[kv, measured("stream")], &[30], &names, 1, &Obstacles::default());
        let steps: Vec<_> =
            plan.steps.iter().map(|s| format!("{} {} {}", s.workload.name, s.local_percent, s.contender)).collect();
        let of_kv = ["dram", "contexts", "own-faults:emulated:xl-flash-slc", "aquifer-flash"];
        let of_kv = of_kv.map(|contender| format!("kv 25 {contender}"));
        let of_stream = ["dram", "aquifer-flash"].map(|contender| format!("stream 30 {contender}"));
        assert_eq!(steps, [&of_kv[..], &of_stream].concat());
        let limits: Vec<_> = plan.steps.iter().map(|step| step.limit_bytes.is_some()).collect();
        assert_eq!(limits[..4], [false, true, false, true], "the memory of an emulated device is elsewhere");
        assert_eq!(plan.steps[1].limit_bytes, plan.steps[3].limit_bytes);
        assert!(
            plan.skipped.iter().all(|it| it.workload == "stream" && it.reason.contains("does not use the library"))
        );
    }

    #[test]
    fn a_workload_that_is_about_hints_or_python_has_the_ways_of_its_program_alone() {
        let names = contenders("dram,blocking,own-faults,hints,contexts,in-place,mmap-file");
        let all = [measured("hints"), measured("gather-python")];
        let plan = plan(&all, &[30], &names, 1, &Obstacles::default());
        let steps: Vec<_> = compared(&plan).iter().map(|s| format!("{} {}", s.workload.name, s.contender)).collect();
        let of_python = ["dram", "blocking", "in-place", "mmap-file"].map(|name| format!("gather-python {name}"));
        assert_eq!(steps, [&["hints blocking".to_owned(), "hints hints".to_owned()][..], &of_python].concat());
        let obstacles = Obstacles { python: Some("no NumPy".into()), ..Obstacles::default() };
        let plan = super::plan(&[measured("gather-python")], &[30], &names, 1, &obstacles);
        assert!(plan.steps.is_empty() && plan.skipped.iter().all(|skipped| skipped.reason == "no NumPy"));
    }

    #[test]
    fn the_cache_is_a_server_of_ycsb_alone() {
        let names = contenders("dram,cache,cache:emulated:xl-flash-slc");
        let both = [measured("ycsb-a"), measured("redis")];
        let plan = plan(&both, &[75], &names, 1, &Obstacles::default());
        let steps: Vec<_> = plan.steps.iter().map(|s| format!("{} {}", s.workload.name, s.contender)).collect();
        assert_eq!(steps, ["ycsb-a dram", "ycsb-a cache", "ycsb-a cache:emulated:xl-flash-slc", "redis dram"]);
        let obstacles = Obstacles { cache: Some("not built".into()), ..Obstacles::default() };
        let plan = super::plan(&both[..1], &[75], &names, 1, &obstacles);
        assert_eq!(plan.skipped.iter().filter(|skipped| skipped.reason == "not built").count(), 2);
    }

    #[test]
    fn without_limits_swap_is_skipped_and_ours_still_runs() {
        let obstacles =
            Obstacles { limit: Some("not root".into()), umap: Some("not installed".into()), ..Obstacles::default() };
        let plan = plan(
            &[measured("stream")],
            &[30],
            &contenders("dram,aquifer-flash,swap-disk,mmap-file,umap"),
            1,
            &obstacles,
        );
        assert_eq!(plan.steps.iter().map(|s| s.contender.to_string()).collect::<Vec<_>>(), ["dram", "aquifer-flash"]);
        assert_eq!(plan.steps[1].limit_bytes, None);
        assert_eq!(plan.skipped.len(), 3);
        assert!(plan.skipped.iter().all(|skipped| skipped.reason == "not root"));
    }

    #[test]
    fn a_server_that_is_not_installed_is_skipped_for_every_contender() {
        let obstacles = Obstacles { missing_servers: vec!["redis-server"], ..Obstacles::default() };
        let both = [measured("redis"), measured("stream")];
        let plan = plan(&both, &[50], &contenders("dram,aquifer-flash,fio"), 1, &obstacles);
        assert_eq!(plan.steps.iter().map(|step| step.workload.name).collect::<Vec<_>>(), ["stream", "stream"]);
        assert_eq!(plan.skipped.iter().filter(|skipped| skipped.workload == "redis").count(), 3);
        assert!(plan.skipped.iter().all(|skipped| skipped.reason.contains("redis-server is not installed; install")));
    }

    #[test]
    fn a_forked_process_has_room_for_its_pager_and_shares_the_local_memory() {
        let limit = |name| {
            let plan = plan(&[measured(name)], &[50], &contenders("swap-disk"), 1, &Obstacles::default());
            plan.steps[0].limit_bytes.unwrap()
        };
        let more = limit("redis-save") - limit("redis");
        assert!((CODE_AND_STACKS_BYTES..20 * MIB).contains(&more), "{more}");
    }

    #[test]
    fn without_hosts_or_openssl_one_donor_still_runs() {
        let (hosts, tls) = (Some("not root".into()), Some("no openssl".into()));
        let names = contenders("aquifer-donor,aquifer-donor-tls,aquifer-donors:2");
        let plan = plan(&[measured("stream")], &[30], &names, 1, &Obstacles { hosts, tls, ..Obstacles::default() });
        assert_eq!(plan.steps.iter().map(|step| step.contender.to_string()).collect::<Vec<_>>(), ["aquifer-donor"]);
        let skipped: Vec<_> = plan.skipped.iter().map(|s| (s.contender.as_str(), s.reason.as_str())).collect();
        assert_eq!(skipped, [("aquifer-donor-tls", "no openssl"), ("aquifer-donors:2", "not root")]);
    }

    #[test]
    fn each_obstacle_meets_its_contender_alone() {
        let obstacles = Obstacles { swap_zram: Some("no zram".into()), ..Obstacles::default() };
        let plan = plan(
            &[measured("stream-static")],
            &[30],
            &contenders("swap-disk,swap-ram,swap-zram,mmap-file,fio"),
            1,
            &obstacles,
        );
        assert_eq!(plan.steps.len(), 2);
        assert_eq!(plan.mixes, [(3, 1)]);
        let skipped: Vec<_> = plan.skipped.iter().map(|s| (s.contender.as_str(), s.reason.as_str())).collect();
        assert_eq!(skipped, [("swap-zram", "no zram"), ("mmap-file", "its static arrays cannot be put into a file")]);
    }
}
