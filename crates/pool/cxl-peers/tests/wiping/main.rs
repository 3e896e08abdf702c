// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a host is given holds nobody's bytes: LDs, dynamic capacity, and the memory besides it. And what devices write
//! about themselves reaches people.

mod capacity;
mod device_logs;
mod lds;
mod pending;
mod rig;
