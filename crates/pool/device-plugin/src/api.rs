// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The messages between kubelet and a device plug-in, version `v1beta1`, and the services that carry them.
//!
//! Numbers and types of the fields are those of kubelet's `api.proto`; they are stable, and a test pins their bytes.
//! Fields that this plug-in neither reads nor writes are left out; both sides skip unknown fields.

use std::collections::HashMap;

/// The version of the interface, in each registration.
pub const VERSION: &str = "v1beta1";
/// kubelet's socket, in its directory for plug-ins.
pub const KUBELET_SOCKET: &str = "kubelet.sock";
/// The health of a device that containers can get.
pub const HEALTHY: &str = "Healthy";
/// The health of one that they cannot.
pub const UNHEALTHY: &str = "Unhealthy";

/// A message without fields.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}

/// Which of the optional calls kubelet should make.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DevicePluginOptions {
    /// `PreStartContainer` before each start of a container.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// `GetPreferredAllocation` before each allocation.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// A plug-in registers its resource.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegisterRequest {
    /// The [`VERSION`] that the plug-in speaks.
    #[prost(string, tag = "1")]
    pub version: String,
    /// The name of the plug-in's socket, in the directory of kubelet's socket.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// What pods ask for, such as `aquifer.dev/db`.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// Which of the optional calls the plug-in has.
    #[prost(message, optional, tag = "4")]
    pub options: Option<DevicePluginOptions>,
}

/// One device of a resource.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Device {
    /// Unique for the resource; 63 characters at most.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its health: [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
}

/// All devices of a resource.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListAndWatchResponse {
    /// All devices of the resource.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// Which devices each container of a pod gets.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AllocateRequest {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerAllocateRequest>,
}

/// Which devices a container gets.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerAllocateRequest {
    /// The ids of the container's devices.
    #[prost(string, repeated, tag = "1")]
    pub devices_ids: Vec<String>,
}

/// What the containers need for their devices.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AllocateResponse {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerAllocateResponse>,
}

/// What a container needs for its devices.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerAllocateResponse {
    /// Variables of its environment.
    #[prost(map = "string, string", tag = "1")]
    pub envs: HashMap<String, String>,
    /// Files and directories of the host.
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
    /// Device files of the host.
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<DeviceSpec>,
}

/// A file or directory of the host in a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Mount {
    /// Where it is in the container.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Where it is on the host.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// `true` if the container cannot change it.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// A device file of the host in a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeviceSpec {
    /// Where it is in the container.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Where it is on the host.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// What the container may do with it: `r`, `w`, `m`.
    #[prost(string, tag = "3")]
    pub permissions: String,
}

/// Which devices would be best for a pod; this plug-in does not say.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PreferredAllocationRequest {}

/// The answer to that request, without any preference.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PreferredAllocationResponse {}

/// A container is about to start; this plug-in does not ask for this call.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PreStartContainerRequest {}

/// The answer to that request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PreStartContainerResponse {}

/// The services, as `build.rs` has made them.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
mod services {
    include!(concat!(env!("OUT_DIR"), "/v1beta1.DevicePlugin.rs"));
    include!(concat!(env!("OUT_DIR"), "/v1beta1.Registration.rs"));
}

pub use services::device_plugin_client::DevicePluginClient;
pub use services::device_plugin_server::{DevicePlugin, DevicePluginServer};
pub use services::registration_client::RegistrationClient;
pub use services::registration_server::{Registration, RegistrationServer};

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// The bytes that kubelet's own encoder makes of these messages: tag and type of each field in one byte, then a
    /// length.
    #[test]
    fn the_bytes_are_those_of_kubelets_interface() {
        let options = Some(DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true });
        let register =
            RegisterRequest { version: "v".into(), endpoint: "e".into(), resource_name: "r".into(), options };
        assert_eq!(register.encode_to_vec(), b"\x0a\x01v\x12\x01e\x1a\x01r\x22\x02\x10\x01");
        let device = Device { id: "i".into(), health: "h".into() };
        let list = ListAndWatchResponse { devices: vec![device] };
        assert_eq!(list.encode_to_vec(), b"\x0a\x06\x0a\x01i\x12\x01h");
        let container = ContainerAllocateResponse {
            envs: [("k".to_owned(), "v".to_owned())].into(),
            mounts: vec![Mount { container_path: "c".into(), host_path: "h".into(), read_only: true }],
            devices: vec![DeviceSpec { container_path: "c".into(), host_path: "h".into(), permissions: "rw".into() }],
        };
        let bytes = AllocateResponse { container_responses: vec![container] }.encode_to_vec();
        let envs = b"\x0a\x06\x0a\x01k\x12\x01v";
        let mounts = b"\x12\x08\x0a\x01c\x12\x01h\x18\x01";
        let devices = b"\x1a\x0a\x0a\x01c\x12\x01h\x1a\x02rw";
        let whole = [&b"\x0a\x1e"[..], envs, mounts, devices].concat();
        assert_eq!(bytes, whole);
        let request = AllocateRequest::decode(&b"\x0a\x06\x0a\x01a\x0a\x01b"[..]).unwrap();
        assert_eq!(request.container_requests[0].devices_ids, ["a", "b"]);
        // A topology (3) that kubelet may send in a device is skipped.
        assert_eq!(Device::decode(&b"\x0a\x01i\x1a\x00"[..]).unwrap().id, "i");
    }
}
