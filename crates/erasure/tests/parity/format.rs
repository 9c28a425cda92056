//! The published numbers of `docs/FORMAT.md`, "Parity".

use warpfire_erasure::{Code, Kernel};

#[test]
fn coefficients_are_those_of_the_format() {
    let columns = [0, 1, 2, 3, 4, 5, 6, 7, 100, 241];
    let golden: [[u8; 10]; 8] = [
        [0x01, 0x7f, 0xe2, 0x80, 0xc8, 0x6e, 0xc3, 0xd2, 0xf2, 0xf5],
        [0x01, 0xfc, 0xff, 0x1d, 0x86, 0xbd, 0x90, 0x17, 0x8d, 0x87],
        [0x01, 0x7e, 0xe6, 0x83, 0x76, 0x56, 0x22, 0xa3, 0xcd, 0x28],
        [0x01, 0xfe, 0xfd, 0x1b, 0x14, 0xa2, 0x4b, 0x57, 0xaa, 0x5f],
        [0x01, 0xe9, 0xb4, 0xc7, 0xd2, 0x9a, 0x39, 0x61, 0xa5, 0xc4],
        [0x01, 0x74, 0x85, 0x60, 0xe4, 0x2f, 0x1e, 0xc6, 0x68, 0x40],
        [0x01, 0x43, 0xeb, 0x24, 0xda, 0x9f, 0x35, 0x66, 0x62, 0xb2],
        [0x01, 0xd5, 0xcc, 0x9e, 0xe0, 0x25, 0x18, 0xc8, 0xe7, 0x52],
    ];
    for (row, golden) in golden.iter().enumerate() {
        assert_eq!(columns.map(|column| Code::coefficient(row, column)), *golden, "row {row}");
    }
}

fn parity(data: &[&[u8]], rows: usize, kernel: Kernel) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0xff; data[0].len()]; rows];
    let code = Code::with_kernel(data.len(), rows, kernel).expect("the shape exists");
    code.encode(data, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
    parity
}

#[test]
fn the_narrow_golden_vector_comes_out_of_every_kernel() {
    let golden = [[0xcb, 0xbb, 0x8c, 0xe2], [0x7c, 0xf4, 0xd5, 0xb9], [0x65, 0x12, 0x36, 0x5f]];
    for kernel in Kernel::available() {
        assert_eq!(parity(&[b"warp", b"fire", b"2026"], 3, kernel), golden, "{}", kernel.name());
    }
}

#[test]
fn the_wide_golden_vector_comes_out_of_every_kernel() {
    let golden: [u64; 8] = [
        0xde94_c659_2f12,
        0x6ad6_6dde_3cc4,
        0x3764_49ad_b961,
        0x8444_b02c_8d61,
        0x9441_3e46_ec4c,
        0xca27_972f_9bd6,
        0x3864_455d_a43d,
        0xbd29_1a4c_947b,
    ];
    let golden = golden.map(|row| row.to_be_bytes()[2..].to_vec());
    let data: Vec<Vec<u8>> =
        (0..242).map(|j| (0..6).map(|b| ((7 * j + 13 * b) % 256) as u8).collect()).collect();
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    for kernel in Kernel::available() {
        assert_eq!(parity(&data, 8, kernel), golden, "{}", kernel.name());
    }
}
