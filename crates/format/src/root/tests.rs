//! Tests of roots: exact bytes, and each value that is refused.

use super::samples::{sample, table};
use super::*;
use crate::pool_label::LABEL;

#[test]
fn golden_bytes() {
    let body = encode_body(&table(), b"state");
    assert_eq!(body.len(), 197);
    assert_eq!(body[64..88], [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(body[88..112], [1, 0, 0, 0, 2, 0, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(body[112..128], [0; 16]);
    assert_eq!(body[148..150], [4, 3], "the third device is kept offline, and leaves");
    let mut block = vec![0xEE; BLOCK_BYTES];
    sample(&body).encode(&mut block);
    let golden = [
        b'W', b'f', b'R', b't', 2, 1, 2, 0, 1, 0, 3, 0, // magic to number of devices
        0x99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // pool
        2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // device
        5, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 1, 0, 0, 197, 0, 0, 0, // sequence to body bytes
    ];
    assert_eq!(block[4..68], golden);
    assert_eq!(block[72..80], [255; 8]);
    assert_eq!(block[80..96], [0, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(block[96..104], *b"tank \xc3\xa9\0");
    assert_eq!(block[160..184], [3, 0, 0, 0, 0, 0, 0, 0, 0x55, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0]);
    assert_eq!(block[184..208], [3, 0, 0, 0, 3, 0, 0, 0, 0x44, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(block[208..216], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(RootHeader::decode(&block), Ok(sample(&body)));
}

#[test]
fn a_body_decodes_only_with_its_own_bytes_and_zero_padding() {
    let mut padded = encode_body(&table(), b"state");
    let header = sample(&padded);
    padded.resize(BLOCK_BYTES, 0);
    assert_eq!(header.decode_body(&padded), Ok((table(), &b"state"[..])));
    for at in 0..BLOCK_BYTES {
        padded[at] ^= 1;
        let wanted = if at < 197 { BODY } else { PADDING };
        assert_eq!(header.decode_body(&padded), Err(wanted), "byte {at}");
        padded[at] ^= 1;
    }
    assert_eq!(header.decode_body(&padded[..196]), Err(BODY));
}

#[test]
fn a_table_names_each_device_once_and_this_one_in_its_place() {
    let mut twice = table();
    twice[2] = twice[0];
    let mut moved = table();
    moved.swap(0, 1);
    for bad in [twice, moved] {
        let body = encode_body(&bad, b"");
        assert_eq!(sample(&body).decode_body(&body), Err(TABLE));
    }
}

fn resealed(block: &[u8], at: usize, value: u8) -> Vec<u8> {
    let mut bad = block.to_vec();
    bad[at] = value;
    let crc = crc32c(&bad[4..]);
    bad[..4].copy_from_slice(&crc.to_le_bytes());
    bad
}

#[test]
fn each_field_is_held_to_its_range() {
    let mut block = vec![0; BLOCK_BYTES];
    sample(&encode_body(&table(), b"")).encode(&mut block);
    assert_eq!(RootHeader::decode(&vec![0; BLOCK_BYTES]), Err(MAGIC_BAD));
    assert_eq!(RootHeader::decode(&block[..80]), Err(MAGIC_BAD));
    let mut torn = block.clone();
    torn[600] = 1;
    assert_eq!(RootHeader::decode(&torn), Err(CHECKSUM));
    let cases = [
        (8, 1, VERSION_BAD),
        (8, 3, VERSION_BAD),
        (9, 9, FIELD),
        (10, 0, FIELD),
        (12, 3, FIELD),
        (15, 2, FIELD),
        (16, 0, FIELD),
        (32, 0, FIELD),
        (48, 0, FIELD),
        (56, 0, FIELD),
        (61, 0, FIELD),
        (64, 191, FIELD),
        (66, 16, FIELD),
        (80, 1, WISHES),
        (80, 4, FEATURES),
        (87, 0x80, FEATURES),
        (96, 0, LABEL),
        (97, 7, LABEL),
        (102, 0xff, LABEL),
        (159, 1, LABEL),
        (168, 0, HISTORY),
        (176, 4, HISTORY),
        (177, 17, HISTORY),
        (177, 3, HISTORY),
        (178, 1, PADDING),
        (184, 4, HISTORY),
        (188, 4, HISTORY),
        (192, 0, HISTORY),
        (208, 3, HISTORY),
        (212, 1, HISTORY),
        (232, 1, PADDING),
    ];
    for (at, value, error) in cases {
        assert_eq!(RootHeader::decode(&resealed(&block, at, value)), Err(error), "byte {at} is {value}");
    }
}

#[test]
fn wishes_follow_the_sessions_of_a_root_that_has_some() {
    let body = encode_body(&table(), b"");
    let wishes = RootWishes { shape_since: 0x0102, older_parity: 2, converts: true, spare_space: 3 };
    let header = RootHeader { wishes, ..sample(&body) };
    let mut block = vec![0; BLOCK_BYTES];
    header.encode(&mut block);
    assert_eq!(block[80..88], [1, 0, 0, 0, 0, 0, 0, 0]);
    let golden = [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(block[232..256], golden);
    assert_eq!(RootHeader::decode(&block), Ok(header));
    assert_eq!(head_bytes(&block), Some(256));
    let cases = [(240, 251), (242, 9), (243, 2), (244, 1), (255, 1)];
    for (at, value) in cases {
        assert_eq!(RootHeader::decode(&resealed(&block, at, value)), Err(WISHES), "byte {at} is {value}");
    }
    let no_older =
        [(232, 0), (233, 0)].iter().fold(block, |block, (at, value)| resealed(&block, *at, *value));
    assert_eq!(RootHeader::decode(&no_older), Err(WISHES), "older than the first segment");
}

#[test]
fn an_intact_root_of_another_version_or_with_unknown_features_is_named() {
    let mut block = vec![0; BLOCK_BYTES];
    sample(&encode_body(&table(), b"")).encode(&mut block);
    assert_eq!(unsupported(&block), None);
    assert_eq!(unsupported(&resealed(&block, 8, 1)), Some(Unsupported::Version(1)));
    assert_eq!(unsupported(&resealed(&block, 81, 2)), Some(Unsupported::Features(0x200)));
    let mut damaged = resealed(&block, 8, 1);
    damaged[3000] ^= 1;
    assert_eq!(unsupported(&damaged), None);
    assert_eq!(unsupported(&[0; BLOCK_BYTES]), None);
    assert_eq!(unsupported(&[]), None);
}

#[test]
fn a_table_entry_is_held_to_its_range() {
    let body = encode_body(&table(), b"");
    for (at, value) in [
        (20, 0),
        (20, 2),
        (20, 3),
        (20, 6),
        (21, 2),
        (21, 3),
        (21, 5),
        (21, 8),
        (149, 7),
        (22, 1),
        (148, 5),
        (24, 0),
        (28, 0),
        (32, 0),
        (40, 0),
        (48, 1),
    ] {
        let mut bad = body.clone();
        bad[at] = value;
        assert_eq!(sample(&bad).decode_body(&bad), Err(TABLE), "byte {at} is {value}");
    }
    let life = DeviceLife { written_bytes: 0x0102, resets: 3 };
    let lived = DeviceEntry { life, ..table()[1] };
    let with_life = encode_body(&[table()[0], lived, table()[2]], b"");
    assert_eq!(with_life[112..128], [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    let counting = RootHeader { counts_lives: true, ..sample(&with_life) };
    assert_eq!(counting.decode_body(&with_life).unwrap().0[1], lived);
    let mut block = vec![0; BLOCK_BYTES];
    counting.encode(&mut block);
    assert_eq!((block[80], RootHeader::decode(&block)), (2, Ok(counting)));
    // Each table has one encoding: the feature is there exactly if something is counted.
    assert_eq!(sample(&with_life).decode_body(&with_life), Err(TABLE));
    let without = RootHeader { counts_lives: true, ..sample(&body) };
    assert_eq!(without.decode_body(&body), Err(TABLE));
    let spare = DeviceEntry { is_spare: true, ..table()[0] };
    let with_spare = encode_body(&[spare, table()[1], table()[2]], b"");
    assert_eq!(with_spare[21], 4);
    let (decoded, _) = sample(&with_spare).decode_body(&with_spare).unwrap();
    assert_eq!(decoded[0], spare);
}

proptest::proptest! {
    #[test]
    fn never_panics_on_arbitrary_bytes(
        edits in proptest::collection::vec((8usize..240, 0u8..=255), 0..12),
        body in proptest::collection::vec(0u8..=2, 0..200),
    ) {
        let mut block = vec![0; BLOCK_BYTES];
        sample(&encode_body(&table(), b"")).encode(&mut block);
        for (at, value) in edits {
            block = resealed(&block, at, value);
        }
        if let Ok(mut h) = RootHeader::decode(&block) {
            let mut encoded_again = vec![0; BLOCK_BYTES];
            h.encode(&mut encoded_again);
            proptest::prop_assert_eq!(encoded_again, block);
            h.body_bytes = u32::try_from(body.len()).unwrap();
            h.body_crc = crc32c(&body);
            let _decoded_or_refused = h.decode_body(&body);
        }
    }
}
