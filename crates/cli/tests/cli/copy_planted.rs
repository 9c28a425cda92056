//! Copies from and to directories that another user can change: nothing that is planted there is followed,
//! waited for, or changed.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, RenameFlags, makedev, mknodat, renameat_with};

use warpfire_test_needs::{Need, skip};

use crate::fixture::{CommandResult, Fixture, bytes};

fn fifo(fixture: &Fixture, name: &str) {
    let mode = Mode::from_raw_mode(0o644);
    mknodat(CWD, fixture.path(name), FileType::Fifo, mode, 0).expect("a pipe is made");
}

/// Runs the binary; a run that hangs fails.
fn in_time(fixture: &Fixture, words: &[&str]) -> CommandResult {
    let mut limited = std::process::Command::new("timeout");
    limited.arg("60").arg(env!("CARGO_BIN_EXE_warpfire")).args(words).current_dir(fixture.path("."));
    CommandResult::from(limited.output().expect("timeout runs"))
}

#[test]
fn a_link_in_place_of_a_directory_is_not_followed_out_of_the_destination() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.local("outside/kept", "kept");
    fixture.local("b/x/new", "planted");
    std::fs::create_dir_all(fixture.path("a")).expect("made");
    symlink(fixture.path("outside"), fixture.path("a/x")).expect("a link is made");
    std::fs::create_dir(fixture.path("dest")).expect("made");
    fixture.run(["cp", "-r", "a", "b", "pool:/"]).succeeded();
    in_time(&fixture, &["cp", "-r", "pool:/a/x", "pool:/b/x", "dest"]).failed(1);
    assert!(!fixture.path("outside/new").exists(), "the copy left its destination");
    // The same into a pool and inside one, where the link leads to a directory of the pool.
    fixture.run(["mkdir", "pool:/outside"]).succeeded();
    symlink("/outside", fixture.path("a/y")).expect("a link is made");
    fixture.local("b/y/new", "planted");
    fixture.run(["cp", "-r", "a/y", "b/y", "pool:/"]).failed(1);
    fixture.run(["cp", "-r", "a/y", "pool:/a/"]).succeeded();
    fixture.run(["cp", "-r", "b/y", "pool:/b/"]).succeeded();
    fixture.run(["mkdir", "pool:/dest"]).succeeded();
    fixture.run(["cp", "-r", "pool:/a/y", "pool:/b/y", "pool:/dest"]).failed(1);
    assert_eq!(fixture.run(["ls", "pool:/outside"]).succeeded(), "");
}

#[test]
fn links_and_pipes_at_the_target_are_replaced_and_what_they_name_stays() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    for name in ["tree/file", "tree/piped"] {
        let file = fixture.local(name, "new");
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o777)).expect("a mode is set");
    }
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    let secret = fixture.local("secret", "secret");
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).expect("a mode is set");
    std::fs::create_dir_all(fixture.path("dest/tree")).expect("made");
    symlink(&secret, fixture.path("dest/tree/file")).expect("a link is made");
    fifo(&fixture, "dest/tree/piped");
    in_time(&fixture, &["cp", "-r", "pool:/tree", "dest"]).succeeded();
    assert_eq!(std::fs::read(&secret).expect("there"), b"secret");
    assert_eq!(secret.metadata().expect("there").mode() & 0o777, 0o600);
    for name in ["dest/tree/file", "dest/tree/piped"] {
        let there = fixture.path(name).symlink_metadata().expect("there");
        assert!(there.is_file() && there.mode() & 0o777 == 0o777, "{name}");
        assert_eq!(std::fs::read(fixture.path(name)).expect("read"), b"new");
    }
    // Into the pool: a link there is replaced, and the file that it names stays.
    fixture.run(["mkdir", "pool:/in"]).succeeded();
    symlink("/tree/file", fixture.path("link")).expect("a link is made");
    fixture.local("over/link", "over");
    fixture.run(["cp", "link", "pool:/in/"]).succeeded();
    fixture.run(["cp", "over/link", "pool:/in/"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/tree/file"]).succeeded(), "new");
    assert_eq!(fixture.run(["cat", "pool:/in/link"]).succeeded(), "over");
}

#[test]
fn a_device_node_at_the_target_stays() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    let (null, mode) = (makedev(1, 3), Mode::from_raw_mode(0o666));
    if mknodat(CWD, fixture.path("null"), FileType::CharacterDevice, mode, null).is_err() {
        return skip(Need::Root, "device nodes cannot be made here");
    }
    fixture.local("a", "a");
    fixture.run(["cp", "a", "pool:/"]).succeeded();
    let said = fixture.run(["cp", "pool:/a", "null"]).failed(1);
    assert!(said.contains("device node"), "{said}");
    assert!(fixture.path("null").symlink_metadata().expect("there").file_type().is_char_device());
}

#[test]
fn a_copy_can_be_read_by_others_only_once_it_is_complete() {
    let fixture = Fixture::pool(1, 1, 0, 128);
    let large = fixture.local("large", bytes(1, 48 << 20));
    std::fs::set_permissions(large, PermissionsExt::from_mode(0o644)).expect("a mode is set");
    fixture.run(["cp", "large", "pool:/"]).succeeded();
    std::fs::create_dir(fixture.path("dest")).expect("made");
    let mut copying = fixture.command(["cp", "pool:/large", "dest"]).spawn().expect("the binary runs");
    while copying.try_wait().expect("a child").is_none() {
        for entry in std::fs::read_dir(fixture.path("dest")).expect("a directory").flatten() {
            // It may have got its name in between.
            let Ok(there) = entry.path().symlink_metadata() else { continue };
            assert!(there.mode() & 0o077 == 0 || there.len() == 48 << 20, "{entry:?}: {:o}", there.mode());
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    let names: Vec<_> = std::fs::read_dir(fixture.path("dest")).expect("a directory").flatten().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(fixture.path("dest/large").metadata().expect("copied").mode() & 0o777, 0o644);
}

/// A user swaps files of his home for links to a secret, and for pipes, while root copies them.
#[test]
fn files_that_are_swapped_during_a_copy_into_a_pool_are_not_followed() {
    let fixture = Fixture::pool(1, 1, 0, 128);
    let secret = fixture.local("secret", "secret");
    for number in 0..100 {
        fixture.local(&format!("home/{number}"), "mine");
        if number % 2 == 0 {
            std::fs::create_dir_all(fixture.path("traps")).expect("made");
            symlink(&secret, fixture.path(&format!("traps/{number}"))).expect("a link is made");
        } else {
            fifo(&fixture, &format!("traps/{number}"));
        }
    }
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for number in 0..100 {
                    let (a, b) =
                        (fixture.path(&format!("home/{number}")), fixture.path(&format!("traps/{number}")));
                    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).expect("swapped");
                }
            }
        });
        let results: Vec<_> = (0..12)
            .map(|round| in_time(&fixture, &["cp", "-r", "home", &format!("pool:/{round}")]))
            .collect();
        ended.store(true, Ordering::Relaxed);
        // A file that was swapped between two steps is reported; the others are copied.
        assert!(results.iter().all(|result| matches!(result.code, 0 | 1)), "a copy hangs");
    });
    fixture.run(["cp", "-r", "pool:/", "back"]).succeeded();
    for round in std::fs::read_dir(fixture.path("back")).expect("copied").flatten() {
        for entry in std::fs::read_dir(round.path()).expect("copied").flatten() {
            let is_file = entry.file_type().expect("known").is_file();
            assert!(!is_file || std::fs::read(entry.path()).expect("read") == b"mine", "{entry:?}");
        }
    }
}

#[test]
fn a_copy_over_a_copy_replaces_links_and_special_files_in_all_directions() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.local("tree/file", "file");
    symlink("file", fixture.path("tree/link")).expect("a link is made");
    fifo(&fixture, "tree/pipe");
    for _ in 0..2 {
        fixture.run(["cp", "-r", "tree/link", "tree/pipe", "tree/file", "pool:/"]).succeeded();
        fixture.run(["mkdir", "-p", "pool:/twin"]).succeeded();
        fixture.run(["cp", "-r", "pool:/link", "pool:/pipe", "pool:/file", "pool:/twin"]).succeeded();
        std::fs::create_dir_all(fixture.path("back")).expect("made");
        fixture.run(["cp", "-r", "pool:/link", "pool:/pipe", "pool:/file", "back"]).succeeded();
    }
    assert!(fixture.path("back/pipe").symlink_metadata().expect("there").file_type().is_fifo());
    assert_eq!(fixture.path("back/link").read_link().expect("a link"), std::path::Path::new("file"));
}
