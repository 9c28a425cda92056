//! Power cuts: which parts of the unflushed changes survive.
//!
//! A change is *pending* until a flush covers it. A device may have written any part of its cache when the
//! power goes, in any order. So each pending change has its own fate ([`Survival`]), and a [`Cut`] names the
//! fates of all changes of all devices. The fates of one device do not depend on another's, so in effect each
//! device is cut at its own moment.

use std::ops::Range;

use crate::image::Block;
use crate::medium::PendingChange;
use crate::random::{SimRandom, mix};

/// Bytes in the smallest piece that a device writes whole.
const SECTOR_BYTES: usize = 512;
const BLOCK_SECTORS: usize = warpfire_units::BLOCK_BYTES / SECTOR_BYTES;

/// [`cuts`] lists every subset of at most this many pending changes: 2^10 states.
pub const SUBSET_CHANGES_MAX: usize = 10;

/// The piece of a write that survives or is lost as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grain {
    /// 512 bytes.
    Sector,
    /// 4096 bytes.
    Block,
}

impl Grain {
    fn pieces_per_block(self) -> usize {
        match self {
            Grain::Sector => BLOCK_SECTORS,
            Grain::Block => 1,
        }
    }
}

/// The part of one pending change that survives.
///
/// A discard is torn by blocks, whatever the grain. On a zoned device a write is torn by blocks and loses
/// only its tail, and a reset happens whole or not at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Survival {
    /// Nothing.
    Nothing,
    /// All of it.
    Whole,
    /// All but the pieces in `missing`, counted from the start of the change.
    Without {
        /// The size of a piece.
        grain: Grain,
        /// The pieces that are lost: at the end, at the front or in the middle.
        missing: Range<usize>,
    },
    /// Each piece survives with a chance of one half.
    Scattered {
        /// The size of a piece.
        grain: Grain,
        /// The seed of the draws.
        seed: u64,
    },
}

impl Survival {
    fn keeps_piece(&self, piece: usize) -> bool {
        match self {
            Survival::Nothing => false,
            Survival::Whole => true,
            Survival::Without { missing, .. } => !missing.contains(&piece),
            Survival::Scattered { seed, .. } => mix(seed ^ piece as u64) & 1 == 1,
        }
    }

    fn grain(&self) -> Grain {
        match self {
            Survival::Nothing | Survival::Whole => Grain::Block,
            Survival::Without { grain, .. } | Survival::Scattered { grain, .. } => *grain,
        }
    }

    /// Whether the `nth` block of a change of `blocks` blocks survives whole.
    pub(crate) fn keeps_block(&self, nth: usize, blocks: usize) -> bool {
        debug_assert!(nth < blocks, "the block is part of the change");
        let per_block = self.grain().pieces_per_block();
        (nth * per_block..(nth + 1) * per_block).all(|piece| self.keeps_piece(piece))
    }

    /// The number of blocks, of a change of `blocks` blocks, before the first that does not survive.
    pub(crate) fn first_lost_block(&self, blocks: usize) -> usize {
        (0..blocks).find(|&nth| !self.keeps_block(nth, blocks)).unwrap_or(blocks)
    }

    /// Copies the surviving sectors of `new` over `old`. `true` if there are any.
    pub(crate) fn tear(&self, nth: usize, blocks: usize, old: &mut Block, new: &Block) -> bool {
        debug_assert!(nth < blocks, "the block is part of the change");
        if self.grain() == Grain::Block {
            return false;
        }
        let mut any = false;
        let sectors = old.chunks_exact_mut(SECTOR_BYTES).zip(new.chunks_exact(SECTOR_BYTES));
        for (sector, (old, new)) in sectors.enumerate() {
            if self.keeps_piece(nth * BLOCK_SECTORS + sector) {
                old.copy_from_slice(new);
                any = true;
            }
        }
        any
    }
}

/// The changes that a power cut keeps, over all devices. Pending changes are counted in the order in which
/// they were made, over all devices together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cut {
    /// No pending change survives.
    LoseAll,
    /// Every pending change survives.
    KeepAll,
    /// The first `whole` pending changes survive, and the part `last` of the next one.
    Prefix {
        /// Changes that survive.
        whole: usize,
        /// The fate of the change after them.
        last: Survival,
    },
    /// Change `i` survives if bit `i` is set; those past the 64th do not.
    Subset(u64),
    /// Each device draws the fates of its changes from the seed: it loses all, keeps all, a prefix or a
    /// subset, whole or torn at either grain, with ends and middles missing.
    Seeded(u64),
    /// The fate of each pending change of each device: `[device][change]`. A change that is not listed is
    /// lost.
    Exactly(Vec<Vec<Survival>>),
}

impl Cut {
    /// The fates of the pending changes of each device.
    pub(crate) fn fates(&self, pending: &[&[PendingChange]]) -> Vec<Vec<Survival>> {
        // A change's rank is its place among the pending changes of all devices, so that one prefix or subset
        // can name changes of several devices.
        let by_rank = |fate: &dyn Fn(usize) -> Survival| -> Vec<Vec<Survival>> {
            let mut orders: Vec<u64> = pending.iter().copied().flatten().map(|p| p.order).collect();
            orders.sort_unstable();
            let rank = |p: &PendingChange| orders.partition_point(|&order| order < p.order);
            pending.iter().map(|device| device.iter().map(|p| fate(rank(p))).collect()).collect()
        };
        let whole_if = |keep: bool| if keep { Survival::Whole } else { Survival::Nothing };
        match self {
            Cut::LoseAll => by_rank(&|_| Survival::Nothing),
            Cut::KeepAll => by_rank(&|_| Survival::Whole),
            Cut::Prefix { whole, last } => {
                by_rank(&|rank| if rank == *whole { last.clone() } else { whole_if(rank < *whole) })
            }
            Cut::Subset(mask) => by_rank(&|rank| whole_if(rank < 64 && mask >> rank & 1 == 1)),
            Cut::Seeded(seed) => {
                let random = SimRandom::new(*seed);
                pending.iter().map(|device| draw(&random.split(), device)).collect()
            }
            Cut::Exactly(fates) => pending
                .iter()
                .enumerate()
                .map(|(d, device)| {
                    let named = fates.get(d).into_iter().flatten().cloned();
                    named.chain(std::iter::repeat(Survival::Nothing)).take(device.len()).collect()
                })
                .collect(),
        }
    }
}

/// Draws the fates of one device's changes. One style for the whole device, so that plain cuts stay common
/// among torn ones.
fn draw(random: &SimRandom, pending: &[PendingChange]) -> Vec<Survival> {
    let style = random.below(6);
    let last = usize::try_from(random.below(pending.len() as u64 + 1)).expect("below a length");
    let fate = |nth: usize| match style {
        0 => Survival::Nothing,
        1 => Survival::Whole,
        2 | 3 if nth < last => Survival::Whole,
        2 => Survival::Nothing,
        3 if nth == last => draw_tear(random),
        3 => Survival::Nothing,
        4 if random.one_in(2) => Survival::Whole,
        4 => Survival::Nothing,
        _ => match random.below(3) {
            0 => Survival::Whole,
            1 => Survival::Nothing,
            _ => draw_tear(random),
        },
    };
    (0..pending.len()).map(fate).collect()
}

fn draw_tear(random: &SimRandom) -> Survival {
    /// Holes begin within the first 64 pieces, so that they fall inside writes of the usual sizes.
    const PIECES: u64 = 64;
    let grain = if random.one_in(2) { Grain::Sector } else { Grain::Block };
    let piece = |bound: u64| {
        let bits = random.below(bound.ilog2().into()) + 1;
        usize::try_from(random.below(1 << bits)).expect("a few bits")
    };
    let start = piece(PIECES);
    match random.below(4) {
        0 => Survival::Without { grain, missing: start..usize::MAX },
        1 => Survival::Without { grain, missing: 0..start + 1 },
        2 => Survival::Without { grain, missing: start..start + 1 + piece(PIECES) },
        _ => Survival::Scattered { grain, seed: mix(start as u64 ^ random.below(1 << 32)) },
    }
}

/// The cuts worth trying with `pending` unflushed changes: all subsets of at most [`SUBSET_CHANGES_MAX`]
/// changes, or all prefixes of more; and `samples` drawn from `seed`, torn ones among them.
pub fn cuts(pending: usize, samples: u64, seed: u64) -> impl Iterator<Item = Cut> {
    let subsets = pending <= SUBSET_CHANGES_MAX;
    let masks = if subsets { 1u64 << pending } else { 0 };
    let prefixes = if subsets { 0 } else { pending + 1 };
    let samples = if pending == 0 { 0 } else { samples };
    (0..masks)
        .map(Cut::Subset)
        .chain((0..prefixes).map(|whole| Cut::Prefix { whole, last: Survival::Nothing }))
        .chain((0..samples).map(move |n| Cut::Seeded(mix(seed).wrapping_add(n))))
}
