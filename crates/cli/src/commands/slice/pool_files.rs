//! Slices of files inside a pool, by the library.

use std::path::Path;

use warpfire::{File, OpenOptions, Slice, TxEngine, Warpfire};
use warpfire_terminal::Failure;

use crate::commands::cat::print_piece;

use super::{FileRange, PastePosition, SliceBackend};

/// A range is read and printed in pieces of this size, in bytes.
const PIECE_BYTES: u64 = 1 << 20;

/// The files that a transaction on an open pool sees.
pub struct PoolFiles(pub Warpfire<TxEngine>);

impl PoolFiles {
    fn writable(&self, path: &Path) -> Result<File<TxEngine>, Failure> {
        let opened = OpenOptions::new().read(true).write(true).create(true).open(&self.0, path);
        opened.map_err(|error| Failure::at(path, &error))
    }

    fn yank(&self, part: &FileRange) -> Result<Slice, Failure> {
        let taken = self.0.open(&part.path).and_then(|file| file.yank(part.range.clone()));
        taken.map_err(|error| Failure::at(&part.path, &error))
    }
}

impl SliceBackend for PoolFiles {
    fn len(&self, path: &Path) -> Result<u64, Failure> {
        let metadata = self.0.metadata(path).map_err(|error| Failure::at(path, &error))?;
        Ok(metadata.len())
    }

    fn print(&self, part: &FileRange) -> Result<(), Failure> {
        let slice = self.yank(part)?;
        let mut piece = vec![0; usize::try_from(PIECE_BYTES.min(slice.len())).expect("a piece fits")];
        let mut at = 0;
        while at < slice.len() {
            let read = self.0.read_slice(&slice, at, &mut piece);
            let read = read.map_err(|error| Failure::at(&part.path, &error))?;
            print_piece(&part.path, part.range.start + at, &piece[..read])?;
            at += read as u64;
        }
        Ok(())
    }

    fn assemble(&self, parts: &[FileRange], target: &Path) -> Result<(), Failure> {
        let taken = parts.iter().map(|part| self.yank(part)).collect::<Result<Vec<_>, _>>()?;
        let file = self.writable(target)?;
        let failed = |error| Failure::at(target, &error);
        if taken.is_empty() {
            return file.set_len(0).map_err(failed);
        }
        let whole = Slice::join(&taken).map_err(failed)?;
        file.replace(&whole).map_err(failed)
    }

    fn paste(&self, part: &FileRange, target: &Path, position: PastePosition) -> Result<(), Failure> {
        let slice = self.yank(part)?;
        let file = self.writable(target)?;
        let pasted = match position {
            PastePosition::Over(at) => file.paste_at(&slice, at),
            PastePosition::Between(at) => file.insert_at(&slice, at),
            PastePosition::End => file.append_slice(&slice).map(|_| ()),
        };
        pasted.map_err(|error| Failure::at(target, &error))
    }

    fn remove(&self, part: &FileRange) -> Result<(), Failure> {
        let removed = self.writable(&part.path)?.remove_range(part.range.clone());
        removed.map_err(|error| Failure::at(&part.path, &error))
    }
}
