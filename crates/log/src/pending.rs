//! Records that no sync has taken yet.

use crate::store::LogPos;

/// Records in the order of their numbers, in one flat buffer.
#[derive(Default)]
pub(crate) struct RecordBuffer {
    bytes: Vec<u8>,
    /// Where each record ends in `bytes`.
    ends: Vec<usize>,
}

impl RecordBuffer {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
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
        PendingRecords { records: RecordBuffer::default(), next }
    }

    /// Queues a record; returns its place and the bytes that wait now.
    pub(crate) fn push(&mut self, record: &[u8]) -> (LogPos, usize) {
        let pos = self.next;
        self.next = LogPos(pos.0 + 1);
        self.records.push(record);
        (pos, self.records.bytes())
    }

    pub(crate) fn next(&self) -> LogPos {
        self.next
    }

    pub(crate) fn bytes(&self) -> usize {
        self.records.bytes()
    }

    /// The cut: everything queued so far.
    pub(crate) fn take(&mut self) -> RecordBuffer {
        std::mem::take(&mut self.records)
    }

    /// Puts a cut that could not be written back in front of what came later.
    pub(crate) fn put_back(&mut self, mut records: RecordBuffer) {
        for later in self.records.iter() {
            records.push(later);
        }
        self.records = records;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_put_back_stay_in_front() {
        let mut pending = PendingRecords::new(LogPos(5));
        assert_eq!(pending.push(b"a"), (LogPos(5), 1));
        pending.push(b"");
        let records = pending.take();
        pending.push(b"later");
        pending.put_back(records);
        assert_eq!(pending.take().iter().collect::<Vec<_>>(), [&b"a"[..], b"", b"later"]);
        assert_eq!(pending.next(), LogPos(8));
    }
}
