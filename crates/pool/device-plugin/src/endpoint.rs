// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Serves the socket of one resource in kubelet's directory and registers it with kubelet, and does both again after
//! kubelet was restarted.
//!
//! When kubelet starts, it removes all sockets from its directory and creates its own. Its interface has no query for
//! the registered plug-ins, so this file polls the directory: it binds its socket again when that is gone, and
//! registers again when kubelet has a new socket.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint as Target, Server};

use crate::api::{
    DevicePluginOptions, DevicePluginServer, KUBELET_SOCKET, RegisterRequest, RegistrationClient, VERSION,
};
use crate::plugin::{Offer, Plugin};

/// The time between two checks of kubelet's directory.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The time limit for kubelet's answer to a registration.
const REGISTER_WAIT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent calls and streams on one connection. kubelet uses one stream and one call.
const STREAMS_MAX: u32 = 32;
/// Maximum length of a request, which contains the device ids of a few containers.
const REQUEST_BYTES_MAX: usize = 256 << 10;
/// The time limit for a request.
const REQUEST_WAIT: Duration = Duration::from_secs(30);

/// The identity of the file at a path, to detect that it was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    /// When the file was changed, in nanoseconds: inode numbers are reused.
    changed: i128,
}

impl Identity {
    /// Returns the identity of a socket; `None` if there is none.
    fn of(path: &Path) -> Option<Identity> {
        let found = fs::symlink_metadata(path).ok().filter(|found| found.file_type().is_socket())?;
        let changed = i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec());
        Some(Identity { device: found.dev(), inode: found.ino(), changed })
    }
}

/// One resource's socket.
pub struct Endpoint {
    /// The directory in which kubelet looks for plug-ins.
    directory: PathBuf,
    /// The socket's name there.
    name: String,
    resource: String,
    agent: PathBuf,
    offer: watch::Receiver<Offer>,
    log: fn(&str),
}

/// A server that runs. It ends when this is dropped.
struct Served {
    identity: Identity,
    _end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Endpoint {
    /// Creates the socket of a resource of the volume with this id.
    pub fn new(
        directory: &Path,
        id: &str,
        resource: &str,
        agent: &Path,
        offer: watch::Receiver<Offer>,
        log: fn(&str),
    ) -> Endpoint {
        let (directory, agent) = (directory.to_owned(), agent.to_owned());
        Endpoint { directory, name: format!("aquifer-{id}.sock"), resource: resource.to_owned(), agent, offer, log }
    }

    /// Keeps the socket served and registered for ever.
    pub async fn keep(self) {
        let (own, kubelet) = (self.directory.join(&self.name), self.directory.join(KUBELET_SOCKET));
        let (mut served, mut registered) = (None::<Served>, None::<Identity>);
        let mut last = String::new();
        loop {
            let is_served = served.as_ref().is_some_and(|it| Identity::of(&own) == Some(it.identity) && it.runs());
            let outcome =
                if is_served { Ok(()) } else { self.serve(&own).map(|it| (served, registered) = (Some(it), None)) };
            let there = Identity::of(&kubelet);
            let outcome = match outcome {
                Err(error) => Err(format!("{} cannot be served: {error}; mount kubelet's directory", own.display())),
                Ok(()) if there.is_none() => {
                    Err(format!("there is no kubelet at {}; waiting for it", kubelet.display()))
                }
                Ok(()) if there == registered => Ok(()),
                Ok(()) => self.register(&kubelet).await.map(|()| {
                    registered = there;
                    (self.log)(&format!("{} is registered with kubelet", self.resource));
                }),
            };
            let said = outcome.err().unwrap_or_default();
            if !said.is_empty() && said != last {
                (self.log)(&format!("{}: {said}", self.resource));
            }
            last = said;
            sleep(LOOK_EVERY).await;
        }
    }

    /// Binds the socket, replacing one that an earlier plug-in left, and serves it.
    fn serve(&self, own: &Path) -> io::Result<Served> {
        if Identity::of(own).is_some() {
            fs::remove_file(own)?;
        }
        let listener = UnixListener::bind(own)?;
        fs::set_permissions(own, fs::Permissions::from_mode(0o600))?;
        let identity = Identity::of(own).ok_or(io::ErrorKind::NotFound)?;
        let plugin = DevicePluginServer::new(Plugin::new(self.offer.clone(), self.agent.clone()));
        let plugin = plugin.max_decoding_message_size(REQUEST_BYTES_MAX);
        let (end, ended) = oneshot::channel::<()>();
        let server = Server::builder().max_concurrent_streams(STREAMS_MAX).timeout(REQUEST_WAIT);
        let task = tokio::spawn(async move {
            tokio::select! {
                _ = server.serve_with_incoming(plugin, UnixListenerStream::new(listener)) => {}
                _ = ended => {}
            }
        });
        Ok(Served { identity, _end: end, task })
    }

    async fn register(&self, kubelet: &Path) -> Result<(), String> {
        let refused = |why: String| format!("kubelet at {} refuses it: {why}", kubelet.display());
        let target =
            Target::from_shared(format!("unix://{}", kubelet.display())).map_err(|error| refused(error.to_string()))?;
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: self.name.clone(),
            resource_name: self.resource.clone(),
            options: Some(DevicePluginOptions::default()),
        };
        let asked = async {
            let channel = target.connect().await.map_err(|error| error.to_string())?;
            let mut client = RegistrationClient::new(channel);
            client.register(request).await.map_err(|status| status.message().to_owned())
        };
        match timeout(REGISTER_WAIT, asked).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(why)) => Err(refused(why)),
            Err(_) => Err(refused("it does not answer".to_owned())),
        }
    }
}

impl Served {
    fn runs(&self) -> bool {
        !self.task.is_finished()
    }
}

/// Removes the socket of a resource that no longer exists.
pub fn remove(directory: &Path, id: &str) {
    let _ = fs::remove_file(directory.join(format!("aquifer-{id}.sock")));
}
