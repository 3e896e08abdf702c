// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Certificates for one donor and one borrower, made by openssl(1) for a single run, and the arguments with which both
//! use them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::donor_process::Way;
use crate::failure::BenchFailure;
use crate::interrupt::Interrupt;
use crate::process::{self, find_program};

/// Time limit for the commands. Elliptic-curve keys take milliseconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The commands of `docs/donor.md`; the first argument is the donor's address.
const COMMANDS: &str = "set -e
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=bench -keyout ca.key -out ca.pem
printf 'subjectAltName = IP:%s\n' \"$1\" > donor.ext
printf 'subjectAltName = DNS:borrower\n' > borrower.ext
for name in donor borrower; do
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=$name -keyout $name.key -out $name.csr
  openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -set_serial 0x$(openssl rand -hex 16) -days 2 \
    -extfile $name.ext -out $name.pem
done";

/// Why certificates cannot be made here; None if they can.
pub fn obstacle() -> Option<String> {
    find_program("openssl").is_none().then(|| "openssl is not installed; install openssl".into())
}

/// Makes the certificates in an existing directory, for a donor at this IP address.
pub fn tls(directory: &Path, address: &str, interrupt: &Interrupt) -> Result<Way, BenchFailure> {
    let mut command = Command::new("sh");
    command.args(["-c", COMMANDS, "sh", address]).current_dir(directory);
    let finished = process::run(command, TIMEOUT, interrupt)?;
    if !finished.status.success() {
        let cause = format!("no certificates can be made: {}", finished.complaint());
        return Err(BenchFailure::trouble(cause, "install openssl"));
    }
    let file = |name: &str| -> PathBuf { directory.join(name) };
    let words = [("--tls-cert", "donor.pem"), ("--tls-key", "donor.key"), ("--tls-ca", "ca.pem")];
    let donor_words = words.iter().flat_map(|(flag, name)| [flag.to_string(), file(name).display().to_string()]);
    let (cert, key, ca) = (file("borrower.pem"), file("borrower.key"), file("ca.pem"));
    Ok(Way {
        listen: format!("{address}:0"),
        donor_words: donor_words.collect(),
        options: format!(",cert={},key={},ca={}", cert.display(), key.display(), ca.display()),
    })
}
