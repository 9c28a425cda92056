//! A stripe of arbitrary bytes with its parity, and a reader that loses shards of it.

use warpfire_erasure::{Code, ErasureError, Kernel, scalar};

/// Splitmix64: arbitrary numbers, the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    /// `count` different numbers below `limit`.
    pub fn choose(&mut self, count: usize, limit: usize) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..limit).collect();
        (0..count).map(|_| numbers.swap_remove(self.below(numbers.len()))).collect()
    }
}

pub struct Stripe {
    pub code: Code,
    pub shards: Vec<Vec<u8>>,
}

impl Stripe {
    /// A stripe of random data. The kernel computes its parity, and the oracle confirms it.
    pub fn new(data: usize, parity: usize, len: usize, kernel: Kernel, random: &mut Random) -> Stripe {
        let code = Code::with_kernel(data, parity, kernel).expect("tests ask for shapes that exist");
        let mut shards: Vec<Vec<u8>> = (0..data + parity).map(|_| random.bytes(len)).collect();
        let (sources, outputs) = shards.split_at_mut(data);
        let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
        code.encode(&sources, &mut outputs.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        for (row, found) in outputs.iter().enumerate() {
            assert!(*found == scalar::parity(&sources, row), "{code:?}, row {row}, {len} bytes");
        }
        Stripe { code, shards }
    }

    /// Every shard except `lost`, from the highest to the lowest: the order must not matter.
    pub fn present(&self, lost: &[usize]) -> Vec<(usize, &[u8])> {
        let all = self.shards.iter().map(Vec::as_slice).enumerate();
        all.rev().filter(|(shard, _)| !lost.contains(shard)).collect()
    }

    /// Reconstructs `wanted` from all shards except `lost`.
    pub fn reconstruct(&self, lost: &[usize], wanted: &[usize]) -> Result<Vec<Vec<u8>>, ErasureError> {
        let mut reconstructed = vec![vec![0xee; self.shards[0].len()]; wanted.len()];
        let buffers = reconstructed.iter_mut().map(Vec::as_mut_slice);
        let mut wanted: Vec<(usize, &mut [u8])> = wanted.iter().copied().zip(buffers).collect();
        self.code.reconstruct(&self.present(lost), &mut wanted)?;
        Ok(reconstructed)
    }

    /// Loses shards and expects the reconstruction of each to be equal to the lost one.
    pub fn survives(&self, lost: &[usize], note: impl std::fmt::Display) {
        let reconstructed = self.reconstruct(lost, lost).expect("parity covers the lost shards");
        for (&shard, reconstructed) in lost.iter().zip(&reconstructed) {
            assert!(
                *reconstructed == self.shards[shard],
                "{:?} lost {lost:?}, shard {shard}; {note}",
                self.code
            );
        }
    }
}
