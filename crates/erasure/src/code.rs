//! A code of one shape: computes parity, and reconstructs lost shards.

use std::fmt;
use std::sync::Arc;

use warpfire_units::{COLUMNS_MAX, PARITY_MAX};

use crate::cauchy::{coefficient, parity_matrix};
use crate::error::ErasureError;
use crate::kernel::{Kernel, LinearMap};
use crate::plan::{Pattern, Plans};

/// The code with k data and m parity columns. A clone is cheap and shares tables and cached plans.
#[derive(Clone)]
pub struct Code {
    data: usize,
    parity: usize,
    kernel: Kernel,
    shared: Arc<CodeShared>,
}

struct CodeShared {
    /// Computes parity from data; `None` without parity columns.
    encoder: Option<Box<dyn LinearMap>>,
    plans: Plans,
}

impl Code {
    /// The code with `data` data columns (at least 1) and `parity` parity columns (at most
    /// [`PARITY_MAX`]), together at most [`COLUMNS_MAX`], on [`Kernel::best`].
    ///
    /// # Errors
    /// [`ErasureError::Shape`] for any other shape.
    pub fn new(data: usize, parity: usize) -> Result<Code, ErasureError> {
        Code::with_kernel(data, parity, Kernel::best())
    }

    /// As [`Code::new`], on a kernel that the caller chooses: for tests and measurements.
    ///
    /// # Errors
    /// [`ErasureError::Shape`]; [`ErasureError::KernelUnavailable`] if this processor cannot run the kernel.
    pub fn with_kernel(data: usize, parity: usize, kernel: Kernel) -> Result<Code, ErasureError> {
        if data == 0 || parity > PARITY_MAX || data > COLUMNS_MAX - parity {
            return Err(ErasureError::Shape { data, parity });
        }
        if !kernel.is_available() {
            return Err(ErasureError::KernelUnavailable { name: kernel.name() });
        }
        let encoder = (parity > 0).then(|| kernel.prepare(&parity_matrix(data, parity)));
        Ok(Code { data, parity, kernel, shared: Arc::new(CodeShared { encoder, plans: Plans::default() }) })
    }

    /// Number of data columns, k.
    #[must_use]
    pub fn data(&self) -> usize {
        self.data
    }

    /// Number of parity columns, m.
    #[must_use]
    pub fn parity(&self) -> usize {
        self.parity
    }

    /// The kernel that does the arithmetic.
    #[must_use]
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// The coefficient of data column `column` in parity row `row`. It is the same in every code that has
    /// both.
    ///
    /// # Panics
    /// If no code has both.
    #[must_use]
    pub fn coefficient(row: usize, column: usize) -> u8 {
        coefficient(row, column)
    }

    /// Overwrites all parity shards with the parity of `data`. Shards may have any length, the same for all.
    ///
    /// # Panics
    /// Unless there are k data and m parity shards of one length.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert_eq!(data.len(), self.data, "one shard for each data column");
        assert_eq!(parity.len(), self.parity, "one shard for each parity column");
        if let Some(encoder) = &self.shared.encoder {
            combine(encoder.as_ref(), data, parity);
        }
    }

    /// Fills the buffers of `wanted` (shard number, buffer) from the shards in `present` (shard number,
    /// bytes). At least k shards must be present, and all of them sound: a code cannot detect bad shards. If
    /// more than k are present, the data shards and then the lowest parity shards are used.
    ///
    /// # Errors
    /// [`ErasureError::TooManyLost`] with fewer than k present shards; other errors if the request
    /// contradicts itself.
    pub fn reconstruct(
        &self,
        present: &[(usize, &[u8])],
        wanted: &mut [(usize, &mut [u8])],
    ) -> Result<(), ErasureError> {
        let by_shard = self.sort_shards(present, wanted)?;
        if present.len() < self.data {
            return Err(ErasureError::TooManyLost { present: present.len(), needed: self.data });
        }
        // `by_shard` is in shard order, so the first k present shards are the data shards and the lowest
        // parity shards.
        let (numbers, sources): (Vec<usize>, Vec<&[u8]>) = by_shard
            .iter()
            .enumerate()
            .filter_map(|(shard, bytes)| bytes.map(|bytes| (shard, bytes)))
            .take(self.data)
            .unzip();
        if wanted.is_empty() {
            return Ok(());
        }
        let pattern = Pattern::new(numbers.into_iter(), wanted.iter().map(|(shard, _)| *shard));
        let plan = self.shared.plans.get(pattern, self.data, self.kernel);
        let mut buffers: Vec<&mut [u8]> = wanted.iter_mut().map(|(_, buffer)| &mut **buffer).collect();
        combine(plan.as_ref(), &sources, &mut buffers);
        Ok(())
    }

    /// The bytes of the present shards, by shard number.
    ///
    /// # Errors
    /// If a shard does not exist, is in the request twice, or has another length than the first.
    fn sort_shards<'a>(
        &self,
        present: &[(usize, &'a [u8])],
        wanted: &[(usize, &mut [u8])],
    ) -> Result<[Option<&'a [u8]>; COLUMNS_MAX], ErasureError> {
        let shards = self.data + self.parity;
        let expected_bytes = present.first().map_or(0, |(_, bytes)| bytes.len());
        let mut by_shard = [None; COLUMNS_MAX];
        let mut named = [false; COLUMNS_MAX];
        let given = present.iter().map(|&(index, bytes)| (index, bytes.len(), Some(bytes)));
        for (index, found_bytes, bytes) in given.chain(wanted.iter().map(|(i, b)| (*i, b.len(), None))) {
            if index >= shards {
                return Err(ErasureError::NoSuchShard { index, shards });
            }
            if std::mem::replace(&mut named[index], true) {
                return Err(ErasureError::NamedTwice { index });
            }
            if !present.is_empty() && found_bytes != expected_bytes {
                return Err(ErasureError::Length { index, expected_bytes, found_bytes });
            }
            by_shard[index] = bytes;
        }
        Ok(by_shard)
    }
}

/// Applies `map`. With a single source every coefficient is 1, so a copy replaces the arithmetic.
fn combine(map: &dyn LinearMap, sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
    if let [mirrored] = sources {
        for output in outputs {
            output.copy_from_slice(mirrored);
        }
    } else {
        map.combine(sources, outputs);
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Code({}+{} on {})", self.data, self.parity, self.kernel.name())
    }
}
