// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Generates the two services of kubelet's device-plugin interface from one table, without protoc. Generates client and
//! server of both, because the tests play the kubelet. The messages are in `src/api.rs`.

use tonic_build::manual::{Builder, Method, Service};

/// The package in the names of the services.
const PACKAGE: &str = "v1beta1";

fn main() {
    let registration = service("Registration", vec![method("register", "Register", "RegisterRequest", "Empty", false)]);
    let plugin = vec![
        method("options", "GetDevicePluginOptions", "Empty", "DevicePluginOptions", false),
        method("list_and_watch", "ListAndWatch", "Empty", "ListAndWatchResponse", true),
        method(
            "preferred_allocation",
            "GetPreferredAllocation",
            "PreferredAllocationRequest",
            "PreferredAllocationResponse",
            false,
        ),
        method("allocate", "Allocate", "AllocateRequest", "AllocateResponse", false),
        method(
            "pre_start_container",
            "PreStartContainer",
            "PreStartContainerRequest",
            "PreStartContainerResponse",
            false,
        ),
    ];
    Builder::new().compile(&[registration, service("DevicePlugin", plugin)]);
}

fn service(name: &str, methods: Vec<Method>) -> Service {
    let start = Service::builder().name(name).package(PACKAGE);
    methods.into_iter().fold(start, |service, method| service.method(method)).build()
}

/// Returns a method, with its name in Rust and on the wire; `is_stream` if the answer is a stream of messages.
fn method(name: &str, route: &str, input: &str, output: &str, is_stream: bool) -> Method {
    let method = Method::builder().name(name).route_name(route);
    let method = method.input_type(format!("crate::api::{input}")).output_type(format!("crate::api::{output}"));
    let method = method.codec_path("tonic_prost::ProstCodec");
    if is_stream { method.server_streaming().build() } else { method.build() }
}
