//! Streams that do not fit, have changed on their way, or were made to harm.

use warpfire_format::stream::{
    FileAttributes, FrameKind, MadeFile, Piece, PieceSource, StreamEnd, StreamHeader, StreamRecord,
    StreamSnapshot, put_frame,
};

use warpfire_meta::SliceStore;

use super::*;
use crate::tests::engine::{format, open};
use crate::tests::world;
use crate::transfer::StreamHasher;

/// A source with two snapshots, and a receiver that shows the first.
fn pair() -> (super::super::TestFs, Arc<super::super::TestFs>) {
    let source = world();
    let mut random = TestRandom(1);
    Changes { fs: &source, random: &mut random }.make(80);
    source.create_snapshot(b"a").unwrap();
    Changes { fs: &source, random: &mut random }.make(80);
    source.create_snapshot(b"b").unwrap();
    let other = Arc::new(world());
    receive(&other, "/copy", &stream(&source, None, "a", "/")).unwrap();
    (source, other)
}

/// The whole pool but its root, whose times and links change with the spool.
fn outside(other: &super::super::TestFs) -> Picture {
    let mut found = picture(other, "/");
    found.remove(&b"/"[..]);
    found
}

#[test]
fn every_stream_that_does_not_fit_is_refused_and_changes_nothing() {
    let (source, other) = pair();
    let before = outside(&other);
    let (full, changes) = (stream(&source, None, "b", "/"), stream(&source, Some("a"), "b", "/"));
    let refused = |path: &str, bytes: &[u8]| {
        let error = receive(&other, path, bytes).unwrap_err();
        same(&outside(&other), &before, &format!("{error}"));
        other.abort_receive(&target(path)).unwrap();
        error
    };
    assert!(matches!(refused("/copy", &full), ReceiveError::TargetExists));
    assert!(matches!(refused("/no/such", &full), ReceiveError::NoParent));
    assert!(matches!(refused("/else", &changes), ReceiveError::NeverReceived(_)));
    assert!(matches!(refused("/else", b"#!/bin/sh\necho hello\n"), ReceiveError::NoStream));
    assert!(matches!(refused("/else", b""), ReceiveError::Cut(0)));
    assert!(matches!(refused("/else", &full[..full.len() - 1]), ReceiveError::Cut(_)));
    assert!(matches!(refused("/else", &[&full[..], b"x"].concat()), ReceiveError::Trailing));
    let first = stream(&source, None, "a", "/");
    assert!(matches!(refused("/copy", &first), ReceiveError::TargetExists));
    // The changes between other snapshots.
    source.create_snapshot(b"c").unwrap();
    let later = stream(&source, Some("b"), "c", "/");
    let error = refused("/copy", &later);
    assert_eq!(
        error.to_string(),
        "the stream has the changes since the snapshot 'b', and the directory shows 'a'"
    );
    // Of another pool.
    let foreign = rewritten(&changes, &|header| header.pool = Uuid::new(78).unwrap());
    assert!(matches!(refused("/copy", &foreign), ReceiveError::OtherSource("another pool")));
    let other_root = rewritten(&changes, &|header| header.root = b"/n1".to_vec());
    assert!(matches!(refused("/copy", &other_root), ReceiveError::OtherSource(_)));
    // Of a newer version: the version is after the magic number.
    let mut newer = changes.clone();
    newer[12 + 8] = 2;
    let sealed = reframed(&newer);
    assert!(matches!(refused("/copy", &sealed), ReceiveError::NewerVersion));
}

/// The stream with another header, and right checksums.
fn rewritten(stream: &[u8], change: &dyn Fn(&mut StreamHeader)) -> Vec<u8> {
    let len = 12 + u32::from_le_bytes(stream[4..8].try_into().unwrap()) as usize;
    let mut header = StreamHeader::decode(&stream[12..len]).unwrap();
    change(&mut header);
    let mut out = Vec::new();
    put_frame(&mut out, FrameKind::Header, |out| header.encode(out));
    out.extend_from_slice(&stream[len..]);
    out
}

/// The stream with a right checksum of its first frame.
fn reframed(stream: &[u8]) -> Vec<u8> {
    let len = 12 + u32::from_le_bytes(stream[4..8].try_into().unwrap()) as usize;
    let mut out = Vec::new();
    put_frame(&mut out, FrameKind::Header, |out| out.extend_from_slice(&stream[12..len]));
    out.extend_from_slice(&stream[len..]);
    out
}

#[test]
fn a_stream_with_any_byte_changed_is_refused() {
    let (source, other) = pair();
    let before = outside(&other);
    let changes = stream(&source, Some("a"), "b", "/");
    let mut random = TestRandom(2);
    for _ in 0..300 {
        let mut changed = changes.clone();
        let at = random.below(changed.len() as u64) as usize;
        changed[at] ^= 1 << random.below(8);
        let refused = receive(&other, "/copy", &changed).expect_err("a byte was changed");
        same(&outside(&other), &before, &format!("byte {at}: {refused}"));
        other.abort_receive(&target("/copy")).unwrap();
    }
    receive(&other, "/copy", &changes).unwrap();
}

#[test]
fn a_target_that_was_changed_is_refused_and_one_that_was_changed_back_is_not() {
    let (source, other) = pair();
    let changes = stream(&source, Some("a"), "b", "/");
    let copy = other.lookup(&ROOT, &other.root(), b"copy").unwrap();
    other.create_file(&ROOT, &copy, b"mine", NewMode::exact(0o600), b"mine").unwrap();
    let refused = receive(&other, "/copy", &changes).unwrap_err();
    assert_eq!(refused.to_string(), "the directory has changed since it was received: /copy/mine");
    other.unlink(&ROOT, &copy, b"mine").unwrap();
    // The stream has arrived, so the next attempt needs no bytes.
    receive(&other, "/copy", b"").unwrap();
    same(&picture(&*other, "/copy"), &picture(&*source.open_snapshot(b"b").unwrap(), "/"), "in the end");
    // Changes elsewhere do not matter, and neither does another name of the directory.
    source.create_snapshot(b"c").unwrap();
    let root = other.root();
    other.create_file(&ROOT, &root, b"else", NewMode::exact(0o600), b"else").unwrap();
    other.rename(&ROOT, (&root, b"copy"), (&root, b"moved"), RenameMode::Replace).unwrap();
    receive(&other, "/moved", &stream(&source, Some("b"), "c", "/")).unwrap();
    // A copy with the attribute is no received tree.
    let value = other.getxattr(&ROOT, &copy, crate::transfer::RECEIVED_XATTR).unwrap();
    let twin = other.mkdir(&ROOT, &root, b"twin", NewMode::exact(0o755)).unwrap();
    other.setxattr(&ROOT, &twin, crate::transfer::RECEIVED_XATTR, &value, XattrMode::Either).unwrap();
    source.create_snapshot(b"d").unwrap();
    let next = stream(&source, Some("c"), "d", "/");
    assert!(matches!(receive(&other, "/twin", &next).unwrap_err(), ReceiveError::NeverReceived(_)));
    // Without the snapshot nobody knows whether it was changed.
    other.delete_snapshot(b"c").unwrap();
    assert!(matches!(receive(&other, "/moved", &next).unwrap_err(), ReceiveError::BaseDeleted(_)));
    other.create_snapshot(b"c").unwrap();
    assert!(matches!(receive(&other, "/moved", &next).unwrap_err(), ReceiveError::BaseDeleted(_)));
}

/// A change beside the last step, which the increment does not touch, would be in the receiver's snapshot,
/// and later streams would not find it.
#[test]
fn a_target_that_is_changed_while_the_last_step_is_made_is_refused() {
    let (source, other) = pair();
    source.create_snapshot(b"empty").unwrap();
    let copy = other.lookup(&ROOT, &other.root(), b"copy").unwrap();
    receive(&other, "/copy", &stream(&source, Some("a"), "empty", "/")).unwrap();
    source.create_file(&ROOT, &source.root(), b"new", NewMode::exact(0o600), b"new").unwrap();
    source.create_snapshot(b"c").unwrap();
    let changes = stream(&source, Some("empty"), "c", "/");
    let all = picture(&*other, "/copy");
    let is_file = |one: &Pictured| one.mode >> 12 == FileKind::Regular as u32 && one.links == 1;
    let (path, _) = all.iter().find(|(_, one)| is_file(one)).unwrap();
    let file = other.resolve(&ROOT, &copy, &path[1..], Follow::No).unwrap();
    let beside = |change: &dyn Fn()| {
        let mut receiver = other.receive(&target("/copy"), None)?;
        receiver.feed(&changes)?;
        receiver.finish(&|tx| {
            change();
            tx.commit()
        })
    };
    let write = || _ = other.write(&ROOT, &file, Position::At(0), b"mine").unwrap();
    let make = || _ = other.create_file(&ROOT, &copy, b"mine", NewMode::exact(0o600), b"").unwrap();
    let refused = beside(&make).expect_err("a name was made");
    assert_eq!(refused.to_string(), "the directory has changed since it was received: /copy/mine");
    other.unlink(&ROOT, &copy, b"mine").unwrap();
    other.abort_receive(&target("/copy")).unwrap();
    // Changes elsewhere do not matter.
    let elsewhere = || _ = other.create(&ROOT, &other.root(), b"else", NewMode::exact(0o600)).unwrap();
    beside(&elsewhere).unwrap();
    source.create_snapshot(b"d").unwrap();
    let changes = stream(&source, Some("c"), "d", "/");
    let mut receiver = other.receive(&target("/copy"), None).unwrap();
    receiver.feed(&changes).unwrap();
    let refused = receiver.finish(&|tx| {
        write();
        tx.commit()
    });
    assert!(matches!(refused, Err(ReceiveError::Changed(_))), "{refused:?}");
}

#[test]
fn parts_of_streams_are_put_together_only_where_they_belong() {
    let (source, other) = pair();
    super::cuts::large(&source);
    source.create_snapshot(b"long").unwrap();
    source.create_snapshot(b"longer").unwrap();
    let whole = stream(&source, None, "long", "/");
    let marks = marks(&whole);
    let rest_at = |n: usize| send(&source, None, "long", "/", Some(marks[n].1)).0;
    let feed =
        |bytes: &[u8]| other.receive(&target("/x"), None).and_then(|mut receiver| receiver.feed(bytes));
    assert!(matches!(feed(&rest_at(0)), Err(ReceiveError::NotBegun)));
    feed(&whole[..marks[1].0 + 100]).unwrap();
    assert!(matches!(feed(&whole), Err(ReceiveError::Begun)));
    assert!(matches!(feed(&rest_at(0)), Err(ReceiveError::OtherMark)) || marks[0].1 == marks[1].1);
    let another = stream(&source, None, "longer", "/");
    assert!(matches!(feed(&another), Err(ReceiveError::OtherStream(_))));
    let state = other.receive_state(&target("/x")).unwrap().unwrap();
    let place = marks.iter().position(|(_, mark)| *mark == state.mark).unwrap();
    receive(&other, "/x", &rest_at(place)).unwrap();
    same(&picture(&*other, "/x"), &picture(&*source.open_snapshot(b"long").unwrap(), "/"), "put together");
    feed(&another[..marks[0].0 + 100]).unwrap_err();
    assert!(!other.abort_receive(&target("/x")).unwrap(), "nothing was kept");
}

fn attributes() -> FileAttributes {
    FileAttributes {
        permissions: 0o755,
        uid: 0,
        gid: 0,
        mtime: Default::default(),
        atime: Default::default(),
    }
}

/// A full stream with these records, whatever they say, and this data.
fn forged(records: &[StreamRecord<'_>], data: &[u8]) -> Vec<u8> {
    forged_since(None, records, data)
}

/// As `forged`, since the snapshot with this number.
fn forged_since(base: Option<u64>, records: &[StreamRecord<'_>], data: &[u8]) -> Vec<u8> {
    let snapshot =
        |number| StreamSnapshot { number, made: Default::default(), name: format!("forged{number}").into() };
    let header = StreamHeader {
        pool: pool(),
        snapshot: snapshot(base.map_or(5, |base| base + 1)),
        base: base.map(snapshot),
        inodes: 0,
        file_bytes: 0,
        root: b"/".to_vec(),
    };
    let mut out = Vec::new();
    put_frame(&mut out, FrameKind::Header, |out| header.encode(out));
    for part in data.chunks(1 << 20) {
        put_frame(&mut out, FrameKind::Data, |out| out.extend_from_slice(part));
    }
    put_frame(&mut out, FrameKind::Records, |out| {
        records.iter().for_each(|record| record.encode(out, &mut Vec::new()));
    });
    let mut hasher = StreamHasher::new();
    hasher.update(&out);
    let end = StreamEnd {
        records: records.len() as u64,
        data_bytes: data.len() as u64,
        made: 0,
        hash: hasher.hash(),
    };
    put_frame(&mut out, FrameKind::End, |out| end.encode(out));
    out
}

fn made<'a>(kind: FileKind, name: &'a [u8], target: &'a [u8], pieces: Vec<Piece<'a>>) -> StreamRecord<'a> {
    StreamRecord::Make(MadeFile { kind, name, number: 0, attributes: attributes(), rdev: 0, target, pieces })
}

#[test]
fn records_that_were_made_to_harm_reach_nothing_outside() {
    let (_, other) = pair();
    let before = outside(&other);
    let link = || made(FileKind::Symlink, b"out", b"/copy", Vec::new());
    let far = Piece { len_bytes: 100, source: PieceSource::Data(1 << 40) };
    let vast = Piece { len_bytes: u64::MAX >> 2, source: PieceSource::Hole };
    let attempts: Vec<Vec<StreamRecord<'_>>> = vec![
        vec![StreamRecord::Up(1)],
        vec![StreamRecord::Up(u64::MAX)],
        vec![link(), StreamRecord::Enter(b"out")],
        vec![StreamRecord::Enter(b"missing")],
        vec![StreamRecord::Open(b"missing")],
        vec![StreamRecord::Remove(b"missing")],
        vec![StreamRecord::Place { name: b"a", number: 7, is_last: true }],
        vec![link(), link()],
        vec![link(), StreamRecord::Open(b"out"), StreamRecord::Truncate(0)],
        vec![StreamRecord::Write { offset: 0, pieces: vec![far] }],
        vec![made(FileKind::Regular, b"f", b"", vec![far])],
        vec![made(FileKind::Regular, b"f", b"", vec![vast]), link(), link()],
        vec![StreamRecord::SetXattr { name: b"system.other", value: b"" }],
        vec![StreamRecord::SetXattr { name: b"system.posix_acl_access", value: b"\x02" }],
        vec![
            made(FileKind::Directory, b"d", b"", Vec::new()),
            StreamRecord::Stash { name: b"d", number: 1, keeps: true },
        ],
    ];
    for (number, records) in attempts.iter().enumerate() {
        let refused = receive(&other, "/new", &forged(records, b"data")).expect_err("it does not fit");
        assert!(matches!(refused, ReceiveError::DoesNotFit(_)), "attempt {number}: {refused}");
        same(&outside(&other), &before, &format!("attempt {number}: {refused}"));
        assert!(other.abort_receive(&target("/new")).unwrap());
    }
    // A strange but possible file is made.
    let sparse = vec![made(FileKind::Regular, b"f", b"", vec![vast])];
    receive(&other, "/new", &forged(&sparse, b"")).unwrap();
}

#[test]
fn an_increment_for_the_whole_pool_does_not_reach_the_streams_of_others() {
    let (source, other) = (pair().0, Arc::new(world()));
    receive(&other, "/", &forged(&[made(FileKind::Directory, b"d", b"", Vec::new())], b"")).unwrap();
    let whole = stream(&source, None, "a", "/");
    let mut receiver = other.receive(&target("/d/copy"), None).unwrap();
    receiver.feed(&whole).unwrap();
    drop(receiver);
    let all = other.lookup(&ROOT, &other.root(), b".receive").unwrap();
    let spool = other.readdir(&ROOT, &all, None, 9).unwrap().remove(0).name;
    let attempts: Vec<Vec<StreamRecord<'_>>> = vec![
        vec![
            StreamRecord::Enter(b".receive"),
            StreamRecord::Enter(&spool),
            StreamRecord::Open(b"data"),
            StreamRecord::Truncate(0),
        ],
        vec![StreamRecord::Open(b".receive"), StreamRecord::SetXattr { name: b"trusted.t", value: b"t" }],
        vec![StreamRecord::Remove(b".receive")],
        vec![StreamRecord::Stash { name: b".receive", number: 1, keeps: false }],
        vec![
            StreamRecord::Stash { name: b"d", number: 1, keeps: false },
            StreamRecord::Place { name: b".receive", number: 1, is_last: true },
        ],
        vec![made(FileKind::Directory, b".receive", b"", Vec::new())],
    ];
    for (number, records) in attempts.iter().enumerate() {
        let refused =
            receive(&other, "/", &forged_since(Some(5), records, b"")).expect_err("it does not fit");
        assert!(matches!(refused, ReceiveError::DoesNotFit(_)), "attempt {number}: {refused}");
        assert!(other.abort_receive(&target("/")).unwrap());
    }
    receive(&other, "/d/copy", b"").unwrap();
    same(
        &picture(&*other, "/d/copy"),
        &picture(&*source.open_snapshot(b"a").unwrap(), "/"),
        "the other stream",
    );
}

/// A file of so many pieces, each of which is the data from there on.
fn repeated(data: &[u8], from: usize, count: usize) -> Vec<StreamRecord<'static>> {
    let piece = Piece { len_bytes: (data.len() - from) as u64, source: PieceSource::Data(from as u64) };
    vec![made(FileKind::Regular, b"f", b"", vec![piece; count])]
}

#[test]
fn a_file_that_names_the_same_bytes_again_and_again_takes_no_more_room_than_they_do() {
    let fs = Arc::new(open(format(), Fs::format));
    // The end of the data is so short that it is inline in the spool's metadata.
    let data: Vec<u8> = (0..(1 << 20) + 100_u32).map(|n| (n >> 7) as u8).collect();
    receive(&fs, "/new", &forged(&repeated(&data, 100, 200), &data)).unwrap();
    fs.delete_snapshot(b"forged5").unwrap();
    let live = fs.engine().space().unwrap().live_bytes;
    assert!(live < 8 << 20, "{live} bytes hold 200 times the same MiB");
    let dir = fs.lookup(&ROOT, &fs.root(), b"new").unwrap();
    let content = fs.read_file(&ROOT, &dir, b"f").unwrap();
    assert!(content == data[100..].repeat(200), "{} bytes", content.len());
}

#[test]
fn a_file_that_names_the_same_short_bytes_again_and_again_is_right() {
    let (_, other) = pair();
    let data: Vec<u8> = (0..20_000_u32).map(|n| (n % 251) as u8).collect();
    receive(&other, "/new", &forged(&repeated(&data, 0, 500), &data)).unwrap();
    let dir = other.lookup(&ROOT, &other.root(), b"new").unwrap();
    let content = other.read_file(&ROOT, &dir, b"f").unwrap();
    assert!(content == data.repeat(500), "{} bytes", content.len());
}

#[test]
fn a_stream_without_marks_ends_before_it_fills_the_pool() {
    let (_, other) = pair();
    let mut receiver = other.receive(&target("/new"), None).unwrap();
    let snapshot = StreamSnapshot { number: 5, made: Default::default(), name: b"endless".to_vec() };
    let header =
        StreamHeader { pool: pool(), snapshot, base: None, inodes: 0, file_bytes: 0, root: b"/".to_vec() };
    let mut frame = Vec::new();
    put_frame(&mut frame, FrameKind::Header, |out| header.encode(out));
    receiver.feed(&frame).unwrap();
    frame.clear();
    put_frame(&mut frame, FrameKind::Data, |out| out.resize(out.len() + (1 << 20), 7));
    let refused = (0..1000).find_map(|_| receiver.feed(&frame).err()).expect("it has no mark");
    assert!(matches!(refused, ReceiveError::NoMark), "{refused}");
}
