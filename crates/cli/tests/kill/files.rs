//! The two ways to the files of a pool: through a mount and through the library.

use std::fs;
use std::io;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use warpfire::Warpfire;

use crate::plan::{DIRECTORIES, WriterOp};
use crate::record::{RECORD_BYTES, WriterTree, parse, records};

/// Files of a pool.
pub trait Files: Sync {
    fn make_directory(&self, path: &str) -> io::Result<()>;
    fn list(&self, directory: &str) -> io::Result<Vec<String>>;
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;
    fn create(&self, path: &str) -> io::Result<()>;
    fn append(&self, path: &str, bytes: &[u8]) -> io::Result<()>;
    fn write_at(&self, path: &str, bytes: &[u8], at: u64) -> io::Result<()>;
    fn set_len(&self, path: &str, bytes: u64) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, path: &str) -> io::Result<()>;
    fn sync(&self, path: &str) -> io::Result<()>;
}

/// Through a mount, with the calls of any program.
pub struct FilesOverMount(pub PathBuf);

impl Files for FilesOverMount {
    fn make_directory(&self, path: &str) -> io::Result<()> {
        fs::create_dir_all(self.0.join(path))
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        fs::read_dir(self.0.join(directory))?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(self.0.join(path))
    }

    fn create(&self, path: &str) -> io::Result<()> {
        fs::File::create_new(self.0.join(path)).map(drop)
    }

    fn append(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        fs::OpenOptions::new().append(true).open(self.0.join(path))?.write_all(bytes)
    }

    fn write_at(&self, path: &str, bytes: &[u8], at: u64) -> io::Result<()> {
        fs::OpenOptions::new().write(true).open(self.0.join(path))?.write_all_at(bytes, at)
    }

    fn set_len(&self, path: &str, bytes: u64) -> io::Result<()> {
        fs::OpenOptions::new().write(true).open(self.0.join(path))?.set_len(bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(path))
    }

    fn sync(&self, path: &str) -> io::Result<()> {
        fs::File::open(self.0.join(path))?.sync_all()
    }
}

/// Through the library.
pub struct FilesOverLibrary(pub Warpfire);

impl FilesOverLibrary {
    fn writable(&self, path: &str) -> io::Result<warpfire::File> {
        Ok(warpfire::OpenOptions::new().write(true).open(&self.0, path)?)
    }
}

impl Files for FilesOverLibrary {
    fn make_directory(&self, path: &str) -> io::Result<()> {
        Ok(self.0.create_dir_all(path)?)
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        self.0
            .read_dir(directory)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        Ok(self.0.read(path)?)
    }

    fn create(&self, path: &str) -> io::Result<()> {
        warpfire::OpenOptions::new().write(true).create_new(true).open(&self.0, path)?;
        Ok(())
    }

    fn append(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.writable(path)?.append(bytes)?;
        Ok(())
    }

    fn write_at(&self, path: &str, bytes: &[u8], at: u64) -> io::Result<()> {
        Ok(self.writable(path)?.write_all_at(bytes, at)?)
    }

    fn set_len(&self, path: &str, bytes: u64) -> io::Result<()> {
        Ok(self.writable(path)?.set_len(bytes)?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(self.0.rename(from, to)?)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        Ok(self.0.remove_file(path)?)
    }

    fn sync(&self, path: &str) -> io::Result<()> {
        Ok(self.0.open(path)?.sync_all()?)
    }
}

/// The directory of a writer.
pub fn home(writer: u32) -> String {
    format!("w{writer}")
}

/// Makes the missing directories of a writer.
pub fn settle(files: &dyn Files, writer: u32) -> io::Result<()> {
    DIRECTORIES
        .iter()
        .try_for_each(|directory| files.make_directory(&format!("{}/{directory}", home(writer))))
}

/// All files of a writer.
///
/// # Errors
/// A directory or file that cannot be read, a record that is not whole.
pub fn read_tree(files: &dyn Files, writer: u32) -> Result<WriterTree, String> {
    let mut tree = WriterTree::new();
    for directory in DIRECTORIES {
        let path = format!("{}/{directory}", home(writer));
        for name in files.list(&path).map_err(|error| format!("{path}: {error}"))? {
            let path = format!("{path}/{name}");
            let bytes = files.read(&path).map_err(|error| format!("{path}: {error}"))?;
            let stamps = parse(writer, &bytes).map_err(|what| format!("{path}: {what}"))?;
            tree.insert(format!("{directory}/{name}"), stamps);
        }
    }
    Ok(tree)
}

/// Runs one operation.
pub fn perform(files: &dyn Files, writer: u32, op: &WriterOp, length: usize) -> io::Result<()> {
    let path = |name: &str| format!("{}/{name}", home(writer));
    let bytes = |records: usize| (records * RECORD_BYTES) as u64;
    match op {
        WriterOp::Create { name } => files.create(&path(name)),
        WriterOp::Append { name, count, stamp } => {
            files.append(&path(name), &records(writer, length - count, *count, *stamp))
        }
        WriterOp::Overwrite { name, index, count, stamp } => {
            files.write_at(&path(name), &records(writer, *index, *count, *stamp), bytes(*index))
        }
        WriterOp::Truncate { name, records } => files.set_len(&path(name), bytes(*records)),
        WriterOp::Rename { from, to } => files.rename(&path(from), &path(to)),
        WriterOp::Remove { name } => files.remove(&path(name)),
        WriterOp::Sync { name } => files.sync(&path(name)),
    }
}
