//! Names with a slash at the end: they name directories, and nothing else is taken in place of one.

use std::fs;
use std::os::unix::fs::symlink;

use crate::fixture::Fixture;
use crate::mounted::{MountedFixture, can_mount};

/// A pool with `/d/k`, `/f` and the link `/sd` to `/d`.
fn small_tree() -> Fixture {
    let fixture = Fixture::pool(3, 2, 1, 64);
    fixture.local("k", "k");
    fixture.run(["mkdir", "pool:/d"]).succeeded();
    fixture.run(["cp", "k", "pool:/d/k"]).succeeded();
    fixture.run(["cp", "k", "pool:/f"]).succeeded();
    fixture.run(["ln", "-s", "d", "pool:/sd"]).succeeded();
    fixture
}

/// The name of a pool on the command line, and all that is in the pool.
fn everything(fixture: &Fixture, place: &str) -> String {
    let found = fixture.run(["find", place]).succeeded();
    found.replace(place, "/").lines().map(|line| format!("{} ", line.trim_start_matches('/'))).collect()
}

fn places_mounted() -> [&'static str; 2] {
    ["pool:/", "mnt/"]
}

#[test]
fn rm_and_mv_refuse_a_link_with_a_slash_and_lose_nothing() {
    let check = |fixture: &Fixture, place: &str| {
        let before = everything(fixture, place);
        for name in ["sd/", "sd//", "sd/."] {
            let named = format!("{place}{name}");
            for words in [
                &["rm", "-r", &named][..],
                &["rm", "-rf", &named],
                &["rm", &named],
                &["mv", &named, &format!("{place}new")],
            ] {
                let said = fixture.run(words).failed(1);
                assert!(said.contains("sd") && said.contains("not a directory"), "{words:?}: {said}");
                assert!(said.contains("without the slash"), "{words:?}: {said}");
            }
        }
        let swapped = ["mv", "--exchange", &format!("{place}f"), &format!("{place}sd/")];
        assert!(fixture.run(swapped).failed(1).contains("not a directory"));
        for words in
            [["rm", &format!("{place}f/"), "-f"], ["mv", &format!("{place}f/"), &format!("{place}new")]]
        {
            assert!(fixture.run(words).failed(1).contains("not a directory"));
        }
        assert_eq!(everything(fixture, place), before);
        // A list follows the link.
        let listed = fixture.run(["ls", &format!("{place}sd/")]).succeeded();
        assert_eq!(listed, "k\n");
    };
    let fixture = small_tree();
    check(&fixture, "pool:/");
    if can_mount() {
        let pool = MountedFixture::of(fixture);
        places_mounted().into_iter().for_each(|place| check(&pool.0, place));
        symlink("../outside", pool.0.path("mnt/out")).expect("made");
        fs::create_dir(pool.0.path("outside")).expect("a new directory");
        assert!(pool.0.run(["rm", "-r", "mnt/out/"]).failed(1).contains("not a directory"));
        // The directory and the link go by their own names.
        pool.0.run(["mv", "mnt/d/", "mnt/e"]).succeeded();
        pool.0.run(["rm", "-r", "mnt/sd", "mnt/out", "mnt/e/"]).succeeded();
        assert_eq!(pool.0.run(["ls", "mnt"]).succeeded(), "f\n");
    }
}

#[test]
fn a_new_name_with_a_slash_is_that_of_a_directory() {
    let check = |fixture: &Fixture, place: &str| {
        let at = |name: &str| format!("{place}{name}");
        let before = everything(fixture, place);
        for words in [
            ["cp", "k", &at("new/")],
            ["cp", &at("f"), &at("new/")],
            ["cp", "-", &at("new/")],
            ["mv", &at("f"), &at("new/")],
            ["ln", &at("f"), &at("new/")],
            ["truncate", "-s1", &at("new/")],
            ["touch", "-m", &at("new/")],
        ] {
            let said = fixture.run(words).failed(1);
            assert!(said.contains("new/: ") || said.contains("new: "), "{words:?}: {said}");
        }
        let whole = at("new/");
        for words in [
            &["slice", "concat", &at("f"), &at("f"), &whole][..],
            &["slice", "paste", &at("f"), &whole],
            &["slice", "cut", &at("f"), &whole],
            &["slice", "shuffle", &at("f"), &whole],
        ] {
            assert!(fixture.run(words).failed(1).contains("slash at its end"), "{words:?}");
        }
        assert_eq!(everything(fixture, place), before);
        // A directory may get such a name.
        fixture.run(["mv", &at("d"), &at("new/")]).succeeded();
        fixture.run(["mv", &at("new/"), &at("d/")]).succeeded();
        assert_eq!(everything(fixture, place), before);
    };
    let fixture = small_tree();
    check(&fixture, "pool:/");
    fixture.run(["cp", "-r", "pool:/d", "pool:/copy/"]).succeeded();
    fixture.run(["rm", "-r", "pool:/copy/"]).succeeded();
    if can_mount() {
        let pool = MountedFixture::of(fixture);
        places_mounted().into_iter().for_each(|place| check(&pool.0, place));
    }
}
