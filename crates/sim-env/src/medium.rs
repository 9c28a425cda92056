//! One device's flash and its volatile cache, as data: no locks, no faults, no rules.
//!
//! # Invariants
//! 1. Reads see `cached`: `durable` with every `pending` change applied in order.
//! 2. A flush makes `durable` equal to `cached`, and `pending` empty.
//! 3. `cut` returns a medium with nothing pending. Its `durable` is this one's, with a part of each pending
//!    change applied in order (assert in `cut`: each change has a fate).
//! 4. Of the writes to a zone of a zoned medium a prefix survives: the first change of a zone that does not
//!    survive whole is the last with a surviving part (`tests/rules.rs:
//!    a_cut_zone_keeps_a_prefix_and_its_pointer_agrees`).

use std::sync::Arc;

use warpfire_units::BLOCK_BYTES;

use crate::cut::Survival;
use crate::image::{Block, BlockSlot, Image};

/// The bytes that a discard leaves in its blocks, once it has taken effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiscardedBytes {
    /// Zeros.
    Zeros,
    /// The bytes that were there.
    Old,
}

/// One change to a medium. Blocks are counted from the front of the device, 4096 bytes each.
#[derive(Clone, Debug)]
pub enum Change {
    /// Blocks written from `start_block` on.
    Write {
        /// The first block.
        start_block: u64,
        /// The payload.
        blocks: Arc<[Arc<Block>]>,
        /// Whether the write was misdirected: it takes no block into use.
        stray: bool,
    },
    /// Blocks discarded from `start_block` on. On a zoned medium: a reset of the zone that starts there.
    Discard {
        /// The first block.
        start_block: u64,
        /// The number of blocks.
        blocks: u64,
        /// The bytes that reads find there.
        leaves: DiscardedBytes,
    },
}

/// A change that no flush has covered yet.
#[derive(Clone, Debug)]
pub(crate) struct PendingChange {
    /// Its place in the order of all changes to all devices.
    pub order: u64,
    pub change: Change,
}

/// The state of a device: content and write pointers.
#[derive(Clone, Debug)]
struct MediumState {
    image: Image,
    /// Blocks written in each zone; empty on a conventional device.
    written: Arc<Vec<u64>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Medium {
    zone_blocks: Option<u64>,
    /// Blocks at the front that take writes anywhere.
    conventional_blocks: u64,
    cached: MediumState,
    durable: MediumState,
    pending: Vec<PendingChange>,
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("a count of blocks or zones fits memory")
}

/// Writes a block. A stray write leaves a free block free.
fn write(slot: &mut Option<BlockSlot>, data: Arc<Block>, stray: bool) {
    let live = !stray || slot.as_ref().is_some_and(|old| old.live);
    put(slot, data, live);
}

/// Replaces a block's bytes, and keeps the old ones for stale reads.
fn put(slot: &mut Option<BlockSlot>, data: Arc<Block>, live: bool) {
    let previous = slot.take().map(|old| old.data);
    *slot = Some(BlockSlot { data, previous, live });
}

fn zero_block() -> Arc<Block> {
    Arc::new([0; BLOCK_BYTES])
}

impl MediumState {
    fn discard(&mut self, block: u64, leaves: DiscardedBytes) {
        // A block never written takes no memory, and a discard of a whole device leaves it so.
        if self.image.get(block).is_none() {
            return;
        }
        let slot = self.image.get_mut(block);
        match (leaves, slot) {
            (DiscardedBytes::Zeros, slot) => put(slot, zero_block(), false),
            (DiscardedBytes::Old, Some(slot)) => slot.live = false,
            (DiscardedBytes::Old, None) => {}
        }
    }

    /// Moves the write pointer of the zone that a write ends in.
    fn raise_pointer(&mut self, zone_blocks: Option<u64>, end_block: u64) {
        if let (Some(zone_blocks), Some(last)) = (zone_blocks, end_block.checked_sub(1)) {
            let within = last % zone_blocks + 1;
            Arc::make_mut(&mut self.written)[index(last / zone_blocks)] = within;
        }
    }

    fn apply(&mut self, zone_blocks: Option<u64>, change: &Change) {
        match change {
            Change::Write { start_block, blocks, stray } => {
                for (block, data) in (*start_block..).zip(blocks.iter()) {
                    write(self.image.get_mut(block), data.clone(), *stray);
                }
                self.raise_pointer(zone_blocks, start_block + blocks.len() as u64);
            }
            Change::Discard { start_block, blocks, leaves } => {
                for block in *start_block..start_block + blocks {
                    self.discard(block, *leaves);
                }
                if let Some(zone_blocks) = zone_blocks {
                    Arc::make_mut(&mut self.written)[index(start_block / zone_blocks)] = 0;
                }
            }
        }
    }

    /// Applies the part `kept` of a change, on a conventional medium.
    fn apply_part(&mut self, change: &Change, kept: &Survival) {
        match change {
            Change::Write { start_block, blocks, stray } => {
                for (nth, data) in blocks.iter().enumerate() {
                    let slot = self.image.get_mut(start_block + nth as u64);
                    if kept.keeps_block(nth, blocks.len()) {
                        write(slot, data.clone(), *stray);
                    } else {
                        // Some sectors of the block may survive: the block is then a mix of old and new ones.
                        let mut torn = slot.as_ref().map_or([0; BLOCK_BYTES], |s| *s.data);
                        if kept.tear(nth, blocks.len(), &mut torn, data) {
                            write(slot, Arc::new(torn), *stray);
                        }
                    }
                }
            }
            Change::Discard { start_block, blocks, leaves } => {
                for nth in 0..*blocks {
                    if kept.keeps_block(index(nth), index(*blocks)) {
                        self.discard(start_block + nth, *leaves);
                    }
                }
            }
        }
    }
}

impl Change {
    fn start_block(&self) -> u64 {
        match self {
            Change::Write { start_block, .. } | Change::Discard { start_block, .. } => *start_block,
        }
    }

    /// The change with only its first `keep` blocks, as a zoned device keeps it; `None` if that keeps
    /// nothing. A reset has no part.
    fn prefix(&self, keep: usize) -> Option<Change> {
        match self {
            Change::Write { start_block, blocks, stray } if keep > 0 => {
                let blocks = blocks.iter().take(keep).cloned().collect();
                Some(Change::Write { start_block: *start_block, blocks, stray: *stray })
            }
            Change::Write { .. } | Change::Discard { .. } => None,
        }
    }
}

impl Medium {
    /// `conventional_blocks`: so many blocks at the front follow the rules of a conventional medium.
    pub fn new(size_blocks: u64, zone_blocks: Option<u64>, conventional_blocks: u64) -> Self {
        let zones = zone_blocks.map_or(0, |z| size_blocks / z);
        let blank = MediumState { image: Image::new(size_blocks), written: Arc::new(vec![0; index(zones)]) };
        Medium {
            zone_blocks,
            conventional_blocks,
            cached: blank.clone(),
            durable: blank,
            pending: Vec::new(),
        }
    }

    /// Blocks in the zone of a change, if it is written in order.
    fn zone_blocks_of(&self, change: &Change) -> Option<u64> {
        self.zone_blocks.filter(|_| change.start_block() >= self.conventional_blocks)
    }

    /// Zones that are written and not full, by number.
    pub fn zones_begun(&self) -> impl Iterator<Item = u64> + '_ {
        let zone_blocks = self.zone_blocks.unwrap_or(0);
        let zones = (0u64..).zip(self.cached.written.iter());
        zones.filter(move |(_, written)| (1..zone_blocks).contains(*written)).map(|(zone, _)| zone)
    }

    /// The block as a read finds it.
    pub fn slot(&self, block: u64) -> Option<&BlockSlot> {
        self.cached.image.get(block)
    }

    /// Blocks written in the zone that holds `block`; `None` on a conventional medium.
    pub fn zone_written(&self, block: u64) -> Option<u64> {
        let zone = index(block / self.zone_blocks?);
        self.cached.written.get(zone).copied()
    }

    pub fn apply(&mut self, order: u64, change: Change) {
        let zone_blocks = self.zone_blocks_of(&change);
        self.cached.apply(zone_blocks, &change);
        self.pending.push(PendingChange { order, change });
    }

    pub fn flush(&mut self) {
        self.durable = self.cached.clone();
        self.pending.clear();
    }

    pub fn pending(&self) -> &[PendingChange] {
        &self.pending
    }

    /// Flips one bit of a block, in cache and flash alike. A block never written stays zero.
    pub fn rot(&mut self, block: u64, bit: usize) {
        for state in [&mut self.cached, &mut self.durable] {
            if let Some(slot) = state.image.get_mut(block) {
                Arc::make_mut(&mut slot.data)[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    /// The medium after a power cut that kept `kept[i]` of pending change `i`.
    pub fn cut(&self, kept: &[Survival]) -> Medium {
        assert_eq!(kept.len(), self.pending.len(), "a cut decides about every pending change");
        let mut survivor = self.durable.clone();
        // Zones with a change that is not whole. A device writes a zone in order, so no later change to it
        // survives.
        let mut closed_zones = Vec::new();
        for (pending, kept) in self.pending.iter().zip(kept) {
            let change = &pending.change;
            match (self.zone_blocks_of(change), kept) {
                (None, Survival::Nothing) => {}
                (None, Survival::Whole) => survivor.apply(None, change),
                (None, torn) => survivor.apply_part(change, torn),
                (Some(zone_blocks), kept) => {
                    let zone = change.start_block() / zone_blocks;
                    if closed_zones.contains(&zone) {
                        continue;
                    }
                    if matches!(kept, Survival::Whole) {
                        survivor.apply(Some(zone_blocks), change);
                        continue;
                    }
                    closed_zones.push(zone);
                    if let Change::Write { blocks, .. } = change
                        && let Some(part) = change.prefix(kept.first_lost_block(blocks.len()))
                    {
                        survivor.apply(Some(zone_blocks), &part);
                    }
                }
            }
        }
        Medium {
            zone_blocks: self.zone_blocks,
            conventional_blocks: self.conventional_blocks,
            cached: survivor.clone(),
            durable: survivor,
            pending: Vec::new(),
        }
    }
}
