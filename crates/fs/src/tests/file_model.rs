//! Files against byte vectors: after any calls a file reads like a vector with the same changes, and its
//! allocated bytes are those that are not in holes.

use warpfire_meta::Storage;

use super::{TestRandom, world};
use crate::acl::Caller;
use crate::{AllocMode, Fs, FsError, NewMode, NodeRef, Position, Seek};

const ROOT: Caller<'static> = Caller::ROOT;

/// The twin: each byte, `None` where there is no data.
type Twin = Vec<Option<u8>>;

/// Whether a byte is reserved. Bytes past the end of the file may be.
type ReservedTwin = Vec<bool>;

/// Sets whether a range is reserved, where it has no data.
fn twin_reserve(reserved: &mut ReservedTwin, twin: &Twin, at: usize, len: usize, to: bool) {
    if to && reserved.len() < at + len {
        reserved.resize(at + len, false);
    }
    for (i, byte) in reserved.iter_mut().enumerate().skip(at).take(len) {
        *byte = to && twin.get(i).copied().flatten().is_none();
    }
}

fn twin_write(twin: &mut Twin, at: usize, data: &[Option<u8>]) {
    if data.is_empty() {
        return;
    }
    if twin.len() < at + data.len() {
        twin.resize(at + data.len(), None);
    }
    twin[at..at + data.len()].copy_from_slice(data);
}

/// Offsets near the sizes at which a limit is: inline for ever, inline in a commit, inline files, regions.
fn draw_place(draw: &mut TestRandom, large: bool) -> u64 {
    let edges: &[u64] = if large {
        &[0, 64, 32 << 10, 64 << 10, 1 << 20, 2 << 20, 3 << 20]
    } else {
        &[0, 64, 1000, 32 << 10, 64 << 10]
    };
    let edge = edges[draw.below(edges.len() as u64) as usize];
    match draw.below(3) {
        0 => edge.saturating_sub(draw.below(100)),
        1 => edge + draw.below(100),
        _ => draw.below(edges[edges.len() - 1] + 1),
    }
}

fn draw_len(draw: &mut TestRandom, large: bool) -> u64 {
    match draw.below(if large { 5 } else { 3 }) {
        0 => 1 + draw.below(64),
        1 => 1 + draw.below(1000),
        2 => 1 + draw.below(20_000),
        3 => 1 + draw.below(100_000),
        _ => 1 + draw.below(1_500_000),
    }
}

fn check<E: Storage>(
    fs: &Fs<E>,
    node: &NodeRef,
    (twin, reserved): (&Twin, &ReservedTwin),
    draw: &mut TestRandom,
    what: &str,
) {
    let attr = fs.getattr(node);
    assert_eq!(attr.size_bytes, twin.len() as u64, "{what}: size");
    let allocated = twin.iter().flatten().count() + reserved.iter().filter(|byte| **byte).count();
    assert_eq!(attr.allocated_bytes, allocated as u64, "{what}: allocated");
    let at = if draw.below(2) == 0 { 0 } else { draw.below(twin.len() as u64 + 10) as usize };
    let len = if at == 0 { twin.len() + 5 } else { draw.below(200_000) as usize };
    let mut buf = vec![0xee; len];
    let got = fs.read(node, at as u64, &mut buf).unwrap();
    let expect: Vec<u8> = twin.iter().skip(at).take(len).map(|b| b.unwrap_or(0)).collect();
    assert_eq!(got, expect.len(), "{what}: length of a read at {at}");
    if let Some(wrong) = (0..got).find(|i| buf[*i] != expect[*i]) {
        panic!("{what}: byte {} is {} and should be {}", at + wrong, buf[wrong], expect[wrong]);
    }
    let from = draw.below(twin.len() as u64 + 2);
    let place = |data: bool| {
        twin.iter().skip(from as usize).position(|b| b.is_some() == data).map(|i| from + i as u64)
    };
    let hole = place(false).unwrap_or(twin.len() as u64);
    match fs.seek(node, Seek::Hole, from) {
        Ok(at) => assert_eq!(at, hole, "{what}: hole after {from}"),
        Err(e) => assert!(from >= twin.len() as u64, "{what}: {e}"),
    }
    assert_eq!(fs.seek(node, Seek::Data, from).ok(), place(true), "{what}: data after {from}");
}

/// Random calls on two files, with `upkeep` between them.
pub(crate) fn story<E: Storage>(fs: &Fs<E>, seed: u64, steps: u64, large: bool, upkeep: &dyn Fn(u64)) {
    let mut draw = TestRandom(seed);
    let make = |name: &[u8]| fs.create(&ROOT, &fs.root(), name, NewMode::exact(0o644)).unwrap();
    let nodes = [make(b"a"), make(b"b")];
    let mut twins: [Twin; 2] = [vec![], vec![]];
    let mut kept: [ReservedTwin; 2] = [vec![], vec![]];
    for step in 0..steps {
        let which = draw.below(2) as usize;
        let node = &nodes[which];
        let size = twins[which].len() as u64;
        let what = format!("seed {seed} step {step}");
        let at = draw_place(&mut draw, large);
        let len = draw_len(&mut draw, large);
        let op = draw.below(12);
        let (from, count) = (at as usize, len as usize);
        match op {
            0..=2 => {
                let fill = draw.next() as u8;
                let data: Vec<u8> = (0..len).map(|i| fill.wrapping_add(i as u8)).collect();
                let shown: Twin = data.iter().map(|b| Some(*b)).collect();
                let end = draw.below(3) == 0;
                let position = if end { Position::End } else { Position::At(at) };
                let went = fs.write(&ROOT, node, position, &data).unwrap();
                assert_eq!(went, if end { size } else { at }, "{what}");
                twin_write(&mut twins[which], went as usize, &shown);
                twin_reserve(&mut kept[which], &twins[which], went as usize, count, false);
            }
            3 => {
                fs.truncate(&ROOT, node, at).unwrap();
                twins[which].resize(at as usize, None);
                if at <= size {
                    kept[which].truncate(from);
                }
            }
            4 | 5 => {
                let keep_size = draw.below(2) == 0;
                let mode = if op == 4 { AllocMode::PunchHole } else { AllocMode::ZeroRange { keep_size } };
                fs.fallocate(&ROOT, node, mode, at, len).unwrap();
                let twin = &mut twins[which];
                for byte in twin.iter_mut().skip(at as usize).take(len as usize) {
                    *byte = None;
                }
                if op == 5 && !keep_size && twin.len() < (at + len) as usize {
                    twin.resize((at + len) as usize, None);
                }
                twin_reserve(&mut kept[which], twin, from, count, op == 5);
            }
            6 => {
                let done = fs.fallocate(&ROOT, node, AllocMode::Insert, at, len);
                assert_eq!(done.is_ok(), at < size, "{what}");
                if at < size {
                    kept[which].truncate(size as usize);
                }
                if at < size && size < 8 << 20 {
                    twins[which].splice(from..from, (0..len).map(|_| None));
                    if from < kept[which].len() {
                        kept[which].splice(from..from, (0..len).map(|_| false));
                    }
                } else if at < size {
                    fs.fallocate(&ROOT, node, AllocMode::Collapse, at, len).unwrap();
                }
            }
            7 => {
                let done = fs.fallocate(&ROOT, node, AllocMode::Collapse, at, len);
                assert_eq!(done.is_ok(), at + len < size, "{what}");
                if done.is_ok() {
                    twins[which].drain(from..from + count);
                    kept[which].truncate(size as usize);
                    let end = (from + count).min(kept[which].len());
                    kept[which].drain(from.min(end)..end);
                }
            }
            8 => {
                let start = draw_place(&mut draw, large);
                let other = draw.below(2) as usize;
                let done = fs.copy_range(&ROOT, (&nodes[other], start), (node, at), len);
                let copied: Twin =
                    twins[other].iter().skip(start as usize).take(len as usize).copied().collect();
                match done {
                    Ok(n) => {
                        assert_eq!(n, copied.len() as u64, "{what}");
                        twin_write(&mut twins[which], at as usize, &copied);
                        twin_reserve(&mut kept[which], &twins[which], from, copied.len(), false);
                    }
                    Err(FsError::Invalid(_)) => assert_eq!(other, which, "{what}"),
                    Err(e) => panic!("{what}: {e}"),
                }
            }
            9 => fs.sync().unwrap(),
            _ => {
                let mode = if op == 10 { AllocMode::Allocate } else { AllocMode::KeepSize };
                fs.fallocate(&ROOT, node, mode, at, len).unwrap();
                twin_reserve(&mut kept[which], &twins[which], from, count, true);
                if op == 10 && twins[which].len() < from + count {
                    twins[which].resize(from + count, None);
                }
            }
        }
        upkeep(draw.next());
        for (node, twin) in nodes.iter().zip(twins.iter().zip(&kept)) {
            check(fs, node, twin, &mut draw, &what);
        }
    }
    let bytes: usize = twins.iter().map(|t| t.iter().flatten().count()).sum();
    let bytes = bytes + kept.iter().flatten().filter(|byte| **byte).count();
    assert_eq!(fs.statfs().unwrap().file_bytes, bytes as u64, "seed {seed}: the sum of all files");
}

#[test]
fn small_files_read_like_vectors() {
    for seed in 0..60 {
        story(&world(), seed, 60, false, &|_| ());
    }
}

#[test]
fn large_files_read_like_vectors() {
    for seed in 1000..1015 {
        story(&world(), seed, 40, true, &|_| ());
    }
}
