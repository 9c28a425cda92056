use warpfire_format::segment::SegmentStream;
use warpfire_units::{DeviceIndex, ZoneIndex};

use super::*;
use crate::state_log::StateLog;

fn opened(id: u64, columns: u16, parity: u8) -> SegmentDescriptor {
    SegmentDescriptor {
        id: SegmentId::new(id).expect("the tests count from 1"),
        epoch: 1,
        stream: SegmentStream::Large,
        data: columns - u16::from(parity),
        parity,
        columns: (0..columns).map(|n| (DeviceIndex(n), ZoneIndex(9))).collect(),
        lost: Vec::new(),
        stripes: Vec::new(),
        state: SegmentState::Open,
    }
}

#[test]
fn the_bound_on_edits_covers_a_segment_with_all_of_its_columns_lost() {
    let mut table = SegmentTable::default();
    let widest = opened(1, 250, 8);
    let id = widest.id;
    table.add_open(widest, 1 << 20);
    for n in 0..GREW_RUNS_MAX {
        table.grow(id, 1 + (n % 2) as u16);
    }
    (0..250).for_each(|column| table.note_lost(id, LostColumn { column, first_stripe: 7 }));
    table.seal(id, &Pins::new());
    let bound = table.edit_bytes_max();
    let mut bytes = Vec::new();
    table.edits().iter().for_each(|frame| frame.encode(&mut bytes));
    assert!(bytes.len() <= bound, "{} bytes, at most {bound} were promised", bytes.len());
}

#[test]
fn the_bound_on_unsaved_changes_covers_old_runs_and_new_ones() {
    let mut table = SegmentTable::default();
    let descriptor = opened(1, 3, 1);
    let id = descriptor.id;
    table.add_open(descriptor, 1 << 20);
    let mut grown_and_saved = |runs: u16| {
        (0..runs).for_each(|n| table.grow(id, 1 + n % 2));
        let bound = table.unsaved_bytes_max();
        drop(table.edits());
        let mut saved = StateLog::new();
        saved.put_segments(table.take_unsaved());
        let bytes = saved.tail().len();
        assert!(bytes <= bound && bound < 4 * bytes, "{bytes} bytes, at most {bound} were promised");
        bytes
    };
    let of_old = grown_and_saved(200);
    let of_both = grown_and_saved(100);
    assert!(of_both > of_old && of_old > 400, "{of_old} bytes, then {of_both}");
    assert_eq!(table.unsaved_bytes_max(), 0);
}

#[test]
fn a_table_is_of_full_parity_again_once_its_narrower_segments_are_freed() {
    let mut table = SegmentTable::default();
    let pins = Pins::new();
    for n in 1..=3 {
        let descriptor = opened(n, 3, if n == 3 { 2 } else { 1 });
        let id = descriptor.id;
        table.add_open(descriptor, 1 << 20);
        table.seal(id, &pins);
    }
    assert!(table.has_narrower(2) && !table.has_narrower(1));
    for left in [1, 0] {
        let Some(Retired::Segment(id)) = pins.take_unpinned() else { panic!("nothing refers to it") };
        table.free(id);
        drop(table.edits());
        assert_eq!(table.take_freed(), [id]);
        assert_eq!(table.has_narrower(2), left > 0);
    }
}
