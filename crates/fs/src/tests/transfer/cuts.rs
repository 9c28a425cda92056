//! Streams that are cut, on either side, and power cuts of the receiver.

use warpfire_log::{MemLog, MemLogOptions, RecoveredLog};

use super::*;
use crate::tests::engine::{LogEngine, format, open};
use crate::tests::world;
use crate::{StreamFramer, StreamPart};

/// A tree of some 40 MiB, in which bytes are shared.
pub(super) fn large<S: Storage>(fs: &Fs<S>) {
    for dir in 0..4_u64 {
        let parent =
            fs.mkdir(&ROOT, &fs.root(), format!("d{dir}").as_bytes(), NewMode::exact(0o755)).unwrap();
        for file in 0..24_u64 {
            let bytes: Vec<u8> =
                (0..400_000 + 1000 * file).map(|n| ((n * (dir + 3) * (file + 7)) >> 3) as u8).collect();
            let name = format!("f{file}");
            fs.create_file(&ROOT, &parent, name.as_bytes(), NewMode::exact(0o640), &bytes).unwrap();
        }
        let first = fs.lookup(&ROOT, &parent, b"f0").unwrap();
        let copy =
            fs.create(&ROOT, &fs.root(), format!("copy{dir}").as_bytes(), NewMode::exact(0o600)).unwrap();
        fs.copy_range(&ROOT, (&first, 0), (&copy, 0), 400_000).unwrap();
        fs.link(&ROOT, &first, &fs.root(), format!("link{dir}").as_bytes()).unwrap();
    }
}

#[test]
fn a_stream_that_is_continued_at_any_mark_is_the_rest_of_the_whole() {
    let fs = world();
    large(&fs);
    fs.create_snapshot(b"s").unwrap();
    let whole = stream(&fs, None, "s", "/");
    let marks = marks(&whole);
    assert!(marks.len() >= 3, "{} marks", marks.len());
    for (at, mark) in marks {
        let (rest, _) = send(&fs, None, "s", "/", Some(mark));
        let header = rest.len() - (whole.len() - at);
        assert_eq!(rest[..header], whole[..header], "the same header");
        assert!(rest[header..] == whole[at..], "mark at {at}");
    }
}

#[test]
fn a_stream_that_is_cut_anywhere_arrives_with_the_same_hash_and_nothing_twice() {
    let fs = world();
    large(&fs);
    fs.create_snapshot(b"s").unwrap();
    let (whole, sent) = send(&fs, None, "s", "/", None);
    let wanted = picture(&*fs.open_snapshot(b"s").unwrap(), "/");
    let mut random = TestRandom(9);
    let other = Arc::new(world());
    let mut delivered = 0;
    let mut part = whole.clone();
    let mut cuts = 0;
    let received = loop {
        let mut receiver = other.receive(&target("/copy"), None).unwrap();
        let cut = random.below(2 * part.len() as u64 / 3 + 1) as usize;
        // Every third time the rest gets through.
        if cuts < 40 {
            cuts += 1;
            for piece in part[..cut].chunks(1 + random.below(300_000) as usize) {
                receiver.feed(piece).unwrap();
            }
            delivered += cut;
            let refused = finish(receiver).unwrap_err();
            assert!(matches!(refused, ReceiveError::Cut(_)), "{refused}");
            assert!(other.lookup(&ROOT, &other.root(), b"copy").is_err(), "nothing is shown yet");
        } else {
            receiver.feed(&part).unwrap();
            delivered += part.len();
            break finish(receiver).unwrap();
        }
        let state = other.receive_state(&target("/copy")).unwrap();
        part = match state.filter(|state| state.mark.records > 0) {
            Some(state) => send(&fs, None, "s", "/", Some(state.mark)).0,
            None => whole.clone(),
        };
    };
    assert_eq!(received.hash, sent.end.hash);
    same(&picture(&*other, "/copy"), &wanted, "after all cuts");
    let most = whole.len() + (cuts + 1) * (10 << 20);
    assert!(delivered <= most, "{delivered} bytes were delivered, of {}", whole.len());
}

#[test]
fn bytes_that_moved_since_a_mark_are_sent_again_and_right() {
    let fs = open(format(), Fs::format);
    large(&fs);
    fs.create_snapshot(b"s").unwrap();
    fs.sync().unwrap();
    let whole = stream(&fs, None, "s", "/");
    let wanted = picture(&*fs.open_snapshot(b"s").unwrap(), "/");
    let marks = marks(&whole);
    let (at, mark) = marks[1];
    let other = Arc::new(world());
    let mut receiver = other.receive(&target("/copy"), None).unwrap();
    receiver.feed(&whole[..at + 1000]).unwrap();
    drop(receiver);
    fs.engine().compact().unwrap();
    let mut random = TestRandom(3);
    upkeep(&**fs.engine(), &mut random);
    let (rest, _) = send(&fs, None, "s", "/", Some(mark));
    receive(&other, "/copy", &rest).unwrap();
    same(&picture(&*other, "/copy"), &wanted, "after a compaction");
}

/// The stream of parts, of which the files are read now.
fn stream_of<E: Storage>(fs: &Fs<E>, parts: Vec<StreamPart>) -> Vec<u8> {
    let (mut framer, mut stream) = (StreamFramer::default(), Vec::new());
    for mut part in parts {
        assert!(fs.fill(&mut part).is_ok());
        let framed = framer.frame(&part, |frame| {
            stream.extend_from_slice(frame);
            Ok::<(), ()>(())
        });
        assert_eq!(framed, Ok(()));
    }
    stream
}

/// The walk may be far ahead of the reads. Each part holds its slices, which cleaning moves.
#[test]
fn parts_that_wait_are_read_right_after_their_files_are_gone_and_their_segments_are_cleaned() {
    let fs = open(format(), Fs::format);
    large(&fs);
    let snapshot = fs.create_snapshot(b"s").unwrap();
    fs.sync().unwrap();
    let whole = stream(&fs, None, "s", "/");
    let mut parts = Vec::new();
    fs.send_parts(&whole_order(&snapshot), &mut |part| {
        parts.push(part);
        ControlFlow::Continue(())
    })
    .unwrap();
    fs.delete_snapshot(b"s").unwrap();
    for entry in fs.readdir(&ROOT, &fs.root(), None, usize::MAX).unwrap() {
        if entry.kind != FileKind::Directory {
            fs.unlink(&ROOT, &fs.root(), &entry.name).unwrap();
        }
    }
    for dir in (0..4).map(|dir| fs.lookup(&ROOT, &fs.root(), format!("d{dir}").as_bytes()).unwrap()) {
        for file in 0..24 {
            fs.unlink(&ROOT, &dir, format!("f{file}").as_bytes()).unwrap();
        }
    }
    fs.sync().unwrap();
    fs.engine().reclaim_all().unwrap();
    // Segments that are freed get other bytes.
    for n in 0..8_u8 {
        let file = fs.create(&ROOT, &fs.root(), &[b'a' + n], NewMode::exact(0o600)).unwrap();
        fs.write(&ROOT, &file, Position::At(0), &vec![n; 1 << 20]).unwrap();
        fs.sync().unwrap();
        fs.engine().reclaim_all().unwrap();
    }
    assert!(stream_of(&fs, parts) == whole, "the parts are those of the stream that did not wait");
}

/// Whoever reads the stream may be slow, and programs go on writing.
#[test]
fn a_sink_that_takes_long_keeps_no_segment_from_being_freed() {
    let log = MemLog::with_options(MemLogOptions { capacity_bytes: 128 << 20, segment_bytes: 1 << 20 });
    let fs = open((log, RecoveredLog::empty()), Fs::format);
    large(&fs);
    let long = fs.create(&ROOT, &fs.root(), b"long", NewMode::exact(0o600)).unwrap();
    for part in 0..20_u8 {
        fs.write(&ROOT, &long, Position::End, &[part; 1 << 20]).unwrap();
    }
    let snapshot = fs.create_snapshot(b"s").unwrap();
    fs.sync().unwrap();
    let whole = stream(&fs, None, "s", "/");
    let other = fs.create(&ROOT, &fs.root(), b"other", NewMode::exact(0o600)).unwrap();
    let mut parts = Vec::new();
    let mut written = 0;
    let sent = fs.send_parts(&whole_order(&snapshot), &mut |part| {
        parts.push(part);
        for _ in 0..2 {
            written += 4 << 20;
            let done = fs.write(&ROOT, &other, Position::At(0), &vec![parts.len() as u8; 4 << 20]);
            done.unwrap_or_else(|e| panic!("after {} parts: {e}", parts.len()));
            fs.sync().unwrap();
            fs.engine().reclaim_all().unwrap();
        }
        ControlFlow::Continue(())
    });
    sent.unwrap();
    assert!(written > 128 << 20, "{written} bytes: more than the log has");
    assert!(stream_of(&fs, parts) == whole, "the parts are those of the stream that did not wait");
}

/// What a crash may leave: the old tree or the new one.
fn old_or_new(fs: &Fs<LogEngine>, old: &Picture, new: &Picture, what: &str) -> bool {
    let found = picture(fs, "/copy");
    let shows_new = found == *new;
    assert!(shows_new || found == *old, "{what}: neither the old tree nor the new one");
    let kept = fs.snapshot(b"b").is_ok();
    assert_eq!(kept, shows_new, "{what}: the snapshot is there exactly with the new tree");
    crate::tests::check::check(&**fs.engine(), what);
    shows_new
}

#[test]
fn a_power_cut_of_the_receiver_leaves_the_old_tree_or_the_new_one() {
    let source = world();
    let mut random = TestRandom(5);
    large(&source);
    Changes { fs: &source, random: &mut random }.make(60);
    source.create_snapshot(b"a").unwrap();
    let first = stream(&source, None, "a", "/");
    Changes { fs: &source, random: &mut random }.make(150);
    large_again(&source);
    source.create_snapshot(b"b").unwrap();
    let second = stream(&source, Some("a"), "b", "/");
    assert!(marks(&second).len() >= 2);
    let (old, new) = (
        picture(&*source.open_snapshot(b"a").unwrap(), "/"),
        picture(&*source.open_snapshot(b"b").unwrap(), "/"),
    );
    for seed in 0..12 {
        let mut random = TestRandom(100 + seed);
        let mut other = Arc::new(open(format(), Fs::format));
        receive(&other, "/copy", &first).unwrap();
        let mut part = second.clone();
        let mut rounds = 0;
        loop {
            rounds += 1;
            let what = format!("seed {seed}, round {rounds}");
            let mut receiver = other.receive(&target("/copy"), None).unwrap();
            let cut = if rounds > 4 { part.len() } else { random.below(part.len() as u64 + 1) as usize };
            if !receiver.is_complete() {
                for piece in part[..cut].chunks(700_000) {
                    receiver.feed(piece).unwrap();
                    upkeep(&**other.engine(), &mut random);
                }
            }
            // The cut comes before the last step, right after its commit, or after its sync.
            let log = other.engine().log();
            let seed = random.next();
            let at = random.below(3);
            let crashed = std::cell::RefCell::new(None);
            let is_whole = receiver.is_complete();
            if is_whole {
                let done = receiver.finish(&|tx| {
                    if at == 0 {
                        *crashed.borrow_mut() = Some(log.crash_seeded(seed));
                        return Err(FsError::ReadOnly("power is off".into()));
                    }
                    tx.commit()?;
                    if at == 1 {
                        *crashed.borrow_mut() = Some(log.crash_seeded(seed));
                        return Err(FsError::ReadOnly("power is off".into()));
                    }
                    Ok(())
                });
                assert_eq!(done.is_ok(), at == 2, "{what}: {done:?}");
            } else {
                drop(receiver);
            }
            let recovered = crashed.into_inner().unwrap_or_else(|| log.crash_seeded(seed));
            other = Arc::new(open(recovered, |_, _, _, _| Ok(())));
            let shows_new = old_or_new(&other, &old, &new, &what);
            assert!(shows_new || !is_whole || at < 2, "{what}: a receive that returned is durable");
            if shows_new {
                break;
            }
            let state = other.receive_state(&target("/copy")).unwrap();
            part = match state.filter(|state| state.mark.records > 0 && !state.is_complete) {
                Some(state) => send(&source, Some("a"), "b", "/", Some(state.mark)).0,
                None => second.clone(),
            };
            assert!(rounds < 60, "{what}: it never ends");
        }
    }
}

/// Changes the content of a large tree.
fn large_again<S: Storage>(fs: &Fs<S>) {
    for dir in 0..4 {
        let name = format!("new{dir}");
        let parent = fs.mkdir(&ROOT, &fs.root(), name.as_bytes(), NewMode::exact(0o755)).unwrap();
        for file in 0..14_u64 {
            let bytes: Vec<u8> = (0..400_000).map(|n| ((n * (dir + 3) * (file + 11)) >> 2) as u8).collect();
            let name = format!("g{file}");
            fs.create_file(&ROOT, &parent, name.as_bytes(), NewMode::exact(0o640), &bytes).unwrap();
        }
    }
}
