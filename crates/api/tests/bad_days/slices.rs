//! Slices of the wrong pool, with an ended lease, out of range, and pasted over themselves.

use std::time::Duration;

use warpfire::{ErrorKind, File, OpenOptions, Pool, Warpfire};

use crate::rig::{Images, refused};

fn pool() -> Warpfire {
    Pool::options().in_memory().expect("a pool in memory")
}

/// A new file with this content, to read and write.
fn file(fs: &Warpfire, path: &str, content: &[u8]) -> File {
    fs.write(path, content).expect("there is room");
    OpenOptions::new().read(true).write(true).open(fs, path).expect("it is there")
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn a_slice_of_another_pool_is_refused_by_every_call() {
    let (one, other) = (pool(), pool());
    let foreign = file(&other, "/a", &pattern(100_000)).yank(0..50_000).expect("there is as much");
    let target = file(&one, "/a", b"kept");
    refused(target.paste_at(&foreign, 0), ErrorKind::InvalidInput);
    refused(target.append_slice(&foreign), ErrorKind::InvalidInput);
    refused(target.insert_at(&foreign, 0), ErrorKind::InvalidInput);
    refused(target.replace(&foreign), ErrorKind::InvalidInput);
    refused(one.read_slice(&foreign, 0, &mut [0; 10]), ErrorKind::InvalidInput);
    refused(one.lease(&foreign, Duration::from_secs(1)), ErrorKind::InvalidInput);
    let tx = one.begin().expect("a transaction");
    let inside = OpenOptions::new().write(true).open(&tx, "/a").expect("it is there");
    refused(inside.paste_at(&foreign, 0), ErrorKind::InvalidInput);
    tx.commit().expect("nothing was done");
    assert_eq!(one.read("/a").expect("it is there"), b"kept");
}

#[test]
fn a_slice_of_the_pool_before_it_was_closed_is_refused() {
    let images = Images::with_files(1, 0, 0);
    let fs = Pool::options().open(&images.paths).expect("the pool opens");
    let slice = file(&fs, "/a", &pattern(100_000)).yank(0..50_000).expect("there is as much");
    fs.close().expect("nothing is open");
    let fs = Pool::options().open(&images.paths).expect("the pool opens");
    let target = file(&fs, "/b", b"kept");
    refused(target.append_slice(&slice), ErrorKind::InvalidInput);
    assert_eq!(fs.read("/b").expect("it is there"), b"kept");
}

#[test]
fn a_slice_whose_lease_has_ended_is_refused_by_every_call() {
    let fs = pool();
    let target = file(&fs, "/a", &pattern(100_000));
    let slice = target.yank(0..50_000).expect("there is as much");
    fs.lease(&slice, Duration::ZERO).expect("a lease");
    refused(target.paste_at(&slice, 0), ErrorKind::Expired);
    refused(target.append_slice(&slice), ErrorKind::Expired);
    refused(target.insert_at(&slice, 0), ErrorKind::Expired);
    refused(target.replace(&slice), ErrorKind::Expired);
    refused(fs.read_slice(&slice, 0, &mut [0; 10]), ErrorKind::Expired);
    refused(fs.lease(&slice, Duration::from_secs(1)), ErrorKind::Expired);
    assert_eq!(fs.read("/a").expect("it is there"), pattern(100_000));
}

#[test]
fn a_range_beyond_the_end_is_cut_at_the_end() {
    let fs = pool();
    let target = file(&fs, "/a", &pattern(1000));
    assert_eq!(target.yank(900..5000).expect("a slice").len(), 100);
    assert!(target.yank(1000..u64::MAX).expect("a slice").is_empty());
    target.remove_range(900..u64::MAX).expect("the part before the end");
    target.remove_range(5000..6000).expect("nothing");
    assert_eq!(fs.read("/a").expect("it is there"), pattern(900));
    let slice = target.yank(0..10).expect("a slice");
    assert_eq!(target.insert_at(&slice, 901).unwrap_err().kind(), ErrorKind::InvalidInput);
    target.paste_at(&slice, 1000).expect("a hole is between");
    let expected = [&pattern(900)[..], &[0; 100], &pattern(10)].concat();
    assert_eq!(fs.read("/a").expect("it is there"), expected);
}

#[test]
fn a_file_concatenated_with_itself_into_itself_has_its_content_twice() {
    let fs = pool();
    for len in [1000, 3 << 20] {
        fs.write("/a", pattern(len)).expect("there is room");
        fs.concat(&["/a", "/a"], "/a").expect("it takes its own place");
        assert_eq!(fs.read("/a").expect("it is there"), [pattern(len), pattern(len)].concat());
    }
}

#[test]
fn a_slice_pasted_over_its_own_source_keeps_its_bytes() {
    let fs = pool();
    let content = pattern(200_000);
    let target = file(&fs, "/a", &content);
    let slice = target.yank(50_000..150_000).expect("there is as much");
    // Over its first half, over its second half, and exactly over itself.
    for at in [20_000, 90_000, 50_000] {
        target.paste_at(&slice, at).expect("there is room");
        let mut expected = content.clone();
        expected[at as usize..at as usize + 100_000].copy_from_slice(&content[50_000..150_000]);
        assert_eq!(fs.read("/a").expect("it is there"), expected, "at {at}");
        fs.write("/a", &content).expect("there is room");
    }
}
