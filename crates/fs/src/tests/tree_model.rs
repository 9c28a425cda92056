//! Names against a tree of names: random calls on a small set of names, so that they meet each other.

use std::collections::BTreeMap;

use rustix::io::Errno;
use warpfire_meta::{Storage, Store};

use super::check::check;
use super::{TestRandom, world_with};
use crate::acl::Caller;
use crate::{FileKind, Follow, Fs, FsError, FsOptions, NewMode, NodeRef, Position, RenameMode};

const ROOT: Caller<'static> = Caller::ROOT;

/// The twin: files are shared by number, directories own their names.
#[derive(Default, Clone)]
pub(crate) struct Tree {
    nodes: BTreeMap<u64, Twin>,
    next: u64,
}

#[derive(Clone)]
enum Twin {
    File(Vec<u8>),
    Dir(BTreeMap<Vec<u8>, u64>),
}

type Outcome = Result<(), i32>;

impl Tree {
    pub(crate) fn new() -> Self {
        Tree { nodes: [(1, Twin::Dir(BTreeMap::new()))].into(), next: 2 }
    }

    fn dir(&mut self, ino: u64) -> &mut BTreeMap<Vec<u8>, u64> {
        match self.nodes.get_mut(&ino) {
            Some(Twin::Dir(names)) => names,
            _ => panic!("the twin's own paths lead to directories"),
        }
    }

    fn is_dir(&self, ino: u64) -> bool {
        matches!(self.nodes[&ino], Twin::Dir(_))
    }

    /// The directory of a path, its last name, and the inode that the name refers to.
    fn at(&mut self, path: &[&[u8]]) -> Result<(u64, Vec<u8>, Option<u64>), i32> {
        let (last, above) = path.split_last().unwrap();
        let mut dir = 1;
        for name in above {
            dir = *self.dir(dir).get(*name).ok_or(Errno::NOENT.raw_os_error())?;
            if !self.is_dir(dir) {
                return Err(Errno::NOTDIR.raw_os_error());
            }
        }
        let there = self.dir(dir).get(*last).copied();
        Ok((dir, last.to_vec(), there))
    }

    fn make(&mut self, path: &[&[u8]], twin: Twin) -> Outcome {
        let (dir, name, there) = self.at(path)?;
        if there.is_some() {
            return Err(Errno::EXIST.raw_os_error());
        }
        let ino = self.next;
        self.next += 1;
        self.nodes.insert(ino, twin);
        self.dir(dir).insert(name, ino);
        Ok(())
    }

    fn append(&mut self, path: &[&[u8]], data: &[u8]) -> Outcome {
        let ino = self.at(path)?.2.ok_or(Errno::NOENT.raw_os_error())?;
        match self.nodes.get_mut(&ino) {
            Some(Twin::File(bytes)) => bytes.extend_from_slice(data),
            _ => return Err(Errno::ISDIR.raw_os_error()),
        }
        Ok(())
    }

    fn remove(&mut self, path: &[&[u8]], wants_dir: bool) -> Outcome {
        let (dir, name, there) = self.at(path)?;
        let ino = there.ok_or(Errno::NOENT.raw_os_error())?;
        match (wants_dir, &self.nodes[&ino]) {
            (true, Twin::File(_)) => return Err(Errno::NOTDIR.raw_os_error()),
            (false, Twin::Dir(_)) => return Err(Errno::ISDIR.raw_os_error()),
            (true, Twin::Dir(names)) if !names.is_empty() => return Err(Errno::NOTEMPTY.raw_os_error()),
            _ => {}
        }
        self.dir(dir).remove(&name);
        Ok(())
    }

    fn link(&mut self, from: &[&[u8]], to: &[&[u8]]) -> Outcome {
        let ino = self.at(from)?.2.ok_or(Errno::NOENT.raw_os_error())?;
        let (dir, name, there) = self.at(to)?;
        if self.is_dir(ino) {
            return Err(Errno::PERM.raw_os_error());
        }
        if there.is_some() {
            return Err(Errno::EXIST.raw_os_error());
        }
        self.dir(dir).insert(name, ino);
        Ok(())
    }

    fn holds(&self, above: u64, below: u64) -> bool {
        above == below
            || match &self.nodes[&above] {
                Twin::Dir(names) => names.values().any(|child| self.holds(*child, below)),
                Twin::File(_) => false,
            }
    }

    fn rename(&mut self, from: &[&[u8]], to: &[&[u8]], mode: RenameMode) -> Outcome {
        let (from_dir, from_name, source) = self.at(from)?;
        let (to_dir, to_name, target) = self.at(to)?;
        let source = source.ok_or(Errno::NOENT.raw_os_error())?;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST.raw_os_error()),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT.raw_os_error()),
            _ => {}
        }
        if self.is_dir(source) && from_dir != to_dir && self.holds(source, to_dir) {
            return Err(Errno::INVAL.raw_os_error());
        }
        if let Some(target) = target.filter(|t| *t != source) {
            if mode == RenameMode::Exchange {
                if self.is_dir(target) && from_dir != to_dir && self.holds(target, from_dir) {
                    return Err(Errno::INVAL.raw_os_error());
                }
                self.dir(from_dir).insert(from_name, target);
                self.dir(to_dir).insert(to_name, source);
                return Ok(());
            }
            match (self.is_dir(source), &self.nodes[&target]) {
                (true, Twin::File(_)) => return Err(Errno::NOTDIR.raw_os_error()),
                (false, Twin::Dir(_)) => return Err(Errno::ISDIR.raw_os_error()),
                (true, Twin::Dir(names)) if !names.is_empty() => return Err(Errno::NOTEMPTY.raw_os_error()),
                _ => {}
            }
        }
        if target == Some(source) {
            return Ok(());
        }
        self.dir(from_dir).remove(&from_name);
        self.dir(to_dir).insert(to_name, source);
        Ok(())
    }

    /// Every path with its bytes; `None` for a directory.
    pub(crate) fn listing(&self) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
        let mut all = BTreeMap::new();
        let mut todo = vec![(Vec::new(), 1)];
        while let Some((path, ino)) = todo.pop() {
            match &self.nodes[&ino] {
                Twin::File(bytes) => _ = all.insert(path, Some(bytes.clone())),
                Twin::Dir(names) => {
                    for (name, child) in names {
                        todo.push(([&path[..], b"/", name].concat(), *child));
                    }
                    all.insert(path, None);
                }
            }
        }
        all
    }
}

/// As `Tree::listing`, from the filesystem.
pub(crate) fn listing<E: Storage>(fs: &Fs<E>) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
    listing_below(fs, &fs.root())
}

/// As `listing`, of a directory. Names that begin with `@` are left out: they are doors.
pub(crate) fn listing_below<E: Storage>(fs: &Fs<E>, top: &NodeRef) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
    let mut all = BTreeMap::new();
    let mut todo = vec![(Vec::new(), NodeRef::clone(top))];
    while let Some((path, dir)) = todo.pop() {
        for entry in fs.readdir(&ROOT, &dir, None, usize::MAX).unwrap() {
            if entry.name.starts_with(b"@") {
                continue;
            }
            let below = [&path[..], b"/", &entry.name].concat();
            let node = fs.lookup(&ROOT, &dir, &entry.name).unwrap();
            assert_eq!((node.ino(), node.kind()), (entry.ino, entry.kind));
            if entry.kind == FileKind::Directory {
                todo.push((below, node));
            } else {
                all.insert(below, Some(fs.read_file(&ROOT, &dir, &entry.name).unwrap()));
            }
        }
        all.insert(path, None);
    }
    all
}

/// One random call on both; both must answer alike.
pub(crate) fn step<E: Storage>(fs: &Fs<E>, tree: &mut Tree, draw: &mut TestRandom, what: &str) {
    step_below(fs, &fs.root(), tree, draw, what);
}

/// As `step`, in a directory.
pub(crate) fn step_below<E: Storage>(
    fs: &Fs<E>,
    root: &NodeRef,
    tree: &mut Tree,
    draw: &mut TestRandom,
    what: &str,
) {
    const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    let path = |draw: &mut TestRandom| -> Vec<&'static [u8]> {
        (0..=draw.below(3)).map(|_| NAMES[draw.below(4) as usize]).collect()
    };
    let one = path(draw);
    let two = path(draw);
    let resolve = |path: &[&[u8]]| fs.resolve_parent(&ROOT, root, &path.join(&b'/'), Follow::No);
    let there = |path: &[&[u8]]| fs.resolve(&ROOT, root, &path.join(&b'/'), Follow::No);
    let mode = NewMode::exact(0o755);
    let most = if draw.below(10) == 0 { 90_000 } else { 100 };
    let len = draw.below(most) as usize;
    let data = vec![draw.next() as u8; len];
    let pick = draw.below(12);
    let call = || -> Result<(), FsError> {
        match pick {
            0..=2 => {
                let at = resolve(&one)?;
                fs.create_file(&ROOT, &at.dir, &at.name, mode, &data).map(|_| ())
            }
            3 | 4 => {
                let at = resolve(&one)?;
                fs.mkdir(&ROOT, &at.dir, &at.name, mode).map(|_| ())
            }
            5 => fs.write(&ROOT, &there(&one)?, Position::End, &data).map(|_| ()),
            6 => {
                let at = resolve(&one)?;
                fs.unlink(&ROOT, &at.dir, &at.name)
            }
            7 => {
                let at = resolve(&one)?;
                fs.rmdir(&ROOT, &at.dir, &at.name)
            }
            8 => {
                let node = there(&one)?;
                let at = resolve(&two)?;
                fs.link(&ROOT, &node, &at.dir, &at.name)
            }
            _ => {
                let from = resolve(&one)?;
                let to = resolve(&two)?;
                fs.rename(&ROOT, (&from.dir, &from.name), (&to.dir, &to.name), rename_mode(pick))
            }
        }
    };
    let expect = match pick {
        0..=2 => tree.make(&one, Twin::File(data.clone())),
        3 | 4 => tree.make(&one, Twin::Dir(BTreeMap::new())),
        5 => tree.append(&one, &data),
        6 => tree.remove(&one, false),
        7 => tree.remove(&one, true),
        8 => tree.link(&one, &two),
        _ => tree.rename(&one, &two, rename_mode(pick)),
    };
    let got = call().map_err(|e| e.errno());
    assert_eq!(got, expect, "{what}: call {pick} on {one:?} and {two:?}");
}

fn rename_mode(pick: u64) -> RenameMode {
    match pick {
        9 => RenameMode::Replace,
        10 => RenameMode::NoReplace,
        _ => RenameMode::Exchange,
    }
}

#[test]
fn a_tree_of_names_answers_like_its_twin() {
    for seed in 0..40 {
        let (engine, clock) = world_with();
        let fs = Fs::open(engine.clone(), clock.clone(), FsOptions::default()).unwrap();
        let mut draw = TestRandom(seed);
        let mut tree = Tree::new();
        for n in 0..300 {
            step(&fs, &mut tree, &mut draw, &format!("seed {seed} step {n}"));
        }
        assert_eq!(listing(&fs), tree.listing(), "seed {seed}");
        fs.sync().unwrap();
        check(&*engine, &format!("seed {seed}"));
    }
}

/// Over the real engine: after any power cut the names and bytes are those of a moment at or after the last
/// sync.
#[test]
fn a_power_cut_leaves_a_moment_since_the_last_sync() {
    use super::engine::{format, open};
    for seed in 0..25 {
        let mut draw = TestRandom(1000 + seed);
        let mut tree = Tree::new();
        let mut fs = open(format(), Fs::format);
        for round in 0..6 {
            let mut moments = vec![tree.listing()];
            for n in 0..draw.below(60) {
                step(&fs, &mut tree, &mut draw, &format!("seed {seed} round {round} step {n}"));
                moments.push(tree.clone().listing());
                match draw.below(20) {
                    0 => {
                        fs.sync().unwrap();
                        moments = vec![tree.listing()];
                    }
                    1 | 2 => _ = fs.engine().background_step().unwrap(),
                    3 => fs.engine().flush().unwrap(),
                    _ => {}
                }
            }
            let recovered = fs.engine().log().crash_seeded(draw.next());
            fs = open(recovered, |_, _, _, _| Ok(()));
            let found = listing(&fs);
            assert!(
                moments.contains(&found),
                "seed {seed} round {round}: a state that never was: {:?}",
                found.keys()
            );
            tree = twin_of(&fs);
            fs.sync().unwrap();
            check(&**fs.engine(), &format!("seed {seed} round {round}"));
        }
    }
}

/// A twin of the filesystem as it is now. Hard links are recognised by inode number.
pub(crate) fn twin_of<E: Storage>(fs: &Fs<E>) -> Tree {
    twin_below(fs, &fs.root())
}

/// As `twin_of`, of a directory, without doors.
pub(crate) fn twin_below<E: Storage>(fs: &Fs<E>, top: &NodeRef) -> Tree {
    let mut tree = Tree { nodes: BTreeMap::new(), next: 1 << 63 };
    let number = |ino: u64| if ino == top.ino() { 1 } else { ino | 1 << 62 };
    let mut todo = vec![NodeRef::clone(top)];
    while let Some(dir) = todo.pop() {
        let mut names = BTreeMap::new();
        for entry in fs.readdir(&ROOT, &dir, None, usize::MAX).unwrap() {
            if entry.name.starts_with(b"@") {
                continue;
            }
            names.insert(entry.name.to_vec(), number(entry.ino));
            if entry.kind == FileKind::Directory {
                todo.push(fs.lookup(&ROOT, &dir, &entry.name).unwrap());
            } else {
                tree.nodes
                    .insert(number(entry.ino), Twin::File(fs.read_file(&ROOT, &dir, &entry.name).unwrap()));
            }
        }
        tree.nodes.insert(number(dir.ino()), Twin::Dir(names));
    }
    tree
}
