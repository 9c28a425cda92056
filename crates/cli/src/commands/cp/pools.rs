//! The pools of a copy: open in this process, or mounted by another. The files of a mounted pool are local
//! files of this system, in bounds that `local.rs` states.

use std::path::{Path, PathBuf};

use warpfire_terminal::{Failure, shown};

use super::from_pool::PoolSource;
use super::job::CopyJob;
use super::local::NamedPath;
use super::sink::Sink;
use super::{Source, Target, from_local, stdio, tar};
use crate::location::{Location, PoolName, mountpoint_of};
use crate::tree::{self, MountedTree, Placed, Tree};

/// The pools that the command line names, each opened once.
pub struct Pools<'a>(Vec<(&'a PoolName, Tree)>);

/// The pools of a copy in a transaction on a mount.
pub struct PoolsInView<'a> {
    pools: &'a Pools<'a>,
    /// The files of the pool as the transaction sees them.
    view: MountedTree,
    /// The number of the filesystem that the view is of.
    device: (u32, u32),
}

/// The number of a snapshot among the pools of a copy.
const SNAPSHOT_NUMBER: u64 = u64::MAX;

fn all_snapshots() -> Failure {
    Failure::new("is the directory of all snapshots").hint("name a snapshot in it")
}

impl<'a> Pools<'a> {
    /// The pools of a copy into a pool. With `is_plan` nothing will be changed.
    ///
    /// # Errors
    /// A pool cannot be opened; a source is in another pool, and neither is mounted.
    pub fn into(destination: &'a PoolName, sources: &'a [Source], is_plan: bool) -> Result<Self, Failure> {
        let tree = if is_plan { tree::open_for_reading(destination)? } else { tree::open(destination)? };
        let is_open = matches!(tree, Tree::Open(_));
        let mut pools = Pools(vec![(destination, tree)]);
        for source in sources {
            let Source::Pool(Location { pool, path, .. }) = source else { continue };
            if pools.find(pool).is_some() {
                continue;
            }
            let tree = tree::open_for_reading(pool)?;
            if is_open && matches!(tree, Tree::Open(_)) {
                return Err(Failure::usage(format_args!("{} is in another pool", path.display()))
                    .hint("mount one of the two pools, or copy to a local directory first"));
            }
            pools.0.push((pool, tree));
        }
        Ok(pools)
    }

    /// The pools of a copy to a local path, or with `None` to stdout. A local path in a mounted pool is in a
    /// pool too.
    ///
    /// # Errors
    /// A source and the destination are in no pool; the pool of a source cannot be opened.
    pub fn out(sources: &'a [Source], destination: Option<&Path>) -> Result<Self, Failure> {
        let is_into_mount = destination.is_some_and(|path| mountpoint_of(path).is_some());
        let is_in_pool = |source: &Source| match source {
            Source::Pool(_) => true,
            Source::Local(path) => mountpoint_of(path).is_some(),
            Source::Stdin | Source::Archive(_) => false,
        };
        if !is_into_mount && !sources.iter().all(is_in_pool) {
            return Err(no_pool(sources, destination));
        }
        let mut pools = Pools(Vec::new());
        for source in sources {
            if let Source::Pool(Location { pool, .. }) = source
                && pools.find(pool).is_none()
            {
                pools.0.push((pool, tree::open_for_reading(pool)?));
            }
        }
        Ok(pools)
    }

    fn find(&self, name: &PoolName) -> Option<usize> {
        self.0.iter().position(|(known, _)| *known == name)
    }

    /// A pool that a source or the destination names.
    pub fn of(&self, name: &PoolName) -> &Tree {
        &self.0[self.find(name).expect("each pool of the command line was opened")].1
    }

    /// The same pools; the one that the view is of as its transaction sees it.
    pub fn in_view(&'a self, view: MountedTree) -> Result<PoolsInView<'a>, Failure> {
        let Tree::Mounted(mount) = &self.0[0].1 else { unreachable!("a view is of a mounted pool") };
        let device = mount.device().map_err(|errno| mount.error(errno).at(Path::new("/")))?;
        Ok(PoolsInView { pools: self, view, device })
    }

    /// Copies all sources into the current directory of a sink. `inside` is the pool of the sink.
    pub fn copy(
        &self,
        job: &mut CopyJob,
        sink: &mut dyn Sink,
        sources: &[Source],
        target: &Target,
        inside: Option<&PoolName>,
    ) -> Result<(), Failure> {
        self.copy_as(job, sink, sources, target, inside, |mount| mount)
    }

    /// As [`copy`](Pools::copy). `seen` is the tree in which the files of a mount are read.
    fn copy_as<'b>(
        &'b self,
        job: &mut CopyJob,
        sink: &mut dyn Sink,
        sources: &[Source],
        target: &Target,
        inside: Option<&PoolName>,
        seen: impl Fn(&'b MountedTree) -> &'b MountedTree,
    ) -> Result<(), Failure> {
        for source in sources {
            if !job.goes_on() {
                break;
            }
            let name = target.name_of(source)?;
            let Location { pool, path, .. } = match source {
                Source::Stdin => {
                    stdio::copy_stdin(job, sink, name.as_deref());
                    continue;
                }
                Source::Archive(archive) => {
                    tar::unpack(job, sink, archive.as_deref(), name.as_deref());
                    continue;
                }
                Source::Local(path) => {
                    from_local::copy(job, sink, path, NamedPath::open(path), name.as_deref());
                    continue;
                }
                Source::Pool(location) => location,
            };
            let is_shared = inside == Some(pool);
            if is_shared && target.path_of(name.as_deref()).starts_with(path) {
                job.skip(path, Failure::new("cannot be copied into itself"));
                continue;
            }
            match self.of(pool) {
                Tree::Open(fs) => {
                    let number = self.find(pool).unwrap_or_default() as u64;
                    match tree::placed(fs, path) {
                        Ok(Placed::Now) => {
                            PoolSource::new(fs, number, is_shared).copy(job, sink, path, name.as_deref());
                        }
                        // Files of a snapshot are no links of those that are there now.
                        Ok(Placed::Then { snapshot, path, .. }) => {
                            PoolSource::new(&snapshot, SNAPSHOT_NUMBER, false).copy(
                                job,
                                sink,
                                &path,
                                name.as_deref(),
                            );
                        }
                        Ok(Placed::Snapshots(_)) => job.skip(path, all_snapshots()),
                        Err(error) => job.skip(path, error.at(path)),
                    }
                }
                Tree::Mounted(mount) => {
                    let named = NamedPath::in_mount(seen(mount), path);
                    from_local::copy(job, sink, path, named, name.as_deref());
                }
            }
        }
        Ok(())
    }

    /// Ends the use of the pools: changes of those that are open become durable.
    pub fn close(self) -> Result<(), Failure> {
        self.0.into_iter().try_for_each(|(_, tree)| tree.close())
    }
}

impl PoolsInView<'_> {
    /// As [`Pools::copy`].
    pub fn copy(
        &self,
        job: &mut CopyJob,
        sink: &mut dyn Sink,
        sources: &[Source],
        target: &Target,
        inside: Option<&PoolName>,
    ) -> Result<(), Failure> {
        let is_viewed = |mount: &MountedTree| mount.device().is_ok_and(|device| device == self.device);
        let seen = |mount| if is_viewed(mount) { &self.view } else { mount };
        self.pools.copy_as(job, sink, sources, target, inside, seen)
    }
}

impl Target {
    /// The path of the copy with this name, or without one of the directory.
    fn path_of(&self, name: Option<&std::ffi::OsStr>) -> PathBuf {
        name.map_or_else(|| self.base.clone(), |name| self.base.join(name))
    }
}

fn no_pool(sources: &[Source], destination: Option<&Path>) -> Failure {
    let local = sources.iter().filter_map(|source| match source {
        Source::Local(path) => Some(path.as_path()),
        Source::Stdin | Source::Archive(_) | Source::Pool(_) => None,
    });
    let pool = destination.into_iter().chain(local).find(|path| PoolName::new(*path).is_pool());
    let failure = Failure::usage("neither source nor destination is inside a pool");
    match pool {
        Some(pool) => failure.hint(format_args!("the root of that pool is '{}:/'", shown(pool))),
        None => failure.hint("write one of them as 'POOL:/path'"),
    }
}
