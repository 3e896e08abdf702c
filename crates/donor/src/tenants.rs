// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Tenants.

/// Which tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TenantId(pub u64);
