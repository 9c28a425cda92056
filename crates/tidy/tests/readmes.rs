//! Each crate's README: five headings, and a "Depends on" that agrees with its `Cargo.toml`.

use std::collections::BTreeSet;

use warpfire_tidy::{Member, members};

const HEADINGS: [&str; 5] = ["Owns", "Must not know", "Depends on", "Invariants", "How it is tested"];

/// Every problem with the README of a crate. `packages` are all package names that a README could name.
fn problems(member: &Member, readme: &str, packages: &BTreeSet<String>) -> Vec<String> {
    let headings: Vec<&str> = readme.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    if headings != HEADINGS {
        return vec![format!(
            "{}: README.md has the headings {headings:?}, expected {HEADINGS:?}",
            member.name
        )];
    }
    let section = readme.split("## Depends on").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let named: BTreeSet<&str> = section.split('`').skip(1).step_by(2).collect();
    let needed: BTreeSet<&str> = member.normal_dependencies.iter().map(String::as_str).collect();
    let unnamed =
        needed.difference(&named).map(|name| format!("{}: README.md does not name `{name}`", member.name));
    let unneeded = named.difference(&needed).filter(|name| packages.contains(**name));
    let unneeded =
        unneeded.map(|name| format!("{}: README.md names `{name}`, which it does not need", member.name));
    unnamed.chain(unneeded).collect()
}

#[test]
fn every_crate_says_what_it_owns_and_what_it_depends_on() {
    let members = members();
    let mut packages: BTreeSet<String> = members.iter().map(|member| member.name.clone()).collect();
    packages.extend(members.iter().flat_map(|member| member.normal_dependencies.iter().cloned()));
    let mut wrong = Vec::new();
    for member in &members {
        let readme = std::fs::read_to_string(member.directory.join("README.md")).unwrap_or_default();
        wrong.extend(problems(member, &readme, &packages));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn planted_mistakes_are_noticed() {
    let member =
        Member { name: "a".into(), directory: "/".into(), normal_dependencies: vec!["b".into(), "c".into()] };
    let packages = ["b", "c", "d"].map(str::to_owned).into();
    let readme = |depends: &str| {
        format!(
            "# a\n## Owns\n## Must not know\n## Depends on\n{depends}\n## Invariants\n`d`\n## How it is tested\n"
        )
    };
    assert_eq!(problems(&member, &readme("`b`, `c` for `Vec`"), &packages), Vec::<String>::new());
    assert_eq!(problems(&member, &readme("`b`"), &packages).len(), 1);
    assert_eq!(problems(&member, &readme("`b` `c` `d`"), &packages).len(), 1);
    assert_eq!(problems(&member, "# a\n## Owns\n", &packages).len(), 1);
}
