//! Measures encoding and reconstruction: prints GB of data shards per second on one core, best and median of
//! many runs.
//!
//! `cargo run --release -p warpfire-erasure --example parity_rate`

use warpfire_env::{AlignedBuf, Clock, SystemClock};
use warpfire_erasure::{Code, ErasureError, Kernel};

const SHARD_BYTES: usize = 64 << 10;
const SHAPES: [(usize, usize); 4] = [(1, 1), (4, 2), (10, 4), (242, 8)];

/// Bytes of data in each measurement: enough to be timed, and few enough to repeat it.
const RUN_BYTES: usize = 64 << 20;
const RUNS: usize = 21;

/// The scalar kernel is about a hundred times slower, so it processes this many times fewer bytes.
const SCALAR_SHARE: usize = 64;

fn main() -> Result<(), ErasureError> {
    println!("shards of {} KiB; GB of data per second, best (median) of {RUNS} runs", SHARD_BYTES >> 10);
    println!(
        "{:10} {:>6} {:>16} {:>16} {:>16}",
        "kernel", "shape", "encode", "1 shard lost", "m shards lost"
    );
    for kernel in Kernel::available() {
        for (data, parity) in SHAPES {
            let mut stripe = Stripe::new(data, parity, kernel)?;
            let encode = stripe.rate(Stripe::encode);
            let one = stripe.rate(|stripe| stripe.reconstruct(1));
            let all = stripe.rate(|stripe| stripe.reconstruct(stripe.code.parity()));
            let shape = format!("{data}+{parity}");
            println!("{:10} {shape:>6} {encode:>16} {one:>16} {all:>16}", kernel.name());
        }
    }
    Ok(())
}

struct Stripe {
    code: Code,
    shards: Vec<AlignedBuf>,
    reconstructed: Vec<AlignedBuf>,
}

impl Stripe {
    fn new(data: usize, parity: usize, kernel: Kernel) -> Result<Stripe, ErasureError> {
        let fill = |shard: usize| {
            let mut bytes = AlignedBuf::zeroed(SHARD_BYTES);
            for (i, byte) in bytes.iter_mut().enumerate() {
                *byte = (i * 31 + shard * 7 + (i >> 8)) as u8;
            }
            bytes
        };
        Ok(Stripe {
            code: Code::with_kernel(data, parity, kernel)?,
            shards: (0..data + parity).map(fill).collect(),
            reconstructed: (0..parity).map(|_| AlignedBuf::zeroed(SHARD_BYTES)).collect(),
        })
    }

    fn encode(&mut self) {
        let (data, parity) = self.shards.split_at_mut(self.code.data());
        let data: Vec<&[u8]> = data.iter().map(|shard| &**shard).collect();
        let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(|shard| &mut **shard).collect();
        self.code.encode(&data, &mut parity);
    }

    /// Reconstructs the first `lost` shards.
    fn reconstruct(&mut self, lost: usize) {
        let present: Vec<(usize, &[u8])> =
            self.shards.iter().map(|shard| &**shard).enumerate().skip(lost).take(self.code.data()).collect();
        let mut wanted: Vec<(usize, &mut [u8])> =
            self.reconstructed.iter_mut().map(|shard| &mut **shard).enumerate().take(lost).collect();
        self.code.reconstruct(&present, &mut wanted).expect("parity covers the lost shards");
    }

    fn rate(&mut self, work: impl Fn(&mut Stripe)) -> String {
        let share = if self.code.kernel() == Kernel::Scalar { SCALAR_SHARE } else { 1 };
        let stripe_bytes = self.code.data() * SHARD_BYTES;
        let rounds = (RUN_BYTES / share / stripe_bytes).max(1);
        let mut rates: Vec<f64> = (0..RUNS)
            .map(|_| {
                let start = SystemClock.monotonic_nanos();
                (0..rounds).for_each(|_| work(self));
                (rounds * stripe_bytes) as f64 / (SystemClock.monotonic_nanos() - start) as f64
            })
            .collect();
        rates.sort_by(f64::total_cmp);
        format!("{:.1} ({:.1})", rates[RUNS - 1], rates[RUNS / 2])
    }
}
