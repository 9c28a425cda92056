//! Words that this project does not use, in comments and documents.

use regex_lite::Regex;

use crate::text::{Stretch, stretches};

/// Patterns that prose must not match, each with advice for the author.
const BANNED: [(&str, &str); 11] = [
    (r"(?i)\bfolders?\b", "say directory"),
    (r"(?i)\bcan not\b", "say cannot"),
    (r"(?i)\bwho\b", "name the subject: the caller, the committer, a reader"),
    (r"(?i)\bwhat (is|was|are|were|has|had)\b", "use a noun: the live bytes, the open file"),
    (r"(?i)\b(is|are|was|were|be|been) told\b", "say who learns it: the kernel receives, the caller learns"),
    (r"(?i)\btells?\b", "say returns, reports, says, sends"),
    (r"(?i)\bof before\b", "name the state: the cached answer, the old size"),
    (r"(?i)\b(lets?|letting) go\b", "say releases or frees"),
    (r"(?i)\bgiv(es?|en|ing) back\b", "say releases or returns"),
    (r"(?i)\bmeanwhile\b", "name what happens at the same time"),
    (r"(?i)\bsees to\b", "say ensures or does"),
];

/// One use of a banned word in a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BannedWord {
    /// The line, from 1.
    pub line: usize,
    /// The word as the text spells it.
    pub word: String,
    /// The advice for its author.
    pub advice: &'static str,
}

/// The compiled rules.
pub struct WordRules(Vec<(Regex, &'static str)>);

impl Default for WordRules {
    fn default() -> WordRules {
        let compile =
            |(pattern, advice): (&str, _)| (Regex::new(pattern).expect("the table holds patterns"), advice);
        WordRules(BANNED.map(compile).into())
    }
}

impl WordRules {
    /// Finds banned words in a document. Fenced code does not count.
    #[must_use]
    pub fn in_prose(&self, text: &str) -> Vec<BannedWord> {
        let mut found = Vec::new();
        let mut is_quoted = false;
        for (index, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                is_quoted = !is_quoted;
            }
            if !is_quoted {
                self.in_line(index + 1, line, &mut found);
            }
        }
        found
    }

    /// Finds banned words in the comments of a Rust file, and in its string literals of two words or more.
    #[must_use]
    pub fn in_rust(&self, source: &str) -> Vec<BannedWord> {
        let mut found = Vec::new();
        let mut line = 1;
        for stretch in stretches(source) {
            let (text, is_prose) = match stretch {
                Stretch::Comment(text) => (text, true),
                Stretch::Literal(text) => (text, text.contains(' ')),
                Stretch::Code(text) => (text, false),
            };
            for (index, part) in text.split('\n').enumerate() {
                line += usize::from(index > 0);
                if is_prose {
                    self.in_line(line, part, &mut found);
                }
            }
        }
        found
    }

    fn in_line(&self, number: usize, line: &str, found: &mut Vec<BannedWord>) {
        // Text in backticks is code, and an identifier may be a banned word.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for (pattern, advice) in &self.0 {
            let words = pattern.find_iter(&prose).map(|word| word.as_str().to_owned());
            found.extend(words.map(|word| BannedWord { line: number, word, advice }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_words_are_found_where_prose_stands() {
        let rules = WordRules::default();
        let source = "// who commits\nlet who = \"who\"; // `who`\nlet a = \"the folder is gone\";\n";
        let lines: Vec<usize> = rules.in_rust(source).iter().map(|found| found.line).collect();
        assert_eq!(lines, [1, 3]);
        assert_eq!(rules.in_prose("plain\nIt can not be\n```\nfolder\n```\n").len(), 1);
    }

    #[test]
    fn every_rule_can_fire() {
        let rules = WordRules::default();
        for planted in [
            "a folder",
            "can not",
            "who asks",
            "what is live",
            "is told",
            "tells it",
            "answers of before",
            "let go",
            "gives back",
            "meanwhile",
            "sees to it",
        ] {
            assert_eq!(rules.in_prose(planted).len(), 1, "{planted}");
        }
    }
}
