//! `warpfire man`: manual pages, from the table of arguments.

use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use serde::Serialize;
use warpfire_terminal::{Failure, is_json, print_json};

use crate::args::Cli;

const EXAMPLES: &str = "\
Examples:
  warpfire man /usr/local/share/man/man1
  warpfire man pages && man ./pages/warpfire-mount.1";

// Arguments of `warpfire man`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory for `warpfire.1`, `warpfire-mkfs.1` and so on; it is made if it does not exist.
    directory: PathBuf,
}

/// Writes a page for the program and a page for each command.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    let mut pages = Vec::new();
    std::fs::create_dir_all(&args.directory)
        .and_then(|()| write_pages(program, &args.directory, &mut pages))
        .map_err(|error| Failure::local(&args.directory, &error))?;
    if is_json() { print_json(&WrittenPages { pages }) } else { Ok(()) }
}

/// The manual pages that were written, as JSON.
#[derive(Serialize)]
struct WrittenPages {
    /// Their names in the directory.
    pages: Vec<String>,
}

/// Writes the page of a command, and those of its subcommands, and adds their names to `pages`.
fn write_pages(command: clap::Command, directory: &Path, pages: &mut Vec<String>) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_pages(subcommand.clone(), directory, pages)?;
    }
    let notes = command.get_after_help().map(ToString::to_string);
    // The generator would fill the lines of a table as one paragraph.
    let man = Man::new(command.after_help(None::<&str>));
    let mut page = Vec::new();
    man.render(&mut page)?;
    if let Some(notes) = notes {
        notes_section(&notes).to_writer(&mut page)?;
    }
    pages.push(man.get_filename());
    std::fs::write(directory.join(man.get_filename()), page)
}

/// The section of a page for the text after a command's help. Lines with an indent are rows of a table and
/// stay lines; others are paragraphs.
fn notes_section(notes: &str) -> Roff {
    let nothing = || std::iter::empty::<&str>();
    let mut section = Roff::new();
    section.control("SH", ["EXAMPLES AND NOTES"]);
    let mut in_table = false;
    for line in notes.lines() {
        let is_row = line.starts_with(' ');
        match (in_table, is_row) {
            (false, true) => _ = section.control("nf", nothing()),
            (true, false) => _ = section.control("fi", nothing()),
            _ => {}
        }
        in_table = is_row;
        if line.is_empty() {
            section.control("PP", nothing());
        } else {
            section.text([roman(line)]);
        }
    }
    if in_table {
        section.control("fi", nothing());
    }
    section
}
