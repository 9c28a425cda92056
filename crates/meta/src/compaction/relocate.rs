//! The values of a job: packed, copied out of segments that are cleaned, and in step with their bundles.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;
use warpfire_format::table::{BUNDLE_BYTES_MAX, Bundle, encode_bundle};
use warpfire_log::{LogError, LogStore, Slices, Stream};
use warpfire_slices::KnownCopy;
use warpfire_units::{SegmentId, SlicePtr};

use super::moves::SliceMoves;
use crate::schema::{RelocateError, Relocator, Schema};
use crate::store::MetaError;

/// The log never splits appends up to this length, so packed bytes are one slice, and so is a bundle.
const PACKED_BYTES_MAX: usize = 64 * 1024;

const _: () = assert!(BUNDLE_BYTES_MAX <= PACKED_BYTES_MAX, "a bundle is one slice");

pub(super) struct JobRelocator<'a, L> {
    pub(super) log: &'a L,
    pub(super) cleaning: &'a BTreeSet<SegmentId>,
    pub(super) moves: &'a mut SliceMoves,
    /// Bytes that the job has appended for values, by segment.
    pub(super) appended: BTreeMap<SegmentId, u64>,
    /// The bundle that is being written.
    pub(super) buffer: Vec<u8>,
}

impl<L: LogStore> JobRelocator<'_, L> {
    fn append(&mut self, stream: Stream, bytes: &[u8]) -> Result<Slices, LogError> {
        let slices = self.log.append(stream, bytes)?;
        // The writer's reference to each slice is the job's until `settle` hands it to the tables.
        for slice in &slices {
            *self.appended.entry(slice.segment).or_insert(0) += u64::from(slice.len_bytes);
        }
        Ok(slices)
    }
}

impl<L: LogStore> JobRelocator<'_, L> {
    fn pack(&mut self, bytes: &[u8]) -> Result<SlicePtr, LogError> {
        assert!(bytes.len() <= PACKED_BYTES_MAX, "inline bytes fit one slice");
        let slices = self.append(Stream::Small, bytes)?;
        assert_eq!(slices.len(), 1, "appends up to 64 KiB are never split");
        Ok(slices[0])
    }

    /// Packs a bundle.
    fn pack_bundle(&mut self, key: &[u8], value: &[u8]) -> Result<SlicePtr, LogError> {
        let mut bundle = std::mem::take(&mut self.buffer);
        encode_bundle(&mut bundle, key, value);
        let packed = self.pack(&bundle);
        self.buffer = bundle;
        packed
    }

    fn move_slice(&mut self, slice: SlicePtr) -> Result<Option<Slices>, LogError> {
        if !self.cleaning.contains(&slice.segment) {
            return Ok(None);
        }
        // Everything is read before anything is appended: a value keeps its pointer as a whole if some of its
        // bytes cannot be read. They may come back with a missing device.
        let mut parts: SmallVec<[(KnownCopy, Vec<u8>); 1]> = SmallVec::new();
        let mut done = 0;
        while done < slice.len_bytes {
            let rest = slice.part(done, slice.len_bytes - done);
            let known = self.moves.known_copy(rest);
            let bytes = match known {
                KnownCopy::Of(copy) => {
                    done += copy.len_bytes;
                    Vec::new()
                }
                KnownCopy::NoneOf(len) => {
                    done += len;
                    let mut bytes = vec![0; len as usize];
                    match self.log.read(rest.part(0, len), &mut bytes) {
                        Err(LogError::Damaged(_) | LogError::BadPointer(_)) => {
                            self.moves.unrecoverable.insert(slice.segment);
                            return Ok(None);
                        }
                        read => read?,
                    }
                    bytes
                }
            };
            parts.push((known, bytes));
        }
        let mut slices = Slices::new();
        let mut done = 0;
        for (known, bytes) in parts {
            match known {
                KnownCopy::Of(copy) => {
                    done += copy.len_bytes;
                    slices.push(copy);
                }
                KnownCopy::NoneOf(len) => {
                    // Slices that survive until cleaning live long: they go to a stream of their own.
                    let copies = self.append(Stream::Cold, &bytes)?;
                    self.moves.note(slice.part(done, len), &copies);
                    done += len;
                    slices.extend(copies);
                }
            }
        }
        debug_assert_eq!(
            slices.iter().map(|s| u64::from(s.len_bytes)).sum::<u64>(),
            u64::from(slice.len_bytes),
            "a moved slice keeps its length"
        );
        Ok(Some(slices))
    }
}

/// Relocates one version, and keeps its bundle in step with it.
///
/// # Invariants
/// 1. With a bundle the version has one slice, which is the end of the bundle. A version with more has none.
/// 2. The bundle has the version's own key and, with its edit, the version's value with the bytes of the
///    slice inline.
pub(super) struct VersionRelocator<'r, 'a, L, S> {
    pub(super) schema: &'r S,
    pub(super) job: &'r mut JobRelocator<'a, L>,
    pub(super) key: &'r [u8],
    pub(super) value: &'r [u8],
    pub(super) is_operand: bool,
    pub(super) bundle: Option<Bundle>,
    /// Slices and packed bytes of the version so far.
    pub(super) seen: u32,
    /// The slices that the version names when it is relocated.
    pub(super) named: &'r mut Vec<SlicePtr>,
}

impl<L: LogStore, S: Schema> Relocator for VersionRelocator<'_, '_, L, S> {
    fn packs(&self) -> bool {
        true
    }

    fn pack(&mut self, bytes: &[u8]) -> Result<SlicePtr, LogError> {
        let packed = self.pack_version(bytes)?;
        self.named.push(packed);
        Ok(packed)
    }

    fn move_slice(&mut self, slice: SlicePtr) -> Result<Option<Slices>, LogError> {
        let moved = self.move_of_version(slice)?;
        self.named.extend_from_slice(moved.as_deref().unwrap_or(&[slice]));
        Ok(moved)
    }
}

impl<L: LogStore, S: Schema> VersionRelocator<'_, '_, L, S> {
    fn pack_version(&mut self, bytes: &[u8]) -> Result<SlicePtr, LogError> {
        self.seen += 1;
        self.bundle = None;
        let fits = self.key.len() + self.value.len() + BUNDLE_HEAD_BYTES_MAX <= BUNDLE_BYTES_MAX;
        let is_alone = self.seen == 1 && !self.is_operand && self.value.ends_with(bytes);
        if !(is_alone && fits && self.schema.is_bundled(self.key)) {
            return self.job.pack(bytes);
        }
        let bundle = self.job.pack_bundle(self.key, self.value)?;
        self.bundle = Some(Bundle { slice: bundle, edit: [].into() });
        let len = u32::try_from(bytes.len()).expect("the end of a bundle is shorter than the bundle");
        Ok(bundle.end(len))
    }

    fn move_of_version(&mut self, slice: SlicePtr) -> Result<Option<Slices>, LogError> {
        self.seen += 1;
        let bundle = self.bundle.take().filter(|b| self.seen == 1 && slice.is_end_of(b.slice));
        let Some(bundle) = bundle else { return self.job.move_slice(slice) };
        let Some(moved) = self.job.move_slice(bundle.slice)? else {
            if self.job.cleaning.contains(&slice.segment) {
                // Some of the bundle cannot be read. Its end may be readable.
                return self.job.move_slice(slice);
            }
            self.bundle = Some(bundle);
            return Ok(None);
        };
        if let [whole] = moved[..] {
            self.bundle = Some(Bundle { slice: whole, edit: bundle.edit });
            return Ok(Some(SmallVec::from_buf([whole.end(slice.len_bytes)])));
        }
        // In pieces it is no bundle any more.
        let mut head_bytes = bundle.slice.len_bytes - slice.len_bytes;
        let mut parts = Slices::new();
        for piece in moved {
            let passed = head_bytes.min(piece.len_bytes);
            head_bytes -= passed;
            if passed < piece.len_bytes {
                parts.push(piece.part(passed, piece.len_bytes - passed));
            }
        }
        Ok(Some(parts))
    }
}

/// Most bytes of the length of a key in a bundle.
const BUNDLE_HEAD_BYTES_MAX: usize = 3;

impl From<RelocateError> for MetaError {
    fn from(e: RelocateError) -> Self {
        match e {
            RelocateError::Schema(e) => MetaError::Schema(e),
            RelocateError::Log(e) => MetaError::Log(e),
        }
    }
}
