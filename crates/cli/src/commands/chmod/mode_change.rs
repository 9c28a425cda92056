//! Permission bits as `chmod` takes them: octal, or clauses of changes as POSIX defines them.

use std::str::FromStr;

/// New permission bits, or changes of the bits that a file has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ModeChange {
    /// These bits exactly.
    Exact(u32),
    /// Clauses, one after the other.
    Clauses(Vec<Clause>),
}

/// One change: `go-w`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Clause {
    /// The bits of the classes that it names: of `u` `0o4700`.
    classes: u32,
    /// It names no class: the bits of the umask stay out.
    is_masked: bool,
    action: Action,
    bits: Bits,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Add,
    Remove,
    Assign,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bits {
    /// Bits for all classes, and whether `X` stands among them.
    Letters { bits: u32, runs_if_runnable: bool },
    /// The bits that a class has: its shift.
    OfClass(u32),
}

const USER: u32 = 0o4700;
const GROUP: u32 = 0o2070;
const OTHER: u32 = 0o1007;
const RUN: u32 = 0o111;

impl ModeChange {
    /// The bits of a file that has `mode`.
    #[must_use]
    pub fn apply(&self, mode: u32, is_dir: bool, umask: u32) -> u32 {
        let clauses = match self {
            ModeChange::Exact(bits) => return *bits,
            ModeChange::Clauses(clauses) => clauses,
        };
        clauses.iter().fold(mode, |mode, clause| clause.apply(mode, is_dir, umask))
    }
}

impl Clause {
    fn apply(&self, mode: u32, is_dir: bool, umask: u32) -> u32 {
        let bits = match self.bits {
            Bits::Letters { bits, runs_if_runnable } => {
                let runs = runs_if_runnable && (is_dir || mode & RUN != 0);
                bits | if runs { RUN } else { 0 }
            }
            Bits::OfClass(shift) => (mode >> shift & 7) * RUN,
        };
        let mask = if self.is_masked { umask & 0o777 } else { 0 };
        let bits = bits & self.classes & !mask;
        match self.action {
            Action::Add => mode | bits,
            Action::Remove => mode & !bits,
            Action::Assign => {
                // As GNU chmod, `=` leaves the set-id bits of a directory alone unless `s` is named.
                let kept = if is_dir { 0o6000 & !bits } else { 0 };
                mode & !(self.classes & !kept) | bits
            }
        }
    }
}

impl FromStr for ModeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a mode; write for example 644, u+x or go=rX");
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let bits = u32::from_str_radix(text, 8).ok().filter(|&bits| bits <= 0o7777);
            return bits.map(ModeChange::Exact).ok_or_else(wrong);
        }
        let mut clauses = Vec::new();
        for part in text.split(',') {
            parse_part(part, &mut clauses).ok_or_else(wrong)?;
        }
        Ok(ModeChange::Clauses(clauses))
    }
}

/// Parses one part between commas: classes, and one or more changes of them, as in `u+r-x`.
fn parse_part(part: &str, clauses: &mut Vec<Clause>) -> Option<()> {
    let actions = part.find(['+', '-', '='])?;
    let (named, mut rest) = part.split_at(actions);
    let mut classes = 0;
    for class in named.chars() {
        classes |= match class {
            'u' => USER,
            'g' => GROUP,
            'o' => OTHER,
            'a' => USER | GROUP | OTHER,
            _ => return None,
        };
    }
    let is_masked = named.is_empty();
    if is_masked {
        classes = USER | GROUP | OTHER;
    }
    while let Some(action) = rest.chars().next() {
        let action = match action {
            '+' => Action::Add,
            '-' => Action::Remove,
            _ => Action::Assign,
        };
        let end = rest[1..].find(['+', '-', '=']).map_or(rest.len(), |at| at + 1);
        let bits = parse_bits(&rest[1..end])?;
        clauses.push(Clause { classes, is_masked, action, bits });
        rest = &rest[end..];
    }
    Some(())
}

fn parse_bits(letters: &str) -> Option<Bits> {
    match letters {
        "u" => return Some(Bits::OfClass(6)),
        "g" => return Some(Bits::OfClass(3)),
        "o" => return Some(Bits::OfClass(0)),
        _ => {}
    }
    let (mut bits, mut runs_if_runnable) = (0, false);
    for letter in letters.chars() {
        match letter {
            'r' => bits |= 0o444,
            'w' => bits |= 0o222,
            'x' => bits |= RUN,
            'X' => runs_if_runnable = true,
            's' => bits |= 0o6000,
            't' => bits |= 0o1000,
            _ => return None,
        }
    }
    Some(Bits::Letters { bits, runs_if_runnable })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(text: &str, mode: u32, is_dir: bool) -> u32 {
        text.parse::<ModeChange>().expect(text).apply(mode, is_dir, 0o022)
    }

    #[test]
    fn changes_are_those_of_chmod() {
        // Each row was compared with GNU chmod 9.1 under the umask 022.
        let rows = [
            ("644", 0o777, false, 0o644),
            ("4755", 0, false, 0o4755),
            ("u+x", 0o644, false, 0o744),
            ("+x", 0o644, false, 0o755),
            ("+w", 0o444, false, 0o644),
            ("a+w", 0o444, false, 0o666),
            ("go-rwx", 0o755, false, 0o700),
            ("u=rwX,go=rX", 0o600, false, 0o644),
            ("u=rwX,go=rX", 0o700, true, 0o755),
            ("u=rwX,go=rX", 0o700, false, 0o755),
            ("g=u", 0o740, false, 0o770),
            ("o=g-w", 0o775, false, 0o775),
            ("u+s,g+s", 0o755, false, 0o6755),
            ("+t", 0o777, true, 0o1777),
            ("a-s", 0o6755, false, 0o755),
            ("u+r-x", 0o300, false, 0o600),
            ("=", 0o777, false, 0),
            ("a=", 0o777, false, 0),
            ("u=rwx", 0o4755, true, 0o4755),
            ("u=rwx", 0o4755, false, 0o755),
        ];
        for (text, mode, is_dir, expected) in rows {
            let found = changed(text, mode, is_dir);
            assert_eq!(found, expected, "{text} of {mode:o}: {found:o}");
        }
    }

    #[test]
    fn other_words_are_refused_with_an_example() {
        for text in ["", "rwx", "8", "77777", "u+q", "z+r", "u", "644x", ",", "u+r,", "+rü"] {
            let wrong = text.parse::<ModeChange>().expect_err(text);
            assert!(wrong.contains("write for example"), "{wrong}");
        }
    }
}
