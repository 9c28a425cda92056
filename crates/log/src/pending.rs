//! Pending records: those that `log` has queued and no sync has taken yet.
//!
//! # Invariants
//! 1. The n-th record of a buffer is at place `first + n` of the commit log. So the record after a buffer is
//!    at `end`, and a buffer that a sync takes ends where the queue goes on (assert in `take`).
//! 2. A buffer that could not be written returns to the front of the queue, and no place is used twice
//!    (assert in `put_back`, `tests::records_put_back_stay_in_front`).
//! 3. A buffer needs all appends if one of its records does (`tests::one_record_that_needs_all_appends`).

use crate::store::LogPos;

/// Consecutive records of the commit log, in one flat buffer.
pub(crate) struct RecordBuffer {
    /// The place of the first record, or of the one that would be pushed first.
    first: LogPos,
    bytes: Vec<u8>,
    /// Where each record ends in `bytes`.
    ends: Vec<usize>,
    /// Whether a record needs every byte that was appended before it, and not only the bytes that it names.
    needs_all_appends: bool,
}

impl RecordBuffer {
    fn starting_at(first: LogPos) -> Self {
        RecordBuffer { first, bytes: Vec::new(), ends: Vec::new(), needs_all_appends: false }
    }

    /// The place of the first record.
    pub(crate) fn first(&self) -> LogPos {
        self.first
    }

    /// The place after the last record.
    pub(crate) fn end(&self) -> LogPos {
        LogPos(self.first.0 + self.ends.len() as u64)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn needs_all_appends(&self) -> bool {
        self.needs_all_appends
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }

    fn push(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.ends.push(self.bytes.len());
    }
}

/// The queue between `log` and `sync`.
pub(crate) struct PendingRecords {
    records: RecordBuffer,
    next: LogPos,
}

impl PendingRecords {
    pub(crate) fn new(next: LogPos) -> Self {
        PendingRecords { records: RecordBuffer::starting_at(next), next }
    }

    /// Queues a record. Returns its place.
    pub(crate) fn push(&mut self, record: &[u8], needs_all_appends: bool) -> LogPos {
        let pos = self.next;
        self.next = LogPos(pos.0 + 1);
        self.records.push(record);
        self.records.needs_all_appends |= needs_all_appends;
        pos
    }

    pub(crate) fn next(&self) -> LogPos {
        self.next
    }

    pub(crate) fn bytes(&self) -> usize {
        self.records.bytes()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Takes every record queued so far, for one group of the commit log.
    pub(crate) fn take(&mut self) -> RecordBuffer {
        let records = std::mem::replace(&mut self.records, RecordBuffer::starting_at(self.next));
        assert_eq!(records.end(), self.next, "pending records reach to the next place");
        records
    }

    /// Returns records that could not be written to the front of the queue.
    pub(crate) fn put_back(&mut self, mut records: RecordBuffer) {
        assert_eq!(records.end(), self.records.first(), "records return to the place they were taken from");
        // Other threads may have queued records since `take`: these follow.
        for later in self.records.iter() {
            records.push(later);
        }
        records.needs_all_appends |= self.records.needs_all_appends;
        self.records = records;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_put_back_stay_in_front() {
        let mut pending = PendingRecords::new(LogPos(5));
        assert_eq!(pending.push(b"a", true), LogPos(5));
        pending.push(b"", true);
        let records = pending.take();
        pending.push(b"later", true);
        pending.put_back(records);
        assert_eq!(pending.take().iter().collect::<Vec<_>>(), [&b"a"[..], b"", b"later"]);
        assert_eq!(pending.next(), LogPos(8));
    }

    #[test]
    fn one_record_that_needs_all_appends() {
        for (first, later) in [(false, false), (true, false), (false, true)] {
            let mut pending = PendingRecords::new(LogPos(1));
            pending.push(b"first", first);
            let records = pending.take();
            assert_eq!(records.needs_all_appends(), first);
            pending.push(b"later", later);
            pending.put_back(records);
            assert_eq!(pending.take().needs_all_appends(), first || later);
            pending.push(b"next", false);
            assert!(!pending.take().needs_all_appends());
        }
    }
}
