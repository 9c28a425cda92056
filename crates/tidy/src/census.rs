//! Measures the readability of source files: lengths, comments in bodies, asserts, repeated type names.

use std::collections::BTreeMap;

use syn::spanned::Spanned;
use syn::visit::Visit;

use crate::text;

/// A function with so many lines or more is long, and needs a comment in its body.
pub const LONG_BODY_LINES: usize = 25;

/// One function with a body.
#[derive(Clone, Debug)]
pub struct Function {
    /// Name, without its type or module.
    pub name: String,
    /// Lines from `fn` to the closing brace.
    pub lines: usize,
    /// Lines between the braces that are not blank.
    pub body_lines: usize,
    /// Body lines that hold a comment.
    pub comment_lines: usize,
    /// Calls of `assert…!` and `debug_assert…!`.
    pub asserts: usize,
}

/// One source file.
#[derive(Clone, Default, Debug)]
pub struct FileCensus {
    /// Lines, blank ones included.
    pub lines: usize,
    /// Functions outside of tests.
    pub functions: Vec<Function>,
    /// Names of the types and traits that the file defines outside of tests.
    pub types: Vec<String>,
}

/// Measures one file. Items under `#[cfg(test)]` do not count.
///
/// # Errors
/// The text is not Rust.
pub fn count(source: &str) -> Result<FileCensus, syn::Error> {
    let file = syn::parse_file(source)?;
    let mut visitor = Visitor { lines: text::lines(source), found: FileCensus::default() };
    visitor.found.lines = source.lines().count();
    visitor.visit_file(&file);
    Ok(visitor.found)
}

struct Visitor {
    lines: Vec<text::LineOfSource>,
    found: FileCensus,
}

impl Visitor {
    fn note_function(&mut self, name: &syn::Ident, whole: proc_macro2::Span, body: &syn::Block) {
        let braces = body.brace_token.span.span();
        // Lines of spans are numbered from 1, so this range of indices is the lines between the braces.
        let inside = braces.start().line..braces.end().line.saturating_sub(1);
        let lines = self.lines.get(inside).unwrap_or_default();
        let mut asserts = AssertCounter(0);
        asserts.visit_block(body);
        self.found.functions.push(Function {
            name: name.to_string(),
            lines: whole.end().line - whole.start().line + 1,
            body_lines: lines.iter().filter(|line| line.has_code || !line.comment.is_empty()).count(),
            comment_lines: lines.iter().filter(|line| !line.comment.is_empty()).count(),
            asserts: asserts.0,
        });
    }
}

impl<'ast> Visit<'ast> for Visitor {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let (attributes, defined) = match item {
            syn::Item::Struct(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Enum(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Trait(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Type(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Union(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Mod(item) => (&item.attrs, None),
            syn::Item::Fn(item) => (&item.attrs, None),
            syn::Item::Impl(item) => (&item.attrs, None),
            _ => return syn::visit::visit_item(self, item),
        };
        if is_for_tests(attributes) {
            return;
        }
        self.found.types.extend(defined.map(ToString::to_string));
        syn::visit::visit_item(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.note_function(
            &item.sig.ident,
            item.sig.fn_token.span.join(item.block.span()).unwrap_or(item.span()),
            &item.block,
        );
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            self.note_function(
                &item.sig.ident,
                item.sig.fn_token.span.join(item.block.span()).unwrap_or(item.span()),
                &item.block,
            );
            syn::visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.note_function(
                &item.sig.ident,
                item.sig.fn_token.span.join(body.span()).unwrap_or(item.span()),
                body,
            );
        }
        syn::visit::visit_trait_item_fn(self, item);
    }
}

struct AssertCounter(usize);

impl<'ast> Visit<'ast> for AssertCounter {
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let name = call.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        self.0 += usize::from(name.starts_with("assert") || name.starts_with("debug_assert"));
    }
}

/// Whether an item is compiled for tests only.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return attribute.path().is_ident("test") };
        let condition = list.tokens.to_string();
        attribute.path().is_ident("cfg")
            && condition.split(|c: char| !c.is_alphanumeric()).any(|word| word == "test")
    })
}

/// The census of many files.
#[derive(Clone, Default, Debug)]
pub struct Census {
    /// Lengths of files, in lines, sorted.
    pub file_lines: Vec<usize>,
    /// Every function.
    pub functions: Vec<Function>,
    /// For every type name, the number of files that define it.
    pub types: BTreeMap<String, usize>,
}

impl Census {
    /// Adds up files.
    #[must_use]
    pub fn of(files: impl IntoIterator<Item = FileCensus>) -> Census {
        let mut sum = Census::default();
        for file in files {
            sum.file_lines.push(file.lines);
            sum.functions.extend(file.functions);
            for name in file.types {
                *sum.types.entry(name).or_default() += 1;
            }
        }
        sum.file_lines.sort_unstable();
        sum
    }

    /// Lengths of functions, in lines, sorted.
    #[must_use]
    pub fn function_lines(&self) -> Vec<usize> {
        let mut lines: Vec<usize> = self.functions.iter().map(|function| function.lines).collect();
        lines.sort_unstable();
        lines
    }

    /// Comment lines per 100 body lines, over all functions.
    #[must_use]
    pub fn comments_per_100_body_lines(&self) -> f64 {
        let comments: usize = self.functions.iter().map(|function| function.comment_lines).sum();
        let lines: usize = self.functions.iter().map(|function| function.body_lines).sum();
        100.0 * ratio(comments, lines)
    }

    /// Asserts per function.
    #[must_use]
    pub fn asserts_per_function(&self) -> f64 {
        ratio(self.functions.iter().map(|function| function.asserts).sum(), self.functions.len())
    }

    /// The share, from 0 to 1, of long functions that hold a comment.
    #[must_use]
    pub fn long_functions_with_comment(&self) -> f64 {
        let long = || self.functions.iter().filter(|function| function.lines >= LONG_BODY_LINES);
        ratio(long().filter(|function| function.comment_lines > 0).count(), long().count())
    }

    /// Type names that are defined more than twice, with their counts.
    pub fn types_defined_often(&self) -> impl Iterator<Item = (&str, usize)> {
        let often =
            self.types.iter().filter(|(name, count)| **count > 2 && !SHARED_NAMES.contains(&name.as_str()));
        often.map(|(name, count)| (name.as_str(), *count))
    }
}

/// Type names that every crate or command may define: its arguments, its failure, its settings.
const SHARED_NAMES: [&str; 3] = ["Args", "Error", "Options"];

fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The value that `percent` of the sorted values do not exceed; 0 for none.
#[must_use]
pub fn percentile(sorted: &[usize], percent: usize) -> usize {
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * percent / 100).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
struct A;
fn f() {
    // why
    assert!(true);
    debug_assert_eq!(1, 1);

    g();
}
#[cfg(test)]
mod tests { struct B; fn h() {} }
#[cfg(all(test, unix))]
struct C;
";

    #[test]
    fn a_file_is_counted_without_its_tests() {
        let file = count(SOURCE).expect("this is Rust");
        assert_eq!(file.types, ["A"]);
        let [function] = &file.functions[..] else { panic!("one function: {:?}", file.functions) };
        assert_eq!(
            (function.lines, function.body_lines, function.comment_lines, function.asserts),
            (7, 4, 1, 2)
        );
    }

    #[test]
    fn sums_are_ratios_of_sums() {
        let census = Census::of([count(SOURCE).expect("Rust"), count("struct A; fn g() {}").expect("Rust")]);
        assert_eq!(census.comments_per_100_body_lines(), 25.0);
        assert_eq!(census.asserts_per_function(), 1.0);
        assert_eq!(census.types["A"], 2);
        assert_eq!(percentile(&[1, 2, 9], 50), 2);
    }
}
