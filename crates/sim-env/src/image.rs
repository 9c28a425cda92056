//! The content of a device, as a tree that copies share.
//!
//! # Invariants
//! 1. An `Image` maps block numbers to `BlockSlot`s. An absent slot reads as zeros and was never written.
//! 2. `clone` costs one reference count, whatever the size. A copy never sees writes to another: a shared
//!    node is copied before it changes (`tests::an_image_agrees_with_a_tree_map_and_copies_stay_apart`).
//! 3. All leaves lie `height` branches below the root; block `i` is found by the base-64 digits of `i`.

use std::sync::Arc;

use warpfire_units::BLOCK_BYTES;

const FAN_BITS: u32 = 6;
const FAN: usize = 1 << FAN_BITS;

/// One block's bytes.
pub type Block = [u8; BLOCK_BYTES];

/// The content of one block of a device.
#[derive(Clone, Debug)]
pub(crate) struct BlockSlot {
    /// The bytes that a read returns.
    pub data: Arc<Block>,
    /// The bytes before the last write; a stale read returns them.
    pub previous: Option<Arc<Block>>,
    /// Written, and not discarded or reset since.
    pub live: bool,
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all nodes are leaves, and a box would cost each a hop")]
enum ImageNode {
    Branch([Option<Arc<ImageNode>>; FAN]),
    Leaf([Option<BlockSlot>; FAN]),
}

impl ImageNode {
    fn empty(height: u32) -> Arc<ImageNode> {
        Arc::new(if height == 0 {
            ImageNode::Leaf([const { None }; FAN])
        } else {
            ImageNode::Branch([const { None }; FAN])
        })
    }
}

/// The content of a device as a persistent map from block number to slot.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    root: Arc<ImageNode>,
    height: u32,
}

fn digit(block: u64, height: u32) -> usize {
    let low = block >> (FAN_BITS * height);
    usize::try_from(low % FAN as u64).expect("a base-64 digit")
}

impl Image {
    /// An empty image with room for `blocks` blocks.
    pub fn new(blocks: u64) -> Self {
        // The least height with enough digits for the last block.
        let mut height = 0;
        while FAN_BITS * (height + 1) < u64::BITS && (blocks.max(1) - 1) >> (FAN_BITS * (height + 1)) != 0 {
            height += 1;
        }
        Image { root: ImageNode::empty(height), height }
    }

    /// The slot of `block`, if it was ever written.
    pub fn get(&self, block: u64) -> Option<&BlockSlot> {
        let (mut node, mut height) = (&self.root, self.height);
        loop {
            match &**node {
                ImageNode::Leaf(slots) => return slots[digit(block, 0)].as_ref(),
                ImageNode::Branch(children) => node = children[digit(block, height)].as_ref()?,
            }
            height -= 1;
        }
    }

    /// The slot of `block`, to change.
    pub fn get_mut(&mut self, block: u64) -> &mut Option<BlockSlot> {
        let mut height = self.height;
        let mut node = Arc::make_mut(&mut self.root);
        loop {
            match node {
                ImageNode::Leaf(slots) => return &mut slots[digit(block, 0)],
                ImageNode::Branch(children) => {
                    let child = &mut children[digit(block, height)];
                    height -= 1;
                    node = Arc::make_mut(child.get_or_insert_with(|| ImageNode::empty(height)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::SimRandom;

    fn slot(fill: u8) -> BlockSlot {
        BlockSlot { data: Arc::new([fill; BLOCK_BYTES]), previous: None, live: true }
    }

    #[test]
    fn an_image_agrees_with_a_tree_map_and_copies_stay_apart() {
        for blocks in [1u64, 64, 65, 4096, 4097, 1 << 30] {
            let random = SimRandom::new(blocks);
            let mut image = Image::new(blocks);
            let mut model = BTreeMap::new();
            let mut forks = Vec::new();
            for step in 0..300u32 {
                let block = random.below(blocks);
                let fill = u8::try_from(step % 251).expect("below 251");
                *image.get_mut(block) = Some(slot(fill));
                model.insert(block, fill);
                if step % 60 == 0 {
                    forks.push((image.clone(), model.clone()));
                }
            }
            forks.push((image, model));
            for (image, model) in &forks {
                for step in 0..300 {
                    let block = if step % 2 == 0 { random.below(blocks) } else { blocks - 1 };
                    let found = image.get(block).map(|s| s.data[0]);
                    assert_eq!(found, model.get(&block).copied(), "block {block} of {blocks}");
                }
                for (&block, &fill) in model {
                    assert_eq!(image.get(block).expect("was written").data[0], fill);
                }
            }
        }
    }
}
