//! Reading files.
//!
//! # Terms
//! A read *decides* a byte of its buffer when it has copied it, zeroed it, or noted which slice it comes
//! from.
//!
//! # Invariants
//! 1. Pointers are read under a pin, which lives until their bytes have been read (`plan_reads`,
//!    `read_file`). So no commit and no cleaning frees bytes that a read still needs (`tests::engine`,
//!    `tests::threads`).
//! 2. `ReadFill` decides bytes in order: the extents of a value are sorted (asserts in `place` and
//!    `into_reads`). What no extent covers is zero.
//! 3. `read_files` holds no lock while it reads slices, so a slow device stops no writer and no commit.
//!    Inside a transaction its other calls go on (`read_in_transaction`; `tests::slow_reads`).

use std::hash::{Hash, Hasher};

use warpfire_format::fs::{
    Dentry, Extent, ExtentReader, ExtentSource, FileKind, Inode, InodeContent, REGION_BYTES, region_extents,
    volume_of,
};
use warpfire_meta::{Pin, SliceRead, Storage, WantedBytes};
use warpfire_units::SlicePtr;

use super::check_regular;
use super::defragment::{FragmentedRegion, is_fragmented};
use crate::acl::{Caller, Perm};
use crate::attrs::missing_record;
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::{dentry_key, inode_key, region_key};
use crate::limits::WHOLE_FILE_BYTES_MAX;
use crate::node::{Layout, NameBuf, Node, NodeLookup, NodeRef, NodeState, check_name};
use crate::op::{
    Digestible, HeapBytes, Operation, PureRead, RecordedCaller, ReplayScene, digest_of_bytes, new_hasher,
};
use crate::scratch::Scratch;
use crate::stamp::stamp;

/// A buffer that is being filled: inline bytes are copied at once, slices are noted for the store.
pub(super) struct ReadFill<'b> {
    buf: &'b mut [u8],
    /// Offset in the file of the buffer's first byte.
    start: u64,
    /// Bytes of the buffer that are decided.
    done: usize,
    /// Slices to read, each with its offset in the buffer, in order.
    wanted: Vec<(usize, SlicePtr)>,
    fragmented: Vec<FragmentedRegion>,
    /// Number of this read among those that one call makes together.
    read: usize,
}

impl<'b> ReadFill<'b> {
    pub(super) fn new(buf: &'b mut [u8], start: u64, read: usize) -> Self {
        ReadFill { buf, start, done: 0, wanted: Vec::new(), fragmented: Vec::new(), read }
    }

    /// Takes the parts of extents that fall into the buffer. `base` is the offset in the file at which the
    /// extents' region begins.
    fn take(&mut self, base: u64, extents: ExtentReader<'_>) -> Result<(), FsError> {
        let end = self.start + self.buf.len() as u64;
        for extent in extents {
            let extent = extent?;
            if base + u64::from(extent.end()) <= self.start {
                continue;
            }
            if base + u64::from(extent.offset) >= end {
                // Extents are sorted: none of the others falls into the buffer.
                break;
            }
            let narrow = |n: u64| u32::try_from(n).expect("places in a region fit 32 bits");
            let from = narrow(self.start.saturating_sub(base));
            let to = narrow((end - base).min(u64::from(u32::MAX)));
            self.place(base, &extent.clip(from, to));
        }
        Ok(())
    }

    /// Notes the region with this index if it is fragmented. Its slices are in `wanted` from number `before`
    /// on.
    fn note_fragmentation(&mut self, index: u64, before: usize, value: &[u8]) {
        let pieces = self.wanted.get(before..).unwrap_or_default();
        let read_bytes = pieces.iter().map(|(_, slice)| u64::from(slice.len_bytes)).sum();
        if is_fragmented(pieces.len(), read_bytes) {
            self.fragmented.push(FragmentedRegion {
                index,
                value: value.to_vec(),
                read_bytes,
                read: self.read,
            });
        }
    }

    fn place(&mut self, base: u64, part: &Extent<'_>) {
        let at = usize::try_from(base + u64::from(part.offset) - self.start).expect("inside the buffer");
        let end = at + part.len as usize;
        debug_assert!(self.done <= at, "the extents of a value are sorted");
        self.zero_until(at);
        let Some(place) = self.buf.get_mut(at..end) else {
            unreachable!("the part is clipped to the buffer")
        };
        match part.source {
            ExtentSource::Bytes(bytes) => place.copy_from_slice(bytes),
            ExtentSource::Hole | ExtentSource::Reserved => place.fill(0),
            ExtentSource::Slice(segment, offset_bytes) => {
                self.wanted.push((at, SlicePtr { segment, offset_bytes, len_bytes: part.len }));
            }
        }
        self.done = end;
    }

    /// Zeros the bytes that are not decided yet, up to `end`: they are in a hole.
    fn zero_until(&mut self, end: usize) {
        if let Some(hole) = self.buf.get_mut(self.done..end) {
            hole.fill(0);
        }
        self.done = self.done.max(end);
    }

    /// The slices that the buffer needs, each with its offset in the buffer, in order.
    pub(super) fn into_slices(self) -> Vec<(usize, SlicePtr)> {
        self.wanted
    }

    /// Adds a read to `reads` for each slice, into its part of the buffer. The rest of the buffer is filled.
    fn into_reads(mut self, reads: &mut Vec<SliceRead<'b>>) {
        self.zero_until(self.buf.len());
        debug_assert_eq!(self.done, self.buf.len(), "every byte of the buffer is decided");
        // The buffer is split as the slices need it, so that the store can fill all parts at the same time.
        let mut rest = self.buf;
        let mut at = 0;
        for (start, slice) in self.wanted {
            debug_assert!(at <= start, "slices are noted in the order of the buffer");
            let (_, tail) = rest.split_at_mut(start - at);
            let (place, tail) = tail.split_at_mut(slice.len_bytes as usize);
            reads.push((slice, place));
            at = start + slice.len_bytes as usize;
            rest = tail;
        }
    }
}

/// Reads whose pointers are known, and whose bytes are not read yet.
struct PlannedReads<'r> {
    /// Slices to read, each into its part of a buffer.
    slices: Vec<SliceRead<'r>>,
    /// Fragmented regions that the reads have met.
    fragmented: Vec<FragmentedRegion>,
    /// Keeps the slices' bytes.
    pin: Pin,
}

/// One read of several that a call makes together.
#[derive(Debug)]
pub struct ReadAt<'b> {
    /// Offset in the file of the first byte.
    pub offset: u64,
    /// The buffer to fill.
    pub buf: &'b mut [u8],
    /// Bytes that were filled; fewer than the buffer has only at the end of the file. The call sets it.
    pub len: usize,
}

impl<'b> ReadAt<'b> {
    /// A read to make.
    #[must_use]
    pub fn new(offset: u64, buf: &'b mut [u8]) -> Self {
        ReadAt { offset, buf, len: 0 }
    }
}

impl<E: Storage> Fs<E> {
    /// Fills `buf` from `offset` on. Returns the number of bytes, which is less than `buf` has only at the
    /// end of the file.
    ///
    /// # Errors
    /// `IsDirectory`; `Invalid` for a node without content; `Damaged` if bytes cannot be read: a read never
    /// returns wrong bytes.
    pub fn read(&self, node: &NodeRef, offset: u64, buf: &mut [u8]) -> Result<usize, FsError> {
        let mut read = ReadAt::new(offset, buf);
        self.read_many(node, std::slice::from_mut(&mut read))?;
        Ok(read.len)
    }

    /// Makes many reads of one file as of one moment. The devices get them as one batch.
    ///
    /// # Errors
    /// As `read`; some buffers may have been filled then.
    pub fn read_many(&self, node: &NodeRef, reads: &mut [ReadAt<'_>]) -> Result<(), FsError> {
        if self.call_gate.is_transaction() {
            return self.read_in_transaction(node, reads);
        }
        self.read_files(&mut [(node, reads)])
    }

    /// Whether `read_files` may make reads of so many bytes by different callers together: none of them waits
    /// for a device that another one needs and that does not answer.
    #[must_use]
    pub fn may_read_together(&self, len_bytes: usize) -> bool {
        !self.call_gate.is_transaction() && self.engine.may_share_batch(len_bytes)
    }

    /// Makes reads of many files, of each as of one moment. The devices get all of them as one batch. Not for
    /// transactions, which record the reads of each file.
    ///
    /// # Errors
    /// As `read`, for one of the reads that fail; some buffers may have been filled then.
    pub fn read_files(&self, files: &mut [(&NodeRef, &mut [ReadAt<'_>])]) -> Result<(), FsError> {
        assert!(!self.call_gate.is_transaction(), "a transaction records the reads of each file");
        let guard = self.call_gate.enter();
        let mut slices = Vec::new();
        let mut planned = Vec::with_capacity(files.len());
        for (node, reads) in &mut *files {
            let PlannedReads { slices: mut of_file, fragmented, pin } = self.plan_reads(node, reads)?;
            slices.append(&mut of_file);
            planned.push((fragmented, pin));
        }
        // No lock from here on: the pins keep the bytes where they are.
        drop(guard);
        if planned.len() > 1 {
            // Readers of small files beside each other share a read-ahead, as if each read alone.
            slices.retain_mut(|read| !self.engine.read_ahead(read));
        }
        self.engine.read(&mut slices)?;
        // Under the pins: it copies by the pointers that were read above.
        for ((node, reads), (fragmented, _)) in files.iter_mut().zip(&planned) {
            self.defragment(node, fragmented, reads);
        }
        // A change may wait for room that pins keep.
        drop(planned);
        for (node, reads) in files {
            if reads.iter().any(|read| read.len > 0) {
                self.renew_atime_if_due(node)?;
            }
        }
        Ok(())
    }

    /// As `read_many`. The transaction's other calls go on while the devices are read. A transaction neither
    /// defragments nor keeps access times.
    fn read_in_transaction(&self, node: &NodeRef, reads: &mut [ReadAt<'_>]) -> Result<(), FsError> {
        let call = self.call_gate.enter_to_leave(|| stamp(self.clock.now()));
        let ranges = reads.iter().map(|read| (read.offset, read.buf.len())).collect();
        let planned = self.plan_reads(node, reads);
        let call = call.leave(|| ReadRanges { node: node.ino(), ranges });
        let done = planned.and_then(|mut planned| Ok(self.engine.read(&mut planned.slices)?));
        let answer = done.map(|()| BytesDigest::of(reads));
        call.answer(&answer);
        answer.map(drop)
    }

    /// Fills what needs no device, and returns what does. The caller is in the gate.
    fn plan_reads<'r>(&self, node: &Node, reads: &'r mut [ReadAt<'_>]) -> Result<PlannedReads<'r>, FsError> {
        check_regular(node)?;
        debug_assert!(self.call_gate.is_entered(), "pointers are read inside a call");
        // The pin comes before the pointers are read: a write that replaces them cannot free their bytes.
        let pin = self.engine.pin()?;
        let state = node.state.read();
        let mut slices = Vec::with_capacity(reads.len());
        let mut fragmented = Vec::new();
        for (number, read) in reads.iter_mut().enumerate() {
            let left = state.attrs.size_bytes.saturating_sub(read.offset);
            read.len = usize::try_from(left).unwrap_or(usize::MAX).min(read.buf.len());
            let Some(buf) = read.buf.get_mut(..read.len).filter(|b| !b.is_empty()) else { continue };
            let mut fill = ReadFill::new(buf, read.offset, number);
            self.read_from_state(node, &state, &mut fill)?;
            fragmented.append(&mut fill.fragmented);
            fill.into_reads(&mut slices);
        }
        Ok(PlannedReads { slices, fragmented, pin })
    }

    pub(super) fn read_from_state(
        &self,
        node: &Node,
        state: &NodeState,
        fill: &mut ReadFill<'_>,
    ) -> Result<(), FsError> {
        let key = state.record_key(node.ino()).ok_or(FsError::Gone)?;
        if state.layout == Layout::Regions {
            return self.read_from_regions(node.ino(), fill);
        }
        let mut scratch = Scratch::take();
        let wanted = match fill.start {
            0 if fill.buf.len() as u64 >= state.attrs.size_bytes => self.wanted_whole(),
            // A reader of the first part of a file mostly reads the others.
            0 => WantedBytes::InParts,
            _ => WantedBytes::IfKept,
        };
        if !self.get_with_bytes(&key, wanted, &mut scratch.value)? {
            return Err(missing_record());
        }
        match Inode::decode(&scratch.value)?.content {
            InodeContent::Small(extents) => fill.take(0, extents),
            _ => Err(missing_record()),
        }
    }

    /// How a reader of a whole small file wants its bytes.
    fn wanted_whole(&self) -> WantedBytes {
        if self.options.keeps_files { WantedBytes::Again } else { WantedBytes::Now }
    }

    fn read_from_regions(&self, ino: u64, fill: &mut ReadFill<'_>) -> Result<(), FsError> {
        let region = u64::from(REGION_BYTES);
        let end = fill.start + fill.buf.len() as u64;
        let mut scratch = Scratch::take();
        for index in fill.start / region..end.div_ceil(region) {
            if self.get(&region_key(ino, index), &mut scratch.value)? {
                let before = fill.wanted.len();
                fill.take(index * region, region_extents(&scratch.value, false)?)?;
                fill.note_fragmentation(index, before, &scratch.value);
            }
        }
        Ok(())
    }

    /// Reads a whole regular file by name. A file that is inline costs one read of its name, which brings its
    /// bytes if they lie with it, and no node is made for it.
    ///
    /// # Errors
    /// As `lookup`, `access` and `read`; `FileTooLarge` above 4 GiB: read such a file in parts.
    pub fn read_file(&self, caller: &Caller<'_>, dir: &NodeRef, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let record =
            || ReadWholeFile { caller: RecordedCaller::of(caller), dir: dir.ino(), name: name.into() };
        self.call(record, || {
            check_name(name)?;
            if !dir.is_dir() {
                return Err(FsError::NotDirectory);
            }
            self.access(caller, dir, Perm::EXECUTE)?;
            // The pin comes before the record with the pointers is read, as in `plan_reads`.
            let pin = self.engine.pin()?;
            let mut scratch = Scratch::take();
            let Scratch { value, other, .. } = &mut *scratch;
            let key = dentry_key(dir.ino(), name);
            let watch = self.version_counters.watch(&key);
            if !self.get_with_bytes(&key, self.wanted_whole(), value)? {
                return Err(FsError::NotFound);
            }
            let mut is_of_name = true;
            let inode = match Dentry::decode(value)?.in_volume(volume_of(dir.ino())) {
                Dentry::Embedded(inode) if matches!(inode.content, InodeContent::Small(_)) => inode,
                Dentry::Reference(_, ino)
                    if self.get_with_bytes(&inode_key(ino), self.wanted_whole(), other)? =>
                {
                    is_of_name = false;
                    Inode::decode(other)?.in_volume(volume_of(ino))
                }
                _ => return self.read_node(caller, dir, name),
            };
            // A file that is not inline, or not regular, goes the general way through a node.
            let InodeContent::Small(extents) = inode.content else {
                return self.read_node(caller, dir, name);
            };
            self.permit(caller, inode.ino, &inode.attrs, Perm::READ)?;
            let mut bytes =
                vec![0; usize::try_from(inode.attrs.size_bytes).expect("a small file fits memory")];
            let mut fill = ReadFill::new(&mut bytes, 0, 0);
            fill.take(0, extents)?;
            let mut slices = Vec::new();
            fill.into_reads(&mut slices);
            self.engine.read(&mut slices)?;
            drop(pin);
            if self.atime_is_due(&inode.attrs) {
                // The record that was read makes the node, so that no other block is read for it.
                let by = (dir.ino(), name);
                let found = is_of_name.then(|| self.node_of_name(&inode, watch, by));
                let node = match found {
                    Some(NodeLookup::Node(node)) => Some(node),
                    _ => self.find(dir.ino(), name)?,
                };
                node.map_or(Ok(()), |node| self.renew_atime_if_due(&node))?;
            }
            Ok(bytes)
        })
    }

    /// As `read_file`, for files that are not inline.
    fn read_node(&self, caller: &Caller<'_>, dir: &NodeRef, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let node = self.find(dir.ino(), name)?.ok_or(FsError::NotFound)?;
        if node.kind() == FileKind::Symlink {
            return Err(FsError::Invalid("a symbolic link is followed by path"));
        }
        check_regular(&node)?;
        self.access(caller, &node, Perm::READ)?;
        let size = self.getattr(&node).size_bytes;
        let size = usize::try_from(size).ok().filter(|size| *size <= WHOLE_FILE_BYTES_MAX);
        let mut bytes = vec![0; size.ok_or(FsError::FileTooLarge)?];
        // The file may have become shorter since its size was read.
        let len = self.read(&node, 0, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }
}

/// The journal's form of [`Fs::read_many`].
struct ReadRanges {
    node: u64,
    /// Offset and length of each read, in bytes.
    ranges: Box<[(u64, usize)]>,
}

impl<E: Storage> Operation<Fs<E>> for ReadRanges {
    fn name(&self) -> &'static str {
        "read"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.ranges.heap_bytes()
    }

    fn pure_read(&self) -> Option<PureRead> {
        let start = self.ranges.iter().map(|(offset, _)| *offset).min()?;
        let end = self.ranges.iter().map(|(offset, len)| offset.saturating_add(*len as u64)).max()?;
        Some(PureRead { ino: self.node, bytes: Some((start, end)) })
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let mut buffers: Vec<Vec<u8>> = self.ranges.iter().map(|(_, len)| vec![0; *len]).collect();
        let offsets = self.ranges.iter().map(|(offset, _)| *offset);
        let mut reads: Vec<ReadAt<'_>> =
            offsets.zip(&mut buffers).map(|(offset, buf)| ReadAt::new(offset, buf)).collect();
        fs.read_many(scene.node(self.node)?, &mut reads)
    }
}

/// The journal's form of [`Fs::read_file`].
struct ReadWholeFile {
    caller: RecordedCaller,
    dir: u64,
    name: NameBuf,
}

impl<E: Storage> Operation<Fs<E>> for ReadWholeFile {
    fn name(&self) -> &'static str {
        "read"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.dir, &self.name)
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.name.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.read_file(&self.caller.get(), scene.node(self.dir)?, &self.name).map(drop)
    }
}

/// A digest of the bytes in the caller's buffers.
struct BytesDigest(u64);

impl BytesDigest {
    fn of(reads: &[ReadAt<'_>]) -> BytesDigest {
        let mut state = new_hasher();
        for read in reads {
            (read.len, digest_of_bytes(read.buf.get(..read.len).unwrap_or_default())).hash(&mut state);
        }
        BytesDigest(state.finish())
    }
}

impl Digestible for BytesDigest {
    fn add_to(&self, state: &mut impl Hasher) {
        self.0.hash(state);
    }
}
