//! `cp --salvage` after random damage copies every block that verifies, and lists exactly the others.
//!
//! The oracle is the layout. `inspect` gives the slices of each file and the place of each segment in the
//! undamaged pool. The rules of docs/FORMAT.md lead from there to the blocks that hold a byte and to those of
//! its row. The test proves this map first: it reads each file from the images by it. The damage is put at
//! known blocks, so the map gives the bytes that no reader can have.
//!
//! A test takes a few damages; `WARPFIRE_DAMAGES=100` takes so many of each shape.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use crate::fixture::{CommandResult, Fixture, bytes, tree};

const BLOCK: u64 = 4096;
/// Files with long names in one directory.
const MANY: usize = 300;
/// The content of so short a file may be in its record.
const INLINE_BYTES_MAX: usize = 64;
/// Damages of one pool, after which another is made.
const DAMAGES_OF_POOL: u64 = 50;

/// A deterministic sequence of numbers.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 += 1;
        let drawn = bytes(self.0, 8).try_into().expect("eight bytes");
        u64::from_le_bytes(drawn) % n
    }
}

struct Segment {
    /// Of each column: its device, and the first block of its zone there.
    columns: Vec<(usize, u64)>,
    data: u64,
    /// Of each stripe: its first block in the zone, and its rows.
    stripes: Vec<(u64, u64)>,
    blocks_used: u64,
    holds_files: bool,
}

/// The part of a file that lies in one block.
struct Piece {
    file: Range<u64>,
    segment: u64,
    column: usize,
    /// Blocks in the zone.
    header: u64,
    row: u64,
    /// Byte in the block.
    start: u64,
}

/// Device and block.
type Blocks = BTreeSet<(usize, u64)>;
/// Lost ranges by the path of the file below `tree`.
type Lost = BTreeMap<String, Vec<Range<u64>>>;

impl Segment {
    fn is_hit(&self, hit: &Blocks, column: usize, block: u64) -> bool {
        let (device, zone) = self.columns[column];
        hit.contains(&(device, zone + block))
    }

    /// Whether a row has more hit blocks than parity. A shard is lost with its header.
    fn is_beyond_parity(&self, hit: &Blocks, header: u64, row: u64) -> bool {
        let is_bad = |column: &usize| self.is_hit(hit, *column, header) || self.is_hit(hit, *column, row);
        (0..self.columns.len()).filter(is_bad).count() as u64 > self.columns.len() as u64 - self.data
    }

    /// The place of a byte by the rule "Segment addresses": header, column, block of the row, byte in it.
    fn place(&self, mut offset: u64) -> (u64, usize, u64, u64) {
        for &(header, rows) in &self.stripes {
            let column_bytes = rows * BLOCK;
            if offset < column_bytes * self.data {
                let (column, at) = (offset / column_bytes, offset % column_bytes);
                return (header, column as usize, header + 1 + at / BLOCK, at % BLOCK);
            }
            offset -= column_bytes * self.data;
        }
        panic!("a slice lies behind its segment");
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

/// A pool with a directory `tree`, and where the bytes of its files are.
struct Laid {
    fixture: Fixture,
    images: Vec<File>,
    sources: BTreeMap<String, Vec<u8>>,
    segments: BTreeMap<u64, Segment>,
    pieces: BTreeMap<String, Vec<Piece>>,
}

impl Laid {
    fn new(data: usize, parity: usize, seed: u64) -> Laid {
        let fixture = Fixture::pool(data + parity, data, parity, 48);
        let mut sources = BTreeMap::new();
        let mut draw = Draw(seed << 32);
        let lens = [0, 1, 40, 64, 65, 700, 3000, 4096, 4097, 30_000, 65_536, 65_537, 1 << 20, 3_500_001];
        let drawn = [200, 9000, 9000, 80_000, 80_000, 700_000, 2_500_000].map(|max| draw.below(max));
        for (n, len) in lens.into_iter().chain(drawn).enumerate() {
            let content = bytes(draw.below(u64::MAX), len as usize);
            let path = format!("{}f{n:02}", ["", "dir/", "dir/below/"][n % 3]);
            fixture.local(&format!("tree/{path}"), &content);
            sources.insert(path, content);
        }
        for (n, len) in [300_000, 3_000_000].into_iter().enumerate() {
            let (path, mut content) = (format!("sparse{n}"), vec![0; len]);
            let file = File::create(fixture.path(&format!("tree/{path}"))).expect("made");
            file.set_len(len as u64).expect("a length");
            for _ in 0..5 {
                let at = draw.below(len as u64 - 70_000) as usize / 4096 * 4096;
                let run = bytes(draw.below(u64::MAX), 1 + draw.below(70_000) as usize);
                file.write_all_at(&run, at as u64).expect("written");
                content[at..at + run.len()].copy_from_slice(&run);
            }
            sources.insert(path, content);
        }
        // Many names fill blocks of tables, so that a lost block has some of them.
        for n in 0..MANY {
            let path = format!("many/{n:03}-{}", "long".repeat(20));
            let content = bytes(draw.below(u64::MAX), 20 + n % 40);
            fixture.local(&format!("tree/{path}"), &content);
            sources.insert(path, content);
        }
        fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
        // Two files that share all their slices are lost together.
        fixture.run(["cp", "pool:/tree/dir/f13", "pool:/tree/shared"]).succeeded();
        sources.insert("shared".into(), sources["dir/f13"].clone());
        let open = |n| {
            let image = fixture.path(&format!("pool/{n}.img"));
            OpenOptions::new().read(true).write(true).open(image).expect("opened")
        };
        let images = (0..data + parity).map(open).collect();
        let mut laid = Laid { fixture, images, sources, segments: BTreeMap::new(), pieces: BTreeMap::new() };
        laid.read_layout();
        laid.prove_layout();
        laid
    }

    fn inspect(&self, words: &[&str]) -> Vec<Value> {
        let said = self.fixture.run([&["--json", "inspect"], words].concat()).succeeded();
        crate::fixture::documents(&said)
    }

    fn read_layout(&mut self) {
        let zone_blocks = number(&self.inspect(&["label", "pool"])[0]["newest"]["zone_blocks"]);
        for summary in self.inspect(&["segments", "pool"]) {
            let id = number(&summary["segment"]);
            let found = &self.inspect(&["segment", "pool", &id.to_string()])[0];
            let place = |c: &Value| (number(&c["device"]) as usize, number(&c["zone"]) * zone_blocks);
            let mut segment = Segment {
                columns: list(&found["columns"]).iter().map(place).collect(),
                data: number(&found["data"]),
                stripes: Vec::new(),
                blocks_used: number(&found["zone_blocks_used"]),
                holds_files: false,
            };
            let mut header = 0;
            for run in list(&found["stripe_runs"]) {
                for _ in 0..number(&run["count"]) {
                    segment.stripes.push((header, number(&run["rows"])));
                    header += 1 + number(&run["rows"]);
                }
            }
            self.segments.insert(id, segment);
        }
        for (path, source) in &self.sources {
            let mut pieces = Vec::new();
            if source.len() <= INLINE_BYTES_MAX {
                self.pieces.insert(path.clone(), pieces);
                continue;
            }
            for record in list(&self.inspect(&["inode", &format!("pool:/tree/{path}")])[0]["records"]) {
                let key = record["key"].as_str().expect("a key");
                let region = key.strip_prefix("region ").and_then(|rest| rest.split(' ').next());
                let base = region.map_or(0, |n| n.parse::<u64>().expect("a number") << 20);
                let content = if region.is_some() { &record["value"] } else { &record["value"]["content"] };
                for extent in content.as_array().into_iter().flatten().filter(|e| e["segment"].is_u64()) {
                    let id = number(&extent["segment"]);
                    let segment = self.segments.get_mut(&id).expect("a live segment");
                    segment.holds_files = true;
                    let (mut at, mut offset) = (base + number(&extent["at"]), number(&extent["offset"]));
                    let end = at + number(&extent["bytes"]);
                    while at < end {
                        let (header, column, row, start) = segment.place(offset);
                        let len = (BLOCK - start).min(end - at);
                        pieces.push(Piece { file: at..at + len, segment: id, column, header, row, start });
                        (at, offset) = (at + len, offset + len);
                    }
                }
            }
            pieces.sort_by_key(|piece| piece.file.start);
            self.pieces.insert(path.clone(), pieces);
        }
    }

    /// Reads the files from the images as the map says.
    fn prove_layout(&self) {
        for (path, source) in &self.sources {
            let mut found = vec![0; source.len()];
            for piece in &self.pieces[path] {
                let (device, zone) = self.segments[&piece.segment].columns[piece.column];
                let into = &mut found[piece.file.start as usize..piece.file.end as usize];
                let at = (zone + piece.row) * BLOCK + piece.start;
                self.images[device].read_exact_at(into, at).expect("an image is read");
            }
            // The bytes of the shortest files are in tables.
            assert!(found == *source || source.len() <= INLINE_BYTES_MAX, "{path}");
        }
    }

    /// Draws the blocks of one damage: up to 64 on a column, together or apart, on one or more columns.
    fn draw(&self, draw: &mut Draw) -> Blocks {
        let (of_files, blocks) = (draw.below(8) > 0, 1 << draw.below(7));
        self.draw_blocks(draw, of_files, blocks)
    }

    fn draw_blocks(&self, draw: &mut Draw, of_files: bool, blocks: u64) -> Blocks {
        let segments: Vec<&Segment> =
            self.segments.values().filter(|s| s.holds_files == of_files && s.blocks_used > 0).collect();
        let mut nth = draw.below(segments.iter().map(|s| s.blocks_used).sum());
        let segment = segments.iter().find(|s| match nth.checked_sub(s.blocks_used) {
            Some(rest) => {
                nth = rest;
                false
            }
            None => true,
        });
        let segment = segment.expect("a block of a segment was drawn");
        let columns = segment.columns.len() as u64;
        let (first, count) = (draw.below(columns), 1 + draw.below(columns));
        let starts: Vec<(u64, u64)> = match draw.below(2) {
            0 => vec![(nth, blocks)],
            _ => (0..blocks).map(|_| (draw.below(segment.blocks_used), 1)).collect(),
        };
        let mut hit = Blocks::new();
        for n in 0..count {
            let (device, zone) = segment.columns[((first + n) % columns) as usize];
            // Long runs end in other rows on other columns.
            let shift = draw.below(2) * draw.below(blocks);
            for &(start, len) in &starts {
                let start = if len > 1 { start + shift } else { start };
                hit.extend((start..(start + len).min(segment.blocks_used)).map(|b| (device, zone + b)));
            }
        }
        hit
    }

    /// The bytes that these blocks take with them.
    fn lost(&self, hit: &Blocks) -> Lost {
        let mut lost = Lost::new();
        for (path, pieces) in &self.pieces {
            for piece in pieces {
                let segment = &self.segments[&piece.segment];
                let is_gone = [piece.header, piece.row].iter().any(|b| segment.is_hit(hit, piece.column, *b));
                if !is_gone || !segment.is_beyond_parity(hit, piece.header, piece.row) {
                    continue;
                }
                let ranges = lost.entry(path.clone()).or_default();
                match ranges.last_mut() {
                    Some(last) if last.end == piece.file.start => last.end = piece.file.end,
                    _ => ranges.push(piece.file.clone()),
                }
            }
        }
        lost
    }

    /// Whether the log or a table has lost a row. The oracle does not know the records in it.
    fn loses_metadata(&self, hit: &Blocks) -> bool {
        self.segments.values().filter(|segment| !segment.holds_files).any(|segment| {
            let is_lost = |&(header, rows): &(u64, u64)| {
                (header..=header + rows).any(|row| segment.is_beyond_parity(hit, header, row))
            };
            segment.stripes.iter().any(is_lost)
        })
    }

    /// Does the work with these blocks damaged.
    fn damaged<T>(&self, hit: &Blocks, work: impl FnOnce() -> T) -> T {
        let mut kept = Vec::new();
        for &(device, block) in hit {
            let mut old = [0; BLOCK as usize];
            self.images[device].read_exact_at(&mut old, block * BLOCK).expect("read");
            self.images[device].write_all_at(&[0xa5; BLOCK as usize], block * BLOCK).expect("damaged");
            kept.push((device, block, old));
        }
        let done = work();
        for (device, block, old) in kept {
            self.images[device].write_all_at(&old, block * BLOCK).expect("mended");
        }
        done
    }

    fn copy(&self, options: &[&str], to: &str) -> CommandResult {
        _ = std::fs::remove_dir_all(self.fixture.path(to));
        self.fixture.run([&["--json", "cp", "-r"], options, &["pool:/tree", to]].concat())
    }

    /// The regular files of a copy.
    fn copied(&self, to: &str) -> BTreeMap<String, Vec<u8>> {
        let root = self.fixture.path(to);
        let found = if root.exists() { tree(&root) } else { Vec::new() };
        let files = found.into_iter().filter(|(path, _, _)| root.join(path).is_file());
        files.map(|(path, _, content)| (text(&path), content)).collect()
    }

    /// The source with zeros in these ranges.
    fn without(&self, path: &str, lost: &[Range<u64>]) -> Vec<u8> {
        let mut content = self.sources[path].clone();
        for range in lost {
            content[range.start as usize..range.end as usize].fill(0);
        }
        content
    }

    /// Both copies, where only files have lost bytes.
    fn check_files(&self, case: &str, lost: &Lost) {
        let code = i32::from(!lost.is_empty());
        let ran = self.copy(&["--salvage"], "salvaged");
        assert_eq!(ran.code, code, "{case}: {lost:?}\n{}{}", ran.stdout, ran.stderr);
        let (said, failed) = reported(&ran);
        assert_eq!((&said, failed), (lost, 0), "{case}: the report\n{}", ran.stderr);
        let lines = ran.stderr.matches(" are lost").count();
        assert_eq!(lines, lost.values().map(Vec::len).sum::<usize>(), "{case}\n{}", ran.stderr);
        for (path, range) in lost.iter().flat_map(|(path, ranges)| ranges.iter().map(move |r| (path, r))) {
            let line = format!("/tree/{path}: bytes {}..{} (", range.start, range.end);
            assert!(ran.stderr.contains(&line), "{case}: {line}\n{}", ran.stderr);
        }
        let copies = self.copied("salvaged");
        assert!(copies.keys().eq(self.sources.keys()), "{case}: {:?}", copies.keys());
        for (path, content) in &copies {
            let holes = lost.get(path).map_or(&[][..], Vec::as_slice);
            assert!(*content == self.without(path, holes), "{case}: the copy of {path} with {holes:?}");
        }

        let ran = self.copy(&[], "plain");
        assert_eq!(ran.code, code, "{case}: {lost:?}\n{}{}", ran.stdout, ran.stderr);
        assert_eq!(reported(&ran), (Lost::new(), lost.len() as u64), "{case}\n{}", ran.stderr);
        for (path, ranges) in lost {
            let first = format!("/tree/{path}: damaged: bytes {}..", ranges[0].start);
            assert!(ran.stderr.contains(&first), "{case}: {first}\n{}", ran.stderr);
        }
        let copies = self.copied("plain");
        let whole: Vec<&String> = self.sources.keys().filter(|path| !lost.contains_key(*path)).collect();
        assert!(copies.keys().eq(whole), "{case}: {:?}", copies.keys());
        assert!(copies.iter().all(|(path, content)| *content == self.sources[path]), "{case}");
    }

    /// The files whose own records can be read, without any listing.
    fn reachable(&self) -> BTreeSet<String> {
        let locations: Vec<String> = self.sources.keys().map(|path| format!("pool:/tree/{path}")).collect();
        let words = ["--json", "stat"].into_iter().chain(locations.iter().map(String::as_str));
        let found = crate::fixture::documents(&self.fixture.run(words).stdout);
        let paths = found.iter().filter_map(|file| file["name"].as_str()?.strip_prefix("/tree/"));
        paths.map(str::to_owned).collect()
    }

    /// The salvage, where the log or tables may have lost records: it has all files whose records can be
    /// read, and nothing wrong is copied as right.
    fn check_metadata(&self, case: &str, lost: &Lost) {
        let ran = self.copy(&["--salvage"], "salvaged");
        let context = format!("{case}\n{}{}", ran.stdout, ran.stderr);
        assert!([0, 1, 3].contains(&ran.code) && !ran.stderr.contains("panicked"), "{context}");
        let copies = self.copied("salvaged");
        if ran.code == 3 {
            return assert!(copies.is_empty(), "{context}");
        }
        let (said, failed) = reported(&ran);
        for (path, content) in &copies {
            let holes = said.get(path).map_or(&[][..], Vec::as_slice);
            assert!(*content == self.without(path, holes), "{path} with {holes:?} in {context}");
            for range in lost.get(path).into_iter().flatten() {
                let is_said = holes.iter().any(|hole| hole.start <= range.start && range.end <= hole.end);
                assert!(is_said, "{path} lacks {range:?} in {context}");
            }
        }
        let reachable = self.reachable();
        let copied: BTreeSet<String> = copies.keys().cloned().collect();
        let [more, less] = [copied.difference(&reachable), reachable.difference(&copied)].map(Vec::from_iter);
        assert!(
            more.is_empty() && less.is_empty(),
            "copied are {more:?} too, and not {less:?}, in {context}"
        );
        let is_all = copies.len() == self.sources.len();
        assert!(is_all || failed > 0, "files are gone in {context}");
        assert_eq!(ran.code == 0, is_all && failed == 0 && said.is_empty(), "{context}");
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("the names of the test are text").to_owned()
}

/// What a copy says: the ranges that it lacks, and the number of files that failed.
fn reported(ran: &CommandResult) -> (Lost, u64) {
    let said = crate::fixture::documents(&ran.stdout);
    let [report] = &said[..] else { panic!("one document: {}{}", ran.stdout, ran.stderr) };
    let range = |range: &Value| number(&range["start"])..number(&range["end"]);
    let lossy = list(&report["damaged"]).iter().map(|file| {
        let path = file["path"].as_str().expect("a path");
        let path = path.strip_prefix("/tree/").expect("below the tree").to_owned();
        (path, list(&file["missing"]).iter().map(range).collect())
    });
    (lossy.collect(), number(&report["failed"]))
}

fn random_damages(data: usize, parity: usize) {
    let chosen = std::env::var("WARPFIRE_DAMAGES").ok().and_then(|count| count.parse().ok());
    let damages: u64 = chosen.unwrap_or(4);
    let mut draw = Draw(1000 * data as u64);
    let (mut files, mut holes, mut harmless, mut metadata) = (0, 0, 0, 0);
    for pool in 0..damages.div_ceil(DAMAGES_OF_POOL) {
        let laid = Laid::new(data, parity, 1 + pool);
        for number in 0..DAMAGES_OF_POOL.min(damages - pool * DAMAGES_OF_POOL) {
            let hit = laid.draw(&mut draw);
            let lost = laid.lost(&hit);
            let case = format!("{data}+{parity}, pool {pool}, damage {number}: {} blocks", hit.len());
            if laid.loses_metadata(&hit) {
                metadata += 1;
                laid.damaged(&hit, || laid.check_metadata(&case, &lost));
            } else {
                laid.damaged(&hit, || laid.check_files(&case, &lost));
                harmless += u64::from(lost.is_empty());
                files += lost.len();
                holes += lost.values().map(Vec::len).sum::<usize>();
            }
        }
    }
    println!(
        "{damages} damages of {data}+{parity}: {files} files with {holes} holes; {harmless} lose nothing, \
         {metadata} hit metadata"
    );
    assert!(files > 0, "no damage hit a file");
}

#[test]
fn without_parity_a_salvage_lacks_exactly_the_blocks_that_were_hit() {
    random_damages(1, 0);
}

#[test]
fn beyond_parity_a_salvage_lacks_exactly_the_blocks_that_were_hit() {
    random_damages(4, 2);
}

#[test]
fn a_salvage_copies_every_file_whose_records_can_be_read() {
    let laid = Laid::new(1, 0, 77);
    let (mut draw, mut partly) = (Draw(77), 0);
    for number in 0..12 {
        let hit = laid.draw_blocks(&mut draw, false, 1);
        let (case, lost) = (format!("block of metadata {number}"), laid.lost(&hit));
        partly += laid.damaged(&hit, || {
            laid.check_metadata(&case, &lost);
            let reachable = laid.reachable().len();
            let listed = laid.fixture.run(["find", "pool:/tree", "--type", "file"]);
            assert!(listed.stdout.lines().count() >= reachable, "{case}: {}", listed.stderr);
            u64::from(reachable > 0 && reachable < laid.sources.len())
        });
    }
    assert!(partly > 0, "no damage has lost some of the names and left others");
}
