use warpfire_format::segment::SegmentStream;
use warpfire_sim_env::SimRandom;
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
    let narrower = |table: &SegmentTable, than| table.index().of_shapes(|(parity, _)| parity < than).len();
    assert_eq!((narrower(&table, 2), narrower(&table, 1)), (2, 0));
    for left in [1, 0] {
        let Some(Retired::Segment(id)) = pins.take_unpinned() else { panic!("nothing refers to it") };
        table.free(id);
        drop(table.edits());
        assert_eq!(table.take_freed(), [id]);
        assert_eq!(narrower(&table, 2), left);
    }
}

/// Segments are opened, sealed, released, freed, lose columns and get them back on other devices.
#[test]
fn the_index_is_the_one_that_a_look_at_every_segment_finds() {
    let random = SimRandom::new(11);
    let (mut table, pins) = (SegmentTable::default(), Pins::new());
    let (mut newest, mut most, mut with_lost) = (0, 0, 0);
    for step in 0..4000 {
        let ids: Vec<SegmentId> = table.segments.keys().copied().collect();
        let one = usize::try_from(random.below(ids.len().max(1) as u64)).expect("a small number");
        let chosen = ids.get(one).copied();
        let state = chosen.and_then(|id| Some(table.entry(id)?.state));
        match (random.below(6), chosen, state) {
            (0, ..) | (_, None, _) => {
                newest += 1 + random.below(9000);
                let columns = 2 + u16::try_from(random.below(5)).expect("few columns");
                let mut descriptor = opened(newest, columns, 1);
                let first = u16::try_from(random.below(9)).expect("few devices");
                descriptor.columns.iter_mut().for_each(|(device, _)| device.0 += first);
                table.add_open(descriptor, 1 << 20);
                table.note_append(SegmentId::new(newest).expect("it counts up"), 4096, 4096);
            }
            (1, Some(id), Some(SegmentStage::Open)) => table.seal(id, &pins),
            (2, Some(id), Some(SegmentStage::Open | SegmentStage::Sealed)) => {
                let bytes = table.entry(id).expect("it was chosen").live_bytes();
                table.release(id, &pins, |live| live.release(bytes.min(2048 + random.below(2) * 2048)));
            }
            (3, Some(id), Some(_)) => table.note_lost(id, LostColumn { column: 1, first_stripe: 0 }),
            (4, Some(id), Some(SegmentStage::Sealed)) => {
                let mut descriptor = table.entry(id).expect("it was chosen").logged.clone();
                descriptor.lost.clear();
                let to = (DeviceIndex(40 + u16::try_from(random.below(9)).expect("few")), ZoneIndex(3));
                let moves = vec![ColumnMove { column: 1, to }];
                let (old_zones, failure) = Default::default();
                table.resilvered(
                    id,
                    ResilveredSegment { descriptor, moves, old_zones, failure, is_ended: false },
                );
            }
            _ => {
                while let Some(Retired::Segment(id)) = pins.take_unpinned() {
                    table.free(id);
                }
                drop(table.edits());
                table.take_freed();
            }
        }
        most = most.max(table.segments.len());
        with_lost = with_lost.max(table.index.with_lost().len());
        assert!(table.index == table.counted_index(), "step {step}");
        assert_eq!(table.sums, table.counted(), "step {step}");
    }
    assert!(most > 20 && with_lost > 5, "{most} segments, {with_lost} of them with a lost column");
    // All references go as a recovery sets them, and the last segments with them.
    table.open().map(|(id, _)| id).collect::<Vec<_>>().into_iter().for_each(|id| table.seal(id, &pins));
    table.set_live(&HashMap::new(), &pins);
    while let Some(Retired::Segment(id)) = pins.take_unpinned() {
        table.free(id);
    }
    drop(table.edits());
    table.take_freed();
    assert!(table.segments.is_empty() && table.index == SegmentIndex::default());
}
