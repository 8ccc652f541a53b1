//! How many turns of a small model run at once. Each step reads the weights, and the keys and values of
//! every row. While a processor's caches hold both, rows are cheap; rows that push each other out of
//! them wait for main memory, and cost more than weights that are read more often.

use crate::Policy;

/// Bytes of keys and values that stay in a processor's caches for each of its threads.
const NEAR_BYTES: usize = 4 << 20;

/// Bytes of weights that stay there beside them, or nearly so.
const NEAR_WEIGHTS: usize = 16 << 20;

/// Fewest rows for which weights are read.
pub(super) const NEAR_ROWS_MIN: usize = 4;

/// Most tokens whose keys and values a step should read. Those of all rows are read anew in each
/// step, like the weights: for weights that no cache holds, more rows are always cheaper.
pub(super) fn near_tokens(policy: &Policy) -> usize {
    let host = &policy.network().host;
    let weights = host.product_bytes();
    if policy.gpu().is_some() || weights > NEAR_WEIGHTS {
        return usize::MAX;
    }
    NEAR_BYTES.max(weights) / host.cache_token_bytes()
}
