//! `warpfire snapshot bookmark`: remember the moment of a snapshot, so that changes since then can be sent
//! when the snapshot is deleted. Lists and deletions of bookmarks are those of snapshots.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use serde::{Deserialize, Serialize};
use warpfire::{BookmarkInfo, ErrorKind, Timestamp, Warpfire};
use warpfire_terminal::{Columns, Failure, is_json, path_bytes, path_text, print, print_json, quoted, shown};

use super::super::mount::control::wire::{Answer, Request};
use super::super::mount::control::{ServerConnection, foreign_answer};
use super::{EXAMPLES, no_snapshot, of_snapshot, with_pool};
use crate::location::PoolName;
use crate::output::{Rfc3339, moment};

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// The snapshot.
    #[arg(value_name = "SNAPSHOT")]
    snapshot: OsString,

    /// The name of the bookmark: at most 255 bytes, without '/', not beginning with '@', and not that of a
    /// snapshot.
    #[arg(value_name = "NAME")]
    name: OsString,
}

/// A bookmark between a client and a server: its names are bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WireBookmark {
    name: Vec<u8>,
    snapshot: Vec<u8>,
    made: (i64, u32),
    number: u64,
}

/// A bookmark, as JSON.
#[derive(Debug, Serialize)]
pub struct BookmarkOutput {
    /// Its name.
    bookmark: String,
    /// The name in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    bookmark_bytes: Option<String>,
    /// The name of its snapshot when the bookmark was made.
    snapshot: String,
    /// The name of the snapshot in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_bytes: Option<String>,
    /// The number of the snapshot in the pool. Later snapshots have higher ones.
    number: u64,
    /// The time at which the snapshot was made.
    made: Rfc3339,
}

impl From<BookmarkInfo> for WireBookmark {
    fn from(info: BookmarkInfo) -> Self {
        WireBookmark {
            name: info.name.into_vec(),
            snapshot: info.snapshot.into_vec(),
            made: (info.made.seconds, info.made.nanos),
            number: info.number,
        }
    }
}

impl WireBookmark {
    /// Whether it has this name.
    pub(super) fn is_named(&self, name: &[u8]) -> bool {
        self.name == name
    }

    fn made(&self) -> Timestamp {
        Timestamp { seconds: self.made.0, nanos: self.made.1 }
    }

    fn name(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.name))
    }

    fn snapshot(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.snapshot))
    }

    pub(super) fn document(&self) -> BookmarkOutput {
        BookmarkOutput {
            bookmark: path_text(self.name()),
            bookmark_bytes: path_bytes(self.name()),
            snapshot: path_text(self.snapshot()),
            snapshot_bytes: path_bytes(self.snapshot()),
            number: self.number,
            made: Rfc3339(self.made()),
        }
    }
}

/// Makes a bookmark in an open pool, and makes it durable.
///
/// # Errors
/// There is no such snapshot; the name is taken, or none that a bookmark can have; the pool is full or takes
/// no changes.
pub fn bookmark_in(pool: &Warpfire, snapshot: &[u8], name: &[u8]) -> Result<WireBookmark, Failure> {
    let made = pool.create_bookmark(OsStr::from_bytes(snapshot), OsStr::from_bytes(name));
    let made = made.map_err(|error| match error.kind() {
        ErrorKind::NotFound => no_snapshot(snapshot),
        _ => of_snapshot(name, &error),
    })?;
    pool.sync().map_err(|error| Failure::pool(&error))?;
    Ok(made.into())
}

/// Deletes a bookmark of an open pool.
///
/// # Errors
/// There is none of that name; the pool takes no changes.
pub fn delete_bookmark_in(pool: &Warpfire, name: &[u8]) -> Result<WireBookmark, Failure> {
    let name = OsStr::from_bytes(name);
    pool.delete_bookmark(name).map(WireBookmark::from).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::new(format_args!("the pool has no bookmark {}", quoted(name)))
            .hint("'warpfire snapshot list' shows them"),
        _ => Failure::pool(&error),
    })
}

/// The bookmarks of an open pool.
///
/// # Errors
/// The list is damaged.
pub fn bookmarks_in(pool: &Warpfire) -> Result<Vec<WireBookmark>, Failure> {
    let found = pool.bookmarks().map_err(|error| Failure::pool(&error))?;
    Ok(found.into_iter().map(WireBookmark::from).collect())
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (snapshot, name) = (args.snapshot.as_bytes().to_vec(), args.name.as_bytes().to_vec());
    let pool = PoolName::new(&args.pool);
    let made = match ServerConnection::of_pool(&pool)? {
        Some(server) => match server.ask(Request::CreateBookmark { snapshot, name }, |_| ())? {
            Answer::BookmarkCreated(made) => made,
            _ => return Err(foreign_answer()),
        },
        None => with_pool(&pool, |pool| bookmark_in(pool, &snapshot, &name))?,
    };
    if is_json() {
        return print_json(&made.document());
    }
    print(format!(
        "bookmark {} of snapshot {} is made\n",
        quoted(made.name().as_os_str()),
        quoted(made.snapshot().as_os_str())
    ))
}

/// All bookmarks of the pool of a server, from the oldest to the newest.
pub(super) fn ask_all(server: ServerConnection) -> Result<Vec<WireBookmark>, Failure> {
    match server.ask(Request::ListBookmarks, |_| ())? {
        Answer::BookmarksListed(found) => Ok(found),
        _ => Err(foreign_answer()),
    }
}

/// Prints bookmarks for people; nothing if there are none.
pub(super) fn print_list(bookmarks: &[WireBookmark]) -> Result<(), Failure> {
    if bookmarks.is_empty() {
        return Ok(());
    }
    let mut columns = Columns::new(&["bookmark", "of snapshot", "made"]);
    for bookmark in bookmarks {
        columns.row([shown(bookmark.name()), shown(bookmark.snapshot()), moment(bookmark.made())]);
    }
    print(format!("\n{columns}"))
}

/// Deletes bookmarks, or shows them.
pub(super) fn delete(pool: &PoolName, bookmarks: &[&WireBookmark], is_dry_run: bool) -> Result<(), Failure> {
    if is_dry_run {
        return bookmarks.iter().try_for_each(|bookmark| report_deleted(bookmark, "would be deleted"));
    }
    if bookmarks.is_empty() {
        return Ok(());
    }
    if ServerConnection::of_pool(pool)?.is_none() {
        return with_pool(pool, |pool| {
            bookmarks
                .iter()
                .try_for_each(|named| report_deleted(&delete_bookmark_in(pool, &named.name)?, "is deleted"))
        });
    }
    for named in bookmarks {
        // A connection is for one request.
        let server = ServerConnection::of_pool(pool)?.ok_or_else(foreign_answer)?;
        match server.ask(Request::DeleteBookmark { name: named.name.clone() }, |_| ())? {
            Answer::BookmarkDeleted(bookmark) => report_deleted(&bookmark, "is deleted")?,
            _ => return Err(foreign_answer()),
        }
    }
    Ok(())
}

fn report_deleted(bookmark: &WireBookmark, what: &str) -> Result<(), Failure> {
    if is_json() {
        return print_json(&bookmark.document());
    }
    print(format!("bookmark {} {what}\n", quoted(bookmark.name().as_os_str())))
}
