//! The work of a server for its clients: status, trim, scrub, check, and changes of its devices.

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use warpfire::{
    ErrorKind, FsError, ScrubReport, SnapshotRollback, Transaction, VolumeInfo, VolumeOrder, Warpfire,
};
use warpfire_check::{CheckOptions, CheckReport, DamageReport};
use warpfire_env::{Clock, SystemClock};
use warpfire_mount::{ChangeVolume, FailedRequests, RollBack};
use warpfire_terminal::Failure;

use super::chunks::{ChunkReader, ChunkWriter};
use super::client::Client;
use super::frozen_check::FrozenCheck;
use super::wire::Answer;
use crate::commands::device::{
    AddOrder, ChangeOrder, OnlineOrder, ReplaceOrder, ResizeOrder, add_to, plan_in, remove_from, replace_in,
    resize_in, take_offline, take_online,
};
use crate::commands::fsck::{CheckAnswer, CheckOrder};
use crate::commands::receive::{ReceiveOrder, abort_in, progress_in, receive_in};
use crate::commands::scrub::{ScrubAnswer, ScrubProgress, pause_nanos};
use crate::commands::send::{SendOrder, send_from};
use crate::commands::snapshot::{
    DiffOrder, RuleOrder, bookmark_in, bookmarks_in, create_in, delete_bookmark_in, delete_in, diff_in,
    encoded, freed_in, hold_in, list_in, rolled_back, rule_in, space_in,
};
use crate::commands::status::{ErrorReport, StatusReport};
use crate::commands::trim::TrimOutput;
use crate::commands::tune::{TuneOrder, tune_in};
use crate::commands::upkeep::{WishOrder, wish_in};
use crate::commands::volume::{self, WireOrder, change_in};

/// Memory for the names of damaged files, beside the caches of the server.
const NAMING_BYTES_MAX: u64 = 128 << 20;

/// A pool that is mounted by this process.
pub struct ServedPool {
    pub pool: Warpfire,
    /// The directory, in words.
    pub mountpoint: String,
    pub read_only: bool,
    pub failures: Arc<FailedRequests>,
    /// Rolls the mounted filesystem back.
    pub roll_back: RollBack,
    /// Changes the volumes of the mounted filesystem.
    pub change_volume: ChangeVolume,
    /// Commits a transaction, and has the kernel drop what the commit changes.
    pub commit: Commit,
}

/// See [`ServedPool::commit`].
pub type Commit = Arc<dyn Fn(Transaction<warpfire::Engine>) -> Result<(), FsError> + Send + Sync>;

impl ServedPool {
    /// The status.
    pub fn status(&self) -> Answer {
        Answer::Status(Box::new(StatusReport {
            read_only: self.read_only,
            errors: self.failures.listed().iter().map(ErrorReport::from).collect(),
            ..StatusReport::new(&self.pool, Some(self.mountpoint.clone()))
        }))
    }

    fn check_writable(&self) -> Result<(), Failure> {
        if !self.read_only {
            return Ok(());
        }
        Err(Failure::new(format_args!("the pool is mounted read-only at {}", self.mountpoint))
            .hint("unmount it and mount it without 'ro', or run the command when it is unmounted"))
    }

    /// Trims the pool.
    ///
    /// # Errors
    /// The pool is mounted for reading only, or has failed.
    pub fn trim(&self, client: &mut Client<'_>) -> Result<Answer, Failure> {
        self.check_writable()?;
        let started_nanos = SystemClock.monotonic_nanos();
        let trimmed = self.pool.trim(|so_far| -> ControlFlow<()> {
            client.progress(&Answer::Trimming(so_far.discarded_bytes));
            client.goes_on(0)
        });
        let trimmed = trimmed.map_err(|error| Failure::pool(&error))?;
        let nanos = SystemClock.monotonic_nanos() - started_nanos;
        Ok(Answer::Trimmed(TrimOutput::new(&trimmed, &self.pool, nanos)))
    }

    /// Adds a device.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); the device cannot join.
    pub fn add_device(&self, order: &AddOrder) -> Result<Answer, Failure> {
        self.check_writable()?;
        let (index, available_bytes) = add_to(&self.pool, order)?;
        Ok(Answer::DeviceAdded { index, available_bytes })
    }

    /// Changes the wishes of the pool.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim).
    pub fn wish(&self, order: WishOrder) -> Result<Answer, Failure> {
        self.check_writable()?;
        wish_in(&self.pool, order)?;
        Ok(Answer::Wished)
    }

    /// Changes the shape of new data, or plans that.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); the devices do not allow the shape.
    pub fn tune(&self, order: TuneOrder) -> Result<Answer, Failure> {
        self.check_writable()?;
        Ok(Answer::Tuned(tune_in(&self.pool, order)?))
    }

    /// Names the pool.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); the name is too long.
    pub fn set_label(&self, label: &str) -> Result<Answer, Failure> {
        self.check_writable()?;
        self.pool.set_label(label).map_err(|error| Failure::pool(&error))?;
        Ok(Answer::Labelled)
    }

    /// Makes a snapshot.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); the name is taken, or none for a snapshot.
    pub fn create_snapshot(&self, name: &[u8]) -> Result<Answer, Failure> {
        self.check_writable()?;
        Ok(Answer::SnapshotCreated(create_in(&self.pool, name)?))
    }

    /// Deletes a snapshot.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); there is none of that name.
    pub fn delete_snapshot(&self, name: &[u8]) -> Result<Answer, Failure> {
        self.check_writable()?;
        Ok(Answer::SnapshotDeleted(delete_in(&self.pool, name)?))
    }

    /// Adds a hold to a snapshot, or releases one.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); there is no such snapshot or hold.
    pub fn hold_snapshot(&self, name: &[u8], hold: &[u8], releases: bool) -> Result<Answer, Failure> {
        self.check_writable()?;
        Ok(Answer::SnapshotHeld(hold_in(&self.pool, name, hold, releases)?))
    }

    /// Makes a bookmark of a snapshot.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); there is no such snapshot, or the name is taken or none for a bookmark.
    pub fn create_bookmark(&self, snapshot: &[u8], name: &[u8]) -> Result<Answer, Failure> {
        self.check_writable()?;
        Ok(Answer::BookmarkCreated(bookmark_in(&self.pool, snapshot, name)?))
    }

    /// Deletes a bookmark.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); there is none of that name.
    pub fn delete_bookmark(&self, name: &[u8]) -> Result<Answer, Failure> {
        self.check_writable()?;
        Ok(Answer::BookmarkDeleted(delete_bookmark_in(&self.pool, name)?))
    }

    /// Lists the bookmarks.
    ///
    /// # Errors
    /// The list is damaged.
    pub fn list_bookmarks(&self) -> Result<Answer, Failure> {
        Ok(Answer::BookmarksListed(bookmarks_in(&self.pool)?))
    }

    /// Makes the files what a snapshot shows. The mount goes on.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); there is none of that name, or the other one is taken.
    pub fn roll_back_snapshot(&self, name: &[u8], keep_as: &[u8]) -> Result<Answer, Failure> {
        self.check_writable()?;
        let done = (self.roll_back)(name, keep_as).map(SnapshotRollback::from).map_err(warpfire::Error::from);
        Ok(Answer::SnapshotRolledBack(rolled_back(done, name, keep_as)?))
    }

    /// Makes, changes, detaches or deletes a volume. The mount goes on. A detach changes no answer, so the
    /// kernel's caches stay.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim), and as [`change_in`].
    pub fn change_volume(&self, order: &WireOrder, client: &mut Client<'_>) -> Result<Answer, Failure> {
        self.check_writable()?;
        let change = |order: &VolumeOrder<'_>| {
            (self.change_volume)(order).map(VolumeInfo::from).map_err(warpfire::Error::from)
        };
        let changed = change_in(&self.pool, order, &change, &mut |done| {
            client.progress(&Answer::Detaching { names: done.names, records: done.records });
            client.goes_on(0)
        });
        Ok(Answer::VolumeChanged(changed?))
    }

    /// Lists the volumes.
    ///
    /// # Errors
    /// The list is damaged.
    pub fn list_volumes(&self) -> Result<Answer, Failure> {
        Ok(Answer::VolumesListed(volume::list_in(&self.pool)?))
    }

    /// Works on the rules for snapshots.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); the rule is impossible, or there is none of that name.
    pub fn snapshot_rule(&self, order: &RuleOrder) -> Result<Answer, Failure> {
        if !matches!(order, RuleOrder::List | RuleOrder::Explain) {
            self.check_writable()?;
        }
        Ok(Answer::SnapshotRules(rule_in(&self.pool, order)?))
    }

    /// Lists the next snapshots.
    ///
    /// # Errors
    /// The list is damaged.
    pub fn list_snapshots(&self, after: u64) -> Result<Answer, Failure> {
        Ok(Answer::SnapshotsListed(list_in(&self.pool, after)?))
    }

    /// Reports what deleting each snapshot frees.
    ///
    /// # Errors
    /// The metadata is damaged; there are too many snapshots for one answer.
    pub fn snapshot_space(&self) -> Result<Answer, Failure> {
        Ok(Answer::SnapshotSpace(space_in(&self.pool)?))
    }

    /// Reports what deleting some snapshots frees.
    ///
    /// # Errors
    /// The metadata is damaged.
    pub fn freed_bytes(&self, stretches: &[(u64, u64)]) -> Result<Answer, Failure> {
        Ok(Answer::FreedBytes(freed_in(&self.pool, stretches)?))
    }

    /// Lists the changes between snapshots.
    ///
    /// # Errors
    /// There is none of that name; the pool is damaged.
    pub fn diff_snapshots(&self, order: &DiffOrder, client: &mut Client<'_>) -> Result<Answer, Failure> {
        diff_in(&self.pool, order, |part| client.part(&Answer::SnapshotChanges(encoded(&part))))?;
        Ok(Answer::SnapshotsCompared)
    }

    /// Sends a snapshot, in chunks.
    ///
    /// # Errors
    /// There is no such snapshot; the pool is damaged; the client takes no more bytes.
    pub fn send(&self, order: &SendOrder, client: &Client<'_>) -> Result<Answer, Failure> {
        client.begin_stream()?;
        let mut chunks = ChunkWriter::new(client);
        let sent = send_from(&self.pool, order, &mut chunks);
        let ended = chunks.finish();
        let sent = sent?;
        ended.map_err(|error| Failure::local(Path::new("the client"), &error))?;
        Ok(Answer::Sent(sent))
    }

    /// Receives a stream, in chunks.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); the stream was cut or changed, or does not fit the directory.
    pub fn receive(&self, order: &ReceiveOrder, client: &Client<'_>) -> Result<Answer, Failure> {
        self.check_writable()?;
        client.begin_stream()?;
        let mut chunks = ChunkReader::new(client);
        Ok(Answer::Received(receive_in(&self.pool, order, &mut chunks, &*self.commit)?))
    }

    /// How far a stream for a directory is received.
    ///
    /// # Errors
    /// The pool is damaged.
    pub fn receive_progress(&self, target: &[u8]) -> Result<Answer, Failure> {
        Ok(Answer::ReceiveProgress(progress_in(&self.pool, target)?))
    }

    /// Drops the part of a stream that has arrived for a directory.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); a stream arrives now.
    pub fn abort_receive(&self, target: &[u8]) -> Result<Answer, Failure> {
        self.check_writable()?;
        Ok(Answer::ReceiveAborted(abort_in(&self.pool, target)?))
    }

    /// Removes a device.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); the device stays.
    pub fn remove_device(&self, index: u16, client: &mut Client<'_>) -> Result<Answer, Failure> {
        self.check_writable()?;
        let available_bytes = remove_from(&self.pool, index, |left| {
            client.progress(&Answer::Removing(left));
            client.goes_on(0)
        })?;
        Ok(Answer::DeviceRemoved { available_bytes })
    }

    /// Adds a device and removes another one.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); the new device cannot join, or the old one stays.
    pub fn replace_device(&self, order: &ReplaceOrder, client: &mut Client<'_>) -> Result<Answer, Failure> {
        self.check_writable()?;
        let (index, available_bytes) = replace_in(&self.pool, order, |left| {
            client.progress(&Answer::Removing(left));
            client.goes_on(0)
        })?;
        Ok(Answer::DeviceAdded { index, available_bytes })
    }

    /// Plans a change of the devices.
    ///
    /// # Errors
    /// The pool has no such device.
    pub fn plan_devices(&self, order: ChangeOrder) -> Result<Answer, Failure> {
        plan_in(&self.pool, order).map(Answer::DevicesPlanned)
    }

    /// Gives a device another size.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); the device keeps its size.
    pub fn resize_device(&self, order: ResizeOrder, client: &mut Client<'_>) -> Result<Answer, Failure> {
        self.check_writable()?;
        let resized = resize_in(&self.pool, order, |left| {
            client.progress(&Answer::Removing(left));
            client.goes_on(0)
        })?;
        Ok(Answer::DeviceResized(resized))
    }

    /// Takes a device offline.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); data needs the device.
    pub fn take_offline(&self, index: u16, is_dry_run: bool) -> Result<Answer, Failure> {
        self.check_writable()?;
        Ok(Answer::DeviceOffline { losses_left: take_offline(&self.pool, index, is_dry_run)? })
    }

    /// Takes a device online.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim); it is not the device that left.
    pub fn take_online(&self, order: &OnlineOrder) -> Result<Answer, Failure> {
        self.check_writable()?;
        let (missed_segments, missed_bytes) = take_online(&self.pool, order)?;
        Ok(Answer::DeviceOnline { missed_segments, missed_bytes })
    }

    /// Scrubs the pool, and remembers what it has found.
    ///
    /// # Errors
    /// As [`trim`](ServedPool::trim).
    pub fn scrub(&self, rate: Option<NonZeroU64>, client: &mut Client<'_>) -> Result<Answer, Failure> {
        self.check_writable()?;
        let started_nanos = SystemClock.monotonic_nanos();
        // From here on: background work may repair damage before its files are named.
        let before = FrozenCheck::begin(&self.pool);
        let mut last = ScrubReport::default();
        let found = self.pool.find_damage(|so_far| {
            last = so_far.clone();
            client.progress(&Answer::Scrubbing(ScrubProgress::from(so_far)));
            client.goes_on(pause_nanos(rate, so_far.read_bytes, started_nanos))
        });
        let answer = match found {
            Ok(found) if found.segments_left > 0 => ScrubAnswer::new(&found, None, DamageReport::default()),
            Ok(found) => self.repair(before, found, client)?,
            Err(error) if error.kind() == ErrorKind::Damaged => {
                let (damage, unnamed) = name_damage(before, None, client);
                ScrubAnswer::new(&last, Some(error.to_string()), damage.damage).unnamed(unnamed)
            }
            Err(error) => return Err(Failure::pool(&error)),
        };
        Ok(Answer::Scrubbed(Box::new(answer.taking(SystemClock.monotonic_nanos() - started_nanos))))
    }

    /// Names the files that the damage hits, then repairs it, then looks again at the segments that are left.
    fn repair(
        &self,
        before: Result<FrozenCheck, Failure>,
        found: ScrubReport,
        client: &Client<'_>,
    ) -> Result<ScrubAnswer, Failure> {
        let hit = [&found.damaged[..], &found.weak].concat();
        let (damage, unnamed) = match hit.is_empty() {
            true => Default::default(),
            false => name_damage(before, Some(&hit), client),
        };
        let scrub = self.pool.repair(found).map_err(|error| Failure::pool(&error))?;
        let mut answer = ScrubAnswer::new(&scrub, None, damage.damage).unnamed(unnamed);
        if !scrub.unrepaired.is_empty() {
            let (left, unnamed) =
                name_damage(FrozenCheck::begin(&self.pool), Some(&scrub.unrepaired), client);
            if unnamed.is_none() {
                answer = answer.left(&left);
            }
            if client.goes_on(0).is_continue() {
                answer.remember(&self.pool).map_err(|error| Failure::pool(&error))?;
            }
        }
        Ok(answer)
    }

    /// Checks a frozen state of the pool.
    ///
    /// # Errors
    /// The pool needed the space of the frozen state; it cannot be read; the memory is too small.
    pub fn check(&self, order: &CheckOrder, client: &mut Client<'_>) -> Result<Answer, Failure> {
        let check = FrozenCheck::begin(&self.pool)?;
        let report = check.run(&order.options(), |progress| {
            if let Some(progress) = progress {
                client.progress(&Answer::Checking(progress));
            }
            client.goes_on(0)
        })?;
        Ok(Answer::Checked(Box::new(CheckAnswer::new(&report))))
    }
}

/// Names the files with damage in these segments, or in all. With the report comes the reason why they could
/// not be named.
fn name_damage(
    check: Result<FrozenCheck, Failure>,
    only: Option<&[u64]>,
    client: &Client<'_>,
) -> (CheckReport, Option<String>) {
    let only = only.map(|segments| segments.iter().copied().collect());
    let options = CheckOptions { only, max_memory_bytes: NAMING_BYTES_MAX, ..CheckOptions::default() };
    match check.and_then(|check| check.run(&options, |_| client.goes_on(0))) {
        Ok(report) => (report, None),
        Err(failure) => (CheckReport::default(), Some(failure.to_string())),
    }
}
