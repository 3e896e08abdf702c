// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides what a container gets with a volume: the agent's socket, the files that programs read, the device for
//! faults, and a variable that describes the volume as a tier. Pure.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use aquifer_agent_wire::STATE;

use crate::api::{AllocateRequest, AllocateResponse, ContainerAllocateResponse, DeviceSpec, Mount};
use crate::resource::{Resource, USERFAULTFD};

/// Maximum number of containers in one request. kubelet asks for one at a time; no pod has nearly as many.
pub const CONTAINERS_MAX: usize = 64;

/// The paths on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// The agent's socket.
    pub socket: PathBuf,
    /// Whether the host has [`USERFAULTFD`].
    pub has_userfaultfd: bool,
}

/// Why a container gets nothing: one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// More containers than a pod has.
    Containers {
        /// How many containers the request has.
        count: usize,
    },
    /// The resource has no such device.
    Device {
        /// The id of the device, shortened.
        id: String,
        /// The name of the resource.
        resource: String,
    },
    /// The volume cannot be opened now.
    NotOpen {
        /// The name of the volume.
        volume: String,
    },
    /// A path is not UTF-8, so it cannot be sent to kubelet.
    Path {
        /// The path on the host.
        path: PathBuf,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Containers { count } => {
                write!(f, "{count} containers are in one request; ask for {CONTAINERS_MAX} at most")
            }
            Self::Device { id, resource } => {
                write!(
                    f,
                    "'{}' is not a device of {resource}; restart kubelet, which remembers old ones",
                    id.escape_debug()
                )
            }
            Self::NotOpen { volume } => write!(
                f,
                "the volume {volume} is not bound to this host, or its agent does not answer; bind it with 'aquifer fabric \
                 bind', and see 'systemctl status aquifer-agent' on the host"
            ),
            Self::Path { path } => {
                write!(f, "{} is not UTF-8, as Kubernetes needs paths; rename it in the agent's file", path.display())
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// Maximum number of characters of a received id that a message repeats.
const ID_CHARS_MAX: usize = 64;

/// Answers a request for devices of a resource.
pub fn allocate(
    request: &AllocateRequest,
    resource: &Resource,
    is_answered: bool,
    surroundings: &Surroundings,
) -> Result<AllocateResponse, Refusal> {
    let count = request.container_requests.len();
    if count > CONTAINERS_MAX {
        return Err(Refusal::Containers { count });
    }
    let ids = request.container_requests.iter().flat_map(|container| &container.devices_ids);
    if let Some(id) = ids.into_iter().find(|id| !resource.has_device(id)) {
        let id = id.chars().take(ID_CHARS_MAX).collect();
        return Err(Refusal::Device { id, resource: resource.name.clone() });
    }
    if !resource.is_open || !is_answered {
        return Err(Refusal::NotOpen { volume: resource.volume.clone() });
    }
    let response = container(resource, surroundings)?;
    Ok(AllocateResponse { container_responses: vec![response; count] })
}

/// Returns what each container gets, whichever of the devices it has.
fn container(resource: &Resource, surroundings: &Surroundings) -> Result<ContainerAllocateResponse, Refusal> {
    let Surroundings { socket, has_userfaultfd } = surroundings;
    // The directory and not the socket, because a restarted agent creates a new socket there.
    let directory = socket.parent().filter(|directory| *directory != Path::new("/")).unwrap_or(socket);
    let mut mounts = vec![mount(directory)?];
    for path in resource.tenant_files().iter().map(|file| followed(file)) {
        let mount = mount(path)?;
        if !path.starts_with(directory) && !mounts.contains(&mount) {
            mounts.push(mount);
        }
    }
    let device = || DeviceSpec {
        container_path: USERFAULTFD.to_owned(),
        host_path: USERFAULTFD.to_owned(),
        permissions: "rw".to_owned(),
    };
    let tier = format!("pool:{},agent={}", resource.volume, utf8(socket)?);
    Ok(ContainerAllocateResponse {
        envs: [(variable(&resource.volume), tier)].into(),
        mounts,
        devices: has_userfaultfd.then(device).into_iter().collect(),
    })
}

/// Returns what to mount for a file, so that a container sees the file that replaces it: its directory, if that is one
/// that the packaged agent can write to, where `aquifer fabric join` has put the files of the host and nothing else.
/// Other directories may have secrets of the node.
fn followed(file: &Path) -> &Path {
    let state = Path::new(STATE);
    let is_plain = file.components().all(|part| part != Component::ParentDir);
    let directory = file.parent().filter(|directory| directory.starts_with(state) && *directory != state);
    directory.filter(|_| is_plain).unwrap_or(file)
}

/// Returns the name of the variable: `AQUIFER_VOLUME_` and the volume's name, in capitals, with `_` in place of
/// characters that a shell does not accept in names.
pub fn variable(volume: &str) -> String {
    let capital = |one: char| if one.is_ascii_alphanumeric() { one.to_ascii_uppercase() } else { '_' };
    format!("AQUIFER_VOLUME_{}", volume.chars().map(capital).collect::<String>())
}

/// Returns a path of the host, at the same place in the container: programs get paths from the agent.
fn mount(path: &Path) -> Result<Mount, Refusal> {
    let path = utf8(path)?;
    Ok(Mount { container_path: path.clone(), host_path: path, read_only: true })
}

fn utf8(path: &Path) -> Result<String, Refusal> {
    path.to_str().map(str::to_owned).ok_or_else(|| Refusal::Path { path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use aquifer_agent_wire::{ListedVolume, TenantFiles};
    use proptest::prelude::*;

    use super::*;
    use crate::api::ContainerAllocateRequest;
    use crate::resource::{Naming, resources};

    fn resource(is_bound: bool, files: Option<TenantFiles>) -> Resource {
        let id = "00000000000000a1";
        let volume = ListedVolume { name: "db-1.a".into(), id: id.into(), slabs: 8, is_bound };
        let naming = Naming { domain: "aquifer.dev".parse().unwrap(), pods_max: 4 };
        resources(&[volume], files.as_ref(), &naming).by_id.remove(id).unwrap()
    }

    fn surroundings() -> Surroundings {
        Surroundings { socket: aquifer_agent_wire::SOCKET.into(), has_userfaultfd: true }
    }

    fn request(ids: &[&str]) -> AllocateRequest {
        let devices_ids = ids.iter().map(|id| (*id).to_owned()).collect();
        AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids }] }
    }

    #[test]
    fn a_container_gets_all_that_the_tier_needs() {
        let file = |name: &str| PathBuf::from(format!("/etc/aquifer/{name}"));
        let files = TenantFiles { cert: file("c"), key: file("k"), ca: file("a"), crl: Some(file("l")) };
        let answer = allocate(&request(&["0", "3"]), &resource(true, Some(files)), true, &surroundings()).unwrap();
        let [container] = &answer.container_responses[..] else { panic!("one container") };
        assert_eq!(container.envs.len(), 1);
        assert_eq!(container.envs["AQUIFER_VOLUME_DB_1_A"], "pool:db-1.a,agent=/run/aquifer/agent.sock");
        let mounts: Vec<_> = container.mounts.iter().map(|mount| mount.container_path.as_str()).collect();
        assert_eq!(mounts, ["/run/aquifer", "/etc/aquifer/a", "/etc/aquifer/c", "/etc/aquifer/k", "/etc/aquifer/l"]);
        assert!(container.mounts.iter().all(|mount| mount.read_only && mount.host_path == mount.container_path));
        assert_eq!(container.devices[0].host_path, USERFAULTFD);
        let bare = Surroundings { has_userfaultfd: false, ..surroundings() };
        let answer = allocate(&request(&["0"]), &resource(true, None), true, &bare).unwrap();
        assert!(answer.container_responses[0].devices.is_empty());
        assert_eq!(answer.container_responses[0].mounts.len(), 1);
    }

    /// A renewed file replaces the old one by a rename, which a container with the old file alone would never see: its
    /// certificate would expire, and so would its list of revoked ones.
    #[test]
    fn a_container_sees_renewed_files_and_nothing_else_of_the_host() {
        let mounts = |paths: [&str; 4]| {
            let [ca, cert, key, crl] = paths.map(PathBuf::from);
            let files = TenantFiles { cert, key, ca, crl: Some(crl) };
            let answer = allocate(&request(&["0"]), &resource(true, Some(files)), true, &surroundings()).unwrap();
            let [container] = &answer.container_responses[..] else { panic!("one container") };
            container.mounts.iter().map(|mount| mount.host_path.clone()).collect::<Vec<_>>()
        };
        let joined = ["ca.pem", "h1.pem", "h1.pem", "revocations.pem"].map(|name| format!("{STATE}/h1/{name}"));
        assert_eq!(mounts(joined.each_ref().map(String::as_str)), ["/run/aquifer", "/var/lib/aquifer/agent/h1"]);
        // The agent's own state has tokens of reservations.
        let own = format!("{STATE}/h1.pem");
        let list = "/run/aquifer/revocations.pem";
        assert_eq!(mounts(["/etc/aquifer/ca.pem", &own, &own, list]), ["/run/aquifer", "/etc/aquifer/ca.pem", &own]);
        let outside = format!("{STATE}/../h1.pem");
        assert_eq!(mounts([&outside, &outside, &outside, list]), ["/run/aquifer", &outside]);
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_a_remedy() {
        let none = resource(false, None);
        let too_many = AllocateRequest { container_requests: vec![Default::default(); CONTAINERS_MAX + 1] };
        for (refusal, remedy) in [
            (allocate(&request(&["0"]), &none, true, &surroundings()), "aquifer fabric bind"),
            (allocate(&request(&["0"]), &resource(true, None), false, &surroundings()), "aquifer-agent"),
            (allocate(&request(&["0", "4"]), &resource(true, None), true, &surroundings()), "restart kubelet"),
            (allocate(&too_many, &none, true, &surroundings()), "at most"),
        ] {
            let text = refusal.unwrap_err().to_string();
            assert!(text.contains(remedy) && !text.contains('\n'), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_request_is_answered_for_its_own_devices_or_refused(
            ids in prop::collection::vec(prop::collection::vec("[0-9]{1,2}|.{0,80}", 0..4), 0..70),
        ) {
            let containers = ids.iter().map(|ids| ContainerAllocateRequest { devices_ids: ids.clone() });
            let request = AllocateRequest { container_requests: containers.collect() };
            match allocate(&request, &resource(true, None), true, &surroundings()) {
                Ok(answer) => {
                    prop_assert_eq!(answer.container_responses.len(), ids.len());
                    prop_assert!(ids.iter().flatten().all(|id| ["0", "1", "2", "3"].contains(&id.as_str())));
                }
                Err(refusal) => prop_assert!(!refusal.to_string().contains('\n')),
            }
        }
    }
}
