// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A node for tests: the real plug-in as a process, a simulated kubelet and a simulated agent, with all sockets in a
//! directory of the test.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aquifer_agent_wire::{Answer, Decoder, ListedVolume, Listing, Request, TenantFiles, encode};
use aquifer_device_plugin::api::{
    AllocateRequest, AllocateResponse, DevicePluginClient, Empty, KUBELET_SOCKET, ListAndWatchResponse,
    RegisterRequest, Registration, RegistrationServer, VERSION,
};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Response, Status, Streaming};

/// Longer than any step takes on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// The ids of two volumes.
pub const DB: &str = "00000000000000a1";
pub const LOGS: &str = "00000000000000b2";

/// Waits until something holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn volume(name: &str, id: &str, is_bound: bool) -> ListedVolume {
    ListedVolume { name: name.into(), id: id.into(), slabs: if is_bound { 8 } else { 0 }, is_bound }
}

/// What has happened at kubelet's socket.
#[derive(Default)]
struct Seen {
    /// Endpoints by resource, since kubelet's start.
    registered: BTreeMap<String, String>,
    refusals: u32,
}

/// kubelet's side of the registration.
struct Kubelet {
    seen: Arc<Mutex<Seen>>,
    refuses: bool,
}

#[tonic::async_trait]
impl Registration for Kubelet {
    async fn register(&self, request: tonic::Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if self.refuses || request.version != VERSION {
            seen.refusals += 1;
            return Err(Status::invalid_argument("this kubelet takes no plug-ins"));
        }
        seen.registered.insert(request.resource_name, request.endpoint);
        Ok(Response::new(Empty {}))
    }
}

/// An agent that lists the test's volumes. Dropping it ends it and its connections.
struct Agent {
    listing: Arc<Mutex<Vec<ListedVolume>>>,
    is_ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    socket: PathBuf,
}

impl Agent {
    fn start(socket: &Path, volumes: &[ListedVolume]) -> Agent {
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).expect("a directory of ours");
        listener.set_nonblocking(true).expect("a socket");
        let listing = Arc::new(Mutex::new(volumes.to_vec()));
        let is_ended = Arc::new(AtomicBool::new(false));
        let (lists, ends) = (Arc::clone(&listing), Arc::clone(&is_ended));
        let thread = std::thread::spawn(move || {
            let mut clients: Vec<(UnixStream, Option<Vec<ListedVolume>>)> = Vec::new();
            while !ends.load(Ordering::SeqCst) {
                if let Ok((stream, _)) = listener.accept() {
                    clients.extend(asked(stream).map(|stream| (stream, None)));
                }
                let now = lists.lock().unwrap_or_else(PoisonError::into_inner).clone();
                for (stream, sent) in clients.iter_mut().filter(|(_, sent)| sent.as_ref() != Some(&now)) {
                    let _ = stream.write_all(&encode(&Answer::Listing(listing_of(&now))).expect("it is short"));
                    *sent = Some(now.clone());
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Agent { listing, is_ended, thread: Some(thread), socket: socket.to_owned() }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::SeqCst);
        self.thread.take().into_iter().for_each(|thread| thread.join().expect("the agent does not panic"));
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Returns a connection that has asked for the volumes.
fn asked(mut stream: UnixStream) -> Option<UnixStream> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    let (mut decoder, mut bytes) = (Decoder::default(), [0; 4096]);
    loop {
        match decoder.take::<Request>().ok()? {
            Some(request) => return (request == Request::List { version: 1 }).then_some(stream),
            None => match stream.read(&mut bytes).ok()? {
                0 => return None,
                count => decoder.push(&bytes[..count]),
            },
        }
    }
}

fn listing_of(volumes: &[ListedVolume]) -> Listing {
    let file = |name: &str| PathBuf::from(format!("/etc/tenant/{name}"));
    let files = TenantFiles { cert: file("host.key"), key: file("host.pem"), ca: file("ca.pem"), crl: None };
    Listing { files: Some(files), volumes: volumes.to_vec() }
}

/// A stream of device lists.
pub struct Watched {
    runtime: Arc<Runtime>,
    stream: Streaming<ListAndWatchResponse>,
}

impl Watched {
    /// Returns the next list: ids and healths.
    pub fn next(&mut self) -> Vec<(String, String)> {
        // A timeout can be made only inside the runtime.
        let list = self.runtime.block_on(async {
            let next = tokio::time::timeout(TIMEOUT, self.stream.message()).await;
            next.expect("in time").expect("it goes on").expect("a list")
        });
        list.devices.into_iter().map(|device| (device.id, device.health)).collect()
    }
}

pub struct Node {
    directory: PathBuf,
    runtime: Arc<Runtime>,
    seen: Arc<Mutex<Seen>>,
    kubelet: Option<(oneshot::Sender<()>, tokio::task::JoinHandle<()>)>,
    agent: Option<Agent>,
    plugin: Child,
}

impl Node {
    pub fn start(volumes: &[ListedVolume]) -> Node {
        let mut node = Node::without_kubelet(volumes);
        node.start_kubelet(false);
        node
    }

    pub fn without_kubelet(volumes: &[ListedVolume]) -> Node {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Short, because the length of a socket path is limited.
        let name = format!("aq-kube-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        for part in ["agent", "kubelet"] {
            std::fs::create_dir_all(directory.join(part)).expect("a temporary directory");
        }
        let socket = directory.join("agent/s");
        let agent = Some(Agent::start(&socket, volumes));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let mut plugin = Command::new(env!("CARGO_BIN_EXE_aquifer-device-plugin"));
        plugin.arg("--agent").arg(&socket).arg("--kubelet").arg(directory.join("kubelet")).args(["--pods-max", "2"]);
        let plugin = plugin.spawn().expect("the plug-in starts");
        let (runtime, seen) = (Arc::new(runtime.expect("a runtime")), Arc::default());
        Node { directory, runtime, seen, kubelet: None, agent, plugin }
    }

    pub fn agent_socket(&self) -> PathBuf {
        self.directory.join("agent/s")
    }

    pub fn plugin_socket(&self, id: &str) -> PathBuf {
        self.directory.join(format!("kubelet/aquifer-{id}.sock"))
    }

    pub fn start_kubelet(&mut self, refuses: bool) {
        let path = self.directory.join("kubelet").join(KUBELET_SOCKET);
        let _entered = self.runtime.enter();
        let listener = tokio::net::UnixListener::bind(path).expect("a directory of ours");
        let service = RegistrationServer::new(Kubelet { seen: Arc::clone(&self.seen), refuses });
        let (end, ended) = oneshot::channel::<()>();
        let task = self.runtime.spawn(async move {
            let server = Server::builder();
            tokio::select! {
                _ = server.serve_with_incoming(service, UnixListenerStream::new(listener)) => {}
                _ = ended => {}
            }
        });
        self.kubelet = Some((end, task));
    }

    pub fn stop_kubelet(&mut self) {
        let (end, task) = self.kubelet.take().expect("it runs");
        drop(end);
        self.runtime.block_on(task).expect("kubelet does not panic");
        let _ = std::fs::remove_file(self.directory.join("kubelet").join(KUBELET_SOCKET));
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).registered.clear();
    }

    /// Starts a kubelet: as the real one does, it removes all sockets, then creates its own.
    pub fn restart_kubelet(&mut self) {
        self.stop_kubelet();
        self.remove_plugin_sockets();
        self.start_kubelet(false);
    }

    pub fn remove_plugin_sockets(&self) {
        for entry in std::fs::read_dir(self.directory.join("kubelet")).expect("it is there").flatten() {
            if entry.file_name() != KUBELET_SOCKET {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    pub fn registrations(&self) -> BTreeMap<String, String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).registered.clone()
    }

    pub fn refusals(&self) -> u32 {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).refusals
    }

    pub fn wait_for_registrations(&self, count: usize) -> BTreeMap<String, String> {
        wait_until("the resources are registered", || self.registrations().len() >= count);
        self.registrations()
    }

    pub fn stop_agent(&mut self) {
        self.agent = None;
    }

    pub fn start_agent(&mut self, volumes: &[ListedVolume]) {
        self.agent = Some(Agent::start(&self.agent_socket(), volumes));
    }

    /// Makes the agent list these volumes from now on.
    pub fn list(&self, volumes: &[ListedVolume]) {
        let agent = self.agent.as_ref().expect("it runs");
        *agent.listing.lock().unwrap_or_else(PoisonError::into_inner) = volumes.to_vec();
    }

    fn client(&self, id: &str) -> Result<DevicePluginClient<Channel>, String> {
        let target = format!("unix://{}", self.plugin_socket(id).display());
        let target = Endpoint::from_shared(target).map_err(|error| error.to_string())?;
        let channel = self.runtime.block_on(target.connect()).map_err(|error| error.to_string())?;
        Ok(DevicePluginClient::new(channel).max_encoding_message_size(8 << 20))
    }

    pub fn watch(&self, id: &str) -> Watched {
        let mut client = self.client(id).expect("it is served");
        let stream = self.runtime.block_on(client.list_and_watch(Empty {})).expect("it streams").into_inner();
        Watched { runtime: Arc::clone(&self.runtime), stream }
    }

    /// Returns the devices now; `None` if the resource is not served.
    pub fn try_devices(&self, id: &str) -> Option<Vec<(String, String)>> {
        let mut client = self.client(id).ok()?;
        let stream = self.runtime.block_on(client.list_and_watch(Empty {})).ok()?.into_inner();
        Some(Watched { runtime: Arc::clone(&self.runtime), stream }.next())
    }

    pub fn devices(&self, id: &str) -> Vec<(String, String)> {
        self.try_devices(id).expect("it is served")
    }

    pub fn allocate(&self, id: &str, request: AllocateRequest) -> Result<AllocateResponse, String> {
        let mut client = self.client(id)?;
        let answer = self.runtime.block_on(client.allocate(request));
        answer.map(Response::into_inner).map_err(|status| status.message().to_owned())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.plugin.kill();
        let _ = self.plugin.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
