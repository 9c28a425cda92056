//! The rules of zoned and append-only devices.

use warpfire_env::{Device, DeviceError};
use warpfire_sim_env::{Cut, DeviceSpec, DiscardBehavior, Fault, Grain, Overwrite, SimWorld, Survival};

const BLOCK: u64 = 4096;

fn blocks(n: usize, fill: u8) -> Vec<u8> {
    vec![fill; n * 4096]
}

#[test]
fn a_zoned_device_refuses_to_go_back_to_skip_and_to_cross() {
    let world = SimWorld::of(1, 1, &DeviceSpec::zoned("z", 16 * BLOCK, 4 * BLOCK));
    let device = &world.sims()[0];
    device.write(0, &blocks(2, 1)).unwrap();
    for (what, offset, n) in [("back", BLOCK, 1), ("skip", 3 * BLOCK, 1), ("cross", 2 * BLOCK, 3)] {
        let refused = device.write(offset, &blocks(n, 2));
        assert!(matches!(refused, Err(DeviceError::Zone { .. })), "{what}: {refused:?}");
    }
    device.write(2 * BLOCK, &blocks(2, 3)).unwrap();
    device.write(4 * BLOCK, &blocks(4, 4)).unwrap();
    assert!(device.write(0, &blocks(1, 5)).is_err(), "a full zone takes nothing");
    device.reset_zone(0, 4 * BLOCK).unwrap();
    assert_eq!(device.peek(0, 4096), blocks(1, 0), "a zone that was reset reads as zeros");
    device.write(0, &blocks(1, 5)).unwrap();
    assert!(matches!(device.reset_zone(BLOCK, 4 * BLOCK), Err(DeviceError::Zone { .. })));
}

#[test]
fn a_drive_takes_writes_anywhere_in_its_first_zones_only() {
    let world = SimWorld::of(1, 1, &DeviceSpec::zoned_drive("z", 16 * BLOCK, 4 * BLOCK, (2, 1)));
    let device = &world.sims()[0];
    for offset in [3, 1, 1, 6] {
        device.write(offset * BLOCK, &blocks(1, 1)).unwrap();
    }
    assert_eq!(device.active_zones().unwrap(), [], "the first zones do not count");
    assert!(matches!(device.write(9 * BLOCK, &blocks(1, 2)), Err(DeviceError::Zone { .. })));
    device.write(8 * BLOCK, &blocks(1, 2)).unwrap();
    assert_eq!(device.active_zones().unwrap(), [8 * BLOCK]);
    device.flush().unwrap();
    // A cut may keep any of the writes to these zones, and a prefix of those to the others.
    device.write(0, &blocks(1, 3)).unwrap();
    device.write(2 * BLOCK, &blocks(1, 4)).unwrap();
    let kept = vec![vec![Survival::Nothing, Survival::Whole]];
    let after = world.cut(&Cut::Exactly(kept));
    assert_eq!(after.sims()[0].peek(0, 4096), blocks(1, 0));
    assert_eq!(after.sims()[0].peek(2 * BLOCK, 4096), blocks(1, 4));
}

#[test]
fn a_drive_refuses_one_zone_more_than_may_be_active() {
    let world = SimWorld::of(1, 1, &DeviceSpec::zoned_drive("z", 32 * BLOCK, 4 * BLOCK, (0, 2)));
    let device = &world.sims()[0];
    let refuses =
        |zone: u64| matches!(device.write(zone * 4 * BLOCK, &blocks(1, 1)), Err(DeviceError::Zone { .. }));
    assert!(!refuses(0) && !refuses(3) && refuses(5), "two zones are active");
    device.write(BLOCK, &blocks(3, 1)).unwrap();
    assert!(!refuses(5) && refuses(6), "a full zone is not active");
    device.finish_zone(12 * BLOCK, 4 * BLOCK).unwrap();
    assert!(!refuses(6) && refuses(7), "a zone that was finished is not active");
    assert!(device.write(13 * BLOCK, &blocks(1, 1)).is_err(), "and takes no writes");
    assert_eq!(device.peek(12 * BLOCK, 4096), blocks(1, 1), "and keeps its bytes");
    device.reset_zone(20 * BLOCK, 4 * BLOCK).unwrap();
    device.reset_zone(12 * BLOCK, 4 * BLOCK).unwrap();
    assert!(!refuses(3) && refuses(5), "a zone that was reset is empty");
}

#[test]
fn a_cut_zone_keeps_a_prefix_and_its_pointer_agrees() {
    let world = SimWorld::of(1, 1, &DeviceSpec::zoned("z", 8 * BLOCK, 8 * BLOCK));
    let device = &world.sims()[0];
    device.write(0, &blocks(1, 1)).unwrap();
    device.flush().unwrap();
    device.write(BLOCK, &blocks(3, 2)).unwrap();
    device.write(4 * BLOCK, &blocks(1, 3)).unwrap();
    let torn = Survival::Without { grain: Grain::Sector, missing: 9..10 };
    for (fates, kept) in [
        (vec![Survival::Nothing, Survival::Whole], 1),
        (vec![torn, Survival::Whole], 2),
        (vec![Survival::Whole, Survival::Nothing], 4),
        (vec![Survival::Whole, Survival::Whole], 5),
    ] {
        let after = world.cut(&Cut::Exactly(vec![fates.clone()]));
        let after = &after.sims()[0];
        let report = after.zone_report(0).unwrap().unwrap();
        assert_eq!(report.written_bytes, kept * BLOCK, "{fates:?}");
        after.write(report.written_bytes, &blocks(1, 9)).unwrap();
        let expected = [blocks(1, 1), blocks(3, 2), blocks(1, 3)].concat();
        let len = usize::try_from(report.written_bytes).unwrap();
        assert_eq!(after.peek(0, len), expected[..len]);
    }
}

#[test]
fn an_unflushed_reset_may_be_undone_by_a_cut() {
    let world = SimWorld::of(1, 1, &DeviceSpec::zoned("z", 4 * BLOCK, 4 * BLOCK));
    let device = &world.sims()[0];
    device.write(0, &blocks(2, 1)).unwrap();
    device.flush().unwrap();
    device.reset_zone(0, 4 * BLOCK).unwrap();
    device.write(0, &blocks(1, 2)).unwrap();
    let written = |cut| {
        let after = world.cut(&cut);
        (
            after.sims()[0].zone_report(0).unwrap().unwrap().written_bytes / BLOCK,
            after.sims()[0].peek(0, 4096)[0],
        )
    };
    assert_eq!(written(Cut::LoseAll), (2, 1));
    assert_eq!(written(Cut::Subset(0b10)), (2, 1), "nothing is written to a zone before its reset");
    assert_eq!(written(Cut::Subset(0b01)), (0, 0));
    assert_eq!(written(Cut::KeepAll), (1, 2));
}

#[test]
fn an_append_only_device_records_overwrites_until_a_discard() {
    let world = SimWorld::of(1, 1, &DeviceSpec::append_only("a", 16 * BLOCK));
    let device = &world.sims()[0];
    device.write(0, &blocks(2, 1)).unwrap();
    device.write(2 * BLOCK, &blocks(2, 1)).unwrap();
    assert_eq!(device.overwrites(), []);
    device.write(BLOCK, &blocks(2, 2)).unwrap();
    let overwrite = Overwrite { offset_bytes: BLOCK, len_bytes: 2 * BLOCK, overwrites_at_bytes: BLOCK };
    assert_eq!(device.overwrites(), [overwrite]);
    device.discard(0, 4 * BLOCK).unwrap();
    device.write(BLOCK, &blocks(2, 3)).unwrap();
    assert_eq!(device.overwrites().len(), 1);
}

/// The simulation took a write over the bytes of a misdirected one for a mistake of the product.
#[test]
fn a_misdirected_write_takes_no_block_into_use() {
    let world = SimWorld::of(1, 1, &DeviceSpec::append_only("a", 16 * BLOCK));
    let device = &world.sims()[0];
    device.write(4 * BLOCK, &blocks(1, 1)).unwrap();
    device.inject(Fault::MisdirectWrite { after: 0, to_offset_bytes: 4 * BLOCK });
    device.write(0, &blocks(2, 2)).unwrap();
    let cut = world.cut(&Cut::KeepAll);
    for device in [device, &cut.sims()[0]] {
        device.write(5 * BLOCK, &blocks(1, 3)).unwrap();
        assert_eq!(device.overwrites(), []);
        device.write(4 * BLOCK, &blocks(2, 3)).unwrap();
        assert_eq!(device.overwrites().len(), 1, "both blocks are in use by now");
    }
}

#[test]
fn a_discard_leaves_zeros_or_the_old_bytes() {
    for (leaves, fill) in [(DiscardBehavior::Zeros, 0), (DiscardBehavior::Old, 7)] {
        let spec = DeviceSpec { discard_behavior: leaves, ..DeviceSpec::conventional("d", 4 * BLOCK) };
        let world = SimWorld::of(1, 1, &spec);
        world.sims()[0].write(0, &blocks(1, 7)).unwrap();
        world.sims()[0].discard(0, 4 * BLOCK).unwrap();
        assert_eq!(world.sims()[0].peek(0, 4096), blocks(1, fill));
    }
}
