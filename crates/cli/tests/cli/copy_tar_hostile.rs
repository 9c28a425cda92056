//! `cp --tar` with archives that are cut, damaged, or made to write outside of the destination.

use std::fs;
use std::path::Path;

use tar::{EntryType, Header};

use crate::copy_whole::assert_whole;
use crate::fixture::{Fixture, bytes};
use crate::mounted::{MountedFixture, can_mount};

/// An archive in which names and targets of links are as they are given.
#[derive(Default)]
struct Archive(Vec<u8>);

impl Archive {
    fn add(mut self, kind: EntryType, name: &str, link: &str, content: &[u8]) -> Archive {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        header.set_size(content.len() as u64);
        let ustar = header.as_ustar_mut().expect("it was made as one");
        ustar.name[..name.len()].copy_from_slice(name.as_bytes());
        ustar.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: &str) -> Archive {
        self.add(EntryType::Regular, name, "", name.as_bytes())
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

fn unpack_hostile(fixture: &Fixture, destination: &str) {
    fixture.run(["mkdir", "-p", "pool:/in/dir", "pool:/secret"]).succeeded();
    fixture.local("secret", "secret");
    fixture.run(["cp", "secret", "pool:/secret/file"]).succeeded();
    fixture.run(["ln", "-s", "/secret", "pool:/in/there"]).succeeded();
    let hostile = Archive::default()
        .file("/absolute")
        .file("../outside")
        .file("dir/../../outside")
        .add(EntryType::Symlink, "planted", "../secret", b"")
        .file("planted/file")
        .file("planted/new")
        .file("there/file")
        .add(EntryType::Symlink, "over", "../secret/file", b"")
        .file("over")
        .add(EntryType::Link, "gained", "planted/file", b"")
        .add(EntryType::Link, "gained-too", "../secret/file", b"")
        .add(EntryType::Link, "none", "is/not/there", b"")
        .add(EntryType::new(b'M'), "volume", "", b"more")
        .file("")
        .add(EntryType::Link, "linked", "/absolute", b"")
        .file("last")
        .end();
    fixture.local("hostile.tar", hostile);
    let ran = fixture.run(["cp", "--tar", "hostile.tar", destination]);
    let said = ran.failed(1);
    for line in [
        "the '/' before names of the archive is left out",
        "../outside: is not unpacked: a name with '..' leads elsewhere",
        "dir/../../outside: is not unpacked",
        "none: is another name of is/not/there, which is not there",
        "volume: is of kind 'M'",
        // The directory that is a link is named, and not only the file in it.
        "/in/planted: ",
        "./: has no name",
        "10 files could not be copied",
    ] {
        assert!(said.contains(line), "{line:?} is missing in:\n{said}");
    }
    fixture.run(["cp", "-r", "pool:/", "back"]).succeeded();
    let read = |name: &str| fs::read_to_string(fixture.path("back").join(name)).expect("there");
    assert_eq!(read("secret/file"), "secret");
    assert_eq!(read("in/over"), "over");
    assert_eq!(read("in/linked"), "/absolute");
    assert_eq!(read("in/last"), "last");
    for name in ["outside", "absolute", "secret/new", "in/gained", "in/gained-too", "in/none"] {
        assert!(!fixture.path("back").join(name).exists(), "{name}");
    }
    assert!(Path::new(&fixture.path("back/in/planted")).is_symlink());
}

#[test]
fn no_member_comes_outside_of_the_destination() {
    unpack_hostile(&Fixture::pool(1, 1, 0, 64), "pool:/in");
}

#[test]
fn no_member_comes_outside_of_the_destination_in_a_mounted_pool() {
    if can_mount() {
        unpack_hostile(&MountedFixture::new().0, "mnt:/in");
    }
}

#[test]
fn a_cut_archive_is_one_sentence_and_leaves_no_half_file() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    for number in 0..4_usize {
        fixture.local(&format!("tree/{number}"), bytes(number as u64, 700 * number));
    }
    fixture.local("tree/large", bytes(9, 2 << 20));
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    fixture.run(["cp", "--tar", "pool:/tree", "whole.tar"]).succeeded();
    let whole = fs::read(fixture.path("whole.tar")).expect("read");
    let ends = (0..12_000).step_by(997).chain([512, 1024, 1 << 20, whole.len() - 1024, whole.len() - 1]);
    for end in ends {
        fixture.local("cut.tar", &whole[..end]);
        let said = fixture.run(["cp", "--tar", "cut.tar", "pool:/in"]).failed(1);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.starts_with("warpfire: cut.tar: "), "{said}");
        let said = fixture.run(["cp", "--tar", "--atomic", "cut.tar", "pool:/atomic"]).failed(1);
        assert_eq!(said.lines().count(), 1, "{said}");
        fixture.run(["cp", "-r", "pool:/", "back"]).succeeded();
        assert!(!fixture.path("back/atomic").exists(), "cut at {end}");
        if fixture.path("back/in/tree").exists() {
            assert_whole(&fixture.path("tree"), &fixture.path("back/in/tree"));
        }
        fs::remove_dir_all(fixture.path("back")).expect("removed");
        fixture.run(["rm", "-rf", "pool:/in"]).succeeded();
    }
}

#[test]
fn what_is_no_archive_or_no_place_for_one_is_refused_in_one_sentence() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("text", "no archive");
    fixture.local("zeros", [0; 700]);
    fixture.local("noise", bytes(1, 5000));
    let refusals: [(&[&str], i32, &str); 8] = [
        (&["text", "pool:/"], 1, "text: is no tar archive; decompress"),
        (&["noise", "pool:/"], 1, "noise: is no tar archive; decompress"),
        (&["zeros", "pool:/"], 1, "zeros: the archive is cut after 700 bytes"),
        (&["absent", "pool:/"], 1, "absent: No such file or directory"),
        (&["pool:/", "pool:/a.tar"], 2, "--tar copies between a pool and an archive outside of pools"),
        (&["--atomic", "pool:/", "a.tar"], 2, "--atomic copies into a pool"),
        (&["-n", "pool:/", "a.tar"], 2, "--no-clobber and --update do not apply to a new archive"),
        (&["pool:/", "."], 1, ". is a directory; name a file in it"),
    ];
    for (words, code, expected) in refusals {
        let said = fixture.run(["cp", "--tar"].iter().chain(words)).failed(code);
        assert!(said.contains(expected), "{words:?}: {said}");
        assert!(!said.contains("os error"), "{said}");
    }
    assert!(!fixture.path("a.tar").exists());
}
