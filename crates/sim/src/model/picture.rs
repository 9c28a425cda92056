//! A picture of a filesystem: everything visible, by path. Model and product are compared by their pictures.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use warpfire_env::Timestamp;
use warpfire_fs::FileKind;

use super::{Body, FileContent, Model, Name, NodeId, Path, ROOT};

/// Everything visible at one path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PictureEntry {
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits.
    pub permissions: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Names; of a directory 2 and one for each subdirectory.
    pub links: u32,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Extended attributes.
    pub xattrs: BTreeMap<Name, Vec<u8>>,
    /// A file's bytes or a link's target.
    pub content: FileContent,
    /// The first path that leads to the same inode.
    pub same_as: Path,
}

impl Hash for PictureEntry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.kind as u8, self.permissions, self.owner, self.links).hash(state);
        (self.mtime.seconds, self.mtime.nanos, self.ctime.seconds, self.ctime.nanos).hash(state);
        (&self.xattrs, &self.content, &self.same_as).hash(state);
    }
}

/// A whole filesystem, by path.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Picture {
    /// The entry of each path; the root has the empty path.
    pub entries: BTreeMap<Path, PictureEntry>,
    /// The picture of each snapshot, by its name.
    pub snapshots: BTreeMap<Name, Arc<Picture>>,
    /// The name that the snapshot of each bookmark had, by the name of the bookmark.
    pub bookmarks: BTreeMap<Name, Name>,
    /// The path of the door of each clone, and whether the clone reads on in an origin.
    pub doors: BTreeMap<Path, bool>,
}

impl Picture {
    /// A digest. Equal pictures have equal digests, and in practice no others do.
    #[must_use]
    pub fn digest(&self) -> u64 {
        // The hasher's keys are fixed, so that a seed replays.
        let mut hasher = DefaultHasher::new();
        self.entries.hash(&mut hasher);
        for (name, picture) in &self.snapshots {
            (name, picture.digest()).hash(&mut hasher);
        }
        (&self.bookmarks, &self.doors).hash(&mut hasher);
        hasher.finish()
    }

    /// Leaves the tree alone: a transaction and a snapshot show no more.
    pub(crate) fn clear_all_but_the_tree(&mut self) {
        (self.snapshots, self.bookmarks, self.doors) = Default::default();
    }

    /// Sets the times of directories to zero, so that pictures compare without them.
    pub(crate) fn clear_times_of_directories(&mut self) {
        for entry in self.entries.values_mut().filter(|entry| entry.kind == FileKind::Directory) {
            (entry.mtime, entry.ctime) = (Timestamp::default(), Timestamp::default());
        }
    }

    /// The differences of `found` from this picture, a line for each path; empty if there are none.
    #[must_use]
    pub fn differences(&self, found: &Picture) -> String {
        let mut out = String::new();
        for (path, wanted) in &self.entries {
            match found.entries.get(path) {
                None => out.push_str(&format!("  {} is missing\n", show_path(path))),
                Some(entry) if entry != wanted => {
                    out.push_str(&format!("  {}: {}\n", show_path(path), entry_difference(wanted, entry)));
                }
                Some(_) => {}
            }
        }
        for path in found.entries.keys().filter(|path| !self.entries.contains_key(*path)) {
            out.push_str(&format!("  {} should not be there\n", show_path(path)));
        }
        for (name, wanted) in &self.snapshots {
            let name = String::from_utf8_lossy(name);
            match found.snapshots.get(name.as_bytes()) {
                None => out.push_str(&format!("  snapshot {name} is missing\n")),
                Some(found) => {
                    let differences = wanted.differences(found);
                    differences
                        .lines()
                        .for_each(|line| out.push_str(&format!("  snapshot {name}: {line}\n")));
                }
            }
        }
        for name in found.snapshots.keys().filter(|name| !self.snapshots.contains_key(*name)) {
            out.push_str(&format!("  snapshot {} should not be there\n", String::from_utf8_lossy(name)));
        }
        if (&self.bookmarks, &self.doors) != (&found.bookmarks, &found.doors) {
            let shown = |picture: &Picture| {
                let names = |(name, of): (&Name, &Name)| {
                    format!("{} of {}", String::from_utf8_lossy(name), String::from_utf8_lossy(of))
                };
                let doors = |(path, reads_on): (&Path, &bool)| {
                    format!("{} {}", show_path(path), if *reads_on { "with origin" } else { "alone" })
                };
                let bookmarks: Vec<_> = picture.bookmarks.iter().map(names).collect();
                (bookmarks, picture.doors.iter().map(doors).collect::<Vec<_>>())
            };
            out.push_str(&format!(
                "  bookmarks and doors: wanted {:?}, found {:?}\n",
                shown(self),
                shown(found)
            ));
        }
        out
    }
}

fn entry_difference(wanted: &PictureEntry, found: &PictureEntry) -> String {
    if let Some(at) = wanted.content.first_difference(&found.content) {
        return format!(
            "content differs first at {at} (sizes: wanted {}, found {})",
            wanted.content.size_bytes(),
            found.content.size_bytes()
        );
    }
    let brief = |e: &PictureEntry| PictureEntry { content: FileContent::default(), ..e.clone() };
    format!("wanted {:?}, found {:?}", brief(wanted), brief(found))
}

/// A path as a person reads it. Long names are shortened.
#[must_use]
pub fn show_path(path: &Path) -> String {
    if path.is_empty() {
        return "/".to_owned();
    }
    let mut out = String::new();
    for name in path {
        out.push('/');
        let text = String::from_utf8_lossy(name);
        match text.char_indices().nth(24) {
            Some((end, _)) => out.push_str(&format!("{}…({} bytes)", &text[..end], name.len())),
            None => out.push_str(&text),
        }
    }
    out
}

impl Model {
    /// The picture of the model.
    #[must_use]
    pub fn picture(&self) -> Picture {
        let mut picture = Picture {
            snapshots: self.snapshots.clone(),
            bookmarks: self.bookmarks.clone(),
            doors: self.doors(),
            ..Picture::default()
        };
        // Node numbers differ between model and product, so hard links are compared by the first path of a
        // node.
        let mut first: BTreeMap<NodeId, Path> = BTreeMap::new();
        self.walk(ROOT, &mut Vec::new(), &mut |path, id| {
            let node = self.node(id);
            let content = match &node.body {
                Body::File(content) => content.clone(),
                Body::Symlink(target) => {
                    let mut content = FileContent::default();
                    content.write(0, target);
                    content
                }
                Body::Directory(_) | Body::Special => FileContent::default(),
            };
            let entry = PictureEntry {
                kind: node.kind,
                permissions: node.permissions,
                owner: (node.uid, node.gid),
                links: node.links,
                mtime: node.mtime,
                ctime: node.ctime,
                xattrs: node.xattrs.clone(),
                content,
                same_as: first.entry(id).or_insert_with(|| path.clone()).clone(),
            };
            picture.entries.insert(path.clone(), entry);
        });
        picture
    }
}
