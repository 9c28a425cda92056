//! Order on demand.
//!
//! A frozen memtable is sorted once. The active one is ordered when a scan asks: keys that came since the last
//! scan are sorted into a run, and runs are merged as in a binary counter, so an insert costs O(log n) in all, and
//! nothing where nobody scans.
//!
//! # Invariants
//! 1. Each key of the memtable that a scan has seen is in exactly one run, by the slot that inserted it first.
//! 2. Each run is at least twice as long as the one after it.

use std::cmp::Ordering;

use super::{MemShard, NONE, SHARDS};

/// A key's place in the memtable, with its first bytes beside it: most compares touch nothing else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    head: u128,
    shard: u32,
    slot: u32,
}

impl Item {
    fn new(key: &[u8], shard: usize, slot: usize) -> Self {
        let narrow = |n: usize| u32::try_from(n).expect("a memtable has fewer than 2^32 slots");
        Item { head: head(key), shard: narrow(shard), slot: narrow(slot) }
    }

    pub(crate) fn shard(&self) -> usize {
        self.shard as usize
    }

    pub(crate) fn slot(&self) -> usize {
        self.slot as usize
    }
}

fn head(key: &[u8]) -> u128 {
    if let Some(first) = key.first_chunk::<16>() {
        return u128::from_be_bytes(*first);
    }
    let mut head = [0; 16];
    head[..key.len()].copy_from_slice(key);
    u128::from_be_bytes(head)
}

/// The newest version of each key, in the order of keys.
pub(super) fn sorted(shards: &[MemShard]) -> Vec<Item> {
    let Some(first) = shards.iter().find(|s| s.len() > 0).map(|s| s.key(0)) else { return Vec::new() };
    // Heads start where keys begin to differ: a directory's keys share their first bytes.
    let mut common = first.len();
    for shard in shards {
        for slot in 0..shard.len() {
            let key = shard.key(slot);
            if !key.starts_with(&first[..common]) {
                common = key.iter().zip(first).take_while(|(a, b)| a == b).count();
            }
        }
    }
    let mut items = Vec::with_capacity(shards.iter().map(MemShard::len).sum());
    for (number, shard) in shards.iter().enumerate() {
        let newest = shard.slots.iter().enumerate().filter(|(_, s)| !s.superseded);
        items.extend(newest.map(|(slot, _)| Item::new(&shard.key(slot)[common..], number, slot)));
    }
    // Stable sorting finds the runs that inserts in order leave in each shard.
    let key = |i: &Item| shards[i.shard()].key(i.slot());
    items.sort_by(|a, b| a.head.cmp(&b.head).then_with(|| key(a).cmp(key(b))));
    items
}

/// Keys of the active memtable, in sorted runs.
#[derive(Debug, Default)]
pub(crate) struct Order {
    runs: Vec<Vec<Item>>,
    seen: [usize; SHARDS],
}

impl Order {
    /// Takes in the keys that came since the last call; `shard(i)` is the memtable's i-th shard.
    pub(crate) fn refresh<'a>(&mut self, shard: impl Fn(usize) -> &'a MemShard) {
        let mut fresh = Vec::new();
        for (number, seen) in self.seen.iter_mut().enumerate() {
            let shard = shard(number);
            let new = shard.slots[*seen..].iter().zip(*seen..).filter(|(s, _)| s.older == NONE);
            fresh.extend(new.map(|(_, slot)| Item::new(shard.key(slot), number, slot)));
            *seen = shard.len();
        }
        if fresh.is_empty() {
            return;
        }
        let key = |i: &Item| shard(i.shard()).key(i.slot());
        let compare = |a: &Item, b: &Item| a.head.cmp(&b.head).then_with(|| key(a).cmp(key(b)));
        fresh.sort_by(compare);
        while self.runs.last().is_some_and(|run| run.len() < 2 * fresh.len()) {
            let run = self.runs.pop().expect("the loop has seen it");
            fresh = merged(&run, &fresh, compare);
        }
        self.runs.push(fresh);
    }

    /// Calls `each` with keys from `start` (or, backward, from `end`) on, in order, until it says `false` or the range
    /// ends.
    pub(crate) fn walk<'a>(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        forward: bool,
        shard: impl Fn(usize) -> &'a MemShard,
        mut each: impl FnMut(&'a [u8], Item) -> bool,
    ) {
        let key = |i: &Item| shard(i.shard()).key(i.slot());
        let below = |run: &[Item], bound: &[u8]| {
            let wanted = head(bound);
            run.partition_point(|i| i.head.cmp(&wanted).then_with(|| key(i).cmp(bound)) == Ordering::Less)
        };
        let mut rest: Vec<&[Item]> = self
            .runs
            .iter()
            .map(|run| &run[below(run, start)..end.map_or(run.len(), |end| below(run, end))])
            .filter(|run| !run.is_empty())
            .collect();
        let front = |run: &[Item]| if forward { run[0] } else { run[run.len() - 1] };
        loop {
            let compare = |a: &&[Item], b: &&[Item]| {
                let (a, b) = (front(a), front(b));
                a.head.cmp(&b.head).then_with(|| key(&a).cmp(key(&b)))
            };
            let next = rest.iter().enumerate();
            let next = if forward {
                next.min_by(|a, b| compare(a.1, b.1))
            } else {
                next.max_by(|a, b| compare(a.1, b.1))
            };
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

fn merged(a: &[Item], b: &[Item], compare: impl Fn(&Item, &Item) -> Ordering) -> Vec<Item> {
    let mut out = Vec::with_capacity(a.len() + b.len());
    let (mut a, mut b) = (a, b);
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
    use warpfire_format::table::{Entry, EntryKind};
    use warpfire_units::Seq;

    use super::*;
    use crate::memtable::shard_of;

    #[test]
    fn keys_come_in_order_both_ways_however_often_one_looks() {
        let mut shards: Vec<MemShard> = (0..SHARDS).map(|_| MemShard::default()).collect();
        let mut order = Order::default();
        let mut keys = Vec::new();
        for i in 0..2000u64 {
            let key = format!("shared by every one {:06}", i * 7919 % 2003);
            let hash = key_hash(key.as_bytes());
            let entry = Entry { key: key.as_bytes(), seq: Seq(i + 1), kind: EntryKind::Put, value: b"" };
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
