//! Shared fixture kit of the integration tests.

pub mod s3;
