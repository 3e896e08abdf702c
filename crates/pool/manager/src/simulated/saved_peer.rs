// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A simulated peer with its file. What is not in the file is neither reported nor confirmed, so that a peer that is
//! killed never forgets what it has reported, above all the greatest term that it has seen.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use aquifer_fabric::Term;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::peers::{Reported, SendFailure, Silent};

/// A peer and its file.
pub(super) struct SavedPeer<T> {
    pub(super) peer: T,
    file: PathBuf,
    /// `true` if the file is up to date.
    is_saved: bool,
    /// `true` if the last attempt to save failed, which is reported once and not in each round.
    is_failing: bool,
}

impl<T: Serialize + DeserializeOwned + Default> SavedPeer<T> {
    /// Reads a peer; one that has no file yet is empty.
    pub(super) fn open(file: PathBuf) -> io::Result<SavedPeer<T>> {
        let peer = match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => T::default(),
            Err(error) => return Err(error),
        };
        Ok(SavedPeer { peer, file, is_saved: true, is_failing: false })
    }

    /// Lets time pass. What changed is saved by the next report or command.
    pub(super) fn tick(&mut self, tick: impl FnOnce(&mut T) -> bool) {
        self.is_saved &= !tick(&mut self.peer);
    }

    /// Asks the peer for a report to the manager with a term. `see` says whether the term is new to it, or which
    /// greater one it has seen.
    pub(super) fn report<R>(
        &mut self,
        see: impl FnOnce(&mut T) -> Result<bool, Term>,
        report: impl FnOnce(&T) -> R,
    ) -> Reported<R> {
        let is_new = see(&mut self.peer).map_err(|seen| Silent::Deposed { seen })?;
        self.is_saved &= !is_new;
        self.save().map_err(|_| Silent::NoAnswer)?;
        Ok(Arc::new(report(&self.peer)))
    }

    /// Carries a command out.
    pub(super) fn carry_out(&mut self, obey: impl FnOnce(&mut T) -> Result<(), String>) -> Result<(), SendFailure> {
        let refused = |why| SendFailure::Refused { why };
        let outcome = obey(&mut self.peer);
        // A refused command may have passed the gate, whose state must be saved, too.
        self.is_saved = false;
        let saved = self.save();
        outcome.map_err(refused)?;
        saved.map_err(|error| refused(format!("its file cannot be written: {error}; free space for simulated peers")))
    }

    fn save(&mut self) -> io::Result<()> {
        if self.is_saved {
            return Ok(());
        }
        let new = self.file.with_extension("new");
        let text = serde_json::to_vec(&self.peer)?;
        let outcome = fs::write(&new, text).and_then(|()| fs::rename(&new, &self.file));
        if let (Err(error), false) = (&outcome, self.is_failing) {
            let file = self.file.display();
            eprintln!("aquifer-fabricd: simulated peers: {file}: {error}; free space for their directory");
        }
        (self.is_saved, self.is_failing) = (outcome.is_ok(), outcome.is_err());
        outcome
    }
}
