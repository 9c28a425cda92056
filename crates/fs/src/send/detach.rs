//! The first part of an increment: takes out of the tree of the base every name that refers to another file
//! now.

use warpfire_format::fs::FileKind;
use warpfire_format::stream::StreamRecord;
use warpfire_meta::Storage;

use super::SendError;
use super::place::ReceiverPlace;
use super::tree::SentTrees;
use super::writer::StreamWriter;
use crate::diff::sides::{DentryId, DiffSide, name_of};
use crate::keys::dentry_range;
use crate::node::NameBuf;
use crate::transfer::is_receive_directory;

/// Changed names that one look-up returns.
const NAMES_AT_ONCE: usize = 1024;

/// A walk of the base along changed names. It visits a directory after those in it.
pub(super) struct Detach<'s, E: Storage> {
    trees: SentTrees<E>,
    writer: StreamWriter<'s>,
    place: ReceiverPlace,
}

/// A directory on the way of the walk.
struct DetachLevel {
    dir: u64,
    /// The way in it that was visited last.
    last: Option<DentryId>,
}

impl<'s, E: Storage> Detach<'s, E> {
    pub(super) fn new(trees: SentTrees<E>, writer: StreamWriter<'s>) -> Self {
        Detach { trees, writer, place: ReceiverPlace::default() }
    }

    pub(super) fn run(mut self) -> Result<(SentTrees<E>, StreamWriter<'s>), SendError> {
        let mut levels = vec![DetachLevel { dir: self.trees.root, last: None }];
        while let Some(level) = levels.last_mut() {
            let survey = self.trees.survey.as_ref().expect("an increment has a survey");
            let way = survey.next_way(DiffSide::Before, level.dir, &level.last).cloned();
            if let Some(way) = way {
                level.last = Some(way.clone());
                let below = self.trees.sides.leads_to(DiffSide::Before, way.0, &way.1)?;
                if let Some(dir) = below.filter(|_| !is_receive_directory(way.0, &way.1)) {
                    self.place.enter(way.1);
                    levels.push(DetachLevel { dir, last: None });
                }
                continue;
            }
            let dir = level.dir;
            self.detach_names(dir)?;
            levels.pop();
            self.place.leave();
        }
        self.place.return_to_root(&mut self.writer)?;
        Ok((self.trees, self.writer))
    }

    /// Takes out the changed names of a directory.
    fn detach_names(&mut self, dir: u64) -> Result<(), SendError> {
        // First the names that stay: a later record takes their directory away.
        let from = (dir, NameBuf::new());
        let staying = self.trees.unchanged_names.range(from..).take_while(|((of, _), _)| *of == dir);
        let staying: Vec<(NameBuf, u64)> = staying.map(|((_, name), ino)| (name.clone(), *ino)).collect();
        for (name, ino) in staying {
            self.put(&StreamRecord::Stash { name: &name, number: ino, keeps: true })?;
        }
        let (mut start, end) = dentry_range(dir);
        loop {
            let keys = self.trees.sides.changed(&start, Some(&end), NAMES_AT_ONCE)?;
            for key in &keys {
                if let Some(dentry) = name_of(key)?
                    && !is_receive_directory(dentry.0, &dentry.1)
                {
                    self.detach_name(&dentry)?;
                }
            }
            let Some(last) = keys.last().filter(|_| keys.len() == NAMES_AT_ONCE) else { return Ok(()) };
            start.clear();
            start.extend_from_slice(last);
            start.push(0);
        }
    }

    fn detach_name(&mut self, dentry: &DentryId) -> Result<(), SendError> {
        let (dir, name) = dentry;
        let sides = &self.trees.sides;
        let Some(was) = sides.find(DiffSide::Before, *dir, name)? else { return Ok(()) };
        let stays = sides.leads_to(DiffSide::After, *dir, name)? == Some(was.ino);
        let is_base_name =
            self.trees.added_names(was.ino)? > 0 && self.trees.base_name(was.ino)?.as_ref() == Some(dentry);
        let stash = StreamRecord::Stash { name, number: was.ino, keeps: stays };
        if is_base_name {
            return self.put(&stash);
        }
        if stays {
            return Ok(());
        }
        // A directory that is outside of the tree now went there with the names in it.
        if was.kind == FileKind::Directory && self.trees.sides.own(DiffSide::After, was.ino)?.is_some() {
            return self.put(&stash);
        }
        self.put(&StreamRecord::Remove(name))
    }

    fn put(&mut self, record: &StreamRecord<'_>) -> Result<(), SendError> {
        self.place.follow(&mut self.writer)?;
        self.writer.record(record)
    }
}
