//! The plan of a writer: operations that are drawn from a seed and from the writer's files. The seed and the
//! first state of the files determine all of them.

use std::collections::BTreeMap;

use crate::record::{RecordStamp, WriterTree, mix};

/// One operation on the files of a writer. Each is one commit in the library. Through a mount, the kernel may
/// split a write into several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WriterOp {
    Create { name: String },
    Append { name: String, count: usize, stamp: RecordStamp },
    Overwrite { name: String, index: usize, count: usize, stamp: RecordStamp },
    Truncate { name: String, records: usize },
    Rename { from: String, to: String },
    Remove { name: String },
    Sync { name: String },
}

/// A writer with more files than this removes more than it makes.
const FILES: usize = 24;
/// Names that a writer draws from, in each of its two directories.
const NAMES: u64 = 30;
/// A file with this many records, 120 KiB, is not appended to.
const RECORDS_MAX: usize = 120;
/// Most records of one write: they fit in one request of the kernel.
const WRITE_RECORDS_MAX: u64 = 60;

/// The operations of one writer in one round, and the files as they are after each.
#[derive(Clone)]
pub struct WriterPlan {
    random: u64,
    round: u64,
    drawn: u64,
    /// The file stamp of every name. An empty file has no record to hold it.
    files: BTreeMap<String, u64>,
    pub tree: WriterTree,
}

/// The directories of a writer; files move between them.
pub const DIRECTORIES: [&str; 2] = ["a", "b"];

impl WriterPlan {
    /// A writer that finds `tree` when it begins.
    pub fn new(seed: u64, round: u64, writer: u32, tree: WriterTree) -> Self {
        let files = tree.iter().map(|(name, stamps)| (name.clone(), stamps.first().map_or(0, |s| s.file)));
        let random = mix(seed ^ mix(round << 8 | u64::from(writer)));
        WriterPlan { random, round, drawn: 0, files: files.collect(), tree }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random = mix(self.random);
        self.random % end.max(1)
    }

    fn name(&mut self) -> String {
        let directory = DIRECTORIES[usize::try_from(self.below(2)).expect("small")];
        format!("{directory}/{}", self.below(NAMES))
    }

    fn existing(&mut self) -> Option<String> {
        let at = self.below(self.tree.len() as u64);
        self.tree.keys().nth(usize::try_from(at).expect("small")).cloned()
    }

    /// Draws the next operation and does it to `tree`.
    pub fn next(&mut self) -> WriterOp {
        self.drawn += 1;
        let op = self.draw();
        self.apply(&op);
        op
    }

    fn draw(&mut self) -> WriterOp {
        let written = self.round << 32 | self.drawn;
        let kind = self.below(100);
        let Some(name) = self.existing() else { return self.create() };
        let file = self.files[&name];
        let records = self.tree[&name].len();
        match kind {
            0..20 if self.tree.len() < FILES => self.create(),
            0..20 => WriterOp::Remove { name },
            20..50 if records < RECORDS_MAX => {
                // Most files stay small enough to be stored inline in metadata, some do not.
                let most = if self.below(4) == 0 { WRITE_RECORDS_MAX } else { 6 };
                let count = 1 + usize::try_from(self.below(most)).expect("small");
                WriterOp::Append { name, count, stamp: RecordStamp { file, written } }
            }
            20..65 if records > 0 => {
                let index = usize::try_from(self.below(records as u64)).expect("small");
                let most = ((records - index) as u64).min(WRITE_RECORDS_MAX);
                let count = 1 + usize::try_from(self.below(most)).expect("small");
                WriterOp::Overwrite { name, index, count, stamp: RecordStamp { file, written } }
            }
            65..70 => WriterOp::Truncate {
                name,
                records: usize::try_from(self.below(records as u64)).expect("small"),
            },
            70..80 => WriterOp::Rename { from: name, to: self.name() },
            80..84 => WriterOp::Remove { name },
            _ => WriterOp::Sync { name },
        }
    }

    fn create(&mut self) -> WriterOp {
        loop {
            let name = self.name();
            if !self.tree.contains_key(&name) {
                return WriterOp::Create { name };
            }
        }
    }

    /// The files if the next operation, a write, was only begun: after each of its records but the last.
    pub fn halfway(&self) -> Vec<WriterTree> {
        let mut ahead = self.clone();
        let parts = match ahead.next() {
            WriterOp::Append { name, count, stamp } => {
                (1..count).map(|count| WriterOp::Append { name: name.clone(), count, stamp }).collect()
            }
            WriterOp::Overwrite { name, index, count, stamp } => (1..count)
                .map(|count| WriterOp::Overwrite { name: name.clone(), index, count, stamp })
                .collect(),
            _ => Vec::new(),
        };
        let after = |part| {
            let mut begun = self.clone();
            begun.apply(&part);
            begun.tree
        };
        parts.into_iter().map(after).collect()
    }

    fn apply(&mut self, op: &WriterOp) {
        let gone = "an operation is drawn for a file that is there";
        match op {
            WriterOp::Create { name } => {
                self.files.insert(name.clone(), self.round << 32 | self.drawn);
                self.tree.insert(name.clone(), Vec::new());
            }
            WriterOp::Append { name, count, stamp } => {
                let records = self.tree.get_mut(name).expect(gone);
                records.resize(records.len() + count, *stamp);
            }
            WriterOp::Overwrite { name, index, count, stamp } => {
                self.tree.get_mut(name).expect(gone)[*index..index + count].fill(*stamp);
            }
            WriterOp::Truncate { name, records } => self.tree.get_mut(name).expect(gone).truncate(*records),
            WriterOp::Rename { from, to } => {
                let records = self.tree.remove(from).expect(gone);
                self.tree.insert(to.clone(), records);
                let file = self.files.remove(from).expect(gone);
                self.files.insert(to.clone(), file);
            }
            WriterOp::Remove { name } => {
                self.tree.remove(name);
                self.files.remove(name);
            }
            WriterOp::Sync { .. } => {}
        }
    }
}
