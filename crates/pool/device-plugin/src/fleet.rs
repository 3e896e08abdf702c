// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One endpoint for each volume that the agent lists: started when it appears, ended when it is gone.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::agent::{Known, follow};
use crate::endpoint::{Endpoint, remove};
use crate::plugin::Offer;
use crate::resource::{Naming, Resource, resources};

/// The settings of the plug-in.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The agent's socket, on the host and here alike.
    pub agent: PathBuf,
    /// kubelet's directory for plug-ins.
    pub kubelet: PathBuf,
    /// The resources' domain, and how many containers share each.
    pub naming: Naming,
}

/// An endpoint that runs. It ends when it is dropped.
struct Running {
    name: String,
    offer: watch::Sender<Offer>,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves the volumes of the host to kubelet until it is dropped. `log` gets lines for the operator.
pub async fn run(settings: Settings, log: fn(&str)) {
    let (known, mut news) = watch::channel(Known::default());
    let agent = settings.agent.clone();
    let follower = async { follow(&agent, known, log).await };
    let fleet = async {
        let mut fleet = Fleet { settings: &settings, log, running: BTreeMap::new(), refused: Vec::new() };
        loop {
            let known = news.borrow_and_update().clone();
            fleet.follow(&known);
            if news.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::join!(follower, fleet);
}

struct Fleet<'a> {
    settings: &'a Settings,
    log: fn(&str),
    /// By the volume's id.
    running: BTreeMap<String, Running>,
    refused: Vec<String>,
}

impl Fleet<'_> {
    /// Starts and ends endpoints so that they match the listing.
    fn follow(&mut self, known: &Known) {
        // Before the first listing, nothing is known. Later, the last listing stays valid while the agent does not
        // answer.
        let Some(listing) = &known.listing else { return };
        let found = resources(&listing.volumes, listing.files.as_ref(), &self.settings.naming);
        if found.refused != self.refused {
            for volume in &found.refused {
                (self.log)(&format!(
                    "the volume {volume} cannot be a resource of Kubernetes; give it another name in the \
                                     agent's file, ending with a letter or a digit"
                ));
            }
            self.refused = found.refused;
        }
        let gone = |id: &str, running: &Running| found.by_id.get(id).is_none_or(|it| it.name != running.name);
        let gone: Vec<String> =
            self.running.iter().filter(|(id, running)| gone(id, running)).map(|(id, _)| id.clone()).collect();
        gone.iter().for_each(|id| self.end(id));
        for (id, resource) in found.by_id {
            let offer = Offer { resource: Some(resource.clone()), is_answered: known.is_answered };
            let running = self.running.entry(id);
            match running {
                std::collections::btree_map::Entry::Occupied(running) => {
                    running.get().offer.send_if_modified(|before| {
                        let is_news = *before != offer;
                        *before = offer;
                        is_news
                    });
                }
                std::collections::btree_map::Entry::Vacant(place) => {
                    let started = start(self.settings, place.key(), &resource, offer, self.log);
                    place.insert(started);
                }
            }
        }
    }

    /// Ends an endpoint: its streams end, and kubelet takes the resource off the node.
    fn end(&mut self, id: &str) {
        if let Some(running) = self.running.remove(id) {
            let is_answered = running.offer.borrow().is_answered;
            running.offer.send_replace(Offer { resource: None, is_answered });
            (self.log)(&format!("{} is gone: the agent does not list its volume any more", running.name));
            remove(&self.settings.kubelet, id);
        }
    }
}

fn start(settings: &Settings, id: &str, resource: &Resource, offer: Offer, log: fn(&str)) -> Running {
    let (sender, offers) = watch::channel(offer);
    let endpoint = Endpoint::new(&settings.kubelet, id, &resource.name, &settings.agent, offers, log);
    Running { name: resource.name.clone(), offer: sender, task: tokio::spawn(endpoint.keep()) }
}
