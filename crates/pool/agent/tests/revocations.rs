// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Programs get the list of revoked certificates from their host's agent, which keeps it up to date.
//!
//! The trouble it guards against: an operator revokes a donor in the manager. Managers and donors honour that, but the
//! programs of the hosts would go on to send their memory there, since nobody has told them.

#[path = "../../../remote/donor/tests/certificates/mod.rs"]
mod certificates;
mod world;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};

use aquifer_control::{Issuer, Refused, Revocations};
use aquifer_fabric::Redundancy;

use certificates::{Authority, replace_text, write};
use world::{Protection, World, lease, wait_until};

/// The serial numbers of the donors' certificates.
const DONORS: [u64; 2] = [10, 11];

/// The manager's newest list, and its number.
#[derive(Default)]
struct Newest(Mutex<Option<(u64, String)>>);

impl Issuer for Newest {
    fn is_due(&self, _: &[u8]) -> bool {
        false
    }

    fn renew(&self, _: &[u8], _: String) -> Receiver<Result<String, Refused>> {
        mpsc::channel().1
    }

    fn revocations(&self) -> Option<Revocations> {
        let newest = self.0.lock().expect("no panic");
        newest.as_ref().map(|(number, list)| Revocations { number: *number, list: list.as_str().into() })
    }
}

/// Returns a world with two donors whose programs read this list, and the manager's list.
fn world(authority: &Authority, list: PathBuf) -> (World, Arc<Newest>) {
    let sign = |name: &str, serial| authority.sign_numbered(name, serial, authority);
    let newest = Arc::new(Newest::default());
    let mut world = World::start_protected(Protection {
        manager: sign("127.0.0.1", 1),
        donors: DONORS.map(|serial| sign("127.0.0.1", serial)).to_vec(),
        tenant: sign("web-1", 2),
        list,
        issuer: Arc::clone(&newest) as Arc<dyn Issuer>,
    });
    world.present(Redundancy::None, vec![lease(0, 0, 0), lease(1, 1, 0)]);
    (world, newest)
}

fn refused(world: &World) -> String {
    let opened = world.try_open(&format!("pool:db,agent={},size=4MiB", world.socket().display()));
    opened.err().expect("it is refused")
}

#[test]
fn programs_refuse_a_donor_that_the_manager_has_revoked() {
    let authority = Authority::new();
    let list = write("crl.pem", &authority.revoke(&[]));
    fs::set_permissions(&list, fs::Permissions::from_mode(0o640)).expect("ours");
    let (world, newest) = world(&authority, list.clone());
    drop(world.open("4MiB"));
    let (revoked, none) = (authority.revoke(&[DONORS[1]]), authority.revoke(&[]));
    for (number, text) in [(1, &revoked), (2, &none), (3, &revoked)] {
        *newest.0.lock().expect("no panic") = Some((number, text.clone()));
        wait_until("the host has the list", || {
            world.report();
            fs::read_to_string(&list).expect("it is there") == *text
        });
        assert_eq!(fs::metadata(&list).expect("it is there").permissions().mode() & 0o777, 0o640);
        if text == &none {
            drop(world.open("4MiB"));
        } else {
            let message = refused(&world);
            assert!(message.contains("the donor's certificate was revoked"), "{message}");
        }
    }
    // A list that is not the manager's is none.
    replace_text(&list, &Authority::new().revoke(&[]));
    let message = refused(&world);
    assert!(message.contains("is not signed by an authority in"), "{message}");
}

#[test]
fn an_agent_that_cannot_store_the_list_goes_on_and_programs_say_what_is_missing() {
    let authority = Authority::new();
    let list = PathBuf::from("/nowhere/aquifer/crl.pem");
    let (world, newest) = world(&authority, list);
    for number in 1..3 {
        *newest.0.lock().expect("no panic") = Some((number, authority.revoke(&[])));
        assert_eq!(world.report().volumes.len(), 1);
    }
    let message = refused(&world);
    assert!(
        message.contains("/nowhere/aquifer/crl.pem cannot be read") && message.contains("check the path"),
        "{message}"
    );
}

/// The manager sends each list once, and a disk may be full at that moment.
#[test]
fn a_list_that_could_not_be_stored_is_stored_as_soon_as_it_can_be() {
    let authority = Authority::new();
    let directory = write("lists", "").with_extension("later");
    let (world, newest) = world(&authority, directory.join("crl.pem"));
    let text = authority.revoke(&[]);
    *newest.0.lock().expect("no panic") = Some((1, text.clone()));
    for _ in 0..3 {
        world.report();
    }
    refused(&world);
    fs::create_dir(&directory).expect("it is not there yet");
    wait_until("the host has the list", || {
        world.report();
        fs::read_to_string(directory.join("crl.pem")).is_ok_and(|found| found == text)
    });
    drop(world.open("4MiB"));
    fs::remove_dir_all(&directory).expect("ours");
}
