// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A tree in memory, for tests: files and links that a test lists, whose writes can be made to fail.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::tree::{Tree, Write};

/// Files and links, by their paths.
#[derive(Debug, Default)]
pub struct Fixture {
    files: RefCell<BTreeMap<String, String>>,
    binary: BTreeMap<String, Vec<u8>>,
    links: BTreeMap<String, String>,
    /// The number of writes that are still carried out; `None`: all.
    writes_left: Cell<Option<usize>>,
    /// What has been written.
    written: RefCell<Vec<Write>>,
}

impl Fixture {
    /// Nothing.
    pub fn new() -> Fixture {
        Fixture::default()
    }

    /// Adds a file, which can be written.
    pub fn with(self, path: &str, text: &str) -> Fixture {
        self.files.borrow_mut().insert(path.to_owned(), text.to_owned());
        self
    }

    /// Adds a binary file.
    pub fn with_bytes(mut self, path: &str, bytes: &[u8]) -> Fixture {
        self.binary.insert(path.to_owned(), bytes.to_vec());
        self
    }

    /// Adds a symbolic link.
    pub fn with_link(mut self, path: &str, target: &str) -> Fixture {
        self.links.insert(path.to_owned(), target.to_owned());
        self
    }

    /// Removes a file.
    pub fn without(mut self, path: &str) -> Fixture {
        self.files.borrow_mut().remove(path);
        self.binary.remove(path);
        self
    }

    /// Carries out `writes` more writes; every later one fails with EIO.
    pub fn failing_after(self, writes: usize) -> Fixture {
        self.writes_left.set(Some(writes));
        self
    }

    /// Everything that has been written, in order.
    pub fn written(&self) -> Vec<Write> {
        self.written.borrow().clone()
    }
}

fn absent() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOENT)
}

impl Tree for Fixture {
    fn text(&self, path: &str) -> io::Result<String> {
        self.files.borrow().get(path).map(|text| text.trim().to_owned()).ok_or_else(absent)
    }

    fn bytes(&self, path: &str, max: usize) -> io::Result<Vec<u8>> {
        let text = || self.text(path).map(String::into_bytes);
        let mut bytes = self.binary.get(path).cloned().map_or_else(text, Ok)?;
        bytes.truncate(max);
        Ok(bytes)
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let prefix = format!("{}/", path.trim_end_matches('/'));
        let files = self.files.borrow();
        let below = files.keys().chain(self.links.keys()).filter_map(|path| path.strip_prefix(&prefix));
        let names: BTreeSet<String> = below.filter_map(|rest| rest.split('/').next()).map(str::to_owned).collect();
        if names.is_empty() { Err(absent()) } else { Ok(names.into_iter().collect()) }
    }

    fn link(&self, path: &str) -> io::Result<String> {
        let target = self.links.get(path).ok_or_else(absent)?;
        Ok(target.rsplit('/').next().unwrap_or(target).to_owned())
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        match self.writes_left.get() {
            Some(0) => return Err(io::Error::from_raw_os_error(libc::EIO)),
            left => self.writes_left.set(left.map(|left| left - 1)),
        }
        let mut files = self.files.borrow_mut();
        let text = files.get_mut(path).ok_or_else(absent)?;
        value.clone_into(text);
        self.written.borrow_mut().push(Write::new(path, value));
        Ok(())
    }
}
