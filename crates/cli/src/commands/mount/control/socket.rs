//! The server's side of the control socket.
//!
//! Invariants
//! 1. Only this server's user and root are answered (`admits`).
//! 2. At most `CONNECTIONS_MAX` connections are open. One more closes the oldest that has no work. So clients
//!    that send nothing, or take no answer, keep nobody out, and hold no more than these threads.
//! 3. A request is read to its line end or to `REQUEST_BYTES_MAX`, and never further.
//! 4. Of the work that has a name (`Request::work_name`) one piece runs at a time, and waits for no client:
//!    progress that a client does not take is left out. The work ends at its next step when its client
//!    closes, or when the mount ends (`Client::goes_on`). Other work is refused with the name of what runs.
//! 5. When `stop` has returned, no work runs and none begins.
//! 6. A client that waits for the end holds a descriptor and no thread. There are `WAITING_MAX` at most.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SendFlags, send};
use rustix::process::{Uid, geteuid};
use warpfire_mount::{prepare_runtime_directory, runtime_directory};
use warpfire_terminal::Failure;

use super::client::Client;
use super::served_pool::ServedPool;
use super::wire::{Answer, REQUEST_BYTES_MAX, Request, RequestLine};
use super::work::{Work, Working};
use super::{PATIENCE, socket_name};
use crate::commands::mount::mounted_pool::MountedPool;

/// Most connections at a time. A status takes milliseconds.
const CONNECTIONS_MAX: usize = 16;

/// Most clients that wait for the end of the mount. One more takes the place of the oldest.
const WAITING_MAX: usize = 8;

/// The wait before the next connection when the process has no descriptors or memory for one.
const SHORTAGE: Duration = Duration::from_millis(100);

/// How often a stream that waits for its client looks whether the mount ends.
const STREAM_LOOK: Duration = Duration::from_secs(1);

/// The socket of a running server.
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    ino: u64,
    connections: Mutex<Connections>,
    work: Work,
    /// Held for reading while a stream is sent or received. These run beside each other and beside other
    /// work.
    streams: RwLock<()>,
    /// Clients that wait for the end, oldest first.
    waiting: Mutex<VecDeque<UnixStream>>,
    is_stopping: AtomicBool,
}

#[derive(Default)]
struct Connections {
    next: u64,
    /// Oldest first.
    open: VecDeque<Connection>,
}

struct Connection {
    number: u64,
    stream: UnixStream,
    has_work: bool,
}

/// Ends the entry of a connection, also if its thread panics.
struct Ending<'a>(&'a ControlSocket, u64);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.connections().open.retain(|connection| connection.number != self.1);
    }
}

fn admits(user: Uid) -> bool {
    user.is_root() || user == geteuid()
}

impl ControlSocket {
    /// Makes the socket of the server of this mount.
    pub fn bind(mounted: &MountedPool) -> io::Result<ControlSocket> {
        let directory = runtime_directory();
        prepare_runtime_directory(&directory)?;
        ControlSocket::bind_at(directory.join(socket_name(&mounted.id, mounted.device)))
    }

    fn bind_at(path: PathBuf) -> io::Result<ControlSocket> {
        // The kernel gives the number of a filesystem to one at a time, so a socket that is there was left by
        // a server that has died.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let ino = fs::symlink_metadata(&path)?.ino();
        let (connections, work, streams, waiting, is_stopping) = Default::default();
        Ok(ControlSocket { listener, path, ino, connections, work, streams, waiting, is_stopping })
    }

    /// Removes the socket from its directory. The next server of the pool may have made its own there.
    pub fn remove(&self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|there| there.ino() == self.ino) {
            // Fails if the directory was removed, and the socket with it.
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Answers every client, until the process ends.
    ///
    /// # Errors
    /// The socket takes no connections any more.
    pub fn serve(self: &Arc<Self>, pool: &Arc<ServedPool>) -> io::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::INTR | Errno::CONNABORTED) => continue,
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        thread::park_timeout(SHORTAGE);
                        continue;
                    }
                    _ => return Err(error),
                },
            };
            if !socket_peercred(&stream).is_ok_and(|peer| admits(peer.uid)) {
                continue;
            }
            // Without a descriptor or a thread for it this client finds its connection closed.
            let Some(number) = self.enter(&stream) else { continue };
            let (socket, pool) = (Arc::clone(self), Arc::clone(pool));
            let answer = move || {
                let _ending = Ending(&socket, number);
                socket.answer(&stream, number, &pool);
            };
            if thread::Builder::new().name("warpfire-control".to_owned()).spawn(answer).is_err() {
                drop(Ending(self, number));
            }
        }
    }

    /// Ends the trim or scrub that runs, and waits for its end. No other begins.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        for connection in &self.connections().open {
            // Ends the wait of slow work. The answer can still be sent.
            let _ = connection.stream.shutdown(Shutdown::Read);
        }
        self.work.await_end();
        drop(self.streams.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Sends the clients that wait for the end how many transactions it has aborted.
    pub fn announce_end(&self, aborted_transactions: usize) {
        let line = Answer::Ended { aborted_transactions }.to_line();
        for stream in &*self.waiting.lock().unwrap_or_else(PoisonError::into_inner) {
            // A client that is gone needs no answer, and the buffer of one that waits is empty.
            let _ = send(stream, &line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    /// Keeps a client until the end of the mount.
    fn await_end(&self, stream: &UnixStream) -> io::Result<()> {
        let kept = stream.try_clone()?;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: a client that has this answer learns of the end, however soon it comes. Nobody
        // waits here for one that does not read.
        send(stream, &Answer::Awaiting.to_line(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        while waiting.len() >= WAITING_MAX {
            waiting.pop_front();
        }
        waiting.push_back(kept);
        Ok(())
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists a connection. Closes the oldest without work if there are too many.
    fn enter(&self, stream: &UnixStream) -> Option<u64> {
        let stream = stream.try_clone().ok()?;
        let mut connections = self.connections();
        let number = connections.next;
        connections.next += 1;
        if connections.open.len() >= CONNECTIONS_MAX {
            let oldest = connections.open.iter().position(|connection| !connection.has_work)?;
            let oldest = connections.open.remove(oldest)?;
            // Its thread finds the connection closed, whatever it waits for.
            let _ = oldest.stream.shutdown(Shutdown::Both);
        }
        connections.open.push_back(Connection { number, stream, has_work: false });
        Some(number)
    }

    fn answer(&self, stream: &UnixStream, number: u64, pool: &ServedPool) {
        // A client that has closed its connection needs no answer.
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let _ = stream.set_write_timeout(Some(PATIENCE));
        let Some(line) = read_request(stream) else { return };
        let mut unsent = Vec::new();
        let request = RequestLine::parse(&line);
        let piece = (number, request.as_ref().map_or("", Request::work_name));
        let answer = match request {
            // Without an answer the client finds its connection closed.
            Ok(Request::AwaitEnd) => return self.await_end(stream).unwrap_or(()),
            Ok(Request::Status) => Ok(pool.status()),
            // Beside a scrub or a removal, which may take hours.
            Ok(Request::Wish(order)) => pool.wish(order),
            Ok(Request::Tune(order)) => pool.tune(order),
            Ok(Request::Trim) => self.work(stream, piece, &mut unsent, |client| pool.trim(client)),
            Ok(Request::AddDevice(order)) => {
                self.work(stream, piece, &mut unsent, |_| pool.add_device(&order))
            }
            Ok(Request::SetLabel { label }) => {
                self.work(stream, piece, &mut unsent, |_| pool.set_label(&label))
            }
            Ok(Request::CreateSnapshot { name }) => {
                self.work(stream, piece, &mut unsent, |_| pool.create_snapshot(&name))
            }
            Ok(Request::DeleteSnapshot { name }) => {
                self.work(stream, piece, &mut unsent, |_| pool.delete_snapshot(&name))
            }
            Ok(Request::HoldSnapshot { name, hold, releases }) => {
                self.work(stream, piece, &mut unsent, |_| pool.hold_snapshot(&name, &hold, releases))
            }
            Ok(Request::CreateBookmark { snapshot, name }) => {
                self.work(stream, piece, &mut unsent, |_| pool.create_bookmark(&snapshot, &name))
            }
            Ok(Request::DeleteBookmark { name }) => {
                self.work(stream, piece, &mut unsent, |_| pool.delete_bookmark(&name))
            }
            Ok(Request::ListBookmarks) => self.work(stream, piece, &mut unsent, |_| pool.list_bookmarks()),
            Ok(Request::RollBackSnapshot { name, keep_as }) => {
                self.work(stream, piece, &mut unsent, |_| pool.roll_back_snapshot(&name, &keep_as))
            }
            Ok(Request::SnapshotRule(order)) => {
                self.work(stream, piece, &mut unsent, |_| pool.snapshot_rule(&order))
            }
            Ok(Request::ListSnapshots { after }) => {
                self.work(stream, piece, &mut unsent, |_| pool.list_snapshots(after))
            }
            Ok(Request::SnapshotSpace) => self.work(stream, piece, &mut unsent, |_| pool.snapshot_space()),
            Ok(Request::FreedBytes { stretches }) => {
                self.work(stream, piece, &mut unsent, |_| pool.freed_bytes(&stretches))
            }
            Ok(Request::ChangeVolume(order)) => {
                self.work(stream, piece, &mut unsent, |client| pool.change_volume(&order, client))
            }
            Ok(Request::ListVolumes) => self.work(stream, piece, &mut unsent, |_| pool.list_volumes()),
            Ok(Request::DiffSnapshots(order)) => {
                self.work(stream, piece, &mut unsent, |client| pool.diff_snapshots(&order, client))
            }
            Ok(Request::Send(order)) => self.stream(stream, number, |client| pool.send(&order, client)),
            Ok(Request::Receive(order)) => self.stream(stream, number, |client| pool.receive(&order, client)),
            Ok(Request::ReceiveProgress { target }) => pool.receive_progress(&target),
            Ok(Request::AbortReceive { target }) => {
                self.stream(stream, number, |_| pool.abort_receive(&target))
            }
            Ok(Request::RemoveDevice { index }) => {
                self.work(stream, piece, &mut unsent, |client| pool.remove_device(index, client))
            }
            Ok(Request::ReplaceDevice(order)) => {
                self.work(stream, piece, &mut unsent, |client| pool.replace_device(&order, client))
            }
            Ok(Request::PlanDevices(order)) => {
                self.work(stream, piece, &mut unsent, |_| pool.plan_devices(order))
            }
            Ok(Request::ResizeDevice(order)) => {
                self.work(stream, piece, &mut unsent, |client| pool.resize_device(order, client))
            }
            Ok(Request::TakeOffline { index, is_dry_run }) => {
                self.work(stream, piece, &mut unsent, |_| pool.take_offline(index, is_dry_run))
            }
            Ok(Request::TakeOnline(order)) => {
                self.work(stream, piece, &mut unsent, |_| pool.take_online(&order))
            }
            Ok(Request::Scrub { rate_bytes }) => {
                self.work(stream, piece, &mut unsent, |client| pool.scrub(rate_bytes, client))
            }
            Ok(Request::Check(order)) => {
                self.work(stream, piece, &mut unsent, |client| pool.check(&order, client))
            }
            Err(failure) => Err(failure),
        };
        let answer = answer.unwrap_or_else(|failure| Answer::Error((&failure).into()));
        unsent.extend(answer.to_line());
        let _ = (&*stream).write_all(&unsent);
    }

    /// Does work of this name, and returns its result. `unsent` is then what the client has not taken of its
    /// progress.
    fn work(
        &self,
        stream: &UnixStream,
        (number, name): (u64, &'static str),
        unsent: &mut Vec<u8>,
        work: impl FnOnce(&mut Client<'_>) -> Result<Answer, Failure>,
    ) -> Result<Answer, Failure> {
        let _working = self.begin_work(number, name)?;
        let mut client = Client::new(stream, &self.is_stopping);
        let answer = work(&mut client);
        *unsent = client.into_rest();
        // The answer of work that was broken off is not whole.
        if self.is_stopping.load(Ordering::SeqCst) { Err(stopped()) } else { answer }
    }

    /// Sends or receives a stream, beside other work. Returns its result.
    fn stream(
        &self,
        stream: &UnixStream,
        number: u64,
        work: impl FnOnce(&Client<'_>) -> Result<Answer, Failure>,
    ) -> Result<Answer, Failure> {
        let Ok(_streaming) = self.streams.try_read() else { return Err(stopped()) };
        if self.is_stopping.load(Ordering::SeqCst) {
            return Err(stopped());
        }
        self.note_work(number);
        let _ = stream.set_read_timeout(Some(STREAM_LOOK));
        let _ = stream.set_write_timeout(Some(STREAM_LOOK));
        let answer = work(&Client::new(stream, &self.is_stopping));
        let _ = stream.set_write_timeout(Some(PATIENCE));
        if answer.is_err() && self.is_stopping.load(Ordering::SeqCst) { Err(stopped()) } else { answer }
    }

    /// Notes that a connection has work: it is not closed for others.
    fn note_work(&self, number: u64) {
        for connection in self.connections().open.iter_mut().filter(|found| found.number == number) {
            connection.has_work = true;
        }
    }

    fn begin_work(&self, number: u64, name: &'static str) -> Result<Working<'_>, Failure> {
        let work = self.work.begin(name)?;
        if self.is_stopping.load(Ordering::SeqCst) {
            return Err(stopped());
        }
        self.note_work(number);
        Ok(work)
    }
}

/// The failure of work that did not end before the mount.
fn stopped() -> Failure {
    Failure::new("the pool is being unmounted").hint("run the command again when it is unmounted")
}

/// The line that a client sends; `None` if the client closes, or waits for too long, before its end. A line
/// that is too long is cut off, and so is no request.
fn read_request(mut stream: &UnixStream) -> Option<Vec<u8>> {
    let mut line = [0; REQUEST_BYTES_MAX];
    let mut len = 0;
    while len < line.len() {
        match stream.read(line.get_mut(len..)?) {
            Ok(0) => return None,
            Ok(bytes) => len += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
        if let Some(end) = line.get(..len)?.iter().position(|&byte| byte == b'\n') {
            return Some(line.get(..end)?.to_vec());
        }
    }
    Some(line.to_vec())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use serde_json::Value;
    use warpfire::Pool;
    use warpfire_mount::{ChangeVolume, RollBack};

    use super::*;
    use crate::commands::volume::WireOrder;

    /// Tries of `soon`: twenty seconds in all.
    const TRIES_MAX: u32 = 1000;

    /// A pool in memory behind a socket.
    struct Served {
        socket: Arc<ControlSocket>,
        pool: warpfire::Warpfire,
        _directory: tempfile::TempDir,
    }

    impl Served {
        fn start(read_only: bool) -> Served {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let socket = ControlSocket::bind_at(directory.path().join("socket")).expect("bound");
            let socket = Arc::new(socket);
            let pool = Pool::options().size_bytes(64 << 20).in_memory().expect("a pool");
            let (mountpoint, failures) = ("/mnt".to_owned(), Arc::default());
            let roll_back: RollBack = Arc::new(|_, _| unreachable!("these tests roll nothing back"));
            let commit: crate::commands::mount::control::served_pool::Commit = Arc::new(|tx| tx.commit());
            let change_volume: ChangeVolume = Arc::new(|_| unreachable!("these tests change no volume"));
            let served = ServedPool {
                pool: pool.clone(),
                mountpoint,
                read_only,
                failures,
                roll_back,
                change_volume,
                commit,
            };
            let served = Arc::new(served);
            let serving = Arc::clone(&socket);
            thread::spawn(move || serving.serve(&served));
            Served { socket, pool, _directory: directory }
        }

        fn connect(&self) -> UnixStream {
            let stream = UnixStream::connect(&self.socket.path).expect("connected");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            stream
        }

        /// Sends these bytes. Returns the answers.
        fn ask(&self, bytes: &[u8]) -> Vec<Value> {
            let mut stream = self.connect();
            stream.write_all(bytes).expect("sent");
            let lines = BufReader::new(stream).lines().map_while(Result::ok);
            lines.map(|line| serde_json::from_str(&line).expect("an answer is JSON")).collect()
        }

        fn has_status(&self) -> bool {
            self.ask(&RequestLine::new(Request::Status).to_line())[0]["status"]["state"] == "whole"
        }
    }

    fn soon(mut holds: impl FnMut() -> bool) -> bool {
        (0..TRIES_MAX).any(|_| {
            let found = holds();
            if !found {
                thread::park_timeout(Duration::from_millis(20));
            }
            found
        })
    }

    #[test]
    fn a_request_that_is_none_has_a_sentence_as_its_answer() {
        let served = Served::start(false);
        for wrong in [&b"\xff\xfe\x00\n"[..], b"{}\n", b"GET / HTTP/1.1\r\n", &[b'['; REQUEST_BYTES_MAX]] {
            let answers = served.ask(wrong);
            let message = answers[0]["error"]["message"].as_str().expect("an error");
            assert!(message.contains("does not know this request"), "{message}");
        }
        let answers = served.ask(b"{\"version\":9,\"request\":\"status\"}\n");
        assert!(answers[0]["error"]["hint"].as_str().expect("a hint").contains("this version"));
        assert!(served.has_status());
    }

    #[test]
    fn clients_that_stay_silent_keep_nobody_out_and_leave_nothing() {
        let served = Served::start(false);
        let silent: Vec<_> = (0..1000).map(|_| served.connect()).collect();
        assert!(served.has_status());
        // Half a request, and then nothing.
        let mut half: Vec<_> = (0..50).map(|_| served.connect()).collect();
        for stream in &mut half {
            // Those that are closed already take nothing.
            let _ = stream.write_all(b"{\"version\":1,");
        }
        assert!(served.has_status());
        assert!(served.socket.connections().open.len() <= CONNECTIONS_MAX);
        drop((silent, half));
        assert!(soon(|| served.socket.connections().open.is_empty()), "every connection has ended");
    }

    #[test]
    fn a_client_that_sends_a_gigabyte_is_not_read_to_its_end() {
        let served = Served::start(false);
        let mut stream = served.connect();
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        let piece = vec![b'x'; 1 << 20];
        let sent = (0..1024).take_while(|_| stream.write_all(&piece).is_ok()).count();
        assert!(sent < 8, "{sent} MiB were taken");
        assert!(served.has_status());
    }

    #[test]
    fn a_trim_answers_and_a_read_only_mount_refuses_it() {
        let trim = RequestLine::new(Request::Trim).to_line();
        let answers = Served::start(false).ask(&trim);
        let trimmed = &answers.last().expect("an answer")["trimmed"];
        assert!(trimmed["discarded_bytes"].as_u64() > Some(32 << 20), "{answers:?}");
        let answers = Served::start(true).ask(&trim);
        let message = answers[0]["error"]["message"].as_str().expect("an error");
        assert_eq!(message, "the pool is mounted read-only at /mnt");
    }

    #[test]
    fn no_work_begins_once_the_mount_ends() {
        let served = Served::start(false);
        served.socket.stop();
        let answers = served.ask(&RequestLine::new(Request::Trim).to_line());
        assert_eq!(answers[0]["error"]["message"], "the pool is being unmounted");
    }

    /// A scrub that lasts for minutes, begun: its first progress has come.
    fn slow_scrub(served: &Served) -> UnixStream {
        served.pool.write("/a", vec![7; 8 << 20]).expect("written");
        let mut stream = served.connect();
        let rate_bytes = std::num::NonZeroU64::new(4096);
        stream.write_all(&RequestLine::new(Request::Scrub { rate_bytes }).to_line()).expect("sent");
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).expect("progress");
        assert!(line.starts_with("{\"scrubbing\":"), "{line}");
        stream
    }

    #[test]
    fn work_ends_when_its_client_closes_and_other_clients_are_answered_meanwhile() {
        let served = Served::start(false);
        let scrub = slow_scrub(&served);
        let answers = served.ask(&RequestLine::new(Request::Trim).to_line());
        assert_eq!(answers[0]["error"]["message"], "the pool is busy with a scrub");
        // No number of silent clients closes the connection that has work.
        let silent: Vec<_> = (0..100).map(|_| served.connect()).collect();
        assert!(served.has_status());
        assert!(served.socket.work.is_running(), "the scrub goes on");
        drop((silent, scrub));
        assert!(soon(|| !served.socket.work.is_running()), "the scrub has ended");
        assert!(served.pool.health().last_scrub.is_none(), "a part of a scrub is not remembered");
        let answers = served.ask(&RequestLine::new(Request::Trim).to_line());
        assert!(answers.last().expect("an answer")["trimmed"].is_object(), "{answers:?}");
    }

    #[test]
    fn a_refusal_names_the_work_that_runs() {
        let served = Served::start(false);
        let refused = |running: Request| {
            let _working = served.socket.begin_work(0, running.work_name()).expect("nothing runs");
            let answers = served.ask(&RequestLine::new(Request::Trim).to_line());
            answers[0]["error"]["message"].as_str().expect("an error").to_owned()
        };
        let detach = Request::ChangeVolume(WireOrder::Detach { door: b"/try".to_vec() });
        assert_eq!(refused(detach), "the pool is busy with the detach of a clone");
        assert_eq!(
            refused(Request::RemoveDevice { index: 1 }),
            "the pool is busy with a change of its devices"
        );
        let answers = served.ask(&RequestLine::new(Request::Trim).to_line());
        assert!(answers.last().expect("an answer")["trimmed"].is_object(), "{answers:?}");
    }

    #[test]
    fn those_that_wait_for_the_end_learn_how_many_transactions_it_has_aborted() {
        let served = Served::start(false);
        let line = RequestLine::new(Request::AwaitEnd).to_line();
        let wait = || {
            let mut stream = served.connect();
            stream.write_all(&line).expect("sent");
            let mut stream = BufReader::new(stream);
            let mut awaiting = String::new();
            stream.read_line(&mut awaiting).expect("taken");
            assert_eq!(awaiting, "\"awaiting\"\n");
            stream
        };
        let forgotten: Vec<_> = (0..WAITING_MAX * 3).map(|_| wait()).collect();
        let waiting = wait();
        assert!(soon(|| served.socket.waiting.lock().expect("no panic").len() == WAITING_MAX));
        assert!(served.has_status());
        served.socket.announce_end(3);
        let last = waiting.lines().map_while(Result::ok).next().expect("the end");
        assert_eq!(last, "{\"ended\":{\"aborted_transactions\":3}}");
        drop(forgotten);
    }

    #[test]
    fn work_ends_before_the_pool_is_closed() {
        let served = Served::start(false);
        let scrub = slow_scrub(&served);
        served.socket.stop();
        assert!(!served.socket.work.is_running());
        let last = BufReader::new(scrub).lines().map_while(Result::ok).last().expect("an answer");
        assert!(last.contains("the pool is being unmounted"), "{last}");
    }
}
