//! Space that is released, and figures of space that agree.

use std::os::unix::fs::MetadataExt;

use serde_json::Value;
use warpfire::{ErrorKind, Pool};

use crate::fixture::{Fixture, bytes, documents};

/// Size of the image in MiB.
fn image_mib() -> usize {
    std::env::var("WARPFIRE_TRIM_MIB").ok().and_then(|mib| mib.parse().ok()).unwrap_or(256)
}

/// Bytes that the image takes of the filesystem that it lies on.
fn taken_bytes(fixture: &Fixture) -> u64 {
    std::fs::metadata(fixture.path("pool/0.img")).expect("the image is there").blocks() * 512
}

fn answer(fixture: &Fixture, words: &[&str]) -> Value {
    documents(&fixture.run(words.iter().chain(&["--json"])).succeeded()).remove(0)
}

/// Whether `a` is `b`, but for one percent of `whole`.
fn agree(a: &Value, b: u64, whole: u64) -> bool {
    a.as_u64().expect("a number").abs_diff(b) * 100 <= whole
}

/// Writes files of many sizes until the pool is full.
fn fill(fixture: &Fixture) -> Vec<String> {
    let pool = Pool::options().open([fixture.path("pool/0.img")]).expect("opened");
    let mut names = Vec::new();
    for number in 0_u64.. {
        let name = format!("/{number}");
        let len = if number % 8 == 0 { 3 << 20 } else { 1 + number * 7919 % 200_000 };
        let len = usize::try_from(len).expect("a small number");
        match pool.write(&name, bytes(number, len)) {
            Ok(()) => names.push(name),
            Err(error) if error.kind() == ErrorKind::NoSpace => break,
            Err(error) => panic!("{name}: {error}"),
        }
    }
    pool.close().expect("closed");
    names
}

#[test]
fn a_pool_that_was_full_and_is_empty_says_so_everywhere_and_gives_its_space_back() {
    let fixture = Fixture::pool(1, 1, 0, image_mib());
    let names = fill(&fixture);
    let full_bytes = taken_bytes(&fixture);
    assert!(full_bytes * 10 > (image_mib() as u64) << 23, "the image is filled: {full_bytes}");
    let locations: Vec<String> = names.iter().map(|name| format!("pool:{name}")).collect();
    fixture.run(std::iter::once("rm".to_owned()).chain(locations)).succeeded();
    for moment in ["removed", "trimmed"] {
        let status = answer(&fixture, &["status", "pool"])["space"].clone();
        let df = answer(&fixture, &["df", "pool"]);
        let pool = Pool::options().read_only(true).open([fixture.path("pool/0.img")]).expect("opened");
        let space = pool.space().expect("the engine answers");
        let whole = space.total_bytes;
        for said in [&status, &df] {
            assert!(agree(&said["total_bytes"], whole, whole), "{moment}: {said} {space:?}");
            assert!(
                agree(&said["used_bytes"], whole - space.free_bytes, whole),
                "{moment}: {said} {space:?}"
            );
            assert!(
                agree(&said["available_bytes"], space.available_bytes, whole),
                "{moment}: {said} {space:?}"
            );
            assert!(agree(&said["used_bytes"], 0, whole), "{moment}: nothing is used: {said}");
        }
        pool.close().expect("closed");
        if moment == "removed" {
            let trimmed = answer(&fixture, &["trim", "pool"]);
            let discarded_bytes = trimmed["discarded_bytes"].as_u64().expect("a number");
            assert!(discarded_bytes * 20 >= ((image_mib() as u64) << 20) * 17, "{trimmed}");
            let left_bytes = taken_bytes(&fixture);
            eprintln!("{full_bytes} bytes taken before the trim, {left_bytes} after: {trimmed}");
            assert!(left_bytes * 20 <= full_bytes, "{left_bytes} of {full_bytes} bytes are left: {trimmed}");
        }
    }
    // The pool is as usable as before.
    let names = fill(&fixture);
    let pool = Pool::options().read_only(true).open([fixture.path("pool/0.img")]).expect("opened");
    for name in names {
        let number = name[1..].parse().expect("a name is a number");
        let read = pool.read(&name).expect("read back");
        assert!(read == bytes(number, read.len()), "{name}");
    }
    pool.close().expect("closed");
    fixture.run(["fsck", "pool"]).succeeded();
}

#[test]
fn files_beside_removed_ones_survive_a_trim() {
    let fixture = Fixture::pool(3, 2, 1, 32);
    for number in 0..40 {
        fixture.local(&format!("tree/{number}"), bytes(number, 300_000));
    }
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    for number in (0..40).filter(|number| number % 4 != 0) {
        fixture.run(["rm".to_owned(), format!("pool:/tree/{number}")]).succeeded();
    }
    let said = fixture.run(["trim", "pool"]).succeeded();
    assert!(said.contains("MiB discarded in "), "{said}");
    fixture.run(["fsck", "pool"]).succeeded();
    fixture.run(["cp", "-r", "pool:/tree", "back"]).succeeded();
    for number in (0..40).step_by(4) {
        let back = std::fs::read(fixture.path(&format!("back/{number}"))).expect("copied");
        assert!(back == bytes(number, 300_000), "file {number}");
    }
}
