//! Copying by pointers: two files share the slices, and no data is read or written.

use warpfire_format::fs::{Inode, InodeContent, REGION_BYTES, decode_region};
use warpfire_meta::{Admit, Storage};

use super::check_regular;
use super::piece::FilePiece;
use super::write::check_end;
use crate::acl::Caller;
use crate::attrs::missing_record;
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::REGIONS_PER_COMMIT;
use crate::node::{Layout, Node, NodeRef, NodeState, StateReadGuard, StateWriteGuard};
use crate::op::{HeapBytes, Operation, RecordedCaller, ReplayScene};
use crate::scratch::Scratch;
use crate::slice::YankLimit;

const REGION: u64 = REGION_BYTES as u64;

/// Most bytes that one call copies. Both ends may be in the middle of a region: two regions more than it
/// fills.
const COPY_BYTES_MAX: u64 = (REGIONS_PER_COMMIT as u64 - 2) * REGION;

impl<E: Storage> Fs<E> {
    /// Copies a range of one file over a range of another, or of the same file, holes included, in one
    /// commit. Returns the number of bytes. That is less than `len` at the end of the source, and above 2^18
    /// regions.
    ///
    /// # Errors
    /// `Invalid` if both ranges are of one file and overlap; `ForeignFile`; otherwise as `write`.
    pub fn copy_range(
        &self,
        caller: &Caller<'_>,
        from: (&NodeRef, u64),
        to: (&NodeRef, u64),
        len: u64,
    ) -> Result<u64, FsError> {
        self.check_own(from.0)?;
        self.check_own(to.0)?;
        let record = || CopyRange {
            caller: RecordedCaller::of(caller),
            from: (from.0.ino(), from.1),
            to: (to.0.ino(), to.1),
            len,
        };
        self.call(record, || {
            let ((source, start), (target, at)) = (from, to);
            check_regular(source)?;
            check_regular(target)?;
            let same = source.ino() == target.ino();
            let len = self.change_with_pin(|| {
                // The source's slices stay where they are until the commit counts the target's references.
                let _pin = self.pin_to_commit()?;
                let (source_state, mut target_state) = lock_both(source, target);
                let size =
                    source_state.as_deref().map_or(target_state.attrs.size_bytes, |s| s.attrs.size_bytes);
                let len = len.min(size.saturating_sub(start)).min(COPY_BYTES_MAX);
                if len == 0 {
                    return Ok(0);
                }
                let end = check_end(at, len)?;
                if same && start < end && at < start + len {
                    return Err(FsError::Invalid("source and target overlap"));
                }
                // The values are read under the lock of both files: the target gets the source of one moment.
                let values = self.values_of(
                    source,
                    source_state.as_deref().unwrap_or(&target_state),
                    start,
                    start + len,
                )?;
                let pieces = pieces_of(&values, start, start + len, at)?;
                let mut scratch = Scratch::take();
                let edit = self.edit_of_write(caller, target, &target_state, &mut scratch.batch);
                let size_after = target_state.attrs.size_bytes.max(end);
                self.apply_pieces(
                    target,
                    &mut target_state,
                    &pieces,
                    size_after,
                    edit,
                    &mut scratch.batch,
                    Admit::User,
                )?;
                Ok(len)
            })?;
            if len > 0 {
                // This locks the source again.
                self.renew_atime_if_due(source)?;
            }
            Ok(len)
        })
    }

    /// The values with the extents of a range, by index of their region.
    ///
    /// # Errors
    /// `FileTooLarge` for more than 2^18 regions; `Damaged`.
    pub(crate) fn values_of(
        &self,
        node: &Node,
        state: &NodeState,
        start: u64,
        end: u64,
    ) -> Result<Vec<(u64, ExtentsValue)>, FsError> {
        self.values_within(node, state, start, end, YankLimit::NONE)
    }

    /// As `values_of`, within a limit of memory.
    pub(crate) fn values_within(
        &self,
        node: &Node,
        state: &NodeState,
        start: u64,
        end: u64,
        limit: YankLimit,
    ) -> Result<Vec<(u64, ExtentsValue)>, FsError> {
        if state.layout == Layout::Inline {
            return Ok(vec![(0, ExtentsValue::Record(self.record(node, state)?))]);
        }
        let mut values = Vec::new();
        let (mut runs, mut bytes) = (0usize, 0usize);
        self.for_each_region(node.ino(), start / REGION, end.div_ceil(REGION), &mut |index, value| {
            if limit != YankLimit::NONE {
                runs += decode_region(value, false)?.iter().count();
                bytes += value.len();
            }
            if values.len() == REGIONS_PER_COMMIT || runs > limit.runs || bytes > limit.bytes {
                return Err(FsError::FileTooLarge);
            }
            values.push((index, ExtentsValue::Region(value.to_vec())));
            Ok(true)
        })?;
        Ok(values)
    }
}

/// A value with extents in it.
pub(crate) enum ExtentsValue {
    Record(Vec<u8>),
    Region(Vec<u8>),
}

/// The pieces of a range, moved so that the range begins at `at`. Holes are pieces too, so the pieces leave
/// nothing out.
pub(crate) fn pieces_of(
    values: &[(u64, ExtentsValue)],
    start: u64,
    end: u64,
    at: u64,
) -> Result<Vec<FilePiece<'_>>, FsError> {
    // `done` is the end of the last piece. A piece that begins later has a hole before it.
    let mut pieces = Vec::new();
    let mut done = start;
    let hole_until = |pieces: &mut Vec<FilePiece<'_>>, until: u64, done: u64| {
        if until > done {
            pieces.push(FilePiece::hole(done - start + at, until - done));
        }
    };
    for (index, value) in values {
        let map = match value {
            ExtentsValue::Region(value) => decode_region(value, false)?,
            ExtentsValue::Record(value) => match Inode::decode(value)?.content {
                InodeContent::Small(extents) => extents.to_map()?,
                _ => return Err(missing_record()),
            },
        };
        for extent in map.iter() {
            // A reserved range reads as zeros: its copy is a hole.
            let part = FilePiece::of_extent(*index, extent).clip(start, end);
            let Some(part) = part.filter(|part| !part.is_reserved()) else { continue };
            debug_assert!(done <= part.offset, "extents are in order");
            hole_until(&mut pieces, part.offset, done);
            done = part.end();
            pieces.push(FilePiece { offset: part.offset - start + at, ..part });
        }
    }
    hole_until(&mut pieces, end, done);
    debug_assert_eq!(
        pieces.iter().map(|piece| piece.len).sum::<u64>(),
        end.saturating_sub(start),
        "the pieces cover the range"
    );
    Ok(pieces)
}

/// Locks the states of both files, in the order of inode numbers that all calls keep. If they are one file,
/// only the second state is locked.
fn lock_both<'a>(source: &'a Node, target: &'a Node) -> (Option<StateReadGuard<'a>>, StateWriteGuard<'a>) {
    if source.ino() == target.ino() {
        return (None, target.state.write());
    }
    if source.ino() < target.ino() {
        let source = source.state.read();
        return (Some(source), target.state.write());
    }
    let target = target.state.write();
    (Some(source.state.read()), target)
}

/// The journal's form of [`Fs::copy_range`].
struct CopyRange {
    caller: RecordedCaller,
    from: (u64, u64),
    to: (u64, u64),
    len: u64,
}

impl<E: Storage> Operation<Fs<E>> for CopyRange {
    fn name(&self) -> &'static str {
        "copy a range"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.to.0, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let from = scene.node(self.from.0)?;
        let to = scene.node(self.to.0)?;
        fs.copy_range(&self.caller.get(), (from, self.from.1), (to, self.to.1), self.len).map(drop)
    }
}
