//! Images on filesystems that fail, and pools that become full under a mount.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use warpfire_test_needs::{Need, skip};

use crate::fixture::{Fixture, bytes};
use crate::mounted::can_mount;

/// A small filesystem for images; unmounted when dropped.
struct ImageFilesystem(PathBuf);

impl ImageFilesystem {
    /// `None` where mounting is not possible.
    fn new(fixture: &Fixture, options: &str) -> Option<ImageFilesystem> {
        let directory = fixture.path("place");
        fs::create_dir(&directory).expect("a new directory");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&directory).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            skip(Need::Root, "tmpfs cannot be mounted");
            return None;
        }
        Some(ImageFilesystem(directory))
    }

    fn make_read_only(&self) {
        let done = Command::new("mount").args(["-o", "remount,ro"]).arg(&self.0).status().expect("it runs");
        assert!(done.success());
    }
}

impl Drop for ImageFilesystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A pool that is mounted in the foreground; killed and detached when dropped.
struct ForegroundMount {
    server: Child,
    directory: PathBuf,
}

impl ForegroundMount {
    /// `None` where mounting is not possible.
    fn new(fixture: &Fixture, pool: &str) -> Option<ForegroundMount> {
        if !can_mount() {
            return None;
        }
        let directory = fixture.path("mnt");
        fs::create_dir_all(&directory).expect("a directory");
        let mut command = fixture.command(["mount", "--foreground", pool, "mnt"]);
        let mut server = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let mut line = String::new();
        let stdout = server.stdout.take().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("it speaks");
        assert!(line.contains("mounted at"), "{line}");
        Some(ForegroundMount { server, directory })
    }
}

impl Drop for ForegroundMount {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = Command::new("umount").arg("-l").arg(&self.directory).output();
        let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(&self.directory).output();
    }
}

#[test]
fn an_image_on_a_full_filesystem_is_an_error_and_what_was_synced_stays() {
    let fixture = Fixture::empty();
    let Some(place) = ImageFilesystem::new(&fixture, "size=24M") else { return };
    fixture.run(["mkfs", "--size", "64M", "place/a.img"]).succeeded();
    fixture.local("first", bytes(1, 4 << 20));
    fixture.local("second", bytes(2, 30 << 20));
    fixture.run(["cp", "first", "place/a.img:/"]).succeeded();
    let said = fixture.run(["cp", "second", "place/a.img:/"]).failed(1);
    assert!(said.starts_with("warpfire: "), "{said}");
    assert!(said.to_lowercase().contains("no space"), "{said}");
    fixture.run(["cp", "place/a.img:/first", "back"]).succeeded();
    assert_eq!(fs::read(fixture.path("back")).expect("copied out"), bytes(1, 4 << 20));
    // With space again everything continues.
    let done =
        Command::new("mount").args(["-o", "remount,size=100M"]).arg(&place.0).status().expect("it runs");
    assert!(done.success());
    fixture.run(["rm", "-f", "place/a.img:/second"]).succeeded();
    fixture.run(["cp", "second", "place/a.img:/"]).succeeded();
    fixture.run(["fsck", "place/a.img"]).succeeded();
}

#[test]
fn mkfs_on_a_full_filesystem_is_refused_or_leaves_a_pool() {
    let fixture = Fixture::empty();
    let Some(_place) = ImageFilesystem::new(&fixture, "size=8K") else { return };
    let ran = fixture.run(["mkfs", "--size", "64M", "place/a.img"]);
    assert_ne!(ran.code, 0, "a pool does not fit into 8 KiB: {}", ran.stdout);
    assert!(ran.stderr.starts_with("warpfire: ") && !ran.stderr.contains("panicked"), "{}", ran.stderr);
    assert!(!fixture.path("place/a.img").exists(), "mkfs removes what it made");
}

#[test]
fn an_image_that_cannot_be_written_is_refused_with_its_name() {
    let fixture = Fixture::empty();
    let Some(place) = ImageFilesystem::new(&fixture, "size=64M") else { return };
    fixture.run(["mkfs", "--size", "32M", "place/a.img"]).succeeded();
    place.make_read_only();
    fixture.run(["ls", "place/a.img:/"]).succeeded();
    fixture.run(["fsck", "place/a.img"]).succeeded();
    let said = fixture.run(["mkdir", "place/a.img:/new"]).failed(3);
    assert!(said.contains("a.img") && said.contains("open the pool for reading only"), "{said}");
    let said = fixture.run(["mkfs", "--force", "--yes", "place/a.img"]);
    assert_ne!(said.code, 0);
    let said = fixture.run(["mkfs", "--size", "32M", "place/b.img"]);
    assert!(said.code != 0 && said.stderr.contains("b.img"), "{}", said.stderr);
}

#[test]
fn a_pool_that_runs_full_under_a_mount_says_so_and_goes_on_after_removals() {
    let fixture = Fixture::pool(6, 4, 2, 16);
    let Some(mut mounted) = ForegroundMount::new(&fixture, "pool") else { return };
    for round in 0..2u64 {
        let mut made = 0;
        let full = loop {
            let name = mounted.directory.join(made.to_string());
            match fs::write(&name, bytes(made + 1, 200_000)) {
                Ok(()) => made += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "round {round}: {full}");
        assert!(made > 20, "round {round}: {made} files of 200 KB");
        let kept = fs::File::open(mounted.directory.join("0")).expect("it is there");
        kept.sync_all().expect("a full pool can be synced");
        for file in 0..made {
            let name = mounted.directory.join(file.to_string());
            assert!(
                fs::read(&name).expect("whole") == bytes(file + 1, 200_000),
                "round {round}, file {file}"
            );
        }
        for file in 0..=made {
            let _ = fs::remove_file(mounted.directory.join(file.to_string()));
        }
        assert_eq!(fs::read_dir(&mounted.directory).expect("a directory").count(), 0, "round {round}");
    }
    fs::write(mounted.directory.join("after"), b"written").expect("there is room again");
    fixture.run(["umount", "mnt"]).succeeded();
    assert!(mounted.server.wait().expect("it ends").success());
    fixture.run(["fsck", "pool"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/after"]).succeeded(), "written");
}

#[test]
fn names_paths_and_offsets_beyond_the_limits_are_refused_through_a_mount() {
    use std::os::unix::fs::FileExt;
    let fixture = Fixture::pool(1, 1, 0, 32);
    let Some(mounted) = ForegroundMount::new(&fixture, "pool") else { return };
    let number = |outcome: std::io::Result<()>| outcome.expect_err("it is refused").raw_os_error();
    fs::write(mounted.directory.join("n".repeat(255)), b"").expect("255 bytes are a name");
    assert_eq!(number(fs::write(mounted.directory.join("n".repeat(256)), b"")), Some(36), "ENAMETOOLONG");
    assert_eq!(number(fs::write(mounted.directory.join("d/".repeat(2048)), b"")), Some(36), "ENAMETOOLONG");
    let file = fs::File::create_new(mounted.directory.join("far")).expect("a new file");
    let end = i64::MAX.cast_unsigned();
    file.write_all_at(b"x", end - 1).expect("it ends at the limit");
    assert_eq!(file.metadata().expect("open").len(), end);
    // The kernel itself refuses this offset.
    assert_eq!(number(file.write_all_at(b"x", end)), Some(22), "EINVAL");
    file.sync_all().expect("durable");
}

#[test]
fn every_refusal_is_a_sentence_that_names_what_and_says_what_to_do() {
    let fixture = Fixture::pool(3, 2, 1, 32);
    fixture.run(["mkfs", "--size", "32M", "other.img"]).succeeded();
    fixture.local("empty.img", "");
    fixture.local("small.img", "too small to be anything");
    fixture.local("foreign.img", bytes(9, 4 << 20));
    fs::copy(fixture.path("pool/0.img"), fixture.path("short.img")).expect("copied");
    let short = fs::OpenOptions::new().write(true).open(fixture.path("short.img")).expect("opened");
    short.set_len(9 << 20).expect("cut short");
    for (pool, named) in [
        ("nowhere.img", "nowhere.img"),
        ("empty.img", "empty.img"),
        ("small.img", "small.img"),
        ("foreign.img", "foreign.img"),
        ("pool/0.img,other.img", "other.img"),
        ("pool/0.img", "device 1"),
        ("pool/0.img,pool/1.img,pool/1.img", "1.img"),
        ("short.img,pool/1.img,pool/2.img", "short.img"),
        ("/dev/null", "/dev/null"),
    ] {
        for words in
            [vec!["ls", "POOL:/"], vec!["mount", "--log", "log", "POOL", "mnt"], vec!["status", "POOL"]]
        {
            let words: Vec<String> = words.iter().map(|word| word.replace("POOL", pool)).collect();
            fs::create_dir_all(fixture.path("mnt")).expect("a directory");
            let said = fixture.run(&words).failed(3);
            assert!(said.starts_with("warpfire: ") && said.contains(named), "{words:?}: {said}");
            assert!(said.contains("; "), "{words:?} does not say what to do: {said}");
            assert!(
                !said.contains("Error") && !said.contains(" { "),
                "{words:?} is not in plain words: {said}"
            );
            // `status` also lists the devices of such a pool.
            let is_listing = words[0] == "status" && said.starts_with("warpfire: LOST: ");
            assert!(said.lines().all(|line| line.starts_with("warpfire: ")), "{words:?}: {said}");
            assert_eq!(said.lines().count() == 1, !is_listing, "{words:?}: {said}");
        }
        // A check reads the devices that there are, and lists the faults of the set.
        let ran = fixture.run(["fsck", pool]);
        assert!(matches!(ran.code, 4 | 8), "fsck {pool} ends with {}", ran.code);
        assert!(
            ran.stderr.starts_with("warpfire: ") && ran.stderr.contains("; "),
            "fsck {pool}: {}",
            ran.stderr
        );
        let said = ran.stdout + &ran.stderr;
        assert!(said.contains(named) || said.contains(pool), "fsck {pool}: {said}");
    }
}
