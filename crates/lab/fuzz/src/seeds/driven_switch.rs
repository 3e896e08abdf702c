// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Steps as `targets::driven_switch` reads them.

use aquifer_fmapi::{
    BindVppb, Category, Dialect, LdAllocation, Message, Opcode, Request, ReturnCode, SetLdAllocations, Tunnel,
    TunnelTarget, UnbindOption, UnbindVppb,
};

/// A step that lets the switch take over two devices and two hosts. Logical device 1 has 256 MiB, and `place` and
/// `target` say what is bound where.
fn adopt(place: u8, target: u8, progress: u8) -> Vec<u8> {
    vec![1, 0, 0, 0, 16, 0x12, 4, place, target, progress]
}

fn send(later_ms: u8, request: &Request) -> Vec<u8> {
    let message = Message::request(5, request, &Dialect::STANDARD).encode(&Dialect::STANDARD);
    [&[3, later_ms, message.len() as u8], &message[..]].concat()
}

fn to_device(later_ms: u8, request: &Request) -> Vec<u8> {
    let message = Message::request(6, request, &Dialect::STANDARD).encode(&Dialect::STANDARD);
    send(later_ms, &Request::Tunnel(Tunnel { port_or_ld_id: 0, target: TunnelTarget::PortOrLd, message }))
}

/// Orders that end well, late, twice, and under wrong numbers, with states in between, and one of each command.
pub fn driven_switch() -> Vec<Vec<u8>> {
    let allocations = [3, 0, 2].map(|range_1| LdAllocation { range_1, range_2: 0 }).to_vec();
    let allocate = |later| {
        to_device(
            later,
            &Request::SetLdAllocations(SetLdAllocations { first_ld_id: 3, allocations: allocations.clone() }),
        )
    };
    let bind = |later| send(later, &Request::BindVppb(BindVppb { vcs_id: 0, vppb_id: 2, port_id: 0, ld_id: 1 }));
    let option = UnbindOption::ManagedRemoval;
    let unbind = |later| send(later, &Request::UnbindVppb(UnbindVppb { vcs_id: 0, vppb_id: 2, option }));
    let conclude = |later_ms, which, how| vec![0, later_ms, which, how];
    let [state, bound] = [adopt(0xff, 0xff, 0), adopt(0xf8, 0x08, 0)];
    let (done, refused, unknown) = (0, 2 << 2 | 2, 3 << 2 | 3);
    let orders = [
        [state.clone(), allocate(0), conclude(1, 0, done), bind(0), conclude(5, 0, done)].concat(),
        [
            state.clone(),
            allocate(0),
            state.clone(),
            conclude(1, 2, done),
            conclude(1, 3, done),
            conclude(0, 0, refused),
        ]
        .concat(),
        [state.clone(), bind(0), bound.clone(), conclude(250, 0, done), conclude(0, 0, done), unbind(1)].concat(),
        [bound.clone(), unbind(0), bind(1), conclude(1, 0, unknown), bound, unbind(0), conclude(255, 0, done)].concat(),
        [state.clone(), allocate(0), allocate(1), vec![2, 201], conclude(0, 0, done), allocate(0), bind(0)].concat(),
    ];
    let each = Opcode::ALL.iter().map(|opcode| {
        let bare = Message::new(Category::Request, 7, *opcode, ReturnCode::SUCCESS, vec![0; 6]);
        let bytes = bare.encode(&Dialect::STANDARD);
        [&state[..], &[3, 0, bytes.len() as u8], &bytes].concat()
    });
    orders.into_iter().chain(each).collect()
}
