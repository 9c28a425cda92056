//! Counts the requests of the kernel by the spans of the server.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The requests since the last look, by operation.
static COUNTS: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());

pub fn take_counts() -> BTreeMap<String, u32> {
    std::mem::take(&mut *COUNTS.lock().unwrap())
}

/// Counts the spans of requests.
struct Requests;

struct Operation(Option<String>);

impl Visit for Operation {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "operation" {
            self.0 = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

impl Subscriber for Requests {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == "request"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut operation = Operation(None);
        attributes.record(&mut operation);
        let operation = operation.0.expect("each request names its operation");
        *COUNTS.lock().unwrap().entry(operation).or_default() += 1;
        Id::from_u64(1)
    }

    fn event(&self, _: &Event<'_>) {}
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Whether this kernel forgets inodes one by one when it is asked: from Linux 6.18 on.
pub fn kernel_prunes() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut version = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (version.next(), version.next()) >= (Some(6), Some(18))
}

/// One test at a time counts.
static COUNTING: Mutex<()> = Mutex::new(());

pub fn start_counting() -> MutexGuard<'static, ()> {
    let counting = COUNTING.lock().unwrap();
    // Only the first test of the process sets it.
    let _ = tracing::subscriber::set_global_default(Requests);
    counting
}

/// The requests of one operation since the last look.
pub fn count(name: &str) -> u32 {
    COUNTS.lock().unwrap().get(name).copied().unwrap_or(0)
}
