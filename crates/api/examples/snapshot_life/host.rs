//! A tree in a subvolume of btrfs.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::days::Tree;
use super::{Outcome, Rng};

pub struct HostTree {
    directory: PathBuf,
    files: Vec<File>,
}

fn btrfs(words: &[&str], paths: &[&Path]) -> Outcome<()> {
    let ended = Command::new("btrfs").arg("-q").args(words).args(paths).status()?;
    if ended.success() { Ok(()) } else { Err(format!("btrfs {words:?} failed").into()) }
}

impl HostTree {
    /// Makes a subvolume with so many files.
    pub fn make(directory: &Path, files: u64, file_bytes: u64) -> Outcome<HostTree> {
        let (top, mut rng) = (directory.join("tree"), Rng(1));
        btrfs(&["subvolume", "create"], &[&top])?;
        let mut opened = Vec::new();
        for number in 0..files {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(top.join(number.to_string()))?;
            file.write_all_at(&rng.bytes(file_bytes), 0)?;
            opened.push(file);
        }
        let tree = HostTree { directory: directory.to_owned(), files: opened };
        tree.sync()?;
        Ok(tree)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("snapshot-{number}"))
    }

    pub fn remove(&self) -> Outcome<()> {
        btrfs(&["subvolume", "delete"], &[&self.directory.join("tree")])
    }
}

impl Tree for HostTree {
    fn overwrite(&self, file: u64, at: u64, bytes: &[u8]) -> Outcome<()> {
        Ok(self.files[file as usize].write_all_at(bytes, at)?)
    }

    fn sync(&self) -> Outcome<()> {
        let ended = Command::new("sync").arg("-f").arg(&self.directory).status()?;
        if ended.success() { Ok(()) } else { Err("sync failed".into()) }
    }

    fn snapshot(&self, number: u64) -> Outcome<()> {
        btrfs(&["subvolume", "snapshot", "-r"], &[&self.directory.join("tree"), &self.path(number)])?;
        self.sync()
    }

    fn delete(&self, number: u64) -> Outcome<()> {
        btrfs(&["subvolume", "delete"], &[&self.path(number)])
    }
}
