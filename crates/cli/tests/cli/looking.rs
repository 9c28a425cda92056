//! The verbs that list, find and measure files, on the real binary.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use warpfire_test_needs::{Need, skip};

use crate::fixture::{Fixture, bytes, documents};
use crate::mounted::{MountedFixture, can_mount};

/// A pool with files of known sizes and times below `/t`.
fn measured_tree() -> Fixture {
    let fixture = Fixture::pool(1, 1, 0, 64);
    for (name, len) in [("t/a.jpg", 10_000), ("t/b.txt", 300_000), ("t/sub/c.jpg", 2_000_000)] {
        fixture.local(name, bytes(len as u64, len));
    }
    fixture.run(["cp", "-r", "t", "pool:/"]).succeeded();
    fixture.run(["ln", "pool:/t/sub/c.jpg", "pool:/t/zz"]).succeeded();
    fixture.run(["touch", "-d", "2001-01-01", "pool:/t/a.jpg"]).succeeded();
    fixture.run(["touch", "-d", "2002-01-01", "pool:/t/b.txt"]).succeeded();
    fixture.run(["truncate", "-s", "1G", "pool:/t/sub/hole"]).succeeded();
    fixture
}

fn lines(fixture: &Fixture, words: &[&str]) -> Vec<String> {
    fixture.run(words).succeeded().lines().map(str::to_owned).collect()
}

#[test]
fn the_name_of_a_pool_is_its_root() {
    let fixture = measured_tree();
    for root in ["pool", "pool:", "pool:/", "pool/0.img", "pool/0.img:"] {
        assert_eq!(lines(&fixture, &["ls", root]), ["t"], "{root}");
    }
    assert_eq!(lines(&fixture, &["find", "pool", "--max-depth", "1"]), ["pool:/", "pool:/t"]);
    assert!(fixture.run(["stat", "pool"]).succeeded().starts_with("/: directory"));
    // A verb that changes something takes the root by its name alone.
    let said = fixture.run(["rm", "-r", "pool"]).failed(2);
    assert!(said.contains("write 'pool:/path'"), "{said}");
}

#[test]
fn ls_goes_down_and_sorts() {
    let fixture = measured_tree();
    let whole = lines(&fixture, &["ls", "-R", "pool:/t"]);
    let expected = ["pool:/t:", "a.jpg", "b.txt", "sub", "zz", "", "pool:/t/sub:", "c.jpg", "hole"];
    assert_eq!(whole, expected);
    assert_eq!(lines(&fixture, &["ls", "-S", "pool:/t/sub"]), ["hole", "c.jpg"]);
    assert_eq!(lines(&fixture, &["ls", "-tr", "pool:/t"])[..2], ["a.jpg", "b.txt"]);
    assert_eq!(lines(&fixture, &["ls", "-r", "pool:/t"]), ["zz", "sub", "b.txt", "a.jpg"]);
    assert_eq!(lines(&fixture, &["ls", "-d", "pool:/t"]), ["/t"]);
    let long = lines(&fixture, &["ls", "-lh", "pool:/t/sub"]);
    assert!(long[1].contains(" 1 GiB ") && long[1].ends_with(" hole"), "{long:?}");
    let said = fixture.run(["ls", "--json", "-R", "pool:/t"]).succeeded();
    let entries = documents(&said);
    let found: Vec<_> = entries.iter().map(|entry| &entry["name"]).collect();
    assert_eq!(found[..2], ["/t/a.jpg", "/t/b.txt"]);
    assert_eq!(found.len(), 6);
}

#[test]
fn du_counts_data_once_and_lengths_if_asked() {
    let fixture = measured_tree();
    let sizes = |words: &[&str]| -> Vec<(u64, String)> {
        let split =
            |line: &String| line.split_once(' ').map(|(size, name)| (size.to_owned(), name.to_owned()));
        let found = lines(&fixture, words);
        let parts = found.iter().map(|line| split(line).expect("two columns"));
        parts.map(|(size, name)| (size.parse().expect("bytes"), name.trim().to_owned())).collect()
    };
    let whole = sizes(&["du", "-s", "pool:/t"]);
    assert_eq!(whole, [(2_310_000, "pool:/t".to_owned())], "a file with two names counts once");
    let below = sizes(&["du", "-a", "pool:/t"]);
    assert_eq!(below.len(), 6 + 1);
    assert_eq!(below.last(), whole.last(), "a directory follows its entries");
    assert_eq!(sizes(&["du", "pool:/t"]).len(), 2);
    assert_eq!(sizes(&["du", "-d", "0", "pool"]), [(2_310_000, "pool:/".to_owned())]);
    assert_eq!(sizes(&["du", "-s", "--apparent-size", "pool:/t/sub"])[0].0, 2_000_000 + (1 << 30));
    assert!(fixture.run(["du", "-sh", "pool:/t"]).succeeded().starts_with("2.2 MiB"));
    let ran = fixture.run(["du", "-s", "--json", "pool:/absent", "pool:/t"]);
    let entries = documents(&ran.stdout);
    assert_eq!((ran.code, &entries[0]["size_bytes"]), (1, &2_310_000.into()));
}

#[test]
fn df_agrees_with_status() {
    let fixture = measured_tree();
    let json = |words: &[&str]| documents(&fixture.run(words).succeeded()).remove(0);
    let (space, status) = (json(&["df", "--json", "pool"]), json(&["status", "--json", "pool"]));
    for figure in ["total_bytes", "used_bytes", "available_bytes", "files"] {
        assert_eq!(space[figure], status["space"][figure], "{figure}");
    }
    assert_eq!(space["files"], 7, "the root, two directories, four files, one of them with two names");
    let used = space["used_bytes"].as_u64().expect("a number");
    assert!((2_310_000..4_000_000).contains(&used), "{used}");
    fixture.run(["rm", "-r", "pool:/t"]).succeeded();
    let left = json(&["df", "--json", "pool"])["used_bytes"].as_u64().expect("a number");
    assert!(left < 1_000_000, "removed files take no space: {left}");
    let said = fixture.run(["df", "-h", "pool", "pool/0.img"]).succeeded();
    assert!(said.lines().count() == 3 && said.contains(" MiB"), "{said}");
    let ran = fixture.run(["df", "absent.img", "pool"]);
    assert!(ran.code == 1 && ran.stdout.contains("pool"), "{}", ran.stdout);
    fixture.run(["df", "absent.img"]).failed(3);
}

#[test]
fn find_takes_names_types_sizes_and_ages() {
    let fixture = measured_tree();
    let find = |words: &[&str]| lines(&fixture, &[&["find"], words].concat());
    assert_eq!(find(&["pool:/t", "--name", "*.jpg"]), ["pool:/t/a.jpg", "pool:/t/sub/c.jpg"]);
    assert_eq!(find(&["pool", "--type", "d"]), ["pool:/", "pool:/t", "pool:/t/sub"]);
    let large = ["pool:/t/sub/c.jpg", "pool:/t/sub/hole", "pool:/t/zz"];
    assert_eq!(find(&["pool:/t", "--larger-than", "1M"]), large);
    assert_eq!(find(&["pool:/t", "--smaller-than", "20K"]), ["pool:/t/a.jpg"]);
    assert_eq!(find(&["pool:/t", "--older-than", "2001-06-01"]), ["pool:/t/a.jpg"]);
    assert_eq!(find(&["pool:/t", "--older-than", "7d", "--name", "b*"]), ["pool:/t/b.txt"]);
    let new = find(&["pool:/t", "--newer-than", "1h", "--type", "file"]);
    assert_eq!(new, large);
    assert_eq!(find(&["pool:/t/sub", "pool:/t/a.jpg", "--max-depth", "0"]), ["pool:/t/sub", "pool:/t/a.jpg"]);
    let ran = fixture.run(["find", "pool:/absent", "pool:/t", "--name", "zz"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, "pool:/t/zz\n"));
    fixture.run(["find", "pool:/t", "--newer-than", "soon"]).failed(2);
}

#[test]
fn names_of_any_bytes_go_out_whole_and_come_back() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    let names: [&[u8]; 4] = [b"bad\xff\xfe", b"esc\x1b[31mred", b"line\nbreak", b"two words"];
    for name in names {
        let mut location = OsString::from("pool:/");
        location.push(OsStr::from_bytes(name));
        fixture.run([OsStr::new("touch"), &location]).succeeded();
    }
    // Not on a terminal: the bytes themselves.
    let listed = fixture.command(["ls", "pool"]).output().expect("it runs").stdout;
    assert_eq!(listed, b"bad\xff\xfe\nesc\x1b[31mred\nline\nbreak\ntwo words\n");
    let said = fixture.run(["ls", "--json", "pool"]).succeeded();
    let entries = documents(&said);
    assert_eq!(entries[0]["name_bytes"], "YmFk//4=");
    assert!(entries[1].get("name_bytes").is_none());
    // A message never drives the terminal.
    let said = fixture.run(["cat", "pool:/esc\x1b[31mblue"]).failed(1);
    assert!(!said.contains('\x1b') && said.contains("esc\\u{1b}[31mblue"), "{said}");
    let found =
        fixture.command(["find", "pool", "--type", "f", "--print0"]).output().expect("it runs").stdout;
    let found: Vec<&OsStr> =
        found.split(|&byte| byte == 0).filter(|name| !name.is_empty()).map(OsStr::from_bytes).collect();
    assert_eq!(found.len(), 4);
    fixture.run([OsStr::new("rm")].into_iter().chain(found)).succeeded();
    assert_eq!(fixture.run(["ls", "pool"]).succeeded(), "");
}

#[test]
fn names_are_escaped_on_a_terminal() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.run(["touch", "pool:/esc\x1b[31mred", "pool:/two words", "pool:/plain"]).succeeded();
    // Python runs the command on a terminal of its own.
    let program = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";
    let mut python = std::process::Command::new("python3");
    python.args(["-c", program, env!("CARGO_BIN_EXE_warpfire"), "ls", "pool"]);
    python.current_dir(fixture.path(".")).stdin(std::process::Stdio::null());
    let Ok(ran) = python.output() else { return skip(Need::Python, "python3 does not run") };
    let shown = String::from_utf8_lossy(&ran.stdout).replace('\r', "");
    assert_eq!(shown, "$'esc\\033[31mred'\nplain\n'two words'\n");
}

#[test]
fn a_walk_goes_deeper_than_a_path_is_long() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    let name = "n".repeat(200);
    let below = [name.as_str(); 15].join("/");
    // 15 levels at a time: each directory is moved below the next 15.
    for round in 0..3 {
        fixture.run(["mkdir", "-p", &format!("pool:/new/{below}")]).succeeded();
        if round > 0 {
            fixture.run(["mv", "pool:/deep", &format!("pool:/new/{below}/deep")]).succeeded();
        }
        fixture.run(["mv", "pool:/new", "pool:/deep"]).succeeded();
    }
    let found = fixture.run(["find", "pool:/deep"]).succeeded();
    assert_eq!(found.lines().count(), 3 * 16);
    fixture.run(["chmod", "-R", "711", "pool:/deep"]).succeeded();
    let listed = fixture.run(["--json", "find", "pool:/deep"]).succeeded();
    assert_eq!(listed.matches("\"mode\":\"0711\"").count(), 3 * 16, "{listed}");
    fixture.run(["chown", "-R", ":4321", "pool:/deep"]).succeeded();
    let listed = fixture.run(["--json", "find", "pool:/deep"]).succeeded();
    assert_eq!(listed.matches("\"gid\":4321").count(), 3 * 16, "{listed}");
    fixture.run(["du", "-s", "pool:/deep"]).succeeded();
    if !can_mount() {
        return;
    }
    std::fs::create_dir(fixture.path("mnt")).expect("a new directory");
    fixture.run(["mount", "pool", "mnt"]).succeeded();
    let mounted = MountedFixture(fixture);
    mounted.0.run(["chmod", "-R", "700", "pool:/deep"]).succeeded();
    let listed = mounted.0.run(["--json", "find", "pool:/deep"]).succeeded();
    assert_eq!(listed.matches("\"mode\":\"0700\"").count(), 3 * 16, "{listed}");
    mounted.0.run(["rm", "-r", "pool:/deep"]).succeeded();
    mounted.0.run(["umount", "mnt"]).succeeded();
}
