// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The calls of kubelet: watch the devices of one resource, and allocate devices to containers.

use std::path::PathBuf;

use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

use crate::allocation::{Surroundings, allocate};
use crate::api::{
    AllocateRequest, AllocateResponse, DevicePlugin, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
};
use crate::resource::{Resource, USERFAULTFD};

/// A resource as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The resource; `None` if the agent no longer lists the volume.
    pub resource: Option<Resource>,
    /// Whether the agent answers.
    pub is_answered: bool,
}

impl Offer {
    /// Returns all devices, in the form that kubelet receives.
    fn list(&self) -> ListAndWatchResponse {
        let devices = self.resource.as_ref().map(|resource| resource.devices(self.is_answered));
        ListAndWatchResponse { devices: devices.unwrap_or_default() }
    }
}

/// The service of one resource.
pub struct Plugin {
    offer: watch::Receiver<Offer>,
    socket: PathBuf,
}

impl Plugin {
    /// Creates a service that offers this resource, with the agent's socket.
    pub fn new(offer: watch::Receiver<Offer>, socket: PathBuf) -> Plugin {
        Plugin { offer, socket }
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    type ListAndWatchStream =
        std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    /// Sends the devices, and sends them again whenever they change. The stream ends with the offer.
    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let offers = WatchStream::new(self.offer.clone());
        Ok(Response::new(Box::pin(offers.map(|offer| Ok(offer.list())))))
    }

    async fn preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented("all devices of a volume are alike; do not ask for this"))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let Offer { resource, is_answered } = self.offer.borrow().clone();
        let resource = resource.ok_or_else(|| Status::not_found("the host's agent does not list this volume"))?;
        let has_userfaultfd = std::fs::metadata(USERFAULTFD).is_ok();
        let surroundings = Surroundings { socket: self.socket.clone(), has_userfaultfd };
        let answer = allocate(request.get_ref(), &resource, is_answered, &surroundings);
        answer.map(Response::new).map_err(|refusal| Status::failed_precondition(refusal.to_string()))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
