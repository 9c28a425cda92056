//! Documents that name tests: each name is that of a test or a file that exists. `scripts/proofs` runs them.

use std::collections::BTreeSet;
use std::path::Path;

use syn::{Attribute, Item};
use warpfire_tidy::{Member, members, root, sources};

/// The last columns of the rows of all tables in a text.
fn last_columns(text: &str) -> impl Iterator<Item = &str> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.filter_map(|row| row.rsplit(" | ").next())
}

/// The texts in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// A test as docs/BAD-DAYS.md names it: `crate target path`.
fn name_of(member: &Member, file: &Path, inline: &[String], function: &str) -> String {
    let inside = file.strip_prefix(&member.directory).expect("a source lies in its crate");
    let parts: Vec<String> =
        inside.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let (target, modules) = match (parts[0].as_str(), &parts[1..]) {
        ("tests", [target, modules @ ..]) => (target.as_str(), modules),
        (_, modules) if member.directory.join("src/lib.rs").exists() => ("lib", modules),
        (_, modules) => ("bins", modules),
    };
    let roots = ["main", "lib", "mod"];
    let modules = modules.iter().filter(|module| !roots.contains(&module.as_str()));
    let path: Vec<&str> = modules.chain(inline).map(String::as_str).chain([function]).collect();
    format!("{} {target} {}", member.name, path.join("::"))
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("test"))
}

/// Adds the tests of these items, which lie in the modules `inline` of a file.
fn collect(items: &[Item], inline: &mut Vec<String>, found: &mut impl FnMut(&[String], &str)) {
    for item in items {
        match item {
            Item::Fn(function) if is_test(&function.attrs) => found(inline, &function.sig.ident.to_string()),
            Item::Mod(module) => {
                let Some((_, items)) = &module.content else { continue };
                inline.push(module.ident.to_string());
                collect(items, inline, found);
                inline.pop();
            }
            _ => {}
        }
    }
}

/// All tests of the workspace.
fn tests() -> BTreeSet<String> {
    let members = members();
    let mut tests = BTreeSet::new();
    for path in sources() {
        let Some(member) = members.iter().find(|member| path.starts_with(&member.directory)) else {
            continue;
        };
        let source = std::fs::read_to_string(&path).expect("a source file is text");
        let file = syn::parse_file(&source).expect("a source file is Rust");
        let mut add =
            |inline: &[String], function: &str| _ = tests.insert(name_of(member, &path, inline, function));
        collect(&file.items, &mut Vec::new(), &mut add);
    }
    tests
}

/// The names in the tables of docs/BAD-DAYS.md that are neither a test nor a script.
fn unknown<'a>(text: &'a str, tests: &BTreeSet<String>) -> Vec<&'a str> {
    let is_known =
        |name: &str| tests.contains(name) || name.starts_with("scripts/") && root().join(name).exists();
    last_columns(text).flat_map(quoted).filter(|name| !is_known(name)).collect()
}

#[test]
fn every_test_that_the_page_of_bad_days_names_exists() {
    let text = std::fs::read_to_string(root().join("docs/BAD-DAYS.md")).expect("the page exists");
    assert_eq!(unknown(&text, &tests()), Vec::<&str>::new());
    let untested: Vec<&str> = last_columns(&text).filter(|column| !column.contains('`')).collect();
    assert!(untested.iter().all(|column| *column == "Test"), "rows without a test: {untested:?}");
}

#[test]
fn every_test_that_the_claims_of_durability_name_exists() {
    let text = std::fs::read_to_string(root().join("docs/DURABILITY.md")).expect("the page exists");
    let claims = text.split("## Tests of each claim").nth(1).and_then(|rest| rest.split("\n## ").next());
    let paths = last_columns(claims.expect("the section exists")).flat_map(quoted);
    let paths: Vec<&str> =
        paths.filter(|name| name.starts_with("crates/") || name.starts_with("scripts/")).collect();
    assert!(paths.len() > 8, "{paths:?}");
    for path in paths {
        assert!(root().join(path).exists(), "DURABILITY.md names {path}, which does not exist");
    }
}

#[test]
fn a_name_that_is_no_test_is_noticed() {
    let own = "warpfire-tidy proofs a_name_that_is_no_test_is_noticed";
    let tests = tests();
    assert!(
        tests.contains(own) && tests.iter().any(|name| name.contains(" lib ") && name.contains("tests::"))
    );
    let text =
        format!("| Case | Test |\n| `a` | `{own}`, `{own}s` |\n| b | `scripts/nothing` |\nfree `text`\n");
    assert_eq!(unknown(&text, &tests), [&format!("{own}s"), "scripts/nothing"]);
}
