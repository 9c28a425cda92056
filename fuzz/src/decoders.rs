//! Every decoder of structures on flash, as a function of bytes that must return, with valid encodings to
//! start from.
//!
//! A structure with one encoding must encode to the same bytes again, so that no two byte strings mean the
//! same. A structure with a checksum is tried twice: as it is, and with a corrected checksum. Without the
//! second try a fuzzer would not get past the checksum.

use warpfire_format::commit::{CommitRecord, CommitRecordBuilder};
use warpfire_format::fs::{
    Attrs, BookmarkRecord, Dentry, DoorVolume, Extent, ExtentMap, FileKind, FilesystemRecord, HealthRecord,
    Inode, InodeContent, InodeEdit, InodeTime, Key, PoolRecordId, SnapshotRecord, SnapshotRuleRecord,
    VolumeId, VolumeLimits, VolumeOrigin, VolumeRecord, WishesRecord, decode_counter, decode_region,
    decode_xattr, dentry_key, encode_counter, encode_region, encode_xattr, inode_key, region_key, xattr_key,
};
use warpfire_format::log_frame::{LogFrame, RecordFragment};
use warpfire_format::log_state::LogState;
use warpfire_format::manifest::ManifestEdit;
use warpfire_format::root::{
    DeviceEntry, DeviceLife, DeviceUse, EarlierSession, PoolLabel, RootHeader, RootPoint, RootWishes,
    encode_body,
};
use warpfire_format::root_copy;
use warpfire_format::segment::{LostColumn, SegmentDescriptor, SegmentKind, SegmentState, SegmentStream};
use warpfire_format::state_frame::{SavedState, StateFrame, StatePiece};
use warpfire_format::stream::{
    FileAttributes, FrameHeader, FrameKind, MadeFile, Piece, PieceSource, ReceiveState, Received, StreamEnd,
    StreamHeader, StreamMark, StreamRecord, StreamRecords, StreamSnapshot, put_frame,
};
use warpfire_format::stripe::{StripeHeader, StripeIdentity};
use warpfire_format::table::{
    Bundle, BundleIndex, DataBlock, DataBlockBuilder, KeyVersion, Partition, PartitionBuilder, TopBuilder,
    TopIndex, VersionKind, decode_bundle,
};
use warpfire_format::{Uuid, crc32c};
use warpfire_units::{BLOCK_BYTES, DeviceIndex, SegmentId, Seq, SlicePtr, ZoneIndex};

/// One decoder.
pub struct Decoder {
    /// Name of the fuzz target and of the directory of its seeds.
    pub name: &'static str,
    /// Decodes the bytes and checks the result. Returns for any bytes.
    pub run: fn(&[u8]),
    /// Valid encodings.
    pub valid: fn() -> Vec<Vec<u8>>,
}

/// All decoders.
pub const DECODERS: &[Decoder] = &[
    Decoder { name: "root", run: root, valid: valid_roots },
    Decoder { name: "stripe", run: stripe, valid: valid_stripes },
    Decoder { name: "segment", run: segment, valid: valid_segments },
    Decoder { name: "log_frame", run: log_frame, valid: valid_log_frames },
    Decoder { name: "log_state", run: log_state, valid: valid_log_states },
    Decoder { name: "state_frame", run: state_frame, valid: valid_state_frames },
    Decoder { name: "manifest", run: manifest, valid: valid_manifests },
    Decoder { name: "commit", run: commit, valid: valid_commits },
    Decoder { name: "table", run: table, valid: valid_table_blocks },
    Decoder { name: "key", run: key, valid: valid_keys },
    Decoder { name: "inode", run: inode, valid: valid_inodes },
    Decoder { name: "edit", run: edit, valid: valid_edits },
    Decoder { name: "region", run: region, valid: valid_regions },
    Decoder { name: "small_values", run: small_values, valid: valid_small_values },
    Decoder { name: "stream", run: stream, valid: valid_streams },
];

/// Decodes the bytes as they are, and then with the checksum of the rest in the first four.
fn as_is_and_sealed(data: &[u8], decode: impl Fn(&[u8])) {
    decode(data);
    let mut sealed = data.to_vec();
    if let Some((crc, rest)) = sealed.split_first_chunk_mut::<4>() {
        *crc = crc32c(rest).to_le_bytes();
        decode(&sealed);
    }
}

/// A whole block that begins with the bytes. A longer string is truncated.
fn as_block(data: &[u8]) -> Vec<u8> {
    let mut block = data.to_vec();
    block.resize(BLOCK_BYTES, 0);
    block
}

fn root(data: &[u8]) {
    let (head, body) = data.split_at_checked(BLOCK_BYTES).unwrap_or((data, &[]));
    as_is_and_sealed(&as_block(head), |block| {
        let Ok(header) = RootHeader::decode(block) else { return };
        let mut again = vec![0; BLOCK_BYTES];
        header.encode(&mut again);
        assert_eq!(again, block, "one encoding");
        let _ = header.decode_body(body);
    });
}

fn stripe(data: &[u8]) {
    as_is_and_sealed(&as_block(data), |block| {
        let Ok(decoded) = StripeHeader::decode(block) else { return };
        let crcs: Vec<u32> = decoded.crcs().collect();
        // `encode` expects a mirror's inline payload in the block.
        let mut again = block.to_vec();
        decoded.header.encode(&mut again, &crcs);
        assert_eq!(again, block, "one encoding");
    });
}

fn segment(data: &[u8]) {
    let Ok((descriptor, rest)) = SegmentDescriptor::decode(data) else { return };
    let mut again = Vec::new();
    descriptor.encode(&mut again);
    again.extend_from_slice(rest);
    assert_eq!(again, data, "one encoding");
}

fn log_frame(data: &[u8]) {
    let Ok((frame, rest)) = LogFrame::decode(data) else { return };
    let mut again = Vec::new();
    frame.encode(&mut again);
    again.extend_from_slice(rest);
    assert_eq!(again, data, "one encoding");
}

fn log_state(data: &[u8]) {
    let Ok((state, frames)) = LogState::decode(data) else { return };
    assert_eq!(state.encode(frames), data, "one encoding");
}

fn state_frame(data: &[u8]) {
    let mut state = SavedState::default();
    if state.apply(data, SegmentId::new(u64::MAX).expect("not zero")).is_ok() {
        let mut again = SavedState::default();
        again.apply(&state.encode(), SegmentId::new(u64::MAX).expect("not zero")).expect("it was encoded");
        assert_eq!(again, state, "a state comes back");
    }
    let Ok((frame, rest)) = StateFrame::decode(data) else { return };
    let mut again = Vec::new();
    frame.encode(&mut again);
    again.extend_from_slice(rest);
    assert_eq!(again, data, "one encoding");
}

fn manifest(data: &[u8]) {
    as_is_and_sealed(data, |record| {
        if let Ok(Some(edit)) = ManifestEdit::decode(record) {
            assert_eq!(edit.encode(), record, "one encoding");
        }
    });
}

fn commit(data: &[u8]) {
    as_is_and_sealed(data, |record| {
        if let Ok(Some(commits)) = CommitRecord::decode(record) {
            let _ = commits.for_each(|_| {});
        }
    });
}

fn table(data: &[u8]) {
    as_is_and_sealed(data, |block| {
        if let Ok(decoded) = DataBlock::decode_in_order(block) {
            for i in 0..decoded.len() {
                assert!(decoded.find(decoded.key(i)) <= i, "a key is found where it first stands");
                assert!(decoded.group_start(i) <= i && i < decoded.group_end(i), "a group holds its entry");
                let _ = decoded.entry(i);
            }
        }
        if let Ok(decoded) = DataBlock::decode(block) {
            let _ = (decoded.len(), decoded.find(b"key"));
        }
        if let Ok(partition) = Partition::decode(block) {
            let _ = (partition.find(b"key"), partition.may_hold(7), partition.blocks().len());
        }
        if let Ok(top) = TopIndex::decode(block) {
            let _ = (top.find(b"key"), top.partitions().len());
        }
        if let Ok(bundles) = BundleIndex::decode(block) {
            let found: usize = (0..bundles.blocks()).map(|n| bundles.of_block(n).count()).sum();
            assert!(found <= block.len(), "a bundle takes bytes");
        }
        let _ = decode_bundle(block);
    });
}

fn key(data: &[u8]) {
    if let Ok(key) = Key::decode(data) {
        assert_eq!(&key.encode()[..], data, "one encoding");
    }
}

fn inode(data: &[u8]) {
    if let Ok(inode) = Inode::decode(data) {
        let mut again = Vec::new();
        inode.encode(&mut again);
        let decoded = Inode::decode(&again).expect("an encoded inode decodes");
        assert_eq!((decoded.ino, decoded.attrs), (inode.ino, inode.attrs));
        if let InodeContent::Small(extents) = inode.content {
            let _ = extents.to_map();
        }
    }
    let _ = Dentry::decode(data);
}

fn edit(data: &[u8]) {
    if let Ok(edit) = InodeEdit::decode(data) {
        let mut again = Vec::new();
        edit.encode(&mut again);
        assert!(InodeEdit::decode(&again).is_ok(), "an encoded edit decodes");
    }
}

fn region(data: &[u8]) {
    for is_operand in [false, true] {
        if let Ok(map) = decode_region(data, is_operand) {
            let mut again = Vec::new();
            encode_region(&mut again, &map, is_operand);
            let decoded = decode_region(&again, is_operand).expect("an encoded region decodes");
            // Encoding joins neighbouring bytes, so only the second encoding must equal the first.
            assert_eq!(decoded.data_bytes(), map.data_bytes(), "it covers the same bytes");
            let mut once_more = Vec::new();
            encode_region(&mut once_more, &decoded, is_operand);
            assert_eq!(once_more, again, "it means the same");
        }
    }
}

fn small_values(data: &[u8]) {
    let _ = FilesystemRecord::decode(data);
    let _ = HealthRecord::decode(data);
    let _ = VolumeRecord::decode(data);
    if let Ok(volume) = DoorVolume::decode(data) {
        let mut again = Vec::new();
        volume.encode(&mut again);
        assert_eq!(again, data, "one encoding");
    }
    let _ = WishesRecord::decode(data);
    let _ = SnapshotRecord::decode(data);
    let _ = BookmarkRecord::decode(data);
    let _ = SnapshotRuleRecord::decode(data);
    let _ = decode_counter(data);
    let _ = decode_xattr(data);
}

fn stream(data: &[u8]) {
    as_is_and_sealed(data, |frame| {
        let Ok((header, payload)) = FrameHeader::verify(frame) else { return };
        let mut again = Vec::new();
        put_frame(&mut again, header.kind, |out| out.extend_from_slice(payload));
        assert_eq!(again, frame, "one encoding");
    });
    let mut again = Vec::new();
    if let Ok(header) = StreamHeader::decode(data) {
        header.encode(&mut again);
        assert_eq!(again, data, "one encoding");
    }
    let _ = (StreamMark::decode(data), StreamEnd::decode(data));
    let _ = ReceiveState::decode(data);
    if let Ok(received) = Received::decode(data) {
        assert_eq!(received.encode(), data, "one encoding");
    }
    assert!(StreamRecords::whole_bytes(data) <= data.len());
    if let Ok(records) = StreamRecords::new(data).collect::<Result<Vec<_>, _>>() {
        again.clear();
        records.iter().for_each(|record| record.encode(&mut again, &mut Vec::new()));
        assert_eq!(again, data, "one encoding");
    }
}

fn uuid(n: u128) -> Uuid {
    Uuid::new(n).expect("not zero")
}

fn id(n: u64) -> SegmentId {
    SegmentId::new(n).expect("not zero")
}

fn descriptor(stream: SegmentStream) -> SegmentDescriptor {
    let (data, parity) = match stream.kind() {
        SegmentKind::Bulk => (2, 1),
        SegmentKind::Mirror => (1, 1),
    };
    let columns = (0..data + u16::from(parity)).map(|n| (DeviceIndex(n), ZoneIndex(2 + u32::from(n))));
    let mut descriptor = SegmentDescriptor {
        id: id(7),
        epoch: 3,
        stream,
        data,
        parity,
        columns: columns.collect(),
        lost: vec![LostColumn { column: 1, first_stripe: 2 }],
        stripes: Vec::new(),
        state: SegmentState::Sealed,
    };
    for rows in [31, 31, 4] {
        descriptor.push_stripe(rows);
    }
    descriptor
}

fn valid_root() -> (RootHeader, Vec<u8>) {
    valid_root_with(DeviceLife::default())
}

fn valid_root_with(life: DeviceLife) -> (RootHeader, Vec<u8>) {
    let point = |epoch| RootPoint { epoch, session: 8, sequence: 3 };
    let device = |uuid, zones, state, is_leaving| {
        let (joined, seen, is_kept_offline) = (1, point(1), state == DeviceUse::Offline);
        let is_spare = false;
        DeviceEntry { uuid, zones, state, is_leaving, is_kept_offline, is_spare, joined, seen, life }
    };
    let devices =
        [device(uuid(5), 40, DeviceUse::Active, true), device(uuid(6), 41, DeviceUse::Offline, false)];
    let body = encode_body(&devices, b"state");
    let header = RootHeader {
        data: 1,
        parity: 1,
        device: DeviceIndex(1),
        device_uuid: uuid(6),
        device_count: 2,
        pool: uuid(9),
        sequence: 4,
        epoch: 2,
        zone_blocks: 64,
        body_bytes: u32::try_from(body.len()).expect("short"),
        body_crc: crc32c(&body),
        made_seconds: 1_700_000_000,
        write_features: 0,
        label: PoolLabel::new("tank").expect("short"),
        config_version: 1,
        wishes: RootWishes::NONE,
        counts_lives: life != DeviceLife::default(),
        session: 9,
        is_inherited: true,
        is_narrow: true,
        earlier: vec![EarlierSession { last: point(1), is_narrow: true, is_inherited: false }],
    };
    (header, body)
}

fn valid_roots() -> Vec<Vec<u8>> {
    let (header, body) = valid_root();
    let (lived, lived_body) = valid_root_with(DeviceLife { written_bytes: 1 << 40, resets: 900 });
    let wishes = RootWishes { shape_since: 7, older_parity: 1, converts: true, spare_space: 1 };
    let wishing = RootHeader { wishes, ..header.clone() };
    let record = |header: RootHeader, body: &[u8]| {
        let mut record = vec![0; BLOCK_BYTES];
        header.encode(&mut record);
        record.extend_from_slice(body);
        record.resize(2 * BLOCK_BYTES, 0);
        record
    };
    vec![record(header, &body), record(wishing, &body), record(lived, &lived_body)]
}

fn valid_stripes() -> Vec<Vec<u8>> {
    let block = |kind, rows: u16, payload_bytes| {
        let identity = StripeIdentity {
            pool: uuid(9),
            segment: id(7),
            epoch: 3,
            stripe: 1,
            column: 0,
            kind,
            data: if kind == SegmentKind::Bulk { 2 } else { 1 },
            parity: 1,
        };
        let mut block = vec![0; BLOCK_BYTES];
        let crcs: Vec<u32> = (0..u32::from(rows)).collect();
        StripeHeader { identity, sequence: 12, rows, payload_bytes }.encode(&mut block, &crcs);
        block
    };
    vec![block(SegmentKind::Bulk, 3, 20_000), block(SegmentKind::Mirror, 0, 100)]
}

fn valid_segments() -> Vec<Vec<u8>> {
    [SegmentStream::Large, SegmentStream::CommitLog]
        .map(|stream| {
            let mut bytes = Vec::new();
            descriptor(stream).encode(&mut bytes);
            bytes
        })
        .into()
}

fn valid_log_frames() -> Vec<Vec<u8>> {
    let mut opened = descriptor(SegmentStream::Small);
    (opened.state, opened.stripes) = (SegmentState::Open, Vec::new());
    let mut next = descriptor(SegmentStream::CommitLog);
    (next.state, next.stripes) = (SegmentState::Open, Vec::new());
    let runs = descriptor(SegmentStream::Small).stripes;
    let (header, body) = valid_root();
    let root_copy =
        root_copy::encode(&RootHeader { device: DeviceIndex(0), device_uuid: uuid(5), ..header }, &body);
    let frames = [
        LogFrame::Record { fragment: RecordFragment::Whole, pos: 5, bytes: b"hello" },
        LogFrame::Barrier { number: 3, checkpoint: 1 },
        LogFrame::Opened(opened),
        LogFrame::Grew { segment: id(9), first_stripe: 4, runs },
        LogFrame::Sealed(id(9)),
        LogFrame::Freed(id(8)),
        LogFrame::LogNext(next),
        LogFrame::Moved { segment: id(9), column: 1, to: (DeviceIndex(4), ZoneIndex(7)) },
        LogFrame::Lost { segment: id(9), lost: LostColumn { column: 0, first_stripe: 3 } },
        LogFrame::Root(&root_copy),
    ];
    let encoded = |frame: LogFrame<'_>| {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        bytes
    };
    frames.map(encoded).into()
}

fn valid_log_states() -> Vec<Vec<u8>> {
    let state = LogState {
        next_segment: id(20),
        next_pos: 9,
        keep_from: 5,
        barrier: 3,
        sequence: 12,
        checkpoint: 2,
        first_stripe: 0,
        state_sequence: 70_000,
        chain: vec![descriptor(SegmentStream::CommitLog)],
        state_chain: vec![descriptor(SegmentStream::StateLog)],
    };
    vec![state.encode(b"frames")]
}

fn valid_state_frames() -> Vec<Vec<u8>> {
    let frames = [
        StateFrame::Segment(descriptor(SegmentStream::Small)),
        StateFrame::Client(vec![StatePiece { skipped: 0, copied: 0, added: b"client" }]),
        StateFrame::Client(vec![StatePiece { skipped: 1, copied: 4, added: b"." }]),
        StateFrame::Gone(descriptor(SegmentStream::Small).id),
    ];
    let mut all = Vec::new();
    frames.iter().for_each(|frame| frame.encode(&mut all));
    let mut each: Vec<Vec<u8>> = frames
        .iter()
        .map(|frame| {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            bytes
        })
        .collect();
    each.push(all);
    each
}

fn valid_manifests() -> Vec<Vec<u8>> {
    use warpfire_format::manifest::TableDescriptor;
    let added = TableDescriptor {
        id: 3,
        run: 2,
        entries: 10,
        deletes: 1,
        superseded: 1,
        len_bytes: 5_000,
        top_len_bytes: 40,
        seq_min: Seq(4),
        seq_max: Seq(9),
        smallest: b"a".to_vec(),
        largest: b"b".to_vec(),
        slices: vec![SlicePtr { segment: id(7), offset_bytes: 4096, len_bytes: 5_000 }],
        references: vec![(id(8), 77)],
    };
    let edit = ManifestEdit {
        number: 6,
        flushed: Seq(9),
        next_table: 4,
        next_run: 3,
        runs: vec![2, 1],
        past: Vec::new(),
        removed: vec![2],
        moved: vec![(1, 2)],
        added: vec![added],
    };
    let with_past = ManifestEdit { past: vec![4, 3], next_run: 5, ..edit.clone() };
    vec![edit.encode(), ManifestEdit::default().encode(), with_past.encode()]
}

fn entries() -> [KeyVersion<'static>; 3] {
    [
        KeyVersion { key: b"apple", seq: Seq(5), kind: VersionKind::Put, value: b"red" },
        KeyVersion { key: b"apple", seq: Seq(4), kind: VersionKind::Delete, value: b"" },
        KeyVersion { key: b"apricot", seq: Seq(6), kind: VersionKind::Merge, value: b"operand" },
    ]
}

fn valid_commits() -> Vec<Vec<u8>> {
    let mut record = CommitRecordBuilder::new(Seq(4), Seq(6));
    entries().into_iter().for_each(|entry| record.push(entry));
    vec![record.finish()]
}

fn valid_table_blocks() -> Vec<Vec<u8>> {
    let (mut table, mut top) = (Vec::new(), TopBuilder::default());
    let mut block = DataBlockBuilder::new(Seq(4));
    entries().into_iter().for_each(|entry| block.push(entry));
    let data_len = block.finish(&mut table);
    let mut partition = PartitionBuilder::default();
    partition.add_key(7);
    let bundle = |offset_bytes, edit: &[u8]| {
        let slice = SlicePtr { segment: SegmentId::FIRST.next(), offset_bytes, len_bytes: 300 };
        Bundle { slice, edit: edit.into() }
    };
    partition.add_bundle(0, 7, &bundle(5000, b""));
    partition.add_bundle(2, 8, &bundle(5300, b"edit"));
    partition.add_block(b"", b"apple", data_len);
    partition.finish(&mut table, 0, &mut top);
    let partition_end = table.len();
    top.finish(&mut table);
    let (partition, top) = table.split_at(partition_end);
    let (data, rest) = partition.split_at(data_len);
    // Five bytes of frame, the number of data blocks, and one group with its length.
    let (bundles, partition) = rest.split_at(9 + 1 + usize::from(rest[9]));
    vec![data.to_vec(), partition.to_vec(), top.to_vec(), bundles.to_vec()]
}

fn valid_keys() -> Vec<Vec<u8>> {
    let v = VolumeId::FIRST;
    vec![
        Key::Pool(PoolRecordId::Filesystem).encode().to_vec(),
        dentry_key(v, 1, b"name").to_vec(),
        inode_key(v, 300).to_vec(),
        region_key(v, 300, 2).to_vec(),
        xattr_key(v, 300, b"user.a").to_vec(),
        Key::Orphan(v, 12).encode().to_vec(),
    ]
}

fn attrs(kind: FileKind) -> Attrs {
    let now = warpfire_format::fs::InodeTime { seconds: 1_700_000_000, nanos: 5 };
    Attrs {
        kind,
        permissions: 0o644,
        uid: 1000,
        gid: 100,
        links: kind.first_links(),
        size_bytes: 5,
        allocated_bytes: 5,
        reserved_bytes: 0,
        rdev: 0,
        btime: now,
        mtime: now,
        ctime: now,
        atime: now,
        flags: 0,
    }
}

fn valid_inodes() -> Vec<Vec<u8>> {
    let encoded = |kind, content| {
        let mut bytes = Vec::new();
        Inode { ino: 9, attrs: attrs(kind), content }.encode(&mut bytes);
        bytes
    };
    let mut reference = Vec::new();
    Dentry::encode_reference(&mut reference, FileKind::Directory, 12);
    vec![
        encoded(FileKind::Regular, InodeContent::Regions),
        encoded(FileKind::Directory, InodeContent::Directory(1, b"name")),
        encoded(FileKind::Symlink, InodeContent::Symlink(b"there")),
        reference,
    ]
}

fn valid_edits() -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    InodeEdit { permissions: Some(0o600), links_add: 1, owner: Some((1, 2)), ..InodeEdit::default() }
        .encode(&mut bytes);
    vec![bytes]
}

fn valid_regions() -> Vec<Vec<u8>> {
    let mut map = ExtentMap::new();
    map.overlay(Extent::bytes(0, b"hello"));
    map.overlay(Extent::slice(4096, SlicePtr { segment: id(7), offset_bytes: 0, len_bytes: 9000 }));
    let (mut value, mut operand) = (Vec::new(), Vec::new());
    encode_region(&mut value, &map, false);
    map.overlay(Extent::hole(5000, 100));
    encode_region(&mut operand, &map, true);
    vec![value, operand]
}

fn valid_streams() -> Vec<Vec<u8>> {
    let made = InodeTime { seconds: -5, nanos: 6 };
    let snapshot = |number| StreamSnapshot { number, made, name: b"monday".to_vec() };
    let header = StreamHeader {
        pool: uuid(9),
        snapshot: snapshot(8),
        base: Some(snapshot(7)),
        inodes: 5,
        file_bytes: 6,
        root: b"/srv".to_vec(),
    };
    let mark = StreamMark { records: 1, data_bytes: 2, hash: [3; 32] };
    let attributes = FileAttributes { permissions: 0o644, uid: 1, gid: 2, mtime: made, atime: made };
    let pieces = vec![
        Piece { len_bytes: 5, source: PieceSource::Bytes(b"hello") },
        Piece { len_bytes: 9, source: PieceSource::Hole },
        Piece { len_bytes: 7, source: PieceSource::Data(4) },
    ];
    let file = MadeFile {
        kind: FileKind::Regular,
        name: b"name",
        number: 3,
        attributes,
        rdev: 0,
        target: b"",
        pieces: pieces.clone(),
    };
    let records = [
        StreamRecord::Enter(b"d"),
        StreamRecord::Stash { name: b"a", number: 5, keeps: true },
        StreamRecord::Make(file),
        StreamRecord::Write { offset: 100, pieces },
        StreamRecord::Attributes(attributes),
        StreamRecord::SetXattr { name: b"user.a", value: b"b" },
        StreamRecord::Up(1),
    ];
    let (mut all, mut head, mut frame) = (Vec::new(), Vec::new(), Vec::new());
    records.iter().for_each(|record| record.encode(&mut all, &mut Vec::new()));
    header.encode(&mut head);
    put_frame(&mut frame, FrameKind::Records, |out| out.extend_from_slice(&all));
    let received = Received {
        pool: uuid(9),
        inode: 4,
        hash: [5; 32],
        snapshot: snapshot(8),
        root: b"/".to_vec(),
        kept_made: InodeTime { seconds: 11, nanos: 12 },
        kept_as: b"kept".to_vec(),
    };
    let state = ReceiveState { header, mark, record_bytes: 5, is_complete: false };
    vec![all, head, frame, received.encode(), state.encode()]
}

fn valid_small_values() -> Vec<Vec<u8>> {
    let mut values = vec![Vec::new(); 4];
    FilesystemRecord::of_one_volume(77).encode(&mut values[0]);
    VolumeRecord { root_ino: 1, name: b"main" }.encode(&mut values[1]);
    encode_counter(&mut values[2], -5);
    encode_xattr(&mut values[3], b"value");
    let mut wishes = Vec::new();
    WishesRecord { rate_bytes: 50 << 20, ..WishesRecord::default() }.encode(&mut wishes);
    values.push(wishes);
    let mut volume = Vec::new();
    let origin = Some(VolumeOrigin { volume: VolumeId(2), seq: Seq(300), released_at: None });
    let made = InodeTime { seconds: 5, nanos: 6 };
    let limits = VolumeLimits::default();
    let removed_at = Some(Seq(400));
    let record = DoorVolume { made, root: 7, removed_at, origin, is_detached: false, limits };
    record.encode(&mut volume);
    values.push(volume);
    let mut limited = Vec::new();
    let limits = VolumeLimits { bytes: Some(1 << 30), files: None };
    DoorVolume { removed_at: None, limits, ..record }.encode(&mut limited);
    values.push(limited);
    let mut detached = Vec::new();
    let origin = origin.map(|origin| VolumeOrigin { released_at: Some(Seq(350)), ..origin });
    DoorVolume { origin, is_detached: true, ..record }.encode(&mut detached);
    values.push(detached);
    values
}
