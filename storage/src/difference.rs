//! An artifact that is stored as its difference from an earlier one of the same size: numbers are
//! subtracted, those that changed are put side by side, and zstd compresses them. Each chunk is a
//! frame of its own, so chunks are read one by one here too.
//!
//! What an artifact differs from may itself be a difference. A chain ends at an artifact that is stored
//! whole, or at a copy on this machine.

use crate::artifact::{Digesting, chunk_range, hash};
use crate::near::{CHUNKS_AT_ONCE, Near, read_part};
use crate::{Artifact, CHUNK_BYTES, Delta, Digest, Error, Frame, Result, Store};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use std::path::Path;
use tokio::io::AsyncWriteExt;

/// What zstd spends; more changes little where most bytes are zero.
const LEVEL: i32 = 1;

impl Artifact {
    /// The verified bytes of one chunk.
    pub(crate) async fn chunk(&self, store: &Store, index: usize) -> Result<Bytes> {
        self.chunk_near(store, None, index).await
    }

    /// The same, where this machine has a copy of what it differs from.
    pub(crate) async fn chunk_near(
        &self,
        store: &Store,
        near: Option<&Near>,
        index: usize,
    ) -> Result<Bytes> {
        store
            .read_again(|| async {
                match self.delta.is_some() || near.is_some() {
                    true => self.chunk_by_links(store, near, index).await,
                    false => self.chunk_of_whole(store, index).await,
                }
            })
            .await
    }

    /// The verified bytes of a chunk, read from the end of the chain, or from where `near` is.
    pub(crate) async fn chunk_by_links(
        &self,
        store: &Store,
        near: Option<&Near>,
        index: usize,
    ) -> Result<Bytes> {
        let mut links: Vec<&Artifact> = self.links().collect();
        let mut content = Bytes::new();
        if let Some(near) = near
            && let Some((link, here)) = near.chunk(index).await
        {
            links.truncate(link);
            content = here;
        }
        links.reverse();
        let mut stored = stream::iter(0..links.len())
            .map(|at| links[at].stored_chunk(store, index))
            .buffered(links_at_once(&links, index));
        while let Some((link, bytes)) = stored.try_next().await? {
            let Some(difference) = &link.delta else {
                content = bytes;
                continue;
            };
            let (width, is_sparse) = (difference.width, difference.sparse);
            let adding =
                tokio::task::spawn_blocking(move || decode(&bytes, content, width, is_sparse));
            let added = adding
                .await
                .expect("it does not panic, and is not cancelled once it runs");
            content =
                added.map_err(|why| link.damaged(format!("a difference of chunk {index}"), why))?;
        }
        let found = hash(&content).await;
        if found != self.chunk_digests[index] {
            let expected = format!("{} in chunk {index}", self.chunk_digests[index]);
            return Err(self.damaged(expected, found.to_string()));
        }
        Ok(content)
    }

    /// What is stored of a chunk: its bytes, or the frame of its difference.
    async fn stored_chunk(&self, store: &Store, index: usize) -> Result<(&Self, Bytes)> {
        let Some(difference) = &self.delta else {
            return Ok((self, self.chunk_of_whole(store, index).await?));
        };
        let digest = difference.frames[index].digest;
        let place = format!(" in the difference of chunk {index}");
        let range = difference.place(index);
        Ok((self, self.part(store, range, digest, &place).await?))
    }
}

/// How many links of a chain are read at once: frames of a chunk wait on a line for the chunks before them,
/// and are small. Those that are not take no more memory than a chunk.
fn links_at_once(links: &[&Artifact], index: usize) -> usize {
    let differences = links.iter().filter_map(|link| link.delta.as_ref());
    let sizes = differences.map(|difference| difference.frames[index].size);
    let count = links.len() as u64;
    let fit = CHUNK_BYTES * count / sizes.sum::<u64>().max(1);
    1 + fit.clamp(1, count.max(1)) as usize
}

/// A difference that takes more than so many tenths of the bytes is not worth reading two objects.
const WORTH_TENTHS: usize = 8;

/// Writes how a file differs from `base` into `to`; `None` where that is hardly smaller.
pub(crate) async fn compare(
    store: &Store,
    path: &Path,
    base: &Artifact,
    width: usize,
    near: Option<&Near>,
    to: &Path,
) -> Result<Option<((u64, Digest, Vec<Digest>), Delta)>> {
    let unwritten = |e| Error::local("write", to, e);
    let mut file = tokio::fs::File::create(to).await.map_err(unwritten)?;
    let mut difference = Delta {
        base: base.clone(),
        width,
        sparse: true,
        frames: Vec::new(),
    };
    let mut digesting = Digesting::default();
    let (mut read, mut written) = (0, 0);
    let mut chunks = stream::iter(0..base.chunk_digests.len())
        .map(|index| async move {
            let old = base.chunk_near(store, near, index).await?;
            let (path, range) = (path.to_owned(), chunk_range(base.size, index));
            let compared = tokio::task::spawn_blocking(move || {
                let own = read_part(&path, range)?;
                let frame = encode(&own, &old, width)?;
                let of = Frame {
                    size: frame.len() as u64,
                    digest: Digest::of(&frame),
                };
                Ok((Bytes::from(own), frame, of))
            });
            let compared = compared
                .await
                .expect("it does not panic, and is not cancelled once it runs");
            compared.map_err(unwritten)
        })
        .buffered(CHUNKS_AT_ONCE);
    while let Some((own, frame, of)) = chunks.try_next().await? {
        (read, written) = (read + own.len(), written + frame.len());
        if written > read / 10 * WORTH_TENTHS {
            return Ok(None);
        }
        digesting = digesting.update(own).await;
        difference.frames.push(of);
        file.write_all(&frame).await.map_err(unwritten)?;
    }
    file.flush().await.map_err(unwritten)?;
    Ok(Some((digesting.finish(), difference)))
}

/// The compressed difference of two chunks of the same length.
fn encode(own: &[u8], base: &[u8], width: usize) -> std::io::Result<Vec<u8>> {
    let changes = match width {
        2 => subtract::<2>(own, base),
        _ => subtract::<4>(own, base),
    };
    zstd::bulk::compress(&changes, LEVEL)
}

/// The chunk whose difference from `base` this is, in the memory of `base` where nobody else reads it. It is
/// never longer than `base`, whatever the frame says.
fn decode(frame: &[u8], base: Bytes, width: usize, is_sparse: bool) -> Result<Bytes, String> {
    let most = match is_sparse {
        true => base.len() + map_bytes(base.len() / width),
        false => base.len(),
    };
    let changes = zstd::bulk::decompress(frame, most).map_err(|e| e.to_string())?;
    let mut own = (base.try_into_mut()).unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    let added = match (is_sparse, width) {
        (true, 2) => add::<2>(&changes, &mut own),
        (true, _) => add::<4>(&changes, &mut own),
        (false, 2) => add_to_all::<2>(&changes, &mut own),
        (false, _) => add_to_all::<4>(&changes, &mut own),
    };
    let unlike = || format!("one of {} bytes for {}", changes.len(), own.len());
    added.ok_or_else(unlike)?;
    Ok(own.freeze())
}

/// Numbers of `W` bytes, little-endian, as integers: floats that lie close are integers that do.
fn number<const W: usize>(bytes: &[u8; W]) -> u32 {
    let mut wide = [0; 4];
    wide[..W].copy_from_slice(bytes);
    u32::from_le_bytes(wide)
}

/// Adds how far a number is from what it was: entry `at` of `runs`, whose sign is in the lowest bit.
fn move_by<const W: usize>(bytes: &mut [u8; W], runs: &[u8], at: usize) {
    let count = runs.len() / W;
    let byte = |k: usize| u32::from(runs[k * count + at]) << (8 * k);
    let folded = (0..W).fold(0, |folded, k| folded | byte(k));
    let apart = (folded >> 1) ^ (folded & 1).wrapping_neg();
    let own = number(bytes).wrapping_add(apart).to_le_bytes();
    bytes.copy_from_slice(&own[..W]);
}

/// Numbers of which one word says which ones changed.
const WORD: usize = u64::BITS as usize;

/// Bytes of the map of so many numbers.
fn map_bytes(numbers: usize) -> usize {
    numbers.div_ceil(WORD) * size_of::<u64>()
}

/// Own − base: a map with a bit for each number that changed; of those alone how far they are apart,
/// byte k of all of them as one run; bytes behind the last number as they are.
fn subtract<const W: usize>(own: &[u8], base: &[u8]) -> Vec<u8> {
    let shift = 32 - 8 * W as u32;
    let (own, rest) = own.as_chunks::<W>();
    let (base, _) = base.as_chunks::<W>();
    let mut changes = Vec::with_capacity(map_bytes(own.len()) + own.len() / WORD);
    let mut runs = [const { Vec::new() }; W];
    for (own, base) in own.chunks(WORD).zip(base.chunks(WORD)) {
        let mut map = 0_u64;
        if own != base {
            for (at, (own, base)) in own.iter().zip(base).enumerate() {
                if own != base {
                    map |= 1 << at;
                    let apart = (number(own).wrapping_sub(number(base)) << shift) as i32 >> shift;
                    let folded = ((apart << 1) ^ (apart >> 31)).to_le_bytes();
                    for (run, byte) in runs.iter_mut().zip(folded) {
                        run.push(byte);
                    }
                }
            }
        }
        changes.extend_from_slice(&map.to_le_bytes());
    }
    changes.extend(runs.iter().flatten());
    changes.extend_from_slice(rest);
    changes
}

/// The inverse of [`subtract`]: makes what was `base` there its `own`. `None` where the changes are not of
/// so many numbers.
fn add<const W: usize>(changes: &[u8], base: &mut [u8]) -> Option<()> {
    let (numbers, rest) = base.as_chunks_mut::<W>();
    let (map, runs) = changes.split_at_checked(map_bytes(numbers.len()))?;
    let (map, _) = map.as_chunks();
    let map = map.iter().map(|word| u64::from_le_bytes(*word));
    let count: usize = map.clone().map(|word| word.count_ones() as usize).sum();
    let (runs, last) = runs.split_at_checked(count * W)?;
    if last.len() != rest.len() {
        return None;
    }
    let mut next = 0;
    for (numbers, mut word) in numbers.chunks_mut(WORD).zip(map) {
        while word != 0 {
            let changed = numbers.get_mut(word.trailing_zeros() as usize)?;
            move_by(changed, runs, next);
            next += 1;
            word &= word - 1;
        }
    }
    rest.copy_from_slice(last);
    Some(())
}

/// [`add`] for a difference that is not sparse: of every number, byte k of all of them as one run. Programs
/// of 2026-11-29 wrote it.
fn add_to_all<const W: usize>(runs: &[u8], base: &mut [u8]) -> Option<()> {
    if runs.len() != base.len() {
        return None;
    }
    let (numbers, rest) = base.as_chunks_mut::<W>();
    rest.copy_from_slice(&runs[W * numbers.len()..]);
    for (at, number) in numbers.iter_mut().enumerate() {
        move_by(number, runs, at);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::location;
    use crate::testing::slot;
    use crate::{AttemptId, CHAIN_MAX, Inputs, Key, Manifest, Outputs};
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;
    use proptest::prelude::*;
    use std::sync::Arc;

    proptest! {
        #[test]
        fn what_is_added_is_what_was_subtracted(
            (base, changes) in (0..5000_usize).prop_flat_map(|bytes| (
                prop::collection::vec(any::<u8>(), bytes),
                prop::collection::vec((0..=bytes, any::<u8>()), 0..2 * bytes + 1),
            )),
        ) {
            let mut own = base.clone();
            for (at, byte) in changes {
                if let Some(own) = own.get_mut(at) {
                    *own = byte;
                }
            }
            for width in [2, 4] {
                let frame = encode(&own, &base, width).unwrap();
                let made = decode(&frame, base.clone().into(), width, true).unwrap();
                prop_assert_eq!(&made[..], &own[..]);
            }
        }
    }

    #[test]
    fn close_numbers_take_few_bytes_and_a_bomb_takes_none() {
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        let base: Vec<u8> = (0..200_000)
            .flat_map(|_| ((0x3c00 + (random() & 0x83ff)) as u16).to_le_bytes())
            .collect();
        let mut own = base.clone();
        for at in (0..own.len()).step_by(2 * 64) {
            own[at] = own[at].wrapping_add(1);
        }
        let frame = encode(&own, &base, 2).unwrap();
        assert!(frame.len() < own.len() / 50, "{}", frame.len());
        let bomb = zstd::bulk::compress(&vec![0; 1 << 24], LEVEL).unwrap();
        assert!(bomb.len() < 2000);
        assert!(decode(&bomb, base.clone().into(), 2, true).is_err());
        assert!(decode(&frame[..frame.len() - 1], base.clone().into(), 2, true).is_err());
        assert!(decode(&frame, base[2 * WORD..].to_vec().into(), 2, true).is_err());
    }

    /// 41 bytes, and them with some changed.
    fn small() -> (Vec<u8>, Vec<u8>) {
        let base: Vec<u8> = (0..41_u8).map(|at| at.wrapping_mul(37)).collect();
        let mut own = base.clone();
        (own[4], own[21], own[40]) = (9, own[21] ^ 0x80, 7);
        (own, base)
    }

    #[test]
    fn frames_of_all_numbers_are_read() {
        let two = [
            40, 181, 47, 253, 32, 41, 229, 0, 0, 152, 0, 0, 21, 0, 255, 0, 1, 0, 255, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 7, 3, 16, 0, 3, 111, 60, 16, 1,
        ];
        let four = [
            40, 181, 47, 253, 32, 41, 141, 0, 0, 64, 0, 21, 0, 1, 0, 1, 0, 7, 3, 16, 0, 7, 230,
            152, 24, 2,
        ];
        let (own, base) = small();
        for (frame, width) in [(&two[..], 2), (&four[..], 4)] {
            let read = decode(frame, base.clone().into(), width, false).unwrap();
            assert_eq!(read, own, "{width}");
            assert!(decode(frame, base.clone().into(), width, true).is_err());
            assert!(decode(frame, base[1..].to_vec().into(), width, false).is_err());
        }
    }

    #[test]
    fn changes_of_other_numbers_than_there_are_are_refused() {
        let (own, base) = small();
        let changes = subtract::<2>(&own, &base);
        let read = |changes: &[u8]| add::<2>(changes, &mut base.clone());
        assert_eq!(read(&changes), Some(()));
        assert_eq!(changes.len(), 8 + 2 * 2 + 1);
        for (at, byte) in [(0, 0xff), (0, 0), (7, 1), (2, 0x10)] {
            let mut wrong = changes.clone();
            wrong[at] = byte;
            assert_eq!(read(&wrong), None, "{byte} at {at}");
        }
        for length in [0, 7, 8, changes.len() - 1] {
            assert_eq!(read(&changes[..length]), None, "{length}");
        }
        // As many as there are, of which one lies behind the last.
        let mut behind = changes.clone();
        (behind[0], behind[3]) = (0, 1 << 7);
        assert_eq!(read(&behind), None);
    }

    const NAME: &str = "policy/model.safetensors";

    async fn written(
        store: &Store,
        number: u32,
        content: &[u8],
        from: Option<(&Artifact, &Inputs)>,
    ) -> Artifact {
        let attempt = AttemptId {
            number,
            nonce: "00000001".into(),
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        std::fs::write(&path, content).unwrap();
        let mut outputs = Outputs::new(store.clone(), slot(), attempt);
        match from {
            None => outputs.file(NAME, "policy", &path).await,
            Some((base, inputs)) => {
                (outputs.differing(NAME, "policy", &path, base, 2, inputs)).await
            }
        }
        .unwrap()
        .clone()
    }

    fn inputs(store: &Store, artifact: &Artifact, cache: &Path) -> Inputs {
        let Key::File { slot, attempt, .. } = artifact.key.clone() else {
            panic!("it is a file");
        };
        let manifest = Manifest::new(slot, attempt, vec![artifact.clone()]);
        // As it is read back.
        let manifest = Manifest::from_bytes(&manifest.to_bytes().unwrap()).unwrap();
        let commits = vec![("policy".to_owned(), manifest)];
        Inputs::new(store.clone(), commits, cache)
    }

    /// Three policies in a chain: each is read from the store alone; who has the one before reads no
    /// more than the difference; a link that is gone or damaged is named.
    #[tokio::test]
    async fn a_chain_is_read_from_its_end_or_from_where_this_machine_has_it() {
        let objects: Arc<InMemory> = Arc::default();
        let store = Store::over(objects.clone(), "memory:");
        let caches = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let mut contents: Vec<Vec<u8>> =
            vec![(0..90_001u32).map(|i| (i % 251 * (i % 97)) as u8).collect()];
        let mut chain = vec![written(&store, 1, &contents[0], None).await];
        for number in 2..4 {
            let mut content = contents.last().unwrap().clone();
            (content.iter_mut().step_by(700)).for_each(|byte| *byte ^= number as u8);
            let from = inputs(&store, chain.last().unwrap(), caches[0].path());
            let base = chain.last().unwrap();
            let next = written(&store, number, &content, Some((base, &from))).await;
            assert!(next.stored_size() < 4000, "{}", next.stored_size());
            assert_eq!(next.digest, Digest::of(&content));
            contents.push(content);
            chain.push(next);
        }
        let read = async |of: usize, cache: &Path| {
            let folder = inputs(&store, &chain[of], cache)
                .folder("policy", "policy")
                .await?;
            Ok(std::fs::read(folder.path().join("model.safetensors")).unwrap())
        };
        let got: crate::Result<_> = read(2, caches[0].path()).await;
        assert!(got.unwrap() == contents[2]);
        let bytes = inputs(&store, &chain[2], caches[1].path())
            .bytes("policy", NAME)
            .await;
        assert!(bytes.unwrap() == contents[2]);
        assert_eq!(chain[2].links().count(), 3);
        assert!(chain[2].keys().len() == 3 && chain[0].keys().len() == 1);

        // This machine has the second; the first, which has expired, is not asked for.
        assert!(read(1, caches[1].path()).await.unwrap() == contents[1]);
        objects
            .delete(&location(&chain[0].key).unwrap())
            .await
            .unwrap();
        assert!(read(2, caches[1].path()).await.unwrap() == contents[2]);
        // A copy that is damaged is no copy.
        let copy = std::fs::read_dir(caches[1].path()).unwrap().flatten();
        for entry in copy.filter(|entry| entry.path().is_dir()) {
            let noise = vec![7; contents[0].len()];
            std::fs::write(entry.path().join("model.safetensors"), noise).unwrap();
        }
        let wanted = chain[0].key.to_string();
        for cache in [&caches[1], &caches[2]] {
            let said = read(2, cache.path()).await.unwrap_err().to_string();
            assert!(said.contains(&wanted), "{said}");
        }

        let whole = Bytes::from(contents[0].clone());
        store.create(&chain[0].key, whole).await.unwrap();
        let second = location(&chain[1].key).unwrap();
        let stored = objects.get(&second).await.unwrap().bytes().await.unwrap();
        let mut flipped = stored.to_vec();
        flipped[stored.len() / 2] ^= 1;
        for bad in [flipped.into(), stored.slice(1..)] {
            objects.put(&second, bad.into()).await.unwrap();
            let said = read(2, caches[2].path()).await.unwrap_err().to_string();
            assert!(said.contains(&chain[1].key.to_string()), "{said}");
        }
    }

    /// What differs in most places is stored whole, and claims that cannot be true are refused.
    #[tokio::test]
    async fn a_difference_is_smaller_or_is_none() {
        let store = Store::open("memory:").await.unwrap();
        let cache = tempfile::tempdir().unwrap();
        let noise = |seed: u32| -> Vec<u8> {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            (0..50_000).map(|_| next()).collect()
        };
        let base = written(&store, 1, &noise(1), None).await;
        let from = inputs(&store, &base, cache.path());
        let other = written(&store, 2, &noise(2), Some((&base, &from))).await;
        assert!(other.delta.is_none() && other.size == 50_000);
        let longer = written(&store, 3, &[0; 50_002], Some((&base, &from))).await;
        assert!(longer.delta.is_none());
        let same = written(&store, 4, &noise(1), Some((&base, &from))).await;
        assert!(same.delta.is_some() && same.stored_size() < 100);
        let spoil: [fn(&mut Delta); 4] = [
            |of| of.width = 3,
            |of| of.base.size += 1,
            |of| of.frames[0].size = 1 << 40,
            |of| of.frames.clear(),
        ];
        for spoil in spoil {
            let mut bad = same.clone();
            spoil(bad.delta.as_mut().unwrap());
            let said = bad.check().unwrap_err();
            assert!(said.contains("cannot be a difference"), "{said}");
        }
        let mut long = same.clone();
        for _ in 0..CHAIN_MAX {
            let mut next = same.clone();
            next.delta.as_mut().unwrap().base = long;
            long = next;
        }
        assert!(long.check().unwrap_err().contains("64 differences"));
    }
}
