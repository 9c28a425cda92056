//! Finds the top-level modules of a crate that use each other.

use std::collections::BTreeSet;
use std::path::Path;

use crate::text::{Stretch, stretches};

/// An arrow points from one top-level module to another that it names as `crate::OTHER`.
pub type Arrow = (String, String);

/// The arrows between the top-level modules of a crate. `files` are paths with their text; those outside of
/// `src` do not count, nor do `lib.rs` and `main.rs`.
#[must_use]
pub fn arrows(src: &Path, files: &[(std::path::PathBuf, String)]) -> BTreeSet<Arrow> {
    let mut found = BTreeSet::new();
    for (path, source) in files {
        let Ok(inside) = path.strip_prefix(src) else { continue };
        let Some(first) = inside.iter().next() else { continue };
        let from = first.to_string_lossy().trim_end_matches(".rs").to_owned();
        if from == "lib" || from == "main" {
            continue;
        }
        for to in named_modules(source) {
            if to != from {
                found.insert((from.clone(), to));
            }
        }
    }
    found
}

/// Pairs of modules that use each other, each pair once, in alphabetical order.
#[must_use]
pub fn mutual_pairs(arrows: &BTreeSet<Arrow>) -> Vec<Arrow> {
    let is_mutual = |(a, b): &&Arrow| a < b && arrows.contains(&(b.clone(), a.clone()));
    arrows.iter().filter(is_mutual).cloned().collect()
}

/// The modules that code names after `crate::`, also in groups such as `use crate::{a, b::c}`.
fn named_modules(source: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for stretch in stretches(source) {
        let Stretch::Code(code) = stretch else { continue };
        for rest in code.split("crate::").skip(1) {
            match rest.strip_prefix('{') {
                Some(group) => found.extend(group_heads(group)),
                None => found.extend(word(rest)),
            }
        }
    }
    found.retain(|name| name.starts_with(|c: char| c.is_ascii_lowercase()));
    found
}

/// The first segments of a group such as `a, b::{c, d}, e::f}`. The caller has removed the opening brace.
fn group_heads(group: &str) -> Vec<String> {
    let mut depth = 0_usize;
    let mut heads = vec![String::new()];
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(String::new()),
            _ if depth == 0 => heads.last_mut().expect("one head at least").push(c),
            _ => {}
        }
    }
    heads.iter().filter_map(|head| word(head.trim())).collect()
}

fn word(text: &str) -> Option<String> {
    let word: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!word.is_empty()).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_pair_is_found() {
        let src = Path::new("/src");
        let files = [
            (src.join("a/x.rs"), "use crate::{b::{C, D}, e};".to_owned()),
            (src.join("b.rs"), "fn f() { crate::a::g() } // crate::e".to_owned()),
        ];
        let arrows = arrows(src, &files);
        assert_eq!(arrows.len(), 3, "{arrows:?}");
        assert_eq!(mutual_pairs(&arrows), [("a".to_owned(), "b".to_owned())]);
    }
}
