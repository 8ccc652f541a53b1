//! Named, digested outputs of a stage, and the only way to read them: in chunks of 64 MiB, each
//! verified before any of its bytes is returned. So reading a file of any size takes a fixed amount
//! of memory, and a flipped bit is located to its chunk.

use crate::keys::serde_as_text;
use crate::{Error, Key, Result, Store};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Size of the chunks that have their own digest.
pub const CHUNK_BYTES: u64 = 64 << 20;

/// Hashing this many bytes takes about a millisecond; more is hashed on a blocking thread.
const INLINE_BYTES_MAX: usize = 1 << 20;

/// BLAKE3 of an object's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Self {
        Self(*hash.as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        const RULE: &str = "64 lower-case hexadecimal digits";
        let bad = || Error::BadName {
            what: "digest",
            value: text.to_owned(),
            rule: RULE,
        };
        let hash = blake3::Hash::from_hex(text).map_err(|_| bad())?;
        if hash.to_hex().as_str() == text {
            Ok(Self(*hash.as_bytes()))
        } else {
            Err(bad())
        }
    }
}

serde_as_text!(Digest, Digest::from_str);

/// An immutable, named output of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Name inside its commit, e.g. `policy/config.json`.
    pub name: String,
    /// What the artifact is, for people and viewers.
    pub kind: String,
    /// Where it is stored.
    pub key: Key,
    /// Bytes.
    pub size: u64,
    /// Digest of all bytes.
    pub digest: Digest,
    /// Digest of each [`CHUNK_BYTES`]; none for an empty artifact.
    pub chunk_digests: Vec<Digest>,
    /// Set where the object is not these bytes, but how they differ from another artifact's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta: Option<Box<Delta>>,
    /// Set where the object is written after the commit, or never: the bytes can be made again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub after_commit: bool,
}

/// Longest chain that a reader follows.
pub const CHAIN_MAX: usize = 64;

/// Numbers have two or four bytes.
const WIDTHS: [usize; 2] = [2, 4];

/// How an artifact is stored that is not stored whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// What it differs from.
    pub base: Artifact,
    /// Bytes of a number.
    pub width: usize,
    /// Whether it holds the numbers that changed alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sparse: bool,
    /// What is stored of each chunk, one after the other.
    pub frames: Vec<Frame>,
}

/// The compressed difference of a chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Stored bytes.
    pub size: u64,
    /// Their digest.
    pub digest: Digest,
}

impl Delta {
    /// Checks a manifest's claims.
    pub(crate) fn check(&self, of: &Artifact) -> Result<(), String> {
        let name = &of.name;
        let most = u128::from(of.size) + 1024 * self.frames.len() as u128;
        let stored = self.frames.iter().map(|frame| u128::from(frame.size));
        if !WIDTHS.contains(&self.width)
            || self.base.size != of.size
            || self.frames.len() != of.chunk_digests.len()
            || stored.sum::<u128>() > most
        {
            let base = &self.base.name;
            return Err(format!(
                "artifact `{name}` cannot be a difference from `{base}`"
            ));
        }
        self.base.check_alone()
    }

    /// Where the frame of a chunk lies in the object.
    pub(crate) fn place(&self, index: usize) -> Range<u64> {
        let sizes = self.frames.iter().map(|frame| frame.size);
        let begin: u64 = sizes.take(index).sum();
        begin..begin + self.frames[index].size
    }
}

impl Artifact {
    /// Checks a manifest's claims about an artifact; a manifest is untrusted input.
    pub(crate) fn check(&self) -> Result<(), String> {
        check_chain(self)?;
        for link in self.links() {
            if let Some(difference) = &link.delta {
                difference.check(link)?;
            }
        }
        self.check_alone()
    }

    /// [`Artifact::check`] apart from what it differs from.
    pub(crate) fn check_alone(&self) -> Result<(), String> {
        match &self.key {
            Key::File { name, .. } if *name == self.name => {}
            key => return Err(format!("artifact `{}` has the key {key}", self.name)),
        }
        let chunks = self.size.div_ceil(CHUNK_BYTES);
        if self.chunk_digests.len() as u64 != chunks {
            let (name, size, found) = (&self.name, self.size, self.chunk_digests.len());
            return Err(format!(
                "artifact `{name}` of {size} bytes has {found} chunk digests instead of {chunks}"
            ));
        }
        let whole = match self.chunk_digests.as_slice() {
            [] => Digest::of(&[]),
            [only] => *only,
            _ => return Ok(()),
        };
        if whole == self.digest {
            Ok(())
        } else {
            Err(format!("artifact `{}` has two digests", self.name))
        }
    }

    /// This artifact, what it differs from, and so on to one that is stored whole.
    pub fn links(&self) -> impl Iterator<Item = &Artifact> {
        std::iter::successors(Some(self), |of| {
            of.delta.as_ref().map(|difference| &difference.base)
        })
    }

    /// The objects that it is read from.
    pub fn keys(&self) -> BTreeSet<Key> {
        self.links().map(|link| link.key.clone()).collect()
    }

    /// Bytes of its object.
    pub fn stored_size(&self) -> u64 {
        match &self.delta {
            None => self.size,
            Some(difference) => difference.frames.iter().map(|frame| frame.size).sum(),
        }
    }

    /// Number of chunks.
    pub(crate) fn chunks(&self) -> usize {
        self.chunk_digests.len()
    }

    /// The verified bytes of a chunk of an artifact that is stored whole.
    pub(crate) async fn chunk_of_whole(&self, store: &Store, index: usize) -> Result<Bytes> {
        let range = chunk_range(self.size, index);
        let place = if self.chunks() > 1 {
            format!(" in bytes {} to {}", range.start, range.end)
        } else {
            String::new()
        };
        let expected = self.chunk_digests[index];
        self.part(store, range, expected, &place).await
    }

    /// Bytes of its object that have this digest.
    pub(crate) async fn part(
        &self,
        store: &Store,
        range: Range<u64>,
        expected: Digest,
        place: &str,
    ) -> Result<Bytes> {
        let (bytes, whole) = (range.end - range.start, self.stored_size());
        let (size, content) = match store.get_range(&self.key, range).await {
            Ok(found) => found,
            // Stores report a range beyond the end of a truncated object in different ways; the
            // object's size is unambiguous.
            Err(e) => {
                self.check_size_once(store).await?;
                return Err(e);
            }
        };
        if size != whole || content.len() as u64 != bytes {
            return Err(self.of_another_size(size));
        }
        let found = hash(&content).await;
        if found == expected {
            return Ok(content);
        }
        Err(self.damaged(format!("{expected}{place}"), found.to_string()))
    }

    /// Fails if the object is missing or has another size.
    pub(crate) async fn check_size(&self, store: &Store) -> Result<()> {
        store.read_again(|| self.check_size_once(store)).await
    }

    pub(crate) async fn check_size_once(&self, store: &Store) -> Result<()> {
        let expected = self.stored_size();
        let found = match store.size(&self.key).await {
            Ok(size) if size == expected => return Ok(()),
            Ok(_) if self.after_commit => return Err(self.not_stored()),
            Ok(size) => format!("{size} bytes"),
            Err(Error::NotFound { .. }) => match store.tombstone_of(&self.key).await? {
                Some(tombstone) => {
                    return Err(Error::Removed {
                        key: self.key.path(),
                        tombstone: tombstone.path(),
                    });
                }
                None if self.after_commit => return Err(self.not_stored()),
                None => "nothing".to_owned(),
            },
            Err(e) => return Err(e),
        };
        Err(self.damaged(
            format!("{expected} bytes with digest {}", self.digest),
            found,
        ))
    }

    fn not_stored(&self) -> Error {
        let key = self.key.path();
        Error::NotStored { key }
    }

    /// The object has another size. What was to be written after the commit was not written to its end.
    pub(crate) fn of_another_size(&self, size: u64) -> Error {
        match self.after_commit {
            true => self.not_stored(),
            false => self.damaged(
                format!("{} bytes", self.stored_size()),
                format!("{size} bytes"),
            ),
        }
    }

    pub(crate) fn damaged(&self, expected: String, found: String) -> Error {
        let commit = match &self.key {
            Key::File { slot, .. } => Key::Commit(slot.clone()).path(),
            key => key.path(),
        };
        Error::Damaged {
            key: self.key.path(),
            commit,
            expected,
            found,
        }
    }
}

/// The bytes of a chunk.
pub(crate) fn chunk_range(size: u64, index: usize) -> std::ops::Range<u64> {
    let begin = index as u64 * CHUNK_BYTES;
    begin..size.min(begin + CHUNK_BYTES)
}

/// The error of a chain that is longer than a reader follows.
fn check_chain(of: &Artifact) -> Result<(), String> {
    match of.links().nth(CHAIN_MAX + 1) {
        None => Ok(()),
        Some(_) => Err(format!(
            "artifact `{}` is more than {CHAIN_MAX} differences from one that is stored whole",
            of.name
        )),
    }
}

/// Takes bytes into a digest; many are divided over the cores.
pub(crate) fn absorb(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    /// Fewer are faster on one core, by the documentation of `update_rayon`.
    const MANY: usize = 128 << 10;
    match bytes.len() >= MANY {
        true => hasher.update_rayon(bytes),
        false => hasher.update(bytes),
    };
}

/// Digest of `content`, computed without blocking other tasks.
pub(crate) async fn hash(content: &Bytes) -> Digest {
    if content.len() <= INLINE_BYTES_MAX {
        return Digest::of(content);
    }
    let content = content.clone();
    let hashing = tokio::task::spawn_blocking(move || Digest::of(&content));
    hashing
        .await
        .expect("hashing does not panic, and blocking tasks are not cancelled once they run")
}

/// Digests of a stream: of the whole and of each chunk. The first chunk is
/// hashed once for both.
#[derive(Debug, Default)]
pub struct Digesting {
    /// Digest of everything up to the last chunk boundary, from the second chunk on.
    whole: Option<blake3::Hasher>,
    chunk: blake3::Hasher,
    chunk_bytes: u64,
    size: u64,
    chunk_digests: Vec<Digest>,
}

impl Digesting {
    /// Takes the next piece.
    pub(crate) async fn update(mut self, content: Bytes) -> Self {
        if content.len() <= INLINE_BYTES_MAX {
            self.take(&content);
            return self;
        }
        let hashing = tokio::task::spawn_blocking(move || {
            self.take(&content);
            self
        });
        hashing
            .await
            .expect("hashing does not panic, and blocking tasks are not cancelled once they run")
    }

    /// Takes the next piece, on the caller's thread.
    pub fn take(&mut self, mut content: &[u8]) {
        while !content.is_empty() {
            let room = CHUNK_BYTES - self.chunk_bytes;
            let (now, later) = content.split_at(
                content
                    .len()
                    .min(usize::try_from(room).unwrap_or(usize::MAX)),
            );
            absorb(&mut self.chunk, now);
            if let Some(whole) = &mut self.whole {
                absorb(whole, now);
            }
            self.chunk_bytes += now.len() as u64;
            self.size += now.len() as u64;
            if self.chunk_bytes == CHUNK_BYTES {
                self.end_chunk();
            }
            content = later;
        }
    }

    fn end_chunk(&mut self) {
        let chunk = std::mem::take(&mut self.chunk);
        self.chunk_digests
            .push(Digest(*chunk.finalize().as_bytes()));
        self.whole.get_or_insert(chunk);
        self.chunk_bytes = 0;
    }

    /// Digests of the chunks that are whole.
    pub(crate) fn of_chunks(&self) -> &[Digest] {
        &self.chunk_digests
    }

    /// Size, digest and chunk digests.
    pub(crate) fn finish(mut self) -> (u64, Digest, Vec<Digest>) {
        if self.chunk_bytes > 0 {
            self.end_chunk();
        }
        let digest = self.whole.map_or_else(
            || Digest::of(&[]),
            |whole| Digest(*whole.finalize().as_bytes()),
        );
        (self.size, digest, self.chunk_digests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_do_not_change_digests() {
        let chunk = usize::try_from(CHUNK_BYTES).unwrap();
        let content: Bytes = (0..2 * chunk + 3)
            .map(|i| (i % 251) as u8)
            .collect::<Vec<_>>()
            .into();
        for pieces in [1, 7, 64] {
            let mut digesting = Digesting::default();
            let step = content.len().div_ceil(pieces);
            for at in (0..content.len()).step_by(step) {
                digesting = digesting
                    .update(content.slice(at..content.len().min(at + step)))
                    .await;
            }
            let (size, digest, chunks) = digesting.finish();
            assert_eq!(size, content.len() as u64);
            assert_eq!(digest, Digest::of(&content));
            assert_eq!(
                chunks,
                content.chunks(chunk).map(Digest::of).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn small_contents_have_one_digest_or_none() {
        let mut digesting = Digesting::default();
        digesting.take(b"abc");
        let (size, digest, chunks) = digesting.finish();
        assert_eq!((size, chunks), (3, vec![digest]));
        assert_eq!(digest, Digest::of(b"abc"));
        assert_eq!(Digesting::default().finish(), (0, Digest::of(b""), vec![]));
    }

    #[test]
    fn digests_are_lower_case_hexadecimal() {
        let text = Digest::of(b"").to_string();
        assert_eq!(
            text,
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
        assert_eq!(text.parse::<Digest>().unwrap(), Digest::of(b""));
        assert!(text.to_uppercase().parse::<Digest>().is_err());
        assert!(text[1..].parse::<Digest>().is_err());
    }
}
