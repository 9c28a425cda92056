//! Every loss within parity is reconstructed, on every kernel.

use crate::stripe::{Random, Stripe};
use warpfire_erasure::{Code, Kernel, scalar};

/// Every set of at most `most` numbers below `limit`, the empty one included.
fn subsets(limit: usize, most: usize) -> impl Iterator<Item = Vec<usize>> {
    (0_u32..1 << limit)
        .filter(move |set| set.count_ones() as usize <= most)
        .map(move |set| (0..limit).filter(|bit| set >> bit & 1 == 1).collect())
}

#[test]
fn every_loss_of_every_small_shape_is_reconstructed() {
    for kernel in Kernel::available() {
        for (data, parity) in (1..=6).flat_map(|data| (0..=4).map(move |parity| (data, parity))) {
            let stripe = Stripe::new(data, parity, 67, kernel, &mut Random(7));
            for lost in subsets(data + parity, parity) {
                stripe.survives(&lost, "all patterns");
            }
        }
    }
}

#[test]
fn random_losses_of_wide_shapes_are_reconstructed() {
    for kernel in Kernel::available().filter(|kernel| *kernel != Kernel::Scalar) {
        for (data, parity) in [(10, 4), (242, 8), (249, 1), (248, 2), (100, 7), (17, 5), (31, 3), (2, 8)] {
            let seed = (data * 10 + parity) as u64;
            let mut random = Random(seed);
            for len in [4096, 1 + random.below(1000)] {
                let stripe = Stripe::new(data, parity, len, kernel, &mut random);
                for _ in 0..12 {
                    let count = 1 + random.below(parity);
                    let lost = random.choose(count, data + parity);
                    stripe.survives(&lost, format_args!("{len} bytes, seed {seed}"));
                }
            }
        }
    }
}

#[test]
fn one_shard_is_reconstructed_while_others_stay_lost() {
    let stripe = Stripe::new(6, 4, 100, Kernel::best(), &mut Random(1));
    for lost in subsets(10, 4).filter(|lost| !lost.is_empty()) {
        for &wanted in &lost {
            assert_eq!(
                stripe.reconstruct(&lost, &[wanted]).unwrap(),
                [stripe.shards[wanted].clone()],
                "{lost:?}"
            );
        }
    }
}

#[test]
fn the_oracle_recovers_data_from_the_parity_of_the_kernels() {
    let mut random = Random(3);
    let stripe = Stripe::new(60, 8, 40, Kernel::best(), &mut random);
    let lost = random.choose(8, 68);
    assert_eq!(scalar::recover_data(60, &stripe.present(&lost)).unwrap(), stripe.shards[..60]);
}

#[test]
fn with_one_data_column_parity_is_a_mirror() {
    for kernel in Kernel::available() {
        let stripe = Stripe::new(1, 8, 4096, kernel, &mut Random(4));
        assert!(stripe.shards.iter().all(|shard| *shard == stripe.shards[0]));
    }
}

#[test]
fn a_stripe_with_columns_of_zeros_has_the_parity_of_a_narrower_one() {
    let narrow = Stripe::new(3, 2, 64, Kernel::best(), &mut Random(5));
    let zeros = [0; 64];
    let mut data: Vec<&[u8]> = narrow.shards[..3].iter().map(Vec::as_slice).collect();
    data.resize(200, &zeros);
    let (mut p, mut q) = ([0; 64], [0; 64]);
    Code::new(200, 2).unwrap().encode(&data, &mut [&mut p, &mut q]);
    assert_eq!([p.to_vec(), q.to_vec()], narrow.shards[3..]);
}
