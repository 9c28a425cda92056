//! Lookups: answers that name a node, their counts, and names that the kernel is asked to forget.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use warpfire_fs::{FileKind, FsError, NodeRef};
use warpfire_fuse::{INodeNo, Notifier, ReplyEntry, Request};
use warpfire_meta::Storage;

use super::request::{Refusal, RequestResult, caller};
use super::{Server, ServerContext};
use crate::caller::CallerGroups;
use crate::invalidation_gate::GatePass;

impl<E: Storage> Server<E> {
    /// The node that a name in a directory leads to, if the name exists.
    pub(super) fn find_name(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &[u8],
    ) -> RequestResult<Option<NodeRef>> {
        let groups = CallerGroups::of(req.pid());
        let (dir, caller) = (self.node(parent)?, caller(req, &groups));
        let found = match self.expected_reads.expects_read() {
            true => self.fs.lookup_to_read(&caller, &dir, name),
            false => self.fs.lookup(&caller, &dir, name),
        };
        match found {
            Err(FsError::NotFound) => Ok(None),
            found => {
                let node = found?;
                if node.kind() == FileKind::Regular {
                    self.expected_reads.note_lookup();
                }
                Ok(Some(node))
            }
        }
    }

    /// Counts an answer that names a node. If the kernel remembers very many inodes, another thread asks it
    /// to forget some.
    pub(super) fn count_lookup(&self, number: u64, node: &NodeRef) {
        let ServerContext { nodes, connection, blocking_threads, .. } = &self.context;
        nodes.count_lookup(number, node);
        if nodes.are_many() {
            let (nodes, notifier) = (Arc::clone(nodes), Arc::clone(&connection.notifier));
            blocking_threads.spawn_elsewhere(move || {
                let notifier = notifier.get().expect("the notifier is set before the first request");
                nodes.prune(|inodes| notifier.prune(inodes));
            });
        }
    }

    /// Counts a lookup of the root directory, as the kernel makes it in a view.
    pub(super) fn count_root(&self) {
        self.count_entered(&self.fs.root());
    }

    /// Counts a lookup of the directory by which programs enter a filesystem in this mount.
    pub(super) fn count_entered(&self, node: &NodeRef) {
        self.context.nodes.count_lookup(self.number_of(node.ino()), node);
    }

    /// As `reply_counted`, with the root directory.
    pub(super) fn reply_counted_root(&self, name_ttl: Duration, reply: ReplyEntry) {
        self.reply_counted(&self.fs.root(), name_ttl, reply);
    }

    /// Answers with a directory, by a name that the kernel may cache for `name_ttl`. The lookup is counted.
    pub(super) fn reply_counted(&self, node: &NodeRef, name_ttl: Duration, reply: ReplyEntry) {
        self.context.requests.count();
        let pass = self.pass();
        let attr = self.sent_attr(&self.fs.getattr(node));
        let attr_ttl = pass.cache_time();
        reply.entry_with_ttls(name_ttl.min(attr_ttl), attr_ttl, &attr);
    }

    /// Answers with a node, and counts the lookup.
    pub(super) fn reply_entry(&self, pass: &GatePass<'_>, answer: RequestResult<NodeRef>, reply: ReplyEntry) {
        match answer {
            Ok(node) => {
                self.count_lookup(self.number_of(node.ino()), &node);
                let keep = pass.cache_time();
                if self.asks_for_attributes(&node) {
                    let attr = self.sent_attr(&self.fs.permissions(&node));
                    reply.entry_with_ttls(keep, Duration::ZERO, &attr);
                } else {
                    reply.entry(keep, &self.sent_attr(&self.fs.getattr(&node)));
                }
            }
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    /// Asks the kernel to forget the inodes that it remembers one by one, if they are at most `max`: the
    /// entered directory, which has the number `entered`, as the last one.
    pub(super) fn forget_few(&self, entered: INodeNo, max: usize, notifier: &Notifier) {
        let mut few = self.context.nodes.list_few(max);
        if few.is_empty() {
            return;
        }
        // The kernel keeps a directory while it knows names in it. Mostly a directory is older than its
        // files, and has a smaller number; the kernel keeps those for which that is not so.
        few.sort_by_key(|(number, node)| {
            (*number == entered.0, node.kind() == FileKind::Directory, Reverse(*number))
        });
        let numbers: Vec<u64> = few.iter().map(|(number, _)| *number).collect();
        // Dropped first: a node in use here would outlive the FORGET of the kernel.
        drop(few);
        if let Err(e) = notifier.prune(&numbers) {
            tracing::debug!(error = %e, "inodes not dropped");
        }
    }
}
