//! Names of files as text. A name is any bytes but `/` and NUL, and may drive a terminal or break a line.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::Write;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

/// Characters besides letters and digits that a shell takes literally in a word.
const PLAIN: &[u8] = b"%+,-./:=@_^";

/// A name for stdout: on a terminal as [`quoted`] writes it, elsewhere its bytes.
#[must_use]
pub fn name_for_stdout(name: &OsStr) -> Cow<'_, [u8]> {
    // Asked once: a listing has millions of names.
    static IS_TERMINAL: OnceLock<bool> = OnceLock::new();
    if *IS_TERMINAL.get_or_init(|| std::io::stdout().is_terminal()) {
        Cow::Owned(quoted(name).into_bytes())
    } else {
        name.as_bytes().into()
    }
}

/// A name as a word of a shell: the shell reads back the same bytes, and no byte of it drives a terminal. A
/// name of letters, digits and plain punctuation stays as it is.
#[must_use]
pub fn quoted(name: &OsStr) -> String {
    let bytes = name.as_bytes();
    let text = std::str::from_utf8(bytes).ok();
    let is_plain = |c: char| !c.is_ascii() && !is_odd(c) || c.is_ascii_alphanumeric() || is_plain_mark(c);
    match text {
        Some(text) if !text.is_empty() && text.chars().all(is_plain) => text.to_owned(),
        Some(text) if !text.chars().any(|c| is_odd(c) || c == '\'') => format!("'{text}'"),
        _ => {
            let mut word = String::from("$'");
            for chunk in bytes.utf8_chunks() {
                for c in chunk.valid().chars() {
                    match c {
                        '\n' => word.push_str("\\n"),
                        '\t' => word.push_str("\\t"),
                        '\'' | '\\' => word.extend(['\\', c]),
                        c if is_odd(c) => octal(&mut word, c.encode_utf8(&mut [0; 4]).as_bytes()),
                        c => word.push(c),
                    }
                }
                octal(&mut word, chunk.invalid());
            }
            word.push('\'');
            word
        }
    }
}

fn octal(word: &mut String, bytes: &[u8]) {
    for byte in bytes {
        write!(word, "\\{byte:03o}").expect("a string takes everything");
    }
}

fn is_plain_mark(c: char) -> bool {
    u8::try_from(c).is_ok_and(|byte| PLAIN.contains(&byte))
}

/// Whether a character drives a terminal or changes the direction of the text around it.
pub(crate) fn is_odd(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A path for a message: bytes that are no UTF-8 become U+FFFD, and [`for_message`] takes care of the rest.
#[must_use]
pub fn shown(path: &Path) -> String {
    for_message(&path.to_string_lossy(), |_| false)
}

/// A text for a message: characters that drive a terminal are escaped, such as `\u{1b}`, except those that
/// `keeps` admits.
pub(crate) fn for_message(text: &str, keeps: impl Fn(char) -> bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_odd(c) && !keeps(c) { safe.extend(c.escape_default()) } else { safe.push(c) }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_name_is_a_word_that_a_shell_reads_as_the_same_bytes() {
        let names: [&[u8]; 9] = [
            b"plain-1.jpg",
            b"two words",
            b"it's",
            b"esc\x1b[31mred",
            b"line\nbreak",
            b"bad\xff\xfe",
            b"$HOME `x` \"y\" \\z",
            "Kn\u{f6}del \u{202e}gpj.exe".as_bytes(),
            b"*",
        ];
        for name in names {
            let word = quoted(OsStr::from_bytes(name));
            assert!(word.chars().all(|c| !is_odd(c)), "{word}");
            let script = format!("printf %s {word}");
            let ran = std::process::Command::new("bash").args(["-c", &script]).output();
            assert_eq!(ran.expect("bash runs").stdout, name, "{word}");
        }
        assert_eq!(quoted(OsStr::new("plain-1.jpg")), "plain-1.jpg");
        assert_eq!(quoted(OsStr::new("two words")), "'two words'");
        assert_eq!(quoted(OsStr::new("")), "''");
    }

    #[test]
    fn a_path_in_a_message_cannot_drive_the_terminal() {
        assert_eq!(shown(Path::new("a\x1b[2J\nb")), "a\\u{1b}[2J\\nb");
        assert_eq!(shown(Path::new("Kn\u{f6}del")), "Kn\u{f6}del");
    }
}
