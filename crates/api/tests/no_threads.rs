//! A machine that gives the process no thread.

use std::process::Command;

use warpfire::{ErrorKind, Pool};

const IMAGE: &str = "WARPFIRE_TEST_IMAGE";

/// In the process that this starts, no thread can be made: none has the memory for its stack.
#[test]
fn a_pool_is_not_opened_without_threads_and_says_why() {
    if let Some(image) = std::env::var_os(IMAGE) {
        assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "a thread is made");
        let Err(error) = Pool::options().open([image]) else { panic!("it opens") };
        assert_eq!(error.kind(), ErrorKind::Other, "{error}");
        assert!(error.to_string().contains("cannot start a thread"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("ulimit -u")), "{error}");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory can be made");
    let image = dir.path().join("pool.img");
    let fs = Pool::options().size_bytes(64 << 20).create([&image]).expect("a new image takes a pool");
    fs.write("/kept", b"bytes").expect("there is room");
    fs.close().expect("nothing fails");
    let program = std::env::current_exe().expect("the test is a program");
    let name = "a_pool_is_not_opened_without_threads_and_says_why";
    let mut test = Command::new(program);
    test.args(["--exact", name, "--test-threads=1"]).env(IMAGE, &image);
    let ended = test.env("RUST_MIN_STACK", (1_u64 << 47).to_string()).output().expect("it is started");
    let told = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && told.contains("1 passed"), "{told}");
    let fs = Pool::options().open([&image]).expect("the pool is as it was");
    assert_eq!(fs.read("/kept").expect("it was synced"), b"bytes");
}
