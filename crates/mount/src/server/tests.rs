//! A server whose kernel is a socket: requests come at moments that a test of a mount cannot choose.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use warpfire_env::{ChangeSignal, Clock, Device, MemDevice, SystemClock, SystemRandom};
use warpfire_fs::acl::Caller;
use warpfire_fs::{Fs, FsOptions, FsSchema, NewMode};
use warpfire_fuse::{Errno, ServingThreads, Session};
use warpfire_log::Log;
use warpfire_meta::{Engine, EngineOptions};
use warpfire_pool::{CreateOptions, Pool};

use super::{KernelConnection, Server, ServerContext};
use crate::blocking_threads::BlockingThreads;
use crate::cpu_latency::RequestCounter;
use crate::invalidation_gate::InvalidationGate;
use crate::kernel_nodes::KernelNodes;
use crate::options::PermissionChecks;
use crate::views::MountKind;

const ROOT: Caller<'static> = Caller::ROOT;

/// Numbers of requests.
const MKNOD: u32 = 8;
const RENAME: u32 = 12;
const INIT: u32 = 26;

/// Sends a request of root about the root directory, and returns the error of its answer.
fn ask(kernel: &OwnedFd, opcode: u32, body: &[u8]) -> i32 {
    let length = u32::try_from(40 + body.len()).expect("a request is short");
    let mut message = [length.to_ne_bytes(), opcode.to_ne_bytes()].concat();
    message.extend([7, 1].map(u64::to_ne_bytes).concat());
    message.extend([0; 16]);
    message.extend(body);
    rustix::io::write(kernel, &message).unwrap();
    let mut answer = [0; 4096];
    assert!(rustix::io::read(kernel, &mut answer).unwrap() >= 16);
    i32::from_ne_bytes(answer[4..8].try_into().expect("four bytes"))
}

/// Serves a filesystem with a file `a` in its root while `act` plays the kernel.
fn served(act: impl FnOnce(&OwnedFd, &InvalidationGate)) {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new("memory", 64 << 20));
    let shape = CreateOptions { data: 1, parity: 0, zone_bytes: None, force: false };
    let pool = Pool::create(vec![device], &shape, &SystemRandom, SystemClock.now()).unwrap();
    let (log, recovered) = Log::create(pool).unwrap();
    let engine = Arc::new(Engine::open(log, recovered, FsSchema, EngineOptions::default()).unwrap());
    Fs::format(&*engine, &SystemClock, 0, 0).unwrap();
    let fs = Arc::new(Fs::open(engine, Arc::new(SystemClock), FsOptions::default()).unwrap());
    fs.create_file(&ROOT, &fs.root(), b"a", NewMode { mode: 0o644, umask: 0 }, b"").unwrap();
    let gate = Arc::new(InvalidationGate::default());
    let context = ServerContext {
        connection: KernelConnection::default(),
        root_number: fs.root().ino(),
        slot: None,
        nodes: Arc::new(KernelNodes::new(fs.root().ino(), fs.root(), 1000)),
        gate: Arc::clone(&gate),
        changes: ChangeSignal::ignored(),
        requests: RequestCounter::default(),
        blocking_threads: Arc::new(BlockingThreads::start("test", 1).unwrap()),
        read_threads: None,
        mount_kind: MountKind::Snapshot,
        read_only: false,
        queue_threads: 0,
        failures: Arc::default(),
    };
    let server = Server::new(fs, PermissionChecks::RootOnly, context);
    let (kernel, device) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| Session::begin(server, device).unwrap().run(&ServingThreads::new(1, true)).unwrap());
        let version = [7, 45, 128 << 10, 0].map(u32::to_ne_bytes).concat();
        assert_eq!(ask(&kernel, INIT, &[version, vec![0; 48]].concat()), 0);
        act(&kernel, &gate);
        drop(kernel);
    });
}

/// The kernel moves the cached name without a look-up. The committer empties it again.
#[test]
fn a_rename_during_an_announced_commit_is_noted() {
    served(|kernel, gate| {
        let rename = |from: &[u8], to: &[u8]| {
            let body = [&1u64.to_ne_bytes()[..], from, &[0], to, &[0]].concat();
            assert_eq!(ask(kernel, RENAME, &body), 0);
        };
        rename(b"a", b"b");
        let _announced = gate.announce();
        gate.set_changed_files(BTreeSet::new());
        assert!(gate.lock_exclusive().take_stale().is_empty(), "nothing has happened since");
        rename(b"b", b"c");
        let exclusive = gate.lock_exclusive();
        assert!(exclusive.take_stale().names);
        exclusive.finish();
    });
}

/// open(2) with `O_CREAT` and without `O_EXCL` must not fail because a commit has made the name since the
/// kernel looked it up. After `ESTALE` the kernel looks up again.
#[test]
fn a_file_whose_name_was_made_meanwhile_is_looked_up_again() {
    served(|kernel, _| {
        let mknod = |name: &[u8]| {
            let fields = [0o100_644, 0, 0, 0].map(u32::to_ne_bytes).concat();
            ask(kernel, MKNOD, &[&fields, name, &[0]].concat())
        };
        assert_eq!(mknod(b"new"), 0);
        assert_eq!(mknod(b"a"), -Errno::STALE.raw_os_error());
    });
}
