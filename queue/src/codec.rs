//! The wire format of a job. No bytes found in a queue can stop a worker.
//!
//! apalis ends a worker when a payload cannot be decoded, and then hands the same payload to the
//! next one. So decoding here is total: bytes that are not a job become [`Payload::Poison`], which
//! a worker reports and acks.

use std::convert::Infallible;

use apalis_core::backend::codec::Codec;
use serde::{Deserialize, Serialize};

use crate::job::Job;

/// Far above the size of any job; a longer payload is foreign or hostile.
const PAYLOAD_MAX_BYTES: usize = 4096;

/// Versions of the payload. During an update workers of two releases may share a queue, so variants
/// are only added, never changed.
#[derive(Serialize, Deserialize)]
enum JobV {
    V1(Job),
}

/// A payload found in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// A job in a version that this program knows.
    Job(Job),
    /// Anything else.
    Poison {
        /// Its length, to tell an empty payload from a foreign one in the log.
        bytes: usize,
        /// Why it is not a job.
        reason: String,
    },
}

/// bincode 2 behind apalis' codec trait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JobCodec;

/// The bytes of a job, or the reason why it cannot be encoded.
pub(crate) fn encode(job: &Job) -> Result<Vec<u8>, String> {
    let config = bincode::config::standard().with_limit::<PAYLOAD_MAX_BYTES>();
    let bytes = bincode::serde::encode_to_vec(JobV::V1(job.clone()), config)
        .map_err(|error| error.to_string())?;
    if bytes.len() > PAYLOAD_MAX_BYTES {
        return Err(format!(
            "it takes {} bytes, a payload may have {PAYLOAD_MAX_BYTES}",
            bytes.len()
        ));
    }
    Ok(bytes)
}

pub(crate) fn decode(bytes: &[u8]) -> Payload {
    let poison = |reason: String| Payload::Poison {
        bytes: bytes.len(),
        reason,
    };
    let config = bincode::config::standard().with_limit::<PAYLOAD_MAX_BYTES>();
    match bincode::serde::decode_from_slice::<JobV, _>(bytes, config) {
        Ok((JobV::V1(job), used)) if used == bytes.len() => Payload::Job(job),
        Ok((_, used)) => poison(format!("a job ends after {used} bytes")),
        Err(error) => poison(error.to_string()),
    }
}

impl Codec<Payload> for JobCodec {
    type Compact = Vec<u8>;
    type Error = Infallible;

    /// Required by the trait but unused: jobs are pushed as bytes.
    fn encode(&self, payload: &Payload) -> Result<Vec<u8>, Infallible> {
        Ok(match payload {
            Payload::Job(job) => encode(job).unwrap_or_default(),
            Payload::Poison { .. } => Vec::new(),
        })
    }

    fn decode(&self, bytes: &Vec<u8>) -> Result<Payload, Infallible> {
        Ok(decode(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job() -> Job {
        Job {
            run: "maze-1a2b".into(),
            iteration: 12,
            stage: "log_probs".into(),
            part: 7,
            offer: 2,
        }
    }

    /// The wire format of V1, byte for byte: queues outlive releases.
    #[test]
    fn v1_is_golden() {
        let bytes = encode(&job()).unwrap();
        let mut golden = vec![0, 9];
        golden.extend(b"maze-1a2b");
        golden.extend([12, 9]);
        golden.extend(b"log_probs");
        golden.extend([7, 2]);
        assert_eq!(bytes, golden);
        assert_eq!(decode(&bytes), Payload::Job(job()));
    }

    #[test]
    fn trailing_bytes_and_unknown_versions_are_poison() {
        let mut bytes = encode(&job()).unwrap();
        bytes.push(0);
        assert!(matches!(decode(&bytes), Payload::Poison { .. }));
        bytes.pop();
        bytes[0] = 1;
        assert!(matches!(decode(&bytes), Payload::Poison { .. }));
    }

    #[test]
    fn a_job_that_is_too_long_is_refused() {
        let long = Job {
            run: "r".repeat(PAYLOAD_MAX_BYTES),
            ..job()
        };
        assert!(encode(&long).is_err());
    }

    proptest! {
        #[test]
        fn round_trip(run in ".{0,40}", iteration: u32, stage in "[a-z_]{1,20}", part: u32, offer: u32) {
            let job = Job { run, iteration, stage, part, offer };
            prop_assert_eq!(decode(&encode(&job).unwrap()), Payload::Job(job));
        }

        /// Decoding neither panics nor allocates by unverified length fields.
        #[test]
        fn any_bytes_decode(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            decode(&bytes);
        }
    }
}
