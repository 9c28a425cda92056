//! `warpfire chown`: set the owner and the group of files.

use std::ffi::OsString;
use std::str::FromStr;

use warpfire_terminal::Failure;

use super::tally::Tally;
use super::walk::{Moment, walk};
use crate::location::Location;
use crate::tree::{self, NewAttributes};

const EXAMPLES: &str = "\
Examples:
  warpfire chown ann pool:/notes.txt
  warpfire chown -R ann:staff pool:/photos
  warpfire chown :1000 pool:/shared

OWNER is USER, USER:GROUP, :GROUP, or USER: for the user's own group. Each is a name on this system or a \
number; a name is looked for first.

Each file is a change of its own. A file that fails is reported, the others are changed, and the exit code \
is 1.";

// Arguments of `warpfire chown`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub struct Args {
    /// The new owner, group, or both.
    #[arg(value_name = "OWNER")]
    owner: NewOwner,

    /// The files.
    #[arg(required = true, value_name = "POOL:/path")]
    locations: Vec<OsString>,

    /// Change directories with everything in them, and symbolic links themselves.
    #[arg(long, short = 'R')]
    recursive: bool,

    /// Change a symbolic link that is named, and not the file that it points to.
    #[arg(long, short = 'h')]
    no_dereference: bool,

    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// An owner and a group by their numbers; `None` stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct NewOwner {
    user: Option<u32>,
    group: Option<u32>,
}

/// Changes each file.
pub fn run(args: &Args) -> Result<(), Failure> {
    let is_link_kept = args.recursive || args.no_dereference;
    let parse = if is_link_kept { Location::parse } else { Location::parse_followed };
    let locations = Location::parse_all(&args.locations, parse)?;
    let set = args.owner.set();
    let tally = Tally::default();
    for group in locations.chunk_by(|a, b| a.pool == b.pool) {
        let fs = tree::open(&group[0].pool)?;
        for Location { path, .. } in group {
            if args.recursive {
                walk(&fs, &tally, path, usize::MAX, |moment, found| match moment {
                    Moment::Left => Ok(()),
                    Moment::Reached => {
                        found.set(&fs, &set)?;
                        tally.count_change();
                        Ok(())
                    }
                })?;
                continue;
            }
            let changed = match args.no_dereference {
                true => fs.set_symlink(path, &set),
                false => fs.set(path, &set),
            };
            tally.change(changed.map_err(|error| error.at(path)))?;
        }
        fs.close()?;
    }
    tally.finish_changes()
}

impl NewOwner {
    fn set(self) -> NewAttributes {
        NewAttributes { owner: self.user, group: self.group, ..NewAttributes::default() }
    }
}

impl FromStr for NewOwner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        if user.is_empty() && group.is_none_or(str::is_empty) {
            return Err(format!("'{text}' names no owner; write USER, USER:GROUP or :GROUP"));
        }
        let found = if user.is_empty() { None } else { Some(find_user(user)?) };
        let group = match (group, found) {
            (None, _) => None,
            (Some(""), Some((_, own))) => {
                Some(own.ok_or_else(|| format!("user {user} has no group here; write {user}:GROUP"))?)
            }
            (Some(name), _) => Some(find_group(name)?),
        };
        Ok(NewOwner { user: found.map(|(user, _)| user), group })
    }
}

/// The number of a user, and that of the user's own group if this system knows the user.
fn find_user(name: &str) -> Result<(u32, Option<u32>), String> {
    let unknown = |error| format!("cannot look for user '{name}': {error}; write its number");
    if let Some(user) = nix::unistd::User::from_name(name).map_err(unknown)? {
        return Ok((user.uid.as_raw(), Some(user.gid.as_raw())));
    }
    let number = number(name).ok_or_else(|| format!("no user '{name}' on this system; write a number"))?;
    let user = nix::unistd::User::from_uid(number.into()).map_err(unknown)?;
    Ok((number, user.map(|user| user.gid.as_raw())))
}

fn find_group(name: &str) -> Result<u32, String> {
    let unknown = |error| format!("cannot look for group '{name}': {error}; write its number");
    let group = nix::unistd::Group::from_name(name).map_err(unknown)?.map(|group| group.gid.as_raw());
    let group = group.or_else(|| number(name));
    group.ok_or_else(|| format!("no group '{name}' on this system; write a number"))
}

/// A number of a user or group. The largest means "unchanged" to the system and is none.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&number| number != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_names_or_numbers() {
        let parse = |text: &str| text.parse::<NewOwner>();
        let owner = |user, group| Ok(NewOwner { user, group });
        assert_eq!(parse("1000"), owner(Some(1000), None));
        assert_eq!(parse("1000:2000"), owner(Some(1000), Some(2000)));
        assert_eq!(parse(":2000"), owner(None, Some(2000)));
        assert_eq!(parse("root"), owner(Some(0), None));
        assert_eq!(parse("root:"), owner(Some(0), Some(0)));
        assert_eq!(parse("0:root"), owner(Some(0), Some(0)));
        for wrong in ["", ":", "-1", "4294967295", "nobody-of-that-name", "0:no group", "4000000000:"] {
            parse(wrong).expect_err(wrong);
        }
    }
}
