//! Memtables: the commits that no table holds yet. A memtable is a set of hash tables, its shards; keys are
//! sorted only for a scan or a flush.
//!
//! # Invariants
//! 1. A slot never changes or moves after its insertion, except that a newer version marks it superseded.
//! 2. Within a shard, slots are in the order of their seqs: a commit takes its seq while it holds the locks
//!    of all its shards (assert in `insert`).
//! 3. A key's versions form a chain from the newest to the oldest; the index names the newest.
//! 4. `references` counts the bytes that the values name, by segment. A commit may count its slices in any of
//!    its shards, so only the sum over all shards is meaningful.

mod key_order;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as IndexEntry;
use warpfire_format::key_hash;
use warpfire_format::table::{KeyVersion, VersionKind};
use warpfire_units::{SegmentId, Seq};

pub(crate) use key_order::{KeyOrder, OrderedKey};

/// Shards of a memtable, each behind a lock of its own. Five bits of a key's hash choose.
pub(crate) const SHARDS: usize = 32;

/// Longest key in bytes.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;

/// Memory of a version beside its key and value: the slot, and its place in the index at a usual load.
pub(crate) const SLOT_BYTES: usize = size_of::<VersionSlot>() + 16;

const NONE: u32 = u32::MAX;

/// The shard of a key with this hash.
pub(crate) fn shard_of(hash: u64) -> usize {
    (hash >> 59) as usize
}

#[derive(Clone, Copy, Debug)]
struct VersionSlot {
    seq: Seq,
    start: u32,
    value_len: u32,
    older: u32,
    key_len: u16,
    kind: VersionKind,
    superseded: bool,
}

#[derive(Clone, Copy, Debug)]
struct NewestSlot {
    hash: u32,
    slot: u32,
}

/// The index's 64-bit hash, made of the 32 bits that a slot keeps: so growing the index reads no key.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// One shard's versions.
#[derive(Debug, Default)]
pub(crate) struct MemtableShard {
    arena: Vec<u8>,
    slots: Vec<VersionSlot>,
    index: HashTable<NewestSlot>,
    pub(crate) references: BTreeMap<SegmentId, u64>,
}

impl MemtableShard {
    /// An empty shard with room for about `bytes` of keys and values.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        MemtableShard { arena: Vec::with_capacity(bytes), ..Self::default() }
    }

    /// Adds a version; `entry.seq` is not below any before it.
    pub(crate) fn insert(&mut self, hash: u64, entry: KeyVersion<'_>) {
        let narrow = |n: usize| u32::try_from(n).expect("a shard stays below 4 GiB");
        let key_len = u16::try_from(entry.key.len()).expect("keys are no longer than KEY_BYTES_MAX");
        let (new, start) = (narrow(self.slots.len()), narrow(self.arena.len()));
        debug_assert!(self.slots.last().is_none_or(|last| last.seq <= entry.seq), "seqs rise within a shard");
        let hash = hash as u32;
        let MemtableShard { arena, slots, index, .. } = self;
        let same_key =
            |n: &NewestSlot| n.hash == hash && slot_key(arena, &slots[n.slot as usize]) == entry.key;
        let older = match index.entry(spread(hash), same_key, |n| spread(n.hash)) {
            IndexEntry::Occupied(mut known) => {
                let older = std::mem::replace(&mut known.get_mut().slot, new);
                slots[older as usize].superseded = true;
                older
            }
            IndexEntry::Vacant(vacant) => {
                vacant.insert(NewestSlot { hash, slot: new });
                NONE
            }
        };
        slots.push(VersionSlot {
            seq: entry.seq,
            start,
            value_len: narrow(entry.value.len()),
            older,
            key_len,
            kind: entry.kind,
            superseded: false,
        });
        arena.extend_from_slice(entry.key);
        arena.extend_from_slice(entry.value);
        // Checked at each insertion: the next slot's start must fit.
        narrow(arena.len());
    }

    /// Number of versions.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of keys and values from the `slot`-th version on.
    pub(crate) fn bytes_since(&self, slot: usize) -> usize {
        debug_assert!(slot <= self.slots.len(), "a mark is inside its shard");
        self.slots.get(slot).map_or(0, |s| self.arena.len() - s.start as usize)
    }

    /// The slot of the first version after `at`.
    pub(crate) fn first_after(&self, at: Seq) -> usize {
        self.slots.partition_point(|s| s.seq <= at)
    }

    /// The `slot`-th version.
    pub(crate) fn entry(&self, slot: usize) -> KeyVersion<'_> {
        let s = &self.slots[slot];
        let (key, rest) = self.arena[s.start as usize..].split_at(usize::from(s.key_len));
        KeyVersion { key, seq: s.seq, kind: s.kind, value: &rest[..s.value_len as usize] }
    }

    fn key(&self, slot: usize) -> &[u8] {
        slot_key(&self.arena, &self.slots[slot])
    }

    /// The key's newest version.
    pub(crate) fn newest(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let hash = hash as u32;
        self.index
            .find(spread(hash), |n| n.hash == hash && self.key(n.slot as usize) == key)
            .map(|n| n.slot as usize)
    }

    /// The newest version of the key that the `slot`-th version has.
    pub(crate) fn newest_of(&self, slot: usize) -> usize {
        if !self.slots[slot].superseded {
            return slot;
        }
        let key = self.key(slot);
        self.newest(key_hash(key), key).expect("the key of a slot is indexed")
    }

    /// A key's versions from the `slot`-th back to the oldest.
    pub(crate) fn versions(&self, slot: usize) -> impl Iterator<Item = KeyVersion<'_>> {
        std::iter::successors(Some(slot), |slot| {
            let older = self.slots[*slot].older;
            (older != NONE).then_some(older as usize)
        })
        .map(|slot| self.entry(slot))
    }

    /// Removes all versions and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.arena.clear();
        self.slots.clear();
        self.index.clear();
        self.references.clear();
    }
}

fn slot_key<'a>(arena: &'a [u8], slot: &VersionSlot) -> &'a [u8] {
    &arena[slot.start as usize..][..usize::from(slot.key_len)]
}

/// A memtable that takes no more commits.
#[derive(Debug)]
pub(crate) struct FrozenMemtable {
    pub(crate) shards: Vec<MemtableShard>,
    /// Every version in it has at most this seq.
    pub(crate) last: Seq,
    order: OnceLock<Vec<OrderedKey>>,
}

impl FrozenMemtable {
    pub(crate) fn new(shards: Vec<MemtableShard>, last: Seq) -> Self {
        assert_eq!(shards.len(), SHARDS, "a memtable has all shards");
        debug_assert!(
            shards.iter().all(|shard| shard.slots.last().is_none_or(|newest| newest.seq <= last)),
            "no version is newer than the last seq"
        );
        FrozenMemtable { shards, last, order: OnceLock::new() }
    }

    /// The newest version of each key, in the order of keys.
    pub(crate) fn order(&self) -> &[OrderedKey] {
        self.order.get_or_init(|| key_order::sorted(&self.shards))
    }

    /// Lowest seq in it.
    pub(crate) fn first(&self) -> Option<Seq> {
        self.shards.iter().filter_map(|s| s.slots.first()).map(|s| s.seq).min()
    }

    /// The shards, empty, for the next memtable.
    pub(crate) fn recycle(self) -> Vec<MemtableShard> {
        let mut shards = self.shards;
        shards.iter_mut().for_each(MemtableShard::clear);
        shards
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put<'a>(key: &'a [u8], seq: u64, value: &'a [u8]) -> KeyVersion<'a> {
        KeyVersion { key, seq: Seq(seq), kind: VersionKind::Put, value }
    }

    #[test]
    fn a_key_leads_to_its_versions_newest_first() {
        let mut shard = MemtableShard::default();
        for seq in 1..=1000u64 {
            let key = format!("key{}", seq % 10);
            shard.insert(key_hash(key.as_bytes()), put(key.as_bytes(), seq, b"value"));
        }
        let newest = shard.newest(key_hash(b"key3"), b"key3").unwrap();
        let seqs: Vec<u64> = shard.versions(newest).map(|e| e.seq.0).collect();
        assert_eq!(seqs, (0..100).rev().map(|i| i * 10 + 3).collect::<Vec<_>>());
        assert!(
            (0..1000).all(|slot| shard.newest_of(slot) == 990 + slot % 10),
            "the last ten versions are newest"
        );
        assert_eq!(shard.newest(key_hash(b"key10"), b"key10"), None);
        assert_eq!(shard.first_after(Seq(990)), 990);
    }

    #[test]
    fn a_frozen_memtable_is_in_the_order_of_keys_with_newest_versions() {
        let mut shards: Vec<MemtableShard> = (0..SHARDS).map(|_| MemtableShard::default()).collect();
        let mut seq = 0;
        for round in 0..3 {
            for i in 0..500u64 {
                seq += 1;
                let key = format!("a long shared prefix {:05}", i * 7919 % 500);
                let hash = key_hash(key.as_bytes());
                shards[shard_of(hash)].insert(hash, put(key.as_bytes(), seq, &[round]));
            }
        }
        let frozen = FrozenMemtable::new(shards, Seq(seq));
        let entries: Vec<_> =
            frozen.order().iter().map(|i| frozen.shards[i.shard()].entry(i.slot())).collect();
        assert_eq!(entries.len(), 500);
        assert!(entries.windows(2).all(|w| w[0].key < w[1].key));
        assert!(entries.iter().all(|e| e.value == [2]), "the newest versions");
        assert_eq!(frozen.first(), Some(Seq(1)));
    }
}
