// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Renews the certificates of a donor and an agent that run within the limits of their units, while a program has
//! memory at the donor, as docs/operating/certificates.md says.
//!
//! The trouble it guards against: the units may write to their state directories only, `aquifer fabric join` is run by
//! root, and the donor's user exists only while the donor runs. A file with the wrong owner, or a directory that its
//! user cannot enter, would be noticed two months later, when the first renewal is due.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aquifer_authority::{Authority, Request, Subject, facts, first_of};
use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::machines::Switch;
use aquifer_e2e::run::eventually;
use aquifer_e2e::verifying;
use aquifer_fabric::Millis;

use super::{Site, lent_bytes};
use crate::packages;

const DOMAIN: &str = "pool.internal";
/// Where root's `aquifer fabric join` puts the files: below the directories that the units may write to.
const DONOR: &str = "/var/lib/aquifer-donor/d1";
const HOST: &str = "/var/lib/aquifer/agent/h1";
const AUTHORITY: &str = "/var/lib/aquifer-fabricd/ca";
/// The age of a certificate that is valid for a day: its renewal is due, and it is valid for some hours.
const AGE: Duration = Duration::from_secs(20 * 3600);

const FABRICD: &str = r#"
state = "/var/lib/aquifer-fabricd"
[peers]
kind = "registered"
[control]
listen = "127.0.0.1:7444"
[ca]
domain = "pool.internal"
name = "manager1"
addresses = ["127.0.0.1"]
"#;
const DONOR_CONF: &str = "DONOR_ARGS=--size 256MiB --listen 127.0.0.1:7411 --manager 127.0.0.1:7444 --id d1 \
    --manager-state /var/lib/aquifer-donor/managers.json --tls-cert /var/lib/aquifer-donor/d1/credentials.pem \
    --tls-key /var/lib/aquifer-donor/d1/credentials.pem --tls-ca /var/lib/aquifer-donor/d1/ca.pem \
    --tls-crl /var/lib/aquifer-donor/d1/revocations.pem\n";
const AGENT: &str = r#"
host = "h1"
[manager]
addresses = ["127.0.0.1:7444"]
[tenant]
cert = "/var/lib/aquifer/agent/h1/credentials.pem"
key = "/var/lib/aquifer/agent/h1/credentials.pem"
ca = "/var/lib/aquifer/agent/h1/ca.pem"
crl = "/var/lib/aquifer/agent/h1/revocations.pem"
"#;
const OPERATOR: &str = "export AQUIFER_FABRIC_URL=https://127.0.0.1:7443 AQUIFER_FABRIC_CA=/root/trusted.pem";
const START: &str = "
systemctl start aquifer-fabricd
cp /var/lib/aquifer-fabricd/ca/trusted.pem .
aquifer fabric login admin --password-stdin < /var/lib/aquifer-fabricd/initial-password
aquifer fabric token create --kind donor --name d1 --address 127.0.0.1 > d1.token
aquifer fabric token create --kind host --name h1 > h1.token
aquifer fabric join --manager 127.0.0.1:7443 --token-stdin --out /var/lib/aquifer-donor/d1 < d1.token
aquifer fabric join --manager 127.0.0.1:7443 --token-stdin --out /var/lib/aquifer/agent/h1 < h1.token
systemctl start aquifer-donor aquifer-agent
until aquifer fabric donors | grep --quiet Enabled && aquifer fabric hosts | grep --quiet Enabled; do sleep 1; done
aquifer fabric apply - <<'END'
{\"pools\": {\"main\": {\"donors\": [\"d1\"]}}, \"zones\": {\"lab\": {\"quota\": \"192MiB\", \"hosts\": [\"h1\"]}}}
END
aquifer fabric create db --size 192MiB --zone lab --class tcp
aquifer fabric bind db h1
aquifer fabric status --until-settled
id=$(aquifer fabric volumes --json | grep --only-matching '\"VolumeId\":\"[0-9a-f]*\"' | cut --delimiter='\"' --fields=4)
printf '\\n[[volume]]\\nname = \"db\"\\nid = \"%s\"\\nuids = [%s]\\n' \"$id\" \
    \"$(id --user aquifer), $(id --user ordinary), $(id --user outside)\" >> /etc/aquifer/agent.toml
systemctl restart aquifer-agent
cp /root/programs/checking /usr/local/bin/
mkdir --mode=0777 /srv/checked
";
/// Two users who may use the volume, one of them in the group of the agent's socket.
const USERS: &str = "useradd ordinary; useradd outside; usermod --append --groups aquifer ordinary";
/// As in docs/operating/certificates.md.
const SHARE: &str = "chmod 0750 /var/lib/aquifer/agent/h1; chmod 0640 /var/lib/aquifer/agent/h1/*.pem";

/// Renews at once, as root, while the units run.
const JOIN_AGAIN: &str = "
aquifer fabric login admin --password-stdin < /var/lib/aquifer-fabricd/initial-password
aquifer fabric token create --kind donor --name d1 --address 127.0.0.1 > d1.token
aquifer fabric token create --kind host --name h1 > h1.token
aquifer fabric join --manager 127.0.0.1:7443 --token-stdin --replace --out /var/lib/aquifer-donor/d1 < d1.token
aquifer fabric join --manager 127.0.0.1:7443 --token-stdin --replace --out /var/lib/aquifer/agent/h1 < h1.token
";

fn now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    Millis(u64::try_from(since.as_millis()).expect("in range"))
}

impl Site {
    fn read(&self, path: &str) -> String {
        self.0.run(&format!("cat {path}"))
    }

    /// Puts a certificate of the same names into a file whose owner and rights stay: one that the authority has signed
    /// some time ago. Returns it.
    fn age(&self, directory: &str) -> String {
        let path = format!("{directory}/credentials.pem");
        let [certificate, key] = ["ca.pem", "ca-key.pem"].map(|file| self.read(&format!("{AUTHORITY}/{file}")));
        let authority = Authority::load(&certificate, &key, now()).expect("the manager made it");
        let names = facts(&first_of(&self.read(&path)).expect("a certificate")).expect("it can be read").names;
        let subject = Subject::of_names(&names, DOMAIN).expect("of this pool");
        let request = Request::new().expect("a key");
        let then = Millis(now().0 - u64::try_from(AGE.as_millis()).expect("in range"));
        let signed = authority.sign(request.pem(), &subject, 1, then).expect("signed");
        assert!(signed.validity.is_due(now()) && signed.validity.holds(now()));
        let text = request.credentials(&signed.chain);
        fs::write(self.0.path("/root/aged"), &text).expect("root may");
        self.0.run(&format!("cat /root/aged > {path}; rm /root/aged"));
        text
    }

    /// Starts a program in the volume, and waits until it has filled its memory.
    fn start(&self, unit: &str, user: &str) {
        self.0.run(&format!(
            "systemd-run --unit={unit} --uid={user} aquifer run --dram 16MiB --tier pool:db -- \
             checking /srv/checked/{unit} 900"
        ));
        let ready = self.0.path(&format!("/srv/checked/{unit}.ready"));
        eventually(&format!("the program {unit} of {user} has filled its memory"), || ready.exists());
    }

    /// The refusal that a user gets who cannot use the volume.
    fn refused(&self, user: &str) -> String {
        self.0.run(&format!(
            "! runuser --user {user} -- aquifer run --dram 16MiB --tier pool:db -- true 2> /tmp/refused; cat /tmp/refused"
        ))
    }

    /// The owner, the group and the mode of the agent's credentials.
    fn rights(&self) -> String {
        self.0.run(&format!("stat --format='%U:%G %a' {HOST} {HOST}/credentials.pem"))
    }

    fn is_renewed(&self, directory: &str, aged: &str) -> bool {
        let text = self.read(&format!("{directory}/credentials.pem"));
        let found = first_of(&text).and_then(|certificate| facts(&certificate)).expect("a whole certificate");
        text != aged && !found.validity.is_due(now())
    }
}

#[test]
fn a_donor_and_an_agent_renew_their_certificates_within_the_limits_of_their_units() {
    let Some(switch) = Switch::anywhere() else { return };
    let Some(packages) = packages() else { return };
    let Some(checking) = compile_text("checking", verifying::PROGRAM) else { return };
    let programs = scratch("renewal-programs").canonicalize().expect("just made");
    fs::copy(checking, programs.join("checking")).expect("the scratch directory can be written");
    let bind = |from: &std::path::Path, to: &str| format!("--bind-ro={}:/root/{to}", from.display());
    let words = [bind(packages.directory(), "packages"), bind(&programs, "programs")];
    let mut machine = switch.plug("renewal", "10.0.0.2", &words);
    machine.wait_until_started();
    let site = Site(machine);
    site.0.run(
        "cd /root/packages
         DEBIAN_FRONTEND=noninteractive apt-get install --yes ./aquifer_*.deb ./aquifer-donor_*.deb \
         ./aquifer-fabric_*.deb ./aquifer-agent_*.deb",
    );
    for (file, text) in [("fabricd.toml", FABRICD), ("donor.conf", DONOR_CONF), ("agent.toml", AGENT)] {
        fs::write(site.0.path(&format!("/etc/aquifer/{file}")), text).expect("root may");
    }
    site.0.run(&format!("{USERS}\n{OPERATOR}\n{START}"));
    let refused = site.refused("ordinary");
    assert!(refused.contains("the private key") && refused.contains("add the user to the group that can"), "{refused}");
    site.0.run(SHARE);
    let refused = site.refused("outside");
    assert!(refused.contains("usermod --append --groups aquifer USER"), "{refused}");
    site.start("first", "ordinary");
    let rights = site.rights();
    assert_eq!(rights.lines().collect::<Vec<_>>(), ["aquifer:aquifer 750", "aquifer:aquifer 640"]);
    let units = ["aquifer-donor", "aquifer-agent"];
    let processes = units.map(|unit| site.process(unit));
    for round in 1..=2 {
        if round == 2 {
            site.0.run(&format!("{OPERATOR}\n{JOIN_AGAIN}"));
        }
        let aged = [DONOR, HOST].map(|directory| site.age(directory));
        // Both connect again, with what their files hold now.
        site.0.run("systemctl restart aquifer-fabricd");
        for (directory, aged) in [DONOR, HOST].into_iter().zip(&aged) {
            eventually(&format!("{directory} is renewed, round {round}"), || site.is_renewed(directory, aged));
            let left = site.0.run(&format!("ls {directory}"));
            assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["ca.pem", "credentials.pem", "revocations.pem"]);
        }
        for unit in units {
            let said = site.0.run(&format!("journalctl --no-pager --output=cat --unit={unit}"));
            let renewals = said.lines().filter(|line| line.contains("has renewed the certificate")).count();
            assert_eq!(renewals, round, "{unit}: {said}");
        }
    }
    assert_eq!(units.map(|unit| site.process(unit)), processes, "they were restarted");
    assert_eq!(site.rights(), rights, "the group can read what is renewed");
    // Other programs connect with the new certificate, to a donor that shows its new one.
    let lent = lent_bytes(&site);
    site.start("second", "ordinary");
    assert!(lent_bytes(&site) > lent);
    site.start("third", "aquifer");
    site.0.run("touch /srv/checked/first /srv/checked/second /srv/checked/third");
    for unit in ["first", "second", "third"] {
        eventually("the program ends", || !site.is_active(unit));
        let said = site.0.run(&format!("journalctl --no-pager --output=cat --unit={unit}"));
        assert!(said.lines().any(|line| line.starts_with("wrong 0 lost 0 ")), "{unit}: {said}");
        assert!(!said.contains("the private key"), "{unit} cannot read what is renewed: {said}");
    }
}
