//! The verbs that change names, permissions, owners, times and lengths, on the real binary.

use crate::fixture::{CommandResult, Fixture, bytes, documents};

/// A pool with `/d/one`, `/d/two`, `/d/sub/three` and `/link` to `/d/one`.
fn small_tree() -> Fixture {
    let fixture = Fixture::pool(1, 1, 0, 32);
    for (name, content) in [("d/one", "1"), ("d/two", "22"), ("d/sub/three", "333")] {
        fixture.local(name, content);
    }
    fixture.run(["cp", "-r", "d", "pool:/"]).succeeded();
    fixture.run(["ln", "-s", "/d/one", "pool:/link"]).succeeded();
    fixture
}

fn stat(fixture: &Fixture, path: &str) -> serde_json::Value {
    let said = fixture.run(["stat", "--json", &format!("pool:{path}")]).succeeded();
    documents(&said).remove(0)
}

fn names(result: CommandResult) -> Vec<String> {
    result.succeeded().lines().map(str::to_owned).collect()
}

#[test]
fn mv_renames_moves_into_directories_and_swaps() {
    let fixture = small_tree();
    fixture.run(["mv", "pool:/d/one", "pool:/d/uno"]).succeeded();
    fixture.run(["mv", "pool:/d/uno", "pool:/d/two", "pool:/d/sub"]).succeeded();
    assert_eq!(names(fixture.run(["ls", "pool:/d/sub"])), ["three", "two", "uno"]);
    fixture.run(["mv", "--exchange", "pool:/d/sub/two", "pool:/d/sub/uno"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/d/sub/uno"]).succeeded(), "22");
    fixture.run(["mv", "pool:/d/sub/uno", "pool:/d/sub/two"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/d/sub/two"]).succeeded(), "22");
    fixture.run(["mv", "pool:/d", "pool:/d/sub"]).failed(1);
    fixture.run(["mv", "pool:/d", "pool:/e"]).succeeded();
    assert_eq!(names(fixture.run(["ls", "pool"])), ["e", "link"]);
}

#[test]
fn mv_moves_everything_or_nothing() {
    let fixture = small_tree();
    let said = fixture.run(["mv", "pool:/d/one", "pool:/absent", "pool:/d/two", "pool:/d/sub/"]).failed(1);
    assert!(said.contains("/absent: no such file") && said.contains("nothing was moved"), "{said}");
    assert_eq!(names(fixture.run(["ls", "pool:/d/sub"])), ["three"]);
    let said = fixture.run(["mv", "pool:/d/one", "pool:/d/two", "pool:/d/sub/three"]).failed(2);
    assert!(said.contains("is not a directory"), "{said}");
    fixture.run(["mkfs", "--size", "32M", "other.img"]).succeeded();
    let said = fixture.run(["mv", "pool:/d/one", "other.img:/one"]).failed(2);
    assert!(said.contains("'warpfire cp -r'"), "{said}");
    assert_eq!(names(fixture.run(["ls", "pool:/d"])), ["one", "sub", "two"]);
}

#[test]
fn mv_no_clobber_leaves_taken_names_and_moves_the_others() {
    let fixture = small_tree();
    fixture.run(["touch", "pool:/d/sub/one"]).succeeded();
    let said = fixture.run(["mv", "-n", "pool:/d/one", "pool:/d/two", "pool:/d/sub"]).failed(1);
    assert!(said.contains("/d/one: /d/sub/one is taken"), "{said}");
    assert_eq!(names(fixture.run(["ls", "pool:/d"])), ["one", "sub"]);
    assert_eq!(fixture.run(["cat", "pool:/d/sub/one"]).succeeded(), "");
    fixture.run(["mv", "-n", "-f", "pool:/d/one", "pool:/d/sub"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/d/sub/one"]).succeeded(), "1");
}

#[test]
fn mv_between_two_names_of_one_file_removes_one() {
    let fixture = small_tree();
    fixture.run(["ln", "pool:/d/one", "pool:/again"]).succeeded();
    fixture.run(["mv", "pool:/again", "pool:/again"]).failed(1);
    assert_eq!(stat(&fixture, "/again")["links"], 2);
    fixture.run(["mv", "pool:/d/one", "pool:/again"]).succeeded();
    assert_eq!(stat(&fixture, "/again")["links"], 1);
    assert_eq!(names(fixture.run(["ls", "pool:/d"])), ["sub", "two"]);
}

#[test]
fn ln_makes_all_links_or_none_and_replaces_only_with_force() {
    let fixture = small_tree();
    fixture.run(["ln", "pool:/d/one", "pool:/d/two", "pool:/d/sub"]).succeeded();
    assert_eq!(stat(&fixture, "/d/sub/one")["inode"], stat(&fixture, "/d/one")["inode"]);
    let said = fixture.run(["ln", "pool:/d/sub/three", "pool:/d/one", "pool:/d"]).failed(1);
    assert!(said.contains("file exists") && said.contains("nothing was linked"), "{said}");
    assert_eq!(names(fixture.run(["ls", "pool:/d"])), ["one", "sub", "two"]);
    fixture.run(["ln", "-f", "pool:/d/sub/three", "pool:/d/one"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/d/one"]).succeeded(), "333");
    let said = fixture.run(["ln", "-f", "pool:/d/one", "pool:/d/one"]).failed(1);
    assert!(said.contains("are the same file"), "{said}");
    let said = fixture.run(["ln", "pool:/d", "pool:/e"]).failed(1);
    assert!(said.contains("make a symbolic link with -s"), "{said}");
    // A link to a directory is replaced, and not filled.
    fixture.run(["ln", "-s", "d", "pool:/current"]).succeeded();
    fixture.run(["ln", "-sf", "d/sub", "pool:/current"]).succeeded();
    assert_eq!(stat(&fixture, "/current")["target"], "d/sub");
    let said = fixture.run(["ln", "-s", "pool:/d", "pool:/e"]).failed(2);
    assert!(said.contains("write '/d'"), "{said}");
}

#[test]
fn chmod_takes_octal_and_clauses_and_goes_on() {
    let fixture = small_tree();
    fixture.run(["chmod", "640", "pool:/d/one"]).succeeded();
    assert_eq!(stat(&fixture, "/d/one")["mode"], "0640");
    let said = fixture.run(["chmod", "u+x,o=g", "pool:/absent", "pool:/link"]).failed(1);
    assert!(said.contains("/absent: no such file"), "{said}");
    assert_eq!(stat(&fixture, "/d/one")["mode"], "0744");
    fixture.run(["ln", "-s", "/d/two", "pool:/d/to"]).succeeded();
    fixture.run(["chmod", "600", "pool:/d/two", "pool:/d/one"]).succeeded();
    fixture.run(["chmod", "-R", "go=rX", "pool:/d/sub", "pool:/d"]).succeeded();
    assert_eq!(stat(&fixture, "/d/two")["mode"], "0644");
    assert_eq!(stat(&fixture, "/d/sub")["mode"], "0755");
    fixture.run(["chmod", "rw", "pool:/d"]).failed(2);
}

#[test]
fn chown_takes_names_and_numbers() {
    let fixture = small_tree();
    let own = stat(&fixture, "/d")["uid"].as_u64().expect("a number");
    let said = fixture.run(["chown", "nobody-of-that-name", "pool:/d"]).failed(2);
    assert!(said.contains("no user 'nobody-of-that-name'"), "{said}");
    if own != 0 {
        let said = fixture.run(["chown", "0", "pool:/d/one", "pool:/d/two"]).failed(1);
        assert_eq!(said.matches("not permitted").count(), 2, "{said}");
        return;
    }
    fixture.run(["chown", "-R", "1234:root", "pool:/d"]).succeeded();
    assert_eq!(stat(&fixture, "/d/sub/three")["uid"], 1234);
    fixture.run(["chown", ":77", "pool:/link"]).succeeded();
    assert_eq!((&stat(&fixture, "/d/one")["gid"], &stat(&fixture, "/link")["gid"]), (&77.into(), &0.into()));
    fixture.run(["chown", "-h", "5", "pool:/link"]).succeeded();
    assert_eq!(stat(&fixture, "/link")["uid"], 5);
    fixture.run(["chown", "root:", "pool:/d/one"]).succeeded();
    assert_eq!(stat(&fixture, "/d/one")["gid"], 0);
}

#[test]
fn touch_makes_files_and_sets_moments() {
    let fixture = small_tree();
    fixture.run(["touch", "-c", "pool:/new"]).succeeded();
    fixture.run(["stat", "pool:/new"]).failed(1);
    let said = fixture.run(["touch", "pool:/no/where", "pool:/new"]).failed(1);
    assert!(said.contains("/no/where: no such file"), "{said}");
    assert_eq!(stat(&fixture, "/new")["size_bytes"], 0);
    fixture.run(["touch", "-d", "2001-02-03T04:05:06.5+01:00", "pool:/new"]).succeeded();
    let modified = || stat(&fixture, "/new")["modified"].as_str().expect("text").to_owned();
    assert!(modified().starts_with("2001-02-03") && modified().contains("03:05:06.5"), "{}", modified());
    fixture.run(["touch", "-m", "-d", "1999-12-31", "pool:/d/one"]).succeeded();
    fixture.run(["touch", "-r", "pool:/d/one", "pool:/new"]).succeeded();
    assert!(modified().starts_with("1999-12-31"), "{}", modified());
    assert!(!stat(&fixture, "/new")["accessed"].as_str().expect("text").starts_with("1999"));
    fixture.run(["touch", "-d", "yesterday", "pool:/new"]).failed(2);
}

#[test]
fn truncate_sets_adds_and_takes_away() {
    let fixture = small_tree();
    let len = |path: &str| stat(&fixture, path)["size_bytes"].as_u64().expect("a number");
    fixture.run(["truncate", "-s", "1M", "pool:/d/one", "pool:/new"]).succeeded();
    assert_eq!((len("/d/one"), len("/new")), (1 << 20, 1 << 20));
    fixture.run(["truncate", "-s", "-1K", "pool:/new"]).succeeded();
    fixture.run(["truncate", "-s", "+5", "pool:/new"]).succeeded();
    assert_eq!(len("/new"), (1 << 20) - 1024 + 5);
    fixture.run(["truncate", "-c", "-s", "0", "pool:/absent"]).succeeded();
    let said = fixture.run(["truncate", "-s", "0", "pool:/d", "pool:/d/one"]).failed(1);
    assert!(said.contains("/d: is a directory"), "{said}");
    assert_eq!(len("/d/one"), 0);
}

#[test]
fn verbs_go_on_after_a_name_that_fails() {
    let fixture = small_tree();
    let ran = fixture.run(["cat", "pool:/absent", "pool:/d/one", "pool:/d", "pool:/d/two"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, "122"), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 2, "each failure once: {}", ran.stderr);
    let ran = fixture.run(["stat", "pool:/absent", "pool:/d/one"]);
    assert!(ran.code == 1 && ran.stdout.contains("/d/one: file"), "{}", ran.stdout);
    let ran = fixture.run(["ls", "pool:/absent", "pool:/d/one", "pool:/d/sub"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, "/d/one\n\npool:/d/sub:\nthree\n"));
    fixture.run(["mkdir", "pool:/d", "pool:/made"]).failed(1);
    fixture.run(["rm", "pool:/absent", "pool:/d", "pool:/d/two"]).failed(1);
    assert_eq!(names(fixture.run(["ls", "pool"])), ["d", "link", "made"]);
    assert_eq!(names(fixture.run(["ls", "pool:/d"])), ["one", "sub"]);
}

#[test]
fn everything_in_a_pool_or_a_file_is_removed_only_after_a_question() {
    let fixture = small_tree();
    for root in ["pool:/", "pool:", "pool:/d/..", "pool:///."] {
        let said = fixture.run(["rm", "-r", "pool:/link", root]).failed(2);
        assert!(said.contains("removes everything in the pool") && said.contains("--yes"), "{said}");
    }
    assert_eq!(names(fixture.run(["ls", "pool"])), ["d", "link"]);
    let said = fixture.run(["slice", "cut", "pool:/d/two"]).failed(2);
    assert!(said.contains("removes the whole content") && said.contains("--yes"), "{said}");
    assert_eq!(fixture.run(["cat", "pool:/d/two"]).succeeded(), "22");
    fixture.run(["slice", "cut", "--yes", "pool:/d/two"]).succeeded();
    fixture.run(["slice", "cut", "--len", "1", "pool:/d/one"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/d/one", "pool:/d/two"]).succeeded(), "");
    fixture.run(["rm", "-r", "--yes", "pool:/"]).succeeded();
    assert_eq!(fixture.run(["ls", "pool"]).succeeded(), "");
}

#[test]
fn a_local_path_that_holds_a_colon_and_a_slash_can_be_named() {
    let fixture = small_tree();
    fixture.local("odd/d:/e", "local");
    let said = fixture.run(["cp", "./odd/d:/e", "pool:/e"]);
    assert_ne!(said.code, 0, "the pool ./odd/d does not exist");
    fixture.run(["cp", "local:./odd/d:/e", "pool:/e"]).succeeded();
    fixture.run(["cp", "pool:/d/one", "local:odd/d:/one"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/e"]).succeeded(), "local");
    assert_eq!(std::fs::read(fixture.path("odd/d:/one")).expect("copied"), b"1");
    fixture.run(["cp", "-r", "odd/d:", "local:odd"]).failed(3);
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("large", bytes(1, 4 << 20));
    fixture.run(["cp", "large", "pool:/"]).succeeded();
    for words in [&["cat", "pool:/large", "pool:/large"][..], &["slice", "cat", "pool:/large"]] {
        let mut running = fixture.command(words).stdout(std::process::Stdio::piped()).spawn().expect("runs");
        drop(running.stdout.take());
        assert!(running.wait().expect("it ends").success(), "{words:?}");
    }
}
