//! The spool: the part of a stream that has arrived.
//!
//! ```text
//!   /.receive/NAME/data      bytes of files          grows with each frame of data
//!                  records   records                 grows with each frame of records
//!                  state     `ReceiveState`          replaced at each mark, then durable
//!                  tree      the tree of a full stream, while it is built
//!                  stash     files without a name in it
//! ```
//!
//! # Invariants
//! 1. `data` and `records` are at least as long as the state says. Anything behind that is cut off when the
//!    stream goes on (`Receiver::open_spool`).
//! 2. `counted` counts the content of both files; `state` counts as the last mark did.

use std::sync::Arc;

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::stream::{
    FRAME_HEADER_BYTES, FrameHeader, FrameKind, ReceiveState, StreamEnd, StreamHeader, StreamMark,
    StreamRecords,
};
use warpfire_meta::{SnapshotStore, Storage};

use super::ReceiveError;
use super::error::words;
use super::removal::remove_tree;
use super::target::ReceiveTarget;
use crate::acl::Caller;
use crate::attrs::NewMode;
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::NodeRef;
use crate::transfer::{RECEIVE_NAME, STREAM_MARK_BYTES, StreamHasher};

pub(super) const DATA: &[u8] = b"data";
pub(super) const RECORDS: &[u8] = b"records";
pub(super) const STATE: &[u8] = b"state";
pub(super) const TREE: &[u8] = b"tree";
pub(super) const STASH: &[u8] = b"stash";

/// Most bytes of a stream without a mark. A sender puts one after `STREAM_MARK_BYTES` and the rest of a
/// record.
const UNMARKED_BYTES_MAX: u64 = 8 * STREAM_MARK_BYTES;

const ROOT: Caller<'static> = Caller::ROOT;

/// Receives one stream for one directory.
pub struct Receiver<E: Storage> {
    pub(super) fs: Arc<Fs<E>>,
    pub(super) target: ReceiveTarget,
    /// The name that the receiver's snapshot shall have.
    pub(super) keeps_as: Option<Vec<u8>>,
    pub(super) state: Option<ReceiveState>,
    spool: Option<Spool>,
    stage: Stage,
    buffer: Vec<u8>,
    hasher: StreamHasher,
    counted: StreamMark,
    record_bytes: u64,
    unmarked_bytes: u64,
    /// Only with a planted bug: what the state counts and the spool does not have yet.
    delayed: Vec<(FrameKind, Vec<u8>)>,
}

/// The directory and files of a spool.
pub(super) struct Spool {
    pub(super) dir: NodeRef,
    pub(super) data: NodeRef,
    records: NodeRef,
}

/// What a receiver waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Stage {
    /// The header.
    Header,
    /// After a header: the mark at which the stream goes on.
    Continuation,
    /// Anything but a header.
    Body,
    /// Nothing: the stream is whole.
    Complete,
}

impl<E: Storage + SnapshotStore> Fs<E> {
    /// Begins to receive a stream for a directory, or to receive the rest of one. The receiver's own snapshot
    /// gets the name `keeps_as`, or that of the sender's.
    ///
    /// # Errors
    /// `Damaged` if the state of an earlier stream does not decode; `SnapshotTaken`.
    pub fn receive(
        self: &Arc<Self>,
        target: &ReceiveTarget,
        keeps_as: Option<&[u8]>,
    ) -> Result<Receiver<E>, ReceiveError> {
        if let Some(name) = keeps_as {
            match self.snapshot(name) {
                Ok(_) => return Err(ReceiveError::SnapshotTaken(words(name))),
                Err(FsError::NotFound) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let state = self.receive_state(target)?;
        let stage = if state.as_ref().is_some_and(|state| state.is_complete) {
            Stage::Complete
        } else {
            Stage::Header
        };
        Ok(Receiver {
            fs: Arc::clone(self),
            target: target.clone(),
            keeps_as: keeps_as.map(<[u8]>::to_vec),
            state,
            spool: None,
            stage,
            buffer: Vec::new(),
            hasher: StreamHasher::new(),
            counted: StreamMark { records: 0, data_bytes: 0, hash: [0; 32] },
            record_bytes: 0,
            unmarked_bytes: 0,
            delayed: Vec::new(),
        })
    }

    /// How far a stream for this directory is received; `None` if none is begun.
    ///
    /// # Errors
    /// `Damaged` if the state does not decode.
    pub fn receive_state(&self, target: &ReceiveTarget) -> Result<Option<ReceiveState>, ReceiveError> {
        let spool = self.lookup(&ROOT, &self.root(), RECEIVE_NAME);
        let spool = spool.and_then(|all| self.lookup(&ROOT, &all, &target.spool_name()));
        let bytes = match spool.and_then(|spool| self.read_file(&ROOT, &spool, STATE)) {
            Err(FsError::NotFound) => return Ok(None),
            // A crash came between the making of the file and its first content.
            Ok(bytes) if bytes.is_empty() => return Ok(None),
            read => read?,
        };
        Ok(Some(ReceiveState::decode(&bytes).map_err(FsError::from)?))
    }

    /// Drops the part of a stream that is received for this directory. `false` if there is nothing.
    ///
    /// # Errors
    /// `ReadOnly`, `Damaged`.
    pub fn abort_receive(&self, target: &ReceiveTarget) -> Result<bool, FsError> {
        let all = match self.lookup(&ROOT, &self.root(), RECEIVE_NAME) {
            Err(FsError::NotFound) => return Ok(false),
            found => found?,
        };
        let name = target.spool_name();
        match self.lookup(&ROOT, &all, &name) {
            Err(FsError::NotFound) => return Ok(false),
            found => drop(found?),
        }
        remove_tree(self, &all, &name)?;
        self.remove_empty_receive_directory();
        self.sync()?;
        Ok(true)
    }

    /// Removes the directory of all spools, if it is empty.
    pub(super) fn remove_empty_receive_directory(&self) {
        // Another spool keeps it, and a failed pool: the next receiver finds it again.
        let _ = self.rmdir(&ROOT, &self.root(), RECEIVE_NAME);
    }

    /// The directory of this name; made if it does not exist.
    pub(super) fn directory_in(&self, dir: &NodeRef, name: &[u8]) -> Result<NodeRef, FsError> {
        match self.mkdir(&ROOT, dir, name, NewMode::exact(0o700)) {
            Err(FsError::Exists) => self.lookup(&ROOT, dir, name),
            made => made,
        }
    }

    fn file_in(&self, dir: &NodeRef, name: &[u8]) -> Result<NodeRef, FsError> {
        match self.create(&ROOT, dir, name, NewMode::exact(0o600)) {
            Err(FsError::Exists) => self.lookup(&ROOT, dir, name),
            made => made,
        }
    }
}

impl<E: Storage + SnapshotStore> Receiver<E> {
    /// What the stream holds, once its header is here.
    #[must_use]
    pub fn header(&self) -> Option<&StreamHeader> {
        self.state.as_ref().map(|state| &state.header)
    }

    /// Whether the whole stream is here.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.stage == Stage::Complete
    }

    /// Bytes of files that are here.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.counted.data_bytes
    }

    /// The next bytes of the stream, in parts of any length.
    ///
    /// # Errors
    /// See [`ReceiveError`]. Everything up to the last mark stays.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), ReceiveError> {
        if !bytes.is_empty() && self.stage == Stage::Complete {
            return Err(ReceiveError::Trailing);
        }
        self.buffer.extend_from_slice(bytes);
        let buffer = std::mem::take(&mut self.buffer);
        let mut rest = buffer.as_slice();
        while let Some(head) = rest.first_chunk::<FRAME_HEADER_BYTES>() {
            if self.stage == Stage::Complete {
                return Err(ReceiveError::Trailing);
            }
            let header = FrameHeader::decode(head).map_err(|e| self.of_frame(e))?;
            let Some((frame, behind)) = rest.split_at_checked(FRAME_HEADER_BYTES + header.payload_bytes)
            else {
                break;
            };
            self.take_frame(frame)?;
            rest = behind;
        }
        if self.stage == Stage::Complete && !rest.is_empty() {
            return Err(ReceiveError::Trailing);
        }
        let left = rest.len();
        self.buffer = buffer;
        self.buffer.drain(..self.buffer.len() - left);
        Ok(())
    }

    /// The error of bytes that are no frame.
    fn of_frame(&self, e: warpfire_format::Corrupt) -> ReceiveError {
        if self.stage == Stage::Header { ReceiveError::NoStream } else { ReceiveError::of_bytes(e) }
    }

    fn take_frame(&mut self, frame: &[u8]) -> Result<(), ReceiveError> {
        let (FrameHeader { kind, .. }, payload) = FrameHeader::verify(frame).map_err(|e| self.of_frame(e))?;
        match (&self.stage, kind) {
            (Stage::Header, FrameKind::Header) => return self.take_header(frame, payload),
            (Stage::Header, _) => return Err(ReceiveError::NoStream),
            (_, FrameKind::Header) => return Err(ReceiveError::Damaged("a second header")),
            (Stage::Continuation, FrameKind::Mark) => return self.take_continuation(frame, payload),
            (Stage::Continuation, _) if self.state.as_ref().is_some_and(|state| state.mark.records > 0) => {
                return Err(ReceiveError::Begun);
            }
            _ => self.stage = Stage::Body,
        }
        match kind {
            FrameKind::Header => unreachable!("headers were taken above"),
            FrameKind::Data => self.take_data(payload)?,
            FrameKind::Records => self.take_records(payload)?,
            FrameKind::Mark => return self.take_mark(frame, payload),
            FrameKind::End => return self.take_end(payload),
        }
        self.hasher.update(frame);
        self.unmarked_bytes += frame.len() as u64;
        if self.unmarked_bytes > UNMARKED_BYTES_MAX { Err(ReceiveError::NoMark) } else { Ok(()) }
    }

    fn take_header(&mut self, frame: &[u8], payload: &[u8]) -> Result<(), ReceiveError> {
        let header = StreamHeader::decode(payload).map_err(ReceiveError::of_bytes)?;
        match &self.state {
            Some(state) if state.header != header => {
                return Err(ReceiveError::OtherStream(words(&state.header.snapshot.name)));
            }
            Some(_) => {}
            None => {
                // Before anything is kept: most refusals are known here.
                self.check_target(&header)?;
                let mark = StreamMark { records: 0, data_bytes: 0, hash: [0; 32] };
                self.state = Some(ReceiveState { header, mark, record_bytes: 0, is_complete: false });
            }
        }
        self.hasher = StreamHasher::new();
        self.hasher.update(frame);
        self.stage = Stage::Continuation;
        Ok(())
    }

    fn take_continuation(&mut self, frame: &[u8], payload: &[u8]) -> Result<(), ReceiveError> {
        let mark = StreamMark::decode(payload).map_err(ReceiveError::of_bytes)?;
        let reached = self.state.as_ref().map(|state| state.mark);
        match reached.filter(|mark| mark.records > 0) {
            None => return Err(ReceiveError::NotBegun),
            Some(reached) if reached != mark => return Err(ReceiveError::OtherMark),
            Some(_) => {}
        }
        self.hasher = StreamHasher::after(&mark.hash);
        self.hasher.update(frame);
        self.stage = Stage::Body;
        Ok(())
    }

    /// The spool, opened at the first use.
    fn spool(&mut self) -> Result<&Spool, ReceiveError> {
        if self.spool.is_none() {
            self.spool = Some(self.open_spool()?);
        }
        Ok(self.spool.as_ref().expect("opened above"))
    }

    /// Opens the spool, and cuts off what the state does not count.
    fn open_spool(&mut self) -> Result<Spool, FsError> {
        let fs = &self.fs;
        let all = fs.directory_in(&fs.root(), RECEIVE_NAME)?;
        let attr = fs.getattr(&all);
        if (attr.uid, attr.mode & 0o077) != (0, 0) {
            return Err(FsError::Invalid("a user has made '/.receive' in the pool; remove it"));
        }
        let dir = fs.directory_in(&all, &self.target.spool_name())?;
        let (data, records) = (fs.file_in(&dir, DATA)?, fs.file_in(&dir, RECORDS)?);
        let state = self.state.as_ref().expect("a spool is opened after the header");
        for (file, len) in [(&data, state.mark.data_bytes), (&records, state.record_bytes)] {
            let has = fs.getattr(file).size_bytes;
            if has < len {
                return Err(FsError::Invalid("the spool is shorter than its state says"));
            }
            if has > len {
                fs.truncate(&ROOT, file, len)?;
            }
        }
        self.counted = state.mark;
        self.record_bytes = state.record_bytes;
        Ok(Spool { dir, data, records })
    }

    fn take_data(&mut self, payload: &[u8]) -> Result<(), ReceiveError> {
        self.keep(FrameKind::Data, payload)?;
        self.counted.data_bytes += payload.len() as u64;
        Ok(())
    }

    fn take_records(&mut self, payload: &[u8]) -> Result<(), ReceiveError> {
        let mut count = 0;
        for record in StreamRecords::new(payload) {
            record.map_err(ReceiveError::of_bytes)?;
            count += 1;
        }
        self.keep(FrameKind::Records, payload)?;
        self.counted.records += count;
        self.record_bytes += payload.len() as u64;
        Ok(())
    }

    /// Adds a payload to its file.
    fn keep(&mut self, kind: FrameKind, payload: &[u8]) -> Result<(), ReceiveError> {
        self.spool()?;
        if is_planted(PlantedBug::MarkBeforeBytes) {
            self.delayed.push((kind, payload.to_vec()));
            return Ok(());
        }
        self.append(kind, payload)
    }

    fn append(&mut self, kind: FrameKind, payload: &[u8]) -> Result<(), ReceiveError> {
        let spool = self.spool()?;
        let file = NodeRef::clone(if kind == FrameKind::Data { &spool.data } else { &spool.records });
        Ok(self.fs.append(&ROOT, &file, payload)?)
    }

    fn take_mark(&mut self, frame: &[u8], payload: &[u8]) -> Result<(), ReceiveError> {
        let mark = StreamMark::decode(payload).map_err(ReceiveError::of_bytes)?;
        self.check_counted(mark)?;
        self.store_state(mark, false)?;
        self.hasher = StreamHasher::after(&mark.hash);
        self.hasher.update(frame);
        self.unmarked_bytes = 0;
        Ok(())
    }

    fn take_end(&mut self, payload: &[u8]) -> Result<(), ReceiveError> {
        let StreamEnd { records, data_bytes, hash, .. } =
            StreamEnd::decode(payload).map_err(ReceiveError::of_bytes)?;
        let mark = StreamMark { records, data_bytes, hash };
        self.spool()?;
        self.check_counted(mark)?;
        self.store_state(mark, true)?;
        self.stage = Stage::Complete;
        Ok(())
    }

    fn check_counted(&mut self, mark: StreamMark) -> Result<(), ReceiveError> {
        if (mark.records, mark.data_bytes) != (self.counted.records, self.counted.data_bytes) {
            return Err(ReceiveError::Damaged("frames are missing"));
        }
        if mark.hash != self.hasher.hash() {
            return Err(ReceiveError::Damaged("its hash is another one"));
        }
        Ok(())
    }

    /// Makes everything durable that is here.
    fn store_state(&mut self, mark: StreamMark, is_complete: bool) -> Result<(), ReceiveError> {
        let record_bytes = self.record_bytes;
        let state = self.state.as_mut().expect("a header came before");
        *state = ReceiveState { mark, record_bytes, is_complete, ..state.clone() };
        let bytes = state.encode();
        let dir = NodeRef::clone(&self.spool()?.dir);
        let file = self.fs.file_in(&dir, STATE)?;
        // One commit: a crash leaves the old state or this one.
        self.fs.overwrite(&ROOT, &file, &bytes)?;
        self.fs.sync()?;
        for (kind, payload) in std::mem::take(&mut self.delayed) {
            self.append(kind, &payload)?;
        }
        Ok(())
    }

    /// Makes the spool's directory known without a stream: for a receiver that was complete from the start.
    pub(super) fn take_spool(&mut self) -> Result<Spool, ReceiveError> {
        self.spool()?;
        Ok(self.spool.take().expect("opened above"))
    }
}

impl Spool {
    pub(super) fn records(&self) -> &NodeRef {
        &self.records
    }
}
