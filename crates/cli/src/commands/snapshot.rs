//! `warpfire snapshot`: the snapshots of a pool, mounted or not.
//!
//! The server of a mounted pool does the work. A pool that is not mounted is opened for it.

mod bookmark;
mod diff;
mod keepers;
mod rollback;
mod rule;
mod space;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use serde::{Deserialize, Serialize};
use warpfire::{ErrorKind, Pool, SnapshotInfo, Timestamp, Warpfire};
use warpfire_env::{Clock, SystemClock};
use warpfire_terminal::{
    Columns, Failure, Size, counted, grouped, is_json, path_bytes, path_text, print, print_json, quoted,
    shown,
};

pub use bookmark::{WireBookmark, bookmark_in, bookmarks_in, delete_bookmark_in};
pub use diff::{DiffOrder, diff_in, encoded};
use keepers::SnapshotKeepers;
pub use rollback::{WireRollback, rolled_back};
pub use rule::{RuleAnswer, RuleOrder, rule_in};
use space::ListedOutput;
pub use space::{WireSpace, freed_in, space_in};

use super::mount::control::wire::{Answer, Request};
use super::mount::control::{ServerConnection, foreign_answer};
use super::pool;
use crate::location::PoolName;
use crate::output::{Rfc3339, moment, rfc3339};

const EXAMPLES: &str = "\
Examples:
  warpfire snapshot create pool monday    keep the pool as it is now
  warpfire snapshot create /mnt           of a mounted pool, named by the time
  warpfire snapshot list pool             with what keeps each, and until when
  warpfire snapshot list --space pool     with the bytes that each one keeps
  warpfire ls pool:/.snapshots/monday     look into it
  warpfire cp -r pool:/.snapshots/monday/photos pool:/photos
                                          copy from it
  warpfire ls pool:/.snapshots/@2026-11-20T15:00
                                          the newest one at that moment
  warpfire snapshot diff pool monday      the changes since then
  warpfire snapshot diff pool monday tuesday --below /photos
  warpfire snapshot rollback pool monday  make the files what they were then
  warpfire snapshot hold pool monday backup
                                          nobody deletes it until 'release'
  warpfire snapshot bookmark pool monday sent
                                          delete monday, and still send what
                                          has changed since: send --since sent
  warpfire snapshot rule add pool hourly --every 1h --keep 24h,30d
  warpfire snapshot delete pool monday tuesday
  warpfire snapshot delete --dry-run pool ..friday
                                          all up to friday: only show them";

// Arguments of `warpfire snapshot`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(clap::Subcommand, Debug)]
#[command(defer = true)]
enum SnapshotCommand {
    /// Keep a pool as it is now, under a name.
    Create(CreateArgs),
    /// Show the snapshots of a pool, what keeps each one and until when, and then its bookmarks.
    List(ListArgs),
    /// Delete snapshots and bookmarks of a pool.
    Delete(DeleteArgs),
    /// Show the changes since a snapshot, or between two.
    Diff(diff::Args),
    /// Make the files of a pool what a snapshot shows.
    Rollback(rollback::Args),
    /// Remember the moment of a snapshot, so that changes since can be sent when it is deleted.
    Bookmark(bookmark::Args),
    /// Keep a snapshot from being deleted.
    Hold(HoldArgs),
    /// Take a hold away.
    Release(HoldArgs),
    /// Make and delete snapshots by rules.
    Rule(rule::Args),
    /// Apply the rules of a pool now. The server of a mounted pool does so once a minute.
    Tick(rule::TickArgs),
}

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct CreateArgs {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// The name: at most 255 bytes, without '/', not beginning with '@' [default: the time, in UTC].
    #[arg(value_name = "NAME")]
    name: Option<OsString>,
}

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct ListArgs {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool [default: $WARPFIRE_POOL].
    #[arg(value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: OsString,

    /// Show the bytes that deleting each snapshot frees. All metadata is read for it.
    #[arg(long)]
    space: bool,
}

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct DeleteArgs {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// The snapshots and bookmarks. `A..B` is all snapshots from A to B, `..B` all up to B, `A..` all from A
    /// on.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<OsString>,

    /// Show what would be deleted and how many bytes that frees, and delete nothing. All metadata is read for
    /// it.
    #[arg(long)]
    dry_run: bool,
}

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct HoldArgs {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// The snapshot.
    #[arg(value_name = "NAME")]
    name: OsString,

    /// The hold: any name, so that several programs can hold one snapshot.
    #[arg(value_name = "HOLD")]
    hold: OsString,
}

/// A snapshot between a client and a server: its name is bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WireSnapshot {
    name: Vec<u8>,
    made: (i64, u32),
    inodes: u64,
    file_bytes: u64,
    number: u64,
    rule: Option<Vec<u8>>,
    holds: Vec<Vec<u8>>,
}

/// A snapshot, as JSON.
#[derive(Debug, Serialize)]
pub struct SnapshotOutput {
    /// Its name.
    name: String,
    /// The name in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_bytes: Option<String>,
    /// Its number in the pool. Later snapshots have higher ones.
    number: u64,
    /// The time at which it was made.
    made: Rfc3339,
    /// Inodes that it shows: files, directories and the root.
    inodes: u64,
    /// Bytes of its files without their holes.
    file_bytes: u64,
    /// The rule that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    /// Its holds.
    holds: Vec<String>,
}

impl From<SnapshotInfo> for WireSnapshot {
    fn from(info: SnapshotInfo) -> Self {
        WireSnapshot {
            name: info.name.into_vec(),
            made: (info.made.seconds, info.made.nanos),
            inodes: info.inodes,
            file_bytes: info.file_bytes,
            number: info.number,
            rule: info.rule.map(OsString::into_vec),
            holds: info.holds.into_iter().map(OsString::into_vec).collect(),
        }
    }
}

impl WireSnapshot {
    fn made(&self) -> Timestamp {
        Timestamp { seconds: self.made.0, nanos: self.made.1 }
    }

    fn name(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.name))
    }

    /// The cells of a list, with those of its space if it is wanted.
    fn cells(&self, kept: &SnapshotKeepers, space: Option<WireSpace>, with_space: bool) -> Vec<String> {
        let none = || "–".to_owned();
        let size = |bytes: fn(WireSpace) -> u64| space.map_or_else(none, |s| Size(bytes(s)).to_string());
        let mut cells = vec![
            shown(self.name()),
            moment(self.made()),
            grouped(self.inodes),
            Size(self.file_bytes).to_string(),
        ];
        if with_space {
            cells.extend([size(|space| space.alone_bytes), size(|space| space.with_older_bytes)]);
        }
        cells.push(self.rule.as_deref().map_or_else(none, shown_bytes));
        cells.extend(kept.cells(self));
        cells
    }

    fn document(&self) -> SnapshotOutput {
        SnapshotOutput {
            name: path_text(self.name()),
            name_bytes: path_bytes(self.name()),
            number: self.number,
            made: Rfc3339(self.made()),
            inodes: self.inodes,
            file_bytes: self.file_bytes,
            rule: self.rule.as_deref().map(text),
            holds: self.holds.iter().map(|hold| text(hold)).collect(),
        }
    }
}

fn shown_bytes(name: &[u8]) -> String {
    shown(Path::new(OsStr::from_bytes(name)))
}

/// A name as JSON text.
fn text(name: &[u8]) -> String {
    path_text(Path::new(OsStr::from_bytes(name)))
}

/// Snapshots in one answer to a list.
const LISTED_AT_ONCE: usize = 4096;

/// Makes a snapshot of an open pool, and makes it durable.
///
/// # Errors
/// The name is taken, or none that a snapshot can have; the pool is full or takes no changes.
pub fn create_in(pool: &Warpfire, name: &[u8]) -> Result<WireSnapshot, Failure> {
    let made = pool.create_snapshot(OsStr::from_bytes(name)).map_err(|error| of_snapshot(name, &error))?;
    pool.sync().map_err(|error| Failure::pool(&error))?;
    Ok(made.into())
}

/// Deletes a snapshot of an open pool.
///
/// # Errors
/// There is none of that name; the pool takes no changes.
pub fn delete_in(pool: &Warpfire, name: &[u8]) -> Result<WireSnapshot, Failure> {
    let deleted = pool.delete_snapshot(OsStr::from_bytes(name));
    deleted.map(WireSnapshot::from).map_err(|error| of_snapshot(name, &error))
}

/// Adds a hold to a snapshot of an open pool, or releases one, and makes that durable.
///
/// # Errors
/// There is no such snapshot, the hold is there or is not; the pool is full or takes no changes.
pub fn hold_in(pool: &Warpfire, name: &[u8], hold: &[u8], releases: bool) -> Result<WireSnapshot, Failure> {
    let (snapshot, tag) = (OsStr::from_bytes(name), OsStr::from_bytes(hold));
    let done =
        if releases { pool.release_snapshot(snapshot, tag) } else { pool.hold_snapshot(snapshot, tag) };
    let changed = done.map_err(|error| {
        let (of, shown) = (quoted(snapshot), quoted(tag));
        let is_there = pool.open_snapshot(snapshot).is_ok();
        match error.kind() {
            ErrorKind::NotFound if is_there => {
                Failure::new(format_args!("snapshot {of} has no hold {shown}"))
                    .hint("'warpfire snapshot list' shows the holds")
            }
            ErrorKind::AlreadyExists => {
                Failure::new(format_args!("snapshot {of} has the hold {shown} already"))
            }
            ErrorKind::InvalidInput => Failure::pool(&error),
            _ => of_snapshot(name, &error),
        }
    })?;
    pool.sync().map_err(|error| Failure::pool(&error))?;
    Ok(changed.into())
}

/// The next snapshots of an open pool.
///
/// # Errors
/// The list is damaged.
pub fn list_in(pool: &Warpfire, after: u64) -> Result<Vec<WireSnapshot>, Failure> {
    let found = pool.snapshots_after(after, LISTED_AT_ONCE).map_err(|error| Failure::pool(&error))?;
    Ok(found.into_iter().map(WireSnapshot::from).collect())
}

/// The failure of a call on a snapshot.
fn of_snapshot(name: &[u8], error: &warpfire::Error) -> Failure {
    let shown = quoted(OsStr::from_bytes(name));
    match error.kind() {
        ErrorKind::NotFound => no_snapshot(name),
        ErrorKind::AlreadyExists => {
            Failure::new(format_args!("the pool has a snapshot or bookmark {shown} already"))
                .hint("choose another name, or delete that one first")
        }
        ErrorKind::Held => Failure::new(format_args!("snapshot {shown} is not deleted: {error}"))
            .hint("'warpfire snapshot release' takes a hold away"),
        ErrorKind::InvalidInput => Failure::usage(format_args!("{shown} is no name for a snapshot")).hint(
            "a name has 1 to 255 bytes, none of them '/', does not begin with '@', and is neither '.' nor '..'",
        ),
        _ => Failure::pool(error),
    }
}

fn no_snapshot(name: &[u8]) -> Failure {
    Failure::new(format_args!("the pool has no snapshot {}", quoted(OsStr::from_bytes(name))))
        .hint("'warpfire snapshot list' shows them")
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        SnapshotCommand::Create(args) => create(args),
        SnapshotCommand::List(args) => list(args),
        SnapshotCommand::Delete(args) => delete(args),
        SnapshotCommand::Diff(args) => diff::run(args),
        SnapshotCommand::Rollback(args) => rollback::run(args),
        SnapshotCommand::Bookmark(args) => bookmark::run(args),
        SnapshotCommand::Hold(args) => hold(args, false),
        SnapshotCommand::Release(args) => hold(args, true),
        SnapshotCommand::Rule(args) => rule::run(args),
        SnapshotCommand::Tick(args) => rule::tick(args),
    }
}

/// Opens a pool that no process has mounted, for a change.
fn with_pool<T>(name: &PoolName, work: impl FnOnce(&Warpfire) -> Result<T, Failure>) -> Result<T, Failure> {
    let opened = pool::open_as(&Pool::options(), name)?;
    let done = work(&opened)?;
    opened.close().map_err(|error| Failure::pool(&error))?;
    Ok(done)
}

fn create(args: &CreateArgs) -> Result<(), Failure> {
    let name = match &args.name {
        Some(name) => name.as_bytes().to_vec(),
        None => rfc3339(Timestamp { nanos: 0, ..SystemClock.now() }).into_bytes(),
    };
    let pool = PoolName::new(&args.pool);
    let made = match ServerConnection::of_pool(&pool)? {
        Some(server) => {
            write_back(&pool)?;
            match server.ask(Request::CreateSnapshot { name }, |_| ())? {
                Answer::SnapshotCreated(made) => made,
                _ => return Err(foreign_answer()),
            }
        }
        None => with_pool(&pool, |pool| create_in(pool, &name))?,
    };
    report_made(&made)
}

fn report_made(made: &WireSnapshot) -> Result<(), Failure> {
    if is_json() {
        return print_json(&made.document());
    }
    print(format!(
        "snapshot {} is made: {}, {}\n",
        quoted(made.name().as_os_str()),
        counted(made.inodes, "inode", "inodes"),
        Size(made.file_bytes)
    ))
}

fn hold(args: &HoldArgs, releases: bool) -> Result<(), Failure> {
    let (name, hold) = (args.name.as_bytes().to_vec(), args.hold.as_bytes().to_vec());
    let pool = PoolName::new(&args.pool);
    let changed = match ServerConnection::of_pool(&pool)? {
        Some(server) => match server.ask(Request::HoldSnapshot { name, hold, releases }, |_| ())? {
            Answer::SnapshotHeld(changed) => changed,
            _ => return Err(foreign_answer()),
        },
        None => with_pool(&pool, |pool| hold_in(pool, &name, &hold, releases))?,
    };
    if is_json() {
        return print_json(&changed.document());
    }
    let (of, shown) = (quoted(&args.name), quoted(&args.hold));
    print(match releases {
        true => format!("snapshot {of} has the hold {shown} no more\n"),
        false => format!("snapshot {of} is held by {shown}\n"),
    })
}

/// Has the kernel write back the pages of mapped files, which the server does not have yet.
pub fn write_back(pool: &PoolName) -> Result<(), Failure> {
    let Some(mountpoint) = pool.mountpoint_around() else { return Ok(()) };
    let failed = |error: std::io::Error| Failure::local(&mountpoint, &error);
    let directory = File::open(&mountpoint).map_err(failed)?;
    rustix::fs::syncfs(&directory).map_err(|errno| failed(errno.into()))
}

/// All snapshots, of which `next` returns those after a number.
fn all(next: impl Fn(u64) -> Result<Vec<WireSnapshot>, Failure>) -> Result<Vec<WireSnapshot>, Failure> {
    let mut found: Vec<WireSnapshot> = Vec::new();
    loop {
        let page = next(found.last().map_or(0, |last| last.number))?;
        if page.is_empty() {
            return Ok(found);
        }
        found.extend(page);
    }
}

/// All snapshots and all bookmarks of a pool, each from the oldest to the newest.
fn find_all(pool: &PoolName) -> Result<(Vec<WireSnapshot>, Vec<WireBookmark>), Failure> {
    let Some(server) = ServerConnection::of_pool(pool)? else {
        let opened = pool::open_as(&Pool::options().read_only(true), pool)?;
        return Ok((all(|after| list_in(&opened, after))?, bookmarks_in(&opened)?));
    };
    let bookmarks = bookmark::ask_all(server)?;
    let snapshots = all(|after| {
        // A connection is for one request.
        let server = ServerConnection::of_pool(pool)?.ok_or_else(foreign_answer)?;
        match server.ask(Request::ListSnapshots { after }, |_| ())? {
            Answer::SnapshotsListed(next) => Ok(next),
            _ => Err(foreign_answer()),
        }
    })?;
    Ok((snapshots, bookmarks))
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let pool = PoolName::new(&args.pool);
    let (found, bookmarks) = find_all(&pool)?;
    let space = match args.space {
        true => WireSpace::of_all(&pool, &found)?,
        false => vec![None; found.len()],
    };
    let kept = SnapshotKeepers::of_all(&pool, &found)?;
    let listed = found.iter().zip(&kept).zip(&space);
    if is_json() {
        for ((snapshot, kept), space) in listed {
            print_json(&ListedOutput::new(snapshot, kept, *space))?;
        }
        return bookmarks.iter().try_for_each(|bookmark| print_json(&bookmark.document()));
    }
    if found.is_empty() {
        print("the pool has no snapshots\n")?;
        return bookmark::print_list(&bookmarks);
    }
    let of_space: &[&str] = if args.space { &["frees alone", "frees with older"] } else { &[] };
    let heads =
        [&["name", "made", "inodes", "bytes of files"], of_space, &["rule", "kept by", "until"]].concat();
    let mut columns = Columns::new(&heads);
    for ((snapshot, kept), space) in listed {
        columns.row(snapshot.cells(kept, *space, args.space));
    }
    let total = if args.space { WireSpace::total(&space) } else { String::new() };
    print(format!("{columns}{total}"))?;
    bookmark::print_list(&bookmarks)
}

/// The snapshots that arguments name, of all from the oldest to the newest.
fn chosen(found: &[WireSnapshot], arguments: &[&OsString]) -> Result<Vec<WireSnapshot>, Failure> {
    let place = |name: &[u8]| {
        found.iter().position(|snapshot| snapshot.name == name).ok_or_else(|| no_snapshot(name))
    };
    let mut places = BTreeSet::new();
    for argument in arguments {
        let bytes = argument.as_bytes();
        let dots = bytes.windows(2).position(|pair| pair == b"..");
        match (place(bytes), dots) {
            // A name may have two dots.
            (Ok(at), _) => _ = places.insert(at),
            (Err(failure), None) => return Err(failure),
            (Err(_), Some(dots)) => {
                let (first, last) = (&bytes[..dots], &bytes[dots + 2..]);
                let from = if first.is_empty() { 0 } else { place(first)? };
                let to = if last.is_empty() { found.len() } else { place(last)? + 1 };
                if from >= to {
                    let shown = quoted(argument);
                    return Err(Failure::usage(format_args!("{shown} names no snapshot"))
                        .hint("the older one comes first: 'warpfire snapshot list' shows their order"));
                }
                places.extend(from..to);
            }
        }
    }
    Ok(places.into_iter().map(|at| found[at].clone()).collect())
}

fn delete(args: &DeleteArgs) -> Result<(), Failure> {
    let pool = PoolName::new(&args.pool);
    let (found, marks) = find_all(&pool)?;
    let is_mark = |name: &&OsString| marks.iter().any(|mark| mark.is_named(name.as_bytes()));
    // No name is of a snapshot and of a bookmark.
    let (marked, named): (Vec<&OsString>, Vec<&OsString>) = args.names.iter().partition(is_mark);
    let chosen = chosen(&found, &named)?;
    let marks: Vec<&WireBookmark> =
        marks.iter().filter(|mark| marked.iter().any(|name| mark.is_named(name.as_bytes()))).collect();
    if args.dry_run {
        chosen.iter().try_for_each(|snapshot| report_deleted(snapshot, "would be deleted"))?;
        bookmark::delete(&pool, &marks, true)?;
        return if chosen.is_empty() { Ok(()) } else { space::report_freed(&pool, &found, &chosen) };
    }
    delete_snapshots(&pool, chosen)?;
    bookmark::delete(&pool, &marks, false)
}

fn delete_snapshots(pool: &PoolName, chosen: Vec<WireSnapshot>) -> Result<(), Failure> {
    if chosen.is_empty() {
        return Ok(());
    }
    if ServerConnection::of_pool(pool)?.is_none() {
        return with_pool(pool, |pool| {
            chosen.iter().try_for_each(|named| report_deleted(&delete_in(pool, &named.name)?, "is deleted"))
        });
    }
    for named in chosen {
        // A connection is for one request.
        let server = ServerConnection::of_pool(pool)?.ok_or_else(foreign_answer)?;
        match server.ask(Request::DeleteSnapshot { name: named.name }, |_| ())? {
            Answer::SnapshotDeleted(snapshot) => report_deleted(&snapshot, "is deleted")?,
            _ => return Err(foreign_answer()),
        }
    }
    Ok(())
}

fn report_deleted(snapshot: &WireSnapshot, what: &str) -> Result<(), Failure> {
    if is_json() {
        return print_json(&snapshot.document());
    }
    print(format!("snapshot {} {what}\n", quoted(snapshot.name().as_os_str())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_snapshots_and_ranges_of_them() {
        let found: Vec<WireSnapshot> = [&b"mon"[..], b"tue", b"a..b", b"wed"]
            .iter()
            .zip(1..)
            .map(|(name, number)| WireSnapshot {
                name: name.to_vec(),
                made: (0, 0),
                inodes: 1,
                file_bytes: 0,
                number,
                rule: None,
                holds: Vec::new(),
            })
            .collect();
        let of = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let chosen =
                chosen(&found, &words.iter().collect::<Vec<_>>()).map_err(|failure| failure.to_string())?;
            Ok::<_, String>(chosen.iter().map(|snapshot| snapshot.number).collect::<Vec<_>>())
        };
        assert_eq!(of(&["wed", "mon", "mon"]), Ok(vec![1, 4]));
        assert_eq!(of(&["mon..tue"]), Ok(vec![1, 2]));
        assert_eq!(of(&["..tue", "wed.."]), Ok(vec![1, 2, 4]));
        assert_eq!(of(&["a..b"]), Ok(vec![3]), "a name with two dots");
        assert_eq!(of(&[".."]), Ok(vec![1, 2, 3, 4]));
        assert!(of(&["wed..mon"]).is_err_and(|said| said.contains("names no snapshot")));
        assert!(of(&["mon..sun"]).is_err_and(|said| said.contains("has no snapshot sun")));
    }
}
