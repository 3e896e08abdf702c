// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Quality of service of an MLD (54h, second part): settings are stored and reported. CXL 3.1, sections 7.6.7.4.4 to
//! 7.6.7.4.10.

use std::ops::Range;

use aquifer_fmapi::{QosControl, QosFractions, QosStatus, Request, Response, ReturnCode, SetQosControl};

use crate::context::{Answer, Context};

/// Both kinds of telemetry: congestion at the egress port, and throughput that is reduced for a time.
pub(crate) const TELEMETRY: u8 = 3;
/// The longest interval at which back pressure is sampled.
const SAMPLE_INTERVAL_MAX: u8 = 15;

/// The quality-of-service settings of an MLD.
#[derive(Clone, Debug)]
pub(crate) struct Qos {
    control: QosControl,
    allocated: Vec<u8>,
    limits: Vec<u8>,
    /// Mean back pressure in per cent; set by injection.
    pub back_pressure_percent: u8,
}

impl Qos {
    /// Returns the specification's defaults.
    pub fn new(lds: usize) -> Self {
        let control = QosControl {
            telemetry: 0,
            egress_moderate_percent: 10,
            egress_severe_percent: 25,
            sample_interval: 8,
            completion_basis: 0,
            completion_interval: 64,
        };
        Self { control, allocated: vec![0; lds], limits: vec![0; lds], back_pressure_percent: 0 }
    }

    /// Returns the answer; None for a command of another set.
    pub fn answer(&mut self, context: &Context, request: &Request) -> Option<Answer> {
        let lds = self.limits.len();
        let listed = |first: u8, count: usize| range(lds, first, count).filter(|range| range.len() + 2 <= context.room);
        // One peer asks for 255 to get them all.
        let reported = |list: &[u8], first_ld_id: u8, count: usize| {
            let left = lds.saturating_sub(first_ld_id.into());
            let fractions = list[listed(first_ld_id, count.min(left))?].to_vec();
            Some(QosFractions { first_ld_id, fractions })
        };
        let invalid = ReturnCode::INVALID_INPUT;
        Some(match request {
            Request::GetQosControl(_) => Ok(Response::GetQosControl(self.control)),
            Request::SetQosControl(set) => self.set(set),
            Request::GetQosStatus(_) => {
                Ok(Response::GetQosStatus(QosStatus { back_pressure_percent: self.back_pressure_percent }))
            }
            Request::GetQosAllocatedBw(get) => reported(&self.allocated, get.first_ld_id, get.count.into())
                .map(Response::GetQosAllocatedBw)
                .ok_or(invalid),
            Request::GetQosBwLimit(get) => {
                reported(&self.limits, get.first_ld_id, get.count.into()).map(Response::GetQosBwLimit).ok_or(invalid)
            }
            Request::SetQosAllocatedBw(set) => {
                listed(set.first_ld_id, set.fractions.len()).ok_or(invalid).map(|range| {
                    self.allocated[range].copy_from_slice(&set.fractions);
                    let fractions = set.fractions.clone();
                    Response::SetQosAllocatedBw(QosFractions { first_ld_id: set.first_ld_id, fractions })
                })
            }
            Request::SetQosBwLimit(set) => listed(set.first_ld_id, set.fractions.len()).ok_or(invalid).map(|range| {
                self.limits[range].copy_from_slice(&set.fractions);
                let fractions = set.fractions.clone();
                Response::SetQosBwLimit(QosFractions { first_ld_id: set.first_ld_id, fractions })
            }),
            _ => return None,
        })
    }

    fn set(&mut self, set: &SetQosControl) -> Answer {
        let (moderate, severe) = (set.egress_moderate_percent, set.egress_severe_percent);
        let is_good = (1..=100).contains(&moderate)
            && (1..=100).contains(&severe)
            && moderate <= severe
            && set.sample_interval <= SAMPLE_INTERVAL_MAX
            && set.telemetry & !TELEMETRY == 0;
        if !is_good {
            return Err(ReturnCode::INVALID_INPUT);
        }
        self.control = QosControl {
            telemetry: set.telemetry,
            egress_moderate_percent: moderate,
            egress_severe_percent: severe,
            sample_interval: set.sample_interval,
            completion_basis: set.completion_basis,
            completion_interval: set.completion_interval,
        };
        Ok(Response::SetQosControl(self.control))
    }
}

/// Returns the range of these logical devices; None if it is empty, or one of them does not exist.
fn range(lds: usize, first: u8, count: usize) -> Option<Range<usize>> {
    let range = usize::from(first)..usize::from(first) + count;
    (!range.is_empty() && range.end <= lds).then_some(range)
}
