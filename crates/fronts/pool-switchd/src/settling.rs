// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! When a bind or an unbind that the manager has stored is over. Pure.

use aquifer_cxl_switch::Ending;
use aquifer_fmapi::ReturnCode;

use crate::view::{Ld, VolumeView};

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub ld: Ld,
    /// What the manager calls the volume, which has another name or none once it is released.
    pub volume_id: String,
    pub goal: Goal,
}

/// What a volume must become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The host has it, and its label says at which vPPB.
    AtHost { host: String, vppb_id: u8 },
    /// The host has let go of it.
    Left { host: String },
}

impl Wait {
    /// Returns how it ended; none while it goes on. `found` is the volume, or what is left of it after a release.
    pub fn ending(&self, found: Option<&VolumeView>) -> Option<Ending> {
        let unknown = Some(Ending::Unknown(ReturnCode::INTERNAL_ERROR));
        match (&self.goal, found) {
            (Goal::AtHost { host, vppb_id }, Some(volume)) if volume.id == self.volume_id => {
                let is_as_ordered = volume.host.as_ref() == Some(host)
                    && volume.label.as_ref().is_some_and(|(of, at)| of == host && at == vppb_id);
                match is_as_ordered {
                    true => (volume.is_at_host == Some(true)).then_some(Ending::Done),
                    // Somebody has changed it since.
                    false => unknown,
                }
            }
            (Goal::AtHost { .. }, _) => unknown,
            // What somebody else has bound to this host since is another binding, and shown as one.
            (Goal::Left { host }, Some(volume))
                if volume.id == self.volume_id && volume.host.as_ref() == Some(host) =>
            {
                unknown
            }
            (Goal::Left { host }, Some(volume)) if volume.id == self.volume_id => {
                (!volume.leaving_hosts.contains(host)).then_some(Ending::Done)
            }
            // Nothing is left of it.
            (Goal::Left { .. }, _) => Some(Ending::Done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(goal: Goal) -> Wait {
        Wait { ld: ("d1".parse().expect("a name"), 3), volume_id: "07".into(), goal }
    }

    fn volume(host: Option<&str>, is_at_host: Option<bool>) -> VolumeView {
        VolumeView {
            id: "07".into(),
            host: host.map(str::to_owned),
            is_at_host,
            label: Some(("h1".into(), 7)),
            ..VolumeView::default()
        }
    }

    #[test]
    fn a_bind_is_done_when_its_host_has_the_volume_at_its_vppb() {
        let wait = wait(Goal::AtHost { host: "h1".into(), vppb_id: 7 });
        let unknown = Some(Ending::Unknown(ReturnCode::INTERNAL_ERROR));
        assert_eq!(wait.ending(Some(&volume(Some("h1"), None))), None);
        assert_eq!(wait.ending(Some(&volume(Some("h1"), Some(false)))), None);
        assert_eq!(wait.ending(Some(&volume(Some("h1"), Some(true)))), Some(Ending::Done));
        for other in [
            volume(Some("h2"), Some(true)),
            volume(None, None),
            VolumeView { label: Some(("h1".into(), 8)), ..volume(Some("h1"), Some(true)) },
            VolumeView { id: "08".into(), ..volume(Some("h1"), Some(true)) },
        ] {
            assert_eq!(wait.ending(Some(&other)), unknown, "{other:?}");
        }
        assert_eq!(wait.ending(None), unknown);
    }

    #[test]
    fn an_unbind_is_done_when_its_host_has_let_go() {
        let wait = wait(Goal::Left { host: "h1".into() });
        let leaving = |host: &str| VolumeView { leaving_hosts: vec![host.into()], ..volume(None, None) };
        assert_eq!(wait.ending(Some(&leaving("h1"))), None, "released or not");
        assert_eq!(wait.ending(Some(&leaving("h2"))), Some(Ending::Done));
        assert_eq!(wait.ending(Some(&volume(None, None))), Some(Ending::Done));
        assert_eq!(wait.ending(None), Some(Ending::Done));
        assert_eq!(wait.ending(Some(&volume(Some("h2"), Some(true)))), Some(Ending::Done));
        let again = Some(Ending::Unknown(ReturnCode::INTERNAL_ERROR));
        assert_eq!(wait.ending(Some(&volume(Some("h1"), Some(true)))), again);
    }
}
