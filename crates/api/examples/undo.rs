//! Undoes a session that goes wrong: `rm -r` of a tree, then an abort:
//! `undo [--files 2000] [--file-kb 4] [--image FILE] [--host DIRECTORY]`.
//!
//! In a transaction, only the session sees that the tree is gone, and the abort brings it back. Without one,
//! the program copies the tree first and renames the copy afterwards. It prints the time of both ways,
//! without a sync.

mod measure;

use std::fs;
use std::path::Path;

use measure::{ExampleResult, Flags, measured};
use warpfire::Warpfire;

const USAGE: &str = "usage: undo [--files FILES] [--file-kb KILOBYTES] [--image FILE] [--host DIRECTORY]";
const FILES_PER_DIRECTORY: u64 = 100;
/// Space per byte of the tree: for it, for its copy, and for the log until it is cleaned.
const ROOM: u64 = 4;

struct SampleTree {
    files: u64,
    file_bytes: usize,
}

impl SampleTree {
    fn directories(&self) -> impl Iterator<Item = String> {
        (0..self.files.div_ceil(FILES_PER_DIRECTORY)).map(|directory| format!("{directory}"))
    }

    fn names(&self) -> impl Iterator<Item = String> {
        (0..self.files).map(|file| format!("{}/{file}", file / FILES_PER_DIRECTORY))
    }

    fn plant(&self, pool: &Warpfire) -> ExampleResult<()> {
        self.directories().try_for_each(|directory| pool.create_dir_all(format!("/tree/{directory}")))?;
        self.names().try_for_each(|name| pool.write(format!("/tree/{name}"), vec![1; self.file_bytes]))?;
        Ok(pool.sync()?)
    }

    fn check(&self, pool: &Warpfire) -> ExampleResult<()> {
        for name in self.names() {
            if pool.read(format!("/tree/{name}"))?.len() != self.file_bytes {
                return Err(format!("{name} has another length than before").into());
            }
        }
        Ok(())
    }

    fn undo_by_abort(&self, pool: &Warpfire) -> ExampleResult<()> {
        let session = pool.begin()?;
        session.remove_dir_all("/tree")?;
        session.write("/note", b"it is all gone")?;
        if session.exists("/tree") || !pool.exists("/tree") || pool.exists("/note") {
            return Err("the changes of a session are visible to it alone".into());
        }
        session.abort();
        Ok(())
    }

    fn undo_by_copy(&self, pool: &Warpfire) -> ExampleResult<()> {
        for directory in self.directories() {
            pool.create_dir_all(format!("/saved/{directory}"))?;
        }
        for name in self.names() {
            pool.write(format!("/saved/{name}"), pool.read(format!("/tree/{name}"))?)?;
        }
        pool.remove_dir_all("/tree")?;
        Ok(pool.rename("/saved", "/tree")?)
    }

    fn undo_on_the_host(&self, directory: &Path) -> ExampleResult<()> {
        let (tree, saved) = (directory.join("tree"), directory.join("saved"));
        for directory in self.directories() {
            fs::create_dir_all(saved.join(directory))?;
        }
        for name in self.names() {
            fs::write(saved.join(&name), fs::read(tree.join(&name))?)?;
        }
        fs::remove_dir_all(&tree)?;
        Ok(fs::rename(saved, tree)?)
    }
}

fn main() -> ExampleResult<()> {
    let flags = Flags::parse(&["files", "file-kb"], USAGE)?;
    let tree = SampleTree {
        files: flags.number("files", 2000)?,
        file_bytes: usize::try_from(flags.number("file-kb", 4)? * 1000)?,
    };
    let pool = flags.pool(ROOM * tree.files * tree.file_bytes as u64)?;
    tree.plant(&pool)?;
    let by_abort = measured(Some(&pool), "rm -r, undone by abort", || tree.undo_by_abort(&pool))?;
    tree.check(&pool)?;
    let by_copy = measured(Some(&pool), "rm -r, undone by a copy", || tree.undo_by_copy(&pool))?;
    tree.check(&pool)?;
    println!("{:34} {:9.1} times as long", "", by_copy / by_abort);
    if let Some(directory) = flags.path("host") {
        let root = directory.join("tree");
        tree.directories().try_for_each(|directory| fs::create_dir_all(root.join(directory)))?;
        tree.names().try_for_each(|name| fs::write(root.join(name), vec![1; tree.file_bytes]))?;
        let on_host = measured(None, "on the host", || tree.undo_on_the_host(&directory))?;
        println!("{:34} {:9.1} times as long", "", on_host / by_abort);
        fs::remove_dir_all(root)?;
    }
    Ok(())
}
