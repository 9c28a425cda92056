//! `warpfire version`: the version of the program, its commit, and the format that it reads and writes.

use serde::Serialize;
use warpfire_terminal::{Failure, is_json, print, print_json};

const EXAMPLES: &str = "\
Examples:
  warpfire version
  warpfire version --json | jq .format";

// Arguments of `warpfire version`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {}

/// What this program is.
#[derive(Serialize)]
struct ProgramVersion {
    /// The version of the program.
    program: &'static str,
    /// The commit of the source; `null` if it is no release that was built from git.
    commit: Option<&'static str>,
    /// The newest version of the filesystem record that it reads and writes (FORMAT, "Version changes").
    format: u16,
    /// The version of the documents that it prints with `--json`.
    json: u32,
}

/// Prints the version.
pub fn run(_: &Args) -> Result<(), Failure> {
    let version = ProgramVersion {
        program: env!("CARGO_PKG_VERSION"),
        commit: option_env!("WARPFIRE_COMMIT"),
        format: warpfire::FORMAT_VERSION,
        json: warpfire_terminal::JSON_VERSION,
    };
    if is_json() {
        return print_json(&version);
    }
    let commit = version.commit.map(|commit| format!("commit  {commit}\n")).unwrap_or_default();
    print(format!(
        "warpfire {}\n{commit}format  {}\njson    {}\n",
        version.program, version.format, version.json
    ))
}
