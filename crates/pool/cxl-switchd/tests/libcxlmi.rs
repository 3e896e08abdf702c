// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The programs of libcxlmi, the library with which others manage CXL switches, against this switch: each of its tests
//! that applies passes, and each that does not is listed here with the reason.
//!
//! `AQUIFER_LIBCXLMI` names the directory in which libcxlmi was built. Without it the test is skipped, and only the
//! recorded requests are tested, in `crates/pool/cxl-switch/tests/libcxlmi.rs`. libcxlmi speaks MCTP by the kernel's
//! sockets. `libcxlmi/af_mctp.c` is preloaded into its programs and carries their messages over the switch's Unix
//! socket, so that neither a kernel with MCTP nor a bus is needed.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aquifer_cxl_switch::SwitchConfig;
use aquifer_test_support::skip;

/// How long one program may run. It waits 2 s for an answer at most, and sends fewer than 100 commands.
const RUN_MAX: Duration = Duration::from_secs(300);
/// The pause between two checks whether it has ended.
const POLL: Duration = Duration::from_millis(10);

/// One run of a program.
struct Run {
    program: &'static str,
    arguments: &'static [&'static str],
    /// Its tests that must pass.
    passes: &'static [&'static str],
    /// Its tests that fail, and why that is not our switch's fault.
    fails: &'static [(&'static str, &'static str)],
}

const RUNS: [Run; 4] = [
    Run {
        program: "cxl-test-generic",
        arguments: &[],
        passes: &[
            "identify",
            "bg_op_status",
            "get_response_msg_limit",
            "set_response_msg_limit",
            "request_bg_op_abort",
            "get_timestamp",
            "set_timestamp",
            "get_event_records",
            "get_event_interrupt_policy",
            "set_event_interrupt_policy",
            "get_mctp_event_interrupt_policy",
            "set_mctp_event_interrupt_policy",
            "get_supported_logs",
            "get_log",
            "get_log_cel",
            "get_log_capabilities",
        ],
        fails: &[("clear_event_records", "a log is cleared as a whole only after an overflow, and there was none")],
    },
    Run {
        program: "cxl-test-fmapi",
        arguments: &[],
        passes: &[
            "identify_sw_device",
            "get_phys_port_state",
            "phys_port_control",
            "send_ppb_cxlio_config_request",
            "get_vcs_domain_validation_sv_state",
        ],
        fails: &[
            ("get_domain_validation_sv", "no host has set a secret value"),
            ("bind_vppb", "a bind goes on in the background, which the test does not take for success"),
            ("unbind_vppb", "that bind has not ended"),
            ("send_ld_cxlio_config_request", "an earlier test has put port 0 into reset"),
            ("send_ld_cxlio_mem_request", "as before"),
            ("tunnel_switch_identify", "as before"),
            ("tunnel_switch_get_health_info", "as before"),
            ("tunnel_mld_identify", "as before"),
            ("tunnel_switch_mld_identify", "as before"),
        ],
    },
    Run {
        program: "cxl-test-fmapi",
        arguments: &["-p", "1"],
        passes: &[
            "get_ld_info",
            "get_ld_allocations",
            "set_ld_allocations",
            "get_qos_control",
            "set_qos_control",
            "get_qos_status",
            "get_qos_allocated_bw",
            "set_qos_allocated_bw",
            "get_qos_bw_limit",
            "set_qos_bw_limit",
            "tunnel_switch_identify",
        ],
        fails: &[],
    },
    Run {
        program: "cxl-test-fmapi",
        arguments: &["-p", "2"],
        passes: &["get_dcd_info", "get_dc_reg_config", "get_dc_region_ext_list", "dc_list_tags"],
        fails: &[
            ("set_dc_region_config", "it asks for blocks of a size that the device does not support"),
            ("initiate_dc_add", "it asks for 0 bytes"),
            ("initiate_dc_release", "it releases 0 bytes"),
            ("dc_add_reference", "no capacity has its tag"),
            ("dc_remove_reference", "no capacity has its tag"),
        ],
    },
];

/// Returns the example, with 16 logical devices: libcxlmi expects as many in an answer as it asks for.
fn config() -> SwitchConfig {
    let mut config = SwitchConfig::example();
    (config.devices[1].memory_mib, config.devices[1].lds_mib) = (16 * 256, vec![256; 16]);
    config
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn switch(directory: &Path) -> Running {
    std::fs::write(directory.join("config.json"), serde_json::to_string(&config()).unwrap()).unwrap();
    let _ = std::fs::remove_file(directory.join("s"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer-cxl-switchd"));
    command.args(["--config", "config.json", "--no-tcp", "--socket", "s", "--dialect", "libcxlmi"]);
    let mut child = command.current_dir(directory).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "listening on s\n");
    Running(child)
}

/// Builds what is preloaded into the programs.
fn preload(directory: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/libcxlmi/af_mctp.c");
    let built = directory.join("af_mctp.so");
    let flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"];
    let output = Command::new("cc").args(flags).arg(&built).arg(source).output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    built
}

/// Returns where libcxlmi's build has a program: meson puts tests and examples in directories of their own.
fn program(libcxlmi: &Path, name: &str) -> PathBuf {
    let places = ["", "tests", "examples"].map(|place| libcxlmi.join(place).join(name));
    let found = places.into_iter().find(|place| place.is_file());
    found.unwrap_or_else(|| panic!("{} has no {name}; build libcxlmi with -Dtests=true there", libcxlmi.display()))
}

/// Returns what a program prints.
fn output(run: &Run, libcxlmi: &Path, directory: &Path, preload: &Path) -> String {
    let log = directory.join("output");
    let mut command = Command::new(program(libcxlmi, run.program));
    command.args(run.arguments).arg("mctp:1,8").stdout(File::create(&log).unwrap()).stderr(Stdio::null());
    command.env("LD_PRELOAD", preload).env("AQUIFER_MCTP_SOCKET", directory.join("s"));
    let (mut running, begun) = (Running(command.spawn().unwrap()), Instant::now());
    while running.0.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < RUN_MAX, "{} does not end", run.program);
        std::thread::sleep(POLL);
    }
    std::fs::read_to_string(log).unwrap()
}

/// Returns the names of the tests with this verdict. A reason may follow the name.
fn with<'a>(output: &'a str, verdict: &str) -> Vec<&'a str> {
    let lines = output.lines().filter_map(|line| line.trim().strip_prefix(verdict));
    lines.map(|line| line.trim().split(':').next().unwrap_or_default()).collect()
}

#[test]
fn the_programs_of_libcxlmi_get_the_answers_that_they_expect() {
    let Some(libcxlmi) = std::env::var_os("AQUIFER_LIBCXLMI").map(PathBuf::from) else {
        return skip("AQUIFER_LIBCXLMI is not set: the directory in which libcxlmi was built");
    };
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("libcxlmi-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    let preload = preload(&directory);
    for run in &RUNS {
        // Each run finds a switch that nobody has changed.
        let _switch = switch(&directory);
        let output = output(run, &libcxlmi, &directory, &preload);
        let name = format!("{} {:?}", run.program, run.arguments);
        let (passed, failed) = (with(&output, "[PASS]"), with(&output, "[FAIL]"));
        let missing: Vec<_> = run.passes.iter().filter(|test| !passed.contains(test)).collect();
        assert!(missing.is_empty(), "{name}: {missing:?} did not pass:\n{output}");
        let known = |test: &str| run.fails.iter().any(|(known, _)| *known == test);
        let unknown: Vec<_> = failed.into_iter().filter(|test| !known(test)).collect();
        assert!(unknown.is_empty(), "{name}: {unknown:?} failed:\n{output}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
