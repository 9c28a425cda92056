//! Dependencies between crates point down, as ARCHITECTURE.md draws them.

use std::collections::BTreeMap;

use warpfire_tidy::{Member, members};

/// Every crate with its level. A normal dependency must have a lower level.
const LEVELS: [(&str, u8); 21] = [
    ("warpfire-units", 0),
    ("warpfire-tidy", 0),
    ("warpfire-test-needs", 0),
    ("warpfire-fuse", 0),
    ("warpfire-erasure", 1),
    ("warpfire-format", 1),
    ("warpfire-env", 1),
    ("warpfire-pool", 2),
    ("warpfire-log", 3),
    ("warpfire-recover", 3),
    ("warpfire-slices", 4),
    ("warpfire-meta", 5),
    ("warpfire-fs", 6),
    ("warpfire", 7),
    ("warpfire-mount", 7),
    ("warpfire-check", 7),
    ("warpfire-terminal", 8),
    ("warpfire-cli", 9),
    ("warpfire-bench", 9),
    ("warpfire-sim-env", 9),
    ("warpfire-sim", 10),
];

/// Crates without I/O and without state. They may depend on each other only.
const PURE: [&str; 3] = ["warpfire-units", "warpfire-format", "warpfire-erasure"];

/// Every crate without a level, and every dependency that does not point down.
fn problems(members: &[Member], levels: &BTreeMap<&str, u8>) -> Vec<String> {
    let mut wrong = Vec::new();
    for member in members {
        let Some(&level) = levels.get(member.name.as_str()) else {
            wrong.push(format!("{} has no level in this table", member.name));
            continue;
        };
        for needed in &member.normal_dependencies {
            if levels.get(needed.as_str()).is_some_and(|&below| below >= level) {
                wrong.push(format!("{} needs {needed}, which is not below it", member.name));
            }
        }
    }
    wrong
}

#[test]
fn every_crate_needs_only_crates_below_it() {
    let wrong = problems(&members(), &BTreeMap::from(LEVELS));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn planted_arrows_are_found() {
    let member = |name: &str, needs: &str| Member {
        name: name.into(),
        directory: "/".into(),
        normal_dependencies: vec![needs.into()],
    };
    let levels = BTreeMap::from([("low", 1), ("high", 2)]);
    assert_eq!(problems(&[member("high", "low")], &levels), Vec::<String>::new());
    assert_eq!(problems(&[member("low", "high")], &levels).len(), 1, "an arrow that points up");
    assert_eq!(problems(&[member("new", "low")], &levels).len(), 1, "a crate without a level");
}

#[test]
fn the_pure_crates_need_no_crate_that_acts() {
    for member in members().iter().filter(|member| PURE.contains(&member.name.as_str())) {
        let rooms = member.normal_dependencies.iter().filter(|name| name.starts_with("warpfire"));
        for needed in rooms {
            assert!(PURE.contains(&needed.as_str()), "{} is pure but needs {needed}", member.name);
        }
    }
}
