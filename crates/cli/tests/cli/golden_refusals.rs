//! Every refusal in its words: the command, the exit code, and the first line on stderr.

use crate::fixture::Fixture;
use crate::mounted::{MountedFixture, can_mount};

/// Where the table has `#`, the message has the 32 digits of a pool.
fn without_ids(said: &str) -> String {
    let mut text = String::new();
    for word in said.split_inclusive(|c: char| !c.is_ascii_hexdigit()) {
        let digits = word.trim_end_matches(|c: char| !c.is_ascii_hexdigit());
        let is_id = digits.len() == 32;
        text.push_str(if is_id { "#" } else { digits });
        text.push_str(&word[digits.len()..]);
    }
    text
}

const ROWS: &[(&str, i32, &str)] = &[
    // Pools that are not there.
    (
        "ls absent.img:/",
        3,
        "absent.img: no such image or device; check the path; in this directory are a.img, \
         hello.img, pool",
    ),
    (
        "ls absent.img",
        3,
        "absent.img: no such image or device; check the path; in this directory are a.img, \
         hello.img, pool",
    ),
    (
        "find pool/0.img,pool/9.img",
        3,
        "pool/9.img: no such image or device; check the path; if the device is lost and parity \
         covers it, leave it out",
    ),
    (
        "status absent",
        3,
        "absent: no such image or device; check the path; in this directory are a.img, hello.img, \
         pool",
    ),
    (
        "df absent",
        3,
        "absent: no such image or device; check the path; in this directory are a.img, hello.img, \
         pool",
    ),
    (
        "ls empty",
        1,
        "the directory empty has no *.img file; name the devices of the pool, separated by commas",
    ),
    (
        "ls hello.img:/",
        3,
        "hello.img: smaller than one block of 4096 bytes; it holds no pool; check the path, or \
         leave it out if parity covers it",
    ),
    (
        "ls /dev/null",
        3,
        "/dev/null: neither a regular file nor a block device; name an image file or a block device",
    ),
    ("ls pool/0.img,pool/0.img", 3, "pool/0.img is named twice; name each device once"),
    ("ls a.img,pool/0.img", 3, "pool/0.img belongs to pool #, not to #; name the devices of one pool only"),
    ("df", 2, "no pool is named; name its devices, or set WARPFIRE_POOL"),
    ("fsck", 8, "no pool is named; name its devices, or set WARPFIRE_POOL"),
    ("scrub", 8, "no pool is named; name its devices, or set WARPFIRE_POOL"),
    ("trim", 2, "no pool is named; name its devices, or set WARPFIRE_POOL"),
    (
        "trim empty",
        1,
        "the directory empty has no *.img file; name the devices of the pool, separated by commas",
    ),
    (
        "trim absent",
        3,
        "absent: no such image or device; check the path; in this directory are a.img, hello.img, \
         pool",
    ),
    (
        "trim hello.img",
        3,
        "hello.img: smaller than one block of 4096 bytes; it holds no pool; check the path, or \
         leave it out if parity covers it",
    ),
    ("ls :/", 2, "no pool is named; name its devices, or set WARPFIRE_POOL"),
    ("umount pool", 1, "no pool is mounted at pool; name the directory that the pool is mounted on"),
    ("tx list --in .", 1, "no pool is mounted at .; name a directory on a mounted pool with --in"),
    // Words that cannot be understood.
    ("lss pool", 2, "'warpfire' has no command 'lss'; did you mean 'ls'?"),
    ("device ad pool x", 2, "'warpfire device' has no command 'ad'; did you mean 'add'?"),
    ("ls --lnog pool", 2, "'warpfire ls' has no option '--lnog'; did you mean '--long'?"),
    ("ls --color pool", 2, "'warpfire ls' has no option '--color'; 'warpfire help ls' shows its arguments"),
    ("mkfs --data", 2, "'--data <K>' needs a value; 'warpfire help mkfs' shows its arguments"),
    (
        "mkfs --size huge z.img",
        2,
        "'--size <SIZE>': 'huge' is not a size; write for example 4096, 64K or 1.5G; \
         'warpfire help mkfs' shows its arguments",
    ),
    // Pools that cannot be made.
    ("mkfs nodir/b.img", 1, "nodir: No such file or directory; make the directory first"),
    ("mkfs --size 32M nodir/b.img", 3, "nodir/b.img: No such file or directory; make the directory first"),
    ("mkfs g.img g.img", 2, "g.img is named twice; name each device once"),
    (
        "mkfs a.img",
        1,
        "a.img contains a Warpfire pool; name another device, or overwrite this one with --force",
    ),
    (
        "mkfs --force a.img",
        2,
        "this overwrites everything on these devices, and there is no terminal to ask on; confirm \
         with --yes",
    ),
    (
        "mkfs --zone 3M z.img",
        2,
        "the zone size 3 MiB is not a power of two; choose one such as 1M, 4M or 16M",
    ),
    (
        "mkfs --size 1M z.img",
        2,
        "z.img is too small for a pool: it has 1 MiB, but 16 zones of 1 MiB take 16 MiB; use \
         --size 16M or more",
    ),
    (
        "mkfs --size 16M --data 4 --parity 2 x y",
        2,
        "4 data and 2 parity devices are 6 devices, but only 2 are named; name more devices, or \
         lower --data or --parity",
    ),
    (
        "mkfs --size 10E z.img",
        2,
        "z.img would have 10 EiB, and a file has less than 8 EiB; use a smaller --size",
    ),
    (
        "mkfs --size 0 z.img",
        2,
        "z.img is too small for a pool: it has 0 B, but 16 zones of 1 MiB take 16 MiB; use \
         --size 16M or more",
    ),
    (
        "mkfs --zone 4K --size 32M z.img",
        2,
        "cannot make this pool: a zone has from 65536 to 17592186040320 bytes in blocks of 4096, \
         and not 4096",
    ),
    (
        "mkfs --zone 64K --size 32M z.img",
        2,
        "cannot make this pool: a zone of 65536 bytes is too small for one data \
         column: make it 131072",
    ),
    ("mkfs --data 0 --size 32M z.img", 2, "--data must be at least 1"),
    ("mkfs --parity 9 --size 32M z.img", 2, "--parity is at most 8, not 9"),
    ("mkfs --data 251 --size 32M z.img", 2, "--data and --parity together are at most 250, not 251"),
    // Names and devices of a pool.
    (
        "label absent x",
        3,
        "absent: no such image or device; check the path; in this directory are a.img, hello.img, \
         pool",
    ),
    (
        "label hello.img",
        3,
        "hello.img: smaller than one block of 4096 bytes; it holds no pool; check the path, or \
         leave it out if parity covers it",
    ),
    (
        "device add pool pool/0.img",
        1,
        "pool/0.img belongs to the pool already; 'warpfire device list' shows its devices",
    ),
    (
        "device add pool a.img",
        1,
        "a.img contains a Warpfire pool; name another device, or overwrite this one with --force",
    ),
    (
        "device add --force pool a.img",
        2,
        "this overwrites everything on these devices, and there is no terminal to ask on; confirm \
         with --yes",
    ),
    (
        "device add pool hello.img",
        3,
        "hello.img: smaller than one block of 4096 bytes; choose a larger device",
    ),
    (
        "device add --size 1M pool n.img",
        1,
        "n.img is too small for this pool: it has 1 MiB, but 16 zones of 1 MiB take 16 MiB; use a \
         larger --size",
    ),
    (
        "device add --size 10E pool n.img",
        2,
        "n.img would have 10 EiB, and a file has less than 8 EiB; use a smaller --size",
    ),
    ("device add pool nodir/n.img", 1, "nodir: No such file or directory; make the directory first"),
    ("device add pool n.img n.img", 2, "n.img is named twice; name each device once"),
    (
        "device add pool empty",
        3,
        "empty: neither a regular file nor a block device; name an image file or a block device",
    ),
    (
        "device add absent n.img",
        3,
        "absent: no such image or device; check the path; in this directory are a.img, hello.img, \
         pool",
    ),
    (
        "device remove pool 7",
        1,
        "7 is no device of the pool; 'warpfire device list' shows the devices and their indexes",
    ),
    (
        "device remove pool a.img",
        1,
        "a.img is no device of the pool; 'warpfire device list' shows the devices and their indexes",
    ),
    (
        "device remove pool pool/1.img",
        1,
        "pool/1.img cannot leave: 1 device would stay, and stripes of 1 data and 1 parity need 2; \
         add another device first with 'warpfire device add'",
    ),
    (
        "device list absent",
        3,
        "absent: no such image or device; check the path; in this directory are a.img, hello.img, \
         pool",
    ),
    (
        "scrub hello.img",
        8,
        "hello.img: smaller than one block of 4096 bytes; it holds no pool; check the path, or \
         leave it out if parity covers it",
    ),
    // Files in a pool.
    ("ls pool:/absent", 1, "/absent: no such file or directory"),
    ("stat pool:/absent", 1, "/absent: no such file or directory"),
    ("cat pool:/absent", 1, "/absent: no such file or directory"),
    ("cat pool:/", 1, "/: is a directory"),
    ("du pool:/absent", 1, "/absent: no such file or directory"),
    ("find pool:/absent", 1, "/absent: no such file or directory"),
    ("mkdir pool:/a/b", 1, "/a/b: no such file or directory"),
    ("mkdir pool:/", 1, "/: file exists"),
    ("rm pool:/absent", 1, "/absent: no such file or directory"),
    ("rm pool:/", 1, "/ is a directory; remove it and its contents with -r"),
    (
        "rm -r pool:/",
        2,
        "this removes everything in the pool, and there is no terminal to ask on; confirm with \
         --yes",
    ),
    ("rm -r pool", 2, "'pool' is not the name of a file in a pool; write 'pool:/path'"),
    (
        "mv pool:/ pool:/x",
        1,
        "/: busy; the root, '.' and '..' keep their names, and 'warpfire volume delete' deletes a volume",
    ),
    ("mv pool:/absent pool:/x", 1, "/absent: no such file or directory"),
    ("mv pool:/file pool:/file", 1, "/file and /file are the same file"),
    (
        "mv pool:/file a.img:/file",
        2,
        "/file is in another pool; copy it with 'warpfire cp -r', then remove it with 'warpfire rm \
         -r'",
    ),
    (
        "mv pool:/file pool:/dir pool:/absent",
        2,
        "/absent is not a directory; with several files the destination is an existing directory",
    ),
    (
        "ln pool:/dir pool:/x",
        1,
        "/dir is a directory; a directory has one name; make a symbolic link with -s",
    ),
    ("ln pool:/file pool:/dir/file pool:/dir", 1, "/dir/file: file exists"),
    (
        "ln -s pool:/file pool:/x",
        2,
        "'pool:/file' names a pool; a link holds a path alone: write '/file', or the way there \
         from the link",
    ),
    ("chmod 644 pool:/absent", 1, "/absent: no such file or directory"),
    ("chown 0 pool:/absent", 1, "/absent: no such file or directory"),
    ("touch pool:/absent/x", 1, "/absent/x: no such file or directory"),
    ("touch local:file", 2, "'file' is not the name of a file in a pool; write 'file:/path'"),
    ("truncate -s 0 pool:/dir", 1, "/dir: is a directory"),
    (
        "slice cut pool:/file",
        2,
        "this removes the whole content of the file, and there is no terminal to ask on; confirm \
         with --yes",
    ),
    ("slice cut --len 1 pool:/absent", 1, "/absent: no such file or directory"),
    (
        "slice concat pool:/file hello.img pool:/x",
        2,
        "the files are not all in one pool; name files in one pool, or files on one mounted pool",
    ),
    (
        "slice cat hello.img",
        1,
        "hello.img is not on a mounted pool; mount the pool, or name its files as POOL:/path",
    ),
    // Copies.
    (
        "cp hello.img x",
        2,
        "neither source nor destination is inside a pool; write one of them as 'POOL:/path'",
    ),
    (
        "cp hello.img pool",
        2,
        "neither source nor destination is inside a pool; the root of that pool is 'pool:/'",
    ),
    ("cp absent pool:/", 1, "absent: No such file or directory"),
    ("cp pool:/absent .", 1, "/absent: no such file or directory"),
    ("cp pool:/dir .", 1, "/dir: is a directory; copy it with -r"),
    (
        "cp pool:/file a.img:/",
        2,
        "/file is in another pool; mount one of the two pools, or copy to a local directory first",
    ),
    (
        "cp -r empty absent.img:/",
        3,
        "absent.img: no such image or device; check the path; in this directory are a.img, \
         hello.img, pool",
    ),
    ("cp empty pool:/dir", 1, "empty: is a directory; copy it with -r"),
];

#[test]
fn every_refusal_is_a_sentence_that_helps() {
    let fixture = Fixture::pool(2, 1, 1, 32);
    fixture.run(["mkfs", "--size", "16M", "a.img"]).succeeded();
    fixture.local("hello.img", "hello\n");
    std::fs::create_dir(fixture.path("empty")).expect("made");
    fixture.run(["mkdir", "pool:/dir"]).succeeded();
    fixture.run(["touch", "pool:/file", "pool:/dir/file"]).succeeded();
    let mut wrong = Vec::new();
    for &(words, code, sentence) in ROWS {
        let mut command = fixture.command(words.split(' '));
        let output = command.stdin(std::process::Stdio::null()).output().expect("the binary runs");
        let said = without_ids(&String::from_utf8_lossy(&output.stderr));
        let first = said.lines().find(|line| !line.contains("degraded")).unwrap_or_default();
        let expected = format!("warpfire: {sentence}");
        if output.status.code() != Some(code) || first != expected {
            wrong
                .push(format!("warpfire {words}\n  {:?} {first}\n  {code} {expected}", output.status.code()));
        }
        for banned in ["os error", "panicked", "segment"] {
            assert!(!said.contains(banned), "{words}: {said}");
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), ROWS.len(), wrong.join("\n"));
    assert!(ROWS.len() >= 60);
    assert_eq!(fixture.run(["find", "pool"]).succeeded().lines().count(), 4, "nothing was changed");
}

#[test]
fn refusals_of_bad_days_are_sentences_that_help_too() {
    let fixture = Fixture::pool(6, 4, 2, 16);
    fixture.run(["mkfs", "--size", "16M", "a.img"]).succeeded();
    fixture.run(["mkfs", "--size", "16M", "held.img"]).succeeded();
    fixture.run(["touch", "a.img:/f"]).succeeded();
    fixture.run(["mkdir", "a.img:/d"]).succeeded();
    fixture.local("big", vec![b'x'; 20 << 20]);
    for away in 0..3 {
        std::fs::remove_file(fixture.path(&format!("pool/{away}.img"))).expect("a device goes");
    }
    let _holder = warpfire::Pool::options().open([fixture.path("held.img")]).expect("nobody has it");
    let long = format!("touch a.img:/{}", "x".repeat(256));
    let too_long = format!("/{}: name too long", "x".repeat(256));
    let in_use = "held.img: in use by another process; one process at a time can have a pool open for writing: \
                  use its mount, or unmount it first";
    std::fs::create_dir(fixture.path("one")).expect("made");
    fixture.run(["mkfs", "--size=16M", "--data=2", "--parity=0", "one/0.img", "one/1.img"]).succeeded();
    std::fs::remove_file(fixture.path("one/1.img")).expect("a device goes");
    let one_away = "1 device is missing and parity covers 0: device 1 (#); name the missing devices too; 'warpfire \
                    inspect label' shows the devices of a pool";
    let away = "3 devices are missing and parity covers 2: device 0 (#), device 1 (#), device 2 (#); name the \
                missing devices too; 'warpfire inspect label' shows the devices of a pool";
    for part in ["half", "other"] {
        std::fs::create_dir(fixture.path(part)).expect("made");
    }
    fixture.run(["mkfs", "--size=16M", "--parity=1", "half/0.img", "half/1.img"]).succeeded();
    std::fs::rename(fixture.path("half/1.img"), fixture.path("other/1.img")).expect("a device goes");
    let older = "the missing devices may hold a newer state of the pool: device 1 (#); name these devices too; if they are \
                 lost, 'mount --degraded' or 'scrub --degraded' goes on without them for good";
    let apart =
        "were written separately, each without the other; open the pool with the devices of one part only";
    let rows: &[(&str, i32, &str)] = &[
        ("ls pool", 3, away),
        ("touch half:/f", 3, older),
        ("ls one", 3, one_away),
        (
            "mkfs --size 16M /sys/b.img",
            3,
            "/sys/b.img: Permission denied; name a device or directory that this user may write to",
        ),
        ("fsck a.img,a.img", 8, "a.img is named twice; name each device once"),
        ("scrub a.img,a.img", 8, "a.img is named twice; name each device once"),
        ("status a.img,a.img", 3, "a.img is named twice; name each device once"),
        ("fsck held.img", 8, in_use),
        ("scrub held.img", 8, in_use),
        ("status held.img", 3, in_use),
        ("trim held.img", 3, in_use),
        ("fsck pool", 4, "more devices are missing than parity covers; reconnect them and check again"),
        ("scrub pool", 8, away),
        ("cat a.img:/two\nlines", 1, "/two\\nlines: no such file or directory"),
        ("ls held.img", 3, in_use),
        ("rm held.img:/x", 3, in_use),
        (&long, 1, &too_long),
        ("cat a.img:/esc\u{1b}[31m", 1, "/esc\\u{1b}[31m: no such file or directory"),
        ("touch a.img:/f/", 1, "/f/: not a directory"),
        ("touch a.img:/new/", 1, "/new/: no such directory; make it with 'warpfire mkdir'"),
        ("mkdir a.img:/f/x", 1, "/f/x: not a directory"),
        ("mv a.img:/d a.img:/d/x", 1, "/d: invalid argument: a directory cannot be moved into itself"),
        ("cp big a.img:/", 1, "big: no space left in the pool; remove files, or copy them to a larger pool"),
        ("inspect key a.img xyz", 2, "the key 'xyz' is not hexadecimal; write two digits for each byte"),
        ("inspect table a.img 77", 1, "there is no table 77"),
        (
            "help nonsense",
            2,
            "there is no command or topic 'nonsense'; 'warpfire help' lists the commands, and 'warpfire help \
             topics' the topics",
        ),
    ];
    for &(words, code, sentence) in rows {
        let said = without_ids(&fixture.run(words.split(' ')).failed(code));
        // The warning of a small disk comes before the refusal.
        let first = said.lines().find(|line| !line.contains("but their disk has"));
        assert_eq!(first, Some(format!("warpfire: {sentence}").as_str()), "{words}");
        assert!(!said.contains("os error") && !said.contains("segment"), "{words}: {said}");
    }
    for part in ["half", "other"] {
        fixture.run(["scrub", "--degraded", part]).failed(4);
        fixture.run(["touch", &format!("{part}:/f")]).succeeded();
    }
    let said = without_ids(&fixture.run(["ls", "half/0.img,other/1.img"]).failed(3));
    assert!(said.contains(apart), "{said}");
    // A name of 255 bytes is the longest. No refusal has changed a file.
    let longest = format!("a.img:/{}", "x".repeat(255));
    fixture.run(["touch", &longest]).succeeded();
    let found = fixture.run(["find", "a.img"]).succeeded();
    for name in ["a.img:/d", "a.img:/f", &longest] {
        assert!(found.lines().any(|line| line == name), "{name}: {found}");
    }
}

#[test]
fn refusals_of_mounted_pools_say_where_the_mount_is_and_what_to_do() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::pool(2, 1, 1, 32);
    std::fs::create_dir(fixture.path("mnt")).expect("a new directory");
    fixture.run(["mount", "--read-only", "pool", "mnt"]).succeeded();
    let mounted = MountedFixture(fixture);
    let fixture = &mounted.0;
    let said_by = |words: &str, code| {
        let said = fixture.run(words.split(' ')).failed(code);
        said.replace(&*fixture.path("mnt").to_string_lossy(), "MNT")
    };
    for (words, code) in [("scrub mnt", 8), ("trim mnt", 1), ("label mnt x", 1), ("device add mnt n.img", 1)]
    {
        let expected = "warpfire: the pool is mounted read-only at MNT; unmount it and mount it without 'ro', or \
                        run the command when it is unmounted\n";
        assert_eq!(said_by(words, code), expected, "{words}");
    }
    for (words, code) in
        [("scrub pool", 8), ("trim pool", 3), ("label pool x", 3), ("device add pool n.img", 3)]
    {
        let expected = "warpfire: the pool is mounted read-only at MNT; run 'warpfire umount MNT' first, and mount \
                        it without --read-only\n";
        assert_eq!(said_by(words, code), expected, "{words}");
    }
    fixture.run(["umount", "mnt"]).succeeded();
    fixture.run(["mount", "pool", "mnt"]).succeeded();
    for (words, code) in [("inspect label pool", 3), ("inspect label mnt", 3)] {
        let expected = "warpfire: the pool is mounted at MNT; 'warpfire scrub MNT' verifies it while it is in use; \
                        or run 'warpfire umount MNT' first\n";
        assert_eq!(said_by(words, code), expected, "{words}");
    }
    assert!(!fixture.path("n.img").exists(), "a device that is refused is not made");
    fixture.run(["umount", "mnt"]).succeeded();
}

/// Overwrites with other bytes every block of an image, after the roots, that holds this text.
fn hurt(fixture: &Fixture, image: &str, text: &str) {
    let mut content = std::fs::read(fixture.path(image)).expect("the image is there");
    let blocks = content[2 << 20..].chunks_mut(4096);
    let hit = blocks.filter(|block| block.windows(text.len()).any(|found| found == text.as_bytes()));
    assert!(hit.map(|block| block.fill(0xA5)).count() > 0, "{image} has no '{text}'");
    std::fs::write(fixture.path(image), content).expect("written");
}

const LOST: &str = "the metadata of the pool is damaged and cannot be rebuilt; bring back missing devices, or restore \
                    the files from a backup; 'warpfire fsck' names the losses";

/// Lost metadata, lost roots, lost bytes: what each command says first.
/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[test]
fn a_pool_of_another_version_is_refused_with_both_versions() {
    let fixture = Fixture::empty();
    fixture.run(["mkfs", "--size", "32M", "other.img"]).succeeded();
    let mut image = std::fs::read(fixture.path("other.img")).expect("there");
    for block in image.chunks_exact_mut(4096).filter(|block| block[4..8] == *b"WfRt") {
        block[8] = 3;
        let sum = crc32c(&block[4..]);
        block[..4].copy_from_slice(&sum.to_le_bytes());
    }
    std::fs::write(fixture.path("other.img"), image).expect("written");
    let versions = "was made by another version of warpfire: its roots have format 3, and this version reads \
                    format 2; copy its files with the version of warpfire that made it, and make a new pool \
                    with this one";
    let of_device = format!("warpfire: the pool of other.img {versions}");
    let checked = format!("warpfire: cannot check other.img: the pool {versions}");
    let inspected = format!("warpfire: the pool {versions}");
    for (words, code, said) in [
        ("ls other.img:/", 3, &of_device),
        ("cp other.img:/a back", 3, &of_device),
        ("status other.img", 3, &of_device),
        ("scrub other.img", 8, &of_device),
        ("fsck other.img", 8, &checked),
        ("inspect label other.img", 3, &inspected),
        ("inspect segments other.img", 3, &inspected),
    ] {
        let ran = fixture.run(words.split(' '));
        assert_eq!((ran.code, ran.stderr.lines().next()), (code, Some(said.as_str())), "{words}");
    }
}

#[test]
fn damage_beyond_parity_is_refused_in_sentences_that_help() {
    let fixture = Fixture::empty();
    fixture.run(["mkfs", "--size", "32M", "table.img"]).succeeded();
    for number in 0..300 {
        fixture.local(&format!("tree/name-in-a-table-{number}"), "small");
    }
    fixture.run(["cp", "-r", "tree", "table.img:/"]).succeeded();
    fixture.local("big", crate::fixture::bytes(1, 1 << 20));
    fixture.run(["cp", "big", "table.img:/"]).succeeded();
    // A scrub moves all metadata from the commit log to tables.
    fixture.run(["scrub", "table.img"]).succeeded();
    let whole = std::fs::read(fixture.path("table.img")).expect("there");
    std::fs::write(fixture.path("root.img"), [&vec![0; 2 << 20], &whole[2 << 20..]].concat())
        .expect("written");
    std::fs::write(fixture.path("data.img"), &whole).expect("written");
    let big = fixture.path("data.img");
    let piece = &crate::fixture::bytes(1, 1 << 20)[8192..8192 + 4096];
    let at = whole.windows(4096).position(|found| found == piece).expect("stored as it is");
    let opened = std::fs::OpenOptions::new().write(true).open(&big).expect("there");
    std::os::unix::fs::FileExt::write_all_at(&opened, &[0xA5; 4096], at as u64).expect("damaged");
    hurt(&fixture, "table.img", "name-in-a-table");
    let no_root = "the roots of pool # are lost: root.img holds its data, and no named device holds a root; \
                   'warpfire recover' finds the pool by what its data says; make no new pool here, because that \
                   destroys the data";
    let kept = "root.img contains data of a Warpfire pool that has lost its roots; name another device, or overwrite \
                this one with --force";
    let lost_bytes = "/big: damaged: bytes 8192..12288 (4096 bytes) cannot be read or reconstructed; bring back \
                      missing devices, or copy the rest with 'warpfire cp --salvage'";
    let backup =
        "some bytes are lost; reconnect missing devices, or restore the files named above from a backup";
    let rows: &[(&str, i32, &str)] = &[
        ("ls table.img:/", 3, LOST),
        ("cat table.img:/tree/name-in-a-table-7", 3, LOST),
        ("stat table.img:/tree", 3, LOST),
        ("cp -r table.img:/tree back", 3, LOST),
        ("cp --salvage -r table.img:/tree back", 3, LOST),
        ("touch table.img:/new", 3, LOST),
        ("rm -r table.img:/tree", 3, LOST),
        ("df table.img", 3, LOST),
        ("find table.img", 3, LOST),
        ("trim table.img", 3, LOST),
        ("mount table.img empty --log log", 3, LOST),
        ("status table.img", 3, "LOST: pool # of 1 device cannot be opened"),
        ("status --check table.img", 2, ""),
        ("fsck table.img", 4, backup),
        (
            "scrub table.img",
            4,
            "the scrub stopped: the metadata of the pool is damaged and cannot be rebuilt",
        ),
        ("ls root.img", 3, no_root),
        ("status root.img", 3, no_root),
        (
            "fsck root.img",
            8,
            "cannot check root.img: none of the devices holds a pool: zones 0 and 1 hold no root that verifies; \
             'warpfire status' shows the devices of the pool",
        ),
        ("scrub root.img", 8, no_root),
        ("mkfs root.img", 1, kept),
        ("device add data.img root.img", 1, kept),
        ("mount root.img empty --log log", 3, no_root),
        ("cat data.img:/big", 1, lost_bytes),
        ("cp data.img:/big back", 1, lost_bytes),
        ("fsck data.img", 4, backup),
        ("scrub data.img", 4, backup),
    ];
    std::fs::create_dir(fixture.path("empty")).expect("made");
    let mut wrong = Vec::new();
    for &(words, code, sentence) in rows {
        let ran = fixture.run(words.split(' '));
        let said = without_ids(&ran.stderr);
        let first = said.lines().next().unwrap_or_default();
        let expected = if sentence.is_empty() { String::new() } else { format!("warpfire: {sentence}") };
        if ran.code != code || first != expected {
            wrong.push(format!("warpfire {words}\n  {} {first}\n  {code} {expected}", ran.code));
        }
        for banned in ["os error", "panicked", "segment"] {
            assert!(!said.contains(banned), "{words}: {said}");
        }
        assert!(!ran.stdout.contains("nothing damaged"), "{words}: {}", ran.stdout);
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    assert!(!fixture.path("back").exists());
    let said = fixture.run(["status", "table.img"]).failed(3);
    assert_eq!(said.lines().last(), Some(format!("warpfire: {LOST}").as_str()));
}

#[test]
fn a_local_file_that_cannot_be_read_is_named_once() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.local("perm/b", "secret");
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o000);
    std::fs::set_permissions(fixture.path("perm/b"), closed).expect("a mode is set");
    if std::fs::read(fixture.path("perm/b")).is_ok() {
        // Root reads everything; a link of that name fails for it too.
        std::fs::remove_file(fixture.path("perm/b")).expect("removed");
        let said = fixture.run(["cp", "perm/b", "pool:/"]).failed(1);
        assert_eq!(said.lines().next(), Some("warpfire: perm/b: No such file or directory"));
        return;
    }
    let said = fixture.run(["cp", "-r", "perm", "pool:/"]).failed(1);
    assert_eq!(said.lines().next(), Some("warpfire: perm/b: Permission denied"));
}
