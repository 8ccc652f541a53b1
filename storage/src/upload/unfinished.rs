//! What an attempt says of its uploads in its journal, so that a later attempt at the same part sends
//! only what is missing. Stages are deterministic: the later attempt makes the same bytes. Their
//! digests show whether it has.

use crate::backend::PART_BYTES;
use crate::{CHUNK_BYTES, Digest, Key, PartKey, Result, folder};
use bytes::Bytes;
use object_store::MultipartId;
use object_store::multipart::PartId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Parts of a chunk, which has its own digest.
pub(super) const PARTS_OF_CHUNK: usize = CHUNK_BYTES as usize / PART_BYTES;
/// Larger notes are not ours.
const NOTE_BYTES_MAX: usize = 64 << 10;

/// A note in a journal: the server has a chunk of an object.
#[derive(Serialize, Deserialize)]
pub(super) struct Note {
    /// The object, in the folder of the attempt that began the upload.
    pub(super) key: Key,
    /// The server's name of the upload.
    pub(super) upload: MultipartId,
    /// Index of the chunk.
    pub(super) chunk: usize,
    /// Digest of the chunk.
    pub(super) digest: Digest,
    /// The server's names of its parts.
    pub(super) parts: Vec<String>,
}

impl Note {
    pub(super) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self).expect("a note is text").into()
    }

    fn read(content: &[u8]) -> Option<Self> {
        let is_ours = |note: &Self| (1..=PARTS_OF_CHUNK).contains(&note.parts.len());
        if content.len() > NOTE_BYTES_MAX {
            return None;
        }
        serde_json::from_slice(content).ok().filter(is_ours)
    }
}

/// An upload that an earlier attempt began: its server has the first `bytes` of a file.
pub(crate) struct Unfinished {
    /// The object, in the folder of that attempt.
    pub(crate) key: Key,
    /// Bytes that need not be sent.
    pub(crate) bytes: u64,
    pub(super) upload: MultipartId,
    pub(super) parts: Vec<PartId>,
    pub(super) chunks: usize,
}

impl Unfinished {
    /// The upload of the file at `path` that has come furthest, among those that `notes` of earlier
    /// attempts at this part name under the same name.
    pub(crate) async fn find(
        notes: &[Bytes],
        slot: &PartKey,
        name: &str,
        path: &Path,
        size: u64,
    ) -> Result<Option<Self>> {
        let of_file = |key: &Key| matches!(key, Key::File { slot: of, name: named, .. } if of == slot && named == name);
        let mut uploads: BTreeMap<_, BTreeMap<usize, Note>> = BTreeMap::new();
        for note in notes {
            if let Some(note) = Note::read(note).filter(|note| of_file(&note.key)) {
                let upload = (note.key.clone(), note.upload.clone());
                uploads.entry(upload).or_default().insert(note.chunk, note);
            }
        }
        let mut found = Vec::new();
        for ((key, upload), notes) in uploads {
            let in_order = (0..).zip(notes).take_while(|(at, (chunk, _))| at == chunk);
            let notes: Vec<Note> = in_order.map(|(_, (_, note))| note).collect();
            let digests: Vec<Digest> = notes.iter().map(|note| note.digest).collect();
            let chunks = notes.len();
            let bytes = size.min(chunks as u64 * CHUNK_BYTES);
            let parts = notes.into_iter().flat_map(|note| note.parts);
            let parts: Vec<PartId> = parts.map(|content_id| PartId { content_id }).collect();
            if parts.len() as u64 == bytes.div_ceil(PART_BYTES as u64)
                && folder::begins_with(path, digests).await?
            {
                found.push(Self {
                    key,
                    bytes,
                    upload,
                    parts,
                    chunks,
                });
            }
        }
        Ok(found.into_iter().max_by_key(|upload| upload.bytes))
    }
}
