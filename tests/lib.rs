//! Shared fixture kit of the integration tests.
