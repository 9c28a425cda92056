//! The naive twin: versions that snapshots show, slices that are named, read sets and a full store.

use super::*;
use crate::testing::{ListSchema, pointer_item, text_item};

fn put(store: &MapStore<ListSchema>, key: &[u8], value: &[u8]) -> Seq {
    let mut batch = Batch::new();
    batch.put(key, value);
    store.commit(&batch, None, Admit::User).unwrap()
}

#[test]
fn a_snapshot_sees_its_version_after_sweeping() {
    let store = MapStore::new(ListSchema);
    put(&store, b"k", &text_item(b"one"));
    let old = store.snapshot();
    put(&store, b"k", &text_item(b"two"));
    while store.background_step().unwrap() {}
    let mut out = Vec::new();
    assert!(store.get(b"k", old.seq(), &mut out).unwrap());
    assert_eq!(out, text_item(b"one"));
    assert!(store.get(b"k", Seq::MAX, &mut out).unwrap());
    assert_eq!(out, text_item(b"two"));
    drop(old);
    assert!(store.background_step().unwrap(), "the sweep drops the old version after its snapshot");
}

#[test]
fn a_slice_goes_when_nothing_names_or_pins_it() {
    let store = MapStore::new(ListSchema);
    let slices = store.write(Stream::Large, b"bytes", Admit::User).unwrap();
    put(&store, b"k", &pointer_item(slices[0]));
    SliceStore::release(&store, &slices);
    let pin = store.pin();
    let mut batch = Batch::new();
    batch.delete(b"k");
    store.commit(&batch, None, Admit::Reserve).unwrap();
    while store.background_step().unwrap() {}
    assert_eq!(store.slices_stored(), 1, "pinned");
    drop(pin);
    while store.background_step().unwrap() {}
    assert_eq!(store.slices_stored(), 0);
}

#[test]
fn a_commit_fails_if_what_it_read_has_changed() {
    let store = MapStore::new(ListSchema);
    let at = put(&store, b"a", &text_item(b"1"));
    put(&store, b"b", &text_item(b"2"));
    let mut batch = Batch::new();
    batch.put(b"c", &text_item(b"3"));
    let reads = |keys: &[&[u8]], ranges| ReadSet::new(at, keys, ranges);
    store.commit(&batch, Some(&reads(&[b"a"], vec![])), Admit::User).unwrap();
    for bad in [reads(&[b"b"], vec![]), reads(&[], vec![(b"a".to_vec(), None)])] {
        assert!(matches!(store.commit(&batch, Some(&bad), Admit::User), Err(CommitError::Conflict)));
    }
}

#[test]
fn a_full_store_refuses_users_and_serves_deletion() {
    let store = MapStore::with_capacity(ListSchema, 64);
    put(&store, b"k", &text_item(&[7; 40]));
    let mut batch = Batch::new();
    batch.put(b"l", &text_item(&[7; 40]));
    assert!(matches!(
        store.commit(&batch, None, Admit::User),
        Err(CommitError::Failed(MetaError::Log(LogError::NoSpace)))
    ));
    batch.clear();
    batch.delete(b"k");
    store.commit(&batch, None, Admit::Reserve).unwrap();
}
