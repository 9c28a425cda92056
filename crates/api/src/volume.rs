//! Volumes behind doors: clones of directories, and empty volumes.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use warpfire_env::Timestamp;
use warpfire_fs::{DetachProgress, LimitChange, VolumeLimits, VolumeOrder};

use crate::{Result, Warpfire};

/// A volume behind a door.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeInfo {
    /// The path of its door.
    pub path: PathBuf,
    /// Its number: 2 or higher, never used again in this pool.
    pub number: u32,
    /// The time at which it was made.
    pub made: Timestamp,
    /// Of a clone: the number of the volume that it shows (1 is that of the root of the pool), and the number
    /// of the version, which those of snapshots are comparable with.
    pub origin: Option<(u32, u64)>,
    /// Of a detached clone: the origin that snapshots from before the detach show still, as `origin`. It is
    /// kept for them.
    pub former_origin: Option<(u32, u64)>,
    /// Inodes in it, or more: a clone of a part of a volume counts the whole volume of then.
    pub inodes: u64,
    /// Bytes of its files without holes, or more, as for `inodes`. Shared bytes count once for each file.
    pub file_bytes: u64,
    /// The most of both that it may have.
    pub limits: VolumeLimits,
}

impl From<warpfire_fs::VolumeInfo> for VolumeInfo {
    fn from(info: warpfire_fs::VolumeInfo) -> Self {
        VolumeInfo {
            path: OsString::from_vec(info.path).into(),
            number: info.number,
            made: info.made,
            origin: info.origin.map(|(volume, seq)| (volume, seq.0)),
            former_origin: info.former_origin.map(|(volume, seq)| (volume, seq.0)),
            inodes: info.inodes,
            file_bytes: info.file_bytes,
            limits: info.limits,
        }
    }
}

impl Warpfire {
    /// Makes a clone of a directory: a new directory `to` that shows all that is in `from`, and can be
    /// changed at once. Neither sees the changes of the other. It copies nothing, and takes as long for a
    /// million files as for one. It is durable after the next sync.
    ///
    /// The clone is a volume: `to` is its door. Files cannot be renamed through a door, nor have names on
    /// both sides. [`delete_volume`](Warpfire::delete_volume) removes all of it at once.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.create_dir("/work")?;
    /// fs.write("/work/plan", b"first")?;
    /// fs.clone_directory("/work", "/try")?;
    /// fs.write("/try/plan", b"second")?;
    /// assert_eq!((fs.read("/work/plan")?, fs.read("/try/plan")?), (b"first".to_vec(), b"second".to_vec()));
    /// fs.delete_volume("/try")?;
    /// assert!(!fs.exists("/try"));
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`; `AlreadyExists` if there is something at `to`; `InvalidInput` if there is
    /// a door in `from`, or `from` is in a clone of a clone, eight deep; `NoSpace`; `ReadOnly`.
    pub fn clone_directory(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<VolumeInfo> {
        let (source, door) = (bytes(from.as_ref()), bytes(to.as_ref()));
        self.change_volume(&VolumeOrder::Clone { snapshot: None, source, door })
    }

    /// As [`clone_directory`](Warpfire::clone_directory), of a directory as a snapshot shows it.
    ///
    /// # Errors
    /// As `clone_directory`; `NotFound` without such a snapshot.
    pub fn clone_from_snapshot(
        &self,
        snapshot: impl AsRef<OsStr>,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<VolumeInfo> {
        let (source, door) = (bytes(from.as_ref()), bytes(to.as_ref()));
        let snapshot = Some(snapshot.as_ref().as_bytes());
        self.change_volume(&VolumeOrder::Clone { snapshot, source, door })
    }

    /// Makes an empty volume with its door at `path`. It belongs to the user of this handle. It is durable
    /// after the next sync.
    ///
    /// # Errors
    /// `NotFound` if a directory on the path is missing; `AlreadyExists`; `NoSpace`; `ReadOnly`.
    pub fn create_volume(&self, path: impl AsRef<Path>) -> Result<VolumeInfo> {
        let caller = self.identity().caller();
        let owner = (caller.uid, caller.gid);
        self.change_volume(&VolumeOrder::Create { door: bytes(path.as_ref()), owner })
    }

    /// Changes the limits of a volume. From then on whatever would bring it above a limit fails with
    /// `LimitReached` and changes nothing, a whole transaction too. A volume may have more already: that
    /// stays. Snapshots do not count. Durable after the next sync.
    ///
    /// ```
    /// use warpfire::{ErrorKind, LimitChange, NewLimit, Pool};
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.create_volume("/jobs")?;
    /// fs.limit_volume("/jobs", LimitChange { bytes: NewLimit::Max(10), files: NewLimit::Same })?;
    /// fs.write("/jobs/a", b"0123456789")?;
    /// assert_eq!(fs.write("/jobs/b", b"!").unwrap_err().kind(), ErrorKind::LimitReached);
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` if `path` is no door, or a limit is 2^63 or higher; `ReadOnly`.
    pub fn limit_volume(&self, path: impl AsRef<Path>, change: LimitChange) -> Result<VolumeInfo> {
        self.change_volume(&VolumeOrder::Limit { door: bytes(path.as_ref()), change })
    }

    /// Detaches a clone from its origin. Afterwards reads of it pass no origin, it keeps nothing that its
    /// origin showed outside of the cloned directory, its sums are exact, and clones of it can be eight deep
    /// again. Records are copied, and bytes are not: both sides go on sharing them. So it takes as long as a
    /// walk through the tree. The clone can be used while it runs. Snapshots from before still show the
    /// origin, which is kept until the last of them is deleted. Durable after the next sync.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.create_dir("/work")?;
    /// fs.write("/work/plan", b"first")?;
    /// assert!(fs.clone_directory("/work", "/try")?.origin.is_some());
    /// assert!(fs.detach_volume("/try")?.origin.is_none());
    /// assert_eq!(fs.read("/try/plan")?, b"first");
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` if `path` is no door, or the volume has no origin; `NoSpace` for the
    /// records: the clone is then as it was, and a later call goes on; `ReadOnly`; `Damaged`.
    pub fn detach_volume(&self, path: impl AsRef<Path>) -> Result<VolumeInfo> {
        let detached = self.detach_volume_with(path, |_| ControlFlow::Continue(()))?;
        Ok(detached.expect("nobody stops it"))
    }

    /// As [`detach_volume`](Warpfire::detach_volume). `watch` is called after each page; with `Break` it
    /// stops the detach, and the answer is `None`. The clone is then as it was, and a later call goes on.
    ///
    /// # Errors
    /// As `detach_volume`.
    pub fn detach_volume_with(
        &self,
        path: impl AsRef<Path>,
        mut watch: impl FnMut(&DetachProgress) -> ControlFlow<()>,
    ) -> Result<Option<VolumeInfo>> {
        Ok(self.fs().detach_volume(bytes(path.as_ref()), &mut watch)?.map(VolumeInfo::from))
    }

    /// Deletes a volume with everything in it, and its door, in one commit that is durable on return. Files
    /// that are open in it are gone. What clones and snapshots of it show stays. Bytes that nothing else
    /// needs become free in the background, and at once when a writer needs them.
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` if `path` is no door, or the door of another volume is in this one;
    /// `ReadOnly`.
    pub fn delete_volume(&self, path: impl AsRef<Path>) -> Result<VolumeInfo> {
        self.change_volume(&VolumeOrder::Delete { door: bytes(path.as_ref()) })
    }

    /// The volumes behind doors, by rising number.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        Ok(self.fs().volumes()?.into_iter().map(VolumeInfo::from).collect())
    }

    /// Makes the change of an order: for programs that pass on those of others.
    ///
    /// # Errors
    /// As the calls of each kind of order.
    pub fn change_volume(&self, order: &VolumeOrder<'_>) -> Result<VolumeInfo> {
        Ok(self.fs().change_volume(order, &mut |_| ())?.into())
    }
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
