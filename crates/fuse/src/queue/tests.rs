//! Queues of the real kernel.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};
use warpfire_test_needs::{Need, skip};

use super::*;
use crate::reply::{ReplyEntry, ReplyStatx};
use crate::{Filesystem, INodeNo, InitFlags, KernelConfig, ServingThreads, Session};

/// Bytes of a payload that the kernel refuses.
const TOO_SHORT: usize = 4096;

#[derive(Default)]
struct Seen {
    by_queue: AtomicUsize,
    by_device: AtomicUsize,
    /// Requests that wait until `go_on`.
    held: AtomicUsize,
    go_on: AtomicBool,
}

/// A directory without files.
struct NoFiles(Arc<Seen>);

impl Filesystem for NoFiles {
    fn init(&mut self, config: &mut KernelConfig) -> io::Result<()> {
        config.queue_threads = 4;
        // Otherwise the kernel looks up one name of a directory at a time.
        config.wanted = config.wanted.union(InitFlags::PARALLEL_DIROPS);
        Ok(())
    }

    fn statx(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatx) {
        reply.error(Errno::NOSYS);
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &[u8], reply: ReplyEntry) {
        let seen = if other_requests_wait().is_some() { &self.0.by_queue } else { &self.0.by_device };
        seen.fetch_add(1, Ordering::Relaxed);
        match name {
            b"panics" => panic!("a panic on purpose"),
            b"later" => {
                thread::spawn(move || {
                    // The call has mostly returned then.
                    (0..100).for_each(|_| thread::yield_now());
                    reply.absent(Duration::ZERO);
                });
            }
            _ if name.starts_with(b"held") => {
                self.0.held.fetch_add(1, Ordering::SeqCst);
                while !self.0.go_on.load(Ordering::SeqCst) {
                    thread::park_timeout(Duration::from_millis(5));
                }
                reply.absent(Duration::ZERO);
            }
            _ => reply.absent(Duration::ZERO),
        }
    }
}

/// Mounts a filesystem without files, runs `act` in it, and unmounts it. `prepare` changes the session before
/// it is served. Returns how requests came; `None`, and the test counts as skipped, where there are no
/// queues.
fn mounted(prepare: impl FnOnce(&mut Session<NoFiles>), act: impl FnOnce(&Path)) -> Option<Arc<Seen>> {
    mounted_with(Arc::default(), prepare, act)
}

/// As `mounted`, with a `seen` of the caller.
fn mounted_with(
    seen: Arc<Seen>,
    prepare: impl FnOnce(&mut Session<NoFiles>),
    act: impl FnOnce(&Path),
) -> Option<Arc<Seen>> {
    let is_enabled = fs::read_to_string("/sys/module/fuse/parameters/enable_uring").unwrap_or_default();
    if is_enabled.trim() != "Y" {
        skip(Need::FuseQueues, "fuse.enable_uring is not set");
        return None;
    }
    if !rustix::process::geteuid().is_root() {
        skip(Need::Root, "only root can mount without a helper");
        return None;
    }
    let at = tempfile::tempdir().unwrap();
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let data = std::ffi::CString::new(data).unwrap();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("test", at.path(), "fuse.test", flags, Some(data.as_c_str())).unwrap();
    let mut session = Session::begin(NoFiles(Arc::clone(&seen)), device.into()).unwrap();
    prepare(&mut session);
    let (ended, end) = mpsc::channel();
    thread::spawn(move || ended.send(session.run(&ServingThreads::new(2, true))));
    let (acted, actions) = mpsc::channel::<()>();
    let path = at.path().to_owned();
    // A request without an answer fails then, and so does the test.
    thread::spawn(move || match actions.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => rustix::mount::unmount(&path, UnmountFlags::FORCE),
        _ => Ok(()),
    });
    act(at.path());
    drop(acted);
    rustix::mount::unmount(at.path(), UnmountFlags::empty()).unwrap();
    let served = end.recv_timeout(Duration::from_secs(20));
    served.expect("the end of the mount ends all threads").expect("the end is no error");
    Some(seen)
}

fn look_up(names: usize) -> impl FnOnce(&Path) {
    move |at| {
        for number in 0..names {
            // A long name has more bytes than the header of an entry.
            look_up_name(at, &format!("{number}-{}", "x".repeat(200)));
        }
    }
}

fn look_up_name(at: &Path, name: &str) {
    let found = fs::symlink_metadata(at.join(name));
    assert_eq!(found.unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn requests_come_by_queues() {
    let Some(seen) = mounted(|_| (), look_up(100)) else { return };
    assert_eq!(seen.by_queue.load(Ordering::Relaxed), 100);
    assert_eq!(seen.by_device.load(Ordering::Relaxed), 0);
}

#[test]
fn many_programs_at_once_get_their_answers() {
    // More than the entries of all queues, so that requests wait in the kernel.
    let act = |at: &Path| {
        thread::scope(|scope| {
            (0..2 * ENTRIES_OF_ALL).for_each(|_| _ = scope.spawn(|| look_up(100)(at)));
        });
    };
    let Some(seen) = mounted(|_| (), act) else { return };
    assert_eq!(seen.by_queue.load(Ordering::Relaxed), 200 * ENTRIES_OF_ALL);
}

#[test]
fn an_answer_of_another_thread_and_none_at_all_reach_the_program() {
    let act = |at: &Path| {
        for _ in 0..20 {
            let later = fs::symlink_metadata(at.join("later")).unwrap_err();
            assert_eq!(later.kind(), io::ErrorKind::NotFound);
            let none = fs::symlink_metadata(at.join("panics")).unwrap_err();
            assert_eq!(none.raw_os_error(), Some(Errno::IO.raw_os_error()));
        }
    };
    let Some(seen) = mounted(|_| (), act) else { return };
    assert_eq!(seen.by_queue.load(Ordering::Relaxed), 40);
}

#[test]
fn requests_that_take_long_keep_no_other_one_of_their_processor_waiting() {
    /// A queue has more entries.
    const HELD: usize = ENTRIES_MIN - 1;
    let seen = Arc::<Seen>::default();
    let act = |at: &Path| {
        let on_first_processor = || {
            let mut first = rustix::thread::CpuSet::new();
            first.set(0);
            rustix::thread::sched_setaffinity(None, &first).unwrap();
        };
        thread::scope(|scope| {
            let held = std::array::from_fn::<_, HELD, _>(|number| {
                scope.spawn(move || {
                    on_first_processor();
                    look_up_name(at, &format!("held-{number}"));
                })
            });
            let seen = &seen;
            scope.spawn(move || {
                on_first_processor();
                while seen.held.load(Ordering::SeqCst) < HELD {
                    assert!(!held.iter().any(thread::ScopedJoinHandle::is_finished), "one has failed");
                    thread::park_timeout(Duration::from_millis(5));
                }
                (0..100).for_each(|number| look_up_name(at, &format!("short-{number}")));
                seen.go_on.store(true, Ordering::SeqCst);
            });
        });
    };
    let Some(seen) = mounted_with(Arc::clone(&seen), |_| (), act) else { return };
    assert_eq!(seen.by_queue.load(Ordering::Relaxed), 100 + HELD);
}

#[test]
fn requests_come_by_the_device_if_the_kernel_refuses_an_entry() {
    let prepare = |session: &mut Session<NoFiles>| {
        let device = session.connection.as_raw_fd();
        session.queues = Some(Queues::prepare(device, 4, TOO_SHORT).unwrap());
    };
    let Some(seen) = mounted(prepare, look_up(100)) else { return };
    assert_eq!(seen.by_device.load(Ordering::Relaxed), 100);
}

#[test]
fn requests_come_by_the_device_if_only_some_queues_have_entries() {
    let prepare = |session: &mut Session<NoFiles>| {
        let device = session.connection.as_raw_fd();
        let mut queues = session.queues.take().unwrap();
        let last = queues.0.pop().unwrap();
        queues.0.push(
            Queue::new(device, &[usize::from(u16::MAX)], 1, last.shared.memory.payload_bytes()).unwrap(),
        );
        session.queues = Some(queues);
    };
    let Some(seen) = mounted(prepare, look_up(100)) else { return };
    assert_eq!(seen.by_device.load(Ordering::Relaxed), 100);
}

#[test]
fn requests_are_answered_if_the_kernel_refuses_some_entries_of_each_queue() {
    let prepare = |session: &mut Session<NoFiles>| {
        for queue in &mut session.queues.as_mut().unwrap().0 {
            let entries = &mut Arc::get_mut(&mut queue.shared).unwrap().entries;
            // All but the last of each queue.
            for entry in 1..entries.len() {
                if entries[entry].queue == entries[entry - 1].queue {
                    entries[entry - 1].queue = u16::MAX;
                }
            }
        }
    };
    let Some(seen) = mounted(prepare, look_up(100)) else { return };
    // Until each queue has an entry, the kernel may send some by the device.
    assert_eq!(seen.by_queue.load(Ordering::Relaxed) + seen.by_device.load(Ordering::Relaxed), 100);
}

#[test]
fn requests_come_by_the_device_if_a_queue_gets_no_thread() {
    let prepare = |session: &mut Session<NoFiles>| session.queues.take().unwrap().0[0].refuse();
    let Some(seen) = mounted(prepare, look_up(100)) else { return };
    assert_eq!(seen.by_device.load(Ordering::Relaxed), 100);
}

#[test]
fn the_number_of_processors_is_read_from_a_list_without_gaps() {
    assert_eq!(processors_in("0\n"), Some(1));
    assert_eq!(processors_in("0-7\n"), Some(8));
    assert_eq!(processors_in("0-3,8-11\n"), None);
    assert_eq!(processors_in(""), None);
}
