// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The OData metadata document: which schemas the resources have, and where DMTF publishes them.

use std::fmt::Write;

use super::answer::{Answer, Problem};
use super::service::Call;

/// Schemas with versions: the versions that answers name. A test walks over all resources and compares.
const SCHEMAS: [(&str, &str); 27] = [
    ("AccountService", "v1_15_1"),
    ("CXLLogicalDevice", "v1_4_0"),
    ("Chassis", "v1_26_0"),
    ("Connection", "v1_3_2"),
    ("Endpoint", "v1_8_2"),
    ("Event", "v1_11_0"),
    ("EventDestination", "v1_15_1"),
    ("EventService", "v1_10_3"),
    ("Fabric", "v1_3_2"),
    ("ManagerAccount", "v1_12_1"),
    ("MemoryChunks", "v1_6_2"),
    ("MemoryDomain", "v1_5_1"),
    ("Message", "v1_2_1"),
    ("MessageRegistry", "v1_6_3"),
    ("MessageRegistryFile", "v1_1_5"),
    ("PCIeDevice", "v1_18_0"),
    ("Port", "v1_14_0"),
    ("Role", "v1_3_2"),
    ("ServiceRoot", "v1_18_0"),
    ("Session", "v1_7_1"),
    ("SessionService", "v1_1_9"),
    ("Switch", "v1_10_0"),
    ("Task", "v1_7_4"),
    ("TaskService", "v1_2_1"),
    ("VirtualCXLSwitch", "v1_0_0"),
    ("VirtualPCI2PCIBridge", "v1_0_0"),
    ("Zone", "v1_6_3"),
];

/// Schemas of collections, which have no versions.
const COLLECTIONS: [&str; 19] = [
    "CXLLogicalDeviceCollection",
    "ChassisCollection",
    "ConnectionCollection",
    "EndpointCollection",
    "EventDestinationCollection",
    "FabricCollection",
    "ManagerAccountCollection",
    "MemoryChunksCollection",
    "MemoryDomainCollection",
    "MessageRegistryFileCollection",
    "PCIeDeviceCollection",
    "PortCollection",
    "RoleCollection",
    "SessionCollection",
    "SwitchCollection",
    "TaskCollection",
    "VirtualCXLSwitchCollection",
    "VirtualPCI2PCIBridgeCollection",
    "ZoneCollection",
];

const REDFISH: &str = "http://redfish.dmtf.org/schemas/v1";
const ODATA: &str = "http://docs.oasis-open.org/odata";

/// Returns the document.
pub(super) fn document(_: &Call<'_>) -> Result<Answer, Problem> {
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<edmx:Edmx xmlns:edmx=\"{ODATA}/ns/edmx\" Version=\"4.0\">\n"
    );
    for (name, version) in SCHEMAS {
        let include = format!("<edmx:Include Namespace=\"{name}.{version}\"/>");
        reference(&mut text, name, &format!("<edmx:Include Namespace=\"{name}\"/>{include}"));
    }
    for name in COLLECTIONS {
        reference(&mut text, name, &format!("<edmx:Include Namespace=\"{name}\"/>"));
    }
    reference(
        &mut text,
        "RedfishExtensions",
        "<edmx:Include Namespace=\"RedfishExtensions.v1_0_0\" Alias=\"Redfish\"/>",
    );
    let (_, root) = SCHEMAS.iter().find(|(name, _)| *name == "ServiceRoot").expect("it is in the table");
    let container = format!("<EntityContainer Name=\"Service\" Extends=\"ServiceRoot.{root}.ServiceContainer\"/>");
    let schema = format!("<Schema xmlns=\"{ODATA}/ns/edm\" Namespace=\"Service\">{container}</Schema>");
    let _ = writeln!(text, "  <edmx:DataServices>{schema}</edmx:DataServices>\n</edmx:Edmx>");
    Ok(Answer { status: 200, text: Some(("application/xml", text)), ..Answer::default() })
}

fn reference(text: &mut String, name: &str, includes: &str) {
    let file = format!("{REDFISH}/{name}_v1.xml");
    // Writing to a string cannot fail.
    let _ = writeln!(text, "  <edmx:Reference Uri=\"{file}\">{includes}</edmx:Reference>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_sorted_and_unique() {
        assert!(SCHEMAS.is_sorted_by(|one, next| one.0 < next.0));
        assert!(COLLECTIONS.is_sorted_by(|one, next| one < next));
    }
}
