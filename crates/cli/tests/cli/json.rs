//! JSON as a contract: every command answers in documents and reports errors in documents.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde_json::Value;
use warpfire::Pool;

use crate::fixture::{Fixture, bytes, documents};
use crate::json_document::Contract;
use crate::mounted::{MountedFixture, can_mount};

/// Runs a command, and checks each line of its output by the contract.
fn answers(fixture: &Fixture, contract: &Contract, command: &str, words: &str, lines: Option<usize>) {
    let all = command.split(' ').chain(words.split(' ')).chain(["--json"]);
    let ran = fixture.run(all.filter(|word| !word.is_empty()));
    assert_eq!(ran.code, 0, "{command} {words}: {}{}", ran.stdout, ran.stderr);
    let found = documents(&ran.stdout);
    assert!(
        lines.map_or(!found.is_empty(), |lines| found.len() == lines),
        "{command} {words}: {}",
        ran.stdout
    );
    // Structures on flash have no table.
    for document in found.iter().filter(|_| command != "inspect") {
        contract.check(command, document).unwrap_or_else(|wrong| panic!("{command} {words}: {wrong}"));
    }
    for document in documents(&ran.stderr) {
        contract.check_stderr(&document).unwrap_or_else(|wrong| panic!("{command} {words}: {wrong}"));
    }
}

#[test]
fn every_command_has_a_row_in_the_document() {
    let fixture = Fixture::empty();
    let contract = Contract::read();
    let help = fixture.run(["--help"]).succeeded();
    let listed = help.split("Commands:\n").nth(1).expect("a list").split("\n\n").next().expect("a list");
    let commands = listed.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    // Help is for people, and structures on flash change with the format.
    let without = ["help", "inspect"];
    let commands = commands.filter(|command| !command.is_empty() && !without.contains(command));
    for command in commands {
        assert!(contract.has_command(command), "docs/JSON.md has no row for {command}");
    }
}

#[test]
fn every_command_answers_in_documents_of_one_line() {
    let contract = Contract::read();
    let fixture = Fixture::pool(3, 2, 1, 32);
    fixture.local("a", "abc");
    fixture.local("tree/b", bytes(1, 100_000));
    for (command, words, lines) in [
        ("mkfs", "--size 16M new.img", 1),
        ("cp", "a pool:/", 1),
        ("cp", "-r tree pool:/", 1),
        ("cp", "pool:/a back", 1),
        ("mkdir", "pool:/d pool:/e", 1),
        ("touch", "pool:/d/t", 1),
        ("truncate", "-s 5 pool:/d/t", 1),
        ("chmod", "600 pool:/a", 1),
        ("chmod", "-R u+r pool:/tree", 1),
        ("chown", "-R 0:0 pool:/d", 1),
        ("ln", "pool:/a pool:/d/hard", 1),
        ("ln", "-s a pool:/soft", 1),
        ("mv", "pool:/d/t pool:/e", 1),
        ("ls", "pool", 5),
        ("ls", "-R pool", 8),
        ("stat", "pool:/a pool:/soft", 2),
        ("find", "pool:/tree", 2),
        ("du", "pool:/tree", 1),
        ("df", "pool new.img", 2),
        ("cat", "pool:/a", 1),
        ("slice cat", "--len 2 pool:/a", 1),
        ("slice concat", "pool:/a pool:/a pool:/aa", 1),
        ("slice cut", "--len 1 pool:/aa", 1),
        ("status", "pool", 1),
        ("fsck", "pool", 1),
        ("scrub", "pool", 1),
        ("trim", "pool", 1),
        ("upkeep", "pool", 1),
        ("device list", "pool", 3),
        ("inspect", "label pool", 1),
        ("inspect", "inode pool:/a", 1),
        ("rm", "-r pool:/d pool:/soft", 1),
        ("man", "pages", 1),
        ("completions", "bash", 1),
        ("version", "", 1),
    ] {
        answers(&fixture, &contract, command, words, Some(lines));
    }
    for words in ["segments pool", "tables pool"] {
        answers(&fixture, &contract, "inspect", words, None);
    }
}

#[test]
fn the_end_of_a_command_counts_what_it_has_changed() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    let counts = |words: &str| {
        let ran = fixture.run(words.split(' ').chain(["--json"]));
        let ended = documents(&ran.stdout).remove(0);
        (ran.code, ended["changed"].as_u64(), ended["failed"].as_u64())
    };
    assert_eq!(counts("mkdir pool:/a pool:/b pool:/a"), (1, Some(2), Some(1)));
    assert_eq!(counts("touch pool:/a/1 pool:/a/2"), (0, Some(2), Some(0)));
    assert_eq!(counts("chmod -R go= pool:/a"), (0, Some(3), Some(0)));
    assert_eq!(counts("chown -R 1:1 pool:/a"), (0, Some(3), Some(0)));
    assert_eq!(counts("mv pool:/a/1 pool:/a/2 pool:/b"), (0, Some(2), Some(0)));
    assert_eq!(counts("ln pool:/b/1 pool:/a/2"), (0, Some(1), Some(0)));
    assert_eq!(counts("mv -n pool:/b/1 pool:/b/2 pool:/a"), (1, Some(1), Some(1)));
    assert_eq!(counts("rm -r pool:/a pool:/b pool:/c"), (1, Some(2), Some(1)));
}

#[test]
fn transactions_answer_in_documents() {
    if !can_mount() {
        return;
    }
    let contract = Contract::read();
    let pool = MountedFixture::new();
    let fixture = &pool.0;
    let begun = fixture.run(["tx", "begin", "--in", "mnt", "--json"]).succeeded();
    let begun = documents(&begun).remove(0);
    contract.check("tx begin", &begun).unwrap_or_else(|wrong| panic!("{wrong}"));
    let (id, view) = (begun["id"].to_string(), begun["path"].as_str().expect("a path"));
    std::fs::write(format!("{view}/new"), "abc").expect("written");
    for (command, words, lines) in [
        ("tx list", "--in mnt", 1),
        ("tx status", &format!("--in mnt {id}"), 1),
        ("tx diff", &format!("--in mnt {id}"), 1),
        ("tx commit", &format!("--in mnt {id}"), 1),
        ("tx list", "--in mnt", 0),
        ("status", "mnt", 1),
    ] {
        answers(fixture, &contract, command, words, Some(lines));
    }
    let begun = documents(&fixture.run(["tx", "begin", "--in", "mnt", "--json"]).succeeded()).remove(0);
    answers(fixture, &contract, "tx abort", &format!("--in mnt {}", begun["id"]), Some(1));
    answers(fixture, &contract, "mount", "pool mnt", Some(1));
    let ran = fixture.run(["--json", "tx", "run", "--in", "mnt", "--", "sh", "-c", "echo out; exit 3"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (3, "out\n"), "stdout is the program's");
    let said = documents(&ran.stderr);
    said.iter().for_each(|one| contract.check_stderr(one).unwrap_or_else(|wrong| panic!("{wrong}")));
    assert_eq!(said[0]["transaction"]["state"], "aborted");
    let ran = fixture.run(["--json", "tx", "run", "--in", "mnt", "--", "no-such-program"]);
    assert_eq!((ran.code, &documents(&ran.stderr)[0]["error"]["kind"]), (127, &"not_found".into()));
    answers(fixture, &contract, "umount", "mnt", Some(1));
    answers(fixture, &contract, "mount", "pool mnt", Some(1));
}

fn errors(fixture: &Fixture, words: &[&OsStr], code: i32) -> Vec<Value> {
    let said = fixture.run(words.iter().copied().chain([OsStr::new("--json")])).failed(code);
    let found = documents(&said);
    let contract = Contract::read();
    for one in &found {
        assert!(one["error"].is_object(), "{said}");
        contract.check_stderr(one).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
    found.into_iter().map(|mut one| one["error"].take()).collect()
}

#[test]
fn errors_are_documents_with_kind_errno_message_hint_and_path() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    let words = |text: &'static str| text.split(' ').map(OsStr::new).collect::<Vec<_>>();
    let found = errors(&fixture, &words("ls pool:/absent pool:/gone"), 1);
    assert_eq!(found.len(), 2, "each failure is a document");
    let error = &found[0];
    assert_eq!((&error["kind"], &error["errno"]), (&"not_found".into(), &2.into()), "{error}");
    assert_eq!((&error["path"], &error["exit_code"]), (&"/absent".into(), &1.into()), "{error}");
    assert_eq!(error["message"], "/absent: no such file or directory");
    assert_eq!(error["hint"], Value::Null);
    let error = errors(&fixture, &[OsStr::new("cat"), OsStr::from_bytes(b"pool:/\xff")], 1).remove(0);
    assert_eq!((&error["path"], &error["path_bytes"]), (&"/\u{fffd}".into(), &"L/8=".into()));
    let error = errors(&fixture, &words("rm pool:/"), 1).remove(0);
    assert_eq!(error["hint"], "remove it and its contents with -r");
    let error = errors(&fixture, &words("cp absent pool:/"), 1).remove(0);
    assert_eq!(
        (&error["kind"], &error["errno"], &error["path"]),
        (&"not_found".into(), &2.into(), &"absent".into())
    );
    let error = errors(&fixture, &words("ls absent.img"), 3).remove(0);
    assert_eq!(error["kind"], "not_a_pool");
    // A failure of one device names it.
    fixture.local("small", "x");
    let of_devices = [
        ("ls absent.img", 3, "absent.img"),
        ("ls pool/0.img,pool/0.img", 3, "pool/0.img"),
        ("ls small:/", 3, "small"),
        ("ls /dev/null", 3, "/dev/null"),
        ("fsck small", 8, "small"),
        ("mkfs pool/0.img", 1, "pool/0.img"),
        ("mkfs --size 1M new.img", 2, "new.img"),
    ];
    for (command, code, path) in of_devices {
        let error = errors(&fixture, &words(command), code).remove(0);
        assert_eq!(error["path"], path, "{command}: {error}");
    }
    let error = errors(&fixture, &words("statu pool"), 2).remove(0);
    assert_eq!(
        (&error["kind"], &error["hint"]),
        (&"usage".into(), &"did you mean 'status'?".into()),
        "{error}"
    );
    let error = errors(&fixture, &words("rm"), 2).remove(0);
    assert!(error["message"].as_str().expect("text").contains("POOL:/path"), "{error}");
    // After `--` it is a name.
    let said = fixture.run(["ls", "--lnog", "--", "--json"]).failed(2);
    assert!(said.starts_with("warpfire: 'warpfire ls' has no option '--lnog'; "), "{said}");
}

/// The bytes of a text in base64.
fn decoded(text: &str) -> Vec<u8> {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|&letter| letter != b'=').map(value).collect();
    let bits = |group: &[u8]| group.iter().fold(0_u32, |bits, &digit| bits << 6 | u32::from(digit));
    let bytes = digits.chunks(4).flat_map(|group| {
        let len = group.len() * 6 / 8;
        (bits(group) << (6 * (4 - group.len()))).to_be_bytes()[1..=len].to_vec()
    });
    bytes.collect()
}

/// A path that a document has as `name` or, if it is no UTF-8, as `name_bytes`.
fn path_of(document: &Value, name: &str) -> OsString {
    match document[format!("{name}_bytes")].as_str() {
        Some(bytes) => OsString::from_vec(decoded(bytes)),
        None => OsString::from(document[name].as_str().expect("text")),
    }
}

#[test]
fn ten_thousand_random_names_go_out_by_json_and_come_back_to_the_same_files() {
    const NAMES: usize = 10_000;
    let fixture = Fixture::pool(1, 1, 0, 64);
    let mut names = HashSet::new();
    for seed in 0.. {
        // A third of all names are of ASCII, where controls and quotes are frequent.
        let mut name = bytes(seed, 1 + usize::try_from(seed * 31 % 255).expect("small"));
        if seed % 3 == 0 {
            name.iter_mut().for_each(|byte| *byte &= 0x7f);
        }
        name.retain(|byte| !matches!(byte, 0 | b'/'));
        if !matches!(name.as_slice(), b"" | b"." | b"..") {
            names.insert(name);
        }
        if names.len() == NAMES {
            break;
        }
    }
    let names: Vec<OsString> = names.into_iter().map(OsString::from_vec).collect();
    let pool = Pool::options().open([fixture.path("pool/0.img")]).expect("opened");
    pool.create_dir("/names").expect("made");
    let directory = pool.dir("/names").expect("there");
    for (number, name) in names.iter().enumerate() {
        directory.write(name, number.to_string()).expect("written");
    }
    drop(directory);
    pool.close().expect("closed");
    let listed = documents(&fixture.run(["find", "--json", "--type", "file", "pool:/names"]).succeeded());
    assert_eq!(listed.len(), NAMES);
    let is_text = |document: &Value| document.get("name_bytes").is_none();
    assert!(listed.iter().any(is_text) && !listed.iter().all(is_text));
    let mut found = HashSet::new();
    for batch in listed.chunks(1000) {
        let locations = batch.iter().map(|document| {
            let mut location = OsString::from("pool:");
            location.push(path_of(document, "name"));
            location
        });
        let words = ["cat", "--json", "--"].into_iter().map(OsString::from).chain(locations);
        for (document, piece) in batch.iter().zip(documents(&fixture.run(words).succeeded())) {
            let path = path_of(&piece, "path");
            assert_eq!(path, path_of(document, "name"));
            let number =
                String::from_utf8(decoded(piece["bytes"].as_str().expect("base64"))).expect("digits");
            let number: usize = number.parse().expect("a number");
            assert_eq!(path.as_bytes(), [b"/names/", names[number].as_bytes()].concat());
            found.insert(number);
        }
    }
    assert_eq!(found.len(), NAMES, "each file came back once");
}
