//! Splits Rust source into code, comments and string literals, without parsing it.
//!
//! `syn` drops comments, and the rules of this crate are mostly about comments.

/// One stretch of a source file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stretch<'a> {
    /// Text that is neither a comment nor a literal.
    Code(&'a str),
    /// A comment, with its slashes. A doc comment is a comment.
    Comment(&'a str),
    /// A string, byte string or character literal, with its quotes.
    Literal(&'a str),
}

/// Splits `source` into stretches. In order they make up the whole text.
#[must_use]
pub fn stretches(source: &str) -> Vec<Stretch<'_>> {
    let bytes = source.as_bytes();
    let mut found = Vec::new();
    let mut code_start = 0;
    let mut at = 0;
    while at < bytes.len() {
        let after_word = at > 0 && is_word(bytes[at - 1]);
        let end = match bytes[at] {
            b'/' if source[at..].starts_with("//") => line_end(source, at),
            b'/' if source[at..].starts_with("/*") => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' | b'b' | b'c' if !after_word => match raw_string_end(source, at) {
                Some(end) => end,
                None => {
                    at += 1;
                    continue;
                }
            },
            b'\'' => match char_end(source, at) {
                Some(end) => end,
                None => {
                    at += 1;
                    continue;
                }
            },
            _ => {
                at += 1;
                continue;
            }
        };
        if code_start < at {
            found.push(Stretch::Code(&source[code_start..at]));
        }
        let text = &source[at..end];
        found.push(if text.starts_with('/') { Stretch::Comment(text) } else { Stretch::Literal(text) });
        at = end;
        code_start = end;
    }
    if code_start < source.len() {
        found.push(Stretch::Code(&source[code_start..]));
    }
    found
}

/// For every line of `source`: the text of its comments, and whether it holds code or literals.
#[must_use]
pub fn lines(source: &str) -> Vec<LineOfSource> {
    let mut lines = vec![LineOfSource::default(); source.lines().count().max(1)];
    let mut number = 0;
    for stretch in stretches(source) {
        let (text, is_comment) = match stretch {
            Stretch::Comment(text) => (text, true),
            Stretch::Code(text) | Stretch::Literal(text) => (text, false),
        };
        for (index, part) in text.split('\n').enumerate() {
            number += usize::from(index > 0);
            let Some(line) = lines.get_mut(number) else { continue };
            if is_comment {
                line.comment.push_str(part);
            } else if !part.trim().is_empty() {
                line.has_code = true;
            }
        }
    }
    lines
}

/// One line, as [`lines`] sees it.
#[derive(Clone, Default, Debug)]
pub struct LineOfSource {
    /// The comments on the line, slashes included.
    pub comment: String,
    /// Whether the line holds anything but comments and blanks.
    pub has_code: bool,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn line_end(source: &str, at: usize) -> usize {
    source[at..].find('\n').map_or(source.len(), |length| at + length)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of the raw string that begins at `start`; `None` if none does. A plain `b"…"` counts from its
/// quote.
fn raw_string_end(source: &str, start: usize) -> Option<usize> {
    let rest = &source[start..];
    let marked =
        rest.strip_prefix("br").or_else(|| rest.strip_prefix("cr")).or_else(|| rest.strip_prefix('r'))?;
    let hashes = marked.len() - marked.trim_start_matches('#').len();
    let body = marked[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let body_start = source.len() - body.len();
    Some(body.find(&close).map_or(source.len(), |length| body_start + length + close.len()))
}

/// The end of a character literal that begins at `start`; `None` for a lifetime.
fn char_end(source: &str, start: usize) -> Option<usize> {
    let mut chars = source[start + 1..].char_indices();
    let (_, first) = chars.next()?;
    if first == '\\' {
        let escaped = start + 3;
        return source.get(escaped..)?.find('\'').map(|length| escaped + length + 1);
    }
    let (offset, second) = chars.next()?;
    (second == '\'').then_some(start + 1 + offset + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_told_from_code() {
        let source = "let a = \"// no\"; // yes\nlet b = 'x'; /* a /* b */ c */ fn f<'a>() { r#\"\"//\"# }\n";
        let comments: Vec<&str> = stretches(source)
            .into_iter()
            .filter_map(|stretch| if let Stretch::Comment(text) = stretch { Some(text) } else { None })
            .collect();
        assert_eq!(comments, ["// yes", "/* a /* b */ c */"]);
        let whole: String = stretches(source)
            .into_iter()
            .map(|stretch| match stretch {
                Stretch::Code(text) | Stretch::Comment(text) | Stretch::Literal(text) => text,
            })
            .collect();
        assert_eq!(whole, source);
    }

    #[test]
    fn lines_know_their_comments() {
        let lines = lines("// a\nlet b = 1; // c\n\nlet d = \"\n// no\";\n");
        let seen: Vec<(&str, bool)> = lines.iter().map(|l| (l.comment.as_str(), l.has_code)).collect();
        assert_eq!(seen, [("// a", false), ("// c", true), ("", false), ("", true), ("", true)]);
    }
}
