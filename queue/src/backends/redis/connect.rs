//! Connections to Redis, and what to do where none is made.

use std::time::Duration;

use ::redis::{
    Client, ErrorKind, RedisError, RedisResult,
    aio::{ConnectionManager, ConnectionManagerConfig},
};

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

const ADVICE: &str = "Check that Redis runs there and lets this machine in (`rediss://…` if it \
    speaks TLS); without a server use `sqlite:PATH`";
const ADVICE_TLS: &str = "Check that Redis speaks TLS there and lets this machine in; one without \
    TLS is `redis://…`";

const ADVICE_AUTHORITY: &str = "If a private authority signed the server's certificate, name a file \
    with that authority's certificate in SSL_CERT_FILE";

/// What to do about a connection that is not made.
pub(super) fn advice(url: &str, error: &RedisError) -> &'static str {
    match url.starts_with("rediss:") {
        true if error.to_string().contains("UnknownIssuer") => ADVICE_AUTHORITY,
        true => ADVICE_TLS,
        false => ADVICE,
    }
}

pub(super) async fn connect(client: &Client) -> RedisResult<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_response_timeout(Some(RESPONSE_TIMEOUT))
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        // A worker's supervisor retries too, and a user waits for this call.
        .set_number_of_retries(1)
        .set_max_delay(Duration::from_secs(1));
    client.get_connection_manager_with_config(config).await
}

/// True if the server rejects the password or user, or the user lacks the permission.
pub(super) fn is_refusal(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "NOPERM" | "WRONGPASS"))
}
