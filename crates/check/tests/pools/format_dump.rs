//! The annotated hex dump in `docs/FORMAT.md` is the bytes of a real pool.
//!
//! The test makes a pool in the simulated environment, which gives the same bytes on every run, and follows
//! it as a reader does: newest root, log state, commit log, the record of a file. It takes every field by the
//! tables of the document and not with the decoders of `warpfire-format`, so a field that the document
//! misplaces shows up as nonsense. With the environment variable `WARPFIRE_WRITE_FORMAT_DUMP` the test writes
//! the dump into the document.

use std::fmt::{Display, Write};
use std::path::Path;

use warpfire_format::crc32c;
use warpfire_fs::NewMode;
use warpfire_fs::acl::Caller;
use warpfire_sim_env::SimDevice;

use crate::rig::{SHAPES, ZONE_BYTES, assert_clean, checked, make, world};

const BEGIN: &str = "<!-- The test format_dump writes from here … -->\n";
const END: &str = "<!-- … to here. -->\n";

/// Bytes on one line of the dump.
const LINE_BYTES: usize = 12;

/// Takes fields off bytes and writes a line for each.
struct Dump<'a> {
    bytes: &'a [u8],
    at: usize,
    text: &'a mut String,
}

impl<'a> Dump<'a> {
    fn new(title: impl Display, bytes: &'a [u8], text: &'a mut String) -> Self {
        writeln!(text, "{title}").expect("a string takes text");
        Dump { bytes, at: 0, text }
    }

    /// Writes the next `len` bytes as one field.
    fn field(&mut self, len: usize, meaning: impl Display) -> &'a [u8] {
        let field = &self.bytes[self.at..self.at + len];
        for (n, field_line) in field.chunks(LINE_BYTES).enumerate() {
            let hex: Vec<String> = field_line.iter().map(|byte| format!("{byte:02x}")).collect();
            let meaning = if n == 0 { meaning.to_string() } else { String::new() };
            let line =
                format!("  {:>4}  {:<width$} {meaning}", self.at, hex.join(" "), width = 3 * LINE_BYTES);
            writeln!(self.text, "{}", line.trim_end()).expect("a string takes text");
            self.at += field_line.len();
        }
        field
    }

    /// Writes a number of `len` bytes; `meaning` may show its value with `{}`.
    fn number(&mut self, len: usize, meaning: &str) -> u64 {
        let value = little_endian(&self.bytes[self.at..self.at + len]);
        self.field(len, meaning.replace("{}", &value.to_string()));
        value
    }

    /// The number and the length of the varint that comes next.
    fn peek_varint(&self) -> (u64, usize) {
        let rest = &self.bytes[self.at..];
        let len = 1 + rest.iter().position(|byte| byte & 0x80 == 0).expect("a varint ends");
        (rest[..len].iter().rev().fold(0, |n, byte| n << 7 | u64::from(byte & 0x7f)), len)
    }

    /// Writes a varint; `meaning` may show its value with `{}`.
    fn varint(&mut self, meaning: &str) -> u64 {
        let (value, len) = self.peek_varint();
        self.field(len, meaning.replace("{}", &value.to_string()));
        value
    }

    /// Writes a zigzag varint; `meaning` shows the signed number.
    fn signed(&mut self, meaning: &str) {
        let (raw, len) = self.peek_varint();
        let value = (raw >> 1).cast_signed() ^ -(raw & 1).cast_signed();
        self.field(len, meaning.replace("{}", &value.to_string()));
    }

    /// Checks that `len` bytes are zero and writes one line for them.
    fn zeroes(&mut self, len: usize) {
        assert!(self.bytes[self.at..self.at + len].iter().all(|byte| *byte == 0), "padding is zero");
        writeln!(self.text, "  {:>4}  … zero to byte {}", self.at, self.at + len - 1)
            .expect("a string takes text");
        self.at += len;
    }

    /// A heading inside the dump.
    fn heading(&mut self, title: impl Display) {
        writeln!(self.text, " {title}").expect("a string takes text");
    }
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// The byte at which the newest root of the device begins. Follows the chain of roots in zones 0 and 1.
fn newest_root(device: &SimDevice) -> u64 {
    let mut newest = None;
    for zone in 0..2 {
        let mut at = zone * ZONE_BYTES;
        loop {
            let header = device.peek(at, 4096);
            if header[4..8] != *b"WfRt" {
                break;
            }
            let sequence = little_endian(&header[48..56]);
            let epoch = little_endian(&header[56..60]);
            newest = newest.max(Some((epoch, sequence, at)));
            at += 4096 + little_endian(&header[64..68]).next_multiple_of(4096);
        }
    }
    newest.expect("a pool has a root").2
}

/// Dumps the newest root. Returns the zone of the first log segment on this device.
fn dump_root(device: &SimDevice, text: &mut String) -> u64 {
    let at = newest_root(device);
    let block = device.peek(at, 4096);
    assert_eq!(little_endian(&block[..4]), u64::from(crc32c(&block[4..])), "the root header's checksum");
    let mut dump = Dump::new(format!("Device 0, byte {at}: root header"), &block, text);
    dump.number(4, "CRC32C of bytes 4 to 4095");
    dump.field(4, "magic WfRt");
    dump.number(1, "version {}");
    dump.number(1, "m = {}");
    dump.number(2, "k = {}");
    dump.number(2, "index of this device: {}");
    let devices = dump.number(2, "n = {} devices in the table");
    dump.field(16, "pool uuid");
    dump.field(16, "uuid of this device");
    dump.number(8, "sequence {}");
    dump.number(4, "epoch {}");
    let zone_blocks = dump.number(4, "zone_blocks {}");
    assert_eq!(zone_blocks * 4096, ZONE_BYTES);
    let body_bytes = dump.number(4, "body bytes: {}") as usize;
    let body_crc = dump.number(4, "CRC32C of the body");
    dump.number(8, "pool made at second {} since 1970");
    dump.field(8, "features needed to read");
    dump.field(8, "features needed to write");
    dump.field(64, "label");
    dump.number(8, "configuration version {}");
    dump.field(8, "session");
    dump.number(1, "flags {}");
    let earlier = dump.number(1, "{} earlier sessions") as usize;
    dump.zeroes(6);
    for _ in 0..earlier {
        dump.number(4, "earlier session: epoch {}");
        dump.number(4, "  flags {}");
        dump.field(8, "  session");
        dump.number(8, "  sequence {}");
    }
    dump.zeroes(4096 - 184 - 24 * earlier);

    let at = at + 4096;
    let body = device.peek(at, 4096);
    assert_eq!(body_crc, u64::from(crc32c(&body[..body_bytes])), "the root body's checksum");
    let mut dump = Dump::new(format!("\nDevice 0, byte {at}: root body"), &body, text);
    for index in 0..devices {
        dump.field(16, format!("device table: uuid of device {index}"));
        dump.number(4, "  {} zones");
        dump.number(1, "  state {}");
        dump.zeroes(3);
        dump.number(4, "  joined in epoch {}");
        dump.number(4, "  seen: epoch {}");
        dump.field(8, "  seen: session");
        dump.number(8, "  seen: sequence {}");
        dump.number(8, "  life: {} bytes written");
        dump.number(8, "  life: {} zones reset");
    }
    dump.heading("log state");
    dump.field(4, "magic WfLg");
    dump.number(2, "version {}");
    dump.number(2, "zero");
    dump.number(8, "next segment id: {}");
    dump.number(8, "number of the next record: {}");
    dump.number(8, "first record that is needed: {}");
    dump.number(8, "last barrier included: {}");
    dump.number(8, "sequence of the last log stripe included: {}");
    dump.number(8, "checkpoint number {}");
    dump.number(4, "reading begins at stripe {}");
    let log_segments = dump.number(4, "c = {} log segment");
    let state_segments = dump.number(4, "s = {} segments of the state log");
    dump.number(4, "zero");
    dump.number(8, "sequence of the last stripe of the state log: {}");
    assert_eq!((log_segments, state_segments), (1, 0), "a new pool has one log segment");
    dump.heading("descriptor of the log segment");
    let zone = dump_descriptor(&mut dump);
    dump.heading("state frame");
    dump.number(1, "type {}: client's state");
    dump.number(3, "zero");
    let frame_bytes = dump.number(4, "{} bytes");
    assert_eq!(dump.at as u64 + frame_bytes, body_bytes as u64, "a new pool has one state frame");
    dump.varint("piece: {} bytes of the old state passed over");
    dump.varint("  {} bytes copied");
    dump.varint("  {} bytes added");
    dump.heading("client's state: manifest edit");
    assert_eq!(
        little_endian(&body[dump.at..dump.at + 4]),
        u64::from(crc32c(&body[dump.at + 4..body_bytes])),
        "the manifest edit's checksum"
    );
    dump.number(4, "CRC32C of the rest of the edit");
    dump.number(1, "kind {}");
    dump.varint("edit number {}");
    dump.varint("flushed seq {}");
    dump.varint("next table id {}");
    dump.varint("next run id {}");
    for list in ["runs", "tables removed", "tables moved", "tables added"] {
        dump.varint(&format!("{list}: {{}}"));
    }
    assert_eq!(dump.at, body_bytes, "a new pool has no tables");
    dump.zeroes(4096 - body_bytes);
    zone
}

/// Dumps a segment descriptor. Returns the zone of its first column.
fn dump_descriptor(dump: &mut Dump<'_>) -> u64 {
    dump.number(8, "segment id {}");
    dump.number(4, "epoch {}");
    dump.number(1, "kind {}: mirror");
    dump.number(1, "state {}: open");
    let m = dump.number(1, "m = {}");
    dump.number(1, "stream {}: commit log");
    let k = dump.number(2, "k = {}");
    let lost = dump.number(2, "l = {} lost columns");
    let runs = dump.number(4, "r = {} stripe runs");
    let mut first = None;
    for column in 0..k + m {
        dump.number(2, &format!("column {column}: device {{}}"));
        let zone = dump.number(4, "  zone {}");
        first.get_or_insert(zone);
    }
    assert_eq!(lost, 0, "a new log segment lacks nothing");
    for _ in 0..runs {
        dump.varint("run of stripes: {} rows");
        dump.varint("  {} stripes");
    }
    first.expect("a segment has columns")
}

/// Dumps the stripe of the commit log at byte `at` of the device.
fn dump_log_stripe(device: &SimDevice, at: u64, text: &mut String) {
    let block = device.peek(at, 4096);
    assert_eq!(little_endian(&block[..4]), u64::from(crc32c(&block[4..])), "the stripe header's checksum");
    let mut dump = Dump::new(format!("\nDevice 0, byte {at}: stripe of the commit log"), &block, text);
    dump.number(4, "CRC32C of bytes 4 to 4095");
    dump.field(4, "magic WfSt");
    dump.number(1, "version {}");
    dump.number(1, "kind {}: mirror");
    dump.number(2, "k = {}");
    dump.number(1, "m = {}");
    dump.number(1, "zero");
    dump.number(2, "column {}, as in every copy");
    dump.field(16, "pool uuid");
    dump.number(8, "segment id {}");
    dump.number(8, "sequence {}");
    dump.number(4, "epoch {}");
    dump.number(4, "stripe {} of the segment");
    let rows = dump.number(2, "n = {} rows: the payload fits this block");
    dump.number(2, "zero");
    let payload = dump.number(4, "payload bytes: {}") as usize;
    assert_eq!(rows, 0, "a small commit needs no rows");
    let end = dump.at + payload;
    while dump.at < end {
        dump_frame(&mut dump);
    }
    assert_eq!(dump.at, end, "frames fill the payload");
    dump.zeroes(4096 - end);
}

fn dump_frame(dump: &mut Dump<'_>) {
    let kind = dump.bytes[dump.at];
    let name = match kind {
        1 => "record",
        2 => "barrier",
        other => panic!("a small commit has no frame of type {other}"),
    };
    dump.heading(format!("frame: {name}"));
    dump.number(1, &format!("type {{}}: {name}"));
    dump.number(1, if kind == 1 { "fragment {}: whole" } else { "zero" });
    dump.number(2, "zero");
    let body = dump.number(4, "body bytes: {}") as usize;
    let end = dump.at + body;
    if kind == 1 {
        dump.number(8, "record number {}");
        dump_commit_record(dump, end);
    } else {
        dump.number(8, "barrier number {}");
        dump.number(8, "checkpoint number {}");
    }
    assert_eq!(dump.at, end, "a frame's body has the length that it says");
}

fn dump_commit_record(dump: &mut Dump<'_>, end: usize) {
    let record = &dump.bytes[dump.at..end];
    assert_eq!(little_endian(&record[..4]), u64::from(crc32c(&record[4..])), "the record's checksum");
    dump.heading("commit record");
    dump.number(4, "CRC32C of the rest of the record");
    dump.number(1, "kind {}");
    dump.number(8, "first seq {}");
    dump.number(8, "last seq {}");
    let changes = dump.number(4, "{} changes");
    for _ in 0..changes {
        dump_change(dump);
    }
}

fn dump_change(dump: &mut Dump<'_>) {
    dump.heading("change");
    dump.varint("seq − first: {}");
    let key_len = dump.varint("key length {}") as usize;
    let tag = dump.varint("value length × 4 + change: {}");
    let value_len = (tag >> 2) as usize;
    let is_operand = tag & 3 == 3;
    let key_end = dump.at + key_len;
    dump.field(4, "key: volume, big-endian");
    let kind = dump.number(1, "  kind {}") as u8;
    dump.field(8, "  inode number or id, big-endian");
    if dump.at < key_end {
        let name = String::from_utf8_lossy(&dump.bytes[dump.at..key_end]).into_owned();
        dump.field(key_end - dump.at, format!("  name \"{name}\""));
    }
    let value_end = dump.at + value_len;
    match (kind, is_operand) {
        (5, false) => dump_file(dump),
        (2, _) => {
            dump.number(1, "value: tag {}, counter");
            dump.signed("  add {}");
        }
        (1, false) => {
            dump.number(1, "value: tag {}, filesystem record");
            dump.number(2, "  version of the filesystem's records: {}");
            dump.varint("  next inode number that is not reserved: {}");
        }
        (3, true) => {
            dump.number(1, "value: tag {}, operand of an inode");
            let presence = dump.varint("  presence {}: bits 4 and 7");
            assert_eq!(presence, 1 << 4 | 1 << 7, "a new name changes the times of its directory");
            dump.signed("  modification time is: second {}");
            dump.number(4, "    nanosecond {}");
            dump.signed("  change time is at least: second {}");
            dump.number(4, "    nanosecond {}");
        }
        other => panic!("a small commit has no change of kind {other:?}"),
    }
    assert_eq!(dump.at, value_end, "a value has the length that the change says");
}

/// The value of a name: the inode of a small file.
fn dump_file(dump: &mut Dump<'_>) {
    dump.number(1, "value: tag {}, inode");
    dump.varint("  inode number {}");
    let mode = little_endian(&dump.bytes[dump.at..dump.at + 2]);
    dump.field(2, format!("  mode {mode:#o}: regular file, permissions {:o}", mode & 0o7777));
    dump.number(1, "  presence {}: all optional fields have their defaults");
    dump.varint("  owner {}");
    dump.varint("  group {}");
    dump.varint("  size {}");
    dump.signed("  birth time: second {}");
    dump.number(4, "    nanosecond {}");
    dump.varint("  extent: distance {}");
    let word = dump.varint("    length × 4 + source: {}");
    assert_eq!(word & 3, 1, "a small file has its bytes in its inode");
    let len = (word >> 2) as usize;
    let content = String::from_utf8_lossy(&dump.bytes[dump.at..dump.at + len]).into_owned();
    dump.field(len, format!("    bytes \"{}\"", content.escape_default()));
}

/// The dump of a pool of one data and one parity column with one file.
fn render() -> String {
    let shape = SHAPES[1];
    let world = world(shape, 1);
    let fs = make(&world, shape);
    fs.sync().expect("sound devices do not fail");
    let device = &world.sims()[0];
    let next_stripe = |zone: u64| {
        let blocks = (0..ZONE_BYTES / 4096).map(|block| zone * ZONE_BYTES + block * 4096);
        blocks.into_iter().find(|at| device.peek(*at, 4096).iter().all(|byte| *byte == 0))
    };
    let mut text = String::new();
    let zone = dump_root(device, &mut text);
    let at = next_stripe(zone).expect("the log segment has room");
    let root = fs.root();
    fs.create_file(&Caller::ROOT, &root, b"hello", NewMode::exact(0o644), b"Hello, flash!\n")
        .expect("a new name is made");
    fs.sync().expect("sound devices do not fail");
    drop(fs);
    dump_log_stripe(device, at, &mut text);
    let report = checked(&world.devices());
    assert_clean(&report, "the pool of the dump");
    assert_eq!(report.totals.files, 1);
    text
}

#[test]
fn the_hex_dump_of_the_format_document_is_that_of_a_pool() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/FORMAT.md");
    let document = std::fs::read_to_string(&path).expect("docs/FORMAT.md exists");
    let (before, rest) = document.split_once(BEGIN).expect("docs/FORMAT.md has the first marker of the dump");
    let (stored, after) = rest.split_once(END).expect("docs/FORMAT.md has the second marker of the dump");
    let dump = format!("\n```text\n{}```\n\n", render());
    if std::env::var_os("WARPFIRE_WRITE_FORMAT_DUMP").is_some() {
        let updated = format!("{before}{BEGIN}{dump}{END}{after}");
        std::fs::write(&path, updated).expect("docs/FORMAT.md can be written");
        return;
    }
    assert_eq!(
        stored, dump,
        "run this test with WARPFIRE_WRITE_FORMAT_DUMP=1 and review the change of docs/FORMAT.md"
    );
}
