//! The golden image: a pool of an old version of the product, which every later version must read.
//!
//! A change of the format on flash makes a new image under a new version:
//! `WARPFIRE_WRITE_GOLDEN=1 cargo test -p warpfire-sim --test golden` writes it and its dump.

use std::path::PathBuf;

use warpfire_sim::golden::{SHAPE, make, read_image, write_dump, write_image};
use warpfire_sim::observe::observe;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)
}

#[test]
fn today_s_code_finds_in_the_golden_image_exactly_its_dump() {
    if std::env::var_os("WARPFIRE_WRITE_GOLDEN").is_some() {
        let mut session = make().expect("the golden pool can be made");
        session.check().expect("it agrees with the model");
        let dump = write_dump(&session.history.model().picture());
        std::fs::create_dir_all(file("")).expect("the directory can be made");
        std::fs::write(file("format-2.image"), write_image(&session.world))
            .expect("the image can be written");
        std::fs::write(file("format-2.dump"), dump).expect("the dump can be written");
    }
    let image = std::fs::read_to_string(file("format-2.image")).expect("the image is there");
    let dump = std::fs::read_to_string(file("format-2.dump")).expect("its dump is there");
    let world = read_image(&image).expect("the image is whole");
    let fs = SHAPE.open(&world).expect("the golden pool opens");
    let found = observe(&fs).expect("every part of it can be read");
    assert_eq!(write_dump(&found), dump);
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
