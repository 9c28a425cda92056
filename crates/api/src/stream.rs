//! Snapshots as streams: sent to a file or through a pipe, and received by another pool.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use parking_lot::Mutex;
use rustix::io::Errno;
use warpfire_env::Timestamp;
use warpfire_format::fs::InodeTime;
use warpfire_fs::{
    BookmarkInfo, FsError, ReceiveError, ReceiveState, ReceiveTarget, STREAM_MARK_BYTES, SendBase, SendError,
    SendOrder, StreamFramer, StreamHeader, StreamSnapshot, Transaction,
};

use crate::consume_beside::consume_beside;
use crate::{Engine, Error, ErrorKind, Result, SnapshotInfo, Warpfire};

/// Why a part of a stream was not filled and written.
enum PartFailure {
    /// The bytes of its files cannot be read.
    Files(FsError),
    /// The next thread takes no more.
    Stopped,
    /// There is no thread.
    Thread(io::Error),
}

impl From<io::Error> for PartFailure {
    fn from(error: io::Error) -> Self {
        PartFailure::Thread(error)
    }
}

/// Bytes that a receiver reads at once.
const READ_BYTES: usize = 1 << 20;

/// What [`Warpfire::send`] sends besides the snapshot itself.
#[derive(Clone, Debug, Default)]
pub struct SendOptions {
    /// Send only the changes since this older snapshot, which the receiver has. A bookmark of it will do.
    pub since: Option<OsString>,
    /// Send only this directory of the snapshot.
    pub below: Option<PathBuf>,
}

/// A stream that was sent to its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SentStream {
    /// Bytes that were written.
    pub stream_bytes: u64,
    /// Bytes of files in the whole stream. Bytes that several files share are there once.
    pub data_bytes: u64,
    /// Files and directories that the receiver makes.
    pub made: u64,
    /// The hash of the whole stream, in hexadecimal digits. The receiver has the same one.
    pub hash: String,
}

/// A stream that was received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceivedStream {
    /// The snapshot of the sender, by name.
    pub sent: OsString,
    /// The snapshot of this pool that keeps the received state.
    pub snapshot: SnapshotInfo,
    /// Bytes of files in the stream.
    pub data_bytes: u64,
    /// The hash of the stream, in hexadecimal digits.
    pub hash: String,
}

/// How far a stream is received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceiveProgress {
    /// The snapshot of the sender, by name.
    pub sent: OsString,
    /// The name of the older snapshot, for the changes since one.
    pub since: Option<OsString>,
    /// Bytes of files that are received.
    pub data_bytes: u64,
    /// Whether the whole stream is received, and only the last step is left.
    pub is_complete: bool,
    /// What the sender needs to send the rest.
    pub token: ResumeToken,
}

/// The place at which a stream goes on, for [`Warpfire::resume_send`]. It is text: hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResumeToken(ReceiveState);

impl std::fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex(&self.0.encode()))
    }
}

impl FromStr for ResumeToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<ResumeToken> {
        let digits = text.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let is_whole = text.len().is_multiple_of(2) && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let bytes: Option<Vec<u8>> = if is_whole { digits.map(byte).collect() } else { None };
        let state = bytes.and_then(|bytes| ReceiveState::decode(&bytes).ok());
        state.map(ResumeToken).ok_or_else(|| {
            Error::invalid("this is no token of 'warpfire receive --token'")
                .with_hint("copy all of its digits")
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::StreamRefused, Errno::INVAL.raw_os_error(), message)
}

/// Directories for which a stream is received by this process.
#[derive(Default)]
pub(crate) struct ReceivingTargets(Mutex<BTreeSet<Vec<u8>>>);

/// Keeps other receivers from a directory.
struct TargetGuard<'a>(&'a ReceivingTargets, Vec<u8>);

impl ReceivingTargets {
    fn enter(&self, target: &ReceiveTarget) -> Result<TargetGuard<'_>> {
        let path = target.path();
        if !self.0.lock().insert(path.clone()) {
            return Err(
                refused("another stream for this directory arrives now").with_hint("wait for its end")
            );
        }
        Ok(TargetGuard(self, path))
    }
}

impl Drop for TargetGuard<'_> {
    fn drop(&mut self) {
        self.0.0.lock().remove(&self.1);
    }
}

/// The base of a stream, as this pool has it.
enum FoundBase {
    Snapshot(warpfire_fs::SnapshotInfo),
    Bookmark(BookmarkInfo),
}

impl FoundBase {
    fn sent(&self) -> SendBase<'_> {
        match self {
            FoundBase::Snapshot(found) => SendBase::Snapshot(found),
            FoundBase::Bookmark(found) => SendBase::Bookmark(found),
        }
    }

    /// Its number in the pool, and the time of the snapshot.
    fn moment(&self) -> (u64, Timestamp) {
        match self {
            FoundBase::Snapshot(found) => (found.seq.0, found.made),
            FoundBase::Bookmark(found) => (found.seq.0, found.made),
        }
    }
}

impl Warpfire {
    /// Sends a snapshot, or the changes since an older one, as a stream of bytes that another pool
    /// [receives](Warpfire::receive). The stream has names, content, holes, attributes, extended attributes
    /// and hard links. Bytes that several files share are sent once, and the receiver's files share them.
    ///
    /// ```
    /// use warpfire::{Pool, SendOptions};
    ///
    /// let (fs, backup) = (Pool::options().in_memory()?, Pool::options().in_memory()?);
    /// fs.write("/plan", b"first")?;
    /// fs.create_snapshot("monday")?;
    /// let mut stream = Vec::new();
    /// fs.send("monday", &SendOptions::default(), &mut stream)?;
    /// backup.receive("/copy", None, &mut stream.as_slice())?;
    /// assert_eq!(backup.read("/copy/plan")?, b"first");
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` without such a snapshot or directory; `NotADirectory` if `below` is no directory, or was
    /// another one in the older snapshot; `InvalidInput` if the second snapshot is the newer one; `Damaged`;
    /// `StreamBroken` if the stream cannot be written.
    pub fn send(
        &self,
        snapshot: impl AsRef<OsStr>,
        options: &SendOptions,
        out: &mut (dyn Write + Send),
    ) -> Result<SentStream> {
        let snapshot = self.fs().snapshot(snapshot.as_ref().as_bytes())?;
        let base = options.since.as_ref().map(|since| self.find_base(since.as_bytes())).transpose()?;
        let root = match &options.below {
            Some(below) => ReceiveTarget::new(below.as_os_str().as_bytes())?.path(),
            None => b"/".to_vec(),
        };
        if base.as_ref().is_some_and(|base| base.moment().0 >= snapshot.seq.0) {
            return Err(Error::invalid("the changes are those since an older snapshot")
                .with_hint("'warpfire snapshot list' shows the snapshots in their order"));
        }
        let order = SendOrder {
            pool: self.shared.open_pool.uuid(),
            snapshot: &snapshot,
            base: base.as_ref().map(FoundBase::sent),
            root: &root,
            continued_at: None,
            mark_bytes: STREAM_MARK_BYTES,
        };
        self.send_to(&order, out)
    }

    /// Sends the rest of a stream that was cut.
    ///
    /// # Errors
    /// As [`send`](Warpfire::send); `StreamRefused` for a token of another pool, or of a snapshot that is
    /// deleted.
    pub fn resume_send(&self, token: &ResumeToken, out: &mut (dyn Write + Send)) -> Result<SentStream> {
        let StreamHeader { pool, snapshot, base, root, .. } = &token.0.header;
        if *pool != self.shared.open_pool.uuid() {
            return Err(refused("the token is of a stream of another pool"));
        }
        let FoundBase::Snapshot(snapshot) = self.sent_base(snapshot)? else {
            return Err(refused("the token names a bookmark as the snapshot that is sent"));
        };
        let base = base.as_ref().map(|base| self.sent_base(base)).transpose()?;
        let mark = token.0.mark;
        let order = SendOrder {
            pool: *pool,
            snapshot: &snapshot,
            base: base.as_ref().map(FoundBase::sent),
            root,
            continued_at: Some(mark).filter(|mark| mark.records > 0),
            mark_bytes: STREAM_MARK_BYTES,
        };
        self.send_to(&order, out)
    }

    /// The snapshot or bookmark with this name.
    fn find_base(&self, name: &[u8]) -> std::result::Result<FoundBase, FsError> {
        match self.fs().snapshot(name) {
            // No name is of both.
            Err(FsError::NotFound) => self.fs().bookmark(name).map(FoundBase::Bookmark),
            found => found.map(FoundBase::Snapshot),
        }
    }

    /// The snapshot or bookmark that a token names. A stream is not the same since a snapshot and since a
    /// bookmark of it: the name says which it was.
    fn sent_base(&self, wanted: &StreamSnapshot) -> Result<FoundBase> {
        let InodeTime { seconds, nanos } = wanted.made;
        match self.find_base(&wanted.name) {
            Ok(found) if found.moment() == (wanted.number, Timestamp { seconds, nanos }) => Ok(found),
            Ok(_) | Err(FsError::NotFound) => Err(refused(format!(
                "the snapshot or bookmark '{}' of this stream is deleted, so its rest cannot be sent",
                String::from_utf8_lossy(&wanted.name)
            ))
            .with_hint("drop the received part with 'warpfire receive --abort', and send another snapshot")),
            Err(e) => Err(e.into()),
        }
    }

    fn send_to(&self, order: &SendOrder<'_>, out: &mut (dyn Write + Send)) -> Result<SentStream> {
        let fs = self.fs();
        let mut framer = StreamFramer::default();
        let write = |part| framer.frame(&part, |frame| out.write_all(frame));
        // The walk, the reads of files, and the hash and the sink: each in a thread.
        let ((sent, filled), written) = consume_beside("warpfire-write", write, |put| {
            let fill = |mut part| {
                fs.fill(&mut part).map_err(PartFailure::Files)?;
                if put(part).is_continue() { Ok(()) } else { Err(PartFailure::Stopped) }
            };
            consume_beside("warpfire-read", fill, |put| fs.send_parts(order, put))
        });
        let written = written.and_then(|()| out.flush());
        match (written, filled, sent) {
            (Err(error), _, _) | (_, Err(PartFailure::Thread(error)), _) => {
                return Err(broken("written", &error));
            }
            (_, Err(PartFailure::Files(error)), _) | (_, _, Err(SendError::Files(error))) => {
                return Err(error.into());
            }
            (_, _, Err(SendError::NotThisStream)) => return Err(refused("the token is of another stream")),
            (_, Err(PartFailure::Stopped), _) | (_, _, Err(SendError::Stopped)) => {
                return Err(broken("written", &io::ErrorKind::BrokenPipe.into()));
            }
            (Ok(()), Ok(()), Ok(())) => {}
        }
        let sent = framer.sent().expect("a stream that is sent has its end");
        Ok(SentStream {
            stream_bytes: sent.written_bytes,
            data_bytes: sent.end.data_bytes,
            made: sent.end.made,
            hash: hex(&sent.end.hash),
        })
    }

    /// Receives a stream into a directory. For a whole snapshot the directory must not exist, or be empty.
    /// For changes it must show the older snapshot, unchanged. The directory shows its old state until the
    /// whole stream has arrived and its hash is right; then it shows the new state, by one commit. The same
    /// commit makes a snapshot of this pool, named `snapshot` or as the sender's; the next changes need it.
    ///
    /// After a failure everything up to the last mark of the stream is kept. [`receive_progress`] says where
    /// the sender goes on, and another call receives the rest. A stream that has arrived whole is not read
    /// again.
    ///
    /// [`receive_progress`]: Warpfire::receive_progress
    ///
    /// # Errors
    /// `StreamBroken` if the stream was cut or changed; `StreamRefused` if it does not fit the directory;
    /// `AlreadyExists` if the pool has a snapshot of that name; `NoSpace`; `ReadOnly`.
    pub fn receive(
        &self,
        target: impl AsRef<Path>,
        snapshot: Option<&OsStr>,
        from: &mut dyn Read,
    ) -> Result<ReceivedStream> {
        self.receive_by(target.as_ref(), snapshot, from, &|tx| tx.commit())
    }

    /// As [`receive`](Warpfire::receive), for a server that is built on this crate: `commit` makes the commit
    /// of the last step, and drops what it has cached of the directory.
    ///
    /// # Errors
    /// As [`receive`](Warpfire::receive).
    pub fn receive_by(
        &self,
        target: &Path,
        snapshot: Option<&OsStr>,
        from: &mut dyn Read,
        commit: &dyn Fn(Transaction<Engine>) -> std::result::Result<(), FsError>,
    ) -> Result<ReceivedStream> {
        let target = ReceiveTarget::new(target.as_os_str().as_bytes())?;
        let _guard = self.shared.receiving.enter(&target)?;
        let mut receiver = self.filesystem().receive(&target, snapshot.map(OsStr::as_bytes))?;
        let mut buffer = vec![0; READ_BYTES];
        while !receiver.is_complete() {
            match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => receiver.feed(buffer.get(..read).expect("within the buffer"))?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken("read", &error)),
            }
        }
        let received = receiver.finish(commit)?;
        Ok(ReceivedStream {
            sent: OsString::from_vec(received.header.snapshot.name),
            snapshot: received.snapshot.into(),
            data_bytes: received.data_bytes,
            hash: hex(&received.hash),
        })
    }

    /// How far a stream for this directory is received; `None` if none is received in part.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn receive_progress(&self, target: impl AsRef<Path>) -> Result<Option<ReceiveProgress>> {
        let target = ReceiveTarget::new(target.as_ref().as_os_str().as_bytes())?;
        let state = self.fs().receive_state(&target)?;
        Ok(state.map(|state| ReceiveProgress {
            sent: OsString::from_vec(state.header.snapshot.name.clone()),
            since: state.header.base.as_ref().map(|base| OsString::from_vec(base.name.clone())),
            data_bytes: state.mark.data_bytes,
            is_complete: state.is_complete,
            token: ResumeToken(state),
        }))
    }

    /// Drops the part of a stream that is received for this directory. `false` if there is nothing.
    ///
    /// # Errors
    /// `StreamRefused` while a stream arrives; `ReadOnly`; `Damaged`.
    pub fn abort_receive(&self, target: impl AsRef<Path>) -> Result<bool> {
        let target = ReceiveTarget::new(target.as_ref().as_os_str().as_bytes())?;
        let _guard = self.shared.receiving.enter(&target)?;
        Ok(self.fs().abort_receive(&target)?)
    }
}

fn broken(what: &str, error: &io::Error) -> Error {
    let errno = error.raw_os_error().unwrap_or_else(|| Errno::IO.raw_os_error());
    Error::new(ErrorKind::StreamBroken, errno, format!("the stream cannot be {what}: {error}"))
}

const GO_ON: &str = "everything up to the last mark is kept: 'warpfire receive --token' prints what 'warpfire send --resume' needs";
const FULL: &str = "send the whole snapshot, without --since, into another directory";

impl From<ReceiveError> for Error {
    fn from(error: ReceiveError) -> Self {
        let message = error.to_string();
        let cut = |hint| {
            Error::new(ErrorKind::StreamBroken, Errno::IO.raw_os_error(), message.clone()).with_hint(hint)
        };
        let refused = |hint| refused(message.clone()).with_hint(hint);
        match error {
            ReceiveError::Files(error) => error.into(),
            ReceiveError::NoStream => refused("pipe in what 'warpfire send' writes, from its beginning"),
            ReceiveError::NewerVersion => {
                Error::new(ErrorKind::Unsupported, Errno::OPNOTSUPP.raw_os_error(), message)
                    .with_hint("receive it with the version of warpfire that has sent it, or a later one")
            }
            ReceiveError::Damaged(_) | ReceiveError::Cut(_) | ReceiveError::NoMark => cut(GO_ON),
            ReceiveError::Trailing => refused("receive each stream by itself"),
            ReceiveError::OtherStream(_) => {
                refused("receive its rest first, or drop it with 'warpfire receive --abort'")
            }
            ReceiveError::Begun => refused(
                "send the rest with 'warpfire send --resume' and the token of 'warpfire receive --token', or begin anew after 'warpfire receive --abort'",
            ),
            ReceiveError::NotBegun => refused("send the stream from its beginning, without --resume"),
            ReceiveError::OtherMark => refused("use the token that 'warpfire receive --token' prints now"),
            ReceiveError::TargetExists => refused(
                "receive into a directory that does not exist, or send the changes since what it shows",
            ),
            ReceiveError::NoParent => refused("make the directory above it first"),
            ReceiveError::NeverReceived(_) => refused(FULL),
            ReceiveError::OtherSource(_) => refused(FULL),
            ReceiveError::OtherBase { .. } => refused("send the changes since the snapshot that it shows"),
            ReceiveError::AlreadyShown(_) => refused("there is nothing to do"),
            ReceiveError::BaseDeleted(_) => refused(FULL),
            ReceiveError::Changed(_) => refused(
                "undo the change, or send the whole snapshot, without --since, into another directory",
            ),
            ReceiveError::SnapshotTaken(_) => {
                Error::new(ErrorKind::AlreadyExists, Errno::EXIST.raw_os_error(), message)
                    .with_hint("choose another name with --snapshot")
            }
            ReceiveError::DoesNotFit(_) => {
                refused("drop the received part with 'warpfire receive --abort', and send it again")
            }
        }
    }
}
