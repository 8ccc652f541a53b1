//! What Redis runs in one piece.

pub(super) const RENEW: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('PEXPIRE', KEYS[1], ARGV[2]) else return 0 end";

pub(super) const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('DEL', KEYS[1]) else return 0 end";

pub(super) const PURGE: &str = "local ids = redis.call('SPOP', KEYS[1], ARGV[1])
    for _, id in ipairs(ids) do
        redis.call('HDEL', KEYS[2], id)
        redis.call('DEL', KEYS[3] .. ':' .. id)
    end
    return #ids";

/// Jobs that wait, run, or are done and not yet deleted have data. A push writes the data first and
/// the lane's name afterwards, so no job is forgotten.
pub(super) const RETIRE: &str = "if redis.call('HLEN', KEYS[2]) == 0 then
        redis.call('SREM', KEYS[1], ARGV[1])
        redis.call('EXPIRE', KEYS[3], ARGV[2])
    end";

/// By the server's clock: a worker's may be wrong.
pub(super) const PRESENT: &str = "local now = tonumber(redis.call('TIME')[1])
    redis.call('ZADD', KEYS[1], now, ARGV[1])
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
    redis.call('EXPIRE', KEYS[1], ARGV[2])";
