// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a host is given holds nobody's bytes: LDs, and the memory besides dynamic capacity.

mod capacity;
mod lds;
mod rig;
