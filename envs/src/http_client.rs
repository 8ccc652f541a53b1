//! What all HTTP clients have in common: their start, and what messages quote.

/// A client builder with only TLS set up.
pub fn http_client() -> reqwest::ClientBuilder {
    // An error means that the process already has a provider, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
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
