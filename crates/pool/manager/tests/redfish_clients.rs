// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Redfish's own clients and validators on a real daemon: DMTF's library and `redfishtool`, OpenStack's `sushy`, DMTF's
//! service and protocol validators, `schemathesis` on the OpenAPI document, and `curl`.
//!
//! `AQUIFER_REDFISH_CLIENTS` names the directory that `.ci/redfish DIR` has filled: a Python environment with these
//! programs, and DMTF's schemas.

mod daemon;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aquifer_test_support::skip;
use daemon::{APPLY, Daemon, address, apply_body, declaration, directory, rack};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose, SanType};

const VARIABLE: &str = "AQUIFER_REDFISH_CLIENTS";
/// The time limit for one client. The slowest takes half a minute on an idle machine.
const JUDGE_MAX: Duration = Duration::from_secs(900);
/// The clients try wrong passwords and log in often, so the limits on both are raised.
const GENEROUS: &str = "[sessions]\nfailures = 100\nlogins-per-minute = 6000\n";

/// The files that `.ci/redfish` has installed.
struct Clients(PathBuf);

impl Clients {
    /// Skips the test if they are not installed.
    fn find() -> Option<Clients> {
        let Some(directory) = std::env::var_os(VARIABLE) else {
            skip(format!("{VARIABLE} is not set: there are no Redfish clients here; `.ci/redfish DIR` installs them"));
            return None;
        };
        Some(Clients(directory.into()))
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.0.join("python/bin").join(name));
        // The machine's own configuration is not used.
        command.env("NO_PROXY", "*").env_remove("http_proxy").env_remove("https_proxy");
        command
    }

    fn schemas(&self) -> PathBuf {
        self.0.join("schemas")
    }
}

/// Starts a daemon with a pool and volumes.
fn ready(name: &str) -> (Daemon, String) {
    let daemon = Daemon::start(&directory(name), &rack(None), GENEROUS);
    let token = daemon.login("admin", &daemon.password());
    let applied = daemon.ask("POST", APPLY, &token, &apply_body(&declaration())).expect("an answer");
    assert_eq!(applied.status, 200, "{applied:?}");
    assert!(daemon.settle(&token));
    (daemon, token)
}

fn finish(daemon: Daemon) {
    let directory = daemon.directory.clone();
    drop(daemon);
    std::fs::remove_dir_all(directory).expect("removed");
}

/// Runs a program to its end. Returns whether it succeeded, and its output.
fn run(command: &mut Command, directory: &Path) -> (bool, String) {
    let log = directory.join(format!("judge-{}.log", std::fs::read_dir(directory).map_or(0, Iterator::count)));
    let file = std::fs::File::create(&log).expect("a log");
    let errors = file.try_clone().expect("a descriptor");
    command.current_dir(directory).stdin(Stdio::null()).stdout(file).stderr(errors);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break status.success(),
            None if begun.elapsed() > JUDGE_MAX => {
                let _ = child.kill();
                let _ = child.wait();
                panic!("{command:?} does not end: {}", std::fs::read_to_string(&log).unwrap_or_default());
            }
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    (status, String::from_utf8_lossy(&std::fs::read(&log).expect("a log")).into_owned())
}

fn url(daemon: &Daemon) -> String {
    format!("http://{}", daemon.address)
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redfish_clients").join(name)
}

/// Runs one of our scripts, which uses the library of a client.
fn run_script(name: &str, file: &str) {
    let Some(clients) = Clients::find() else { return };
    let (daemon, _) = ready(name);
    let mut command = clients.program("python3");
    command.arg("-B").arg(script(file)).arg(url(&daemon)).env("NAME", "admin").env("PASSWORD", daemon.password());
    let (is_well, said) = run(&mut command, &daemon.directory);
    assert!(is_well && said.trim_end().ends_with("done"), "{said}");
    finish(daemon);
}

#[test]
fn dmtfs_library_reads_changes_and_gets_events() {
    run_script("library", "dmtf_library.py");
}

#[test]
fn sushy_reads_what_it_has_models_of() {
    run_script("sushy", "sushy_walk.py");
}

#[test]
fn redfishtool_reads_and_changes() {
    let Some(clients) = Clients::find() else { return };
    let (daemon, _) = ready("redfishtool");
    let password = daemon.password();
    let tool = |auth: &str, arguments: &[&str]| {
        let mut command = clients.program("redfishtool");
        command.args(["-r", &daemon.address, "-S", "Never", "-A", auth, "-u", "admin", "-p", &password, "-T", "120"]);
        let (is_well, said) = run(command.args(arguments), &daemon.directory);
        assert!(is_well, "redfishtool {arguments:?}: {said}");
        said
    };
    for auth in ["Basic", "Session"] {
        for (arguments, wanted) in [
            (&["versions"][..], "/redfish/v1/"),
            (&["root"], "RootService"),
            (&["odata"], "value"),
            (&["metadata"], "edmx:Edmx"),
            (&["Chassis"], "/redfish/v1/Chassis/Pools"),
            (&["Chassis", "-I", "Pools"], "MemoryDomains"),
            (&["SessionService"], "SessionTimeout"),
            (&["SessionService", "Sessions"], "Members"),
            (&["AccountService"], "MinPasswordLength"),
            (&["AccountService", "Accounts"], "/redfish/v1/AccountService/Accounts/admin"),
            (&["AccountService", "Roles"], "Operator"),
            (&["raw", "GET", "/redfish/v1/Fabrics/Aquifer/Zones/lab"], "ZoneOfEndpoints"),
        ] {
            let said = tool(auth, arguments);
            assert!(said.contains(wanted), "redfishtool {arguments:?}: {said}");
        }
    }
    tool("Basic", &["AccountService", "adduser", "toolmade", "a long password", "ReadOnly"]);
    let account = "/redfish/v1/AccountService/Accounts/toolmade";
    assert!(tool("Basic", &["raw", "GET", account]).contains("ReadOnly"));
    tool("Basic", &["raw", "PATCH", account, "-d", r#"{"RoleId": "Operator"}"#]);
    assert!(tool("Basic", &["raw", "GET", account]).contains("Operator"));
    tool("Basic", &["AccountService", "deleteuser", "toolmade"]);
    finish(daemon);
}

#[test]
fn curl_reads_with_the_headers_that_redfish_asks_for() {
    if Command::new("curl").arg("--version").output().is_err() {
        return skip("there is no curl; install curl");
    }
    let (daemon, token) = ready("curl");
    let token = token.trim().to_owned();
    let curl = |arguments: &[&str], path: &str| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--noproxy", "*", "-i", "-H", &token]).args(arguments);
        let (is_well, said) = run(command.arg(format!("{}{path}", url(&daemon))), &daemon.directory);
        assert!(is_well, "curl {arguments:?} {path}: {said}");
        said.to_lowercase()
    };
    let read = curl(&["--compressed"], "/redfish/v1/Fabrics/Aquifer/Zones/lab");
    let schema = "link: <http://redfish.dmtf.org/schemas/v1/zone.v1_6_3.json>; rel=describedby";
    for wanted in ["http/1.1 200", "odata-version: 4.0", "allow: get, head", "etag: \"", schema] {
        assert!(read.contains(wanted), "{wanted} is missing: {read}");
    }
    let head = curl(&["--head"], "/redfish/v1/Fabrics/Aquifer/Zones/lab");
    assert!(head.contains("http/1.1 200") && !head.contains('{'), "{head}");
    for (arguments, path, status) in [
        (&["-H", "odata-version: 4.1"][..], "/redfish/v1", 412),
        (&["-H", "accept: text/html"], "/redfish/v1", 406),
        (&["-H", "accept: application/xml"], "/redfish/v1/$metadata", 200),
        (&["-X", "PUT", "-d", "{}"], "/redfish/v1", 405),
        (&["-d", "{}"], "/redfish/v1/SessionService/Sessions/Members", 400),
        (&["-X", "PATCH", "-d", r#"{"@odata.id": "/"}"#], "/redfish/v1/AccountService/Accounts/admin", 400),
        (
            &["-X", "PATCH", "-H", "if-match: \"a\"", "-d", r#"{"RoleId": "Operator"}"#],
            "/redfish/v1/AccountService/Accounts/admin",
            412,
        ),
    ] {
        let said = curl(arguments, path);
        assert!(said.starts_with(&format!("http/1.1 {status}")), "{arguments:?} {path}: {said}");
    }
    finish(daemon);
}

/// DMTF's service validator reports no error for any resource. It has DMTF's schemas but not ours, so it warns about
/// properties below `Oem`.
#[test]
fn every_resource_is_what_its_schema_says() {
    let Some(clients) = Clients::find() else { return };
    let (daemon, _) = ready("schemas");
    let report = daemon.directory.join("report");
    let mut command = clients.program("rf_service_validator");
    command.args(["--rhost", &url(&daemon), "--user", "admin", "--password", &daemon.password(), "--skipschema"]);
    command.arg("--schema_directory").arg(clients.schemas()).arg("--logdir").arg(&report).args(["--timeout", "120"]);
    let (_, said) = run(&mut command, &daemon.directory);
    let results: Vec<&str> = said.lines().filter(|line| line.contains("Pass: ")).collect();
    assert!(results.len() > 40, "only {} resources were judged: {said}", results.len());
    let wrong: Vec<&str> = results.into_iter().filter(|line| !line.contains("Fail: 0,")).collect();
    assert!(wrong.is_empty(), "{wrong:?}: {said}");
    finish(daemon);
}

/// The errors that DMTF's protocol validator reports, and why we keep that behaviour: decisions/0054.
const DEPARTURES: [(&str, &str); 1] = [(
    "SERV_EVENT_POST_RESP",
    "events go to machines that the configuration lists, and to no address that a client names",
)];

#[test]
fn the_protocol_is_the_one_of_redfish() {
    let Some(clients) = Clients::find() else { return };
    let directory = directory("protocol");
    let address = address();
    let authority = tls(&directory, &address);
    let rack = "[peers]\nkind = \"simulated\"\ndonors = 4\nhosts = 2\ndevices = 2\n";
    let tls = "[tls]\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n"
        .replace("= \"", &format!("= \"{}/", directory.display()));
    let config = format!("state = {:?}\nlisten = \"{address}:0\"\n{rack}{tls}{GENEROUS}", directory.join("state"));
    let daemon = Daemon::launch(&directory, &config, &[]);
    let report = directory.join("report");
    let mut command = clients.program("python3");
    command.arg("-B").arg(script("protocol.py"));
    command.args([
        "--user",
        "admin",
        "--password",
        &daemon.password(),
        "--rhost",
        &format!("https://{}", daemon.address),
    ]);
    // Its requests without a session ignore the option.
    command.env("REQUESTS_CA_BUNDLE", &authority).arg("--ca-bundle").arg(&authority).arg("--report-dir").arg(&report);
    command.args(["--report-type", "tsv", "--avoid-http-redirect"]);
    let (_, said) = run(&mut command, &directory);
    let found = std::fs::read_dir(&report).unwrap_or_else(|error| panic!("{error}: {said}"));
    let file = found
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|end| end == "tsv"));
    let text = std::fs::read_to_string(file.expect("a report")).expect("a report");
    let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split('\t').collect()).collect();
    let of = |result: &str| rows.iter().filter(|row| row.get(4) == Some(&result)).cloned().collect::<Vec<_>>();
    assert!(of("PASS").len() > 250, "only {} rows pass: {said}", of("PASS").len());
    let is_known = |row: &Vec<&str>| DEPARTURES.iter().any(|(name, _)| row[0] == *name);
    let wrong: Vec<Vec<&str>> = of("FAIL").into_iter().filter(|row| !is_known(row)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (name, why) in DEPARTURES {
        assert!(of("FAIL").iter().any(|row| row[0] == name), "{name} holds now ({why}); take it off the list");
    }
    finish(daemon);
}

/// Writes a certificate for an address and its authority, and returns the authority's file.
fn tls(directory: &Path, address: &str) -> PathBuf {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // Python checks certificates strictly (RFC 5280).
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    // With the name of its issuer, it would be mistaken for self-signed.
    params.distinguished_name.push(DnType::CommonName, "manager");
    params.use_authority_key_identifier_extension = true;
    params.subject_alt_names = vec![SanType::IpAddress(address.parse().expect("an address"))];
    let certificate = params.signed_by(&key, &authority).expect("signed");
    std::fs::write(directory.join("cert.pem"), certificate.pem()).expect("written");
    std::fs::write(directory.join("key.pem"), key.serialize_pem()).expect("written");
    let file = directory.join("ca.pem");
    std::fs::write(&file, authority.pem()).expect("written");
    file
}

/// `schemathesis` sends each operation of the OpenAPI document requests that it allows and requests that it does not
/// allow, the same in each run. It does not check that every request that conforms is accepted, because the document
/// does not say which names exist.
#[test]
fn answers_fit_the_openapi_document() {
    let Some(clients) = Clients::find() else { return };
    let (daemon, token) = ready("openapi");
    let judge = r#"{"UserName": "judge", "Password": "a long password", "RoleId": "ReadOnly"}"#;
    let added = daemon.ask("POST", "/redfish/v1/AccountService/Accounts", &token, judge).expect("an answer");
    assert_eq!(added.status, 201, "{added:?}");
    let config = script("schemathesis.toml");
    let examples = std::env::var("AQUIFER_REDFISH_EXAMPLES").unwrap_or_else(|_| "2".to_owned());
    let mut command = clients.program("schemathesis");
    command.arg("--config-file").arg(config).args(["run", &format!("{}/redfish/v1/openapi.json", url(&daemon))]);
    command.args(["-H", token.trim(), "--max-examples", &examples, "--generation-deterministic", "--no-shrink"]);
    command.args(["--phases", "coverage,fuzzing", "--workers", "1", "--no-color", "--request-timeout", "120"]);
    // schemathesis waits for the end of an answer, and a stream has none; `connections.rs` tests streams.
    command.args(["--exclude-path", "/redfish/v1/EventService/SSE"]);
    // Nor can it send requests without the header that it was given; `requests.rs` does.
    command.args(["--exclude-checks", "positive_data_acceptance,ignored_auth"]);
    let (is_well, said) = run(&mut command, &daemon.directory);
    assert!(is_well, "{said}");
    finish(daemon);
}
