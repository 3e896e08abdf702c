// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A port that flaps and devices that are pulled out and put back, at any moment between a request and its answer,
//! while a manager binds, unbinds, reads and writes.
//!
//! Each command succeeds or fails with a cause and a remedy, within its bounds. A bind or unbind that fails without an
//! effect has left the vPPB as it was; one that succeeds is what the switch reports.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aquifer_cxl_switch::{Injection, Switch, SwitchConfig};
use aquifer_fmapi::*;
use aquifer_fmapi_client::{Cause, Client, Clock, Effect, Failure, Hop, Limits};

mod world;

use world::random::Random;
use world::{VirtualClock, Wire, World};

const HISTORIES: u64 = 40;
const COMMANDS: usize = 60;
/// The SLD of the example, the MLD, and the device with dynamic capacity, each at the port with its number.
const DEVICES: u64 = 3;
const SLD: u8 = 0;
const MLD: u8 = 1;

/// Flaps ports, and pulls devices out and puts them back.
struct Trouble {
    random: Random,
    out: Vec<usize>,
    events: u32,
    /// How often the MLD was pulled out, which unbinds its logical devices.
    mld_removals: u32,
    /// Whether a test looks at the state, so that nothing may happen.
    is_paused: bool,
}

impl Trouble {
    fn new(seed: u64) -> Self {
        Self { random: Random(seed), out: Vec::new(), events: 0, mld_removals: 0, is_paused: false }
    }

    fn act(&mut self, switch: &mut Switch, now_ns: u64) {
        if self.is_paused || !self.random.chance(15) {
            return;
        }
        let device = self.random.below(DEVICES) as usize;
        let injection = match self.out.iter().position(|out| *out == device) {
            Some(at) => {
                self.out.remove(at);
                Injection::InsertDevice { device }
            }
            None if self.random.chance(50) => {
                self.out.push(device);
                self.mld_removals += u32::from(device == usize::from(MLD));
                Injection::RemoveDevice { device }
            }
            None => Injection::LinkFlap { port_id: device as u8, down_ns: 1 + self.random.below(400_000_000) },
        };
        switch.inject(now_ns, injection).expect("it can happen at any time");
        self.events += 1;
    }
}

fn command(client: &mut Client, random: &mut Random) -> Result<(), Failure> {
    let port = random.below(DEVICES) as u8;
    match random.below(6) {
        0 => client.identify(&[Hop::Port(port)]).map(drop),
        1 => client.ld_allocations(&[Hop::Port(MLD)]).map(drop),
        2 => client.identify(&[Hop::Port(MLD), Hop::Ld(random.below(4) as u8)]).map(drop),
        3 => client.dc_extents(&[Hop::Port(2)], 0).map(drop),
        4 => {
            let data = vec![7; 64];
            let write = LdMemoryRequest { port_id: MLD, is_write: true, bytes: 64, data, ..Default::default() };
            client.run(&[], &LdMemoryRequest { first_byte_enables: 0xf, last_byte_enables: 0xf, ..write })
        }
        _ => client.port_states(&[0, 1, 2]).map(drop),
    }
}

/// A vPPB, and what is bound to it: the SLD, whose binding outlasts the device, or a logical device.
type Place = (u8, u8, u16);
const PLACES: [Place; 2] = [(3, SLD, BindVppb::NO_LD), (4, MLD, 1)];

/// Returns the state of a vPPB while nothing happens, and how often the MLD was pulled out so far.
fn look(client: &mut Client, trouble: &Mutex<Trouble>, vppb_id: u8) -> (Vppb, u32) {
    let pause = |is_paused| {
        let mut trouble = trouble.lock().unwrap();
        trouble.is_paused = is_paused;
        trouble.mld_removals
    };
    let removals = pause(true);
    let state = client.virtual_switch(0).expect("the switch itself stays").vppbs[usize::from(vppb_id)];
    pause(false);
    (state, removals)
}

/// Binds what is unbound, and unbinds what is bound.
fn bind_or_unbind(client: &mut Client, trouble: &Mutex<Trouble>, place: Place) -> Result<(), Failure> {
    let (vppb_id, port_id, ld_id) = place;
    let (before, removals) = look(client, trouble, vppb_id);
    let is_bind = before.status == BindingStatus::Unbound;
    let result = match is_bind {
        true => client.bind(&BindVppb { vcs_id: 0, vppb_id, port_id, ld_id }),
        false => client.unbind(&UnbindVppb { vcs_id: 0, vppb_id, option: UnbindOption::SurpriseRemoval }),
    };
    let (after, removals_now) = look(client, trouble, vppb_id);
    let may_be_lost = port_id == MLD && removals_now > removals;
    let is_unbound = after.status == BindingStatus::Unbound;
    let is_as_reported = match &result {
        Ok(()) => is_unbound != is_bind,
        Err(failure) if failure.effect == Effect::NotCarriedOut => after == before,
        Err(_) => after.status != BindingStatus::InProgress,
    };
    assert!(is_as_reported || may_be_lost && is_unbound, "{before:?}, then {after:?}, after {result:?}");
    result
}

fn play(seed: u64) -> (u32, usize, usize) {
    let (world, clock) = (World::shared(SwitchConfig::example()), Arc::<VirtualClock>::default());
    let trouble = Arc::new(Mutex::new(Trouble::new(seed)));
    let mut wire = Wire::new(&world, &clock, 1);
    let rival = Arc::clone(&trouble);
    wire.rival = Some(Box::new(move |switch, now_ns| rival.lock().unwrap().act(switch, now_ns)));
    let mut client = wire.client(Limits::default());
    let (mut random, mut done, mut failed) = (Random(!seed), 0, 0);
    for _ in 0..COMMANDS {
        let begun = clock.now();
        let result = match random.chance(40) {
            true => bind_or_unbind(&mut client, &trouble, random.one_of(&PLACES)),
            false => command(&mut client, &mut random),
        };
        let limits = client.limits();
        assert!(clock.now() - begun < limits.command_max() * 4 + limits.background, "seed {seed}");
        match result {
            Ok(()) => done += 1,
            Err(failure) => {
                // An unconfirmed bind took effect, but its device was pulled out before the client read the state.
                let is_expected = matches!(
                    failure.cause,
                    Cause::BackgroundFailed(_) | Cause::Busy { .. } | Cause::NotConfirmed { .. } | Cause::Refused(_)
                );
                assert!(is_expected && !failure.remedy().is_empty(), "seed {seed}: {failure}");
                failed += 1;
            }
        }
    }
    // When everything is back, everything works.
    settle(&world, &clock, &trouble);
    let mut client = Wire::new(&world, &clock, 2).client(Limits::default());
    for device in 0..DEVICES as u8 {
        client.identify(&[Hop::Port(device)]).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    for place in PLACES.into_iter().chain(PLACES) {
        bind_or_unbind(&mut client, &trouble, place).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    let events = trouble.lock().unwrap().events;
    (events, done, failed)
}

/// Puts every device back, and lets the longest flap end.
fn settle(world: &Mutex<World>, clock: &VirtualClock, trouble: &Mutex<Trouble>) {
    let (mut world, mut trouble) = (world.lock().unwrap(), trouble.lock().unwrap());
    for device in trouble.out.drain(..) {
        world.switch.inject(clock.now_ns(), Injection::InsertDevice { device }).expect("it was pulled out");
    }
    clock.sleep(Duration::from_secs(1));
    world.switch.advance(clock.now_ns());
}

#[test]
fn flapping_ports_and_devices_pulled_out_under_load_leave_the_state_before_or_after() {
    let (mut events, mut done, mut failed) = (0, 0, 0);
    for seed in 0..HISTORIES {
        let (more, well, badly) = play(seed);
        (events, done, failed) = (events + more, done + well, failed + badly);
    }
    println!("{events} times a port flapped or a device left or came; {done} commands succeeded, {failed} failed");
    assert!(events > 500 && done > 200 && failed > 200, "{events} {done} {failed}: histories about nothing");
}
