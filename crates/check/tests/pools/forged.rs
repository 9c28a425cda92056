//! Structures with right checksums and wrong content. The check ends with a report or an error for each of
//! them.

use warpfire_check::{CheckOptions, FindingCode, check};
use warpfire_format::crc32c;
use warpfire_format::log_state::LogState;
use warpfire_format::manifest::{ManifestEdit, TableDescriptor};
use warpfire_format::root::{RootHeader, encode_body};
use warpfire_format::segment::{SegmentDescriptor, SegmentKind, StripeRun};
use warpfire_format::state_frame::SavedState;
use warpfire_format::stripe::StripeHeader;
use warpfire_format::table::TopIndex;
use warpfire_sim_env::{SimDevice, SimWorld};
use warpfire_units::{SegmentId, ZoneIndex};

use crate::rig::{RigRandom, SHAPES, ZONE_BYTES, checked, live, make, world};

fn lived(seed: u64) -> SimWorld {
    let shape = SHAPES[0];
    let world = world(shape, seed);
    let fs = make(&world, shape);
    live(&fs, seed, 150);
    fs.sync().expect("sound devices do not fail");
    world
}

/// Changes some bytes, mostly to values at the ends of their range.
fn garble(bytes: &mut [u8], draw: &mut RigRandom) {
    for _ in 0..=draw.below(3) {
        let at = draw.below(bytes.len() as u64) as usize;
        let value = [0, 1, 0x7f, 0x80, 0xff, draw.below(256) as u8][draw.below(6) as usize];
        let run = draw.below(9) as usize;
        for byte in bytes.iter_mut().skip(at).take(1 + run) {
            *byte = value;
        }
    }
}

/// The byte of the newest root on device 0, and its header.
fn newest_root(world: &SimWorld) -> (u64, RootHeader) {
    let sim = &world.sims()[0];
    let blocks = (0..2 * ZONE_BYTES / 4096).map(|block| block * 4096);
    let found = blocks.filter_map(|at| Some((at, RootHeader::decode(&sim.peek(at, 4096)).ok()?)));
    found.max_by_key(|(_, h)| (h.epoch, h.sequence)).expect("the pool has a root")
}

/// The state in a root, laid open.
struct ForgedState {
    log: LogState,
    segments: Vec<SegmentDescriptor>,
}

/// Rewrites the newest root of a one-device pool.
fn forge_root(world: &SimWorld, forge: impl FnOnce(&mut ForgedState, &mut ManifestEdit)) -> SimWorld {
    forge_payload(world, |payload| {
        let (log, frames) = LogState::decode(payload).expect("the newest root is the log's");
        assert!(log.state_chain.is_empty(), "a small pool has its whole state in the root");
        let mut saved = SavedState::default();
        saved.apply(frames, log.next_segment).expect("its state decodes");
        let manifest = ManifestEdit::decode(&saved.client).expect("its state decodes");
        let mut manifest = manifest.expect("it is a manifest");
        let mut state = ForgedState { log, segments: saved.segments.into_values().collect() };
        forge(&mut state, &mut manifest);
        let segments = state.segments.into_iter().map(|d| (d.id, d)).collect();
        state.log.encode(&SavedState { segments, client: manifest.encode() }.encode())
    })
}

/// Rewrites the payload of the newest root of a one-device pool.
fn forge_payload(world: &SimWorld, forge: impl FnOnce(&[u8]) -> Vec<u8>) -> SimWorld {
    let fork = world.fork();
    let (at, mut header) = newest_root(world);
    let body = fork.sims()[0].peek(at + 4096, (header.record_blocks() as usize - 1) * 4096);
    let (devices, payload) = header.decode_body(&body).expect("the newest root is whole");
    let body = encode_body(&devices, &forge(payload));
    header.body_bytes = body.len() as u32;
    header.body_crc = crc32c(&body);
    let mut record = vec![0; header.record_blocks() as usize * 4096];
    header.encode(&mut record[..4096]);
    record[4096..4096 + body.len()].copy_from_slice(&body);
    fork.sims()[0].poke(at, &record);
    fork
}

#[test]
fn a_log_state_of_another_version_is_named() {
    let forged = forge_payload(&lived(24), |payload| [&payload[..4], &[9], &payload[5..]].concat());
    let refused = check(&forged.devices(), &CheckOptions::default()).expect_err("another version");
    let said = "the pool was made by another version of warpfire: its log state has format 9";
    assert!(refused.to_string().starts_with(said), "{refused}");
}

#[test]
fn a_root_that_contradicts_the_structures_it_names_is_reported() {
    type RootForge<'a> = (FindingCode, &'a dyn Fn(&mut ForgedState, &mut ManifestEdit));
    let cases: &[RootForge<'_>] = &[
        (FindingCode::TableCounts, &|_, m| m.added[0].entries += 1),
        (FindingCode::TableCounts, &|_, m| m.added[0].seq_max.0 += 1),
        (FindingCode::TableReferences, &|_, m| m.added[0].references.push((SegmentId::new(77).unwrap(), 5))),
        (FindingCode::TableKeys, &|_, m| m.added[0].largest.push(0)),
        (FindingCode::TableKeys, &|_, m| m.added[0].smallest.truncate(3)),
        (FindingCode::TableBlock, &|_, m| m.added[0].top_len_bytes -= 1),
        (FindingCode::SliceOutside, &|_, m| m.added[0].slices[0].offset_bytes += 1 << 40),
        (FindingCode::Runs, &|_, m| m.runs.clear()),
        (FindingCode::Runs, &|_, m| m.past.clone_from(&m.runs)),
        (FindingCode::PastSpan, &|_, m| m.past = std::mem::take(&mut m.runs)),
        (FindingCode::Runs, &|_, m| {
            let run = m.added[0].run;
            let twin = TableDescriptor { id: m.next_table, run, ..m.added[0].clone() };
            m.next_table += 1;
            m.added.push(twin);
        }),
        (FindingCode::ManifestEdit, &|_, m| m.next_table = 1),
        (FindingCode::ZoneTwice, &|s, _| {
            let columns = s.log.chain[0].columns.clone();
            s.segments[0].columns = columns;
        }),
        (FindingCode::ZoneOutside, &|s, _| s.segments[0].columns[0].1 = ZoneIndex(9_999)),
        (FindingCode::SegmentTooLong, &|s, _| s.segments[0].stripes.push(StripeRun { rows: 255, count: 99 })),
        (FindingCode::HeadersDisagree, &|s, _| s.segments[0].stripes[0].rows -= 1),
        (FindingCode::HeaderForeign, &|s, _| s.segments[0].epoch += 1),
        (FindingCode::HeaderDamaged, &|s, _| s.segments[0].columns[0].1 = ZoneIndex(95)),
        (FindingCode::LogStripeLost, &|s, _| {
            // More than the copy of the root behind the listed ones.
            s.log.chain[0].stripes.push(StripeRun { rows: 0, count: 3 });
            s.log.sequence += 3;
        }),
    ];
    let shape = SHAPES[0];
    let world = world(shape, 23);
    let fs = make(&world, shape);
    live(&fs, 23, 400);
    fs.close().expect("sound devices do not fail");
    assert!(checked(&world.devices()).findings.is_empty());
    for (number, (code, forge)) in cases.iter().enumerate() {
        let forged = forge_root(&world, forge);
        let report = checked(&forged.devices());
        let found = report.findings.iter().any(|f| f.code == *code);
        assert!(found && !report.is_clean(), "case {number}, {code:?}: {:?}", report.findings);
    }
}

#[test]
fn no_root_makes_the_check_panic() {
    let world = lived(21);
    let (at, header) = newest_root(&world);
    let mut draw = RigRandom(5);
    for _ in 0..400 {
        let fork = world.fork();
        let blocks = header.record_blocks() as usize;
        let mut record = fork.sims()[0].peek(at, blocks * 4096);
        let body_bytes = header.body_bytes as usize;
        garble(&mut record[4096..4096 + body_bytes], &mut draw);
        let mut header = header.clone();
        header.body_crc = crc32c(&record[4096..4096 + body_bytes]);
        header.encode(&mut record[..4096]);
        fork.sims()[0].poke(at, &record);
        // Some numbers may grow without a contradiction, so a report without findings is right too.
        _ = check(&fork.devices(), &CheckOptions::default());
    }
}

#[test]
fn no_log_makes_the_check_panic() {
    let world = lived(22);
    let sim = &world.sims()[0];
    let mut stripes = Vec::new();
    for block in 2 * ZONE_BYTES / 4096..20 * ZONE_BYTES / 4096 {
        let bytes = sim.peek(block * 4096, 4096);
        if let Ok(stripe) = StripeHeader::decode(&bytes)
            && !stripe.inline().is_empty()
        {
            stripes.push((block * 4096, stripe.header));
        }
    }
    assert!(stripes.len() > 5, "the log has stripes");
    let mut draw = RigRandom(6);
    for _ in 0..400 {
        let fork = world.fork();
        let (at, header) = stripes[draw.below(stripes.len() as u64) as usize];
        let mut block = fork.sims()[0].peek(at, 4096);
        let crcs: Vec<u32> = StripeHeader::decode(&block).unwrap().crcs().collect();
        let start = 64 + 4 * crcs.len();
        let inline = (header.payload_bytes as usize).min(4096 - start);
        garble(&mut block[start..start + inline], &mut draw);
        header.encode(&mut block, &crcs);
        fork.sims()[0].poke(at, &block);
        check(&fork.devices(), &CheckOptions::default()).expect("the roots are whole");
    }
}

/// The stripes in the first zones of a device: byte, header and bytes of the shard.
fn stripes_on(sim: &SimDevice) -> Vec<(u64, StripeHeader, Vec<u8>)> {
    let mut found = Vec::new();
    for at in (2 * ZONE_BYTES..30 * ZONE_BYTES).step_by(4096) {
        if let Ok(block) = StripeHeader::decode(&sim.peek(at, 4096)) {
            let bytes = sim.peek(at, (1 + usize::from(block.header.rows)) * 4096);
            found.push((at, block.header, bytes));
        }
    }
    found
}

/// Writes a shard with right checksums for its changed rows.
fn reseal(sim: &SimDevice, at: u64, header: &StripeHeader, bytes: &mut [u8]) {
    let (head, rows) = bytes.split_at_mut(4096);
    let crcs: Vec<u32> = rows.chunks(4096).map(crc32c).collect();
    header.encode(head, &crcs);
    sim.poke(at, bytes);
}

#[test]
fn wrong_parity_is_found_under_right_checksums() {
    for shape in [SHAPES[1], SHAPES[3]] {
        let world = world(shape, 24);
        let fs = make(&world, shape);
        live(&fs, 24, 300);
        fs.close().expect("sound devices do not fail");
        let mut found = 0;
        for (at, header, bytes) in stripes_on(&world.sims()[0]).into_iter().filter(|(_, h, _)| h.rows > 0) {
            let fork = world.fork();
            let mut bytes = bytes;
            bytes[4096 + 99] ^= 1;
            reseal(&fork.sims()[0], at, &header, &mut bytes);
            let report = checked(&fork.devices());
            found += u64::from(report.findings.iter().any(|f| f.code == FindingCode::ParityDisagrees));
        }
        assert!(found > 0, "{shape:?}");
    }
}

#[test]
fn copies_of_the_log_that_differ_are_found_under_right_checksums() {
    let shape = SHAPES[1];
    let world = world(shape, 25);
    let fs = make(&world, shape);
    live(&fs, 25, 120);
    fs.sync().expect("sound devices do not fail");
    drop(fs);
    let mut found = 0;
    for (at, header, bytes) in stripes_on(&world.sims()[1]).into_iter().filter(|(_, h, _)| h.rows == 0) {
        let fork = world.fork();
        let mut bytes = bytes;
        bytes[64 + 20] ^= 1;
        reseal(&fork.sims()[1], at, &header, &mut bytes);
        let report = checked(&fork.devices());
        found += u64::from(report.findings.iter().any(|f| f.code == FindingCode::ParityDisagrees));
    }
    assert!(found > 0);
}

#[test]
fn padding_that_is_not_zero_is_found_under_right_checksums() {
    let shape = SHAPES[0];
    let world = world(shape, 26);
    let fs = make(&world, shape);
    live(&fs, 26, 300);
    fs.close().expect("sound devices do not fail");
    let mut found = 0;
    let short = |h: &StripeHeader| {
        h.identity.kind == SegmentKind::Bulk && !h.payload_bytes.is_multiple_of(4096) && h.rows > 0
    };
    for (at, header, mut bytes) in stripes_on(&world.sims()[0]).into_iter().filter(|(_, h, _)| short(h)) {
        let fork = world.fork();
        *bytes.last_mut().unwrap() ^= 1;
        reseal(&fork.sims()[0], at, &header, &mut bytes);
        let report = checked(&fork.devices());
        found += u64::from(report.findings.iter().any(|f| f.code == FindingCode::PaddingNotZero));
    }
    assert!(found > 0);
}

/// A filter without its keys hides them from every reader, although nothing else is wrong.
#[test]
fn a_filter_without_its_keys_is_found_under_right_checksums() {
    let shape = SHAPES[0];
    let world = world(shape, 27);
    let fs = make(&world, shape);
    live(&fs, 27, 400);
    fs.close().expect("sound devices do not fail");
    let sim = &world.sims()[0];
    let mut table = None;
    forge_root(&world, |_, manifest| table = manifest.added.first().cloned());
    let table = table.expect("a life leaves tables");
    let slice = table.slices[0];
    assert_eq!(table.slices.len(), 1, "a small table is one slice");
    let mut stripes: Vec<_> =
        stripes_on(sim).into_iter().filter(|(_, h, _)| h.identity.segment == slice.segment).collect();
    stripes.sort_by_key(|(_, h, _)| h.identity.stripe);
    let payload: Vec<u8> = stripes.iter().flat_map(|(_, _, bytes)| bytes[4096..].to_vec()).collect();
    let start = slice.offset_bytes as usize;
    let end = start + table.len_bytes as usize;
    let top = TopIndex::decode(&payload[end - table.top_len_bytes as usize..end]).expect("the top decodes");
    let place = top.partitions()[0];
    let block = start + place.offset as usize..start + (place.offset + place.len) as usize;
    let mut forged = payload.clone();
    forged[block.end - 64..block.end].fill(0);
    let crc = crc32c(&forged[block.start + 4..block.end]);
    forged[block.start..block.start + 4].copy_from_slice(&crc.to_le_bytes());
    let mut rest = &forged[..];
    for (at, header, mut bytes) in stripes {
        let (own, after) = rest.split_at(bytes.len() - 4096);
        bytes[4096..].copy_from_slice(own);
        reseal(sim, at, &header, &mut bytes);
        rest = after;
    }
    let report = checked(&world.devices());
    let codes: Vec<FindingCode> = report.findings.iter().map(|f| f.code).collect();
    assert!(
        !codes.is_empty() && codes.iter().all(|c| *c == FindingCode::TableIndex),
        "{:?}",
        report.findings
    );
}
