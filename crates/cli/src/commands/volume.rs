//! `warpfire clone` and `warpfire volume`: directories that are volumes of their own.
//!
//! The server of a mounted pool does the work. A pool that is not mounted is opened for it.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use serde::{Deserialize, Serialize};
use warpfire::{
    DetachProgress, ErrorKind, LimitChange, NewLimit, Pool, Timestamp, VolumeInfo, VolumeOrder, Warpfire,
};
use warpfire_terminal::{
    Columns, Failure, Size, grouped, is_json, note, path_bytes, path_text, print, print_json, shown,
};

use super::mount::control::wire::{Answer, Request};
use super::mount::control::{ServerConnection, foreign_answer};
use super::pool;
use super::snapshot::write_back;
use crate::location::{Location, PoolName};
use crate::output::{Rfc3339, moment};
use crate::progress::WorkLine;
use crate::tree::{Placed, placed};

const CLONE_EXAMPLES: &str = "\
Examples:
  warpfire clone pool:/work pool:/try     all of /work, to be changed at once
  warpfire clone /mnt/work /mnt/try       in a mounted pool
  warpfire clone pool:/.snapshots/monday/work pool:/work-of-monday
  warpfire clone pool:/ pool:/whole       all of the pool
  warpfire volume delete pool:/try        remove a clone, however large

A clone copies nothing, and takes as long for a million files as for one. It shows what the directory was at \
that moment, and neither sees the changes of the other. Bytes that both show take space once. A clone is a \
volume: its directory is a door, files cannot be renamed through it, and no file has names on both sides. A \
directory with a door in it cannot be cloned. A clone of a clone can be eight deep.";

const EXAMPLES: &str = "\
Examples:
  warpfire volume create pool:/scratch    an empty volume
  warpfire volume list pool               the volumes and clones of a pool
  warpfire volume limit pool:/scratch --bytes 10G --files 100000
  warpfire volume limit pool:/scratch --files none
  warpfire volume detach pool:/try        a clone that needs its origin no more
  warpfire volume delete pool:/scratch    with everything in it, at once
  warpfire mv pool:/scratch pool:/old     another name for its door

'warpfire clone' makes a volume that shows a directory. Deleting a volume takes as long for a million files as \
for one. What clones and snapshots of it show stays. Its space comes back in the background, and at once when \
the pool needs it.

A clone keeps all that its origin showed when it was made, and each of its reads looks there too. To detach it \
copies its records and no bytes, in the time of a walk through its files; it can be used while that runs, and a detach \
that is interrupted goes on when it is run again. Snapshots from before still show the origin, which is kept until \
the last of them is deleted.

A limit counts the bytes of files without holes, and inodes. Bytes that files share count for each of them, and \
snapshots do not count. Whatever would exceed a limit fails with EDQUOT, and a transaction as a whole. A volume may \
have more already: that stays, and nothing can be added. A clone of a part of a volume counts all of that volume.";

// Arguments of `warpfire clone`.
#[derive(clap::Args, Debug)]
#[command(after_help = CLONE_EXAMPLES)]
pub struct CloneArgs {
    /// The directory, inside a pool or in a mounted one: as it is now, or in a snapshot.
    #[arg(value_name = "SRC")]
    source: OsString,

    /// The new directory, in the same pool.
    #[arg(value_name = "DST")]
    target: OsString,
}

// Arguments of `warpfire volume`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: VolumeCommand,
}

#[derive(clap::Subcommand, Debug)]
#[command(defer = true)]
enum VolumeCommand {
    /// Make an empty volume.
    Create(VolumeArgs),
    /// Show the volumes of a pool, from the oldest to the newest.
    List(VolumeListArgs),
    /// Limit the bytes and the files of a volume.
    Limit(VolumeLimitArgs),
    /// Detach clones from their origins.
    Detach(VolumePathsArgs),
    /// Delete volumes with everything in them.
    Delete(VolumePathsArgs),
}

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct VolumeArgs {
    /// The new directory, inside a pool or in a mounted one.
    #[arg(value_name = "PATH")]
    path: OsString,
}

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct VolumeLimitArgs {
    /// The directory of the volume.
    #[arg(value_name = "PATH")]
    path: OsString,

    /// Most bytes of its files, or 'none'.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, required_unless_present = "files")]
    bytes: Option<WireLimit>,

    /// Most inodes, that of its directory included, or 'none'.
    #[arg(long, value_name = "NUMBER", value_parser = parse_files)]
    files: Option<WireLimit>,
}

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct VolumeListArgs {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool [default: $WARPFIRE_POOL].
    #[arg(value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: OsString,
}

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct VolumePathsArgs {
    /// The directories of the volumes.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
}

/// A change of volumes between a client and a server. Paths are bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum WireOrder {
    Create { door: Vec<u8>, owner: (u32, u32) },
    Clone { source: Vec<u8>, door: Vec<u8> },
    Limit { door: Vec<u8>, bytes: WireLimit, files: WireLimit },
    Detach { door: Vec<u8> },
    Delete { door: Vec<u8> },
}

/// What becomes of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WireLimit {
    #[default]
    Same,
    None,
    Max(u64),
}

impl From<WireLimit> for NewLimit {
    fn from(limit: WireLimit) -> NewLimit {
        match limit {
            WireLimit::Same => NewLimit::Same,
            WireLimit::None => NewLimit::None,
            WireLimit::Max(limit) => NewLimit::Max(limit),
        }
    }
}

fn parse_bytes(word: &str) -> Result<WireLimit, String> {
    match word {
        "none" => Ok(WireLimit::None),
        size => size.parse::<Size>().map(|size| WireLimit::Max(size.0)).map_err(|e| e.to_string()),
    }
}

fn parse_files(word: &str) -> Result<WireLimit, String> {
    match word {
        "none" => Ok(WireLimit::None),
        number => number.parse().map(WireLimit::Max).map_err(|_| "a number or 'none' is needed".to_owned()),
    }
}

/// A volume between a client and a server: its path is bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WireVolume {
    path: Vec<u8>,
    number: u32,
    made: (i64, u32),
    origin: Option<(u32, u64)>,
    former_origin: Option<(u32, u64)>,
    inodes: u64,
    file_bytes: u64,
    /// Most bytes, and most inodes.
    limits: (Option<u64>, Option<u64>),
}

/// A volume, as JSON.
#[derive(Debug, Serialize)]
struct VolumeOutput {
    /// The path of its directory.
    path: String,
    /// The path in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    /// Its number, never used again in this pool.
    number: u32,
    /// The time at which it was made.
    made: Rfc3339,
    /// Of a clone: what it shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<OriginOutput>,
    /// Of a detached clone: the origin that snapshots from before the detach show, and that is kept for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    former_origin: Option<OriginOutput>,
    /// Inodes in it, or more for a clone of a part of a volume.
    inodes: u64,
    /// Bytes of its files without holes, or more for a clone of a part of a volume.
    file_bytes: u64,
    /// The most of `file_bytes` that it may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_bytes: Option<u64>,
    /// The most of `inodes` that it may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_files: Option<u64>,
}

/// The origin of a clone, as JSON.
#[derive(Debug, Serialize)]
struct OriginOutput {
    /// The number of the volume; 1 is that of the root of the pool.
    volume: u32,
    /// The number of the version. Numbers of snapshots are comparable with it.
    version: u64,
}

impl From<VolumeInfo> for WireVolume {
    fn from(info: VolumeInfo) -> Self {
        WireVolume {
            path: info.path.into_os_string().into_vec(),
            number: info.number,
            made: (info.made.seconds, info.made.nanos),
            origin: info.origin,
            former_origin: info.former_origin,
            inodes: info.inodes,
            file_bytes: info.file_bytes,
            limits: (info.limits.bytes, info.limits.files),
        }
    }
}

impl WireVolume {
    fn path(&self) -> &Path {
        path(&self.path)
    }

    /// The path of its door.
    pub fn door(&self) -> &[u8] {
        &self.path
    }

    /// Of a clone: the version that it shows, by the number of the snapshot that it was made of.
    pub fn version_of_origin(&self) -> Option<u64> {
        self.origin.map(|(_, version)| version)
    }

    fn made(&self) -> Timestamp {
        Timestamp { seconds: self.made.0, nanos: self.made.1 }
    }

    fn document(&self) -> VolumeOutput {
        let origin = |(volume, version)| OriginOutput { volume, version };
        VolumeOutput {
            path: path_text(self.path()),
            path_bytes: path_bytes(self.path()),
            number: self.number,
            made: Rfc3339(self.made()),
            origin: self.origin.map(origin),
            former_origin: self.former_origin.map(origin),
            inodes: self.inodes,
            file_bytes: self.file_bytes,
            limit_bytes: self.limits.0,
            limit_files: self.limits.1,
        }
    }
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Called with the progress of a detach. `Break` stops it.
pub type WatchDetach<'a> = &'a mut dyn FnMut(&DetachProgress) -> ControlFlow<()>;

/// Changes the volumes of an open pool by `change`, and makes that durable. `watch` sees a detach.
///
/// # Errors
/// There is no such directory, snapshot or volume; the new directory is taken; the pool is full or takes no
/// changes; `watch` has stopped a detach.
pub fn change_in(
    pool: &Warpfire,
    order: &WireOrder,
    change: &dyn Fn(&VolumeOrder<'_>) -> warpfire::Result<VolumeInfo>,
    watch: WatchDetach<'_>,
) -> Result<WireVolume, Failure> {
    let (changed, door) = match order {
        WireOrder::Create { door, owner } => (change(&VolumeOrder::Create { door, owner: *owner }), door),
        WireOrder::Clone { source, door } => (clone_in(pool, source, door, change)?, door),
        WireOrder::Limit { door, bytes, files } => {
            let limits = LimitChange { bytes: (*bytes).into(), files: (*files).into() };
            (change(&VolumeOrder::Limit { door, change: limits }), door)
        }
        WireOrder::Detach { door } => {
            let detached = pool.detach_volume_with(path(door), watch).transpose();
            (detached.ok_or_else(|| Failure::new("the detach was stopped").hint(GOES_ON))?, door)
        }
        WireOrder::Delete { door } => (change(&VolumeOrder::Delete { door }), door),
    };
    let changed = changed.map_err(|error| of_volume(order, door, &error))?;
    pool.sync().map_err(|error| Failure::pool(&error))?;
    Ok(changed.into())
}

fn clone_in(
    pool: &Warpfire,
    source: &[u8],
    door: &[u8],
    change: &dyn Fn(&VolumeOrder<'_>) -> warpfire::Result<VolumeInfo>,
) -> Result<warpfire::Result<VolumeInfo>, Failure> {
    match placed(pool, path(source)).map_err(|error| error.at(path(source)))? {
        Placed::Now => Ok(change(&VolumeOrder::Clone { snapshot: None, source, door })),
        Placed::Snapshots(_) => Err(Failure::usage("the directory of the snapshots cannot be cloned")
            .hint("clone a directory of one of them")),
        Placed::Then { snapshot: _held, name, path } => {
            let (snapshot, source) = (Some(name.as_bytes()), path.as_os_str().as_bytes());
            Ok(change(&VolumeOrder::Clone { snapshot, source, door }))
        }
    }
}

/// What a detach that did not end leaves.
const GOES_ON: &str =
    "the clone is as it was; the copies so far stay, and another 'warpfire volume detach' goes on";

/// The failure of a change of volumes.
fn of_volume(order: &WireOrder, door: &[u8], error: &warpfire::Error) -> Failure {
    match (order, error.kind()) {
        (WireOrder::Clone { source, .. }, ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Failure::at(path(source), error)
                .hint("the directory must exist, and the one in which the clone is made")
        }
        (WireOrder::Delete { .. }, ErrorKind::AlreadyExists) => {
            let root = format_args!("{}: the root of the pool cannot be deleted", shown(path(door)));
            Failure::new(root).of_path(path(door)).hint("'warpfire rm -r' removes everything in it")
        }
        (WireOrder::Clone { source, .. }, ErrorKind::InvalidInput) => Failure::at(path(source), error),
        (WireOrder::Detach { .. }, ErrorKind::NoSpace) => Failure::at(path(door), error).hint(GOES_ON),
        (
            WireOrder::Limit { .. } | WireOrder::Detach { .. } | WireOrder::Delete { .. },
            ErrorKind::InvalidInput,
        ) => Failure::at(path(door), error).hint("'warpfire volume list' shows the volumes"),
        _ => Failure::at(path(door), error),
    }
}

/// The volumes of an open pool.
///
/// # Errors
/// The list is damaged.
pub fn list_in(pool: &Warpfire) -> Result<Vec<WireVolume>, Failure> {
    let found = pool.volumes().map_err(|error| Failure::pool(&error))?;
    Ok(found.into_iter().map(WireVolume::from).collect())
}

/// Has volumes of a pool changed, mounted or not.
fn change(name: &PoolName, order: WireOrder) -> Result<WireVolume, Failure> {
    change_watched(name, order, &mut |_| ())
}

/// As `change`. `show` is called with the progress of a detach.
fn change_watched(
    name: &PoolName,
    order: WireOrder,
    show: &mut dyn FnMut(&DetachProgress),
) -> Result<WireVolume, Failure> {
    if let Some(server) = ServerConnection::of_pool(name)? {
        write_back(name)?;
        let answer = server.ask(Request::ChangeVolume(order), |answer| {
            if let Answer::Detaching { names, records } = answer {
                show(&DetachProgress { names: *names, records: *records });
            }
        })?;
        return match answer {
            Answer::VolumeChanged(volume) => Ok(volume),
            _ => Err(foreign_answer()),
        };
    }
    let opened = pool::open_as(&Pool::options(), name)?;
    let changed = change_in(&opened, &order, &|order| opened.change_volume(order), &mut |done| {
        show(done);
        ControlFlow::Continue(())
    })?;
    opened.close().map_err(|error| Failure::pool(&error))?;
    Ok(changed)
}

/// Clones a directory.
pub fn run_clone(args: &CloneArgs) -> Result<(), Failure> {
    let (source, target) = (Location::parse_followed(&args.source)?, Location::parse(&args.target)?);
    if !source.pool.is_same(&target.pool) {
        return Err(Failure::usage("a clone is made in the pool that has the directory")
            .hint("'warpfire cp -r' copies to another pool"));
    }
    let order = WireOrder::Clone {
        source: source.path.as_os_str().as_bytes().to_vec(),
        door: target.path.as_os_str().as_bytes().to_vec(),
    };
    let made = change(&target.pool, order)?;
    if is_json() {
        return print_json(&made.document());
    }
    print(format!("{} is a clone of {}\n", shown(made.path()), shown(&source.path)))
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        VolumeCommand::Create(args) => create(args),
        VolumeCommand::List(args) => list(args),
        VolumeCommand::Limit(args) => limit(args),
        VolumeCommand::Detach(args) => detach(args),
        VolumeCommand::Delete(args) => delete(args),
    }
}

fn create(args: &VolumeArgs) -> Result<(), Failure> {
    let target = Location::parse(&args.path)?;
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let door = target.path.as_os_str().as_bytes().to_vec();
    let made = change(&target.pool, WireOrder::Create { door, owner })?;
    if is_json() {
        return print_json(&made.document());
    }
    print(format!("{} is a volume\n", shown(made.path())))
}

fn limit(args: &VolumeLimitArgs) -> Result<(), Failure> {
    let target = Location::parse(&args.path)?;
    let door = target.path.as_os_str().as_bytes().to_vec();
    let (bytes, files) = (args.bytes.unwrap_or_default(), args.files.unwrap_or_default());
    let limited = change(&target.pool, WireOrder::Limit { door, bytes, files })?;
    if is_json() {
        return print_json(&limited.document());
    }
    let bytes =
        limited.limits.0.map_or_else(|| "any number of bytes".to_owned(), |max| Size(max).to_string());
    let files = limited.limits.1.map_or_else(|| "any number of".to_owned(), grouped);
    print(format!("volume {} may have {bytes} and {files} files\n", shown(limited.path())))
}

fn detach(args: &VolumePathsArgs) -> Result<(), Failure> {
    for target in Location::parse_all(&args.paths, Location::parse)? {
        let door = target.path.as_os_str().as_bytes().to_vec();
        let line = WorkLine::start();
        let detached = change_watched(&target.pool, WireOrder::Detach { door }, &mut |done| {
            let (names, records) = (grouped(done.names), grouped(done.records));
            line.message(format_args!("{names} names, {records} records copied"));
        });
        line.finish();
        let detached = detached?;
        if is_json() {
            print_json(&detached.document())?;
            continue;
        }
        print(format!("volume {} is detached\n", shown(detached.path())))?;
        if let Some((of, _)) = detached.former_origin {
            note(format_args!(
                "what it showed of volume {of} is kept for snapshots and clones from before, and comes back with \
                 the last of them"
            ));
        }
    }
    Ok(())
}

fn delete(args: &VolumePathsArgs) -> Result<(), Failure> {
    for target in Location::parse_all(&args.paths, Location::parse)? {
        let door = target.path.as_os_str().as_bytes().to_vec();
        let deleted = change(&target.pool, WireOrder::Delete { door })?;
        if is_json() {
            print_json(&deleted.document())?;
        } else {
            print(format!("volume {} is deleted\n", shown(deleted.path())))?;
        }
    }
    Ok(())
}

/// The volumes of a pool, mounted or not.
pub fn listed(pool: &PoolName) -> Result<Vec<WireVolume>, Failure> {
    match ServerConnection::of_pool(pool)? {
        Some(server) => match server.ask(Request::ListVolumes, |_| ())? {
            Answer::VolumesListed(found) => Ok(found),
            _ => Err(foreign_answer()),
        },
        None => list_in(&pool::open_for_reading(pool)?),
    }
}

fn list(args: &VolumeListArgs) -> Result<(), Failure> {
    let found = listed(&PoolName::new(&args.pool))?;
    if is_json() {
        return found.iter().try_for_each(|volume| print_json(&volume.document()));
    }
    if found.is_empty() {
        return print("the pool has one volume, that of its root\n");
    }
    let mut columns =
        Columns::new(&["volume", "path", "made", "shows", "inodes", "at most", "bytes of files", "at most"]);
    let none = || "–".to_owned();
    for volume in &found {
        columns.row([
            volume.number.to_string(),
            shown(volume.path()),
            moment(volume.made()),
            volume.origin.map_or_else(none, |(of, _)| format!("volume {of}")),
            grouped(volume.inodes),
            volume.limits.1.map_or_else(none, grouped),
            Size(volume.file_bytes).to_string(),
            volume.limits.0.map_or_else(none, |max| Size(max).to_string()),
        ]);
    }
    print(columns.to_string())
}
