//! The requests of small files on the main mount.

use std::fs::{self, File};
use std::io::Write;

use crate::counts::{start_counting, take_counts};
use crate::fixture::MountFixture;
use crate::short::counts_of;

#[test]
fn a_small_file_costs_three_requests_and_none_when_it_is_closed() {
    const FILES: u32 = 10;
    let _counting = start_counting();
    let Some(fixture) = MountFixture::new() else { return };
    take_counts();
    for n in 0..FILES {
        File::create(fixture.at(&format!("file{n}"))).unwrap().write_all(b"small").unwrap();
    }
    assert_eq!(take_counts(), counts_of([("lookup", FILES), ("create", FILES), ("write", FILES)]));
    for n in 0..FILES {
        // Its page is not in the kernel yet: the writes went past it.
        assert_eq!(fs::read(fixture.at(&format!("file{n}"))).unwrap(), b"small");
    }
    assert_eq!(take_counts()["read"], FILES);
    for n in 0..FILES {
        assert_eq!(fs::read(fixture.at(&format!("file{n}"))).unwrap(), b"small");
    }
    assert!(!take_counts().contains_key("read"));
}
