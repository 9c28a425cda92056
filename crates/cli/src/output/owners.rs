//! Names of the users and groups that own files.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use nix::unistd::{Gid, Group, Uid, User};
use warpfire_terminal::shown;

/// Names that this process has looked for. The system may ask a server on the network for each.
#[derive(Default)]
pub struct Owners {
    users: RefCell<HashMap<u32, String>>,
    groups: RefCell<HashMap<u32, String>>,
}

impl Owners {
    /// The name of a user, or the number if this system knows no name for it.
    pub fn user(&self, uid: u32) -> String {
        let find = || User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name);
        known(&self.users, uid, find)
    }

    /// The name of a group, or the number if this system knows no name for it.
    pub fn group(&self, gid: u32) -> String {
        let find = || Group::from_gid(Gid::from_raw(gid)).ok().flatten().map(|group| group.name);
        known(&self.groups, gid, find)
    }
}

fn known(names: &RefCell<HashMap<u32, String>>, id: u32, find: impl FnOnce() -> Option<String>) -> String {
    let mut names = names.borrow_mut();
    let name = names.entry(id).or_insert_with(|| {
        // A name that a system takes from the network may hold anything.
        find().map_or_else(|| id.to_string(), |name| shown(Path::new(&name)))
    });
    name.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_without_a_name_is_a_number() {
        let owners = Owners::default();
        assert_eq!((owners.user(0), owners.group(0)), ("root".to_owned(), "root".to_owned()));
        assert_eq!(owners.user(3_999_999_999), "3999999999");
        assert_eq!(owners.group(3_999_999_999), "3999999999");
    }
}
