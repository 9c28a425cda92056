//! Key order on demand.
//!
//! A frozen memtable is sorted once. The active one is ordered for scans only: keys that were inserted since
//! the last scan become a sorted run, and short runs are joined as in a binary counter. An insertion costs
//! O(log n) in all, and nothing without scans. (These runs are lists in memory, not runs of tables.)
//!
//! # Invariants
//! 1. Each key of the memtable that a scan has seen is in exactly one run, by the slot that inserted it
//!    first.
//! 2. Each run is at least twice as long as the one after it (assert in `refresh`).

use std::cmp::Ordering;

use super::{MemtableShard, NONE, SHARDS};

/// A key's place in the memtable, with its first bytes beside it: most comparisons read nothing else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrderedKey {
    head: u128,
    shard: u32,
    slot: u32,
}

impl OrderedKey {
    fn new(key: &[u8], shard: usize, slot: usize) -> Self {
        let narrow = |n: usize| u32::try_from(n).expect("a memtable has fewer than 2^32 slots");
        OrderedKey { head: head(key), shard: narrow(shard), slot: narrow(slot) }
    }

    pub(crate) fn shard(&self) -> usize {
        self.shard as usize
    }

    pub(crate) fn slot(&self) -> usize {
        self.slot as usize
    }
}

/// Bytes of a key in its `OrderedKey`.
const HEAD_BYTES: usize = size_of::<u128>();

/// Keys that share more than this, which no names do, are compared whole; it bounds the depth of `sort`.
const SHARED_BYTES_MAX: usize = 1024;

/// A key's first bytes. A shorter key is filled with zeros, so different keys may have equal heads.
fn head(key: &[u8]) -> u128 {
    if let Some(first) = key.first_chunk::<HEAD_BYTES>() {
        return u128::from_be_bytes(*first);
    }
    let mut head = [0; HEAD_BYTES];
    head[..key.len()].copy_from_slice(key);
    u128::from_be_bytes(head)
}

/// The newest version of each key, in the order of keys.
pub(super) fn sorted(shards: &[MemtableShard]) -> Vec<OrderedKey> {
    let mut items = Vec::with_capacity(shards.iter().map(MemtableShard::len).sum());
    for (number, shard) in shards.iter().enumerate() {
        let newest = shard.slots.iter().enumerate().filter(|(_, s)| !s.superseded);
        items.extend(newest.map(|(slot, _)| OrderedKey::new(shard.key(slot), number, slot)));
    }
    sort(&mut items, 0, &|i| shards[i.shard()].key(i.slot()));
    items
}

/// Sorts items of different keys that share their first `shared` bytes.
///
/// Heads begin where the keys begin to differ, and anew where keys with equal heads differ: the names of a
/// directory share the directory and often their own first bytes too. A comparison of whole keys costs a
/// cache miss or two.
fn sort<'a>(items: &mut [OrderedKey], shared: usize, key: &impl Fn(&OrderedKey) -> &'a [u8]) {
    let Some(first) = items.first().map(key) else { return };
    // The length of the prefix that all these keys share.
    let mut common = first.len();
    for item in items.iter() {
        let key = key(item);
        if !key[shared..].starts_with(&first[shared..common]) {
            common = shared + key[shared..].iter().zip(&first[shared..]).take_while(|(a, b)| a == b).count();
        }
    }
    debug_assert!(common >= shared, "keys share at least the bytes that they were grouped by");
    for item in items.iter_mut() {
        item.head = head(&key(item)[common..]);
    }
    // Stable sorting finds the runs that inserts in order leave in each shard.
    items.sort_by_key(|i| i.head);
    let after = common + HEAD_BYTES;
    for equal in items.chunk_by_mut(|a, b| a.head == b.head).filter(|equal| equal.len() > 1) {
        if after <= SHARED_BYTES_MAX && equal.iter().all(|i| key(i).len() >= after) {
            sort(equal, after, key);
        } else {
            equal.sort_by(|a, b| key(a).cmp(key(b)));
        }
    }
}

/// Keys of the active memtable, in sorted runs.
#[derive(Debug, Default)]
pub(crate) struct KeyOrder {
    runs: Vec<Vec<OrderedKey>>,
    seen: [usize; SHARDS],
}

impl KeyOrder {
    /// Adds the keys that were inserted since the last call. `shard(i)` is the memtable's i-th shard.
    pub(crate) fn refresh<'a>(&mut self, shard: impl Fn(usize) -> &'a MemtableShard) {
        let mut fresh = Vec::new();
        for (number, seen) in self.seen.iter_mut().enumerate() {
            let shard = shard(number);
            debug_assert!(*seen <= shard.len(), "a shard only grows");
            // Later versions of a key add nothing: its first slot stands for it.
            let new = shard.slots[*seen..].iter().zip(*seen..).filter(|(s, _)| s.older == NONE);
            fresh.extend(new.map(|(_, slot)| OrderedKey::new(shard.key(slot), number, slot)));
            *seen = shard.len();
        }
        if fresh.is_empty() {
            return;
        }
        let key = |i: &OrderedKey| shard(i.shard()).key(i.slot());
        let compare = |a: &OrderedKey, b: &OrderedKey| a.head.cmp(&b.head).then_with(|| key(a).cmp(key(b)));
        sort(&mut fresh, 0, &key);
        for item in &mut fresh {
            item.head = head(key(item));
        }
        while self.runs.last().is_some_and(|run| run.len() < 2 * fresh.len()) {
            let run = self.runs.pop().expect("the loop condition has seen a run");
            fresh = merged(run, fresh, compare);
        }
        self.runs.push(fresh);
        debug_assert!(
            self.runs.windows(2).all(|pair| pair[0].len() >= 2 * pair[1].len()),
            "each run is at least twice as long as the one after it"
        );
    }

    /// Calls `each` with the keys from `start` (backward: from `end`) on, in order, until it returns `false`
    /// or the range ends.
    pub(crate) fn walk<'a>(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        forward: bool,
        shard: impl Fn(usize) -> &'a MemtableShard,
        mut each: impl FnMut(&'a [u8], OrderedKey) -> bool,
    ) {
        let key = |i: &OrderedKey| shard(i.shard()).key(i.slot());
        let below = |run: &[OrderedKey], bound: &[u8]| {
            let wanted = head(bound);
            run.partition_point(|i| i.head.cmp(&wanted).then_with(|| key(i).cmp(bound)) == Ordering::Less)
        };
        let mut rest: Vec<&[OrderedKey]> = self
            .runs
            .iter()
            .map(|run| &run[below(run, start)..end.map_or(run.len(), |end| below(run, end))])
            .filter(|run| !run.is_empty())
            .collect();
        let front = |run: &[OrderedKey]| if forward { run[0] } else { run[run.len() - 1] };
        loop {
            let compare = |a: &&[OrderedKey], b: &&[OrderedKey]| {
                let (a, b) = (front(a), front(b));
                a.head.cmp(&b.head).then_with(|| key(&a).cmp(key(&b)))
            };
            let next = rest.iter().enumerate();
            let next = if forward {
                next.min_by(|a, b| compare(a.1, b.1))
            } else {
                next.max_by(|a, b| compare(a.1, b.1))
            };
            // Each key is in one run only, so the next key is the first of all fronts and no two fronts are
            // equal.
            let Some((number, run)) = next else { return };
            let item = front(run);
            rest[number] = if forward { &run[1..] } else { &run[..run.len() - 1] };
            if rest[number].is_empty() {
                rest.swap_remove(number);
            }
            if !each(key(&item), item) {
                return;
            }
        }
    }

    /// Starts over with an empty memtable.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn merged(
    mut a: Vec<OrderedKey>,
    b: Vec<OrderedKey>,
    compare: impl Fn(&OrderedKey, &OrderedKey) -> Ordering,
) -> Vec<OrderedKey> {
    // Keys that were inserted in order need no comparison.
    if a.last().zip(b.first()).is_some_and(|(last, first)| compare(last, first).is_lt()) {
        a.extend_from_slice(&b);
        return a;
    }
    let mut out = Vec::with_capacity(a.len() + b.len());
    let (mut a, mut b) = (a.as_slice(), b.as_slice());
    while let ([first_a, rest_a @ ..], [first_b, rest_b @ ..]) = (a, b) {
        if compare(first_a, first_b) == Ordering::Less {
            out.push(*first_a);
            a = rest_a;
        } else {
            out.push(*first_b);
            b = rest_b;
        }
    }
    out.extend_from_slice(a);
    out.extend_from_slice(b);
    out
}

#[cfg(test)]
mod tests {
    use warpfire_format::key_hash;
    use warpfire_format::table::{KeyVersion, VersionKind};
    use warpfire_units::Seq;

    use super::*;
    use crate::memtable::shard_of;

    #[test]
    fn a_frozen_memtable_sorts_keys_that_share_much_end_early_or_differ_late() {
        let mut keys: Vec<Vec<u8>> = vec![b"a".to_vec(), b"a\0".to_vec(), b"a\0\0".to_vec(), b"b".to_vec()];
        for shared in [0, 1, 15, 16, 17, 31, 32, 33, 48, 200, SHARED_BYTES_MAX, 3 * SHARED_BYTES_MAX] {
            for n in 0..40u32 {
                let mut key = vec![b'a'; shared];
                key.extend(n.wrapping_mul(2_654_435_761).to_be_bytes());
                keys.push(key.clone());
                key.extend(vec![0; n as usize]);
                key.push(1);
                keys.push(key);
            }
        }
        let mut shards: Vec<MemtableShard> = (0..SHARDS).map(|_| MemtableShard::default()).collect();
        for (n, key) in keys.iter().enumerate() {
            let hash = key_hash(key);
            let entry = KeyVersion { key, seq: Seq(n as u64 + 1), kind: VersionKind::Put, value: b"" };
            shards[shard_of(hash)].insert(hash, entry);
        }
        let in_order = sorted(&shards);
        let in_order: Vec<&[u8]> = in_order.iter().map(|i| shards[i.shard()].key(i.slot())).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(in_order, keys);
    }

    #[test]
    fn keys_come_in_order_both_ways_after_any_number_of_scans() {
        let mut shards: Vec<MemtableShard> = (0..SHARDS).map(|_| MemtableShard::default()).collect();
        let mut order = KeyOrder::default();
        let mut keys = Vec::new();
        for i in 0..2000u64 {
            // Some are inserted in order, the others are scattered.
            let number = if (700..1400).contains(&i) { 3000 + i } else { i * 7919 % 2003 };
            let key = format!("shared by every one {number:06}");
            let hash = key_hash(key.as_bytes());
            let entry =
                KeyVersion { key: key.as_bytes(), seq: Seq(i + 1), kind: VersionKind::Put, value: b"" };
            shards[shard_of(hash)].insert(hash, entry);
            keys.push(key);
            if i % 37 != 0 {
                continue;
            }
            order.refresh(|n| &shards[n]);
            let mut expected = keys.clone();
            expected.sort();
            let bound = "shared by every one 001000";
            let mut seen = Vec::new();
            order.walk(
                bound.as_bytes(),
                None,
                true,
                |n| &shards[n],
                |key, _| {
                    seen.push(String::from_utf8(key.to_vec()).unwrap());
                    true
                },
            );
            order.walk(
                b"",
                Some(bound.as_bytes()),
                false,
                |n| &shards[n],
                |key, _| {
                    seen.insert(0, String::from_utf8(key.to_vec()).unwrap());
                    true
                },
            );
            assert_eq!(seen, expected);
        }
        assert!(order.runs.len() < 12, "{} runs", order.runs.len());
    }
}
