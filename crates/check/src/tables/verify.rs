//! Verifying a table: its entries against its indexes, filters and descriptor in the manifest.

use std::collections::BTreeMap;

use warpfire_format::manifest::TableDescriptor;
use warpfire_format::table::{
    Bundle, BundleEntry, DataBlock, Partition, TopIndex, VersionKind, decode_bundle, fingerprint,
};
use warpfire_format::{fs, key_hash};
use warpfire_units::{SegmentId, Seq, SlicePtr};

use crate::code::FindingCode;
use crate::media::SliceReader;
use crate::report::Findings;

/// The way to a data block, and the bundles of its records.
pub(super) struct BlockPlace<'a> {
    pub(super) top: &'a TopIndex,
    pub(super) partition_number: usize,
    pub(super) partition: &'a Partition,
    pub(super) block_number: usize,
    pub(super) bundles: Vec<BundleEntry>,
}

/// Counts and sums over the blocks of a table so far.
#[derive(Default)]
pub(super) struct TableFacts {
    entries: u64,
    deletes: u64,
    superseded: u64,
    seq_min: Seq,
    seq_max: Seq,
    references: BTreeMap<SegmentId, u64>,
    /// The names themselves, if the reader counts their bytes each once.
    names: Vec<SlicePtr>,
    last_key: Option<Vec<u8>>,
    /// The first record with a bundle in each partition.
    samples: Vec<Sample>,
    sampled_partition: Option<usize>,
}

/// A record and its bundle, to be compared.
struct Sample {
    key: Vec<u8>,
    value: Vec<u8>,
    bundle: Bundle,
}

impl Sample {
    /// Whether the bundle has the record. A bundle that cannot be read is a loss of bytes, which is found
    /// elsewhere.
    fn holds(&self, reader: &mut SliceReader<'_>) -> bool {
        let Sample { key, value, bundle } = self;
        let mut bytes = Vec::new();
        if reader.read(bundle.slice, &mut bytes).is_err() {
            return true;
        }
        let Some((found, old)) = decode_bundle(&bytes).filter(|(found, _)| found == key) else {
            return false;
        };
        let mut edited = Vec::new();
        let today = match &*bundle.edit {
            [] => old,
            edit => match fs::fold(found, fs::FoldBase::Value(old), &[edit], &mut edited) {
                Ok(fs::FoldOutcome::Value) => &edited,
                _ => return false,
            },
        };
        // A short addition may lie in the record beside the slice, and be part of the bundle's bytes by the
        // edit. So the two are compared as the file that they show.
        let (Some(one), Some(other)) = (shown_file(key, value), shown_file(key, today)) else { return false };
        let content_of = |inode: &fs::Inode<'_>| content(inode, bundle.slice, &bytes);
        let contents = content_of(&one).zip(content_of(&other));
        (one.ino, one.attrs) == (other.ino, other.attrs) && contents.is_some_and(|(one, other)| one == other)
    }
}

/// The inode that a record has; `None` for a record without one.
fn shown_file<'a>(key: &[u8], value: &'a [u8]) -> Option<fs::Inode<'a>> {
    match fs::Key::decode(key).ok()? {
        fs::Key::Inode(..) => fs::Inode::decode(value).ok(),
        _ => match fs::Dentry::decode(value).ok()? {
            fs::Dentry::Embedded(inode) => Some(inode),
            fs::Dentry::Reference(..) => None,
        },
    }
}

/// The bytes of a small file up to the last one with data; `None` for each byte in a hole. A slice lies in
/// that of the bundle with these bytes. No content: it does not, or the file is not a small one.
fn content(inode: &fs::Inode<'_>, bundle: SlicePtr, bytes: &[u8]) -> Option<Vec<Option<u8>>> {
    let fs::InodeContent::Small(extents) = inode.content else { return None };
    let mut content = Vec::new();
    for extent in extents {
        let extent = extent.ok()?;
        let data = match (extent.source, extent.pointer()) {
            (fs::ExtentSource::Bytes(data), _) => data,
            (_, Some(slice)) if slice.segment == bundle.segment => {
                let start = usize::try_from(slice.offset_bytes.checked_sub(bundle.offset_bytes)?).ok()?;
                bytes.get(start..start.checked_add(slice.len_bytes as usize)?)?
            }
            (_, Some(_)) => return None,
            (_, None) => continue,
        };
        content.resize(extent.offset as usize, None);
        content.extend(data.iter().copied().map(Some));
    }
    Some(content)
}

impl TableFacts {
    /// Checks a data block: order, index, filter, slices and bundles. Blocks come in order.
    pub(super) fn take_block(
        &mut self,
        table: &TableDescriptor,
        block: &DataBlock,
        way: &BlockPlace<'_>,
        reader: &SliceReader<'_>,
        findings: &Findings,
    ) {
        let BlockPlace { top, partition_number, partition, block_number, bundles } = way;
        let place = format!("table {} partition {partition_number} block {block_number}", table.id);
        let first = block.key(0);
        let follows = match &self.last_key {
            Some(last) => last.as_slice() < first,
            None => first == table.smallest,
        };
        if !follows {
            findings.error(FindingCode::TableKeys, &place, "its first key is not the next one of the table");
        }
        // A reader must find each key the way that an engine looks for it: top block, partition, filter.
        let mut start = 0;
        let mut rest = bundles.iter().peekable();
        while start < block.len() {
            let key = block.key(start);
            let found = top.find(key) == *partition_number && partition.find(key) == *block_number;
            if !found || !partition.may_hold(key_hash(key)) {
                let message = format_args!("index or filter hides key {}", show(key));
                findings.error(FindingCode::TableIndex, &place, message);
            }
            let end = block.group_end(start);
            self.superseded += (end - start - 1) as u64;
            // Only the newest version of a key has a bundle: a reader finds it by the key.
            let bundle = rest.next_if(|bundle| bundle.entry == start);
            if bundle.is_some_and(|bundle| bundle.fingerprint != fingerprint(key_hash(key))) {
                let message = format_args!("the bundle of {} is of another key", show(key));
                findings.error(FindingCode::TableIndex, &place, message);
            }
            if let Some(entry) = bundle.filter(|_| self.sampled_partition != Some(*partition_number)) {
                self.sampled_partition = Some(*partition_number);
                let (value, bundle) = (block.entry(start).value.to_vec(), entry.bundle.clone());
                self.samples.push(Sample { key: key.to_vec(), value, bundle });
            }
            for i in start..end {
                let bundle = bundle.filter(|_| i == start).map(|bundle| &bundle.bundle);
                self.take_entry(block, (i, bundle), &place, reader, findings);
            }
            start = end;
        }
        if let Some(bundle) = rest.next() {
            let message =
                format_args!("entry {} has a bundle and is not the newest of its key", bundle.entry);
            findings.error(FindingCode::TableIndex, &place, message);
        }
        let last = block.key(block.len() - 1);
        let kept = self.last_key.get_or_insert_default();
        kept.clear();
        kept.extend_from_slice(last);
    }

    fn take_entry(
        &mut self,
        block: &DataBlock,
        (i, bundle): (usize, Option<&Bundle>),
        place: &str,
        reader: &SliceReader<'_>,
        findings: &Findings,
    ) {
        let entry = block.entry(i);
        self.entries += 1;
        self.deletes += u64::from(entry.kind == VersionKind::Delete);
        if entry.seq != Seq(0) {
            self.seq_max = self.seq_max.max(entry.seq);
            self.seq_min = if self.seq_min == Seq(0) { entry.seq } else { self.seq_min.min(entry.seq) };
        }
        if entry.kind == VersionKind::Delete {
            return;
        }
        // The sums of named bytes are compared with the manifest in `finish`: cleaning relies on them.
        let TableFacts { references, names, .. } = self;
        let mut outside = None;
        let mut ends = 0;
        let visited = fs::pointers(entry.key, entry.value, entry.kind == VersionKind::Merge, &mut |slice| {
            // The slice is the end of the bundle, and stands for all of it.
            let whole = bundle.map(|bundle| bundle.slice).filter(|bundle| slice.is_end_of(*bundle));
            ends += if whole.is_some() { 1 } else { 2 };
            let slice = whole.unwrap_or(slice);
            *references.entry(slice.segment).or_default() += u64::from(slice.len_bytes);
            names.extend(reader.counts_distinct().then_some(slice));
            if !reader.holds(slice) {
                outside = Some(slice);
            }
        });
        if let Err(e) = visited {
            findings.error(FindingCode::Value, format_args!("{place} key {}", show(entry.key)), e);
        }
        let edit = bundle.map(|bundle| &*bundle.edit).filter(|edit| !edit.is_empty());
        if let Some(Err(e)) = edit.map(|edit| fs::pointers(entry.key, edit, true, &mut |_| ends += 2)) {
            findings.error(FindingCode::Value, format_args!("{place} key {}", show(entry.key)), e);
        }
        if bundle.is_some() && ends != 1 {
            let at = format_args!("{place} key {}", show(entry.key));
            findings.error(FindingCode::TableIndex, at, "its bundle does not end with its bytes");
        }
        if let Some(slice) = outside {
            let at = format_args!("{place} key {}", show(entry.key));
            findings.error(
                FindingCode::SliceOutside,
                at,
                format_args!("{slice} is not payload of a live segment"),
            );
        }
    }

    /// Compares the sums with the manifest after the last block.
    pub(super) fn finish(
        self,
        table: &TableDescriptor,
        top: &TopIndex,
        reader: &mut SliceReader<'_>,
        findings: &Findings,
    ) {
        let place = format!("table {}", table.id);
        if self.last_key.as_deref() != Some(&table.largest) {
            findings.error(FindingCode::TableKeys, &place, "its last key is not the manifest's");
        }
        // Blocks follow each other directly (`open_partition`), so the end of the last one is the sum of all.
        let blocks_end = top.partitions().last().and_then(|p| p.offset.checked_add(p.len));
        if blocks_end.and_then(|end| end.checked_add(table.top_len_bytes)) != Some(table.len_bytes) {
            findings.error(FindingCode::TableBlock, &place, "its blocks do not fill it");
        }
        let counted = (self.entries, self.deletes, self.superseded, self.seq_min, self.seq_max);
        if counted != (table.entries, table.deletes, table.superseded, table.seq_min, table.seq_max) {
            let message = format_args!(
                "holds {} versions, {} deletes, {} superseded, commits {} to {}; the manifest says {}, {}, {}, {} to {}",
                self.entries,
                self.deletes,
                self.superseded,
                self.seq_min.0,
                self.seq_max.0,
                table.entries,
                table.deletes,
                table.superseded,
                table.seq_min.0,
                table.seq_max.0
            );
            findings.error(FindingCode::TableCounts, &place, message);
        }
        let mut listed: BTreeMap<SegmentId, u64> = BTreeMap::new();
        for (segment, bytes) in table.references.iter().filter(|(_, bytes)| *bytes > 0) {
            let sum = listed.entry(*segment).or_default();
            *sum = sum.saturating_add(*bytes);
        }
        if listed != self.references {
            let message = format_args!(
                "names {} bytes of {} segments; the manifest says {} of {}",
                self.references.values().sum::<u64>(),
                self.references.len(),
                listed.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes)),
                listed.len()
            );
            findings.error(FindingCode::TableReferences, &place, message);
        }
        for sample in self.samples.iter().filter(|sample| !sample.holds(reader)) {
            let at = format_args!("{place} key {}", show(&sample.key));
            findings.error(FindingCode::TableIndex, at, "its bundle has another record");
        }
        reader.count(&self.references);
        self.names.into_iter().for_each(|name| reader.count_name(name));
    }
}

/// A key in words.
pub(crate) fn show(key: &[u8]) -> String {
    match fs::Key::decode(key) {
        Ok(fs::Key::Dentry(_, dir, name)) => format!("dentry {dir}/{}", name.escape_ascii()),
        Ok(fs::Key::Xattr(_, ino, name)) => format!("xattr {ino} {}", name.escape_ascii()),
        Ok(fs::Key::Region(_, ino, index)) => format!("region {index} of inode {ino}"),
        Ok(fs::Key::Inode(_, ino)) => format!("inode {ino}"),
        Ok(fs::Key::Orphan(_, ino)) => format!("orphan {ino}"),
        Ok(other) => format!("{other:?}"),
        Err(_) => key.escape_ascii().to_string(),
    }
}
