//! A code of one shape: encode and reconstruct.

use std::fmt;
use std::sync::Arc;

use warpfire_units::{COLUMNS_MAX, PARITY_MAX};

use crate::cauchy::{coefficient, parity_matrix};
use crate::error::ErasureError;
use crate::kernel::{Kernel, LinearMap};
use crate::plan::{Pattern, Plans};

/// The code with k data and m parity columns. Cheap to clone; clones share their tables and what
/// they learnt about losses.
#[derive(Clone)]
pub struct Code {
    data: usize,
    parity: usize,
    kernel: Kernel,
    shared: Arc<CodeShared>,
}

struct CodeShared {
    /// Data to parity; `None` without parity columns.
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

    /// As [`Code::new`], on a kernel of the caller's choice: for tests and measurements.
    ///
    /// # Errors
    /// [`ErasureError::KernelUnavailable`] if this processor can not run it.
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

    /// The kernel that does the work.
    #[must_use]
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// The coefficient of data column `column` in parity row `row`; the same in every code that has both.
    ///
    /// # Panics
    /// If no code has both.
    #[must_use]
    pub fn coefficient(row: usize, column: usize) -> u8 {
        coefficient(row, column)
    }

    /// Computes all parity shards, whatever they held before. Shards have any length, all the same one.
    ///
    /// # Panics
    /// If there are not k data and m parity shards of one length.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert_eq!(data.len(), self.data, "one shard for each data column");
        assert_eq!(parity.len(), self.parity, "one shard for each parity column");
        if let Some(encoder) = &self.shared.encoder {
            combine(encoder.as_ref(), data, parity);
        }
    }

    /// Fills the buffers of `wanted` (shard number, buffer) from the shards in `present` (shard number, bytes), of
    /// which at least k must be given and all must be sound: parity can rebuild but not judge. If more are given, data
    /// shards and then the lowest parity shards are used.
    ///
    /// # Errors
    /// [`ErasureError::TooManyLost`] with fewer than k present; the others if the request contradicts itself.
    pub fn reconstruct(
        &self,
        present: &[(usize, &[u8])],
        wanted: &mut [(usize, &mut [u8])],
    ) -> Result<(), ErasureError> {
        let by_shard = self.sort_shards(present, wanted)?;
        if present.len() < self.data {
            return Err(ErasureError::TooManyLost { present: present.len(), needed: self.data });
        }
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

    /// The shards that are present, each in its place, after checking that the request makes sense.
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

/// Runs `map`, except that from a single source, whose every coefficient is 1, it copies.
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
