//! Operations as a person reads them.

use std::fmt;

use super::Op;
use crate::model::show_path;

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = show_path;
        // One line each: a violation lists the last operations, to be read and to be compared between runs.
        match self {
            Op::Create(path) => write!(f, "create {}", p(path)),
            Op::Put(path, fill) => write!(f, "put {} ({} bytes)", p(path), fill.len),
            Op::Mkdir(path) => write!(f, "mkdir {}", p(path)),
            Op::Symlink(path, target) => {
                write!(f, "symlink {} -> {} bytes", p(path), target.len())
            }
            Op::Mkfifo(path) => write!(f, "mkfifo {}", p(path)),
            Op::Write(path, offset, fill) => write!(f, "write {} {} at {offset}", p(path), fill.len),
            Op::Append(path, fill) => write!(f, "append {} {}", p(path), fill.len),
            Op::Truncate(path, size) => write!(f, "truncate {} to {size}", p(path)),
            Op::Allocate(path, s) => write!(f, "allocate {} {} at {}", p(path), s.len, s.offset),
            Op::Punch(path, s) => write!(f, "punch {} {} at {}", p(path), s.len, s.offset),
            Op::Insert(path, s) => write!(f, "insert {} {} at {}", p(path), s.len, s.offset),
            Op::Collapse(path, s) => write!(f, "collapse {} {} at {}", p(path), s.len, s.offset),
            Op::CopyRange(from, s, to, at) => {
                write!(f, "copy {} {} at {} to {} at {at}", p(from), s.len, s.offset, p(to))
            }
            Op::Link(from, to) => write!(f, "link {} {}", p(from), p(to)),
            Op::Unlink(path) => write!(f, "unlink {}", p(path)),
            Op::Rmdir(path) => write!(f, "rmdir {}", p(path)),
            Op::Rename(from, to, mode) => write!(f, "rename {} {} {mode:?}", p(from), p(to)),
            Op::SetMode(path, mode) => write!(f, "chmod {mode:o} {}", p(path)),
            Op::SetOwner(path, uid, gid) => write!(f, "chown {uid}:{gid} {}", p(path)),
            Op::SetTime(path, seconds) => write!(f, "touch {} at {seconds}", p(path)),
            Op::SetXattr(path, name, fill) => {
                write!(f, "setxattr {} {} {}", p(path), String::from_utf8_lossy(name), fill.len)
            }
            Op::RemoveXattr(path, name) => {
                write!(f, "removexattr {} {}", p(path), String::from_utf8_lossy(name))
            }
            Op::AppendBlindly(path, fill) => write!(f, "append {} {} blindly", p(path), fill.len),
            Op::Read(path, s) => write!(f, "read {} {} at {}", p(path), s.len, s.offset),
            Op::List(path) => write!(f, "list {}", p(path)),
            Op::Stat(path) => write!(f, "stat {}", p(path)),
            Op::Yank(path, s, slot) => {
                write!(f, "yank {} {} at {} as slice {slot}", p(path), s.len, s.offset)
            }
            Op::Paste(slot, path, Some(at)) => write!(f, "paste slice {slot} to {} at {at}", p(path)),
            Op::Paste(slot, path, None) => write!(f, "append slice {slot} to {}", p(path)),
            Op::DropValue(slot) => write!(f, "drop slice {slot}"),
            Op::Begin(tx, begin) => write!(f, "begin transaction {tx}: {begin:?}"),
            Op::In(tx, op) => write!(f, "in {tx}: {op}"),
            Op::Mark(tx) => write!(f, "savepoint in {tx}"),
            Op::Back(tx, number) => write!(f, "back to savepoint {number} in {tx}"),
            Op::Observe(tx) => write!(f, "observe all in {tx}"),
            Op::End(tx, end) => write!(f, "end transaction {tx}: {end:?}"),
            Op::Snapshot(name) => write!(f, "snapshot {}", String::from_utf8_lossy(name)),
            Op::DropSnapshot(name) => write!(f, "delete snapshot {}", String::from_utf8_lossy(name)),
            Op::RollBack(to, kept) => {
                let [to, kept] = [to, kept].map(|name| String::from_utf8_lossy(name));
                write!(f, "roll back to snapshot {to}, and keep the tree as {kept}")
            }
            Op::Bookmark(of, name) => {
                let [of, name] = [of, name].map(|name| String::from_utf8_lossy(name));
                write!(f, "bookmark {name} of snapshot {of}")
            }
            Op::DropBookmark(name) => write!(f, "delete bookmark {}", String::from_utf8_lossy(name)),
            Op::Clone(source, door) => write!(f, "clone {} as {}", p(source), p(door)),
            Op::Detach(door) => write!(f, "detach {}", p(door)),
            Op::DropClone(door) => write!(f, "delete clone {}", p(door)),
            Op::Fsync(path) => write!(f, "fsync {}", p(path)),
            Op::Sync => f.write_str("sync"),
            Op::Background(steps) => write!(f, "background x{steps}"),
            Op::Reopen => f.write_str("reopen"),
        }
    }
}
