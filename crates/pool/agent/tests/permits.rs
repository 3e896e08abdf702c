// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Who may open which volumes, by which names, and that permits are read again without a restart.
//!
//! The trouble it guards against: the name that a volume has in the pool opened it for nobody, not even for root. Each
//! new volume took its id, an edit of the configuration and a restart of the agent before a program could use it.

mod world;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use aquifer_agent_wire::{Answer, Decoder, Denial, Request, encode};
use aquifer_fabric::{Redundancy, Step, VolumeId};
use rustix::thread::{Gid, Uid, set_thread_res_gid, set_thread_res_uid};

use world::{TIMEOUT, VOLUME, World, lease, wait_until};

/// Another volume.
const OTHER: VolumeId = VolumeId(0xb2);
/// Members of the first and of the other volume, each with a donor of its own.
const MEMBERS: [u64; 2] = [0, 1];
/// A user that is not root, if root runs this test.
const USER: u32 = 4242;

/// A program that has opened a volume.
struct Program(UnixStream, Decoder);

impl Program {
    /// Opens a volume, and returns the program and the members that it was given.
    fn open(stream: UnixStream, volume: &str, session: u64) -> Result<(Program, Vec<u64>), Denial> {
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        let mut program = Program(stream, Decoder::default());
        program.send(&Request::Open { version: 1, volume: volume.into(), session, holds: Vec::new() });
        let members = program.answer().expect("the agent answers")?;
        Ok((program, members))
    }

    fn send(&mut self, request: &Request) {
        self.0.write_all(&encode(request).expect("it is short")).expect("the agent reads");
    }

    /// Returns the members of the next view, or why there is none; `None` if the connection has ended.
    fn answer(&mut self) -> Option<Result<Vec<u64>, Denial>> {
        loop {
            match self.1.take().expect("an agent speaks the protocol") {
                Some(Answer::View(view)) => return Some(Ok(view.members.iter().map(|it| it.member).collect())),
                Some(Answer::Denied(denial)) => return Some(Err(denial)),
                Some(Answer::Listing(listing)) => panic!("nobody asked for {listing:?}"),
                None => {}
            }
            let mut bytes = [0; 4096];
            match self.0.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.1.push(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }

    fn close(mut self) {
        self.send(&Request::Close);
        while self.answer().is_some() {}
    }
}

/// A world whose programs are those of a user that is not root.
struct Site {
    world: World,
    user: u32,
    sessions: std::cell::Cell<u64>,
}

impl Site {
    /// Starts a world with these permits for the user.
    fn start(permits: &str) -> Site {
        let world = World::start(2, 64);
        let user = if world.uid() == 0 { USER } else { world.uid() };
        let site = Site { world, user, sessions: std::cell::Cell::new(100) };
        site.admit_user();
        site.permit(permits);
        site
    }

    /// Lets the user connect, as members of the socket's group can.
    fn admit_user(&self) {
        let everybody = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(self.world.socket(), everybody).expect("ours");
    }

    /// Replaces the permits while the agent runs. `{U}` stands for the user.
    fn permit(&self, permits: &str) {
        self.world.write_configuration(&permits.replace("{U}", &self.user.to_string()));
        assert!(self.world.reload().contains("the permits of volumes were reloaded\n"), "{permits}");
    }

    fn present(&mut self, volume: VolumeId, name: &str) {
        let member = MEMBERS[usize::from(volume != VOLUME)];
        self.world.present_as(volume, Some(name), Redundancy::None, vec![lease(member, 0, 0)]);
    }

    /// Connects as a user, and the group of that number.
    fn connect_as(&self, uid: u32) -> UnixStream {
        let (is_own, socket) = (uid == self.world.uid(), self.world.socket());
        let connect = move || {
            if !is_own {
                // Only this thread is another user's. The kernel notes who connects.
                let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
                set_thread_res_gid(group, group, group).expect("root may");
                set_thread_res_uid(user, user, user).expect("root may");
            }
            UnixStream::connect(socket).expect("the agent serves")
        };
        std::thread::spawn(connect).join().expect("it connects")
    }

    fn open_with(&self, uid: u32, volume: &str, session: u64) -> Result<(Program, Vec<u64>), Denial> {
        Program::open(self.connect_as(uid), volume, session)
    }

    /// Opens and closes a volume. Returns its members.
    fn opens(&self, uid: u32, volume: &str) -> Result<Vec<u64>, Denial> {
        self.sessions.set(self.sessions.get() + 1);
        let (program, members) = self.open_with(uid, volume, self.sessions.get())?;
        program.close();
        Ok(members)
    }

    fn not_permitted(&self) -> Denial {
        Denial::NotPermitted { uid: self.user, gid: if self.world.uid() == 0 { USER } else { own_group() } }
    }
}

fn own_group() -> u32 {
    rustix::process::getgid().as_raw()
}

fn not_bound() -> Denial {
    Denial::NotBound { host: "web-1".into() }
}

fn of(volume: VolumeId) -> Vec<u64> {
    vec![MEMBERS[usize::from(volume != VOLUME)]]
}

#[test]
fn a_permit_by_name_opens_volumes_that_are_bound_later() {
    let mut site = Site::start("[[volume]]\nname = 'web-*'\nuids = [{U}]\n");
    let user = site.user;
    assert_eq!(site.opens(user, "web-1"), Err(not_bound()));
    site.present(VOLUME, "web-1");
    site.present(OTHER, "db");
    for text in ["web-1", &VOLUME.to_string()] {
        assert_eq!(site.opens(user, text), Ok(of(VOLUME)), "{text}");
    }
    for text in ["db", &OTHER.to_string(), "nothing", "00000000000000c3", "A b"] {
        assert_eq!(site.opens(user, text), Err(site.not_permitted()), "{text}");
    }
    // A program itself, as `aquifer run` opens it.
    if user == site.world.uid() {
        let spec = format!("pool:web-1,agent={},size=2MiB", site.world.socket().display());
        drop(site.world.try_open(&spec).expect("it opens"));
    }
}

#[test]
fn root_opens_every_volume_by_the_name_that_the_manager_gave_it() {
    let mut site = Site::start("");
    site.present(VOLUME, "web-1");
    let user = site.user;
    for text in ["web-1", &VOLUME.to_string()] {
        assert_eq!(site.opens(user, text), Err(site.not_permitted()), "{text}");
    }
    if site.world.uid() != 0 {
        aquifer_test_support::skip("only root can open a volume as root");
        return;
    }
    for text in ["web-1", &VOLUME.to_string()] {
        assert_eq!(site.opens(0, text), Ok(of(VOLUME)), "{text}");
    }
    assert_eq!(site.opens(0, "other"), Err(not_bound()));
    let spec = format!("pool:web-1,agent={},size=2MiB", site.world.socket().display());
    drop(site.world.try_open(&spec).expect("it opens"));
}

#[test]
fn an_ambiguous_name_is_refused_with_the_ids_unless_a_permit_with_an_id_decides() {
    let mut site = Site::start("[[volume]]\nname = 'd*'\nuids = [{U}]\n");
    site.present(VOLUME, "db");
    site.present(OTHER, "db");
    let user = site.user;
    let ids = vec![VOLUME.to_string(), OTHER.to_string()];
    let line = Denial::Ambiguous { ids: ids.clone() }.to_string();
    assert!(line.contains(&ids.join(", ")), "{line}");
    let users = if site.world.uid() == 0 { vec![user, 0] } else { vec![user] };
    for user in &users {
        assert_eq!(site.opens(*user, "db"), Err(Denial::Ambiguous { ids: ids.clone() }));
        assert_eq!(site.opens(*user, &ids[1]), Ok(of(OTHER)));
    }
    site.permit("[[volume]]\nname = 'other'\nuids = [{U}]\n");
    assert_eq!(site.opens(user, "db"), Err(site.not_permitted()), "not even that there are two");
    site.permit(&format!("[[volume]]\nname = 'db'\nid = '{OTHER}'\nuids = [{{U}}]\n[[volume]]\nname = '*'\n"));
    for user in &users {
        assert_eq!(site.opens(*user, "db"), Ok(of(OTHER)));
    }
    let own = site.opens(user, &ids[0]);
    assert_eq!(own, Err(site.not_permitted()));
}

#[test]
fn a_program_keeps_its_volume_when_its_permit_is_removed_and_the_agent_restarts() {
    let mut site = Site::start("[[volume]]\nname = 'db'\nuids = [{U}]\n");
    site.present(VOLUME, "db");
    let user = site.user;
    let (mut program, _) = site.open_with(user, "db", 1).expect("it is permitted");
    site.permit("");
    assert_eq!(site.opens(user, "db"), Err(site.not_permitted()));
    // It is still connected, and gets the next view.
    site.world.join(vec![lease(MEMBERS[1], 1, 0)]);
    assert_eq!(program.answer(), Some(Ok(MEMBERS.to_vec())));
    site.world.kill_agent();
    site.world.start_agent();
    site.admit_user();
    let (again, members) = site.open_with(user, "db", 1).expect("it has the volume open");
    assert_eq!(members, MEMBERS);
    again.close();
    assert_eq!(site.open_with(user, "db", 1).err(), Some(site.not_permitted()), "it has closed it");
}

/// The volume that was unbound stays on the host until the program has ended.
#[test]
fn a_program_keeps_its_volume_when_another_gets_its_name() {
    let mut site = Site::start("[[volume]]\nname = 'db'\nuids = [{U}]\n");
    site.present(VOLUME, "db");
    let user = site.user;
    let (program, _) = site.open_with(user, "db", 1).expect("it is permitted");
    drop(program);
    let host = "web-1".parse().expect("a name");
    site.world.order(&Step::Withdraw { host, volume: VOLUME, members: Vec::new() });
    assert_eq!(site.opens(user, "db"), Err(not_bound()));
    site.present(OTHER, "db");
    assert_eq!(site.opens(user, "db"), Ok(of(OTHER)));
    let (again, members) = site.open_with(user, "db", 1).expect("it has the volume open");
    assert_eq!(members, of(VOLUME));
    again.close();
    wait_until("the first volume has left", || site.world.has_left(MEMBERS[0]));
}

#[test]
fn a_configuration_that_cannot_be_read_keeps_the_permits() {
    let mut site = Site::start("[[volume]]\nname = 'db'\nuids = [{U}]\n");
    site.present(VOLUME, "db");
    let (user, file) = (site.user, site.world.directory.join("agent.toml"));
    let good = std::fs::read_to_string(&file).expect("a configuration");
    let removed = |text: String| text.replace("name = 'db'", "name = 'x'");
    for (text, cause) in [
        (removed(good.clone()) + "[[volume]]\nname = 'A b'\n", "'A b' cannot be the name of a volume"),
        (removed(good.clone()) + "colour = 'red'\n", "line "),
        (String::new(), "line 1"),
    ] {
        std::fs::write(&file, text).expect("a file");
        let said = site.world.reload();
        assert!(said.contains("new permits were not loaded, and the previous ones stay in force: "), "{said}");
        assert!(said.contains("agent.toml: ") && said.contains(cause) && said.lines().count() == 1, "{said}");
        assert_eq!(site.opens(user, "db"), Ok(of(VOLUME)));
    }
    std::fs::remove_file(&file).expect("ours");
    let said = site.world.reload();
    assert!(said.contains("the previous ones stay in force: ") && said.contains("cannot be read"), "{said}");
    assert_eq!(site.opens(user, "db"), Ok(of(VOLUME)));
    // What is right again is read, and the other settings are not: the agent serves at the same socket.
    let moved = removed(good).replace("web-1", "web-2") + "[telemetry]\ncollector = 'http://127.0.0.1:4318'\n";
    std::fs::write(&file, moved).expect("a file");
    let said = site.world.reload();
    assert!(said.contains("need a restart of the agent: host, telemetry\n"), "{said}");
    assert_eq!(site.opens(user, "x"), Err(not_bound()));
    assert_eq!(site.opens(user, "db"), Err(site.not_permitted()));
}

/// The device plug-in follows its listing.
#[test]
fn a_listing_follows_the_permits() {
    let mut site = Site::start("");
    site.present(VOLUME, "db");
    let mut lister = Program(site.connect_as(site.user), Decoder::default());
    lister.0.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    lister.send(&Request::List { version: 1 });
    let mut names = || loop {
        if let Some(answer) = lister.1.take().expect("an agent speaks the protocol") {
            let Answer::Listing(listing) = answer else { panic!("{answer:?}") };
            return listing.volumes.into_iter().map(|volume| volume.name).collect::<Vec<_>>();
        }
        let mut bytes = [0; 4096];
        let count = lister.0.read(&mut bytes).expect("a listing in time");
        lister.1.push(&bytes[..count]);
    };
    assert_eq!(names(), [""; 0]);
    site.permit("[[volume]]\nname = 'd*'\nuids = [{U}]\n");
    assert_eq!(names(), ["db"]);
    site.permit(&format!("[[volume]]\nname = 'mine'\nid = '{VOLUME}'\nuids = [{{U}}]\n"));
    assert_eq!(names(), ["mine"]);
}
