//! A store of images in one file, with an index after them and a footer that says where the index is:
//! `images [--images 200] [--image-kb 100] [--reads 2000] [--image FILE] [--host DIRECTORY]`.
//!
//! Images arrive as files of their own, in two lots. By pointers, one transaction puts a lot in the place of
//! the index and a new index after it: no image is copied, and no reader sees half of it. By copying, each
//! image is read and written. Then images are read through the index, with frequencies by Zipf's law. The
//! program prints the time of each step, its sync included.

mod measure;
mod storage;

use measure::{ExampleResult, Flags, measured};
use storage::{Storage, StoredFile, make};
use warpfire::{OpenOptions, Warpfire};

const USAGE: &str = "usage: images [--images IMAGES] [--image-kb KILOBYTES] [--reads READS] [--image FILE] [--host DIRECTORY]";
/// Space per byte of an image: for the files, for the store, and for the log until it is cleaned.
const ROOM: u64 = 6;
/// An entry of the index: offset and length of an image, eight bytes each.
const ENTRY_BYTES: usize = 16;
/// The footer: offset of the index and the number of images, eight bytes each.
const FOOTER_BYTES: usize = 16;

/// Images with their lengths, which are drawn at random.
struct ImageJob {
    lens: Vec<u64>,
    reads: u64,
}

/// Random numbers (`SplitMix64`).
struct ImageChoice(u64);

impl ImageChoice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let drawn = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let drawn = (drawn ^ (drawn >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        drawn ^ (drawn >> 31)
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.first_chunk());
    u64::from_le_bytes(*word.expect("the index is as long as the footer says"))
}

fn name(image: usize) -> String {
    format!("image-{image}")
}

impl ImageJob {
    fn image(&self, number: usize) -> Vec<u8> {
        vec![number as u8; usize::try_from(self.lens[number]).expect("an image fits in memory")]
    }

    /// Makes the images as files.
    fn bring(&self, storage: &Storage) -> ExampleResult<Vec<StoredFile>> {
        let file = |number| {
            let file = storage.make(&name(number))?;
            file.write(&self.image(number), 0)?;
            file.settle()?;
            Ok(file)
        };
        (0..self.lens.len()).map(file).collect()
    }

    /// The offset where the first `count` images end, and their index with its footer.
    fn index(&self, count: usize) -> (u64, Vec<u8>) {
        let mut index = Vec::with_capacity(count * ENTRY_BYTES + FOOTER_BYTES);
        let mut at = 0u64;
        for len in &self.lens[..count] {
            index.extend_from_slice(&at.to_le_bytes());
            index.extend_from_slice(&len.to_le_bytes());
            at += len;
        }
        index.extend_from_slice(&at.to_le_bytes());
        index.extend_from_slice(&(count as u64).to_le_bytes());
        (at, index)
    }

    /// The ranges of images that the two lots add.
    fn lots(&self) -> [(usize, usize); 2] {
        let half = self.lens.len() / 2;
        [(0, half), (half, self.lens.len())]
    }

    fn add_by_pointers(&self, pool: &Warpfire) -> ExampleResult<()> {
        make(pool, "by-pointers")?;
        for (from, to) in self.lots() {
            pool.transact(|tx| {
                let store = OpenOptions::new().write(true).append(true).open(tx, "/by-pointers")?;
                store.set_len(self.index(from).0)?;
                for number in from..to {
                    store.append_slice(&tx.open(format!("/{}", name(number)))?.yank(0..u64::MAX)?)?;
                }
                store.append(&self.index(to).1)?;
                Ok(())
            })?;
        }
        Ok(pool.sync()?)
    }

    fn add_by_copying(
        &self,
        storage: &Storage,
        files: &[StoredFile],
        store: &StoredFile,
    ) -> ExampleResult<()> {
        for (from, to) in self.lots() {
            let mut at = self.index(from).0;
            for (file, len) in files.iter().zip(&self.lens).take(to).skip(from) {
                let mut image = vec![0; usize::try_from(*len)?];
                file.read(&mut image, 0)?;
                store.write(&image, at)?;
                at += image.len() as u64;
            }
            store.write(&self.index(to).1, at)?;
        }
        store.settle()?;
        storage.pool().map_or(Ok(()), |pool| Ok(pool.sync()?))
    }

    /// Reads images through the index. The n-th most frequent one is read n times less often than the first.
    fn read(&self, store: &StoredFile, len: u64) -> ExampleResult<()> {
        let mut footer = [0; FOOTER_BYTES];
        store.read(&mut footer, len - FOOTER_BYTES as u64)?;
        let (start, count) = (word(&footer, 0), usize::try_from(word(&footer, 8))?);
        let mut index = vec![0; count * ENTRY_BYTES];
        store.read(&mut index, start)?;

        let mut sum = 0.0;
        let ranks: Vec<f64> = (1..=count)
            .map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            })
            .collect();
        let mut draw = ImageChoice(1);
        for _ in 0..self.reads {
            let drawn = (draw.next() >> 11) as f64 / (1u64 << 53) as f64 * sum;
            let number = ranks.partition_point(|rank| *rank <= drawn).min(count - 1);
            let (at, len) = (word(&index, number * ENTRY_BYTES), word(&index, number * ENTRY_BYTES + 8));
            let mut image = vec![0; usize::try_from(len)?];
            store.read(&mut image, at)?;
            if image.iter().any(|byte| *byte != number as u8) {
                return Err(format!("image {number} differs from the one that was stored").into());
            }
        }
        Ok(())
    }
}

fn main() -> ExampleResult<()> {
    let flags = Flags::parse(&["images", "image-kb", "reads"], USAGE)?;
    let (images, mean) = (flags.number("images", 200)?.max(2), flags.number("image-kb", 100)? * 1000);
    let mut draw = ImageChoice(0);
    let lens = (0..images).map(|_| mean / 2 + draw.next() % mean).collect();
    let job = ImageJob { lens, reads: flags.number("reads", 2000)? };
    let total: u64 = job.lens.iter().sum();
    let pool = flags.pool(ROOM * total)?;
    let len = total + (job.lens.len() * ENTRY_BYTES + FOOTER_BYTES) as u64;

    let mut files = job.bring(&Storage::Pool(pool.clone()))?;
    let by_pointers = measured(Some(&pool), "add by pointers", || job.add_by_pointers(&pool))?;
    let store = StoredFile::Pool(pool.open("/by-pointers")?);
    measured(Some(&pool), "read the store made by pointers", || job.read(&store, len))?;
    for storage in Storage::all(&pool, flags.path("host")) {
        if matches!(storage, Storage::Host(_)) {
            files = job.bring(&storage)?;
        }
        let store = storage.make("by-copying")?;
        let what = format!("add by copying, in {}", storage.name());
        let by_copying = measured(storage.pool(), &what, || job.add_by_copying(&storage, &files, &store))?;
        println!("{:34} {:9.1} times as long", "", by_copying / by_pointers);
        measured(storage.pool(), "read the store made by copying", || job.read(&store, len))?;
        storage.remove("by-copying")?;
        (0..job.lens.len()).try_for_each(|number| storage.remove(&name(number)))?;
    }
    Ok(())
}
