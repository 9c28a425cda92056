//! The life of a connection.
//!
//! ```text
//!   begin: INIT is answered ──▶ run: threads serve requests ──the kernel ends the connection──▶ destroy
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::{self, Scope, ScopedJoinHandle};

use rustix::io::Errno;

use crate::connection::Connection;
use crate::dispatch::{INIT, Next, dispatch};
use crate::fields::Malformed;
use crate::filesystem::Filesystem;
use crate::init::{InitFlags, KernelConfig, MAJOR, Offer, too_old};
use crate::notifier::Notifier;
use crate::queue::{Queue, Queues};
use crate::reply::{AnswerTo, Reply};
use crate::request::Request;
use crate::serving_threads::ServingThreads;

/// Bytes of the buffer for the first request. The kernel wants at least this many.
const FIRST_MESSAGE_BYTES_MAX: usize = 8192;

/// A filesystem and its connection to the kernel.
pub struct Session<F> {
    filesystem: F,
    pub(crate) connection: Arc<Connection>,
    message_bytes_max: usize,
    offered: InitFlags,
    has_long_setxattr: bool,
    /// Those that were announced to the kernel.
    pub(crate) queues: Option<Queues>,
}

impl<F: Filesystem> Session<F> {
    /// Negotiates the protocol on the connection of a mount that was just made.
    ///
    /// # Errors
    /// That of [`Filesystem::init`]; `Unsupported` if the kernel is too old; `NotConnected` if the mount has
    /// ended; errors of the connection.
    pub fn begin(mut filesystem: F, device: OwnedFd) -> io::Result<Session<F>> {
        let connection = Connection::new(device);
        let mut buffer = vec![0; FIRST_MESSAGE_BYTES_MAX];
        let malformed =
            |Malformed| io::Error::new(io::ErrorKind::InvalidData, "the first request is malformed");
        loop {
            let message = connection.receive(&mut buffer)?.ok_or(io::ErrorKind::NotConnected)?;
            let (request, mut body) = Request::decode(message).map_err(malformed)?;
            let reply = Reply::new(AnswerTo::Connection(Arc::clone(&connection)), request.unique());
            if request.opcode != INIT {
                return Err(malformed(Malformed));
            }
            match Offer::decode(&mut body).map_err(malformed)? {
                Offer::NewerMajor => reply.fields(|answer| _ = answer.u32(MAJOR).zeros(60)),
                Offer::TooOld => {
                    reply.error(Errno::PROTO);
                    return Err(too_old());
                }
                Offer::Version { features, max_readahead } => {
                    let mut config = KernelConfig::new(features, max_readahead);
                    if let Err(e) = filesystem.init(&mut config) {
                        reply.error(Errno::PROTO);
                        return Err(e);
                    }
                    let queues = prepare_queues(&connection, &mut config);
                    reply.fields(|answer| config.encode(answer));
                    return Ok(Session {
                        filesystem,
                        connection,
                        message_bytes_max: config.message_bytes_max(),
                        offered: config.offered(),
                        has_long_setxattr: config.features().contains(InitFlags::SETXATTR_EXT),
                        queues,
                    });
                }
            }
        }
    }

    /// The features that the kernel offers.
    #[must_use]
    pub fn offered(&self) -> InitFlags {
        self.offered
    }

    /// Sends notifications to the kernel, also after the session has ended.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::clone(&self.connection))
    }

    /// Serves requests until the kernel ends the connection: by queues if the kernel has them, else on this
    /// thread, the first of `threads`, and on the others, or on as many of them as can be started.
    ///
    /// # Errors
    /// Errors of the connection.
    pub fn run(mut self, threads: &ServingThreads) -> io::Result<()> {
        let queues = self.queues.take().map_or_else(Vec::new, |queues| queues.0);
        let session = &self;
        let served = thread::scope(|scope| {
            let has_queues = session.start_queues(scope, &queues);
            // Beside queues the kernel sends by the device only requests without an answer, for one thread.
            let helpers = if has_queues { 1..1 } else { 1..threads.number() };
            if has_queues {
                threads.note_queues();
            }
            let helpers: Vec<_> = helpers.map(|number| (number, session.connection.another())).collect();
            let others = helpers.into_iter().filter_map(|(number, connection)| {
                let serve = move || session.serve(&connection, threads, number);
                let helper = start(scope, "warpfire-serve", serve);
                if helper.is_none() {
                    threads.note_missing();
                }
                helper
            });
            let others: Vec<_> = others.collect();
            let first = session.serve(&session.connection, threads, 0);
            queues.iter().for_each(Queue::end);
            let joined = others.into_iter().map(|t| t.join().expect("a panic of a request is caught"));
            joined.fold(first, io::Result::and)
        });
        self.filesystem.destroy();
        served
    }

    /// Starts the threads of all queues. Returns whether the kernel sends requests by them.
    fn start_queues<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, queues: &'scope [Queue]) -> bool {
        let (registered, registrations) = mpsc::channel();
        for queue in queues {
            let registered = registered.clone();
            let work = move || {
                let registration = queue.register();
                let is_registered = registration.is_ok();
                if !is_registered {
                    // Here, because a thread that serves a queue has its ring for itself.
                    queue.refuse();
                }
                // Nobody receives it after a failure.
                let _ = registered.send(registration);
                if is_registered {
                    self.serve_queue(scope, queue, false);
                }
            };
            if start(scope, "warpfire-queue", work).is_none() {
                queue.refuse();
                return false;
            }
        }
        // The results come in any order.
        let results = registrations.iter().take(queues.len());
        if let Some(e) = results.filter_map(Result::err).next() {
            tracing::warn!(error = %e, "requests come by /dev/fuse, not by queues");
            return false;
        }
        !queues.is_empty()
    }

    fn serve_queue<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        queue: &'scope Queue,
        stands_by: bool,
    ) {
        let another =
            || start(scope, "warpfire-relief", move || self.serve_queue(scope, queue, true)).is_some();
        self.filesystem.begin_queue_thread();
        let served = queue.serve(stands_by, &another, &|to, request, body| {
            // The queue ends when the kernel returns its entries, after the answer to DESTROY.
            dispatch(&self.filesystem, AnswerTo::Queue(to), &request, body, self.has_long_setxattr);
        });
        if let Err(e) = served {
            tracing::error!(error = %e, "a queue of requests ended; unmount the pool and mount it again");
        }
    }

    fn serve(&self, connection: &Arc<Connection>, threads: &ServingThreads, number: usize) -> io::Result<()> {
        let mut buffer = vec![0; self.message_bytes_max];
        let ended = loop {
            threads.before_request(number);
            let message = match connection.receive(&mut buffer) {
                Ok(Some(message)) => message,
                Ok(None) => break Ok(()),
                Err(e) => break Err(e),
            };
            let _served = threads.serve();
            let Ok((request, mut body)) = Request::decode(message) else {
                tracing::error!(bytes = message.len(), "the kernel sent a message without a header");
                continue;
            };
            let to = AnswerTo::Connection(Arc::clone(connection));
            let next = dispatch(&self.filesystem, to, &request, &mut body, self.has_long_setxattr);
            if next == Next::End {
                break Ok(());
            }
        };
        threads.end();
        ended
    }
}

/// Starts a thread; `None` if there can be no more.
fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, T>> {
    let started = thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work);
    started.inspect_err(|e| tracing::warn!(error = %e, "a mount is served by fewer threads")).ok()
}

/// What the queues need, if the filesystem wants some and the kernel offers them. Without it, they are not
/// announced to the kernel.
fn prepare_queues(connection: &Connection, config: &mut KernelConfig) -> Option<Queues> {
    if config.queue_threads == 0 || !config.offered().contains(InitFlags::OVER_IO_URING) {
        return None;
    }
    let device = connection.as_raw_fd();
    match Queues::prepare(device, config.queue_threads, config.payload_bytes()) {
        Ok(queues) => {
            config.wanted = config.wanted.union(InitFlags::OVER_IO_URING);
            Some(queues)
        }
        Err(e) => {
            tracing::info!(error = %e, "requests come by /dev/fuse, not by queues");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::attr::FileAttr;
    use crate::dispatch::{BATCH_FORGET, DESTROY, FORGET, GETATTR, LOOKUP, STATX};
    use crate::fields::Answer;
    use crate::request::INodeNo;
    use crate::{ReplyAttr, ReplyEntry};

    /// A kernel: the other end of the connection.
    struct Kernel(OwnedFd);

    impl Kernel {
        /// Sends a request and receives the length, the error and the number of its answer, and its body.
        fn ask(&self, opcode: u32, unique: u64, body: &[u8]) -> (i32, u64, Vec<u8>) {
            self.tell(opcode, unique, body);
            self.hear()
        }

        fn tell(&self, opcode: u32, unique: u64, body: &[u8]) {
            let mut message = Answer::default();
            message.u32(u32::try_from(40 + body.len()).expect("requests are short")).u32(opcode);
            message.u64(unique).u64(INodeNo::ROOT.0).u32(1000).u32(100).u32(7).u32(0).bytes(body);
            rustix::io::write(&self.0, message.as_slice()).expect("the session has its end open");
        }

        fn hear(&self) -> (i32, u64, Vec<u8>) {
            let mut answer = vec![0; 4096];
            let len = rustix::io::read(&self.0, &mut answer).expect("the session has its end open");
            let word = |at: usize| u32::from_ne_bytes(answer[at..at + 4].try_into().expect("four bytes"));
            assert_eq!(word(0) as usize, len, "an answer begins with its length");
            let unique = u64::from_ne_bytes(answer[8..16].try_into().expect("eight bytes"));
            (word(4).cast_signed(), unique, answer[16..len].to_vec())
        }
    }

    struct Panics;

    impl Filesystem for Panics {
        fn lookup(&self, request: &Request, _parent: INodeNo, name: &[u8], reply: ReplyEntry) {
            assert_ne!(name, b"panics", "a panic on purpose");
            assert_eq!((request.uid(), request.gid(), request.pid()), (1000, 100, 7));
            reply.absent(Duration::from_secs(3));
        }

        fn getattr(&self, _request: &Request, _ino: INodeNo, reply: ReplyAttr) {
            drop(reply);
        }

        fn statx(&self, _request: &Request, ino: INodeNo, reply: crate::ReplyStatx) {
            let time = crate::Time { seconds: 5, nanos: 6 };
            let attr = FileAttr::new(ino, 0o40_755, time);
            reply.attr(Duration::ZERO, &attr);
        }
    }

    fn served(act: impl FnOnce(&Kernel)) {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (kernel, device) = pair.expect("sockets can be made");
        let kernel = Kernel(kernel);
        let mut offer = Answer::default();
        offer.u32(7).u32(45).u32(128 << 10).u32(0).u32(0).zeros(44);
        kernel.tell(INIT, 2, offer.as_slice());
        let session = Session::begin(Panics, device).expect("the offer is good");
        let (error, unique, answer) = kernel.hear();
        assert_eq!((error, unique, answer.len()), (0, 2, 64));
        thread::scope(|scope| {
            let serving = scope.spawn(|| session.run(&ServingThreads::new(1, true)));
            act(&kernel);
            drop(kernel);
            serving.join().expect("requests that panic cost no thread").expect("the end is no error");
        });
    }

    const EIO: i32 = -5;

    #[test]
    fn a_panic_or_a_dropped_reply_is_an_error_of_one_request() {
        served(|kernel| {
            for unique in [4, 6] {
                assert_eq!(kernel.ask(LOOKUP, unique, b"panics\0"), (EIO, unique, Vec::new()));
            }
            assert_eq!(kernel.ask(GETATTR, 8, &[0; 16]), (EIO, 8, Vec::new()));
            let (error, unique, entry) = kernel.ask(LOOKUP, 10, b"other\0");
            assert_eq!((error, unique, entry.len()), (0, 10, 128));
            assert_eq!(entry[16..24], 3u64.to_ne_bytes(), "the time that the name may be cached");
        });
    }

    #[test]
    fn malformed_and_unknown_requests_are_answered_and_the_session_goes_on() {
        served(|kernel| {
            assert_eq!(kernel.ask(LOOKUP, 4, b"no end"), (EIO, 4, Vec::new()));
            assert_eq!(kernel.ask(9999, 6, &[]), (-38, 6, Vec::new()), "ENOSYS");
            // It has no answer, also if it is malformed.
            kernel.tell(BATCH_FORGET, 8, &[0xff; 8]);
            rustix::io::write(&kernel.0, &[1, 2, 3]).unwrap();
            let (error, unique, attr) = kernel.ask(STATX, 10, &[0; 24]);
            assert_eq!((error, unique, attr.len()), (0, 10, 288));
        });
    }

    #[test]
    fn a_request_of_any_kind_and_length_gets_one_answer() {
        served(|kernel| {
            let mut unique = 4;
            for opcode in (1..60).filter(|opcode| ![FORGET, BATCH_FORGET, DESTROY].contains(opcode)) {
                for (len, fill) in (0..120).flat_map(|len| [(len, 0u8), (len, 0xff)]) {
                    let (_, answered, _) = kernel.ask(opcode, unique, &vec![fill; len]);
                    assert_eq!(answered, unique, "operation {opcode}, {len} bytes");
                    unique += 2;
                }
            }
        });
    }

    #[test]
    fn a_kernel_that_is_too_old_is_refused() {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (kernel, device) = pair.unwrap();
        let kernel = Kernel(kernel);
        let old: Vec<u8> = [7u32, 20, 0, 0].iter().flat_map(|field| field.to_ne_bytes()).collect();
        kernel.tell(INIT, 2, &old);
        let refused = Session::begin(Panics, device).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
        assert_eq!(kernel.hear(), (-71, 2, Vec::new()), "EPROTO");
    }
}
