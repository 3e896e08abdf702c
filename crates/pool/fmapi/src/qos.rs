// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Quality of service of a multi-logical device (54h, second part). CXL 3.1, sections 7.6.7.4.4 to 7.6.7.4.10.

use crate::codec::{Payload, Reader, Writer, payload};
use crate::failure::DecodeFailure;

macro_rules! control {
    ($(#[$doc:meta])* $name:ident) => {
        payload! {
            $(#[$doc])*
            pub struct $name {
                /// Bit 0: report congestion at the egress port; bit 1: temporarily reduced throughput.
                pub telemetry: u8;
                /// The percentage at which moderate congestion begins, 1 to 100.
                pub egress_moderate_percent: u8;
                /// The percentage at which severe congestion begins, 1 to 100.
                pub egress_severe_percent: u8;
                /// Interval at which back pressure is sampled, 0 to 15; 8 by default.
                pub sample_interval: u8;
                /// Requests per completion, the base of throughput.
                pub completion_basis: u16;
                /// Interval at which completions are collected.
                pub completion_interval: u8;
            }
        }
    };
}

control! {
    /// Get and Set QoS Control (5403h, 5404h), response.
    QosControl
}
control! {
    /// Set QoS Control (5404h), request.
    SetQosControl
}

payload! {
    /// Get QoS Control (5403h), request.
    pub struct GetQosControl {}
}
payload! {
    /// Get QoS Status (5405h), request.
    pub struct GetQosStatus {}
}
payload! {
    /// Get QoS Status (5405h), response.
    pub struct QosStatus {
        /// Mean back pressure in per cent.
        pub back_pressure_percent: u8;
    }
}
payload! {
    /// Get QoS Allocated BW (5406h), request.
    pub struct GetQosAllocatedBw {
        /// The number of logical devices.
        pub count: u8;
        /// The first logical device to list.
        pub first_ld_id: u8;
    }
}
payload! {
    /// Get QoS BW Limit (5408h), request.
    pub struct GetQosBwLimit {
        /// The number of logical devices.
        pub count: u8;
        /// The first logical device to list.
        pub first_ld_id: u8;
    }
}

macro_rules! fractions {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            /// The first logical device that is listed.
            pub first_ld_id: u8,
            /// For each, its part of the bandwidth in 256ths.
            pub fractions: Vec<u8>,
        }

        impl Payload for $name {
            fn write(&self, out: &mut Writer<'_>) {
                out.count_u8(&self.fractions);
                out.put(&self.first_ld_id);
                out.put_bytes(&self.fractions);
            }

            fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
                let [count, first_ld_id]: [u8; 2] = input.read()?;
                Ok(Self { first_ld_id, fractions: input.take(count.into())?.to_vec() })
            }
        }
    };
}

fractions! {
    /// Set QoS Allocated BW (5407h), request.
    SetQosAllocatedBw
}
fractions! {
    /// Set QoS BW Limit (5409h), request.
    SetQosBwLimit
}
fractions! {
    /// Get and Set QoS Allocated BW, Get and Set QoS BW Limit (5406h to 5409h), response.
    QosFractions
}
