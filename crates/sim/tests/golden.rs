//! The golden image: a pool of an old version of the product, which every later version must read.
//!
//! A change of the format on flash makes a new image under a new version:
//! `WARPFIRE_WRITE_GOLDEN=format-2 cargo test -p warpfire-sim --test golden` writes it and its dump.

use std::ops::ControlFlow;
use std::path::PathBuf;

use warpfire_format::Uuid;
use warpfire_fs::{STREAM_MARK_BYTES, SendBase, SendOrder};
use warpfire_sim::golden::{
    SHAPE, SHAPE_WITH_SNAPSHOTS, make, make_with_bookmark, make_with_snapshots, read_image, write_dump,
    write_image,
};
use warpfire_sim::observe::observe_all;
use warpfire_sim::session::{Session, Violation};
use warpfire_sim::stack::{Shape, SimFs};

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)
}

/// Writes the image and its dump if that is asked for. Then today's code must find in the image exactly its
/// dump.
fn keep(name: &str, shape: Shape, make: fn() -> Result<Session, Violation>) -> SimFs {
    let (image, dump) = (file(&format!("{name}.image")), file(&format!("{name}.dump")));
    if std::env::var_os("WARPFIRE_WRITE_GOLDEN").is_some_and(|asked| asked == *name) {
        let mut session = make().expect("the golden pool can be made");
        session.check().expect("it agrees with the model");
        std::fs::write(&dump, write_dump(&session.history.model().picture())).expect("the dump is written");
        std::fs::write(&image, write_image(&session.world)).expect("the image is written");
    }
    let image = std::fs::read_to_string(image).expect("the image is there");
    let dump = std::fs::read_to_string(dump).expect("its dump is there");
    let world = read_image(&image).expect("the image is whole");
    let fs = shape.open(&world).expect("the golden pool opens");
    let found = observe_all(&fs).expect("every part of it can be read");
    assert_eq!(write_dump(&found), dump);
    fs
}

#[test]
fn today_s_code_finds_in_the_golden_image_exactly_its_dump() {
    keep("format-2", SHAPE, make);
}

/// The image has tables of the past: entries of kind 3 in the manifest.
#[test]
fn today_s_code_finds_in_the_golden_image_with_snapshots_exactly_its_dump() {
    let fs = keep("format-2-snapshots", SHAPE_WITH_SNAPSHOTS, make_with_snapshots);
    assert_eq!(fs.snapshots().expect("they can be listed").len(), 5);
    assert!(!fs.engine().past_runs().is_empty());
}

/// Records of the filesystem's version 3, a bookmark, and versions that have faded: the stream since the
/// bookmark moves the file that was renamed, and makes none.
#[test]
fn today_s_code_finds_in_the_golden_image_with_a_bookmark_its_dump_and_the_changes_since() {
    let fs = keep("format-2-bookmark", SHAPE_WITH_SNAPSHOTS, make_with_bookmark);
    let found = fs.bookmarks().expect("they can be listed");
    assert_eq!(
        found.iter().map(|found| (&found.name[..], &found.snapshot[..])).collect::<Vec<_>>(),
        [(&b"mark"[..], &b"then"[..])]
    );
    assert!(!fs.engine().past_runs().is_empty());
    let snapshot = fs.create_snapshot(b"now").expect("made");
    let order = SendOrder {
        pool: Uuid::new(1).expect("one is a number"),
        snapshot: &snapshot,
        base: Some(SendBase::Bookmark(&found[0])),
        root: b"/",
        continued_at: None,
        mark_bytes: STREAM_MARK_BYTES,
    };
    let sent = fs.send(&order, &mut |_| ControlFlow::Continue(())).expect("sent");
    // Both files are sent whole; the 50 bytes that were written last are in a record.
    assert_eq!((sent.end.made, sent.end.data_bytes), (0, 3000 + 5000 - 50));
}

/// Format 1 was never released. Its image shows that such a pool is refused by name.
#[test]
fn a_pool_of_format_1_is_refused_by_name() {
    let image = std::fs::read_to_string(file("format-1.image")).expect("the image is there");
    let world = read_image(&image).expect("the image is whole");
    let refused = SHAPE.open(&world).map(|_| ()).expect_err("another format").to_string();
    assert!(refused.contains("made by another version of warpfire: its roots have format 1"), "{refused}");
}

#[test]
fn an_image_read_back_has_the_same_image() {
    let session = make().expect("the golden pool can be made");
    let text = write_image(&session.world);
    let again = read_image(&text).expect("it reads back");
    assert_eq!(write_image(&again), text);
}
