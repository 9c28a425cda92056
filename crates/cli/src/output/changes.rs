//! Changes of paths: of a transaction, or between snapshots.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::Path;

use serde::Serialize;
use warpfire_mount::{Aspect, Attr, ChangeKind, FileKind, PathChange};
use warpfire_terminal::{
    Failure, JsonLines, Lines, Size, grouped, is_json, name_for_stdout, path_bytes, path_text,
};

use super::Rfc3339;

/// Changes that are printed as text, or as documents.
pub struct ChangeLines {
    has_any: bool,
    /// The text without changes.
    none: &'static str,
    lines: Lines,
    list: Option<JsonLines>,
}

impl ChangeLines {
    /// No change yet. `none` is the line of text that says so at the end.
    #[must_use]
    pub fn new(none: &'static str) -> ChangeLines {
        let list = is_json().then(JsonLines::default);
        ChangeLines { has_any: false, none, lines: Lines::default(), list }
    }

    /// Whether there was a change.
    #[must_use]
    pub fn has_any(&self) -> bool {
        self.has_any
    }

    /// Prints a change.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn add(&mut self, change: &PathChange) -> Result<(), Failure> {
        self.has_any = true;
        match &mut self.list {
            Some(list) => list.add(&ChangeOutput::from(change)),
            None => self.lines.add(&[&line(change, name_for_stdout)]),
        }
    }

    /// Ends the list.
    ///
    /// # Errors
    /// As [`add`](ChangeLines::add).
    pub fn finish(mut self) -> Result<(), Failure> {
        if let Some(list) = self.list {
            return list.finish();
        }
        if !self.has_any {
            self.lines.add(&[self.none.as_bytes()])?;
        }
        self.lines.finish()
    }
}

fn word(kind: &ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Created => "created",
        ChangeKind::Deleted => "deleted",
        ChangeKind::Renamed(_) => "renamed",
        ChangeKind::Linked(_) => "linked",
        ChangeKind::Changed => "changed",
    }
}

fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::BlockDevice => "block device",
        FileKind::CharDevice => "character device",
    }
}

/// A name as it is printed: as on a terminal, or its bytes.
type Show = fn(&OsStr) -> Cow<'_, [u8]>;

fn line(change: &PathChange, show: Show) -> Vec<u8> {
    let path = show(change.path.as_os_str());
    let mut line = format!("{:<8} ", word(&change.kind)).into_bytes();
    if let ChangeKind::Renamed(from) = &change.kind {
        line.extend_from_slice(&show(from.as_os_str()));
        line.extend_from_slice(b" -> ");
    }
    line.extend_from_slice(&path);
    let mut details = Vec::new();
    if let ChangeKind::Linked(Some(other)) = &change.kind {
        details.push([b"another name of ", &*show(other.as_os_str())].concat());
    }
    if let (None, Some(file)) | (Some(file), None) = (&change.before, &change.after) {
        details.push(kind(file.kind).into());
        if file.kind == FileKind::Regular {
            details.push(Size(file.size_bytes).to_string().into());
        }
    }
    if let (Some(before), Some(after)) = (&change.before, &change.after) {
        details.extend(change.aspects().iter().map(|aspect| differs(change, *aspect, before, after, show)));
    }
    if !details.is_empty() {
        line.extend_from_slice(&[b"  (", &*details.join(&b", "[..]), b")"].concat());
    }
    line.push(b'\n');
    line
}

/// One difference in words.
fn differs(change: &PathChange, aspect: Aspect, before: &Attr, after: &Attr, show: Show) -> Vec<u8> {
    let data = &change.data;
    let text = match aspect {
        Aspect::Data => {
            let bytes = if data.bytes == 1 { "byte" } else { "bytes" };
            match (&data.ranges[..], data.count) {
                ([one], 1) => format!("{} {bytes} at {}", grouped(data.bytes), grouped(one.start)),
                _ => format!("{} bytes in {} places", grouped(data.bytes), grouped(data.count)),
            }
        }
        Aspect::Size => format!("size {} -> {}", grouped(before.size_bytes), grouped(after.size_bytes)),
        Aspect::Mode => format!("mode {:04o} -> {:04o}", before.mode & 0o7777, after.mode & 0o7777),
        Aspect::Owner => format!("owner {}:{} -> {}:{}", before.uid, before.gid, after.uid, after.gid),
        Aspect::ModifiedTime => "time".to_owned(),
        Aspect::AccessTime => "access time".to_owned(),
        Aspect::Xattrs => {
            let (count, names) = &change.xattrs;
            let more = if *count > names.len() as u64 { &b" ..."[..] } else { b"" };
            let names: Vec<_> = names.iter().map(|name| show(Path::new(name).as_os_str())).collect();
            return [b"attributes ", &*names.join(&b" "[..]), more].concat();
        }
    };
    text.into()
}

fn aspect(aspect: Aspect) -> &'static str {
    match aspect {
        Aspect::Data => "data",
        Aspect::Size => "size",
        Aspect::Mode => "mode",
        Aspect::Owner => "owner",
        Aspect::ModifiedTime => "modified",
        Aspect::AccessTime => "accessed",
        Aspect::Xattrs => "attributes",
    }
}

/// A change, as JSON.
#[derive(Serialize)]
struct ChangeOutput {
    /// `created`, `deleted`, `renamed`, `linked` or `changed`.
    change: &'static str,
    /// The path; of a deleted file, its old path.
    path: String,
    /// The bytes of a path that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    /// The old path of a renamed file; another name of a linked file.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// The bytes of such a path that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    from_bytes: Option<String>,
    /// What differs: `data`, `size`, `mode`, `owner`, `modified`, `accessed`, `attributes`.
    differs: Vec<&'static str>,
    /// The file before.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<FileOutput>,
    /// The file after.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<FileOutput>,
    /// The differences of its content.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<DataOutput>,
    /// The extended attributes that differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes: Option<AttributesOutput>,
}

/// A file on one side of a change, as JSON.
#[derive(Serialize)]
struct FileOutput {
    /// `file`, `directory`, `symlink`, `fifo`, `socket`, `block device` or `character device`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// Its number in the pool.
    inode: u64,
    /// Permission bits, in octal.
    mode: String,
    /// The number of its names.
    links: u32,
    /// The number of the owning user.
    uid: u32,
    /// The number of the owning group.
    gid: u32,
    /// Its length.
    size_bytes: u64,
    /// When its content last changed.
    modified: Rfc3339,
    /// When it was last read.
    accessed: Rfc3339,
}

/// Differences of the content.
#[derive(Serialize)]
struct DataOutput {
    /// Bytes that differ.
    bytes: u64,
    /// Ranges that differ.
    ranges: u64,
    /// The first ranges, each by the offsets of its start and end.
    first: Vec<(u64, u64)>,
}

/// Extended attributes that differ.
#[derive(Serialize)]
struct AttributesOutput {
    /// Their number.
    count: u64,
    /// The first names.
    first: Vec<String>,
}

impl From<&Attr> for FileOutput {
    fn from(attr: &Attr) -> Self {
        FileOutput {
            kind: kind(attr.kind),
            inode: attr.ino,
            mode: format!("{:04o}", attr.mode & 0o7777),
            links: attr.links,
            uid: attr.uid,
            gid: attr.gid,
            size_bytes: attr.size_bytes,
            modified: Rfc3339(attr.mtime),
            accessed: Rfc3339(attr.atime),
        }
    }
}

impl From<&PathChange> for ChangeOutput {
    fn from(change: &PathChange) -> Self {
        let (data, (count, names)) = (&change.data, &change.xattrs);
        let first = data.ranges.iter().map(|range| (range.start, range.end)).collect();
        let from = match &change.kind {
            ChangeKind::Renamed(from) | ChangeKind::Linked(Some(from)) => Some(from),
            _ => None,
        };
        ChangeOutput {
            change: word(&change.kind),
            path: path_text(&change.path),
            path_bytes: path_bytes(&change.path),
            from: from.map(path_text),
            from_bytes: from.and_then(path_bytes),
            differs: change.aspects().into_iter().map(aspect).collect(),
            before: change.before.as_ref().map(FileOutput::from),
            after: change.after.as_ref().map(FileOutput::from),
            data: (data.count > 0).then_some(DataOutput { bytes: data.bytes, ranges: data.count, first }),
            attributes: (*count > 0)
                .then(|| AttributesOutput { count: *count, first: names.iter().map(path_text).collect() }),
        }
    }
}
