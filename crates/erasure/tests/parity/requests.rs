//! Requests that a code cannot serve are errors, and leave the buffers unchanged.

use crate::stripe::{Random, Stripe};
use warpfire_erasure::{Code, ErasureError, Kernel};

fn stripe() -> Stripe {
    Stripe::new(4, 2, 16, Kernel::best(), &mut Random(6))
}

#[test]
fn shapes_have_limits() {
    for (data, parity) in [(1, 0), (1, 8), (249, 1), (242, 8), (250, 0)] {
        assert_eq!(Code::new(data, parity).map(|code| (code.data(), code.parity())), Ok((data, parity)));
    }
    for (data, parity) in
        [(0, 0), (0, 2), (1, 9), (243, 8), (250, 1), (251, 0), (usize::MAX, 8), (1, usize::MAX)]
    {
        assert_eq!(Code::new(data, parity).err(), Some(ErasureError::Shape { data, parity }));
    }
}

#[test]
fn too_many_losses_are_an_error() {
    assert_eq!(
        stripe().reconstruct(&[0, 2, 5], &[0]),
        Err(ErasureError::TooManyLost { present: 3, needed: 4 })
    );
    let nothing = stripe().reconstruct(&[0, 1, 2, 3, 4, 5], &[0]);
    assert_eq!(nothing, Err(ErasureError::TooManyLost { present: 0, needed: 4 }));
}

#[test]
fn a_shard_that_the_code_does_not_have_is_an_error() {
    assert_eq!(stripe().reconstruct(&[0], &[6]), Err(ErasureError::NoSuchShard { index: 6, shards: 6 }));
}

#[test]
fn a_shard_is_either_present_or_wanted() {
    assert_eq!(stripe().reconstruct(&[0], &[1]), Err(ErasureError::NamedTwice { index: 1 }));
    assert_eq!(stripe().reconstruct(&[0, 1], &[1, 1]), Err(ErasureError::NamedTwice { index: 1 }));
}

#[test]
fn shards_of_unequal_length_are_an_error() {
    let stripe = stripe();
    let mut short = [0xee; 15];
    let found = stripe.code.reconstruct(&stripe.present(&[0]), &mut [(0, &mut short)]);
    assert_eq!(found, Err(ErasureError::Length { index: 0, expected_bytes: 16, found_bytes: 15 }));
    assert_eq!(short, [0xee; 15]);
}

#[test]
fn a_request_for_no_shard_succeeds() {
    assert_eq!(stripe().reconstruct(&[], &[]), Ok(vec![]));
}
