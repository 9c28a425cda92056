//! The roots of a pool are overwritten: `recover` reads it, and makes it whole again.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use serde_json::Value;

use crate::fixture::{Fixture, bytes};

/// The root zones of an image.
const ROOTS_BYTES: usize = 2 << 20;

fn lose_roots(fixture: &Fixture, devices: impl Iterator<Item = usize>) {
    for number in devices {
        let image = fixture.path(&format!("pool/{number}.img"));
        let image = OpenOptions::new().write(true).open(image).expect("the image is there");
        image.write_all_at(&vec![0x5A; ROOTS_BYTES], 0).expect("inside the image");
    }
}

/// A pool of 2+1 over four images, with a file and a directory.
fn pool() -> Fixture {
    let fixture = Fixture::pool(4, 2, 1, 32);
    fixture.local("a", bytes(1, 700_000));
    fixture.run(["mkdir", "pool:/tree"]).succeeded();
    fixture.run(["cp", "a", "pool:/tree/a"]).succeeded();
    fixture.run(["cp", "a", "pool:/b"]).succeeded();
    fixture
}

fn show(fixture: &Fixture, pool: &str) -> Value {
    serde_json::from_str(&fixture.run(["recover", "show", "--json", pool]).succeeded()).expect("JSON")
}

#[test]
fn a_pool_without_roots_is_read_and_made_whole_again() {
    let fixture = pool();
    lose_roots(&fixture, 0..4);
    let refused = fixture.run(["ls", "pool:/"]).failed(3);
    assert!(refused.contains("the roots of pool") && refused.contains("'warpfire recover'"), "{refused}");

    let shown = show(&fixture, "pool");
    assert_eq!(
        (&shown["source"], &shown["inodes"], &shown["rebuilt"]),
        (&"copy".into(), &4.into(), &0.into())
    );
    assert_eq!(
        fixture.run(["recover", "ls", "-R", "pool:/"]).succeeded(),
        "pool:/:\nb\ntree\n\npool:/tree:\na\n"
    );
    // A device may be missing all the same.
    let three = "pool/3.img,pool/0.img,pool/2.img";
    assert_eq!(show(&fixture, three)["missing"], serde_json::json!([1]));
    fixture.run(["recover", "cp", "-r", &format!("{three}:/tree"), "out"]).succeeded();
    assert_eq!(std::fs::read(fixture.path("out/a")).expect("copied"), bytes(1, 700_000));
    let refused = fixture.run(["recover", "cp", "a", "pool:/c"]).failed(1);
    assert!(refused.contains("open for reading only"), "{refused}");

    let refused = fixture.run(["recover", "rebuild-roots", "pool"]).failed(2);
    assert!(refused.contains("confirm with --yes"), "{refused}");
    fixture.run(["recover", "rebuild-roots", "--dry-run", "pool"]).succeeded();
    fixture.run(["ls", "pool:/"]).failed(3);
    let rebuilt = fixture.run(["recover", "rebuild-roots", "--yes", "pool"]).succeeded();
    assert!(rebuilt.ends_with("the roots of 4 devices were written\n"), "{rebuilt}");
    fixture.run(["fsck", "pool"]).succeeded();
    let number = shown["pool"].as_str().expect("a number");
    fixture.run(["recover", "--uuid", number, "ls", "pool:/"]).succeeded();
    let refused = fixture.run(["recover", "--uuid", "12", "show", "pool"]).failed(3);
    assert!(refused.contains("12 is no number of a pool"), "{refused}");
    fixture.run(["cp", "a", "pool:/c"]).succeeded();
    fixture.run(["rm", "pool:/b"]).succeeded();
    assert_eq!(fixture.run(["ls", "pool:/"]).succeeded(), "c\ntree\n");
    fixture.run(["scrub", "pool"]).succeeded();
}

#[test]
fn an_older_state_that_opens_gives_way_to_the_newest_copy() {
    let fixture = Fixture::pool(3, 2, 1, 32);
    let roots = |number: usize| {
        let image = std::fs::read(fixture.path(&format!("pool/{number}.img"))).expect("the image is there");
        image[..ROOTS_BYTES].to_vec()
    };
    fixture.local("a", bytes(1, 300_000));
    fixture.run(["cp", "a", "pool:/a"]).succeeded();
    let before: Vec<Vec<u8>> = (0..3).map(roots).collect();
    for session in 0..7 {
        fixture.run(["cp", "a", &format!("pool:/later{session}")]).succeeded();
    }
    for (number, roots) in before.iter().enumerate() {
        let image = fixture.path(&format!("pool/{number}.img"));
        let image = OpenOptions::new().write(true).open(image).expect("the image is there");
        image.write_all_at(roots, 0).expect("inside the image");
    }
    assert_eq!(fixture.run(["ls", "pool:/"]).succeeded(), "a\n");
    let all = "a\nlater0\nlater1\nlater2\nlater3\nlater4\nlater5\nlater6\n";
    assert_eq!(fixture.run(["recover", "ls", "pool:/"]).succeeded(), all);
    fixture.run(["recover", "rebuild-roots", "--yes", "pool"]).succeeded();
    assert_eq!(fixture.run(["ls", "pool:/"]).succeeded(), all);
    fixture.run(["fsck", "pool"]).succeeded();
    assert_eq!(show(&fixture, "pool")["source"], "root");
}

#[test]
fn what_is_no_pool_is_refused_by_a_sentence_that_helps() {
    let fixture = pool();
    std::fs::write(fixture.path("blank.img"), vec![0; 32 << 20]).expect("written");
    let refused = fixture.run(["recover", "show", "blank.img"]).failed(3);
    assert!(refused.contains("no root of a pool, and no copy of one, is on blank.img"), "{refused}");
    // Whole pools are not written.
    let rebuilt = fixture.run(["recover", "rebuild-roots", "--yes", "pool"]).succeeded();
    assert!(rebuilt.ends_with("nothing has to be rebuilt\n"), "{rebuilt}");
    lose_roots(&fixture, 0..4);
    let refused = fixture.run(["recover", "ls", "pool/0.img,pool/1.img:/"]).failed(3);
    assert!(refused.contains("2 devices are missing and parity covers 1"), "{refused}");
}
