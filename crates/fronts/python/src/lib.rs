// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The part of the Python package `aquifer` that is not Python: spaces and mappings of the crate `aquifer`, as classes.
//!
//! Python sees it as `aquifer._native`, and does not use it directly: `python/aquifer` has the classes that a program
//! uses, which inherit from those here, and everything that NumPy and asyncio are needed for.
//!
//! Each call that may wait gives up the interpreter's lock (the GIL) first, so other threads of the program run
//! meanwhile. No lock of this crate is held while it waits for the interpreter's.
//!
//! | module | what |
//! |---|---|
//! | `space` | a budget of DRAM over tiers |
//! | `mapping` | memory of a space; `lifetime` counts who uses it, `queries` says where it is and how hot |
//! | `exporter` | the buffer protocol |
//! | `prefetches` | fetches that nobody waits for |
//! | `fetch` | fetches that a coroutine waits for |
//! | `gather` | copies of many scattered items |
//! | `offset`, `pace` | numbers as Python gives them; how much a copy reads between looks at signals |
//! | `pin` | a range that stays resident |
//! | `curve` | the miss-ratio curve |
//! | `forked_child` | says why a forked child ends that touches its parent's memory |
//! | `errors` | which exception stands for which error |

mod curve;
mod errors;
mod exporter;
mod fetch;
mod forked_child;
mod gather;
mod lifetime;
mod mapping;
mod offset;
mod pace;
mod pin;
mod prefetches;
mod queries;
mod space;

#[pyo3::pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::curve::MissRatioCurve;
    #[pymodule_export]
    use crate::fetch::Fetch;
    #[pymodule_export]
    use crate::forked_child::explain_touches;
    #[pymodule_export]
    use crate::mapping::Mapping;
    #[pymodule_export]
    use crate::pin::Pin;
    #[pymodule_export]
    use crate::space::{Space, probe};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("CLASS_NAMES", aquifer::CLASS_NAMES)?;
        module.add("Exporter", crate::exporter::class(module.py())?)
    }
}
