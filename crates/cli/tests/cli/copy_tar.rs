//! `cp --tar`: archives that GNU tar reads, and archives of GNU tar in each of its formats.

use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};
use rustix::process::Signal;
use warpfire_test_needs::{Need, skip};

use crate::copy_whole::{damage, make_tree, moments, names, signalled};
use crate::fixture::{Fixture, bytes, tree};
use crate::mounted::{MountedFixture, can_mount};

pub fn has_tar() -> bool {
    let version = Command::new("tar").arg("--version").output();
    let is_there = version.is_ok_and(|said| said.stdout.starts_with(b"tar (GNU tar)"));
    if !is_there {
        skip(Need::Tar, "'tar --version' does not name GNU tar");
    }
    is_there
}

fn tar<S: AsRef<std::ffi::OsStr>>(fixture: &Fixture, words: impl IntoIterator<Item = S>) {
    let said = Command::new("tar").args(words).current_dir(fixture.path("")).output().expect("tar runs");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}

/// A local tree with what an archive can hold: names, kinds, times, holes, and as root owners and devices.
fn make_all_kinds(fixture: &Fixture) {
    let at = |name: &str| fixture.path(&format!("tree/{name}"));
    fixture.local("tree/short", "short");
    fixture.local("tree/empty", "");
    fixture.local("tree/below/long", bytes(1, 3 << 20));
    fs::create_dir(at("nothing")).expect("made");
    fixture.local(&format!("tree/{0}/{0}/{0}", "n".repeat(255)), "a long path");
    fixture.local("tree/two\nlines 12 a=b\n", "a name with line ends");
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe odd");
    fs::write(at("").join(odd), "not UTF-8").expect("written");
    let long = [odd.as_bytes(), &[b'x'; 200]].concat();
    fs::write(at("below").join(std::ffi::OsStr::from_bytes(&long)), "long").expect("written");
    symlink("below/long", at("link")).expect("made");
    symlink("t".repeat(300), at("long-link")).expect("made");
    fs::hard_link(at("below/long"), at("again")).expect("made");
    fs::hard_link(at("link"), at("link-again")).expect("made");
    mknodat(CWD, at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("made");
    for (name, len) in [("sparse", 5_u64 << 20), ("hole", 9 << 30), ("huge", 10 << 30)] {
        let sparse = File::create(at(name)).expect("made");
        if name != "hole" {
            sparse.write_all_at(&bytes(2, 10_000), len / 2).expect("written");
            sparse.write_all_at(b"data", 0).expect("written");
        }
        sparse.set_len(len).expect("set");
    }
    fs::set_permissions(at("short"), Permissions::from_mode(0o4711)).expect("set");
    fs::set_permissions(at("below"), Permissions::from_mode(0o2555)).expect("set");
    if rustix::process::geteuid().is_root() {
        mknodat(CWD, at("device"), FileType::CharacterDevice, Mode::from_raw_mode(0o640), makedev(5, 70_000))
            .expect("made");
        std::os::unix::fs::chown(at("empty"), Some(3_000_000), Some(7)).expect("set");
    }
    for (number, name) in ["below", "short", "empty", "sparse", ""].into_iter().enumerate() {
        let since = Duration::new(1_000_000_000 + number as u64, 123_456_789);
        let file = File::open(at(name)).expect("opened");
        file.set_modified(SystemTime::UNIX_EPOCH + since).expect("set");
    }
    let old = SystemTime::UNIX_EPOCH - Duration::from_nanos(1_500_000_000);
    File::open(at("nothing")).expect("opened").set_modified(old).expect("set");
}

/// Everything below a directory, with the data of short files.
fn listing(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_path_buf()];
    while let Some(path) = left.pop() {
        let about = path.symlink_metadata().expect("there");
        if about.is_dir() {
            left.extend(fs::read_dir(&path).expect("listed").map(|entry| entry.expect("listed").path()));
        }
        let content = match about.file_type() {
            kind if kind.is_symlink() => {
                path.read_link().expect("read").into_os_string().into_encoded_bytes()
            }
            kind if kind.is_file() && about.len() < 8 << 20 => fs::read(&path).expect("read"),
            kind if kind.is_file() => {
                let mut middle = vec![0; 12_000];
                File::open(&path).expect("opened").read_exact_at(&mut middle, about.len() / 2).expect("read");
                middle
            }
            _ => Vec::new(),
        };
        let below = path.strip_prefix(directory).expect("below").to_path_buf();
        let links = if about.is_dir() { 0 } else { about.nlink() };
        let device = if about.is_file() || about.is_dir() { 0 } else { about.rdev() };
        let len = if about.is_file() { about.len() } else { 0 };
        found.push(format!(
            "{below:?} {:o} {links} {}/{} {device} {len} {}.{:09} {:?}",
            about.mode(),
            about.uid(),
            about.gid(),
            about.mtime(),
            about.mtime_nsec(),
            content.iter().fold((content.len(), 0_u64), |(len, sum), &byte| {
                (len, sum.wrapping_mul(31).wrapping_add(u64::from(byte)))
            }),
        ));
    }
    found.sort();
    found
}

#[test]
fn gnu_tar_unpacks_what_cp_packs() {
    if !has_tar() {
        return;
    }
    let fixture = Fixture::pool(1, 1, 0, 64);
    make_all_kinds(&fixture);
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    fixture.run(["cp", "--tar", "pool:/tree", "a.tar"]).succeeded();
    assert!(fs::metadata(fixture.path("a.tar")).expect("there").len() < 8 << 20, "holes take no space");
    fs::create_dir(fixture.path("out")).expect("made");
    tar(&fixture, ["-xpf", "a.tar", "-C", "out"]);
    assert_eq!(listing(&fixture.path("out/tree")), listing(&fixture.path("tree")));
    // stdout has the same bytes, and cp itself takes them.
    let packed = fixture.command(["cp", "--tar", "-q", "pool:/tree", "-"]).output().expect("it runs");
    assert!(packed.stdout == fs::read(fixture.path("a.tar")).expect("read"));
    let archive = File::open(fixture.path("a.tar")).expect("opened");
    let ran = fixture.command(["cp", "--tar", "-", "pool:/again"]).stdin(archive).output().expect("it runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    fixture.run(["cp", "-r", "pool:/again/tree", "again"]).succeeded();
    assert_eq!(listing(&fixture.path("again")), listing(&fixture.path("tree")));
    // The root of a pool has no name of its own.
    fixture.run(["cp", "--tar", "pool:/", "root.tar"]).succeeded();
    fs::create_dir(fixture.path("root")).expect("made");
    tar(&fixture, ["-xpf", "root.tar", "-C", "root"]);
    assert_eq!(listing(&fixture.path("root/tree")), listing(&fixture.path("tree")));
}

#[test]
fn cp_unpacks_what_gnu_tar_packs_in_each_format() {
    if !has_tar() {
        return;
    }
    let fixture = Fixture::pool(1, 1, 0, 64);
    make_all_kinds(&fixture);
    fs::remove_file(fixture.path("tree/hole")).expect("removed");
    let expected = listing(&fixture.path("tree"));
    for (number, format) in [
        &["--format=posix", "--sparse"][..],
        &["--format=posix", "--sparse", "--sparse-version=0.1"],
        &["--format=posix", "--sparse", "--sparse-version=0.0"],
        &["--format=gnu", "--sparse"],
        &["--format=oldgnu", "--sparse"],
    ]
    .into_iter()
    .enumerate()
    {
        tar(&fixture, format.iter().chain(&["-cf", "a.tar", "tree"]));
        let (target, back) = (format!("pool:/{number}"), format!("back-{number}"));
        fixture.run(["cp", "--tar", "--atomic", "a.tar", &target]).succeeded();
        fixture.run(["cp", "-r", &format!("{target}/tree"), &back]).succeeded();
        let found = listing(&fixture.path(&back));
        if format[0] == "--format=posix" {
            assert_eq!(found, expected, "{format:?}");
        } else {
            // The other formats have whole seconds, and round those before 1970 otherwise.
            let whole = |lines: &[String]| -> Vec<String> {
                let lines = lines.iter().filter(|line| !line.starts_with("\"nothing\""));
                lines.map(|line| without_fraction(line)).collect()
            };
            assert_eq!(whole(&found), whole(&expected), "{format:?}");
        }
        fixture.run(["rm", "-r", &target]).succeeded();
    }
    // ustar has no holes, no long names and no large numbers.
    fixture.local("plain/dir/file", bytes(3, 100_000));
    symlink("file", fixture.path("plain/dir/link")).expect("made");
    for format in ["--format=ustar", "--format=v7"] {
        tar(&fixture, [format, "-cf", "plain.tar", "plain"]);
        fixture.run(["cp", "--tar", "plain.tar", "pool:/"]).succeeded();
        fixture.run(["cp", "-r", "pool:/plain", "plain-back"]).succeeded();
        assert_eq!(tree(&fixture.path("plain-back")), tree(&fixture.path("plain")), "{format}");
        fs::remove_dir_all(fixture.path("plain-back")).expect("removed");
    }
}

/// A line of a listing without the fraction of its time.
fn without_fraction(line: &str) -> String {
    let dot = line.rfind('.').expect("a line has a time");
    format!("{}{}", &line[..dot], &line[dot + 10..])
}

#[test]
fn extended_attributes_go_both_ways_with_archive() {
    if !has_tar() {
        return;
    }
    let fixture = Fixture::pool(1, 1, 0, 64);
    let file = fixture.local("tree/file", "x");
    let values = [("user.a", &b"line\nends \0 and = bytes"[..]), ("user.b=%", b"\xff"), ("user.empty", b"")];
    for (name, value) in values {
        if setxattr(&file, name, value, XattrFlags::empty()).is_err() {
            return skip(Need::Attributes, "the directory of temporary files has none");
        }
    }
    setxattr(file.parent().expect("tree"), "user.dir", b"of a directory", XattrFlags::empty()).expect("set");
    let is_kept = |path: &Path| {
        let get = |path: &Path, name| {
            let mut value = [0; 100];
            rustix::fs::getxattr(path, name, &mut value[..]).map(|len| value[..len].to_vec()).ok()
        };
        values.into_iter().all(|(name, value)| get(&path.join("file"), name).as_deref() == Some(value))
            && get(path, "user.dir").as_deref() == Some(&b"of a directory"[..])
    };
    fixture.run(["cp", "-a", "tree", "pool:/"]).succeeded();
    fixture.run(["cp", "--tar", "-a", "pool:/tree", "a.tar"]).succeeded();
    fs::create_dir(fixture.path("out")).expect("made");
    tar(&fixture, ["--xattrs", "-xf", "a.tar", "-C", "out"]);
    assert!(is_kept(&fixture.path("out/tree")), "GNU tar has them");
    tar(&fixture, ["--xattrs", "-cf", "b.tar", "tree"]);
    for archive in ["a.tar", "b.tar"] {
        fixture.run(["cp", "--tar", "-a", archive, "pool:/new"]).succeeded();
        fixture.run(["cp", "-a", "pool:/new/tree", "back"]).succeeded();
        assert!(is_kept(&fixture.path("back")), "{archive}");
        fs::remove_dir_all(fixture.path("back")).expect("removed");
        fixture.run(["rm", "-r", "pool:/new"]).succeeded();
    }
    // Without --archive there are none.
    fixture.run(["cp", "--tar", "a.tar", "pool:/new"]).succeeded();
    fixture.run(["cp", "-a", "pool:/new/tree", "back"]).succeeded();
    assert!(!is_kept(&fixture.path("back")));
}

#[test]
fn archives_go_into_a_mounted_pool_and_out_of_it() {
    if !can_mount() || !has_tar() {
        return;
    }
    let MountedFixture(fixture) = &MountedFixture::new();
    make_all_kinds(fixture);
    tar(fixture, ["--format=posix", "--sparse", "-cf", "a.tar", "tree"]);
    fixture.run(["cp", "--tar", "a.tar", "pool:/"]).succeeded();
    let expected = listing(&fixture.path("tree"));
    assert_eq!(listing(&fixture.path("mnt/tree")), expected);
    fixture.run(["cp", "--tar", "--atomic", "a.tar", "mnt:/again"]).succeeded();
    assert_eq!(listing(&fixture.path("mnt/again/tree")), expected);
    fixture.run(["cp", "--tar", "pool:/tree", "b.tar"]).succeeded();
    fs::create_dir(fixture.path("out")).expect("made");
    tar(fixture, ["-xpf", "b.tar", "-C", "out"]);
    assert_eq!(listing(&fixture.path("out/tree")), expected);
}

#[test]
fn options_choose_the_members() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    for name in ["tree/a", "tree/b.o", "tree/sub/c.o", "tree/sub/d", "tree/skip/e"] {
        fixture.local(name, name);
    }
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    fixture.run(["cp", "--tar", "--exclude=*.o", "--exclude=skip", "pool:/tree", "a.tar"]).succeeded();
    fixture.run(["cp", "--tar", "a.tar", "pool:/new"]).succeeded();
    assert_eq!(
        fixture.run(["find", "pool:/new", "--type=f"]).succeeded(),
        "pool:/new/tree/a\npool:/new/tree/sub/d\n"
    );
    fixture.run(["cp", "--tar", "pool:/tree", "b.tar"]).succeeded();
    let said = fixture.run(["cp", "--tar", "--dry-run", "--exclude=tree/s*", "b.tar", "pool:/x"]).succeeded();
    assert_eq!(said, "tree/a -> /x/tree/a\ntree/b.o -> /x/tree/b.o\n");
    fixture.run(["ls", "pool:/x"]).failed(1);
    fixture.run(["cp", "--tar", "--exclude=tree/s*", "b.tar", "pool:/x"]).succeeded();
    assert_eq!(
        fixture.run(["find", "pool:/x", "--type=f"]).succeeded(),
        "pool:/x/tree/a\npool:/x/tree/b.o\n"
    );
    // Files that are there stay.
    fixture.local("other", "other");
    fixture.run(["cp", "other", "pool:/tree/a"]).succeeded();
    fixture.run(["cp", "--tar", "-n", "b.tar", "pool:/"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/tree/a"]).succeeded(), "other");
    fixture.run(["cp", "--tar", "b.tar", "pool:/"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/tree/a"]).succeeded(), "tree/a");
}

#[test]
fn a_damaged_file_is_left_out_or_ends_the_archive_and_salvage_packs_the_rest() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    let (short, long) = (bytes(1, 100_000), bytes(2, 5 << 20));
    fixture.local("tree/a-good", "good");
    fixture.local("tree/b-short", &short);
    fixture.local("tree/c-long", &long);
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    damage(&fixture, "pool/0.img", &short, &[3]);
    let said = fixture.run(["cp", "--tar", "pool:/tree", "a.tar"]).failed(1);
    assert!(said.contains("/tree/b-short: damaged"), "{said}");
    fixture.run(["cp", "--tar", "a.tar", "pool:/a"]).succeeded();
    assert_eq!(fixture.run(["ls", "pool:/a/tree"]).succeeded(), "a-good\nc-long\n");
    // Behind its header a file cannot be left out.
    damage(&fixture, "pool/0.img", &long, &[700]);
    let said = fixture.run(["cp", "--tar", "pool:/tree", "b.tar"]).failed(1);
    assert!(said.contains("tree/c-long: damaged") && said.contains("--salvage"), "{said}");
    assert!(!fixture.path("b.tar").exists());
    fixture.run(["cp", "--tar", "--salvage", "pool:/tree", "c.tar"]).failed(1);
    fixture.run(["cp", "--tar", "c.tar", "pool:/c"]).succeeded();
    fixture.run(["cp", "-r", "pool:/c/tree", "back"]).succeeded();
    for (name, mut content, lost) in [("b-short", short, 3), ("c-long", long, 700)] {
        content[lost * 4096..(lost + 1) * 4096].fill(0);
        assert!(fs::read(fixture.path("back").join(name)).expect("read") == content, "{name}");
    }
}

#[test]
fn an_archive_that_is_killed_or_interrupted_is_whole_or_absent() {
    let fixture = Fixture::pool(1, 1, 0, 256);
    make_tree(&fixture, "tree", 1);
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    fixture.run(["cp", "--tar", "pool:/tree", "whole.tar"]).succeeded();
    let whole = fs::read(fixture.path("whole.tar")).expect("read");
    fs::create_dir(fixture.path("out")).expect("made");
    for moment in 0..moments() {
        let signal = [Signal::KILL, Signal::INT, Signal::TERM][(moment % 3) as usize];
        let code = signalled(&fixture, &["cp", "--tar", "pool:/tree", "out/a.tar"], moment, signal);
        match names(&fixture.path("out")).as_slice() {
            [] => assert_ne!(code, Some(0)),
            [_] => assert!(fs::read(fixture.path("out/a.tar")).expect("read") == whole, "it is half"),
            names => panic!("{names:?}"),
        }
        let _ = fs::remove_file(fixture.path("out/a.tar"));
        // Unpacked, the tree has whole files only, or with --atomic is whole.
        let words = ["cp", "--tar", "whole.tar", "pool:/in", "--atomic"];
        for words in [&words[..4], &words] {
            signalled(&fixture, words, moment, signal);
            fixture.run(["cp", "-r", "pool:/", "back"]).succeeded();
            if fixture.path("back/in").exists() {
                let (found, expected) = (fixture.path("back/in/tree"), fixture.path("tree"));
                match words.len() {
                    4 if !found.exists() => {}
                    4 => crate::copy_whole::assert_whole(&expected, &found),
                    _ => assert_eq!(tree(&found), tree(&expected)),
                }
            }
            fs::remove_dir_all(fixture.path("back")).expect("removed");
            fixture.run(["rm", "-rf", "pool:/in"]).succeeded();
        }
    }
}

#[test]
fn a_reader_that_has_enough_is_no_failure() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("big", bytes(1, 8 << 20));
    fixture.run(["cp", "big", "pool:/"]).succeeded();
    let mut packing = fixture.command(["cp", "--tar", "pool:/", "-"]);
    let mut packing = packing.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    drop(packing.stdout.take());
    let said = packing.wait_with_output().expect("it ends");
    assert!(!String::from_utf8_lossy(&said.stderr).contains("os error"));
    assert_eq!(said.status.code(), Some(0));
}
