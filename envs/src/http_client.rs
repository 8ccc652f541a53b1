//! What all HTTP clients have in common: their start, and what messages quote.

use std::sync::OnceLock;

/// A client builder with only TLS set up. On a machine without certificates of authorities, as a small
/// container is, it trusts no server over https, and speaks to others as ever.
pub fn http_client() -> reqwest::ClientBuilder {
    static HAS_AUTHORITIES: OnceLock<bool> = OnceLock::new();
    let has_authorities = HAS_AUTHORITIES.get_or_init(|| {
        // An error means that the process already has a provider, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let tried = reqwest::Client::builder().build();
        if let Err(error) = &tried {
            let why = causes(error);
            tracing::warn!("no server is trusted over https ({why}): install ca-certificates");
        }
        tried.is_ok()
    });
    match has_authorities {
        true => reqwest::Client::builder(),
        false => reqwest::Client::builder().tls_certs_only([]),
    }
}

/// How much of an unexpected body a message shows.
pub(crate) const EXCERPT_BYTES: usize = 200;

/// The innermost cause: the operating system's error.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// The beginning of a body, for a message.
pub fn excerpt(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(EXCERPT_BYTES)]);
    let text = text.trim();
    match text {
        "" => "an empty body".to_owned(),
        _ if bytes.len() > EXCERPT_BYTES => format!("{text}…"),
        _ => text.to_owned(),
    }
}
