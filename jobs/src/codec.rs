//! The envelope of every binary payload: magic, kind, version, length and checksum before the
//! bincode bytes. Bincode is not self-describing; without the envelope a foreign or torn file could
//! decode into plausible but wrong values.

use crate::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};

const MAGIC: &[u8; 4] = b"AGRL";
const HEADER_BYTES: usize = 4 + 4 + 2 + 8 + 32;
/// Larger than any payload; a larger length is damaged or malicious.
const PAYLOAD_BYTES_MAX: u64 = 4 << 30;

/// A payload type and its identification in the envelope.
pub trait Payload: Serialize + DeserializeOwned {
    /// Four letters that identify the kind of payload.
    const KIND: [u8; 4];
    /// Incremented when the wire form changes; old versions stay readable.
    const VERSION: u16 = 1;
}

/// Encodes the bytes after the envelope's header.
pub(crate) fn encode_body<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    bincode::serde::encode_to_vec(value, bincode::config::standard()).map_err(|e| Error::Payload {
        what: "payload".to_owned(),
        message: format!("cannot be encoded: {e}"),
    })
}

/// The kind of payload that bytes claim to be.
pub fn kind(bytes: &[u8]) -> Option<[u8; 4]> {
    let rest = bytes.strip_prefix(MAGIC)?;
    rest.first_chunk().copied()
}

/// Encodes with the envelope.
pub fn encode<T: Payload>(value: &T) -> Result<Vec<u8>> {
    let body = encode_body(value)?;
    let mut out = Vec::with_capacity(HEADER_BYTES + body.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&T::KIND);
    out.extend_from_slice(&T::VERSION.to_le_bytes());
    out.extend_from_slice(&(body.len() as u64).to_le_bytes());
    out.extend_from_slice(blake3::hash(&body).as_bytes());
    out.extend_from_slice(&body);
    Ok(out)
}

/// Decodes and verifies; never allocates more than the input could contain.
pub fn decode<T: Payload>(bytes: &[u8]) -> Result<T> {
    if bytes.len() < HEADER_BYTES || &bytes[..4] != MAGIC {
        return Err(payload_error::<T>("no payload header found".into()));
    }
    let (kind, version) = (&bytes[4..8], u16::from_le_bytes([bytes[8], bytes[9]]));
    if kind != T::KIND {
        return Err(payload_error::<T>(format!(
            "found kind {:?}",
            String::from_utf8_lossy(kind)
        )));
    }
    if version != T::VERSION {
        return Err(payload_error::<T>(format!(
            "found version {version}, this program reads {}; use the program version that wrote it",
            T::VERSION
        )));
    }
    let mut length = [0u8; 8];
    length.copy_from_slice(&bytes[10..18]);
    let length = u64::from_le_bytes(length);
    let body = &bytes[HEADER_BYTES..];
    if length != body.len() as u64 || length > PAYLOAD_BYTES_MAX {
        return Err(payload_error::<T>(format!(
            "header says {length} bytes, {} follow",
            body.len()
        )));
    }
    if blake3::hash(body).as_bytes() != &bytes[18..HEADER_BYTES] {
        return Err(payload_error::<T>(
            "checksum does not match, the payload is damaged".into(),
        ));
    }
    let config = bincode::config::standard().with_limit::<{ PAYLOAD_BYTES_MAX as usize }>();
    let (value, read) = bincode::serde::decode_from_slice(body, config)
        .map_err(|e| payload_error::<T>(format!("cannot be decoded: {e}")))?;
    if read != body.len() {
        return Err(payload_error::<T>(format!(
            "{} bytes left over",
            body.len() - read
        )));
    }
    Ok(value)
}

fn payload_error<T: Payload>(message: String) -> Error {
    Error::Payload {
        what: format!("payload {:?}", String::from_utf8_lossy(&T::KIND)),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
    struct Sample {
        numbers: Vec<u32>,
        text: String,
    }
    impl Payload for Sample {
        const KIND: [u8; 4] = *b"TEST";
    }

    #[test]
    fn round_trip_and_every_kind_of_damage() {
        let value = Sample {
            numbers: vec![1, 300, 70_000],
            text: "plank".into(),
        };
        let bytes = encode(&value).unwrap();
        assert_eq!(decode::<Sample>(&bytes).unwrap(), value);
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x40;
            assert!(
                decode::<Sample>(&bad).is_err(),
                "flip at byte {at} went unnoticed"
            );
            assert!(
                decode::<Sample>(&bytes[..at]).is_err(),
                "cut at byte {at} went unnoticed"
            );
        }
    }
}
