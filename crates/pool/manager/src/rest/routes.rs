// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The table of routes: what can be asked, who may ask it, and what a body may hold.

use super::answer::{Answer, Problem};
use super::body::{BODY_BYTES_MAX, DECLARATION_BYTES_MAX, LOGIN_BYTES_MAX};
use super::service::Call;
use super::{access, devices, events, fabrics, joining, memory, metadata, oem, registries, roots, switches, tasks};
use crate::accounts::Role;

/// A method of HTTP that routes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Delete,
    Get,
    Patch,
    Post,
}

impl Method {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Delete => "DELETE",
            Self::Get => "GET",
            Self::Patch => "PATCH",
            Self::Post => "POST",
        }
    }

    /// Returns the method with this name. HEAD is answered as GET; `http.rs` leaves the body out.
    pub(super) fn named(name: &str) -> Option<Method> {
        let name = if name == "HEAD" { "GET" } else { name };
        [Self::Delete, Self::Get, Self::Patch, Self::Post].into_iter().find(|method| method.name() == name)
    }
}

/// The type of a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Boolean,
    Integer,
    List,
    Object,
    Text,
}

impl Kind {
    /// Returns its name in OpenAPI.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::List => "array",
            Self::Object => "object",
            Self::Text => "string",
        }
    }
}

/// A property of a body.
pub(super) struct Property {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) is_required: bool,
}

const fn must(name: &'static str, kind: Kind) -> Property {
    Property { name, kind, is_required: true }
}

const fn may(name: &'static str, kind: Kind) -> Property {
    Property { name, kind, is_required: false }
}

/// A method and a path, and the function that answers them.
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) summary: &'static str,
    /// The minimum role; `None` is open to everybody.
    pub(super) needs: Option<Role>,
    pub(super) body: &'static [Property],
    /// The maximum length of a body, in bytes.
    pub(super) body_bytes_max: usize,
    /// Whether the header `Aquifer-Dry-Run` is allowed.
    pub(super) has_dry_run: bool,
    /// Whether the header `Aquifer-Unbind` is allowed.
    pub(super) has_unbind: bool,
    pub(super) answer: fn(&Call<'_>) -> Result<Answer, Problem>,
}

const fn open(path: &'static str, summary: &'static str, answer: fn(&Call<'_>) -> Result<Answer, Problem>) -> Route {
    let (method, body_bytes_max, has_dry_run, has_unbind) = (Method::Get, BODY_BYTES_MAX, false, false);
    Route { method, path, summary, needs: None, body: &[], body_bytes_max, has_dry_run, has_unbind, answer }
}

const fn get(path: &'static str, summary: &'static str, answer: fn(&Call<'_>) -> Result<Answer, Problem>) -> Route {
    open(path, summary, answer).by(Role::ReadOnly)
}

const fn change(
    method: Method,
    path: &'static str,
    summary: &'static str,
    body: &'static [Property],
    answer: fn(&Call<'_>) -> Result<Answer, Problem>,
) -> Route {
    Route { method, body, ..open(path, summary, answer) }.by(Role::Operator)
}

impl Route {
    /// Returns the media type of its answer.
    pub(super) fn media(&self) -> &'static str {
        match self.path.rsplit('/').next() {
            Some("$metadata") => "application/xml",
            Some("SSE") => "text/event-stream",
            _ => "application/json",
        }
    }

    const fn by(self, role: Role) -> Route {
        Route { needs: Some(role), ..self }
    }

    /// Lets everybody use the route, with bodies of up to this many bytes.
    const fn by_strangers(self, body_bytes_max: usize) -> Route {
        Route { needs: None, body_bytes_max, ..self }
    }

    /// Lets the body have a declaration.
    const fn with_declaration(self) -> Route {
        Route { body_bytes_max: DECLARATION_BYTES_MAX, ..self }
    }

    /// Lets the route also answer what a change would do.
    const fn with_dry_run(self) -> Route {
        Route { has_dry_run: true, ..self }
    }

    /// Lets the route unbind a volume first.
    const fn with_unbind(self) -> Route {
        Route { has_unbind: true, ..self }
    }
}

use Kind::{Boolean, Integer, List, Object, Text};
use Method::{Delete, Patch, Post};
use Role::{Administrator, ReadOnly};

const CHUNK: &str = "/redfish/v1/Chassis/Pools/MemoryDomains/{PoolId}/MemoryChunks/{VolumeId}";
const PORT: &str = "/redfish/v1/Fabrics/Aquifer/Switches/{SwitchId}/Ports/{PortId}";
const VPPB: &str = "/redfish/v1/Fabrics/Aquifer/Switches/{SwitchId}/VCSs/{VcsId}/VPPBs/{VppbId}";
const DEVICE: &str = "/redfish/v1/Chassis/{ChassisId}/PCIeDevices/{DeviceId}";
const LD: &str = "/redfish/v1/Chassis/{ChassisId}/PCIeDevices/{DeviceId}/CXLLogicalDevices/{LdId}";

/// What a subscription is made of.
const SUBSCRIPTION: &[Property] = &[
    must("Destination", Text),
    must("Protocol", Text),
    may("Context", Text),
    may("SubscriptionType", Text),
    may("EventFormatType", Text),
    may("MessageIds", List),
    may("DeliveryRetryPolicy", Text),
];

/// Every route.
pub(super) const ROUTES: &[Route] = &[
    open("/redfish", "The versions of the interface", roots::versions),
    open("/redfish/v1", "The service root", roots::root),
    open("/redfish/v1/odata", "The OData service document", roots::odata),
    open("/redfish/v1/$metadata", "The OData metadata document: the schemas of all resources", metadata::document),
    open("/redfish/v1/openapi.json", "This document", roots::document),
    get("/redfish/v1/SessionService", "The session service", roots::session_service),
    get("/redfish/v1/SessionService/Sessions", "Sessions", access::sessions),
    change(
        Post,
        "/redfish/v1/SessionService/Sessions",
        "Log in; the answer's header X-Auth-Token is the token",
        &[must("UserName", Text), must("Password", Text)],
        access::login,
    )
    .by_strangers(LOGIN_BYTES_MAX),
    get("/redfish/v1/SessionService/Sessions/{SessionId}", "A session", access::session),
    change(Delete, "/redfish/v1/SessionService/Sessions/{SessionId}", "Log out", &[], access::logout).by(ReadOnly),
    get("/redfish/v1/AccountService", "The account service", roots::account_service),
    get("/redfish/v1/AccountService/Accounts", "Accounts", access::accounts).by(Administrator),
    change(
        Post,
        "/redfish/v1/AccountService/Accounts",
        "Create an account",
        &[must("UserName", Text), must("Password", Text), must("RoleId", Text)],
        access::add_account,
    )
    .with_dry_run()
    .by(Administrator),
    get("/redfish/v1/AccountService/Accounts/{AccountId}", "An account", access::account),
    change(
        Patch,
        "/redfish/v1/AccountService/Accounts/{AccountId}",
        "Change an account; its sessions end",
        &[may("Password", Text), may("RoleId", Text), may("Enabled", Boolean)],
        access::change_account,
    )
    .with_dry_run()
    .by(ReadOnly),
    change(Delete, "/redfish/v1/AccountService/Accounts/{AccountId}", "Delete an account", &[], access::delete_account)
        .with_dry_run()
        .by(Administrator),
    get("/redfish/v1/AccountService/Roles", "Roles", access::roles),
    get("/redfish/v1/AccountService/Roles/{RoleId}", "A role", access::role),
    get("/redfish/v1/Fabrics", "Fabrics", fabrics::fabrics),
    get("/redfish/v1/Fabrics/Aquifer", "The fabric", fabrics::fabric),
    get("/redfish/v1/Fabrics/Aquifer/Switches", "Switches", switches::switches),
    get("/redfish/v1/Fabrics/Aquifer/Switches/{SwitchId}", "A switch", switches::switch),
    get("/redfish/v1/Fabrics/Aquifer/Switches/{SwitchId}/Ports", "Ports of a switch", switches::ports),
    get(PORT, "A port", switches::port),
    change(Patch, PORT, "Take the link of a port down or up", &[must("LinkState", Text)], switches::set_port)
        .with_dry_run(),
    change(
        Post,
        "/redfish/v1/Fabrics/Aquifer/Switches/{SwitchId}/Ports/{PortId}/Actions/Port.Reset",
        "Reset the bridge of a port",
        &[may("ResetType", Text)],
        switches::reset_port,
    )
    .with_dry_run(),
    get("/redfish/v1/Fabrics/Aquifer/Switches/{SwitchId}/VCSs", "Virtual CXL switches", switches::vcss),
    get("/redfish/v1/Fabrics/Aquifer/Switches/{SwitchId}/VCSs/{VcsId}", "A virtual CXL switch", switches::vcs),
    get("/redfish/v1/Fabrics/Aquifer/Switches/{SwitchId}/VCSs/{VcsId}/VPPBs", "Its vPPBs", switches::vppbs),
    get(VPPB, "A vPPB", switches::vppb),
    change(
        Patch,
        VPPB,
        "Bind a vPPB to what is at Links.Port, or unbind it with null; volumes bind theirs themselves",
        &[must("Links", Object)],
        switches::set_vppb,
    )
    .with_dry_run(),
    get("/redfish/v1/Fabrics/Aquifer/Zones", "Zones: the hosts and the quota of a tenant", fabrics::zones),
    get("/redfish/v1/Fabrics/Aquifer/Zones/{ZoneId}", "A zone", fabrics::zone),
    get("/redfish/v1/Fabrics/Aquifer/Endpoints", "Hosts, donors and devices", fabrics::endpoints),
    get("/redfish/v1/Fabrics/Aquifer/Endpoints/{EndpointId}", "A host, a donor or a device", fabrics::endpoint),
    change(
        Post,
        "/redfish/v1/Fabrics/Aquifer/Endpoints/{EndpointId}/Actions/Oem/AquiferEndpoint.Drain",
        "Move everything off a donor, or use it again",
        &[may("Draining", Boolean)],
        fabrics::drain,
    )
    .with_dry_run(),
    change(
        Post,
        "/redfish/v1/Fabrics/Aquifer/Endpoints/{EndpointId}/Actions/Oem/AquiferEndpoint.DeclareGone",
        "State that a host is powered off, or that a donor is gone for good",
        &[],
        fabrics::declare_gone,
    )
    .with_dry_run()
    .by(Administrator),
    get("/redfish/v1/Fabrics/Aquifer/Connections", "Bindings of volumes to hosts", memory::connections),
    change(
        Post,
        "/redfish/v1/Fabrics/Aquifer/Connections",
        "Bind a volume to a host",
        &[may("ConnectionType", Text), may("Name", Text), must("MemoryChunkInfo", List), must("Links", Object)],
        memory::bind,
    )
    .with_dry_run(),
    get("/redfish/v1/Fabrics/Aquifer/Connections/{VolumeId}", "A binding", memory::connection),
    change(Delete, "/redfish/v1/Fabrics/Aquifer/Connections/{VolumeId}", "Unbind a volume", &[], memory::unbind)
        .with_dry_run(),
    get("/redfish/v1/Chassis", "Enclosures, and the chassis that stands for the pools", roots::chassis_all),
    get("/redfish/v1/Chassis/{ChassisId}", "An enclosure", roots::chassis),
    get("/redfish/v1/Chassis/{ChassisId}/PCIeDevices", "Memory devices of an enclosure", devices::devices),
    get(DEVICE, "A memory device", devices::device),
    change(Patch, DEVICE, "Set how an MLD reports congestion", &[must("Oem", Object)], devices::set_device)
        .with_dry_run(),
    get("/redfish/v1/Chassis/{ChassisId}/PCIeDevices/{DeviceId}/CXLLogicalDevices", "Its LDs", devices::lds),
    get(LD, "A logical device", devices::ld),
    change(
        Patch,
        LD,
        "Resize an LD, which loses its bytes, or set its bandwidth",
        &[may("MemorySizeMiB", Integer), may("QoS", Object)],
        devices::set_ld,
    )
    .with_dry_run(),
    get("/redfish/v1/Chassis/Pools/MemoryDomains", "Pools", memory::pools),
    get("/redfish/v1/Chassis/Pools/MemoryDomains/{PoolId}", "A pool", memory::pool),
    get("/redfish/v1/Chassis/Pools/MemoryDomains/{PoolId}/MemoryChunks", "Volumes of a pool", memory::volumes),
    change(
        Post,
        "/redfish/v1/Chassis/Pools/MemoryDomains/{PoolId}/MemoryChunks",
        "Create a volume; Oem.Aquifer has the rest of its specification",
        &[must("Name", Text), must("MemoryChunkSizeMiB", Integer), may("AddressRangeType", Text), must("Oem", Object)],
        memory::create,
    )
    .with_dry_run(),
    get(CHUNK, "A volume", memory::volume),
    change(Patch, CHUNK, "Grow or shrink a volume", &[must("MemoryChunkSizeMiB", Integer)], memory::resize)
        .with_dry_run(),
    change(Delete, CHUNK, "Release a volume", &[], memory::release).with_dry_run().with_unbind(),
    change(
        Post,
        "/redfish/v1/Chassis/Pools/MemoryDomains/{PoolId}/MemoryChunks/{VolumeId}/Actions/Oem/AquiferMemoryChunk.Move",
        "Move a volume to other donors while it is in use",
        &[may("Donor", Text)],
        memory::move_volume,
    )
    .with_dry_run(),
    get("/redfish/v1/TaskService", "The task service", tasks::service),
    get("/redfish/v1/TaskService/Tasks", "Tasks", tasks::tasks),
    get("/redfish/v1/TaskService/Tasks/{TaskId}", "A task", tasks::task),
    get(
        "/redfish/v1/TaskService/TaskMonitors/{TaskId}",
        "The monitor of a task: 202 until it has ended",
        tasks::monitor,
    ),
    get("/redfish/v1/Registries", "The registries of messages", registries::files),
    get("/redfish/v1/Registries/{RegistryId}", "Where a registry of messages is", registries::file),
    get(
        "/redfish/v1/Registries/AquiferFabric/AquiferFabric.1.0.json",
        "The messages of this manager",
        registries::ours,
    ),
    get("/redfish/v1/EventService", "The event service", events::service),
    get("/redfish/v1/EventService/SSE", "Events, as server-sent events", events::stream),
    change(
        Post,
        "/redfish/v1/EventService/Actions/EventService.SubmitTestEvent",
        "Cause an event, to test a subscription",
        &[may("Message", Text), may("MessageId", Text), may("EventType", Text)],
        events::submit_test,
    ),
    get("/redfish/v1/EventService/Subscriptions", "Subscriptions of listeners", events::subscriptions),
    change(
        Post,
        "/redfish/v1/EventService/Subscriptions",
        "Send events to a listener",
        SUBSCRIPTION,
        events::subscribe,
    )
    .by(Administrator),
    get("/redfish/v1/EventService/Subscriptions/{SubscriptionId}", "A subscription", events::subscription),
    change(
        Patch,
        "/redfish/v1/EventService/Subscriptions/{SubscriptionId}",
        "Change the context of a subscription",
        &[must("Context", Text)],
        events::change_subscription,
    )
    .by(Administrator),
    change(
        Delete,
        "/redfish/v1/EventService/Subscriptions/{SubscriptionId}",
        "Send no events to a listener any more",
        &[],
        events::unsubscribe,
    )
    .by(Administrator),
    change(
        Post,
        "/redfish/v1/EventService/Subscriptions/{SubscriptionId}/Actions/EventDestination.ResumeSubscription",
        "Send events again to a listener that was suspended",
        &[],
        events::resume,
    )
    .by(Administrator),
    get(
        "/redfish/v1/Oem/Aquifer",
        "The state of the pool in short, and the faults of its hosts' programs",
        oem::status,
    ),
    get("/redfish/v1/Oem/Aquifer/Declaration", "The declaration that the desired state fulfils", oem::export),
    change(
        Post,
        "/redfish/v1/Oem/Aquifer/Plans",
        "Say what applying a declaration would change",
        &[must("Declaration", Object)],
        oem::plan,
    )
    .with_declaration()
    .by(ReadOnly),
    change(
        Post,
        "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Apply",
        "Make the desired state fulfil a declaration, as a whole or not at all",
        &[must("Declaration", Object)],
        oem::apply,
    )
    .with_declaration()
    .with_dry_run()
    .by(Administrator),
    change(
        Post,
        "/redfish/v1/Oem/Aquifer/Actions/Aquifer.ChangeVolumes",
        "Change what is declared of several volumes, all of them or none",
        &[must("Volumes", Object), may("Match", Object)],
        oem::change_volumes,
    )
    .with_dry_run()
    .with_unbind(),
    get(
        "/redfish/v1/Oem/Aquifer/ReleasedVolumes",
        "Released volumes, until hosts and donors have given back what they have of them",
        memory::released_volumes,
    ),
    get("/redfish/v1/Oem/Aquifer/ReleasedVolumes/{VolumeId}", "A released volume", memory::released_volume),
    change(Post, "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Adopt", "Adopt what is in use", &[], oem::adopt)
        .with_dry_run()
        .by(Administrator),
    get("/redfish/v1/Oem/Aquifer/JoinTokens", "Join tokens, without their secrets", joining::tokens).by(Administrator),
    change(
        Post,
        "/redfish/v1/Oem/Aquifer/JoinTokens",
        "Make a join token; the answer shows it once, in Token",
        &[
            must("Kind", Text),
            must("EndName", Text),
            may("Addresses", List),
            may("ExpiresSeconds", Integer),
            may("Uses", Integer),
        ],
        joining::add_token,
    )
    .with_dry_run()
    .by(Administrator),
    get("/redfish/v1/Oem/Aquifer/JoinTokens/{TokenId}", "A join token", joining::token).by(Administrator),
    change(
        Delete,
        "/redfish/v1/Oem/Aquifer/JoinTokens/{TokenId}",
        "Delete a join token, so that nobody can use it",
        &[],
        joining::delete_token,
    )
    .with_dry_run()
    .by(Administrator),
    change(
        Post,
        "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Join",
        "Join: a token and a certificate signing request for a certificate",
        &[must("Token", Text), must("CertificateSigningRequest", Text)],
        joining::join,
    )
    .by_strangers(BODY_BYTES_MAX),
    get(
        "/redfish/v1/Oem/Aquifer/Certificates",
        "Certificates that the pool's authority has signed",
        joining::certificates,
    )
    .by(Administrator),
    get("/redfish/v1/Oem/Aquifer/Certificates/{SerialNumber}", "A certificate", joining::certificate).by(Administrator),
    change(
        Post,
        "/redfish/v1/Oem/Aquifer/Certificates/{SerialNumber}/Actions/AquiferCertificate.Revoke",
        "Revoke a certificate; its owner is cut off",
        &[],
        joining::revoke,
    )
    .with_dry_run()
    .by(Administrator),
    get("/redfish/v1/Oem/Aquifer/Audit", "The audit log, after record $skip", oem::audit).by(Administrator),
    get("/redfish/v1/Oem/Aquifer/Audit/Verification", "Whether the audit log is whole", oem::verification)
        .by(Administrator),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_unique_and_changes_need_a_role() {
        for (index, route) in ROUTES.iter().enumerate() {
            let is_same = |other: &Route| other.path == route.path && other.method == route.method;
            assert!(!ROUTES[..index].iter().any(is_same), "{}", route.path);
            let is_login = route.path.ends_with("/Sessions") || route.path.ends_with("/Aquifer.Join");
            assert!(route.method == Method::Get || is_login || route.needs.is_some(), "{}", route.path);
        }
    }
}
