//! Command lines that cannot be parsed: the mistake as one sentence with a hint.

use std::ffi::OsString;
use std::path::Path;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use warpfire_terminal::{Failure, shown};

use crate::args::Cli;

/// Whether words that could not be parsed ask for JSON.
pub fn asks_for_json(words: &[OsString]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

/// The parser's error as a failure with a hint.
pub fn wrong_words(words: &[OsString], error: &clap::Error) -> Failure {
    let of = |kind| error.get(kind).map(in_words);
    let argument = || of(ContextKind::InvalidArg).unwrap_or_default();
    let command = named_command(words);
    let message = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            format!("'{command}' has no command '{}'", of(ContextKind::InvalidSubcommand).unwrap_or_default())
        }
        ErrorKind::UnknownArgument if argument().starts_with('-') => {
            format!("'{command}' has no option '{}'", argument())
        }
        ErrorKind::UnknownArgument => format!("'{command}' does not take '{}'", argument()),
        ErrorKind::MissingRequiredArgument => format!("'{command}' needs {}", argument()),
        ErrorKind::InvalidValue if of(ContextKind::InvalidValue).is_none_or(|value| value.is_empty()) => {
            format!("'{}' needs a value", argument())
        }
        ErrorKind::InvalidValue => {
            let valid = of(ContextKind::ValidValue).unwrap_or_default();
            let value = of(ContextKind::InvalidValue).unwrap_or_default();
            format!("'{}' takes one of {valid}, not '{value}'", argument())
        }
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            let value = of(ContextKind::InvalidValue).unwrap_or_default();
            // Most reasons name the value themselves.
            let value = if why.contains(&value) { String::new() } else { format!("'{value}': ") };
            format!("'{}': {value}{why}", argument())
        }
        ErrorKind::ArgumentConflict => {
            let other = of(ContextKind::PriorArg).unwrap_or_default();
            if other == argument() {
                format!("'{other}' is given twice")
            } else {
                format!("'{}' and '{other}' exclude each other", argument())
            }
        }
        ErrorKind::TooManyValues => format!("'{}' takes no value", argument()),
        _ => first_sentence(error),
    };
    let failure = Failure::usage(message);
    let suggested =
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    let suggested = suggested.into_iter().find_map(|kind| error.get(kind));
    match (suggested, command.strip_prefix(PROGRAM)) {
        (Some(suggested), _) => failure.hint(format_args!("did you mean '{}'?", most_similar(suggested))),
        (None, _) if error.kind() == ErrorKind::MissingRequiredArgument => {
            failure.hint(format_args!("the usage is: {}", usage(error)))
        }
        (None, Some("") | None) => failure.hint(format_args!("'{PROGRAM} help' shows the commands")),
        (None, Some(command)) => failure.hint(format_args!("'{PROGRAM} help{command}' shows its arguments")),
    }
}

const PROGRAM: &str = "warpfire";

/// The command that the words name, with the program: `warpfire device add`.
fn named_command(words: &[OsString]) -> String {
    let mut program = Cli::command();
    program.build();
    let mut command = &program;
    let mut names = vec![PROGRAM];
    for word in words.iter().skip(1) {
        if let Some(named) = command.find_subcommand(word) {
            names.push(named.get_name());
            command = named;
        }
    }
    names.join(" ")
}

/// The usage that the parser shows, without its title.
fn usage(error: &clap::Error) -> String {
    let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
    usage.trim().trim_start_matches("Usage:").lines().next().unwrap_or_default().trim().to_owned()
}

/// A value of the parser's context, without control characters.
fn in_words(value: &ContextValue) -> String {
    match value {
        ContextValue::String(word) => shown(Path::new(word)),
        ContextValue::Strings(words) => {
            words.iter().map(|word| shown(Path::new(word))).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

/// The most similar word is the last.
fn most_similar(value: &ContextValue) -> String {
    match value {
        ContextValue::Strings(words) => words.last().map(|word| shown(Path::new(word))).unwrap_or_default(),
        other => in_words(other),
    }
}

/// The first paragraph of the parser's own message.
fn first_sentence(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect::<Vec<_>>().join(" ");
    first.strip_prefix("error: ").unwrap_or(&first).to_owned()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    fn said(words: &str) -> String {
        let words = std::iter::once(PROGRAM).chain(words.split(' ').filter(|word| !word.is_empty()));
        let words: Vec<OsString> = words.map(OsString::from).collect();
        wrong_words(&words, &Cli::try_parse_from(&words).expect_err("the words are wrong")).whole()
    }

    #[test]
    fn each_mistake_is_one_sentence_with_a_hint() {
        let rows = [
            ("lss", "'warpfire' has no command 'lss'; did you mean 'ls'?"),
            ("zzz", "'warpfire' has no command 'zzz'; 'warpfire help' shows the commands"),
            ("device ad", "'warpfire device' has no command 'ad'; did you mean 'add'?"),
            ("ls --foo p", "'warpfire ls' has no option '--foo'; 'warpfire help ls' shows its arguments"),
            ("mkfs --siz 4M", "'warpfire mkfs' has no option '--siz'; did you mean '--size'?"),
            (
                "version x",
                "'warpfire version' does not take 'x'; 'warpfire help version' shows its arguments",
            ),
            ("mkfs", "'warpfire mkfs' needs <DEVICE>...; the usage is: warpfire mkfs <DEVICE>..."),
            ("cp a", "'warpfire cp' needs <SOURCE>...; the usage is: warpfire cp <SOURCE>... <DESTINATION>"),
            ("mkfs --size", "'--size <SIZE>' needs a value; 'warpfire help mkfs' shows its arguments"),
            (
                "mkfs --size 3Q x.img",
                "'--size <SIZE>': '3Q' is not a size; write for example 4096, 64K or 1.5G; \
                 'warpfire help mkfs' shows its arguments",
            ),
            ("ls --size --size p", "'--size' is given twice; 'warpfire help ls' shows its arguments"),
            (
                "find --type x p",
                "'--type <TYPE>' takes one of file, directory, symlink, fifo, socket, block, character, not 'x'; \
                 'warpfire help find' shows its arguments",
            ),
            ("ls --utc=1 p", "'--utc' takes no value; 'warpfire help ls' shows its arguments"),
        ];
        for (words, expected) in rows {
            assert_eq!(said(words), expected, "{words}");
        }
    }
}
