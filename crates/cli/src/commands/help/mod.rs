//! `warpfire help`: the help of a command, or a page on a topic.

use clap::CommandFactory;
use warpfire_terminal::{Failure, print};

use crate::args::Cli;

mod topics;

use topics::TOPICS;

const EXAMPLES: &str = "\
Examples:
  warpfire help cp            the help of a command
  warpfire help tx run        that of a command below another
  warpfire help naming        how pools and files are named
  warpfire help topics        the list of topics";

// Arguments of `warpfire help`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A command or a topic.
    #[arg(value_name = "COMMAND|TOPIC")]
    words: Vec<String>,
}

/// Prints the help.
pub fn run(args: &Args) -> Result<(), Failure> {
    if let [topic] = args.words.as_slice() {
        if topic == "topics" {
            return print(list_of_topics());
        }
        if let Some(topic) = TOPICS.iter().find(|known| known.name == topic.as_str()) {
            return print(format!("{}\n\n{}", topic.title, topic.text));
        }
    }
    let mut command = Cli::command();
    command.build();
    for word in &args.words {
        command = command.find_subcommand(word).cloned().ok_or_else(|| {
            Failure::usage(format_args!("there is no command or topic '{}'", args.words.join(" ")))
                .hint("'warpfire help' lists the commands, and 'warpfire help topics' the topics")
        })?;
    }
    print(command.render_long_help().to_string())
}

fn list_of_topics() -> String {
    TOPICS.iter().map(|topic| format!("  {:<13} {}\n", topic.name, topic.title)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_fit_a_terminal_of_80_columns_and_no_topic_hides_a_command() {
        for topic in TOPICS {
            for line in topic.text.lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", topic.name);
            }
            assert!(Cli::command().find_subcommand(topic.name).is_none(), "{}", topic.name);
            assert!(topic.text.ends_with('\n'), "{}", topic.name);
        }
    }
}
