//! Devices get another size, mounted and not.

use std::fs::OpenOptions;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fixture::{Fixture, bytes, documents};
use crate::mounted::{MountedFixture, can_mount};

const MIB: u64 = 1 << 20;

fn len(fixture: &Fixture, image: &str) -> u64 {
    std::fs::metadata(fixture.path(image)).expect("an image").len()
}

fn available(fixture: &Fixture, pool: &str) -> u64 {
    let said = fixture.run(["df", "--json", pool]).succeeded();
    documents(&said)[0]["available_bytes"].as_u64().expect("a number")
}

fn assert_whole(fixture: &Fixture, file: &str, content: &[u8]) {
    fixture.run(["fsck", "pool"]).succeeded();
    fixture.run(["cp", &format!("pool:/{file}"), "back"]).succeeded();
    assert!(std::fs::read(fixture.path("back")).expect("copied") == content);
}

#[test]
fn image_files_grow_and_shrink_and_the_pool_with_them() {
    let fixture = Fixture::pool(2, 1, 1, 64);
    let content = bytes(1, 12 << 20);
    for file in ["gone", "file"] {
        fixture.local(file, &content);
        fixture.run(["cp", file, "pool:/"]).succeeded();
    }
    fixture.run(["rm", "pool:/gone"]).succeeded();
    let resize = |words: &str| fixture.run(["device", "resize"].into_iter().chain(words.split(' ')));
    let free = available(&fixture, "pool");
    let said = resize("--dry-run pool pool/0.img 40M").succeeded();
    assert!(said.starts_with("the pool would use 40 MiB of pool/0.img, where it uses 64 MiB"), "{said}");
    assert!(said.ends_with(" will be free for files\n"), "{said}");
    assert_eq!((len(&fixture, "pool/0.img"), available(&fixture, "pool")), (64 * MIB, free));
    for image in ["pool/0.img", "pool/1.img"] {
        let said = resize(&format!("pool {image} 40M")).succeeded();
        assert!(
            said.starts_with(&format!("the pool uses 40 MiB of {image}, where it used 64 MiB: ")),
            "{said}"
        );
        assert_eq!(len(&fixture, image), 40 * MIB);
    }
    assert!(available(&fixture, "pool") < free - 20 * MIB);
    assert_whole(&fixture, "file", &content);
    let said = resize("--json pool pool/0.img 96M").succeeded();
    let grown = &documents(&said)[0];
    assert_eq!(
        (&grown["before_bytes"], &grown["size_bytes"]),
        (&(40 * MIB).into(), &(96 * MIB).into()),
        "{said}"
    );
    // Somebody has made the other one larger; the pool takes all of it.
    let image = OpenOptions::new().write(true).open(fixture.path("pool/1.img")).expect("an image");
    image.set_len(96 * MIB).expect("extended");
    let said = resize("pool pool/1.img max").succeeded();
    assert!(said.starts_with("the pool uses 96 MiB of pool/1.img, where it used 40 MiB: "), "{said}");
    assert!(available(&fixture, "pool") > free + 20 * MIB);
    fixture.local("more", bytes(2, 40 << 20));
    fixture.run(["cp", "more", "pool:/"]).succeeded();
    assert_whole(&fixture, "file", &content);
    assert_whole(&fixture, "more", &bytes(2, 40 << 20));
    for (words, sentence) in [
        ("pool pool/0.img 48M", "the device cannot be emptied: "),
        ("pool pool/0.img 1M", "it needs at least "),
        ("pool pool/9.img 64M", "pool/9.img is no device of the pool; "),
    ] {
        let said = resize(words);
        assert!(said.code != 0 && said.stderr.contains(sentence), "{words}: {}", said.stderr);
    }
    assert_eq!(len(&fixture, "pool/0.img"), 96 * MIB, "it keeps its size");
    assert_whole(&fixture, "more", &bytes(2, 40 << 20));
}

#[test]
fn a_device_of_a_mounted_pool_gets_another_size_while_it_is_written() {
    if !can_mount() {
        return;
    }
    let pool = MountedFixture::new();
    std::fs::write(pool.0.path("mnt/kept"), bytes(9, 8 << 20)).expect("written");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0..).take_while(|_| !is_done.load(Ordering::Relaxed)) {
                std::fs::write(pool.0.path(&format!("mnt/{}", n % 8)), bytes(n % 8, 100_000))
                    .expect("written");
            }
        });
        let sizes = [48, 96, 40, 64].map(|mib| {
            let size = format!("{mib}M");
            pool.0.run(["device", "resize", "mnt", "pool/1.img", &size]).succeeded();
            (mib * MIB, len(&pool.0, "pool/1.img"))
        });
        is_done.store(true, Ordering::Relaxed);
        sizes.iter().for_each(|(wanted, found)| assert_eq!(wanted, found));
    });
    pool.0.run(["umount", "mnt"]).succeeded();
    assert_whole(&pool.0, "kept", &bytes(9, 8 << 20));
}
