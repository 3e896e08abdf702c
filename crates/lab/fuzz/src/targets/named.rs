// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The file of a named mapping.

use std::cell::RefCell;
use std::rc::Rc;

use aquifer_core::guard;
use aquifer_named::format::{Entry, NODE_ENTRIES, PAGE, SUPERBLOCKS, Superblock, decode_node, encode_node};
use aquifer_named::{Medium, MediumFailure, Store};

use super::one_line;

/// A file in memory.
#[derive(Clone)]
struct Memory(Rc<RefCell<Vec<u8>>>);

impl Medium for Memory {
    fn pages(&self) -> Result<u64, MediumFailure> {
        Ok((self.0.borrow().len() / PAGE) as u64)
    }

    fn read(&self, place: u64, into: &mut [u8]) -> Result<(), MediumFailure> {
        let start = place as usize * PAGE;
        into.copy_from_slice(&self.0.borrow()[start..start + into.len()]);
        Ok(())
    }

    fn write(&self, place: u64, from: &[u8]) -> Result<(), MediumFailure> {
        let start = place as usize * PAGE;
        self.0.borrow_mut()[start..start + from.len()].copy_from_slice(from);
        Ok(())
    }

    fn grow(&self, pages: u64) -> Result<(), MediumFailure> {
        let len = self.0.borrow().len().max(pages as usize * PAGE);
        self.0.borrow_mut().resize(len, 0);
        Ok(())
    }

    fn sync(&self) -> Result<(), MediumFailure> {
        Ok(())
    }
}

/// The input as a whole file, and as the nodes of a file with correct guards, because wrong guards would make the
/// decoder reject most inputs.
pub fn named(bytes: &[u8]) {
    open(bytes.to_vec());
    let page: &[u8; PAGE] = &padded(bytes);
    for place in 0..SUPERBLOCKS {
        match Superblock::decode(place, page) {
            Ok(superblock) => assert_eq!(superblock.encode(), *page, "{superblock:?}"),
            Err(refused) => one_line(&refused.to_string()),
        }
    }
    if let Some(entries) = decode_node(page, 1 << 20, NODE_ENTRIES) {
        assert_eq!(encode_node(&entries), *page);
    }
    let Some((size, nodes)) = bytes.split_first_chunk::<2>() else { return };
    open(forged(1 + usize::from(u16::from_le_bytes(*size)) % (3 * NODE_ENTRIES), nodes));
}

/// A file of a mapping of `pages` pages, with these bytes as its lowest nodes and some pages of the mapping after them.
fn forged(pages: usize, nodes: &[u8]) -> Vec<u8> {
    let lowest: Vec<[u8; PAGE]> =
        (0..pages.div_ceil(NODE_ENTRIES)).map(|index| padded(nodes.get(index * PAGE..).unwrap_or_default())).collect();
    let entry_of = |(place, page): (u64, &[u8; PAGE])| match guard::of_page(page) {
        guard::ZERO => Entry::ZERO,
        guard => Entry { place, guard },
    };
    let entries: Vec<Entry> = (SUPERBLOCKS + 1..).zip(&lowest).map(entry_of).collect();
    let above = encode_node(&entries);
    let root = if entries.len() == 1 { entries[0] } else { entry_of((SUPERBLOCKS, &above)) };
    let file_pages = SUPERBLOCKS + 1 + lowest.len() as u64 + 64;
    let superblock = Superblock { generation: 1, mapping_bytes: (pages * PAGE) as u64, pages: file_pages, root };
    let mut file = [[0; PAGE], superblock.encode(), above].concat();
    file.extend(lowest.iter().flatten());
    file.resize(file_pages as usize * PAGE, 0);
    file
}

/// A file that is accepted has each page once, and can be changed and opened again.
fn open(bytes: Vec<u8>) {
    let memory = Memory(Rc::new(RefCell::new(bytes)));
    let mut store = match Store::open(memory.clone()) {
        Ok(store) => store,
        Err(refused) => return one_line(&refused.to_string()),
    };
    let mut places: Vec<u64> = (0..store.pages()).map(|page| store.lookup().place(page)).collect();
    let last = store.pages() - 1;
    let mut draft = store.draft().expect("it was just opened");
    draft.put(last, &[7; PAGE]).expect("memory does not fail");
    draft.commit().expect("memory does not fail");
    let again = Store::open(memory).expect("what was written can be opened");
    let found: Vec<u64> = (0..again.pages()).map(|page| again.lookup().place(page)).collect();
    assert_eq!(found[..last], places[..last], "pages that were not changed");
    places.retain(|place| *place != 0);
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[0] < pair[1]), "one place for two pages");
}

fn padded(bytes: &[u8]) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    let len = bytes.len().min(PAGE);
    page[..len].copy_from_slice(&bytes[..len]);
    page
}
