//! Kernels: implementations of the code's arithmetic for different processors.
//!
//! Encoding and reconstruction are the same work, a matrix times shards. So a kernel does one thing: it makes
//! a [`LinearMap`] of a matrix, with tables of its own kind. The map is made once and applied to many
//! stripes.

#[cfg(target_arch = "x86_64")]
mod gfni;
mod library;
mod portable;

use crate::matrix::Matrix;

/// A prepared matrix: `outputs[r] = Σ_c matrix[r][c] · sources[c]`.
pub(crate) trait LinearMap: Send + Sync {
    /// Overwrites `outputs` with combinations of `sources`.
    ///
    /// # Panics
    /// Unless there is one source for each column and one output for each row, all of one length.
    fn combine(&self, sources: &[&[u8]], outputs: &mut [&mut [u8]]);
}

/// The implementation that does the arithmetic. All compute the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// Our own kernel, for x86-64 with 512-bit vectors and the Galois field instructions.
    #[cfg(target_arch = "x86_64")]
    Gfni512,
    /// The library's choice for this processor (AVX2 with or without GFNI, SSSE3, NEON, or plain code).
    Library,
    /// One byte at a time through [`crate::scalar`], for tests.
    Scalar,
}

impl Kernel {
    /// Every kernel that this processor runs, in order of their speed for wide codes, fastest first.
    pub fn available() -> impl Iterator<Item = Kernel> {
        let all = [
            #[cfg(target_arch = "x86_64")]
            Kernel::Gfni512,
            Kernel::Library,
            Kernel::Scalar,
        ];
        all.into_iter().filter(|kernel| kernel.is_available())
    }

    /// The first kernel of [`Kernel::available`].
    #[must_use]
    pub fn best() -> Kernel {
        Kernel::available().next().expect("the scalar kernel runs everywhere")
    }

    /// Whether this processor runs the kernel.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernel::Gfni512 => gfni::is_available(),
            Kernel::Library | Kernel::Scalar => true,
        }
    }

    /// A short name for tables of measurements.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernel::Gfni512 => "gfni-512",
            Kernel::Library => "library",
            Kernel::Scalar => "scalar",
        }
    }

    /// Makes the map of `matrix`, with the kernel's tables.
    ///
    /// # Panics
    /// If this processor cannot run the kernel.
    pub(crate) fn prepare(self, matrix: &Matrix) -> Box<dyn LinearMap> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernel::Gfni512 => Box::new(gfni::Gfni512::new(matrix)),
            Kernel::Library => Box::new(library::Library::new(matrix)),
            Kernel::Scalar => Box::new(portable::Portable::new(matrix)),
        }
    }
}

/// Asserts the preconditions of [`LinearMap::combine`]. Returns the common length of all shards, in bytes.
fn common_len(rows: usize, columns: usize, sources: &[&[u8]], outputs: &[&mut [u8]]) -> usize {
    assert_eq!(sources.len(), columns, "one source for each column");
    assert_eq!(outputs.len(), rows, "one output for each row");
    let len = sources.first().map_or(0, |source| source.len());
    assert!(sources.iter().all(|source| source.len() == len), "all sources have one length");
    assert!(outputs.iter().all(|output| output.len() == len), "outputs are as long as sources");
    len
}

#[cfg(test)]
mod tests {
    use super::{Kernel, LinearMap};
    use crate::matrix::Matrix;

    /// Splitmix64: arbitrary bytes, the same in every run.
    struct Bytes(u64);

    impl Bytes {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }

        fn take(&mut self, len: usize) -> Vec<u8> {
            (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
        }
    }

    fn apply(map: &dyn LinearMap, sources: &[&[u8]], rows: usize) -> Vec<Vec<u8>> {
        let mut outputs = vec![vec![0xee; sources[0].len()]; rows];
        map.combine(sources, &mut outputs.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        outputs
    }

    /// Compares each kernel with the scalar one on arbitrary coefficients, zeros included.
    fn agree(rows: usize, columns: usize, len: usize) {
        let seed = (rows * 1_000_000 + columns * 10_000 + len) as u64;
        let mut bytes = Bytes(seed);
        let cells = bytes.take(rows * columns);
        let matrix = Matrix::from_fn(rows, columns, |row, column| cells[row * columns + column]);
        // Sources start at odd addresses, so that no kernel relies on alignment.
        let owned: Vec<Vec<u8>> = (0..columns).map(|_| bytes.take(len + 1)).collect();
        let sources: Vec<&[u8]> = owned.iter().map(|source| &source[1..]).collect();
        let expected = apply(Kernel::Scalar.prepare(&matrix).as_ref(), &sources, rows);
        for kernel in Kernel::available() {
            let found = apply(kernel.prepare(&matrix).as_ref(), &sources, rows);
            assert!(
                found == expected,
                "{} differs at {rows}x{columns}, {len} bytes, seed {seed}",
                kernel.name()
            );
        }
    }

    #[test]
    fn kernels_agree_on_every_number_of_rows_and_short_lengths() {
        for rows in 1..=8 {
            for columns in [1, 2, 3, 5, 8] {
                for len in [0, 1, 7, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513] {
                    agree(rows, columns, len);
                }
            }
        }
    }

    #[test]
    fn kernels_agree_across_their_inner_borders() {
        for rows in [1, 2, 3, 4, 5, 8] {
            for columns in [15, 16, 17, 31, 32, 33, 65, 130] {
                agree(rows, columns, 2 * 4096 + 77);
            }
        }
    }

    #[test]
    fn kernels_agree_on_the_widest_matrices() {
        agree(8, 242, 4096 + 33);
        agree(1, 249, 4096);
        agree(7, 243, 333);
    }
}
